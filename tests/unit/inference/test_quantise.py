"""Eight-bit weights: near the originals, and nothing else of the graph touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from memory_extproc.inference.model_files import MODEL
from memory_extproc.inference.onnx import may_saturate, open_session
from memory_extproc.inference.quantize import quantise

Floats = npt.NDArray[np.float32]


def a_graph(
    nodes: list[onnx.NodeProto], weights: dict[str, npt.NDArray[Any]], given: onnx.ValueInfoProto
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [given],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def a_product(kernel: Floats) -> onnx.ModelProto:
    given = helper.make_tensor_value_info("given", TensorProto.FLOAT, ["rows", kernel.shape[0]])
    return a_graph([helper.make_node("MatMul", ["given", "kernel"], ["out"])], {"kernel": kernel}, given)


def run(model: onnx.ModelProto, given: npt.NDArray[Any]) -> Floats:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    out: Floats = session.run(None, {"given": given})[0]
    return out


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), size=st.sampled_from([64, 128, 384]), scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_a_product_stays_within_two_hundredths_of_its_size(seed: int, size: int, scale: float) -> None:
    random = np.random.default_rng(seed)
    kernel = (random.normal(0, scale, (size, 48))).astype(np.float32)
    rows = random.normal(0, 1, (5, size)).astype(np.float32)

    found = run(quantise(a_product(kernel)), rows)

    assert np.linalg.norm(found - rows @ kernel) <= 0.02 * np.linalg.norm(rows @ kernel)


def test_a_row_of_a_product_does_not_depend_on_the_rows_beside_it() -> None:
    random = np.random.default_rng(1)
    model = quantise(a_product(random.normal(0, 1, (128, 16)).astype(np.float32)))
    row, loud = random.normal(0, 1, (1, 128)).astype(np.float32), np.full((7, 128), 1e4, dtype=np.float32)

    assert np.allclose(run(model, np.vstack([row, loud]))[0], run(model, row)[0], atol=1e-4)


def test_weights_of_zero_stay_zero() -> None:
    model = quantise(a_product(np.zeros((64, 16), dtype=np.float32)))

    assert not run(model, np.ones((2, 64), dtype=np.float32)).any()


@pytest.mark.parametrize("size", [63, 65, 100])
def test_a_product_that_does_not_divide_into_blocks_is_left_alone(size: int) -> None:
    assert operators(quantise(a_product(np.ones((size, 4), dtype=np.float32)))) == ["MatMul"]


@pytest.mark.parametrize(("rows", "axis", "kept"), [(10, 0, True), (2000, 1, True), (2000, 0, False)])
def test_only_a_large_table_that_is_read_by_rows_is_quantised(rows: int, axis: int, *, kept: bool) -> None:
    table = np.random.default_rng(2).normal(0, 1, (rows, 64)).astype(np.float32)
    given = helper.make_tensor_value_info("given", TensorProto.INT64, ["n"])
    graph = a_graph([helper.make_node("Gather", ["table", "given"], ["out"], axis=axis)], {"table": table}, given)
    at = np.array([0, 3, 9], dtype=np.int64)

    made = quantise(graph)

    assert (operators(made) == ["Gather"]) == kept
    assert np.allclose(run(made, at), np.take(table, at, axis=axis), atol=0.02)


def test_a_weight_that_a_branch_still_reads_is_kept() -> None:
    kernel = np.ones((64, 2), dtype=np.float32)
    inner = helper.make_graph(
        [helper.make_node("Identity", ["kernel"], ["same"])],
        "inner",
        [],
        [helper.make_tensor_value_info("same", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("MatMul", ["given", "kernel"], ["product"]),
        helper.make_node("If", ["yes"], ["chosen"], then_branch=inner, else_branch=inner),
        helper.make_node("MatMul", ["product", "turned"], ["wide"]),
        helper.make_node("MatMul", ["wide", "chosen"], ["out"]),
    ]
    weights = {"kernel": kernel, "turned": kernel.T.copy(), "yes": np.array(True)}
    given = helper.make_tensor_value_info("given", TensorProto.FLOAT, [1, 64])

    made = quantise(a_graph(nodes, weights, given))

    assert "kernel" in {tensor.name for tensor in made.graph.initializer}
    assert run(made, np.ones((1, 64), dtype=np.float32)).tolist() == [[8192.0, 8192.0]]


def test_no_sum_of_products_saturates_on_this_processor(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    kernel = random.choice([-127, 127], (512, 48)).astype(np.int8)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["given", "kernel"], ["out"])],
        "graph",
        [helper.make_tensor_value_info("given", TensorProto.UINT8, ["rows", 512])],
        [helper.make_tensor_value_info("out", TensorProto.INT32, None)],
        [numpy_helper.from_array(kernel, "kernel")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(model, tmp_path / MODEL)
    rows = random.integers(200, 256, (5, 512)).astype(np.uint8)

    (found,) = open_session(tmp_path).run(None, {"given": rows})

    assert np.array_equal(found, rows.astype(np.int32) @ kernel.astype(np.int32))


@pytest.mark.parametrize(
    ("flags", "may"), [("sse2 avx2", True), ("avx2 avx512_vnni", False), ("avx2 avx_vnni", False), (None, True)]
)
def test_unsigned_weights_are_asked_for_unless_the_processor_has_vnni(
    flags: str | None,
    may: bool,
    tmp_path: Path,
) -> None:
    listed = tmp_path / "cpuinfo"
    if flags is not None:
        listed.write_text(f"flags\t\t: fpu {flags} amx\n")

    assert may_saturate(listed) is may
