"""What every LLM API's dialect gives: the request read, the block's place as byte edits, the answer read.

Pure: bytes in, values out. All edits are spans of the client's own bytes, so every byte outside of them
stays as the client wrote it: large integers, key order, escapes, duplicate keys, whitespace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from memory_extproc.model import MemoryType, Message


class Edit(NamedTuple):
    """Replace body[start:end] by *new*; offsets in bytes of the client's body, half open."""

    start: int
    end: int
    new: bytes


def apply(body: bytes, edits: Sequence[Edit]) -> bytes:
    """The body with *edits* made. They may come in any order and must not overlap; edits at the same
    empty span are made in the order given. All other bytes are kept."""
    kept = bytearray()
    at = 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        if edit.start < at or edit.end > len(body):
            raise ValueError(f"edit {edit.start}:{edit.end} overlaps the one before or leaves the body")
        kept += body[at : edit.start]
        kept += edit.new
        at = edit.end
    kept += body[at:]
    return bytes(kept)


class Form(StrEnum):
    """Where the block goes."""

    SYSTEM_MESSAGE = "system_message"  # a message of its own right after the last user-authored one
    USER_SUFFIX = "user_suffix"  # appended to the last user-authored message


class Placing(NamedTuple):
    """A block and its place: the last user-authored message, or *back* user messages before it, as history
    counts them."""

    block: str
    form: Form
    back: int = 0


@dataclass(frozen=True, slots=True)
class BodyControls:
    """memory_config, memory_context and auto_store as the client wrote them; None where it said nothing."""

    enabled: bool | None = None
    types: frozenset[MemoryType] | None = None
    limit: int | None = None
    threshold: float | None = None
    store: bool | None = None
    project: str = ""
    user: str = field(default="", repr=False)  # honoured only with identity.trust_body


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request body as its dialect reads it. *history* and *asked* hold text that people wrote."""

    body: bytes = field(repr=False)  # as the client sent it, content-encoding undone
    model: str
    history: tuple[Message, ...] = field(repr=False)  # user and assistant texts before *asked*, oldest first
    asked: str = field(repr=False)  # text of the last user-authored message; "" if there is none in reach
    user_at: tuple[int, ...] = ()  # positions of the user messages in *history*, then of the one that asked
    ends_in_tool_result: bool = False  # the last message answers a tool call: we are inside a tool loop
    tools: bool = False  # the request offers tools
    system: str = field(default="", repr=False)  # beginning of the client's own instructions to the model
    has_system: bool = False  # the client brought a system (or developer) message of its own
    developer: bool = False  # the client's own system messages have role developer
    stream: bool = False
    max_tokens: int | None = None
    previous_response_id: str = ""
    conversation: str = ""  # id of the one that the provider keeps, to which this request adds
    prompt_tokens: int = 0  # estimated, of everything the model will be shown
    controls: BodyControls = BodyControls()
    removals: tuple[Edit, ...] = ()  # take our own body fields out before the upstream sees them

    @property
    def kept_conversation(self) -> str:
        """The name of *conversation* among ids of responses; "" without one."""
        return f"conversation {self.conversation}" if self.conversation else ""

    @property
    def continues(self) -> str:
        """What the provider goes on from: a response, or a conversation; "" for neither."""
        return self.previous_response_id or self.kept_conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer as its dialect reads it once it has ended."""

    text: str = field(default="", repr=False)
    complete: bool = False  # the dialect's own end was seen: [DONE], message_stop, response.completed, whole JSON
    refused: bool = False  # the provider marked it as a refusal or filtered it
    failed: bool = False  # an error body or error event
    called_tools: bool = False
    response_id: str = ""
    truncated: bool = False  # the model stopped at its token limit
    damaged: int = 0  # events that were no JSON; *text* ends where the first of them may have held a piece of it
    prompt_tokens: int | None = None  # of the request, as the provider counted them; None where it did not say
    cached_tokens: int | None = None  # those of them that came from its prompt cache


class AnswerReader(Protocol):
    """Reads one answer from chunks cut anywhere, in the middle of a UTF-8 character or event included."""

    def feed(self, chunk: bytes) -> None: ...

    @property
    def ended(self) -> bool:
        """The dialect's own end has been seen; cheap to ask after each chunk."""

    def answer(self) -> Answer:
        """What has been read so far; never raises, whatever the bytes were."""


class Dialect(Protocol):
    """One LLM API. Stateless."""

    @property
    def name(self) -> str:
        """Metric label: chat_completions, responses or messages."""

    def read(self, body: bytes) -> ChatRequest:
        """Raises BadBodyError, naming what was wrong and where, when it is not such a request."""

    def place(self, request: ChatRequest, blocks: Sequence[Placing]) -> Sequence[Sequence[Edit]]:
        """For each of *blocks* the edits that put it in its place, none where there is no lawful one; at most
        one block for each message. A dialect or message that cannot take SYSTEM_MESSAGE gets the block as
        USER_SUFFIX. Reads the body once, however many they are."""

    def reader(self, content_type: str) -> AnswerReader | None:
        """A reader for an answer of this content type (JSON or SSE); None for any other."""
