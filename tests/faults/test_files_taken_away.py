"""A file that is taken away, exchanged or cut short under a running process takes nothing that the next start would
not find, and says so."""

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
import structlog
from prometheus_client import CollectorRegistry

from memory_extproc.app.storage import OpenFiles
from memory_extproc.coordination.sqlite import SqliteCoordination, SqliteLedger
from memory_extproc.coordination.sqlite_file import Schema, SqliteFile
from memory_extproc.errors import TransientError
from memory_extproc.journal.sqlite import SqliteJournal
from memory_extproc.model import LedgerJob, LedgerMarks, Turn, TurnOutcome, digest
from memory_extproc.observe.metrics import Metrics
from tests.support.builders import ANN, MONDAY, a_turn

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


def a_journal(path: Path) -> SqliteJournal:
    return SqliteJournal(path, now=lambda: MONDAY)


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
async def test_nothing_is_accepted_into_a_file_that_the_next_start_would_not_find(
    tmp_path: Path, harm: Callable[[Path], None], why: str
) -> None:
    path = tmp_path / "data" / "journal.db"
    async with a_journal(path) as journal:
        await journal.append(turn("before"))
        harm(path)
        for _ in range(2):  # until somebody sees to it
            with pytest.raises(TransientError, match=rf"journal\.db was taken away while in use \({why}\)"):
                await journal.append(turn("after"))
        with pytest.raises(TransientError):  # readiness asks this
            await journal.check()


async def test_a_file_that_is_moved_back_takes_turns_again_and_has_lost_none(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with a_journal(path) as journal:
        await journal.append(turn("before"))
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(TransientError):
            await journal.append(turn("refused"))
        (tmp_path / "elsewhere").rename(path)
        assert await journal.append(turn("after")) is TurnOutcome.JOURNALLED
    assert await waiting(path) == [turn("before"), turn("after")]


async def test_a_file_that_was_moved_holds_all_that_was_accepted_once_the_process_ends(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "journal.db", tmp_path / "elsewhere.db"
    async with a_journal(path) as journal:
        await journal.append(turn("kept"))
        path.rename(elsewhere)
    assert await waiting(elsewhere) == [turn("kept")]
    assert await waiting(path) == [], "and its log does no harm to the file that is begun in its place"


async def test_what_only_lost_its_log_is_whole_after_an_orderly_end(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with a_journal(path) as journal:
        await journal.append(turn("kept"))
        _log_and_index_deleted(path)
    assert await waiting(path) == [turn("kept")]


async def test_what_somebody_put_in_its_place_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with a_journal(path) as journal:
        await journal.append(turn("ours"))
        _exchanged(path)
        with pytest.raises(TransientError, match="replaced"):
            await journal.check()
    with closing(sqlite3.connect(path)) as theirs:
        assert theirs.execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]


async def test_an_older_ledger_put_in_the_place_of_ours_is_not_believed(tmp_path: Path) -> None:
    path, older = tmp_path / "erasure.db", tmp_path / "older.db"
    async with SqliteLedger(path) as ledger:
        await ledger.key()
        shutil.copy(path, older)
        shutil.copy(f"{path}-wal", f"{older}-wal")
        job = LedgerJob(id="j", subject="ann", body=b"", shut=False, open=False)
        await ledger.write(job, items=[b"forgotten"], at=1.0)
        assert await ledger.marks("bob") == LedgerMarks()
        older.replace(path)
        for _ in range(2):
            with pytest.raises(TransientError, match=r"erasure\.db was taken away while in use \(replaced\)"):
                await ledger.marks("ann")  # and so nothing of hers is shown


async def test_records_and_versions_are_read_on_while_the_file_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "coordination.db"
    async with SqliteCoordination(path, now=lambda: MONDAY) as coordination:
        await coordination.bump(ANN)
        await coordination.put_record("response", ANN, "r", b"kept", LONG)
        assert await coordination.version(ANN) == 1
        _all_deleted(path)
        assert await coordination.version(ANN) == 1
        assert await coordination.get_record("response", ANN, "r") == b"kept"
        with pytest.raises(TransientError):
            await coordination.bump(ANN)


async def test_nothing_is_said_to_be_unknown_because_the_file_is_gone(tmp_path: Path) -> None:
    """Who did not read before would find no file, or another, and take the ledger to be empty."""
    path = tmp_path / "journal.db"
    async with SqliteFile(path, SCHEMA) as file:
        await file.run(lambda connection: connection.execute(KEPT))
        _all_deleted(path)
        with pytest.raises(TransientError, match=r"journal\.db was taken away while in use \(gone\)"):
            file.read("SELECT word FROM one", ())


class Watched:
    """A journal in use, and what an operator is told of its file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.registry = CollectorRegistry()
        self.files = OpenFiles([path], Metrics(self.registry, "0"))

    def count(self, why: str) -> float | None:
        return self.registry.get_sample_value("memory_extproc_files_taken_away", {"why": why})


# Of a file that is cut short its own next use tells.
@pytest.mark.parametrize(("harm", "why"), [one for one in HARMS if one[1] != "cut_short"])
async def test_a_file_that_nobody_writes_to_is_missed_too(
    tmp_path: Path, harm: Callable[[Path], None], why: str
) -> None:
    watched = Watched(tmp_path / "data" / "journal.db")
    watched.files.check()  # it is not there yet
    with structlog.testing.capture_logs() as entries:
        async with a_journal(watched.path) as journal:
            await journal.append(turn("before"))
            watched.files.check()
            assert watched.count(why) == 0
            harm(watched.path)
            for _ in range(2):
                with pytest.raises(TransientError, match=rf"taken away while in use: journal\.db.*\({why}\)"):
                    watched.files.check()
            assert watched.count(why)
        watched.files.check()
    assert watched.count(why) == 0, "once it is closed nothing is in use"
    told = [(one["file"], one["why"]) for one in entries if one["event"] == "file.taken_away"]
    assert len(told) == len(set(told)), "each is told once"
    assert why in {one[1] for one in told}


async def test_a_file_that_was_moved_back_is_not_missed_any_more(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "journal.db")
    async with a_journal(watched.path) as journal:
        await journal.open()
        watched.files.check()
        watched.path.rename(tmp_path / "elsewhere")
        with pytest.raises(TransientError):
            watched.files.check()
        (tmp_path / "elsewhere").rename(watched.path)
        watched.files.check()
    assert watched.count("gone") == 0


async def test_a_damaged_file_that_an_operator_moves_aside_is_not_missed(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "journal.db")
    watched.path.write_bytes(b"no database" * 100)
    async with a_journal(watched.path) as journal:
        with pytest.raises(TransientError, match="move it aside to begin anew"):
            await journal.check()
        watched.files.check()
        watched.path.rename(tmp_path / "aside.db")
        await journal.check()
        watched.files.check()


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
