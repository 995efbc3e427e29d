"""The filter that watches: what it learns of what it sees and of what it is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.concurrency import Background
from memory_extproc.errors import TransientError
from memory_extproc.extproc.exchange import (
    Event,
    Exchange,
    ExchangeDeps,
    Reply,
    RequestBody,
    ResponseBody,
    ResponseHeaders,
    StreamMode,
)
from memory_extproc.extproc.observer import (
    HANDED,
    TURN,
    HandoverMetadata,
    ObservedExchange,
    RequestObserver,
    decode_handover,
    encode_handover,
)
from memory_extproc.extproc.response_capture import BodyMemoryBudget, ExchangeAccounts
from memory_extproc.model import Caller, Memory, MemoryType, Origin, Outcome, Owner, Source, TurnOutcome
from memory_extproc.model.headers import Headers, RequestHeaders
from memory_extproc.observe.metrics import Metrics
from memory_extproc.request.admission import Admission
from memory_extproc.request.body import Enriched, PendingTurn
from memory_extproc.request.identity import Identity
from memory_extproc.request.replay import BlockReplay, InView
from memory_extproc.settings import CurrentSettings
from memory_extproc.settings.identity import IdentitySection
from tests.support.canned import RecordedTurns
from tests.support.sidecar import NOON, request_settings

ANN = Caller(Owner("acme", "ann"), project="p", session="s", speaker="x")
SHARED = Owner.of_project("acme", "p")
ANSWER = b'{"id": "r1", "choices": [{"index": 0, "message": {"content": "Ten."}, "finish_reason": "stop"}]}'
RESPONSE = (
    b'{"id": "r1", "object": "response", "status": "completed", "output": [{"type": "message", "role": "assistant",'
    b' "content": [{"type": "output_text", "text": "Ten."}]}]}'
)


def a_request(path: str = "/v1/chat/completions", method: str = "POST") -> RequestHeaders:
    named = [(":method", method), (":path", path), ("content-type", "application/json")]
    return RequestHeaders(Headers(named), last=False)


def a_body(asked: str = "how much?", **more: Any) -> bytes:
    return json.dumps({"model": "demo", "messages": [{"role": "user", "content": asked}], **more}).encode()


def handed(**changes: Any) -> HandoverMetadata:
    return msgspec.structs.replace(
        HandoverMetadata(caller=ANN, store=True, outcome=Outcome.USED, tenant="acme", origin=Origin(model="demo")),
        **changes,
    )


def ok(said: HandoverMetadata | str | None, status: str = "200") -> ResponseHeaders:
    text = said if isinstance(said, str) or said is None else msgspec.json.encode(said).decode()
    return ResponseHeaders(
        Headers([(":status", status), ("content-type", "application/json")]),
        last=False,
        metadata={} if text is None else {HANDED: {TURN: text}},
    )


def a_memory(owner: Owner, name: str, content: str) -> Memory:
    return Memory(
        id=name,
        owner=owner,
        type=MemoryType.SEMANTIC,
        content=content,
        source=Source.RULES,
        created_at=NOON,
        updated_at=NOON,
    )


class Shelves:
    """What a store gives, by owner."""

    def __init__(self, **kept: str) -> None:
        self.kept: dict[Owner, dict[str, str]] = {ANN.owner: {}, SHARED: {}} | {ANN.owner: dict(kept)}
        self.away = False

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        if self.away:
            raise TransientError("away")
        return [a_memory(owner, one, self.kept[owner][one]) for one in ids if one in self.kept[owner]]


class Bench:
    def __init__(self, shelves: Shelves | None = None, process_bytes: int = 1_000_000, **options: Any) -> None:
        self.metrics = Metrics(CollectorRegistry(), "test")
        self.learns = RecordedTurns()
        self.held = BodyMemoryBudget(lambda: process_bytes, self.metrics)
        self.background = Background(self.metrics, grace=timedelta(seconds=1))
        wire = request_settings(**options)
        self.replays = BlockReplay(
            CurrentSettings(wire), background=self.background, metrics=self.metrics, now=lambda: NOON
        )
        self.deps = ExchangeDeps(
            admits=Admission(wire, Identity(IdentitySection())),
            enriches=NeverAsked(),
            follows=self.replays,
            learns=self.learns,
            held=self.held,
            background=self.background,
            metrics=self.metrics,
            accounts=ExchangeAccounts(self.metrics),
            now=lambda: NOON,
            request_bytes=wire.limits.request_body,
            answer_bytes=wire.limits.answer_capture,
            request_waits=timedelta(seconds=5),
            last_reply_waits=timedelta(milliseconds=20),
        )
        overhears = RequestObserver(shelves or Shelves(), self.replays, CurrentSettings(wire))
        self.exchange = ObservedExchange(self.deps, overhears)

    async def play(self, *events: Event) -> list[Reply]:
        replies = [reply for event in events for reply in await self.exchange.handle(event)]
        await self.exchange.leave()
        await self.background.__aexit__()
        assert self.held.bytes_in_use == 0, "every byte is given back"
        return replies

    def turns(self, outcome: TurnOutcome) -> float:
        return (
            self.metrics.registry.get_sample_value("memory_extproc_turns_total", {"outcome": outcome.value}) or 0.0
        )


class NeverAsked:
    async def enrich(self, *_: Any, **__: Any) -> Enriched:
        raise AssertionError("the other filter recalls")


def whole(said: HandoverMetadata | str | None, body: bytes | None = None) -> list[Event]:
    sent = a_body() if body is None else body
    half = len(sent) // 2
    return [
        a_request(),
        RequestBody(sent[:half], last=False),
        RequestBody(sent[half:], last=True),
        ok(said),
        ResponseBody(ANSWER[:20], last=False),
        ResponseBody(ANSWER[20:], last=True),
    ]


async def test_it_learns_what_the_client_sent_as_the_caller_that_it_is_told() -> None:
    bench = Bench(Shelves(m1="ann has a cat"))
    await bench.play(*whole(handed(seen=("m1", "gone"), reach=(ANN.owner,))))
    (turn,) = bench.learns.exchanged
    assert (turn.caller, turn.asked, turn.answered) == (ANN, "how much?", "Ten.")
    assert turn.injected == ("ann has a cat",)
    assert turn.origin == Origin(model="demo")
    assert bench.turns(TurnOutcome.JOURNALLED) == 1
    assert not next(iter(bench.metrics.exchanges.collect())).samples, "an exchange is counted by the other filter"


async def test_memories_that_are_shared_are_found_with_whom_they_are() -> None:
    shelves = Shelves(m1="mine")
    shelves.kept[SHARED]["m2"] = "ours"
    bench = Bench(shelves)
    await bench.play(*whole(handed(seen=("m2", "m1"), reach=(ANN.owner, SHARED))))
    assert bench.learns.exchanged[0].injected == ("ours", "mine")


async def test_a_store_that_is_away_costs_no_turn() -> None:
    shelves = Shelves(m1="mine")
    shelves.away = True
    bench = Bench(shelves)
    await bench.play(*whole(handed(seen=("m1",), reach=(ANN.owner,))))
    assert len(bench.learns.exchanged) == 1


@pytest.mark.parametrize("said", [None, "", "{", '{"caller": 1}', '{"store": true}'])
async def test_it_learns_nothing_of_a_request_that_the_other_filter_said_nothing_of(said: str | None) -> None:
    bench = Bench()
    replies = await bench.play(*whole(said)[:4])
    assert not bench.learns.exchanged
    assert replies[-1].ends, "nothing more of the exchange is sent to us"


async def test_what_a_newer_version_says_beside_is_left_out_and_what_an_older_does_not_say_has_its_default() -> (
    None
):
    newer = {**json.loads(msgspec.json.encode(handed())), "flavour": {"of": "tomorrow"}}
    older = {key: newer[key] for key in ("caller", "store", "outcome")}
    for said in (newer, older):
        bench = Bench()
        await bench.play(*whole(json.dumps(said)))
        assert bench.learns.exchanged[0].caller == ANN


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        (handed(store=False), TurnOutcome.NOT_ASKED),
        (handed(store=False, unkept=TurnOutcome.NO_CONSENT), TurnOutcome.NO_CONSENT),
        (handed(store=False, unkept=TurnOutcome.INCOGNITO, ends_session=True), TurnOutcome.INCOGNITO),
    ],
)
async def test_what_is_not_to_be_kept_is_not(said: HandoverMetadata, stored: TurnOutcome) -> None:
    bench = Bench()
    await bench.play(*whole(said)[:4])
    assert not bench.learns.exchanged
    assert bench.turns(stored) == 1
    assert bench.learns.ended == ([ANN] if said.ends_session else [])


@pytest.mark.parametrize(
    ("events", "stored"),
    [
        (whole(handed())[:5], TurnOutcome.CUT_OFF),
        ([*whole(handed())[:3], ok(handed(), status="500")], TurnOutcome.NOT_OK),
        (whole(handed(), body=b"{no json")[:4], TurnOutcome.UNREADABLE),
        ([whole(handed())[0], ok(handed())], TurnOutcome.UNREADABLE),
    ],
)
async def test_what_cannot_be_learned_is_counted_by_why(events: list[Event], stored: TurnOutcome) -> None:
    bench = Bench()
    await bench.play(*events)
    assert not bench.learns.exchanged
    assert bench.turns(stored) == 1


async def test_a_body_too_large_or_one_too_many_is_let_go() -> None:
    bench = Bench(request_body=10)
    await bench.play(*whole(handed())[:4])
    assert bench.turns(TurnOutcome.UNREADABLE) == 1
    bench = Bench(process_bytes=40)
    await bench.play(*whole(handed())[:4])
    assert bench.turns(TurnOutcome.PROCESS_LIMIT) == 1


async def test_a_request_counts_while_the_model_answers() -> None:
    bench = Bench()
    *request, headers, _, _ = whole(handed())
    for event in request:
        await bench.exchange.handle(event)
    assert bench.held.bytes_in_use == len(a_body())
    await bench.play(headers)


async def test_what_is_no_chat_is_let_go_at_its_headers() -> None:
    (reply,) = await Bench().play(a_request("/v1/models"))
    assert reply.ends


@pytest.mark.parametrize(
    ("continued", "known_as", "noted_as"),
    [
        ({"previous_response_id": "r0"}, "r0", ["r1"]),
        ({"conversation": "c0"}, "conversation c0", ["r1", "conversation c0"]),
    ],
)
async def test_a_provider_that_keeps_conversations_is_followed(
    continued: dict[str, str], known_as: str, noted_as: list[str]
) -> None:
    bench = Bench(Shelves(m1="ann has a cat", m2="ann has a dog"))
    bench.replays.record_view(InView(ANN.owner, 0, ("ann has a cat",)), known_as)
    sent = json.dumps({"model": "demo", "input": "and now?", **continued}).encode()
    await bench.play(
        a_request("/v1/responses"),
        RequestBody(sent, last=True),
        ok(handed(seen=("m2",), reach=(ANN.owner,), viewer=ANN.owner)),
        ResponseBody(RESPONSE, last=True),
    )
    assert bench.learns.exchanged[0].injected == ("ann has a cat", "ann has a dog")
    for name in noted_as:
        assert await bench.replays.provider_context(ANN.owner, name) == ("ann has a cat", "ann has a dog")


def test_what_is_handed_over_comes_back_as_it_was_and_holds_nobodys_words() -> None:
    heard = PendingTurn(
        caller=ANN, store=True, history=(), asked="my secret words", origin=Origin(dialect="responses"),
        previous_response_id="", ends_session=True, injected=("a fact of mine",), seen=("m1",), reach=(ANN.owner,),
        in_view=InView(ANN.owner, 7, ("a fact of mine",)),
    )  # fmt: skip
    text = encode_handover(heard, Enriched(outcome=Outcome.USED, tenant="acme"))
    assert "secret" not in text
    assert "a fact" not in text
    back = decode_handover({HANDED: {TURN: text}})
    assert back is not None
    assert (back.caller, back.seen, back.viewer, back.epoch, back.ends_session) == (
        ANN,
        ("m1",),
        ANN.owner,
        7,
        True,
    )
    assert "ann" not in repr(back)


async def test_the_filter_that_changes_the_request_hands_over_and_learns_nothing_itself() -> None:
    bench = Bench()
    heard = PendingTurn(
        caller=ANN, store=True, history=(), asked="how much?", origin=Origin(), previous_response_id="",
        ends_session=False,
    )  # fmt: skip

    class Prepared:
        async def enrich(self, *_: Any, **__: Any) -> Enriched:
            return Enriched(outcome=Outcome.USED, heard=heard)

    deps = replace(bench.deps, enriches=Prepared(), hands=encode_handover)
    exchange = Exchange(deps, StreamMode(streams_answer=False, hands_over=True))
    await exchange.handle(a_request())
    (reply,) = await exchange.handle(RequestBody(a_body(), last=True))
    assert reply.handed is not None
    (answered,) = await exchange.handle(ok(None))
    assert answered.ends
    assert dict(answered.set_headers)["x-memory-status"].startswith("used")
    await exchange.leave()
    assert not bench.learns.exchanged
    assert bench.turns(TurnOutcome.CUT_OFF) == 0
