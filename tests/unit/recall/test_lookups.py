"""Questions by kind over the in-memory store: what is looked up, in which order, in which bounds, for whom."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.model import (
    Embedded,
    Explanation,
    Memory,
    MemoryState,
    MemoryType,
    Outcome,
    Owner,
    RecallResult,
    Role,
    Scope,
    Selection,
    Source,
)
from memory_extproc.observe.metrics import Metrics
from memory_extproc.recall.recaller import Recaller
from memory_extproc.settings.traffic import Inject
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryStore
from memory_extproc.testing.models import CannedEmbedder
from memory_extproc.text.attributes import ATTRIBUTES
from tests.support.builders import ANN, BOB, MONDAY, a_memory, a_message, a_wish, later
from tests.support.recallers import a_recaller
from tests.support.sidecar import request_settings

NURSE = a_memory("User is a pediatric nurse at the Riverside Hospital", importance=0.8)
TWINS = a_message("I have twins, Ada and Bo.", session="s1", seq=0)
PEANUTS = a_memory("User is allergic to peanuts", importance=0.9)
SHELLFISH = a_memory("User is allergic to shellfish")
SISTER = a_memory("User's sister is Anna")
TOM = a_message("Anna's husband Tom owns the Rye Corner bakery on Elm Street.", session="s1", seq=2)
HOME = a_memory("User lives in Malmö", created_at=later(days=2), valid_from=later(days=2))
FORMERLY = a_memory(
    "User lives in Gothenburg",
    state=MemoryState.SUPERSEDED,
    valid_from=MONDAY,
    valid_to=later(days=2),
    superseded_by=HOME.id,
)
DEPLOY = a_memory("To deploy atlas: run make release", type=MemoryType.PROCEDURAL)
SUMMARY = a_memory(
    "Kitchen plans: oak counters and a gas stove were decided.",
    type=MemoryType.EPISODIC,
    source=Source.SUMMARY,
    session="s2",
    metadata={"span": [0, 4], "until": later(days=1).timestamp(), "sources": ["said"]},
)
OAK = a_message("I want oak counters.", session="s2", seq=0, created_at=later(days=1))
STOVE = a_message("Gas stoves need a vent.", session="s2", seq=1, role=Role.ASSISTANT, created_at=later(days=1))
EVERYTHING = (NURSE, TWINS, PEANUTS, SHELLFISH, SISTER, TOM, HOME, FORMERLY, DEPLOY, SUMMARY, OAK, STOVE)


@dataclass
class Desk:
    partitions: Partitions
    embedder: CannedEmbedder
    metrics: Metrics

    async def remember(self, *memories: Memory) -> None:
        for memory in memories:
            vector = (await self.embedder.embed([memory.content]))[0]
            await self.partitions.put(memory.owner, [Embedded(memory, vector)])

    @property
    def recaller(self) -> Recaller:
        return self.timed()

    def timed(self, clock: Callable[[], float] = time.perf_counter) -> Recaller:
        return a_recaller(
            self.partitions,
            self.embedder,
            request_settings(deadline=timedelta(seconds=5)),
            self.metrics,
            lambda: later(days=4),
            reads=self.partitions,
            selects=self.partitions,
            clock=clock,
        )

    async def ask(self, words: str, **changes: Any) -> RecallResult:
        return await self.recaller.recall(a_wish(words, **changes))

    async def explain(self, words: str, **changes: Any) -> Explanation:
        return await self.recaller.explain(a_wish(words, **changes))


@pytest.fixture(params=[1 << 28, 1], ids=["held in process", "too large to be held"])
async def desk(request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    metrics = Metrics(CollectorRegistry(), "test")
    embedder = CannedEmbedder()
    store = InMemoryStore(embedder.dimension, now=lambda: MONDAY)
    limits = PartitionLimits(bytes=request.param)
    async with Partitions(
        store, InMemoryCoordination(lambda: MONDAY), limits, metrics, now=lambda: MONDAY
    ) as partitions:
        made = Desk(partitions, embedder, metrics)
        await made.remember(*EVERYTHING)
        yield made


@pytest.mark.parametrize(
    ("question", "kind", "there", "not_there"),
    [
        ("What do you know about me?", "overview", [NURSE, TWINS, PEANUTS, HOME], [FORMERLY, STOVE]),
        ("what do you know about my sister", "subject", [SISTER, TOM], [NURSE]),
        ("What did we talk about last time?", "past_conversation", [SUMMARY], [NURSE]),
        ("what did I tell you on 3 March", "by_date", [OAK], [NURSE]),
        ("What did we talk about in our first conversation?", "past_conversation", [TWINS, TOM], [OAK]),
        ("my allergies", "list", [PEANUTS, SHELLFISH], [NURSE]),
        ("whom did I mention?", "mentioned", [SISTER, TWINS], [PEANUTS]),
        ("where is the bakery of my sister's husband", "several_hops", [SISTER, TOM], [NURSE]),
        ("on which street is my brother-in-law's bakery?", "several_hops", [SISTER, TOM], [NURSE]),
        ("recommend a restaurant", "constraint", [PEANUTS, SHELLFISH], [SISTER, NURSE]),
        ("where did I live before?", "as_of", [FORMERLY], [HOME]),
        ("how do I deploy atlas", "procedure", [DEPLOY], [NURSE]),
    ],
)
async def test_each_kind_finds_what_answers_it(
    desk: Desk, question: str, kind: str, there: list[Memory], not_there: list[Memory]
) -> None:
    explained = await desk.explain(question)
    assert explained.kind == kind
    assert all(one.content in explained.block for one in there)
    assert not any(one.content in explained.block for one in not_there)
    assert (await desk.ask(question)).block == explained.block


async def test_of_a_conversation_on_one_subject_one_summary_is_told(desk: Desk) -> None:
    known = {"span": [0, 4], "until": later(days=3).timestamp(), "sources": ["said"]}
    shorter, longer = (
        a_memory(text, type=MemoryType.EPISODIC, source=Source.SUMMARY, session="s7", metadata={**known, **more})
        for text, more in (
            ("Garden pond: I want a pond with koi.", {"kind": "topic"}),
            ("Garden pond: I want a pond with koi. It is to be dug in May.", {"kind": "session", "levels": 1}),
        )
    )
    wanted = a_message("I want a pond with koi.", session="s7", seq=0, created_at=later(days=3))
    await desk.remember(shorter, longer, wanted)
    for question in ("What did we talk about last time?", "Summarise our conversation about the garden pond."):
        block = (await desk.ask(question)).block
        assert (longer.content in block, block.count("Garden pond:")) == (True, 1)


async def test_standing_wishes_bear_on_what_is_to_be_written_and_on_nothing_else(desk: Desk) -> None:
    of_letters = a_message("From now on no emojis, and British spelling.", session="s9", created_at=later(days=2))
    of_code = a_message("I want type hints everywhere.", session="s9", seq=2, created_at=later(days=2))
    await desk.remember(of_letters, of_code)
    letter = (await desk.ask("write a thank-you note to my aunt")).block
    assert (of_letters.content in letter, of_code.content in letter) == (True, False)
    code = (await desk.ask("write me a function that parses dates")).block
    assert (of_letters.content in code, of_code.content in code) == (False, True)
    for question in ("What is the capital of France?", "Write a poem", "recommend a restaurant"):
        block = (await desk.ask(question)).block
        assert of_letters.content not in block
        assert of_code.content not in block


async def test_a_subject_has_what_the_caller_said_next_about_it(desk: Desk) -> None:
    texts = ("There is this girl Simone in my class.", "She likes poetry.", "I need new running shoes.")
    said = [a_message(text, session="s9", seq=2 * at) for at, text in enumerate(texts)]
    await desk.remember(*said)
    block = (await desk.ask("what do you know about Simone?")).block
    assert [one.content in block for one in said] == [True, True, False]


async def test_a_day_has_what_the_caller_said_and_no_answers_to_it(desk: Desk) -> None:
    place: dict[str, Any] = {"session": "s9", "created_at": later(days=3)}
    trap = a_message("Put a tilting trap for the mouse in the pantry.", role=Role.ASSISTANT, seq=1, **place)
    kayak = a_message("I bought a blue kayak.", seq=2, **place)
    slowly = a_message("Great, take it slowly.", role=Role.ASSISTANT, seq=3, **place)
    await desk.remember(trap, kayak, slowly)
    block = (await desk.ask("What did I tell you yesterday?")).block
    # The answer to a question stays, for a question itself is never shown.
    assert [one.content in block for one in (trap, kayak, slowly)] == [True, True, False]
    assert slowly.content in (await desk.ask("What did we talk about yesterday?")).block


async def test_what_the_caller_does_not_eat_has_allergies_diet_and_dislikes(desk: Desk) -> None:
    diet = a_message("I can't do dairy.", session="s9")
    dislikes = [
        a_message(text, session="s9", seq=seq) for seq, text in ((2, "I hate olives."), (4, "I hate flying."))
    ]
    await desk.remember(diet, *dislikes)
    block = (await desk.ask("Which foods do I have to avoid?")).block
    wanted = [one.content in block for one in (PEANUTS, SHELLFISH, diet, *dislikes)]
    assert wanted == [True, True, True, True, False]


async def test_a_fact_answers_although_a_message_tells_the_attribute_in_passing(desk: Desk) -> None:
    passing = a_message("Things to work in: where I work as a climber and my work for the club.", session="s9")
    await desk.remember(passing)
    assert NURSE.content in (await desk.ask("where do I work?")).block


async def test_a_message_stays_beside_its_facts_where_it_says_more(desk: Desk) -> None:
    place: dict[str, Any] = {"session": "s9", "seq": 0, "created_at": later(days=2)}
    runs = a_memory("User runs on Mondays", source=Source.RULES, metadata={"attribute": "usually runs"}, **place)
    said = a_message("I usually run on Mondays. So no meetings before 10 then.", **place)
    await desk.remember(runs, said)
    assert "no meetings before 10" in (await desk.ask("propose a slot for a meeting")).block


@pytest.mark.parametrize(
    "question",
    [
        "What is the capital of France?",
        "tell me everything about black holes",
        "how do I boil an egg?",
        "what do you know about Bob",
        "Write a poem",
        "where is the hotel of my brother's wife?",
        "all my patents",
    ],
)
async def test_a_question_that_looks_alike_gets_nothing(desk: Desk, question: str) -> None:
    explained = await desk.explain(question)
    assert (explained.kind, explained.block) == ("", "")


async def test_an_overview_is_grouped_and_stays_in_its_budget(desk: Desk) -> None:
    await desk.remember(*(a_memory(f"User likes the band number {number} a lot") for number in range(200)))
    recalled = await desk.ask("What do you know about me?")
    headings = [line for line in recalled.block.splitlines() if line.endswith(":")]
    assert headings[:3] == ["Identity:", "Work:", "People:"]
    assert 512 < recalled.tokens <= Inject().overview_budget
    assert NURSE.content in recalled.block  # the many of one attribute crowd out nothing
    assert "more that are not shown)" in recalled.block
    assert (await desk.ask("What do you know about me?", room=200)).tokens <= 200


async def test_a_list_has_every_item_unless_the_request_names_a_limit(desk: Desk) -> None:
    await desk.remember(*(a_memory(f"User is allergic to pollen of kind {number}") for number in range(9)))
    assert len((await desk.ask("list my allergies")).memories) == 11
    limited = await desk.ask("list my allergies", limit=4, limited=True)
    assert len(limited.memories) == 4
    assert "(and 7 more that are not shown)" in limited.block


async def test_scopes_and_owners_hold_for_every_kind(desk: Desk) -> None:
    await desk.remember(a_memory("User is allergic to bees", BOB), a_memory("User is allergic to hay", project="p"))
    assert "bees" not in (await desk.ask("my allergies")).block
    narrow = await desk.ask("my allergies", scope=Scope(project="p"))
    assert [one.memory.content for one in narrow.memories] == ["User is allergic to hay"]
    types = Scope(types=frozenset({MemoryType.EPISODIC}))
    assert NURSE.content not in (await desk.ask("What do you know about me?", scope=types)).block
    assert (await desk.ask("What do you know about me?", owner=Owner("acme", "eve"))).block == ""


async def test_memories_shared_with_the_caller_are_looked_up_too(desk: Desk) -> None:
    project = Owner.of_project("acme", "atlas")
    await desk.remember(a_memory("To deploy atlas: ask Lena first", project, type=MemoryType.PROCEDURAL))
    assert "ask Lena" in (await desk.ask("how do I deploy atlas", shared=(project,))).block


async def test_what_was_forgotten_is_in_no_lookup(desk: Desk) -> None:
    await desk.partitions.delete(ANN, [TOM.id, PEANUTS.id])
    assert "Rye Corner" not in (await desk.ask("where is the bakery of my sister's husband")).block
    assert PEANUTS.content not in (await desk.ask("my allergies")).block
    assert not await desk.partitions.select(ANN, Selection(names=frozenset({"tom"})), Scope())


async def test_what_the_model_sees_already_is_left_out(desk: Desk) -> None:
    recalled = await desk.ask("my allergies", in_view=frozenset({PEANUTS.content}))
    assert [one.memory.content for one in recalled.memories] == [SHELLFISH.content]


async def test_memory_is_given_as_it_stood_at_a_time(desk: Desk) -> None:
    then = later(days=1).isoformat()
    assert [one.memory.content for one in (await desk.ask("where do I live", as_of=then)).memories] == [
        FORMERLY.content
    ]
    for unreadable in ("yesterday", "2026-03-03T09:00:00", later(days=400).isoformat(), "99999-01-01"):
        explained = await desk.explain("my allergies", as_of=unreadable)
        assert PEANUTS.content in explained.block
        assert any("as_of is ignored" in note for note in explained.notes)


async def test_a_subject_is_found_among_more_memories_than_are_compared(desk: Desk) -> None:
    await desk.remember(*(a_memory(f"User knows bus line {at}", created_at=later(days=3)) for at in range(1_100)))
    assert "Rye Corner" in (await desk.ask("what do you know about my sister")).block


async def test_an_impossible_day_and_an_unknown_subject_leave_a_word_and_no_harm(desk: Desk) -> None:
    explained = await desk.explain("What did I tell you on 30 February?")
    assert explained.notes == ("no calendar has a 30 February",)
    unknown = await desk.explain("what do you know about Zelda")
    assert unknown.outcome is Outcome.NOTHING_RELEVANT
    assert unknown.notes == ("no memory mentions the subject of the question",)
    assert (await desk.explain("who is Ada Lovelace?")).block == ""
    await desk.remember(a_memory("User has twins, Ada and Bo"))  # and the message about them
    assert (await desk.explain("who is Ada Lovelace?")).block == ""


async def test_weight_decides_what_an_overview_begins_with(desk: Desk) -> None:
    often = a_memory("User's favourite tea is Assam", metadata={"confirmations": 5, "attribute": "favourite tea"})
    rarely = a_memory("User likes Oolong tea")
    await desk.remember(often, rarely)
    found = [one.memory.content for one in (await desk.ask("What do you know about me?")).memories]
    assert found.index(often.content) < found.index(rarely.content)


async def test_selecting_takes_any_condition_and_says_what_each_memory_tells(desk: Desk) -> None:
    allergies = ATTRIBUTES.mask(["allergies"])
    found = await desk.partitions.select(ANN, Selection(attributes=allergies), Scope())
    assert {one.memory.content for one in found} == {PEANUTS.content, SHELLFISH.content}
    assert all(one.tells & allergies for one in found)
    everything = await desk.partitions.select(ANN, Selection(everything=True), Scope())
    assert len(everything) == len(EVERYTHING) - 1  # without what was replaced
    assert len(await desk.partitions.select(ANN, Selection(everything=True, most=3), Scope())) == 3


async def test_a_name_is_found_in_small_letters_and_with_an_s_as_a_word_of_its_own(desk: Desk) -> None:
    hurried = a_message("amayas 6 now", session="s7", seq=0)
    await desk.remember(hurried, a_message("the amayans won again", session="s7", seq=2))
    wanted = Selection(spelled=frozenset({"amaya"}))
    assert [one.memory.content for one in await desk.partitions.select(ANN, wanted, Scope())] == [hurried.content]


async def test_an_overview_has_the_newest_home_and_no_other(desk: Desk) -> None:
    await desk.remember(
        a_message("We live in Bergen, third floor.", session="s5", seq=0, created_at=later(hours=1)),
        a_message("The deadline was moved to Tuesday.", session="s6", seq=0, created_at=later(days=3)),
    )
    block = (await desk.ask("What do you know about me?")).block
    assert "Malmö" in block
    assert "Bergen" not in block


async def test_an_overview_of_little_has_statements_of_no_attribute_but_no_questions_or_thanks(desk: Desk) -> None:
    await desk.remember(
        a_message("The bus from Totnes was packed again this morning.", session="s5", seq=0),
        a_message("ok so what's a good way to get wine out of a rug", session="s5", seq=1),
        a_message("Brilliant, thank you so much!", session="s5", seq=2),
    )
    block = (await desk.ask("What do you know about me?")).block
    assert "Totnes" in block
    assert "rug" not in block
    assert "Brilliant" not in block


async def test_the_last_talk_is_the_last_of_which_something_is_left(desk: Desk) -> None:
    """A question about memory is not kept; the answer to it in a chat of its own is no talk worth telling."""
    answer = "Sure, happy to help with that."
    await desk.remember(a_message(answer, session="s9", seq=1, role=Role.ASSISTANT, created_at=later(days=3)))
    block = (await desk.ask("What did we talk about last time?")).block
    assert "Kitchen plans" in block
    assert answer not in block


async def test_a_subject_is_known_by_a_name_or_from_several_statements(desk: Desk) -> None:
    await desk.remember(
        a_message("The wedding is on May 8.", session="s5", seq=0),
        a_message("We invited eighty people to the wedding.", session="s6", seq=0),
        a_message("My dress for the wedding is blue.", session="s8", seq=0),
        a_message("I read a page about the moon.", session="s7", seq=0),
    )
    block = (await desk.ask("Tell me everything about the wedding")).block
    assert "May 8" in block
    assert "eighty" in block
    assert (await desk.explain("Tell me everything about the moon")).kind != "subject"


async def test_of_a_subject_the_next_messages_about_those_who_share_it_are_told(desk: Desk) -> None:
    await desk.remember(
        a_message("Planning my trip to Porto in April.", session="s5", seq=0),
        a_message("We booked the Casa das Flores for three nights.", session="s5", seq=2),
        a_message("My aunt Samira is coming with us.", session="s5", seq=4),
        a_message("I need a new kettle.", session="s5", seq=6),
    )
    block = (await desk.ask("Tell me everything about my Porto trip")).block
    assert all(word in block for word in ("Planning", "Casa das Flores", "Samira"))
    assert "kettle" not in block


async def test_an_overview_leaves_the_questions_of_a_message_out(desk: Desk) -> None:
    await desk.remember(a_message("My husband is Ole. Which socks go with a kilt?", session="s5", seq=0))
    block = (await desk.ask("Who am I?")).block
    assert "Ole" in block
    assert "kilt" not in block


async def test_a_question_about_the_world_gets_nothing(desk: Desk) -> None:
    await desk.remember(a_message("Is 23 a prime number? Ask me another.", session="s5", seq=0))
    assert (await desk.ask("what is the boiling point of nitrogen")).outcome is Outcome.NOTHING_RELEVANT


@pytest.mark.parametrize(
    ("question", "told"),
    [
        (
            "which street is my cousin's workshop on?",
            ["User's cousin is Ferran", "Ferran's workshop is on Mill Road"],
        ),
        ("where does my cousin's wife work?", ["Ferran's wife Imma works at the harbour"]),
        ("which street is my neighbour's workshop on?", []),  # a person of the caller's whom no memory names
        ("what does my cousin's wife study?", []),  # the chain leads to her, and not to what she studies
    ],
)
async def test_a_chain_leads_over_the_caller_s_people_to_what_is_asked(
    desk: Desk, question: str, told: list[str]
) -> None:
    chain = [
        "User's cousin is Ferran",
        "Ferran's workshop is on Mill Road",
        "Ferran's wife Imma works at the harbour",
    ]
    await desk.remember(*map(a_memory, chain))
    found = await desk.explain(question)
    assert [text for text in told if text not in found.block] == []
    if not told:
        assert found.kind != "several_hops"


async def test_two_questions_of_a_message_are_both_answered(desk: Desk) -> None:
    found = await desk.ask("What are my allergies? And where did I live before?")
    assert all(one.content in found.block for one in (PEANUTS, SHELLFISH, FORMERLY))


async def test_a_second_question_is_searched_only_while_half_of_the_deadline_is_left(desk: Desk) -> None:
    seconds = iter(range(0, 1_000, 3))  # of five: each look at the clock is later
    found = await desk.timed(lambda: float(next(seconds))).recall(
        a_wish("What are my allergies? And where did I live before?")
    )
    assert PEANUTS.content in found.block
    assert FORMERLY.content not in found.block


def was_so(content: str, since: float, until: float | None, **changes: Any) -> Memory:
    """A fact that held from the day *since* to the day *until*; None: it still holds."""
    if until is not None:
        changes |= {"state": MemoryState.SUPERSEDED, "valid_to": later(days=until), "superseded_by": "x"}
    return a_memory(content, created_at=later(days=since), valid_from=later(days=since), **changes)


async def test_a_value_before_another_is_the_one_that_this_replaced(desk: Desk) -> None:
    leeds, hull = was_so("User lives in Leeds", -200, -100), was_so("User lives in Hull", -100, 0)
    await desk.remember(leeds, hull)
    for question, wanted in (
        ("Where did I live before Gothenburg?", hull),
        ("where did i live before hull?", leeds),
    ):
        assert [one.memory.content for one in (await desk.ask(question)).memories] == [wanted.content], question


async def test_values_of_one_attribute_are_told_apart_by_the_word_for_them(desk: Desk) -> None:
    rent, kitchen = was_so("User's rent is 700 pounds", -200, 0), was_so("User's kitchen budget is 5,000", -200, 0)
    await desk.remember(rent, kitchen, was_so("User's budget for the Greece trip is 2,000", -200, 0))
    for question, wanted in (
        ("What was my rent before?", rent),
        ("What was my kitchen budget before?", kitchen),
    ):
        assert [one.memory.content for one in (await desk.ask(question)).memories] == [wanted.content], question


async def test_the_present_value_of_a_history_is_never_given_as_a_former_one(desk: Desk) -> None:
    history = was_so("User's rent is 900 pounds (first 700 pounds, then 800 pounds)", -10, None)
    merged = was_so("User's rent is 900 pounds", -10, 0, metadata={"merged": history.id})
    former = was_so("User's rent is 800 pounds", -100, -10)
    await desk.remember(history, merged, former)
    assert [one.memory.content for one in (await desk.ask("What was my rent before?")).memories] == [former.content]


PASTED = a_message(
    "make this shorter: our kids love the new menu. I avoid dairy myself, writes Pat, and the kitchen takes care "
    "of it. We are proud of a kitchen that bakes with rice flour, cooks without cream where it can, and lists all "
    "that is in each dish. Vegans may have the lentils in place of the trout.",
    session="s5",
)


async def test_a_text_that_was_pasted_holds_back_no_advice(desk: Desk) -> None:
    await desk.remember(PASTED)
    found = await desk.ask("recommend a restaurant")
    assert PEANUTS.content in found.block
    assert "Pat" not in found.block


async def test_what_a_long_message_asks_in_passing_shuts_out_nothing_that_it_tells_of(desk: Desk) -> None:
    loop = a_message(
        "The clockwise loop it is, with two nights at Lake Tekapo and one at Mount Cook.", session="s5"
    )
    await desk.remember(loop)
    long = (
        "We have settled on the clockwise loop with two nights at Lake Tekapo and one at Mount Cook, and the van "
        "is ours for all three weeks. Now, where did I live before?"
    )
    found = await desk.ask(long, threshold=0.3)
    assert loop.content in found.block
    assert FORMERLY.content in found.block


async def test_of_what_was_advised_the_caller_s_decision_is_told_too(desk: Desk) -> None:
    at = later(days=2)
    advice = a_message(
        "For a small kitchen I suggest quartz counters.", session="s6", seq=1, role=Role.ASSISTANT, created_at=at
    )
    decision = a_message("Quartz counters it is, in light grey.", session="s6", seq=2, created_at=at)
    await desk.remember(advice, decision)
    block = (await desk.ask("Which quartz counters did you recommend?", threshold=0.3)).block
    assert advice.content in block
    assert decision.content in block
    assert not (await desk.ask("Which quartz watches did you recommend for a marathon?", threshold=0.99)).block


async def test_everything_about_a_thing_that_the_caller_speaks_of_as_known_is_told(desk: Desk) -> None:
    flat = a_message("We're thinking of buying a flat in Triana, the bank offered 2.9 %.", session="s8")
    await desk.remember(flat)
    assert flat.content in (await desk.ask("everything about the flat")).block
    assert not (await desk.ask("everything about the opera")).block
