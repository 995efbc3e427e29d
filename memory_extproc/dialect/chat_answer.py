"""Answers of /v1/chat/completions, from OpenAI and the many servers that speak like it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memory_extproc.dialect import usage
from memory_extproc.dialect.answers import Account
from memory_extproc.dialect.fields import Fields


class ChatAnswer:
    """The answer is the choice of index 0; the others, and what a model thought, are not read."""

    def document(self, account: Account, document: Fields) -> None:
        if document.get("object") == "error":
            account.fail()
            return
        _identify(account, document)
        for choice in _first_choices(document):
            _say(account, choice.get("message"))
            _finish(account, choice.get("finish_reason"))
            account.complete = True

    def event(self, account: Account, name: str, document: Fields) -> None:  # noqa: ARG002  # its events have none
        if document.get("object") == "error":
            account.fail()
            return
        _identify(account, document)
        for choice in _first_choices(document):
            if isinstance(choice.get("delta"), dict):
                _say(account, choice["delta"])
            elif not account.parts:  # a few servers stream one whole message
                _say(account, choice.get("message"))
            _finish(account, choice.get("finish_reason"))


def _identify(account: Account, document: Fields) -> None:
    usage.note(account, document.get("usage"))  # of a stream in its last chunk, which has no choices
    identifier = document.get("id")
    if isinstance(identifier, str) and identifier:
        account.response_id = account.response_id or identifier


def _first_choices(document: Fields) -> Iterator[dict[str, Any]]:
    """The choice of index 0, if this document has it: usage chunks have none, the index may be left out."""
    choices = document.get("choices")
    for position, choice in enumerate(choices if isinstance(choices, list) else ()):
        if isinstance(choice, dict) and (choice.get("index") or (0 if "index" in choice else position)) == 0:
            yield choice


def _say(account: Account, message: Any) -> None:
    if not isinstance(message, dict):
        return
    content = message.get("content")
    account.add(content)
    for part in content if isinstance(content, list) else ():  # text beside parts of thinking
        if isinstance(part, dict) and part.get("type") == "text":
            account.add(part.get("text"))
    if isinstance(audio := message.get("audio"), dict):
        account.add(audio.get("transcript"))  # what a model that answers in sound has said
    account.refused = account.refused or bool(message.get("refusal"))
    account.called_tools = account.called_tools or bool(message.get("tool_calls") or message.get("function_call"))


def _finish(account: Account, reason: Any) -> None:
    """Any reason is an end, with or without [DONE] behind it; an empty one is how some say "not yet"."""
    match reason:
        case None | "":
            return
        case "length":
            account.truncated = True
        case "content_filter":
            account.refused = True
        case "tool_calls" | "function_call":
            account.called_tools = True
        case "error":
            account.fail()
            return
    account.complete = True
