"""A low-rank adapter is merged into the weights it was made for, and into no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from memory_extproc.errors import PermanentError
from memory_extproc.inference.model_files import Precision, record_of
from memory_extproc.inference.onnx import OnnxModel
from memory_extproc.inference.prepare import BASE, Prepared, adapted_source, parse_source, prepare
from tests.support.tiny_bert import HIDDEN, WIDE, write_tiny_bert

TEXTS = ["1 2 3", "4 5 6 7 8 9 10", "unknown words"]
MATRIX, NORM = "encoder.layer.0.intermediate.dense.weight", "encoder.layer.1.output.LayerNorm.bias"


def write_adapter(path: Path, base: Path, **added: np.ndarray) -> Path:
    save_file(
        {name: np.asarray(values, np.float16) for name, values in added.items()},
        path,
        {BASE: record_of(base / "model.safetensors").sha256},
    )
    return path


@pytest.fixture(params=["", "bert."])
def base(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return write_tiny_bert(tmp_path / "base", prefix=request.param)


@pytest.fixture
def factors() -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    return {
        f"{MATRIX}.down": random.normal(0, 0.3, (3, HIDDEN)).astype(np.float16),
        f"{MATRIX}.up": random.normal(0, 0.3, (WIDE, 3)).astype(np.float16),
        NORM: random.normal(0, 0.3, HIDDEN).astype(np.float16),
    }


def prepared(base: Path, adapter: Path, into: Path) -> Prepared:
    source = adapted_source(parse_source(str(base)), adapter)
    return prepare(source, Precision.FP32, into, force=False, say=lambda _: None)


def test_a_merged_graph_gives_the_vectors_of_base_and_adapter(
    base: Path, factors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    made = prepared(base, write_adapter(tmp_path / "ours.safetensors", base, **factors), tmp_path / "models")

    weights = load_file(base / "model.safetensors")
    prefix = "bert." if f"bert.{MATRIX}" in weights else ""
    weights[prefix + MATRIX] += factors[f"{MATRIX}.up"].astype(np.float32) @ factors[f"{MATRIX}.down"]
    weights[prefix + NORM] += factors[NORM]
    by_hand = write_tiny_bert(tmp_path / "by-hand")
    save_file(weights, by_hand / "model.safetensors")
    wanted = prepare(parse_source(str(by_hand)), Precision.FP32, tmp_path, force=False, say=lambda _: None)
    assert made.manifest.name == "ours"
    vectors = OnnxModel(made.directory).run(TEXTS, 64)
    assert np.allclose(vectors, OnnxModel(wanted.directory).run(TEXTS, 64), atol=1e-5)
    plain = prepare(parse_source(str(base)), Precision.FP32, tmp_path, force=False, say=lambda _: None)
    assert not np.allclose(vectors, OnnxModel(plain.directory).run(TEXTS, 64), atol=1e-2)
    assert made.manifest.fingerprint.rpartition("/")[2] != plain.manifest.fingerprint.rpartition("/")[2]


def test_another_adapter_makes_another_model(base: Path, factors: dict[str, np.ndarray], tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "ours.safetensors", base, **factors)
    first = prepared(base, adapter, tmp_path / "models")
    again = prepared(base, adapter, tmp_path / "models")
    write_adapter(adapter, base, **{NORM: factors[NORM]})
    other = prepared(base, adapter, tmp_path / "models")

    assert (first.made, again.made, other.made) == (True, False, True)
    assert first.manifest.fingerprint == again.manifest.fingerprint != other.manifest.fingerprint


def test_an_adapter_of_another_base_is_refused(base: Path, factors: dict[str, np.ndarray], tmp_path: Path) -> None:
    other = write_tiny_bert(tmp_path / "other", seed=2)
    adapter = write_adapter(tmp_path / "ours.safetensors", other, **factors)

    with pytest.raises(PermanentError, match="is an adapter of weights with SHA-256"):
        prepared(base, adapter, tmp_path / "models")
    assert not list((tmp_path / "models").glob("ours*"))


def test_an_adapter_that_does_not_fit_is_refused(base: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "ours.safetensors", base, **{NORM: np.zeros(HIDDEN + 1)})

    with pytest.raises(PermanentError, match="does not fit"):
        prepared(base, adapter, tmp_path / "models")


def test_a_file_that_is_no_adapter_is_refused(base: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "ours.safetensors"
    adapter.write_bytes(b"no tensors")

    with pytest.raises(PermanentError, match="not a readable adapter"):
        prepared(base, adapter, tmp_path / "models")
