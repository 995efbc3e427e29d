"""Embeds with sentence-transformers, for a GPU. Needs the extra of that name, which brings PyTorch."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import numpy as np

from memory_extproc.errors import ConfigurationError, PermanentError
from memory_extproc.inference.batching import BatchingEmbedder, Run, of_unit_length, readable
from memory_extproc.model import Matrix
from memory_extproc.settings.memory import Embedding

Load = Callable[..., Any]  # as the class SentenceTransformer: (name or path, device=…) -> model
_CHARACTERS_PER_TOKEN = 32
_LONGEST_WINDOW = 8192  # tokens; for models that claim an endless one
_BATCH = 64


def load_installed(module: str = "sentence_transformers") -> Load:
    """The library's class. Imported when asked for: it takes seconds and hundreds of megabytes."""
    try:
        library = importlib.import_module(module)
    except ImportError as error:
        remedy = "install memory-extproc[sentence-transformers]"
        fault = f"memory.embedding: sentence-transformers is not installed; {remedy}"
        raise ConfigurationError([fault]) from error
    load: Load = library.SentenceTransformer
    return load


class SentenceTransformersModel:
    """A model of the library behind `ModelRunner`. *model* is its name on the hub or a directory."""

    def __init__(self, model: str, device: str, load: Load) -> None:
        try:
            self._model = load(model, device=device or None)
        except (OSError, ValueError, RuntimeError) as error:
            raise PermanentError(f"sentence-transformers cannot load {model!r} ({type(error).__name__})") from error
        self.fingerprint = f"{model.rstrip('/').rsplit('/', maxsplit=1)[-1]}/sentence-transformers"
        probe = np.asarray(self._encode(["What is remembered?"]))
        self.dimension = int(probe.shape[1])
        self.max_seq_length = min(int(self._model.max_seq_length or _LONGEST_WINDOW), _LONGEST_WINDOW)

    def cut(self, text: str) -> str:
        return readable(text, self.max_seq_length * _CHARACTERS_PER_TOKEN)

    def run(self, texts: Sequence[str], batch_tokens: int) -> Matrix:  # noqa: ARG002 - the library sorts and batches
        return of_unit_length(np.array(self._encode(list(texts)), dtype=np.float32))

    def ready(self, text: str) -> Run:
        return partial(self.run, [text], 1)

    def _encode(self, texts: Sequence[str]) -> Any:
        return self._model.encode(texts, batch_size=_BATCH, show_progress_bar=False, convert_to_numpy=True)


@asynccontextmanager
async def open_sentence_transformers_embedder(
    model: str, device: str, section: Embedding, load: Callable[[], Load] = load_installed
) -> AsyncIterator[BatchingEmbedder]:
    """Loads *model* off the event loop and closes it in the end. *device*: "cuda", "cpu", …, or "" to choose.

    ConfigurationError when the library is not installed, PermanentError when it has no such model.
    """
    embedder = BatchingEmbedder(
        await asyncio.to_thread(lambda: SentenceTransformersModel(model, device, load())), section
    )
    try:
        yield embedder
    finally:
        await embedder.close()
