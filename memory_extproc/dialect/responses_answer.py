"""Answers of /v1/responses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from memory_extproc.dialect import usage
from memory_extproc.dialect.answers import Account
from memory_extproc.dialect.fields import Fields

# Calls that the client must answer; a provider's own tools (web search and the like) run within the answer.
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
    """Every message of the output is part of the answer; reasoning items are not."""

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
    """Takes the response object that ends a stream or is the whole answer."""
    if not isinstance(response, dict):
        return
    _identify(account, response)
    usage.note(account, response.get("usage"))
    output = response.get("output")
    streamed = bool(account.parts)
    for index, item in enumerate(output if isinstance(output, list) else ()):
        _note_item(account, item)
        if not streamed:
            for at, part in enumerate(_parts(item)):
                account.add(part.get("text") if part.get("type") == "output_text" else None, (index, at))
    match response.get("status"):
        # In the background the answer is fetched later, by requests that are no chats. What was asked is known now,
        # and the response can be continued from.
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
    """Which message of the output, which part of it; both are 0 where the server does not say."""
    output, content = document.get("output_index"), document.get("content_index")
    return (output if isinstance(output, int) else 0, content if isinstance(content, int) else 0)
