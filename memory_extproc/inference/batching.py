"""Embeds with a model in this process, on threads of its own.

All state lives on the event loop; threads only tokenise and run the model. A free thread takes the waiting calls as
a batch, queries before background work; no call waits while a thread is idle.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock, get_native_id
from typing import Protocol

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache

from memory_extproc.errors import MemoryExtprocError, PermanentError, TransientError
from memory_extproc.index.entries import pack
from memory_extproc.index.features import LONGEST_READ
from memory_extproc.model import Matrix, Vector, WordPieces
from memory_extproc.settings.memory import Embedding
from memory_extproc.text.words import carries_meaning

# Characters of a question that the event loop tokenises itself. A thread would first wait for the interpreter,
# which the event loop holds while it reads the question's words; a longer text would delay other requests.
_SHORT = 500
_LATELY = 1_024  # texts whose vectors are kept for a fact in them, and for the topic that they belong to
_BYTES_PER_TOKEN = 3  # a guess on the low side, to bound how long background work holds a thread


Run = Callable[[], Matrix]  # on a thread


class ModelRunner(Protocol):
    """A sentence encoder that blocks while it runs; called from several threads at a time."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def dimension(self) -> int: ...
    @property
    def max_seq_length(self) -> int:
        """Tokens that reach the model, special tokens included."""

    def cut(self, text: str) -> str:
        """The part that can reach the model, as valid Unicode. Cheap: called on the event loop."""

    def run(self, texts: Sequence[str], batch_tokens: int) -> Matrix:
        """A finite unit row per text, in order; about *batch_tokens* padded tokens at a time."""

    def ready(self, text: str) -> Run:
        """As `run` for *text* alone, already tokenised: some 0.2 ms for 1,000 characters, on the event loop."""


BATCH_TOKENS = 128  # padded tokens of an inference; a longer text goes alone. 100 µs each in int8
WAITING_QUERIES = 1024  # beyond it a query is refused with TransientError


class _Call:
    """A call of embed or embed_query: a row per text, and the future of its caller."""

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
    ready: Run | None = None


class BatchingEmbedder:
    """Implements ports.EmbeddingModel and ports.TokenEmbeddingModel over a model in this process. *words*: the word
    vectors that the model keeps; None: no word vectors are known. Used on a single event loop, closed by
    `close`."""

    def __init__(
        self,
        model: ModelRunner,
        section: Embedding,
        words: WordVectors | None = None,
        *,
        batch_tokens: int = BATCH_TOKENS,
        waiting_queries: int = WAITING_QUERIES,
    ) -> None:
        self._model = model
        self._words = words
        self._threads, self._batch_tokens, self._waiting_queries = section.threads, batch_tokens, waiting_queries
        self._queries: deque[_Item] = deque()
        self._background: deque[_Item] = deque()
        self._running = 0
        self._in_background = 0
        self._beginning = 0  # queries given to a thread that has not taken them up yet
        self._begun = asyncio.Event()
        self._closed = False
        self._pool = ThreadPoolExecutor(section.threads, thread_name_prefix="embed")
        self._less_urgent = ThreadPoolExecutor(section.threads, "embed_later", _give_way)
        self._cache = QueryCache(section.cache)
        self._lately = QueryCache(min(section.cache, _LATELY))

    @property
    def fingerprint(self) -> str:
        return self._model.fingerprint

    @property
    def dimension(self) -> int:
        return self._model.dimension

    @property
    def max_tokens(self) -> int:
        return self._model.max_seq_length

    @property
    def reads_words(self) -> bool:
        return self._words is not None

    def words(self, texts: Sequence[str]) -> list[WordPieces | None]:
        if self._words is None:
            return [None] * len(texts)
        return self._words.find_all([self._model.cut(text) for text in texts])

    async def embed(self, texts: Sequence[str]) -> Matrix:
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        cut = [self._model.cut(text) for text in texts]
        known = [self._find_vector(text) for text in cut]
        if all(vector is not None for vector in known):
            return np.stack([vector for vector in known if vector is not None])
        call = self._call(len(texts))
        items = [_Item(call, row, cut[row]) for row, vector in enumerate(known) if vector is None]
        items.sort(key=lambda item: len(item.text))  # neighbours of like length need little padding
        self._background.extend(items)
        for row, vector in enumerate(known):
            if vector is not None:
                call.fill(row, vector)
        self._start()
        rows = await call.future
        for item in items[:_LATELY]:
            self._lately.keep(item.text, rows[item.row].copy())
        return rows

    def _find_vector(self, text: str) -> Vector | None:
        """The vector of a recently asked or embedded text: a question becomes a message, and the message is
        compared with its topic. None if its word vectors are wanted and gone."""
        if self._words is not None and len(text) <= LONGEST_READ and self._words.find(text) is None:
            return None
        found = self._cache.find(text)
        return self._lately.find(text) if found is None else found

    async def embed_query(self, text: str) -> Vector:
        """The vector is read-only: it may be another caller's too."""
        text = self._model.cut(text)
        cached = self._cache.find(text)
        if cached is not None:
            return cached
        if len(self._queries) >= self._waiting_queries:
            raise TransientError("too many queries wait for the embedder")
        call = self._call(1)
        self._queries.append(_Item(call, 0, text, self._model.ready(text) if len(text) <= _SHORT else None))
        self._start()
        rows = await call.future
        return self._cache.keep(text, rows[0])

    async def wait_begun(self) -> None:
        """See ports.QueryGate: a thread needs the interpreter to take up a query, and then leaves it alone."""
        while self._beginning:
            self._begun.clear()
            await self._begun.wait()

    def _call(self, texts: int) -> _Call:
        if self._closed:
            raise TransientError("the embedder is closed")
        return _Call(asyncio.get_running_loop().create_future(), texts, self.dimension)

    def _start(self) -> None:
        """Gives waiting work to idle threads, queries first."""
        while self._running < self._threads:
            # with several threads, a thread is reserved for queries: background work holds a thread for long
            spare = self._in_background < max(1, self._threads - 1)
            if batch := self._taken_from(self._queries):
                self._submit(batch, background=False)
            elif spare and (batch := self._taken_from(self._background)):
                self._submit(batch, background=True)
            else:
                return

    def _submit(self, batch: Sequence[_Item], *, background: bool) -> None:
        self._running += 1
        self._in_background += background
        loop = batch[0].call.future.get_loop()
        work = batch[0].ready if len(batch) == 1 else None
        if work is None:
            work = partial(self._model.run, [item.text for item in batch], self._batch_tokens)
        if not background:
            self._beginning += 1
            work = partial(self._taken_up, loop, work)
        pool = self._less_urgent if background else self._pool
        pool.submit(work).add_done_callback(_Back(loop, self, batch, background))

    def _taken_up(self, loop: asyncio.AbstractEventLoop, work: Run) -> Matrix:
        """On a thread."""
        loop.call_soon_threadsafe(self._took_up)
        return work()

    def _took_up(self) -> None:
        self._beginning -= 1
        self._begun.set()

    def _taken_from(self, queue: deque[_Item]) -> list[_Item]:
        """The next batch, without cancelled calls; about batch_tokens at most, because a query that arrives
        meanwhile waits for it."""
        batch: list[_Item] = []
        tokens = 0
        while queue:
            item = queue[0]
            if not item.call.future.done():
                tokens += min(len(item.text.encode()) // _BYTES_PER_TOKEN + 2, self._model.max_seq_length)
                if batch and tokens > self._batch_tokens:
                    break
                batch.append(item)
            queue.popleft()
        return batch

    def finish_batch(self, batch: Sequence[_Item], run: Future[Matrix], *, background: bool) -> None:
        """Called on the event loop when a thread is through with *batch*."""
        self._running -= 1
        self._in_background -= background
        if error := run.exception():
            fault: MemoryExtprocError
            if isinstance(error, MemoryError):
                fault = TransientError("no memory to embed with")
            else:
                fault = PermanentError(f"the model failed on a text ({type(error).__name__})")
            fault.__cause__ = error
            for item in batch:
                item.call.fail(fault)
        else:
            for item, vector in zip(batch, run.result(), strict=True):
                item.call.fill(item.row, vector)
        self._start()

    async def close(self) -> None:
        """Waiting calls fail with TransientError; a running inference is awaited."""
        self._closed = True
        for item in (*self._queries, *self._background):
            item.call.fail(TransientError("the embedder is closed"))
        self._queries.clear()
        self._background.clear()
        for pool in (self._pool, self._less_urgent):
            await asyncio.to_thread(pool.shutdown)


_NICENESS = 5  # of threads for background work, which get a third of a busy core


def _give_way() -> None:
    """On a thread of its own: lets the operating system prefer requests where all cores are busy."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, get_native_id(), _NICENESS)


@dataclass(frozen=True, slots=True)
class _Back:
    """Brings a finished run from its thread to the event loop."""

    loop: asyncio.AbstractEventLoop
    embedder: BatchingEmbedder
    batch: Sequence[_Item]
    background: bool

    def __call__(self, run: Future[Matrix]) -> None:
        done = partial(self.embedder.finish_batch, self.batch, run, background=self.background)
        self.loop.call_soon_threadsafe(done)


# --- query cache -------------------------------------------------------------------------------------
# Vectors of recently embedded texts; the least recently used leave first.


class QueryCache:
    """At most *bound* vectors, by digest of their text, so that no text of a person is kept.

    Shared by all owners: a vector depends on the text alone, so it tells a caller nothing beyond the text.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._vectors: LRUCache[bytes, Vector] = LRUCache(bound)

    def __len__(self) -> int:
        return len(self._vectors)

    def find(self, text: str) -> Vector | None:
        return self._vectors.get(_key(text))

    def keep(self, text: str, vector: Vector) -> Vector:
        """*vector*, read-only from here on because several callers may hold it."""
        vector.flags.writeable = False
        if self._bound:
            self._vectors[_key(text)] = vector
        return vector


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


# --- word vectors ------------------------------------------------------------------------------------
# Word vectors of recently embedded texts: a by-product of embedding.
#
# A sentence's vector stands for the whole sentence; a word among many others shows only in its own vector. Late
# interaction of such vectors: Khattab and Zaharia 2020, "ColBERT: Efficient and Effective Passage Search via
# Contextualized Late Interaction over BERT".

_PER_ENTRY = 500  # bytes beside the arrays
_Key = tuple[int, int]


class WordVectors:
    """At most *most_bytes*, by a hash of their text, so that no text of a person is kept; the least recently used
    leave first. Used from any thread.

    Shared by all owners: the vectors depend on the text alone, so they tell a caller nothing beyond the text.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._words: OrderedDict[_Key, WordPieces] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._words)

    @property
    def size(self) -> int:
        """Bytes."""
        return self._bytes

    def find(self, text: str) -> WordPieces | None:
        key = _word_vectors_key(text)
        with self._lock:
            found = self._words.get(key)
            if found is not None:
                self._words.move_to_end(key)
            return found

    def find_all(self, texts: Sequence[str]) -> list[WordPieces | None]:
        """`find` for each text: a question looks up a hundred memories."""
        keys = [(hash(text), len(text)) for text in texts]  # as _key has it, without a call for each
        with self._lock:
            found = [self._words.get(key) for key in keys]
            for key, words in zip(keys, found, strict=True):
                if words is not None:
                    self._words.move_to_end(key)
        return found

    def keep(self, text: str, words: WordPieces) -> None:
        key = _word_vectors_key(text)
        with self._lock:
            if (old := self._words.pop(key, None)) is not None:
                self._bytes -= old.size + _PER_ENTRY
            self._words[key] = words
            self._bytes += words.size + _PER_ENTRY
            while self._bytes > self._most:
                _, gone = self._words.popitem(last=False)
                self._bytes -= gone.size + _PER_ENTRY


def meaningful(vocabulary: Mapping[str, int]) -> npt.NDArray[np.bool_]:
    """By token id: whether the piece carries meaning. Marks of the model ("[CLS]"), punctuation and function words
    do not; the end of a word ("##ing") does, because it changes the meaning of its beginning."""
    found = np.zeros(max(vocabulary.values(), default=-1) + 1, dtype=bool)
    for piece, at in vocabulary.items():
        marks = piece.startswith(("[", "<")) and piece.endswith(("]", ">"))
        found[at] = not marks and (
            piece.startswith("##") or (any(map(str.isalnum, piece)) and carries_meaning(piece.lower()))
        )
    return found


def words_of(states: npt.NDArray[np.float32], kept: npt.NDArray[np.bool_]) -> WordPieces:
    """The states of the *kept* pieces of a text; all states if none is kept."""
    chosen = states[kept] if kept.any() else states
    return pack(chosen)


def _word_vectors_key(text: str) -> _Key:
    # Python's own hash of 64 bits, keyed anew for every process, is computed once for a text in memory: a question
    # looks up a hundred memories. Equal hashes among some thousand texts are not to be expected.
    return hash(text), len(text)


# --- vectors -----------------------------------------------------------------------------------------
# Common steps of every embedder for its texts and vectors.

# Far below the length of any vector a model gives, far above where its square would vanish in float32.
_LEAST_LENGTH = 1e-6


def readable(text: str, longest: int) -> str:
    """The first *longest* characters as valid Unicode: lone surrogates become question marks."""
    beginning = text[:longest]
    return beginning if beginning.isascii() else beginning.encode("utf-8", "replace").decode("utf-8")


def of_unit_length(rows: Matrix) -> Matrix:
    """*rows* as float32 of length 1. A row without direction (no token, an overflow) becomes the first axis,
    so that arithmetic on it stays finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    lost = ~np.isfinite(lengths) | (lengths < _LEAST_LENGTH)
    if lost.any():
        rows[lost] = 0.0
        rows[lost, 0] = 1.0
        lengths[lost] = 1.0
    unit: Matrix = (rows / lengths[:, None]).astype(np.float32, copy=False)
    return unit
