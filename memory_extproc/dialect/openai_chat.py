"""Requests and responses of OpenAI's /v1/chat/completions, which most other servers implement too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memory_extproc.dialect import base, json_spans
from memory_extproc.dialect.base import Account, AnswerReader, ChatRequest, Form, Placing
from memory_extproc.dialect.json_spans import ByteSpan, Edit, Fields
from memory_extproc.dialect.messages import (
    Author,
    AuthoredText,
    after_message,
    in_message,
    member_span,
    read_controls,
    removals_from,
    survey,
    text_of,
    tokens_of,
    user_messages,
    weigh,
)

_AUTHORS = {
    "user": Author.USER,
    "assistant": Author.ASSISTANT,
    "tool": Author.TOOL,
    "function": Author.TOOL,  # the role of tool results before tool_calls existed
    "system": Author.SYSTEM,
    "developer": Author.SYSTEM,
}
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


class ChatCompletions:
    name = "chat_completions"

    def read(self, body: bytes) -> ChatRequest:
        parsed = json_spans.parse(body)
        if parsed.get("messages") is None:
            raise json_spans.type_error("messages", "list", None)
        messages = json_spans.items(parsed, "messages")
        talk = survey([_parse_message(message, index) for index, message in enumerate(messages)])
        return ChatRequest(
            body=body,
            model=json_spans.string(parsed, "model"),
            history=talk.history,
            asked=talk.asked,
            user_at=talk.user_at,
            ends_in_tool_result=talk.ends_in_tool_result,
            tools=bool(json_spans.items(parsed, "tools") or json_spans.items(parsed, "functions")),
            system=talk.system,
            has_system=talk.has_system,
            developer=any(message.get("role") == "developer" for message in messages),
            stream=bool(json_spans.flag(parsed, "stream")),
            max_tokens=_max_tokens(parsed),
            prompt_tokens=tokens_of(messages) + weigh(parsed.get("tools") or parsed.get("functions") or []),
            controls=read_controls(parsed),
            removals=removals_from(body, parsed),
        )

    def place(self, request: ChatRequest, blocks: Sequence[Placing]) -> Sequence[Sequence[Edit]]:
        messages = member_span(request.body, "messages")
        if messages is None:
            return [()] * len(blocks)
        found = user_messages(request, messages, blocks)
        return [_insert_edits(request, at, one) for one, at in zip(blocks, found, strict=True)]

    def reader(self, content_type: str) -> AnswerReader | None:
        return base.reader(content_type, ChatAnswer())


def _insert_edits(request: ChatRequest, at: ByteSpan | None, one: Placing) -> Sequence[Edit]:
    if at is None:
        return ()
    if one.form is Form.USER_SUFFIX:
        return in_message(request.body, at, one.block, "text")
    role = b"developer" if request.developer else b"system"
    return after_message(at, b'{"role":"' + role + b'","content":' + json_spans.quote_json(one.block) + b"}")


def _parse_message(message: Any, index: int) -> AuthoredText:
    if not isinstance(message, dict):
        raise json_spans.type_error(f"messages[{index}]", "object", message)
    role = message.get("role")
    if not isinstance(role, str):
        json_spans.string(message, "role", f"messages[{index}].")
        role = ""
    author = _AUTHORS.get(role, Author.OTHER)
    if author is Author.OTHER:
        return AuthoredText(author, "")
    content = message.get("content")
    if isinstance(content, str):  # nearly every message of a long conversation
        return AuthoredText(author, content)
    return AuthoredText(author, text_of(content, f"messages[{index}].content", _TEXT_PARTS))


def _max_tokens(parsed: Mapping[str, Any]) -> int | None:
    """The limit of the response. Some servers accept -1 for "no limit"."""
    limit = json_spans.whole(parsed, "max_completion_tokens")
    if limit is None:
        limit = json_spans.whole(parsed, "max_tokens")
    return limit if limit is None or limit >= 0 else None


# Responses of /v1/chat/completions, from OpenAI and compatible servers.


class ChatAnswer:
    """The response is the choice with index 0; other choices and reasoning are not read."""

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
            elif not account.parts:  # a few servers stream a whole message
                _say(account, choice.get("message"))
            _finish(account, choice.get("finish_reason"))


def _identify(account: Account, document: Fields) -> None:
    base.note(account, document.get("usage"))  # of a stream in its last chunk, which has no choices
    identifier = document.get("id")
    if isinstance(identifier, str) and identifier:
        account.response_id = account.response_id or identifier


def _first_choices(document: Fields) -> Iterator[dict[str, Any]]:
    """The choice with index 0, if present: usage chunks have none, and the index may be omitted."""
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
        account.add(audio.get("transcript"))  # the transcript of an audio response
    account.refused = account.refused or bool(message.get("refusal"))
    account.called_tools = account.called_tools or bool(message.get("tool_calls") or message.get("function_call"))


def _finish(account: Account, reason: Any) -> None:
    """Any reason ends the response, with or without [DONE]; some servers send an empty reason for "not yet"."""
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
