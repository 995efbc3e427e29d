"""Ready graphs of several makes end in the same one output."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from memory_extproc.errors import PermanentError
from memory_extproc.inference.bert_onnx import SENTENCE, Pooling, append_pooling

TOKENS = np.array([[[3.0, 4.0], [0.0, 8.0], [9.0, 9.0]]], dtype=np.float32)
MASK = np.array([[1, 1, 0]], dtype=np.int64)


def a_graph(output: str, *, opset: int = 17, rank: int = 3, dimension: int | str = 2) -> onnx.ModelProto:
    """Passes its input on to *output*, as an encoder that has nothing to add."""
    shape: list[int | str] = ["batch", "sequence", dimension] if rank == 3 else ["batch", dimension]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["given"], [output])],
        "encoder",
        [
            helper.make_tensor_value_info("given", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "sequence"]),
        ],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(model: onnx.ModelProto, given: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> list[list[float]]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = {entry.name for entry in session.get_inputs()}
    feed = {"given": given, "attention_mask": MASK}
    rows: list[list[float]] = session.run([SENTENCE], {n: v for n, v in feed.items() if n in names})[0].tolist()
    return rows


@pytest.mark.parametrize("opset", [13, 17, 18, 20])
@pytest.mark.parametrize("output", ["last_hidden_state", "token_embeddings"])
def test_the_mean_leaves_padding_out_and_has_length_one(output: str, opset: int) -> None:
    model, dimension = append_pooling(a_graph(output, opset=opset), Pooling.MEAN)

    mean = np.array([3.0, 12.0]) / np.linalg.norm([3.0, 12.0])
    assert run(model, TOKENS)[0] == pytest.approx(mean.tolist(), abs=1e-6)
    assert dimension == 2


def test_the_first_token_may_stand_for_the_text() -> None:
    model, _ = append_pooling(a_graph("last_hidden_state"), Pooling.CLS)

    assert run(model, TOKENS)[0] == pytest.approx([0.6, 0.8], abs=1e-6)


@pytest.mark.parametrize("output", ["sentence_embedding", "text_embeds"])
def test_a_graph_that_pools_by_itself_only_gets_the_norm(output: str) -> None:
    model, _ = append_pooling(a_graph(output, rank=2), Pooling.MEAN)

    assert run(model, TOKENS[0, :1])[0] == pytest.approx([0.6, 0.8], abs=1e-6)
    assert model.graph.output[0].name == SENTENCE


def test_a_graph_without_a_known_output_is_given_up_by_name() -> None:
    with pytest.raises(PermanentError, match="it has logits"):
        append_pooling(a_graph("logits"), Pooling.MEAN)


def test_a_graph_that_hides_its_dimension_is_given_up() -> None:
    with pytest.raises(PermanentError, match="dimension of its output"):
        append_pooling(a_graph("last_hidden_state", dimension="hidden"), Pooling.MEAN)
