"""Changes of subject are found with the default model, on sessions that nothing was fitted on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from memory_extproc.cli.root import app
from scripts import make_topic_sessions

SESSIONS = Path(__file__).parent / "topics.jsonl"


@pytest.fixture
def config(tmp_path: Path, int8_model_dir: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"memory": {"embedding": {"models_dir": str(int8_model_dir.parent)}}}))
    return path


def test_boundaries_are_found_in_sessions_that_nothing_was_fitted_on(config: Path) -> None:
    done = CliRunner().invoke(
        app, ["eval", "topics", "--dataset", str(SESSIONS), "--config", str(config), "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["sessions"] >= 40
    assert found["groups"]["held-out"]["f1"] >= 0.9
    assert found["groups"]["fit"]["f1"] >= 0.85


def test_people_see_a_table(config: Path) -> None:
    done = CliRunner(env={"COLUMNS": "160"}).invoke(
        app, ["eval", "topics", "--dataset", str(SESSIONS), "--config", str(config)]
    )
    assert "held-out" in done.stdout


def test_a_damaged_line_is_named(config: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "sessions.jsonl"
    damaged.write_text('{"name": "a-1", "turns": []}\n{"name": 1}\n')
    done = CliRunner().invoke(app, ["eval", "topics", "--dataset", str(damaged), "--config", str(config)])
    assert done.exit_code == 2
    assert "line 2" in done.stderr


def test_the_sessions_are_what_the_script_makes() -> None:
    before = SESSIONS.read_bytes()
    make_topic_sessions.main()
    assert SESSIONS.read_bytes() == before
