"""A profile is told once in a conversation, stays byte for byte, and goes when it no longer holds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memory_extproc.errors import TransientError
from memory_extproc.model import Caller, Outcome, RecallResult, UserProfile
from memory_extproc.recall.prompt_block import CLOSING, OPENING_PROFILE
from memory_extproc.testing.adapters import InMemoryCoordination
from tests.support.desk import Desk
from tests.support.sidecar import NOON, used

NOTHING = RecallResult(outcome=Outcome.NOTHING_RELEVANT)


class Known:
    """Implements ports.ProfileReader by what it is told."""

    def __init__(self, *facts: str) -> None:
        self.facts = facts
        self.failing: Exception | None = None

    async def profile(self, caller: Caller) -> UserProfile:
        if self.failing:
            raise self.failing
        if not self.facts:
            return UserProfile()
        text = "\n".join([OPENING_PROFILE, *(f"- {fact}" for fact in self.facts), CLOSING])
        ids = tuple(f"id of {fact}" for fact in self.facts)
        return UserProfile(text=text, ids=ids, contents=self.facts, eligible=frozenset(ids), tokens=60)


class Talk:
    def __init__(self, recalled: RecallResult = NOTHING, *facts: str, mode: str = "always", **options: Any) -> None:
        self.known = Known(*(facts or ("home: Oslo",)))
        shared = InMemoryCoordination(now=lambda: NOON)
        self.desk = Desk(recalled, shared=shared, profile=mode, profiles=self.known, **options)
        self.items: list[dict[str, Any]] = []
        self.sent: list[bytes] = []
        self.statuses: list[str] = []

    async def ask(self, words: str) -> str:
        """The last message as the model saw it."""
        self.items.append({"role": "user", "content": words})
        body = json.dumps({"model": "demo", "messages": self.items}).encode()
        enriched = await self.desk.enrich(body)
        self.items.append({"role": "assistant", "content": f"About {words}: yes."})
        self.sent.append(enriched.body or body)
        self.statuses.append(enriched.status)
        return str(json.loads(self.sent[-1])["messages"][-1]["content"])

    @property
    def keeps_its_beginning(self) -> bool:
        pairs = zip(self.sent, self.sent[1:], strict=False)
        return all(after.startswith(before.removesuffix(b"]}")) for before, after in pairs)


async def test_it_is_told_once_and_stays_where_it_stood() -> None:
    talk = Talk()
    assert "home: Oslo" in await talk.ask("Hello there")
    for words in ("And then?", "What else?", "Why?"):
        assert "home: Oslo" not in await talk.ask(words)
    assert talk.keeps_its_beginning
    assert talk.sent[-1].count(b"home: Oslo") == 1
    assert talk.statuses[0] == "used;n=1;path=profile"


async def test_what_is_learned_meanwhile_does_not_change_the_beginning() -> None:
    talk = Talk()
    await talk.ask("Hello there")
    talk.known.facts = ("home: Oslo", "pet: cat")
    await talk.ask("And then?")
    assert talk.keeps_its_beginning


async def test_what_no_longer_holds_goes_from_the_conversation_and_the_new_is_told() -> None:
    talk = Talk()
    await talk.ask("Hello there")
    talk.known.facts = ("home: Bergen",)
    assert "home: Bergen" in await talk.ask("And then?")
    assert b"Oslo" not in talk.sent[-1]
    talk.known.facts = ()
    await talk.ask("What else?")
    assert b"Bergen" not in talk.sent[-1]


async def test_it_stands_in_a_block_of_its_own_before_the_memories() -> None:
    talk = Talk(used())
    seen = await talk.ask("What is my budget?")
    assert seen.index("home: Oslo") < seen.index("The budget for the Hawaii trip is $10,000")
    (wish,) = talk.desk.recalls.wishes
    assert "home: Oslo" in wish.in_view


@pytest.mark.parametrize(("recalled", "told"), [(used(), True), (NOTHING, False)])
async def test_when_relevant_it_is_told_beside_memories_alone(recalled: RecallResult, *, told: bool) -> None:
    talk = Talk(recalled, mode="when_relevant")
    assert ("home: Oslo" in await talk.ask("What is my budget?")) is told


@pytest.mark.parametrize("outcome", [Outcome.UNAVAILABLE, Outcome.OUT_OF_TIME, Outcome.OVERLOADED, Outcome.NO_ROOM])
async def test_while_recall_cannot_answer_nothing_is_told(outcome: Outcome) -> None:
    assert "Oslo" not in await Talk(RecallResult(outcome=outcome)).ask("Hello there")


async def test_off_nothing_is_told() -> None:
    assert "Oslo" not in await Talk(mode="off").ask("Hello there")


async def test_the_request_goes_on_while_it_cannot_be_read() -> None:
    talk = Talk()
    talk.known.failing = TransientError("away")
    assert await talk.ask("Hello there") == "Hello there"


async def test_it_is_left_out_where_there_is_no_room() -> None:
    assert await Talk(window=64, margin=0).ask("Hello there") == "Hello there"


@pytest.mark.parametrize(("seen", "told"), [({"id of home: Oslo"}, True), ({"another"}, False), (set(), False)])
async def test_what_is_to_the_point_and_stands_in_it_makes_it_relevant(seen: set[str], *, told: bool) -> None:
    recalled = RecallResult(outcome=Outcome.NOTHING_RELEVANT, in_view=frozenset(seen))
    talk = Talk(recalled, mode="when_relevant")
    assert ("home: Oslo" in await talk.ask("Where do I live?")) is told
