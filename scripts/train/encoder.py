"""The encoder of all-MiniLM-L6-v2 in PyTorch, with a low-rank adapter over its linear layers.

The arithmetic is that of memory_extproc/inference/bert_onnx.py, in bfloat16 where `torch.autocast` allows it. The base
weights are frozen; the adapter adds `down @ up` to each linear layer (LoRA, Hu et al. 2021) and moves the LayerNorms
and biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from scripts.train.layers import LINEAR, NORMS

HIDDEN, HEADS, EPSILON = 384, 12, 1e-12
Layer = dict[str, Tensor]  # by short name: weights (outputs by inputs), norms, and biases as NAME_bias


@dataclass(frozen=True, slots=True)
class Base:
    """The frozen weights. *positions*: with the embedding of the first segment added. *norm*: weight and bias."""

    words: Tensor
    positions: Tensor
    norm: tuple[Tensor, Tensor]
    layers: list[Layer]


def load_base(directory: Path) -> Base:
    """Read model.safetensors of *directory* as float32."""
    raw = load_file(directory / "model.safetensors")
    weights = {name.removeprefix("bert."): tensor.float() for name, tensor in raw.items()}
    layers = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))
    read = []
    for number in range(layers):
        layer = {}
        for short, name in (LINEAR | NORMS).items():
            layer[short] = weights[f"encoder.layer.{number}.{name}.weight"]
            layer[short + "_bias"] = weights[f"encoder.layer.{number}.{name}.bias"]
        read.append(layer)
    segment = weights["embeddings.token_type_embeddings.weight"][0]
    return Base(
        words=weights["embeddings.word_embeddings.weight"],
        positions=weights["embeddings.position_embeddings.weight"] + segment,
        norm=(weights["embeddings.LayerNorm.weight"], weights["embeddings.LayerNorm.bias"]),
        layers=read,
    )


class Adapter(nn.Module):
    """The trained parameters over *layers*: for each matrix `down` (inputs by *rank*) and `up` (*rank* by outputs), for
    norms and biases a difference. A new adapter changes nothing: all but `down` is zero."""

    def __init__(self, layers: Sequence[Layer], rank: int, seed: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.layers = nn.ModuleList()
        for layer in layers:
            made = {}
            for name, weight in layer.items():
                if name not in LINEAR:
                    made[name] = nn.Parameter(torch.zeros_like(weight))
                    continue
                outputs, inputs = weight.shape
                made[name + "_down"] = nn.Parameter(torch.randn(inputs, rank, generator=random) * inputs**-0.5)
                made[name + "_up"] = nn.Parameter(torch.zeros(rank, outputs))
            self.layers.append(nn.ParameterDict(made))

    def add_to(self, layers: Sequence[Layer]) -> list[Layer]:
        """The weights of *layers* with the adapter added, for one step or one measurement."""
        return [
            {
                name: weight + ((own[name + "_down"] @ own[name + "_up"]).T if name in LINEAR else own[name])
                for name, weight in layer.items()
            }
            for layer, own in zip(layers, self.layers, strict=True)
        ]

    def name_arrays(self) -> dict[str, np.ndarray]:
        """The trained tensors as a file has them: `LAYER.NAME_down`, `LAYER.NAME_up`, `LAYER.NAME` of norms and
        `LAYER.NAME_bias`."""
        return {
            f"{number}.{name}": parameter.detach().numpy().copy()
            for number, own in enumerate(self.layers)
            for name, parameter in own.items()
        }


def begin(base: Base, ids: Tensor) -> Tensor:
    """The states of the tokens in *ids* below the first layer."""
    states = functional.embedding(ids, base.words) + base.positions[: ids.shape[1]]
    return functional.layer_norm(states, (HIDDEN,), *base.norm, EPSILON)


def run_layers(layers: Sequence[Layer], x: Tensor, mask: Tensor) -> Tensor:
    """The states of the tokens above *layers*; *x*: below them, rows by length by HIDDEN. Each row of *mask* has a
    token at least."""
    rows, length, _ = x.shape
    split = (rows, length, HEADS, HIDDEN // HEADS)
    shown = mask[:, None, None, :] > 0
    for layer in layers:

        def linear(x: Tensor, short: str, layer: Layer = layer) -> Tensor:
            return functional.linear(x, layer[short], layer[short + "_bias"])

        def normalise(x: Tensor, short: str, layer: Layer = layer) -> Tensor:
            return functional.layer_norm(x, (HIDDEN,), layer[short], layer[short + "_bias"], EPSILON)

        q, k, v = (linear(x, short).view(split).transpose(1, 2) for short in "qkv")
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=shown)
        x = normalise(x + linear(attended.transpose(1, 2).reshape(rows, length, HIDDEN), "o"), "n1")
        x = normalise(x + linear(functional.gelu(linear(x, "f")), "g"), "n2")
    return x


class Encoder(nn.Module):
    """Base, adapter and tokenizer of *directory*. Only the adapter has parameters."""

    def __init__(self, directory: Path, rank: int, seed: int) -> None:
        super().__init__()
        self.base = load_base(directory)
        self.adapter = Adapter(self.base.layers, rank, seed)
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def adapt(self) -> list[Layer]:
        """The layers with the adapter as it is now, for `embed`."""
        return self.adapter.add_to(self.base.layers)

    def embed(self, layers: Sequence[Layer], texts: Sequence[str], most: int) -> Tensor:
        """Unit vectors of *texts* (texts by HIDDEN): the mean of the token states above *layers*. *most*: tokens of a
        text."""
        found = [one.ids if len(one.ids) <= most else [*one.ids[: most - 1], one.ids[-1]]
                 for one in self._tokenizer.encode_batch(list(texts))]  # fmt: skip
        groups = group_lengths([len(ids) for ids in found])
        vectors = torch.cat([self._embed_group(layers, [found[place] for place in group]) for group in groups])
        places = torch.tensor([place for group in groups for place in group])
        return vectors[places.argsort()]

    def _embed_group(self, layers: Sequence[Layer], group: Sequence[Sequence[int]]) -> Tensor:
        ids, mask = pad_rows(group), pad_rows([[1] * len(row) for row in group])
        with torch.autocast("cpu", torch.bfloat16):
            x = run_layers(layers, begin(self.base, ids), mask).float()
        weight = mask[:, :, None].float()
        return functional.normalize((x * weight).sum(1) / weight.sum(1), dim=-1)


def group_lengths(lengths: Sequence[int]) -> list[list[int]]:
    """Places in *lengths* by groups to be padded together: in a group the longest has up to 4 tokens, or a third, more
    than the shortest. Chats have texts of 3 tokens and of 128."""
    groups: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        shortest = lengths[groups[-1][0]] if groups else 0
        if groups and lengths[place] <= max(shortest * 1.35, shortest + 4):
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def pad_rows(rows: Sequence[Sequence[int]]) -> Tensor:
    """*rows* as an array of integers as wide as the longest, filled up with zeros."""
    made = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for number, row in enumerate(rows):
        made[number, : len(row)] = row
    return torch.from_numpy(made)
