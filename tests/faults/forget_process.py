"""A process with real stores that chats and has things forgotten, to be killed by a test:
forget_process.py DIRECTORY SEED

Prints `says N USER SESSION` before each turn, `said N` once it is accepted, `forgot ID UPTO SESSION` once a forget
of all turns below UPTO has returned. With `finish` for a seed it says nothing new: it finishes every forget and
prints `left WORDS` for each memory that it recalls.
"""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from prometheus_client import CollectorRegistry

from memory_extproc.concurrency import utc_now
from memory_extproc.coordination.sqlite import SoleReplica, SqliteCoordination, SqliteLedger
from memory_extproc.erasure.forgetter import ForgetLimits, Forgetter
from memory_extproc.erasure.steps import Erasable
from memory_extproc.erasure.tombstones import TombstoneFilteringStore, TombstoneIndex
from memory_extproc.journal.sqlite import SqliteJournal
from memory_extproc.learn.ingest import Intake
from memory_extproc.learn.queue import QueuePolicy
from memory_extproc.learn.reconcile import Reconciler
from memory_extproc.learn.sessions import Sessions
from memory_extproc.model import Caller, Exchanged, ForgetScope, Message, Owner, Role, TurnOutcome
from memory_extproc.observe.log import configure
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings.memory import Milvus
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.milvus.options import MilvusOptions
from memory_extproc.store.milvus.store import MilvusStore
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.models import CannedEmbedder
from tests.support.builders import ANN, BOB
from tests.support.learner import LearnSettings, make_intake
from tests.support.waiting import until
from tests.unit.learn.learning import ListingExtractor

DIMENSION = 16


def words(number: int) -> str:
    return f"My canary{number:05}canary is yellow."


@dataclass
class Parts:
    store: MilvusStore
    partitions: Partitions
    learner: Intake
    forgetter: Forgetter
    ledger: SqliteLedger
    journal: SqliteJournal


async def open_store(directory: Path, stack: AsyncExitStack, metrics: Metrics) -> MilvusStore:
    options = MilvusOptions(
        section=Milvus(collection="memories", dimension=DIMENSION, shards=1, timeout=timedelta(seconds=10)),
        fingerprint="canned",
        path=directory / "milvus.db",
    )
    store = MilvusStore(options, metrics, now=utc_now)
    await store.open()
    stack.push_async_callback(store.close)
    return store


async def open_parts(directory: Path, stack: AsyncExitStack) -> Parts:
    metrics = Metrics(CollectorRegistry(), "test")
    embedder = CannedEmbedder(DIMENSION)
    coordination = await stack.enter_async_context(SqliteCoordination(directory / "coordination.db", now=utc_now))
    store = await open_store(directory, stack, metrics)
    ledger = await stack.enter_async_context(SqliteLedger(directory / "erasure.db"))
    journal = await stack.enter_async_context(SqliteJournal(directory / "journal.db", now=utc_now))
    forgotten = TombstoneIndex(ledger, SoleReplica())
    hiding = TombstoneFilteringStore(store, forgotten)
    partitions = await stack.enter_async_context(
        Partitions(hiding, coordination, PartitionLimits(), metrics, now=utc_now, forgotten=forgotten)
    )
    learner = await stack.enter_async_context(
        make_intake(
            journal,
            Sessions(coordination, new_session=lambda: uuid4().hex),
            partitions,
            embedder,
            coordination,
            LearnSettings(
                batch=2,
                gather=timedelta(milliseconds=20),
                journal_wait=timedelta(seconds=10),
                idle=timedelta(milliseconds=50),
            ),
            metrics,
            extractor=ListingExtractor(),
            reconciler=Reconciler(partitions, embedder, metrics),
            now=utc_now,
            policy=QueuePolicy(),
            forgotten=forgotten,
        )
    )
    forgetter = await stack.enter_async_context(
        Forgetter(
            ledger,
            forgotten,
            Erasable(
                store=store,
                partitions=partitions,
                journal=journal,
                coordination=coordination,
                replicas=SoleReplica(),
                purges=store,
            ),
            ForgetLimits(patience=timedelta(seconds=30)),
            metrics,
            now=utc_now,
        )
    )
    hiding.found = forgetter.sweep
    return Parts(store, partitions, learner, forgetter, ledger, journal)


def tell(*words_: object) -> None:
    sys.stdout.write(" ".join(str(word) for word in words_) + "\n")
    sys.stdout.flush()


async def chat(parts: Parts, dice: random.Random, numbers: list[int]) -> None:
    number = len(numbers)
    numbers.append(number)
    owner: Owner = dice.choice((ANN, ANN, BOB))
    session = dice.choice(("s1", "s2"))
    history = (Message(Role.USER, f"Opening {number}"), Message(Role.ASSISTANT, "Go on."))
    exchanged = Exchanged(
        caller=Caller(owner, session=session),
        history=history,
        asked=words(number),
        answered=f"Noted: {words(number)}",
        at=utc_now(),
        response_id=f"response {number}",
    )
    # Before it is handed over: whether it was taken in is not known if we die now.
    tell("says", number, owner.user, session)
    await asyncio.sleep(dice.random() * 0.01)
    if await parts.learner.accept(exchanged) in {TurnOutcome.JOURNALLED, TurnOutcome.JOURNAL_LATE}:
        tell("said", number)


async def forget(parts: Parts, dice: random.Random, numbers: list[int]) -> None:
    session = dice.choice(("", "s1", "s2"))
    upto = len(numbers)
    await asyncio.sleep(0.002)  # the clock of what was said before has moved on
    receipt = await parts.forgetter.forget(ANN, ForgetScope(session=session))
    tell("forgot", receipt.id, upto, session or "-")


async def live(directory: Path, seed: int) -> None:
    dice = random.Random(seed)
    numbers: list[int] = [0] * dice.randrange(0, 1)
    async with AsyncExitStack() as stack:
        parts = await open_parts(directory, stack)
        tell("ready")
        while True:
            acts = [dice.choice((chat, chat, chat, forget)) for _ in range(4)]
            await asyncio.gather(*(act(parts, dice, numbers) for act in acts))


async def finish(directory: Path) -> None:
    async with AsyncExitStack() as stack:
        parts = await open_parts(directory, stack)

        async def complete() -> bool:
            learned = (await parts.journal.depth()).turns == 0
            return learned and not await parts.ledger.list_unfinished()

        await until(complete, "every forget is complete and every turn learned", seconds=60)
        for owner in (ANN, BOB):
            async for page in parts.partitions.rows(owner):
                for memory in page:
                    tell("left", memory.content.replace(" ", "_"))


if __name__ == "__main__":
    configure("critical", "json")
    where, what = Path(sys.argv[1]), sys.argv[2]
    asyncio.run(finish(where) if what == "finish" else live(where, int(what)))
