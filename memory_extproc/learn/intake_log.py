"""The intake log: a write-ahead log of accepted exchanges that are not in the journal yet.

An exchange is written here with one write() before the last chunk of its answer goes on, so a process killed after
that loses no exchange; the journal, in SQLite or Redis, follows. Exchanges whose consent or incognito state is
unknown wait here, and so do incognito marks that are not shared yet.

Records are encrypted, because an exchange is logged before it is screened: consent may be missing, and it may hold
secrets. A discarded record becomes unreadable when its segment and its key are deleted, some
`_LINGER` later; live records of that segment are copied to the newest segment first. A process never
appends to a segment of another process."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Self
from zlib import crc32

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from memory_extproc.errors import MemoryExtprocError, PermanentError, TransientError
from memory_extproc.model import Owner
from memory_extproc.observe.log import logger
from memory_extproc.ports import KeyWrapper
from memory_extproc.settings.paths import JournalSection

log = logger(__name__)

INTAKE = "intake"  # the directory, in the data directory
_KEY_BYTES = 32
_PLAIN, _WRAPPED = b"\x01", b"\x02"  # how a key file begins
_USUAL = JournalSection()


_SEGMENT = 8 << 20  # bytes of a segment from which on another is begun
_LINGER = 30.0  # seconds that a discarded record may stay readable before its segment is replaced


class IntakeLog:
    """Use within `async with`. One event loop owns it; each call takes a few microseconds of system calls on it.
    While the directory is not writable, `append` returns None, and the next call tries again."""

    def __init__(
        self,
        directory: Path,
        section: JournalSection = _USUAL,
        *,
        wraps: KeyWrapper | None = None,  # None: keys of segments rest as they are
        tells: Callable[[str], None] = lambda _why: None,  # called with the reason when a file was moved aside
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory, self._section, self._wraps = directory, section, wraps
        self._tells, self._clock = tells, clock
        self._segments: dict[str, Segment] = {}  # by file name
        self._dropped: set[str] = set()  # which a disk may not let us delete
        self._active: Segment | None = None
        self._turns: dict[Owner, dict[bytes, LogRecord]] = {}
        self._ids: set[bytes] = set()
        self._left: list[LogRecord] = []  # found in segments of others, not taken yet
        self._bytes = self._numbers = 0
        self._writable = True

    async def __aenter__(self) -> Self:
        # Where a link leads at the start: led elsewhere later, it may lead to another sidecar's segments.
        self._directory = await asyncio.to_thread(self._directory.resolve)
        await self.tend()
        return self

    async def __aexit__(self, *_: object) -> None:
        for segment in self._segments.values():
            if segment.live:
                segment.close()
            else:
                segment.delete()
        self._segments.clear()
        self._active = None

    @property
    def is_full(self) -> bool:
        return len(self._ids) >= self._section.max_turns or self._bytes >= self._section.intake_bytes

    def append(self, kind: LogKind, owner: Owner, at: datetime, body: bytes) -> LogRecord | None:
        """Written when it returns, which outlives the process. None: the log is full or cannot be written."""
        segment = self._active
        if segment is None or self.is_full:
            return None
        return self._write(segment, kind, owner, at, *segment.seal(kind, pack_payload(owner, at, body)))

    async def append_large(
        self, kind: LogKind, owner: Owner, at: datetime, encode: Callable[[], bytes]
    ) -> LogRecord | None:
        """As append, with all but the write() in a thread."""
        while (segment := self._active) is not None and not self.is_full:
            sealed = await asyncio.to_thread(lambda: segment.seal(kind, pack_payload(owner, at, encode())))
            if segment is self._active:
                return self._write(segment, kind, owner, at, *sealed)
        return None

    def read(self, record: LogRecord) -> bytes:
        """The body. PermanentError where it was damaged since."""
        return record.plain.partition(b"\n")[2]

    def discard(self, record: LogRecord) -> None:
        """Discard *record*, idempotently. It is gone after a restart, and soon unreadable."""
        segment = record.segment
        if segment.live.pop(record.id, None) is None:
            return
        self._ids.discard(record.id)
        self._bytes -= record.size
        turns = self._turns.get(record.owner, {})
        if turns.pop(record.id, None) is not None and not turns:
            del self._turns[record.owner]
        if segment.spent_at is None:
            segment.spent_at = self._clock()
        if segment is not self._active and not segment.live:
            self._drop(segment)
        else:  # where that cannot be written it is made up for when the segment is replaced
            segment.write(segment.seal(LogKind.DONE, b"", record.id)[1])

    def take_left(self, kind: LogKind) -> list[LogRecord]:
        """Records that another process left, the oldest first; each is given once."""
        taken = [record for record in self._left if record.kind is kind]
        self._left = [record for record in self._left if record.kind is not kind]
        return [record for record in taken if record.is_live]

    def of_owner(self, owner: Owner) -> Sequence[LogRecord]:
        """Turns of *owner* that wait."""
        return list(self._turns.get(owner, {}).values())

    def oldest(self, owner: Owner | None = None) -> datetime | None:
        """Time of the oldest waiting turn, of *owner* or of all."""
        waiting = [self._turns.get(owner, {})] if owner is not None else self._turns.values()
        return min((record.at for records in waiting for record in records.values()), default=None)

    async def sync(self) -> None:
        """Call fsync: appended records survive power loss afterwards."""
        if self._section.fsync and self._active is not None:
            await asyncio.to_thread(os.fdatasync, self._active.handle)

    def _write(
        self, segment: Segment, kind: LogKind, owner: Owner, at: datetime, id_: bytes, frame: bytes
    ) -> LogRecord | None:
        place = segment.write(frame)
        if self._writable is (place is None):
            self._tell_writable(place is not None)
        return None if place is None else self._know(LogRecord(id_, kind, owner, at, segment, *place))

    def _know(self, record: LogRecord) -> LogRecord:
        self._numbers += 1
        record.number = self._numbers
        record.segment.live[record.id] = record
        self._ids.add(record.id)
        self._bytes += record.size
        if record.kind is LogKind.TURN:
            self._turns.setdefault(record.owner, {})[record.id] = record
        return record

    def _tell_writable(self, writable: bool) -> None:  # noqa: FBT001 - as it is kept
        self._writable = writable
        if not writable:
            log.error("intake.not_written")

    async def tend(self) -> None:
        """Maintain the directory; call it about every second. Adopts segments that were put there, and replaces
        segments that hold discarded records, are long, or are no longer at their path."""
        await self._take_up()
        active = self._active
        if active is None or self._is_due(active) or active.size >= _SEGMENT:
            self._active = await self._begin() or active
        for segment in list(self._segments.values()):
            if segment is not self._active and self._active is not None and self._is_due(segment):
                await self._copy_forward(segment, self._active)

    def _is_due(self, segment: Segment) -> bool:
        lingers = segment.spent_at is not None and self._clock() - segment.spent_at >= _LINGER
        return lingers or not segment.stands or (segment is not self._active and not segment.live)

    async def _begin(self) -> Segment | None:
        """None where the directory cannot be written, or no key wrapped, for now."""
        path = self._directory / f"{time.time_ns():020d}-{os.urandom(4).hex()}.log"
        secret = AESGCM.generate_key(8 * _KEY_BYTES)
        try:
            key = _PLAIN + secret
            if self._wraps is not None:
                key = _WRAPPED + await self._wraps.wrap(secret, _context(path))
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(path.with_suffix(".key"), key, fsync=self._section.fsync)
            segment = begin_segment(path, secret)
        except (OSError, MemoryExtprocError):
            # It is tried again every second: what is left of each attempt would fill the directory.
            for piece in (path.with_suffix(".key"), path):
                with suppress(OSError):
                    piece.unlink(missing_ok=True)
            if self._writable:
                self._tell_writable(False)  # noqa: FBT003
            return None
        self._segments[path.name] = segment
        return segment

    async def _copy_forward(self, segment: Segment, target: Segment) -> None:
        for record in list(segment.live.values()):
            if not record.is_live:
                continue  # discarded while others were copied
            try:
                _, frame = target.seal(record.kind, record.plain, record.id)
            except PermanentError:
                self.discard(record)
                continue
            place = target.write(frame)
            if place is None:
                return
            # The waiting task holds this object. After a crash there may be two records of an id: the first counts.
            del segment.live[record.id]
            record.segment, (record.offset, record.size) = target, place
            target.live[record.id] = record
            await asyncio.sleep(0)
        if not segment.live and segment.path.name in self._segments:
            self._drop(segment)

    def _drop(self, segment: Segment) -> None:
        self._segments.pop(segment.path.name, None)
        segment.delete()
        if segment.path.exists():
            self._dropped.add(segment.path.name)

    async def _take_up(self) -> None:
        found: list[LogRecord] = []
        for path in sorted(self._directory.glob("*.log")):
            if path.name in self._segments or path.name in self._dropped:
                continue
            try:
                secret = await self._secret(path)
                segment, records, damaged = await asyncio.to_thread(read_segment, path, secret)
                self._keep_aside(segment, damaged)
            except UnreadableError as error:
                self._move_aside(path, error.why)
            except (OSError, TransientError) as error:  # no room, or its master key is not at hand: tried again
                log.warning("intake.not_read", kind=type(error).__name__)
            else:
                self._segments[path.name] = segment
                segment.spent_at = self._clock()  # it may hold discarded records, too
                found += records
        for record in sorted(found, key=lambda record: record.at):  # copying forward does not keep their order
            if record.id not in self._ids:
                self._left.append(self._know(record))

    async def _secret(self, path: Path) -> bytes:
        try:
            key = path.with_suffix(".key").read_bytes()
            secret = key[1:]
            if key[:1] == _WRAPPED and self._wraps is not None:
                secret = await self._wraps.unwrap(secret, _context(path))
        except (FileNotFoundError, PermanentError):
            raise UnreadableError(Aside.KEY_GONE) from None
        if len(secret) != _KEY_BYTES:
            raise UnreadableError(Aside.KEY_GONE)
        return secret

    def _move_aside(self, path: Path, why: Aside) -> None:
        """As a whole, its key beside it as before."""
        try:
            path.rename(path.with_suffix(f".{why.value}"))
        except OSError:
            return
        self._tell_aside(path, why)

    def _keep_aside(self, segment: Segment, damaged: Mapping[Aside, bytes]) -> None:
        """Pieces that could not be read, with their key under a name of its own. The segment itself is replaced, so
        it is closed again where they cannot be written: OSError."""
        path = segment.path
        for why, pieces in damaged.items():
            try:
                write_file(path.with_suffix(f".{why.value}"), pieces)
                write_file(path.with_suffix(f".{why.value}.key"), path.with_suffix(".key").read_bytes())
            except OSError:
                segment.close()
                raise
            self._tell_aside(path, why)

    def _tell_aside(self, path: Path, why: Aside) -> None:
        log.error("intake.moved_aside", file=path.name, why=why.value)
        self._tells(why.value)


def _context(path: Path) -> bytes:
    return b"memory-extproc intake log\0" + path.stem.encode()


# A segment of the intake log: a file of encrypted records, `NAME.log`, beside its key, `NAME.key`. A segment begins
# with a magic number and its version. Each record has its length, a CRC-32, its kind and its id, which is also the
# nonce of its payload (AES-256-GCM), and the payload: tenant, user and time in a line of JSON, then the body. A
# record of kind DONE discards another.

_MAGIC, _VERSION = b"mexi", 1
_HEAD = len(_MAGIC) + 1
_FRAME = struct.Struct(">IIB12s")  # bytes of the payload, CRC-32 of all that follows it, kind, id
_CHECKED = 8  # where in a frame that begins
_ID_BYTES = 12


class LogKind(IntEnum):
    """The kind of a record. The numbers are in the files."""

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
    """A segment has no readable part."""

    def __init__(self, why: Aside) -> None:
        super().__init__(why.value)
        self.why = why


@dataclass(eq=False, slots=True)
class LogRecord:
    """Location of a record. *number* orders the records of a process, oldest first."""

    id: bytes
    kind: LogKind
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
        """The payload. PermanentError where it was damaged since."""
        try:
            return self.segment.unseal(self.kind, self.id, os.pread(self.segment.handle, self.size, self.offset))
        except (OSError, InvalidTag):
            raise PermanentError("a record of the intake log that was damaged") from None


@dataclass(eq=False, slots=True)
class Segment:
    path: Path
    handle: int
    cipher: AESGCM
    size: int = _HEAD
    live: dict[bytes, LogRecord] = field(default_factory=dict)
    spent_at: float | None = None  # when the first of its records was discarded

    @property
    def stands(self) -> bool:
        """Whether the file is still at its path: nothing written to a deleted file outlives the process."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self.handle))
        except OSError:
            return False

    def seal(self, kind: LogKind, plain: bytes, id_: bytes = b"") -> tuple[bytes, bytes]:
        """Id (a new id by default) and encrypted frame of a record."""
        id_ = id_ or os.urandom(_ID_BYTES)
        payload = self.cipher.encrypt(id_, plain, bytes([kind]) + id_) if kind is not LogKind.DONE else b""
        checked = struct.pack(">B12s", kind, id_) + payload
        return id_, struct.pack(">II", len(payload), crc32(checked)) + checked

    def unseal(self, kind: LogKind, id_: bytes, payload: bytes) -> bytes:
        return self.cipher.decrypt(id_, payload, bytes([kind]) + id_)

    def write(self, frame: bytes) -> tuple[int, int] | None:
        """Offset and size of the payload; None if the write failed: the next frame overwrites it."""
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
    write_file(path, _MAGIC + bytes([_VERSION]))
    return Segment(path, os.open(path, os.O_RDWR), AESGCM(secret))


def pack_payload(owner: Owner, at: datetime, body: bytes) -> bytes:
    """A payload before it is sealed."""
    return json.dumps([owner.tenant, owner.user, at.timestamp()]).encode() + b"\n" + body


def read_segment(path: Path, secret: bytes) -> tuple[Segment, list[LogRecord], dict[Aside, bytes]]:
    """A segment, its records that were not discarded, and the pieces that cannot be read. UnreadableError where
    that is all of it."""
    data = path.read_bytes()
    if data[:_HEAD] != _MAGIC + bytes([_VERSION]):
        newer = data[: len(_MAGIC)] == _MAGIC and len(data) >= _HEAD
        raise UnreadableError(Aside.NEWER if newer else Aside.CUT if len(data) < _HEAD else Aside.DAMAGED)
    segment = Segment(path, os.open(path, os.O_RDWR), AESGCM(secret), len(data))
    frames, damaged = list(_frames(data)), dict[Aside, bytes]()
    done = {id_ for kind, id_, _, _ in frames if kind == LogKind.DONE}
    records = []
    for kind, id_, start, end in frames:
        if kind == LogKind.DONE or id_ in done:
            continue
        offset = start + _FRAME.size
        try:
            known = LogKind(int(kind))  # why it cannot be read is no number
            payload = segment.unseal(known, id_, data[offset:end])
            tenant, user, at = json.loads(payload.partition(b"\n")[0])
        except (InvalidTag, ValueError):
            why = kind if isinstance(kind, Aside) else Aside.DAMAGED
            damaged[why] = damaged.get(why, b"") + data[start:end]
        else:
            owner, asked = Owner(tenant, user), datetime.fromtimestamp(at, UTC)
            records.append(LogRecord(id_, known, owner, asked, segment, offset, end - offset))
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
    """Readable by its owner alone. OSError unless all of it is written: a disk that fills up takes a part first."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        if fsync:
            os.fsync(file.fileno())


def count_waiting(directory: Path) -> int:
    """How many turns wait in the log in *directory*, of a process that may be running. Needs no key."""
    waiting: set[bytes] = set()
    for path in directory.glob("*.log"):
        try:
            frames = list(_frames(path.read_bytes()))
        except FileNotFoundError:
            continue  # replaced in this moment
        turns = {id_ for kind, id_, _, _ in frames if kind == LogKind.TURN}
        waiting |= turns - {id_ for kind, id_, _, _ in frames if kind == LogKind.DONE}
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
