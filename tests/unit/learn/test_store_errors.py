"""Errors of a store: an outage makes no dead letters whatever it is called, and a bad turn makes one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import grpc
import pytest
from pymilvus import MilvusException, exceptions

from memory_extproc.errors import PermanentError, UnknownFaultError
from memory_extproc.model import Embedded, Matrix, Owner
from memory_extproc.testing.adapters import InMemoryStore
from memory_extproc.testing.models import CannedEmbedder
from tests.support.ailing import MilvusWeather
from tests.support.builders import ANN, BOB, MONDAY, OTHER_ANN
from tests.unit.learn.learning import LIMITS, Surroundings, until

QUICK = replace(LIMITS, gather=timedelta(), idle=timedelta(milliseconds=5), attempts=3)
ERRORS = [
    MilvusException(65535, "find no available rootcoord, check rootcoord state"),
    MilvusException(65535, "rpc error: code = Unavailable desc = error reading from server: EOF"),
    *(MilvusException(code, "said") for code in (1, 5, 6, 27, 500, 502, 600, 1000, 1400, 4711)),
    MilvusException(1100, "invalid parameter"),
    exceptions.ParamError(message="refused"),
    ValueError("Cannot invoke RPC on closed channel!"),
    RuntimeError("of a kind that nobody knows"),
    grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "said", ""),
]


def ailing(**changes: object) -> tuple[Surroundings, MilvusWeather]:
    world = Surroundings(limits=replace(QUICK, **changes))  # type: ignore[arg-type]  # the limits' own
    weather = MilvusWeather(world.metrics)
    world.weather = world.store.weather = weather
    world.store_works = lambda: weather.reports.up
    return world, weather


@pytest.mark.parametrize("error", ERRORS, ids=str)
async def test_an_outage_of_the_store_makes_no_dead_letter_whatever_it_is_called(error: Exception) -> None:
    world, weather = ailing()
    async with world.learner() as learner:
        weather.error = error
        for number in range(4):
            for owner in (ANN, BOB, OTHER_ANN):
                await learner.accept(world.exchange(f"I own {number} red bicycles.", owner=owner))
        await until(lambda: weather.calls.count("put") > 100, "each was tried more often than a turn may be")
        assert world.sample("journal_dead_letters") == 0
        assert world.sample("store_up") == 0
        weather.error = None
        await until(lambda: world.sample("journal_depth") == 0, "everything is learned")
        assert world.sample("store_up") == 1
    for owner in (ANN, BOB, OTHER_ANN):
        assert len(await world.stored(owner)) == 4
    assert (await world.journal.depth()).dead == 0


class PickyStore(InMemoryStore):
    """Fails for rows that name *poison*, with an error that nobody has sorted."""

    poison = "poison"
    error: Exception = UnknownFaultError("Milvus, put: unknown")

    async def put(self, owner: Owner, rows: Sequence[Embedded]) -> None:
        await self.weather.pass_through("tried")
        if any(self.poison and self.poison in row.memory.content for row in rows):
            raise self.error
        await super().put(owner, rows)


async def test_a_turn_that_fails_while_others_succeed_becomes_a_dead_letter_and_blocks_nobody() -> None:
    world = Surroundings(limits=QUICK, extractor=None, shared_store=PickyStore(32, now=lambda: MONDAY))

    def tried() -> int:
        return world.store.weather.calls.count("tried")

    def dead() -> float:
        return world.sample("journal_dead_letters")

    async with world.learner() as learner:
        for words in ("I keep poison ivy.", "I own poison darts.", "I live in Paris."):
            await learner.accept(world.exchange(words))
        await until(world.stored, "what came behind them is stored")
        await until(lambda: tried() > 50, "they are tried again and again")
        assert dead() == 0, "nothing has succeeded since"
        number = 0
        while dead() < 2:
            number += 1
            await learner.accept(world.exchange(f"I own {number} red bicycles.", owner=BOB))
            before = tried()
            await until(lambda before=before: tried() > before + 4 or dead() == 2, "once more")  # type: ignore[misc]
        assert number >= QUICK.attempts - 1, (
            "each attempt counts once another turn succeeded; the one in Paris may be the first"
        )
    assert await world.stored() == ["I live in Paris."]


async def test_a_turn_that_alone_is_refused_for_good_becomes_a_dead_letter_while_the_store_works() -> None:
    world = Surroundings(limits=QUICK, extractor=None)

    class Refusing(CannedEmbedder):
        async def embed(self, texts: Sequence[str]) -> Matrix:
            raise PermanentError("no vector for that")

    world.embeds = Refusing(32)
    async with world.learner() as learner:
        await learner.accept(world.exchange("I live in Paris."))
        await until(lambda: world.sample("journal_dead_letters") == 1, "nobody else fails, and nothing is away")


@pytest.mark.parametrize("reason", ["PermanentError", "UnknownFaultError", "GiveUpError", "TryLaterError"])
async def test_dead_letters_of_an_outage_are_tried_again_by_themselves_and_not_for_ever(reason: str) -> None:
    """An older version made them while the store failed."""
    world, weather = ailing(attempts=1)
    weather.error = MilvusException(5, "said")
    await weather_is_known(weather)
    for number in range(3):
        async with world.learner() as learner:
            await learner.accept(world.exchange(f"I own {number} red bicycles."))
    for entry in await world.journal.pending(10):
        await world.journal.mark_failed(entry, reason, dead=True)
    unreadable = world.exchange("This one cannot be read.")
    async with world.learner() as learner:
        await learner.accept(unreadable)
    for entry in await world.journal.pending(10):
        await world.journal.mark_failed(entry, "unreadable", dead=True)
    async with world.learner():
        await until(lambda: world.sample("journal_dead_letters") == 4, "they are known")
        weather.error = None
        await weather_is_known(weather)
        await until(lambda: world.sample("journal_dead_letters") == 1, "they wait again")
        await until(lambda: world.sample("journal_depth") == 0, "they are learned")
    assert sorted(await world.stored()) == [f"I own {number} red bicycles." for number in range(3)]


async def test_a_dead_letter_that_is_bad_is_revived_a_few_times_at_most() -> None:
    store = PickyStore(32, now=lambda: MONDAY)
    world = Surroundings(limits=replace(QUICK, attempts=1), extractor=None, shared_store=store)

    def tried() -> int:
        return store.weather.calls.count("tried")

    async with world.learner() as learner:
        await learner.accept(world.exchange("I keep poison ivy."))
        numbers = itertools.count()

        async def dies() -> None:
            while world.sample("journal_dead_letters") == 0:
                await learner.accept(world.exchange(f"I own {next(numbers)} red bicycles.", owner=BOB))
                await asyncio.sleep(0.001)
            await until(lambda: world.sample("journal_depth") == 0, "the others are learned")

        await dies()
        for _ in range(6):
            store.poison = "I"  # everything fails
            for owner in (BOB, OTHER_ANN):
                await learner.accept(world.exchange(f"I own {next(numbers)} red bicycles.", owner=owner))
            before = tried()
            await until(lambda before=before: tried() > before + 10, "both fail")  # type: ignore[misc] # bound now
            store.poison = "poison"
            await until(lambda: world.sample("journal_depth") <= 1, "it is over")
            await dies()
        last = [call for call in store.weather.calls if call == "tried"]
        await learner.accept(world.exchange("I live in Paris.", owner=BOB))
        await until(lambda: world.sample("journal_depth") == 0, "that is learned")
        assert tried() == len(last) + 1, "the bad one is left alone"


async def weather_is_known(weather: MilvusWeather) -> None:
    try:
        await weather.pass_through("put")
    except Exception:  # noqa: BLE001 - whatever it is, it is reported by then
        return
