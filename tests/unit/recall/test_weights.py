"""The file of weights: what comes with the product, and files that are none."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from memory_extproc.index.features import DENSE, FEATURES
from memory_extproc.recall.fusion import MEASURES, PACKAGED, WeightsError, packaged_weights, read_weights
from tests.unit.recall.fusing import MODEL, some_weights

FINGERPRINTS = ("all-MiniLM-L6-v2/int8/6c765dcc2394", "memory-minilm/int8/dd93d6c5ac3e")


@pytest.mark.parametrize("model", PACKAGED)
def test_the_packaged_weights_know_every_name_they_use_and_say_what_they_were_fitted_on(model: str) -> None:
    weights = next(one for one in map(packaged_weights, FINGERPRINTS) if one.embedding_models[0].startswith(model))
    assert weights.fitted_on
    for ranker in (weights.hybrid, weights.lexical):
        assert ranker.features.keys() <= set(FEATURES)
        assert ranker.worth.weights.keys() <= set(MEASURES)
        assert ranker.relevance.weights.keys() <= set(FEATURES)
    assert not weights.lexical.features.keys() & set(DENSE)


@pytest.mark.parametrize("fingerprint", FINGERPRINTS)
def test_a_packaged_model_gets_the_weights_that_were_fitted_on_it(fingerprint: str) -> None:
    assert fingerprint in packaged_weights(fingerprint).embedding_models
    other = packaged_weights(f"{fingerprint.partition('/')[0]}/int8/another")
    assert other == packaged_weights("unknown/int8/1") == packaged_weights()


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    path.write_bytes(msgspec.json.encode(some_weights()))
    assert read_weights(path, MODEL) == some_weights()


def test_weights_of_another_model_are_refused_by_both_names(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    path.write_bytes(msgspec.json.encode(some_weights()))
    with pytest.raises(WeightsError, match=f"{MODEL}, not for the embedding model another"):
        read_weights(path, "another")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "is no file of weights"),
        (b"[]", "is no file of weights"),
        (b"\xff", "is no file of weights"),
        (msgspec.json.encode({"version": 1}), "is no file of weights"),
        (msgspec.json.encode(msgspec.structs.replace(some_weights(), version=2)), "version 2"),
        (msgspec.json.encode(some_weights()).replace(b'"bm25"', b'"bm26"'), "no feature 'bm26'"),
        (
            msgspec.json.encode(some_weights()).replace(b'"weights":{}', b'"weights":{"luck":1.0}', 1),
            "no measure 'luck'",
        ),
        (msgspec.json.encode(some_weights()).replace(b'"usual_spread":1.0', b'"usual_spread":0.0'), "usual_spread"),
        (
            msgspec.json.encode(msgspec.structs.replace(some_weights(), kinds={"riddle": 1.0})),
            "no kind of question",
        ),
    ],
    ids=[
        "empty",
        "a list",
        "not text",
        "half",
        "of tomorrow",
        "unknown feature",
        "unknown measure",
        "no spread",
        "unknown kind",
    ],
)
def test_what_is_no_file_of_weights_is_refused_with_its_reason(tmp_path: Path, raw: bytes, said: str) -> None:
    path = tmp_path / "weights.json"
    path.write_bytes(raw)
    with pytest.raises(WeightsError, match=said):
        read_weights(path, MODEL)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"nowhere.json: cannot be read"):
        read_weights(tmp_path / "nowhere.json", MODEL)
