"""A store and a journal behind keys that are held in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from memory_extproc.encryption.codecs import EncryptedJournal, EncryptedStore
from memory_extproc.encryption.keys import WrappedKeys
from memory_extproc.model import Embedded, Owner
from memory_extproc.observe.metrics import Metrics
from memory_extproc.store.milvus.options import CONTENT_BYTES
from memory_extproc.testing.adapters import InMemoryJournal, InMemoryStore
from tests.support.builders import ANN, MONDAY, a_memory
from tests.support.in_memory import InMemoryKeyTable, InMemoryMasterKey

NORTH = np.array([1.0, 0.0], dtype=np.float32)


class Bench:
    def __init__(self) -> None:
        self.keys = WrappedKeys(InMemoryKeyTable(), InMemoryMasterKey())
        self.plain = InMemoryStore(2, now=lambda: MONDAY)
        self.metrics = Metrics(CollectorRegistry(), "test")
        self.store = EncryptedStore(self.plain, self.keys, self.metrics, content_bytes=CONTENT_BYTES)
        self.plain_journal = InMemoryJournal(now=lambda: MONDAY)
        self.journal = EncryptedJournal(self.plain_journal, self.keys)

    async def contents(self, owner: Owner = ANN) -> list[str]:
        return [row.memory.content async for page in self.store.pages(owner, 10, fresh=True) for row in page]


def a_row(words: str, owner: Owner = ANN, **changes: Any) -> Embedded:
    return Embedded(a_memory(words, owner, **changes), NORTH)
