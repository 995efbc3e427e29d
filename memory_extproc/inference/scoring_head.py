"""Gives a graph the one output of a cross-encoder: a score for each pair of texts.

The head is that of Hugging Face's BertForSequenceClassification: a dense layer and tanh over the first token
(BERT's pooler), then one linear unit. Its score is any number; only its order means something.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from memory_extproc.errors import GiveUpError
from memory_extproc.inference.bert_graph import HIDDEN, Weights, bert_graph
from memory_extproc.inference.model_directory import SCORE

_LOGITS = "logits"


def scoring_graph(directory: Path) -> onnx.ModelProto:
    """The cross-encoder in *directory* (config.json, model.safetensors) with the output SCORE. GiveUpError
    when its weights have no head of one unit."""
    weights = Weights(directory / "model.safetensors")
    kernel, offset = weights("classifier.weight"), weights("classifier.bias")
    if len(kernel) != 1:
        raise GiveUpError(f"{directory}: classifies into {len(kernel)} classes; a reranker gives one score")
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
            # Gemm, which is not quantised: one unit costs nothing, and it is what the order stands on
            helper.make_node("Gemm", ["score.pooled", "score.unit", "score.unit_bias"], [_LOGITS], transB=1),
        ]
    )
    return _with_score(made, _LOGITS)


def append_score(model: onnx.ModelProto) -> onnx.ModelProto:
    """A ready cross-encoder's graph with the output SCORE. GiveUpError when it gives no single score."""
    outputs = {output.name: output for output in model.graph.output}
    if _LOGITS not in outputs:
        raise GiveUpError(f"no output {_LOGITS!r} in the ONNX graph: it has {', '.join(sorted(outputs))}")
    size = outputs[_LOGITS].type.tensor_type.shape.dim
    classes = size[-1].dim_value if len(size) > 1 else 1
    if classes > 1:
        raise GiveUpError(f"the ONNX graph classifies into {classes} classes; a reranker gives one score")
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
