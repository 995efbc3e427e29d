"""OpenAI's /v1/responses: requests. What was said before may live at the provider, by
previous_response_id or as a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memory_extproc.dialect import answers, controls, conversation, fields, placing, spans, tokens
from memory_extproc.dialect.base import ChatRequest, Edit, Form, Placing, ReadsAnswer
from memory_extproc.dialect.conversation import Author, Said
from memory_extproc.dialect.responses_answer import ResponsesAnswer
from memory_extproc.dialect.spans import Span

_AUTHORS = {
    "user": Author.USER,
    "assistant": Author.ASSISTANT,
    "system": Author.SYSTEM,
    "developer": Author.SYSTEM,
}
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_TOOL_ANSWERS = ("_output", "mcp_approval_response")  # endings of types of items that answer a tool call


class Responses:
    name = "responses"

    def read(self, body: bytes) -> ChatRequest:
        parsed = fields.parse(body)
        items = _items(parsed)
        talk = conversation.survey([_said(item, index) for index, item in enumerate(items)])
        max_tokens = fields.whole(parsed, "max_output_tokens")
        return ChatRequest(
            body=body,
            model=fields.string(parsed, "model"),
            history=talk.history,
            asked=talk.asked,
            user_at=talk.user_at,
            ends_in_tool_result=talk.ends_in_tool_result,
            tools=bool(fields.items(parsed, "tools")),
            system=conversation.beginning_of((_instructions(parsed), talk.system)),
            has_system=talk.has_system or bool(parsed.get("instructions")),
            developer=any(item.get("role") == "developer" for item in items),
            stream=bool(fields.flag(parsed, "stream")),
            max_tokens=max_tokens if max_tokens is None or max_tokens >= 0 else None,
            previous_response_id=fields.string(parsed, "previous_response_id"),
            conversation=_conversation(parsed),
            prompt_tokens=conversation.tokens_of(items)
            + tokens.weigh(parsed.get("instructions") or "")
            + tokens.weigh(parsed.get("tools") or []),
            controls=controls.read(parsed),
            removals=controls.removals_from(body, parsed),
        )

    def place(self, request: ChatRequest, blocks: Sequence[Placing]) -> Sequence[Sequence[Edit]]:
        body = request.body
        value = placing.member_span(body, "input")
        if value is None or not request.user_at:
            return [()] * len(blocks)
        if body[value.start : value.start + 1] == b'"':  # a string stays a string, so there is no message to add
            return [() if one.back else (placing.in_string(value, one.block),) for one in blocks]
        found = placing.user_messages(request, value, blocks)
        return [_placed(request, at, one) for one, at in zip(blocks, found, strict=True)]

    def reader(self, content_type: str) -> ReadsAnswer | None:
        return answers.reader(content_type, ResponsesAnswer())


def _placed(request: ChatRequest, at: Span | None, one: Placing) -> Sequence[Edit]:
    if at is None:
        return ()
    if one.form is Form.USER_SUFFIX:
        return placing.in_message(request.body, at, one.block, "input_text")
    role = b"developer" if request.developer else b"system"
    message = b'{"type":"message","role":"' + role + b'","content":' + spans.quoted(one.block) + b"}"
    return placing.after_message(at, message)


def _conversation(parsed: fields.Fields) -> str:
    """The id of a conversation that the provider keeps, which stands alone or in an object."""
    if isinstance(parsed.get("conversation"), dict):
        return fields.string(fields.section(parsed, "conversation"), "id", "conversation.")
    return fields.string(parsed, "conversation")


def _instructions(parsed: fields.Fields) -> str:
    """Some servers take a list of items here, which says nothing about the kind of call."""
    given = parsed.get("instructions")
    return given if isinstance(given, str) else ""


def _items(parsed: fields.Fields) -> list[Any]:
    """The input as items. A string is one user message; with a stored prompt there may be no input at all."""
    given = parsed.get("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if given is not None and not isinstance(given, list):
        raise fields.wrong("input", "string or list", given)
    return given or []


def _said(item: Any, index: int) -> Said:
    path = f"input[{index}]"
    kind = conversation.kind_of(item, path)
    if kind.endswith(_TOOL_ANSWERS):
        return Said(Author.TOOL, "")
    if kind not in ("", "message"):
        return Said(Author.OTHER, "")
    author = _AUTHORS.get(fields.string(item, "role", f"{path}."), Author.OTHER)
    if author is Author.OTHER:
        return Said(author, "")
    return Said(author, conversation.text_of(item.get("content"), f"{path}.content", _TEXT_PARTS))
