"""Embeds text in process with ONNX Runtime.

All state lives on the event loop; threads only tokenise and run the model, one thread per inference. What is
waiting when a thread gets free goes together, queries before background work; nothing waits while a thread is
idle.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from tokenizers import Tokenizer

from memory_extproc.errors import GiveUpError, MemoryExtprocError, TryLaterError
from memory_extproc.inference.model_directory import MODEL, TOKENIZER, Manifest, ModelDirectoryError, verify
from memory_extproc.model import Matrix, Vector

SENTENCE = "sentence_embedding"
# Characters kept for each token of the model's window. Words of any language are far below; only text that is
# mostly blanks or one endless word is cut earlier than the window would.
_CHARACTERS_PER_TOKEN = 32
_BYTES_PER_TOKEN = 3  # a guess on the low side, to bound how long background work holds a thread


@dataclass(frozen=True, slots=True)
class EmbedderLimits:
    threads: int = 1  # inferences at one time, each on a thread of its own
    batch_tokens: int = 128  # padded tokens of one inference; a longer text goes alone. 100 µs each in int8
    cached_queries: int = 4096  # vectors of past queries kept: 1.5 KiB each at 384 dimensions
    waiting_queries: int = 1024  # beyond it a query is refused with TryLaterError


class _Call:
    """One call of embed or embed_query: a row per text, and the future its caller waits for."""

    __slots__ = ("future", "left", "rows")

    def __init__(self, future: asyncio.Future[Matrix], texts: int, dimension: int) -> None:
        self.future = future
        self.rows: Matrix = np.empty((texts, dimension), dtype=np.float32)
        self.left = texts

    def fill(self, row: int, vector: Vector) -> None:
        self.rows[row] = vector
        self.left -= 1
        if not self.left and not self.future.done():
            self.future.set_result(self.rows)

    def fail(self, error: MemoryExtprocError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(frozen=True, slots=True)
class _Item:
    call: _Call
    row: int
    text: str


class SentenceModel:
    """The model of a prepared directory, used from any thread. Blocks while it runs."""

    def __init__(self, directory: Path) -> None:
        """ModelDirectoryError when the directory is damaged or holds no model that can be run."""
        self.manifest: Manifest = verify(directory)
        try:
            self._tokenizer = Tokenizer.from_file(str(directory / TOKENIZER))
            self._session = onnxruntime.InferenceSession(
                str(directory / MODEL), _session_options(), providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise ModelDirectoryError(
                f"model directory {directory} cannot be loaded ({type(error).__name__}): "
                "run `memory-extproc models prepare --force`"
            ) from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.manifest.max_seq_length)
        self._inputs = {entry.name for entry in self._session.get_inputs()}
        self._longest = self.manifest.max_seq_length * _CHARACTERS_PER_TOKEN

    def cut(self, text: str) -> str:
        """The part that can reach the model, as valid Unicode: lone surrogates become question marks."""
        return text[: self._longest].encode("utf-8", "replace").decode("utf-8")

    def run(self, texts: Sequence[str], batch_tokens: int) -> Matrix:
        """One finite unit row per text, in order; texts of like length go together."""
        tokens = [entry.ids for entry in self._tokenizer.encode_batch_fast(list(texts))]
        rows: Matrix = np.empty((len(texts), self.manifest.dimension), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda at: len(tokens[at]))
        start = 0
        for end in range(1, len(order) + 1):
            whole = end == len(order)
            if whole or (end - start + 1) * len(tokens[order[end]]) > batch_tokens:
                group = order[start:end]
                rows[group] = self._infer([tokens[at] for at in group])
                start = end
        return _of_unit_length(rows)

    def _infer(self, tokens: Sequence[Sequence[int]]) -> Matrix:
        # a text may have no token at all where the tokenizer adds no special ones; the model still needs a column
        width = max(1, *map(len, tokens)) if len(tokens) > 1 else max(1, len(tokens[0]))
        ids: npt.NDArray[np.int64] = np.zeros((len(tokens), width), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, entry in enumerate(tokens):
            ids[row, : len(entry)] = entry
            mask[row, : len(entry)] = 1
        feed = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in self._inputs:
            feed["token_type_ids"] = np.zeros_like(ids)
        found: Matrix = self._session.run([SENTENCE], feed)[0]
        return found


def _session_options() -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    # Planned for one shape and kept for each: with texts of every length that is memory for nothing.
    options.enable_mem_pattern = False
    return options


def _of_unit_length(rows: Matrix) -> Matrix:
    """*rows* as float32 of length 1. A row without direction (no token, an overflow) becomes the first axis,
    so that arithmetic on it stays finite."""
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    lost = ~np.isfinite(lengths) | (lengths < 1e-6)  # noqa: PLR2004 - far below any norm of a real vector
    if lost.any():
        rows[lost] = 0.0
        rows[lost, 0] = 1.0
        lengths[lost] = 1.0
    unit: Matrix = (rows / lengths[:, None]).astype(np.float32, copy=False)
    return unit


class OnnxEmbedder:
    """Implements ports.Embeds. Used on one event loop, closed by leaving `open_onnx_embedder`."""

    def __init__(self, model: SentenceModel, limits: EmbedderLimits) -> None:
        self._model = model
        self._limits = limits
        self._queries: deque[_Item] = deque()
        self._background: deque[_Item] = deque()
        self._running = 0
        self._closed = False
        self._pool = ThreadPoolExecutor(limits.threads, thread_name_prefix="embed")
        # By digest, so that no one's words are kept. The vector depends on the text alone, so it tells a caller
        # nothing about whoever asked the same before.
        self._cache: OrderedDict[bytes, Vector] = OrderedDict()

    @property
    def fingerprint(self) -> str:
        return self._model.manifest.fingerprint

    @property
    def dimension(self) -> int:
        return self._model.manifest.dimension

    async def embed(self, texts: Sequence[str]) -> Matrix:
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        call = self._call(len(texts))
        items = [_Item(call, row, self._model.cut(text)) for row, text in enumerate(texts)]
        items.sort(key=lambda item: len(item.text))  # neighbours of like length need little padding
        self._background.extend(items)
        self._start()
        return await call.future

    async def embed_query(self, text: str) -> Vector:
        """The vector is read-only: it may be another caller's too."""
        text = self._model.cut(text)
        key = hashlib.blake2b(text.encode(), digest_size=16).digest()
        cached = self._cache.get(key)
        if cached is not None:
            self._cache.move_to_end(key)
            return cached
        if len(self._queries) >= self._limits.waiting_queries:
            raise TryLaterError("too many queries wait for the embedder")
        call = self._call(1)
        self._queries.append(_Item(call, 0, text))
        self._start()
        vector: Vector = (await call.future)[0]
        vector.flags.writeable = False
        self._remember(key, vector)
        return vector

    def _remember(self, key: bytes, vector: Vector) -> None:
        if self._limits.cached_queries:
            self._cache[key] = vector
            self._cache.move_to_end(key)
            if len(self._cache) > self._limits.cached_queries:
                self._cache.popitem(last=False)

    def _call(self, texts: int) -> _Call:
        if self._closed:
            raise TryLaterError("the embedder is closed")
        return _Call(asyncio.get_running_loop().create_future(), texts, self.dimension)

    def _start(self) -> None:
        """Gives waiting work to idle threads."""
        while self._running < self._limits.threads and (batch := self._next_batch()):
            self._running += 1
            loop = batch[0].call.future.get_loop()
            run = self._pool.submit(self._model.run, [item.text for item in batch], self._limits.batch_tokens)
            run.add_done_callback(_Back(loop, self, batch))

    def _next_batch(self) -> list[_Item]:
        """What goes next, without what nobody waits for any more; at most about batch_tokens, for a query
        that comes in meanwhile waits as long as this takes."""
        queue = self._queries or self._background
        batch: list[_Item] = []
        tokens = 0
        while queue:
            item = queue[0]
            if not item.call.future.done():
                tokens += min(len(item.text.encode()) // _BYTES_PER_TOKEN + 2, self._model.manifest.max_seq_length)
                if batch and tokens > self._limits.batch_tokens:
                    break
                batch.append(item)
            queue.popleft()
            if not queue and not batch:
                queue = self._background
        return batch

    def finished(self, batch: Sequence[_Item], run: Future[Matrix]) -> None:
        """Called on the event loop when a thread is through with *batch*."""
        self._running -= 1
        if error := run.exception():
            fault: MemoryExtprocError
            if isinstance(error, MemoryError):
                fault = TryLaterError("no memory to embed with")
            else:
                fault = GiveUpError(f"the model failed on a text ({type(error).__name__})")
            fault.__cause__ = error
            for item in batch:
                item.call.fail(fault)
        else:
            for item, vector in zip(batch, run.result(), strict=True):
                item.call.fill(item.row, vector)
        self._start()

    async def close(self) -> None:
        """What waits fails with TryLaterError; an inference that runs is waited for."""
        self._closed = True
        for item in (*self._queries, *self._background):
            item.call.fail(TryLaterError("the embedder is closed"))
        self._queries.clear()
        self._background.clear()
        await asyncio.to_thread(self._pool.shutdown)


@dataclass(frozen=True, slots=True)
class _Back:
    """Brings a finished run from its thread to the event loop."""

    loop: asyncio.AbstractEventLoop
    embedder: OnnxEmbedder
    batch: Sequence[_Item]

    def __call__(self, run: Future[Matrix]) -> None:
        self.loop.call_soon_threadsafe(self.embedder.finished, self.batch, run)


@asynccontextmanager
async def open_onnx_embedder(directory: Path, limits: EmbedderLimits) -> AsyncIterator[OnnxEmbedder]:
    """Loads the model off the event loop (about 0.1 s), runs it once, and closes it in the end.

    ModelDirectoryError when *directory* is not a whole prepared model.
    """
    model = await asyncio.to_thread(_warm, directory, limits)
    embedder = OnnxEmbedder(model, limits)
    try:
        yield embedder
    finally:
        await embedder.close()


def _warm(directory: Path, limits: EmbedderLimits) -> SentenceModel:
    model = SentenceModel(directory)
    model.run(["What is remembered?"], limits.batch_tokens)  # the first run allocates; a caller need not wait
    return model
