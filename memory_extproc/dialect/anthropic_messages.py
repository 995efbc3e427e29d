"""Anthropic's /v1/messages: requests. The system prompt stands apart, tool results in user messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memory_extproc.dialect import base, json_spans
from memory_extproc.dialect.base import Account, AnswerReader, ChatRequest, Placing
from memory_extproc.dialect.json_spans import Edit, Fields
from memory_extproc.dialect.messages import (
    Author,
    AuthoredText,
    beginning_of,
    in_message,
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
from memory_extproc.text.words import estimate_tokens

_AUTHORS = {"user": Author.USER, "assistant": Author.ASSISTANT, "system": Author.SYSTEM}
_TEXT_PARTS = frozenset({"text"})
# Coding agents insert reminders into the user's message, each as a text block of this shape.
_REMINDER = ("<system-reminder>", "</system-reminder>")


class Anthropic:
    name = "messages"

    def read(self, body: bytes) -> ChatRequest:
        parsed = json_spans.parse(body)
        if parsed.get("messages") is None:
            raise json_spans.type_error("messages", "list", None)
        messages = json_spans.items(parsed, "messages")
        talk = survey([_parse_message(message, index) for index, message in enumerate(messages)])
        system = text_of(parsed.get("system"), "system", _TEXT_PARTS)
        max_tokens = json_spans.whole(parsed, "max_tokens")
        return ChatRequest(
            body=body,
            model=json_spans.string(parsed, "model"),
            history=talk.history,
            asked=talk.asked,
            user_at=talk.user_at,
            ends_in_tool_result=talk.ends_in_tool_result,
            tools=bool(json_spans.items(parsed, "tools")),
            system=beginning_of((system, talk.system)),
            has_system=talk.has_system or bool(system),
            stream=bool(json_spans.flag(parsed, "stream")),
            max_tokens=max_tokens if max_tokens is None or max_tokens >= 0 else None,
            prompt_tokens=tokens_of(messages) + estimate_tokens(system) + weigh(parsed.get("tools") or []),
            controls=read_controls(parsed),
            removals=removals_from(body, parsed),
        )

    def place(self, request: ChatRequest, blocks: Sequence[Placing]) -> Sequence[Sequence[Edit]]:
        """Place blocks at the end of the user's message, after tool results and the client's last part.

        So no cache_control marker of the client moves; ours has none (at most four are allowed). This API has no
        late system messages."""
        messages = member_span(request.body, "messages")
        if messages is None:
            return [()] * len(blocks)
        found = user_messages(request, messages, blocks)
        return [
            () if at is None else in_message(request.body, at, one.block, "text")
            for one, at in zip(blocks, found, strict=True)
        ]

    def reader(self, content_type: str) -> AnswerReader | None:
        return base.reader(content_type, AnthropicAnswer())


def _parse_message(message: Any, index: int) -> AuthoredText:
    path = f"messages[{index}]"
    if not isinstance(message, dict):
        raise json_spans.type_error(path, "object", message)
    author = _AUTHORS.get(json_spans.string(message, "role", f"{path}."), Author.OTHER)
    if author is Author.OTHER:
        return AuthoredText(author, "")
    content = message.get("content")
    if author is Author.USER and isinstance(content, list):
        return _said_in_blocks(content, f"{path}.content")
    return AuthoredText(author, text_of(content, f"{path}.content", _TEXT_PARTS))


def _said_in_blocks(content: list[Any], path: str) -> AuthoredText:
    """A user message of blocks. Tool results without text count as the tool's message."""
    kinds = [kind_of(part, f"{path}[{index}]") for index, part in enumerate(content)]
    own = [part for part in content if not _is_reminder(part)]
    text = text_of(own, path, _TEXT_PARTS)
    if any(kind.endswith("tool_result") for kind in kinds) and not text:
        return AuthoredText(Author.TOOL, "")
    return AuthoredText(Author.USER, text)


def _is_reminder(part: Any) -> bool:
    text = part.get("text")
    return isinstance(text, str) and text.startswith(_REMINDER[0]) and text.rstrip().endswith(_REMINDER[1])


# Responses of /v1/messages.


class AnthropicAnswer:
    """Text blocks are concatenated, because citations split sentences. Thinking is not read."""

    def document(self, account: Account, document: Fields) -> None:
        _identify(account, document)
        base.note_parted(account, document.get("usage"))
        content = document.get("content")
        for index, block in enumerate(content if isinstance(content, list) else ()):
            _begin(account, block, index)
        _stop(account, document.get("stop_reason"))
        account.complete = isinstance(content, list) and document.get("type", "message") == "message"

    def event(self, account: Account, name: str, document: Fields) -> None:
        match document.get("type") or name:
            case "message_start":
                _begin_message(account, document.get("message"))
            case "content_block_start":
                _begin(account, document.get("content_block"), _index(document))
            case "content_block_delta":
                delta = document.get("delta")
                if isinstance(delta, dict) and delta.get("type") == "text_delta":
                    account.add(delta.get("text"), (0, _index(document)))
            case "message_delta":
                delta = document.get("delta")
                _stop(account, delta.get("stop_reason") if isinstance(delta, dict) else None)
                base.note_parted(account, document.get("usage"))
            case "message_stop":
                account.ended = account.complete = True


def _begin_message(account: Account, message: Any) -> None:
    _identify(account, message)
    base.note_parted(account, message.get("usage") if isinstance(message, dict) else None)


def _identify(account: Account, message: Any) -> None:
    identifier = message.get("id") if isinstance(message, dict) else None
    if isinstance(identifier, str):
        account.response_id = identifier


def _begin(account: Account, block: Any, index: int) -> None:
    if not isinstance(block, dict):
        return
    match block.get("type"):
        case "text":
            account.add(block.get("text"), (0, index))
        case "tool_use":
            account.called_tools = True


def _index(document: Fields) -> int:
    index = document.get("index")
    return index if isinstance(index, int) else 0


def _stop(account: Account, reason: Any) -> None:
    match reason:
        case "max_tokens" | "model_context_window_exceeded":
            account.truncated = True
        case "refusal":
            account.refused = True
        case "tool_use":
            account.called_tools = True
