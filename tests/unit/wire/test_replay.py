"""A conversation keeps its blocks: each later request of it begins with the very bytes of the one before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory_extproc.coordination.transient import TransientCoordination
from memory_extproc.dialect.base import Form
from memory_extproc.errors import GiveUpError, TryLaterError
from memory_extproc.model import Memory, Outcome, Owner, Ranked, Recalled, Switch, Wish
from memory_extproc.recall.block import CLOSING, OPENING, OPENING_AGAIN, render, without_blocks
from memory_extproc.wire.canned import CannedRecalls
from memory_extproc.wire.enriched import Enriched
from memory_extproc.wire.given import Decision, Given, fitting, tokens_of
from memory_extproc.wire.options import Mode
from memory_extproc.wire.replays import InView, Record
from memory_extproc.wire.rules import Rule, Then, When
from tests.builders import a_memory
from tests.fixtures.desk import Desk
from tests.fixtures.sidecar import NOON

ANN, BOB = Owner("", "ann"), Owner("", "bob")
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
BUDGET, HOTEL, SEAT = "The budget is $10,000", "The hotel is the Grand Wailea", "Window seats on long flights"
KNOWN = {"budget": BUDGET, "hotel": HOTEL, "seat": SEAT}


class Remembers(CannedRecalls):
    """Recall over a few memories: those whose word is asked for, unless the model sees them already."""

    def __init__(self, **known: str) -> None:
        super().__init__()
        self.known = known or dict(KNOWN)

    async def recall(self, wish: Wish) -> Recalled:
        await super().recall(wish)
        found = [text for word, text in self.known.items() if word in wish.asked and text not in wish.in_view]
        memories: list[Memory] = [a_memory(text, wish.caller.owner) for text in found]
        opening = OPENING_AGAIN if wish.continues else OPENING
        block = render([Ranked(memory, 0.9) for memory in memories], wish.room or 0, opening)
        if not block.kept:
            return Recalled(outcome=Outcome.NO_ROOM if found else Outcome.NOTHING_RELEVANT, path="hybrid")
        return Recalled(outcome=Outcome.USED, block=block.text, memories=block.kept, path="hybrid")


class Talk:
    """A client with one conversation: it sends all of it each time, without what we put in."""

    def __init__(self, desk: Desk, path: str = CHAT, *, parts: bool = False, **changes: Any) -> None:
        self.desk, self.path, self.parts, self.changes = desk, path, parts, changes
        self.items: list[dict[str, Any]] = []
        self.sent: list[bytes] = []  # as the upstream got them
        self.watching = False
        self.last = Enriched(outcome=Outcome.ABANDONED)

    def user(self, words: str) -> None:
        kind = "input_text" if self.path == RESPONSES else "text"
        content = [{"type": kind, "text": words}] if self.parts else words
        self.items.append({"role": "user", "content": content})

    def assistant(self, words: str) -> None:
        self.items.append({"role": "assistant", "content": words})

    async def ask(self, words: str, **headers: str) -> str:
        """The body that the upstream gets, as text; the answer is heard."""
        self.user(words)
        body = await self.send(**headers)
        self.assistant(f"About {words}: yes.")
        return body

    async def send(self, **headers: str) -> str:
        field = "input" if self.path == RESPONSES else "messages"
        body = json.dumps({"model": "demo", "max_tokens": 64, **self.changes, field: self.items}).encode()
        self.last = await self.desk.enrich(body, watching=self.watching, path=self.path, **headers)
        self.sent.append(self.last.body or body)
        return self.sent[-1].decode()

    @property
    def keeps_its_beginning(self) -> bool:
        """Whether each request began with all that the one before had said to the model."""
        return all(
            after.startswith(before.removesuffix(b"]}"))
            for before, after in zip(self.sent, self.sent[1:], strict=False)
        )


def a_desk(**options: Any) -> Desk:
    recalls = options.pop("recalls", None) or Remembers()
    shared = options.pop("shared", TransientCoordination(now=lambda: NOON))
    return Desk(recalls=recalls, shared=shared, **options)


def now_known(desk: Desk, **known: str) -> None:
    assert isinstance(desk.recalls, Remembers)
    desk.recalls.known = known


WORDS = ("my budget?", "and what else?", "which hotel?", "my budget again?", "hi", "my seat and hotel?")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_each_request_begins_with_the_bytes_of_the_one_before(path: str, parts: bool, stream: bool) -> None:
    talk = Talk(a_desk(), path, parts=parts, stream=stream)
    for words in WORDS:
        body = await talk.ask(words)
    assert talk.keeps_its_beginning
    assert [body.count(text) for text in KNOWN.values()] == [1, 1, 1]
    assert body.count(CLOSING) == 3


@pytest.mark.parametrize("model", ["gpt-4o", "claude-sonnet-4"])
async def test_a_block_goes_back_in_the_form_it_had(model: str) -> None:
    talk = Talk(a_desk(), model=model)
    talk.items.append({"role": "developer", "content": "Be brief."})
    for words in WORDS:
        await talk.ask(words)
    assert talk.keeps_its_beginning
    roles = [message["role"] for message in json.loads(talk.sent[-1])["messages"]]
    assert roles.count("developer") == (4 if model == "gpt-4o" else 1)


async def test_after_a_change_of_model_no_late_system_message_goes_where_it_is_not_taken() -> None:
    talk = Talk(a_desk(), model="gpt-4o")
    await talk.ask("my budget?")
    assert '"role":"system"' in talk.sent[-1].decode()
    talk.changes["model"] = "llama-3.1"
    body = await talk.ask("and what else?")
    assert "system" not in body
    assert BUDGET in body


async def test_a_memory_in_view_is_not_given_again_and_the_request_still_counts_as_used() -> None:
    talk = Talk(a_desk())
    await talk.ask("my budget?")
    assert talk.last.status == "used;n=1;path=hybrid"
    await talk.ask("my budget again?")
    assert talk.last.status == "used;n=1;path=replay"
    assert BUDGET in talk.desk.recalls.wishes[-1].in_view
    assert talk.last.personal
    assert talk.last.heard is not None
    assert list(talk.last.heard.injected) == [BUDGET]
    await talk.ask("which hotel?")
    assert talk.last.status == "used;n=1;path=hybrid"
    assert list(talk.last.heard.injected) == [BUDGET, HOTEL]


async def test_only_the_first_block_of_a_conversation_is_introduced_at_length() -> None:
    talk = Talk(a_desk())
    for words in WORDS:
        body = await talk.ask(words)
    openings = [json.dumps(opening)[1:-1] for opening in (OPENING, OPENING_AGAIN)]
    assert [body.count(opening) for opening in openings] == [1, 2]
    assert body.index(openings[0]) < body.index(openings[1])


async def test_what_stopped_the_recall_is_said_and_the_blocks_go_back_all_the_same() -> None:
    talk = Talk(a_desk(give_up_after=timedelta(milliseconds=50)))
    await talk.ask("my budget?")
    talk.desk.recalls.before = never
    body = await talk.ask("which hotel?")
    assert talk.last.status == "out_of_time"
    assert talk.last.personal
    assert BUDGET in body
    assert talk.keeps_its_beginning


async def never() -> None:
    await asyncio.Event().wait()


async def test_words_said_again_get_the_same_block_again() -> None:
    talk = Talk(a_desk())
    await talk.ask("hi")
    first = await talk.ask("my budget?")
    talk.items.pop()
    now_known(talk.desk, budget="The budget is $15,000")
    assert await talk.send() == first
    assert len(talk.desk.recalls.wishes) == 2


@pytest.mark.parametrize("between", ["another question", "time"])
async def test_words_said_again_later_are_asked_anew(between: str) -> None:
    talk = Talk(a_desk())
    await talk.ask("hi")
    await talk.ask("my budget?")
    talk.items.pop()
    now_known(talk.desk, budget="The budget is $15,000")
    if between == "time":
        talk.desk.time += timedelta(minutes=3)
    else:
        await Talk(talk.desk).ask("what is new?")
    assert "$15,000" in await talk.send()


async def test_an_opening_said_again_is_asked_anew_and_what_was_not_known_is_looked_for_again() -> None:
    desk = a_desk()
    await Talk(desk).ask("my budget?")
    now_known(desk, budget="The budget is $15,000")
    assert "$15,000" in await Talk(desk).ask("my budget?")
    talk = Talk(desk)
    await talk.ask("hi")
    await talk.ask("my seat?")
    assert talk.last.outcome is Outcome.NOTHING_RELEVANT
    talk.items.pop()
    now_known(desk, **KNOWN)
    assert SEAT in await talk.send()


async def test_a_conversation_edited_in_the_middle_keeps_what_stood_before() -> None:
    talk = Talk(a_desk())
    for words in ("my budget?", "which hotel?", "my seat?"):
        await talk.ask(words)
    del talk.items[2:]
    body = await talk.ask("which hotel is it, again?")
    before = talk.sent[0].removesuffix(b"]}").decode()
    assert body.startswith(before)
    assert [body.count(text) for text in KNOWN.values()] == [1, 1, 0]
    assert talk.sent[-2].decode() not in body


async def test_a_client_that_cuts_off_the_beginning_gets_nothing_in_a_wrong_place() -> None:
    talk = Talk(a_desk())
    for words in ("my budget?", "which hotel?", "my seat?"):
        await talk.ask(words)
    del talk.items[:2]
    body = await talk.ask("my budget and hotel?")
    assert body.count(CLOSING) == 1
    assert body.index(BUDGET) > body.index("my budget and hotel?")
    await talk.ask("thanks")
    assert talk.sent[-1].startswith(talk.sent[-2].removesuffix(b"]}"))


async def test_two_conversations_that_begin_alike_do_not_mix_once_they_differ() -> None:
    desk = a_desk()
    one, two = Talk(desk), Talk(desk)
    await one.ask("my budget?")
    await two.ask("my budget?")
    await one.ask("which hotel?")
    await two.ask("my seat?")
    for talk, own, other in ((one, HOTEL, SEAT), (two, SEAT, HOTEL)):
        body = await talk.ask("thanks")
        assert talk.keeps_its_beginning
        assert (body.count(own), body.count(other), body.count(BUDGET)) == (1, 0, 1)


async def test_sessions_that_the_client_names_are_apart_from_their_first_word_on() -> None:
    desk = a_desk()
    one, two = Talk(desk), Talk(desk)
    await one.ask("my budget?", x_session_id="one")
    now_known(desk, budget="The budget is $15,000")
    await two.ask("my budget?", x_session_id="two")
    await one.ask("thanks", x_session_id="one")
    await two.ask("thanks", x_session_id="two")
    assert one.keeps_its_beginning
    assert two.keeps_its_beginning
    assert one.sent[-1] != two.sent[-1]


@pytest.mark.parametrize(
    "other",
    [{"user": "bob"}, {"x_authz_tenant_id": "globex"}, {"x_memory_project": "p"}, {"user": ""}],
    ids=["another user", "another tenant", "another project", "nobody"],
)
async def test_what_one_owner_was_given_goes_into_no_others_request(other: dict[str, str]) -> None:
    talk = Talk(a_desk())
    await talk.ask("my budget?")
    body = await talk.ask("and what else?", **other)
    assert BUDGET not in body
    assert CLOSING not in body


@pytest.mark.parametrize(
    "header", [{"x_memory_retrieve": "skip"}, {"x_disable_router_memory": "true"}], ids=["skip", "disabled"]
)
async def test_a_request_without_memory_gets_none_back_and_the_next_one_does(header: dict[str, str]) -> None:
    talk = Talk(a_desk())
    await talk.ask("my budget?")
    assert BUDGET not in await talk.ask("in private?", **header)
    body = await talk.ask("and what else?")
    assert body.startswith(talk.sent[0].removesuffix(b"]}").decode())


async def test_nothing_is_kept_of_an_incognito_turn() -> None:
    shared = TransientCoordination(now=lambda: NOON)
    talk = Talk(a_desk(shared=shared))
    assert BUDGET in await talk.ask("my budget?", x_memory_incognito="true")
    assert shared.records == {}
    assert CLOSING not in await talk.ask("and what else?")


async def test_with_replay_off_only_tool_loops_keep_their_block() -> None:
    talk = Talk(a_desk(replay=False))
    await talk.ask("my budget?")
    assert CLOSING not in await talk.ask("and what else?")
    talk = Talk(a_desk(replay=False), tools=[{"type": "function", "function": {"name": "look_up"}}])
    await talk.ask("my budget?")
    talk.items[-1:] = a_tool_call(1)
    await talk.send()
    assert talk.keeps_its_beginning
    assert len(talk.desk.recalls.wishes) == 1


def a_tool_call(number: int) -> list[dict[str, Any]]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"result {number}"},
    ]


async def test_tool_loops_keep_their_beginning_through_all_steps_and_turns() -> None:
    talk = Talk(a_desk(), tools=[{"type": "function", "function": {"name": "look_up"}}])
    for words in ("my budget?", "which hotel?", "my seat?"):
        talk.user(words)
        await talk.send()
        for step in range(5):
            talk.items += a_tool_call(step)
            await talk.send()
        talk.assistant("Done.")
    assert talk.keeps_its_beginning
    assert len(talk.desk.recalls.wishes) == 3
    assert talk.sent[-1].decode().count(CLOSING) == 3


async def test_pictures_without_words_leave_the_places_as_they_are() -> None:
    talk = Talk(a_desk())
    await talk.ask("my budget?")
    talk.items.append({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})
    await talk.send()
    talk.assistant("A beach.")
    await talk.ask("which hotel?")
    await talk.ask("thanks")
    assert talk.keeps_its_beginning


async def test_what_the_provider_keeps_is_neither_put_back_nor_given_again() -> None:
    desk = a_desk()
    talk = Talk(desk, RESPONSES)
    await talk.ask("my budget?")
    for number, words in enumerate(("my budget again?", "which hotel and budget?", "thanks for the hotel")):
        view = talk.last.heard.in_view if talk.last.heard else None
        assert view is not None
        desk.replays.follow(view, f"resp_{number}")
        talk.items.clear()
        talk.changes["previous_response_id"] = f"resp_{number}"
        body = await talk.ask(words)
        assert BUDGET not in body
        assert body.count(HOTEL) == (number == 1)
    talk.items.clear()
    talk.changes["previous_response_id"] = "of somebody else"
    assert BUDGET in await talk.ask("my budget again?")


async def test_what_the_provider_keeps_of_a_conversation_is_not_given_again_either() -> None:
    desk = a_desk()
    talk = Talk(desk, RESPONSES, conversation={"id": "conv_1"})
    await talk.ask("my budget?")
    heard = talk.last.heard
    assert heard is not None
    assert heard.in_view is not None
    assert heard.caller.session == "conv_1"
    desk.replays.follow(heard.in_view, heard.conversation)
    talk.items.clear()
    assert BUDGET not in await talk.ask("my budget again?")
    talk.items.clear()
    talk.changes["conversation"] = "conv_2"
    assert BUDGET in await talk.ask("my budget again?")


async def test_another_callers_response_id_tells_nothing() -> None:
    desk = a_desk()
    desk.replays.follow(InView(BOB, 0, (BUDGET,)), "resp_1")
    talk = Talk(desk, RESPONSES, previous_response_id="resp_1")
    await talk.ask("my budget?")
    assert BUDGET not in desk.recalls.wishes[-1].in_view


async def test_of_what_a_provider_keeps_only_so_much_is_noted() -> None:
    desk = a_desk(replay_tokens=20)
    desk.replays.follow(InView(ANN, 0, ("x" * 60, BUDGET)), "resp_1")
    await Talk(desk, RESPONSES, previous_response_id="resp_1").ask("my budget?")
    (wish,) = desk.recalls.wishes
    assert BUDGET in wish.in_view
    assert "x" * 60 not in wish.in_view


async def test_a_conversation_goes_on_at_another_replica() -> None:
    shared = TransientCoordination(now=lambda: NOON)
    talk = Talk(a_desk(shared=shared))
    for words in WORDS:
        talk.desk = a_desk(shared=shared)
        await talk.ask(words)
    assert talk.keeps_its_beginning


class Faulty(TransientCoordination):
    """Fails what its *down* names."""

    def __init__(self) -> None:
        super().__init__(now=lambda: NOON)
        self.down: set[str] = set()
        self.slow = False

    async def _fail(self, what: str) -> None:
        if what in self.down:
            raise TryLaterError("out of reach")
        if self.slow:
            await never()

    async def epoch(self, owner: Owner) -> int:
        await self._fail("epoch")
        return await super().epoch(owner)

    async def get_record(self, kind: str, owner: Owner, key: str) -> bytes | None:
        await self._fail("get")
        return await super().get_record(kind, owner, key)

    async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None:
        if "put" in self.down:
            raise GiveUpError("disk full")
        await super().put_record(kind, owner, key, value, ttl)


@pytest.mark.parametrize("what", ["get", "epoch", "slow"])
async def test_records_out_of_reach_cost_a_cache_miss_and_nothing_else(what: str) -> None:
    shared = Faulty()
    talk = Talk(a_desk(shared=shared, replay_wait=timedelta(milliseconds=10)))
    await talk.ask("my budget?")
    shared.down, shared.slow = {what}, what == "slow"
    body = await talk.ask("which hotel?")
    assert talk.last.status == "used;n=1;path=hybrid"
    assert BUDGET not in body
    outcome = "out_of_time" if what == "slow" else "unavailable"
    assert talk.desk.metrics.registry.get_sample_value("memory_extproc_replays_total", {"outcome": outcome}) == 1
    shared.down, shared.slow = set(), False
    await talk.ask("thanks")
    assert talk.sent[2].startswith(talk.sent[0].removesuffix(b"]}"))


async def test_what_cannot_be_written_is_found_in_this_process() -> None:
    shared = Faulty()
    shared.down = {"put"}
    talk = Talk(a_desk(shared=shared))
    for words in WORDS:
        await talk.ask(words)
    assert talk.keeps_its_beginning


async def test_a_conversation_is_known_for_so_long_after_its_last_turn() -> None:
    clock = [NOON]
    talk = Talk(a_desk(shared=TransientCoordination(now=lambda: clock[0]), replay_keep=timedelta(hours=2)))
    await talk.ask("my budget?")
    for _ in range(3):
        clock[0] += timedelta(hours=1.5)
        assert BUDGET in await talk.ask("and what else?")
    clock[0] += timedelta(hours=2)
    assert BUDGET not in await talk.ask("and what else?")


async def test_half_an_emoji_in_a_memory_keeps_nothing_from_its_record() -> None:
    talk = Talk(a_desk(recalls=Remembers(budget="The budget is \ud83d $10,000")))
    await talk.ask("my budget?")
    await talk.ask("and what else?")
    assert talk.keeps_its_beginning
    assert "$10,000" in talk.sent[-1].decode()


async def test_after_turns_without_memory_the_blocks_before_them_are_found() -> None:
    talk = Talk(a_desk())
    first = await talk.ask("my budget?")
    for number in range(4):
        await talk.ask(f"in private {number}?", x_memory_retrieve="skip")
    assert (await talk.ask("and what else?")).startswith(first.removesuffix("]}"))


async def test_what_waits_to_be_written_is_bounded() -> None:
    shared = Faulty()
    shared.down = {"put"}
    desk = a_desk(shared=shared, replay_bytes=2000)
    for number in range(20):
        await Talk(desk).ask(f"my budget {number}?")
    held = sum(map(len, desk.replays._unshared.values()))
    assert 0 < held <= 2000
    assert held == desk.replays._unshared_bytes


async def test_a_lost_record_is_made_up_for_by_the_one_before() -> None:
    shared = Faulty()
    talk = Talk(a_desk(shared=shared))
    await talk.ask("my budget?")
    kept = dict(shared.records)
    await talk.ask("which hotel?")
    shared.records = kept
    body = await talk.ask("thanks")
    assert body.count(BUDGET) == 1
    assert HOTEL not in body
    await talk.ask("bye")
    assert talk.sent[-1].startswith(talk.sent[-2].removesuffix(b"]}"))


async def test_a_record_that_cannot_be_read_is_as_good_as_lost() -> None:
    shared = Faulty()
    talk = Talk(a_desk(shared=shared))
    await talk.ask("my budget?")
    shared.records = {key: (b'{"of": "another version"}', until) for key, (_, until) in shared.records.items()}
    assert BUDGET in await talk.ask("my budget, again?")
    assert talk.last.status == "used;n=1;path=hybrid"


@pytest.mark.parametrize("written", [True, False])
async def test_after_a_forget_nothing_of_before_goes_back(written: bool) -> None:
    shared = Faulty()
    talk = Talk(a_desk(shared=shared))
    shared.down = set() if written else {"put"}
    await talk.ask("my budget?")
    await talk.ask("which hotel?")
    other = Talk(talk.desk)
    await other.ask("my seat?", user="bob")
    now_known(talk.desk)
    await shared.advance_epoch(ANN)
    if written:
        await shared.delete_records(ANN)
    talk.desk.replays.forget(ANN)
    assert CLOSING not in await talk.ask("and what else?")
    assert SEAT in await other.ask("thanks", user="bob")


async def test_a_block_recalled_before_a_forget_and_written_after_it_does_not_go_back() -> None:
    shared = Faulty()
    talk = Talk(a_desk(shared=shared))
    await talk.ask("my budget?")
    await shared.advance_epoch(ANN)
    assert shared.records  # as if it had come in behind the deletion
    assert BUDGET not in await talk.ask("and what else?")


async def test_a_conversations_blocks_are_bounded_and_the_oldest_go_seldom() -> None:
    known = {f"word{number:02}": f"Memory number {number:02} of the caller" for number in range(24)}
    talk = Talk(a_desk(recalls=Remembers(**known), replay_tokens=600))
    for word in known:
        body = await talk.ask(f"tell me {word}?")
        assert tokens_of_blocks(body) <= 600 + 100
    kept = [
        after.startswith(before.removesuffix(b"]}"))
        for before, after in zip(talk.sent, talk.sent[1:], strict=False)
    ]
    assert kept.count(False) <= 6
    assert "Memory number 23" in body
    assert "Memory number 00" not in body


def tokens_of_blocks(body: str) -> int:
    return len(body.encode()) and sum(len(part.partition(CLOSING)[0]) for part in body.split("<memory>")[1:]) // 4


async def test_what_went_for_want_of_room_may_be_given_again() -> None:
    talk = Talk(a_desk(replay_tokens=100))
    await talk.ask("my budget?")
    await talk.ask("which hotel?")
    await talk.ask("my seat?")
    body = await talk.ask("my budget, once more?")
    assert body.count(BUDGET) == 1
    assert body.index(BUDGET) > body.index("once more")


async def test_blocks_that_would_not_fit_the_window_stay_out() -> None:
    talk = Talk(a_desk(window=1000, margin=0))
    await talk.ask("my budget?")
    await talk.ask("which hotel?")
    body = await talk.ask("my seat? " * 400)
    assert talk.last.outcome is Outcome.NO_ROOM
    assert CLOSING not in body


async def test_the_room_for_a_new_block_is_what_the_old_ones_leave() -> None:
    talk = Talk(a_desk(window=1000, margin=0))
    await talk.ask("my budget?")
    await talk.ask("which hotel?")
    first, second = (wish.room for wish in talk.desk.recalls.wishes)
    assert first is not None
    assert second is not None
    assert first - second > 80  # the block and what was said


@pytest.mark.parametrize("watching", [True, False])
async def test_in_shadow_nothing_goes_back_either(watching: bool) -> None:
    desk = a_desk(mode=Mode.ACTIVE if watching else Mode.SHADOW)
    talk = Talk(desk)
    chat = {"model": "demo", "messages": [{"role": "user", "content": "my budget?"}]}
    assert (await desk.enrich(chat, watching=watching)).outcome is Outcome.SHADOWED
    talk.items = [*chat["messages"], {"role": "assistant", "content": "Yes."}, chat["messages"][0]]  # type: ignore[list-item]
    enriched = await desk.enrich({"model": "demo", "messages": talk.items}, watching=watching)
    assert enriched.body is None
    assert not enriched.personal


async def test_a_rule_that_takes_memory_away_takes_the_old_blocks_too() -> None:
    desk = a_desk(rules=[Rule(When(keyword=("salary",)), Then(retrieve=Switch.SKIP))])
    talk = Talk(desk)
    await talk.ask("my budget?")
    assert BUDGET not in await talk.ask("my salary?")


ECHO = f"{OPENING}\n- [2026-03-02] {BUDGET}\n{CLOSING}"


async def test_a_block_that_comes_back_in_the_callers_words_is_not_the_callers() -> None:
    talk = Talk(a_desk())
    await talk.ask(f"my budget?\n\n{ECHO}")
    await talk.ask(f"hi\n\n{ECHO}")
    assert [wish.asked for wish in talk.desk.recalls.wishes] == ["my budget?", "hi"]
    heard = talk.last.heard
    assert heard is not None
    assert heard.asked == "hi"
    assert [message.text for message in heard.history] == ["my budget?", "About my budget?: yes."]
    assert talk.keeps_its_beginning


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("plain", "plain"),
        (f"a\n\n{ECHO}", "a"),
        (f"{ECHO}{ECHO}", ""),
        (f"a\n\n{OPENING_AGAIN}\n- [2026-03-02] {SEAT}\n{CLOSING}", "a"),
        (f"{ECHO}\n\nb", "\n\nb"),
        ("<memory>mine</memory>", "<memory>mine</memory>"),
        (f"a {OPENING} and no end", f"a {OPENING} and no end"),
        (f"{CLOSING} a\n{ECHO} b {CLOSING}", f"{CLOSING} a b {CLOSING}"),
    ],
)
def test_only_a_whole_block_of_our_shape_is_taken_out(text: str, left: str) -> None:
    assert without_blocks(text) == left


def test_megabytes_of_what_looks_like_blocks_are_read_in_one_go() -> None:
    attack = CLOSING + f"{OPENING}\n" * 4000 + " " * 1_000_000
    assert without_blocks(attack) == attack


def blocks_of(*sizes: int) -> tuple[Given, ...]:
    return tuple(Given(at, Form.USER_SUFFIX, "word" * size, (), ()) for at, size in enumerate(sizes))


@pytest.mark.parametrize(
    ("sizes", "most", "left"),
    [
        ((), 0, ()),
        ((3, 3), 6, (0, 1)),
        ((3, 3), 5, ()),
        ((3, 2, 1), 5, (2,)),
        ((9, 1), 5, (1,)),
        ((1, 1, 9), 5, ()),
    ],
)
def test_the_newest_stay_and_half_of_the_room_is_free_again(sizes: Sequence[int], most: int, left: Any) -> None:
    kept = fitting(blocks_of(*sizes), most)
    assert tuple(one.at for one in kept) == left
    assert tokens_of(kept) <= most


def test_records_print_no_memories() -> None:
    given = blocks_of(2)[0]
    assert "word" not in repr(given)
    assert "secret" not in repr(InView(ANN, 0, ("secret",)))
    decision = Decision(Outcome.USED, block="secret", contents=("secret",))
    assert "secret" not in repr(Record(0, 0.0, 0, decision, Form.USER_SUFFIX, ()))


SCRIPTS = st.lists(
    st.tuples(st.sampled_from([*WORDS, "salary", ""]), st.sampled_from(["ask", "again", "edit", "skip", "tools"])),
    max_size=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SCRIPTS, st.sampled_from([CHAT, RESPONSES, MESSAGES]), st.booleans())
async def test_whatever_a_client_does_only_whole_blocks_are_added_and_each_memory_once(
    script: list[tuple[str, str]], path: str, parts: bool
) -> None:
    talk = Talk(a_desk(), path, parts=parts)
    for words, step in script:
        if step == "edit" and talk.items:
            del talk.items[len(talk.items) // 2 & ~1 :]
        if step == "again" and talk.items:
            talk.items.pop()
            body = await talk.send()
            talk.assistant("Once more: yes.")
        else:
            body = await talk.ask(words, **({"x_memory_retrieve": "skip"} if step == "skip" else {}))
        assert json.loads(body)
        assert all(body.count(text) <= 1 for text in KNOWN.values())
        assert body.count("<memory>") == body.count(CLOSING) == body.count("otes remembered from")
