"""Embeds at an OpenAI-compatible endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import openai

from memory_extproc.errors import GiveUpError
from memory_extproc.inference.openai_endpoint import CallError, CallOutcome, Endpoint
from memory_extproc.inference.query_cache import QueryCache
from memory_extproc.inference.vectors import of_unit_length, readable
from memory_extproc.model import Matrix, Vector

BATCH = 64  # texts in one request
_LONGEST_NUMBER = 32  # bytes of JSON


def longest_answer(dimension: int) -> int:
    """Bytes that an answer to one request may have, whatever is written around its numbers."""
    return (1 << 20) + BATCH * dimension * _LONGEST_NUMBER


@dataclass(frozen=True, slots=True)
class RemoteEmbedderLimits:
    dimension: int
    ask_dimension: bool = False  # send `dimensions`: only models that can shorten their vectors take it
    batch: int = BATCH
    # What one text may be: endpoints answer 400 beyond the model's window, whose tokenizer we do not know.
    longest_text: int = 8192  # characters
    max_tokens: int = 512  # of the model's window, which no endpoint tells: few have less
    cached_queries: int = 4096  # vectors held, of the questions asked last


class _Row(msgspec.Struct):
    index: int
    embedding: list[float]


class _Answer(msgspec.Struct):
    data: list[_Row]


class OpenAIEmbedder:
    """Implements ports.Embeds. A blank text is not sent, because endpoints refuse it: it gets the first axis."""

    def __init__(self, endpoint: Endpoint, limits: RemoteEmbedderLimits) -> None:
        self._endpoint = endpoint
        self._limits = limits
        self._cache = QueryCache(limits.cached_queries)

    @property
    def fingerprint(self) -> str:
        """Without the address: the same model may move."""
        return f"{self._endpoint.limits.model}/openai/{self._limits.dimension}"

    @property
    def dimension(self) -> int:
        return self._limits.dimension

    @property
    def max_tokens(self) -> int:
        return self._limits.max_tokens

    async def close(self) -> None:
        await self._endpoint.close()

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """GiveUpError when the endpoint's vectors have another dimension than configured."""
        rows: Matrix = np.zeros((len(texts), self.dimension), dtype=np.float32)
        sent = [
            (row, cut)
            for row, text in enumerate(texts)
            if (cut := readable(text, self._limits.longest_text)).strip()
        ]
        for start in range(0, len(sent), self._limits.batch):
            part = sent[start : start + self._limits.batch]
            rows[[row for row, _ in part]] = await self._request([text for _, text in part])
        return of_unit_length(rows)

    async def embed_query(self, text: str) -> Vector:
        """The vector is read-only: it may be another caller's too."""
        text = readable(text, self._limits.longest_text)
        cached = self._cache.find(text)
        if cached is not None:
            return cached
        return self._cache.keep(text, (await self.embed([text]))[0])

    async def _request(self, texts: list[str]) -> Matrix:
        found = await self._endpoint.call(lambda: self._ask(texts))
        if found.shape[1] != self.dimension:
            fault = f"the endpoint's vectors have {found.shape[1]} dimensions, configured are {self.dimension}"
            raise GiveUpError(fault)
        return found

    async def _ask(self, texts: list[str]) -> Matrix:
        raw = await self._endpoint.client.embeddings.with_raw_response.create(
            model=self._endpoint.limits.model,
            input=texts,
            encoding_format="float",
            dimensions=self.dimension if self._limits.ask_dimension else openai.omit,
            extra_headers=self._endpoint.headers,
        )
        answer = msgspec.json.decode(raw.http_response.content, type=_Answer)
        rows = {row.index: row.embedding for row in answer.data}
        lengths = {len(row) for row in rows.values()}
        if rows.keys() != set(range(len(texts))) or len(lengths) != 1:
            raise CallError(CallOutcome.MALFORMED)
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and of_unit_length minds that
            return np.array([rows[at] for at in range(len(texts))], dtype=np.float32)
