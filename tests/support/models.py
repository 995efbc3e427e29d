"""Prepared models for tests: made once into a cache that outlives the run, whole or not at all.

A conftest takes them in with `pytest_plugins = ["tests.support.models"]`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from memory_extproc.inference.model_files import Precision
from memory_extproc.inference.prepare import DEFAULT_SOURCE, parse_source, prepare

CACHE = Path(__file__).parents[2] / ".cache" / "models"


@pytest.fixture(scope="session")
def prepared_models() -> Callable[[Precision], Path]:
    """The directory of the default model in a precision, below MEMORY_EXTPROC_TEST_MODELS or .cache/models."""
    models_dir = Path(os.environ.get("MEMORY_EXTPROC_TEST_MODELS") or CACHE)

    def prepared(precision: Precision) -> Path:
        return prepare(parse_source(DEFAULT_SOURCE), precision, models_dir, force=False, say=_silently).directory

    return prepared


def _silently(_: str) -> None:
    pass


@pytest.fixture(scope="session")
def int8_model_dir(prepared_models: Callable[[Precision], Path]) -> Path:
    return prepared_models(Precision.INT8)


@pytest.fixture(scope="session")
def fp32_model_dir(prepared_models: Callable[[Precision], Path]) -> Path:
    return prepared_models(Precision.FP32)
