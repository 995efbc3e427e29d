"""A folder of Markdown that mirrors one owner's memories: a page each, and nothing but what is there now.

Only pages of ours are touched: files named by an id in `facts/`, `turns/` and `summaries/`. Whatever else stands in
the folder (a README, a `.git`, a note without an id) is left alone.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from memory_extproc.errors import GiveUpError
from memory_extproc.portability.json_lines import Read, Refused
from memory_extproc.portability.markdown import FOLDERS, SUFFIX, id_at, page_of, place_of, read_page
from memory_extproc.portability.record import Record, RefusedError
from memory_extproc.portability.spilled import Spilled

_HALF_WRITTEN = ".part"


@dataclass(frozen=True, slots=True)
class Mirrored:
    """What became of the pages."""

    written: int = 0  # new ones and changed ones
    same: int = 0
    removed: int = 0


class Folder:
    """Pages below *root*. Entered: what is put and, at `mirror`, what was not put and goes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kept = Spilled()
        self._written = self._same = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()

    def put(self, record: Record) -> None:
        """Writes the page unless it stands there already. Half a page is never seen: a reader finds the old one or
        the new one. GiveUpError where it cannot be written."""
        place = place_of(record)
        self._kept.add([(0, str(place))])
        path, page = self._root / place, page_of(record)
        try:
            if path.is_file() and not path.is_symlink() and path.read_bytes() == page:
                self._same += 1
                return
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            half = path.with_name(path.name + _HALF_WRITTEN)
            # Whoever may read the folder may not read everybody's memories: the owner of the files alone.
            with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(page)
            half.replace(path)
        except OSError as error:
            raise GiveUpError(f"{path}: {error.strerror}") from error
        self._written += 1

    def mirror(self, *, keep: Container[str] = ()) -> Mirrored:
        """Removes the pages of ours that were not put: of memories that are gone, or whose type is another now.
        Pages at *keep* stay."""
        removed = 0
        for place in list_pages(self._root):
            if str(place) not in keep and (0, str(place)) not in self._kept and self._ours(place):
                (self._root / place).unlink(missing_ok=True)
                removed += 1
        return Mirrored(self._written, self._same, removed)

    def _ours(self, place: PurePosixPath) -> bool:
        """A page that says the id of its name was written by us; `new.md` of a person's was not."""
        try:
            page = (self._root / place).read_bytes()
            return bool(id_at(place)) and read_page(page).id == id_at(place)
        except (RefusedError, OSError):
            return False


def list_pages(root: Path) -> Iterator[PurePosixPath]:
    """Every Markdown file in the three folders, ours or a person's new one, by folder and name."""
    for folder in sorted(set(FOLDERS.values())):
        try:
            names = sorted(
                entry.name for entry in os.scandir(root / folder) if entry.is_file(follow_symlinks=False)
            )
        except FileNotFoundError:
            continue
        for name in names:
            if name.endswith(SUFFIX) and not name.startswith("."):
                yield PurePosixPath(folder) / name


def read_folder(root: Path, places: Iterable[PurePosixPath] | None = None) -> Iterator[tuple[PurePosixPath, Read]]:
    """Each page (of *places*, by default all) with what stands on it, or why that is no memory."""
    for place in list_pages(root) if places is None else places:
        try:
            yield place, _checked(place, read_page((root / place).read_bytes()))
        except RefusedError as error:
            yield place, Refused(str(place), str(error))
        except OSError as error:
            yield place, Refused(str(place), error.strerror or "cannot be read")


def _checked(place: PurePosixPath, record: Record) -> Record:
    """A page that was copied to make another has its old id still: it would take the first one's place."""
    if record.id and id_at(place) != record.id:
        raise RefusedError(
            f"id: expected {id_at(place) or 'none'}, as the file's name says; leave it out for a new memory"
        )
    return record
