"""A SQLite file of an older version is brought up to date when it is opened; a newer one is left alone."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from memory_extproc.coordination.sqlite_file import Schema, SqliteFile
from memory_extproc.errors import TransientError

FIRST = Schema(application=7, version=1, script="CREATE TABLE words (word TEXT PRIMARY KEY)")
# As FIRST's file is after both upgrades.
THIRD = Schema(
    application=7,
    version=3,
    script="CREATE TABLE words (word TEXT PRIMARY KEY, heard INTEGER NOT NULL DEFAULT 1);\n\nCREATE TABLE more (x)",
    upgrades={
        1: "ALTER TABLE words ADD COLUMN heard INTEGER NOT NULL DEFAULT 1",
        2: "CREATE TABLE more (x)",
    },
)
SAY = "INSERT INTO words (word) VALUES (?)"
HEARD = "SELECT heard FROM words WHERE word = ?"


async def say(path: Path, schema: Schema, word: str) -> None:
    async with SqliteFile(path, schema) as file:
        await file.run(lambda connection: connection.execute(SAY, (word,)).rowcount)


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


async def test_an_older_file_is_read_and_written_as_a_new_one_and_keeps_what_it_held(tmp_path: Path) -> None:
    path = tmp_path / "words.db"
    await say(path, FIRST, "tea")
    async with SqliteFile(path, THIRD) as file:
        assert file.read(HEARD, ("tea",)) == (1,), "before anything is written"
        await file.run(lambda connection: connection.execute(SAY, ("milk",)).rowcount)
        assert file.read(HEARD, ("milk",)) == (1,)
    assert version(path) == 3
    async with SqliteFile(path, THIRD) as file:
        assert file.read(HEARD, ("tea",)) == (1,)


async def test_a_newer_file_is_refused_with_both_numbers_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "words.db"
    await say(path, THIRD, "tea")
    before = path.read_bytes()
    refused = "words.db has schema version 3 of a newer memory-extproc, this one knows versions up to 1"
    with capture_logs() as said:
        async with SqliteFile(path, FIRST) as file:
            for _ in range(2):
                with pytest.raises(TransientError, match=refused):
                    await file.run(lambda connection: connection.execute(SAY, ("milk",)).rowcount)
            with pytest.raises(TransientError, match=refused):
                file.read("SELECT word FROM words WHERE word = ?", ("tea",))
    assert [(each["event"], each["file"]) for each in said] == [("file.not_ours", str(path))]
    assert path.read_bytes() == before


async def test_an_upgrade_that_fails_changes_nothing_and_is_told_where_the_file_is_used(tmp_path: Path) -> None:
    path = tmp_path / "words.db"
    await say(path, FIRST, "tea")
    broken = Schema(application=7, version=3, script="", upgrades={**THIRD.upgrades, 2: "CREATE NONSENSE"})
    async with SqliteFile(path, broken) as file:
        with pytest.raises(TransientError, match="not brought up to date"):
            file.read(HEARD, ("tea",))
        with pytest.raises(Exception, match=r"words\.db refused"):
            await file.run(lambda connection: connection.execute(SAY, ("milk",)).rowcount)
    assert version(path) == 1
    await say(path, FIRST, "milk")


def test_a_version_without_a_way_to_it_is_not_to_be_written() -> None:
    with pytest.raises(ValueError, match="an upgrade to the next"):
        Schema(application=7, version=3, script="", upgrades={1: ""})


async def test_a_write_that_finds_no_thread_fails_and_later_ones_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    path = tmp_path / "words.db"
    async with SqliteFile(path, FIRST) as file:
        with monkeypatch.context() as starved:
            starved.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(TransientError, match="has no thread"):
                await file.run(lambda connection: connection.execute(SAY, ("lost",)).rowcount)
        await file.run(lambda connection: connection.execute(SAY, ("said",)).rowcount)
        assert file.read("SELECT word FROM words WHERE word = 'said'", ()) == ("said",)
