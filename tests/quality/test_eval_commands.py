"""The commands `eval recall` and `explain`, as people and as programs use them, with the real model."""

from __future__ import annotations

import asyncio
import fcntl
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from memory_extproc.app import LOCK, milvus_options
from memory_extproc.cli import eval as evaluate
from memory_extproc.cli.root import app
from memory_extproc.evaluation.runner import System
from memory_extproc.inference.onnx import OnnxModel
from memory_extproc.model import Embedded, Owner
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings import load
from memory_extproc.store.milvus.store import MilvusStore
from tests.support.builders import a_memory
from tests.unit.evaluation.sets import a_note, a_query, a_sample, write_json, write_lines

ANN = Owner("", "ann")
BUDGET = "User's budget for Hawaii is $10,000"
DEADLINE = "The deadline of Atlas is May 8"


@pytest.fixture
def run() -> CliRunner:
    return CliRunner(env={"COLUMNS": "160"})


@pytest.fixture
def config(tmp_path: Path, int8_model_dir: Path) -> Path:
    path = tmp_path / "config.yaml"
    embedding = {"models_dir": str(int8_model_dir.parent)}
    path.write_text(yaml.safe_dump({"data_dir": str(tmp_path / "data"), "memory": {"embedding": embedding}}))
    return path


@pytest.fixture
def remembered(config: Path, int8_model_dir: Path) -> Path:
    """A configuration whose Lite file holds a budget of Ann's, a dog of Bob's and a date of the project Atlas."""
    settings = load(config, {})
    data = Path(settings.data_dir)
    data.mkdir()
    model = OnnxModel(int8_model_dir)
    memories = [a_memory(BUDGET, ANN), a_memory("User's dog is called Rex", Owner("", "bob"))]
    memories.append(a_memory(DEADLINE, Owner.of_project("", "atlas")))
    vectors = model.run([one.content for one in memories], 512)

    async def put() -> None:
        metrics = Metrics(CollectorRegistry(), "test")
        store = MilvusStore(
            milvus_options(settings, data, model.fingerprint), metrics, now=lambda: datetime.now(UTC)
        )
        await store.open()
        try:
            for memory, vector in zip(memories, vectors, strict=True):
                await store.put(memory.owner, [Embedded(memory, vector)])
        finally:
            await store.close()

    asyncio.run(put())
    return config


def test_recall_is_measured_for_programs(run: CliRunner, config: Path, tmp_path: Path) -> None:
    dataset = write_json(tmp_path / "set.json", [a_sample("one"), a_sample("two")])
    result = run.invoke(app, ["eval", "recall", "--dataset", str(dataset), "-c", str(config), "--json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert list(found)[:3] == ["recall@5", "recall@10", "recall@20"]
    assert found["recall@5"] == 1.0
    assert found["questions"] == 4


def test_recall_is_measured_for_people_with_a_report(run: CliRunner, config: Path, tmp_path: Path) -> None:
    dataset = write_lines(
        tmp_path / "set.jsonl", a_note("m1", BUDGET), a_query("What's my budget for Hawaii?", "m1")
    )
    report = tmp_path / "report"
    asked = ["eval", "recall", "--dataset", str(dataset), "-c", str(config), "--report", str(report)]
    result = run.invoke(app, [*asked, "--system", "dense", "--extractor", "off", "--limit-questions", "1"])
    assert result.exit_code == 0, result.stderr
    assert "set.jsonl: dense, 1 questions" in result.stdout
    assert "at threshold 0.6 and limit 5: recall 1.000" in result.stdout
    assert (report / "index.html").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--threshold", "1.5"], "Input should be less than or equal to 1"),
        (["--threshold", "-0.5"], "Input should be greater than or equal to 0"),
        (["--limit", "0"], "Input should be greater than or equal to 1"),
        (["--limit-questions", "0"], "Input should be greater than or equal to 1"),
        (["--system", "magic"], "expected one of hybrid, dense, lexical, bm25, store"),
        (["--extractor", "magic"], "expected one of auto, llm, rules, off"),
    ],
)
def test_wrong_use_is_told_with_what_is_right(
    run: CliRunner, tmp_path: Path, options: list[str], said: str
) -> None:
    dataset = write_lines(tmp_path / "set.jsonl", a_note("m1"), a_query("What?", "m1"))
    result = run.invoke(app, ["eval", "recall", "--dataset", str(dataset), *options])
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.replace("│", " ").split())


def test_a_damaged_data_set_ends_with_its_fault_and_no_traceback(
    run: CliRunner, config: Path, tmp_path: Path
) -> None:
    dataset = write_lines(tmp_path / "set.jsonl", a_note("m1"), "{")
    result = run.invoke(app, ["eval", "recall", "--dataset", str(dataset), "-c", str(config)])
    assert result.exit_code == 1
    assert "set.jsonl, line 2: Input data was truncated" in result.stderr
    assert "Traceback" not in result.stderr


def test_weights_are_fitted_and_written_and_too_little_to_fit_on_is_told(
    run: CliRunner, config: Path, tmp_path: Path
) -> None:
    sets = [write_json(tmp_path / f"{name}.json", [a_sample(name)]) for name in ("one", "two", "three")]
    out, chosen = tmp_path / "weights.json", tmp_path / "chosen.yaml"
    asked = ["eval", "tune", "-c", str(config), "--out", str(out)]
    grid = ["--settings-out", str(chosen), "--limit-questions", "3", "--by-intent", str(a_set_by_kind(tmp_path))]
    result = run.invoke(app, [*asked, *grid, *(part for path in sets for part in ("--dataset", str(path)))])
    assert result.exit_code == 0, result.stderr
    assert "fitted, held out" in result.stdout
    assert "their row does not compare with what was held out" in " ".join(result.stdout.split())
    assert (
        json.loads(out.read_text())["fitted_on"] == "one.json, two.json, three.json: 3 conversations, 9 questions"
    )
    assert yaml.safe_load(chosen.read_text())["recall"]["weights"] == str(out)
    assert result.stdout.count("recall.candidates") == 3
    assert "gate by kind of question" in result.stdout
    alone = run.invoke(app, [*asked, "--dataset", str(sets[0]), "--json"])
    assert alone.exit_code == 1
    assert "cross-validation needs two conversations or more" in alone.stderr


def a_set_by_kind(folder: Path) -> Path:
    message: dict[str, Any] = {"memory": "m1", "owner": "ann", "text": "My dog is called Rex.", "session": "s1"}
    asked: dict[str, Any] = {"query": "What do you know about me?", "owner": "ann", "id": "q1"}
    asked |= {"kind": "overview of caller", "wanted": [{"any": [["Rex"]], "ids": ["m1"]}]}
    at = {"message": "2026-03-02T09:00:00Z", "asked": "2026-03-09T09:00:00Z"}
    lines = ({**message, "at": at["message"], "role": "user"}, {**asked, "asked_at": at["asked"]})
    return write_lines(folder / "by-kind.jsonl", *lines)


def test_a_model_too_slow_for_the_deadline_shows_unless_the_measurement_is_unbounded(
    run: CliRunner, config: Path, tmp_path: Path
) -> None:
    settings = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**settings, "recall": {"deadline": "1ms", "settle": "0ms"}}))
    dataset = write_json(tmp_path / "set.json", [a_sample("one")])
    asked = ["eval", "recall", "--dataset", str(dataset), "-c", str(config), "--json"]
    bounded, unbounded = run.invoke(app, asked), run.invoke(app, [*asked, "--unbounded"])
    assert bounded.exit_code == unbounded.exit_code == 0, bounded.stderr
    assert "hybrid, word by word" not in json.loads(bounded.stdout)["paths"]
    assert sum(json.loads(unbounded.stdout)["paths"].values()) == 1.0
    assert set(json.loads(unbounded.stdout)["paths"]) <= {"hybrid", "hybrid, word by word"}


def test_the_choices_offered_are_those_there_are() -> None:
    assert set(evaluate.SYSTEMS) == {system.value for system in System}


def test_explain_shows_what_a_member_shares_and_only_what_is_shared(run: CliRunner, remembered: Path) -> None:
    settings = yaml.safe_load(remembered.read_text())
    scopes = {"project": {"recall": True}}
    identity = {"metadata_projects": "authz:projects"}
    remembered.write_text(yaml.safe_dump({**settings, "scopes": scopes, "identity": identity}))
    asked = [
        "explain",
        "--user",
        "ann",
        "--query",
        "When is the deadline of Atlas?",
        "-c",
        str(remembered),
        "--json",
    ]
    result = run.invoke(app, [*asked, "--member-of", "atlas"])
    assert result.exit_code == 0, result.stderr
    explained = json.loads(result.stdout)
    assert explained["total"] == 2
    assert {one["content"]: one["scope"] for one in explained["considered"]} == {BUDGET: "own", DEADLINE: "project"}
    without = json.loads(run.invoke(app, asked).stdout)
    assert [one["content"] for one in without["considered"]] == [BUDGET]


def test_explain_shows_each_candidate_and_why(run: CliRunner, remembered: Path) -> None:
    asked = ["explain", "--user", "ann", "--query", "What is my budget for Hawaii?", "-c", str(remembered)]
    result = run.invoke(app, [*asked, "--json"])
    assert result.exit_code == 0, result.stderr
    explained = json.loads(result.stdout)
    assert (explained["outcome"], explained["gate"], explained["total"]) == ("used", None, 1)
    (one,) = explained["considered"]
    assert (one["content"], one["verdict"]) == (BUDGET, "injected")
    assert one["features"]["dense"] > 0.7
    assert BUDGET in explained["block"]
    shown = run.invoke(app, asked)
    assert "outcome used" in shown.stdout
    assert "$10,000" in shown.stdout
    assert "injected" in shown.stdout


def test_explain_never_shows_another_owners_memory(run: CliRunner, remembered: Path) -> None:
    for other in (["--user", "ann", "--tenant", "acme"], ["--user", "Ann"], ["--user", "bob"]):
        result = run.invoke(
            app, ["explain", *other, "--query", "What is my budget?", "-c", str(remembered), "--json"]
        )
        assert result.exit_code == 0, result.stderr
        assert "Hawaii" not in result.stdout


def test_explain_says_what_the_gate_let_through(run: CliRunner, remembered: Path) -> None:
    result = run.invoke(app, ["explain", "--user", "ann", "--query", "Hello!", "-c", str(remembered)])
    assert "outcome skipped_greeting, the gate let nothing be searched" in result.stdout


@pytest.mark.parametrize(
    "query", ["", "the of and", "🙂", "予算はいくらですか", "x" * 100_000, "[bold]what[/] \x1b[31m is it"]
)
def test_explain_bears_whatever_is_asked(run: CliRunner, remembered: Path, query: str) -> None:
    result = run.invoke(app, ["explain", "--user", "ann", "--query", query, "-c", str(remembered)])
    assert result.exit_code == 0, result.stderr
    assert "\x1b[31m" not in result.stdout


def test_explain_asks_for_the_sidecar_to_be_stopped_while_it_holds_the_file(
    run: CliRunner, remembered: Path
) -> None:
    data = Path(load(remembered, {}).data_dir)
    with (data / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = run.invoke(app, ["explain", "--user", "ann", "--query", "What?", "-c", str(remembered)])
    assert result.exit_code == 2
    assert "another sidecar is using" in result.stderr
    assert "stop it first" in result.stderr


def test_explain_makes_nothing_where_nothing_was_remembered(run: CliRunner, config: Path) -> None:
    result = run.invoke(app, ["explain", "--user", "ann", "--query", "What?", "-c", str(config)])
    assert result.exit_code == 2
    assert "nothing has been remembered below" in result.stderr
    assert not Path(load(config, {}).data_dir).exists()


@pytest.mark.parametrize(("user", "tenant"), [("", ""), ("a\nb", ""), ("x" * 257, ""), ("ann", "a\x00")])
def test_explain_refuses_names_that_no_caller_can_have(
    run: CliRunner, remembered: Path, user: str, tenant: str
) -> None:
    asked = ["explain", "--user", user, "--tenant", tenant, "--query", "What?", "-c", str(remembered)]
    result = run.invoke(app, asked)
    assert result.exit_code == 2
    assert "expected a printable name" in result.stderr
