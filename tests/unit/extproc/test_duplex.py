"""FULL_DUPLEX_STREAMED: pieces in, pieces out. Envoy has nothing but what it gets back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_extproc.extproc.duplex import CHUNK
from memory_extproc.extproc.exchange import (
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
from memory_extproc.model import Outcome
from memory_extproc.model.headers import Headers, RequestHeaders
from memory_extproc.request.body import Enriched
from tests.support.exchange import ANSWER, CHAT, GET, OK, TOLD, USED, Bench, heard

BOTH = StreamMode(duplex_request=True, duplex_answer=True)
ASKS = StreamMode(duplex_request=True)
ANSWERS = StreamMode(duplex_answer=True)
NEW = b'{"new": 1}'
EARLY = ResponseHeaders(Headers([(":status", "401"), ("content-type", "application/json")]), last=False)
POST_OF_ANOTHER_KIND = RequestHeaders(Headers([(":method", "POST"), (":path", "/v1/embeddings")]), last=False)


class Side:
    """What goes on in one direction, as Envoy puts it together from our replies; what Envoy takes for a fault of
    ours is one here."""

    def __init__(self) -> None:
        self.headers: Reply | None = None
        self.body = b""
        self.pieces: list[bytes] = []
        self.ends = 0
        self.trailers = False

    def take(self, reply: Reply) -> None:
        if reply.to in (RequestHeaders, ResponseHeaders):
            assert self.headers is None, "headers are answered twice"
            self.headers = reply
            return
        assert self.headers is not None, "a body before its headers"
        assert not self.ends, "something after the end"
        assert not self.trailers, "something after the trailers"
        if reply.to in (RequestTrailers, ResponseTrailers):
            self.trailers = True
            return
        assert reply.chunk is not None, "a plain reply is a fault in this mode"
        assert len(reply.chunk.data) <= CHUNK
        self.body += reply.chunk.data
        self.pieces.append(reply.chunk.data)
        self.ends += reply.chunk.last


class Beyond:
    """The model's side and the client's side of Envoy."""

    def __init__(self, replies: Iterable[Reply]) -> None:
        self.model, self.client, self.ended = Side(), Side(), False
        self.took(replies)

    def took(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            assert not self.ended, "a reply after the end of the stream"
            assert reply.to is not None
            asking = issubclass(reply.to, RequestHeaders | RequestBody | RequestTrailers)
            (self.model if asking else self.client).take(reply)
            self.ended = reply.ends


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """*data* in pieces, cut at *places*, each a number that is taken modulo its length; some may be empty."""
    ends = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(ends)]


def asked(pieces: Sequence[bytes], *, trailers: bool = False) -> Iterator[Event]:
    yield CHAT
    for number, piece in enumerate(pieces):
        yield RequestBody(piece, last=not trailers and number == len(pieces) - 1)
    if trailers:
        yield RequestTrailers()


def answered(pieces: Sequence[bytes], *, trailers: bool = False, headers: ResponseHeaders = OK) -> Iterator[Event]:
    yield headers
    for number, piece in enumerate(pieces):
        yield ResponseBody(piece, last=not trailers and number == len(pieces) - 1)
    if trailers:
        yield ResponseTrailers()


BODIES = st.one_of(
    st.binary(max_size=40), st.integers(0, 4 * CHUNK).map(lambda size: bytes(range(256)) * (size // 256 + 1))
)
PLACES = st.lists(st.integers(0, 10**6), max_size=8)


@settings(deadline=None)
@given(BODIES, PLACES, st.booleans(), BODIES | st.none())
def test_a_request_goes_on_once_and_whole_however_it_was_cut(
    body: bytes, places: Sequence[int], trailers: bool, new: bytes | None
) -> None:
    bench = Bench(replace(USED, body=new), BOTH, process_bytes=10_000_000)
    beyond = Beyond(asyncio.run(bench.play(*asked(cut(body, places), trailers=trailers))))
    assert bench.enriches.bodies == [body]
    assert beyond.model.body == (body if new is None else new)
    assert (beyond.model.ends, beyond.model.trailers) == (not trailers, trailers)
    assert bench.held.bytes_in_use == 0


@settings(deadline=None)
@given(BODIES, PLACES, st.booleans())
def test_each_piece_of_an_answer_goes_back_at_once_and_the_same(
    body: bytes, places: Sequence[int], trailers: bool
) -> None:
    async def play() -> Beyond:
        bench = Bench(mode=BOTH, process_bytes=10_000_000)
        beyond = Beyond([])
        for event in (*asked([b"{}"]), *answered(cut(body, places), trailers=trailers)):
            before = beyond.client.body
            beyond.took(await bench.exchange.handle(event))
            if isinstance(event, ResponseBody):
                assert beyond.client.body == before + event.data
        await bench.exchange.leave()
        await bench.background.__aexit__()
        assert bench.held.bytes_in_use == 0
        return beyond

    beyond = asyncio.run(play())
    assert beyond.client.body == body
    assert (beyond.client.ends, beyond.client.trailers) == (not trailers, trailers)


async def test_the_headers_wait_for_the_body_and_carry_what_became_of_it() -> None:
    bench = Bench(replace(USED, unpacked=True), BOTH)
    assert await bench.exchange.handle(CHAT) == []
    assert await bench.exchange.handle(RequestBody(b"{", last=False)) == []
    first, *body = await bench.exchange.handle(RequestBody(b"}", last=True))
    removed = ("x-memory-retrieve", "content-encoding")
    assert first == Reply(to=RequestHeaders, remove_headers=removed, told=TOLD, passed=True)
    assert Beyond([first, *body]).model.body == NEW


async def test_an_exchange_in_this_mode_is_learned_as_any_other() -> None:
    bench = Bench(mode=BOTH)
    events = (*asked([b"{", b"}"]), *answered([ANSWER[:20], ANSWER[20:]]))
    beyond = Beyond(await bench.play(*events))
    assert beyond.client.headers is not None
    assert beyond.client.headers.set_headers == (
        ("x-memory-status", "used;n=2;path=hybrid"),
        ("cache-control", "private, no-store"),
    )
    (exchanged,) = bench.learns.exchanged
    assert (exchanged.asked, exchanged.answered) == ("how much?", "Ten.")
    assert bench.outcome(Outcome.USED) == 1
    assert bench.exchange.phase is Phase.CLOSED


async def test_a_turn_is_journalled_before_the_last_piece_goes_back() -> None:
    bench = Bench(mode=BOTH)
    *before, last = (*asked([b"{}"]), *answered([ANSWER]))
    for event in before:
        await bench.exchange.handle(event)
    assert bench.learns.exchanged == []
    await bench.exchange.handle(last)
    assert len(bench.learns.exchanged) == 1


@pytest.mark.parametrize("size", [101, 5 * CHUNK])
async def test_a_body_above_the_limit_goes_on_as_it_comes_from_there_on(size: int) -> None:
    bench = Bench(mode=BOTH, request_body=100)
    body = bytes(range(256)) * (size // 256 + 1)
    beyond = Beyond([])
    events = iter(asked([body[:60], body[60:120], body[120:], b""]))
    beyond.took(await bench.exchange.handle(next(events)))
    beyond.took(await bench.exchange.handle(next(events)))
    assert beyond.model.headers is None
    beyond.took(await bench.exchange.handle(next(events)))
    assert beyond.model.body == body[:120]
    for event in (*events, *answered([ANSWER])):
        beyond.took(await bench.exchange.handle(event))
    assert beyond.model.body == body
    assert beyond.model.ends == 1
    assert bench.enriches.bodies == []
    assert beyond.model.headers == Reply(
        to=RequestHeaders,
        remove_headers=("x-memory-retrieve",),
        told=ExchangeMetadata(outcome=Outcome.TOO_LARGE),
        passed=True,
    )
    assert beyond.client.headers is not None
    assert beyond.client.headers.set_headers == (("x-memory-status", "too_large"),)
    assert beyond.client.body == ANSWER
    assert bench.outcome(Outcome.TOO_LARGE) == 1
    assert bench.held.bytes_in_use == 0


@pytest.mark.parametrize("pieces", [[b"x" * 60, b"y" * 60], [b"x" * 60, b"y" * 60, b"z"]])
async def test_without_room_for_a_body_it_goes_on_as_it_comes(pieces: list[bytes]) -> None:
    bench = Bench(mode=BOTH, process_bytes=100)
    beyond = Beyond(await bench.play(*asked(pieces), OK))
    assert beyond.model.body == b"".join(pieces)
    assert beyond.client.headers is not None
    assert beyond.client.headers.set_headers == (("x-memory-status", "overloaded"),)
    assert bench.outcome(Outcome.OVERLOADED) == 1
    assert bench.held.bytes_in_use == 0


async def test_what_waits_for_its_rest_counts_in_the_processes_budget() -> None:
    bench = Bench(mode=BOTH)
    await bench.exchange.handle(CHAT)
    await bench.exchange.handle(RequestBody(b"x" * 60, last=False))
    assert bench.held.bytes_in_use == 60
    await bench.exchange.leave()
    assert bench.held.bytes_in_use == 0


@pytest.mark.parametrize("fails", [RuntimeError("a bug"), Enriched(outcome=Outcome.BAD_BODY)])
@pytest.mark.parametrize("mode", [BOTH, ASKS])
async def test_whatever_happens_to_a_whole_body_it_goes_on_as_it_came(
    fails: Enriched | Exception, mode: StreamMode
) -> None:
    bench = Bench(fails, mode)
    beyond = Beyond([])
    for event in asked([b"{" * 70_000, b"}"]):
        try:
            beyond.took(await bench.exchange.handle(event))
        except RuntimeError:
            beyond.took(bench.exchange.rescue() or ())
    await bench.exchange.leave()
    assert beyond.model.body == b"{" * 70_000 + b"}"
    assert beyond.model.headers is not None
    assert beyond.model.headers.remove_headers == ("x-memory-retrieve",)
    assert beyond.ended is (isinstance(fails, Exception) and mode is ASKS)
    assert bench.outcome(Outcome.UNAVAILABLE if isinstance(fails, Exception) else Outcome.BAD_BODY) == 1
    assert bench.held.bytes_in_use == 0


async def test_a_read_path_that_never_comes_back_keeps_nothing() -> None:
    """Envoy's message_timeout does not count in this mode."""
    bench = Bench(mode=BOTH, request_waits=timedelta(milliseconds=10))
    bench.enriches.before = asyncio.Event().wait  # type: ignore[assignment]  # what it gives back is not looked at
    beyond = Beyond(await bench.play(*asked([b"{", b"}"]), *answered([ANSWER])))
    assert beyond.model.body == b"{}"
    assert beyond.client.body == ANSWER
    assert bench.outcome(Outcome.OUT_OF_TIME) == 1
    assert bench.held.bytes_in_use == 0


@pytest.mark.parametrize(("mode", "ends"), [(BOTH, False), (ASKS, True)])
async def test_a_request_that_is_not_ours_is_carried_to_its_end(mode: StreamMode, ends: bool) -> None:
    """Ending the stream at the headers, as in the other modes, would lose what is under way to us."""
    bench = Bench(mode=mode)
    beyond = Beyond(await bench.exchange.handle(POST_OF_ANOTHER_KIND))
    assert beyond.model.headers is not None
    for piece in (b"abc", b"", b"de"):
        beyond.took(await bench.exchange.handle(RequestBody(piece, last=piece == b"de")))
    assert beyond.model.pieces == [b"abc", b"", b"de"], "each has its answer: Envoy 1.39 waits for it"
    assert beyond.ended is ends
    assert bench.outcome(Outcome.NOT_CHAT, "none") == 1


async def test_a_request_without_a_body_that_is_not_ours_ends_at_its_headers_where_its_answer_is_safe() -> None:
    beyond = Beyond(await Bench(mode=ASKS).play(GET))
    assert beyond.ended


@pytest.mark.parametrize("mode", [BOTH, ANSWERS])
async def test_the_answer_to_a_request_without_a_body_is_carried_to_its_end(mode: StreamMode) -> None:
    """It may be on its way to us before the end of our stream has reached Envoy, and would be lost."""
    bench = Bench(mode=mode)
    beyond = Beyond(await bench.exchange.handle(GET))
    assert not beyond.ended
    for event in answered([b"abc", b"de"]):
        beyond.took(await bench.exchange.handle(event))
    assert (beyond.client.body, beyond.client.ends, beyond.ended) == (b"abcde", 1, True)
    assert bench.outcome(Outcome.NOT_CHAT, "none") == 1


async def test_an_upgrade_runs_both_ways_at_once() -> None:
    bench = Bench(mode=BOTH)
    switched = ResponseHeaders(Headers([(":status", "101")]), last=False)
    events: list[Event] = [
        POST_OF_ANOTHER_KIND,
        switched,
        RequestBody(b"a", last=False),
        ResponseBody(b"1", last=False),
        RequestBody(b"b", last=False),
        ResponseBody(b"2", last=True),
        RequestBody(b"c", last=True),
    ]
    beyond = Beyond(await bench.play(*events))
    assert (beyond.model.body, beyond.client.body) == (b"abc", b"12")


async def test_an_answer_from_envoy_itself_ends_the_waiting_for_a_body() -> None:
    """A 408, say: the model has not heard of the request, and nobody waits for its answer."""
    bench = Bench(mode=BOTH)
    await bench.exchange.handle(CHAT)
    await bench.exchange.handle(RequestBody(b"{", last=False))
    assert bench.held.bytes_in_use == 1
    beyond = Beyond([replace(reply) for reply in await bench.exchange.handle(EARLY)])
    assert bench.held.bytes_in_use == 0
    assert await bench.exchange.handle(RequestBody(b"}", last=True)) == []
    beyond.took(await bench.exchange.handle(ResponseBody(b"slow", last=True)))
    assert beyond.client.body == b"slow"
    assert beyond.model.headers is None
    await bench.exchange.leave()
    assert bench.outcome(Outcome.ABANDONED) == 1


async def test_a_model_that_answers_before_a_large_body_is_whole_loses_nothing_of_it() -> None:
    bench = Bench(mode=BOTH, request_body=10)
    events: list[Event] = [
        CHAT,
        RequestBody(b"x" * 11, last=False),
        EARLY,
        RequestBody(b"y", last=False),
        ResponseBody(b"who are you?", last=True),
        RequestBody(b"z", last=True),
    ]
    beyond = Beyond(await bench.play(*events))
    assert (beyond.model.body, beyond.client.body) == (b"x" * 11 + b"yz", b"who are you?")
    assert beyond.client.headers is not None
    assert beyond.client.headers.set_headers == (("x-memory-status", "too_large"),)


async def test_an_answer_that_cannot_be_learned_still_passes_through_us() -> None:
    bench = Bench(mode=BOTH)
    html = ResponseHeaders(Headers([(":status", "200"), ("content-type", "text/html")]), last=False)
    beyond = Beyond(await bench.play(*asked([b"{}"]), *answered([b"<p>", b"</p>"], headers=html)))
    assert beyond.client.body == b"<p></p>"
    assert bench.count("turns", outcome="unreadable") == 1


async def test_with_only_the_request_in_this_mode_an_answer_that_teaches_nothing_is_let_go() -> None:
    bench = Bench(replace(USED, heard=heard(store=False)), ASKS)
    beyond = Beyond(await bench.play(*asked([b"{}"]), OK))
    assert beyond.ended


async def test_with_only_the_answer_in_this_mode_the_request_is_replaced_as_in_any_other() -> None:
    bench = Bench(mode=ANSWERS)
    replies = await bench.play(CHAT, RequestBody(b"{}", last=False), *answered([ANSWER]))
    assert replies[1].body == NEW
    assert replies[1].chunk is None
    assert b"".join(reply.chunk.data for reply in replies if reply.chunk) == ANSWER
    assert len(bench.learns.exchanged) == 1


async def test_with_two_filters_the_other_one_is_told_with_the_headers() -> None:
    bench = Bench(mode=StreamMode(duplex_request=True, streams_answer=False, hands_over=True))
    beyond = Beyond(await bench.play(*asked([b"{", b"}"]), OK))
    assert beyond.model.headers is not None
    assert beyond.model.headers.handed == "how much? used"
    assert beyond.ended
    assert bench.learns.exchanged == []


async def test_an_end_that_comes_twice_goes_on_once() -> None:
    bench = Bench(mode=BOTH)
    beyond = Beyond([reply for event in asked([b"{}"]) for reply in await bench.exchange.handle(event)])
    with pytest.raises(OutOfOrderError):
        await bench.exchange.handle(RequestBody(b"", last=True))
    assert bench.exchange.rescue() == []
    for event in answered([ANSWER]):
        beyond.took(await bench.exchange.handle(event))
    await bench.exchange.leave()
    assert (beyond.model.body, beyond.model.ends, beyond.client.body) == (NEW, 1, ANSWER)


@pytest.mark.parametrize("limit", [3, 100])
async def test_a_gateway_that_keeps_the_headers_to_itself_gets_its_bodies_back(limit: int) -> None:
    bench = Bench(mode=BOTH, request_body=limit)
    back = b""
    for event in (RequestBody(b"ab", last=False), RequestBody(b"cd", last=True), ResponseBody(b"ef", last=True)):
        try:
            replies = await bench.exchange.handle(event)
        except OutOfOrderError:
            replies = bench.exchange.rescue() or ()
        assert all(reply.chunk for reply in replies)
        back += b"".join(reply.chunk.data for reply in replies if reply.chunk)
    await bench.exchange.leave()
    assert back == b"abcdef"
    assert bench.held.bytes_in_use == 0


SENT = st.lists(st.binary(min_size=1, max_size=5), min_size=1, max_size=4)


@settings(deadline=None)
@given(
    mode=st.sampled_from([BOTH, ASKS, ANSWERS]),
    sent=SENT,
    got=SENT,
    order=st.lists(st.booleans(), max_size=12),
    opening=st.sampled_from([CHAT, POST_OF_ANOTHER_KIND]),
    enriched=st.sampled_from([replace(USED, body=None), RuntimeError("a bug")]),
    limit=st.sampled_from([3, 100]),
)
def test_in_any_order_of_both_bodies_and_with_any_fault_nothing_is_lost_or_said_twice(
    mode: StreamMode,
    sent: list[bytes],
    got: list[bytes],
    order: list[bool],
    opening: RequestHeaders,
    enriched: Enriched | Exception,
    limit: int,
) -> None:
    async def play() -> None:
        bench = Bench(enriched, mode, request_body=limit)
        asking: list[Event] = [opening, *list(asked(sent if mode.duplex_request else [b"".join(sent)]))[1:]]
        answering = list(answered(got))
        beyond = Beyond([])
        while (asking or answering) and not beyond.ended:
            # Envoy answers a whole BUFFERED request, or with us in between: never before it had our reply.
            early = mode.duplex_request and beyond.model.headers is not None and order and order.pop()
            event = answering.pop(0) if answering and (early or not asking) else asking.pop(0)
            try:
                replies = await bench.exchange.handle(event)
            except RuntimeError:
                replies = bench.exchange.rescue() or ()
            # The other direction is Envoy's own affair.
            beyond.took(reply for reply in replies if reply.chunk or reply.to not in (RequestBody, ResponseBody))
        await bench.exchange.leave()
        await bench.background.__aexit__()
        assert bench.held.bytes_in_use == 0
        if mode.duplex_request:
            assert beyond.model.body == b"".join(sent)
            assert beyond.model.ends == 1
        if mode.duplex_answer and not beyond.ended:
            assert beyond.client.body == b"".join(got)

    asyncio.run(play())
