"""Writes a trained adapter as `memory-extproc models prepare` takes it: half precision, a lower rank, a share.

python -m scripts.train.export --base DIRECTORY --trained adapter.safetensors --share 0.7 --out FILE
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from memory_extproc.inference.model_files import record_of
from memory_extproc.inference.prepare import BASE
from scripts.train.layers import LINEAR, NORMS


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--trained", type=Path, required=True)
    parser.add_argument("--share", type=float, default=1.0, help="of the adapter: 0 is the base")
    parser.add_argument("--rank", type=int, default=12)
    parser.add_argument("--out", type=Path, required=True)
    told = parser.parse_args(arguments)
    trained, made = load_file(told.trained), {}
    for number in sorted({name.partition(".")[0] for name in trained}):
        for short, name in (LINEAR | NORMS).items():
            at, target = f"{number}.{short}", f"encoder.layer.{number}.{name}"
            made[f"{target}.bias"] = told.share * trained[f"{at}_bias"]
            if short in NORMS:
                made[f"{target}.weight"] = told.share * trained[at]
                continue
            up, sizes, down = np.linalg.svd(
                told.share * (trained[f"{at}_down"] @ trained[f"{at}_up"]).T, full_matrices=False
            )
            root = np.sqrt(sizes[: told.rank])
            made[f"{target}.weight.up"] = up[:, : told.rank] * root
            made[f"{target}.weight.down"] = root[:, None] * down[: told.rank]
    half = {name: np.ascontiguousarray(array, np.float16) for name, array in made.items()}
    save_file(half, told.out, {BASE: record_of(told.base / "model.safetensors").sha256})


if __name__ == "__main__":
    main()
