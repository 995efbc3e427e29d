"""A forget wins every race: two hundred runs, each with its seed, of chats, extraction, failures and deaths.

One process or two live at a time and die where they stand; the store may be away for a whole life, so that rows
are known in process alone; what one accepted another carries out; turns wait in a directory that nobody can search
until it is joined. `make forget-races` runs ten thousand.
"""

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

from memory_extproc.app.coordination import make_news_handler
from memory_extproc.concurrency import Backoff
from memory_extproc.erasure.forgetter import Forgetter
from memory_extproc.erasure.steps import Erasable
from memory_extproc.erasure.tombstones import TombstoneFilteringStore, TombstoneIndex
from memory_extproc.errors import MemoryExtprocError, TransientError
from memory_extproc.learn.messages import judge
from memory_extproc.learn.queue import QueuePolicy
from memory_extproc.learn.reconcile import ComingMemories, Reconciler, row_of
from memory_extproc.model import (
    ForgetReceipt,
    ForgetScope,
    ForgetState,
    Owner,
    Turn,
    TurnOutcome,
    WaitingPlace,
    message_id_of,
)
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryJournal, InMemoryLedger, InMemoryStore
from memory_extproc.testing.models import CannedEmbedder
from tests.support.builders import ANN, BOB, MONDAY, a_turn
from tests.support.learner import make_intake, reconfigure
from tests.unit.erasure.forgetting import LIMITS, FakeReplicas, Files
from tests.unit.erasure.unsteady import Fate, Unsteady
from tests.unit.learn.learning import LIMITS as LEARN_LIMITS
from tests.unit.learn.learning import QUICK, ListingExtractor, Surroundings, a_fact, until

RUNS = int(os.environ.get("MEMORY_EXTPROC_TEST_RACES", "200"))
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
    outcome: TurnOutcome | None = None  # None: the process died first
    forgotten: bool = False
    doubtful: bool = False  # a forget that may or may not have been accepted covers it


class OneMachine(FakeReplicas):
    """The processes that live. Who is dead hears nothing, and its lease is over."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: list[Process] = []
        self.parked: list[Turn] = []  # accepted by a replica that ended, in its own directory

    async def tell(self, subject: str) -> None:
        for process in list(self.alive):
            hearing = asyncio.create_task(process.hear(subject))
            dying = asyncio.create_task(process.fate.dead.wait())
            try:
                await asyncio.wait({hearing, dying}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                hearing.cancel()
                dying.cancel()

    async def waiting(self, owner: Owner | None = None) -> list[WaitingPlace]:
        if not self.parked:
            return []
        return [WaitingPlace("another", min(turn.at for turn in self.parked), live=False)]


@dataclass
class Durable(Surroundings):
    """What outlives a process."""

    ledger: InMemoryLedger = field(default_factory=InMemoryLedger)
    replicas: OneMachine = field(default_factory=OneMachine)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.embedder = CannedEmbedder(8)
        self.store = InMemoryStore(8, now=lambda: self.now)
        self.limits = replace(LEARN_LIMITS, batch=2, attempts=1_000_000)


class Process:
    """One life of the sidecar's parts. Leave it by `die`, or by `finish`, which works everything off."""

    def __init__(self, durable: Durable, fate: Fate, *, store_away: bool = False) -> None:
        self.fate, self.store_away, self._replicas = fate, store_away, durable.replicas
        assert isinstance(durable.journal, InMemoryJournal)
        durable.journal.reopen()
        self.store = Unsteady(durable.store, fate, away=lambda: self.store_away)
        store, journal = self.store, Unsteady(durable.journal, fate)
        coordination, ledger = Unsteady(durable.coordination, fate), Unsteady(durable.ledger, fate)

        def now() -> datetime:
            return durable.now

        self.limits = durable.limits
        self.forgotten = TombstoneIndex(ledger, durable.replicas)
        hiding = TombstoneFilteringStore(store, self.forgotten)
        self.partitions = Partitions(
            hiding, coordination, PartitionLimits(), durable.metrics, now=now, forgotten=self.forgotten
        )
        sessions = type(durable.sessions)(coordination, new_session=lambda: "s")
        self.learner = make_intake(
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
            policy=QueuePolicy(QUICK),
            forgotten=self.forgotten,
        )
        holders = Erasable(
            replicas=durable.replicas,
            store=store,
            partitions=self.partitions,
            journal=journal,
            coordination=coordination,
            purges=Unsteady(Files(), fate),
            foresees=ComingMemories(judge, ListingExtractor(), by_rules_alone=True, now=now),
        )
        limits = replace(
            LIMITS,
            patience=timedelta(milliseconds=2),
            backoff=Backoff(timedelta(milliseconds=1), timedelta(milliseconds=1)),
        )
        self.forgetter = Forgetter(
            ledger,
            self.forgotten,
            holders,
            limits,
            durable.metrics,
            now=now,
        )
        self._heard = make_news_handler(self.forgotten, self.partitions)
        hiding.found = self.forgetter.sweep
        self._stack = AsyncExitStack()

    async def hear(self, subject: str) -> None:
        while True:
            try:
                return await self._heard(subject)
            except TransientError:
                await asyncio.sleep(0)

    async def live(self) -> None:
        self._replicas.alive.append(self)
        for part in (self.partitions, self.learner, self.forgetter):
            await self._stack.enter_async_context(part)

    async def die(self) -> None:
        """Whatever was under way stops where it stands."""
        self.fate.dead.set()
        self._replicas.alive.remove(self)
        reconfigure(self.learner, replace(self.limits, grace=timedelta()))
        await self._stack.aclose()

    async def finish(self) -> None:
        await self._stack.aclose()
        self._replicas.alive.remove(self)


class Run:
    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.durable = Durable(now=MONDAY)
        self.said: list[Said] = []
        self.promised: list[tuple[ForgetReceipt, list[Said]]] = []
        self.ids: dict[str, set[str]] = {}  # by words: the message's and the fact's

    async def carried_out(self) -> None:
        for _ in range(self.dice.choice((1, 1, 2, 3))):
            store_away = self.dice.random() < 0.3
            lives = [self._one_life(store_away=store_away) for _ in range(self.dice.choice((1, 1, 2)))]
            await asyncio.gather(*lives)
        await self._last_life()

    async def _one_life(self, *, store_away: bool) -> None:
        failures = self.dice.choice((0.0, 0.0, 0.05, 0.15))
        fate = Fate(self.dice, failures=failures, dies_after=self.dice.choice((None, self.dice.randint(5, 150))))
        process = Process(self.durable, fate, store_away=store_away)
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
        chance = self.dice.random()
        if number and chance < 0.4:
            await self._forget(process)
        elif chance < 0.45:
            self._park()
        elif chance < 0.5:
            await self._join()
        else:
            await self._say(process)

    def _park(self) -> None:
        """Another replica accepts a turn, and ends."""
        durable = self.durable
        durable.now += timedelta(milliseconds=7)
        said = Said(f"{CANARY} {len(self.said)} is what I said.", ANN, "s1", durable.now, TurnOutcome.JOURNALLED)
        self.said.append(said)
        durable.replicas.parked.append(a_turn(said.text, "", session=said.session, at=said.at))

    async def _join(self) -> None:
        """What waited in its directory comes to the journal that all share."""
        while self.durable.replicas.parked:
            await self.durable.journal.append(self.durable.replicas.parked[-1])
            self.durable.replicas.parked.pop()
        assert isinstance(self.durable.journal, InMemoryJournal)
        self.durable.journal.reopen()

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
        scope = await self._scope()
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
        self._look_at(receipt, covered)
        if receipt.state is not ForgetState.ACCEPTED:
            with suppress(MemoryExtprocError):
                shown = [memory.content async for page in process.partitions.rows(ANN) for memory in page]
                gone = [one.text for one in covered if any(one.text in text for text in shown)]
                assert not gone, f"shown after the forget returned: {gone}"

    async def _scope(self) -> ForgetScope:
        """Everything, a session, or by its id a message or a fact of what was said, which may not be stored yet."""
        wide = self.dice.choice((ForgetScope(), ForgetScope(session="s1"), ForgetScope(session="s2")))
        turns = [entry.turn async for entry in self.durable.journal.of_owner(ANN)] + self.durable.replicas.parked
        if not turns or self.dice.random() < 0.4:
            return wide
        turn = self.dice.choice(turns)
        fact = row_of(a_fact(turn), turn, 0, "")
        self.ids[turn.asked] = {message_id_of(ANN, turn.id, 0), fact.id}
        return ForgetScope(ids=(self.dice.choice(sorted(self.ids[turn.asked])),))

    def _look_at(self, receipt: ForgetReceipt, covered: list[Said]) -> None:
        parked = {turn.asked for turn in self.durable.replicas.parked}
        if receipt.state is not ForgetState.ACCEPTED:
            assert not [one for one in covered if one.text in parked], "clean, and a turn of it waits"

    def _covered(self, scope: ForgetScope, until: datetime) -> list[Said]:
        if scope.ids:
            return [one for one in self.said if self.ids.get(one.text, set()) & {*scope.ids}]
        return [
            one for one in self.said if one.owner == ANN and scope.session in {"", one.session} and one.at <= until
        ]

    async def _last_life(self) -> None:
        """Nothing fails any more: what was promised is done, what was accepted is learned."""
        process = Process(self.durable, Fate(self.dice, failures=0.0, dies_after=None))
        await process.live()
        await self._join()
        self.durable.now += timedelta(days=1)

        async def nothing_left() -> bool:
            return not await self.durable.ledger.list_unfinished() and not process.forgetter._running

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
            elif one.outcome is TurnOutcome.JOURNALLED and not one.doubtful:
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
