"""Output and effects of `memory-extproc coordination`, beside replicas on a real Redis."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from typer.testing import CliRunner, Result

from memory_extproc.api.audit import verify
from memory_extproc.api.principal import derive_key, read_secret
from memory_extproc.cli.root import app
from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.coordination.replicas import RedisReplicas
from tests.support.redis import RedisServer, redis_server

__all__ = ["redis_server"]
pytestmark = pytest.mark.redis

Runs = Callable[..., Result]
ASKED = datetime(2026, 3, 2, 9, tzinfo=UTC)


@pytest.fixture
def prefix() -> str:
    return uuid4().hex


@pytest.fixture
def run(tmp_path: Path, redis_server: RedisServer, prefix: str) -> Runs:
    config = tmp_path / "config.yaml"
    section = {"url": redis_server.url, "prefix": prefix}
    config.write_text(json.dumps({"data_dir": str(tmp_path / "data"), "coordination": section}))
    (tmp_path / "data").mkdir()

    def invoked(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["coordination", *arguments, "--config", str(config)])

    return invoked


def left_behind(server: RedisServer, prefix: str) -> None:
    """One directory was left with turns in it, of another its replica was killed."""

    async def leave() -> None:
        async with RedisLink(server.url, timedelta(milliseconds=500)) as link:
            lease = timedelta(milliseconds=1)
            await RedisReplicas(link, "1", prefix=prefix, lease=lease, directory="killed").renew()
            async with RedisReplicas(link, "2", prefix=prefix, lease=lease, directory="full") as full:
                full.oldest_waiting = lambda: ASKED

    asyncio.run(leave())


def test_directories_are_listed_and_struck_with_a_line_in_the_audit_log(
    run: Runs, redis_server: RedisServer, prefix: str, tmp_path: Path
) -> None:
    assert "no data directory" in run("status").stdout
    left_behind(redis_server, prefix)
    assert json.loads(run("status", "--json").stdout) == [
        {"name": "full", "live": False, "since": ASKED.isoformat()},
        {"name": "killed", "live": False, "since": None},
    ]
    shown = run("status").stdout
    assert "2026-03-02 09:00:00" in shown
    assert "unknown" in shown
    struck = run("strike", "killed", "--reason", "its disk burned")
    assert struck.exit_code == 0, struck.output
    assert [one["name"] for one in json.loads(run("status", "--json").stdout)] == ["full"]
    again = run("strike", "killed", "--reason", "once more")
    assert (again.exit_code, "killed" in again.output) == (1, True)
    log = tmp_path / "data" / "audit" / "operator"
    verified = verify(log, derive_key(read_secret(tmp_path / "data"), "audit"))
    assert (verified.lines, verified.faults) == (2, ())
    first = json.loads((log / "audit.jsonl").read_text().splitlines()[0])
    assert (first["method"], first["scope"], first["reason"]) == ("StrikeDirectory", "killed", "its disk burned")


def test_a_loss_is_accepted_for_a_while_and_with_a_reason(
    run: Runs, redis_server: RedisServer, prefix: str, tmp_path: Path
) -> None:
    assert run("accept-loss").exit_code == 2
    done = run("accept-loss", "--reason", "Milvus is gone for good")
    assert done.exit_code == 0, done.output

    async def left() -> int:
        async with RedisLink(redis_server.url, timedelta(milliseconds=500)) as link:
            return int(await link.client.ttl(f"{prefix}:{{ledger}}:accepted"))

    assert 0 < asyncio.run(left()) <= 120
    line = json.loads((tmp_path / "data" / "audit" / "operator" / "audit.jsonl").read_text())
    assert (line["method"], line["reason"]) == ("AcceptLoss", "Milvus is gone for good")


def test_without_a_redis_there_is_nothing_to_decide(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"data_dir": str(tmp_path)}))
    ended = CliRunner().invoke(app, ["coordination", "status", "--config", str(config)])
    assert ended.exit_code != 0
    assert "coordination.url" in ended.output
