"""From a whole body to what the upstream gets, over the real dialects and rules."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from memory_extproc.dialect.base import ChatRequest, Placing
from memory_extproc.dialect.json_spans import Edit
from memory_extproc.dialect.openai_chat import ChatCompletions
from memory_extproc.errors import TransientError
from memory_extproc.model import Arm, Caller, MemoryType, Outcome, Owner, RecallResult, Signals, Switch
from memory_extproc.ports import Chain
from memory_extproc.request.body import Enriched
from memory_extproc.request.policy import in_control_group
from memory_extproc.request.replay import RecallDecision
from memory_extproc.settings.identity import IdentitySection
from memory_extproc.settings.traffic import RuleSection, RuleSignals, RuleThen, RuleWhen
from memory_extproc.testing.adapters import InMemoryCoordination
from tests.support.desk import Desk, a_chat, a_rule, in_a_tool_loop
from tests.support.sidecar import BLOCK, used

ANN = Owner("", "ann")
NEVER = a_rule(retrieve=Switch.SKIP)
PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
TOOL_RESULT = {"role": "tool", "tool_call_id": "c", "content": "42"}


class Known:
    """A record of response ids with one entry, or one that is out of reach."""

    def __init__(self, chain: Chain | None) -> None:
        self.chain_of = chain

    async def chain(self, owner: Owner, previous_response_id: str) -> Chain | None:
        if self.chain_of is None:
            raise TransientError("out of reach")
        return self.chain_of if (owner, previous_response_id) == (ANN, "resp_1") else None


async def test_recall_hears_the_callers_words_and_what_was_said_before() -> None:
    desk = Desk()
    enriched = await desk.enrich(a_chat("I am Ann", "Hello", "my budget?"), x_memory_project="p")
    (wish,) = desk.recalls.wishes
    assert wish.asked == "my budget?"
    assert wish.earlier == ("I am Ann",)
    assert wish.in_view == {"I am Ann", "Hello", "my budget?"}
    assert wish.caller == Caller(ANN, project="p")
    assert wish.scope.project == "p"
    assert (wish.limit, wish.threshold, wish.room) == (5, 0.6, 512)
    assert enriched.status == "used;n=1;path=hybrid"
    assert enriched.heard is not None
    assert [message.text for message in enriched.heard.history] == ["I am Ann", "Hello"]
    assert enriched.heard.injected == ("The budget for the Hawaii trip is $10,000",)


async def test_what_a_previous_response_heard_is_known_without_being_repeated() -> None:
    desk = Desk(chains=Known(Chain("s1", ("my trip is to Hawaii",))))
    body = {"model": "demo", "input": "and the budget?", "previous_response_id": "resp_1"}
    await desk.enrich(body, path="/v1/responses")
    assert desk.recalls.wishes[0].earlier == ("my trip is to Hawaii",)
    body["previous_response_id"] = "resp_2"
    await desk.enrich(body, path="/v1/responses")
    assert desk.recalls.wishes[1].earlier == ()


async def test_a_record_of_responses_out_of_reach_costs_only_what_it_knew() -> None:
    desk = Desk(chains=Known(None))
    body = {"model": "demo", "input": "and the budget?", "previous_response_id": "resp_1"}
    assert (await desk.enrich(body, path="/v1/responses")).outcome is Outcome.USED


@pytest.mark.parametrize(
    ("body", "limit", "threshold"),
    [
        ({"retrieval_limit": 2}, 2, 0.6),
        ({"retrieval_limit": 50}, 5, 0.6),
        ({"similarity_threshold": 0.9}, 5, 0.9),
        ({"similarity_threshold": 0.1}, 5, 0.6),
    ],
)
async def test_a_client_may_ask_for_less_and_never_for_more(body: Any, limit: int, threshold: float) -> None:
    desk = Desk()
    await desk.enrich(a_chat("my budget?", memory_config=body))
    assert (desk.recalls.wishes[0].limit, desk.recalls.wishes[0].threshold) == (limit, threshold)


async def test_the_operators_rule_may_widen_and_the_client_narrow_that() -> None:
    then = RuleThen(limit=20, threshold=0.3, types=frozenset({MemoryType.SEMANTIC, MemoryType.EPISODIC}))
    desk = Desk(rules=[RuleSection(when=RuleWhen(model="demo"), then=then)])
    await desk.enrich(a_chat("my budget?", memory_config={"retrieval_limit": 9, "memory_types": ["semantic"]}))
    (wish,) = desk.recalls.wishes
    assert (wish.limit, wish.threshold) == (9, 0.3)
    assert wish.scope.types == {MemoryType.SEMANTIC}


async def test_each_rule_has_a_token_budget_of_its_own_and_a_client_cannot_change_it() -> None:
    rules = [
        a_rule(RuleWhen(model="small-*"), token_budget=64),
        a_rule(RuleWhen(model="large-*"), token_budget=900),
    ]
    desk = Desk(rules=rules)
    for model in ("small-1", "large-1", "demo"):
        body = a_chat("my budget?", memory_config={"token_budget": 5_000})
        await desk.enrich({**body, "model": model})
    assert [wish.budget for wish in desk.recalls.wishes] == [64, 900, None]


async def test_a_rules_project_is_recalled_from_and_stored_for_whatever_the_request_names() -> None:
    desk = Desk(rules=[a_rule(RuleWhen(model="support"), project="helpdesk")])
    body = a_chat("my budget?", memory_context={"project_id": "from-body"})
    enriched = await desk.enrich({**body, "model": "support"}, x_memory_project="from-header")
    await desk.enrich(a_chat("my budget?"), x_memory_project="from-header")
    assert [wish.scope.project for wish in desk.recalls.wishes] == ["helpdesk", "from-header"]
    assert enriched.heard is not None
    assert enriched.heard.caller.project == "helpdesk"


async def test_a_rules_signals_come_before_the_routers() -> None:
    desk = Desk(rules=[a_rule(signals=RuleSignals(fact=False))])
    await desk.enrich(a_chat("my budget?"), x_memory_signal_fact="true", x_memory_signal_tool="true")
    assert desk.recalls.wishes[0].signals == Signals(fact=False, tool=True)


@pytest.mark.parametrize(
    ("changes", "request_headers", "body", "outcome"),
    [
        ({"enabled": False}, {"x_memory_retrieve": "force"}, {}, Outcome.DISABLED),
        (
            {"rules": [a_rule(retrieve=Switch.SKIP)]},
            {"x_memory_retrieve": "force"},
            {},
            Outcome.DISABLED,
        ),
        ({"enabled": False}, {"user": ""}, {}, Outcome.DISABLED),
        ({}, {"x_memory_extproc_internal": "1"}, {}, Outcome.DISABLED),
        ({}, {"x_envoy_original_url": "http://x/v1/chat/completions"}, {}, Outcome.DISABLED),
        ({}, {"user": ""}, {}, Outcome.NO_CALLER),
        ({}, {"x_memory_retrieve": "skip"}, {}, Outcome.OPTED_OUT),
        ({}, {"x_disable_router_memory": "true"}, {}, Outcome.OPTED_OUT),
        ({}, {"x_memory_retrieve": "force"}, {"memory_config": {"enabled": False}}, Outcome.OPTED_OUT),
        ({}, {}, {"memory_config": {"retrieval_limit": 0}}, Outcome.OPTED_OUT),
        ({"mode": "gradual", "percent": 0.0}, {}, {}, Outcome.CONTROL),
    ],
)
async def test_every_no_has_its_word_and_nothing_is_searched(
    changes: Any, request_headers: Any, body: Any, outcome: Outcome
) -> None:
    desk = Desk(**changes)
    enriched = await desk.enrich(a_chat("my budget?", **body), **request_headers)
    assert enriched.outcome is outcome
    assert desk.recalls.wishes == []
    # Our fields go in any case; without them the body is the client's own bytes.
    assert enriched.body is None or json.loads(enriched.body) == a_chat("my budget?")
    assert (enriched.body is None) == (not body)


@pytest.mark.parametrize(
    ("changes", "request_headers", "body", "stored"),
    [
        ({}, {}, {}, True),
        ({}, {"x_memory_retrieve": "skip"}, {}, True),
        ({}, {"x_memory_store": "skip"}, {}, False),
        ({}, {"x_memory_incognito": "true", "x_memory_store": "force"}, {}, False),
        ({}, {"x_disable_router_memory": "true"}, {}, False),
        ({}, {}, {"auto_store": False}, False),
        ({}, {"x_memory_store": "force"}, {"auto_store": False}, False),
        ({}, {}, {"memory_config": {"enabled": False}}, False),
        ({}, {"x_memory_extproc_internal": "1"}, {}, False),
        ({}, {"x_envoy_original_url": "http://x/v1/chat/completions"}, {}, False),
        ({"enabled": False}, {"x_memory_store": "force"}, {}, False),
        (
            {"rules": [a_rule(store=Switch.SKIP)]},
            {"x_memory_store": "force"},
            {},
            False,
        ),
        ({"auto_store": False}, {}, {}, False),
        ({"auto_store": False}, {"x_memory_store": "force"}, {}, True),
        ({"auto_store": False}, {}, {"auto_store": True}, False),
        ({"auto_store": False}, {}, {"memory_config": {"auto_store": True}}, False),
        ({"auto_store": False, "client_may_enable": True}, {}, {"auto_store": True}, True),
        ({"client_may_enable": True}, {}, {"auto_store": False}, False),
        ({"enabled": False, "client_may_enable": True}, {}, {"auto_store": True}, False),
        (
            {
                "auto_store": False,
                "rules": [a_rule(store=Switch.FORCE)],
            },
            {},
            {},
            True,
        ),
        ({"mode": "shadow"}, {}, {}, True),
        ({"mode": "gradual", "percent": 0.0}, {}, {}, True),
    ],
)
async def test_whether_a_turn_may_be_learned(changes: Any, request_headers: Any, body: Any, stored: bool) -> None:
    enriched = await Desk(**changes).enrich(a_chat("my budget?", **body), **request_headers)
    assert enriched.heard is not None
    assert enriched.heard.store is stored


async def test_without_a_caller_there_is_nothing_to_learn() -> None:
    assert (await Desk().enrich(a_chat("my budget?"), user="")).heard is None


TITLE = "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n"


async def test_a_chat_clients_own_calls_are_neither_answered_from_memory_nor_learned() -> None:
    enriched = await Desk().enrich(a_chat(TITLE))
    assert enriched.outcome is Outcome.DISABLED
    assert enriched.heard is not None
    assert not enriched.heard.store
    assert (await Desk(auxiliary_calls="handle").enrich(a_chat(TITLE))).outcome is Outcome.USED


async def test_a_clients_own_call_is_known_by_its_system_message_too() -> None:
    system = {"role": "system", "content": "You are a title generator. You output ONLY a thread title."}
    enriched = await Desk().enrich({"messages": [system, {"role": "user", "content": "My budget is $10,000"}]})
    assert enriched.outcome is Outcome.DISABLED
    assert enriched.heard is not None
    assert not enriched.heard.store


async def test_the_body_names_the_caller_only_where_that_is_configured() -> None:
    body = a_chat("my budget?", memory_context={"user_id": "bob", "project_id": "p"})
    assert (await Desk().enrich(body, user="")).outcome is Outcome.NO_CALLER
    trusting = Desk(identity=IdentitySection(trust_body=True))
    await trusting.enrich(body, user="")
    await trusting.enrich(body, user="ann")
    assert [wish.caller.owner.user for wish in trusting.recalls.wishes] == ["bob", "ann"]


async def test_the_bodys_project_narrows_and_never_replaces_the_gateways() -> None:
    desk = Desk()
    body = a_chat("my budget?", memory_context={"project_id": "from-body"})
    await desk.enrich(body)
    await desk.enrich(body, x_memory_project="from-header")
    await desk.enrich(a_chat("my budget?", memory_context={"project_id": "a\u0000b"}))
    projects = [wish.scope.project for wish in desk.recalls.wishes]
    assert projects[:2] == ["from-body", "from-header"]
    assert len(projects[2]) == 64  # no project at all would have been all of them


async def test_only_our_bytes_change() -> None:
    body = (
        b'{ "model":"demo", "n": 12345678901234567890, "x": 1.0,\n'
        b' "messages":[{"role":"user","content":"h\\u0069"}]}'
    )
    enriched = await Desk().enrich(body)
    assert enriched.body is not None
    block = json.dumps(BLOCK)[1:-1].encode()
    assert block in enriched.body
    head, _, tail = enriched.body.partition(b"h\\u0069")
    assert head == body.partition(b"h\\u0069")[0]
    assert tail.endswith(b'"}]}')


async def test_a_packed_body_comes_out_unpacked_and_says_so() -> None:
    body = json.dumps(a_chat("my budget?")).encode()
    enriched = await Desk().enrich(gzip.compress(body), content_encoding="gzip")
    assert enriched.unpacked
    assert enriched.body is not None
    assert enriched.body.startswith(body[:30])


async def test_a_packed_body_in_which_nothing_changes_goes_on_packed() -> None:
    body = gzip.compress(json.dumps(a_chat("my budget?")).encode())
    assert (await Desk(RecallResult(outcome=Outcome.EMPTY)).enrich(body, content_encoding="gzip")).body is None


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (b"", Outcome.BAD_BODY),
        (b"null", Outcome.BAD_BODY),
        (b'{"messages": "x"}', Outcome.BAD_BODY),
        (b" " * 1001, Outcome.TOO_LARGE),
    ],
)
async def test_a_body_that_cannot_be_read_goes_on_as_it_came(body: bytes, outcome: Outcome) -> None:
    assert await Desk(request_body=1000).enrich(body) == Enriched(outcome=outcome)


async def test_a_bomb_is_too_large() -> None:
    bomb = gzip.compress(bytes(100_000))
    enriched = await Desk(request_body=1000).enrich(bomb, content_encoding="gzip")
    assert enriched == Enriched(outcome=Outcome.TOO_LARGE)


@pytest.mark.parametrize("watching", [True, False])
async def test_in_shadow_everything_runs_and_nothing_goes_in(watching: bool) -> None:
    desk = Desk(mode="active" if watching else "shadow")
    enriched = await desk.enrich(a_chat("my budget?"), watching=watching)
    assert (enriched.outcome, enriched.body, enriched.count) == (Outcome.SHADOWED, None, 0)
    assert len(desk.recalls.wishes) == 1
    assert enriched.heard is not None
    assert enriched.heard.injected == ()


@pytest.mark.parametrize(
    ("changes", "request_headers", "arm"),
    [
        ({}, {}, Arm.MEMORY),
        ({}, {"x_memory_retrieve": "skip"}, Arm.MEMORY),
        ({"mode": "gradual", "percent": 100.0}, {}, Arm.MEMORY),
        ({"mode": "gradual", "percent": 0.0}, {}, Arm.CONTROL),
        ({"mode": "gradual", "percent": 0.0}, {"x_memory_retrieve": "skip"}, Arm.CONTROL),
        ({"mode": "shadow"}, {}, Arm.SHADOW),
        ({}, {"user": ""}, Arm.NONE),
    ],
)
async def test_the_side_of_a_comparison_is_the_callers_whatever_became_of_the_request(
    changes: Any, request_headers: Any, arm: Arm
) -> None:
    enriched = await Desk(**changes).enrich(a_chat("my budget?"), **request_headers)
    assert enriched.arm is arm
    assert (enriched.tokens > 0) == (enriched.outcome is Outcome.USED)


def test_a_rising_percentage_only_adds_owners() -> None:
    owners = [Owner("", f"user-{number}") for number in range(2000)]
    control = {percent: {o for o in owners if in_control_group(o, percent)} for percent in (0, 10, 50, 100)}
    assert len(control[0]) == 2000
    assert control[10] > control[50] > control[100] == set()
    assert 850 < len(control[50]) < 1150


async def never() -> None:
    await asyncio.Event().wait()


async def test_a_recall_that_does_not_come_is_out_of_time() -> None:
    desk = Desk(deadline=timedelta(milliseconds=10), message_timeout=timedelta(milliseconds=10))
    desk.recalls.before = never
    assert (await desk.enrich(a_chat("my budget?"))).outcome is Outcome.OUT_OF_TIME


@pytest.mark.parametrize(
    ("messages", "outcome"),
    [
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            Outcome.NOTHING_RELEVANT,
        ),
        ([{"role": "tool", "tool_call_id": "c", "content": "42"}], Outcome.SKIPPED_TOOL),
    ],
)
async def test_where_nobodys_words_are_in_reach_nothing_is_searched(messages: Any, outcome: Outcome) -> None:
    desk = Desk()
    assert (await desk.enrich({"model": "demo", "messages": messages})).outcome is outcome
    assert desk.recalls.wishes == []


async def test_a_tool_loop_keeps_the_block_it_began_with() -> None:
    desk = Desk()
    chat = in_a_tool_loop("my budget?")
    await desk.enrich({**chat, "messages": chat["messages"][:1]})
    desk.recalls.recalled = used("something else")
    again = await desk.enrich(chat)
    assert len(desk.recalls.wishes) == 1
    assert again.status == "used;n=1;path=hybrid"
    assert again.heard is not None
    assert again.heard.injected == ("The budget for the Hawaii trip is $10,000",)


async def test_a_tool_loop_that_began_without_a_block_gets_none_later() -> None:
    desk = Desk(RecallResult(outcome=Outcome.NOTHING_RELEVANT))
    chat = in_a_tool_loop("my budget?")
    await desk.enrich({**chat, "messages": chat["messages"][:1]})
    desk.recalls.recalled = used()
    assert (await desk.enrich(chat)).outcome is Outcome.NOTHING_RELEVANT


async def test_another_callers_tool_loop_is_another() -> None:
    desk = Desk()
    chat = in_a_tool_loop("my budget?")
    await desk.enrich(chat)
    await desk.enrich(chat, user="bob")
    await desk.enrich(chat, x_authz_tenant_id="globex")
    assert len(desk.recalls.wishes) == 3


async def test_a_tool_loop_goes_on_at_another_replica() -> None:
    shared = InMemoryCoordination(now=lambda: used().memories[0].memory.created_at)
    chat = in_a_tool_loop("my budget?")
    await Desk(shared=shared).enrich({**chat, "messages": chat["messages"][:1]})
    there = Desk(RecallResult(outcome=Outcome.EMPTY), shared=shared)
    assert (await there.enrich(chat)).outcome is Outcome.USED
    assert there.recalls.wishes == []


class Unreachable(InMemoryCoordination):
    async def get_record(self, kind: str, owner: Owner, key: str) -> bytes | None:
        raise TransientError("out of reach")

    async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None:
        raise TransientError("out of reach")


async def test_replicas_out_of_reach_of_each_other_just_recall_again() -> None:
    now = used().memories[0].memory.created_at
    desk = Desk(shared=Unreachable(now=lambda: now))
    assert (await desk.enrich(in_a_tool_loop("my budget?"))).outcome is Outcome.USED


async def test_only_so_many_tool_loops_are_remembered() -> None:
    desk = Desk(most_unshared=400)
    for words in ("my budget?", "my hotel?", "my budget?"):
        await desk.enrich(in_a_tool_loop(words))
    assert len(desk.recalls.wishes) == 3


async def test_a_rule_says_where_the_block_goes() -> None:
    desk = Desk(rules=[a_rule(inject="system_message")])
    enriched = await desk.enrich(a_chat("my budget?"))
    assert enriched.body is not None
    assert [message["role"] for message in json.loads(enriched.body)["messages"]] == ["user", "system"]


async def test_the_room_left_in_the_models_window_reaches_recall() -> None:
    desk = Desk(window=1000, margin=100)
    await desk.enrich(a_chat("my budget?", max_tokens=500))
    room = desk.recalls.wishes[0].room
    assert room is not None
    assert 300 < room < 400


class Nowhere(ChatCompletions):
    """A dialect that finds no lawful place for a block."""

    def place(self, request: ChatRequest, blocks: Sequence[Placing]) -> list[Sequence[Edit]]:
        return [()] * len(blocks)


async def test_a_block_without_a_lawful_place_stays_out() -> None:
    desk = Desk()
    admitted = replace(desk.admit(), dialect=Nowhere())
    enriched = await desk.enricher.enrich(admitted, json.dumps(a_chat("my budget?")).encode())
    assert (enriched.outcome, enriched.body, enriched.status) == (Outcome.NO_ROOM, None, "no_room")
    assert enriched.heard is not None
    assert enriched.heard.injected == ()


def test_a_decision_prints_its_outcome_and_no_memories() -> None:
    assert repr(RecallDecision(Outcome.USED, block="secret words")) == "<decision: used>"


def test_what_is_heard_is_never_printed() -> None:
    enriched = Enriched(outcome=Outcome.USED, body=b"secret words")
    assert "secret" not in repr(replace(enriched, count=1))
