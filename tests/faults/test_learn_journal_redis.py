"""A journal in Redis that several replicas share: each owner's facts are one replica's business at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.journal.redis import JournalSharing, RedisJournal
from memory_extproc.model import Caller, JournalState, Owner, Turn, TurnOutcome, digest
from tests.support.builders import ANN, MONDAY, a_turn
from tests.support.redis import RedisServer, redis_server
from tests.support.waiting import until
from tests.unit.learn.learning import LIMITS, Surroundings

__all__ = ["redis_server"]

pytestmark = pytest.mark.redis

PEOPLE = [Owner("acme", f"person {n}") for n in range(200)]
LASTING = JournalSharing(lease=timedelta(minutes=5), grace=timedelta(minutes=5))
BRIEF = JournalSharing(lease=timedelta(milliseconds=60), grace=timedelta(minutes=5))


def turn(words: str, owner: Owner = PEOPLE[0], **changes: Any) -> Turn:
    return replace(a_turn(words, owner=owner, **changes), id=digest(owner.key, words))


class Replicas:
    """Journals of several replicas on one server."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._prefix = uuid4().hex

    def one(self, sharing: JournalSharing = LASTING, **changes: Any) -> RedisJournal:
        return RedisJournal(self._link, now=lambda: MONDAY, prefix=self._prefix, sharing=sharing, **changes)


@pytest.fixture
async def replicas(redis_server: RedisServer) -> AsyncIterator[Replicas]:
    async with RedisLink(redis_server.url, timedelta(seconds=10)) as link:
        yield Replicas(link)


async def asked(journal: RedisJournal) -> list[str]:
    return [entry.turn.asked for entry in await journal.arrivals(100)]


async def test_replicas_share_the_owners_fairly_and_each_has_one_holder(replicas: Replicas) -> None:
    first, second = replicas.one(BRIEF), replicas.one(BRIEF)

    async def all_mine() -> bool:
        await first.arrivals(1)
        return all(first.holds(person) for person in PEOPLE)

    await until(all_mine, "who is alone has all")

    async def shared() -> bool:
        await first.arrivals(1)
        await second.arrivals(1)
        mine, others = ({person for person in PEOPLE if one.holds(person)} for one in (first, second))
        assert not mine & others
        return len(mine | others) == len(PEOPLE) and 60 <= len(mine) <= 140

    await until(shared, "each has its share")
    async with second:
        pass  # it leaves

    await until(all_mine, "the other takes over")


async def test_a_dead_holders_parts_pass_on_and_its_late_marks_change_nothing(replicas: Replicas) -> None:
    dead, heir = replicas.one(BRIEF), replicas.one(BRIEF)
    await dead.arrivals(1)
    await dead.append(turn("left behind"))
    [entry] = await dead.pending(10)
    await dead.mark_stored([entry])
    [stored] = await dead.pending(10)
    # From here on it is as if stopped: it renews nothing, and believes that it still holds what it held.
    dead._renewed = float("inf")

    async def taken_over() -> bool:
        return "left behind" in await asked(heir)

    await until(taken_over, "its part is another's")
    await dead.mark_learned([stored])
    await dead.mark_failed(stored, "PermanentError", dead=True)
    assert await heir.get(PEOPLE[0], [stored.turn.id]) == [stored], "as if nothing had been said"
    await heir.mark_learned([stored])
    assert await heir.get(PEOPLE[0], [stored.turn.id]) == []


async def test_a_holder_that_could_not_renew_in_time_stops_by_itself(replicas: Replicas) -> None:
    time = [0.0]
    journal = replicas.one(LASTING, clock=lambda: time[0])
    await journal.arrivals(1)
    assert journal.holds(PEOPLE[0])
    time[0] += LASTING.lease.total_seconds()
    assert not journal.holds(PEOPLE[0])
    await journal.arrivals(1)
    assert journal.holds(PEOPLE[0])


async def test_a_session_that_ends_at_another_replica_ends_at_its_holder(replicas: Replicas) -> None:
    holder, other = replicas.one(), replicas.one()
    await holder.arrivals(1)
    for words, session in (("one", "s"), ("two", "s"), ("elsewhere", "t")):
        await holder.append(turn(words, session=session))
    await holder.mark_stored(await holder.pending(10))
    assert await asked(holder) == [], "the holder has them, and waits for more"
    await other.end(PEOPLE[0], "s")
    assert await asked(other) == []
    [arrived] = await holder.arrivals(10)
    assert (arrived.turn.asked, arrived.turn.last) == ("two", True)
    assert await asked(holder) == []
    await holder.end(PEOPLE[0], "")
    assert await asked(holder) == [], "who heard it knows by itself"
    await other.end(PEOPLE[0], "")
    await holder.mark_learned(await holder.pending(10))
    assert await asked(holder) == [], "nothing is left to do"


async def test_what_another_replica_accepted_arrives_once_it_is_stored(replicas: Replicas) -> None:
    holder, other = replicas.one(), replicas.one()
    await holder.arrivals(1)
    assert await other.append(turn("of the other")) is TurnOutcome.JOURNALLED
    assert await asked(holder) == [], "the other is remembering it"
    [entry] = await other.get(PEOPLE[0], [turn("of the other").id])
    await other.mark_stored([entry])
    [arrived] = await holder.arrivals(10)
    assert (arrived.turn.asked, arrived.state) == ("of the other", JournalState.STORED)
    assert await holder.arrivals(10) == []
    assert not other.holds(PEOPLE[0])
    await other.mark_learned([arrived])
    assert await holder.get(PEOPLE[0], [arrived.turn.id]) == [arrived], "what is not held is not marked learned"


async def test_what_a_dead_replica_accepted_and_did_not_store_arrives_after_a_grace(replicas: Replicas) -> None:
    soon = replace(LASTING, grace=timedelta(milliseconds=40))
    holder, dead = replicas.one(soon), replicas.one(soon)
    await holder.arrivals(1)
    await dead.append(turn("accepted, then dead"))

    async def left_lying() -> bool:
        return await asked(holder) == ["accepted, then dead"]

    await until(left_lying, "it is anybody's")


async def test_an_owners_turns_arrive_in_their_order_whoever_accepted_them(replicas: Replicas) -> None:
    holder, other = replicas.one(), replicas.one()
    await holder.arrivals(1)
    for n in range(250):
        await other.append(turn(f"{n}", owner=PEOPLE[n % 7]))
    await other.mark_stored(await other.pending(1000))
    arrived: list[str] = []
    while page := await asked(holder):
        arrived += page
    assert arrived == [f"{n}" for n in range(250)]


async def test_an_older_answer_stored_late_is_not_what_stays(replicas: Replicas) -> None:
    holder, slow = replicas.one(), replicas.one()
    await holder.arrivals(1)
    await slow.append(turn("q", answered="first"))
    [old] = await slow.get(PEOPLE[0], [turn("q").id])
    await holder.append(turn("q", answered="second"))
    [new] = await holder.get(PEOPLE[0], [turn("q").id])
    await holder.mark_stored([new])
    # The slow one has put the first answer's messages over the second's by now.
    await slow.mark_stored([old])
    [again] = await holder.get(PEOPLE[0], [turn("q").id])
    assert (again.turn.answered, again.state, again.replaced) == ("second", JournalState.WAITING, True)


async def test_our_own_second_try_at_an_append_is_no_retry_of_the_client(replicas: Replicas) -> None:
    journal = replicas.one()
    # What the client library does when a connection breaks after the server has done the work.
    link = journal._link
    run, calls = link.run_replicated, []

    async def twice(*values: Any) -> Any:
        calls.append(await run(*values))
        return await run(*values)

    link.run_replicated = twice  # type: ignore[method-assign, assignment]
    assert await journal.append(turn("once")) is TurnOutcome.JOURNALLED
    assert calls[0] == [b"journalled", calls[0][1], 1]
    link.run_replicated = run  # type: ignore[method-assign]
    assert await journal.append(turn("once")) is TurnOutcome.DUPLICATE
    assert len(await journal.pending(10)) == 1


async def test_a_turn_of_another_version_is_a_dead_letter_and_not_in_the_way(replicas: Replicas) -> None:
    journal = replicas.one(replace(LASTING, grace=timedelta()))
    await journal.append(turn("broken"))
    await journal.append(turn("whole"))
    key = f"{journal._prefix}:turn:{turn('broken').id}"
    await journal._link.client.hset(key, "turn", b"x")
    assert await asked(journal) == ["whole"]
    assert [letter.reason for letter in await journal.dead(10)] == ["unreadable"]


async def test_facts_are_the_holders_business_and_messages_whoevers_heard_them(replicas: Replicas) -> None:
    limits = replace(LIMITS, idle=timedelta(hours=1), look=timedelta(milliseconds=5))
    holder, other = Surroundings(limits=limits), Surroundings(limits=limits)
    holder.journal, other.journal = replicas.one(), replicas.one()
    async with holder.learner() as holding:
        await until(lambda: holder.journal.holds(ANN), "it holds everybody")
        async with other.learner() as learner:
            await learner.accept(other.exchange("I live in Paris."))
            await learner.wait_visible(Caller(ANN))
            assert await other.findable("I live in Paris."), "at once, where it was said"
            # The end of the session is the holder's to hear of.
            await learner.accept(replace(other.exchange("I have a cat."), ends_session=True))
            await until(lambda: len(holder.reconciler.facts) == 2, "the holder extracts")
            # Said and gathered by the holder for a while, then ended without another word, where it is not held.
            await learner.accept(other.exchange("I have a dog."))
            await until(lambda: holding._learner._batches.sessions(ANN), "the holder has it")
            await learner.end_session(Caller(ANN, session="s"))
            await until(lambda: len(holder.reconciler.facts) == 3, "the holder extracts once more")
        assert other.reconciler.facts == []
        assert await other.stored() == ["I live in Paris.", "I have a cat.", "I have a dog."]
        assert await holder.stored() == []
        await until(lambda: holder.sample("journal_depth") == 0, "all is learned")


async def test_a_command_sees_who_shares_the_work_and_has_dead_letters_tried_again(replicas: Replicas) -> None:
    first, second, command = replicas.one(BRIEF), replicas.one(BRIEF), replicas.one()
    assert await command.shares() == []

    async def shared() -> bool:
        await first.arrivals(1)
        await second.arrivals(1)
        return await command.shares() == [32, 32]

    await until(shared, "each has its half")
    steady = replicas.one()
    await steady.append(turn("bad"))
    [entry] = await steady.pending(1)
    await steady.mark_failed(entry, "PermanentError", dead=True)
    assert await command.retry([entry.turn.id]) == 1

    async def again() -> bool:
        return "bad" in [*await asked(first), *await asked(second), *await asked(steady)]

    await until(again, "whoever holds it takes it up at once")


async def test_what_a_holder_passed_by_while_its_lease_had_run_out_arrives_when_it_is_back(
    replicas: Replicas,
) -> None:
    """Though nobody else had the part meanwhile."""
    time = [0.0]
    journal = replicas.one(LASTING, clock=lambda: time[0])
    await journal.arrivals(1)
    await journal.append(turn("asked"))
    [entry] = await journal.pending(10)
    await journal.mark_stored([entry])
    assert await asked(journal) == []  # its own: it has it
    time[0] += LASTING.lease.total_seconds()  # Redis answers late, and facts are another's business
    assert not journal.holds(PEOPLE[0])
    assert await asked(journal) == ["asked"]
    assert await asked(journal) == []


async def test_turns_that_come_after_redis_was_wiped_arrive_and_old_tokens_count_for_nothing(
    replicas: Replicas,
) -> None:
    time = [0.0]
    holder, other = replicas.one(LASTING, clock=lambda: time[0]), replicas.one(LASTING)
    await holder.arrivals(1)
    for words in ("one", "two", "three"):
        await other.append(turn(words))
    [stored, *_] = entries = await other.pending(10)
    await other.mark_stored(entries)
    assert len(await asked(holder)) == 3
    tokens = {part: held.token for part, held in holder._parts.items()}
    await replicas._link.client.flushall()
    await other.append(turn("four"))
    [fourth] = await other.pending(10)
    assert int(fourth.place) > int(stored.place)
    await other.mark_stored([fourth])
    time[0] += LASTING.lease.total_seconds() / 2
    assert await asked(holder) == ["four"]
    assert not {held.token for held in holder._parts.values()} & set(tokens.values())


async def test_a_replica_that_only_serves_takes_no_part_and_leaves_its_turns_to_a_learner(
    replicas: Replicas,
) -> None:
    serving, learning = replicas.one(replace(BRIEF, learns=False, grace=timedelta())), replicas.one(BRIEF)
    assert await serving.append(turn("hello")) is TurnOutcome.JOURNALLED
    assert await asked(serving) == []
    assert not any(serving.holds(person) for person in PEOPLE)
    [entry] = await serving.pending(10)
    await serving.mark_stored([entry])
    await serving.mark_learned([entry])  # not its to say
    assert await asked(learning) == ["hello"]
    assert all(learning.holds(person) for person in PEOPLE)
    await learning.mark_learned(await learning.pending(10))
    assert await serving.pending(10) == []
