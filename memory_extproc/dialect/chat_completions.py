"""OpenAI's /v1/chat/completions, which most other servers speak too: requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memory_extproc.dialect import answers, controls, conversation, fields, placing, spans, tokens
from memory_extproc.dialect.base import ChatRequest, Edit, Form, Placing, ReadsAnswer
from memory_extproc.dialect.chat_answer import ChatAnswer
from memory_extproc.dialect.conversation import Author, Said
from memory_extproc.dialect.spans import Span

_AUTHORS = {
    "user": Author.USER,
    "assistant": Author.ASSISTANT,
    "tool": Author.TOOL,
    "function": Author.TOOL,  # what tools were called before tool_calls
    "system": Author.SYSTEM,
    "developer": Author.SYSTEM,
}
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


class ChatCompletions:
    name = "chat_completions"

    def read(self, body: bytes) -> ChatRequest:
        parsed = fields.parse(body)
        if parsed.get("messages") is None:
            raise fields.wrong("messages", "list", None)
        messages = fields.items(parsed, "messages")
        talk = conversation.survey([_said(message, index) for index, message in enumerate(messages)])
        return ChatRequest(
            body=body,
            model=fields.string(parsed, "model"),
            history=talk.history,
            asked=talk.asked,
            user_at=talk.user_at,
            ends_in_tool_result=talk.ends_in_tool_result,
            tools=bool(fields.items(parsed, "tools") or fields.items(parsed, "functions")),
            system=talk.system,
            has_system=talk.has_system,
            developer=any(message.get("role") == "developer" for message in messages),
            stream=bool(fields.flag(parsed, "stream")),
            max_tokens=_max_tokens(parsed),
            prompt_tokens=conversation.tokens_of(messages)
            + tokens.weigh(parsed.get("tools") or parsed.get("functions") or []),
            controls=controls.read(parsed),
            removals=controls.removals_from(body, parsed),
        )

    def place(self, request: ChatRequest, blocks: Sequence[Placing]) -> Sequence[Sequence[Edit]]:
        messages = placing.member_span(request.body, "messages")
        if messages is None:
            return [()] * len(blocks)
        found = placing.user_messages(request, messages, blocks)
        return [_placed(request, at, one) for one, at in zip(blocks, found, strict=True)]

    def reader(self, content_type: str) -> ReadsAnswer | None:
        return answers.reader(content_type, ChatAnswer())


def _placed(request: ChatRequest, at: Span | None, one: Placing) -> Sequence[Edit]:
    if at is None:
        return ()
    if one.form is Form.USER_SUFFIX:
        return placing.in_message(request.body, at, one.block, "text")
    role = b"developer" if request.developer else b"system"
    return placing.after_message(at, b'{"role":"' + role + b'","content":' + spans.quoted(one.block) + b"}")


def _said(message: Any, index: int) -> Said:
    if not isinstance(message, dict):
        raise fields.wrong(f"messages[{index}]", "object", message)
    role = message.get("role")
    if not isinstance(role, str):
        fields.string(message, "role", f"messages[{index}].")
        role = ""
    author = _AUTHORS.get(role, Author.OTHER)
    if author is Author.OTHER:
        return Said(author, "")
    content = message.get("content")
    if isinstance(content, str):  # nearly every message of a long conversation
        return Said(author, content)
    return Said(author, conversation.text_of(content, f"messages[{index}].content", _TEXT_PARTS))


def _max_tokens(parsed: Mapping[str, Any]) -> int | None:
    """What the answer may take. Some servers write -1 for "no limit"."""
    limit = fields.whole(parsed, "max_completion_tokens")
    if limit is None:
        limit = fields.whole(parsed, "max_tokens")
    return limit if limit is None or limit >= 0 else None
