"""One segment of the intake log: a file of sealed records, `NAME.log`, beside its key, `NAME.key`.

A segment begins with a magic number and its version. Each record has its length, a CRC-32, its kind and its id,
which is also the nonce that its payload is sealed with (AES-256-GCM), and the payload: tenant, user and time in a
line of JSON, then the body. A record of kind DONE says that another was discarded.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from pathlib import Path
from zlib import crc32

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from memory_extproc.errors import GiveUpError
from memory_extproc.model import Owner

_MAGIC, _VERSION = b"mexi", 1
_HEAD = len(_MAGIC) + 1
_FRAME = struct.Struct(">IIB12s")  # bytes of the payload, CRC-32 of all that follows it, kind, id
_CHECKED = 8  # where in a frame that begins
_ID_BYTES = 12


class Kind(IntEnum):
    """What a record is. The numbers are in the files."""

    DONE = 0
    TURN = 1
    MARK = 2


class Aside(StrEnum):
    """Why a piece of a segment was moved aside. Also the metric's label and the file's suffix."""

    CUT = "cut"
    DAMAGED = "damaged"
    NEWER = "newer_version"
    KEY_GONE = "key_gone"


class UnreadableError(Exception):
    """Nothing of a segment can be read."""

    def __init__(self, why: Aside) -> None:
        super().__init__(why.value)
        self.why = why


@dataclass(eq=False, slots=True)
class Record:
    """Where one record lies. *number* orders the records of a process: older ones first."""

    id: bytes
    kind: Kind
    owner: Owner
    at: datetime  # when the exchange was asked
    segment: Segment
    offset: int  # of the payload, here and below
    size: int
    number: int = 0

    @property
    def is_live(self) -> bool:
        """Whether it was not discarded."""
        return self.id in self.segment.live

    @property
    def plain(self) -> bytes:
        """The payload. GiveUpError where it was damaged since."""
        try:
            return self.segment.unseal(self.kind, self.id, os.pread(self.segment.handle, self.size, self.offset))
        except (OSError, InvalidTag):
            raise GiveUpError("a record of the intake log that was damaged") from None


@dataclass(eq=False, slots=True)
class Segment:
    path: Path
    handle: int
    cipher: AESGCM
    size: int = _HEAD
    live: dict[bytes, Record] = field(default_factory=dict)
    spent_at: float | None = None  # when the first of its records was discarded

    @property
    def stands(self) -> bool:
        """Whether the file is still at its path: nothing written to a deleted file outlives the process."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self.handle))
        except OSError:
            return False

    def seal(self, kind: Kind, plain: bytes, id_: bytes = b"") -> tuple[bytes, bytes]:
        """The id, a new one unless it is given, and the whole frame."""
        id_ = id_ or os.urandom(_ID_BYTES)
        payload = self.cipher.encrypt(id_, plain, bytes([kind]) + id_) if kind is not Kind.DONE else b""
        checked = struct.pack(">B12s", kind, id_) + payload
        return id_, struct.pack(">II", len(payload), crc32(checked)) + checked

    def unseal(self, kind: Kind, id_: bytes, payload: bytes) -> bytes:
        return self.cipher.decrypt(id_, payload, bytes([kind]) + id_)

    def write(self, frame: bytes) -> tuple[int, int] | None:
        """Offset and size of the payload; None: it could not be written, and the next one is written over it."""
        try:
            if os.pwrite(self.handle, frame, self.size) < len(frame):
                return None
        except OSError:
            return None
        self.size += len(frame)
        return self.size - len(frame) + _FRAME.size, len(frame) - _FRAME.size

    def delete(self) -> None:
        """The key is overwritten first: without it the rest cannot be read, wherever copies of it remain."""
        key = self.path.with_suffix(".key")
        with suppress(OSError):
            if key.exists():
                write_file(key, bytes(key.stat().st_size))
            for path in (key, self.path):
                path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        os.close(self.handle)
        self.handle = -1  # the number may soon be another file's


def begin_segment(path: Path, secret: bytes) -> Segment:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.pwrite(handle, _MAGIC + bytes([_VERSION]), 0)
    return Segment(path, handle, AESGCM(secret))


def packed(owner: Owner, at: datetime, body: bytes) -> bytes:
    """A payload before it is sealed."""
    return json.dumps([owner.tenant, owner.user, at.timestamp()]).encode() + b"\n" + body


def read_segment(path: Path, secret: bytes) -> tuple[Segment, list[Record], dict[Aside, bytes]]:
    """A segment, its records that were not discarded, and the pieces that cannot be read. UnreadableError where
    that is all of it."""
    data = path.read_bytes()
    if data[:_HEAD] != _MAGIC + bytes([_VERSION]):
        newer = data[: len(_MAGIC)] == _MAGIC and len(data) >= _HEAD
        raise UnreadableError(Aside.NEWER if newer else Aside.CUT if len(data) < _HEAD else Aside.DAMAGED)
    segment = Segment(path, os.open(path, os.O_RDWR), AESGCM(secret), len(data))
    frames, damaged = list(_frames(data)), dict[Aside, bytes]()
    done = {id_ for kind, id_, _, _ in frames if kind == Kind.DONE}
    records = []
    for kind, id_, start, end in frames:
        if kind == Kind.DONE or id_ in done:
            continue
        offset = start + _FRAME.size
        try:
            known = Kind(int(kind))  # why it cannot be read is no number
            payload = segment.unseal(known, id_, data[offset:end])
            tenant, user, at = json.loads(payload.partition(b"\n")[0])
        except (InvalidTag, ValueError):
            why = kind if isinstance(kind, Aside) else Aside.DAMAGED
            damaged[why] = damaged.get(why, b"") + data[start:end]
        else:
            owner, asked = Owner(tenant, user), datetime.fromtimestamp(at, UTC)
            records.append(Record(id_, known, owner, asked, segment, offset, end - offset))
    return segment, records, damaged


def _frames(data: bytes) -> Iterator[tuple[int | Aside, bytes, int, int]]:
    """Kind, id, beginning and end of each record; in place of the kind why it cannot be read."""
    at = _HEAD
    while at < len(data):
        end = _end(data, at)
        if end is None:
            yield Aside.CUT, b"", at, len(data)
            return
        _, check, kind, id_ = _FRAME.unpack_from(data, at)
        if crc32(data[at + _CHECKED : end]) == check:
            yield kind, id_, at, end
        else:  # where its length is right the next record is found behind it
            end = end if _end(data, end) is not None else len(data)
            yield Aside.DAMAGED, b"", at, end
        at = end


def _end(data: bytes, at: int) -> int | None:
    if at + _FRAME.size > len(data):
        return None
    end = at + _FRAME.size + int.from_bytes(data[at : at + 4], "big")
    return end if end <= len(data) else None


def write_file(path: Path, data: bytes, *, fsync: bool = False) -> None:
    """Readable by its owner alone."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(handle, data)
        if fsync:
            os.fsync(handle)
    finally:
        os.close(handle)


def count_waiting(directory: Path) -> int:
    """How many turns wait in the log in *directory*, of a process that may be running. Needs no key."""
    waiting: set[bytes] = set()
    for path in directory.glob("*.log"):
        try:
            frames = list(_frames(path.read_bytes()))
        except FileNotFoundError:
            continue  # replaced in this moment
        turns = {id_ for kind, id_, _, _ in frames if kind == Kind.TURN}
        waiting |= turns - {id_ for kind, id_, _, _ in frames if kind == Kind.DONE}
    return len(waiting)


def adopt(source: Path, target: Path) -> int:
    """Moves the segments in *source*, which no process uses, to *target*, where a running process takes them up
    within a second; says how many turns wait in them. Can be broken off and run again: keys go first."""
    waiting = count_waiting(source)
    for path in source.glob("*.log"):
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        pieces = [piece for piece in (path.with_suffix(".key"), path) if piece.exists()]
        for piece in pieces:
            part = target / f"{piece.name}.part"
            write_file(part, piece.read_bytes(), fsync=True)
            part.rename(target / piece.name)
        for piece in reversed(pieces):
            piece.unlink()
    return waiting
