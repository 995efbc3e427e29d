"""Embeds text in process with ONNX Runtime, a thread per inference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state
from tokenizers import Tokenizer

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.index.features import LONGEST_READ
from memory_extproc.inference.batching import (
    BatchingEmbedder,
    Run,
    WordVectors,
    meaningful,
    of_unit_length,
    readable,
    words_of,
)
from memory_extproc.inference.model_files import (
    FUSED,
    MODEL,
    SCORE,
    TOKENIZER,
    Manifest,
    ModelDirectoryError,
    ModelKind,
    verify,
)
from memory_extproc.model import Matrix
from memory_extproc.settings.memory import Embedding

# --- onnx session ------------------------------------------------------------------------------------
# ONNX Runtime for every model in this process: a thread per inference, faults translated.

# The runtime's errors have no ancestor of their own, so they are taken from where it defines them.
RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    ValueError,
    *(
        kind
        for kind in vars(onnxruntime_pybind11_state).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
)
# Characters kept for each token of the model's window. Words of any language are far below; only a text of blanks
# or a single endless word is cut earlier than by the window.
CHARACTERS_PER_TOKEN = 32

Integers = npt.NDArray[np.int64]


def open_session(directory: Path, graph: str = MODEL) -> Any:
    """The session of *graph* in a prepared directory. Raises RUNTIME_ERRORS."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    # Memory plans are kept per shape, which texts of every length make useless.
    options.enable_mem_pattern = False
    if may_saturate(_CPU_FLAGS):
        # Vectors of fused graphs would be wrong by up to 0.09 of cosine. With this entry x86 multiplies unsigned
        # bytes, for a fifth more of the time; with VNNI it would take twice the time and gain nothing.
        options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(str(directory / graph), options, providers=["CPUExecutionProvider"])


_CPU_FLAGS = Path("/proc/cpuinfo")


def may_saturate(flags: Path) -> bool:
    """Whether x86 may saturate sums of unsigned by signed bytes: it does without VNNI, in either of its forms.
    *flags*: the kernel's list; where there is none, it may."""
    with suppress(OSError):
        return {"avx512_vnni", "avx_vnni"}.isdisjoint(flags.read_text().split())
    return True


def unusable_error(directory: Path, error: Exception) -> ModelDirectoryError:
    """The error for whole files that cannot be run because of *error*."""
    return ModelDirectoryError(
        f"model directory {directory} cannot be loaded ({type(error).__name__}): "
        "run `memory-extproc models prepare --force`"
    )


def groups(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Places of *lengths*, neighbours in length together, each group of about *most* padded tokens: padding
    costs as much as words. A text longer than *most* goes alone."""
    order = sorted(range(len(lengths)), key=lambda at: lengths[at])
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end - start + 1) * lengths[order[end]] > most:
            yield order[start:end]
            start = end


def pad_rows(rows: Sequence[Sequence[int]]) -> tuple[Integers, Integers]:
    """*rows* as an array, shorter rows filled with zeros, and the mask of their tokens."""
    # without special tokens a text may have no token at all; the model still needs a column
    width = max(1, *map(len, rows))
    ids: Integers = np.zeros((len(rows), width), dtype=np.int64)
    mask = np.zeros_like(ids)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
        mask[at, : len(row)] = 1
    return ids, mask


# --- onnx embedder -----------------------------------------------------------------------------------

SENTENCE = "sentence_embedding"
Feed = dict[str, Integers]
TOKENS = ("last_hidden_state", "token_embeddings")  # a state for each token; a graph may let out neither


class OnnxModel:
    """The model of a prepared directory, used from any thread. Blocks while it runs. *words* keeps the word
    vectors of every embedded text from the same inference, if the graph has such an output."""

    def __init__(self, directory: Path, words: WordVectors | None = None) -> None:
        """Runs it once, because the first run allocates. ModelDirectoryError when the directory is damaged or
        holds no model that can be run."""
        self.manifest: Manifest = verify(directory, ModelKind.EMBEDDER)
        self._tokenizer = Tokenizer.from_file(str(directory / TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.manifest.max_seq_length)
        self._longest = self.manifest.max_seq_length * CHARACTERS_PER_TOKEN
        self._fused = FUSED in self.manifest.files
        try:
            self._session = open_session(directory, FUSED if self._fused else MODEL)
            self._inputs = {entry.name for entry in self._session.get_inputs()}
            states = [entry.name for entry in self._session.get_outputs() if entry.name in TOKENS]
            self.words = words if states else None
            self._outputs = [SENTENCE, *states[:1]] if self.words is not None else [SENTENCE]
            self._meaningful = meaningful(self._tokenizer.get_vocab() if self.words is not None else {})
            self.run(["What is remembered?"], batch_tokens=1)
        except RUNTIME_ERRORS as error:
            raise unusable_error(directory, error) from error

    @property
    def fingerprint(self) -> str:
        return self.manifest.fingerprint

    @property
    def dimension(self) -> int:
        return self.manifest.dimension

    @property
    def max_seq_length(self) -> int:
        return self.manifest.max_seq_length

    def cut(self, text: str) -> str:
        return readable(text, self._longest)

    def run(self, texts: Sequence[str], batch_tokens: int) -> Matrix:
        """Texts of like length go together; through the fused graph each goes alone."""
        batch_tokens = 1 if self._fused else batch_tokens
        tokens = [self._tokens(text) for text in texts]
        rows: Matrix = np.empty((len(texts), self.manifest.dimension), dtype=np.float32)
        for group in groups([len(entry) for entry in tokens], batch_tokens):
            rows[group] = self._infer([texts[at] for at in group], [tokens[at] for at in group])
        return of_unit_length(rows)

    def ready(self, text: str) -> Run:
        tokens = [self._tokens(text)]
        feed = self._feed(tokens)
        return lambda: of_unit_length(self._infer([text], tokens, feed))

    def _tokens(self, text: str) -> list[int]:
        # one by one: a batch would be spread over the tokenizer's own threads, one for each core
        ids: list[int] = self._tokenizer.encode_batch_fast([text])[0].ids
        return ids

    def _feed(self, tokens: Sequence[Sequence[int]]) -> Feed:
        ids, mask = pad_rows(tokens)
        feed = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in self._inputs:
            feed["token_type_ids"] = np.zeros_like(ids)
        return feed

    def _infer(self, texts: Sequence[str], tokens: Sequence[Sequence[int]], feed: Feed | None = None) -> Matrix:
        """The vectors of *texts*. Keeps their word vectors if wanted."""
        rows: Matrix
        rows, *states = self._session.run(self._outputs, self._feed(tokens) if feed is None else feed)
        if self.words is not None:
            for text, ids, state in zip(texts, tokens, states[0], strict=True):
                if ids and len(text) <= LONGEST_READ:
                    self.words.keep(text, words_of(state[: len(ids)], self._meaningful[ids]))
        return rows


@asynccontextmanager
async def open_onnx_embedder(directory: Path, section: Embedding) -> AsyncIterator[BatchingEmbedder]:
    """Loads the model off the event loop (about 0.1 s) and closes it in the end.

    ModelDirectoryError when *directory* is not a whole prepared model.
    """
    words = WordVectors(section.word_bytes) if section.word_bytes else None
    model = await asyncio.to_thread(OnnxModel, directory, words)
    embedder = BatchingEmbedder(model, section, model.words)
    try:
        yield embedder
    finally:
        await embedder.close()


# --- cross encoder -----------------------------------------------------------------------------------
# Reranks in process: a model reads the query together with each text and scores the pair.
#
# Nogueira and Cho 2019, "Passage Re-ranking with BERT". It is more exact than two separate vectors, and costs an
# inference for each text; so it gets few texts, and ends with the request's deadline.

Scores = npt.NDArray[np.float32]  # shape (n,), any numbers

_BYTES_PER_TOKEN = 3  # a low guess, to bound the time that an inference holds a thread


PAIR_TOKENS = 256  # padded tokens of an inference; a longer pair goes alone. 100 µs each in int8
PAIR_WINDOW = 256  # tokens of query and text together, within the model's own; beyond, both are cut
WAITING_CALLS = 64  # beyond it a call is refused with TransientError


class PairScorer(Protocol):
    """A cross-encoder that blocks while it runs; called from several threads at a time."""

    def cut(self, text: str) -> str:
        """The part that can reach the model, as valid Unicode. Cheap: called on the event loop."""

    def run(self, query: str, texts: Sequence[str], batch_tokens: int) -> Scores:
        """A score per text, in order: any numbers, the higher the better."""


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
            raise unusable_error(directory, error) from error

    def cut(self, text: str) -> str:
        return readable(text, self._longest)

    def run(self, query: str, texts: Sequence[str], batch_tokens: int) -> Scores:
        # one by one: a batch would be spread over the tokenizer's own threads, one for each core
        pairs = [self._tokenizer.encode_batch_fast([(query, text)])[0] for text in texts]
        scores: Scores = np.empty(len(texts), dtype=np.float32)
        for group in groups([len(pair.ids) for pair in pairs], batch_tokens):
            ids, mask = pad_rows([pairs[at].ids for at in group])
            feed = {"input_ids": ids, "attention_mask": mask}
            if "token_type_ids" in self._inputs:
                feed["token_type_ids"] = pad_rows([pairs[at].type_ids for at in group])[0]
            scores[group] = self._session.run([SCORE], feed)[0]
        return scores


class CrossEncoder:
    """Implements ports.RerankModel over a model in this process. Used on a single event loop, closed by `close`."""

    def __init__(
        self, model: PairScorer, threads: int = 1, batch_tokens: int = PAIR_TOKENS, waiting: int = WAITING_CALLS
    ) -> None:
        """*threads*: concurrent inferences, each on a thread of its own."""
        self._model, self._batch_tokens, self._waiting = model, batch_tokens, waiting
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="rerank")
        self._calls = 0
        self._closed = False

    async def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """Scores in [0, 1]: the best of *texts* has 1.0, the worst 0.0; equal texts have 0.5. A cancelled call
        starts no further inference."""
        if self._closed:
            raise TransientError("the cross-encoder is closed")
        if self._calls >= self._waiting:
            raise TransientError("too many calls wait for the cross-encoder")
        if not texts:
            return ()
        self._calls += 1
        try:
            scores = await self._score_texts(self._model.cut(query), [self._model.cut(text) for text in texts])
        finally:
            self._calls -= 1
        if not np.isfinite(scores).all():
            raise PermanentError("the cross-encoder gave a score that is no number")
        return normalize_scores(scores)

    async def _score_texts(self, query: str, texts: Sequence[str]) -> Scores:
        asked = len(query.encode()) // _BYTES_PER_TOKEN + 3
        lengths = [min(asked + len(text.encode()) // _BYTES_PER_TOKEN, PAIR_WINDOW) for text in texts]
        shares = list(groups(lengths, self._batch_tokens))
        loop = asyncio.get_running_loop()
        run = partial(self._model.run, query)
        tokens = self._batch_tokens
        futures = [loop.run_in_executor(self._pool, run, [texts[at] for at in share], tokens) for share in shares]
        scores: Scores = np.empty(len(texts), dtype=np.float32)
        try:
            for share, found in zip(shares, await asyncio.gather(*futures), strict=True):
                scores[share] = found
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():  # our work was dropped, not our caller
                raise TransientError("the cross-encoder is closed") from None
            raise
        except MemoryError as error:
            raise TransientError("no memory to rerank with") from error
        except RUNTIME_ERRORS as error:
            raise PermanentError(f"the cross-encoder failed on a text ({type(error).__name__})") from error
        finally:
            for future in futures:
                future.cancel()
        return scores

    async def close(self) -> None:
        """New calls are refused; an inference that runs is waited for, others are dropped."""
        self._closed = True
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)


def normalize_scores(scores: Scores) -> tuple[float, ...]:
    """*scores*, finite and at least a single score, stretched to [0, 1]; equal scores become 0.5."""
    least, most = float(scores.min()), float(scores.max())
    if most == least:
        return (0.5,) * len(scores)
    return tuple(((scores.astype(np.float64) - least) / (most - least)).tolist())


@asynccontextmanager
async def open_cross_encoder(
    directory: Path, threads: int = 1, batch_tokens: int = PAIR_TOKENS
) -> AsyncIterator[CrossEncoder]:
    """Loads the model off the event loop and closes it in the end. ModelDirectoryError when *directory* is not
    a whole prepared cross-encoder."""
    opened = CrossEncoder(await asyncio.to_thread(CrossEncoderModel, directory, PAIR_WINDOW), threads, batch_tokens)
    try:
        yield opened
    finally:
        await opened.close()
