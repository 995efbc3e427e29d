"""Bodies in FULL_DUPLEX_STREAMED: Envoy keeps no copy of its messages, so we must send every byte back.

Seen on Envoy 1.40: a stream that we end, however cleanly, while a piece of a body is with us loses that piece. The
model gets an empty or a cut request, the client a cut answer, both with status 200, or the exchange hangs. And
Envoy waits forever, because message_timeout does not apply here. So held bytes are sent back whatever happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from memory_extproc.extproc.exchange import (
    PASS,
    Chunk,
    Event,
    Exchange,
    ExchangeDeps,
    OutOfOrderError,
    Phase,
    Reply,
    RequestBody,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    StreamMode,
)
from memory_extproc.model import Outcome
from memory_extproc.model.headers import RequestHeaders

# Bytes of a body per message. processing_mode.proto: at most 64 KiB, of which the other fields take some.
CHUNK = 62_000

_ASKING = (RequestHeaders, RequestBody, RequestTrailers)


class DuplexExchange:
    """Adapts an exchange to this mode of at least one of its bodies.

    The request's headers are answered when its body is complete. Until then Envoy sends nothing upstream, as with a
    BUFFERED body, and the headers can still be changed to match the body. Pieces of an answer go back at once."""

    def __init__(self, within: Exchange, deps: ExchangeDeps, mode: StreamMode) -> None:
        self._within, self._deps, self._mode = within, deps, mode
        self._opening: Reply | None = None  # the reply to the request's headers, while its body is incomplete
        self._held: list[bytes] = []  # pieces of its body, while the headers wait too
        self._counted = 0  # bytes of the body reserved in the process's budget
        self._event: Event | None = None  # the current event
        self._joined = False  # its bytes are in `_held`
        self._refused = False  # the request's body passes unchanged
        self._through = False  # both bodies pass unchanged: the inner exchange is not used any more
        self._unheard = False  # the request was answered before it was complete: its rest is dropped
        self._faulty = False
        self._asked = self._answered = False  # the request, the answer is complete

    @property
    def phase(self) -> Phase:
        return self._within.phase

    @property
    def may_end(self) -> bool:
        """Whether the stream may end after the replies to the current event without loss.

        Not after the headers of a request without a body: the end of the stream follows our reply, while the answer
        may already be on its way to us. Seen on Envoy 1.40: 200 without its body."""
        asked = self._asked or not self._mode.duplex_request
        answered = self._answered or not self._mode.duplex_answer
        return asked and answered

    @property
    def observes(self) -> None:
        """None: every piece needs a reply."""

    @property
    def is_settled(self) -> bool:
        return not self._counted and not self._faulty and self._within.is_settled

    async def handle(self, event: Event) -> Sequence[Reply]:
        """The replies to *event*, in order, each with the event it answers. Raises as `Exchange.handle`."""
        self._take(event)
        if self._through:
            return self._ending(self._as_it_came(event))
        return self._ending(await self._handle_event(event))

    def rescue(self) -> Sequence[Reply]:
        """After a fault in `handle`: send the held bytes back. The rest passes unchanged."""
        self._through = self._faulty = True
        return [] if self._event is None else self._ending(self._as_it_came(self._event))

    async def leave(self, *, faulty: bool = False) -> None:
        self._give_back()
        await self._within.leave(faulty=faulty or self._faulty)

    def _take(self, event: Event) -> None:
        asking = isinstance(event, _ASKING)
        if self._asked if asking else self._answered:
            self._event = None  # it is out of place, so it gets no reply
            raise OutOfOrderError(f"{type(event).__name__} after the end")
        self._event, self._joined = event, False
        if event.last and asking:
            self._asked = True
        elif event.last:
            self._answered = True

    async def _handle_event(self, event: Event) -> list[Reply]:
        if isinstance(event, RequestBody | RequestTrailers) and self._mode.duplex_request:
            return await self._asking(event)
        if isinstance(event, ResponseHeaders) and self._opening is not None:
            # Envoy or another filter answered: the request does not reach the model.
            self._unheard = self._through = True
            self._drop()
        (reply,) = await self._within.handle(event)
        if reply.ends:
            self._through = True
            reply = replace(reply, ends=False)
        elif isinstance(event, RequestHeaders) and self._mode.duplex_request and not event.last:
            self._opening = reply
            return []
        if isinstance(event, ResponseBody) and self._mode.duplex_answer:
            return list(_pieces(ResponseBody, event.data, last=event.last))
        return [replace(reply, to=type(event))]

    async def _asking(self, event: RequestBody | RequestTrailers) -> list[Reply]:
        data = event.data if isinstance(event, RequestBody) else b""
        if not self._refused:
            if self._counted + len(data) > self._deps.request_bytes:
                self._refuse(Outcome.TOO_LARGE)
            elif event.last:
                return await self._whole(event, data)
            elif self._deps.held.reserve_read(len(data)):
                self._counted += len(data)
                self._held.append(data)
                return []
            else:
                self._refuse(Outcome.OVERLOADED)
        return self._as_it_came(event)

    async def _whole(self, event: RequestBody | RequestTrailers, data: bytes) -> list[Reply]:
        body = b"".join((*self._held, data))
        self._held, self._joined = [body], True
        self._give_back()  # the inner exchange reserves it itself
        (reply,) = await self._within.handle(RequestBody(body, last=True))
        opening = self._opening or PASS
        self._opening = replace(
            opening,
            remove_headers=(*opening.remove_headers, *reply.remove_headers),
            told=reply.told,
            handed=reply.handed,
        )
        return self._send_body(body if reply.body is None else reply.body, event)

    def _refuse(self, outcome: Outcome) -> None:
        self._refused = True
        told = self._within.refuse(outcome).told
        if self._opening is not None:  # a gateway may not send the headers; then they need no reply
            self._opening = replace(self._opening, told=told)

    def _as_it_came(self, event: Event) -> list[Reply]:
        """Pass *event* unchanged, after the held bytes."""
        if isinstance(event, RequestBody | RequestTrailers) and self._mode.duplex_request:
            if self._unheard:
                return []
            data = event.data if isinstance(event, RequestBody) and not self._joined else b""
            return self._send_body(b"".join((*self._held, data)), event)
        if isinstance(event, ResponseBody) and self._mode.duplex_answer:
            return list(_pieces(ResponseBody, event.data, last=event.last))
        return [Reply(to=type(event))]

    def _send_body(self, body: bytes, event: RequestBody | RequestTrailers) -> list[Reply]:
        replies = [] if self._opening is None else [replace(self._opening, to=RequestHeaders)]
        self._opening = None
        if body or isinstance(event, RequestBody):
            replies += _pieces(RequestBody, body, last=isinstance(event, RequestBody) and event.last)
        if isinstance(event, RequestTrailers):
            replies.append(Reply(to=RequestTrailers))
        self._drop()
        return replies

    def _ending(self, replies: list[Reply]) -> list[Reply]:
        """End the stream after *replies*, if nothing is left to do and nothing would be lost."""
        if self._through and replies and self.may_end:
            replies[-1] = replace(replies[-1], ends=True)
        return replies

    def _drop(self) -> None:
        self._held.clear()
        self._give_back()

    def _give_back(self) -> None:
        self._deps.held.release_read(self._counted)
        self._counted = 0


def _pieces(of: type[Event], data: bytes, *, last: bool) -> Iterator[Reply]:
    """Split *data*. Never empty: the last piece is marked, and Envoy 1.39 holds an upgrade until an empty reply."""
    for start in range(0, max(len(data), 1), CHUNK):
        piece = data[start : start + CHUNK]
        yield Reply(to=of, chunk=Chunk(piece, last=last and start + CHUNK >= len(data)))
