"""Damaged, locked, full and foreign files: an error of ours each, never a crash, and work goes on afterwards."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from memory_extproc.concurrency import utc_now
from memory_extproc.coordination.consent import SqliteConsent
from memory_extproc.coordination.sqlite import SqliteCoordination, SqliteLedger
from memory_extproc.coordination.sqlite_file import Schema, SqliteFile
from memory_extproc.errors import TransientError, UnknownFaultError
from memory_extproc.journal.sqlite import SqliteJournal
from memory_extproc.model import Consent, ConsentChange, Turn, TurnOutcome, digest
from memory_extproc.settings.paths import JournalSection
from tests.support.builders import ANN, BOB, MONDAY, a_turn

LONG = timedelta(hours=1)
IMPATIENT = timedelta(milliseconds=20)


def turn(words: str) -> Turn:
    return replace(a_turn(words), id=digest(words))


def a_journal(path: Path, *, fsync: bool = False) -> SqliteJournal:
    return SqliteJournal(path, JournalSection(fsync=fsync), now=lambda: MONDAY, patience=IMPATIENT)


@pytest.mark.parametrize("fsync", [False, True])
async def test_a_turn_survives_the_process(tmp_path: Path, fsync: bool) -> None:
    path = tmp_path / "deep" / "journal.sqlite"
    async with a_journal(path, fsync=fsync) as journal:
        await journal.append(turn("kept"))
    async with a_journal(path, fsync=fsync) as journal:
        await journal.open()
        assert [entry.turn for entry in await journal.pending(10)] == [turn("kept")]


async def test_the_files_are_for_us_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    old = os.umask(0)
    try:
        async with a_journal(path) as journal:
            await journal.append(turn("private"))
            modes = _modes_in(tmp_path)
    finally:
        os.umask(old)
    assert modes == {"journal.sqlite": 0o600, "journal.sqlite-wal": 0o600, "journal.sqlite-shm": 0o600}


async def test_what_was_erased_stands_nowhere_in_the_files(tmp_path: Path) -> None:
    path, words = tmp_path / "journal.sqlite", "the secret budget of Ann"
    records = tmp_path / "coordination.sqlite"
    async with a_journal(path) as journal, SqliteCoordination(records, now=lambda: MONDAY) as coordination:
        await journal.append(turn(words))
        await journal.append(replace(turn("of Bob"), owner=BOB))
        await coordination.put_record("response", ANN, "r", words.encode(), LONG)
        await coordination.put_record("response", BOB, "r", b"of Bob", LONG)
        assert words.encode() in _bytes_in(tmp_path)
        await journal.erase_owner(ANN)
        await coordination.delete_records(ANN)
        assert words.encode() not in _bytes_in(tmp_path)
        assert b"of Bob" in _bytes_in(tmp_path)


def _modes_in(directory: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()}


def _clear(directory: Path) -> None:
    for file in directory.iterdir():
        file.unlink()


def _bytes_in(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(directory.iterdir()))


def _not_a_database(path: Path) -> None:
    path.write_bytes(b"this was a journal once" * 1000)


def _torn(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)


def _of_something_else(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()


def _of_another_version(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_not_a_database, "damaged"),
        (_torn, "damaged"),
        (_of_something_else, "something else"),
        (_of_another_version, "schema version 99"),
    ],
)
async def test_a_file_that_cannot_be_ours_is_refused_and_a_mended_one_taken_up(
    tmp_path: Path, harm: Callable[[Path], None], said: str
) -> None:
    path = tmp_path / "journal.sqlite"
    async with a_journal(path) as journal:
        await journal.append(turn("lost"))
    harm(path)
    async with a_journal(path) as journal:
        with pytest.raises(TransientError, match=said):
            await journal.append(turn("refused"))
        _clear(tmp_path)
        assert await journal.append(turn("taken")) is TurnOutcome.JOURNALLED


async def test_a_locked_journal_is_tried_later_and_works_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    async with a_journal(path) as journal:
        await journal.append(turn("before"))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        outcomes = await asyncio.gather(
            *(journal.append(turn(f"during {n}")) for n in range(3)), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes] == [TransientError] * 3
        other.execute("COMMIT")
        other.close()
        assert await journal.append(turn("after")) is TurnOutcome.JOURNALLED


async def test_a_full_disk_refuses_what_does_not_fit_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    async with a_journal(path) as journal:
        await journal.append(turn("before"))
        await _limit_pages(journal, more=2)
        outcomes = await asyncio.gather(
            journal.append(turn("small")), journal.append(turn("x" * 200_000)), return_exceptions=True
        )
        assert outcomes[0] is TurnOutcome.JOURNALLED
        assert isinstance(outcomes[1], TransientError)
        assert "disk" in str(outcomes[1])
        assert [entry.turn.asked for entry in await journal.pending(10)] == ["before", "small"]
        await _limit_pages(journal, more=1000)
        assert await journal.append(turn("x" * 200_000)) is TurnOutcome.JOURNALLED


async def test_a_check_finds_what_would_keep_a_turn_from_being_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    async with a_journal(path) as journal:
        await journal.append(turn("before"))
        await journal.check()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TransientError, match="locked"):
            await journal.check()
        other.close()
        await journal.check()
        # Where the kernel refuses to write, a check that only read would not hear of it.
        before = (tmp_path / "journal.sqlite-wal").stat().st_size
        await journal.check()
        assert (tmp_path / "journal.sqlite-wal").stat().st_size > before


async def _limit_pages(journal: SqliteJournal, more: int) -> None:
    """What a disk with room for so many pages does, as SQLite tells it."""

    def limit(connection: sqlite3.Connection) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + more}")

    await journal._file.run(limit)


async def test_a_directory_that_is_none_is_tried_later(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    async with a_journal(tmp_path / "file" / "journal.sqlite") as journal:
        with pytest.raises(TransientError):
            await journal.depth()


async def test_a_turn_that_cannot_be_read_does_not_stand_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    async with a_journal(path) as journal:
        await journal.append(turn("broken"))
        await journal.append(turn("whole"))
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE turns SET turn = 'x' WHERE place = 1")
        connection.close()
        assert [entry.turn.asked for entry in await journal.pending(10)] == ["whole"]
        depth = await journal.depth()
        assert (depth.turns, depth.dead) == (1, 1)


async def test_a_closed_file_is_tried_later_and_what_was_asked_before_is_done(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    async with a_journal(path) as journal:
        appending = [asyncio.create_task(journal.append(turn(str(n)))) for n in range(600)]
        await asyncio.sleep(0)
    assert {await task for task in appending} == {TurnOutcome.JOURNALLED}
    with pytest.raises(TransientError, match="closed"):
        await journal.depth()


async def test_a_cancelled_caller_leaves_its_neighbours_alone(tmp_path: Path) -> None:
    async with a_journal(tmp_path / "journal.sqlite") as journal:
        tasks = [asyncio.create_task(journal.append(turn(str(n)))) for n in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [results[0], results[2]] == [TurnOutcome.JOURNALLED] * 2
        assert len(await journal.pending(10)) == 3


async def test_a_bug_in_one_operation_reaches_whoever_asked_and_is_undone(tmp_path: Path) -> None:
    schema = Schema(7, 1, "CREATE TABLE t (x)")

    def bug(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO t VALUES (1)")
        raise ZeroDivisionError

    async with SqliteFile(tmp_path / "file.sqlite", schema) as file:
        with pytest.raises(ZeroDivisionError):
            await file.run(bug)
        with pytest.raises(UnknownFaultError):
            await file.run(lambda connection: connection.execute("SELECT * FROM nowhere").fetchone())
        assert await file.run(lambda connection: connection.execute("SELECT count(*) FROM t").fetchone()) == (0,)


async def test_two_processes_on_one_coordination_file_see_each_other_at_once(tmp_path: Path) -> None:
    path = tmp_path / "coordination.sqlite"

    async with SqliteCoordination(path, now=utc_now) as one, SqliteCoordination(path, now=utc_now) as other:
        assert await other.version(ANN) == 0, "reading needs no file"
        assert await one.bump(ANN) == 1
        assert await other.version(ANN) == 1
        assert await other.bump(ANN) == 2
        assert await one.version(ANN) == 2
        counted = await asyncio.gather(*(side.bump(ANN) for side in (one, other) for _ in range(20)))
        assert sorted(counted) == list(range(3, 43))
        assert await one.replace_record("slot", ANN, "k", None, b"one", LONG)
        assert not await other.replace_record("slot", ANN, "k", None, b"other", LONG)
        assert await one.acquire("lease", "one", LONG)
        assert not await other.acquire("lease", "other", LONG)


async def test_expired_records_are_cleared_away_by_later_writes(tmp_path: Path) -> None:
    time = [MONDAY]
    path = tmp_path / "coordination.sqlite"
    async with SqliteCoordination(path, now=lambda: time[0]) as coordination:
        for n in range(40):
            await coordination.put_record("head", ANN, str(n), b"x", timedelta(minutes=1))
        time[0] += timedelta(minutes=2)
        for n in range(4):
            await coordination.put_record("head", BOB, str(n), b"x", LONG)
        with sqlite3.connect(path) as connection:
            assert connection.execute("SELECT count(*) FROM records").fetchone() == (4,)
        connection.close()


async def test_a_coordination_file_that_is_damaged_is_refused_on_both_paths(tmp_path: Path) -> None:
    path = tmp_path / "coordination.sqlite"
    _not_a_database(path)
    async with SqliteCoordination(path, now=lambda: MONDAY) as coordination:
        with pytest.raises(TransientError, match="damaged"):
            await coordination.version(ANN)
        with pytest.raises(TransientError, match="damaged"):
            await coordination.open()


async def test_what_another_process_left_or_appended_arrives_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    async with a_journal(path) as before:
        await before.append(turn("left behind"))
    async with a_journal(path) as ours, a_journal(path) as other:
        await ours.append(turn("ours"))
        assert [entry.turn.asked for entry in await ours.arrivals(10)] == ["left behind"]
        await other.append(turn("theirs"))
        await ours.append(turn("ours again"))
        assert [entry.turn.asked for entry in await ours.arrivals(10)] == ["theirs"]
        assert await ours.arrivals(10) == []
        # An operator moves a file aside that seems damaged: the next one counts from its beginning.
    _clear(tmp_path)
    async with a_journal(path) as fresh:
        await fresh.append(turn("first of the next"))
        fresh._given = 4
        assert [entry.turn.asked for entry in await fresh.arrivals(10)] == ["first of the next"]


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


async def test_a_file_that_was_emptied_is_not_read_as_if_nobody_had_forgotten_or_refused(tmp_path: Path) -> None:
    consent, ledger = SqliteConsent(tmp_path / "consent.db"), SqliteLedger(tmp_path / "erasure.db")
    async with consent, ledger:
        assert await consent.add(ANN, ConsentChange(Consent.OFF, MONDAY, "ann"), after=None)
        key = await ledger.key()
    whole = {path: path.read_bytes() for path in (tmp_path / "consent.db", tmp_path / "erasure.db")}
    for path in whole:
        path.write_bytes(b"")
    consent, ledger = SqliteConsent(tmp_path / "consent.db"), SqliteLedger(tmp_path / "erasure.db")
    async with consent, ledger:
        asks: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: consent.latest(ANN),
            lambda: consent.add(ANN, ConsentChange(Consent.ON, MONDAY, "ann"), after=None),
            ledger.key,
            ledger.list_unfinished,
        )
        for ask in asks:
            with pytest.raises(TransientError, match="is empty"):
                await ask()
        for path, content in whole.items():
            assert path.read_bytes() == b""
            path.write_bytes(content)
        assert [change.consent for change in await consent.history(ANN)] == [Consent.OFF]
        assert await ledger.key() == key
    assert sorted(names_in(tmp_path)) == ["consent.db", "erasure.db", "erasure.db.reserve"]
