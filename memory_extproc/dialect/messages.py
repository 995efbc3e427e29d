"""A list of messages as every dialect sees it: who said what, what was asked last, what came before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from memory_extproc.dialect import json_spans
from memory_extproc.dialect.base import ChatRequest, Edit, Placing
from memory_extproc.dialect.json_spans import Span
from memory_extproc.model import Message, Role
from memory_extproc.text.words import estimate_tokens


class Author(Enum):
    USER = auto()
    ASSISTANT = auto()
    TOOL = auto()  # answers a tool call
    SYSTEM = auto()
    OTHER = auto()  # a role or kind of item we do not know; it passes


class Said(NamedTuple):
    """One message: its author and its text, "" where it has none."""

    author: Author
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    history: tuple[Message, ...] = field(repr=False)  # user and assistant texts before *asked*, oldest first
    asked: str = field(repr=False)
    user_at: tuple[int, ...]  # positions of the user messages of history, then of *asked*
    ends_in_tool_result: bool
    system: str = field(repr=False)  # beginning of what system messages say, one per line
    has_system: bool


LONGEST_SYSTEM = 2_000  # characters
_HISTORY = {Author.USER: Role.USER, Author.ASSISTANT: Role.ASSISTANT}


def survey(said: Sequence[Said]) -> Conversation:
    """Finds the last user-authored message and what stands before it, in one pass each way."""
    last = next((at for at in range(len(said) - 1, -1, -1) if said[at].author is Author.USER), -1)
    before = said[:last] if last >= 0 else ()
    earlier = [at for at, message in enumerate(before) if message.author is Author.USER and message.text]
    # Clients add reminders of role system behind a tool's result; the loop is still running.
    ending = next((m.author for m in reversed(said) if m.author is not Author.SYSTEM), None)
    return Conversation(
        history=tuple(Message(_HISTORY[m.author], m.text) for m in before if m.text and m.author in _HISTORY),
        asked=said[last].text if last >= 0 else "",
        user_at=(*earlier, last) if last >= 0 else (),
        ends_in_tool_result=ending is Author.TOOL,
        system=beginning_of(m.text for m in said if m.author is Author.SYSTEM),
        has_system=any(m.author is Author.SYSTEM for m in said),
    )


def beginning_of(instructions: Iterable[str]) -> str:
    """What is kept of the client's instructions to the model, given in parts: enough to tell what kind of call
    it is."""
    beginning = ""
    for text in instructions:
        if len(beginning) >= LONGEST_SYSTEM:
            break
        if text:
            beginning += f"\n{text[:LONGEST_SYSTEM]}" if beginning else text[:LONGEST_SYSTEM]
    return beginning[:LONGEST_SYSTEM]


def text_of(content: Any, path: str, kinds: Collection[str]) -> str:
    """The text of a message's content: the string itself, or its parts of *kinds* one per line; "" for null
    and for pictures and the like."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise json_spans.wrong(path, "string or list", content)
    return "\n".join(
        text
        for index, part in enumerate(content)
        if kind_of(part, f"{path}[{index}]") in kinds
        and (text := json_spans.string(part, "text", f"{path}[{index}]."))
    )


def kind_of(part: Any, path: str) -> str:
    """The type of a content part or item; "" where it names none."""
    if not isinstance(part, dict):
        raise json_spans.wrong(path, "object", part)
    return json_spans.string(part, "type", f"{path}.")


def tokens_of(messages: Sequence[Any]) -> int:
    """Estimated tokens of a list of messages or items, whatever they hold."""
    total = PER_MESSAGE * len(messages)
    for message in messages:
        content = message.get("content") if len(message) == 2 else None  # noqa: PLR2004  # role and content
        total += estimate_tokens(content) if isinstance(content, str) else weigh(message)
    return total


# --- placing -----------------------------------------------------------------------------------------
# The block's place in a list of messages, as edits. What stands before it is never touched.

_GAP = "\n\n"  # between the client's words and the block in one string


def member_span(body: bytes, name: str) -> Span | None:
    """The value of the body's effective member *name*."""
    found = json_spans.effective(json_spans.members(body, json_spans.root(body)), name)
    return Span(found.value, found.end) if found else None


def user_messages(request: ChatRequest, messages: Span, blocks: Sequence[Placing]) -> list[Span | None]:
    """The user message of each of *blocks*; None where the conversation does not reach back so far."""
    last = len(request.user_at) - 1
    indexes = [request.user_at[last - one.back] if 0 <= one.back <= last else None for one in blocks]
    found = json_spans.elements(request.body, messages, {index for index in indexes if index is not None})
    return [None if index is None else found[index] for index in indexes]


def after_message(message: Span, new: bytes) -> Sequence[Edit]:
    """*new* as a message of its own, right after *message*."""
    return (Edit(message.end, message.end, b"," + new),)


def in_message(body: bytes, message: Span, block: str, part: str) -> Sequence[Edit]:
    """The block at the end of *message*: in its string, or as one more part of type *part* after the client's
    last. Empty when the message's content is neither string nor list."""
    content = json_spans.effective(json_spans.members(body, message.start), "content")
    if content is None:
        return ()
    span = Span(content.value, content.end)
    match body[span.start : span.start + 1]:
        case b'"':
            return (in_string(span, block),)
        case b"[":
            new = b'{"type":' + json_spans.quote_json(part) + b',"text":' + json_spans.quote_json(block) + b"}"
            return (json_spans.append_element(body, span, new),)
    return ()


def in_string(string: Span, block: str) -> Edit:
    """The block at the end of a JSON string, apart from the words before it."""
    empty = string.end - string.start == len(b'""')
    return json_spans.append_text(string, block if empty else _GAP + block)


# --- shortening --------------------------------------------------------------------------------------
# The beginning of a conversation replaced by what stands for it, as edits. Pure.
#
# The cut is always in front of a user's message. System messages stay where they are, tool definitions stand
# elsewhere in the body; a tool's result is never kept without the call it answers, nor a call dropped whose
# result is kept or still to come. What stays, stays byte for byte; what comes in its place is a user's message
# and the assistant's word that it read it, so that roles go on alternating, as many chat templates insist.

READ = "Understood."  # the assistant's word
_LISTS = {"chat_completions": "messages", "messages": "messages", "responses": "input"}
_SYSTEM = frozenset({"system", "developer"})
_CHAT = frozenset({"user", "assistant", "tool", "function"})
_ITEM_ENDS = ("_call", "_call_output", "_output", "message", "reasoning")


_TRIES = 64  # places looked at for a cut, from the latest on


def latest_cut(dialect: str, request: ChatRequest, keep_from: int) -> int:
    """The user message, *keep_from* or the last one before it, in front of which nothing is torn apart; 0: there is
    none."""
    items = json_spans.parse(request.body).get(_LISTS[dialect])
    if not isinstance(items, list):
        return 0
    places = range(min(keep_from, len(request.user_at) - 1), 0, -1)[:_TRIES]
    return next((place for place in places if _whole(items, request.user_at[place])), 0)


def condense_edits(dialect: str, request: ChatRequest, keep_from: int, instead: str) -> Sequence[Edit]:
    """The edits that put *instead* in the place of all but system messages before the user message *keep_from*
    (counted as `user_at` does); none where that cannot be done without tearing something apart."""
    body = request.body
    found = member_span(body, _LISTS[dialect])
    if found is None or body[found.start : found.start + 1] != b"[" or not 0 < keep_from < len(request.user_at):
        return ()
    items = json_spans.parse(body).get(_LISTS[dialect])
    cut = request.user_at[keep_from]
    if not isinstance(items, list) or cut >= len(items) or not _whole(items, cut):
        return ()
    runs = list(_runs(items[:cut]))
    if not runs:
        return ()
    at = json_spans.elements(body, found, range(cut))
    pair = b'{"role":"user","content":' + json_spans.quote_json(instead) + b'},{"role":"assistant","content":'
    pair += json_spans.quote_json(READ) + b"}"
    (first, last), *others = runs
    edits = [Edit(at[first].start, at[last].end, pair)]
    edits += [Edit(at[begin - 1].end, at[end].end, b"") for begin, end in others]
    return edits


def _runs(items: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """First and last place of each run of items that are no system messages."""
    begin = None
    for place, item in enumerate([*items, None]):
        goes = item is not None and item.get("role") not in _SYSTEM
        if goes and begin is None:
            begin = place
        elif not goes and begin is not None:
            yield begin, place - 1
            begin = None


def _whole(items: Sequence[Any], cut: int) -> bool:
    """Whether all before *cut* is known to us, and no call stands on one side with its result on the other."""
    if not all(isinstance(item, dict) for item in items):
        return False
    if not all(_known(item) for item in items[:cut]):
        return False
    before, dropped = _pending(items[:cut]), {call for item in items[:cut] for call in _calls(item)}
    # Some clients give the calls of every turn the same ids, so which call a result answers is a matter of order.
    return not before.open and not _pending(items[cut:]).unasked & dropped


class _Pending(NamedTuple):
    open: frozenset[str]  # calls without a result
    unasked: frozenset[str]  # results without a call before them


def _pending(items: Sequence[Mapping[str, Any]]) -> _Pending:
    waiting: Counter[str] = Counter()
    unasked: set[str] = set()
    for item in items:
        for call in _answers(item):
            if waiting[call]:
                waiting[call] -= 1
            else:
                unasked.add(call)
        waiting.update(_calls(item))
    return _Pending(frozenset(+waiting), frozenset(unasked))


def _known(item: Mapping[str, Any]) -> bool:
    kind = item.get("type")
    if isinstance(kind, str) and kind:
        return kind.endswith(_ITEM_ENDS)
    return item.get("role") in _CHAT | _SYSTEM


def _calls(item: Mapping[str, Any]) -> Iterator[str]:
    for call in _list(item.get("tool_calls")):
        yield str(call.get("id"))
    if item.get("function_call"):
        yield f"function {item['function_call'].get('name') if isinstance(item['function_call'], dict) else ''}"
    kind = item.get("type")
    if isinstance(kind, str) and kind.endswith("_call") and item.get("call_id"):
        yield str(item["call_id"])
    for part in _list(item.get("content")):
        if part.get("type") == "tool_use":
            yield str(part.get("id"))


def _answers(item: Mapping[str, Any]) -> Iterator[str]:
    if item.get("role") == "tool":
        yield str(item.get("tool_call_id"))
    if item.get("role") == "function":
        yield f"function {item.get('name')}"
    kind = item.get("type")
    if isinstance(kind, str) and kind.endswith("_output") and item.get("call_id"):
        yield str(item["call_id"])
    for part in _list(item.get("content")):
        if part.get("type") == "tool_result":
            yield str(part.get("tool_use_id"))


def _list(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


# --- tokens ------------------------------------------------------------------------------------------
# What a JSON value of a request weighs in tokens, text and all else, by the estimate of language.tokens.

PER_MESSAGE = 4  # role and delimiters of a chat template

# A picture, a file or a signature is not read as text; providers bill a picture at 85 to about 1,600 tokens.
_BLOB = 1_000
_BLOB_FIELDS = frozenset(
    {"data", "url", "image_url", "file_data", "b64_json", "signature", "encrypted_content", "result"}
)
_LONG = 4_000  # characters without a space: what is shorter or has one is a link or words and counts as it is


def weigh(value: Any) -> int:
    """Tokens of a JSON value with its keys, for messages of parts, tool calls, tool schemas."""
    if isinstance(value, str):
        return estimate_tokens(value)
    if isinstance(value, dict):
        return sum(1 + _weigh_field(name, inner) for name, inner in value.items())
    if isinstance(value, list):
        return sum(map(weigh, value))
    return 1


def _weigh_field(name: str, value: Any) -> int:
    if name in _BLOB_FIELDS and isinstance(value, str) and len(value) > _LONG and " " not in value[:_LONG]:
        return _BLOB
    return estimate_tokens(name) + weigh(value)
