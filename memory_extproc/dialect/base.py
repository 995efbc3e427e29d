"""The dialect interface: parse the request, place a block as byte edits, read the response;
and the readers of responses, JSON or SSE, that all dialects share.

Pure: bytes in, values out. Edits are spans of the client's bytes, so all other bytes stay as sent: large integers,
key order, escapes, duplicate keys, whitespace."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from memory_extproc.dialect import json_spans
from memory_extproc.dialect.json_spans import Edit, Fields
from memory_extproc.errors import BadBodyError
from memory_extproc.model import MemoryType, Message


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


# Readers of responses. A dialect supplies a format that updates an *account* from documents or events. No provider
# input raises here; an unreadable response counts as incomplete.

# A bound for callers that set none.
MAX_ANSWER_BYTES = 16 * 1024 * 1024

_THOUGHT = re.compile(r"\s*+<think>.*?(?:</think>\s*|\Z)", re.DOTALL)


@dataclass(slots=True)
class Account:
    """The state of a response. *parts* holds its text by (message, part); pieces of a part are concatenated."""

    parts: dict[tuple[int, int], list[str]] = field(default_factory=dict, repr=False)
    ended: bool = False  # the dialect's last event
    complete: bool = False
    refused: bool = False
    failed: bool = False
    called_tools: bool = False
    truncated: bool = False
    response_id: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None

    def add(self, text: object, at: tuple[int, int] = (0, 0)) -> None:
        if isinstance(text, str) and text:
            self.parts.setdefault(at, []).append(text)

    def fail(self) -> None:
        """Mark an error body or event: it ends the response."""
        self.failed = self.ended = True

    def text(self) -> str:
        """The text in order: the parts of a message are concatenated, messages are separated by newlines."""
        messages: dict[int, list[str]] = {}
        for message, part in sorted(self.parts):
            messages.setdefault(message, []).extend(self.parts[message, part])
        return "\n".join(map("".join, messages.values()))


class AnswerFormat(Protocol):
    """A dialect's response format: updates the account from documents and events."""

    def document(self, account: Account, document: Fields) -> None: ...

    def event(self, account: Account, name: str, document: Fields) -> None:
        """*name*: the SSE event's name, "" without one. [DONE] events are filtered out."""


def reader(content_type: str, dialect: AnswerFormat, limit: int = MAX_ANSWER_BYTES) -> AnswerReader | None:
    """A reader for this content type; None unless it is JSON or an event stream.

    A response longer than *limit* bytes counts as incomplete."""
    media = content_type.partition(";")[0].strip().lower()
    if media == "text/event-stream":
        return EventReader(dialect, limit)
    if media == "application/json" or (media.startswith("application/") and media.endswith("+json")):
        return DocumentReader(dialect, limit)
    return None


def _answer(account: Account, whole: str | None = None) -> Answer:
    """*whole*: the text for learning, if part of the response was unreadable."""
    text = account.text() if whole is None else whole
    # Servers without a reasoning parser put the model's reasoning in front of its answer.
    thought = _THOUGHT.match(text)
    return Answer(
        text=text[thought.end() :] if thought else text,
        complete=account.complete,
        refused=account.refused,
        failed=account.failed,
        called_tools=account.called_tools,
        response_id=account.response_id,
        truncated=account.truncated,
        prompt_tokens=account.prompt_tokens,
        cached_tokens=account.cached_tokens,
    )


class EventReader:
    """A response as server-sent events."""

    def __init__(self, dialect: AnswerFormat, limit: int) -> None:
        self._dialect = dialect
        self._limit = limit
        self._stream = EventStream()
        self._account = Account()
        self._seen = 0
        self._unreadable = False  # something was lost, so that the text may have a gap
        self._damaged = 0  # events that are no JSON
        self._whole: str | None = None  # the text up to the first gap; None: there is none

    @property
    def ended(self) -> bool:
        return self._account.ended

    def feed(self, chunk: bytes) -> None:
        self._seen += len(chunk)
        self._unreadable = self._unreadable or self._seen > self._limit
        if self._unreadable or self._account.ended:
            return
        try:
            for event in self._stream.feed(chunk):
                self._read(event)
        except BadBodyError:
            self._unreadable = True

    def _read(self, event: Event) -> None:
        try:
            self._take(self._account, event)
        except BadBodyError:
            self._damaged += 1
            # A damaged document may have contained text. A line such as "ping" contains none.
            if self._whole is None and event.data.lstrip().startswith(b"{"):
                self._whole = self._account.text()

    def answer(self) -> Answer:
        account = copy.deepcopy(self._account)
        unreadable = self._unreadable
        if not unreadable and (event := copy.deepcopy(self._stream).remainder()):
            try:
                self._take(account, event)
            except BadBodyError:
                unreadable = not account.complete  # a cut-off event behind the end takes nothing away
        answer = replace(_answer(account, self._whole), damaged=self._damaged)
        return replace(answer, complete=False) if unreadable else answer

    def _take(self, account: Account, event: Event) -> None:
        if account.ended:
            return
        data = event.data.strip()
        if data == b"[DONE]":
            account.ended = account.complete = True
        elif data:
            document = json_spans.parse(data)
            if event.name == "error" or document.get("error"):
                account.fail()
            else:
                self._dialect.event(account, event.name, document)


class DocumentReader:
    """A response as a single JSON document."""

    def __init__(self, dialect: AnswerFormat, limit: int) -> None:
        self._dialect = dialect
        self._limit = limit
        self._body = bytearray()
        self._end = _DocumentEnd()
        self._too_long = False

    @property
    def ended(self) -> bool:
        return self._end.seen

    def feed(self, chunk: bytes) -> None:
        if len(self._body) + len(chunk) > self._limit:
            self._too_long = True
            self._body.clear()
        if not self._too_long:
            self._body += chunk
            self._end.feed(chunk)

    def answer(self) -> Answer:
        account = Account()
        try:
            document = json_spans.parse(bytes(self._body))
        except BadBodyError:
            return Answer()
        if document.get("error"):
            account.fail()
        else:
            self._dialect.document(account, document)
        return _answer(account)


class _DocumentEnd:
    """Detects the closing bracket of a JSON document, chunk by chunk."""

    _MARKS = re.compile(rb'\\.?|["\[\]{}]', re.DOTALL)

    def __init__(self) -> None:
        self.seen = False
        self._depth = 0
        self._in_string = False
        self._escaping = False  # the chunk before ended in a backslash: the next byte is no mark

    def feed(self, chunk: bytes) -> None:
        for mark in self._MARKS.finditer(chunk, 1 if self._escaping and chunk else 0):
            match mark[0]:
                case b'"':
                    self._in_string = not self._in_string
                case b"{" | b"[" if not self._in_string:
                    self._depth += 1
                case b"}" | b"]" if not self._in_string:
                    self._depth -= 1
                    self.seen = self.seen or self._depth == 0
        if chunk:
            tail = len(chunk) - len(chunk.rstrip(b"\\"))
            whole_tail = tail - 1 if self._escaping and tail == len(chunk) else tail
            self._escaping = whole_tail % 2 == 1


# Token usage reported by the provider: prompt tokens, and cached prompt tokens.

# Tokens per request. A larger value is invalid and would corrupt the counter permanently.
_MOST = 10**9


def note(account: Account, usage: Any) -> None:
    """Record the usage of /v1/chat/completions or /v1/responses. Streams may repeat it; the last counts."""
    if not isinstance(usage, dict):
        return
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = _count(details, "cached_tokens")
    if cached is None:
        cached = _count(usage, "prompt_cache_hit_tokens")  # as DeepSeek calls them
    prompt = _count(usage, "prompt_tokens")
    _take(account, _count(usage, "input_tokens") if prompt is None else prompt, cached)


def note_parted(account: Account, usage: Any) -> None:
    """Record the usage of /v1/messages, whose `input_tokens` exclude cache reads and writes."""
    read, written = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
    fresh = _count(usage, "input_tokens")
    _take(account, None if fresh is None else fresh + (read or 0) + (written or 0), read)


def _take(account: Account, prompt: int | None, cached: int | None) -> None:
    if prompt is not None:
        account.prompt_tokens = prompt
    if cached is not None:
        account.cached_tokens = cached


def _count(of: Any, name: str) -> int | None:
    value = of.get(name) if isinstance(of, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else None


# Server-sent events from bytes cut anywhere (WHATWG HTML, "Interpreting an event stream").
#
# Only `event` and `data` are kept: `id` and `retry` concern reconnecting, which an observer never does.

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")

# The limit for an event or an unfinished line; beyond it the stream is not read further.
MAX_EVENT_BYTES = 4 * 1024 * 1024


class Event(NamedTuple):
    """An event: its name ("" if it has none) and its data lines joined by newlines, as UTF-8 bytes."""

    name: str
    data: bytes


class EventStream:
    """Splits chunks into events. Holds at most a single unfinished event."""

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._line: list[bytes] = []  # pieces of the line that has not ended yet
        self._after_cr = False  # a LF that follows belongs to the CR that ended the last chunk
        self._begun = False  # the position of a byte order mark is past
        self._name = b""
        self._data: list[bytes] = []
        self._held = 0

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that *chunk* completes; the caller must consume them all.

        BadBodyError if an event exceeds the limit."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if not chunk:
            return
        first, *rest = _LINE_END.split(chunk)
        self._hold(first)
        if not rest:
            return
        self._after_cr = chunk.endswith(b"\r")
        for line in rest:
            if event := self._take(self._whole_line()):
                yield event
            self._hold(line)

    def remainder(self) -> Event | None:
        """The incomplete last event; nothing may be fed after it.

        The standard discards it, but some servers omit the last empty line."""
        self._take(self._whole_line())
        return self._take(b"")

    def _hold(self, piece: bytes) -> None:
        self._held += len(piece)
        if self._held > self._limit:
            raise BadBodyError(f"an event of more than {self._limit} bytes")
        if piece:
            self._line.append(piece)

    def _whole_line(self) -> bytes:
        line = b"".join(self._line)
        self._line.clear()
        if not self._begun:
            self._begun = True
            line = line.removeprefix(_BOM)
        return line

    def _take(self, line: bytes) -> Event | None:
        """Process a line; an empty line ends the event."""
        if not line:
            event = Event(self._name.decode("utf-8", "replace"), b"\n".join(self._data)) if self._data else None
            self._name, self._data, self._held = b"", [], 0
            return event
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value
        else:
            self._held -= len(line)  # a comment, `id`, `retry` or a field we do not know: nothing is kept
        return None
