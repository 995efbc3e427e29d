"""The log of exchanges that are not in the journal yet: what outlives the process, and what does not."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from memory_extproc.encryption.keys import MasterKeyFile, new_master_key
from memory_extproc.learn.intake_log import IntakeLog, LogKind, adopt, count_waiting
from memory_extproc.settings.paths import JournalSection
from tests.support.builders import ANN, BOB, MONDAY
from tests.support.disk import no_room

WORDS = b"I like pizza."


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def killed(directory: Path, to: Path) -> Path:
    """The directory as a process leaves it that is killed now."""
    shutil.copytree(directory, to)
    return to


def files(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def left(directory: Path, **more: Any) -> list[bytes]:
    """What the next process finds."""
    async with IntakeLog(directory, **more) as log:
        return [log.read(record) for record in log.take_left(LogKind.TURN)]


async def test_what_was_appended_outlives_the_process_and_what_was_discarded_does_not(tmp_path: Path) -> None:
    async with IntakeLog(tmp_path / "a") as log:
        records = [log.append(LogKind.TURN, ANN, MONDAY, b"turn %d" % number) for number in range(4)]
        assert records[1] is not None
        log.discard(records[1])
        log.discard(records[1])
        assert count_waiting(tmp_path / "a") == 3
        after = killed(tmp_path / "a", tmp_path / "b")
    assert await left(after) == [b"turn 0", b"turn 2", b"turn 3"]
    assert await left(after) == [b"turn 0", b"turn 2", b"turn 3"], "until they are discarded"


async def test_a_log_in_which_nothing_waits_leaves_no_file(tmp_path: Path) -> None:
    async with IntakeLog(tmp_path) as log:
        record = log.append(LogKind.TURN, ANN, MONDAY, WORDS)
        assert record is not None
        log.discard(record)
    assert files(tmp_path) == []


async def test_no_words_and_no_names_stand_in_the_files_and_nobody_else_may_read_them(tmp_path: Path) -> None:
    async with IntakeLog(tmp_path) as log:
        log.append(LogKind.TURN, ANN, MONDAY, WORDS)
        assert len(files(tmp_path)) == 2
        for path in files(tmp_path):
            assert path.stat().st_mode & 0o777 == 0o600
            assert WORDS not in path.read_bytes()
            assert ANN.user.encode() not in path.read_bytes()


async def test_what_was_discarded_cannot_be_read_soon_after_and_what_waits_beside_it_stays(tmp_path: Path) -> None:
    clock = Clock()
    async with IntakeLog(tmp_path / "a", clock=clock) as log:
        gone, stays = (log.append(LogKind.TURN, ANN, MONDAY, words) for words in (WORDS, b"stays"))
        assert gone is not None
        assert stays is not None
        before = {path.name for path in (tmp_path / "a").iterdir()}
        log.discard(gone)
        clock.now += 31
        await log.tend()
        assert not before & {path.name for path in (tmp_path / "a").iterdir()}, "neither segment nor key"
        assert log.read(stays) == b"stays"
        assert await left(killed(tmp_path / "a", tmp_path / "b")) == [b"stays"]
        log.discard(stays)
        assert await left(killed(tmp_path / "a", tmp_path / "c")) == []


async def test_what_waited_longest_comes_first_though_it_was_copied_behind_others(tmp_path: Path) -> None:
    clock = Clock()
    async with IntakeLog(tmp_path, clock=clock) as log:
        gone = log.append(LogKind.TURN, ANN, MONDAY, WORDS)
        log.append(LogKind.TURN, ANN, MONDAY, b"first")
        assert gone is not None
        log.discard(gone)
        clock.now += 31
        real, log._copy_forward = log._copy_forward, _not_yet  # type: ignore[assignment, method-assign]
        await log.tend()
        log.append(LogKind.TURN, ANN, MONDAY + timedelta(minutes=1), b"second")
        log._copy_forward = real  # type: ignore[method-assign]
        await log.tend()
    assert await left(tmp_path) == [b"first", b"second"]


async def _not_yet(*_: object) -> None:
    """Copying takes its time."""


async def test_with_a_master_key_nothing_is_read_without_it(tmp_path: Path) -> None:
    for name in ("ours", "other"):
        (tmp_path / name).write_text(new_master_key())
    ours, other = (MasterKeyFile(tmp_path / name) for name in ("ours", "other"))
    async with IntakeLog(tmp_path / "a", wraps=ours) as log:
        log.append(LogKind.TURN, ANN, MONDAY, WORDS)
    assert await left(tmp_path / "a", wraps=other) == []
    assert await left(tmp_path / "a", wraps=ours) == [WORDS], "it waited for its master key"


async def test_a_full_log_takes_no_more_until_there_is_room(tmp_path: Path) -> None:
    async with IntakeLog(tmp_path, JournalSection(max_turns=2)) as log:
        first = log.append(LogKind.TURN, ANN, MONDAY, WORDS)
        log.append(LogKind.TURN, ANN, MONDAY, WORDS)
        assert log.append(LogKind.TURN, ANN, MONDAY, WORDS) is None
        assert log.is_full
        assert first is not None
        log.discard(first)
        assert log.append(LogKind.TURN, ANN, MONDAY, WORDS) is not None
    async with IntakeLog(tmp_path, JournalSection().model_copy(update={"intake_bytes": 100})) as log:
        assert log.is_full, "what an earlier process left counts"


async def test_who_waits_since_when(tmp_path: Path) -> None:
    later = MONDAY + timedelta(minutes=1)
    async with IntakeLog(tmp_path) as log:
        first = log.append(LogKind.TURN, ANN, MONDAY, WORDS)
        log.append(LogKind.TURN, BOB, later, WORDS)
        log.append(LogKind.MARK, BOB, MONDAY, b"{}")
        assert (log.oldest(), log.oldest(ANN), log.oldest(BOB)) == (MONDAY, MONDAY, later)
        assert first is not None
        log.discard(first)
        assert (log.oldest(), log.oldest(ANN)) == (later, None)
    async with IntakeLog(tmp_path) as log:
        assert log.oldest(BOB) == later


# --- files that are not as they should be ------------------------------------------------------------
async def a_segment(directory: Path) -> Path:
    async with IntakeLog(directory) as log:
        for number in range(5):
            log.append(LogKind.TURN, ANN, MONDAY, b"turn %d" % number)
    return next(path for path in files(directory) if path.suffix == ".log")


@pytest.mark.parametrize("cut", [1, 20, 60])
async def test_a_log_that_was_cut_is_read_as_far_as_it_is_whole(tmp_path: Path, cut: int) -> None:
    segment, why = await a_segment(tmp_path), list[str]()
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size - cut)
    assert await left(tmp_path, tells=why.append) == [b"turn %d" % number for number in range(4)]
    assert why == ["cut"]
    assert segment.with_suffix(".cut").stat().st_size > 0


@pytest.mark.parametrize("where", ["length", "check", "id", "payload"])
async def test_a_flipped_bit_costs_one_turn_or_what_is_behind_it_and_is_told(tmp_path: Path, where: str) -> None:
    segment, why = await a_segment(tmp_path), list[str]()
    data = bytearray(segment.read_bytes())
    record = (len(data) - 5) // 5
    data[5 + 2 * record + {"length": 3, "check": 5, "id": 12, "payload": 40}[where]] ^= 4
    segment.write_bytes(data)
    read = await left(tmp_path, tells=why.append)
    assert read[:2] == [b"turn 0", b"turn 1"]
    assert b"turn 2" not in read
    if where != "length":
        assert read[2:] == [b"turn 3", b"turn 4"]
    assert why == ["damaged"]
    assert segment.with_suffix(".damaged").stat().st_size > 0


async def test_a_log_of_a_newer_version_is_moved_aside_whole(tmp_path: Path) -> None:
    segment, why = await a_segment(tmp_path), list[str]()
    data = segment.read_bytes()
    segment.write_bytes(data[:4] + b"\x02" + data[5:])
    assert await left(tmp_path, tells=why.append) == []
    assert why == ["newer_version"]
    assert segment.with_suffix(".newer_version").stat().st_size == len(data)
    assert segment.with_suffix(".key").exists(), "the newer program reads it once it is renamed"


async def test_a_segment_without_its_key_is_moved_aside(tmp_path: Path) -> None:
    segment, why = await a_segment(tmp_path), list[str]()
    segment.with_suffix(".key").unlink()
    assert await left(tmp_path, tells=why.append) == []
    assert why == ["key_gone"]


async def test_a_doubled_segment_gives_each_turn_once(tmp_path: Path) -> None:
    segment = await a_segment(tmp_path)
    for path in (segment, segment.with_suffix(".key")):
        shutil.copy(path, path.with_stem(f"{path.stem}-again"))
    assert len(await left(tmp_path)) == 5


@pytest.mark.parametrize("junk", [b"", b"me", b"not ours at all", bytes(1000)])
async def test_junk_in_the_place_of_a_log_keeps_nobody_from_starting(tmp_path: Path, junk: bytes) -> None:
    segment = await a_segment(tmp_path)
    segment.write_bytes(junk)
    (tmp_path / "zzz.log").write_bytes(os.urandom(100))
    assert await left(tmp_path) == []
    async with IntakeLog(tmp_path) as log:
        assert log.append(LogKind.TURN, ANN, MONDAY, WORDS) is not None


async def test_a_log_that_was_taken_away_under_a_running_process_is_written_anew(tmp_path: Path) -> None:
    async with IntakeLog(tmp_path / "a") as log:
        record = log.append(LogKind.TURN, ANN, MONDAY, WORDS)
        shutil.rmtree(tmp_path / "a")
        await log.tend()
        assert record is not None
        assert log.read(record) == WORDS
        assert await left(killed(tmp_path / "a", tmp_path / "b")) == [WORDS]


async def test_a_disk_that_takes_no_more_loses_nothing_that_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite
    async with IntakeLog(tmp_path / "a") as log:
        log.append(LogKind.TURN, ANN, MONDAY, b"before")
        monkeypatch.setattr(os, "pwrite", lambda handle, data, at: write(handle, data[:10], at))
        assert log.append(LogKind.TURN, ANN, MONDAY, b"cut") is None
        monkeypatch.setattr(os, "pwrite", _full)
        assert log.append(LogKind.TURN, ANN, MONDAY, b"full") is None
        monkeypatch.setattr(os, "pwrite", write)
        log.append(LogKind.TURN, ANN, MONDAY, b"after")
        assert await left(killed(tmp_path / "a", tmp_path / "b")) == [b"before", b"after"]


def _full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "no room")


async def test_a_disk_that_stays_full_gathers_no_files(tmp_path: Path) -> None:
    clock = Clock()
    async with IntakeLog(tmp_path, clock=clock) as log:
        record = log.append(LogKind.TURN, ANN, MONDAY, WORDS)
        assert record is not None
        log.discard(record)
        clock.now += 31  # its segment is due
        there = sorted(files(tmp_path))
        for room in (1, 32):  # less than a key
            with capture_logs(), no_room(room):
                await log.tend()
                await log.tend()
            assert sorted(files(tmp_path)) == there
        await log.tend()
        assert len(files(tmp_path)) == 2


async def test_what_cannot_be_read_waits_for_room_to_be_kept_aside(tmp_path: Path) -> None:
    async with IntakeLog(tmp_path / "dead") as dead:
        for words in (b"before", b"damaged" * 100, b"after"):
            dead.append(LogKind.TURN, ANN, MONDAY, words)
    [path] = (tmp_path / "dead").glob("*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    why = list[str]()
    async with IntakeLog(tmp_path / "alive", tells=why.append) as log:
        for piece in (path.with_suffix(".key"), path):
            piece.rename(tmp_path / "alive" / piece.name)
        with capture_logs(), no_room(100):
            await log.tend()
        assert (log.take_left(LogKind.TURN), why) == ([], [])
        await log.tend()
        assert [log.read(record) for record in log.take_left(LogKind.TURN)] == [b"before", b"after"]
        assert why == ["damaged"]
        [kept] = (tmp_path / "alive").glob("*.damaged")
        assert kept.stat().st_size > 700


async def test_a_directory_that_cannot_be_made_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("in the way")
    async with IntakeLog(tmp_path / "a" / "intake") as log:
        assert log.append(LogKind.TURN, ANN, MONDAY, WORDS) is None
        (tmp_path / "a").unlink()
        await log.tend()
        assert log.append(LogKind.TURN, ANN, MONDAY, WORDS) is not None


async def test_what_a_dead_process_left_is_taken_up_by_a_running_one(tmp_path: Path) -> None:
    await a_segment(tmp_path / "dead")
    async with IntakeLog(tmp_path / "alive") as log:
        assert log.take_left(LogKind.TURN) == []
        assert adopt(tmp_path / "dead", tmp_path / "alive") == 5
        await log.tend()
        assert [log.read(record) for record in log.take_left(LogKind.TURN)] == [b"turn %d" % n for n in range(5)]
    assert list((tmp_path / "dead").iterdir()) == []


async def test_a_disk_that_fills_up_while_turns_are_taken_over_loses_none(tmp_path: Path) -> None:
    async with IntakeLog(tmp_path / "dead") as dead:
        for _ in range(9):
            dead.append(LogKind.TURN, ANN, MONDAY, WORDS * 100)
    for room in (20, 5_000):  # in the middle of a key, and of a segment
        with no_room(room), pytest.raises(OSError, match="File too large"):
            adopt(tmp_path / "dead", tmp_path / "alive")
    assert adopt(tmp_path / "dead", tmp_path / "alive") == 9
    assert await left(tmp_path / "alive") == [WORDS * 100] * 9
    assert list((tmp_path / "dead").iterdir()) == []


async def test_the_cost_of_a_turn_does_not_grow_with_how_many_wait(tmp_path: Path) -> None:
    """Counted in bytes written and records touched, by the operations themselves."""

    async def bytes_written(waiting: int) -> int:
        async with IntakeLog(tmp_path / str(waiting)) as log:
            for _ in range(waiting):
                log.append(LogKind.TURN, ANN, MONDAY, WORDS)
            (segment,) = (tmp_path / str(waiting)).glob("*.log")
            before = segment.stat().st_size
            for _ in range(100):
                record = log.append(LogKind.TURN, ANN, MONDAY, WORDS)
                assert record is not None
                log.discard(record)
            await log.tend()
            return segment.stat().st_size - before

    few, many = await asyncio.gather(bytes_written(250), bytes_written(1000))
    assert few == many
