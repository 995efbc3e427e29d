"""Chat completions and embeddings from OpenAI-compatible endpoints, with the parts that each supports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

import msgspec
import numpy as np
import openai

from memory_extproc.errors import MemoryExtprocError, ModelStoppedError, PermanentError
from memory_extproc.inference.batching import QueryCache, of_unit_length, readable
from memory_extproc.inference.openai_client import CallError, CallOutcome, ModelEndpoint, sorted_error
from memory_extproc.model import Matrix, Vector
from memory_extproc.observe.log import logger
from memory_extproc.settings.memory import Embedding, ExternalModel

log = logger(__name__)
_OPENED = re.compile(
    r"\s*(?:<(?:\w{1,16}:)?(?:think|thinking|reasoning|thought)>|\[think\]|\u25c1think\u25b7)", re.IGNORECASE
)
_CLOSED = re.compile(
    r"</(?:\w{1,16}:)?(?:think|thinking|reasoning|thought)>|\[/think\]|\u25c1/think\u25b7", re.IGNORECASE
)
_FENCE = re.compile(r"```[\w-]*\s*\n(.*?)\n?\s*```", re.DOTALL)
_NOT_IMPLEMENTED = 501
_RAISE = 8  # times max_tokens, after the first truncated answer
_MAX_FAILURES = 4  # unusable answers in a row, before calls to the model pause
_PAUSE = 1_800.0  # seconds; afterwards a single failure is enough
_UNUSABLE = frozenset({CallOutcome.CUT_OFF, CallOutcome.EMPTY})
_UNDERSTOOD_NOT = frozenset({400, 422, _NOT_IMPLEMENTED})


class ResponseFormat(StrEnum):
    """The `response_format` of a request, strictest first."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    NONE = "none"


_LOOSER: Mapping[ResponseFormat, ResponseFormat] = {
    ResponseFormat.JSON_SCHEMA: ResponseFormat.JSON_OBJECT,
    ResponseFormat.JSON_OBJECT: ResponseFormat.NONE,
}  # nothing is looser than NONE


@dataclass(frozen=True, slots=True)
class Understood:
    """The parts of the protocol that an endpoint supports; the defaults hold for OpenAI and vLLM."""

    response_format: ResponseFormat = ResponseFormat.JSON_SCHEMA
    limit_key: str = "max_tokens"  # OpenAI's reasoning models only take max_completion_tokens
    temperature: bool = True  # the same models reject it

    def drop_unsupported(self, refused: CallError, *, formatted: bool) -> Self | None:
        """The parts to try after the error *refused*; None when the fault must lie elsewhere."""
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


class _Probe(msgspec.Struct):
    answer: int


class OpenAICompletions:
    """Implements ports.CompletionModel. Parts of the protocol that the endpoint rejects are left out from then on.

    The first truncated answer raises the limit of tokens, for good. After several truncated or empty answers in a
    row despite that, calls pause for half an hour.
    """

    def __init__(self, endpoint: ModelEndpoint, section: ExternalModel) -> None:
        self._endpoint = endpoint
        self._section = section
        self._understood = Understood()
        self._max_tokens, self._highest = section.max_tokens, section.max_tokens * _RAISE
        self._failures, self._resumes_at = 0, 0.0

    async def complete(self, system: str, user: str, *, schema: Mapping[str, Any] | None = None) -> str:
        """PermanentError when the endpoint rejects the request, the model refuses, or an answer with *schema* was
        truncated; ModelStoppedError while calls pause; TransientError for errors that may pass."""
        return await self._complete(system, user, schema, counted=True)

    async def _complete(self, system: str, user: str, schema: Mapping[str, Any] | None, *, counted: bool) -> str:
        if self._failures >= _MAX_FAILURES and self._endpoint.clock() < self._resumes_at:
            self._endpoint.count(CallOutcome.STOPPED)
            raise ModelStoppedError("the model's answers were unusable several times in a row; it is not asked")
        try:
            answer = await self._endpoint.call(lambda: self._negotiate(system, user, schema), counted=counted)
        except MemoryExtprocError as error:
            if isinstance(error.__cause__, CallError) and error.__cause__.outcome in _UNUSABLE:
                self._fail()
            raise
        if self._failures >= _MAX_FAILURES:
            log.info("llm.resumed", role=self._endpoint.role)
        self._failures = 0
        if schema is None or _is_json(answer):
            self._endpoint.set_usable(usable=True)
        return answer

    def _fail(self) -> None:
        self._failures += 1
        if self._failures < _MAX_FAILURES:
            return
        self._resumes_at = self._endpoint.clock() + _PAUSE
        self._endpoint.set_usable(usable=False)
        log.error("llm.stopped", role=self._endpoint.role, max_tokens=self._max_tokens, seconds=_PAUSE)

    async def probe(self) -> None:
        """Ask for a tiny answer, and tell in the log and in a metric whether it can be used."""
        fault = ""
        try:
            answer = await self._complete("Answer in JSON.", "How much is 2 + 2?", _PROBE_SCHEMA, counted=False)
            msgspec.json.decode(answer, type=_Probe)
        except MemoryExtprocError as error:
            fault = str(error)
        except msgspec.DecodeError:
            fault = "the answer is not the JSON that was asked for"
        self._endpoint.set_usable(usable=not fault)
        if fault:
            log.warning("llm.probed", role=self._endpoint.role, usable=False, fault=fault)
        else:
            log.info("llm.probed", role=self._endpoint.role, usable=True)

    async def close(self) -> None:
        await self._endpoint.close()

    async def _negotiate(self, system: str, user: str, schema: Mapping[str, Any] | None) -> str:
        understood, max_tokens = self._understood, self._max_tokens
        cut_off: CallError | None = None
        while True:
            try:
                body = await self._ask(understood, max_tokens, system, user, schema)
            except openai.APIStatusError as error:
                refused = sorted_error(error)
                if cut_off is not None and refused.status in _UNDERSTOOD_NOT:
                    # So much is beyond the model's window: the limit stays as it was configured.
                    self._max_tokens = self._highest = self._section.max_tokens
                    raise cut_off from error
                looser = understood.drop_unsupported(refused, formatted=schema is not None)
                if looser is None:
                    raise refused from error
                understood = looser
            else:
                # only now: the fault may have been the request's own, and then nothing helped
                self._understood = understood
                completion = msgspec.json.decode(body, type=_Completion)
                self._endpoint.count_tokens(*_tokens_of(completion.usage))
                try:
                    return _text(completion, formatted=schema is not None)
                except CallError as error:
                    if error.outcome is not CallOutcome.CUT_OFF or max_tokens >= self._highest:
                        raise
                    cut_off = error
                max_tokens = self._raise_limit()

    def _raise_limit(self) -> int:
        if self._max_tokens < self._highest:
            self._max_tokens = self._highest
            log.warning("llm.limit_raised", role=self._endpoint.role, max_tokens=self._max_tokens)
        return self._max_tokens

    async def _ask(
        self, understood: Understood, max_tokens: int, system: str, user: str, schema: Mapping[str, Any] | None
    ) -> bytes:
        extra: dict[str, Any] = {understood.limit_key: max_tokens}
        if self._section.reasoning_effort:
            extra["reasoning_effort"] = self._section.reasoning_effort
        if understood.temperature:
            extra["temperature"] = self._section.temperature
        if schema is not None:
            if understood.response_format is not ResponseFormat.JSON_SCHEMA:
                system = f"{system}\n\n{_in_words(schema)}"
            if (form := _response_format(understood.response_format, schema)) is not None:
                extra["response_format"] = form
        # The raw body, because the client does not check what it reads.
        raw = await self._endpoint.client.chat.completions.with_raw_response.create(
            model=self._section.llm_model_name,
            messages=[{"role": "system", "content": _valid(system)}, {"role": "user", "content": _valid(user)}],
            stream=False,
            extra_headers=self._endpoint.headers,
            extra_body=self._section.extra_body or None,
            **extra,
        )
        body: bytes = raw.http_response.content
        return body


_PROBE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True


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
    text = without_reasoning(_join_parts(choice.message.content))
    if cut_off and (formatted or not text):
        raise CallError(CallOutcome.CUT_OFF, hollow=not text)
    if not text:
        raise CallError(CallOutcome.EMPTY)
    return without_fence(text) if formatted else text


def _tokens_of(usage: Any) -> tuple[int, int]:
    """Tokens of prompt and answer; 0 where the endpoint counts none."""
    counted = [usage.get(name) if isinstance(usage, dict) else 0 for name in ("prompt_tokens", "completion_tokens")]
    prompt, completion = (one if isinstance(one, int) and one > 0 else 0 for one in counted)
    return prompt, completion


def _join_parts(content: str | Sequence[Any] | None) -> str:
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
    """The content of the Markdown fence around *text*; *text* itself without a fence."""
    fenced = _FENCE.fullmatch(text.strip())
    return fenced[1].strip() if fenced else text


# --- openai embedder ---------------------------------------------------------------------------------
# Embeds at an OpenAI-compatible endpoint.

BATCH = 64  # texts in one request
_LONGEST_NUMBER = 32  # bytes of JSON
# Endpoints answer 400 beyond the model's window, whose tokenizer we do not know.
_LONGEST_TEXT = 8192  # characters


def longest_answer(dimension: int) -> int:
    """Bytes that an answer to a request may have, with all that is written around its numbers."""
    return (1 << 20) + BATCH * dimension * _LONGEST_NUMBER


class _Row(msgspec.Struct):
    index: int
    embedding: list[float]


class _Answer(msgspec.Struct):
    data: list[_Row]


class OpenAIEmbedder:
    """Implements ports.EmbeddingModel. A blank text is not sent, because endpoints refuse it: it gets the first
    axis."""

    max_tokens = 512  # of the model's window, which no endpoint reports: few models have less

    def __init__(self, endpoint: ModelEndpoint, section: Embedding, *, batch: int = BATCH) -> None:
        self._endpoint, self._section = endpoint, section
        self.dimension, self._batch = section.dimension, batch
        self._cache = QueryCache(section.cache)

    @property
    def fingerprint(self) -> str:
        """Without the address: the same model may move."""
        return f"{self._section.model}/openai/{self.dimension}"

    async def close(self) -> None:
        await self._endpoint.close()

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """PermanentError when the endpoint's vectors have another dimension than configured."""
        rows: Matrix = np.zeros((len(texts), self.dimension), dtype=np.float32)
        sent = [(row, cut) for row, text in enumerate(texts) if (cut := readable(text, _LONGEST_TEXT)).strip()]
        for start in range(0, len(sent), self._batch):
            part = sent[start : start + self._batch]
            rows[[row for row, _ in part]] = await self._request([text for _, text in part])
        return of_unit_length(rows)

    async def embed_query(self, text: str) -> Vector:
        """The vector is read-only: it may be another caller's too."""
        text = readable(text, _LONGEST_TEXT)
        cached = self._cache.find(text)
        if cached is not None:
            return cached
        return self._cache.keep(text, (await self.embed([text]))[0])

    async def _request(self, texts: list[str]) -> Matrix:
        found = await self._endpoint.call(lambda: self._ask(texts))
        if found.shape[1] != self.dimension:
            fault = f"the endpoint's vectors have {found.shape[1]} dimensions, configured are {self.dimension}"
            raise PermanentError(fault)
        return found

    async def _ask(self, texts: list[str]) -> Matrix:
        raw = await self._endpoint.client.embeddings.with_raw_response.create(
            model=self._section.model,
            input=texts,
            encoding_format="float",
            extra_headers=self._endpoint.headers,
        )
        answer = msgspec.json.decode(raw.http_response.content, type=_Answer)
        rows = {row.index: row.embedding for row in answer.data}
        lengths = {len(row) for row in rows.values()}
        if rows.keys() != set(range(len(texts))) or len(lengths) != 1:
            raise CallError(CallOutcome.MALFORMED)
        with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, which of_unit_length handles
            return np.array([rows[at] for at in range(len(texts))], dtype=np.float32)
