"""Three replicas in memory on a real Redis, each with its own way to one store: what a broken way costs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
import structlog.testing
from pymilvus import MilvusException

from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.errors import TransientError
from memory_extproc.journal.redis import JournalSharing, RedisJournal
from memory_extproc.learn.ingest import Intake
from memory_extproc.model import Owner, TurnOutcome
from memory_extproc.testing.adapters import InMemoryStore
from tests.support.ailing import MilvusWeather
from tests.support.builders import MONDAY
from tests.support.redis import RedisServer, redis_server
from tests.support.waiting import until
from tests.unit.learn.learning import LIMITS, Surroundings

__all__ = ["redis_server"]
pytestmark = pytest.mark.redis

PEOPLE = [Owner(tenant, f"person {n}") for n in range(16) for tenant in ("acme", "globex")]
SHARING = JournalSharing(
    lease=timedelta(seconds=3), grace=timedelta(seconds=1), patience=timedelta(milliseconds=100)
)
UNKNOWN = MilvusException(65535, "find no available rootcoord, check rootcoord state")


class Replica:
    """A learner with its own way to the store that all replicas share."""

    def __init__(self, link: RedisLink, prefix: str, store: InMemoryStore) -> None:
        own = InMemoryStore(32, now=lambda: MONDAY)
        own._rows = store._rows
        self.world = Surroundings(limits=replace(LIMITS, idle=timedelta(milliseconds=5)), shared_store=own)
        self.weather = self.world.weather = own.weather = MilvusWeather(self.world.metrics)
        self.world.store_works = lambda: self.weather.reports.up
        self.journal = self.world.journal = RedisJournal(
            link,
            now=lambda: MONDAY,
            prefix=prefix,
            sharing=SHARING,
            store_failing_for=lambda: self.weather.reports.failing_for,
        )
        self.world.metrics.journal_parts.set_function(lambda: self.journal.parts_held)
        self.learner: Intake | None = None

    @property
    def parts(self) -> float:
        return self.world.sample("journal_parts")

    async def fails(self, error: Exception | None) -> None:
        """Reads and writes, from here on; None: it works again, as the probe of the store would find."""
        self.weather.failing = frozenset({"put", "delete", "fetch", "pages", "nearest", "get"})
        self.weather.error = error
        if error is None:
            await until(self._probe, "the breaker lets it through")

    async def _probe(self) -> bool:
        try:
            for operation in ("put", "get"):
                await self.weather.pass_through(operation)
        except TransientError:
            return False
        return True

    async def say(self, owner: Owner, words: str) -> None:
        assert self.learner is not None
        assert await self.learner.accept(self.world.exchange(words, owner=owner)) is TurnOutcome.JOURNALLED


Fleet = list[Replica]


@asynccontextmanager
async def entered(replica: Replica) -> AsyncIterator[None]:
    async with replica.journal, replica.world.learner() as replica.learner:
        yield


@pytest.fixture
async def fleet(redis_server: RedisServer) -> AsyncIterator[Fleet]:
    prefix, store = uuid4().hex, InMemoryStore(32, now=lambda: MONDAY)
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(3):
            link = await stack.enter_async_context(RedisLink(redis_server.url, timedelta(seconds=10)))
            made.append(Replica(link, prefix, store))
        for replica in made:
            await stack.enter_async_context(entered(replica))
        await until(lambda: sorted(one.parts for one in made) == [20, 22, 22], "each has its share")
        yield made


async def stored(fleet: Fleet) -> int:
    return sum([len(await fleet[0].world.stored(owner)) for owner in PEOPLE])


async def learned(fleet: Fleet) -> bool:
    return all(one.world.sample("journal_depth") == 0 for one in fleet)


async def test_a_replica_whose_store_fails_gives_its_parts_up_and_the_others_learn_what_it_accepted(
    fleet: Fleet,
) -> None:
    broken, *others = fleet
    with structlog.testing.capture_logs() as logs:
        await broken.fails(UNKNOWN)
        for owner in PEOPLE:
            await broken.say(owner, "I live in Paris.")
        await until(lambda: broken.parts == 0, "it holds none")
        await until(lambda: sum(one.parts for one in others) == 64, "the others hold all")
        assert [line["held"] for line in logs if line["event"] == "journal.parts_given_up"] != []
    assert broken.world.sample("store_up") == 0
    await until(lambda: all_facts(others) == len(PEOPLE), "the others learn all of it", seconds=30)
    assert [
        len([row async for page in others[0].world.store.pages(owner, 100, fresh=True) for row in page])
        for owner in PEOPLE
    ] == [1] * len(PEOPLE)
    assert all_facts([broken]) == 0
    await broken.fails(None)
    await until(lambda: broken.parts >= 20, "its store works, and it has its share again")
    await until(lambda: learned(fleet), "nothing is left", seconds=30)
    assert (await broken.journal.depth()).dead == 0


async def test_while_no_replicas_store_works_nobody_holds_and_then_all_resume_by_themselves(fleet: Fleet) -> None:
    for replica in fleet:
        await replica.fails(MilvusException(2, "Fail connecting to server"))
    for number, owner in enumerate(PEOPLE):
        await fleet[number % 3].say(owner, "I live in Paris.")
    await until(lambda: [one.parts for one in fleet] == [0, 0, 0], "nobody holds a part")
    assert (await fleet[0].journal.depth()).turns == len(PEOPLE)
    for replica in fleet:
        await replica.fails(None)
    await until(lambda: sum(one.parts for one in fleet) == 64, "they are shared out again")
    await until(lambda: learned(fleet), "everything is learned", seconds=30)
    assert all_facts(fleet) == await stored(fleet) == len(PEOPLE)
    assert (await fleet[0].journal.depth()).dead == 0


def all_facts(replicas: list[Replica]) -> int:
    """Told apart: an extraction that passed to another may be done twice."""
    return len({fact for one in replicas for fact in one.world.reconciler.facts})
