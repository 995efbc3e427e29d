"""The encoder of all-MiniLM-L6-v2 in JAX, with a low-rank adapter over its linear layers.

The arithmetic is that of memory_extproc/inference/bert_onnx.py. The base weights are frozen; the adapter adds
`down @ up` to each linear layer (LoRA, Hu et al. 2021) and moves the LayerNorms and biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

HIDDEN, HEADS = 384, 12
LINEAR = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "o": "attention.output.dense",
    "f": "intermediate.dense",
    "g": "output.dense",
}
NORMS = {"n1": "attention.output.LayerNorm", "n2": "output.LayerNorm"}
Tree = Any  # nested dicts and lists of arrays


def load_base(directory: Path) -> Tree:
    """Read the weights: embeddings, and for each layer weights (inputs by outputs) and biases by short name."""
    raw = load_file(directory / "model.safetensors")
    weights = {name.removeprefix("bert."): np.asarray(array, np.float32) for name, array in raw.items()}
    layers = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))
    read = []
    for number in range(layers):
        layer: dict[str, Any] = {}
        for short, name in (LINEAR | NORMS).items():
            weight = weights[f"encoder.layer.{number}.{name}.weight"]
            layer[short] = jnp.asarray(weight.T)
            layer[short + "_bias"] = jnp.asarray(weights[f"encoder.layer.{number}.{name}.bias"])
        read.append(layer)
    table = "embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight"
    words, positions = (jnp.asarray(weights[name]) for name in table)
    norm = [jnp.asarray(weights[f"embeddings.LayerNorm.{part}"]) for part in ("weight", "bias")]
    kind = jnp.asarray(weights["embeddings.token_type_embeddings.weight"][0])
    return {"words": words, "positions": positions + kind, "norm": norm, "layers": read}


def new_adapter(layers: Sequence[Tree], rank: int, seed: int) -> Tree:
    """An adapter that changes nothing yet: `up`, and what moves norms and biases, are zero."""
    rng = np.random.default_rng(seed)
    adapters = []
    for layer in layers:
        made = {}
        for short in LINEAR:
            inputs, outputs = layer[short].shape
            made[short + "_down"] = jnp.asarray(rng.normal(0, inputs**-0.5, (inputs, rank)), jnp.float32)
            made[short + "_up"] = jnp.zeros((rank, outputs), jnp.float32)
        for name, array in layer.items():
            if name not in LINEAR:
                made[name] = jnp.zeros_like(array)
        adapters.append(made)
    return adapters


def embed(base: Tree, adapter: Tree | None, ids: jax.Array, mask: jax.Array) -> jax.Array:
    """Unit vectors of the rows of *ids*: the mean of the token states, with *adapter* over the base weights."""
    x = run_layers(base["layers"], adapter, begin(base, ids), mask)
    weight = mask[:, :, None].astype(jnp.float32)
    mean = (x * weight).sum(1) / weight.sum(1)
    return mean * jax.lax.rsqrt((mean * mean).sum(-1, keepdims=True) + 1e-12)


def begin(base: Tree, ids: jax.Array) -> jax.Array:
    """The states of the tokens in *ids* below the first layer."""
    return _normalise(base["words"][ids] + base["positions"][: ids.shape[1]], *base["norm"])


def run_layers(layers: Sequence[Tree], adapter: Tree | None, x: jax.Array, mask: jax.Array) -> jax.Array:
    """The states of the tokens above *layers*, with an entry of *adapter* over each. The activation is the tanh form
    of GELU, which is faster here and differs by less than the quantisation."""
    rows, length, _ = x.shape
    hidden = jnp.where(mask[:, None, None, :] > 0, 0.0, -1e9)
    for number, layer in enumerate(layers):
        added = adapter[number] if adapter else {}

        def part(name: str, layer: Tree = layer, added: Tree = added) -> jax.Array:
            return layer[name] + added[name] if name in added else layer[name]

        def linear(
            x: jax.Array, short: str, layer: Tree = layer, added: Tree = added, part: Any = part
        ) -> jax.Array:
            y = x @ layer[short] + part(short + "_bias")
            return y + (x @ added[short + "_down"]) @ added[short + "_up"] if added else y

        split = (rows, length, HEADS, HIDDEN // HEADS)
        q, k, v = (linear(x, short).reshape(split).transpose(0, 2, 1, 3) for short in "qkv")
        attended = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) * (HIDDEN // HEADS) ** -0.5 + hidden, -1) @ v
        attended = attended.transpose(0, 2, 1, 3).reshape(rows, length, HIDDEN)
        x = _normalise(x + linear(attended, "o"), part("n1"), part("n1_bias"))
        x = _normalise(x + linear(jax.nn.gelu(linear(x, "f"), approximate=True), "g"), part("n2"), part("n2_bias"))
    return x


def _normalise(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    moved = x - x.mean(-1, keepdims=True)
    return moved * jax.lax.rsqrt((moved * moved).mean(-1, keepdims=True) + 1e-12) * weight + bias


class Texts:
    """Turns texts into padded token ids. *most*: tokens of a text."""

    def __init__(self, directory: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def pad(self, texts: Sequence[str], most: int) -> tuple[np.ndarray, np.ndarray]:
        found = [one.ids if len(one.ids) <= most else [*one.ids[: most - 1], one.ids[-1]]
                 for one in self._tokenizer.encode_batch(list(texts))]  # fmt: skip
        ids, mask = np.zeros((len(found), most), np.int32), np.zeros((len(found), most), np.int32)
        for row, one in enumerate(found):
            ids[row, : len(one)], mask[row, : len(one)] = one, 1
        return ids, mask
