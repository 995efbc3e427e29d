"""A file of all rows: it is whole, or it is refused."""

from __future__ import annotations

import gzip
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.store.archive import Head, read_head, read_rows, writing
from memory_extproc.store.milvus.rows import SCALARS, VECTOR
from tests.support.older_store import ROW

HEAD = Head(model="m", dimension=3)
VECTORS = np.array([[1, 0, 0], [0.1, -0.2, 1e-30], [0, 0, 1]], dtype=np.float32)
ROWS = [{**ROW, "id": f"m{number}", VECTOR: vector} for number, vector in enumerate(VECTORS)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rows.gz"
    with writing(path, HEAD) as file:
        file.write(ROWS[:2])
        file.write(ROWS[2:])
    return path


def lines(path: Path) -> list[bytes]:
    return gzip.decompress(path.read_bytes()).splitlines(keepends=True)


def test_rows_come_back_as_they_went_in_to_the_last_bit(path: Path) -> None:
    assert read_head(path) == (HEAD, 3)
    back = list(read_rows(path))
    assert [{name: row[name] for name in SCALARS} for row in back] == [
        {name: row[name] for name in SCALARS} for row in ROWS
    ]
    assert np.array_equal(np.array([row[VECTOR] for row in back]), VECTORS)
    assert back[0][VECTOR].dtype == np.float32


def test_a_file_is_its_owners_alone_and_the_same_rows_are_the_same_bytes(path: Path, tmp_path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with writing(tmp_path / "again.gz", HEAD) as file:
        file.write(ROWS)
    assert lines(tmp_path / "again.gz") == lines(path)


def test_no_rows_are_a_file_too(tmp_path: Path) -> None:
    with writing(tmp_path / "none.gz", HEAD) as file:
        assert file.rows == 0
    assert read_head(tmp_path / "none.gz") == (HEAD, 0)
    assert list(read_rows(tmp_path / "none.gz")) == []


def break_off(path: Path) -> None:
    with writing(path, HEAD) as file:
        file.write(ROWS)
        raise TransientError("the store went away")


def test_what_breaks_off_leaves_the_former_file_as_it_was(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(TransientError, match="the store went away"):
        break_off(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(TransientError, match=r"rows\.gz cannot be written: No such"):
        break_off(tmp_path / "nowhere" / "rows.gz")


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda all_: all_[:-1], "no backup, or broke off"),
        (lambda all_: [all_[0], *all_[2:]], "says that it holds 3 rows, and holds 2"),
        (lambda all_: all_[:0], "no backup"),
        (lambda all_: all_[-1:], "no backup"),
        (lambda all_: [all_[0].replace(b':1,"model', b':2,"model'), *all_[1:]], "version 2; this program reads 1"),
        (lambda all_: [all_[0].replace(b"memory-", b"another-"), *all_[1:]], "'another-extproc store'"),
    ],
    ids=["without an end", "short", "empty", "an end alone", "newer", "another's"],
)
def test_a_file_that_is_not_whole_or_not_ours_is_refused(
    path: Path, harm: Callable[[Sequence[bytes]], Sequence[bytes]], why: str
) -> None:
    path.write_bytes(gzip.compress(b"".join(harm(lines(path)))))
    with pytest.raises(PermanentError, match=why):
        read_head(path)


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_file_that_broke_off_in_the_middle_is_refused(path: Path, cut: int) -> None:
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(PermanentError, match="cannot be read"):
        read_head(path)


@given(at=st.integers(min_value=10), other=st.integers(min_value=1, max_value=255))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_changed_byte_is_found_out(path: Path, at: int, other: int) -> None:
    """But for the ten of gzip's own head, which hold nothing of ours."""
    whole = path.read_bytes()
    harmed = bytearray(whole)
    harmed[10 + at % (len(whole) - 10)] ^= other
    path.write_bytes(harmed)
    try:
        read_head(path)
        # Bits behind the end of the compressed stream, up to the next whole byte, hold nothing either.
        assert gzip.decompress(harmed) == gzip.decompress(whole)
    except PermanentError:
        pass
    finally:
        path.write_bytes(whole)
