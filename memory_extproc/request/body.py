"""From the bytes of a request's body to what it asks, without our blocks that came back in it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from memory_extproc.concurrency import off_loop
from memory_extproc.dialect.base import ChatRequest, apply
from memory_extproc.dialect.memory_fields import removals
from memory_extproc.errors import BadBodyError
from memory_extproc.model import Arm, Caller, Message, Origin, Outcome, Owner, TurnOutcome
from memory_extproc.observe.log import logger
from memory_extproc.recall.prompt_block import without_blocks
from memory_extproc.request.admission import Admitted
from memory_extproc.request.content_encoding import OversizeError, is_encoded, unpack
from memory_extproc.request.replay import InView

log = logger(__name__)


async def read_body(admitted: Admitted, body: bytes, limit: int) -> ChatRequest | Enriched:
    """Enriched: what becomes of a body that cannot be read, or that has more than *limit* bytes, unpacked too."""
    if len(body) > limit:
        return Enriched(outcome=Outcome.TOO_LARGE)
    try:
        # What is packed is small until it is unpacked.
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
    """BadBodyError for what is no request of its dialect."""
    return await off_loop(len(plain), _parse_request, admitted, plain)


def _parse_request(admitted: Admitted, plain: bytes) -> ChatRequest:
    return _as_said(admitted.dialect.read(plain))


def _as_said(request: ChatRequest) -> ChatRequest:
    """*request* with what people said, and none of our blocks that came back in it."""
    asked = without_blocks(request.asked)
    history = tuple(
        message if (text := without_blocks(message.text)) is message.text else replace(message, text=text)
        for message in request.history
    )
    return replace(request, asked=asked, history=history)


def _unreadable(admitted: Admitted, error: BadBodyError, plain: bytes = b"") -> Enriched:
    """The body goes on as it came, but for fields of ours in it: no upstream knows those, read or not."""
    log.info("request.unreadable", dialect=admitted.dialect.name, detail=str(error))
    edits = removals(plain)
    if not edits:
        return Enriched(outcome=Outcome.BAD_BODY)
    return Enriched(outcome=Outcome.BAD_BODY, body=apply(plain, edits), unpacked=is_encoded(admitted.encoding))


# --- enriched ----------------------------------------------------------------------------------------
# What becomes of a request, and what it leaves behind for learning.


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTurn:
    """What a request leaves behind for learning, once its answer is known."""

    caller: Caller
    store: bool
    history: tuple[Message, ...] = field(repr=False)
    asked: str = field(repr=False)
    origin: Origin
    previous_response_id: str
    ends_session: bool
    conversation: str = ""  # as Exchanged.conversation
    unkept: TurnOutcome = TurnOutcome.NOT_ASKED  # why, where it is not stored
    notes_response: bool = False  # incognito: what continues from its answer is to be known by the answer's id
    injected: tuple[str, ...] = field(default=(), repr=False)  # contents of the memories the model has seen
    in_view: InView | None = None  # what the provider will keep with its answer, if it keeps conversations
    seen: tuple[str, ...] = ()  # ids of those memories
    reach: tuple[Owner, ...] = ()  # whose these may be
    tools: bool = False  # as Exchanged.tools
    request_id: str = ""  # by which its receipt is found; empty: none is kept

    @property
    def size(self) -> int:
        """About how many bytes it holds."""
        said = sum(len(message.text) for message in self.history) + len(self.asked)
        named = (self.origin.model, self.origin.app, self.previous_response_id, self.conversation)
        return said + sum(map(len, self.injected)) + sum(map(len, named))


@dataclass(frozen=True, slots=True, kw_only=True)
class Enriched:
    """What became of a request body. *body* None: it goes on as it came."""

    outcome: Outcome
    body: bytes | None = field(default=None, repr=False)
    unpacked: bool = False  # *body* no longer has the content-encoding it came with
    count: int = 0  # memories in the block that went in, or in those put back if there was none
    path: str = ""
    replayed: int = 0  # blocks put back
    tokens: int = 0  # estimated, of all that went in
    arm: Arm = Arm.NONE
    tenant: str | None = None  # the caller's; None: there is no caller
    heard: PendingTurn | None = None  # None: nothing can be learned from this exchange
    trace: str = ""  # the id that its decision is found by; empty: none is kept

    @property
    def personal(self) -> bool:
        """Whether the upstream sees memories, so that its answer is this caller's alone."""
        return bool(self.count or self.replayed)

    @property
    def status(self) -> str:
        """The value of x-memory-status."""
        used = f";n={self.count};path={self.path}" if self.outcome is Outcome.USED else ""
        return f"{self.outcome.value}{used}{f';trace={self.trace}' if self.trace else ''}"
