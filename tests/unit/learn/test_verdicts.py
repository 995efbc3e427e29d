"""Endings, moved appointments, currencies, and a model's word on what no rule can say."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from memory_extproc.errors import MemoryExtprocError, PermanentError, TransientError
from memory_extproc.learn.conflicts import Add, Confirm, ConflictVerdict, Replace, apply_verdicts, says
from memory_extproc.learn.extract.extractor import Fact
from memory_extproc.learn.extract.llm_client import Budget, OverBudgetError
from memory_extproc.learn.extract.rules import RulesExtractor
from memory_extproc.learn.reconcile import ConflictJudge, LlmJudge, Reconciler
from memory_extproc.learn.wording import agree
from memory_extproc.model import (
    Embedded,
    Memory,
    MemoryState,
    MemoryType,
    Owner,
    Source,
    Turn,
    digest,
)
from memory_extproc.observe.metrics import Metrics
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryStore
from memory_extproc.testing.models import CannedCompletions, CannedEmbedder
from tests.support.builders import ANN, MONDAY, a_memory, a_turn, later, memories_of, tokens

EMBEDDER = CannedEmbedder(64)
UNBOUNDED = Budget(tokens(), now=lambda: MONDAY)


@dataclass
class Desk:
    """What is known of Ann, told turn by turn, a minute apart."""

    keeps: Partitions
    store: InMemoryStore
    reconciler: Reconciler
    told: int = 0

    async def tell(self, *said: str) -> None:
        for text in said:
            self.told += 1
            at = MONDAY + timedelta(minutes=self.told)
            turn = a_turn(text, id=digest("told", str(self.told)), seq=2 * self.told, at=at)
            await self.learn(await RulesExtractor().extract([turn]), turn)

    async def learn(self, facts: Sequence[Fact], turn: Turn) -> None:
        for memory in memories_of(turn, turn.at):
            await self.keeps.put(ANN, [Embedded(memory, await EMBEDDER.embed_query(memory.content))])
        await self.reconciler.apply(ANN, facts, [turn])

    async def facts(self, state: MemoryState = MemoryState.ACTIVE) -> list[str]:
        return sorted(row.content for row in await self.rows() if row.state is state)

    async def rows(self) -> list[Memory]:
        found = [row.memory async for page in self.store.pages(ANN, 100, fresh=True) for row in page]
        return [memory for memory in found if memory.source is not Source.VERBATIM]


@asynccontextmanager
async def a_desk(judges: ConflictJudge | None = None) -> AsyncIterator[Desk]:
    metrics = Metrics(CollectorRegistry(), "0")
    store = InMemoryStore(64, now=lambda: later(days=1))
    coordination = InMemoryCoordination(now=lambda: MONDAY)
    async with Partitions(store, coordination, PartitionLimits(), metrics, now=lambda: later(days=1)) as keeps:
        yield Desk(keeps, store, Reconciler(keeps, EMBEDDER, metrics, judges=judges))


# --- by rule -----------------------------------------------------------------------------------------
STORIES: dict[str, tuple[list[str], list[str]]] = {
    "a home that ended": (["I live in Paris.", "I no longer live in Paris."], ["User no longer lives in Paris"]),
    "another home stays": (
        ["I live in Tokyo.", "I don't live in Paris anymore."],
        ["User lives in Tokyo", "User no longer lives in Paris"],
    ),
    "a new home ends the ending": (
        ["I live in Paris.", "I no longer live in Paris.", "I moved to Rome."],
        ["User lives in Rome"],
    ),
    "a job that ended": (["I work at Google.", "I quit Google."], ["User no longer works for Google"]),
    "a job with its title": (
        ["I work at Google as a data engineer.", "I've stopped working at Google."],
        ["User no longer works for Google"],
    ),
    "another's job": (
        ["My wife works at NASA.", "I quit my job."],
        ["User left the job they had", "User's wife works for NASA"],
    ),
    "a dog that went": (["I have a dog.", "I don't have a dog any more."], ["User no longer has a dog"]),
    "a dog that came back": (
        ["I have a dog.", "I don't have a dog any more.", "I have a dog."],
        ["User has a dog"],
    ),
    "the cat stays": (
        ["I have a cat.", "I have a dog.", "I no longer have a dog."],
        ["User has a cat", "User no longer has a dog"],
    ),
    "a diet": (["I'm vegan.", "I'm no longer vegan."], ["User is no longer vegan"]),
    "in German": (
        ["Ich wohne in Berlin.", "Ich wohne nicht mehr in Berlin."],
        ["User no longer lives in Berlin"],
    ),
    "a meeting that moved": (
        ["My meeting is on Tuesday.", "The meeting moved to Friday."],
        ["User's meeting is Friday"],
    ),
    "the one that moved": (
        ["My flight is on May 3.", "My flight is on May 8.", "I moved my flight from May 8 to May 9."],
        ["User's flight is May 9", "User's flight is on May 3"],
    ),
    "nobody knows which": (
        ["My flight is on May 3.", "My flight is on May 8.", "I moved my flight to May 9."],
        ["User's flight is May 9", "User's flight is on May 3", "User's flight is on May 8"],
    ),
    "another appointment": (
        ["My dentist appointment is on May 3.", "My vet appointment has been moved to May 10."],
        ["User's dentist appointment is on May 3", "User's vet appointment is May 10"],
    ),
    "twice moved": (
        ["My meeting is on Tuesday.", "The meeting moved to Friday.", "The meeting was pushed to Monday."],
        ["User's meeting is Monday"],
    ),
    "another currency": (
        ["My budget for the Hawaii trip is $10,000.", "My budget for the Hawaii trip is 10,000 euros."],
        ["User's budget for the Hawaii trip is 10,000 euros"],
    ),
    "the same without a currency": (
        ["My budget for the Hawaii trip is $10,000.", "My budget for the Hawaii trip is 10k."],
        ["User's budget for the Hawaii trip is $10,000"],
    ),
    "likes and dislikes": (["I like pizza.", "I hate pizza."], ["User dislikes pizza"]),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
async def test_what_is_known_at_the_end_of_a_story(story: tuple[list[str], list[str]]) -> None:
    said, known = story
    async with a_desk() as desk:
        await desk.tell(*said)
        assert await desk.facts() == known
        for row in await desk.rows():
            if row.state is MemoryState.SUPERSEDED:
                assert row.superseded_by in {other.id for other in await desk.rows()}
                assert row.valid_from is not None
                assert row.valid_to is not None
                assert row.valid_from <= row.valid_to


def test_sums_in_two_currencies_are_two_sums() -> None:
    assert agree("$500", "500")
    assert agree("$500", "500 dollars")
    assert not agree("$500", "500 euros")
    assert not agree("£500", "€500")
    assert not agree("$500", "$501")


async def test_a_turn_read_twice_with_other_words_for_the_attribute_makes_one_fact() -> None:
    turn = a_turn("My Hawaii budget is $10,000.")
    first = a_fact(turn, "User's Hawaii budget is $10,000", "Hawaii budget", "$10,000")
    again = a_fact(turn, "User has $10,000 for Hawaii", "money for the journey", "$10,000")
    async with a_desk() as desk:
        await desk.learn([first], turn)
        await desk.learn([again], turn)
        assert await desk.facts() == [first.content]


def a_fact(turn: Turn, content: str, attribute: str = "opinion", value: str = "v", subject: str = "user") -> Fact:
    return Fact(
        content=content,
        type=MemoryType.SEMANTIC,
        subject=subject,
        attribute=attribute,
        value=value,
        turn_id=turn.id,
        source=Source.LLM,
        version="facts-2",
    )


# --- by a model --------------------------------------------------------------------------------------
class Saying:
    """Judges as told, over and over; counts how often it was asked."""

    version = "as told"

    def __init__(self, *verdicts: ConflictVerdict | MemoryExtprocError) -> None:
        self._verdicts = verdicts
        self.shown: list[list[str]] = []

    async def judge(self, owner: Owner, fact: Fact, memories: Sequence[Memory]) -> Sequence[ConflictVerdict]:
        assert owner == ANN
        self.shown.append([memory.content for memory in memories])
        found = [self._verdicts[at % len(self._verdicts)] for at in range(len(memories))]
        said = [one for one in found if isinstance(one, ConflictVerdict)]
        if len(said) < len(found):
            raise next(one for one in found if not isinstance(one, ConflictVerdict))
        return said


TURN = a_turn("I drink a lot of green tea these days")
NEXT = a_turn("I drink a lot of green tea no more these days", seq=2, at=later(minutes=1))
TEA = a_fact(TURN, "User drinks a lot of green tea every day", "drink")
NO_TEA = a_fact(NEXT, "User drinks a lot of black tea every day", "hot drink")
SAME_TEA = a_fact(NEXT, "User drinks green tea every day", "hot drink")
WIFE = a_fact(NEXT, "User's wife drinks a lot of green tea every day", "hot drink", subject="user's wife")


async def judged_known(second: Fact, *verdicts: ConflictVerdict | MemoryExtprocError) -> tuple[list[str], Saying]:
    judges = Saying(*verdicts)
    async with a_desk(judges) as desk:
        await desk.learn([TEA], TURN)
        await desk.learn([second], NEXT)
        return await desk.facts(), judges


async def test_a_model_says_what_a_fact_near_to_another_makes_of_it() -> None:
    both = sorted([TEA.content, NO_TEA.content])
    known, judges = await judged_known(NO_TEA, ConflictVerdict.ADD)
    assert known == both
    assert judges.shown == [[TEA.content]]
    assert (await judged_known(NO_TEA, ConflictVerdict.UPDATE))[0] == [NO_TEA.content]
    assert (await judged_known(NO_TEA, ConflictVerdict.DELETE))[0] == [NO_TEA.content]
    assert (await judged_known(SAME_TEA, ConflictVerdict.NONE))[0] == [TEA.content]


async def test_a_model_that_calls_a_new_fact_known_does_not_lose_it() -> None:
    assert (await judged_known(NO_TEA, ConflictVerdict.NONE))[0] == sorted([TEA.content, NO_TEA.content])


async def test_no_verdict_ends_a_memory_about_another_person() -> None:
    assert (await judged_known(WIFE, ConflictVerdict.DELETE))[0] == sorted([TEA.content, WIFE.content])


@pytest.mark.parametrize("error", [TransientError("down"), PermanentError("malformed"), OverBudgetError("spent")])
async def test_without_the_models_word_both_stay(error: MemoryExtprocError) -> None:
    assert (await judged_known(NO_TEA, error))[0] == sorted([TEA.content, NO_TEA.content])


async def test_a_model_is_not_asked_about_what_is_far_or_what_a_rule_can_say() -> None:
    judges = Saying(ConflictVerdict.DELETE)
    async with a_desk(judges) as desk:
        await desk.tell("I live in Paris.", "My cat is called Miso.", "I moved to Tokyo.", "I live in Tokyo.")
        assert judges.shown == []


async def test_the_verdict_is_kept_so_that_trying_again_asks_nobody() -> None:
    judges = Saying(ConflictVerdict.UPDATE)
    async with a_desk(judges) as desk:
        await desk.learn([TEA], TURN)
        await desk.learn([NO_TEA], NEXT)
        await desk.reconciler.apply(ANN, [NO_TEA], [NEXT])
        assert len(judges.shown) == 1
        assert await desk.facts() == [NO_TEA.content]
        (row,) = [row for row in await desk.rows() if row.content == NO_TEA.content]
        assert row.provenance.judge == "as told"


WORDS = st.sampled_from(["green tea", "black tea", "much green tea", "no green tea", "3 cups of green tea"])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(WORDS, st.sampled_from(["user", "user's wife"])), min_size=1, max_size=5),
    st.lists(st.sampled_from(list(ConflictVerdict)), min_size=1, max_size=7),
)
async def test_whatever_a_model_says_no_new_fact_is_lost(
    said: list[tuple[str, str]], verdicts: list[ConflictVerdict]
) -> None:
    async with a_desk(Saying(*verdicts)) as desk:
        for at, (words, subject) in enumerate(said):
            who = subject.replace("user", "User")
            turn = a_turn(f"{who} {words}", id=digest("turn", str(at)), seq=2 * at, at=later(minutes=at))
            fact = a_fact(turn, f"{who} drinks {words} every single day at home", f"drink {at}", words, subject)
            await desk.learn([fact], turn)
            there = [row for row in await desk.rows() if row.state is MemoryState.ACTIVE]
            assert any(row.content == fact.content or says(row, fact) for row in there)


@given(st.lists(st.sampled_from(list(ConflictVerdict)), min_size=3, max_size=3))
def test_verdicts_on_memories_are_about_those_memories_alone(verdicts: list[ConflictVerdict]) -> None:
    shown = [a_memory(f"User drinks {kind} tea", metadata={"subject": "user"}) for kind in ("green", "red", "mint")]
    fact = a_fact(TURN, "User drinks green tea")
    change = apply_verdicts(fact, shown, verdicts)
    gone = {
        one.id
        for one, verdict in zip(shown, verdicts, strict=True)
        if verdict in {ConflictVerdict.UPDATE, ConflictVerdict.DELETE}
    }
    if verdicts[0] is ConflictVerdict.NONE:
        assert change == Confirm(shown[0].id)
    elif gone:
        assert isinstance(change, Replace)
        assert set(change.ids) == gone
    else:
        assert change == Add()


# --- the model's answer ------------------------------------------------------------------------------
NOTES = [a_memory("User likes tea"), a_memory("User likes coffee")]


def verdicts_on(*numbers: int, verdict: str = "ADD") -> str:
    return json.dumps({"verdicts": [{"note": number, "verdict": verdict} for number in numbers]})


async def test_a_model_sees_numbers_and_words_and_never_an_id() -> None:
    model = CannedCompletions([verdicts_on(2, 1, verdict="UPDATE")])
    assert await LlmJudge(model, UNBOUNDED).judge(ANN, TEA, NOTES) == [
        ConflictVerdict.UPDATE,
        ConflictVerdict.UPDATE,
    ]
    ((_, shown, _),) = model.asked
    assert [json.loads(line).get("note") for line in shown.splitlines()] == [None, 1, 2]
    assert not any(note.id in shown or note.owner.user in shown for note in NOTES)


@pytest.mark.parametrize(
    "bad",
    [
        verdicts_on(1),
        verdicts_on(1, 2, 3),
        verdicts_on(1, 1),
        verdicts_on(0, 1),
        verdicts_on(1, 2, verdict="MERGE"),
        '{"verdicts": [{"note": "1", "verdict": "ADD"}]}',
        "ADD",
        '{"verdicts": []}',
    ],
)
async def test_an_answer_that_does_not_judge_each_note_once_is_none(bad: str) -> None:
    model = CannedCompletions([bad, verdicts_on(1, 2)])
    assert await LlmJudge(model, UNBOUNDED).judge(ANN, TEA, NOTES) == [ConflictVerdict.ADD, ConflictVerdict.ADD]
    with pytest.raises(PermanentError):
        await LlmJudge(CannedCompletions([bad, bad]), UNBOUNDED).judge(ANN, TEA, NOTES)


async def test_judging_is_paid_for_like_all_else() -> None:
    budget = Budget(tokens(caller_hour=1), now=lambda: MONDAY)
    judge = LlmJudge(CannedCompletions([verdicts_on(1, 2)]), budget)
    await judge.judge(ANN, TEA, NOTES)
    with pytest.raises(OverBudgetError):
        await judge.judge(ANN, replace(TEA), NOTES)
