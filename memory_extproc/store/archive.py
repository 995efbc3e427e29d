"""All rows of a store in a file: gzipped JSON lines, as stored, in order of arrival.

The first line describes the file, the last holds the number of rows; without it the file is incomplete."""

from __future__ import annotations

import base64
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.store.milvus.rows import SCALARS, VECTOR

FORMAT = "memory-extproc store"
VERSION = 1
Row = Mapping[str, Any]


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Properties that a store needs to import the rows."""

    format: str = FORMAT
    version: int = VERSION
    model: str  # fingerprint of the model of the vectors
    dimension: int


class _Foot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rows: int


class Writer:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.rows = 0

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            vector = np.asarray(row[VECTOR], dtype="<f4").tobytes()
            plain = {**{name: row[name] for name in SCALARS}, VECTOR: base64.b64encode(vector).decode()}
            self.line(plain)
        self.rows += len(rows)

    def line(self, plain: object) -> None:
        self._file.write(msgspec.json.encode(plain) + b"\n")


@contextmanager
def writing(path: Path, head: Head) -> Iterator[Writer]:
    """The file is there, readable by its owner alone, once all was written; else nothing is. TransientError where
    it cannot be written."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        raw = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(raw, "wb") as file:
            with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, filename="") as packed:
                writer = Writer(packed)  # type: ignore[arg-type]  # it writes bytes, and says it is no IO
                writer.line(head)
                yield writer
                writer.line(_Foot(writer.rows))
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except OSError as error:
        raise TransientError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def read_head(path: Path) -> tuple[Head, int]:
    """With how many rows there are. Reads the whole file: PermanentError where it is damaged or broke off."""
    rows, last = -1, b""
    first = b""
    for line in _lines(path):
        first, last, rows = first or line, line, rows + 1
    head, foot = _decode_line(path, first, Head), _decode_line(path, last, _Foot)
    if head.format != FORMAT or head.version > VERSION:
        raise PermanentError(f"{path} is a {head.format!r} of version {head.version}; this program reads {VERSION}")
    if foot.rows != rows - 1:
        raise PermanentError(f"{path} says that it holds {foot.rows} rows, and holds {rows - 1}")
    return head, foot.rows


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of a file that read_head found complete."""
    lines = iter(_lines(path))
    next(lines)
    for line in lines:
        row: dict[str, Any] = json.loads(line)
        if VECTOR in row:  # the last line has none
            row[VECTOR] = np.frombuffer(base64.b64decode(row[VECTOR]), dtype="<f4").astype(np.float32)
            yield row


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path, "rb") as file:
            yield from file
    except (OSError, EOFError, zlib.error) as error:
        raise PermanentError(f"{path} cannot be read: {type(error).__name__}") from error


def _decode_line(path: Path, line: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError:
        raise PermanentError(f"{path} is no backup, or broke off") from None
