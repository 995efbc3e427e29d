"""A model's files become a directory that can be trusted, whole or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.embedding import write_unit_model
from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.inference.bert_onnx import bert_graph
from memory_extproc.inference.model_files import (
    FUSED,
    MANIFEST,
    MODEL,
    ModelDirectoryError,
    Precision,
    read_manifest,
    verify,
)
from memory_extproc.inference.onnx import OnnxModel
from memory_extproc.inference.prepare import Prepared, parse_source, prepare
from tests.support.tiny_bert import HIDDEN, MAX_SEQ_LENGTH, write_tiny_bert

TEXTS = ["1 2 3", "4 5 6 7 8 9 10", "", "unknown words", " ".join(str(n) for n in range(500))]


def prepared(
    source: Path | str,
    into: Path,
    precision: Precision = Precision.FP32,
    *,
    force: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Prepared:
    return prepare(parse_source(str(source)), precision, into, force=force, say=say)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_bert(tmp_path / "tiny")


def test_a_local_directory_becomes_a_model_that_embeds(tiny: Path, tmp_path: Path) -> None:
    made = prepared(tiny, tmp_path / "models")

    assert made.made
    assert made.directory == tmp_path / "models" / "tiny-fp32"
    assert (made.manifest.dimension, made.manifest.max_seq_length) == (HIDDEN, MAX_SEQ_LENGTH)
    vectors = OnnxModel(made.directory).run(TEXTS, 64)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


def test_padding_does_not_change_a_vector(tiny: Path, tmp_path: Path) -> None:
    model = OnnxModel(prepared(tiny, tmp_path).directory)

    assert np.allclose(model.run(TEXTS, 1), model.run(TEXTS, 10_000), atol=1e-5)


def test_what_is_beyond_the_window_does_not_count(tiny: Path, tmp_path: Path) -> None:
    model = OnnxModel(prepared(tiny, tmp_path).directory)
    window = " ".join(str(n) for n in range(MAX_SEQ_LENGTH - 2))

    first, second = model.run([window, window + " 900 901"], 1)

    assert np.array_equal(first, second)


def test_eight_bits_stay_near_full_precision_and_take_a_quarter(tiny: Path, tmp_path: Path) -> None:
    full = prepared(tiny, tmp_path / "models")
    small = prepared(tiny, tmp_path / "models", Precision.INT8)

    cosines = np.einsum(
        "ij,ij->i", OnnxModel(full.directory).run(TEXTS, 64), OnnxModel(small.directory).run(TEXTS, 64)
    )
    assert cosines.min() > 0.995
    assert small.manifest.files[FUSED].size < 0.4 * full.manifest.files[MODEL].size
    assert small.manifest.fingerprint != full.manifest.fingerprint


def test_eight_bit_vectors_do_not_depend_on_company(tiny: Path, tmp_path: Path) -> None:
    model = OnnxModel(prepared(tiny, tmp_path, Precision.INT8).directory)

    assert np.allclose(model.run(TEXTS, 1), model.run(TEXTS, 10_000), atol=1e-4)


def test_the_fused_graph_gives_one_vector_to_a_text_alone_and_in_company(tiny: Path, tmp_path: Path) -> None:
    model = OnnxModel(prepared(tiny, tmp_path, Precision.INT8).directory)

    assert np.array_equal(model.run(TEXTS, 1), model.run(TEXTS, 10_000))


def test_a_directory_of_an_earlier_version_serves_with_the_graph_that_it_has(tiny: Path, tmp_path: Path) -> None:
    full = prepared(tiny, tmp_path / "models")
    earlier = OnnxModel(write_unit_model(full.directory, tmp_path / "earlier"))

    cosines = np.einsum("ij,ij->i", earlier.run(TEXTS, 10_000), OnnxModel(full.directory).run(TEXTS, 1))
    assert cosines.min() > 0.995


def test_a_second_preparation_changes_nothing(tiny: Path, tmp_path: Path) -> None:
    first = prepared(tiny, tmp_path)
    written = (first.directory / MODEL).stat().st_mtime_ns

    second = prepared(tiny, tmp_path)

    assert not second.made
    assert second.manifest == first.manifest
    assert (first.directory / MODEL).stat().st_mtime_ns == written


def test_the_same_source_gives_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    first = prepared(tiny, tmp_path / "one", Precision.INT8)

    assert prepared(tiny, tmp_path / "two", Precision.INT8).manifest == first.manifest


def test_other_weights_under_the_same_name_are_prepared_anew(tiny: Path, tmp_path: Path) -> None:
    first = prepared(tiny, tmp_path / "models")
    write_tiny_bert(tiny, seed=2)

    second = prepared(tiny, tmp_path / "models")

    assert second.made
    assert second.manifest.fingerprint != first.manifest.fingerprint


def test_force_makes_it_again(tiny: Path, tmp_path: Path) -> None:
    prepared(tiny, tmp_path)

    assert prepared(tiny, tmp_path, force=True).made


def damage_cut(directory: Path) -> None:
    (directory / MODEL).write_bytes((directory / MODEL).read_bytes()[:-1])


def damage_flip(directory: Path) -> None:
    content = bytearray((directory / MODEL).read_bytes())
    content[len(content) // 2] ^= 1
    (directory / MODEL).write_bytes(content)


def damage_missing(directory: Path) -> None:
    (directory / MODEL).unlink()


def damage_manifest(directory: Path) -> None:
    (directory / MANIFEST).write_text('{"recipe": 1')


def damage_no_manifest(directory: Path) -> None:
    (directory / MANIFEST).unlink()


def damage_old_recipe(directory: Path) -> None:
    manifest = json.loads((directory / MANIFEST).read_text())
    (directory / MANIFEST).write_text(json.dumps({**manifest, "recipe": 0}))


def damage_empty_list(directory: Path) -> None:
    manifest = json.loads((directory / MANIFEST).read_text())
    (directory / MANIFEST).write_text(json.dumps({**manifest, "files": {}}))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (damage_cut, "bytes, its manifest says"),
        (damage_flip, "checksum"),
        (damage_missing, "cannot be read"),
        (damage_manifest, "cannot be read"),
        (damage_no_manifest, "has no manifest.json"),
        (damage_old_recipe, "recipe 0"),
        (damage_empty_list, "does not list model.onnx"),
    ],
)
def test_a_damaged_directory_is_named_with_the_remedy_and_made_again(
    tiny: Path, tmp_path: Path, damage: Callable[[Path], None], says: str
) -> None:
    first = prepared(tiny, tmp_path / "models")
    damage(first.directory)

    with pytest.raises(ModelDirectoryError, match=says) as caught:
        OnnxModel(first.directory)
    assert str(first.directory) in str(caught.value)
    assert "memory-extproc models prepare" in str(caught.value)

    again = prepared(tiny, tmp_path / "models")
    assert again.made
    assert says in again.repaired
    assert verify(again.directory) == first.manifest


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelDirectoryError, match="there is no model directory"):
        read_manifest(tmp_path / "nowhere")


def test_a_model_that_checks_out_but_cannot_be_run_is_named(tiny: Path, tmp_path: Path) -> None:
    made = prepared(tiny, tmp_path)
    (made.directory / MODEL).write_bytes(b"no graph at all")
    manifest = json.loads((made.directory / MANIFEST).read_text())
    manifest["files"][MODEL] = {"size": 15, "sha256": hashlib.sha256(b"no graph at all").hexdigest()}
    (made.directory / MANIFEST).write_text(json.dumps(manifest))

    with pytest.raises(ModelDirectoryError, match="cannot be loaded"):
        OnnxModel(made.directory)


def test_nothing_is_left_of_a_preparation_that_failed_or_was_killed(tiny: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    (models / ".preparing-killed" / "model").mkdir(parents=True)
    (tiny / "tokenizer.json").write_text("{}")

    with pytest.raises(PermanentError, match="tokenizer"):
        prepared(tiny, models)

    assert [path.name for path in models.iterdir()] == [".lock"]


def test_progress_is_told_step_by_step(tiny: Path, tmp_path: Path) -> None:
    said: list[str] = []

    prepared(tiny, tmp_path, Precision.INT8, say=said.append)

    assert [line.split()[0] for line in said] == ["fetching", "writing", "quantising", "trying", "moving"]


def test_a_directory_that_cannot_be_written_is_put_off(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(TransientError, match="cannot write below"):
        prepared(tiny, tmp_path / "file" / "models")


# --- what a repository may hold --------------------------------------------------------------------
def test_a_ready_graph_is_taken_where_the_repository_has_one(tiny: Path, tmp_path: Path) -> None:
    own = prepared(tiny, tmp_path / "own")
    (tiny / "onnx").mkdir()
    onnx.save_model(bert_graph(tiny), tiny / "onnx" / "model.onnx")
    (tiny / "model.safetensors").unlink()

    ready = prepared(tiny, tmp_path / "ready")

    left, right = (OnnxModel(made.directory).run(TEXTS, 64) for made in (own, ready))
    assert np.allclose(left, right, atol=1e-6)


def test_weights_may_be_named_as_part_of_a_larger_model(tiny: Path, tmp_path: Path) -> None:
    plain = OnnxModel(prepared(tiny, tmp_path / "one").directory).run(TEXTS, 64)
    write_tiny_bert(tiny, prefix="bert.")

    assert np.array_equal(OnnxModel(prepared(tiny, tmp_path / "two").directory).run(TEXTS, 64), plain)


def test_the_first_token_stands_for_the_text_where_the_repository_says_so(tiny: Path, tmp_path: Path) -> None:
    mean = OnnxModel(prepared(tiny, tmp_path / "mean").directory).run(TEXTS, 64)
    (tiny / "1_Pooling").mkdir()
    (tiny / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')

    cls = OnnxModel(prepared(tiny, tmp_path / "cls", force=True).directory).run(TEXTS, 64)

    assert np.allclose(np.linalg.norm(cls, axis=1), 1.0, atol=1e-5)
    assert not np.allclose(mean, cls, atol=0.1)


def no_tokenizer(tiny: Path) -> None:
    (tiny / "tokenizer.json").unlink()


def no_weights(tiny: Path) -> None:
    (tiny / "model.safetensors").unlink()


def broken_weights(tiny: Path) -> None:
    (tiny / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00not json")


def missing_layer(tiny: Path) -> None:
    write_tiny_bert(tiny, num_hidden_layers=3)


def another_family(tiny: Path) -> None:
    write_tiny_bert(tiny, model_type="mpnet")


def another_activation(tiny: Path) -> None:
    write_tiny_bert(tiny, hidden_act="relu")


def no_sizes(tiny: Path) -> None:
    (tiny / "config.json").write_text('{"model_type": "bert"}')


def a_list_as_config(tiny: Path) -> None:
    (tiny / "tokenizer_config.json").write_text("[]")


def broken_pooling(tiny: Path) -> None:
    (tiny / "1_Pooling").mkdir()
    (tiny / "1_Pooling" / "config.json").write_text("{")


def odd_pooling(tiny: Path) -> None:
    (tiny / "1_Pooling").mkdir()
    (tiny / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')


def broken_graph(tiny: Path) -> None:
    (tiny / "model.onnx").write_bytes(b"\xff\xff")


def a_graph_that_wants_more(tiny: Path) -> None:
    graph = bert_graph(tiny)
    graph.graph.input.append(helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, [1]))
    onnx.save_model(graph, tiny / "model.onnx")


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (a_graph_that_wants_more, "cannot be run: .*pixel_values"),
        (no_tokenizer, "no tokenizer.json"),
        (no_weights, "neither onnx/model.onnx"),
        (broken_weights, "not a readable safetensors"),
        (missing_layer, "tensor 'encoder.layer.2"),
        (another_family, "model_type is 'mpnet'"),
        (another_activation, "hidden_act is 'relu'"),
        (no_sizes, "not a readable BERT configuration"),
        (a_list_as_config, "not a JSON object"),
        (broken_pooling, "not readable JSON"),
        (odd_pooling, "pooling_mode_max_tokens"),
        (broken_graph, "not a readable ONNX file"),
    ],
)
def test_files_that_are_no_such_model_are_named(
    tiny: Path, tmp_path: Path, fault: Callable[[Path], None], says: str
) -> None:
    fault(tiny)

    with pytest.raises(PermanentError, match=says):
        prepared(tiny, tmp_path / "models")
