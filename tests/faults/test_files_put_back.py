"""A file that is taken away, exchanged or cut short under a running process: nothing accepted is lost with it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from memory_extproc.coordination.ledger_sqlite import SqliteLedger
from memory_extproc.coordination.sqlite import SqliteCoordination
from memory_extproc.errors import TryLaterError
from memory_extproc.learn.journal import SqliteJournal
from memory_extproc.model import LedgerJob, LedgerMarks, Stored, Turn, digest
from memory_extproc.sqlite_file import Schema, SqliteFile
from tests.builders import ANN, MONDAY, a_turn
from tests.fixtures.waiting import until

LONG = timedelta(hours=1)
# A connection that keeps its hold until its standard input ends, as a second program would.
_HOLDS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT * FROM sqlite_schema").fetchall()
print("held", flush=True)
sys.stdin.read()
connection.close()
"""
SCHEMA = Schema(application=1, version=1, script="CREATE TABLE one (word TEXT, filler BLOB)")
KEPT = "INSERT INTO one VALUES ('kept', NULL)"


def turn(words: str) -> Turn:
    return replace(a_turn(words), id=digest(words))


class Told:
    def __init__(self) -> None:
        self.of: list[str] = []

    def __call__(self, why: str) -> None:
        self.of.append(why)


def a_journal(path: Path, told: Told | None = None) -> SqliteJournal:
    return SqliteJournal(path, now=lambda: MONDAY, tells=told or Told())


async def waiting(path: Path) -> list[Turn]:
    """What a later start finds."""
    async with a_journal(path) as journal:
        return [entry.turn for entry in await journal.pending(100)]


def _deleted(path: Path) -> None:
    path.unlink()


def _all_deleted(path: Path) -> None:
    for file in path.parent.iterdir():
        file.unlink()


def _directory_deleted(path: Path) -> None:
    shutil.rmtree(path.parent)


def _moved_away(path: Path) -> None:
    path.rename(path.with_suffix(".bak"))


def _log_deleted(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


def _log_and_index_deleted(path: Path) -> None:
    _log_deleted(path)
    path.with_name(f"{path.name}-shm").unlink()


def _emptied(path: Path) -> None:
    os.truncate(path, 0)


def _exchanged(path: Path) -> None:
    other = path.with_suffix(".new")
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    other.rename(path)


HARMS = [
    (_deleted, "gone"),
    (_all_deleted, "gone"),
    (_directory_deleted, "gone"),
    (_moved_away, "gone"),
    (_log_deleted, "log_gone"),
    (_log_and_index_deleted, "log_gone"),
    (_emptied, "cut_short"),
    (_exchanged, "replaced"),
]


@pytest.mark.parametrize(("harm", "why"), HARMS)
async def test_turns_accepted_before_and_after_wait_for_the_next_start(
    tmp_path: Path, harm: Callable[[Path], None], why: str
) -> None:
    path, told = tmp_path / "data" / "journal.db", Told()
    async with a_journal(path, told) as journal:
        await journal.append(turn("before"))
        harm(path)
        assert await journal.append(turn("after")) is Stored.JOURNALLED
        assert told.of == [why]
        assert await journal.append(turn("later")) is Stored.JOURNALLED
        assert path.stat().st_mode & 0o777 == 0o600
    assert await waiting(path) == [turn(words) for words in ("before", "after", "later")]
    assert len(told.of) == 1


_IN_STEPS = {_all_deleted, _directory_deleted, _log_and_index_deleted}


# Those that happen at once, however often it is looked.
@pytest.mark.parametrize(("harm", "why"), [one for one in HARMS if one[0] not in _IN_STEPS])
async def test_a_file_that_nobody_writes_to_is_put_back_too(
    tmp_path: Path, harm: Callable[[Path], None], why: str
) -> None:
    path, told = tmp_path / "data" / "journal.db", Told()
    async with SqliteFile(path, SCHEMA, tells=told, looks_every=timedelta(milliseconds=5)) as file:
        await file.run(lambda connection: connection.execute(KEPT))
        harm(path)
        await until(lambda: told.of == [why], "it is put back")
        assert file.read("SELECT word FROM one", ()) == ("kept",)


async def test_what_is_taken_away_in_the_last_moment_is_there_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with a_journal(path) as journal:
        await journal.append(turn("kept"))
        _all_deleted(path)
    assert await waiting(path) == [turn("kept")]


async def test_what_somebody_put_there_is_kept_aside(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with a_journal(path) as journal:
        await journal.append(turn("kept"))
        for _ in range(2):
            _exchanged(path)
            await journal.check()
    for name in ("journal.db.aside-1", "journal.db.aside-2"):
        with closing(sqlite3.connect(tmp_path / name)) as theirs:
            assert theirs.execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]


async def test_an_older_ledger_put_in_the_place_of_ours_brings_nothing_back(tmp_path: Path) -> None:
    path, older = tmp_path / "erasure.db", tmp_path / "older.db"
    async with SqliteLedger(path) as ledger:
        await ledger.key()
        shutil.copy(path, older)
        shutil.copy(f"{path}-wal", f"{older}-wal")
        job = LedgerJob(id="j", subject="ann", body=b"", shut=False, open=False)
        await ledger.write(job, items=[b"forgotten"], at=1.0)
        assert await ledger.marks("bob") == LedgerMarks()
        older.replace(path)
        assert b"forgotten" in (await ledger.marks("ann")).items
        await ledger.write(replace(job, id="k"), items=[b"this, too"], at=2.0)
        assert set((await ledger.marks("ann")).items) == {b"forgotten", b"this, too"}
    async with SqliteLedger(path) as ledger:
        assert set((await ledger.marks("ann")).items) == {b"forgotten", b"this, too"}


async def test_records_and_versions_are_read_on_while_the_file_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "coordination.db"
    async with SqliteCoordination(path, now=lambda: MONDAY) as coordination:
        await coordination.bump(ANN)
        await coordination.put_record("response", ANN, "r", b"kept", LONG)
        assert await coordination.version(ANN) == 1
        _all_deleted(path)
        assert await coordination.version(ANN) == 1
        assert await coordination.bump(ANN) == 2
        assert await coordination.version(ANN) == 2
        assert await coordination.get_record("response", ANN, "r") == b"kept"


async def test_nothing_is_said_to_be_unknown_before_the_file_is_back(tmp_path: Path) -> None:
    """Who did not read before would find no file, or another, and take the ledger to be empty."""
    path = tmp_path / "journal.db"
    async with SqliteFile(path, SCHEMA) as file:
        await file.run(lambda connection: connection.execute(KEPT))
        _all_deleted(path)
        with pytest.raises(TryLaterError, match=r"journal\.db is gone, and not put back yet"):
            file.read("SELECT word FROM one", ())
        await file.run(lambda connection: connection.execute("SELECT 1"))
        assert file.read("SELECT word FROM one", ()) == ("kept",)


async def test_what_is_not_whole_any_more_is_refused_and_begun_anew_once_it_is_moved_aside(tmp_path: Path) -> None:
    path, told = tmp_path / "journal.db", Told()
    row = "INSERT INTO one VALUES ('x', randomblob(4000000))"  # more than a connection holds in its memory
    async with SqliteFile(path, SCHEMA) as file:
        await file.run(lambda connection: connection.execute(row))
    async with SqliteFile(path, SCHEMA, tells=told) as file:
        await file.run(lambda connection: connection.execute("INSERT INTO one VALUES ('y', NULL)"))
        os.truncate(path, 8192)
        for _ in range(2):
            with pytest.raises(TryLaterError, match=r"damaged \(cut_short\); move it aside to begin anew"):
                await file.run(lambda connection: connection.execute("SELECT 1"))
        path.rename(tmp_path / "aside.db")
        await file.run(lambda connection: connection.execute("INSERT INTO one VALUES ('new', NULL)"))
        assert file.read("SELECT group_concat(word) FROM one", ()) == ("new",)
    assert told.of == []


async def test_one_that_cannot_be_put_back_for_now_takes_nothing_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data" / "journal.db"
    async with a_journal(path) as journal:
        await journal.append(turn("kept"))
        shutil.rmtree(path.parent)
        path.parent.write_text("in the way")
        with pytest.raises(TryLaterError, match=r"journal\.db is gone and cannot be put back now"):
            await journal.append(turn("refused"))
        path.parent.unlink()
        assert await journal.append(turn("taken")) is Stored.JOURNALLED
    assert await waiting(path) == [turn("kept"), turn("taken")]


@contextmanager
def held_by_another_process(path: Path) -> Iterator[None]:
    command = [sys.executable, "-S", "-c", _HOLDS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            process.communicate(timeout=60)


async def test_one_that_another_process_uses_is_not_taken_from_it(tmp_path: Path) -> None:
    path, other = tmp_path / "journal.db", tmp_path / "other.db"
    async with a_journal(other) as journal:
        await journal.append(turn("theirs"))
    async with a_journal(path) as journal:
        await journal.append(turn("ours"))
        with held_by_another_process(other):
            other.rename(path)
            with pytest.raises(TryLaterError, match="another process uses the new one"):
                await journal.append(turn("refused"))
        assert await journal.append(turn("taken")) is Stored.JOURNALLED
    assert await waiting(path) == [turn("ours"), turn("taken")]
    assert await waiting(tmp_path / "journal.db.aside-1") == [turn("theirs")]


async def test_a_command_that_ends_beside_us_does_not_take_the_log_along(tmp_path: Path) -> None:
    """Whoever is the last to close a file removes its log; that we have it open is known by our locks alone, which
    opening and closing the file apart from SQLite would let go of."""
    path = tmp_path / "journal.db"

    async with SqliteFile(path, SCHEMA) as file:
        await file.run(lambda connection: connection.execute(KEPT))
        assert file.read("SELECT word FROM one", ()) == ("kept",)
        async with SqliteFile(path, SCHEMA) as beside:  # as after a fault: opened anew while the other reads
            await beside.run(lambda connection: connection.execute("SELECT 1"))
            with held_by_another_process(path):
                pass
            assert path.with_name("journal.db-wal").exists()
