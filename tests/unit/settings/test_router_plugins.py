"""The plugin blocks that make the semantic router's decisions known to memory, made from the router's own file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from memory_extproc.cli.root import app
from memory_extproc.envoyconfig.semantic_router import signal_plugins
from memory_extproc.errors import ConfigurationError

ROUTER = """
version: v0.3
providers: {models: [{name: m, api_key: hunter2}]}
routing:
  decisions:
    - name: facts
      rules: {operator: AND, conditions: [{type: fact_check, name: needs_fact_check}, {type: domain, name: law}]}
    - name: chat
      rules: {operator: OR, conditions: [{type: fact_check, name: no_fact_check_needed}]}
    - name: either
      rules: {operator: OR, conditions: [{type: fact_check, name: needs_fact_check}, {type: domain, name: law}]}
    - name: not facts
      rules: {operator: NOT, conditions: [{type: fact_check, name: needs_fact_check}]}
    - name: default
"""


def test_each_decision_is_told_by_name_and_its_fact_check_where_it_is_sure() -> None:
    told = {
        decision["name"]: {one["name"]: one["value"] for one in decision["plugins"][0]["configuration"]["update"]}
        for decision in signal_plugins(yaml.safe_load(ROUTER))["routing"]["decisions"]
    }
    assert told == {
        "facts": {"x-memory-decision": "facts", "x-memory-signal-fact": "true"},
        "chat": {"x-memory-decision": "chat", "x-memory-signal-fact": "false"},
        "either": {"x-memory-decision": "either"},
        "not facts": {"x-memory-decision": "not facts"},
        "default": {"x-memory-decision": "default"},
    }


def test_decisions_of_recipes_get_plugins_where_they_stand_in_the_file() -> None:
    decisions = [{"name": "guard"}, {"name": "private"}]
    recipes = [{"name": name, "routing": {"decisions": decisions[:count]}} for name, count in (("a", 1), ("b", 2))]
    written = signal_plugins({"routing": {}, "recipes": recipes})
    told = [
        [decision["plugins"][0]["configuration"]["update"][0]["value"] for decision in one["routing"]["decisions"]]
        for one in written["recipes"]
    ]
    assert told == [["a/guard"], ["b/guard", "private"]]
    assert [one["name"] for one in written["recipes"]] == ["a", "b"]


@pytest.mark.parametrize(
    "tree", [[], "text", {}, {"routing": []}, {"routing": {"decisions": {}}}, {"routing": {"decisions": [{}]}}]
)
def test_a_file_that_is_none_is_refused(tree: object) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        signal_plugins(tree)


def test_the_command_writes_the_plugins_and_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    router, out = tmp_path / "router.yaml", tmp_path / "plugins.yaml"
    router.write_text(ROUTER)
    monkeypatch.chdir(tmp_path)
    asked = ["envoy-config", "--shape", "semantic-router", "--router", "127.0.0.1:50055"]
    ran = CliRunner().invoke(app, [*asked, "--router-file", str(router), "--plugins-out", str(out)])
    assert ran.exit_code == 0, ran.stderr
    assert "semantic_router" in ran.stdout
    assert yaml.safe_load(out.read_text()) == signal_plugins(yaml.safe_load(ROUTER))
    assert "hunter2" not in out.read_text() + ran.output


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ([], "--router"),
        (["--router", "nowhere"], "--router"),
        (["--router", "127.0.0.1:50051"], "own address"),
        (["--router", "127.0.0.1:50055", "--plugins-out", "x"], "belong together"),
    ],
)
def test_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], fault: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, ["envoy-config", "--shape", "semantic-router", *options])
    assert ran.exit_code == 2, ran.output
    assert fault in ran.stderr
