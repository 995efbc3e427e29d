"""The beginning of a conversation replaced by what stands for it, as edits. Pure.

The cut is always in front of a user's message. System messages stay where they are, tool definitions stand
elsewhere in the body; a tool's result is never kept without the call it answers, nor a call dropped whose result is
kept or still to come. What stays, stays byte for byte; what comes in its place is a user's message and the
assistant's word that it read it, so that roles go on alternating, as many chat templates insist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from memory_extproc.dialect import fields, placing, spans
from memory_extproc.dialect.base import ChatRequest, Edit

READ = "Understood."  # the assistant's word
_LISTS = {"chat_completions": "messages", "messages": "messages", "responses": "input"}
_SYSTEM = frozenset({"system", "developer"})
_CHAT = frozenset({"user", "assistant", "tool", "function"})
_ITEM_ENDS = ("_call", "_call_output", "_output", "message", "reasoning")


_TRIES = 64  # places looked at for a cut, from the latest on


def latest_cut(dialect: str, request: ChatRequest, keep_from: int) -> int:
    """The user message, *keep_from* or the last one before it, in front of which nothing is torn apart; 0: there is
    none."""
    items = fields.parse(request.body).get(_LISTS[dialect])
    if not isinstance(items, list):
        return 0
    places = range(min(keep_from, len(request.user_at) - 1), 0, -1)[:_TRIES]
    return next((place for place in places if _whole(items, request.user_at[place])), 0)


def shortened(dialect: str, request: ChatRequest, keep_from: int, instead: str) -> Sequence[Edit]:
    """The edits that put *instead* in the place of all but system messages before the user message *keep_from*
    (counted as `user_at` does); none where that cannot be done without tearing something apart."""
    body = request.body
    found = placing.member_span(body, _LISTS[dialect])
    if found is None or body[found.start : found.start + 1] != b"[" or not 0 < keep_from < len(request.user_at):
        return ()
    items = fields.parse(body).get(_LISTS[dialect])
    cut = request.user_at[keep_from]
    if not isinstance(items, list) or cut >= len(items) or not _whole(items, cut):
        return ()
    runs = list(_runs(items[:cut]))
    if not runs:
        return ()
    at = spans.elements(body, found, range(cut))
    pair = b'{"role":"user","content":' + spans.quoted(instead) + b'},{"role":"assistant","content":'
    pair += spans.quoted(READ) + b"}"
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
