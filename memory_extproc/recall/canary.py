"""The canary: known memories of a synthetic caller that recall must find, tested on a schedule.

Wrong weights, another model behind the same name or an exchanged collection raise no error: requests simply pass
without the memories that would have helped. The share of the canary's memories that recall finds shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Self

from memory_extproc.concurrency import wait_for_event
from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import Caller, Embedded, Memory, MemoryType, Owner, RecallRequest, Role, Source, digest
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import EmbeddingModel, MemoryRecaller, MemoryStore, MemoryWriter, Now
from memory_extproc.settings.memory import Memory as MemorySection

log = logger(__name__)

# Messages of the canary, each with the question that only it answers.
KNOWN = (
    ("My sister Ottilie plays the cello in Bergen.", "Which instrument does my sister play?"),
    ("I keep the key of my bicycle in the blue jar on the shelf.", "Where do I keep the key of my bicycle?"),
    ("I am allergic to hazelnuts.", "What am I allergic to?"),
    ("My flight to Lisbon leaves on the 9th of March.", "When does my flight to Lisbon leave?"),
    ("My landlord's name is Mr Abernathy.", "What is the name of my landlord?"),
    ("I set the boiler in the cellar to 58 degrees.", "To how many degrees did I set the boiler?"),
    ("My favourite tea is Lapsang Souchong.", "What is my favourite tea?"),
    ("My budget for the kitchen is $8,000.", "What is my budget for the kitchen?"),
)
OWNER = Owner.of_canary()
# Age lowers the score of a memory, so the canary's memories are written anew before it does.
STALE = timedelta(days=7)


class Canary:
    """Probes while entered, for the first time after *every*: one read of the canary's rows in the store, then one
    recall for each row. `probe` may be called at any time."""

    def __init__(
        self,
        recalls: MemoryRecaller,
        keeps: MemoryWriter,
        store: MemoryStore,
        embedder: EmbeddingModel,
        section: Callable[[], MemorySection],
        metrics: Metrics,
        *,
        every: timedelta,
        now: Now,
    ) -> None:
        """Each probe reads *store*, because recall may answer from the rows in process."""
        self._recalls, self._keeps, self._store, self._embedder = recalls, keeps, store, embedder
        self._section, self._every, self._metrics, self._now = section, every, metrics, now
        self.share: float | None = None  # found by the last probe; None: no probe yet
        self._leaving = asyncio.Event()
        self._probing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._probing = asyncio.create_task(self._probe_again(), name="canary")
        self._probing.add_done_callback(self._note_end)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leaving.set()
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)

    async def probe(self) -> float:
        """The share of the canary's memories that recall finds, 0 to 1; also the metric. 0 while the store or the
        model is unavailable."""
        try:
            memories = await self._write_probes()
            found = [await self._finds(memory, asked) for memory, (_, asked) in zip(memories, KNOWN, strict=True)]
        except MemoryExtprocError as error:
            log.warning("canary.missed", found=0, of=len(KNOWN), kind=type(error).__name__)
            self._metrics.canary_recall.set(0.0)
            self.share = 0.0
            return 0.0
        share = sum(found) / len(found)
        if not all(found):
            log.warning("canary.missed", found=sum(found), of=len(found))
        self._metrics.canary_recall.set(share)
        self.share = share
        return share

    async def _probe_again(self) -> None:
        while not self._leaving.is_set():
            if not await wait_for_event(self._leaving, self._every.total_seconds()):
                await self.probe()

    def _note_end(self, probing: asyncio.Task[None]) -> None:
        if not probing.cancelled() and (error := probing.exception()) is not None:
            log.error("canary.failed", kind=type(error).__name__)
            self._metrics.canary_recall.set(0.0)

    async def _write_probes(self) -> list[Memory]:
        """The canary's memories; rewritten if a row is missing, old or of another model."""
        now = self._now().replace(microsecond=0)
        memories = [self._memory(said, now) for said, _ in KNOWN]
        there = {memory.id: memory for memory in await self._store.get(OWNER, [each.id for each in memories])}
        if all(self._fresh(there.get(each.id), now) for each in memories):
            return memories
        vectors = await self._embedder.embed([each.content for each in memories])
        await self._keeps.put(OWNER, [Embedded(*pair) for pair in zip(memories, vectors, strict=True)])
        return memories

    def _fresh(self, memory: Memory | None, now: datetime) -> bool:
        if memory is None:
            return False
        same = replace(memory, created_at=now, updated_at=now, valid_from=now) == self._memory(memory.content, now)
        return same and now - memory.created_at < STALE

    def _memory(self, said: str, now: datetime) -> Memory:
        return Memory(
            id=digest("canary", said),
            owner=OWNER,
            type=MemoryType.EPISODIC,
            content=said,
            source=Source.VERBATIM,
            created_at=now,
            updated_at=now,
            valid_from=now,
            role=Role.USER,
            embed_model=self._embedder.fingerprint,
        )

    async def _finds(self, memory: Memory, asked: str) -> bool:
        section = self._section()
        request = RecallRequest(
            caller=Caller(OWNER),
            asked=asked,
            limit=section.default_retrieval_limit,
            threshold=section.default_similarity_threshold,
        )
        recalled = await self._recalls.recall(request)
        return any(ranked.memory.id == memory.id for ranked in recalled.memories)
