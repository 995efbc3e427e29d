"""The promises of every Journal: the one in memory, the SQLite file, a real Redis, one with another to spare."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.encryption.codecs import EncryptedJournal
from memory_extproc.encryption.keys import WrappedKeys
from memory_extproc.journal.failover import FailoverJournal
from memory_extproc.journal.redis import RedisJournal, ShardedJournal
from memory_extproc.journal.sqlite import SqliteJournal
from memory_extproc.learn.intake_log import IntakeLog
from memory_extproc.learn.restorable_journal import UNSTORED, RestorableJournal
from memory_extproc.model import DeadLetter, JournalState, Owner, Turn, TurnOutcome, digest
from memory_extproc.ports import Journal
from memory_extproc.settings.paths import JournalSection
from memory_extproc.testing.adapters import InMemoryJournal
from tests.support.builders import ANN, BOB, MONDAY, OTHER_ANN, a_turn
from tests.support.in_memory import InMemoryKeyTable, InMemoryMasterKey
from tests.support.redis import RedisFleet, RedisServer, redis_cluster, redis_server

__all__ = ["redis_cluster", "redis_server"]

OpenJournal = Callable[..., AbstractAsyncContextManager[Journal]]


class Clock:
    def __init__(self) -> None:
        self.time = MONDAY

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


REDIS = [pytest.param(name, marks=pytest.mark.redis) for name in ("redis_server", "redis_cluster")]


@pytest.fixture(params=["transient", "sealed", "sealed_sqlite", "sqlite", "spared", "restorable", *REDIS])
def open_journal(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> OpenJournal:
    @asynccontextmanager
    async def opened(max_turns: int = 100, max_dead: int = 100) -> AsyncIterator[Journal]:
        if request.param == "transient":
            yield InMemoryJournal(now=clock, max_turns=max_turns, max_dead=max_dead)
            return
        if request.param == "spared":
            shared = InMemoryJournal(now=clock, max_turns=max_turns, max_dead=max_dead)
            async with SqliteJournal(tmp_path / "spare.sqlite", now=clock) as spare:
                yield FailoverJournal(shared, spare)
            return
        if request.param == "restorable":
            shared = InMemoryJournal(now=clock, max_turns=max_turns, max_dead=max_dead)
            async with (
                IntakeLog(tmp_path / UNSTORED) as copies,
                RestorableJournal(shared, copies, shared.depth) as one,
            ):
                yield one
            return
        keys = WrappedKeys(InMemoryKeyTable(), InMemoryMasterKey())
        if request.param == "sealed":
            yield EncryptedJournal(InMemoryJournal(now=clock, max_turns=max_turns, max_dead=max_dead), keys)
            return
        if request.param.startswith("redis_"):
            server: RedisServer | RedisFleet = request.getfixturevalue(request.param)
            # Plenty of time: the machine that runs the tests may be busy with others.
            async with RedisLink(server.url, timedelta(seconds=10)) as link:
                kind = ShardedJournal if link.is_cluster else RedisJournal
                async with kind(
                    link, JournalSection(max_turns=max_turns), now=clock, prefix=uuid4().hex, max_dead=max_dead
                ) as journal:
                    yield journal
            return
        path = tmp_path / "journal.sqlite"
        async with SqliteJournal(
            path, JournalSection(max_turns=max_turns), now=clock, max_dead=max_dead
        ) as journal:
            yield EncryptedJournal(journal, keys) if request.param == "sealed_sqlite" else journal

    return opened


def turn(words: str, *, answered: str = "Noted.", **changes: Any) -> Turn:
    made = a_turn(words, answered, **changes)
    return replace(made, id=digest("turn", made.owner.key, words))


async def words(journal: Journal, limit: int = 100) -> list[str]:
    return [entry.turn.asked for entry in await journal.pending(limit)]


async def test_a_turn_comes_back_as_it_went_in_oldest_first(open_journal: OpenJournal) -> None:
    async with open_journal() as journal:
        first = turn("Mein Budget ist 10.000 € 🌴\x00", answered="")
        second = turn("second", owner=OTHER_ANN)
        assert await journal.append(first) is TurnOutcome.JOURNALLED
        assert await journal.append(second) is TurnOutcome.JOURNALLED
        entries = await journal.pending(10)
        assert [entry.turn for entry in entries] == [first, second]
        assert [(entry.stored, entry.replaced, entry.attempts) for entry in entries] == [(False, False, 0)] * 2
        assert [entry.turn for entry in await journal.pending(10, after=entries[0].place)] == [second]
        assert [entry.turn for entry in await journal.pending(1)] == [first]


async def test_a_retry_with_the_same_answer_is_a_duplicate(open_journal: OpenJournal) -> None:
    async with open_journal() as journal:
        await journal.append(turn("once"))
        assert await journal.append(turn("once")) is TurnOutcome.DUPLICATE
        [entry] = await journal.pending(10)
        await journal.mark_learned([entry])
        assert await journal.append(turn("once")) is TurnOutcome.DUPLICATE
        assert await words(journal) == []


async def test_of_many_at_once_one_is_journalled(open_journal: OpenJournal) -> None:
    async with open_journal() as journal:
        outcomes = await asyncio.gather(*(journal.append(turn("same")) for _ in range(20)))
        assert sorted(outcomes) == [TurnOutcome.DUPLICATE] * 19 + [TurnOutcome.JOURNALLED]


@pytest.mark.parametrize("learned_before", [False, True])
async def test_a_new_answer_to_a_known_turn_replaces_it_and_is_learned_again(
    open_journal: OpenJournal, learned_before: bool
) -> None:
    async with open_journal() as journal:
        await journal.append(turn("q", answered="first"))
        await journal.append(turn("other"))
        old = (await journal.pending(10))[0]
        await journal.mark_stored([old])
        if learned_before:
            await journal.mark_learned([old])
        assert await journal.append(turn("q", answered="second")) is TurnOutcome.JOURNALLED
        new = (await journal.pending(10))[-1]
        assert (new.turn.answered, new.stored, new.replaced) == ("second", False, True)
        assert await words(journal) == ["other", "q"]
        # Whoever still works on the old answer cannot mark the new one.
        await journal.mark_stored([old])
        await journal.mark_learned([old])
        await journal.mark_failed(old, "late", dead=True)
        assert (await journal.get(ANN, [new.turn.id]))[0] == new


async def test_stored_turns_wait_for_their_extraction_and_learned_ones_for_nothing(
    open_journal: OpenJournal,
) -> None:
    async with open_journal() as journal:
        for name in ("a", "b", "c"):
            await journal.append(turn(name))
        a, b, _ = await journal.pending(10)
        await journal.mark_stored([a, b])
        await journal.mark_learned([b])
        assert [(entry.turn.asked, entry.stored) for entry in await journal.pending(10)] == [
            ("a", True),
            ("c", False),
        ]
        assert await journal.get(ANN, [b.turn.id, "unknown"]) == []
        assert [entry.turn.asked for entry in await journal.get(ANN, [turn("c").id, turn("a").id])] == ["a", "c"]


async def test_a_full_journal_takes_no_more_until_something_is_learned(open_journal: OpenJournal) -> None:
    async with open_journal(max_turns=2) as journal:
        await journal.append(turn("a"))
        await journal.append(turn("b", owner=BOB))
        assert await journal.append(turn("c")) is TurnOutcome.JOURNAL_FULL
        assert await journal.append(turn("a", answered="new")) is TurnOutcome.JOURNALLED, "takes no more room"
        entries = await journal.pending(10)
        await journal.mark_learned(entries[:1])
        assert await journal.append(turn("c")) is TurnOutcome.JOURNALLED
        assert (await journal.depth()).turns == 2


async def test_failures_are_counted_until_the_turn_is_a_dead_letter(open_journal: OpenJournal) -> None:
    async with open_journal() as journal:
        await journal.append(turn("bad"))
        await journal.append(turn("good"))
        bad = (await journal.pending(10))[0]
        await journal.mark_failed(bad, "PermanentError", dead=False)
        assert (await journal.pending(10))[0].attempts == 1
        await journal.mark_failed(bad, "PermanentError", dead=True)
        assert await words(journal) == ["good"]
        depth = await journal.depth()
        assert (depth.turns, depth.dead) == (1, 1)


async def test_a_dead_letter_that_is_said_again_is_tried_again(open_journal: OpenJournal) -> None:
    async with open_journal() as journal:
        await journal.append(turn("bad"))
        await journal.mark_failed((await journal.pending(1))[0], "PermanentError", dead=True)
        assert await journal.append(turn("bad")) is TurnOutcome.JOURNALLED
        assert await words(journal) == ["bad"]
        assert (await journal.depth()).dead == 0


async def test_dead_letters_are_bounded_and_the_oldest_goes_first(open_journal: OpenJournal, clock: Clock) -> None:
    async with open_journal(max_dead=2) as journal:
        for name in ("a", "b", "c"):
            await journal.append(turn(name))
            clock.time += timedelta(seconds=1)
            await journal.mark_failed((await journal.pending(1))[0], "PermanentError", dead=True)
        assert (await journal.depth()).dead == 2
        assert await journal.append(turn("a")) is TurnOutcome.JOURNALLED


async def test_learned_turns_are_erased_after_their_time(open_journal: OpenJournal, clock: Clock) -> None:
    async with open_journal() as journal:
        for name in ("early", "late", "waiting"):
            await journal.append(turn(name))
        early, late, _ = await journal.pending(10)
        await journal.mark_learned([early])
        clock.time += timedelta(minutes=10)
        await journal.mark_learned([late])
        assert await journal.erase_learned(MONDAY + timedelta(minutes=5)) == 1
        assert await journal.append(turn("late")) is TurnOutcome.DUPLICATE
        assert await words(journal) == ["waiting"]


async def test_an_owners_turns_are_erased_in_any_stage_and_nobody_elses(open_journal: OpenJournal) -> None:
    async with open_journal() as journal:
        for name in ("waiting", "stored", "learned", "dead"):
            await journal.append(turn(name))
        await journal.append(turn("bob's", owner=BOB))
        await journal.append(turn("the other ann's", owner=OTHER_ANN))
        _, stored, learned, dead, *_ = await journal.pending(10)
        await journal.mark_stored([stored])
        await journal.mark_learned([learned])
        await journal.mark_failed(dead, "PermanentError", dead=True)
        assert await journal.erase_owner(ANN) == 4
        assert await words(journal) == ["bob's", "the other ann's"]
        assert (await journal.depth()).dead == 0


async def test_the_depth_tells_how_many_wait_and_since_when(open_journal: OpenJournal) -> None:
    async with open_journal() as journal:
        empty = await journal.depth()
        assert (empty.turns, empty.dead, empty.oldest) == (0, 0, None)
        await journal.append(turn("a", at=MONDAY))
        await journal.append(turn("b", at=MONDAY + timedelta(hours=1)))
        depth = await journal.depth()
        assert (depth.turns, depth.oldest) == (2, MONDAY)
        await journal.mark_learned(await journal.pending(1))
        depth = await journal.depth()
        assert (depth.turns, depth.oldest) == (1, MONDAY + timedelta(hours=1))


async def owned(journal: Journal, owner: Owner) -> list[tuple[str, JournalState]]:
    return [(entry.turn.asked, entry.state) async for entry in journal.of_owner(owner)]


async def one_in_each_state(journal: Journal) -> None:
    for name in ("waiting", "stored", "learned", "dead"):
        await journal.append(turn(name))
    await journal.append(turn("bob's", owner=BOB))
    await journal.append(turn("the other ann's", owner=OTHER_ANN))
    _, stored, learned, dead, *_ = await journal.pending(10)
    await journal.mark_stored([stored, learned])
    await journal.mark_learned([learned])
    await journal.mark_failed(dead, "PermanentError", dead=True)


async def test_all_of_an_owners_turns_are_listed_with_how_far_they_came(open_journal: OpenJournal) -> None:
    async with open_journal() as journal:
        await one_in_each_state(journal)
        assert await owned(journal, ANN) == [(state.value, state) for state in JournalState]
        assert await owned(journal, BOB) == [("bob's", JournalState.WAITING)]


async def test_many_turns_of_an_owner_are_listed_each_once(open_journal: OpenJournal) -> None:
    async with open_journal(max_turns=500) as journal:
        for n in range(205):
            await journal.append(turn(f"turn {n}"))
        assert [asked for asked, _ in await owned(journal, ANN)] == [f"turn {n}" for n in range(205)]


async def test_single_turns_are_erased_in_any_state_and_only_their_owners(open_journal: OpenJournal) -> None:
    async with open_journal() as journal:
        await one_in_each_state(journal)
        ids = [turn(state.value).id for state in JournalState]
        assert await journal.erase(BOB, ids) == 0, "another's turns"
        assert await journal.erase(ANN, [*ids[1:], "unknown"]) == 3
        assert await owned(journal, ANN) == [("waiting", JournalState.WAITING)]
        depth = await journal.depth()
        assert (depth.turns, depth.dead) == (3, 0)
        assert await journal.erase(ANN, []) == 0


async def test_a_dead_letter_says_what_it_failed_of_how_often_and_when(
    open_journal: OpenJournal, clock: Clock
) -> None:
    async with open_journal() as journal:
        for name in ("first", "fine", "second"):
            await journal.append(turn(name))
        first, _, second = await journal.pending(10)
        await journal.mark_failed(first, "StoreError", dead=False)
        clock.time += timedelta(hours=1)
        await journal.mark_failed(first, "PermanentError", dead=True)
        await journal.mark_failed(second, "ValueError", dead=True)
        letters = await journal.dead(10)
        assert letters == [
            DeadLetter(
                turn_id=first.turn.id,
                place=first.place,
                owner=ANN.key,
                reason="PermanentError",
                attempts=2,
                asked_at=MONDAY,
                failed_at=clock.time,
            ),
            replace(letters[0], turn_id=second.turn.id, place=second.place, reason="ValueError", attempts=1),
        ]
        assert await journal.dead(1) == letters[:1]
        assert await journal.dead(10, after=letters[0].place) == letters[1:]


async def test_a_dead_letter_is_tried_again_from_its_beginning_behind_the_others(open_journal: OpenJournal) -> None:
    async with open_journal(max_turns=3) as journal:
        for name in ("bad", "worse", "good"):
            await journal.append(turn(name))
        bad, worse, good = await journal.pending(10)
        await journal.mark_failed(bad, "PermanentError", dead=True)
        await journal.mark_failed(worse, "PermanentError", dead=True)
        for name in ("more", "and more"):
            await journal.append(turn(name))
        assert await journal.retry([bad.turn.id, good.turn.id, "unknown"]) == 1, (
            "in a full journal, and only the dead"
        )
        assert await words(journal) == ["good", "more", "and more", "bad"]
        again = (await journal.pending(10))[-1]
        assert (again.turn, again.state, again.attempts) == (bad.turn, JournalState.WAITING, 0)
        assert [letter.turn_id for letter in await journal.dead(10)] == [worse.turn.id]
        assert (await journal.depth()).dead == 1


async def test_only_what_did_not_come_by_our_own_append_arrives_and_each_once(open_journal: OpenJournal) -> None:
    async with open_journal() as before:
        assert await before.arrivals(10) == []
        for name in ("a", "b", "c"):
            await before.append(turn(name))
        assert await before.arrivals(10) == []
        a, b, _ = await before.pending(10)
        await before.mark_stored([a])
        await before.mark_failed(b, "PermanentError", dead=True)
        await before.append(turn("d"))
        await before.retry([b.turn.id])
        assert [entry.turn.asked for entry in await before.arrivals(10)] == ["b"]
        assert await before.arrivals(10) == []


async def test_a_file_without_arrivals_is_asked_while_another_process_writes_to_it(
    tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / "journal.sqlite"
    async with SqliteJournal(path, now=clock, patience=timedelta(0)) as journal:
        for name in ("a", "b"):
            await journal.append(turn(name))
        a, _ = await journal.pending(10)
        await journal.mark_learned([a])
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert await journal.arrivals(10) == []
            assert await journal.arrivals(10) == []
            other.execute("ROLLBACK")
            await journal.mark_failed((await journal.pending(1))[0], "PermanentError", dead=True)
            other.execute("BEGIN IMMEDIATE")
            assert await journal.arrivals(10) == []


async def test_one_replica_holds_every_owner(open_journal: OpenJournal) -> None:
    async with open_journal() as journal:
        await journal.arrivals(1)
        assert all(journal.holds(owner) for owner in (ANN, BOB, OTHER_ANN))


async def test_a_session_that_ended_is_known_by_its_turns(open_journal: OpenJournal) -> None:
    async with open_journal() as journal:
        for name, session in (("a", "s1"), ("b", "s2"), ("c", "s1")):
            await journal.append(turn(name, session=session))
        await journal.append(turn("bob's", owner=BOB, session="s1"))
        assert not any(entry.turn.last for entry in await journal.pending(10))
        await journal.end(ANN, "s1")
        ended = [entry.turn.asked for entry in await journal.pending(10) if entry.turn.last]
        assert ended == ["a", "c"]
        await journal.end(ANN, "")
        ended = [entry.turn.asked for entry in await journal.pending(10) if entry.turn.last]
        assert ended == ["a", "b", "c"]
        await journal.append(turn("told at once", last=True))
        assert (await journal.pending(10))[-1].turn.last


async def test_a_file_says_at_once_since_when_turns_wait_in_it(tmp_path: Path, clock: Clock) -> None:
    async with SqliteJournal(tmp_path / "journal.sqlite", now=clock) as journal:
        assert journal.oldest() is None
        late, early = a_turn("late"), a_turn("early", at=MONDAY - timedelta(minutes=1))
        for number, turn in enumerate((late, early)):
            await journal.append(replace(turn, id=f"{number:064x}"))
        assert journal.oldest() == early.at
        await journal.mark_learned(await journal.pending(10))
        assert journal.oldest() is None
