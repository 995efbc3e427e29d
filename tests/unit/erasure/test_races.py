"""A forget wins every race: a thousand runs, each told by its seed, of chats, extraction, failures and deaths."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random

import pytest
import structlog

from memory_extproc.coordination.ledger_transient import TransientLedger
from memory_extproc.coordination.replicas import SoleReplica
from memory_extproc.erasure.eraser import Erasable
from memory_extproc.erasure.forgetter import Forgetter
from memory_extproc.erasure.forgotten import Forgotten, HidingStore
from memory_extproc.errors import MemoryExtprocError
from memory_extproc.inference.canned import CannedEmbedder
from memory_extproc.learn.journal_transient import TransientJournal
from memory_extproc.learn.learner import Learner
from memory_extproc.learn.reconcile import Reconciler
from memory_extproc.model import ForgetReceipt, ForgetScope, ForgetState, Owner, Stored
from memory_extproc.store.partition import PartitionLimits, Partitions
from memory_extproc.store.transient import TransientStore
from tests.builders import ANN, BOB, MONDAY
from tests.unit.erasure.forgetting import LIMITS, Files
from tests.unit.erasure.unsteady import Fate, Unsteady
from tests.unit.learn.learning import LIMITS as LEARN_LIMITS
from tests.unit.learn.learning import ListingExtractor, Surroundings, until

RUNS = int(os.environ.get("MEMORY_EXTPROC_TEST_RACES", "1000"))
GROUPS = 20
CANARY = "canary"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of failures are met here on purpose."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@dataclass
class Said:
    """A turn that somebody said."""

    text: str
    owner: Owner
    session: str
    at: datetime
    outcome: Stored | None = None  # None: the process died first
    forgotten: bool = False
    doubtful: bool = False  # a forget that may or may not have been accepted covers it


@dataclass
class Durable(Surroundings):
    """What outlives a process."""

    ledger: TransientLedger = field(default_factory=TransientLedger)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.embedder = CannedEmbedder(8)
        self.store = TransientStore(8, now=lambda: self.now)
        self.limits = replace(LEARN_LIMITS, batch=2, attempts=1_000_000)


class Process:
    """One life of the sidecar's parts. Leave it by `die`, or by `finish`, which works everything off."""

    def __init__(self, durable: Durable, fate: Fate) -> None:
        self.fate = fate
        assert isinstance(durable.journal, TransientJournal)
        durable.journal.reopen()
        store, journal = Unsteady(durable.store, fate), Unsteady(durable.journal, fate)
        coordination, ledger = Unsteady(durable.coordination, fate), Unsteady(durable.ledger, fate)

        def now() -> datetime:
            return durable.now

        self.limits = durable.limits
        self.forgotten = Forgotten(ledger, SoleReplica())
        hiding = HidingStore(store, self.forgotten)
        self.partitions = Partitions(
            hiding, coordination, PartitionLimits(), durable.metrics, now=now, forgotten=self.forgotten
        )
        sessions = type(durable.sessions)(coordination, durable.sessions._limits, new_session=lambda: "s")
        self.learner = Learner(
            journal,
            sessions,
            self.partitions,
            durable.embedder,
            coordination,
            durable.limits,
            durable.metrics,
            extractor=ListingExtractor(),
            reconciler=Reconciler(self.partitions, durable.embedder, durable.metrics),
            now=now,
            chance=lambda: 0.5,
            forgotten=self.forgotten,
        )
        holders = Erasable(
            store=store,
            partitions=self.partitions,
            journal=journal,
            coordination=coordination,
            purges=Unsteady(Files(), fate),
        )
        self.forgetter = Forgetter(
            ledger, self.forgotten, SoleReplica(), holders, LIMITS, durable.metrics, now=now, chance=lambda: 0.5
        )
        hiding.found = self.forgetter.sweep
        self._stack = AsyncExitStack()

    async def live(self) -> None:
        for part in (self.partitions, self.learner, self.forgetter):
            await self._stack.enter_async_context(part)

    async def die(self) -> None:
        """Whatever was under way stops where it stands."""
        self.fate.dead.set()
        self.learner.use(replace(self.limits, grace=timedelta()))
        await self._stack.aclose()

    async def finish(self) -> None:
        await self._stack.aclose()


class Run:
    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.durable = Durable(now=MONDAY)
        self.said: list[Said] = []
        self.promised: list[tuple[ForgetReceipt, list[Said]]] = []
        self.fate = Fate(self.dice, failures=0.0, dies_after=None)

    async def carried_out(self) -> None:
        for _ in range(self.dice.choice((1, 1, 2, 3))):
            failures = self.dice.choice((0.0, 0.0, 0.05, 0.15))
            dies_after = self.dice.choice((None, self.dice.randint(5, 150)))
            await self._one_life(Fate(self.dice, failures=failures, dies_after=dies_after))
        await self._last_life()

    async def _one_life(self, fate: Fate) -> None:
        process = Process(self.durable, fate)
        await process.live()
        under_way = [asyncio.create_task(self._act(process, number)) for number in range(self.dice.randint(3, 7))]
        everything = asyncio.gather(*under_way)
        await until(lambda: everything.done() or fate.dead.is_set(), "it is done or dead")
        fate.dead.set()
        for task in under_way:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await everything
        await asyncio.gather(*under_way, return_exceptions=True)
        await process.die()

    async def _act(self, process: Process, number: int) -> None:
        for _ in range(self.dice.randint(0, 6) * number):
            await asyncio.sleep(0)
        if number and self.dice.random() < 0.4:
            await self._forget(process)
        else:
            await self._say(process)

    async def _say(self, process: Process) -> None:
        durable = self.durable
        durable.now += timedelta(milliseconds=7)
        said = Said(
            f"{CANARY} {len(self.said)} is what I said.",
            self.dice.choice((ANN, ANN, BOB)),
            self.dice.choice(("s1", "s2")),
            durable.now,
        )
        self.said.append(said)
        exchange = durable.exchange(said.text, "Noted.", said.owner, said.session)
        for _ in range(self.dice.randint(0, 9)):  # the answer takes its time
            await asyncio.sleep(0)
        said.outcome = await process.learner.accept(exchange)

    async def _forget(self, process: Process) -> None:
        scope = self.dice.choice((ForgetScope(), ForgetScope(session="s1"), ForgetScope(session="s2")))
        self.durable.now += timedelta(milliseconds=7)
        try:
            receipt = await process.forgetter.forget(ANN, scope)
        except BaseException as error:
            # It was not promised; whether it was written down nobody knows.
            for one in self._covered(scope, self.durable.now):
                one.doubtful = True
            if isinstance(error, MemoryExtprocError):
                return
            raise
        covered = self._covered(scope, receipt.accepted_at)
        self.promised.append((receipt, covered))
        for one in covered:
            one.forgotten = True
        if receipt.state is not ForgetState.ACCEPTED:
            with suppress(MemoryExtprocError):
                shown = [memory.content async for page in process.partitions.rows(ANN) for memory in page]
                gone = [one.text for one in covered if any(one.text in text for text in shown)]
                assert not gone, f"shown after the forget returned: {gone}"

    def _covered(self, scope: ForgetScope, until: datetime) -> list[Said]:
        return [
            one for one in self.said if one.owner == ANN and scope.session in {"", one.session} and one.at <= until
        ]

    async def _last_life(self) -> None:
        """Nothing fails any more: what was promised is done, what was accepted is learned."""
        process = Process(self.durable, Fate(self.dice, failures=0.0, dies_after=None))
        await process.live()
        self.durable.now += timedelta(days=1)

        async def nothing_left() -> bool:
            return not await self.durable.ledger.unfinished() and not process.forgetter._running

        async def all_stored() -> bool:
            return all(entry.stored for entry in await self.durable.journal.pending(1000))

        await until(nothing_left, "every forget is complete")
        await until(all_stored, "everything that was accepted is stored")
        await process.finish()
        await self._check()

    async def _check(self) -> None:
        durable = self.durable
        held = {
            owner: [memory.content for memory in await durable.rows(owner)]
            + [entry.turn.asked async for entry in durable.journal.of_owner(owner)]
            for owner in (ANN, BOB)
        }
        records = repr(durable.coordination.records) + repr(durable.ledger.jobs)
        for one in self.said:
            times = sum(text == one.text for text in await durable.stored(one.owner))
            if one.forgotten:
                assert not any(one.text in text for text in held[one.owner]), f"{one.text!r} came back"
                assert one.text not in records
            elif one.outcome is Stored.JOURNALLED and not one.doubtful:
                assert times == 1, f"{one.text!r} was accepted, and is there {times} times"
        for receipt, _ in self.promised:
            kept = await durable.ledger.job(receipt.id)
            assert kept is not None
            assert not kept.open


@pytest.mark.no_cover
@pytest.mark.parametrize("group", range(GROUPS))
async def test_a_forget_wins_every_race_and_nothing_else_is_lost(group: int) -> None:
    for seed in range(group, RUNS, GROUPS):
        try:
            await Run(seed).carried_out()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
