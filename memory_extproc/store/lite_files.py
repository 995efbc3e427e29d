"""Whether the files of Milvus Lite's collections still stand where they were opened.

Lite has every row in its memory and goes on answering without its files: what it acknowledges then is gone at the
next start.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from memory_extproc.sqlite_place import FileId, Harm, file_id


class LiteFiles:
    """Of *database*, a MilvusLite that was opened by this process alone. Some ten microseconds for each
    question."""

    def __init__(self, database: Any) -> None:
        self._database = database
        # By collection, not by name: one that is dropped and made again stands in another directory.
        self._stood: WeakKeyDictionary[Any, FileId] = WeakKeyDictionary()

    def harm(self, name: str) -> Harm | None:
        """Of the collection that *name*, an alias perhaps, leads to; None while all is well, or nothing is held."""
        collection = self._held(name)
        if collection is None:
            return None
        mark = file_id(collection.data_dir)
        if mark is None:
            return Harm.GONE
        if self._stood.setdefault(collection, mark) != mark:
            return Harm.REPLACED
        log = collection._wal  # noqa: SLF001
        for sink in (log._data_sink, log._delta_sink):  # noqa: SLF001
            # One that is closed just now was written to its end: its rows are in other files.
            with suppress(ValueError):
                if sink is not None and file_id(sink.name) != file_id(sink.fileno()):
                    return Harm.LOG_GONE
        return None

    def _held(self, name: str) -> Any:
        target = self._database._aliases("default").get(name, name)  # noqa: SLF001
        return self._database._collections.get(("default", target))  # noqa: SLF001
