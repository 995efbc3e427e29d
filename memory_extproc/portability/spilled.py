"""Keys in order and sets of keys that do not have to fit into memory.

SQLite's own temporary database: in process while it is small, in an unlinked file beyond that, gone when closed.
It holds ids and times, never anybody's words.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self


class Spilled:
    """Pairs of a number and a text, each once, read back in order."""

    def __init__(self) -> None:
        # An empty name is a temporary database; nobody else sees it, so nothing needs to be durable.
        self._rows = sqlite3.connect("", isolation_level=None)
        self._rows.execute("PRAGMA journal_mode = OFF")
        self._rows.execute("CREATE TABLE keys (at INTEGER, id TEXT, PRIMARY KEY (at, id)) WITHOUT ROWID")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._rows.close()

    def add(self, keys: Iterable[tuple[int, str]]) -> None:
        self._rows.executemany("INSERT OR IGNORE INTO keys VALUES (?, ?)", keys)

    def __contains__(self, key: tuple[int, str]) -> bool:
        return self._rows.execute("SELECT 1 FROM keys WHERE at = ? AND id = ?", key).fetchone() is not None

    def __len__(self) -> int:
        count: int = self._rows.execute("SELECT count(*) FROM keys").fetchone()[0]
        return count

    def after(self, key: tuple[int, str] | None, size: int) -> Iterator[list[tuple[int, str]]]:
        """What follows *key* (None: everything), in order, *size* at a time."""
        last = key if key is not None else (-(2**63), "")
        while True:
            found = self._rows.execute(
                "SELECT at, id FROM keys WHERE (at, id) > (?, ?) ORDER BY at, id LIMIT ?", (*last, size)
            ).fetchall()
            if not found:
                return
            yield found
            last = found[-1]
