"""Embeds text in process with ONNX Runtime, one thread per inference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state
from tokenizers import Tokenizer

from memory_extproc.inference.batching_embedder import BatchingEmbedder, EmbedderLimits
from memory_extproc.inference.model_directory import MODEL, TOKENIZER, Manifest, ModelDirectoryError, verify
from memory_extproc.inference.vectors import of_unit_length, readable
from memory_extproc.model import Matrix

SENTENCE = "sentence_embedding"
# The runtime's errors have no ancestor of their own, so they are taken from where it defines them.
_RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    ValueError,
    *(
        kind
        for kind in vars(onnxruntime_pybind11_state).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
)
# Characters kept for each token of the model's window. Words of any language are far below; only text that is
# mostly blanks or one endless word is cut earlier than the window would.
_CHARACTERS_PER_TOKEN = 32


class OnnxModel:
    """The model of a prepared directory, used from any thread. Blocks while it runs."""

    def __init__(self, directory: Path) -> None:
        """Runs it once, because the first run allocates. ModelDirectoryError when the directory is damaged or
        holds no model that can be run."""
        self.manifest: Manifest = verify(directory)
        self._tokenizer = Tokenizer.from_file(str(directory / TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.manifest.max_seq_length)
        self._longest = self.manifest.max_seq_length * _CHARACTERS_PER_TOKEN
        try:
            self._session = onnxruntime.InferenceSession(
                str(directory / MODEL), _session_options(), providers=["CPUExecutionProvider"]
            )
            self._inputs = {entry.name for entry in self._session.get_inputs()}
            self.run(["What is remembered?"], batch_tokens=1)
        except _RUNTIME_ERRORS as error:
            raise ModelDirectoryError(
                f"model directory {directory} cannot be loaded ({type(error).__name__}): "
                "run `memory-extproc models prepare --force`"
            ) from error

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
        """Texts of like length go together, for padding costs as much as words."""
        # one by one: a batch would be spread over the tokenizer's own threads, one for each core
        tokens = [self._tokenizer.encode_batch_fast([text])[0].ids for text in texts]
        rows: Matrix = np.empty((len(texts), self.manifest.dimension), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda at: len(tokens[at]))
        start = 0
        for end in range(1, len(order) + 1):
            whole = end == len(order)
            if whole or (end - start + 1) * len(tokens[order[end]]) > batch_tokens:
                group = order[start:end]
                rows[group] = self._infer([tokens[at] for at in group])
                start = end
        return of_unit_length(rows)

    def _infer(self, tokens: Sequence[Sequence[int]]) -> Matrix:
        # a text may have no token at all where the tokenizer adds no special ones; the model still needs a column
        width = max(1, *map(len, tokens))
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
