"""Records that a crash may lose are in the process at once, and in the file a moment later, many in one commit."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import structlog

from memory_extproc.coordination.sqlite import SqliteCoordination
from memory_extproc.errors import TransientError
from memory_extproc.model import RECORD_KINDS
from tests.support.builders import ANN, MONDAY
from tests.support.waiting import until

LONG = timedelta(hours=1)
NEVER = timedelta(days=1)  # within which nothing is written by itself
SOON = timedelta(milliseconds=1)


def opened(path: Path, deferred: timedelta) -> SqliteCoordination:
    return SqliteCoordination(path, now=lambda: MONDAY, deferred=deferred)


def in_file(path: Path) -> dict[str, bytes]:
    """What a process would find that starts after a crash in this moment."""
    with closing(sqlite3.connect(path)) as connection:
        return {
            f"{kind}/{key}": value
            for kind, key, value in connection.execute("SELECT kind, key, value FROM records")
        }


def read_files(directory: Path) -> list[bytes]:
    return [file.read_bytes() for file in directory.iterdir()]


async def test_a_deferred_record_is_in_the_process_at_once_and_in_the_file_within_the_time(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", NEVER) as slow, opened(tmp_path / "b.db", SOON) as soon:
        for one in (slow, soon):
            await one.open()
            await one.put_record("head", ANN, "k", b"1", LONG)
            assert await one.replace_record("head", ANN, "k", b"1", b"2", LONG)
            assert not await one.replace_record("head", ANN, "k", b"1", b"3", LONG)
            assert await one.get_record("head", ANN, "k") == b"2"
            assert await one.find_records("head", ANN, ["k", "none"]) == {"k": b"2"}
        assert in_file(tmp_path / "a.db") == {}

        async def written() -> bool:
            return in_file(tmp_path / "b.db") == {"head/k": b"2"}

        await until(written, "the record was written")
        assert await soon.get_record("head", ANN, "k") == b"2"


async def test_what_waits_for_a_commit_takes_along_all_that_was_deferred_before(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", NEVER) as coordination:
        await coordination.put_record("opening", ANN, "o", b"session", LONG)
        assert await coordination.replace_record("slot", ANN, "s", None, b"mine", LONG)

        assert in_file(tmp_path / "a.db") == {"opening/o": b"session", "slot/s": b"mine"}


async def test_a_process_that_ends_leaves_nothing_behind(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", NEVER) as coordination:
        await coordination.put_record("given", ANN, "k", b"block", LONG)

    assert in_file(tmp_path / "a.db") == {"given/k": b"block"}


async def test_records_that_everything_else_rests_on_are_never_deferred(tmp_path: Path) -> None:
    kept = [name for name, kind in RECORD_KINDS.items() if not kind.deferred]
    assert {"slot", "tail", "topics", "incognito", "forget_plan", "api"} <= set(kept)
    async with opened(tmp_path / "a.db", NEVER) as coordination:
        for kind in kept:
            await coordination.put_record(kind, ANN, "k", b"x", LONG)
            assert f"{kind}/k" in in_file(tmp_path / "a.db")


@pytest.mark.parametrize("kinds", [None, ["given"]])
async def test_a_forget_takes_what_is_not_written_yet(tmp_path: Path, kinds: list[str] | None) -> None:
    async with opened(tmp_path / "a.db", NEVER) as coordination:
        await coordination.put_record("given", ANN, "k", b"words of hers", LONG)
        await coordination.delete_records(ANN, kinds)

        assert await coordination.get_record("given", ANN, "k") is None
    assert in_file(tmp_path / "a.db") == {}
    assert b"words of hers" not in b"".join(read_files(tmp_path))


async def test_while_the_file_cannot_be_written_each_write_waits_and_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, SOON) as coordination:
        await coordination.open()
        path.rename(tmp_path / "away.db")
        with structlog.testing.capture_logs() as logs:
            await coordination.put_record("head", ANN, "k", b"1", LONG)

            async def told() -> bool:
                return any(entry["event"] == "coordination.not_written" for entry in logs)

            await until(told, "the loss was told of")
        with pytest.raises(TransientError):
            await coordination.put_record("head", ANN, "k", b"2", LONG)
        (tmp_path / "away.db").rename(path)
        await coordination.put_record("head", ANN, "k", b"3", LONG)
        await coordination.put_record("head", ANN, "l", b"4", LONG)

        assert await coordination.get_record("head", ANN, "k") == b"3"
    assert in_file(path) == {"head/k": b"3", "head/l": b"4"}
