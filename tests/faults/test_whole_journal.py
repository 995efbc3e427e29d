"""A journal that cannot be written: the sidecar says so and is not ready, and every request passes."""

from __future__ import annotations

import contextlib
import resource
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory_extproc import app
from memory_extproc.errors import ConfigurationError
from tests.support.faults import ASKED, BUDGET, FaultStand
from tests.support.waiting import until

pytestmark = pytest.mark.envoy


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Another process is writing to *file* and does not come to an end."""
    connection = sqlite3.connect(file, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
    finally:
        connection.close()


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """No file of this process grows any more, as on a full disk: the kernel refuses every page."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def assert_refuses(faulty: FaultStand, why: str) -> None:
    """The journal takes nothing; the client gets its answer, and the operator the reason. The turn waits."""
    answer = await faulty.say(BUDGET)
    assert answer.status == 200
    assert faulty.shown.startswith(BUDGET)
    await until(lambda: faulty.sample("turns_undecided") == 1, "the turn waits")
    await until(lambda: _unready(faulty, why), f"not ready: {why}")
    assert why in faulty.logs.of("readiness.changed")[-1]["reason"]


async def _unready(faulty: FaultStand, why: str) -> bool:
    status, text = await faulty.http("/readyz")
    return status == 503 and why in text


async def _ready(faulty: FaultStand) -> bool:
    return (await faulty.http("/readyz"))[0] == 200


async def test_a_locked_journal_makes_the_sidecar_unready_until_it_is_free(faulty: FaultStand) -> None:
    await faulty.start()
    await faulty.say("My sister lives in Hawaii since March.")
    await until(lambda: faulty.kept == 1, "it is stored")
    with locked(faulty.data / "journal.db"):
        await assert_refuses(faulty, "journal.db is locked by another process")
        assert faulty.turns("journal_late") == 1
        # What is known is recalled all the same.
        assert (await faulty.say("Where does my sister live?")).memory.startswith("used")
    await until(lambda: _ready(faulty), "ready again")
    assert [entry["ready"] for entry in faulty.logs.of("readiness.changed")] == [True, False, True]
    await faulty.say("My brother lives in Wailea since May.", x_memory_session="end")
    assert (await faulty.say("Where does my brother live?")).memory.startswith("used")
    await until(lambda: faulty.kept == 3, "what waited is stored, too")
    assert faulty.logs.said("turns.decided")


async def test_a_disk_without_room_for_the_journal_costs_no_turn(faulty: FaultStand) -> None:
    await faulty.start()
    await faulty.say("My sister lives in Hawaii since March.")
    await until(lambda: faulty.kept == 1, "it is stored")
    with no_room():
        await assert_refuses(faulty, "journal.db is failing to read or write")
        assert (await faulty.say("Where does my sister live?")).memory.startswith("used")
    await until(lambda: _ready(faulty), "ready again")
    await faulty.say("My brother lives in Wailea since May.", x_memory_session="end")
    assert (await faulty.say("Where does my brother live?")).memory.startswith("used")
    await until(lambda: faulty.kept == 3, "what waited is stored, too")
    await until(lambda: faulty.sample("journal_depth") == 0, "all that was accepted is learned", seconds=20)
    assert faulty.sample("journal_dead_letters") == 0


async def test_a_damaged_journal_is_named_and_taken_up_anew_once_it_is_moved_aside(faulty: FaultStand) -> None:
    faulty.data.mkdir()
    journal = faulty.data / "journal.db"
    journal.write_bytes(b"not a database " * 1000)
    await faulty.start()
    await assert_refuses(faulty, "journal.db is damaged")
    journal.rename(journal.with_suffix(".aside"))
    await until(lambda: _ready(faulty), "ready again")
    await until(lambda: faulty.kept == 1, "what waited is stored")
    assert (await faulty.say(ASKED)).memory.startswith("used")


async def test_coordination_that_is_locked_delays_and_loses_nothing(faulty: FaultStand) -> None:
    await faulty.start()
    await faulty.say("My sister lives in Hawaii since March.")
    with locked(faulty.data / "coordination.db"):
        assert (await faulty.say(BUDGET)).status == 200
        assert faulty.shown.startswith(BUDGET)
        await until(lambda: faulty.sample("turns_undecided") == 1, "the turn waits")
    await until(lambda: faulty.kept == 2, "it is learned")
    assert (await faulty.say(ASKED)).memory.startswith("used")
    assert "$10,000" in faulty.shown


async def test_coordination_that_is_damaged_is_named_and_buries_no_turn(faulty: FaultStand) -> None:
    faulty.data.mkdir()
    coordination = faulty.data / "coordination.db"
    coordination.write_bytes(b"not a database " * 1000)
    faulty.change(learn={"max_attempts": 1})
    await faulty.start()
    (told,) = faulty.logs.of("coordination.not_open")
    assert told["detail"] == "coordination.db is damaged: not a SQLite database; move it aside to begin anew"
    assert (await faulty.say(BUDGET)).status == 200
    assert faulty.shown == BUDGET
    await until(lambda: faulty.logs.said("turns.undecided"), "the turn waits")
    coordination.rename(coordination.with_suffix(".aside"))
    await until(lambda: faulty.kept == 1, "what was said meanwhile is stored", seconds=10)
    assert (await faulty.say(ASKED)).memory.startswith("used")
    assert "$10,000" in faulty.shown


async def test_two_sidecars_on_one_data_directory_are_refused(faulty: FaultStand) -> None:
    await faulty.start()
    settings = faulty.configured(faulty.scratch / "second.yaml", faulty.data)
    with pytest.raises(
        ConfigurationError, match=r"data_dir: another sidecar is using .*data; give each one its own"
    ):
        await app.sidecar(settings).__aenter__()
    # The first one is none the worse for it.
    await faulty.say(BUDGET)
    assert (await faulty.say(ASKED)).memory.startswith("used")


async def test_files_deleted_under_a_running_sidecar_are_told_and_nothing_is_accepted_into_them(
    faulty: FaultStand,
) -> None:
    faulty.change(memory={"milvus": {"address": "127.0.0.1:1"}})  # turns wait: they are in the journal alone
    await faulty.start()
    await faulty.say(BUDGET)
    await until(lambda: faulty.journalled == 1, "it waits")
    assert (await faulty.http("/readyz"))[0] == 200
    files = {"journal.db", "coordination.db", "erasure.db", "consent.db", "lock"}
    for file in faulty.data.iterdir():
        if file.is_file():
            file.unlink()
    await until(
        lambda: (faulty.sample("files_taken_away", why="gone") or 0) >= len(files), "all of them are missed"
    )
    told = {entry["file"] for entry in faulty.logs.of("file.taken_away")}
    assert files <= told
    status, why = await faulty.http("/readyz")
    assert status == 503
    assert all(f"{name} (gone)" in why for name in files)
    assert (await faulty.say("My sister lives in Hawaii since March.")).status == 200
    await until(lambda: faulty.sample("turns_undecided") == 1, "it waits, and is not lost")

    await faulty.restart()
    assert (await faulty.http("/readyz"))[0] == 200
    assert (await faulty.say(BUDGET)).status == 200
