"""Writes graphs with 8-bit weights, in two ways.

`quantise` serves any graph and any batch: every block of 64 weights has a scale of its own, and at run time so has
every block of a row of activations, so that a vector does not depend on the texts beside it in a batch. (One scale
per tensor, as in ONNX Runtime's `quantize_dynamic`: the same text alone and in company has a cosine down to 0.97.)

`fused_bert_graph` takes half the time, for one text at a time and encoders of BERT's kind: whole operators of ONNX
Runtime, a scale per column of weights and a scale per tensor of activations. The session must not let x86 without
VNNI saturate (`open_session`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from memory_extproc.inference.bert_onnx import BertConfig, Floats, Graph, TensorFile, bert_graph, layer_norm

_MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators
_BLOCK = 64  # weights per scale; a power of two, at least 16
_LARGEST = 127
_MIDDLE = 128  # zero of MatMulNBits in an unsigned byte
_INTEGER_ACTIVATIONS = 4  # MatMulNBits' accuracy_level: multiply in int8, add up in int32
_TABLE_ROWS = 1024  # a lookup table smaller than that is not worth the two further nodes
_MATRIX = 2


def quantise(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of *model* with 8-bit weights in its products and lookup tables; a weight that does not divide
    into blocks stays as it is. The same input gives the same bytes."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    weights = {tensor.name: tensor for tensor in made.graph.initializer if tensor.data_type == TensorProto.FLOAT}
    nodes: list[onnx.NodeProto] = []
    added: dict[str, onnx.TensorProto] = {}
    for node in made.graph.node:
        if node.op_type == "MatMul" and node.input[1] in weights:
            kernel = numpy_helper.to_array(weights[node.input[1]])
            nodes.append(_product(node, kernel, added) if _divides(kernel) else node)
        elif node.op_type == "Gather" and node.input[0] in weights and not _find_axis(node):
            table = numpy_helper.to_array(weights[node.input[0]])
            large = table.ndim == _MATRIX and len(table) >= _TABLE_ROWS
            nodes.extend(_lookup(node, table, added) if large else [node])
        else:
            nodes.append(node)
    used = {*_names_read(nodes), *(output.name for output in made.graph.output)}
    kept = [tensor for tensor in made.graph.initializer if tensor.name in used]
    _replace(made.graph.node, nodes)
    _replace(made.graph.initializer, [*kept, *added.values()])
    if not any(entry.domain == _MICROSOFT for entry in made.opset_import):
        made.opset_import.append(helper.make_opsetid(_MICROSOFT, 1))
    return made


def _names_read(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """Names of the inputs of *nodes*, the bodies of their branches and loops included."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _names_read(graph.node)
                yield from (output.name for output in graph.output)


def _replace(field: Any, entries: list[Any]) -> None:
    copies = [type(entry).FromString(entry.SerializeToString()) for entry in entries]
    del field[:]
    field.extend(copies)


def _find_axis(node: onnx.NodeProto) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == "axis"), 0)


def _divides(kernel: npt.NDArray[Any]) -> bool:
    return kernel.ndim == _MATRIX and kernel.shape[0] % _BLOCK == 0


def _quantize_int8(values: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Integers in [-127, 127] and a scale for each row."""
    scales = np.abs(values).max(axis=-1, keepdims=True) / np.float32(_LARGEST)
    scales[scales == 0] = 1.0  # a block of zeros has no scale of its own
    return np.rint(values / scales).astype(np.int8), scales.astype(np.float32)


def _product(node: onnx.NodeProto, kernel: Floats, added: dict[str, onnx.TensorProto]) -> onnx.NodeProto:
    size, columns = kernel.shape
    source = node.input[1]
    integers, scales = _quantize_int8(np.ascontiguousarray(kernel.T).reshape(columns, size // _BLOCK, _BLOCK))
    stored = (integers.astype(np.int16) + _MIDDLE).astype(np.uint8)
    for name, tensor in ((f"{source}.int8", stored), (f"{source}.scale", scales[:, :, 0])):
        added[name] = numpy_helper.from_array(np.ascontiguousarray(tensor), name)
    return helper.make_node(
        "MatMulNBits",
        [node.input[0], f"{source}.int8", f"{source}.scale"],
        list(node.output),
        name=node.name,
        domain=_MICROSOFT,
        K=size,
        N=columns,
        bits=8,
        block_size=_BLOCK,
        accuracy_level=_INTEGER_ACTIVATIONS,
    )


def _lookup(node: onnx.NodeProto, table: Floats, added: dict[str, onnx.TensorProto]) -> list[onnx.NodeProto]:
    """The table's rows as integers, each with its own scale: gathered, widened, multiplied."""
    source, at, out = node.input[0], node.input[1], node.output[0]
    integers, scales = _quantize_int8(table)
    for name, tensor in ((f"{source}.int8", integers), (f"{source}.scale", scales)):
        added[name] = numpy_helper.from_array(tensor, name)
    return [
        helper.make_node("Gather", [f"{source}.int8", at], [f"{out}.int8"], axis=0),
        helper.make_node("Cast", [f"{out}.int8"], [f"{out}.wide"], to=TensorProto.FLOAT),
        helper.make_node("Gather", [f"{source}.scale", at], [f"{out}.scale"], axis=0),
        helper.make_node("Mul", [f"{out}.wide", f"{out}.scale"], [out]),
    ]


# --- fused graph -------------------------------------------------------------------------------------

# Large activations stand in few channels, and a common scale leaves few steps to the other channels. So each
# channel is divided by a factor and its weights are multiplied with it: Xiao et al. 2023, "SmoothQuant". The
# exponent decides how much of the range moves into the weights; a channel that is small in every sample counts
# with a share of the largest, for in another text it may not be. For the default model both lie in the middle of
# a flat optimum: mean cosine to full precision 0.997, lowest of 450 texts 0.989; without smoothing 0.992 and
# 0.973.
_SMOOTHING = 0.7
_SMALLEST = 0.1  # of the largest channel
_TINY = 1e-5
Peaks = Mapping[str, Floats]  # shape (channels,): largest magnitudes, by the name of the tensor
Encode = Callable[[str], list[int]]  # token ids, the special ones included
# Texts of every stored kind: the channels' magnitudes are measured on them.
_SAMPLES = (
    "What is the name of my sister's dog?",
    "I moved from Lisbon to Berlin in March 2021 and work there as a nurse at the children's hospital.",
    "We agreed on a budget of $4,500 for the trip, and the flight leaves on 12 November at 6:45 am.",
    "Please remember that I'm allergic to peanuts, don't eat meat, and prefer short answers with code examples.",
    "```python\ndef total(rows: list[float]) -> float:\n    return sum(rows) / len(rows)\n```",
    "Here's a plan: 1. Preheat the oven to 180 °C. 2. Mix the flour, eggs and sugar. 3. Bake for 25 minutes.",
    "hmm ok thanks!! that helps a lot :) lol",
    "Ich wohne seit zwei Jahren in München und habe zwei Kinder, Anna und Paul.",
    "Mi hermano trabaja en Madrid y le gusta el fútbol; je préfère le thé au café.",
    "The deployment failed with error 503: upstream connect error (https://example.com/status?id=42).",
    "User likes hiking.",
    "Last weekend my husband and I finally visited the museum; it rained all day, but the children loved it.",
)


def fused_bert_graph(directory: Path, plain: onnx.ModelProto, encode: Encode) -> onnx.ModelProto:
    """The encoder in *directory*, whose graph is *plain* (`bert_graph`), as a fused graph with the same inputs and
    output. It ignores the attention mask. PermanentError as `bert_graph`."""
    return quantise(bert_graph(directory, _FusedLayers(_measure_peaks(plain, encode))))


def _measure_peaks(plain: onnx.ModelProto, encode: Encode) -> Peaks:
    measured = onnx.ModelProto()
    measured.CopyFrom(plain)
    kernels = {tensor.name for tensor in plain.graph.initializer}
    inputs = {node.input[0] for node in plain.graph.node if node.op_type == "MatMul" and node.input[1] in kernels}
    names = sorted(inputs - {output.name for output in plain.graph.output})
    measured.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    session = onnxruntime.InferenceSession(measured.SerializeToString(), providers=["CPUExecutionProvider"])
    peaks: dict[str, Floats] = {}
    for text in _SAMPLES:
        ids = np.array([encode(text)], dtype=np.int64)
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        for name, found in zip(names, session.run(names, feed), strict=True):
            largest = np.abs(found[0]).max(axis=0)
            peaks[name] = np.maximum(peaks.get(name, largest), largest)
    return peaks


class _FusedLayers:
    """Writes layers of ONNX Runtime's own operators; tensors that *peaks* names are smoothed."""

    def __init__(self, peaks: Peaks) -> None:
        self._peaks = peaks

    def __call__(
        self, graph: Graph, weights: TensorFile, config: BertConfig, prefix: str, hidden: str, _bias: str, name: str
    ) -> str:
        attended = self._attend(graph, weights, config, prefix + "attention.", hidden)
        projected = self._multiply(graph, weights, prefix + "attention.output.dense", attended)
        normed = _add_and_normalise(
            graph, weights, config, prefix + "attention.output.", projected, hidden, prefix + "attention.out"
        )
        wide = self._multiply(graph, weights, prefix + "intermediate.dense", normed)
        offset = graph.constant(prefix + "intermediate.bias", weights(prefix + "intermediate.dense.bias"))
        active = graph.add("BiasGelu", [wide, offset], prefix + "gelu", domain=_MICROSOFT)
        narrow = self._multiply(graph, weights, prefix + "output.dense", active)
        return _add_and_normalise(graph, weights, config, prefix + "output.", narrow, normed, name)

    def _attend(self, graph: Graph, weights: TensorFile, config: BertConfig, prefix: str, hidden: str) -> str:
        names = [f"{prefix}self.{part}" for part in ("query", "key", "value")]
        kernel = np.concatenate([weights(f"{part}.weight").T for part in names], axis=1)
        hidden, kernel = self._smooth(graph, prefix + "qkv", hidden, kernel)
        stored, scale = _store_by_column(graph, prefix + "qkv", kernel)
        offset = graph.constant(prefix + "qkv.bias", np.concatenate([weights(f"{part}.bias") for part in names]))
        integers = [f"{prefix}hidden.{part}" for part in ("uint8", "scale", "zero")]
        graph.nodes.append(helper.make_node("DynamicQuantizeLinear", [hidden], integers))
        inputs = [integers[0], stored, offset, integers[1], scale, "", integers[2]]
        return graph.add("QAttention", inputs, prefix + "attended", domain=_MICROSOFT, num_heads=config.heads)

    def _multiply(self, graph: Graph, weights: TensorFile, name: str, hidden: str) -> str:
        hidden, kernel = self._smooth(graph, name, hidden, weights(name + ".weight").T)
        return graph.add(
            "DynamicQuantizeMatMul", [hidden, *_store_by_column(graph, name, kernel)], name, domain=_MICROSOFT
        )

    def _smooth(self, graph: Graph, name: str, hidden: str, kernel: Floats) -> tuple[str, Floats]:
        peaks = self._peaks.get(hidden)
        if peaks is None:
            return hidden, kernel
        largest = np.abs(kernel).max(axis=1)
        peaks = np.maximum(peaks, max(_TINY, _SMALLEST * float(peaks.max())))
        factors = peaks**_SMOOTHING / np.maximum(largest, _TINY) ** (1 - _SMOOTHING)
        divisors = graph.constant(name + ".smoothing", (1 / factors).astype(np.float32))
        return graph.add("Mul", [hidden, divisors], name + ".smoothed"), kernel * factors[:, None].astype(
            np.float32
        )


def _store_by_column(graph: Graph, name: str, kernel: Floats) -> tuple[str, str]:
    integers, scales = _quantize_int8(np.ascontiguousarray(kernel.T))
    stored = graph.constant(name + ".int8", np.ascontiguousarray(integers.T))
    return stored, graph.constant(name + ".scale", scales[:, 0])


def _add_and_normalise(
    graph: Graph, weights: TensorFile, config: BertConfig, prefix: str, hidden: str, skipped: str, name: str
) -> str:
    """The layer norm of the sum of *hidden*, its bias and *skipped*: three operators, because ONNX Runtime's single
    one for them (SkipLayerNormalization) takes four times as long, a quarter of the whole graph's time."""
    bias = graph.constant(prefix + "dense.bias", weights(prefix + "dense.bias"))
    biased = graph.add("Add", [hidden, bias], name + ".biased")
    summed = graph.add("Add", [biased, skipped], name + ".summed")
    return layer_norm(graph, weights, config, prefix + "LayerNorm", summed, name)
