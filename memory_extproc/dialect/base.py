"""The dialect interface: parse the request, place a block as byte edits, read the response.

Pure: bytes in, values out. Edits are spans of the client's bytes, so all other bytes stay as sent: large integers,
key order, escapes, duplicate keys, whitespace."""

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
    """Apply *edits*, in any order and without overlap; edits at the same empty span apply in the given order."""
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
    """The position of the block."""

    SYSTEM_MESSAGE = "system_message"  # a message of its own after the last user message
    USER_SUFFIX = "user_suffix"  # appended to the last user-authored message


class Placing(NamedTuple):
    """A block and its position: the last user message, or *back* user messages before it in the history."""

    block: str
    form: Form
    back: int = 0


@dataclass(frozen=True, slots=True)
class BodyControls:
    """The client's memory_config, memory_context and auto_store; None if absent."""

    enabled: bool | None = None
    types: frozenset[MemoryType] | None = None
    limit: int | None = None
    threshold: float | None = None
    store: bool | None = None
    project: str = ""
    user: str = field(default="", repr=False)  # honoured only with identity.trust_body


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A parsed request body. *history* and *asked* contain people's text."""

    body: bytes = field(repr=False)  # as the client sent it, content-encoding undone
    model: str
    history: tuple[Message, ...] = field(repr=False)  # user and assistant texts before *asked*, oldest first
    asked: str = field(repr=False)  # text of the last user-authored message; "" if there is none in reach
    user_at: tuple[int, ...] = ()  # indexes of user messages in *history*, then of the current message
    ends_in_tool_result: bool = False  # the last message answers a tool call: we are inside a tool loop
    tools: bool = False  # the request offers tools
    system: str = field(default="", repr=False)  # beginning of the client's own instructions to the model
    has_system: bool = False  # the client brought a system (or developer) message of its own
    developer: bool = False  # the client's own system messages have role developer
    stream: bool = False
    max_tokens: int | None = None
    previous_response_id: str = ""
    conversation: str = ""  # id of the provider's stored conversation that this request extends
    prompt_tokens: int = 0  # estimated, of everything the model will be shown
    controls: BodyControls = BodyControls()
    removals: tuple[Edit, ...] = ()  # take our own body fields out before the upstream sees them

    @property
    def kept_conversation(self) -> str:
        """The key of *conversation*, distinct from response ids; "" without a conversation."""
        return f"conversation {self.conversation}" if self.conversation else ""

    @property
    def continues(self) -> str:
        """The response or conversation that the request continues at the provider; "" for neither."""
        return self.previous_response_id or self.kept_conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response after its end."""

    text: str = field(default="", repr=False)
    complete: bool = False  # the dialect's own end was seen: [DONE], message_stop, response.completed, whole JSON
    refused: bool = False  # the provider marked it as a refusal or filtered it
    failed: bool = False  # an error body or error event
    called_tools: bool = False
    response_id: str = ""
    truncated: bool = False  # the model stopped at its token limit
    damaged: int = 0  # events that were no JSON; *text* ends where the first of them may have held a piece of it
    prompt_tokens: int | None = None  # of the request, as the provider counted them; None where it did not say
    cached_tokens: int | None = None  # the cached part of the prompt tokens


class AnswerReader(Protocol):
    """Reads a response from chunks that may be split anywhere, even within a UTF-8 character."""

    def feed(self, chunk: bytes) -> None: ...

    @property
    def ended(self) -> bool:
        """Whether the dialect's end marker was seen; cheap, asked after each chunk."""

    def answer(self) -> Answer:
        """The response read so far. Never raises."""


class Dialect(Protocol):
    """An LLM API. Stateless."""

    @property
    def name(self) -> str:
        """Metric label: chat_completions, responses or messages."""

    def read(self, body: bytes) -> ChatRequest:
        """Parse a request. BadBodyError names the fault and its path."""

    def place(self, request: ChatRequest, blocks: Sequence[Placing]) -> Sequence[Sequence[Edit]]:
        """The edits for each of *blocks*; empty if a block has no valid position. At most a block per message.

        A dialect or message without SYSTEM_MESSAGE support gets the block as USER_SUFFIX. Reads the body once."""

    def reader(self, content_type: str) -> AnswerReader | None:
        """A reader for a response of this content type (JSON or SSE); None for any other."""
