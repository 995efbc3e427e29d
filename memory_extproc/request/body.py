"""Reads request bodies: decompression, parsing, and removal of memory blocks that the client sent back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import quote

from memory_extproc.concurrency import THREAD_SECONDS, RateLimits, TokenBuckets, off_loop
from memory_extproc.dialect.base import ChatRequest, apply
from memory_extproc.dialect.messages import removals
from memory_extproc.errors import BadBodyError
from memory_extproc.model import Arm, Caller, Message, Origin, Outcome, Owner, TurnOutcome
from memory_extproc.observe.log import logger
from memory_extproc.recall.prompt_block import without_blocks
from memory_extproc.request.admission import Admitted
from memory_extproc.request.content_encoding import OversizeError, is_encoded, unpack
from memory_extproc.request.replay import Given, InView

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
        return _unreadable(admitted, error)
    try:
        return await read_plain(admitted, plain)
    except BadBodyError as error:
        return await off_loop(len(plain), _unreadable, admitted, error, plain)


async def read_plain(admitted: Admitted, plain: bytes) -> ChatRequest:
    """Parse an unencoded body. BadBodyError if it is not a request of its dialect."""
    return await off_loop(len(plain), _parse_request, admitted, plain)


def _parse_request(admitted: Admitted, plain: bytes) -> ChatRequest:
    return _as_said(admitted.dialect.read(plain))


def _as_said(request: ChatRequest) -> ChatRequest:
    """Return *request* without the memory blocks that came back in its messages."""
    asked = without_blocks(request.asked)
    history = tuple(
        message if (text := without_blocks(message.text)) is message.text else replace(message, text=text)
        for message in request.history
    )
    return replace(request, asked=asked, history=history)


def _unreadable(admitted: Admitted, error: BadBodyError, plain: bytes = b"") -> Enriched:
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
        self._seconds = TokenBuckets(RateLimits(cores, cores * _BURST), clock, _MOST_CALLERS)

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
