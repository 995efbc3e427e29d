"""Asks a language model at an OpenAI-compatible endpoint, whatever parts of the protocol it understands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

import msgspec
import openai

from memory_extproc.inference.openai_endpoint import CallError, CallOutcome, Endpoint, sorted_error

_OPENED = re.compile(r"\s*<(think|thinking|reasoning|thought)>", re.IGNORECASE)
_CLOSED = re.compile(r"</(?:think|thinking|reasoning|thought)>", re.IGNORECASE)
_FENCE = re.compile(r"```[\w-]*\s*\n(.*?)\n?\s*```", re.DOTALL)
_NOT_IMPLEMENTED = 501
_UNDERSTOOD_NOT = frozenset({400, 422, _NOT_IMPLEMENTED})


class ResponseFormat(StrEnum):
    """How an answer's form is asked for, from the strictest to none."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    NONE = "none"


_LOOSER: Mapping[ResponseFormat, ResponseFormat] = {
    ResponseFormat.JSON_SCHEMA: ResponseFormat.JSON_OBJECT,
    ResponseFormat.JSON_OBJECT: ResponseFormat.NONE,
}  # nothing is looser than NONE


@dataclass(frozen=True, slots=True)
class CompletionLimits:
    max_tokens: int = 500  # of one answer, reasoning included
    temperature: float = 0.1  # 0 to 2, as OpenAI counts it


@dataclass(frozen=True, slots=True)
class Understood:
    """What an endpoint was found to understand; the start is what OpenAI and vLLM do."""

    response_format: ResponseFormat = ResponseFormat.JSON_SCHEMA
    limit_key: str = "max_tokens"  # OpenAI's reasoning models only take max_completion_tokens
    temperature: bool = True  # the same models take none

    def without(self, refused: CallError, *, formatted: bool) -> Self | None:
        """What to try next after *refused*; None when the fault must lie elsewhere."""
        if refused.status not in _UNDERSTOOD_NOT:
            return None
        if refused.param == "max_tokens" and self.limit_key == "max_tokens":
            return replace(self, limit_key="max_completion_tokens")
        if refused.param == "temperature" and self.temperature:
            return replace(self, temperature=False)
        if formatted and self.response_format in _LOOSER:
            return replace(self, response_format=_LOOSER[self.response_format])
        return None


class _Message(msgspec.Struct):
    content: str | list[Any] | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: Any = None  # not worth an answer if it is odd


class OpenAICompletions:
    """Implements ports.Completes. What the endpoint does not understand is remembered while we run."""

    def __init__(self, endpoint: Endpoint, limits: CompletionLimits) -> None:
        self._endpoint = endpoint
        self._limits = limits
        self._understood = Understood()

    async def complete(self, system: str, user: str, *, schema: Mapping[str, Any] | None = None) -> str:
        """GiveUpError when the endpoint rejects the request, the model refuses, or an answer with *schema* was
        cut off; TryLaterError for everything that may pass."""
        return await self._endpoint.call(lambda: self._negotiated(system, user, schema))

    async def close(self) -> None:
        await self._endpoint.close()

    async def _negotiated(self, system: str, user: str, schema: Mapping[str, Any] | None) -> str:
        understood = self._understood
        while True:
            try:
                body = await self._ask(understood, system, user, schema)
            except openai.APIStatusError as error:
                refused = sorted_error(error)
                looser = understood.without(refused, formatted=schema is not None)
                if looser is None:
                    raise refused from error
                understood = looser
            else:
                # only now: the fault may have been the request's own, and then nothing helped
                self._understood = understood
                completion = msgspec.json.decode(body, type=_Completion)
                self._endpoint.count_tokens(*_used(completion.usage))
                return _text(completion, formatted=schema is not None)

    async def _ask(self, understood: Understood, system: str, user: str, schema: Mapping[str, Any] | None) -> bytes:
        extra: dict[str, Any] = {understood.limit_key: self._limits.max_tokens}
        if understood.temperature:
            extra["temperature"] = self._limits.temperature
        if schema is not None:
            if understood.response_format is not ResponseFormat.JSON_SCHEMA:
                system = f"{system}\n\n{_in_words(schema)}"
            if (form := _response_format(understood.response_format, schema)) is not None:
                extra["response_format"] = form
        # The raw body, because the client does not check what it reads.
        raw = await self._endpoint.client.chat.completions.with_raw_response.create(
            model=self._endpoint.limits.model,
            messages=[{"role": "system", "content": _valid(system)}, {"role": "user", "content": _valid(user)}],
            stream=False,
            extra_headers=self._endpoint.headers,
            **extra,
        )
        body: bytes = raw.http_response.content
        return body


def _valid(text: str) -> str:
    """Lone surrogates have no UTF-8: they become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _in_words(schema: Mapping[str, Any]) -> str:
    written = msgspec.json.encode(schema).decode()
    return f"Answer with one JSON object that follows this JSON Schema, and with nothing else:\n{written}"


def _response_format(form: ResponseFormat, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    match form:
        case ResponseFormat.JSON_SCHEMA:
            wrapped = {"name": "answer", "strict": True, "schema": schema}
            return {"type": form.value, "json_schema": wrapped}
        case ResponseFormat.JSON_OBJECT:
            return {"type": form.value}
        case ResponseFormat.NONE:
            return None


def _text(completion: _Completion, *, formatted: bool) -> str:
    if not completion.choices:
        raise CallError(CallOutcome.EMPTY)
    choice = completion.choices[0]
    if choice.finish_reason == "content_filter" or (choice.message.refusal and not choice.message.content):
        raise CallError(CallOutcome.REFUSED)
    cut_off = choice.finish_reason == "length"
    text = without_reasoning(_joined(choice.message.content))
    if cut_off and (formatted or not text):
        raise CallError(CallOutcome.CUT_OFF)
    if not text:
        raise CallError(CallOutcome.EMPTY)
    return without_fence(text) if formatted else text


def _used(usage: Any) -> tuple[int, int]:
    """Tokens of prompt and answer; 0 where the endpoint counts none."""
    counted = [usage.get(name) if isinstance(usage, dict) else 0 for name in ("prompt_tokens", "completion_tokens")]
    prompt, completion = (one if isinstance(one, int) and one > 0 else 0 for one in counted)
    return prompt, completion


def _joined(content: str | Sequence[Any] | None) -> str:
    """Some endpoints answer in parts: their texts, in order."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    return "".join(part for part in parts if isinstance(part, str))


def without_reasoning(text: str) -> str:
    """*text* without the reasoning at its start, stripped. A block that never ends hides all of it; one whose
    start stood in the prompt (as some chat templates do) ends at the last closing mark."""
    if not (opened := _OPENED.match(text)):
        closings = list(_CLOSED.finditer(text))
        if closings and not text.lstrip().startswith(("{", "[")):
            text = text[closings[-1].end() :]
        return text.strip()
    while opened is not None:
        closed = _CLOSED.search(text, opened.end())
        text = text[closed.end() :] if closed else ""
        opened = _OPENED.match(text)
    return text.strip()


def without_fence(text: str) -> str:
    """What stands in the one Markdown fence around *text*; *text* itself if there is none."""
    fenced = _FENCE.fullmatch(text.strip())
    return fenced[1].strip() if fenced else text
