"""A trained adapter is exported as `models prepare` merges it. Nothing here needs PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from memory_extproc.inference.prepare import merge_adapter
from scripts.train import export
from scripts.train.layers import LINEAR, NORMS

INPUTS, OUTPUTS, RANK, SHARE = 6, 8, 2, 0.5


@pytest.fixture
def trained() -> dict[str, np.ndarray]:
    """An adapter of one layer, under the names that the trainer gives."""
    random = np.random.default_rng(3)
    shapes: dict[str, tuple[int, ...]] = {}
    for short in LINEAR:
        shapes |= {f"{short}_down": (INPUTS, RANK), f"{short}_up": (RANK, OUTPUTS), f"{short}_bias": (OUTPUTS,)}
    for short in NORMS:
        shapes |= {short: (OUTPUTS,), f"{short}_bias": (OUTPUTS,)}
    return {f"0.{name}": random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def test_a_share_of_the_adapter_is_merged(tmp_path: Path, trained: dict[str, np.ndarray]) -> None:
    base: dict[str, np.ndarray] = {}
    for name in (LINEAR | NORMS).values():
        shape = (OUTPUTS, INPUTS) if name in LINEAR.values() else (OUTPUTS,)
        base |= {
            f"encoder.layer.0.{name}.weight": np.ones(shape, np.float32),
            f"encoder.layer.0.{name}.bias": np.ones(OUTPUTS, np.float32),
        }
    save_file(base, tmp_path / "model.safetensors")
    save_file(trained, tmp_path / "trained.safetensors")
    given = {"base": tmp_path, "trained": tmp_path / "trained.safetensors", "share": SHARE, "rank": RANK}
    options = [f"--{name}={value}" for name, value in given.items()]
    export.main([*options, f"--out={tmp_path / 'ours.safetensors'}"])
    merge_adapter(tmp_path / "model.safetensors", tmp_path / "ours.safetensors", tmp_path / "merged.safetensors")
    merged = load_file(tmp_path / "merged.safetensors")
    assert merged.keys() == base.keys()
    for short, name in LINEAR.items():
        moved = SHARE * (trained[f"0.{short}_down"] @ trained[f"0.{short}_up"]).T
        np.testing.assert_allclose(merged[f"encoder.layer.0.{name}.weight"], 1 + moved, atol=2e-3)
    for short, name in NORMS.items():
        np.testing.assert_allclose(
            merged[f"encoder.layer.0.{name}.weight"], 1 + SHARE * trained[f"0.{short}"], atol=2e-3
        )
