"""Disk space set aside for writes that a full disk must not refuse: forgets and the audit log."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

RESERVED = ".reserve"
_STEP = 64 * 1024  # bytes released for one refused write, so that other writers cannot take all of it at once


class DiskReserve:
    """A file of *size* bytes beside *path*, which shrinks when a write to *path* meets a full disk."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path.with_name(path.name + RESERVED)
        self._size = size

    def fill(self) -> None:
        """Set aside what is missing. A disk without room for it leaves the reserve as it was."""
        if not self._size or self._held_bytes() == self._size:
            return
        with suppress(OSError):
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                before = os.fstat(file).st_size
                try:
                    os.posix_fallocate(file, 0, self._size)
                except OSError:
                    os.ftruncate(file, before)
            finally:
                os.close(file)

    def release(self) -> bool:
        """Give a part back to the disk. False if nothing is left."""
        left = self._held_bytes()
        if not left:
            return False
        try:
            os.truncate(self._path, max(0, left - _STEP))
        except OSError:
            return False
        return True

    def _held_bytes(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0
