"""Reranks in process: a model reads the query together with each text and says how well they go together.

Nogueira and Cho 2019, "Passage Re-ranking with BERT". It sees what two vectors made apart cannot, and costs one
inference for each text; so it is given few of them, and is cut short with the request's deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from memory_extproc.errors import GiveUpError, TryLaterError
from memory_extproc.inference.model_directory import SCORE, TOKENIZER, Manifest, ModelKind, verify
from memory_extproc.inference.onnx_session import (
    CHARACTERS_PER_TOKEN,
    RUNTIME_ERRORS,
    groups,
    open_session,
    padded,
    unusable,
)
from memory_extproc.inference.vectors import readable

Scores = npt.NDArray[np.float32]  # shape (n,), any numbers

_BYTES_PER_TOKEN = 3  # a guess on the low side, to bound how long one inference holds a thread


@dataclass(frozen=True, slots=True)
class CrossEncoderLimits:
    threads: int = 1  # inferences at one time, each on a thread of its own
    batch_tokens: int = 256  # padded tokens of one inference; a longer pair goes alone. 100 µs each in int8
    window: int = 256  # tokens of query and text together, within the model's own; beyond, both are cut
    waiting: int = 64  # calls at one time; beyond it a call is refused with TryLaterError


class ScoresPairs(Protocol):
    """A cross-encoder that blocks while it runs; called from several threads at one time."""

    def cut(self, text: str) -> str:
        """The part that can reach the model, as valid Unicode. Cheap: called on the event loop."""

    def run(self, query: str, texts: Sequence[str], batch_tokens: int) -> Scores:
        """One score per text, in order: any numbers, the higher the better."""


class CrossEncoderModel:
    """The cross-encoder of a prepared directory, used from any thread. Blocks while it runs."""

    def __init__(self, directory: Path, window: int) -> None:
        """Runs it once, because the first run allocates. ModelDirectoryError when the directory is damaged or
        holds no cross-encoder that can be run."""
        self.manifest: Manifest = verify(directory, ModelKind.CROSS_ENCODER)
        longest = min(window, self.manifest.max_seq_length)
        self._tokenizer = Tokenizer.from_file(str(directory / TOKENIZER))
        self._tokenizer.no_padding()
        # The longer side first, as the models were trained; neither side is ever cut away whole.
        self._tokenizer.enable_truncation(longest, strategy="longest_first")
        self._longest = longest * CHARACTERS_PER_TOKEN
        try:
            self._session = open_session(directory)
            self._inputs = {entry.name for entry in self._session.get_inputs()}
            self.run("What is remembered?", ["This is.", "And that is, too."], batch_tokens=1000)
        except RUNTIME_ERRORS as error:
            raise unusable(directory, error) from error

    def cut(self, text: str) -> str:
        return readable(text, self._longest)

    def run(self, query: str, texts: Sequence[str], batch_tokens: int) -> Scores:
        # one by one: a batch would be spread over the tokenizer's own threads, one for each core
        pairs = [self._tokenizer.encode_batch_fast([(query, text)])[0] for text in texts]
        scores: Scores = np.empty(len(texts), dtype=np.float32)
        for group in groups([len(pair.ids) for pair in pairs], batch_tokens):
            ids, mask = padded([pairs[at].ids for at in group])
            feed = {"input_ids": ids, "attention_mask": mask}
            if "token_type_ids" in self._inputs:
                feed["token_type_ids"] = padded([pairs[at].type_ids for at in group])[0]
            scores[group] = self._session.run([SCORE], feed)[0]
        return scores


class CrossEncoder:
    """Implements ports.Reranks over a model in this process. Used on one event loop, closed by `close`."""

    def __init__(self, model: ScoresPairs, limits: CrossEncoderLimits) -> None:
        self._model, self._limits = model, limits
        self._pool = ThreadPoolExecutor(limits.threads, thread_name_prefix="rerank")
        self._calls = 0
        self._closed = False

    async def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """The highest of *texts* is 1.0 and the lowest 0.0; all alike are 0.5. A call that is cancelled leaves
        undone what no thread has begun."""
        if self._closed:
            raise TryLaterError("the cross-encoder is closed")
        if self._calls >= self._limits.waiting:
            raise TryLaterError("too many calls wait for the cross-encoder")
        if not texts:
            return ()
        self._calls += 1
        try:
            scores = await self._scored(self._model.cut(query), [self._model.cut(text) for text in texts])
        finally:
            self._calls -= 1
        if not np.isfinite(scores).all():
            raise GiveUpError("the cross-encoder gave a score that is no number")
        return normalised(scores)

    async def _scored(self, query: str, texts: Sequence[str]) -> Scores:
        asked = len(query.encode()) // _BYTES_PER_TOKEN + 3
        lengths = [min(asked + len(text.encode()) // _BYTES_PER_TOKEN, self._limits.window) for text in texts]
        shares = list(groups(lengths, self._limits.batch_tokens))
        loop = asyncio.get_running_loop()
        run = partial(self._model.run, query)
        tokens = self._limits.batch_tokens
        futures = [loop.run_in_executor(self._pool, run, [texts[at] for at in share], tokens) for share in shares]
        scores: Scores = np.empty(len(texts), dtype=np.float32)
        try:
            for share, found in zip(shares, await asyncio.gather(*futures), strict=True):
                scores[share] = found
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():  # our work was dropped, not our caller
                raise TryLaterError("the cross-encoder is closed") from None
            raise
        except MemoryError as error:
            raise TryLaterError("no memory to rerank with") from error
        except RUNTIME_ERRORS as error:
            raise GiveUpError(f"the cross-encoder failed on a text ({type(error).__name__})") from error
        finally:
            for future in futures:
                future.cancel()
        return scores

    async def close(self) -> None:
        """New calls are refused; an inference that runs is waited for, others are dropped."""
        self._closed = True
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)


def normalised(scores: Scores) -> tuple[float, ...]:
    """*scores*, at least one and all of them finite, stretched to [0, 1]; equal ones become 0.5."""
    least, most = float(scores.min()), float(scores.max())
    if most == least:
        return (0.5,) * len(scores)
    return tuple(((scores.astype(np.float64) - least) / (most - least)).tolist())


@asynccontextmanager
async def open_cross_encoder(directory: Path, limits: CrossEncoderLimits) -> AsyncIterator[CrossEncoder]:
    """Loads the model off the event loop and closes it in the end. ModelDirectoryError when *directory* is not
    a whole prepared cross-encoder."""
    opened = CrossEncoder(await asyncio.to_thread(CrossEncoderModel, directory, limits.window), limits)
    try:
        yield opened
    finally:
        await opened.close()
