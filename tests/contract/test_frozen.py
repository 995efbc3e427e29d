"""This version reads the files, the Redis and the rows of an earlier one, and its own have all
that the earlier one looks for: so they may stand side by side, and one may take over from the other."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.model import Embedded, JournalState
from memory_extproc.store.milvus.rows import to_memory, to_row
from tests.support import older_store
from tests.support.frozen import (
    ANN,
    CHOICE,
    FILES,
    JOB,
    PREFIX,
    Kept,
    a_turn,
    freeze_redis,
    in_files,
    in_redis,
    thaw_file,
    thaw_redis,
)
from tests.support.redis import RedisServer, redis_server

__all__ = ["redis_server"]
ROOT = Path(__file__).parents[2]
VERSIONS = sorted(ROOT.joinpath("tests", "frozen").iterdir())
every_version = pytest.mark.parametrize("frozen", VERSIONS, ids=lambda path: path.name)


# --- files and Redis -----------------------------------------------------------------------------------
@asynccontextmanager
async def a_link(server: RedisServer) -> AsyncIterator[RedisLink]:
    """A database of these tests' own, empty."""
    url = server.url.removesuffix("/0") + "/9"
    async with RedisLink(url, timedelta(seconds=10), prefix=PREFIX) as link:
        await link.client.flushdb()
        yield link


async def is_as_it_was_left(kept: Kept) -> None:
    entries = [entry async for entry in kept.journal.of_owner(ANN)]
    assert [entry.turn for entry in entries] == [a_turn(number) for number in range(3)]
    assert [entry.state for entry in entries][2] is JournalState.DEAD
    assert [entry.stored for entry in await kept.journal.pending(10)] == [False, True]
    (dead,) = await kept.journal.dead(10)
    assert (dead.reason, dead.attempts) == ("GiveUpError", 1)
    depth = await kept.journal.depth()
    assert (depth.turns, depth.dead) == (2, 1)
    assert (await kept.coordination.version(ANN), await kept.coordination.epoch(ANN)) == (1, 1)
    assert await kept.coordination.get_record("head", ANN, "k1") == b"a record"
    assert await kept.ledger.list_unfinished() == [JOB]
    marks = await kept.ledger.marks(JOB.subject)
    assert (marks.cuts, marks.items, marks.shut) == ((b"a cut",), {b"x" * 16: 12.5}, True)
    assert await kept.consent.latest(ANN) == CHOICE
    assert await kept.keys.get(ANN.key) == b"a wrapped key"


async def goes_on(kept: Kept) -> None:
    assert await kept.journal.retry([a_turn(2).id]) == 1
    await kept.journal.append(a_turn(3))
    assert (await kept.journal.depth()).turns == 4
    assert await kept.coordination.bump(ANN) == 2
    assert await kept.coordination.replace_record("head", ANN, "k1", b"a record", b"another", timedelta(days=1))


@every_version
async def test_files_of_an_earlier_version_are_read_and_gone_on_with(frozen: Path, tmp_path: Path) -> None:
    for name in FILES:
        thaw_file(frozen / f"{name}.sql", tmp_path / name)
    async with in_files(tmp_path) as kept:
        await is_as_it_was_left(kept)
        await goes_on(kept)


@pytest.mark.redis
@every_version
async def test_redis_as_an_earlier_version_left_it_is_read_and_gone_on_with(
    frozen: Path, redis_server: RedisServer
) -> None:
    async with a_link(redis_server) as link:
        await thaw_redis(link, json.loads((frozen / "redis.json").read_text(encoding="utf-8")))
        async with in_redis(link) as kept:
            await is_as_it_was_left(kept)
            await goes_on(kept)


@pytest.mark.redis
@every_version
async def test_redis_has_what_an_earlier_version_beside_us_looks_for(
    frozen: Path, redis_server: RedisServer
) -> None:
    left = json.loads((frozen / "redis.json").read_text(encoding="utf-8"))
    async with a_link(redis_server) as link:
        async with in_redis(link) as kept:
            await kept.fill()
        ours = {_same_stream(key): value for key, value in (await freeze_redis(link)).items()}
    for key, (kind, value) in left.items():
        there = ours[_same_stream(key)]
        assert there[0] == kind, key
        if kind == "hash" and ":turn:" in key:
            assert value.keys() <= there[1].keys(), key
            _holds(json.loads(there[1]["turn"]), json.loads(value["turn"]))


def _same_stream(key: str) -> str:
    return re.sub(r"stream:\d+", "stream", key)


# --- single records ------------------------------------------------------------------------------------
def _records() -> list[Any]:
    found = []
    for version in VERSIONS:
        for name, written in json.loads((version / "records.json").read_text(encoding="utf-8")).items():
            ((form, text),) = written.items()
            raw = bytes.fromhex(text) if form == "msgpack" else text.encode()
            found.append(pytest.param(name, form, raw, id=f"{version.name} {name.rpartition('.')[2]}"))
    return found


every_record = pytest.mark.parametrize(("name", "form", "raw"), _records())


def _decoded(form: str, raw: bytes, of: Any = Any) -> Any:
    return (msgspec.msgpack if form == "msgpack" else msgspec.json).decode(raw, type=of)


def _type(name: str) -> Any:
    module, _, kind = name.partition(":")
    return getattr(importlib.import_module(module), kind)


def _lenient(param: Any) -> bool:
    """Others are left to the later version whole."""
    return not _type(param.values[0]).__struct_config__.forbid_unknown_fields


def _holds(new: Any, old: Any) -> None:
    """Whoever finds all it needs in *old* finds it in *new*: by name in mappings, by place in lists."""
    if isinstance(old, Mapping):
        for name, value in old.items():
            _holds(new[name], value)
    elif isinstance(old, list | tuple):
        assert len(new) >= len(old)
        for one, other in zip(new, old, strict=False):
            _holds(one, other)
    else:
        assert new == old


@every_record
def test_a_record_is_read_as_it_was_written_and_written_so_that_an_earlier_version_reads_it(
    name: str, form: str, raw: bytes
) -> None:
    record = _decoded(form, raw, _type(name))
    encode = (msgspec.msgpack if form == "msgpack" else msgspec.json).encode
    _holds(_decoded(form, encode(record)), _decoded(form, raw))


@pytest.mark.parametrize(("name", "form", "raw"), [one for one in _records() if _lenient(one)])
def test_what_a_later_version_adds_to_a_record_is_left_out(name: str, form: str, raw: bytes) -> None:
    of = _type(name)
    encode = (msgspec.msgpack if form == "msgpack" else msgspec.json).encode
    plain = _decoded(form, encode(_decoded(form, raw, of)))  # as this version writes it: the later one adds behind
    more = [*plain, "of later"] if isinstance(plain, list) else {**plain, "of_later": 1}
    assert _decoded(form, encode(more), of) == _decoded(form, raw, of)


def test_every_record_with_places_for_fields_is_frozen() -> None:
    """Or is part of one that is: a new one is to be added to the version in which it came."""
    parts = {"_Spot", "_Counted", "RecallDecision", "InjectedBlock", "SaidTurn", "Thread", "Finished"}
    in_redis_json = {f"memory_extproc.coordination.{name}" for name in ("redis:_Kept", "consent:_Written")}
    known = {param.values[0] for param in _records()} | in_redis_json
    found = set()
    for path in sorted((ROOT / "memory_extproc").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any(word.arg == "array_like" for word in node.keywords):
                module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                if node.name not in parts:
                    found.add(f"{module}:{node.name}")
    assert found <= known


# --- rows ----------------------------------------------------------------------------------------------
def test_a_row_has_what_the_first_version_looks_for_in_the_same_kinds() -> None:
    vector = np.zeros(8, dtype=np.float32)
    row = to_row(Embedded(to_memory(older_store.ROW), vector))
    row["metadata"] = json.dumps(json.loads(row["metadata"]), separators=(",", ":"), sort_keys=True)  # in any order
    assert {name: row[name] for name in older_store.ROW} == older_store.ROW
    assert row.keys() == {*older_store.ROW, "embedding"}
