"""Finding by words the memories of an owner who is not held in process, where the store has an index of words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from memory_extproc.errors import MemoryExtprocError, TryLaterError
from memory_extproc.model import Embedded, Found, Owner, Scope, Searched, Sought, Vector
from memory_extproc.observe import log
from memory_extproc.ports import MemoryStore, Now, Steady
from memory_extproc.store.owned import Owned

_LOG = log.logger(__name__)
_MOST = 50  # candidates by words; each is read anew, which takes about 0.1 ms


@dataclass(frozen=True, slots=True)
class Words:
    """The search for words of one owner, with our own writes laid over what the store shows."""

    store: MemoryStore
    owner: Owner
    owned: Owned
    scope: Scope
    now: Now
    steady: Steady
    settle: timedelta

    async def beside(self, sought: Sought, nearest: Callable[[Vector], Awaitable[Searched]]) -> Sequence[Found]:
        """What *nearest* finds for the question's vector and, each once, what shares words with it. Without a
        vector the words alone; TryLaterError where the store has no index of them. Beside a vector their failure
        is an empty list."""
        if sought.vector is None:
            if not self.store.finds_words:
                raise TryLaterError("without a vector only what is held in process can be searched")
            rows = self._ours(await self._found(sought.text), self.owned.live_writes())
            return [Found(row.memory, 0.0) for row in rows]
        near, worded = await asyncio.gather(nearest(sought.vector), self._found_or_nothing(sought.text))
        known = {one.memory.id for one in near.found}
        # Our own writes were found by their vectors.
        more = (row for row in self._ours(worded, ()) if row.memory.id not in known)
        return [*near.found, *(Found(row.memory, cosine(row.vector, sought.vector)) for row in more)]

    async def _found(self, text: str) -> Sequence[Embedded]:
        if not self.store.finds_words or self._hidden():
            return ()
        return await self.store.worded(self.owner, text, _MOST, self.scope)

    async def _found_or_nothing(self, text: str) -> Sequence[Embedded]:
        try:
            return await self._found(text)
        except MemoryExtprocError as error:
            _LOG.warning("store.words_unsearched", kind=type(error).__name__)
            return ()

    def _ours(self, found: Sequence[Embedded], written: Sequence[Embedded]) -> list[Embedded]:
        """What stands of *found* by now, with *written*: what was written, deleted or forgotten while the store
        searched counts too."""
        overlay = self.owned.overlay
        shown = [] if self._hidden() else [row for row in found if row.memory.id not in overlay]
        now = self.now()
        return [row for row in (*shown, *written) if self.scope.holds(row.memory) and row.memory.recallable(now)]

    def _hidden(self) -> bool:
        return self.owned.hides_store(self.steady(), self.settle)


def cosine(one: Vector, other: Vector) -> float:
    return float(np.clip(one @ other, -1.0, 1.0))
