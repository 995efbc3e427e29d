"""Answers of /v1/messages."""

from __future__ import annotations

from typing import Any

from memory_extproc.dialect import usage
from memory_extproc.dialect.answers import Account
from memory_extproc.dialect.fields import Fields


class AnthropicAnswer:
    """The text blocks run on: citations cut one sentence into several. Thinking is not read."""

    def document(self, account: Account, document: Fields) -> None:
        _identify(account, document)
        usage.note_parted(account, document.get("usage"))
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
                usage.note_parted(account, document.get("usage"))
            case "message_stop":
                account.ended = account.complete = True


def _begin_message(account: Account, message: Any) -> None:
    _identify(account, message)
    usage.note_parted(account, message.get("usage") if isinstance(message, dict) else None)


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
