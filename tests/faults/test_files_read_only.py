"""Files that can only be read for a while: a file system that turned read-only, or another owner of the files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from memory_extproc.coordination.sqlite import SqliteCoordination
from memory_extproc.errors import TransientError
from tests.support.builders import ANN, MONDAY

_NOBODY = 65534


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may write to anything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


class Disk:
    """A place for files that are there already, as a process that has them open left them."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def take(self, directory: Path) -> None:
        for file in directory.glob("*.db*"):
            shutil.copy(file, self.place)

    def writable(self, *, yes: bool) -> None:
        for file in self.place.iterdir():
            file.chmod(0o666 if yes else 0o444)
        self.place.chmod(0o777 if yes else 0o555)


@pytest.fixture
def disk() -> Iterator[Disk]:
    place = Path(tempfile.mkdtemp(prefix="memory-extproc-disk-"))  # those of pytest are closed to others
    made = Disk(place)
    try:
        yield made
    finally:
        made.writable(yes=True)
        shutil.rmtree(place)


async def test_what_could_only_be_read_for_a_while_is_written_again_by_itself_though_it_was_read_all_the_time(
    disk: Disk, tmp_path: Path
) -> None:
    async with SqliteCoordination(tmp_path / "coordination.db", now=lambda: MONDAY) as before:
        await before.put_record("response", ANN, "key", b"one", timedelta(hours=1))
        disk.take(tmp_path)
    disk.writable(yes=False)
    async with SqliteCoordination(disk.place / "coordination.db", now=lambda: MONDAY) as records:
        with without_privileges():
            for _ in range(2):
                assert await records.get_record("response", ANN, "key") == b"one"
                with pytest.raises(TransientError, match=r"coordination\.db is read-only"):
                    await records.put_record("response", ANN, "key", b"two", timedelta(hours=1))
            assert await records.get_record("response", ANN, "key") == b"one"
        disk.writable(yes=True)
        with without_privileges():
            await records.put_record("response", ANN, "key", b"two", timedelta(hours=1))
            assert await records.get_record("response", ANN, "key") == b"two"
            await records.bump(ANN)
