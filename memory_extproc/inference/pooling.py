"""Appends to an encoder's ONNX graph what makes one unit vector of a text: pooling and the L2 norm."""

from __future__ import annotations

from enum import StrEnum

import onnx
from onnx import TensorProto, helper

from memory_extproc.errors import GiveUpError

SENTENCE = "sentence_embedding"  # batch by dimension, every row of unit length
_TOKEN_OUTPUTS = ("last_hidden_state", "token_embeddings")
_POOLED_OUTPUTS = ("sentence_embedding", "text_embeds", "embeddings")
_RANK_OF_TOKENS = 3
_AXES_BECAME_INPUT = 18  # opset from which ReduceL2 takes its axes as an input


class Pooling(StrEnum):
    MEAN = "mean"
    CLS = "cls"


def append_pooling(model: onnx.ModelProto, pooling: Pooling) -> tuple[onnx.ModelProto, int]:
    """*model* with the one further output SENTENCE, placed first, and its dimension.

    A graph that pools by itself only gets the norm. GiveUpError when no output is recognised.
    """
    outputs = {output.name: output for output in model.graph.output}
    pooled = next((name for name in _POOLED_OUTPUTS if name in outputs), None)
    tokens = next((name for name in _TOKEN_OUTPUTS if name in outputs), None)
    if pooled is None and tokens is None:
        raise GiveUpError(f"no known output in the ONNX graph: it has {', '.join(sorted(outputs))}")
    made = onnx.ModelProto()
    made.CopyFrom(model)
    dimension = _last_dimension(outputs[pooled or str(tokens)])
    graph = made.graph
    if pooled is None:
        _pool(graph, str(tokens), pooling)
        pooled = "pooled.mean"
    elif pooled == SENTENCE:
        pooled = _renamed(graph, SENTENCE, "pooled.own")
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
        raise GiveUpError(f"the ONNX graph does not say the dimension of its output {output.name!r}")
    return int(size)


def _renamed(graph: onnx.GraphProto, old: str, new: str) -> str:
    for node in graph.node:
        for names in (node.input, node.output):
            for at, name in enumerate(names):
                if name == old:
                    names[at] = new
    return new


def _pool(graph: onnx.GraphProto, tokens: str, pooling: Pooling) -> None:
    """Batch by sequence by dimension to "pooled.mean", batch by dimension; padding does not count.

    The mean is one product of matrices, mask (batch by 1 by sequence) · tokens; its division by the number of
    tokens is left out, because the norm that follows takes every positive factor away.
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
