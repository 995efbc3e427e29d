"""The block's place in a list of messages, as edits. What stands before it is never touched."""

from __future__ import annotations

from collections.abc import Sequence

from memory_extproc.dialect import spans
from memory_extproc.dialect.base import ChatRequest, Edit, Placing
from memory_extproc.dialect.spans import Span

_GAP = "\n\n"  # between the client's words and the block in one string


def member_span(body: bytes, name: str) -> Span | None:
    """The value of the body's effective member *name*."""
    found = spans.effective(spans.members(body, spans.root(body)), name)
    return Span(found.value, found.end) if found else None


def user_messages(request: ChatRequest, messages: Span, blocks: Sequence[Placing]) -> list[Span | None]:
    """The user message of each of *blocks*; None where the conversation does not reach back so far."""
    last = len(request.user_at) - 1
    indexes = [request.user_at[last - one.back] if 0 <= one.back <= last else None for one in blocks]
    found = spans.elements(request.body, messages, {index for index in indexes if index is not None})
    return [None if index is None else found[index] for index in indexes]


def after_message(message: Span, new: bytes) -> Sequence[Edit]:
    """*new* as a message of its own, right after *message*."""
    return (Edit(message.end, message.end, b"," + new),)


def in_message(body: bytes, message: Span, block: str, part: str) -> Sequence[Edit]:
    """The block at the end of *message*: in its string, or as one more part of type *part* after the client's
    last. Empty when the message's content is neither string nor list."""
    content = spans.effective(spans.members(body, message.start), "content")
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
