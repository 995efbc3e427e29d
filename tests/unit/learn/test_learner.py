"""The learner's promises about accepted turns."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
import structlog

from memory_extproc.concurrency import Pace
from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.learn.extract.extractor import Fact
from memory_extproc.learn.screening import Unscreened
from memory_extproc.model import (
    Caller,
    Embedded,
    Exchanged,
    Matrix,
    Message,
    Owner,
    Role,
    Scope,
    Screened,
    Source,
    Turn,
    TurnOutcome,
)
from memory_extproc.ports import JournalEntry, Now
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryJournal
from memory_extproc.testing.models import CannedEmbedder
from tests.support.builders import ANN, BOB, OTHER_ANN, a_turn
from tests.support.learner import LearnSettings
from tests.unit.learn.learning import LIMITS, ListingExtractor, Surroundings, until

BUDGET = "My budget for the Hawaii trip is $10,000."
PARIS = "I live in Paris near the Canal Saint-Martin."
AT_ONCE = replace(LIMITS, gather=timedelta())
IN_AN_HOUR = replace(LIMITS, gather=timedelta(hours=1))  # or when we leave


async def test_what_was_said_is_found_by_the_next_request() -> None:
    world = Surroundings()
    async with world.learner() as learner:
        assert await learner.accept(world.exchange(BUDGET)) is TurnOutcome.JOURNALLED
        await learner.wait_visible(Caller(ANN))
        assert await world.findable(BUDGET)
        assert not await world.findable(BUDGET, BOB)
        assert not await world.findable(BUDGET, OTHER_ANN)


async def test_while_learning_is_put_off_the_turn_of_a_caller_who_asks_is_shown_first() -> None:
    busy, seconds = True, itertools.count()
    others = [Owner("", f"user-{number}") for number in range(4)]
    world = Surroundings(pace=Pace(lambda: busy, lambda: next(seconds) / 100))
    async with world.learner() as learner:
        for owner in (*others, ANN):
            await learner.accept(world.exchange(BUDGET, owner=owner))
        await learner.wait_visible(Caller(ANN))
        assert await world.findable(BUDGET)
        assert not await world.findable(BUDGET, others[-1]), "it came before, and waits"
        asks = asyncio.create_task(learner.wait_visible(Caller(others[-1])))
        await asyncio.sleep(0)
        await learner.accept(world.exchange(PARIS, owner=others[-1]))
        await asks
        assert await world.findable(PARIS, others[-1]), "a turn that comes while its caller waits is shown too"
        busy = False


async def test_each_message_is_one_memory_with_its_place_and_the_model_that_embedded_it() -> None:
    world = Surroundings(extractor=None)
    answer = "Flights from Chicago cost about $900 in May."
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET, answer))
        await learner.accept(world.exchange(PARIS, "Got it!"))
    rows = await world.rows()
    assert [(row.seq, row.role, row.content) for row in rows] == [
        (0, Role.USER, BUDGET),
        (1, Role.ASSISTANT, answer),
        (2, Role.USER, PARIS),
    ]
    assert {row.embed_model for row in rows} == {"canned/32"}
    assert world.sample("remembered_total", role="user", decision="kept") == 2
    assert world.sample("remembered_total", role="assistant", decision="polite") == 1


async def test_a_retry_is_a_duplicate_and_leaves_nothing_new() -> None:
    world = Surroundings()
    async with world.learner() as learner:
        assert await learner.accept(world.exchange(BUDGET)) is TurnOutcome.JOURNALLED
        assert await learner.accept(world.exchange(BUDGET)) is TurnOutcome.DUPLICATE
    assert await world.stored() == [BUDGET]
    assert world.reconciler.facts == [(ANN, BUDGET)]


async def test_a_regenerated_answer_takes_the_place_of_the_first() -> None:
    world = Surroundings(extractor=None)
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET, "Flights from Chicago cost about $900."))
        await learner.wait_visible(Caller(ANN))
        await learner.accept(world.exchange(BUDGET, "Hotels in Maui cost about $300."))
        await learner.wait_visible(Caller(ANN))
        assert await world.stored() == [BUDGET, "Hotels in Maui cost about $300."]
        await learner.accept(world.exchange(BUDGET, "I'm sorry, but I can't help with that."))
    assert await world.stored() == [BUDGET], "a refusal leaves nothing, nor what stood in its place before"


async def test_a_message_that_its_writer_corrected_stays_corrected_when_its_answer_is_made_anew() -> None:
    world = Surroundings(extractor=None, limits=AT_ONCE)
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET, "Flights from Chicago cost about $900."))
        await learner.wait_visible(Caller(ANN))
        for said, right in ((BUDGET, "The budget is $12,000."), ("Flights", "Flights cost $800.")):
            (there,) = [one for one in await world.rows(ANN) if one.content.startswith(said)]
            memory = replace(there, content=right, provenance=there.provenance.replace(revision=2))
            await world.partitions.put(ANN, [Embedded(memory, await world.embedder.embed_query(right))])
        await learner.accept(world.exchange(BUDGET, "I'm sorry, but I can't help with that."))
    assert sorted(await world.stored()) == ["Flights cost $800.", "The budget is $12,000."]


async def found(world: Surroundings) -> list[str]:
    result = await world.partitions.nearest(ANN, await world.embedder.embed_query(BUDGET), 10, Scope())
    return sorted(hit.memory.content for hit in result.found)


async def test_messages_are_found_at_once_and_stored_together() -> None:
    world = Surroundings(extractor=None, limits=IN_AN_HOUR)
    world.keeps = counted = CountsPuts(world.partitions)
    said = [f"I own {number} red bicycles." for number in range(5)]
    async with world.learner() as learner:
        for words in said:
            await learner.accept(world.exchange(words))
            await learner.wait_visible(Caller(ANN))
        assert await found(world) == said
        assert await world.stored() == []
        assert {entry.stored for entry in await world.journal.pending(10)} == {False}
    assert await world.stored() == said
    assert (counted.sizes, counted.stored) == ([], [5])
    assert world.sample("remembered_total", role="user", decision="kept") == 5


async def test_many_turns_wait_for_no_time() -> None:
    world = Surroundings(extractor=None, limits=replace(IN_AN_HOUR, gathered=3))
    async with world.learner() as learner:
        for number in range(3):
            await learner.accept(world.exchange(f"I own {number} red bicycles."))
        await until(lambda: world.sample("remembered_total", role="user", decision="kept") == 3, "they are stored")


async def test_a_correction_of_a_message_that_is_shown_and_not_stored_stays() -> None:
    world = Surroundings(extractor=None, limits=IN_AN_HOUR)
    right = "The budget is $12,000."
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET))
        await learner.wait_visible(Caller(ANN))
        (there,) = world.partitions.list_unstored(ANN)
        memory = replace(there, content=right, provenance=there.provenance.replace(revision=2))
        await world.partitions.put(ANN, [Embedded(memory, await world.embedder.embed_query(right))])
    assert await world.stored() == [right]


class ForgetsMarks(InMemoryJournal):
    """Loses that messages are stored, as if the process had been killed before it was noted."""

    async def mark_stored(self, entries: Sequence[JournalEntry]) -> None:
        if not self.kept:
            raise TransientError("away")
        await super().mark_stored(entries)

    kept = False


@pytest.mark.parametrize("limits", [AT_ONCE, LIMITS], ids=["at once", "gathered"])
@pytest.mark.parametrize("restarts", [True, False])
async def test_a_corrected_message_stays_corrected_when_its_turn_is_learned_again(
    limits: LearnSettings, *, restarts: bool
) -> None:
    world = Surroundings(extractor=None, limits=replace(limits, grace=timedelta(seconds=0.2)))
    world.journal = journal = ForgetsMarks(now=lambda: world.now)
    right = "The budget is $12,000."
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET))
        await until(partial(is_stored, world, BUDGET), "it is stored")
        (there,) = await world.rows(ANN)
        memory = replace(there, content=right, provenance=there.provenance.replace(revision=2))
        await world.partitions.put(ANN, [Embedded(memory, await world.embedder.embed_query(right))])
        journal.kept = not restarts
    journal.kept = True
    async with world.learner():
        await until(partial(is_marked, journal), "it is learned again")
    assert await world.stored() == [right]


async def is_stored(world: Surroundings, content: str) -> bool:
    return content in await world.stored()


async def is_marked(journal: InMemoryJournal) -> bool:
    return all(entry.stored for entry in await journal.pending(10))


async def test_an_answer_that_is_made_anew_before_the_first_is_stored_takes_its_place() -> None:
    world = Surroundings(extractor=None, limits=IN_AN_HOUR)
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET, "Flights from Chicago cost about $900."))
        await learner.wait_visible(Caller(ANN))
        await learner.accept(world.exchange(BUDGET, "A week in Maui costs $4,000."))
        await learner.wait_visible(Caller(ANN))
        assert "Flights" not in " ".join(await found(world))
    assert await world.stored() == [BUDGET, "A week in Maui costs $4,000."]


async def test_a_forget_of_messages_that_are_shown_leaves_none_to_be_stored() -> None:
    world = Surroundings(extractor=None, limits=IN_AN_HOUR)
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET))
        await learner.wait_visible(Caller(ANN))
        await world.coordination.advance_epoch(ANN)
        await world.journal.erase_owner(ANN)
        await world.partitions.delete_owner(ANN)
        await learner.accept(world.exchange(PARIS))
    assert await world.stored() == [PARIS]


async def test_a_message_whose_showing_was_undone_is_stored_from_its_words() -> None:
    world = Surroundings(extractor=None, limits=IN_AN_HOUR)
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET))
        await learner.wait_visible(Caller(ANN))
        await world.partitions.delete_owner(ANN)  # of what was there; the turn itself is still to be learned
    assert await world.stored() == [BUDGET]


async def test_a_store_that_is_away_costs_no_shown_message() -> None:
    world = Surroundings(extractor=None)
    world.weather.down = True
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET))
        await learner.wait_visible(Caller(ANN))
        assert await found(world) == [BUDGET]
        world.weather.down = False
    assert await world.stored() == [BUDGET]


class CountsPuts:
    """The owner's partition, with the sizes of what was put into it."""

    def __init__(self, keeps: Partitions) -> None:
        self._keeps = keeps
        self.sizes: list[int] = []
        self.nearest, self.get, self.delete = keeps.nearest, keeps.get, keeps.delete
        self.supersede, self.confirm, self.show = keeps.supersede, keeps.confirm, keeps.show
        self.stored: list[int] = []

    async def put(
        self, owner: Owner, rows: Sequence[Embedded], *, shown: Callable[[], None] = lambda: None
    ) -> None:
        self.sizes.append(len(rows))
        await self._keeps.put(owner, rows, shown=shown)

    async def store_shown(self, owner: Owner, ids: Sequence[str]) -> bool:
        self.stored.append(len(ids))
        return await self._keeps.store_shown(owner, ids)


def days(count: int) -> str:
    return "\n\n".join(
        f"Day {day}: we walk from village {day} to the next and sleep there." for day in range(count)
    )


async def test_every_part_of_a_long_answer_is_found_by_itself() -> None:
    world = Surroundings()
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET, days(60)))
        await learner.wait_visible(Caller(ANN))
        vector = await world.embedder.embed_query("Day 57: village 57")
        best = (await world.partitions.nearest(ANN, vector, 1, Scope())).found[0].memory
    assert "Day 57" in best.content
    assert "Day 3:" not in best.content


@pytest.mark.parametrize(
    "second",
    [days(12), "Then Maui in May is within reach.", "Sorry, I can't help with that.", ""],
    ids=["shorter", "short", "refusal", "nothing"],
)
async def test_a_regenerated_answer_leaves_no_piece_of_the_first(second: str) -> None:
    world = Surroundings()
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET, days(60)))
        await learner.wait_visible(Caller(ANN))
        await learner.accept(world.exchange(BUDGET, second))
    rows = await world.rows()
    assert rows[0].content == BUDGET
    pieces = sorted(rows[1:], key=lambda row: row.provenance.piece or 0)
    kept = "" if second.startswith("Sorry") else second
    assert "\n\n".join(piece.content for piece in pieces) == kept


async def test_the_pieces_of_a_long_turn_reach_the_store_in_calls_of_a_bounded_size() -> None:
    world = Surroundings(limits=replace(LIMITS, rows=2))
    world.keeps = counted = CountsPuts(world.partitions)
    async with world.learner() as learner:
        await learner.accept(world.exchange(f"Note for Crete: {days(90)}"))
        await learner.wait_visible(Caller(ANN))
        searched = await world.partitions.nearest(ANN, await world.embedder.embed_query("Crete"), 100, Scope())
        await until(lambda: len(searched.found) == sum(counted.sizes) > 4, "who waited found the last of them too")
    assert max(counted.sizes) == 2


class SlowJournal(InMemoryJournal):
    """Takes a turn, or refuses it with *fault*, once its gate is open."""

    def __init__(self, *, now: Now) -> None:
        super().__init__(now=now)
        self.gate = asyncio.Event()
        self.fault: Exception | None = None

    async def append(self, turn: Turn) -> TurnOutcome:
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return await super().append(turn)


async def test_an_exchange_is_answered_late_when_the_journal_is_slow_and_kept_all_the_same() -> None:
    world = Surroundings(limits=replace(LIMITS, journal_wait=timedelta(milliseconds=1)))
    world.journal = journal = SlowJournal(now=lambda: world.now)
    async with world.learner() as learner:
        assert await learner.accept(world.exchange(BUDGET)) is TurnOutcome.JOURNAL_LATE
        waiting = asyncio.create_task(learner.wait_visible(Caller(ANN)))
        journal.gate.set()
        await waiting
        assert await world.findable(BUDGET)


async def test_leaving_waits_for_what_is_on_its_way_into_the_journal() -> None:
    world = Surroundings(limits=replace(LIMITS, journal_wait=timedelta(milliseconds=1)))
    world.journal = journal = SlowJournal(now=lambda: world.now)
    async with world.learner() as learner:
        assert await learner.accept(world.exchange(BUDGET)) is TurnOutcome.JOURNAL_LATE
        asyncio.get_running_loop().call_later(0.05, journal.gate.set)
    assert await world.stored() == [BUDGET]


async def test_an_exchange_that_was_late_and_is_refused_after_all_is_counted_as_refused() -> None:
    world = Surroundings(limits=replace(LIMITS, journal_wait=timedelta(milliseconds=1)))
    world.journal = journal = SlowJournal(now=lambda: world.now)
    journal.fault = TransientError("locked")
    async with world.learner() as learner:
        assert await learner.accept(world.exchange(BUDGET)) is TurnOutcome.JOURNAL_LATE
        waiting = asyncio.create_task(learner.wait_visible(Caller(ANN)))
        journal.gate.set()
        await waiting
        assert world.sample("turns_total", outcome="journal_failed") == 1


async def test_a_caller_that_is_cancelled_takes_nothing_with_it() -> None:
    world = Surroundings()
    async with world.learner() as learner:
        accepting = asyncio.create_task(learner.accept(world.exchange(BUDGET)))
        await asyncio.sleep(0)
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
    assert await world.stored() == [BUDGET]


@pytest.mark.parametrize("fault", [TransientError("locked"), PermanentError("damaged"), ZeroDivisionError("a bug")])
async def test_a_journal_that_fails_is_an_outcome_and_one_log_line(fault: Exception) -> None:
    world = Surroundings()
    journal = InMemoryJournal(now=lambda: world.now)
    world.journal = journal
    world.limits = replace(LIMITS, sweep=timedelta(hours=1), look=timedelta(hours=1))
    await journal.append(a_turn("before", ""))
    async with world.learner() as learner:
        await until(lambda: world.sample("remembered_total", role="user", decision="kept") == 1, "it is taken up")
        journal.fault = fault
        with structlog.testing.capture_logs() as logs:
            outcomes = [await learner.accept(world.exchange(text)) for text in (BUDGET, PARIS)]
        assert outcomes == [TurnOutcome.JOURNAL_FAILED] * 2
        assert [line["event"] for line in logs].count("journal.refuses") == 1
        journal.fault = None
        with structlog.testing.capture_logs() as logs:
            assert await learner.accept(world.exchange("now it works")) is TurnOutcome.JOURNALLED
        assert "journal.accepts" in [line["event"] for line in logs]
        await learner.wait_visible(Caller(ANN))


async def test_a_full_journal_is_an_outcome() -> None:
    world = Surroundings()
    world.journal = InMemoryJournal(now=lambda: world.now, max_turns=1)
    world.weather.down = True
    world.limits = replace(LIMITS, grace=timedelta(0))
    async with world.learner() as learner:
        assert await learner.accept(world.exchange(BUDGET)) is TurnOutcome.JOURNALLED
        assert await learner.accept(world.exchange(PARIS)) is TurnOutcome.JOURNAL_FULL


async def test_too_many_at_once_and_whoever_comes_too_late_are_refused() -> None:
    world = Surroundings(limits=replace(LIMITS, accepting=1))
    async with world.learner() as learner:
        outcomes = await asyncio.gather(*(learner.accept(world.exchange(text)) for text in (BUDGET, PARIS)))
        assert outcomes == [TurnOutcome.JOURNALLED, TurnOutcome.PROCESS_LIMIT]
    assert await learner.accept(world.exchange(PARIS)) is TurnOutcome.JOURNAL_FAILED


async def test_while_the_store_is_down_what_was_said_is_found_all_the_same_and_stored_later() -> None:
    world = Surroundings(extractor=None)
    world.weather.down = True
    async with world.learner() as learner:
        for text in (BUDGET, PARIS):
            assert await learner.accept(world.exchange(text)) is TurnOutcome.JOURNALLED
            await learner.wait_visible(Caller(ANN))
            assert await world.findable(text)
        world.weather.down = False
        await until(world.stored, "the backlog was stored")
    assert sorted(await world.stored()) == sorted([BUDGET, PARIS])
    assert (await world.journal.depth()).turns == 0


async def test_a_store_that_hangs_does_not_keep_the_next_request_waiting() -> None:
    world = Surroundings(extractor=None)
    gate = world.weather.hold("put")
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET))
        await asyncio.wait_for(learner.wait_visible(Caller(ANN)), 20)
        assert not gate.is_set()
        gate.set()
    assert await world.stored() == [BUDGET]


async def test_an_owner_whose_turns_must_wait_does_not_hold_up_others() -> None:
    world = Surroundings(extractor=None, limits=AT_ONCE)

    class DownForAnn:
        def __init__(self) -> None:
            self.down = True

        async def put(
            self, owner: Owner, rows: Sequence[object], *, shown: Callable[[], None] = lambda: None
        ) -> None:
            if owner == ANN and self.down:
                raise TransientError("down")
            await world.partitions.put(owner, rows, shown=shown)  # type: ignore[arg-type] # handed through

        def __getattr__(self, name: str) -> object:
            return getattr(world.partitions, name)

    keeps = DownForAnn()
    world.keeps = keeps  # type: ignore[assignment] # the rest is the partitions' own
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET))
        await learner.accept(world.exchange(BUDGET, owner=BOB))
        await learner.wait_visible(Caller(BOB))
        await until(lambda: world.stored(BOB), "Bob's was stored")
        assert await world.stored(ANN) == []
        keeps.down = False
    assert await world.stored(ANN) == [BUDGET]


async def test_a_turn_that_cannot_be_learned_becomes_a_dead_letter_and_the_others_go_on() -> None:
    world = Surroundings(extractor=None, limits=replace(LIMITS, attempts=3))
    tries: list[int] = []

    class Picky(CannedEmbedder):
        async def embed(self, texts: Sequence[str]) -> Matrix:
            if any("poison" in text for text in texts):
                tries.append(len(texts))
                raise PermanentError("no vector for that")
            return await world.embedder.embed(texts)

    world.embeds = Picky()
    async with world.learner() as learner:
        texts = [BUDGET, "I keep poison ivy in my garden.", PARIS]
        await asyncio.gather(*(learner.accept(world.exchange(text)) for text in texts))
        await until(lambda: world.sample("journal_dead_letters") == 1, "it was given up")
    assert sorted(await world.stored()) == sorted([BUDGET, PARIS])
    assert tries[-3:] == [1, 1, 1]
    depth = await world.journal.depth()
    assert (depth.turns, depth.dead) == (0, 1)


async def test_a_bug_is_logged_without_anybodys_words_and_does_not_stop_the_owners_other_turns() -> None:
    world = Surroundings(extractor=None, limits=replace(LIMITS, attempts=1))
    world.embedder.failing = KeyError("what Ann said")
    with structlog.testing.capture_logs() as logs:
        async with world.learner() as learner:
            await learner.accept(world.exchange(BUDGET))
            await until(lambda: world.sample("journal_dead_letters") == 1, "it was given up")
            world.embedder.failing = None
            await learner.accept(world.exchange(PARIS))
    assert await world.stored() == [PARIS]
    [failed] = [line for line in logs if line["event"] == "learn.failed" and line["work"] == "remember"]
    assert failed["error"] == "KeyError"
    assert "Ann" not in repr(logs)


# --- facts -----------------------------------------------------------------------------------------------
async def test_facts_are_extracted_once_enough_turns_of_a_session_came_together() -> None:
    world = Surroundings(limits=replace(LIMITS, batch=3))
    assert isinstance(world.extractor, ListingExtractor)
    async with world.learner() as learner:
        for n in range(3):
            await learner.accept(world.exchange(f"I have {n} cats."))
            await learner.accept(world.exchange(f"I have {n} dogs.", session="other", owner=BOB))
        await until(lambda: len(world.reconciler.facts) == 6, "both sessions were extracted from")
        assert sorted(world.extractor.batches) == [
            ["I have 0 cats.", "I have 1 cats.", "I have 2 cats."],
            ["I have 0 dogs.", "I have 1 dogs.", "I have 2 dogs."],
        ]
        await until(lambda: world.sample("journal_depth") == 0, "nothing is left")


async def test_facts_are_extracted_when_a_session_falls_silent() -> None:
    world = Surroundings(limits=replace(LIMITS, idle=timedelta(milliseconds=10)))
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET))
        await until(lambda: world.reconciler.facts == [(ANN, BUDGET)], "the session was extracted from")


async def test_facts_are_extracted_when_a_session_ends() -> None:
    world = Surroundings()
    async with world.learner() as learner:
        await learner.accept(world.exchange("I have a cat."))
        await learner.accept(replace(world.exchange(BUDGET), ends_session=True))
        await until(lambda: len(world.reconciler.facts) == 2, "the last words brought both")
        await learner.accept(world.exchange(PARIS, session="a"))
        await learner.accept(world.exchange("I have a dog.", session="b"))
        await learner.end_session(Caller(ANN, session="a"))
        await until(lambda: len(world.reconciler.facts) == 3, "session a was extracted from")
        await learner.end_session(Caller(BOB))
        await learner.end_session(Caller(ANN))
        await until(lambda: len(world.reconciler.facts) == 4, "session b was extracted from")
        assert world.reconciler.facts[2:] == [(ANN, PARIS), (ANN, "I have a dog.")]


async def test_a_repeated_last_word_ends_the_session_too() -> None:
    world = Surroundings()
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET))
        await learner.wait_visible(Caller(ANN))
        await until(lambda: world.sample("remembered_total", role="user", decision="kept") == 1, "remembered")
        assert await learner.accept(replace(world.exchange(BUDGET), ends_session=True)) is TurnOutcome.DUPLICATE
        await until(lambda: world.reconciler.facts, "the session was extracted from")


async def test_last_words_of_which_nothing_may_be_kept_end_the_session_too() -> None:
    class Screens(Unscreened):
        async def screen(self, exchanged: Exchanged, *, waited: bool = False) -> Screened | TurnOutcome:
            return TurnOutcome.OVER_QUOTA if exchanged.ends_session else Screened(exchanged, exchanged)

    world = Surroundings(screens=Screens())
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET))
        assert await learner.accept(replace(world.exchange(PARIS), ends_session=True)) is TurnOutcome.OVER_QUOTA
        await until(lambda: world.reconciler.facts == [(ANN, BUDGET)], "the session was extracted from")


async def test_extraction_that_is_down_waits_and_messages_go_on() -> None:
    world = Surroundings(limits=replace(LIMITS, batch=1))
    assert isinstance(world.extractor, ListingExtractor)
    world.extractor.failing = TransientError("the model is down")
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET))
        await learner.accept(world.exchange(PARIS))
        await learner.wait_visible(Caller(ANN))
        assert await world.findable(PARIS)
        assert world.reconciler.facts == []
        world.extractor.failing = None
        await until(lambda: len(world.reconciler.facts) == 2, "extraction caught up")


async def test_a_turn_that_extraction_cannot_bear_costs_its_session_nothing() -> None:
    world = Surroundings(limits=replace(LIMITS, batch=3, attempts=2))
    assert isinstance(world.extractor, ListingExtractor)
    world.extractor.failing, world.extractor.at = PermanentError("malformed"), "poison"
    async with world.learner() as learner:
        for text in (BUDGET, "I keep poison ivy.", PARIS):
            await learner.accept(world.exchange(text))
        await until(lambda: world.sample("journal_dead_letters") == 1, "it was given up")
        await until(lambda: len(world.reconciler.facts) == 2, "the others were extracted from")
    assert (await world.journal.depth()).turns == 0


# --- forgetting ------------------------------------------------------------------------------------------
async def test_who_is_forgotten_while_we_work_leaves_nothing() -> None:
    world = Surroundings()
    began, gate = asyncio.Event(), asyncio.Event()

    class SlowEmbedder(CannedEmbedder):
        async def embed(self, texts: Sequence[str]) -> Matrix:
            began.set()
            await gate.wait()
            return await world.embedder.embed(texts)

    world.embeds = SlowEmbedder()
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET))
        await until(began.is_set, "work began")
        await world.journal.erase_owner(ANN)
        await world.coordination.advance_epoch(ANN)
        gate.set()
        await learner.wait_visible(Caller(ANN))
        assert await learner.accept(world.exchange(PARIS)) is TurnOutcome.JOURNALLED
    assert await world.stored() == [PARIS], "what was said after the forget is learned"


async def test_facts_of_who_was_forgotten_meanwhile_are_dropped() -> None:
    world = Surroundings(limits=replace(LIMITS, batch=1))

    class ForgottenMeanwhile(ListingExtractor):
        async def extract(self, turns: Sequence[Turn], *, earlier: Sequence[Turn] = ()) -> list[Fact]:
            await world.journal.erase_owner(ANN)
            await world.coordination.advance_epoch(ANN)
            return await super().extract(turns)

    world.extractor = extractor = ForgottenMeanwhile()
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET))
        await until(lambda: extractor.batches, "extraction ran")
    assert world.reconciler.facts == []


# --- starting and stopping -------------------------------------------------------------------------------
async def test_what_an_earlier_process_left_is_taken_up() -> None:
    world = Surroundings(limits=replace(LIMITS, batch=2))
    waiting, stored = a_turn(BUDGET, ""), a_turn(PARIS, "")
    await world.journal.append(replace(stored, id="a" * 64, session="s"))
    await world.journal.append(replace(waiting, id="b" * 64, session="s", seq=2))
    await world.journal.mark_stored(await world.journal.pending(1))
    async with world.learner():
        await until(lambda: len(world.reconciler.facts) == 2, "both were extracted from")
    assert await world.stored() == [BUDGET], "the other was stored before"


async def test_a_journal_that_cannot_be_read_at_first_is_taken_up_later() -> None:
    world = Surroundings()
    journal = InMemoryJournal(now=lambda: world.now)
    world.journal = journal
    await journal.append(a_turn(BUDGET, ""))
    journal.fault = TransientError("locked")
    with structlog.testing.capture_logs() as logs:
        async with world.learner():
            await until(lambda: "journal.unreadable" in [line["event"] for line in logs], "it was tried")
            journal.fault = None
            await until(world.stored, "it was taken up")
    assert await world.stored() == [BUDGET]


async def test_leaving_works_off_all_that_was_accepted_facts_included() -> None:
    world = Surroundings()
    async with world.learner() as learner:
        for n in range(25):
            await learner.accept(world.exchange(f"I have {n} cats and a garden.", session=f"s{n % 4}"))
    assert len(await world.stored()) == 25
    assert len(world.reconciler.facts) == 25
    assert (await world.journal.depth()).turns == 0
    assert world.sample("journal_depth") == 0


@pytest.mark.parametrize("grace", [0.0, 1.0])
async def test_what_cannot_be_worked_off_when_leaving_stays_in_the_journal(grace: float) -> None:
    world = Surroundings(limits=replace(LIMITS, grace=timedelta(seconds=grace)))
    world.weather.down = True
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET))
    assert [entry.turn.asked for entry in await world.journal.pending(10)] == [BUDGET]
    world.weather.down = False
    again = Surroundings(shared_store=world.store)
    again.journal = world.journal
    async with again.learner():
        await until(again.stored, "the next process stored it")
    assert await world.stored() == [BUDGET]


async def test_nobody_is_left_waiting_when_we_leave() -> None:
    world = Surroundings(limits=replace(LIMITS, grace=timedelta(0)))
    world.weather.hold("put")
    async with world.learner() as learner:
        await learner.accept(world.exchange(BUDGET))
        waiting = asyncio.create_task(learner.wait_visible(Caller(ANN)))
        await asyncio.sleep(0)
    await asyncio.wait_for(waiting, 20)
    assert [entry.turn.asked for entry in await world.journal.pending(10)] == [BUDGET]


async def test_the_journals_depth_is_shown_and_learned_turns_go_after_their_retention() -> None:
    world = Surroundings(extractor=None)
    async with world.learner() as learner:
        world.weather.down = True
        await learner.accept(world.exchange(BUDGET))
        world.now += timedelta(minutes=1)
        await until(lambda: world.sample("journal_depth") == 1, "the depth was measured")
        await until(lambda: world.sample("journal_oldest_seconds") == 60, "the age was measured")
        world.weather.down = False
        await until(lambda: world.sample("journal_depth") == 0, "it was learned")
        assert await learner.accept(world.exchange(BUDGET)) is TurnOutcome.DUPLICATE
        world.now += timedelta(hours=1)
        old = replace(world.exchange(BUDGET), history=(Message(Role.USER, "x"),))
        assert await learner.accept(old) is TurnOutcome.JOURNALLED
    assert {row.source for row in await world.rows()} == {Source.VERBATIM}
