"""Embeds text in process with ONNX Runtime, one thread per inference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from memory_extproc.inference.batching_embedder import BatchingEmbedder, EmbedderLimits
from memory_extproc.inference.model_directory import TOKENIZER, Manifest, ModelKind, verify
from memory_extproc.inference.onnx_session import (
    CHARACTERS_PER_TOKEN,
    RUNTIME_ERRORS,
    groups,
    open_session,
    padded,
    unusable,
)
from memory_extproc.inference.vectors import of_unit_length, readable
from memory_extproc.model import Matrix

SENTENCE = "sentence_embedding"


class OnnxModel:
    """The model of a prepared directory, used from any thread. Blocks while it runs."""

    def __init__(self, directory: Path) -> None:
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
        # one by one: a batch would be spread over the tokenizer's own threads, one for each core
        tokens = [self._tokenizer.encode_batch_fast([text])[0].ids for text in texts]
        rows: Matrix = np.empty((len(texts), self.manifest.dimension), dtype=np.float32)
        for group in groups([len(entry) for entry in tokens], batch_tokens):
            rows[group] = self._infer([tokens[at] for at in group])
        return of_unit_length(rows)

    def _infer(self, tokens: Sequence[Sequence[int]]) -> Matrix:
        ids, mask = padded(tokens)
        feed = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in self._inputs:
            feed["token_type_ids"] = np.zeros_like(ids)
        found: Matrix = self._session.run([SENTENCE], feed)[0]
        return found


@asynccontextmanager
async def open_onnx_embedder(directory: Path, limits: EmbedderLimits) -> AsyncIterator[BatchingEmbedder]:
    """Loads the model off the event loop (about 0.1 s) and closes it in the end.

    ModelDirectoryError when *directory* is not a whole prepared model.
    """
    embedder = BatchingEmbedder(await asyncio.to_thread(OnnxModel, directory), limits)
    try:
        yield embedder
    finally:
        await embedder.close()
