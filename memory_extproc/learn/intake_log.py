"""The intake log: a write-ahead log of accepted exchanges that are not in the journal yet.

An exchange is written here with one write() before its answer's last piece goes on, so that a process that is
killed from then on loses nothing; the journal, in SQLite or Redis, is filled behind it. An exchange whose consent
or incognito state cannot be known waits here until it can, and so do incognito marks that are not shared yet.

The log is a directory of segments, `NAME.log`, each beside its key, `NAME.key`. Records are sealed with AES-GCM,
because an exchange is logged before it is screened: its owner may not allow it, and it may hold secrets. A
discarded record becomes unreadable when its segment and its key are deleted, some `IntakeLogLimits.linger` later;
records that still wait in that segment are copied to the newest one before. A process never appends to a segment
that another process began.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Self
from zlib import crc32

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from memory_extproc.errors import GiveUpError, MemoryExtprocError, TryLaterError
from memory_extproc.model import Owner
from memory_extproc.observe.log import logger
from memory_extproc.ports import WrapsKeys

log = logger(__name__)

INTAKE = "intake"  # the directory, in the data directory
_MAGIC, _VERSION = b"mexi", 1
_HEAD = len(_MAGIC) + 1
_FRAME = struct.Struct(">IIB12s")  # bytes of the payload, CRC-32 of all that follows it, kind, id
_CHECKED = 8  # where in a frame that begins
_KEY_BYTES = 32
_PLAIN, _WRAPPED = b"\x01", b"\x02"  # how a key file begins


class Kind(IntEnum):
    """What a record is. The numbers are in the files."""

    DONE = 0  # the record of this id was discarded
    TURN = 1
    MARK = 2


class Aside(StrEnum):
    """Why a piece of a segment was moved aside. Also the metric's label and the file's suffix."""

    CUT = "cut"
    DAMAGED = "damaged"
    NEWER = "newer_version"
    KEY_GONE = "key_gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeLogLimits:
    records: int = 100_000
    bytes: int = 256 << 20  # of records that wait
    segment: int = 8 << 20  # bytes of a segment from which on another is begun
    linger: float = 30.0  # seconds that a discarded record may stay readable before its segment is replaced


@dataclass(eq=False, slots=True)
class Record:
    """Where one record lies. *number* orders the records of a process: older ones first."""

    id: bytes
    kind: Kind
    owner: Owner
    at: datetime  # when the exchange was asked
    number: int
    segment: _Segment
    offset: int  # of the payload, here and below
    size: int


@dataclass(eq=False, slots=True)
class _Segment:
    path: Path
    handle: int
    cipher: AESGCM
    size: int
    live: dict[bytes, Record] = field(default_factory=dict)
    spent_at: float | None = None  # when the first of its records was discarded
    undone: list[bytes] = field(default_factory=list)  # ids whose DONE could not be written yet

    @property
    def stands(self) -> bool:
        """Whether the file is still at its path: nothing written to a deleted file outlives the process."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self.handle))
        except OSError:
            return False

    def write(self, kind: Kind, id_: bytes, payload: bytes) -> bool:
        """All of one record or nothing of it."""
        checked = struct.pack(">B12s", kind, id_) + payload
        frame = struct.pack(">II", len(payload), crc32(checked)) + checked
        try:
            written = os.pwrite(self.handle, frame, self.size)
        except OSError:
            return False
        if written < len(frame):
            return False  # the next record is written over it
        self.size += written
        return True

    def delete(self) -> None:
        """The key is overwritten first: without it the rest cannot be read, wherever copies of it remain."""
        key = self.path.with_suffix(".key")
        try:
            with key.open("r+b") as file:
                file.write(bytes(key.stat().st_size))
        except OSError:
            pass
        for path in (key, self.path):
            path.unlink(missing_ok=True)
        os.close(self.handle)


class IntakeLog:
    """Use within `async with`. One event loop owns it; appending, reading and discarding are a few microseconds of
    system calls on it. A directory that cannot be written makes `append` give None, and is tried again."""

    def __init__(
        self,
        directory: Path,
        limits: IntakeLogLimits = IntakeLogLimits(),
        *,
        wraps: WrapsKeys | None = None,  # None: keys of segments rest as they are
        fsync: bool = False,
        tells: Callable[[str], None] = lambda _why: None,  # told why something was moved aside
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory, self._limits, self._wraps = directory, limits, wraps
        self._fsync, self._tells, self._clock = fsync, tells, clock
        self._segments: dict[str, _Segment] = {}  # by file name, the oldest first
        self._active: _Segment | None = None
        self._owned: dict[Owner, dict[bytes, Record]] = {}  # turns only
        self._ids: set[bytes] = set()
        self._left: list[Record] = []  # found in segments of others, not taken yet
        self._bytes = self._numbers = 0
        self._writable = True

    async def __aenter__(self) -> Self:
        await self.tend()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.tend()
        for segment in self._segments.values():
            if segment.live:
                os.close(segment.handle)
            else:
                segment.delete()
        self._segments.clear()
        self._active = None

    # --- records -------------------------------------------------------------------------------------
    @property
    def is_full(self) -> bool:
        return len(self._ids) >= self._limits.records or self._bytes >= self._limits.bytes

    def append(self, kind: Kind, owner: Owner, at: datetime, body: bytes) -> Record | None:
        """Written when it returns, which outlives the process. None: the log is full or cannot be written."""
        if self._active is None or self.is_full:
            return None
        head = json.dumps([owner.tenant, owner.user, at.timestamp()]).encode()
        record = self._write(self._active, kind, os.urandom(12), head + b"\n" + body, owner, at)
        if self._writable is (record is None):
            self._writable = record is not None
            if record is None:
                log.error("intake.not_written")
        return record

    def read(self, record: Record) -> bytes:
        """The body. GiveUpError where it was damaged since."""
        sealed = os.pread(record.segment.handle, record.size, record.offset)
        return _opened(record.segment.cipher, record, sealed)[2]

    def discard(self, record: Record) -> None:
        """Idempotent. The record is not there after a restart, and soon nobody can read it."""
        segment = record.segment
        if segment.live.pop(record.id, None) is None:
            return
        self._forget(record)
        segment.spent_at = segment.spent_at if segment.spent_at is not None else self._clock()
        if segment is not self._active and not segment.live:
            self._drop(segment)
        elif not segment.write(Kind.DONE, record.id, b""):
            segment.undone.append(record.id)

    def take_left(self, kind: Kind) -> list[Record]:
        """Records that another process left, the oldest first; each is given once."""
        taken = [record for record in self._left if record.kind is kind]
        self._left = [record for record in self._left if record.kind is not kind]
        return [record for record in taken if record.id in record.segment.live]

    def of_owner(self, owner: Owner) -> Sequence[Record]:
        """Turns of *owner* that wait."""
        return list(self._owned.get(owner, {}).values())

    def oldest(self, owner: Owner | None = None) -> datetime | None:
        """When the oldest turn that waits was asked: *owner*'s, or anybody's."""
        waiting = [self._owned.get(owner, {})] if owner is not None else self._owned.values()
        return min((record.at for records in waiting for record in records.values()), default=None)

    async def sync(self) -> None:
        """With fsync: all that was written survives power loss when it returns."""
        if self._fsync:
            for segment in [segment for segment in self._segments.values() if segment.live]:
                await asyncio.to_thread(os.fdatasync, segment.handle)

    # --- segments ------------------------------------------------------------------------------------
    async def tend(self) -> None:
        """To be called every second or so: takes up segments that were put into the directory, and replaces those
        that hold discarded records, are long, or are no longer at their path."""
        await self._take_up()
        for segment in self._segments.values():
            segment.undone = [id_ for id_ in segment.undone if not segment.write(Kind.DONE, id_, b"")]
        active = self._active
        if active is None or self._is_due(active) or active.size >= self._limits.segment:
            self._active = await self._begin() or active
        for segment in list(self._segments.values()):
            if segment is not self._active and self._active is not None and self._is_due(segment):
                await self._copy_forward(segment)

    def _is_due(self, segment: _Segment) -> bool:
        lingers = segment.spent_at is not None and self._clock() - segment.spent_at >= self._limits.linger
        return lingers or not segment.stands or (segment is not self._active and not segment.live)

    async def _begin(self) -> _Segment | None:
        """None where the directory cannot be written, or no key wrapped, for now."""
        name = f"{time.time_ns():020d}-{os.urandom(4).hex()}"
        path, secret = self._directory / f"{name}.log", AESGCM.generate_key(8 * _KEY_BYTES)
        try:
            kept = _PLAIN + secret
            if self._wraps is not None:
                kept = _WRAPPED + await self._wraps.wrap(secret, _context(path))
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_file(path.with_suffix(".key"), kept, fsync=self._fsync)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.pwrite(handle, _MAGIC + bytes([_VERSION]), 0)
            if self._fsync:
                await asyncio.to_thread(_sync_directory, self._directory)
        except (OSError, MemoryExtprocError) as error:
            if self._writable:
                log.error("intake.not_written", kind=type(error).__name__)  # noqa: TRY400 - it names a path
            self._writable = False
            return None
        segment = self._segments[path.name] = _Segment(path, handle, AESGCM(secret), _HEAD)
        return segment

    async def _copy_forward(self, segment: _Segment) -> None:
        for old in list(segment.live.values()):
            if old.id not in segment.live or self._active is None:
                continue  # discarded while others were copied
            try:
                plain = _plain(segment.cipher, old, os.pread(segment.handle, old.size, old.offset))
            except (OSError, GiveUpError):
                self.discard(old)
                continue
            offset = self._active.size + _FRAME.size
            sealed = self._active.cipher.encrypt(old.id, plain, _bound(old.kind, old.id))
            if not self._active.write(old.kind, old.id, sealed):
                return
            # The same object, which whoever waits with it holds; a crash before the old one is gone leaves two of
            # one id, and the first that is read counts.
            segment.live.pop(old.id)
            old.segment, old.offset, old.size = self._active, offset, len(sealed)
            self._active.live[old.id] = old
            segment.write(Kind.DONE, old.id, b"")
            await asyncio.sleep(0)
        if not segment.live and segment.path.name in self._segments:
            self._drop(segment)

    def _drop(self, segment: _Segment) -> None:
        self._segments.pop(segment.path.name, None)
        segment.delete()

    def _write(
        self, segment: _Segment, kind: Kind, id_: bytes, plain: bytes, owner: Owner, at: datetime
    ) -> Record | None:
        offset = segment.size + _FRAME.size
        sealed = segment.cipher.encrypt(id_, plain, _bound(kind, id_))
        if not segment.write(kind, id_, sealed):
            return None
        return self._know(Record(id_, kind, owner, at, 0, segment, offset, len(sealed)))

    def _know(self, record: Record) -> Record:
        self._numbers += 1
        record.number = self._numbers
        record.segment.live[record.id] = record
        self._ids.add(record.id)
        self._bytes += record.size
        if record.kind is Kind.TURN:
            self._owned.setdefault(record.owner, {})[record.id] = record
        return record

    def _forget(self, record: Record) -> None:
        self._ids.discard(record.id)
        self._bytes -= record.size
        owned = self._owned.get(record.owner)
        if owned is not None:
            owned.pop(record.id, None)
            if not owned:
                del self._owned[record.owner]

    # --- what other processes left ---------------------------------------------------------------------
    async def _take_up(self) -> None:
        try:
            there = sorted(path for path in self._directory.glob("*.log") if path.name not in self._segments)
        except OSError:
            return
        for path in there:
            try:
                secret = await self._secret(path)
                segment, records, damaged = await asyncio.to_thread(_read, path, secret)
            except TryLaterError as error:  # its master key is not at hand: it is asked for again
                log.warning("intake.not_read", kind=type(error).__name__)
            except _UnreadableError as error:
                self._move_aside(path, error.why)
            except OSError as error:
                log.warning("intake.not_read", kind=type(error).__name__)
            else:
                self._segments[path.name] = segment
                segment.spent_at = self._clock()  # it may hold discarded records, too
                for record in records:
                    if record.id not in self._ids:
                        self._left.append(self._know(record))
                if damaged:
                    self._keep_aside(path, damaged)

    async def _secret(self, path: Path) -> bytes:
        try:
            kept = path.with_suffix(".key").read_bytes()
        except FileNotFoundError:
            raise _UnreadableError(Aside.KEY_GONE) from None
        secret = kept[1:]
        if kept[:1] == _WRAPPED and self._wraps is not None:
            try:
                secret = await self._wraps.unwrap(secret, _context(path))
            except GiveUpError:
                raise _UnreadableError(Aside.KEY_GONE) from None
        if len(secret) != _KEY_BYTES:
            raise _UnreadableError(Aside.KEY_GONE)
        return secret

    def _move_aside(self, path: Path, why: Aside) -> None:
        try:
            path.rename(path.with_suffix(f".{why.value}"))
        except OSError:
            return
        self._told_aside(path, why)

    def _keep_aside(self, path: Path, damaged: Sequence[tuple[Aside, bytes]]) -> None:
        """The pieces that could not be read, with their key under a name of its own."""
        try:
            for why in {why for why, _ in damaged}:
                pieces = b"".join(piece for of, piece in damaged if of is why)
                _write_file(path.with_suffix(f".{why.value}"), pieces)
                _write_file(path.with_suffix(f".{why.value}.key"), path.with_suffix(".key").read_bytes())
                self._told_aside(path, why)
        except OSError:
            return  # the segment stays as it is, and is read as far as it is whole the next time

    def _told_aside(self, path: Path, why: Aside) -> None:
        log.error("intake.moved_aside", file=path.name, why=why.value)
        self._tells(why.value)


class _UnreadableError(Exception):
    def __init__(self, why: Aside) -> None:
        super().__init__(why.value)
        self.why = why


def count_waiting(directory: Path) -> int:
    """How many turns wait in the log in *directory*, of a process that may be running. Needs no key."""
    waiting: set[bytes] = set()
    for path in sorted(directory.glob("*.log")):
        frames, _ = _frames(path.read_bytes())
        turns = {id_ for kind, id_, _, _ in frames if kind == Kind.TURN}
        waiting |= turns - {id_ for kind, id_, _, _ in frames if kind == Kind.DONE}
    return len(waiting)


def adopt(source: Path, target: Path) -> int:
    """Moves the segments in *source*, which no process uses, to *target*, where a running process takes them up
    within a second; says how many turns wait in them. Can be broken off and run again: keys go first."""
    waiting = count_waiting(source)
    for path in sorted(source.glob("*.log")):
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        for piece in (path.with_suffix(".key"), path):
            if piece.exists():
                part = target / f"{piece.name}.part"
                _write_file(part, piece.read_bytes(), fsync=True)
                part.rename(target / piece.name)
        for piece in (path, path.with_suffix(".key")):
            piece.unlink(missing_ok=True)
    return waiting


def _frames(data: bytes) -> tuple[list[tuple[int, bytes, int, int]], list[tuple[Aside, int, int]]]:
    """Kind, id, offset and size of the payload of each whole record; and from where to where the rest lies."""
    frames: list[tuple[int, bytes, int, int]] = []
    rest: list[tuple[Aside, int, int]] = []
    at = _HEAD
    while at < len(data):
        end = _end(data, at)
        if end is None:
            rest.append((Aside.CUT, at, len(data)))
            break
        size, check, kind, id_ = _FRAME.unpack_from(data, at)
        if crc32(data[at + _CHECKED : end]) == check:
            frames.append((kind, id_, at + _FRAME.size, size))
        else:  # where its length is right the next record is found behind it
            behind = _end(data, end) is not None
            end = end if behind else len(data)
            rest.append((Aside.DAMAGED, at, end))
        at = end
    return frames, rest


def _end(data: bytes, at: int) -> int | None:
    if at + _FRAME.size > len(data):
        return None
    end = at + _FRAME.size + int.from_bytes(data[at : at + 4], "big")
    return end if end <= len(data) else None


def _read(path: Path, secret: bytes) -> tuple[_Segment, list[Record], list[tuple[Aside, bytes]]]:
    """A segment with its records that were not discarded, and the pieces that cannot be read."""
    data = path.read_bytes()
    if data[: len(_MAGIC)] != _MAGIC or len(data) < _HEAD:
        raise _UnreadableError(Aside.DAMAGED if len(data) >= _HEAD else Aside.CUT)
    if data[len(_MAGIC)] > _VERSION:
        raise _UnreadableError(Aside.NEWER)
    frames, rest = _frames(data)
    damaged = [(why, data[start:end]) for why, start, end in rest]
    segment = _Segment(path, os.open(path, os.O_RDWR), AESGCM(secret), len(data))
    done = {id_ for kind, id_, _, _ in frames if kind == Kind.DONE}
    records = []
    for number, id_, offset, size in frames:
        if number == Kind.DONE or id_ in done:
            continue
        record = Record(id_, Kind.TURN, Owner("", ""), datetime.fromtimestamp(0, UTC), 0, segment, offset, size)
        try:
            record.kind = Kind(number)
            record.owner, record.at, _ = _opened(segment.cipher, record, data[offset : offset + size])
        except (GiveUpError, ValueError):
            damaged.append((Aside.DAMAGED, data[offset - _FRAME.size : offset + size]))
        else:
            records.append(record)
    return segment, records, damaged


def _plain(cipher: AESGCM, record: Record, sealed: bytes) -> bytes:
    try:
        return cipher.decrypt(record.id, sealed, _bound(record.kind, record.id))
    except InvalidTag:
        raise GiveUpError("a record of the intake log that was damaged") from None


def _opened(cipher: AESGCM, record: Record, sealed: bytes) -> tuple[Owner, datetime, bytes]:
    head, _, body = _plain(cipher, record, sealed).partition(b"\n")
    tenant, user, at = json.loads(head)
    return Owner(tenant, user), datetime.fromtimestamp(at, UTC), body


def _bound(kind: Kind, id_: bytes) -> bytes:
    return bytes([kind]) + id_


def _context(path: Path) -> bytes:
    return b"memory-extproc intake log\0" + path.stem.encode()


def _write_file(path: Path, data: bytes, *, fsync: bool = False) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(handle, data)
        if fsync:
            os.fsync(handle)
    finally:
        os.close(handle)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
