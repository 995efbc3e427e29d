"""Whether a SQLite file that is held open still stands at its path, and putting it back there.

A file that is deleted or replaced under us goes on working for whoever has it open, and all that is committed to
it is gone at the next start: SQLite says nothing of it (https://www.sqlite.org/howtocorrupt.html, 2.4). What is
held is whole, though, for as long as it is held, so it is written to the path anew.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import closing
from enum import StrEnum
from itertools import count
from pathlib import Path

from memory_extproc.errors import TryLaterError

_LOG, _INDEX = "-wal", "-shm"
# Who has a database in WAL mode open holds a lock on these bytes (SHARED_FIRST and SHARED_SIZE of SQLite's os.h).
_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510


class Harm(StrEnum):
    """Also the label of files_put_back_total."""

    GONE = "gone"
    REPLACED = "replaced"  # another file stands at the path
    LOG_GONE = "log_gone"  # the write-ahead log or its index, with what is not in the file itself yet
    CUT_SHORT = "cut_short"


class DamagedError(Exception):
    """What is held is not whole any more either."""


_Mark = tuple[int, int]  # device and node: which file it is, whatever its name


class Place:
    """Of the file at *path*, with its log, as they stand now: to be made right after they were opened. A few
    microseconds for each question."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._marks = {name: _mark(_beside(path, name))[0] for name in ("", _LOG, _INDEX)}
        # Made once: a path costs more than the question about it.
        self._beside = tuple((_beside(path, name), mark) for name, mark in self._marks.items() if name and mark)
        self._size = _mark(path)[1]

    @property
    def harm(self) -> Harm | None:
        """What happened to it since; None while all is well."""
        mark, size = _mark(self._path)
        if mark is None:
            return Harm.GONE
        if mark != self._marks[""]:
            return Harm.REPLACED
        if any(_mark(beside)[0] != mark for beside, mark in self._beside):
            return Harm.LOG_GONE
        if size < self._size:
            return Harm.CUT_SHORT
        self._size = size
        return None

    def put_back(self, held: sqlite3.Connection) -> Path | None:
        """Has a copy of all that *held* has stand at the path; *held* itself stays as it was, and is to be closed.
        What stands there and was never ours is kept aside, under the name that is given back. DamagedError where
        what is held is not whole, TryLaterError while another process uses what stands there; sqlite3.Error and
        OSError as they come. Nothing is changed then."""
        return self._move_in(self._copy(held))

    def _copy(self, held: sqlite3.Connection) -> Path:
        """Beside the place, and sure to be on the disk."""
        copy = _beside(self._path, ".put-back")
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("", _LOG, _INDEX):
            _beside(copy, name).unlink(missing_ok=True)
        os.close(os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(copy)) as target:
            try:
                held.backup(target)
                whole = target.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode & 0xFF not in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
                    raise
                whole = False
        if not whole:
            copy.unlink()
            raise DamagedError
        _sync(copy)
        return copy

    def _move_in(self, copy: Path) -> Path | None:
        aside = None
        if _mark(self._path)[0] not in {None, self._marks[""]}:
            _refuse_used(self._path)
            aside = _free_name(self._path)
            os.link(self._path, aside)
        for name in (_LOG, _INDEX):
            beside = _beside(self._path, name)
            mark = _mark(beside)[0]
            if aside is not None and mark is not None and mark != self._marks[name]:
                beside.rename(_beside(aside, name))
            else:  # all it says is in the copy, and would damage it
                beside.unlink(missing_ok=True)
        copy.replace(self._path)
        _sync(self._path.parent)
        return aside


def _mark(path: Path) -> tuple[_Mark | None, int]:
    """With its size in bytes; None where there is none that could be found."""
    try:
        found = path.stat()
    except OSError:
        return None, 0
    return (found.st_dev, found.st_ino), found.st_size


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _free_name(path: Path) -> Path:
    return next(name for number in count(1) if not (name := _beside(path, f".aside-{number}")).exists())


def _refuse_used(path: Path) -> None:
    with path.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _SHARED_SIZE, _SHARED_FIRST)
        except OSError as error:
            raise TryLaterError(f"{path.name} was replaced, and another process uses the new one") from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
