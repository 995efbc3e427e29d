"""Output and exit codes of the audit commands, over a log that a real sidecar's parts wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from memory_extproc.api.audit import CURRENT, AuditLog, AuditRecord
from memory_extproc.api.authentication import key_hash, parse_keys
from memory_extproc.api.principal import Means, Principal, derive_key, secret_in
from memory_extproc.cli.root import app
from memory_extproc.settings.api import AuditSection, PrincipalRole
from tests.support.builders import ANN, MONDAY

Runs = Callable[..., Result]
USER = Principal("acme", "ann", frozenset({PrincipalRole.USER}), Means.API_KEY, "api_key\0x")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a log of three lines."""
    key = derive_key(secret_in(tmp_path), "audit")
    with AuditLog(AuditSection(), tmp_path / "audit", key, lambda: MONDAY) as log:
        for method in ("StoreMemory", "ListMemories", "ForgetMemories"):
            log.write(AuditRecord(principal=USER, method=method, owner=ANN, outcome="OK"))
    return tmp_path


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"data_dir": str(tmp_path)}))

    def invoked(*arguments: str) -> Result:
        named = ("--config", str(config)) if arguments[0] == "audit" else ()
        return CliRunner().invoke(app, [*arguments, *named])

    return invoked


def test_a_sound_log_verifies(data: Path, run: Runs) -> None:
    ended = run("audit", "verify")
    assert (ended.exit_code, "3 lines" in ended.stdout) == (0, True)
    assert json.loads(run("audit", "verify", "--json").stdout) == {"lines": 3, "last": 3, "faults": []}


def test_a_log_that_was_touched_does_not(data: Path, run: Runs) -> None:
    path = data / "audit" / CURRENT
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[2])
    ended = run("audit", "verify", "--json")
    assert ended.exit_code == 1
    assert json.loads(ended.stdout)["faults"] == [{"kind": "removed", "file": CURRENT, "line": 2, "seq": 3}]
    shown = run("audit", "verify")
    assert (shown.exit_code, "removed" in shown.stdout) == (1, True)


def test_without_the_key_nothing_is_verified_and_nothing_is_made(tmp_path: Path, run: Runs) -> None:
    ended = run("audit", "verify")
    assert ended.exit_code == 2
    assert "api.key" in ended.stderr
    assert not (tmp_path / "api.key").exists()


def test_a_directory_that_is_not_there_is_an_empty_log(data: Path, run: Runs) -> None:
    ended = run("audit", "verify", "--json", "--directory", str(data / "elsewhere"))
    assert json.loads(ended.stdout)["lines"] == 0


def test_a_new_key_is_shown_once_with_the_entry_that_knows_it(run: Runs) -> None:
    ended = run("api-key", "new", "--id", "ops", "--tenant", "acme", "--role", "admin")
    assert ended.exit_code == 0
    key, _, entry = ended.stdout.partition("\n")
    (parsed,) = parse_keys("keys:\n" + entry)
    assert (parsed.id, parsed.tenant, parsed.user, parsed.roles) == ("ops", "acme", "", (PrincipalRole.ADMIN,))
    assert parsed.sha256 == key_hash(key)
    again = run("api-key", "new", "--id", "ops", "--user", "ann").stdout
    assert again.partition("\n")[0] != key


def test_a_key_of_nobody_is_not_made(run: Runs) -> None:
    ended = run("api-key", "new", "--id", "ops")
    assert (ended.exit_code, "mxk_" in ended.stdout) == (2, False)
    assert "user: is missing" in ended.stderr
