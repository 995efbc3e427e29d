"""One SQLite file used off the event loop, with group commit.

All that is asked for while one transaction is being committed goes into the next one together, so a
thousand waiting callers cost one commit and not a thousand. Operations run in the order they were asked for.

One that is deleted, replaced or cut short while it is open takes nothing more: what is written to it would be
gone at the next start. What was read before is still read.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from memory_extproc.errors import MemoryExtprocError, PermanentError, TransientError, UnknownFaultError

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

# Readers of a write-ahead log wait for nobody, but for a moment while another process takes it up or leaves it.
_GLANCE = timedelta(milliseconds=50)
_MOST_AT_ONCE = 256  # pieces of work in one commit


@dataclass(frozen=True, slots=True)
class Schema:
    """What the file must hold. *script* creates it; *version* is kept in the file. One of an older version is
    brought up to date by *upgrades*, each from its version to the next, with statements parted as in *script*."""

    application: int  # PRAGMA application_id: tells our files from any other, 32 bits
    version: int  # PRAGMA user_version, from 1
    script: str
    upgrades: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if set(self.upgrades) != set(range(1, self.version)):
            raise ValueError("every version but the last has an upgrade to the next")


@dataclass(slots=True)
class _Operation(Generic[T]):
    work: Work[T]
    scrub: bool
    waiter: asyncio.Future[T]


@dataclass(slots=True)
class _Done:
    """What became of one operation."""

    value: Any = None
    error: MemoryExtprocError | None = field(default=None)


class SqliteFile:
    """Opened when first used, and again after a fault, so a file that was mended is taken up by itself.

    *fsync*: a commit survives power loss, not only the death of the process (PRAGMA synchronous FULL, else
    NORMAL). *patience*: how long a lock of another process is waited for. Use within `async with`; leaving it
    finishes what was asked for.
    """

    def __init__(
        self,
        path: Path,
        schema: Schema,
        *,
        fsync: bool = False,
        patience: timedelta = timedelta(seconds=2),
    ) -> None:
        self._path = path
        self._schema = schema
        self._fsync = fsync
        self._patience = patience
        self._queued: deque[_Operation[Any]] = deque()
        self._committing: asyncio.Future[list[_Done]] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._thread: ThreadPoolExecutor | None = None
        self._writer: sqlite3.Connection | None = None  # used on the thread only
        self._place: Place | None = None  # of the file that it writes to
        self._reader: sqlite3.Connection | None = None  # used on the event loop only
        self._read_from: Place | None = None
        self._refused = False  # the last write was, by the disk or the file

    async def __aenter__(self) -> Self:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._path.stem)
        if self._schema.upgrades:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._upgrade)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        await self._idle.wait()
        self._close_reader()
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._leave)
            self._thread.shutdown()

    async def open(self) -> None:
        """Makes or checks the file now instead of at the first write; raises what is wrong with it."""
        await self.run(lambda connection: connection.execute("SELECT 1").fetchone())

    async def run(self, work: Work[T], *, scrub: bool = False) -> T:
        """What *work* returns, once it is committed. *work* runs in a transaction that it shares with its
        neighbours and is undone alone if it fails. It may run twice, so it changes nothing but the file.
        *scrub*: afterwards no trace of what was deleted is left in the write-ahead log."""
        if self._closed or self._thread is None:
            raise TransientError(f"{self._path.name} is closed")
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queued.append(_Operation(work, scrub, waiter))
        self._idle.clear()
        waiter.get_loop().call_soon(self._commit_next)  # operations asked for together share a transaction
        return await waiter

    def read(self, statement: str, values: Sequence[object]) -> tuple[Any, ...] | None:
        """The first row of `read_all`, or None."""
        rows = self.read_all(statement, values)
        return rows[0] if rows else None

    def read_all(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Read rows at once on the event loop, by key and in small numbers: each takes some ten microseconds. Sees
        every commit of any process; empty while the file was never written."""
        try:
            reader = self._opened_reader()
            if reader is None:
                return []
            rows: list[tuple[Any, ...]] = reader.execute(statement, values).fetchall()
            if self._refused:
                self._close_reader()
        except (sqlite3.Error, MemoryExtprocError) as error:
            self._close_reader()
            if isinstance(error, sqlite3.Error):
                raise translate_error(error, self._path.name) from error
            raise
        return rows

    def _opened_reader(self) -> sqlite3.Connection | None:
        """None where there is nothing to read yet."""
        place = self._place
        if self._reader is not None and self._read_from is place:
            return self._reader
        self._close_reader()
        # What stands there by now, if anything, may know less than what was written.
        self._refuse_taken_away()
        if not self._path.exists():
            return None
        self._reader, self._read_from = self._connect(_GLANCE), place
        if not self._readable(self._reader):
            self._close_reader()
        return self._reader

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _readable(self, reader: sqlite3.Connection) -> bool:
        """False while another process is making it this moment: all of it is there at once, or nothing."""
        application, version = _stamps(reader)
        if not version:
            return False
        self._check(application, version)
        if version < self._schema.version:
            raise TransientError(f"{self._path.name} is not brought up to date yet")
        return True

    # --- on the event loop ---------------------------------------------------------------------------
    def _commit_next(self) -> None:
        if self._committing is not None:
            return
        if not self._queued:
            self._idle.set()
            return
        self._idle.clear()
        batch = [self._queued.popleft() for _ in range(min(len(self._queued), _MOST_AT_ONCE))]
        self._committing = asyncio.get_running_loop().run_in_executor(self._thread, self._commit, batch)
        self._committing.add_done_callback(partial(self._resolve, batch))

    def _resolve(self, batch: Sequence[_Operation[Any]], committed: asyncio.Future[list[_Done]]) -> None:
        self._committing = None
        if self._refused:
            # One that was opened while nothing could be written has the index of the log read-only, and SQLite
            # gives that index to the whole process: no writer could write again for as long as the reader is open.
            self._close_reader()
        self._commit_next()
        fault = committed.exception()  # a bug in some *work*: everybody who took part hears of it
        results = [_Done()] * len(batch) if fault else committed.result()
        for operation, done in zip(batch, results, strict=True):
            if operation.waiter.done():  # whoever asked was cancelled; the work is done all the same
                continue
            error = fault or done.error
            if error is not None:
                operation.waiter.set_exception(error)
            else:
                operation.waiter.set_result(done.value)

    # --- on the thread -------------------------------------------------------------------------------
    def _commit(self, batch: Sequence[_Operation[Any]]) -> list[_Done]:
        try:
            self._refuse_taken_away()
            connection = self._opened()
            before = connection.total_changes
            results = self._transaction(connection, batch)
            self._refused = False
            if connection.total_changes > before and any(operation.scrub for operation in batch):
                # The log keeps old pages until it is written back; busy readers only put that off.
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            code = code_of(error)
            if code not in LOCKED and code != sqlite3.SQLITE_FULL:
                self._close_writer()
                self._refused = True
            if len(batch) > 1 and code not in LOCKED:
                # One by one, so that what cannot be done does not take its neighbours with it.
                return [self._commit([operation])[0] for operation in batch]
            return [_Done(error=translate_error(error, self._path.name)) for _ in batch]
        except MemoryExtprocError as error:
            return [_Done(error=error) for _ in batch]
        return results

    def _transaction(self, connection: sqlite3.Connection, batch: Sequence[_Operation[Any]]) -> list[_Done]:
        try:
            connection.execute("BEGIN IMMEDIATE")
            results = [self._one(connection, operation) for operation in batch]
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.rollback()
        return results

    def _one(self, connection: sqlite3.Connection, operation: _Operation[Any]) -> _Done:
        connection.execute("SAVEPOINT one")
        try:
            done = _Done(operation.work(connection))
        except (sqlite3.Error, MemoryExtprocError) as error:
            # Some faults (a full disk among them) end the whole transaction:
            # https://www.sqlite.org/lang_transaction.html#response_to_errors_within_a_transaction
            # One that was opened while the file could only be read stays so, and begins transactions all the same.
            if not connection.in_transaction or code_of(error) == sqlite3.SQLITE_READONLY:
                raise
            connection.execute("ROLLBACK TO one")
            name = self._path.name
            done = _Done(error=translate_error(error, name) if isinstance(error, sqlite3.Error) else error)
        connection.execute("RELEASE one")
        return done

    def _opened(self) -> sqlite3.Connection:
        if self._writer is not None:
            return self._writer
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Made before SQLite opens it: the log and its index take over the file's mode. One that is there is not
            # opened beside SQLite, since closing it would let go of the locks that our reader has on it.
            with suppress(FileExistsError):
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            raise TransientError(f"{self._path.name} is not to be opened: {error.strerror}") from error
        connection = self._connect(self._patience)
        try:
            self._prepare(connection)
        except BaseException:  # whatever it was: nobody else would close it
            connection.close()
            raise
        self._writer, self._place = connection, Place(self._path)
        return connection

    def _leave(self) -> None:
        if self._writer is not None and self._place is not None and self._place.harm is not None:
            # SQLite leaves the log of a file that was moved as it is, to damage the one that stands there now.
            with suppress(sqlite3.Error):
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self._close_writer()

    def _refuse_taken_away(self) -> None:
        """TransientError where the next start would not find what is written now. On either thread."""
        if (place := self._place) is not None and (harm := place.harm) is not None:
            name = self._path.name
            raise TransientError(f"{name} was taken away while in use ({harm.value}): put it back, or restart")

    def _connect(self, patience: timedelta) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=patience.total_seconds(), isolation_level=None, check_same_thread=True
        )
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._fsync else 'NORMAL'}")
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            application, version = _stamps(connection)
            if (application, version) == (0, 0) and not connection.execute("PRAGMA schema_version").fetchone()[0]:
                self._take(connection, self._schema.script)
                connection.execute(f"PRAGMA application_id = {self._schema.application}")
            else:
                self._check(application, version)
                for step in range(version, self._schema.version):
                    self._take(connection, self._schema.upgrades[step])
            if version != self._schema.version:
                connection.execute(f"PRAGMA user_version = {self._schema.version}")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.rollback()

    def _upgrade(self) -> None:
        """Before the first read of an older file. A fault shows again, and is told, where the file is used."""
        with suppress(sqlite3.Error, MemoryExtprocError):
            if not self._path.exists():
                return
            with closing(self._connect(_GLANCE)) as glance:
                _, version = _stamps(glance)
            if 0 < version < self._schema.version:
                self._opened()

    @staticmethod
    def _take(connection: sqlite3.Connection, script: str) -> None:
        for statement in script.split(";\n\n"):
            connection.execute(statement)

    def _check(self, application: int, version: int) -> None:
        """TransientError for a file that we cannot use: later, with the program that can, or with another file."""
        if application != self._schema.application:
            raise TransientError(f"{self._path.name} is a database of something else; move it aside")
        if version > self._schema.version:
            raise TransientError(
                f"{self._path.name} has schema version {version} of a newer memory-extproc, this one knows versions"
                f" up to {self._schema.version}: run the newer program, or move the file aside"
            )

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = self._place = None


def _stamps(connection: sqlite3.Connection) -> tuple[int, int]:
    """Whose file it is, and the version of its schema; zeros for a new one."""
    # In this order: both are committed at once, and whoever sees a version then sees whose it is, too.
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    return application, version


# --- sqlite faults -----------------------------------------------------------------------------------
# What goes wrong in a SQLite file, sorted by what we can do about it.

# https://www.sqlite.org/rescode.html, primary codes. What is in none of these lists is not known to be permanent.
_PASSING = {
    sqlite3.SQLITE_BUSY: "locked by another process",
    sqlite3.SQLITE_LOCKED: "locked by another process",
    sqlite3.SQLITE_PROTOCOL: "locked by another process",
    sqlite3.SQLITE_FULL: "full: no room on the disk",
    sqlite3.SQLITE_IOERR: "failing to read or write",
    sqlite3.SQLITE_CANTOPEN: "not to be opened",
    sqlite3.SQLITE_READONLY: "read-only",
    sqlite3.SQLITE_PERM: "not permitted to us",
    sqlite3.SQLITE_NOMEM: "out of memory",
    sqlite3.SQLITE_INTERRUPT: "interrupted",
}
_DAMAGED = {sqlite3.SQLITE_CORRUPT: "damaged", sqlite3.SQLITE_NOTADB: "damaged: not a SQLite database"}
# What accuses the values of one statement: it would fail again in the same way.
_PERMANENT = {sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE}
LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}


def code_of(error: BaseException) -> int:
    """The primary code; 0 where SQLite gave none."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def translate_error(error: sqlite3.Error, name: str) -> MemoryExtprocError:
    """Our kind of error for SQLite's; *name* is the file's, without its directory."""
    code = code_of(error)
    if code in _PASSING:
        return TransientError(f"{name} is {_PASSING[code]}")
    if code in _DAMAGED:
        # Later: an operator moves the file aside, and we take up the next. No turn is given up for the file.
        return TransientError(f"{name} is {_DAMAGED[code]}; move it aside to begin anew")
    kind = PermanentError if code in _PERMANENT else UnknownFaultError
    return kind(f"{name} refused an operation ({getattr(error, 'sqlite_errorname', 'no code')})")


# --- sqlite place ------------------------------------------------------------------------------------
# Whether a SQLite file that is held open still stands at its path.
#
# A file that is deleted or replaced under us goes on working for whoever has it open, and all that is committed
# to it is gone at the next start: SQLite says nothing of it (https://www.sqlite.org/howtocorrupt.html, 2.4).

LOG, INDEX = "-wal", "-shm"

FileId = tuple[int, int]  # device and node: which file it is, whatever its name


class Harm(StrEnum):
    """Also the label of files_taken_away."""

    GONE = "gone"
    REPLACED = "replaced"  # another file stands at the path
    LOG_GONE = "log_gone"  # the write-ahead log or its index, with what is not in the file itself yet
    CUT_SHORT = "cut_short"


class Place:
    """Of the file at *path*, with its log, as they stand now: to be made right after they were opened. A few
    microseconds for each question."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._id, self._size = _stat(path)
        # Made once: a path costs more than the question about it.
        beside = [path.with_name(path.name + name) for name in (LOG, INDEX)]
        self._beside = tuple((one, found) for one in beside if (found := file_id(one)))

    @property
    def harm(self) -> Harm | None:
        """What happened to it since; None while all is well."""
        found, size = _stat(self._path)
        if found is None:
            return Harm.GONE
        if found != self._id:
            return Harm.REPLACED
        if any(file_id(beside) != known for beside, known in self._beside):
            return Harm.LOG_GONE
        if size < self._size:
            return Harm.CUT_SHORT
        self._size = size
        return None


def file_id(file: Path | str | int) -> FileId | None:
    """Of the file at a path, or of an open one by its descriptor; None where there is none."""
    return _stat(file)[0]


def _stat(file: Path | str | int) -> tuple[FileId | None, int]:
    """With its size in bytes."""
    try:
        found = os.stat(file)  # noqa: PTH116 - a descriptor has no Path
    except OSError:
        return None, 0
    return (found.st_dev, found.st_ino), found.st_size
