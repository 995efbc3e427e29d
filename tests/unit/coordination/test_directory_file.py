"""A data directory's record of its fleet, over files as a crash, a hand or another version leaves them."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory_extproc.coordination.recovery import FILE, DirectoryFile


def test_a_directory_keeps_its_name_and_what_it_saw(tmp_path: Path) -> None:
    first = DirectoryFile(tmp_path)
    assert not first.unsure
    first.update(generation="g1", sequence=7)
    again = DirectoryFile(tmp_path)
    assert again.now == first.now
    assert (again.now.generation, again.now.sequence, again.unsure) == ("g1", 7, False)
    assert DirectoryFile(tmp_path / "other").now.name != first.now.name


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "damaged"),
        (b'{"name": "a", "version": 1, "gener', "damaged"),
        (b'{"name": "a", "version": 1}{"name": "a", "version": 1}', "damaged"),
        (b"[1]", "damaged"),
        (b'{"name": 1, "version": 1}', "damaged"),
        (b'{"name": "a", "version": 2, "more": 1}', "newer"),
    ],
)
def test_a_file_that_cannot_be_read_is_kept_aside_and_the_directory_is_unsure(
    tmp_path: Path, body: bytes, why: str
) -> None:
    (tmp_path / FILE).write_bytes(body)
    made = DirectoryFile(tmp_path)
    assert made.unsure
    assert made.now.generation == ""
    (aside,) = tmp_path.glob(f"{FILE}.{why}-*")
    assert aside.read_bytes() == body
    assert DirectoryFile(tmp_path).now == made.now


def test_what_a_newer_version_adds_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"name": "a", "version": 1, "more": {"x": 1}}')
    assert DirectoryFile(tmp_path).now.name == "a"


def test_a_disk_that_takes_nothing_keeps_nobody_from_starting(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no directory")
    assert DirectoryFile(tmp_path / "data").now.name
