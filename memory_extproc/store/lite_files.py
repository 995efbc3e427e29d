"""Whether the files of Milvus Lite's collections still stand where they were opened.

Lite has every row in its memory and goes on answering without its files: what it acknowledges then is gone at the
next start.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from memory_extproc.sqlite_place import Harm

_Mark = tuple[int, int]  # device and node: which file it is, whatever its name


class LiteFiles:
    """Of *database*, a MilvusLite that was opened at *path* by this process alone. Some ten microseconds for each
    question."""

    def __init__(self, database: Any, path: Path) -> None:
        self._database = database
        self._path = path
        # By collection, not by name: one that is dropped and made again stands in another directory.
        self._stood: WeakKeyDictionary[Any, _Mark] = WeakKeyDictionary()

    def harm(self, name: str) -> Harm | None:
        """Of the collection that *name*, an alias perhaps, leads to; None while all is well, or nothing is held."""
        collection = self._held(name)
        if collection is None:
            return None
        mark = _mark(collection.data_dir)
        if mark is None:
            return Harm.GONE
        if self._stood.setdefault(collection, mark) != mark:
            return Harm.REPLACED
        log = collection._wal  # noqa: SLF001
        for sink in (log._data_sink, log._delta_sink):  # noqa: SLF001
            # One that is closed just now was written to its end: its rows are in other files.
            with suppress(ValueError):
                if sink is not None and _mark(sink.name) != _mark(sink.fileno()):
                    return Harm.LOG_GONE
        return None

    def set_aside(self, name: str) -> str:
        """Moves what somebody put in the place of that collection's directory out of the way; says where it is."""
        directory = Path(self._held(name).data_dir)
        aside = next(
            place
            for number in count(1)
            if not (place := self._path.with_name(f"{self._path.name}.aside-{number}")).exists()
        )
        aside.mkdir(mode=0o700)
        directory.rename(aside / directory.name)
        return aside.name

    def _held(self, name: str) -> Any:
        target = self._database._aliases("default").get(name, name)  # noqa: SLF001
        return self._database._collections.get(("default", target))  # noqa: SLF001


def _mark(path: str | int) -> _Mark | None:
    try:
        found = os.fstat(path) if isinstance(path, int) else Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
