"""Requests and responses of OpenAI's /v1/responses.

The provider may store the history, by previous_response_id or as a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from memory_extproc.dialect import base, json_spans
from memory_extproc.dialect.base import Account, AnswerReader, ChatRequest, Form, Placing
from memory_extproc.dialect.json_spans import ByteSpan, Edit, Fields
from memory_extproc.dialect.messages import (
    Author,
    AuthoredText,
    after_message,
    beginning_of,
    in_message,
    in_string,
    kind_of,
    member_span,
    read_controls,
    removals_from,
    survey,
    text_of,
    tokens_of,
    user_messages,
    weigh,
)

_AUTHORS = {"user": Author.USER, "assistant": Author.ASSISTANT, "system": Author.SYSTEM, "developer": Author.SYSTEM}
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_TOOL_ANSWERS = ("_output", "mcp_approval_response")  # endings of types of items that answer a tool call


class Responses:
    name = "responses"

    def read(self, body: bytes) -> ChatRequest:
        parsed = json_spans.parse(body)
        items = _items(parsed)
        talk = survey([_parse_item(item, index) for index, item in enumerate(items)])
        max_tokens = json_spans.whole(parsed, "max_output_tokens")
        return ChatRequest(
            body=body,
            model=json_spans.string(parsed, "model"),
            history=talk.history,
            asked=talk.asked,
            user_at=talk.user_at,
            ends_in_tool_result=talk.ends_in_tool_result,
            tools=bool(json_spans.items(parsed, "tools")),
            system=beginning_of((_instructions(parsed), talk.system)),
            has_system=talk.has_system or bool(parsed.get("instructions")),
            developer=any(item.get("role") == "developer" for item in items),
            stream=bool(json_spans.flag(parsed, "stream")),
            max_tokens=max_tokens if max_tokens is None or max_tokens >= 0 else None,
            previous_response_id=json_spans.string(parsed, "previous_response_id"),
            conversation=_conversation(parsed),
            prompt_tokens=tokens_of(items)
            + weigh(parsed.get("instructions") or "")
            + weigh(parsed.get("tools") or []),
            controls=read_controls(parsed),
            removals=removals_from(body, parsed),
        )

    def place(self, request: ChatRequest, blocks: Sequence[Placing]) -> Sequence[Sequence[Edit]]:
        body = request.body
        value = member_span(body, "input")
        if value is None or not request.user_at:
            return [()] * len(blocks)
        if body[value.start : value.start + 1] == b'"':  # a string stays a string, so there is no message to add
            return [() if one.back else (in_string(value, one.block),) for one in blocks]
        found = user_messages(request, value, blocks)
        return [_insert_edits(request, at, one) for one, at in zip(blocks, found, strict=True)]

    def reader(self, content_type: str) -> AnswerReader | None:
        return base.reader(content_type, ResponsesAnswer())


def _insert_edits(request: ChatRequest, at: ByteSpan | None, one: Placing) -> Sequence[Edit]:
    if at is None:
        return ()
    if one.form is Form.USER_SUFFIX:
        return in_message(request.body, at, one.block, "input_text")
    role = b"developer" if request.developer else b"system"
    message = b'{"type":"message","role":"' + role + b'","content":' + json_spans.quote_json(one.block) + b"}"
    return after_message(at, message)


def _conversation(parsed: json_spans.Fields) -> str:
    """The id of a conversation stored by the provider, as a string or in an object."""
    if isinstance(parsed.get("conversation"), dict):
        return json_spans.string(json_spans.section(parsed, "conversation"), "id", "conversation.")
    return json_spans.string(parsed, "conversation")


def _instructions(parsed: json_spans.Fields) -> str:
    """The instructions as text. Some servers accept a list of items here, which is ignored."""
    given = parsed.get("instructions")
    return given if isinstance(given, str) else ""


def _items(parsed: json_spans.Fields) -> list[Any]:
    """The input as items. A string is a user message; with a stored prompt the input may be absent."""
    given = parsed.get("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if given is not None and not isinstance(given, list):
        raise json_spans.type_error("input", "string or list", given)
    return given or []


def _parse_item(item: Any, index: int) -> AuthoredText:
    path = f"input[{index}]"
    kind = kind_of(item, path)
    if kind.endswith(_TOOL_ANSWERS):
        return AuthoredText(Author.TOOL, "")
    if kind not in ("", "message"):
        return AuthoredText(Author.OTHER, "")
    author = _AUTHORS.get(json_spans.string(item, "role", f"{path}."), Author.OTHER)
    if author is Author.OTHER:
        return AuthoredText(author, "")
    return AuthoredText(author, text_of(item.get("content"), f"{path}.content", _TEXT_PARTS))


# Responses of /v1/responses.

# Calls that the client must answer; a provider's own tools (web search and the like) run within the response.
_CALLS = frozenset(
    {
        "function_call",
        "custom_tool_call",
        "computer_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "mcp_approval_request",
    }
)


class ResponsesAnswer:
    """The response is every output message; reasoning items are not read."""

    def document(self, account: Account, document: Fields) -> None:
        _conclude(account, document)

    def event(self, account: Account, name: str, document: Fields) -> None:
        match document.get("type") or name:
            case "response.output_text.delta":
                account.add(document.get("delta"), _position(document))
            case "response.output_text.done" if _position(document) not in account.parts:
                account.add(document.get("text"), _position(document))
            case "response.refusal.delta" | "response.refusal.done":
                account.refused = True
            case "response.output_item.added" | "response.output_item.done":
                _note_item(account, document.get("item"))
            case "response.created" | "response.in_progress" | "response.queued":
                _identify(account, document.get("response"))
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                account.ended = True
                _conclude(account, document.get("response"))
            case "error":
                account.fail()


def _conclude(account: Account, response: Any) -> None:
    """Process the response object that ends a stream or is the whole response."""
    if not isinstance(response, dict):
        return
    _identify(account, response)
    base.note(account, response.get("usage"))
    output = response.get("output")
    streamed = bool(account.parts)
    for index, item in enumerate(output if isinstance(output, list) else ()):
        _note_item(account, item)
        if not streamed:
            for at, part in enumerate(_parts(item)):
                account.add(part.get("text") if part.get("type") == "output_text" else None, (index, at))
    match response.get("status"):
        # A background response is fetched later, by requests that are no chats. The question is complete now, and
        # the response can be continued from.
        case "completed" | "queued" | "in_progress":
            account.complete = True
        case "incomplete":
            account.complete = True
            _explain(account, response.get("incomplete_details"))
        case "failed" | "cancelled":
            account.fail()


def _explain(account: Account, details: Any) -> None:
    reason = details.get("reason") if isinstance(details, dict) else None
    if reason == "content_filter":
        account.refused = True
    else:
        account.truncated = True


def _identify(account: Account, response: Any) -> None:
    identifier = response.get("id") if isinstance(response, dict) else None
    if isinstance(identifier, str) and identifier:
        account.response_id = identifier


def _note_item(account: Account, item: Any) -> None:
    if isinstance(item, dict):
        kind = item.get("type")
        account.called_tools = account.called_tools or (isinstance(kind, str) and kind in _CALLS)
        account.refused = account.refused or any(part.get("type") == "refusal" for part in _parts(item))


def _parts(item: Any) -> Iterable[dict[str, Any]]:
    content = item.get("content") if isinstance(item, dict) and item.get("type") == "message" else None
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _position(document: Fields) -> tuple[int, int]:
    """Indexes of the output message and of its part; both 0 if absent."""
    output, content = document.get("output_index"), document.get("content_index")
    return (output if isinstance(output, int) else 0, content if isinstance(content, int) else 0)
