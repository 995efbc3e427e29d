"""Reading an answer as it passes: what JSON and SSE have in common, whatever the dialect.

A dialect brings an *account*: a small mutable value that takes in whole documents or single events and
says what they came to. Nothing here raises for what a provider sends; what cannot be read is not complete.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field, replace
from typing import Protocol

from memory_extproc.dialect import fields
from memory_extproc.dialect.base import Answer, ReadsAnswer
from memory_extproc.dialect.fields import Fields
from memory_extproc.dialect.sse import Event, EventStream
from memory_extproc.errors import BadBodyError

# The wire bounds what it keeps of an answer; this bounds us when nobody does.
MAX_ANSWER_BYTES = 16 * 1024 * 1024

_THOUGHT = re.compile(r"\s*+<think>.*?(?:</think>\s*|\Z)", re.DOTALL)


@dataclass(slots=True)
class Account:
    """What an answer has come to so far. *parts* holds its text by position: pieces of one part are one
    text, and parts are joined by what the dialect says."""

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
        """An error body or event: nothing comes after it."""
        self.failed = self.ended = True

    def text(self) -> str:
        """The parts in order: those of one message run on, messages stand on lines of their own."""
        messages: dict[int, list[str]] = {}
        for message, part in sorted(self.parts):
            messages.setdefault(message, []).extend(self.parts[message, part])
        return "\n".join(map("".join, messages.values()))


class Reads(Protocol):
    """What a dialect brings: how its documents and events change the account."""

    def document(self, account: Account, document: Fields) -> None: ...

    def event(self, account: Account, name: str, document: Fields) -> None:
        """*name* is the event's own, "" without one. Events with data of [DONE] never come here."""


def reader(content_type: str, dialect: Reads, limit: int = MAX_ANSWER_BYTES) -> ReadsAnswer | None:
    """A reader for this content type; None unless it is JSON or an event stream. An answer of more than
    *limit* bytes is not complete."""
    media = content_type.partition(";")[0].strip().lower()
    if media == "text/event-stream":
        return EventReader(dialect, limit)
    if media == "application/json" or (media.startswith("application/") and media.endswith("+json")):
        return DocumentReader(dialect, limit)
    return None


def _answer(account: Account) -> Answer:
    text = account.text()
    # Servers without a reasoning parser leave the model's thoughts in front of its answer.
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
    """An answer that comes as server-sent events."""

    def __init__(self, dialect: Reads, limit: int) -> None:
        self._dialect = dialect
        self._limit = limit
        self._stream = EventStream()
        self._account = Account()
        self._seen = 0
        self._unreadable = False  # something was lost, so that the text may have a gap

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
                self._take(self._account, event)
        except BadBodyError:
            self._unreadable = True

    def answer(self) -> Answer:
        account = copy.deepcopy(self._account)
        unreadable = self._unreadable
        if not unreadable and (event := copy.deepcopy(self._stream).remainder()):
            try:
                self._take(account, event)
            except BadBodyError:
                unreadable = not account.complete  # a cut-off event behind the end takes nothing away
        answer = _answer(account)
        return replace(answer, complete=False) if unreadable else answer

    def _take(self, account: Account, event: Event) -> None:
        if account.ended:
            return
        data = event.data.strip()
        if data == b"[DONE]":
            account.ended = account.complete = True
        elif data:
            document = fields.parse(data)
            if event.name == "error" or document.get("error"):
                account.fail()
            else:
                self._dialect.event(account, event.name, document)


class DocumentReader:
    """An answer that comes as one JSON document."""

    def __init__(self, dialect: Reads, limit: int) -> None:
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
            document = fields.parse(bytes(self._body))
        except BadBodyError:
            return Answer()
        if document.get("error"):
            account.fail()
        else:
            self._dialect.document(account, document)
        return _answer(account)


class _DocumentEnd:
    """Sees the bracket that closes a JSON document go by, a chunk at a time."""

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
