"""A disk that is really full, a small tmpfs in a mount namespace, does not refuse forgets."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memory_extproc.disk_reserve import RESERVED, DiskReserve
from tests.faults.full_disk_process import FORGETS

_MOUNTED = 'mount -t tmpfs -o size=16m none "$1" && exec "$2" -m tests.faults.full_disk_process "$1"'
_NAMESPACE = ("unshare", "--map-root-user", "--mount", "sh", "-c")


def _namespaces(directory: Path) -> bool:
    mount = 'mount -t tmpfs -o size=1m none "$1"'
    try:
        return (
            subprocess.run([*_NAMESPACE, mount, "sh", directory], check=False, capture_output=True).returncode == 0
        )
    except FileNotFoundError:
        return False


def test_forgets_are_written_on_a_full_disk(tmp_path: Path) -> None:
    if not _namespaces(tmp_path):
        pytest.skip("no mount namespaces for this user")
    done = subprocess.run(
        [*_NAMESPACE, _MOUNTED, "sh", tmp_path, sys.executable], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(FORGETS), str(FORGETS)]


def test_a_reserve_is_released_piece_by_piece_and_filled_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    reserve = DiskReserve(path, 600_000)
    held = tmp_path / f"ledger.db{RESERVED}"
    reserve.fill()
    assert (held.stat().st_size, held.stat().st_blocks * 512 >= 600_000) == (600_000, True)
    released = 0
    while reserve.release():
        released += 1
    assert (released, held.stat().st_size) == (10, 0)
    reserve.fill()
    assert held.stat().st_size == 600_000


def test_a_disk_without_room_has_no_reserve_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    reserve = DiskReserve(tmp_path / "ledger.db", 600_000)
    reserve.fill()
    assert not reserve.release()
