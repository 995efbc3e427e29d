"""A fact beside what is known: new, the same again, newer, or older than what is there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.learn.conflicts import VERDICTS, Add, Confirm, FactRelation, Outdate, Replace, reconcile_fact
from memory_extproc.learn.extract.extractor import Fact
from memory_extproc.learn.extract.rules import RulesExtractor
from memory_extproc.learn.reconcile import ReconcileDecision, Reconciler, row_of
from memory_extproc.learn.wording import about, repeats, saying
from memory_extproc.model import (
    Embedded,
    Hit,
    Memory,
    MemoryState,
    MemoryType,
    Owner,
    Scope,
    Source,
    Turn,
    Vector,
    digest,
)
from memory_extproc.observe.metrics import Metrics
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryStore, Weather
from memory_extproc.testing.models import CannedEmbedder
from tests.support.builders import ANN, BOB, MONDAY, OTHER_ANN, a_memory, a_message, a_turn, later

DIMENSION = 64


def a_fact(
    content: str, attribute: str = "budget for the Hawaii trip", value: str = "$10,000", **changes: object
) -> Fact:
    fact = Fact(
        content=content,
        type=MemoryType.SEMANTIC,
        subject="user",
        attribute=attribute,
        value=value,
        turn_id=a_turn(content).id,
        source=Source.RULES,
        version="rules-1",
    )
    return replace(fact, **changes)  # type: ignore[arg-type]  # builders take any field


def stored(fact: Fact, at: datetime = MONDAY, cosine: float = 1.0, **changes: object) -> Hit:
    row = row_of(fact, a_turn(fact.content, at=at), 0, "canned")
    return Hit(replace(row, **changes), cosine)  # type: ignore[arg-type]  # builders take any field


OLD = a_fact("User's budget for the Hawaii trip is $10,000")
NEW = a_fact("User's budget for the Hawaii trip is $12,000", value="$12,000")
THERE = stored(OLD, cosine=0.97)


def row(fact: Fact, at: datetime) -> Memory:
    return row_of(fact, a_turn(fact.content, at=at), 0, "canned")


# --- the decision ------------------------------------------------------------------------------------
def test_there_is_a_verdict_for_every_likeness_and_age() -> None:
    assert set(VERDICTS) == {(likeness, newer) for likeness in FactRelation for newer in (True, False)}


def test_with_nothing_there_a_fact_is_new() -> None:
    assert reconcile_fact(OLD, row(OLD, MONDAY), []) == Add()


def test_a_newer_value_of_the_same_takes_the_place_of_the_older() -> None:
    assert reconcile_fact(NEW, row(NEW, later(hours=1)), [THERE]) == Replace((THERE.memory.id,))


def test_the_same_value_in_other_words_confirms() -> None:
    again = a_fact("User has a Hawaii budget of 10k", attribute="Hawaii budget", value="10,000 dollars")
    assert reconcile_fact(again, row(again, later(hours=1)), [THERE]) == Confirm(THERE.memory.id)


def test_flights_on_two_days_are_two_facts_however_alike_they_are() -> None:
    first = a_fact("User has a flight on May 3", attribute="flight may 3", value="on May 3")
    second = a_fact("User has a flight on May 8", attribute="flight may 8", value="on May 8")
    assert reconcile_fact(second, row(second, later(hours=1)), [stored(first, cosine=0.96)]) == Add()


def test_below_the_likeness_only_what_one_can_have_one_of_is_replaced() -> None:
    paris = a_fact("User lives in Paris", attribute="home", value="Paris", exclusive=True)
    tokyo = a_fact("User lives in Tokyo", attribute="home", value="Tokyo", exclusive=True)
    there = stored(paris, cosine=0.5)
    assert reconcile_fact(tokyo, row(tokyo, later(hours=1)), [there]) == Replace((there.memory.id,))
    either = replace(tokyo, exclusive=False)
    assert reconcile_fact(either, row(either, later(hours=1)), [there]) == Add()


def test_an_older_value_that_comes_late_does_not_end_the_newer() -> None:
    there = stored(NEW, at=later(hours=2), cosine=0.97)
    assert reconcile_fact(OLD, row(OLD, MONDAY), [there]) == Outdate(there.memory.id, later(hours=2))


def test_messages_other_projects_and_other_owners_are_no_facts_to_reconcile_with() -> None:
    message = Hit(a_message(OLD.content), 1.0)
    elsewhere = stored(OLD, project="work")
    anothers = stored(OLD, owner=OTHER_ANN)
    assert reconcile_fact(NEW, row(NEW, later(hours=1)), [message, elsewhere, anothers]) == Add()


@pytest.mark.parametrize("said", ["Emacs", "Vim"])
def test_what_one_member_says_of_themselves_neither_replaces_nor_confirms_what_another_said(said: str) -> None:
    def of(speaker: str, value: str, subject: str, at: datetime) -> tuple[Fact, Memory]:
        fact = a_fact(f"The {subject}'s editor is {value}", "editor", value, exclusive=True, subject=subject)
        turn = replace(a_turn(fact.content, at=at), speaker=speaker)
        return replace(fact, turn_id=turn.id), row_of(replace(fact, turn_id=turn.id), turn, 0, "canned")

    _, anns = of("ann", "Vim", "user", MONDAY)
    there = [Hit(anns, 0.97)]
    assert reconcile_fact(*of("bob", said, "user", later(hours=1)), there) == Add()
    assert reconcile_fact(*of("bob", said, "user's sister", later(hours=1)), there) == Add()
    assert reconcile_fact(*of("ann", "Emacs", "user", later(hours=1)), there) == Replace((anns.id,))
    _, projects = of("ann", "Vim", "Atlas project", MONDAY)
    theirs = of("bob", "Emacs", "Atlas project", later(hours=1))
    assert reconcile_fact(*theirs, [Hit(projects, 0.97)]) == Replace((projects.id,))


def test_a_memory_with_the_same_words_is_confirmed_whoever_wrote_it() -> None:
    told = Hit(a_memory("The user's budget for the Hawaii trip is 10k.", source=Source.API), 0.8)
    assert reconcile_fact(OLD, row(OLD, later(hours=1)), [told]) == Confirm(told.memory.id)


def test_what_only_repeats_an_injected_memory_is_never_new() -> None:
    told = Hit(a_memory("User prefers tea over coffee", source=Source.API), 0.95)
    part = a_fact("User prefers tea", attribute="hot drink", value="tea")
    turned = a_fact("User prefers coffee over tea", attribute="hot drink", value="coffee over tea")
    injected = (told.memory.content,)
    assert reconcile_fact(part, row(part, later(hours=1)), [told], injected) == Confirm(told.memory.id)
    assert reconcile_fact(part, row(part, later(hours=1)), [told]) == Add()
    assert reconcile_fact(turned, row(turned, later(hours=1)), [told], injected) == Add()


VALUES = st.sampled_from(["$10,000", "10k", "$12,000", "$9"])
ATTRIBUTES = st.sampled_from(["budget for the Hawaii trip", "Hawaii budget", "kitchen budget"])
THERES = st.lists(
    st.builds(
        lambda attribute, value, hour, cosine: stored(
            a_fact(f"User's {attribute} is {value}", attribute, value), at=later(hours=hour), cosine=cosine
        ),
        ATTRIBUTES,
        VALUES,
        st.integers(0, 5),
        st.sampled_from([0.5, 0.89, 0.9, 0.99]),
    ),
    max_size=6,
    unique_by=lambda found: found.memory.id,
)


@given(THERES, st.randoms(use_true_random=False), VALUES, st.booleans())
def test_the_order_in_which_a_search_finds_things_decides_nothing(
    there: list[Hit],
    random: object,
    value: str,
    exclusive: bool,
) -> None:
    fact = a_fact(f"User's Hawaii budget is {value}", "Hawaii budget", value, exclusive=exclusive)
    mixed = sorted(there, key=lambda found: found.memory.id[::-1])
    at = row(fact, later(hours=3))
    assert (
        reconcile_fact(fact, at, there) == reconcile_fact(fact, at, mixed) == reconcile_fact(fact, at, there[::-1])
    )


@given(THERES, VALUES)
def test_a_fact_is_never_lost_it_is_stored_or_something_says_the_same(there: list[Hit], value: str) -> None:
    fact = a_fact(f"User's Hawaii budget is {value}", "Hawaii budget", value)
    change = reconcile_fact(fact, row(fact, later(hours=3)), there)
    if isinstance(change, Confirm):
        (confirmed,) = [found.memory for found in there if found.memory.id == change.id]
        assert saying(str(confirmed.provenance.value)) == saying(value)
    else:
        assert isinstance(change, Add | Replace | Outdate)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("budget for the Hawaii trip", "Hawaii budget"),
        ("favorite color", "favourite colour"),
        ("User's mom", "the user's mother"),
        ("city", "home"),
    ],
)
def test_attributes_named_differently_are_about_the_same(one: str, other: str) -> None:
    assert about(one) == about(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("budget for Hawaii", "budget for the kitchen"), ("flight may 3", "flight may 8"), ("user", "user's wife")],
)
def test_attributes_of_different_things_are_not(one: str, other: str) -> None:
    assert about(one) != about(other)


def test_values_are_the_same_whatever_the_writing_and_differ_by_order_and_denial() -> None:
    assert saying("$10,000") == saying("10k") == saying("10,000 dollars") == saying("about 10000 USD")
    assert saying("tea over coffee") != saying("coffee over tea")
    assert saying("does not like tea") != saying("does like tea")
    assert repeats("likes tea", "User likes green tea")
    assert not repeats("tea likes", "User likes green tea")


# --- applying it -------------------------------------------------------------------------------------
class CrashError(Exception):
    """The process ends here."""


class CrashingKeeper:
    """MemoryWriter that ends the process after *left* writes."""

    def __init__(self, keeps: Partitions, left: int) -> None:
        self._keeps = keeps
        self._left = left

    async def _write(self) -> None:
        if not self._left:
            raise CrashError
        self._left -= 1

    async def put(
        self, owner: Owner, rows: Sequence[Embedded], *, shown: Callable[[], None] = lambda: None
    ) -> None:
        await self._write()
        await self._keeps.put(owner, rows, shown=shown)

    async def supersede(self, owner: Owner, old: str, by: str, at: datetime) -> None:
        await self._write()
        await self._keeps.supersede(owner, old, by, at)

    async def confirm(
        self,
        owner: Owner,
        id: str,  # noqa: A002 - the word of the port
        at: datetime,
        *,
        turn: str = "",
        beside: Sequence[str] = (),
        trusted: bool = False,
    ) -> None:
        await self._write()
        await self._keeps.confirm(owner, id, at, turn=turn, beside=beside, trusted=trusted)

    async def delete(self, owner: Owner, ids: Sequence[str]) -> None:
        await self._keeps.delete(owner, ids)

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> object:
        return await self._keeps.nearest(owner, to, limit, scope)

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        return await self._keeps.get(owner, ids)


@dataclass
class Rig:
    keeps: Partitions
    weather: Weather
    metrics: Metrics
    reconciler: Reconciler

    async def learn(self, *turns: Turn, earlier: Sequence[Turn] = ()) -> dict[str, int]:
        facts = await RulesExtractor().extract(turns, earlier=earlier)
        decisions = await self.reconciler.apply(turns[0].owner, facts, turns)
        return {decision.value: count for decision, count in decisions.items()}

    async def known(self, owner: Owner = ANN) -> list[str]:
        """What can be recalled, in alphabetical order."""
        anything = await CannedEmbedder(DIMENSION).embed_query("user")
        found = (await self.keeps.nearest(owner, anything, 100, Scope())).found
        return sorted(one.memory.content for one in found)

    async def rows(self, store: InMemoryStore) -> dict[str, tuple[MemoryState, str, str, object]]:
        return {
            one.memory.id: (
                one.memory.state,
                one.memory.content,
                one.memory.superseded_by,
                one.memory.provenance.confirmations,
            )
            async for page in store.pages(ANN, 100, fresh=True)
            for one in page
        }


@asynccontextmanager
async def a_rig(store: InMemoryStore, crash_after: int | None = None) -> AsyncIterator[Rig]:
    metrics = Metrics(CollectorRegistry(), "0")
    partitions = Partitions(
        store,
        InMemoryCoordination(now=lambda: MONDAY),
        PartitionLimits(),
        now=lambda: later(days=1),
        metrics=metrics,
    )
    async with partitions:
        keeps = partitions if crash_after is None else CrashingKeeper(partitions, crash_after)
        embedder = CannedEmbedder(DIMENSION)
        yield Rig(partitions, store.weather, metrics, Reconciler(keeps, embedder, metrics))  # type: ignore[arg-type]  # the crashing one answers with object


def a_store() -> InMemoryStore:
    return InMemoryStore(DIMENSION, now=lambda: later(days=1))


FIRST = a_turn("My budget for the Hawaii trip is $10,000.", seq=0)
SECOND = a_turn(
    "My budget for the Hawaii trip has increased to $12,000. I live in Paris.", seq=2, at=later(minutes=1)
)
THIRD = a_turn("I moved to Tokyo. My Hawaii budget is 12k.", seq=4, at=later(minutes=2))
STORY = (FIRST, SECOND, THIRD)
OUTCOME = ["User lives in Tokyo", "User's budget for the Hawaii trip is $12,000"]


async def test_a_story_ends_with_its_last_values_and_keeps_the_older_as_history() -> None:
    store = a_store()
    async with a_rig(store) as rig:
        assert await rig.learn(*STORY) == {"added": 2, "replaced": 2, "confirmed": 1}
        assert await rig.known() == OUTCOME
        states = [state for state, *_ in (await rig.rows(store)).values()]
        assert sorted(states) == ["active", "active", "superseded", "superseded"]
        labels = {"decision": "replaced"}
        assert rig.metrics.registry.get_sample_value("memory_extproc_reconcile_total", labels) == 2


async def test_a_fact_names_the_turns_whose_words_it_takes_the_place_of_and_those_before() -> None:
    said = ("I work at Initech and I live in Rome.", "I work at Globex now.", "I now work at Hooli.")
    turns = [a_turn(asked, at=later(days=day), seq=2 * day) for day, asked in enumerate(said)]
    store = a_store()
    async with a_rig(store) as rig:
        for turn in turns:
            await rig.learn(turn)
    rows = [row.memory async for page in store.pages(ANN, 100, fresh=True) for row in page]
    named = {memory.content: memory.provenance.corrects for memory in rows}
    assert named == {
        "User works for Initech": (),
        "User lives in Rome": (),
        "User works for Globex": (turns[0].id,),
        "User works for Hooli": (turns[1].id, turns[0].id),
    }


@pytest.mark.parametrize("names", [("s-1", "s-2"), ("s-2", "s-1")])
async def test_of_two_chats_in_one_second_the_later_word_counts(names: tuple[str, str]) -> None:
    store = a_store()
    first = a_turn("My budget for the Hawaii trip is $10,000.", session=names[0], id=digest("turn", names[0]))
    second = replace(
        first,
        asked="My budget for the Hawaii trip is $12,000.",
        session=names[1],
        id=digest("turn", names[1]),
        at=MONDAY + timedelta(milliseconds=4),
    )
    async with a_rig(store) as rig:
        await rig.learn(first)
        await rig.learn(second)
        assert await rig.known() == ["User's budget for the Hawaii trip is $12,000"]


async def test_learning_the_same_again_changes_nothing() -> None:
    store = a_store()
    async with a_rig(store) as rig:
        await rig.learn(*STORY)
        before = await rig.rows(store)
        assert await rig.learn(*STORY) == {"known": 5}
        assert await rig.rows(store) == before


@pytest.mark.parametrize("writes", range(8))
async def test_a_crash_after_any_write_leaves_nothing_lost_and_nothing_doubled(writes: int) -> None:
    whole, broken = a_store(), a_store()
    async with a_rig(whole) as rig:
        await rig.learn(*STORY)
        expected = await rig.rows(whole)
    async with a_rig(broken, crash_after=writes) as rig:
        with suppress(CrashError):
            await rig.learn(*STORY)
    async with a_rig(broken) as rig:
        await rig.learn(*STORY)
        assert await rig.rows(broken) == expected


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1)])
async def test_sessions_learned_in_any_order_come_to_the_same_values(order: tuple[int, ...]) -> None:
    async with a_rig(a_store()) as rig:
        for at in order:
            await rig.learn(STORY[at])
        home, budget = await rig.known()
        assert home == "User lives in Tokyo"
        assert "12" in budget


async def test_two_values_in_one_message_end_with_the_later() -> None:
    async with a_rig(a_store()) as rig:
        turn = a_turn("I live in Paris. Actually, I moved to Tokyo.")
        await rig.learn(turn)
        await rig.learn(turn)
        assert await rig.known() == ["User lives in Tokyo"]


async def test_a_forgotten_fact_is_not_brought_back_by_trying_again() -> None:
    store = a_store()
    async with a_rig(store) as rig:
        await rig.learn(FIRST)
        (memory,) = (
            await rig.keeps.nearest(ANN, await CannedEmbedder(DIMENSION).embed_query("budget"), 1, Scope())
        ).found
        gone = replace(memory.memory, state=MemoryState.DELETED)
        vector = await CannedEmbedder(DIMENSION).embed_query(gone.content)
        await rig.keeps.put(ANN, [Embedded(gone, vector)])
        assert await rig.learn(FIRST) == {"known": 1}
        assert await rig.known() == []


async def test_no_owner_learns_from_anothers_words() -> None:
    async with a_rig(a_store()) as rig:
        await rig.learn(FIRST)
        for other in (BOB, OTHER_ANN):
            await rig.learn(replace(SECOND, owner=other))
            assert await rig.known(other) == ["User lives in Paris", "User's budget for the Hawaii trip is $12,000"]
        assert await rig.known() == ["User's budget for the Hawaii trip is $10,000"]


async def test_a_fact_carries_the_place_and_the_origin_of_its_turn() -> None:
    async with a_rig(a_store()) as rig:
        turn = replace(FIRST, project="trip", session="s-9", seq=6)
        await rig.learn(turn)
        (found,) = (
            await rig.keeps.nearest(ANN, await CannedEmbedder(DIMENSION).embed_query("budget"), 1, Scope())
        ).found
        memory = found.memory
        assert (memory.project, memory.session, memory.seq, memory.embed_model) == ("trip", "s-9", 6, "canned/64")
        assert memory.provenance.encode() == {
            "subject": "user", "attribute": "budget for the hawaii trip", "value": "$10,000", "version": "rules-6",
            "confidence": 0.8, "turn": turn.id, "ordinal": 0, "said": MONDAY.timestamp(),
        }  # fmt: skip


async def test_a_fact_of_a_turn_that_was_not_given_is_a_fault() -> None:
    async with a_rig(a_store()) as rig:
        with pytest.raises(PermanentError):
            await rig.reconciler.apply(ANN, [OLD], [SECOND])
        assert await rig.reconciler.apply(ANN, [], []) == {}


async def test_a_store_that_is_down_is_tried_again_without_doubling() -> None:
    async with a_rig(a_store()) as rig:
        rig.weather.down = True
        with pytest.raises(TransientError):
            await rig.learn(*STORY)
        rig.weather.down = False
        await rig.learn(*STORY)
        assert await rig.known() == OUTCOME


def test_decisions_are_the_labels_of_the_metric() -> None:
    assert [one.value for one in ReconcileDecision] == [
        "added",
        "confirmed",
        "replaced",
        "outdated",
        "quarantined",
        "discarded",
        "known",
    ]
