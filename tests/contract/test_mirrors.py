"""The promises of every Mirror, over the one in memory, the SQLite file and collections of real Milvus servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from memory_extproc.coordination.mirror import (
    Copied,
    CopyKind,
    SqliteMirror,
    decode_copies,
    encode_copies,
    of_items,
)
from memory_extproc.model import LedgerJob
from memory_extproc.ports import Mirror
from memory_extproc.store.milvus.store import MetaCollection
from tests.support.in_memory import InMemoryMirror
from tests.support.milvus_stores import milvus, milvus_lite, opened, options

__all__ = ["milvus", "milvus_lite"]


@pytest.fixture(
    params=[
        "transient",
        "sqlite",
        pytest.param("milvus_lite", marks=pytest.mark.server),
        pytest.param("milvus", marks=pytest.mark.server),
    ]
)
async def mirror(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mirror]:
    match request.param:
        case "transient":
            yield InMemoryMirror()
        case "sqlite":
            async with SqliteMirror(tmp_path / "mirror.db") as sqlite:
                yield sqlite
        case server:
            address = request.getfixturevalue(server).address
            async with opened(options(tmp_path, address)) as store:
                meta = store.meta()
                assert meta is not None
                yield meta


async def everything(mirror: Mirror) -> dict[str, bytes]:
    return {id_: body async for page in mirror.all() for id_, body in page.items()}


async def test_nothing_is_there_before_something_is_put(mirror: Mirror) -> None:
    assert await everything(mirror) == {}


async def test_what_was_put_is_there_and_a_later_one_takes_the_place_of_an_earlier(mirror: Mirror) -> None:
    await mirror.put({"job:1": b'{"a": 1}', "cut:2": b"{}"})
    await mirror.put({"job:1": b'{"a": 2}'})
    await mirror.put({"job:1": b'{"a": 2}'})
    assert await everything(mirror) == {"job:1": b'{"a": 2}', "cut:2": b"{}"}


async def test_many_records_and_long_ones_are_whole(mirror: Mirror) -> None:
    many = {f"items:{n}": b'"%d"' % n for n in range(1_200)}
    long = {"job:long": b"x" * 300_000}
    await mirror.put(many)
    await mirror.put(long)
    assert await everything(mirror) == many | long
    await mirror.put({"job:long": b"short"})
    assert await everything(mirror) == many | {"job:long": b"short"}


async def test_copies_come_back_as_they_were(mirror: Mirror) -> None:
    job = LedgerJob("1" * 32, "a" * 64, b'{"owner": "\xc5\xbd"}', shut=True, open=True)
    copies = [
        Copied(CopyKind.KEY, "", bytes(range(32)), "ledger"),
        Copied.of_job(job),
        Copied(CopyKind.CUT, "a" * 64, b"[1.5]"),
        *of_items("a" * 64, [n.to_bytes(16, "big") for n in range(2_500)], 12.5),
        Copied(CopyKind.CONSENT, "b" * 64, b'["off",1.5,"ann"]'),
    ]
    await mirror.put(encode_copies(copies))
    await mirror.put(encode_copies(copies))
    found = decode_copies(await everything(mirror))
    assert sorted(found, key=repr) == sorted(copies, key=repr)


async def test_two_at_once_make_one_collection(milvus_lite: Any, tmp_path: Path) -> None:
    chosen = options(tmp_path, milvus_lite.address)
    async with opened(chosen) as first, opened(chosen) as second:
        ones: list[MetaCollection | None] = [first.meta(), second.meta()]
        for number, one in enumerate(ones):
            assert one is not None
            await one.put({f"cut:{number}": b"{}"})
        for one in ones:
            assert one is not None
            assert set(await everything(one)) == {"cut:0", "cut:1"}


async def test_a_file_remembers_what_waits_to_be_copied_on(tmp_path: Path) -> None:
    path = tmp_path / "mirror.db"
    async with SqliteMirror(path) as mirror:
        await mirror.put({"a": b"1", "b": b"1"}, waits=True)
        await mirror.put({"c": b"1"})
        await mirror.put({"a": b"2"}, waits=True)
        await mirror.mark_sent({"a": b"1", "b": b"1"})  # what was sent of the first is not what stands there now
        await mirror.put({"a": b"2"})  # as another replica has it: it still waits
    async with SqliteMirror(path) as again:
        assert await again.waiting() == {"a": b"2"}
        await again.mark_sent({"a": b"2"})
        assert await again.waiting() == {}


async def test_what_this_version_cannot_read_is_no_hindrance() -> None:
    good = encode_copies([Copied(CopyKind.CUT, "a" * 64, b"1")])
    assert len(decode_copies({**good, "cut:x": b"{", "new:y": b'{"kind": "new", "subject": ""}'})) == 1
