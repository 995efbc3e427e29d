"""A folder that follows the store, and the store the folder: what a person edits in a page is applied.

Beside the pages stands a list of what they were when they were last the same as the store. A page that is not what
it was then has been edited; a memory that is not was changed in the store; where both are so, the store's stays,
and the person's page is put aside.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from memory_extproc.errors import GiveUpError
from memory_extproc.model import ImportReport
from memory_extproc.portability.folder import Folder, Mirrored, list_pages, read_folder
from memory_extproc.portability.json_lines import Refused
from memory_extproc.portability.markdown import id_at, page_of, place_of
from memory_extproc.portability.record import Record

LIST: Final = ".memory-sync.json"
EDITED: Final = ".edited"  # added to the name of a page that was put aside


class Remote(Protocol):
    """The store, from afar."""

    def records(self) -> Iterator[Record]:
        """Every memory. What it raises ends the round, and the folder stays as it was."""

    def bring(self, records: Sequence[Record]) -> ImportReport:
        """Takes these in, in place of what is there under their ids."""

    def forget(self, ids: Sequence[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Synced:
    """One round. *problems* are (place, why) of what was not applied."""

    applied: int
    forgotten: int
    mirrored: Mirrored
    problems: tuple[tuple[str, str], ...] = ()


class FolderSync:
    """Rounds over the folder *root*. With *deletions*, a page that was removed is a memory to be forgotten."""

    def __init__(self, root: Path, remote: Remote, *, deletions: bool = False) -> None:
        self._root, self._remote, self._deletions = root, remote, deletions

    def edited(self) -> bool:
        """Whether anything in the folder is not as the last round left it. Asks nobody."""
        return self._edits(self._listed()).there

    def round(self) -> Synced:
        """Applies what was edited, then writes down what the store has. What could not be applied stays in its page
        as the person wrote it."""
        listed = self._listed()
        edits = self._edits(listed)
        problems = {PurePosixPath(one.place): one.reason for one in edits.refused}
        applied = forgotten = 0
        taken: list[PurePosixPath] = []
        if edits.records or edits.removed:
            conflicting = self._conflicting(edits, listed)
            brought = [place for place in edits.records if place not in conflicting]
            refused = self._refused(brought, edits.records)
            problems |= refused
            taken = [place for place in brought if place not in refused]
            applied = len(taken)
            gone = [place for place in edits.removed if place not in conflicting and id_at(place)]
            if gone and self._deletions:
                self._remote.forget([id_at(place) for place in gone])
                forgotten = len(gone)
            for place in conflicting:
                problems[place] = f"changed in the store too; what you wrote is in {self._put_aside(place)}"
        unfinished = {str(place) for place in problems if (self._root / place).exists()}
        mirrored = self._mirrored(unfinished, taken)
        return Synced(applied, forgotten, mirrored, tuple((str(place), why) for place, why in problems.items()))

    def _edits(self, listed: dict[str, str]) -> _Edits:
        found = {place: _digest((self._root / place).read_bytes()) for place in list_pages(self._root)}
        changed = [place for place, digest in found.items() if listed.get(str(place)) != digest]
        edits = _Edits({}, [], [place for name in listed if (place := PurePosixPath(name)) not in found])
        for place, read in read_folder(self._root, changed):
            if isinstance(read, Refused):
                edits.refused.append(read)
            else:
                edits.records[place] = read
        return edits

    def _conflicting(self, edits: _Edits, listed: dict[str, str]) -> set[PurePosixPath]:
        """Places of edits whose memory is not any more what the folder last saw."""
        wanted = {*edits.records, *edits.removed}
        return {
            place
            for record in self._remote.records()
            if (place := place_of(record)) in wanted
            and listed.get(str(place), "") not in {"", _digest(page_of(record))}
        }

    def _refused(
        self, places: Sequence[PurePosixPath], records: dict[PurePosixPath, Record]
    ) -> dict[PurePosixPath, str]:
        """Has the store take what stands at *places*; which it did not, and why."""
        if not places:
            return {}
        report = self._remote.bring([records[place] for place in places])
        return {places[one.index]: one.message for one in report.problems}

    def _mirrored(self, unfinished: Collection[str], taken: Collection[PurePosixPath]) -> Mirrored:
        listed: dict[str, str] = {}
        with Folder(self._root) as folder:
            for record in self._remote.records():
                place = str(place_of(record))
                if place not in unfinished:
                    folder.put(record)
                    listed[place] = _digest(page_of(record))
            for new in taken:
                # A new page was taken in, and stands under its own id now.
                if str(new) not in listed:
                    (self._root / new).unlink(missing_ok=True)
            mirrored = folder.mirror(keep=unfinished)
        self._write(listed)
        return mirrored

    def _put_aside(self, place: PurePosixPath) -> str:
        aside = place.with_name(place.name + EDITED)
        if (self._root / place).exists():
            (self._root / place).rename(self._root / aside)
        return str(aside)

    def _listed(self) -> dict[str, str]:
        try:
            listed = json.loads((self._root / LIST).read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise GiveUpError(f"{self._root / LIST}: cannot be read; remove it to begin anew") from error
        return {str(name): str(digest) for name, digest in listed.items()}

    def _write(self, listed: dict[str, str]) -> None:
        path = self._root / LIST
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        half = path.with_name(path.name + ".part")
        half.write_text(json.dumps(listed, indent=0, sort_keys=True))
        half.replace(path)


@dataclass(slots=True)
class _Edits:
    records: dict[PurePosixPath, Record]  # edited and new ones
    refused: list[Refused]
    removed: list[PurePosixPath]

    @property
    def there(self) -> bool:
        return bool(self.records or self.refused or self.removed)


def _digest(page: bytes) -> str:
    return hashlib.sha256(page).hexdigest()
