"""Two-way sync between a folder of Markdown pages and the store, so that a person can edit memories as pages.

A list beside the pages holds their digests as of the last sync. A page that differs from it was edited; a memory
that differs was changed in the store. On a conflict the store wins, and the edited page is set aside."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, Protocol, Self

import msgspec
import yaml

from memory_extproc.errors import PermanentError
from memory_extproc.model import ImportReport, MemoryType, Source
from memory_extproc.portability.importer import Spilled
from memory_extproc.portability.records import (
    COUNTED,
    MemoryRecord,
    Read,
    Refused,
    RefusedError,
    is_id,
    read_record,
)

LIST: Final = ".memory-sync.json"
EDITED: Final = ".edited"  # added to the name of a page that was put aside


class Remote(Protocol):
    """Remote access to the store."""

    def records(self) -> Iterator[MemoryRecord]:
        """All memories. An error ends the round without changes to the folder."""

    def bring(self, records: Sequence[MemoryRecord]) -> ImportReport:
        """Import records, replacing memories with the same ids."""

    def forget(self, ids: Sequence[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Synced:
    """The result of a round. *problems*: (place, reason) of edits that were not applied."""

    applied: int
    forgotten: int
    mirrored: Mirrored
    problems: tuple[tuple[str, str], ...] = ()


class FolderSync:
    """Sync rounds for the folder *root*. With *deletions*, removing a page forgets its memory."""

    def __init__(self, root: Path, remote: Remote, *, deletions: bool = False) -> None:
        self._root, self._remote, self._deletions = root, remote, deletions

    def has_edits(self) -> bool:
        """Whether any page differs from the last round. Makes no remote call."""
        return self._edits(self._read_list()).there

    def round(self) -> Synced:
        """Apply edits, then write the store's memories. Rejected edits stay in their pages as written."""
        listed = self._read_list()
        edits = self._edits(listed)
        problems = {PurePosixPath(one.place): one.reason for one in edits.refused}
        applied = forgotten = 0
        taken: list[PurePosixPath] = []
        if edits.records or edits.removed:
            conflicting = self._conflicting(edits, listed)
            brought = [place for place in edits.records if place not in conflicting]
            refused = self._import_places(brought, edits.records)
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
        mirrored = self._mirror(unfinished, taken)
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
        """Places of edits whose memory has changed in the store since the last round."""
        wanted = {*edits.records, *edits.removed}
        return {
            place
            for record in self._remote.records()
            if (place := place_of(record)) in wanted
            and listed.get(str(place), "") not in {"", _digest(page_of(record))}
        }

    def _import_places(
        self, places: Sequence[PurePosixPath], records: dict[PurePosixPath, MemoryRecord]
    ) -> dict[PurePosixPath, str]:
        """Import the pages at *places*; returns the rejected places with the reasons."""
        if not places:
            return {}
        report = self._remote.bring([records[place] for place in places])
        return {places[one.index]: one.message for one in report.problems}

    def _mirror(self, unfinished: Collection[str], taken: Collection[PurePosixPath]) -> Mirrored:
        listed: dict[str, str] = {}
        with Folder(self._root) as folder:
            for record in self._remote.records():
                place = str(place_of(record))
                if place not in unfinished:
                    folder.put(record)
                    listed[place] = _digest(page_of(record))
            for new in taken:
                # A new page was imported, and is now at the place of its own id.
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

    def _read_list(self) -> dict[str, str]:
        try:
            listed = json.loads((self._root / LIST).read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise PermanentError(f"{self._root / LIST}: cannot be read; remove it to begin anew") from error
        return {str(name): str(digest) for name, digest in listed.items()}

    def _write(self, listed: dict[str, str]) -> None:
        path = self._root / LIST
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        half = path.with_name(path.name + ".part")
        half.write_text(json.dumps(listed, indent=0, sort_keys=True))
        half.replace(path)


@dataclass(slots=True)
class _Edits:
    records: dict[PurePosixPath, MemoryRecord]  # edited and new pages
    refused: list[Refused]
    removed: list[PurePosixPath]

    @property
    def there(self) -> bool:
        return bool(self.records or self.refused or self.removed)


def _digest(page: bytes) -> str:
    return hashlib.sha256(page).hexdigest()


# A folder of Markdown that mirrors the current memories of an owner, with a page each.
#
# Only our own pages are modified: files named by an id in `facts/`, `turns/` and `summaries/`. All other files (a
# README, a `.git`, a note without an id) are left alone.

_HALF_WRITTEN = ".part"


@dataclass(frozen=True, slots=True)
class Mirrored:
    """Counts of the pages."""

    written: int = 0  # new and changed pages
    same: int = 0
    removed: int = 0


class Folder:
    """Pages below *root*. While entered, `put` writes pages and `mirror` removes the others."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kept = Spilled()
        self._written = self._same = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()

    def put(self, record: MemoryRecord) -> None:
        """Write the page if it changed. PermanentError if it cannot be written.

        Written atomically: a reader finds the old or the new page."""
        place = place_of(record)
        self._kept.add([(0, str(place))])
        path, page = self._root / place, page_of(record)
        try:
            if path.is_file() and not path.is_symlink() and path.read_bytes() == page:
                self._same += 1
                return
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            half = path.with_name(path.name + _HALF_WRITTEN)
            # Readers of the folder may not be allowed to read all memories: files are readable by their owner only.
            with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(page)
            half.replace(path)
        except OSError as error:
            raise PermanentError(f"{path}: {error.strerror}") from error
        self._written += 1

    def mirror(self, *, keep: Container[str] = ()) -> Mirrored:
        """Remove our pages that were not put: their memory is gone or has another type. Pages at *keep* stay."""
        removed = 0
        for place in list_pages(self._root):
            if str(place) not in keep and (0, str(place)) not in self._kept and self._ours(place):
                (self._root / place).unlink(missing_ok=True)
                removed += 1
        return Mirrored(self._written, self._same, removed)

    def _ours(self, place: PurePosixPath) -> bool:
        """Whether we wrote the page: it contains the id of its file name, unlike a person's `new.md`."""
        try:
            page = (self._root / place).read_bytes()
            return bool(id_at(place)) and read_page(page).id == id_at(place)
        except (RefusedError, OSError):
            return False


def list_pages(root: Path) -> Iterator[PurePosixPath]:
    """All Markdown files in the three folders, our pages and new pages, by folder and name."""
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
    """Parse each page of *places*, by default all, or report the reason for its rejection."""
    for place in list_pages(root) if places is None else places:
        try:
            yield place, _check_record(place, read_page((root / place).read_bytes()))
        except RefusedError as error:
            yield place, Refused(str(place), str(error))
        except OSError as error:
            yield place, Refused(str(place), error.strerror or "cannot be read")


def _check_record(place: PurePosixPath, record: MemoryRecord) -> MemoryRecord:
    """Reject a copied page that still has the original's id: it would replace the original."""
    if record.id and id_at(place) != record.id:
        raise RefusedError(
            f"id: expected {id_at(place) or 'none'}, as the file's name says; leave it out for a new memory"
        )
    return record


# The folder as a git repository with a commit per export, so that changes can be reviewed.
#
# History contains forgotten memories: it is beyond the reach of a forget, until `rewrite` removes them.

_AUTHOR = {
    "GIT_AUTHOR_NAME": "memory-extproc",
    "GIT_AUTHOR_EMAIL": "memory-extproc@localhost",
    "GIT_COMMITTER_NAME": "memory-extproc",
    "GIT_COMMITTER_EMAIL": "memory-extproc@localhost",
}
# Line ends are part of a memory: git must not convert them, whatever the user's configuration.
_ATTRIBUTES: Final = "*.md -text\n"


class Repository:
    """A git repository at *root*, created if absent. Needs `git`. PermanentError if it fails."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self._root / ".git").exists():
            self._git("init", "--quiet", "--initial-branch=main")
        attributes = self._root / ".gitattributes"
        if not attributes.exists():
            attributes.write_text(_ATTRIBUTES)

    def commit(self, mirrored: Mirrored) -> bool:
        """Commit the current pages; False without changes. The message contains only numbers."""
        ours = [
            ".gitattributes",
            *(folder for folder in sorted(set(FOLDERS.values())) if self._is_known_to_git(folder)),
        ]
        self._git("add", "--all", "--", *ours)
        if self._run("diff", "--cached", "--quiet").returncode == 0:
            return False
        message = f"Export: {mirrored.written} written, {mirrored.removed} removed"
        self._git("commit", "--quiet", "--no-verify", "--no-gpg-sign", "-m", message)
        return True

    def _is_known_to_git(self, folder: str) -> bool:
        """Whether *folder* exists or is tracked; git rejects any other path."""
        return (self._root / folder).is_dir() or bool(self._git("ls-files", "--", folder))

    def rewrite(self) -> int:
        """Remove from history all pages whose memory has no page now; returns the number of memories.

        Commit ids change, and existing clones keep the old commits."""
        there = {id_at(place) for place in list_pages(self._root)}
        gone = {id_ for id_ in self._ever() if id_ not in there}
        if not gone:
            return 0
        self._rewrite_history(lambda path: id_at(PurePosixPath(path)) in gone)
        self._git("reset", "--quiet", "--mixed")
        self._git("reflog", "expire", "--expire=now", "--expire-unreachable=now", "--all")
        # References left by `fetch` or an unfinished merge would keep old commits alive.
        for name in ("FETCH_HEAD", "ORIG_HEAD"):
            (self._root / ".git" / name).unlink(missing_ok=True)
        self._git("gc", "--quiet", "--prune=now")
        return len(gone)

    def _ever(self) -> set[str]:
        """The ids of the pages in all commits."""
        names = self._git(
            "log", "--all", "--pretty=format:", "--name-only", "--no-renames", "--diff-merges=separate"
        )
        return {id_at(PurePosixPath(name)) for name in set(names.splitlines()) if name} - {""}

    def _rewrite_history(self, drop: Callable[[str], bool]) -> None:
        """Rewrite history without the paths to *drop*, streamed from git fast-export to git fast-import."""
        export = ["fast-export", "--all", "--signed-tags=strip", "--tag-of-filtered-object=rewrite", "--no-data"]
        with (
            self._open(export, stdout=subprocess.PIPE) as out,
            self._open(["fast-import", "--quiet", "--force"], stdin=subprocess.PIPE) as into,
        ):
            if out.stdout is None or into.stdin is None:
                raise PermanentError("git has no pipes")
            try:
                for piece in _without(out.stdout, drop):
                    into.stdin.write(piece)
                into.stdin.close()
            except BrokenPipeError:
                pass  # the exit code says it
        if out.returncode or into.returncode:
            raise PermanentError("git could not write the history anew; it is as it was")

    def _git(self, *arguments: str) -> str:
        done = self._run(*arguments)
        if done.returncode:
            raise PermanentError(f"git {arguments[0]} failed: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout.decode(errors="surrogateescape")

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(  # noqa: S603 - a command of ours, no shell
                self._command(*arguments), env=self._environment, capture_output=True, check=False
            )
        except FileNotFoundError:
            raise PermanentError("the git command is not installed") from None

    def _open(
        self, arguments: list[str], *, stdin: int | None = None, stdout: int | None = None
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - as above
            self._command(*arguments), env=self._environment, stdin=stdin, stdout=stdout
        )

    def _command(self, *arguments: str) -> list[str]:
        # Raw path names, and no hooks or programs of the user's configuration.
        safe = ("-c", "core.quotePath=false", "-c", "core.hooksPath=/dev/null", "-c", "core.autocrlf=false")
        return ["git", *safe, "-C", str(self._root), *arguments]  # from PATH

    @property
    def _environment(self) -> dict[str, str]:
        """A clean environment:

        GIT_DIR and similar variables, set within a hook, would select another repository."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        return {**kept, **_AUTHOR, "LC_ALL": "C"}


def _without(stream: IO[bytes], drop: Callable[[str], bool]) -> Iterator[bytes]:
    """Filter changes of dropped paths from a fast-export stream.

    Messages are skipped by their length, because a line in them may look like a command."""
    for line in stream:
        if line.startswith(b"data "):
            yield line
            left = int(line[5:])
            while left:
                piece = stream.read(min(left, 65536))
                if not piece:
                    return
                left -= len(piece)
                yield piece
        elif line.startswith((b"M ", b"D ")):
            if not drop(_path_of(line)):
                yield line
        else:
            yield line


def _path_of(line: bytes) -> str:
    """The path in `M mode name path` or `D path`; our paths are never quoted."""
    parts = line.rstrip(b"\n").split(b" ", 3 if line.startswith(b"M ") else 1)
    return parts[-1].decode(errors="surrogateescape")


# A memory as a Markdown page: its fields as YAML front matter, its text below.
#
# The front matter is written without a YAML library, each value as JSON, which is valid YAML: libraries differ in
# quotes and line breaks, and equal memories must give equal bytes.

SUMMARIES: Final = "summaries"  # of topics and sessions, of any type
FOLDERS = {
    MemoryType.SEMANTIC: "facts",
    MemoryType.PROCEDURAL: "facts",
    MemoryType.EPISODIC: "turns",
    MemoryType.REFLECTIVE: SUMMARIES,
}
SUFFIX = ".md"
PAGE_BYTES = 1024 * 1024
_FENCE = b"---\n"
# Access counts would change every page with every recall.
_NOT_WRITTEN = frozenset({"content", "access_count"})
# Characters that are valid in JSON but invalid, or line ends, in YAML.
_ESCAPED = re.compile("[\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
# The C loader if available: it saves seconds for ten thousand pages.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """Reads JSON values: YAML 1.1 takes 1e+16 for a string."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"-?[0-9]+(?:\.[0-9]+)?[eE][-+]?[0-9]+"), list("-0123456789")
)


def place_of(record: MemoryRecord) -> PurePosixPath:
    """The page's place relative to the export folder.

    It depends only on id, type and source, so that a changed memory is a changed file. Colons, which some file
    systems reject, are written as %3A."""
    folder = SUMMARIES if record.source is Source.SUMMARY else FOLDERS[record.type]
    return PurePosixPath(folder) / (record.id.replace(":", "%3A") + SUFFIX)


def id_at(place: PurePosixPath) -> str:
    """The memory id for *place*; empty if it is not a page of ours."""
    name = place.name.removesuffix(SUFFIX).replace("%3A", ":")
    ours = len(place.parts) == 2 and place.parts[0] in FOLDERS.values() and place.suffix == SUFFIX  # noqa: PLR2004
    return name if ours and is_id(name) else ""


def page_of(record: MemoryRecord) -> bytes:
    shown = []
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name == "metadata":
            value = {key: one for key, one in value.items() if key != COUNTED}
        if name not in _NOT_WRITTEN and (name in _ALWAYS or value != _DEFAULTS.get(name)):
            shown.append(f"{name}: {_scalar(value)}\n")
    text = f"---\n{''.join(shown)}---\n{record.content}\n"
    return text.encode("utf-8", "replace")


def read_page(page: bytes) -> MemoryRecord:
    """Parse *page*. RefusedError states the fault for the page's author."""
    if len(page) > PAGE_BYTES:
        raise RefusedError(f"longer than {PAGE_BYTES} bytes")
    front, content = _split_page(page.removeprefix(b"\xef\xbb\xbf"))
    try:
        plain = yaml.load(front, Loader=_Loader)  # noqa: S506 - a safe loader, in C or not
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RefusedError(f"front matter: {_where(error)}") from None
    if not isinstance(plain, dict) or not all(isinstance(key, str) for key in plain):
        raise RefusedError("front matter: expected `name: value` lines")
    if not _a_tree(plain, set()):
        raise RefusedError("front matter: a value may stand in one place only")
    if "content" in plain:
        raise RefusedError("content: the words stand below the front matter")
    return read_record({**plain, "content": content})


def _split_page(page: bytes) -> tuple[str, str]:
    try:
        text = page.decode()
    except UnicodeDecodeError:
        raise RefusedError("no UTF-8") from None
    # Only the front matter: the content keeps its line ends.
    opening = re.match(r"---[ \t]*\r?\n", text)
    closing = re.compile(r"^---[ \t]*(?:\r?\n|\Z)", re.MULTILINE).search(text, opening.end()) if opening else None
    if opening is None or closing is None:
        raise RefusedError("front matter: expected a line of --- before and after it")
    # The last line end belongs to the page, not to the memory; its form follows the fence.
    line_end = "\r\n" if opening[0].endswith("\r\n") else "\n"
    return text[opening.end() : closing.start()], text[closing.end() :].removesuffix(line_end)


def _a_tree(value: Any, seen: set[int]) -> bool:
    """Whether no list or mapping is used twice: with YAML aliases a short page can expand without limit."""
    if not isinstance(value, dict | list):
        return True
    if id(value) in seen:
        return False
    seen.add(id(value))
    return all(_a_tree(each, seen) for each in (value.values() if isinstance(value, dict) else value))


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"no YAML, at line {mark.line + 2}" if mark is not None else "no YAML"


def _scalar(value: Any) -> str:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, datetime):
        return msgspec.to_builtins(value)  # type: ignore[no-any-return]
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(", ", ": "))
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_ALWAYS = frozenset({"id", "type", "state"})
_DEFAULTS = {
    field.name: field.default if field.default is not msgspec.NODEFAULT else {}
    for field in msgspec.structs.fields(MemoryRecord)
}
