"""Anthropic's /v1/messages: requests. The system prompt stands apart, tool results in user messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memory_extproc.dialect import answers, controls, conversation, fields, placing, tokens
from memory_extproc.dialect.anthropic_answer import AnthropicAnswer
from memory_extproc.dialect.base import ChatRequest, Edit, Placing, ReadsAnswer
from memory_extproc.dialect.conversation import Author, Said
from memory_extproc.language.tokens import estimate_tokens

_AUTHORS = {"user": Author.USER, "assistant": Author.ASSISTANT, "system": Author.SYSTEM}
_TEXT_PARTS = frozenset({"text"})
# Coding agents put reminders of their own into the user's message, each as a text block of this shape.
_REMINDER = ("<system-reminder>", "</system-reminder>")


class Anthropic:
    name = "messages"

    def read(self, body: bytes) -> ChatRequest:
        parsed = fields.parse(body)
        if parsed.get("messages") is None:
            raise fields.wrong("messages", "list", None)
        messages = fields.items(parsed, "messages")
        talk = conversation.survey([_said(message, index) for index, message in enumerate(messages)])
        system = conversation.text_of(parsed.get("system"), "system", _TEXT_PARTS)
        max_tokens = fields.whole(parsed, "max_tokens")
        return ChatRequest(
            body=body,
            model=fields.string(parsed, "model"),
            history=talk.history,
            asked=talk.asked,
            user_at=talk.user_at,
            ends_in_tool_result=talk.ends_in_tool_result,
            tools=bool(fields.items(parsed, "tools")),
            system=conversation.beginning_of((system, talk.system)),
            has_system=talk.has_system or bool(system),
            stream=bool(fields.flag(parsed, "stream")),
            max_tokens=max_tokens if max_tokens is None or max_tokens >= 0 else None,
            prompt_tokens=conversation.tokens_of(messages)
            + estimate_tokens(system)
            + tokens.weigh(parsed.get("tools") or []),
            controls=controls.read(parsed),
            removals=controls.removals_from(body, parsed),
        )

    def place(self, request: ChatRequest, blocks: Sequence[Placing]) -> Sequence[Sequence[Edit]]:
        """Always at the end of the user's message, behind tool results and behind the client's last part, so
        that no cache_control marker of theirs moves; ours carries none (at most four are allowed). There are
        no late system messages here."""
        messages = placing.member_span(request.body, "messages")
        if messages is None:
            return [()] * len(blocks)
        found = placing.user_messages(request, messages, blocks)
        return [
            () if at is None else placing.in_message(request.body, at, one.block, "text")
            for one, at in zip(blocks, found, strict=True)
        ]

    def reader(self, content_type: str) -> ReadsAnswer | None:
        return answers.reader(content_type, AnthropicAnswer())


def _said(message: Any, index: int) -> Said:
    path = f"messages[{index}]"
    if not isinstance(message, dict):
        raise fields.wrong(path, "object", message)
    author = _AUTHORS.get(fields.string(message, "role", f"{path}."), Author.OTHER)
    if author is Author.OTHER:
        return Said(author, "")
    content = message.get("content")
    if author is Author.USER and isinstance(content, list):
        return _said_in_blocks(content, f"{path}.content")
    return Said(author, conversation.text_of(content, f"{path}.content", _TEXT_PARTS))


def _said_in_blocks(content: list[Any], path: str) -> Said:
    """A user message of blocks. Tool results without words beside them are the tool's message, not a person's."""
    kinds = [conversation.kind_of(part, f"{path}[{index}]") for index, part in enumerate(content)]
    own = [part for part in content if not _is_reminder(part)]
    text = conversation.text_of(own, path, _TEXT_PARTS)
    if any(kind.endswith("tool_result") for kind in kinds) and not text:
        return Said(Author.TOOL, "")
    return Said(Author.USER, text)


def _is_reminder(part: Any) -> bool:
    text = part.get("text")
    return isinstance(text, str) and text.startswith(_REMINDER[0]) and text.rstrip().endswith(_REMINDER[1])
