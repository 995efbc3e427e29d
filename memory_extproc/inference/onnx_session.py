"""ONNX Runtime as every model in this process uses it: one thread per inference, its faults named as ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state

from memory_extproc.inference.model_directory import MODEL, ModelDirectoryError

# The runtime's errors have no ancestor of their own, so they are taken from where it defines them.
RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    ValueError,
    *(
        kind
        for kind in vars(onnxruntime_pybind11_state).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
)
# Characters kept for each token of the model's window. Words of any language are far below; only text that is
# mostly blanks or one endless word is cut earlier than the window would.
CHARACTERS_PER_TOKEN = 32

Integers = npt.NDArray[np.int64]


def open_session(directory: Path) -> Any:
    """The session of a prepared directory. Raises one of RUNTIME_ERRORS."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    # Planned for one shape and kept for each: with texts of every length that is memory for nothing.
    options.enable_mem_pattern = False
    return onnxruntime.InferenceSession(str(directory / MODEL), options, providers=["CPUExecutionProvider"])


def unusable(directory: Path, error: Exception) -> ModelDirectoryError:
    """What to raise when the files are whole, but *error* says that they cannot be run."""
    return ModelDirectoryError(
        f"model directory {directory} cannot be loaded ({type(error).__name__}): "
        "run `memory-extproc models prepare --force`"
    )


def groups(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Places of *lengths*, neighbours in length together, each group of about *most* padded tokens: padding
    costs as much as words. What is longer than *most* goes alone."""
    order = sorted(range(len(lengths)), key=lambda at: lengths[at])
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end - start + 1) * lengths[order[end]] > most:
            yield order[start:end]
            start = end


def padded(rows: Sequence[Sequence[int]]) -> tuple[Integers, Integers]:
    """*rows* as one array, zeros behind the shorter ones, and the mask of what is not padding."""
    # a text may have no token at all where the tokenizer adds no special ones; the model still needs a column
    width = max(1, *map(len, rows))
    ids: Integers = np.zeros((len(rows), width), dtype=np.int64)
    mask = np.zeros_like(ids)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
        mask[at, : len(row)] = 1
    return ids, mask
