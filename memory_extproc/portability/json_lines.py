"""Memories as JSON Lines: a head that names the format, then one memory a line. The same memories are the same
bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from memory_extproc.portability.record import Record, RefusedError, read_record

FORMAT = "memory-extproc"
VERSION = 1
TURN = "waiting_turn"  # accepted and not learned yet
CONSENT = "consent"
LINE_BYTES = 1024 * 1024  # a longer line is no memory of ours

_encoder = msgspec.json.Encoder(order="deterministic")


@dataclass(frozen=True, slots=True)
class Refused:
    """A place in a file that holds no memory, and why."""

    place: str
    reason: str


Read = Record | Refused


def head() -> bytes:
    return _encoder.encode({"format": FORMAT, "version": VERSION}) + b"\n"


def line_of(record: Record) -> bytes:
    return _encoder.encode(record) + b"\n"


def beside(kind: str, fields: dict[str, Any]) -> bytes:
    """What is known of a user and is no memory; an import passes over it."""
    return _encoder.encode({kind: fields}) + b"\n"


def read_lines(lines: Iterable[bytes]) -> Iterator[Read]:
    """Each memory, or where and why there is none; empty lines, heads and what else is known of a user are passed
    over. RefusedError for a file of a newer version, because half of it would be guessed."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            plain = _object(line)
            if "format" in plain:
                _check_head(plain)
                continue
        except RefusedError as error:
            if "format" in str(error):
                raise
            yield Refused(f"line {number}", str(error))
            continue
        if plain.keys() in ({TURN}, {CONSENT}):
            continue
        try:
            yield read_record(plain)
        except RefusedError as error:
            yield Refused(f"line {number}", str(error))


def _object(line: bytes) -> dict[str, Any]:
    if len(line) > LINE_BYTES:
        raise RefusedError(f"longer than {LINE_BYTES} bytes")
    try:
        plain = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RefusedError("no JSON") from None
    if not isinstance(plain, dict):
        raise RefusedError("expected a JSON object")
    return plain


def _check_head(plain: dict[str, Any]) -> None:
    if plain.get("format") != FORMAT or plain.get("version") != VERSION:
        raise RefusedError(f"format: expected {FORMAT} version {VERSION}")
