"""Keys in Redis say which version of the program wrote them, and one that is too old leaves them alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
import yaml
from typer.testing import CliRunner

from memory_extproc import app
from memory_extproc.cli.root import app as commands
from memory_extproc.coordination.redis import RedisCoordination
from memory_extproc.coordination.redis_client import NewerKeysError, RedisLink
from memory_extproc.errors import ConfigurationError
from memory_extproc.settings import load
from tests.support.builders import ANN
from tests.support.models import int8_model_dir
from tests.support.redis import RedisServer, redis_server

__all__ = ["int8_model_dir", "redis_server"]
pytestmark = pytest.mark.redis
PLENTY = timedelta(seconds=10)


class Keys:
    """Those of one installation, which no other test sees."""

    def __init__(self, server: RedisServer, operator: RedisLink) -> None:
        self.url, self.prefix, self._operator = server.url, f"m{uuid4().hex}", operator

    def link(self) -> RedisLink:
        return RedisLink(self.url, PLENTY, prefix=self.prefix)

    async def said(self) -> bytes | None:
        value = await self._operator.client.get(f"{self.prefix}:schema")
        return value if isinstance(value, bytes) else None

    async def say(self, value: str) -> None:
        await self._operator.client.set(f"{self.prefix}:schema", value)

    async def all(self) -> set[bytes]:
        return {key async for key in self._operator.client.scan_iter(f"{self.prefix}:*")}


@pytest.fixture
async def keys(redis_server: RedisServer) -> AsyncIterator[Keys]:
    async with RedisLink(redis_server.url, PLENTY) as operator:
        yield Keys(redis_server, operator)


async def test_keys_without_a_number_are_ours_and_get_one(keys: Keys) -> None:
    async with keys.link() as link:
        coordination = RedisCoordination(link, prefix=keys.prefix)
        assert await coordination.bump(ANN) == 1
    assert await keys.said() == b"1 1"
    async with keys.link() as link:
        coordination = RedisCoordination(link, prefix=keys.prefix)
        assert await coordination.version(ANN) == 1


async def test_a_newer_number_that_says_we_may_is_left_as_it_is(keys: Keys) -> None:
    await keys.say("5 1")
    async with keys.link() as link:
        coordination = RedisCoordination(link, prefix=keys.prefix)
        assert await coordination.bump(ANN) == 1
    assert await keys.said() == b"5 1"


@pytest.mark.parametrize(
    ("said", "why"), [("4 3", "schema 4 of a newer memory-extproc, .* up to 2, and 3"), ("theirs", "is not ours")]
)
async def test_keys_that_are_not_for_us_are_not_touched(keys: Keys, said: str, why: str) -> None:
    await keys.say(said)
    async with keys.link() as link:
        coordination = RedisCoordination(link, prefix=keys.prefix)
        with pytest.raises(NewerKeysError, match=why):
            await coordination.open()
        with pytest.raises(NewerKeysError, match=why):
            await coordination.bump(ANN)
        await keys.say("1 1")  # the newer program is gone
        assert await coordination.bump(ANN) == 1


async def test_a_sidecar_does_not_start_where_keys_are_a_newer_programs(
    keys: Keys, int8_model_dir: Path, tmp_path: Path
) -> None:
    await keys.say("4 3")
    path = tmp_path / "config.yaml"
    written = {
        "data_dir": str(tmp_path / "data"),
        "memory": {"embedding": {"models_dir": str(int8_model_dir.parent)}, "milvus": {"address": "127.0.0.1:9"}},
        "coordination": {"url": keys.url, "prefix": keys.prefix, "timeout": "2s", "accept_volatile": True},
        "listen": {
            "ext_proc": "127.0.0.1:0",
            "api": "127.0.0.1:0",
            "console": "127.0.0.1:0",
            "http": "127.0.0.1:0",
        },
    }
    path.write_text(yaml.safe_dump(written))
    async with AsyncExitStack() as stack:
        with pytest.raises(ConfigurationError, match=r"coordination\.url: this Redis holds keys of schema 4"):
            await stack.enter_async_context(app.sidecar(load(path, {})))
    assert await keys.all() == {f"{keys.prefix}:schema".encode()}


def test_a_command_says_so(redis_server: RedisServer, tmp_path: Path) -> None:
    async def say(prefix: str) -> None:
        async with RedisLink(redis_server.url, PLENTY) as operator:
            await operator.client.set(f"{prefix}:schema", "4 3")

    prefix = f"m{uuid4().hex}"
    asyncio.run(say(prefix))
    path = tmp_path / "config.yaml"
    path.write_text(
        yaml.safe_dump({"data_dir": str(tmp_path), "coordination": {"url": redis_server.url, "prefix": prefix}})
    )
    ended = CliRunner().invoke(commands, ["learn", "status", "--config", str(path)])
    assert ended.exit_code == 1
    assert "schema 4 of a newer memory-extproc" in ended.output
