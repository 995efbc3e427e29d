"""Sealing as configured: where its keys rest, what stops the sidecar before it serves, and the commands."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from typer.testing import CliRunner

from memory_extproc.app.context import make_context
from memory_extproc.app.storage import keys_alone, open_keys, sealed_coordination
from memory_extproc.cli.root import app as command_line
from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.encryption.keys import WrappedKeys, new_master_key
from memory_extproc.errors import ConfigurationError
from memory_extproc.settings import Settings, load
from memory_extproc.testing.adapters import InMemoryCoordination
from tests.support.builders import ANN, MONDAY
from tests.support.ports import free_port as unused_port
from tests.support.redis import RedisServer, redis_server

__all__ = ["redis_server"]


def configured(path: Path, **changes: Any) -> Settings:
    file = path / "config.yaml"
    file.write_text(yaml.safe_dump({"data_dir": str(path / "data"), **changes}))
    return load(file, {})


def sealed(path: Path, **changes: Any) -> Settings:
    master = path / "master.key"
    if not master.exists():
        master.write_text(new_master_key() + "\n")
    return configured(path, privacy={"encrypt_content": True, "master_key_file": str(master)}, **changes)


async def keys_at(
    data: Path, settings: Settings, stack: AsyncExitStack, link: RedisLink | None = None
) -> WrappedKeys | None:
    return await open_keys(make_context(settings, stack, data=data), link)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


@pytest.mark.redis
async def test_replicas_share_their_keys_in_redis(
    tmp_path: Path, redis_server: RedisServer, stack: AsyncExitStack
) -> None:
    link = await stack.enter_async_context(RedisLink(redis_server.url, timedelta(seconds=10)))
    where = {"url": redis_server.url, "prefix": uuid4().hex, "timeout": "3s"}
    settings = sealed(tmp_path, coordination=where)
    keys = await keys_at(tmp_path, settings, stack, link)
    assert keys is not None
    mine = await keys.of(ANN)
    async with keys_alone(settings) as (elsewhere, _):
        assert await elsewhere.find(ANN) == mine
    with pytest.raises(ConfigurationError, match="keys in Redis"):
        await keys_at(tmp_path, configured(tmp_path, coordination=where), stack, link)
    unused = {**where, "prefix": uuid4().hex}
    assert await keys_at(tmp_path, configured(tmp_path, coordination=unused), stack, link) is None


async def test_a_redis_that_is_away_keeps_no_sidecar_from_starting(tmp_path: Path, stack: AsyncExitStack) -> None:
    url = f"redis://127.0.0.1:{unused_port()}/0"
    link = await stack.enter_async_context(RedisLink(url, timedelta(seconds=1)))
    assert await keys_at(tmp_path, sealed(tmp_path, coordination={"url": url}), stack, link) is not None
    assert await keys_at(tmp_path, configured(tmp_path, coordination={"url": url}), stack, link) is None


async def test_a_file_of_keys_may_rest_apart_from_the_data(tmp_path: Path, stack: AsyncExitStack) -> None:
    settings = sealed(tmp_path)
    privacy = settings.privacy.model_copy(update={"keys_file": str(tmp_path / "apart" / "keys.db")})
    keys = await keys_at(tmp_path / "data", settings.model_copy(update={"privacy": privacy}), stack)
    assert keys is not None
    await keys.of(ANN)
    assert await keys.masters() != {}
    assert (tmp_path / "apart" / "keys.db").exists()
    assert not (tmp_path / "data" / "keys.db").exists()


def move(source: Path, target: Path) -> None:
    """What the table of keys rests in."""
    for file in source.glob("keys.db*"):
        file.rename(target / file.name)


async def test_missing_keys_of_what_was_sealed_are_asked_for_and_not_made_anew(tmp_path: Path) -> None:
    settings, data = sealed(tmp_path), tmp_path / "data"
    async with AsyncExitStack() as stack:
        keys = await keys_at(data, settings, stack)
        assert keys is not None
        key = await keys.of(ANN)
    move(data, tmp_path)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            with pytest.raises(
                ConfigurationError, match=r"holds no keys.*put the keys back, or delete .*sealed\.txt"
            ):
                await keys_at(data, settings, stack)
    move(tmp_path, data)
    async with AsyncExitStack() as stack:
        keys = await keys_at(data, settings, stack)
        assert keys is not None
        assert await keys.find(ANN) == key


async def test_texts_given_up_make_room_for_new_keys(tmp_path: Path) -> None:
    settings, data = sealed(tmp_path), tmp_path / "data"
    for _ in range(2):
        async with AsyncExitStack() as stack:
            assert await keys_at(data, settings, stack) is not None
        move(data, tmp_path)
        (data / "sealed.txt").unlink()


async def test_sealed_texts_are_not_read_as_they_are_wherever_their_keys_rest(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    settings, data = sealed(tmp_path), tmp_path / "data"
    privacy = settings.privacy.model_copy(update={"keys_file": str(tmp_path / "apart" / "keys.db")})
    await keys_at(data, settings.model_copy(update={"privacy": privacy}), stack)
    with pytest.raises(ConfigurationError, match=r"is off, but texts were sealed.*sealed\.txt"):
        await keys_at(data, configured(tmp_path), stack)


async def test_without_sealing_everything_is_as_it_is(tmp_path: Path, stack: AsyncExitStack) -> None:
    assert await keys_at(tmp_path / "data", configured(tmp_path), stack) is None
    coordination = InMemoryCoordination(lambda: MONDAY)
    assert sealed_coordination(coordination, None) is coordination
    with pytest.raises(ConfigurationError, match="there are no keys"):
        async with keys_alone(configured(tmp_path)):
            """Nothing to see."""


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(command_line, list(words))
    return done.exit_code, done.output


def test_a_new_master_key_is_printed_and_is_another_each_time(tmp_path: Path) -> None:
    code, first = run("keys", "new")
    assert code == 0
    assert run("keys", "new")[1] != first
    (tmp_path / "master.key").write_text(first)
    sealed(tmp_path)
    config = ["--config", str(tmp_path / "config.yaml")]
    code, rotated = run("keys", "rotate", "--json", *config)
    assert (code, json.loads(rotated)) == (0, {"wrapped_anew": 0, "wrapped_before": 0})
    code, status = run("keys", "status", *config)
    assert code == 0
    assert status.split()[1:] == ["0", "keys", "current"]
    assert first.strip() not in status


def test_without_sealing_the_commands_say_so(tmp_path: Path) -> None:
    configured(tmp_path)
    for command in ("rotate", "status"):
        code, said = run("keys", command, "--config", str(tmp_path / "config.yaml"))
        assert code == 2
        assert "there are no keys" in said
