"""Writes a BERT encoder as an ONNX graph, from its safetensors and config, without PyTorch.

The layer arithmetic follows "BERT: Pre-training of Deep Bidirectional Transformers" (Devlin et al., 2019)
and "Attention Is All You Need" (Vaswani et al., 2017); tensor names are those of Hugging Face's BertModel.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors import SafetensorError, safe_open

from memory_extproc.errors import PermanentError
from memory_extproc.inference.model_files import SCORE

OPSET = 17  # the first with LayerNormalization as an operator
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
        """PermanentError when the file is not a BERT configuration that `bert_graph` can write."""
        try:
            config = json.loads(path.read_bytes())
            if config["model_type"] != "bert":
                raise PermanentError(
                    f"{path}: model_type is {config['model_type']!r}, only 'bert' can be converted"
                )
            for key, only in (("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
                if config.get(key, only) != only:
                    raise PermanentError(f"{path}: {key} is {config[key]!r}, only {only!r} can be converted")
            return cls(
                hidden=int(config["hidden_size"]),
                heads=int(config["num_attention_heads"]),
                layers=int(config["num_hidden_layers"]),
                positions=int(config["max_position_embeddings"]),
                epsilon=float(config.get("layer_norm_eps", 1e-12)),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PermanentError(f"{path}: not a readable BERT configuration ({type(error).__name__})") from error


class TensorFile:
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
            raise PermanentError(f"{path}: not a readable safetensors file ({type(error).__name__})") from error
        self._path = path

    def __call__(self, name: str) -> Floats:
        try:
            return np.ascontiguousarray(self._tensors[name], dtype=np.float32)
        except KeyError as error:
            raise PermanentError(f"{self._path}: tensor {name!r} is missing") from error


class Graph:
    """A list of nodes and constants that grows by an operator at a time; each call returns the output's name."""

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


class LayerWriter(Protocol):
    """Adds a transformer layer to a graph and returns the name of its output, *name*."""

    def __call__(
        self,
        graph: Graph,
        weights: TensorFile,
        config: BertConfig,
        prefix: str,
        hidden: str,
        bias: str,
        name: str,
        /,
    ) -> str:
        """*prefix*: of the layer's tensors; *hidden*: its input; *bias*: added to the attention scores."""


def bert_graph(directory: Path, write_layer: LayerWriter | None = None) -> onnx.ModelProto:
    """The encoder in *directory* (config.json, model.safetensors): INPUTS (int64, batch by sequence) to
    HIDDEN (float32, batch by sequence by hidden). PermanentError names the file and its fault.
    *write_layer*: None for layers of standard operators."""
    write_layer = write_layer or _write_layer
    config = BertConfig.read(directory / "config.json")
    weights = TensorFile(directory / "model.safetensors")
    graph = Graph()
    bias = _attention_bias(graph)
    hidden = _embeddings(graph, weights, config)
    for layer in range(config.layers):
        name = HIDDEN if layer == config.layers - 1 else f"layer.{layer}"
        hidden = write_layer(graph, weights, config, f"encoder.layer.{layer}.", hidden, bias, name)
    domains = sorted({"", *(node.domain for node in graph.nodes)})
    shape = ["batch", "sequence"]
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "bert",
            [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in INPUTS],
            [helper.make_tensor_value_info(HIDDEN, TensorProto.FLOAT, [*shape, config.hidden])],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid(domain, 1 if domain else OPSET) for domain in domains],
        ir_version=8,  # belongs to OPSET, so that older runtimes load the file too
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


def _embeddings(graph: Graph, weights: TensorFile, config: BertConfig) -> str:
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
    return layer_norm(graph, weights, config, "embeddings.LayerNorm", total, "embeddings.out")


def _write_layer(
    graph: Graph, weights: TensorFile, config: BertConfig, prefix: str, hidden: str, bias: str, name: str
) -> str:
    attended = _attention(graph, weights, config, prefix + "attention.", hidden, bias)
    projected = _dense(graph, weights, prefix + "attention.output.dense", attended)
    first = graph.add("Add", [projected, hidden], prefix + "attention.residual")
    normed = layer_norm(
        graph, weights, config, prefix + "attention.output.LayerNorm", first, prefix + "attention.out"
    )
    wide = _dense(graph, weights, prefix + "intermediate.dense", normed)
    narrow = _dense(graph, weights, prefix + "output.dense", _gelu(graph, prefix, wide))
    second = graph.add("Add", [narrow, normed], prefix + "residual")
    return layer_norm(graph, weights, config, prefix + "output.LayerNorm", second, name)


def _attention(graph: Graph, weights: TensorFile, config: BertConfig, prefix: str, hidden: str, bias: str) -> str:
    """softmax(Q·Kᵀ/√d + bias)·V over all heads. Q, K and V are a single product: a single quantisation and pass."""
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


def _dense(graph: Graph, weights: TensorFile, name: str, hidden: str) -> str:
    kernel = graph.constant(name + ".weight", np.ascontiguousarray(weights(name + ".weight").T))
    offset = graph.constant(name + ".bias", weights(name + ".bias"))
    product = graph.add("MatMul", [hidden, kernel], name + ".product")
    return graph.add("Add", [product, offset], name)


def layer_norm(graph: Graph, weights: TensorFile, config: BertConfig, source: str, hidden: str, name: str) -> str:
    """The normalised *hidden*, under *name*; *source*: prefix of its weights."""
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


# --- pooling -----------------------------------------------------------------------------------------
# Appends pooling and the L2 norm to an encoder's ONNX graph, for a unit vector per text.

SENTENCE = "sentence_embedding"  # batch by dimension, every row of unit length
_TOKEN_OUTPUTS = ("last_hidden_state", "token_embeddings")
_POOLED_OUTPUTS = ("sentence_embedding", "text_embeds", "embeddings")
_RANK_OF_TOKENS = 3
_AXES_BECAME_INPUT = 18  # opset from which ReduceL2 takes its axes as an input


class Pooling(StrEnum):
    MEAN = "mean"
    CLS = "cls"


def append_pooling(model: onnx.ModelProto, pooling: Pooling) -> tuple[onnx.ModelProto, int]:
    """*model* with the further output SENTENCE, placed first, and its dimension.

    A graph that pools by itself only gets the norm. PermanentError when no output is recognised.
    """
    outputs = {output.name: output for output in model.graph.output}
    pooled = next((name for name in _POOLED_OUTPUTS if name in outputs), None)
    tokens = next((name for name in _TOKEN_OUTPUTS if name in outputs), None)
    if pooled is None and tokens is None:
        raise PermanentError(f"no known output in the ONNX graph: it has {', '.join(sorted(outputs))}")
    made = onnx.ModelProto()
    made.CopyFrom(model)
    dimension = _last_dimension(outputs[pooled or str(tokens)])
    graph = made.graph
    if pooled is None:
        _pool(graph, str(tokens), pooling)
        pooled = "pooled.mean"
    elif pooled == SENTENCE:
        pooled = _rename_tensor(graph, SENTENCE, "pooled.own")
    _normalise(made, pooled)
    kept = [output for output in graph.output if output.name in _TOKEN_OUTPUTS]
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(SENTENCE, TensorProto.FLOAT, ["batch", dimension]))
    graph.output.extend(kept)
    onnx.checker.check_model(made)
    return made, dimension


def _last_dimension(output: onnx.ValueInfoProto) -> int:
    size = output.type.tensor_type.shape.dim[-1].dim_value if output.type.tensor_type.shape.dim else 0
    if size <= 0:
        raise PermanentError(f"the ONNX graph does not say the dimension of its output {output.name!r}")
    return int(size)


def _rename_tensor(graph: onnx.GraphProto, old: str, new: str) -> str:
    for node in graph.node:
        for names in (node.input, node.output):
            for at, name in enumerate(names):
                if name == old:
                    names[at] = new
    return new


def _pool(graph: onnx.GraphProto, tokens: str, pooling: Pooling) -> None:
    """Batch by sequence by dimension to "pooled.mean", batch by dimension; padding does not count.

    The mean is a product of matrices, mask (batch by 1 by sequence) · tokens; its division by the number of tokens
    is left out, because the following norm removes every positive factor.
    """
    one = helper.make_tensor("pooled.axis", TensorProto.INT64, [1], [1])
    graph.initializer.append(one)
    if pooling is Pooling.CLS:
        first = helper.make_tensor("pooled.first", TensorProto.INT64, [], [0])
        graph.initializer.append(first)
        graph.node.append(helper.make_node("Gather", [tokens, "pooled.first"], ["pooled.mean"], axis=1))
        return
    graph.node.extend(
        [
            helper.make_node("Cast", ["attention_mask"], ["pooled.mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["pooled.mask", "pooled.axis"], ["pooled.row"]),
            helper.make_node("MatMul", ["pooled.row", tokens], ["pooled.sum"]),
            helper.make_node("Squeeze", ["pooled.sum", "pooled.axis"], ["pooled.mean"]),
        ]
    )


def _normalise(model: onnx.ModelProto, pooled: str) -> None:
    """Divides by the Euclidean length, which is held above 1e-12 as torch.nn.functional.normalize does."""
    graph = model.graph
    graph.initializer.append(helper.make_tensor("pooled.least", TensorProto.FLOAT, [], [1e-12]))
    opset = next(entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"})
    if opset >= _AXES_BECAME_INPUT:
        graph.initializer.append(helper.make_tensor("pooled.axes", TensorProto.INT64, [1], [1]))
        length = helper.make_node("ReduceL2", [pooled, "pooled.axes"], ["pooled.length"], keepdims=1)
    else:
        length = helper.make_node("ReduceL2", [pooled], ["pooled.length"], axes=[1], keepdims=1)
    graph.node.extend(
        [
            length,
            helper.make_node("Max", ["pooled.length", "pooled.least"], ["pooled.safe"]),
            helper.make_node("Div", [pooled, "pooled.safe"], [SENTENCE]),
        ]
    )


# --- scoring head ------------------------------------------------------------------------------------
# Gives a graph the output of a cross-encoder: a score for each pair of texts.
#
# The head follows Hugging Face's BertForSequenceClassification: a dense layer and tanh over the first token
# (BERT's pooler), then a linear unit. Its score is any number; only its order means something.

_LOGITS = "logits"


def scoring_graph(directory: Path) -> onnx.ModelProto:
    """The cross-encoder in *directory* (config.json, model.safetensors) with the output SCORE. PermanentError
    when its weights have no head of a single unit."""
    weights = TensorFile(directory / "model.safetensors")
    kernel, offset = weights("classifier.weight"), weights("classifier.bias")
    if len(kernel) != 1:
        raise PermanentError(f"{directory}: classifies into {len(kernel)} classes; a reranker gives one score")
    made = bert_graph(directory)
    constants = {
        "score.first": np.array(0, dtype=np.int64),
        "score.pooler": np.ascontiguousarray(weights("pooler.dense.weight").T),
        "score.pooler_bias": weights("pooler.dense.bias"),
        "score.unit": kernel,
        "score.unit_bias": offset,
    }
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    made.graph.node.extend(
        [
            helper.make_node("Gather", [HIDDEN, "score.first"], ["score.token"], axis=1),
            helper.make_node("MatMul", ["score.token", "score.pooler"], ["score.product"]),
            helper.make_node("Add", ["score.product", "score.pooler_bias"], ["score.dense"]),
            helper.make_node("Tanh", ["score.dense"], ["score.pooled"]),
            # Gemm, which is not quantised: a single unit costs nothing, and the order depends on it
            helper.make_node("Gemm", ["score.pooled", "score.unit", "score.unit_bias"], [_LOGITS], transB=1),
        ]
    )
    return _with_score(made, _LOGITS)


def append_score(model: onnx.ModelProto) -> onnx.ModelProto:
    """A ready cross-encoder's graph with the output SCORE. PermanentError when it gives no single score."""
    outputs = {output.name: output for output in model.graph.output}
    if _LOGITS not in outputs:
        raise PermanentError(f"no output {_LOGITS!r} in the ONNX graph: it has {', '.join(sorted(outputs))}")
    size = outputs[_LOGITS].type.tensor_type.shape.dim
    classes = size[-1].dim_value if len(size) > 1 else 1
    if classes > 1:
        raise PermanentError(f"the ONNX graph classifies into {classes} classes; a reranker gives one score")
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return _with_score(made, _LOGITS)


def _with_score(made: onnx.ModelProto, logits: str) -> onnx.ModelProto:
    graph = made.graph
    graph.initializer.append(helper.make_tensor("score.flat", TensorProto.INT64, [1], [-1]))
    graph.node.append(helper.make_node("Reshape", [logits, "score.flat"], [SCORE]))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(SCORE, TensorProto.FLOAT, ["batch"]))
    onnx.checker.check_model(made)
    return made
