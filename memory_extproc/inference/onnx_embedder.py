"""Embeds text in process with ONNX Runtime, one thread per inference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from memory_extproc.inference.batching_embedder import BatchingEmbedder, EmbedderLimits, Run
from memory_extproc.inference.model_directory import TOKENIZER, Manifest, ModelKind, verify
from memory_extproc.inference.onnx_session import (
    CHARACTERS_PER_TOKEN,
    RUNTIME_ERRORS,
    Integers,
    groups,
    open_session,
    padded,
    unusable,
)
from memory_extproc.inference.vectors import of_unit_length, readable
from memory_extproc.inference.word_vectors import WordVectors, meaningful, words_of
from memory_extproc.model import Matrix

SENTENCE = "sentence_embedding"
Feed = dict[str, Integers]
TOKENS = ("last_hidden_state", "token_embeddings")  # a state for each token; a graph may let out neither


class OnnxModel:
    """The model of a prepared directory, used from any thread. Blocks while it runs. With *words*, where the graph
    lets them out, the vectors of the words of whatever it embeds are kept there, out of the same inference."""

    def __init__(self, directory: Path, words: WordVectors | None = None) -> None:
        """Runs it once, because the first run allocates. ModelDirectoryError when the directory is damaged or
        holds no model that can be run."""
        self.manifest: Manifest = verify(directory, ModelKind.EMBEDDER)
        self._tokenizer = Tokenizer.from_file(str(directory / TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.manifest.max_seq_length)
        self._longest = self.manifest.max_seq_length * CHARACTERS_PER_TOKEN
        try:
            self._session = open_session(directory)
            self._inputs = {entry.name for entry in self._session.get_inputs()}
            states = [entry.name for entry in self._session.get_outputs() if entry.name in TOKENS]
            self.words = words if states else None
            self._outputs = [SENTENCE, *states[:1]] if self.words is not None else [SENTENCE]
            self._meaningful = meaningful(self._tokenizer.get_vocab() if self.words is not None else {})
            self.run(["What is remembered?"], batch_tokens=1)
        except RUNTIME_ERRORS as error:
            raise unusable(directory, error) from error

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
        """Texts of like length go together."""
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
        ids, mask = padded(tokens)
        feed = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in self._inputs:
            feed["token_type_ids"] = np.zeros_like(ids)
        return feed

    def _infer(self, texts: Sequence[str], tokens: Sequence[Sequence[int]], feed: Feed | None = None) -> Matrix:
        """The vectors of *texts*; what is known of their words then is kept where words are."""
        rows: Matrix
        rows, *states = self._session.run(self._outputs, self._feed(tokens) if feed is None else feed)
        if self.words is not None:
            for text, ids, state in zip(texts, tokens, states[0], strict=True):
                if ids:
                    self.words.keep(text, words_of(state[: len(ids)], self._meaningful[ids]))
        return rows


@asynccontextmanager
async def open_onnx_embedder(directory: Path, limits: EmbedderLimits) -> AsyncIterator[BatchingEmbedder]:
    """Loads the model off the event loop (about 0.1 s) and closes it in the end.

    ModelDirectoryError when *directory* is not a whole prepared model.
    """
    words = WordVectors(limits.word_bytes) if limits.word_bytes else None
    model = await asyncio.to_thread(OnnxModel, directory, words)
    embedder = BatchingEmbedder(model, limits, model.words)
    try:
        yield embedder
    finally:
        await embedder.close()
