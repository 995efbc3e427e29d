"""Whether a SQLite file that is held open still stands at its path.

A file that is deleted or replaced under us goes on working for whoever has it open, and all that is committed to
it is gone at the next start: SQLite says nothing of it (https://www.sqlite.org/howtocorrupt.html, 2.4).
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

LOG, INDEX = "-wal", "-shm"

FileId = tuple[int, int]  # device and node: which file it is, whatever its name


class Harm(StrEnum):
    """Also the label of files_taken_away."""

    GONE = "gone"
    REPLACED = "replaced"  # another file stands at the path
    LOG_GONE = "log_gone"  # the write-ahead log or its index, with what is not in the file itself yet
    CUT_SHORT = "cut_short"


class Place:
    """Of the file at *path*, with its log, as they stand now: to be made right after they were opened. A few
    microseconds for each question."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._id, self._size = _stat(path)
        # Made once: a path costs more than the question about it.
        beside = [path.with_name(path.name + name) for name in (LOG, INDEX)]
        self._beside = tuple((one, found) for one in beside if (found := file_id(one)))

    @property
    def harm(self) -> Harm | None:
        """What happened to it since; None while all is well."""
        found, size = _stat(self._path)
        if found is None:
            return Harm.GONE
        if found != self._id:
            return Harm.REPLACED
        if any(file_id(beside) != known for beside, known in self._beside):
            return Harm.LOG_GONE
        if size < self._size:
            return Harm.CUT_SHORT
        self._size = size
        return None


def file_id(file: Path | str | int) -> FileId | None:
    """Of the file at a path, or of an open one by its descriptor; None where there is none."""
    return _stat(file)[0]


def _stat(file: Path | str | int) -> tuple[FileId | None, int]:
    """With its size in bytes."""
    try:
        found = os.stat(file)  # noqa: PTH116 - a descriptor has no Path
    except OSError:
        return None, 0
    return (found.st_dev, found.st_ino), found.st_size
