"""`memory-extproc models`, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from memory_extproc.cli import admin
from memory_extproc.cli.admin import models_app
from memory_extproc.inference.model_files import FUSED, record_of
from memory_extproc.inference.prepare import BASE
from memory_extproc.settings import Settings
from tests.support.tiny_bert import HIDDEN, write_tiny_bert


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_bert(tmp_path / "tiny")


def prepare(source: Path | str, into: Path, *more: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(models_app, ["prepare", "--source", str(source), "--models-dir", str(into), *more])
    return result.exit_code, result.stdout, result.stderr


def test_a_person_reads_what_was_made(tiny: Path, tmp_path: Path) -> None:
    code, out, err = prepare(tiny, tmp_path / "models")

    assert code == 0
    assert "made: " in out
    assert "64 dimensions, 16 tokens" in out
    assert "quantising" in err


def test_a_program_reads_one_json_object(tiny: Path, tmp_path: Path) -> None:
    first = prepare(tiny, tmp_path, "--json", "--precision", "fp32", "--name", "mine")
    second = prepare(tiny, tmp_path, "--json", "--precision", "fp32", "--name", "mine")

    assert (first[0], first[2]) == (0, "")
    made = json.loads(first[1])
    assert (made["state"], made["directory"], made["dimension"]) == ("made", str(tmp_path / "mine-fp32"), 64)
    assert json.loads(second[1]) == {**made, "state": "unchanged"}


def test_an_adapter_is_merged_and_names_the_model(tiny: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "ours.safetensors"
    base = record_of(tiny / "model.safetensors").sha256
    save_file({"encoder.layer.0.output.dense.bias": np.ones(HIDDEN, np.float16)}, adapter, {BASE: base})

    code, _, err = prepare(tiny, tmp_path / "models", "--adapter", str(adapter))

    assert code == 0, err
    assert (tmp_path / "models" / "ours-int8").is_dir()
    assert "merging ours.safetensors" in err

    other = write_tiny_bert(tmp_path / "other", seed=2)
    code, _, err = prepare(other, tmp_path / "models", "--adapter", str(adapter))
    assert code == 1
    assert "is an adapter of weights with SHA-256" in " ".join(err.split())


def test_a_repair_says_what_was_wrong(tiny: Path, tmp_path: Path) -> None:
    prepare(tiny, tmp_path)
    (tmp_path / "tiny-int8" / FUSED).unlink()

    code, out, err = prepare(tiny, tmp_path)

    assert code == 0
    assert "made: " in out
    assert "made again" in err


def test_wrong_use_exits_2_and_a_failure_1(tiny: Path, tmp_path: Path) -> None:
    (tiny / "tokenizer.json").unlink()

    assert prepare("nowhere", tmp_path)[0] == 2
    assert prepare(tiny, tmp_path, "--name", "../up")[0] == 2
    assert prepare(tiny, tmp_path, "--precision", "int4")[0] == 2
    code, out, err = prepare(tiny, tmp_path)
    assert (code, out) == (1, "")
    assert "tokenizer.json" in err
    assert json.loads(prepare(tiny, tmp_path, "--json")[1])["state"] == "failed"


def test_a_directory_is_checked_against_its_manifest(tiny: Path, tmp_path: Path) -> None:
    prepare(tiny, tmp_path)
    directory = tmp_path / "tiny-int8"

    whole = CliRunner().invoke(models_app, ["check", str(directory), "--json"])
    (directory / FUSED).write_bytes(b"")
    damaged = CliRunner().invoke(models_app, ["check", str(directory)])

    assert (whole.exit_code, json.loads(whole.stdout)["state"]) == (0, "whole")
    assert damaged.exit_code == 1
    assert "models prepare" in damaged.stderr


def test_a_cross_encoder_is_prepared_by_its_kind(tmp_path: Path) -> None:
    source = write_tiny_bert(tmp_path / "reranker", classes=1)

    code, out, _ = prepare(source, tmp_path / "models", "--kind", "cross-encoder")
    assert code == 0
    assert "a score, 16 tokens" in out
    assert json.loads(prepare(source, tmp_path / "models", "--kind", "cross-encoder", "--json")[1]) == {
        **json.loads((tmp_path / "models" / "reranker-int8" / "manifest.json").read_text()),
        "state": "unchanged",
        "directory": str(tmp_path / "models" / "reranker-int8"),
    }
    assert prepare(source, tmp_path / "models", "--kind", "generator")[0] == 2


@pytest.mark.no_cover
def test_calibrate_judges_a_cross_encoders_weight_on_questions_that_did_not_choose_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # without a model the embedder is one of words
    monkeypatch.setattr(admin, "CALIBRATED_ON", 120)
    monkeypatch.setattr(admin, "RERANK_QUESTIONS", 24)
    prepare(write_tiny_bert(tmp_path / "reranker", classes=1), tmp_path / "models", "--kind", "cross-encoder")
    config = tmp_path / "config.yaml"
    config.write_text("recall: {rerank: cross_encoder, rerank_model: reranker}\n")
    ran = CliRunner().invoke(models_app, ["calibrate", "--config", str(config), "--json"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)["rerank"]
    assert found["weight"] in admin.RERANK_WEIGHTS
    assert found["helps"] is (found["with"] > found["without"])
    assert Settings().recall.rerank == "off", "it is never switched on by itself"
    weights = json.loads((tmp_path / "weights.json").read_text())
    assert weights["embedding_models"] == ["words/384"]
