"""Scripts: events in, replies out, what was learned."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.extproc.exchange import (
    PASS,
    TRANSITIONS,
    Event,
    ExchangeMetadata,
    OutOfOrderError,
    Phase,
    Reply,
    RequestBody,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    StreamMode,
)
from memory_extproc.model import Arm, Caller, Origin, Outcome, Owner
from memory_extproc.model.headers import Headers, RequestHeaders
from memory_extproc.request.admission import Admission, Declined
from memory_extproc.request.body import Enriched
from memory_extproc.request.identity import Identity
from memory_extproc.request.replay import InView
from memory_extproc.settings.identity import IdentitySection
from tests.support.exchange import ANN, ANSWER, BODY, CHAT, GET, OK, QUARTER, TOLD, USED, Bench, heard
from tests.support.sidecar import request_settings


async def test_a_whole_exchange_is_enriched_marked_and_learned() -> None:
    bench = Bench()
    replies = await bench.play(
        CHAT, BODY, OK, ResponseBody(ANSWER[:20], last=False), ResponseBody(ANSWER[20:], last=True)
    )
    assert replies == [
        Reply(remove_headers=("x-memory-retrieve",), passed=True),
        Reply(body=b'{"new": 1}', told=TOLD),
        Reply(
            set_headers=(
                ("x-memory-status", "used;n=2;path=hybrid"),
                ("cache-control", "private, no-store"),
            )
        ),
        PASS,
        PASS,
    ]
    (exchanged,) = bench.learns.exchanged
    assert (exchanged.asked, exchanged.answered, exchanged.response_id) == ("how much?", "Ten.", "c1")
    assert exchanged.injected == ("a fact",)
    assert bench.count("turns", outcome="journalled") == 1
    assert bench.outcome(Outcome.USED) == 1
    assert bench.held.bytes_in_use == 0


async def test_the_words_of_a_turn_count_until_the_learner_has_it() -> None:
    """Else answers that end at the same time would take more memory than `limits.process_bytes`."""
    counted: list[int] = []

    async def note() -> None:
        counted.append(bench.held.bytes_in_use)

    bench = Bench(before=note)
    await bench.play(CHAT, BODY, OK, ResponseBody(ANSWER, last=True))
    (exchanged,) = bench.learns.exchanged
    assert counted == [heard().size + len(exchanged.answered)]
    assert bench.held.bytes_in_use == 0


async def test_a_request_that_is_not_ours_ends_at_its_headers() -> None:
    bench = Bench()
    assert await bench.play(GET) == [
        Reply(remove_headers=("x-memory-store",), told=ExchangeMetadata(outcome=Outcome.NOT_CHAT), ends=True)
    ]
    assert bench.outcome(Outcome.NOT_CHAT, "none") == 1


async def test_a_buffered_body_is_whole_whatever_its_end_flag_says() -> None:
    bench = Bench()
    replies = await bench.play(CHAT, RequestBody(b"{}", last=False), RequestTrailers(), OK)
    assert replies[1].body == b'{"new": 1}'
    assert bench.enriches.bodies == [b"{}"]


async def test_an_unpacked_body_goes_out_without_its_encoding() -> None:
    bench = Bench(Enriched(outcome=Outcome.OPTED_OUT, body=b"{}", unpacked=True))
    replies = await bench.play(CHAT, BODY)
    told = ExchangeMetadata(outcome=Outcome.OPTED_OUT, took=QUARTER)
    assert replies[1] == Reply(body=b"{}", remove_headers=("content-encoding",), told=told)


def chat_with(**more: str) -> RequestHeaders:
    named = ((name.replace("_", "-"), value) for name, value in more.items())
    return replace(CHAT, headers=Headers([*CHAT.headers, *named]))


async def test_a_changed_body_goes_out_without_a_digest_of_the_one_that_came() -> None:
    named = chat_with(content_digest="sha-256=:x:", repr_digest="sha-256=:x:", digest="SHA-256=x", content_md5="x")
    replies = await Bench().play(named, BODY)
    assert replies[1].remove_headers == ("content-digest", "repr-digest", "digest", "content-md5")
    untouched = await Bench(Enriched(outcome=Outcome.EMPTY)).play(named, BODY)
    assert untouched[1].remove_headers == ()


async def test_the_answer_to_a_request_that_may_hold_a_block_of_before_is_kept_from_caches() -> None:
    bench = Bench(Enriched(outcome=Outcome.DISABLED))
    replies = await bench.play(chat_with(x_envoy_original_url="http://x/v1/chat/completions"), BODY, OK)
    assert ("cache-control", "private, no-store") in replies[2].set_headers


async def test_an_exchange_without_a_block_may_be_cached() -> None:
    bench = Bench(Enriched(outcome=Outcome.EMPTY))
    replies = await bench.play(CHAT, BODY, OK)
    assert replies[2] == Reply(set_headers=(("x-memory-status", "empty"),), ends=True)


async def test_an_answer_that_begins_before_the_request_is_whole_teaches_nothing() -> None:
    bench = Bench()
    early = ResponseHeaders(Headers([(":status", "413")]), last=False)
    assert await bench.play(CHAT, early) == [
        Reply(remove_headers=("x-memory-retrieve",), passed=True),
        Reply(ends=True),
    ]
    assert bench.outcome(Outcome.ABANDONED) == 1
    assert bench.learns.exchanged == []


@pytest.mark.parametrize(
    ("headers", "fate"),
    [
        ([(":status", "500"), ("content-type", "application/json")], "not_ok"),
        ([(":status", "429"), ("content-type", "application/json")], "not_ok"),
        ([(":status", "200"), ("content-type", "text/html")], "unreadable"),
        ([(":status", "200")], "unreadable"),
        (
            [(":status", "200"), ("content-type", "application/json"), ("content-encoding", "rot13")],
            "unreadable",
        ),
    ],
)
async def test_an_answer_that_cannot_be_learned_passes_without_us(
    headers: list[tuple[str, str]], fate: str
) -> None:
    bench = Bench()
    replies = await bench.play(CHAT, BODY, ResponseHeaders(Headers(headers), last=False))
    assert replies[-1].ends
    assert bench.count("turns", outcome=fate) == 1
    assert bench.held.bytes_in_use == 0


async def test_an_answer_without_a_body_is_closed_at_its_headers() -> None:
    bench = Bench()
    replies = await bench.play(CHAT, BODY, ResponseHeaders(OK.headers, last=True))
    assert bench.exchange.phase is Phase.CLOSED
    assert replies[-1].set_headers[0] == ("x-memory-status", "used;n=2;path=hybrid")
    assert bench.learns.exchanged == []


@pytest.mark.parametrize(
    ("status", "fate"), [("200", "cut_off"), ("204", "not_ok"), ("302", "not_ok"), ("503", "not_ok")]
)
async def test_an_answer_without_a_body_is_counted_by_its_status(status: str, fate: str) -> None:
    bench = Bench()
    await bench.play(CHAT, BODY, ResponseHeaders(Headers([(":status", status)]), last=True))
    assert bench.count("turns", outcome=fate) == 1


async def test_what_the_dialect_saw_end_is_learned_though_no_end_flag_came() -> None:
    """Envoy keeps trailers to itself by default, and the last chunk before them has no flag."""
    bench = Bench()
    await bench.play(CHAT, BODY, OK, ResponseBody(ANSWER, last=False))
    assert len(bench.learns.exchanged) == 1


async def test_trailers_end_an_answer() -> None:
    bench = Bench()
    await bench.play(CHAT, BODY, OK, ResponseBody(ANSWER, last=False), ResponseTrailers())
    assert bench.exchange.phase is Phase.CLOSED
    assert len(bench.learns.exchanged) == 1


@pytest.mark.parametrize("chunks", [[], [ANSWER[:30]]])
async def test_an_answer_cut_off_is_not_learned(chunks: list[bytes]) -> None:
    bench = Bench()
    await bench.play(CHAT, BODY, OK, *(ResponseBody(chunk, last=False) for chunk in chunks))
    assert bench.learns.exchanged == []
    assert bench.count("turns", outcome="cut_off") == 1
    assert bench.held.bytes_in_use == 0


async def test_an_error_in_a_200_is_not_learned() -> None:
    bench = Bench()
    await bench.play(CHAT, BODY, OK, ResponseBody(b'{"error": {"message": "no"}}', last=True))
    assert bench.count("turns", outcome="not_ok") == 1


async def test_a_refusal_is_learned_without_the_refused_answer() -> None:
    refused = b'{"choices": [{"index": 0, "message": {"refusal": "No."}, "finish_reason": "stop"}]}'
    bench = Bench()
    await bench.play(CHAT, BODY, OK, ResponseBody(refused, last=True))
    assert [exchanged.answered for exchanged in bench.learns.exchanged] == [""]


@pytest.mark.parametrize("path", ["blocked", "Rate_Limited", "error"])
async def test_of_a_request_that_the_semantic_router_refused_nothing_is_learned(path: str) -> None:
    bench = Bench()
    refused = ResponseHeaders(Headers([*OK.headers, ("x-vsr-response-path", path)]), last=False)
    replies = await bench.play(CHAT, BODY, refused)
    assert replies[-1].ends
    assert bench.count("turns", outcome="router_refused") == 1
    assert bench.held.bytes_in_use == 0


@pytest.mark.parametrize(
    ("name", "value", "learned"),
    [
        ("x-vsr-response-path", "cache", False),
        ("x-vsr-response-path", "fast_response", False),
        ("x-vsr-cache-hit", "true", False),
        ("x-vsr-fast-response", "true", False),
        ("x-vsr-response-warnings", "hallucination,unverified_factual", False),
        ("x-vsr-response-path", "upstream", True),
        ("x-vsr-cache-hit", "false", True),
        ("x-vsr-response-warnings", "", True),
    ],
)
async def test_an_answer_that_the_semantic_router_flags_is_left_out_of_what_is_learned(
    name: str, value: str, learned: bool
) -> None:
    answer = b'{"choices": [{"index": 0, "message": {"content": "It is blue."}, "finish_reason": "stop"}]}'
    bench = Bench()
    flagged = ResponseHeaders(Headers([*OK.headers, (name, value)]), last=False)
    await bench.play(CHAT, BODY, flagged, ResponseBody(answer, last=True))
    assert [one.answered for one in bench.learns.exchanged] == ["It is blue." if learned else ""]


async def test_what_is_not_to_be_stored_is_not_even_watched() -> None:
    bench = Bench(Enriched(outcome=Outcome.EMPTY, heard=heard(store=False)))
    replies = await bench.play(CHAT, BODY, OK)
    assert replies[-1].ends
    assert bench.count("turns", outcome="not_asked") == 1


@pytest.mark.parametrize(("store", "ended"), [(True, []), (False, [ANN])])
async def test_the_end_of_a_session_is_told_once_by_the_turn_or_by_itself(store: bool, ended: list[Caller]) -> None:
    bench = Bench(Enriched(outcome=Outcome.EMPTY, heard=heard(store=store, ends_session=True)))
    events: list[Event] = [CHAT, BODY, OK]
    if store:
        events.append(ResponseBody(ANSWER, last=True))
    await bench.play(*events)
    assert bench.learns.ended == ended
    assert [exchanged.ends_session for exchanged in bench.learns.exchanged] == [True] * store


async def test_an_answer_above_the_limit_passes_and_is_dropped() -> None:
    bench = Bench(answer_capture=100)
    big = ResponseBody(b" " * 60, last=False)
    replies = await bench.play(CHAT, BODY, OK, big, big, ResponseBody(b"", last=True))
    assert replies[3:] == [PASS, PASS, PASS]
    assert bench.count("turns", outcome="capture_limit") == 1
    assert bench.held.bytes_in_use == 0


async def test_without_memory_for_an_answer_it_is_not_learned() -> None:
    bench = Bench(process_bytes=100)
    await bench.play(CHAT, BODY, OK, ResponseBody(ANSWER, last=True))
    assert bench.count("turns", outcome="process_limit") == 1
    assert bench.held.bytes_in_use == 0


@pytest.mark.parametrize(
    "names",
    [{"origin": Origin(model="m" * 2_000)}, {"previous_response_id": "r" * 2_000}, {"conversation": "c" * 2_000}],
)
async def test_names_of_any_length_count_among_the_bytes_that_are_kept(names: dict[str, Any]) -> None:
    bench = Bench(replace(USED, heard=heard(**names)), process_bytes=2_000)
    await bench.play(CHAT, BODY, OK, ResponseBody(ANSWER, last=True))
    assert bench.count("turns", outcome="process_limit") == 1
    assert bench.held.bytes_in_use == 0


async def test_without_memory_for_a_request_it_passes_as_overloaded() -> None:
    bench = Bench(process_bytes=1)
    replies = await bench.play(CHAT, BODY, OK)
    assert replies[1] == Reply(told=ExchangeMetadata(outcome=Outcome.OVERLOADED))
    assert replies[2].set_headers == (("x-memory-status", "overloaded"),)
    assert bench.enriches.bodies == []


async def test_a_read_path_that_never_comes_back_is_not_waited_for() -> None:
    bench = Bench(request_waits=timedelta(milliseconds=10))
    bench.enriches.before = asyncio.Event().wait  # type: ignore[assignment]  # what it gives back is not looked at
    replies = await bench.play(CHAT, BODY, OK)
    assert (replies[1].body, replies[2].set_headers) == (None, (("x-memory-status", "out_of_time"),))
    assert bench.outcome(Outcome.OUT_OF_TIME) == 1
    assert bench.held.bytes_in_use == 0


async def test_a_mode_in_which_bodies_cannot_be_changed_is_left_at_the_headers() -> None:
    bench = Bench(mode=StreamMode(sends_body=False))
    told = ExchangeMetadata(outcome=Outcome.UNAVAILABLE)
    assert await bench.play(CHAT) == [Reply(remove_headers=("x-memory-retrieve",), told=told, ends=True)]
    assert bench.outcome(Outcome.UNAVAILABLE) == 1


async def test_a_fault_is_counted_as_unavailable() -> None:
    bench = Bench(RuntimeError("a bug"))
    await bench.exchange.handle(CHAT)
    with pytest.raises(RuntimeError):
        await bench.exchange.handle(BODY)
    await bench.exchange.leave(faulty=True)
    assert bench.outcome(Outcome.UNAVAILABLE) == 1
    assert bench.held.bytes_in_use == 0


async def test_in_observability_mode_a_body_in_pieces_is_put_together() -> None:
    bench = Bench(mode=StreamMode(watching=True))
    await bench.play(CHAT, RequestBody(b"{", last=False), RequestBody(b"}", last=True), OK)
    assert bench.enriches.bodies == [b"{}"]


async def test_in_observability_mode_what_comes_after_a_refused_body_is_let_go() -> None:
    bench = Bench(mode=StreamMode(watching=True), process_bytes=3)
    await bench.play(CHAT, RequestBody(b"1234", last=False), RequestBody(b"5", last=True), OK)
    assert bench.enriches.bodies == []
    assert bench.outcome(Outcome.OVERLOADED) == 1


async def test_in_observability_mode_trailers_make_a_body_whole() -> None:
    bench = Bench(mode=StreamMode(watching=True))
    await bench.play(CHAT, RequestBody(b"{}", last=False), RequestTrailers(), OK)
    assert bench.enriches.bodies == [b"{}"]


async def test_the_last_reply_does_not_wait_for_ever() -> None:
    release = asyncio.Event()

    async def held_up() -> None:
        await release.wait()

    bench = Bench(before=held_up)
    for event in (CHAT, BODY, OK, ResponseBody(ANSWER, last=True)):
        await bench.exchange.handle(event)
    assert bench.learns.exchanged == []
    release.set()
    await bench.learns.wait_for(1)
    await bench.exchange.leave()
    assert len(bench.learns.exchanged) == 1


async def test_a_handler_cancelled_at_the_last_chunk_still_learns() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def held_up() -> None:
        started.set()
        await release.wait()

    bench = Bench(before=held_up)
    for event in (CHAT, BODY, OK):
        await bench.exchange.handle(event)
    last = asyncio.ensure_future(bench.exchange.handle(ResponseBody(ANSWER, last=True)))
    await started.wait()
    last.cancel()
    await asyncio.gather(last, return_exceptions=True)
    release.set()
    await bench.learns.wait_for(1)


EVENTS = st.sampled_from(
    [
        CHAT,
        GET,
        RequestBody(b"{}", last=False),
        BODY,
        RequestTrailers(),
        OK,
        ResponseHeaders(Headers([(":status", "500")]), last=False),
        ResponseHeaders(OK.headers, last=True),
        ResponseBody(ANSWER, last=False),
        ResponseBody(b"", last=True),
        ResponseBody(ANSWER, last=True),
        ResponseTrailers(),
    ]
)


@given(st.lists(EVENTS, max_size=12), st.booleans())
def test_any_order_of_messages_is_answered_once_each_or_refused_unchanged(
    events: list[Event], watching: bool
) -> None:
    async def play() -> None:
        bench = Bench(mode=StreamMode(watching=watching))
        for event in events:
            before = bench.exchange.phase
            last = event.last or (isinstance(event, RequestBody) and not watching)
            if (before, type(event), last) in TRANSITIONS:
                assert len(await bench.exchange.handle(event)) == 1
            else:
                with pytest.raises(OutOfOrderError):
                    await bench.exchange.handle(event)
                assert bench.exchange.phase is before
        await bench.exchange.leave()
        await bench.exchange.leave()
        await bench.background.__aexit__()
        assert len(bench.learns.exchanged) <= 1
        assert bench.held.bytes_in_use == 0
        counted = [
            sample.value
            for metric in bench.metrics.exchanges.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        ]
        assert sum(counted) == 1

    asyncio.run(play())


def test_nothing_follows_the_end() -> None:
    assert not [step for step in TRANSITIONS if step[0] is Phase.CLOSED]


def test_only_a_response_can_begin_early() -> None:
    """Every phase before the response takes its headers; no other message may skip a phase."""
    for phase in (Phase.OPENED, Phase.REQUEST, Phase.UPSTREAM):
        assert TRANSITIONS[phase, ResponseHeaders, False] is Phase.RESPONSE
        assert (phase, ResponseBody, True) not in TRANSITIONS


def test_declined_is_the_word_of_admission() -> None:
    admission = Admission(request_settings(), Identity(IdentitySection()))
    assert admission.admit(GET) == Declined(Outcome.NOT_CHAT)


USAGE = b', "usage": {"prompt_tokens": 1500, "prompt_tokens_details": {"cached_tokens": 1024}}}'


async def test_what_the_provider_had_cached_is_counted_by_how_the_request_left_us() -> None:
    bench = Bench()
    await bench.play(CHAT, BODY, OK, ResponseBody(ANSWER.rstrip()[:-1] + USAGE, last=True))
    labels = {"dialect": "chat_completions", "outcome": "used"}
    assert bench.count("llm_prompt_tokens", **labels) == 1500
    assert bench.count("llm_cached_tokens", **labels) == 1024


async def test_a_provider_that_does_not_tell_of_its_cache_counts_for_nothing() -> None:
    bench = Bench()
    usage = USAGE.replace(b"prompt_tokens_details", b"details")
    await bench.play(CHAT, BODY, OK, ResponseBody(ANSWER.rstrip()[:-1] + usage, last=True))
    assert bench.count("llm_prompt_tokens", dialect="chat_completions", outcome="used") == 0


@pytest.mark.parametrize("count", [b"9" * 400, b"1000000001", b"-1", b"1e300", b"true", b'"5"'])
async def test_a_number_that_is_no_count_of_tokens_costs_no_turn_and_spoils_no_counter(count: bytes) -> None:
    bench = Bench()
    usage = USAGE.replace(b"1500", count)
    await bench.play(CHAT, BODY, OK, ResponseBody(ANSWER.rstrip()[:-1] + usage, last=True))
    assert len(bench.learns.exchanged) == 1
    assert bench.count("llm_prompt_tokens", dialect="chat_completions", outcome="used") == 0


async def test_what_the_model_has_seen_is_noted_under_the_response_that_it_answered_with() -> None:
    view = InView(Owner("", "ann"), 0, ("a fact",))
    heard = USED.heard
    assert heard is not None
    bench = Bench(replace(USED, heard=replace(heard, in_view=view)))
    await bench.play(CHAT, BODY, OK, ResponseBody(ANSWER, last=True))
    assert bench.follows.views == {"c1": view}


async def test_what_the_model_has_seen_is_noted_under_the_conversation_that_its_provider_keeps() -> None:
    view = InView(ANN.owner, 0, ("a fact",))
    heard = USED.heard
    assert heard is not None
    heard = replace(heard, in_view=view, conversation="conversation conv_1")
    bench = Bench(replace(USED, heard=heard))
    await bench.play(CHAT, BODY, OK, ResponseBody(ANSWER, last=True))
    assert bench.follows.views == {"c1": view, "conversation conv_1": view}
    assert bench.learns.exchanged[0].continues == "conversation conv_1"


async def test_a_request_with_old_blocks_alone_is_kept_from_caches_too() -> None:
    bench = Bench(replace(USED, outcome=Outcome.SKIPPED_GREETING, count=0, replayed=1))
    replies = await bench.play(CHAT, BODY, OK)
    assert replies[2].set_headers == (
        ("x-memory-status", "skipped_greeting"),
        ("cache-control", "private, no-store"),
    )


@pytest.mark.parametrize(("tenant", "label"), [("acme", "acme"), ("globex", "other"), ("", "other")])
@pytest.mark.parametrize("arm", [Arm.MEMORY, Arm.CONTROL, Arm.SHADOW])
async def test_what_memory_adds_is_counted_by_listed_tenant_and_side(tenant: str, label: str, arm: Arm) -> None:
    usage = b'"usage": {"prompt_tokens": 900, "prompt_tokens_details": {"cached_tokens": 512}}'
    bench = Bench(replace(USED, tenant=tenant, arm=arm))
    await bench.play(CHAT, BODY, OK, ResponseBody(ANSWER[:-1] + b", " + usage + b"}", last=True))
    names = ("arm_exchanges", "arm_added_tokens", "arm_prompt_tokens", "arm_cached_tokens")
    assert [bench.count(name, tenant=label, arm=arm.value) for name in names] == [1, 40, 900, 512]


async def test_an_exchange_of_nobody_is_on_no_side() -> None:
    bench = Bench(Enriched(outcome=Outcome.NO_CALLER))
    await bench.play(CHAT, BODY, OK)
    assert next(iter(bench.metrics.arm_exchanges.collect())).samples == []
