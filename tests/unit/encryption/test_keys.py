"""Master keys and the data keys they wrap: made once, destroyed for good, rotated while in use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
import structlog

from memory_extproc.encryption.keys import (
    KeyTable,
    MasterKeyFile,
    SqliteKeyTable,
    UnknownMasterKeyError,
    WrappedKeys,
    new_master_key,
)
from memory_extproc.errors import ConfigurationError, PermanentError, TransientError
from tests.support.builders import ANN, BOB, OTHER_ANN
from tests.support.in_memory import InMemoryKeyTable, InMemoryMasterKey


def master_file(path: Path, *lines: str) -> Path:
    file = path / "master.key"
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o600)
    os.utime(file, ns=(before + 1_000_000, before + 1_000_000))
    return file


def bytes_below(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.iterdir())


@pytest.fixture(params=["transient", "sqlite"])
async def table(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KeyTable]:
    if request.param == "transient":
        yield InMemoryKeyTable()
        return
    async with SqliteKeyTable(tmp_path / f"{uuid4().hex}.db") as made:
        yield made


async def test_each_owner_has_a_key_of_their_own_and_keeps_it(table: KeyTable) -> None:
    master = InMemoryMasterKey()
    keys = WrappedKeys(table, master)
    assert await keys.find(ANN) is None
    mine = await keys.of(ANN)
    assert await keys.of(ANN) == await keys.find(ANN) == mine
    assert await WrappedKeys(table, master).of(ANN) == mine
    others = [await keys.of(BOB), await keys.of(OTHER_ANN)]
    assert len({mine.secret, *(one.secret for one in others)}) == 3
    assert len(mine.secret) == 32


async def test_many_who_write_first_at_once_agree_on_one_key(table: KeyTable) -> None:
    master = InMemoryMasterKey()
    made = await asyncio.gather(*(WrappedKeys(table, master).of(ANN) for _ in range(20)))
    assert len(set(made)) == 1


async def test_a_destroyed_key_is_gone_for_every_process_and_the_next_is_another(table: KeyTable) -> None:
    master = InMemoryMasterKey()
    mine, elsewhere = WrappedKeys(table, master), WrappedKeys(table, master)
    before = await mine.of(ANN)
    kept = await mine.of(BOB)
    await elsewhere.of(ANN)
    assert await mine.destroy(ANN)
    assert not await mine.destroy(ANN)
    assert await elsewhere.find(ANN) is None
    assert await elsewhere.of(ANN) != before
    assert await mine.of(BOB) == kept


async def test_no_key_can_be_put_in_anothers_place(table: KeyTable) -> None:
    keys = WrappedKeys(table, InMemoryMasterKey())
    await keys.of(ANN)
    wrapped = await table.get(ANN.key)
    assert wrapped is not None
    await table.add(BOB.key, wrapped)
    with pytest.raises(PermanentError, match="damaged or moved"):
        await keys.of(BOB)


async def test_a_destroyed_key_leaves_no_bytes_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    async with SqliteKeyTable(path) as table:
        keys = WrappedKeys(table, InMemoryMasterKey())
        await keys.of(ANN)
        await keys.of(BOB)
        wrapped = await table.get(ANN.key)
        assert wrapped is not None
        await keys.destroy(ANN)
        assert wrapped not in bytes_below(tmp_path)


async def test_a_wrong_master_key_is_named_with_what_to_do(tmp_path: Path, table: KeyTable) -> None:
    old, new = new_master_key(), new_master_key()
    master = MasterKeyFile(master_file(tmp_path, old))
    await WrappedKeys(table, master).check()
    was = master.name
    wrong = WrappedKeys(table, MasterKeyFile(master_file(tmp_path, new)))
    with pytest.raises(UnknownMasterKeyError, match=f"{was}.*add it there as a further line"):
        await wrong.check()
    await WrappedKeys(table, MasterKeyFile(master_file(tmp_path, new, old))).check()


async def test_keys_are_wrapped_anew_while_others_use_them(tmp_path: Path, table: KeyTable) -> None:
    old, new = new_master_key(), new_master_key()
    file = master_file(tmp_path, old)
    running = WrappedKeys(table, MasterKeyFile(file))
    await running.check()
    mine = await running.of(ANN)
    master_file(tmp_path, f"{new}  # since March", "", f"{old}")
    rotating = WrappedKeys(table, MasterKeyFile(file))
    assert await rotating.rotate() == (2, 0)
    assert await rotating.rotate() == (0, 2)
    assert await running.of(ANN) == mine
    theirs = await running.of(BOB)
    master_file(tmp_path, new)
    alone = WrappedKeys(table, MasterKeyFile(file))
    await alone.check()
    assert (await alone.of(ANN), await alone.of(BOB)) == (mine, theirs)
    assert list(await alone.masters()) == [MasterKeyFile(file).name]


async def test_a_key_destroyed_while_it_is_wrapped_anew_stays_destroyed(table: KeyTable) -> None:
    keys = WrappedKeys(table, InMemoryMasterKey())
    await keys.of(ANN)
    wrapped = await table.get(ANN.key)
    assert wrapped is not None
    await keys.destroy(ANN)
    assert not await table.swap(ANN.key, wrapped, b"anew")
    assert await table.get(ANN.key) is None


async def test_while_the_table_is_away_known_keys_go_on_and_no_others_are_made() -> None:
    class Away(InMemoryKeyTable):
        away = False

        async def get(self, place: str) -> bytes | None:
            if self.away:
                raise TransientError("away")
            return await super().get(place)

    table = Away()
    keys = WrappedKeys(table, InMemoryMasterKey())
    mine = await keys.of(ANN)
    table.away = True
    assert await keys.of(ANN) == await keys.find(ANN) == mine
    with pytest.raises(TransientError):
        await keys.of(BOB)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no key"),
        ("# nothing\n\n", "holds no key"),
        ("hunter2", "line 1 is no key of 32 bytes"),
        pytest.param(f"{new_master_key()}\n{new_master_key()[:20]}", "line 2 is no key", id="second line cut"),
    ],
)
def test_a_file_that_holds_no_sound_key_is_refused_without_showing_it(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "master.key"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=said) as refused:
        MasterKeyFile(file)
    assert "hunter2" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"No such file.*keys new"):
        MasterKeyFile(tmp_path / "none")


def test_a_file_that_breaks_while_in_use_leaves_the_keys_it_held(tmp_path: Path) -> None:
    file = master_file(tmp_path, new_master_key())
    master = MasterKeyFile(file)
    name = master.name
    master_file(tmp_path, "half a k")
    assert master.name == name
    file.unlink()
    assert master.name == name


def test_a_mistaken_key_wraps_nothing_while_the_right_one_is_in_use(tmp_path: Path) -> None:
    right, wrong = new_master_key(), new_master_key()
    master = MasterKeyFile(master_file(tmp_path, right))
    name = master.name
    with structlog.testing.capture_logs() as logged:
        for text in (wrong, "", wrong, wrong):
            master_file(tmp_path, text)
            assert master.name == name
    assert [event["why"] for event in logged] == ["other_keys", "no_keys", "other_keys"]
    master_file(tmp_path, wrong, right)
    assert master.names[1:] == (name,)


def test_a_file_that_begins_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    file.write_bytes(b"\xef\xbb\xbf" + new_master_key().encode() + b"\r\n")
    assert len(MasterKeyFile(file).names) == 1


def test_a_key_that_is_no_text_is_refused_without_a_byte_of_it(tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    file.write_bytes(b"\xfe" * 32)
    with pytest.raises(ConfigurationError, match="line 1 is no key of 32 bytes") as refused:
        MasterKeyFile(file)
    assert "fe" not in str(refused.value).partition("line 1")[2]


def test_a_file_that_others_may_read_is_noticed(tmp_path: Path) -> None:
    file = master_file(tmp_path, new_master_key())
    assert not MasterKeyFile(file).open_to_others
    file.chmod(0o644)
    assert MasterKeyFile(file).open_to_others
