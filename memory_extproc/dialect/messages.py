"""Message lists and our own fields, common to all dialects: authors, the last user message, the history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from memory_extproc.dialect import json_spans
from memory_extproc.dialect.base import BodyControls, ChatRequest, Placing
from memory_extproc.dialect.json_spans import ByteSpan, Edit, Fields
from memory_extproc.errors import BadBodyError
from memory_extproc.model import MemoryType, Message, Role
from memory_extproc.text.words import estimate_tokens


class Author(Enum):
    USER = auto()
    ASSISTANT = auto()
    TOOL = auto()  # answers a tool call
    SYSTEM = auto()
    OTHER = auto()  # a role or kind of item we do not know; it passes


class AuthoredText(NamedTuple):
    """A message: its author and its text, "" if it has none."""

    author: Author
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    history: tuple[Message, ...] = field(repr=False)  # user and assistant texts before *asked*, oldest first
    asked: str = field(repr=False)
    user_at: tuple[int, ...]  # positions of the user messages of history, then of *asked*
    ends_in_tool_result: bool
    system: str = field(repr=False)  # beginnings of the system messages, newline-separated
    has_system: bool


LONGEST_SYSTEM = 2_000  # characters
_HISTORY = {Author.USER: Role.USER, Author.ASSISTANT: Role.ASSISTANT}


def survey(said: Sequence[AuthoredText]) -> Conversation:
    """Find the last user message and the history before it, in a pass each way."""
    last = next((at for at in range(len(said) - 1, -1, -1) if said[at].author is Author.USER), -1)
    before = said[:last] if last >= 0 else ()
    earlier = [at for at, message in enumerate(before) if message.author is Author.USER and message.text]
    # Clients append system reminders to a tool result; the tool loop is still running.
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
    """The beginning of the client's instructions, enough to recognise the kind of call."""
    beginning = ""
    for text in instructions:
        if len(beginning) >= LONGEST_SYSTEM:
            break
        if text:
            beginning += f"\n{text[:LONGEST_SYSTEM]}" if beginning else text[:LONGEST_SYSTEM]
    return beginning[:LONGEST_SYSTEM]


def text_of(content: Any, path: str, kinds: Collection[str]) -> str:
    """The text of a message's content: the string, or its parts of *kinds* joined by newlines.

    "" for null and for images and the like."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise json_spans.type_error(path, "string or list", content)
    return "\n".join(
        text
        for index, part in enumerate(content)
        if kind_of(part, f"{path}[{index}]") in kinds
        and (text := json_spans.string(part, "text", f"{path}[{index}]."))
    )


def kind_of(part: Any, path: str) -> str:
    """The type of a content part or item; "" where it names none."""
    if not isinstance(part, dict):
        raise json_spans.type_error(path, "object", part)
    return json_spans.string(part, "type", f"{path}.")


def tokens_of(messages: Sequence[Any]) -> int:
    """Estimated tokens of a list of messages or items of any kind."""
    total = PER_MESSAGE * len(messages)
    for message in messages:
        content = message.get("content") if len(message) == 2 else None  # noqa: PLR2004  # role and content
        total += estimate_tokens(content) if isinstance(content, str) else weigh(message)
    return total


# Placement of the block in a message list, as edits. Earlier bytes never change.

_GAP = "\n\n"  # between the client's text and the block in a string


def member_span(body: bytes, name: str) -> ByteSpan | None:
    """The value of the body's effective member *name*."""
    found = json_spans.effective(json_spans.members(body, json_spans.root(body)), name)
    return ByteSpan(found.value, found.end) if found else None


def user_messages(request: ChatRequest, messages: ByteSpan, blocks: Sequence[Placing]) -> list[ByteSpan | None]:
    """The user message of each block; None if the conversation is shorter."""
    last = len(request.user_at) - 1
    indexes = [request.user_at[last - one.back] if 0 <= one.back <= last else None for one in blocks]
    found = json_spans.elements(request.body, messages, {index for index in indexes if index is not None})
    return [None if index is None else found[index] for index in indexes]


def after_message(message: ByteSpan, new: bytes) -> Sequence[Edit]:
    """Insert *new* as a separate message after *message*."""
    return (Edit(message.end, message.end, b"," + new),)


def in_message(body: bytes, message: ByteSpan, block: str, part: str) -> Sequence[Edit]:
    """Insert the block at the end of *message*: within its string, or as a last part of type *part*.

    Empty if the content is neither string nor list."""
    content = json_spans.effective(json_spans.members(body, message.start), "content")
    if content is None:
        return ()
    span = ByteSpan(content.value, content.end)
    match body[span.start : span.start + 1]:
        case b'"':
            return (in_string(span, block),)
        case b"[":
            new = b'{"type":' + json_spans.quote_json(part) + b',"text":' + json_spans.quote_json(block) + b"}"
            return (json_spans.append_element(body, span, new),)
    return ()


def in_string(string: ByteSpan, block: str) -> Edit:
    """Append the block to a JSON string, separated from the text before it."""
    empty = string.end - string.start == len(b'""')
    return json_spans.append_text(string, block if empty else _GAP + block)


# Truncation: replaces the beginning of a conversation by a condensed state, as edits. Pure functions.
#
# The cut is always before a user message. System messages stay, and tool definitions are elsewhere in the body. A
# tool result is never kept without its call, nor a call dropped whose result is kept or still to come. Kept bytes
# are unchanged. The replacement is a user message and a short assistant message, because many chat templates
# require alternating roles.

READ = "Understood."  # the assistant message
_LISTS = {"chat_completions": "messages", "messages": "messages", "responses": "input"}
_SYSTEM = frozenset({"system", "developer"})
_CHAT = frozenset({"user", "assistant", "tool", "function"})
_ITEM_ENDS = ("_call", "_call_output", "_output", "message", "reasoning")


_TRIES = 64  # places looked at for a cut, from the latest on


def latest_cut(dialect: str, request: ChatRequest, keep_from: int) -> int:
    """The user message at or before *keep_from* at which the conversation can be cut; 0: none."""
    items = json_spans.parse(request.body).get(_LISTS[dialect])
    if not isinstance(items, list):
        return 0
    places = range(min(keep_from, len(request.user_at) - 1), 0, -1)[:_TRIES]
    return next((place for place in places if _whole(items, request.user_at[place])), 0)


def condense_edits(dialect: str, request: ChatRequest, keep_from: int, instead: str) -> Sequence[Edit]:
    """The edits that replace all non-system messages before user message *keep_from* by *instead*.

    *keep_from* counts as in `user_at`. Empty if a cut there would separate a call from its result."""
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
    """First and last index of each run of items that are no system messages."""
    begin = None
    for place, item in enumerate([*items, None]):
        goes = item is not None and item.get("role") not in _SYSTEM
        if goes and begin is None:
            begin = place
        elif not goes and begin is not None:
            yield begin, place - 1
            begin = None


def _whole(items: Sequence[Any], cut: int) -> bool:
    """Whether all items before *cut* are known, and no tool call is separated from its result."""
    if not all(isinstance(item, dict) for item in items):
        return False
    if not all(_is_known_item(item) for item in items[:cut]):
        return False
    before, dropped = _pending(items[:cut]), {call for item in items[:cut] for call in _calls(item)}
    # Some clients reuse call ids in every turn, so results are matched to calls by order.
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


def _is_known_item(item: Mapping[str, Any]) -> bool:
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


# Token estimates of JSON values, by text.words.

PER_MESSAGE = 4  # role and delimiters of a chat template

# Images, files and signatures are not read as text; providers bill an image at 85 to about 1,600 tokens.
_BLOB = 1_000
_BLOB_FIELDS = frozenset(
    {"data", "url", "image_url", "file_data", "b64_json", "signature", "encrypted_content", "result"}
)
_LONG = 4_000  # characters without a space: anything shorter or with a space is a link or text


def weigh(value: Any) -> int:
    """Tokens of a JSON value with its keys: message parts, tool calls, tool schemas."""
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


# Our own fields in the request body: parsing, and the edits that remove them.

NAMES = frozenset({"memory_config", "memory_context", "auto_store"})


def read_controls(body: Fields) -> BodyControls:
    """Parse the client's controls. BadBodyError names the path of an invalid value."""
    if NAMES.isdisjoint(body):
        return BodyControls()
    config = json_spans.section(body, "memory_config")
    context = json_spans.section(body, "memory_context")
    return BodyControls(
        enabled=json_spans.flag(config, "enabled", "memory_config."),
        types=_types(config),
        limit=_limit(config),
        threshold=_threshold(config),
        store=_store(json_spans.flag(config, "auto_store", "memory_config."), json_spans.flag(body, "auto_store")),
        project=json_spans.string(context, "project_id", "memory_context."),
        user=json_spans.string(context, "user_id", "memory_context."),
    )


def removals(body: bytes) -> tuple[Edit, ...]:
    """The edits that remove our fields, duplicates included; none if there are none or the body is no JSON object.

    Also for a body with invalid controls: no upstream knows them."""
    try:
        parsed = json_spans.parse(body)
    except BadBodyError:
        return ()
    return removals_from(body, parsed)


def removals_from(body: bytes, parsed: Fields) -> tuple[Edit, ...]:
    """As `removals`, for a parsed body; free if none of our fields is present."""
    if NAMES.isdisjoint(parsed):
        return ()
    return json_spans.removal(json_spans.members(body, json_spans.root(body)), NAMES)


def _types(config: Fields) -> frozenset[MemoryType] | None:
    if config.get("memory_types") is None:
        return None
    known = {str(kind): kind for kind in MemoryType}
    types = set[MemoryType]()
    for index, name in enumerate(json_spans.items(config, "memory_types", "memory_config.")):
        path = f"memory_config.memory_types[{index}]"
        if not isinstance(name, str):
            raise json_spans.type_error(path, "string", name)
        if name not in known:
            raise BadBodyError(f"{path}: expected one of {', '.join(known)}")
        types.add(known[name])
    return frozenset(types)


def _limit(config: Fields) -> int | None:
    limit = json_spans.whole(config, "retrieval_limit", "memory_config.")
    if limit is not None and limit < 0:
        raise BadBodyError("memory_config.retrieval_limit: expected 0 or more")
    return limit


def _threshold(config: Fields) -> float | None:
    threshold = json_spans.number(config, "similarity_threshold", "memory_config.")
    if threshold is None:
        return None
    if not 0 <= threshold <= 1:
        raise BadBodyError("memory_config.similarity_threshold: expected 0 to 1")
    return float(threshold)


def _store(*said: bool | None) -> bool | None:
    """Combine settings: any "no" wins, because clients can only narrow."""
    if False in said:
        return False
    return True if True in said else None
