"""The block's place in a list of messages, as edits. What stands before it is never touched."""

from __future__ import annotations

from collections.abc import Sequence

from memory_extproc.dialect import spans
from memory_extproc.dialect.base import Edit
from memory_extproc.dialect.spans import Span

_GAP = "\n\n"  # between the client's words and the block in one string


def member_span(body: bytes, name: str) -> Span | None:
    """The value of the body's effective member *name*."""
    found = spans.effective(spans.members(body, spans.root(body)), name)
    return Span(found.value, found.end) if found else None


def after_message(body: bytes, messages: Span, index: int, message: bytes) -> Sequence[Edit]:
    """*message* as one of its own, right after message *index*."""
    end = spans.element(body, messages, index).end
    return (Edit(end, end, b"," + message),)


def in_message(body: bytes, messages: Span, index: int, block: str, part: str) -> Sequence[Edit]:
    """The block at the end of message *index*: in its string, or as one more part of type *part* after the
    client's last. Empty when the message's content is neither string nor list."""
    start = spans.element(body, messages, index).start
    content = spans.effective(spans.members(body, start), "content")
    if content is None:
        return ()
    span = Span(content.value, content.end)
    match body[span.start : span.start + 1]:
        case b'"':
            return (in_string(span, block),)
        case b"[":
            new = b'{"type":' + spans.quoted(part) + b',"text":' + spans.quoted(block) + b"}"
            return (spans.append_element(body, span, new),)
    return ()


def in_string(string: Span, block: str) -> Edit:
    """The block at the end of a JSON string, apart from the words before it."""
    empty = string.end - string.start == len(b'""')
    return spans.append_text(string, block if empty else _GAP + block)
