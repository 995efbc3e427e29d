"""Request bodies: decompression, parsing, and removal of memory blocks that the client sent back.

A few kilobytes can decompress to gigabytes, so every decoder is limited to the bytes still allowed."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol
from urllib.parse import quote

import brotli
import zstandard

from memory_extproc.concurrency import THREAD_SECONDS, RateLimits, TokenBuckets, off_loop
from memory_extproc.dialect.base import ChatRequest
from memory_extproc.dialect.json_spans import apply
from memory_extproc.dialect.messages import removals
from memory_extproc.errors import BadBodyError
from memory_extproc.model import Arm, Caller, Message, Origin, Outcome, Owner, TurnOutcome
from memory_extproc.observe.log import logger
from memory_extproc.recall.prompt_block import without_blocks
from memory_extproc.request.admission import Admitted
from memory_extproc.request.replay import Given, InView

PIECE = 64 * 1024  # bytes requested per step from decoders that accept a limit
IDENTITY = frozenset({"", "identity"})
# The window size that every zstd decoder must accept (RFC 9659); a larger window is rejected.
ZSTD_WINDOW = 8 * 1024 * 1024
MOST_CODINGS = 3  # codings stacked in a content-encoding; legitimate clients use fewer
MOST_MEMBERS = 1_000  # gzip members or zstd frames of a body; each costs a new decoder


class OversizeError(BadBodyError):
    """The decoder's input or output exceeds the limit."""


class Decoder(Protocol):
    def feed(self, chunk: bytes, allowed: int) -> bytes:
        """Decompress *chunk*.

        OversizeError if the output exceeds *allowed* bytes; BadBodyError if the data is invalid for this encoding.
        """

    def finish(self) -> None:
        """BadBodyError if the stream is incomplete."""


class _Plain:
    def feed(self, chunk: bytes, allowed: int) -> bytes:
        if len(chunk) > allowed:
            raise OversizeError("the body is larger than allowed")
        return chunk

    def finish(self) -> None:
        return


class _Zlib:
    """gzip, multi-member included, and deflate: zlib format or, as many servers send it, raw."""

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._started = False
        self._inner = zlib.decompressobj(31 if gzip else 15)
        self._members = 1

    def feed(self, chunk: bytes, allowed: int) -> bytes:
        if not chunk:
            return b""
        if not self._gzip and not self._started and chunk[0] & 0x0F != zlib.DEFLATED:
            # RFC 1950, 2.2: a zlib stream begins with its method, 8, in the low half of the first byte.
            self._inner = zlib.decompressobj(-15)
        self._started = True
        unpacked = bytearray()
        for bite in _bites(chunk, BITE):
            self._feed(bite, unpacked, allowed)
        return bytes(unpacked)

    def _feed(self, rest: bytes, unpacked: bytearray, allowed: int) -> None:
        while rest:
            if self._inner.eof:
                if not self._gzip:
                    raise BadBodyError("bytes after the end of the deflate stream")
                self._members = _next_member(self._members)
                self._inner = zlib.decompressobj(31)  # RFC 1952, 2.2: a member may follow another
            try:
                unpacked += self._inner.decompress(rest, allowed - len(unpacked) + 1)
            except zlib.error as error:
                raise BadBodyError("not a gzip or deflate stream") from error
            if len(unpacked) > allowed:
                raise OversizeError("the unpacked body is larger than allowed")
            rest = self._inner.unused_data if self._inner.eof else self._inner.unconsumed_tail

    def finish(self) -> None:
        if self._started and not self._inner.eof:
            raise BadBodyError("the packed body is cut off")


# Bytes given to a decoder at once. It returns all input behind a member's end, so a body that is given as a whole
# would be copied once for each of its members.
BITE = 4_096


def _bites(chunk: bytes, size: int) -> Iterator[bytes]:
    whole = memoryview(chunk)
    return (bytes(whole[start : start + size]) for start in range(0, len(whole), size))


def _next_member(members: int) -> int:
    if members >= MOST_MEMBERS:
        raise BadBodyError("more members or frames than anyone needs")
    return members + 1


class _Brotli:
    def __init__(self) -> None:
        self._inner = brotli.Decompressor()
        self._started = False

    def feed(self, chunk: bytes, allowed: int) -> bytes:
        unpacked = bytearray()
        self._started = self._started or bool(chunk)
        rest = chunk
        try:
            while rest or not self._inner.can_accept_more_data():
                unpacked += self._inner.process(rest, output_buffer_limit=PIECE)
                rest = b""
                if len(unpacked) > allowed:
                    raise OversizeError("the unpacked body is larger than allowed")
                if self._inner.is_finished():
                    break
        except brotli.error as error:
            raise BadBodyError("not a brotli stream") from error
        return bytes(unpacked)

    def finish(self) -> None:
        if self._started and not self._inner.is_finished():
            raise BadBodyError("the packed body is cut off")


class _Zstd:
    """zstd, fed in small slices.

    The decoder accepts no output limit, but the output of a slice is bounded by its size."""

    BITE = 128  # a block of 128 KiB takes 4 bytes at least (RFC 8878, 3.1.1.2): 4 MiB a bite at the very most

    def __init__(self) -> None:
        self._inner = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj()
        self._started = False
        self._frames = 1

    def feed(self, chunk: bytes, allowed: int) -> bytes:
        unpacked = bytearray()
        self._started = self._started or bool(chunk)
        for bite in _bites(chunk, self.BITE):
            self._feed(bite, unpacked, allowed)
        return bytes(unpacked)

    def _feed(self, rest: bytes, unpacked: bytearray, allowed: int) -> None:
        while rest:
            if self._inner.eof:  # RFC 8878, 3: a frame may follow another
                self._frames = _next_member(self._frames)
                self._inner = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj()
            try:
                unpacked += self._inner.decompress(rest)
            except zstandard.ZstdError as error:
                raise BadBodyError("not a zstd stream") from error
            if len(unpacked) > allowed:
                raise OversizeError("the unpacked body is larger than allowed")
            rest = self._inner.unused_data if self._inner.eof else b""

    def finish(self) -> None:
        if self._started and not self._inner.eof:
            raise BadBodyError("the packed body is cut off")


def decoder(coding: str) -> Decoder | None:
    """A new decoder for the named coding; None if it is not supported."""
    match coding.strip().lower():
        case "" | "identity":
            return _Plain()
        case "gzip" | "x-gzip":
            return _Zlib(gzip=True)
        case "deflate":
            return _Zlib(gzip=False)
        case "br":
            return _Brotli()
        case "zstd":
            return _Zstd()
        case _:
            return None


class Unpacker:
    """Decodes a body that arrives in chunks; the content-encoding may list several codings."""

    def __init__(self, encoding: str, limit: int) -> None:
        """*limit*: total output bytes. BadBodyError for an unsupported coding."""
        # RFC 9110, 8.4: codings are listed in the order they were applied, so they are undone from the last.
        names = [name.strip().lower() for name in encoding.split(",") if name.strip().lower() not in IDENTITY]
        if len(names) > MOST_CODINGS:
            raise BadBodyError("more content codings than anyone needs")
        self._chain: list[Decoder] = []
        for name in reversed(names or ["identity"]):
            made = decoder(name)
            if made is None:
                raise BadBodyError("a content coding that is not known here")
            self._chain.append(made)
        self._limit = limit
        self._given = 0

    def feed(self, chunk: bytes) -> bytes:
        allowed = self._limit - self._given
        for one in self._chain:
            chunk = one.feed(chunk, allowed)
        self._given += len(chunk)
        return chunk

    def finish(self) -> None:
        for one in self._chain:
            one.finish()


def is_encoded(encoding: str) -> bool:
    """Whether a body with this content-encoding must be decompressed before parsing."""
    return any(name.strip().lower() not in IDENTITY for name in encoding.split(","))


def unpack(encoding: str, body: bytes, limit: int) -> bytes:
    """Decompress *body*. OversizeError above *limit* bytes, other errors as `Unpacker`."""
    unpacker = Unpacker(encoding, limit)
    unpacked = unpacker.feed(body)
    unpacker.finish()
    return unpacked


log = logger(__name__)
LONGEST_EXPLANATION = 2048  # characters: proxies limit all headers of a response to 8 KiB and less


async def read_body(admitted: Admitted, body: bytes, limit: int) -> ChatRequest | Enriched:
    """Parse *body*, or return the outcome if it is unreadable or exceeds *limit* bytes, decompressed or not."""
    if len(body) > limit:
        return Enriched(outcome=Outcome.TOO_LARGE)
    try:
        # A small compressed body may decompress to a large text.
        size = limit if is_encoded(admitted.encoding) else len(body)
        plain = await off_loop(size, unpack, admitted.encoding, body, limit)
    except OversizeError:
        return Enriched(outcome=Outcome.TOO_LARGE)
    except BadBodyError as error:
        return _unreadable(admitted, error, b"")
    try:
        return await read_plain(admitted, plain)
    except BadBodyError as error:
        return await off_loop(len(plain), _unreadable, admitted, error, plain)


async def read_plain(admitted: Admitted, plain: bytes) -> ChatRequest:
    """Parse an unencoded body. BadBodyError if it is not a request of its dialect."""
    return await off_loop(len(plain), _parse_request, admitted, plain)


def _parse_request(admitted: Admitted, plain: bytes) -> ChatRequest:
    return _drop_returned_blocks(admitted.dialect.read(plain))


def _drop_returned_blocks(request: ChatRequest) -> ChatRequest:
    """Return *request* without the memory blocks that came back in its messages."""
    asked = without_blocks(request.asked)
    history = tuple(
        message if (text := without_blocks(message.text)) is message.text else replace(message, text=text)
        for message in request.history
    )
    return replace(request, asked=asked, history=history)


def _unreadable(admitted: Admitted, error: BadBodyError, plain: bytes) -> Enriched:
    """Pass the body on unchanged except for our own fields, which no upstream knows."""
    log.info("request.unreadable", dialect=admitted.dialect.name, detail=str(error))
    edits = removals(plain)
    if not edits:
        return Enriched(outcome=Outcome.BAD_BODY)
    return Enriched(outcome=Outcome.BAD_BODY, body=apply(plain, edits), unpacked=is_encoded(admitted.encoding))


# Results of the request phase: the enriched body and the pending turn.


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTurn:
    """The request half of a turn, kept for learning until the response is complete."""

    caller: Caller
    store: bool
    history: tuple[Message, ...] = field(repr=False)
    asked: str = field(repr=False)
    origin: Origin
    previous_response_id: str
    ends_session: bool
    conversation: str = ""  # as Exchanged.conversation
    unkept: TurnOutcome = TurnOutcome.NOT_ASKED  # why, where it is not stored
    notes_response: bool = False  # incognito: record the response's id, so that continuations are recognised
    injected: tuple[str, ...] = field(default=(), repr=False)  # contents of the memories the model has seen
    in_view: InView | None = None  # the memories a provider stores with its response
    seen: tuple[str, ...] = ()  # ids of the memories in view
    reach: tuple[Owner, ...] = ()  # whose these may be
    tools: bool = False  # as Exchanged.tools
    request_id: str = ""  # by which its receipt is found; empty: none is kept

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        said = sum(len(message.text) for message in self.history) + len(self.asked)
        named = (self.origin.model, self.origin.app, self.previous_response_id, self.conversation)
        return said + sum(map(len, self.injected)) + sum(map(len, named))


@dataclass(frozen=True, slots=True, kw_only=True)
class Enriched:
    """The result for a request body. *body* None: pass it on unchanged."""

    outcome: Outcome
    body: bytes | None = field(default=None, repr=False)
    unpacked: bool = False  # *body* no longer has the content-encoding it came with
    count: int = 0  # memories in the inserted block, else in the replayed blocks
    path: str = ""
    replayed: int = 0  # blocks put back
    tokens: int = 0  # estimated, of all that went in
    arm: Arm = Arm.NONE
    tenant: str | None = None  # the caller's; None: there is no caller
    heard: PendingTurn | None = None  # None: nothing can be learned from this exchange
    trace: str = ""  # the id that its decision is found by; empty: none is kept
    given: tuple[Given, ...] = ()  # the memories counted, for a caller who may ask for them

    @property
    def personal(self) -> bool:
        """Whether the upstream sees memories, so that its response must not be cached for other callers."""
        return bool(self.count or self.replayed)

    @property
    def status(self) -> str:
        """The value of x-memory-status."""
        used = f";n={self.count};path={self.path}" if self.outcome is Outcome.USED else ""
        return f"{self.outcome.value}{used}{f';trace={self.trace}' if self.trace else ''}"

    @property
    def explanation(self) -> str:
        """The value of the response header x-memory-explain, a list of strings with parameters (RFC 9651).

        Bounded: the least relevant memories are left out."""
        said = ""
        for id_, relevance in self.given:
            # Ids of imported memories may have any characters.
            one = f'"{quote(id_, safe="")}"' + ("" if relevance is None else f";relevance={relevance:.3f}")
            if len(said) + len(one) > LONGEST_EXPLANATION:
                break
            said += f", {one}" if said else one
        return said


# A budget of processor time for each caller's long requests: those of one caller cannot slow all others.

_BURST = 60.0  # seconds of the share that may be spent at once
_MOST_CALLERS = 10_000  # remembered, the latest


class CpuBudget:
    """A token bucket of CPU seconds for each caller. Only work in threads counts, which requests below 64 KiB need
    only where they are compressed. One event loop owns it."""

    def __init__(self, cores: float, clock: Callable[[], float] = time.monotonic) -> None:
        """*cores*: the share of a core that each caller has; 0: no limit."""
        self._cores = cores
        limits = RateLimits(cores, cores * _BURST)
        self._seconds = TokenBuckets(lambda: limits, clock, _MOST_CALLERS)

    def is_spent(self, caller: str) -> bool:
        return bool(self._cores) and self._seconds.level(caller) <= 0

    @contextmanager
    def charge(self, caller: str) -> Iterator[None]:
        """Charge the threads of the requests inside to *caller*."""
        seconds: list[float] = []
        token = THREAD_SECONDS.set(seconds)
        try:
            yield
        finally:
            THREAD_SECONDS.reset(token)
            if seconds and self._cores:
                self._spend(caller, sum(seconds))

    def _spend(self, caller: str, seconds: float) -> None:
        before = self._seconds.level(caller)
        self._seconds.charge(caller, seconds)
        if before > 0 >= before - seconds:
            log.warning("request.cpu_budget_spent", cores=self._cores)
