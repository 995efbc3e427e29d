"""Turns become topics, and topics and sessions memories: at the right turns, once, whatever happens in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import structlog.testing

from memory_extproc.concurrency import Backoff
from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.learn.messages import message_id
from memory_extproc.model import Matrix, MemoryState, MemoryType, Source, message_ids
from memory_extproc.settings.memory import Topics
from memory_extproc.testing.adapters import InMemoryCoordination
from tests.support.builders import ANN, BOB, Clock
from tests.support.waiting import until
from tests.unit.topics.following import BREAD, FLIGHTS, Surroundings, turns_of


async def test_a_change_of_subject_closes_a_topic_and_opens_the_next() -> None:
    around = Surroundings()
    async with around.partitions, around.build() as topics:
        await around.say(topics, turns_of(*FLIGHTS, *BREAD))
        (flights,) = await around.topics()
        assert flights.provenance.span == (0, 6)
        assert around.shifted == [(ANN, "s")]
        await topics.end(ANN, "s")
        await topics.quiet()
        both = await around.topics()
    assert [memory.provenance.span for memory in both] == [(0, 6), (6, 12)]
    assert "Hawaii" in both[0].content
    assert "sourdough" in both[1].content
    assert {memory.type for memory in both} == {MemoryType.EPISODIC}


async def test_a_topic_names_every_message_it_was_made_of() -> None:
    around = Surroundings()
    said = turns_of(*FLIGHTS, last=True)
    async with around.partitions, around.build() as topics:
        await around.say(topics, said)
        (topic,) = await around.topics()
    assert set(topic.provenance.sources) == {message_id(turn, side) for turn in said for side in (0, 1)}
    assert (topic.session, topic.seq, topic.project) == ("s", 0, "")
    assert topic.source is Source.SUMMARY


async def test_nothing_is_embedded_but_what_was_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    around = Surroundings()
    embedded: list[str] = []
    embed = around.embedder.embed

    async def recording(texts: Sequence[str]) -> Matrix:
        embedded.extend(texts)
        return await embed(texts)

    monkeypatch.setattr(around.embedder, "embed", recording)
    async with around.partitions, around.build() as topics:
        await around.say(topics, turns_of(*FLIGHTS, *BREAD, ("And the " + "crust, " * 900, "")))
        assert await around.topics()
        assert embedded
        assert set(embedded) <= {memory.content for memory in await around.messages()}


async def test_two_messages_are_no_topic_and_speak_for_themselves() -> None:
    around = Surroundings()
    async with around.partitions, around.build() as topics:
        await around.say(topics, turns_of(FLIGHTS[0], last=True))
        assert await around.rows() == []
    assert around.sample("topics_total", outcome="small") == 1


async def test_nothing_leaves_a_topic_before_it_has_three_messages() -> None:
    around = Surroundings()
    async with around.partitions, around.build() as topics:
        await around.say(topics, turns_of(FLIGHTS[0], BREAD[0], BREAD[1], last=True))
        (topic,) = await around.topics()
    assert topic.provenance.turns == 3
    assert around.shifted == []


async def test_a_topic_closes_by_itself_when_it_is_large() -> None:
    around = Surroundings(section=Topics.model_construct(characters=200))
    async with around.partitions, around.build() as topics:
        await around.say(topics, turns_of(*FLIGHTS, *FLIGHTS[:1]))
        (topic,) = await around.topics()
    assert topic.provenance.turns == 2


async def test_a_session_that_fell_silent_ends() -> None:
    around = Surroundings()
    async with around.partitions, around.build() as topics:
        await around.say(topics, turns_of(*FLIGHTS))
        around.now += timedelta(minutes=9)
        topics.look()
        await topics.quiet()
        assert await around.topics() == []
        around.now += timedelta(minutes=1)
        topics.look()
        await topics.quiet()
        assert len(await around.topics()) == 1


@pytest.mark.parametrize("jump", [timedelta(hours=-2), timedelta(hours=2)])
async def test_a_session_ends_when_it_has_been_silent_for_as_long_whatever_the_clock_is_set_to(
    jump: timedelta,
) -> None:
    around = Surroundings()
    around.passing = Clock()
    async with around.partitions, around.build() as topics:
        await around.say(topics, turns_of(*FLIGHTS))
        around.now += jump
        around.passing.now += timedelta(minutes=9)
        topics.look()
        await topics.quiet()
        assert await around.topics() == []
        around.passing.now += timedelta(minutes=1)
        topics.look()
        await topics.quiet()
        assert len(await around.topics()) == 1


class CountsHolds(InMemoryCoordination):
    """Counts how often a lease was asked for, which is a commit each time."""

    asked = 0

    async def acquire(self, name: str, holder: str, ttl: timedelta) -> bool:
        self.asked += 1
        return await super().acquire(name, holder, ttl)


async def test_a_turn_costs_the_same_however_many_other_sessions_go_on() -> None:
    around = Surroundings()
    around.coordination = counts = CountsHolds(lambda: around.now)
    costs = []
    async with around.partitions, around.build() as topics:
        for number in range(4):
            before = counts.asked
            await around.say(topics, turns_of(FLIGHTS[0], session=f"s{number}"))
            costs.append(counts.asked - before)
    assert costs == [costs[0]] * 4


async def test_leaving_ends_what_goes_on() -> None:
    around = Surroundings()
    async with around.partitions:
        async with around.build() as topics:
            await around.say(topics, turns_of(*FLIGHTS))
        assert len(await around.topics()) == 1


async def test_a_turn_that_comes_again_counts_once() -> None:
    around = Surroundings()
    said = turns_of(*FLIGHTS)
    async with around.partitions, around.build() as topics:
        await around.say(topics, [*said, *said])
        await topics.end(ANN, "")
        await topics.quiet()
        await around.say(topics, said)  # after its session was finished, too
        (topic,) = await around.topics()
    assert topic.provenance.turns == 3


async def test_another_process_goes_on_where_one_died() -> None:
    first = Surroundings()
    async with first.partitions:
        dead = first.build()
        await first.say(dead, turns_of(*FLIGHTS))  # never left, so nothing was finished
        second = Surroundings(beside=first)
        async with second.partitions, second.build("two") as topics:
            await second.say(topics, turns_of(*BREAD, first=3, last=True))
            spans = [memory.provenance.span for memory in await second.topics()]
    assert spans == [(0, 6), (6, 12)]


@pytest.mark.parametrize("fails", range(1, 12))
async def test_a_store_that_fails_at_any_step_leaves_neither_doubles_nor_gaps(fails: int) -> None:
    around = Surroundings()
    async with around.partitions, around.build() as topics:
        said = turns_of(*FLIGHTS, *BREAD, last=True)
        await around.remember(said)
        calls = 0

        async def failing(*args: object, **more: object) -> object:
            nonlocal calls
            calls += 1
            if calls == fails:
                raise TransientError("away")
            return await replaced(*args, **more)  # type: ignore[arg-type]

        replaced = around.coordination.replace_record
        around.coordination.replace_record = failing  # type: ignore[method-assign, assignment]
        for turn in said:
            try:
                await topics.note(ANN, [turn])
            except TransientError:
                await topics.note(ANN, [turn])  # as the learner's lane does
        await topics.quiet()
        spans = [memory.provenance.span for memory in await around.topics()]
    assert spans == [(0, 6), (6, 12)]


async def test_what_was_forgotten_in_between_is_in_no_summary() -> None:
    around = Surroundings()
    said = turns_of(*FLIGHTS)
    async with around.partitions, around.build() as topics:
        await around.say(topics, said)
        await around.partitions.delete(ANN, message_ids(said[2]))
        await topics.end(ANN, "")
        await topics.quiet()
        (topic,) = await around.topics()
    assert "10,000" not in topic.content
    assert topic.provenance.turns == 2


async def test_what_was_put_aside_is_in_no_summary() -> None:
    around = Surroundings()
    said = turns_of(*FLIGHTS)
    async with around.partitions, around.build() as topics:
        await around.say(topics, said)
        rows = await around.store.fetch(ANN, [message_id(said[2], 0)])
        aside = [replace(row, memory=replace(row.memory, state=MemoryState.QUARANTINED)) for row in rows]
        await around.partitions.put(ANN, aside)
        await topics.end(ANN, "")
        await topics.quiet()
        (topic,) = await around.topics()
    assert "10,000" not in topic.content


async def test_sessions_and_owners_are_followed_apart() -> None:
    around = Surroundings()
    async with around.partitions, around.build() as topics:
        ours, others = turns_of(*FLIGHTS), turns_of(*BREAD, session="t")
        theirs = turns_of(*BREAD, owner=BOB)
        for one, two, three in zip(ours, others, theirs, strict=True):
            await around.say(topics, [one, two])
            await around.say(topics, [three], BOB)
        await topics.end(ANN, "")
        await topics.end(BOB, "")
        await topics.quiet()
        assert [(memory.session, memory.provenance.turns) for memory in await around.topics()] == [
            ("s", 3),
            ("t", 3),
        ]
        (bobs,) = await around.topics(BOB)
    assert "Hawaii" not in bobs.content


async def test_beyond_so_many_sessions_the_longest_silent_one_ends() -> None:
    around = Surroundings()
    async with around.partitions, around.build() as topics:
        topics.SESSIONS = 1
        await around.say(topics, turns_of(*FLIGHTS))
        around.now += timedelta(seconds=1)
        await around.say(topics, turns_of(*BREAD, session="t"))
        (topic,) = await around.topics()
    assert topic.session == "s"


async def test_an_owner_of_another_process_is_left_to_it_until_its_lease_ends() -> None:
    around = Surroundings()
    async with around.partitions, around.build() as topics:
        await around.remember(turns_of(*FLIGHTS))
        await around.coordination.acquire(f"topics:{ANN.key}", "another", timedelta(minutes=1))
        with structlog.testing.capture_logs() as logs:
            await topics.note(ANN, turns_of(*FLIGHTS, last=True))
            await until(lambda: waits(logs) >= 3, "it was tried more than once")
        assert await around.topics() == []
        around.now += timedelta(minutes=2)
        await topics.quiet()
        assert len(await around.topics()) == 1


async def test_an_outage_of_any_length_ends_no_topic_unwritten() -> None:
    around = Surroundings()
    async with around.partitions, around.build() as topics:
        topics.BACKOFF = Backoff(timedelta(milliseconds=1), timedelta(milliseconds=5))
        await around.remember(turns_of(*FLIGHTS))
        around.embedder.failing = TransientError("away")
        with structlog.testing.capture_logs() as logs:
            await topics.note(ANN, turns_of(*FLIGHTS, last=True))
            await until(lambda: waits(logs) >= 20, "it is tried without end")
        around.embedder.failing = None
        await topics.quiet()
        assert len(await around.topics()) == 1


def waits(logs: Sequence[Mapping[str, Any]]) -> int:
    return sum(line["event"] == "topics.waits" for line in logs)


async def test_a_fault_of_ours_stops_nobody_else() -> None:
    around = Surroundings()
    async with around.partitions, around.build() as topics:
        around.embedder.failing = RuntimeError("a bug")
        await topics.note(ANN, turns_of(*FLIGHTS))
        await topics.quiet()
        around.embedder.failing = PermanentError("no such model")
        await topics.note(ANN, turns_of(*FLIGHTS[:1], session="t"))
        await topics.quiet()
        around.embedder.failing = None
        await around.say(topics, turns_of(*BREAD, owner=BOB, last=True), BOB)
        assert len(await around.topics(BOB)) == 1
