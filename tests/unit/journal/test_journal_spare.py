"""Turns accepted while the shared journal is away: kept here, and learned as soon as that answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.journal.failover import FailoverJournal, either_writable
from memory_extproc.journal.sqlite import JournalRow
from memory_extproc.model import Caller, Owner, Turn, TurnOutcome, digest
from memory_extproc.testing.adapters import InMemoryJournal
from tests.support.builders import ANN, BOB, MONDAY, a_turn
from tests.unit.learn.learning import LIMITS, Surroundings, until

AWAY = TransientError("away")


def turn(words: str, **changes: Any) -> Turn:
    return replace(a_turn(words, **changes), id=digest(words))


class World:
    def __init__(self, *, shared_turns: int = 100) -> None:
        self.shared = InMemoryJournal(now=lambda: MONDAY, max_turns=shared_turns)
        self.spare = InMemoryJournal(now=lambda: MONDAY, max_turns=2)
        self.journal = FailoverJournal(self.shared, self.spare)

    async def arrived(self) -> list[str]:
        return [entry.turn.asked for entry in await self.journal.arrivals(10)]


async def test_what_came_while_the_shared_journal_was_away_arrives_from_it_when_it_is_back() -> None:
    world = World()
    await world.journal.append(turn("before"))
    assert await world.arrived() == []
    world.shared.fault = AWAY
    assert await world.journal.append(turn("meanwhile")) is TurnOutcome.JOURNALLED
    assert (await world.journal.depth()).turns == 1, "what can be told of"
    with pytest.raises(TransientError):
        await world.journal.arrivals(10)
    world.shared.fault = None
    assert (await world.journal.depth()).turns == 2
    assert await world.arrived() == ["meanwhile"]
    assert await world.arrived() == []
    assert [entry.turn.asked for entry in await world.shared.pending(10)] == ["before", "meanwhile"]
    assert (await world.spare.depth()).turns == 0


@pytest.mark.parametrize("reached", [1, 2])
async def test_what_moved_arrives_though_the_shared_journal_goes_away_again_as_it_moves(reached: int) -> None:
    world = World()

    class Leaving(InMemoryJournal):
        left = reached

        async def append(self, turn: Turn) -> TurnOutcome:
            if not self.left:
                raise AWAY
            self.left -= 1
            return await super().append(turn)

        async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[JournalRow]:
            if not self.left:
                raise AWAY
            return await super().get(owner, ids)

    shared = world.journal.shared = Leaving(now=lambda: MONDAY)
    for words in ("first", "second"):
        await world.spare.append(turn(words))
    # The move is tried again; until then the shared journal goes on without it.
    early = await world.arrived()
    shared.left = 100
    assert early + await world.arrived() + await world.arrived() == ["first", "second"]


async def test_what_an_earlier_process_put_aside_arrives_too() -> None:
    world = World()
    await world.spare.append(turn("left behind"))
    assert await world.arrived() == ["left behind"]


async def test_what_reached_the_shared_journal_after_all_is_not_learned_twice() -> None:
    world = World()
    await world.shared.append(turn("once"))
    world.shared.reopen()
    await world.shared.arrivals(10)
    await world.spare.append(turn("once"))
    assert await world.arrived() == []
    assert (await world.journal.depth()).turns == 1


async def test_a_full_shared_journal_leaves_the_rest_where_it_is() -> None:
    world = World(shared_turns=1)
    world.shared.fault = AWAY
    for words in ("a", "b"):
        await world.journal.append(turn(words))
    assert await world.journal.append(turn("c")) is TurnOutcome.JOURNAL_FULL
    world.shared.fault = None
    assert await world.arrived() == ["a"]
    assert (await world.journal.depth()).turns == 2
    await world.shared.mark_learned(await world.shared.pending(10))
    assert await world.arrived() == ["b"]


async def test_a_session_that_ends_during_an_outage_ends_with_what_was_put_aside() -> None:
    world = World()
    world.shared.fault = AWAY
    await world.journal.append(turn("put aside"))
    with pytest.raises(TransientError):
        await world.journal.end(ANN, "")
    world.shared.fault = None
    assert [entry.turn.last for entry in await world.journal.arrivals(10)] == [True]


async def test_a_disk_that_fails_does_not_hold_up_what_others_accepted() -> None:
    world = World()
    await world.shared.append(turn("of another"))
    world.shared.reopen()
    world.spare.fault = PermanentError("damaged")
    assert await world.arrived() == ["of another"]
    assert (await world.journal.depth()).turns == 1
    assert await world.journal.append(turn("ours")) is TurnOutcome.JOURNALLED
    world.shared.fault = AWAY
    with pytest.raises(PermanentError):
        await world.journal.append(turn("nowhere to go"))
    with pytest.raises(TransientError):
        await world.journal.depth()


async def test_an_owner_is_erased_from_both() -> None:
    world = World()
    world.shared.fault = AWAY
    await world.journal.append(turn("put aside"))
    await world.journal.append(turn("bob's", owner=BOB))
    world.shared.fault = None
    await world.shared.append(turn("shared"))
    await world.shared.append(turn("shared too"))
    owned = [entry.turn.asked async for entry in world.journal.of_owner(ANN)]
    assert owned == ["put aside", "shared", "shared too"]
    assert await world.journal.erase(ANN, [turn("put aside").id, turn("shared").id]) == 2
    assert await world.journal.erase_owner(ANN) == 1
    assert await world.arrived() == ["bob's"]


async def test_a_turn_can_be_written_while_either_journal_can() -> None:
    async def fine() -> None: ...

    async def locked() -> None:
        raise TransientError("locked")

    async def away() -> None:
        raise PermanentError("away")

    await either_writable(fine, locked)()
    await either_writable(away, fine)()
    with pytest.raises(TransientError, match="locked"):
        await either_writable(away, locked)()


async def test_a_turn_accepted_during_an_outage_is_learned_when_it_is_over() -> None:
    world, journals = Surroundings(limits=replace(LIMITS, idle=timedelta(milliseconds=5))), World()
    world.journal = journals.journal
    async with world.learner() as learner:
        journals.shared.fault = AWAY
        assert await learner.accept(world.exchange("I live in Paris.")) is TurnOutcome.JOURNALLED
        await learner.wait_visible(Caller(ANN))
        journals.shared.fault = None
        await until(lambda: world.reconciler.facts == [(ANN, "I live in Paris.")], "it is learned")
    assert await world.stored() == ["I live in Paris."]
