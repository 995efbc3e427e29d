"""Writes a BERT encoder as an ONNX graph, from its safetensors and config, without PyTorch.

The layer arithmetic follows "BERT: Pre-training of Deep Bidirectional Transformers" (Devlin et al., 2019)
and "Attention Is All You Need" (Vaswani et al., 2017); tensor names are those of Hugging Face's BertModel.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors import SafetensorError, safe_open

from memory_extproc.errors import GiveUpError

OPSET = 17  # the first with LayerNormalization as one operator
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
HIDDEN = "last_hidden_state"
# Added to the scores of padding. Far below any real score, far above float16's and float32's lowest.
MASKED = -10000.0

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BertConfig:
    """The sizes of a BERT encoder, as its config.json says."""

    hidden: int
    heads: int
    layers: int
    positions: int
    epsilon: float

    @classmethod
    def read(cls, path: Path) -> Self:
        """GiveUpError when the file is not a BERT configuration that `bert_graph` can write."""
        try:
            config = json.loads(path.read_bytes())
            if config["model_type"] != "bert":
                raise GiveUpError(f"{path}: model_type is {config['model_type']!r}, only 'bert' can be converted")
            for key, only in (("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
                if config.get(key, only) != only:
                    raise GiveUpError(f"{path}: {key} is {config[key]!r}, only {only!r} can be converted")
            return cls(
                hidden=int(config["hidden_size"]),
                heads=int(config["num_attention_heads"]),
                layers=int(config["num_hidden_layers"]),
                positions=int(config["max_position_embeddings"]),
                epsilon=float(config.get("layer_norm_eps", 1e-12)),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise GiveUpError(f"{path}: not a readable BERT configuration ({type(error).__name__})") from error


class Weights:
    """The tensors of a safetensors file as float32, with or without the prefix `bert.`."""

    def __init__(self, path: Path) -> None:
        try:
            with safe_open(str(path), framework="numpy") as tensors:
                names = list(tensors.keys())
                self._tensors: Mapping[str, npt.NDArray[Any]] = {
                    name.removeprefix("bert."): tensors.get_tensor(name)
                    for name in names
                    if "position_ids" not in name
                }
        except (OSError, SafetensorError, TypeError) as error:
            raise GiveUpError(f"{path}: not a readable safetensors file ({type(error).__name__})") from error
        self._path = path

    def __call__(self, name: str) -> Floats:
        try:
            return np.ascontiguousarray(self._tensors[name], dtype=np.float32)
        except KeyError as error:
            raise GiveUpError(f"{self._path}: tensor {name!r} is missing") from error


class Graph:
    """A list of nodes and constants that grows one operator at a time; each call returns the output's name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: npt.NDArray[Any]) -> str:
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def add(self, operator: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        self.nodes.append(
            helper.make_node(operator, list(inputs), [name], name=name + "/" + operator, **attributes)
        )
        return name


def bert_graph(directory: Path) -> onnx.ModelProto:
    """The encoder in *directory* (config.json, model.safetensors): INPUTS (int64, batch by sequence) to
    HIDDEN (float32, batch by sequence by hidden). GiveUpError names the file and what is wrong with it."""
    config = BertConfig.read(directory / "config.json")
    weights = Weights(directory / "model.safetensors")
    graph = Graph()
    mask = _attention_bias(graph)
    hidden = _embeddings(graph, weights, config)
    for layer in range(config.layers):
        name = HIDDEN if layer == config.layers - 1 else f"layer.{layer}"
        hidden = _layer(graph, weights, config, f"encoder.layer.{layer}.", hidden, mask, name)
    shape = ["batch", "sequence"]
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "bert",
            [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in INPUTS],
            [helper.make_tensor_value_info(HIDDEN, TensorProto.FLOAT, [*shape, config.hidden])],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,  # the one that belongs to OPSET, so that older runtimes load the file too
        producer_name="memory-extproc",
    )
    onnx.checker.check_model(model)
    return model


def _attention_bias(graph: Graph) -> str:
    """Batch by 1 by 1 by sequence: 0 for a token, MASKED for padding."""
    axes = graph.constant("mask.axes", np.array([1, 2], dtype=np.int64))
    one = graph.constant("mask.one", np.array(1, dtype=np.float32))
    masked = graph.constant("mask.masked", np.array(MASKED, dtype=np.float32))
    mask = graph.add("Cast", ["attention_mask"], "mask.float", to=TensorProto.FLOAT)
    wide = graph.add("Unsqueeze", [mask, axes], "mask.wide")
    padding = graph.add("Sub", [one, wide], "mask.padding")
    return graph.add("Mul", [padding, masked], "mask.bias")


def _embeddings(graph: Graph, weights: Weights, config: BertConfig) -> str:
    words = graph.constant("embeddings.words", weights("embeddings.word_embeddings.weight"))
    types = graph.constant("embeddings.types", weights("embeddings.token_type_embeddings.weight"))
    positions = graph.constant("embeddings.positions", weights("embeddings.position_embeddings.weight"))
    zero = graph.constant("embeddings.zero", np.array([0], dtype=np.int64))

    shape = graph.add("Shape", ["input_ids"], "embeddings.shape", start=1, end=2)
    present = graph.add("Slice", [positions, zero, shape, zero], "embeddings.present")
    word = graph.add("Gather", [words, "input_ids"], "embeddings.word")
    kind = graph.add("Gather", [types, "token_type_ids"], "embeddings.kind")
    both = graph.add("Add", [word, kind], "embeddings.both")
    rows = graph.add("Unsqueeze", [present, zero], "embeddings.rows")
    total = graph.add("Add", [both, rows], "embeddings.total")
    return _norm(graph, weights, config, "embeddings.LayerNorm", total, "embeddings.out")


def _layer(
    graph: Graph, weights: Weights, config: BertConfig, prefix: str, hidden: str, bias: str, name: str
) -> str:
    attended = _attention(graph, weights, config, prefix + "attention.", hidden, bias)
    projected = _dense(graph, weights, prefix + "attention.output.dense", attended)
    first = graph.add("Add", [projected, hidden], prefix + "attention.residual")
    normed = _norm(graph, weights, config, prefix + "attention.output.LayerNorm", first, prefix + "attention.out")
    wide = _dense(graph, weights, prefix + "intermediate.dense", normed)
    narrow = _dense(graph, weights, prefix + "output.dense", _gelu(graph, prefix, wide))
    second = graph.add("Add", [narrow, normed], prefix + "residual")
    return _norm(graph, weights, config, prefix + "output.LayerNorm", second, name)


def _attention(graph: Graph, weights: Weights, config: BertConfig, prefix: str, hidden: str, bias: str) -> str:
    """softmax(Q·Kᵀ/√d + bias)·V over all heads. Q, K and V are one product: one quantisation, one pass."""
    size = config.hidden // config.heads
    scale = 1.0 / math.sqrt(size)  # folded into the query's weights
    names = [f"{prefix}self.{part}" for part in ("query", "key", "value")]
    factors = np.array([scale, 1.0, 1.0], dtype=np.float32)
    kernel = np.concatenate(
        [weights(f"{part}.weight").T * factor for part, factor in zip(names, factors, strict=True)], axis=1
    )
    offset = np.concatenate([weights(f"{part}.bias") * factor for part, factor in zip(names, factors, strict=True)])
    product = graph.add("MatMul", [hidden, graph.constant(prefix + "qkv.weight", kernel)], prefix + "qkv.product")
    together = graph.add("Add", [product, graph.constant(prefix + "qkv.bias", offset)], prefix + "qkv")
    thirds = [f"{prefix}{part}.flat" for part in "qkv"]
    graph.nodes.append(
        helper.make_node(
            "Split",
            [together, graph.constant(prefix + "qkv.sizes", np.full(3, config.hidden, dtype=np.int64))],
            thirds,
            axis=2,
        )
    )
    by_head = graph.constant(prefix + "heads", np.array([0, 0, config.heads, size], dtype=np.int64))
    flat = graph.constant(prefix + "flat", np.array([0, 0, config.hidden], dtype=np.int64))

    def heads(source: str, part: str, order: Sequence[int]) -> str:
        split = graph.add("Reshape", [source, by_head], f"{prefix}{part}.split")
        return graph.add("Transpose", [split], f"{prefix}{part}", perm=list(order))

    query = heads(thirds[0], "q", (0, 2, 1, 3))
    key = heads(thirds[1], "k", (0, 2, 3, 1))
    value = heads(thirds[2], "v", (0, 2, 1, 3))
    scores = graph.add("MatMul", [query, key], prefix + "scores")
    biased = graph.add("Add", [scores, bias], prefix + "biased")
    shares = graph.add("Softmax", [biased], prefix + "shares", axis=-1)
    mixed = graph.add("MatMul", [shares, value], prefix + "mixed")
    merged = graph.add("Transpose", [mixed], prefix + "merged", perm=[0, 2, 1, 3])
    return graph.add("Reshape", [merged, flat], prefix + "attended")


def _dense(graph: Graph, weights: Weights, name: str, hidden: str) -> str:
    kernel = graph.constant(name + ".weight", np.ascontiguousarray(weights(name + ".weight").T))
    offset = graph.constant(name + ".bias", weights(name + ".bias"))
    product = graph.add("MatMul", [hidden, kernel], name + ".product")
    return graph.add("Add", [product, offset], name)


def _norm(graph: Graph, weights: Weights, config: BertConfig, source: str, hidden: str, name: str) -> str:
    scale = graph.constant(source + ".weight", weights(source + ".weight"))
    offset = graph.constant(source + ".bias", weights(source + ".bias"))
    return graph.add("LayerNormalization", [hidden, scale, offset], name, axis=-1, epsilon=config.epsilon)


def _gelu(graph: Graph, prefix: str, hidden: str) -> str:
    """x/2·(1 + erf(x/√2)), the exact form; written so that the runtime recognises and fuses it."""
    root = graph.constant(prefix + "gelu.root", np.array(math.sqrt(2.0), dtype=np.float32))
    one = graph.constant(prefix + "gelu.one", np.array(1.0, dtype=np.float32))
    half = graph.constant(prefix + "gelu.half", np.array(0.5, dtype=np.float32))
    scaled = graph.add("Div", [hidden, root], prefix + "gelu.scaled")
    erf = graph.add("Erf", [scaled], prefix + "gelu.erf")
    shifted = graph.add("Add", [erf, one], prefix + "gelu.shifted")
    product = graph.add("Mul", [hidden, shifted], prefix + "gelu.product")
    return graph.add("Mul", [product, half], prefix + "gelu")
