"""A cross-encoder from a repository's files to an order of texts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from safetensors.numpy import load_file

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.inference.bert_onnx import bert_graph, scoring_graph
from memory_extproc.inference.model_files import MODEL, ModelDirectoryError, ModelKind, Precision
from memory_extproc.inference.onnx import (
    CrossEncoder,
    CrossEncoderModel,
    OnnxModel,
    Scores,
    open_cross_encoder,
)
from memory_extproc.inference.prepare import Prepared, parse_source, prepare
from tests.support.tiny_bert import MAX_SEQ_LENGTH, write_tiny_bert

QUERY = "1 2 3"
TEXTS = ["4 5", "6 7 8 9 10 11", "", "1 2 3", "900 800 700"]


def prepared(
    source: Path,
    into: Path,
    precision: Precision = Precision.FP32,
    kind: ModelKind = ModelKind.CROSS_ENCODER,
    *,
    force: bool = False,
) -> Prepared:
    return prepare(parse_source(str(source)), precision, into, kind=kind, force=force, say=lambda _: None)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_bert(tmp_path / "tiny", prefix="bert.", classes=1)


def scores_of(made: Prepared, query: str = QUERY, texts: Sequence[str] = TEXTS) -> Scores:
    return CrossEncoderModel(made.directory, 512).run(query, texts, 64)


# --- from files to a model -------------------------------------------------------------------------
def test_scores_are_those_of_the_published_head_over_the_encoder(tiny: Path, tmp_path: Path) -> None:
    """BertForSequenceClassification: classifier(tanh(pooler(first token))), the text as the second segment."""
    found = scores_of(prepared(tiny, tmp_path / "models"), "1 2", ["7 8 9"])

    # [CLS] 1 2 [SEP] 7 8 9 [SEP]; the tiny vocabulary gives the number n the id n + 4
    ids = np.array([[2, 5, 6, 3, 11, 12, 13, 3]], dtype=np.int64)
    segments = np.array([[0, 0, 0, 0, 1, 1, 1, 1]], dtype=np.int64)
    encoder = onnxruntime.InferenceSession(bert_graph(tiny).SerializeToString())
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": segments}
    first = encoder.run(None, feed)[0][0, 0]
    tensors = load_file(tiny / "model.safetensors")
    pooled = np.tanh(tensors["bert.pooler.dense.weight"] @ first + tensors["bert.pooler.dense.bias"])
    expected = tensors["classifier.weight"] @ pooled + tensors["classifier.bias"]
    assert np.allclose(found, expected, atol=1e-5)


def test_a_ready_graph_scores_as_the_weights_it_was_made_of(tiny: Path, tmp_path: Path) -> None:
    own = scores_of(prepared(tiny, tmp_path / "own"))
    (tiny / "onnx").mkdir()
    onnx.save_model(_with_logits(scoring_graph(tiny)), tiny / "onnx" / "model.onnx")
    (tiny / "model.safetensors").unlink()

    assert np.allclose(scores_of(prepared(tiny, tmp_path / "ready")), own, atol=1e-6)


def _with_logits(graph: onnx.ModelProto, classes: int = 1) -> onnx.ModelProto:
    """As exporters write it: one output, batch by classes."""
    del graph.graph.output[:]
    graph.graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes]))
    graph.graph.node.remove(graph.graph.node[-1])
    graph.graph.initializer.remove(graph.graph.initializer[-1])
    return graph


def test_a_score_does_not_depend_on_company(tiny: Path, tmp_path: Path) -> None:
    for precision in Precision:
        model = CrossEncoderModel(prepared(tiny, tmp_path, precision).directory, 512)
        assert np.allclose(model.run(QUERY, TEXTS, 1), model.run(QUERY, TEXTS, 10_000), atol=1e-3)


def test_eight_bits_keep_the_order_of_full_precision(tiny: Path, tmp_path: Path) -> None:
    full = scores_of(prepared(tiny, tmp_path))
    small = scores_of(prepared(tiny, tmp_path, Precision.INT8))
    assert np.corrcoef(full, small)[0, 1] > 0.99


def test_what_is_beyond_the_window_does_not_count_and_neither_side_is_lost(tiny: Path, tmp_path: Path) -> None:
    long = " ".join(str(n) for n in range(500))
    made = prepared(tiny, tmp_path)
    first, second, third = scores_of(made, QUERY, [long, long + " 900", "901 " + long])
    assert first == second
    assert first != third
    assert scores_of(made, long, ["1 2"])[0] != scores_of(made, long, ["3 4"])[0]


def test_a_narrower_window_than_the_models_can_be_asked_for(tiny: Path, tmp_path: Path) -> None:
    directory = prepared(tiny, tmp_path).directory
    words = [" ".join(str(n) for n in range(length)) for length in (4, MAX_SEQ_LENGTH)]
    narrow = CrossEncoderModel(directory, 8).run("1 2", words, 64)
    wide = CrossEncoderModel(directory, 512).run("1 2", words, 64)
    assert narrow[0] == narrow[1]
    assert wide[0] != wide[1]


def test_a_second_preparation_changes_nothing_and_says_its_kind(tiny: Path, tmp_path: Path) -> None:
    first, second = prepared(tiny, tmp_path), prepared(tiny, tmp_path)
    assert (first.made, second.made) == (True, False)
    assert (first.manifest.kind, first.manifest.dimension) == (ModelKind.CROSS_ENCODER, 1)


def test_a_model_of_the_other_kind_is_neither_replaced_nor_loaded(tiny: Path, tmp_path: Path) -> None:
    embedder = prepared(tiny, tmp_path, kind=ModelKind.EMBEDDER)
    with pytest.raises(PermanentError, match="holds a model of kind embedder: give --name or --force"):
        prepared(tiny, tmp_path)
    with pytest.raises(ModelDirectoryError, match="of kind embedder, not cross-encoder"):
        CrossEncoderModel(embedder.directory, 512)
    forced = prepared(tiny, tmp_path, force=True)
    with pytest.raises(ModelDirectoryError, match="of kind cross-encoder, not embedder"):
        OnnxModel(forced.directory)


def no_head(tiny: Path) -> None:
    write_tiny_bert(tiny)


def two_classes(tiny: Path) -> None:
    write_tiny_bert(tiny, classes=2)


def a_graph_of_an_embedder(tiny: Path) -> None:
    onnx.save_model(bert_graph(tiny), tiny / "model.onnx")


def a_graph_of_two_classes(tiny: Path) -> None:
    onnx.save_model(_with_logits(scoring_graph(tiny), 2), tiny / "model.onnx")


def a_graph_that_hides_its_classes(tiny: Path) -> None:
    """Its output says nothing of its size, and turns out to give one number for each hidden unit."""
    graph = bert_graph(tiny)
    graph.graph.node.append(helper.make_node("ReduceMean", ["last_hidden_state"], ["logits"], axes=[1], keepdims=0))
    del graph.graph.output[:]
    graph.graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "classes"]))
    onnx.save_model(graph, tiny / "model.onnx")


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (no_head, "tensor 'classifier.weight' is missing"),
        (two_classes, "classifies into 2 classes; a reranker gives one score"),
        (a_graph_of_an_embedder, "no output 'logits' in the ONNX graph: it has last_hidden_state"),
        (a_graph_of_two_classes, "classifies into 2 classes"),
        (a_graph_that_hides_its_classes, "cannot be run"),
    ],
)
def test_files_that_are_no_cross_encoder_are_named(
    tiny: Path, tmp_path: Path, fault: Callable[[Path], None], says: str
) -> None:
    fault(tiny)
    with pytest.raises(PermanentError, match=says):
        prepared(tiny, tmp_path / "models")


def test_a_model_that_checks_out_but_cannot_be_run_is_named(tiny: Path, tmp_path: Path) -> None:
    made = prepared(tiny, tmp_path)
    (made.directory / MODEL).write_bytes(b"")
    with pytest.raises(ModelDirectoryError, match="models prepare"):
        CrossEncoderModel(made.directory, 512)


# --- from a model to an order ----------------------------------------------------------------------
class CountingModel:
    """Scores a text by its length; *failing* is raised instead."""

    def __init__(self, failing: Exception | None = None, constant: float | None = None) -> None:
        self.failing, self.constant = failing, constant
        self.ran: list[int] = []

    def cut(self, text: str) -> str:
        return text[:100]

    def run(self, query: str, texts: Sequence[str], batch_tokens: int) -> Scores:
        self.ran.append(len(texts))
        if self.failing:
            raise self.failing
        numbers = [len(text) if self.constant is None else self.constant for text in texts]
        return np.array(numbers, dtype=np.float32)


async def test_the_whole_way_from_a_directory_gives_numbers_between_0_and_1(tiny: Path, tmp_path: Path) -> None:
    made = prepared(tiny, tmp_path)
    async with open_cross_encoder(made.directory, batch_tokens=16) as encoder:
        scores = await encoder.rerank(QUERY, TEXTS)
    assert (min(scores), max(scores)) == (0.0, 1.0)
    assert np.array_equal(np.argsort(scores), np.argsort(scores_of(made)))


async def test_texts_are_shared_out_so_that_one_inference_stays_short() -> None:
    model = CountingModel()
    encoder = CrossEncoder(model, batch_tokens=40)
    scores = await encoder.rerank("q", ["a" * n for n in range(30)])
    await encoder.close()
    assert sum(model.ran) == 30
    assert len(model.ran) > 1
    assert list(scores) == [n / 29 for n in range(30)]


async def test_texts_that_are_all_alike_are_all_in_the_middle() -> None:
    encoder = CrossEncoder(CountingModel())
    assert list(await encoder.rerank("q", ["ab", "cd"])) == [0.5, 0.5]
    await encoder.close()


@pytest.mark.parametrize(
    ("model", "error", "says"),
    [
        (CountingModel(MemoryError()), TransientError, "no memory"),
        (CountingModel(ValueError("shape")), PermanentError, "failed on a text"),
        (CountingModel(constant=float("nan")), PermanentError, "no number"),
        (CountingModel(constant=float("inf")), PermanentError, "no number"),
    ],
)
async def test_a_model_that_fails_is_named(model: CountingModel, error: type[Exception], says: str) -> None:
    encoder = CrossEncoder(model)
    with pytest.raises(error, match=says):
        await encoder.rerank("q", ["a", "b"])
    await encoder.close()


class HeldModel(CountingModel):
    """Runs only when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.let_go = threading.Event(), threading.Event()

    def run(self, query: str, texts: Sequence[str], batch_tokens: int) -> Scores:
        self.begun.set()
        self.let_go.wait(10)
        return super().run(query, texts, batch_tokens)


async def test_a_cancelled_call_leaves_undone_what_no_thread_has_begun() -> None:
    model = HeldModel()
    encoder = CrossEncoder(model, batch_tokens=1)
    call = asyncio.create_task(encoder.rerank("q", ["a"] * 50))
    await asyncio.to_thread(model.begun.wait, 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    model.let_go.set()
    await encoder.close()
    assert model.ran == [1]


async def test_more_calls_than_may_wait_are_refused_at_once() -> None:
    model = HeldModel()
    encoder = CrossEncoder(model, waiting=1)
    call = asyncio.create_task(encoder.rerank("q", ["a", "b"]))
    await asyncio.to_thread(model.begun.wait, 10)
    with pytest.raises(TransientError, match="too many"):
        await encoder.rerank("q", ["a"])
    model.let_go.set()
    assert list(await call) == [0.5, 0.5]
    await encoder.close()


async def test_closing_fails_what_waits_and_refuses_what_comes() -> None:
    model = HeldModel()
    encoder = CrossEncoder(model, batch_tokens=1)
    call = asyncio.create_task(encoder.rerank("q", ["a"] * 3))
    await asyncio.to_thread(model.begun.wait, 10)
    closing = asyncio.create_task(encoder.close())
    with pytest.raises(TransientError, match="closed"):
        await call
    model.let_go.set()
    await closing
    with pytest.raises(TransientError, match="closed"):
        await encoder.rerank("q", ["a"])
