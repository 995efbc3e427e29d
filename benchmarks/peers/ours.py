"""memory-extproc as a child that answers like a peer: its learner and recall over Milvus Lite and a journal file.

`python -m benchmarks.peers.ours DIRECTORY`, without the gateway and its streams. The requests are those of
libraries.py, with a `session` and a time `at` in an add; an add waits until the turn can be found.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from benchmarks.peers.libraries import DEEPEST, LIMIT, directory_bytes, resident_bytes
from memory_extproc import __version__
from memory_extproc.app import make_recaller, milvus_options, open_embedder
from memory_extproc.app.context import make_context
from memory_extproc.evaluation.bench import bench
from memory_extproc.evaluation.runner import Clock
from memory_extproc.journal.sqlite import SqliteJournal
from memory_extproc.learn.ingest import Intake
from memory_extproc.learn.queue import QueuePolicy
from memory_extproc.learn.reconcile import Reconciler
from memory_extproc.learn.sessions import Sessions
from memory_extproc.model import (
    Caller,
    Exchanged,
    Memory,
    Message,
    Owner,
    RecallRequest,
    Role,
    TurnOutcome,
    Verdict,
)
from memory_extproc.observe.metrics import Metrics
from memory_extproc.recall.recaller import Recaller
from memory_extproc.settings import Settings, load
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.milvus.store import MilvusStore
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination
from tests.support.learner import LearnSettings, make_intake

_LIMITS = LearnSettings(
    journal_wait=timedelta(seconds=60), idle=timedelta(days=1), attempts=1, grace=timedelta(minutes=30)
)
_LEFT_OUT = {Verdict.DUPLICATE, Verdict.IN_VIEW, Verdict.NOT_RECALLABLE}


@dataclass
class System:
    learner: Intake
    recaller: Recaller
    clock: Clock
    ids: dict[tuple[str, str, int], str]  # owner, session and place of a message
    history: dict[tuple[str, str], list[Message]]

    async def add(self, request: dict[str, Any]) -> None:
        owner, session = Owner("peers", request["owner"]), request["session"]
        history = self.history.setdefault((owner.user, session), [])
        by_role = {one["role"]: one for one in request["messages"]}
        self.clock.now = max(self.clock.now, datetime.fromisoformat(request["at"]))
        texts = {role: by_role[role]["text"] if role in by_role else "" for role in ("user", "assistant")}
        exchanged = Exchanged(
            caller=Caller(owner, session=session), history=tuple(history), asked=texts["user"],
            answered=texts["assistant"], at=self.clock.now,
        )  # fmt: skip
        if await self.learner.accept(exchanged) is not TurnOutcome.JOURNALLED:
            raise RuntimeError(f"a turn of session {session} was refused")
        await self.learner.wait_visible(Caller(owner))
        place = len(history)
        for side, role in enumerate(("user", "assistant")):
            if role in by_role:
                self.ids[owner.user, session, place + side] = by_role[role]["id"]
            history.append(Message(Role(role), texts[role]))

    async def find(self, request: dict[str, Any], settings: Settings, *, deep: bool) -> list[str]:
        owner = Owner("peers", request["owner"])
        wish = RecallRequest(
            caller=Caller(owner),
            asked=request["text"],
            limit=DEEPEST if deep else LIMIT,
            threshold=0.0 if deep else settings.memory.default_similarity_threshold,
        )
        if deep:
            considered = (await self.recaller.explain(wish)).considered
            memories = [one.memory for one in considered if one.verdict not in _LEFT_OUT]
        else:
            memories = [one.memory for one in (await self.recaller.recall(wish)).memories]
        found = [id_ for memory in memories for id_ in self._messages(owner, memory)]
        return found[:DEEPEST] if deep else found

    def _messages(self, owner: Owner, memory: Memory) -> list[str]:
        id_ = self.ids.get((owner.user, memory.session, memory.seq))
        return [id_] if id_ else []


async def open_system(directory: Path, settings: Settings, stack: AsyncExitStack) -> System:
    metrics = Metrics(CollectorRegistry(), __version__)
    made = await stack.enter_async_context(
        bench(settings)
    )  # the extractor and the rules of messages, as configured
    clock = Clock(datetime(2000, 1, 1, tzinfo=UTC))
    context = make_context(settings, stack, metrics, now=clock)
    embedder = await open_embedder(context)
    coordination = InMemoryCoordination(clock)
    store = MilvusStore(milvus_options(settings, directory, embedder.fingerprint), metrics, now=clock)
    stack.push_async_callback(store.close)
    await store.open()
    limits = PartitionLimits(bytes=settings.recall.partition_bytes)
    partitions = await stack.enter_async_context(Partitions(store, coordination, limits, metrics, now=clock))
    journal = await stack.enter_async_context(SqliteJournal(directory / "journal.db", now=clock))
    sessions = Sessions(coordination, new_session=lambda: uuid.uuid4().hex)
    learner = await stack.enter_async_context(
        make_intake(
            journal, sessions, partitions, embedder, coordination, _LIMITS, metrics,
            extractor=made.extractor, reconciler=Reconciler(partitions, embedder, metrics), now=clock,
            policy=QueuePolicy(), judged=made.judged,
        )
    )  # fmt: skip
    recaller = make_recaller(context, partitions, embedder)
    return System(learner, recaller, clock, {}, {})


async def main(directory: Path) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a library's own prints are no answers
    settings = load(None, {"MEMORY_EXTPROC__RECALL__DEADLINE": "5s"})
    async with AsyncExitStack() as stack:
        system = await open_system(directory, settings, stack)
        print(json.dumps({"ready": "memory-extproc"}), file=answers)
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            began, before = time.perf_counter(), time.process_time()
            answer: dict[str, Any] = {}
            if request["op"] == "add":
                await system.add(request)
            elif request["op"] in {"search", "rank"}:
                answer["ids"] = await system.find(request, settings, deep=request["op"] == "rank")
            else:
                answer |= {"resident": resident_bytes(), "disk": directory_bytes(directory)}
            answer |= {"seconds": time.perf_counter() - began, "cpu": time.process_time() - before}
            print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
