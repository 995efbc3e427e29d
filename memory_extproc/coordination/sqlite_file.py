"""A SQLite file used off the event loop, with group commit.

Operations requested during a commit share the next transaction, so a thousand waiting callers cost a single commit.
Operations run in order. A file that is deleted, replaced or truncated while open accepts no more writes, which
would be lost at the next start; it can still be read."""

from __future__ import annotations

import asyncio
import os
import secrets
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

from memory_extproc.disk_reserve import DiskReserve
from memory_extproc.errors import MemoryExtprocError, PermanentError, TransientError, UnknownFaultError
from memory_extproc.observe.log import logger

log = logger(__name__)
T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

# Readers of a write-ahead log do not block, except briefly while another process opens or closes it.
_GLANCE = timedelta(milliseconds=50)
_MOST_AT_ONCE = 256  # operations per commit


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of the file.

    *script* creates it; the file stores *version*. *upgrades* maps each older version to statements for the next
    version, separated as in *script*."""

    application: int  # PRAGMA application_id: 32 bits that identify our files
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
    """The result of an operation."""

    value: Any = None
    error: MemoryExtprocError | None = field(default=None)


class SqliteFile:
    """A SQLite file with a writer thread. Use within `async with`; leaving completes pending operations.

    Opened on first use and again after a fault, so a repaired file is picked up without a restart. *fsync*: a
    commit survives power loss (PRAGMA synchronous FULL), not only a crash of the process (NORMAL). *patience*: how
    long to wait for another process's lock. *reserve*: bytes set aside for commits on a full disk."""

    def __init__(
        self,
        path: Path,
        schema: Schema,
        *,
        fsync: bool = False,
        patience: timedelta = timedelta(seconds=2),
        reserve: int = 0,
    ) -> None:
        self._path = path
        self._reserve = DiskReserve(path, reserve)
        self._schema = schema
        self._fsync = fsync
        self._patience = patience
        self._queued: deque[_Operation[Any]] = deque()
        self._deferred: deque[_Operation[Any]] = deque()  # behind those queued
        self._timer: asyncio.TimerHandle | None = None  # of the first of the deferred
        self._committing: asyncio.Future[list[_Done]] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._thread: ThreadPoolExecutor | None = None
        self._writer: sqlite3.Connection | None = None  # used on the thread only
        self._place: FileIdentity | None = None  # of the file that it writes to
        self._reader: sqlite3.Connection | None = None  # used on the event loop only
        self._read_from: FileIdentity | None = None
        self._foreign = False  # logged that the file is not ours
        self._refused = False  # the last write was, by the disk or the file

    async def __aenter__(self) -> Self:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._path.stem)
        if self._schema.upgrades:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._upgrade)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        self._commit_deferred()
        await self._idle.wait()
        self._close_reader()
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._leave)
            self._thread.shutdown()

    async def open(self) -> None:
        """Create or check the file now instead of at the first write; raises its faults."""
        await self.fetch("SELECT 1")

    async def run(self, work: Work[T], *, scrub: bool = False) -> T:
        """Run *work* in a transaction and return its result after the commit.

        Operations share a transaction; a failing operation is rolled back alone. *work* may run twice, so its only
        side effect must be on the file. *scrub*: afterwards the write-ahead log contains no deleted data."""
        operation = self._operation(work, scrub=scrub)
        self._queue_deferred()  # operations run in order
        self._queued.append(operation)
        # Operations asked for together share a transaction.
        operation.waiter.get_loop().call_soon(self._commit_next)
        return await operation.waiter

    async def execute(self, statement: str, values: Sequence[object] = (), *, scrub: bool = False) -> int:
        """Run one statement as `run` does; returns the number of rows that it changed."""
        return await self.run(lambda connection: connection.execute(statement, values).rowcount, scrub=scrub)

    async def fetch(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of one statement, run as `run` does."""
        return await self.run(lambda connection: connection.execute(statement, values).fetchall())

    def defer(self, work: Work[T], within: timedelta) -> asyncio.Future[T]:
        """As `run`, but in the transaction of the next operation, or in one after *within*. The result is the
        future's."""
        operation = self._operation(work)
        self._deferred.append(operation)
        if len(self._deferred) >= _MOST_AT_ONCE:
            self._commit_deferred()
        elif self._timer is None:
            self._timer = operation.waiter.get_loop().call_later(within.total_seconds(), self._commit_deferred)
        return operation.waiter

    def _operation(self, work: Work[T], *, scrub: bool = False) -> _Operation[T]:
        if self._closed or self._thread is None:
            raise TransientError(f"{self._path.name} is closed")
        self._idle.clear()
        return _Operation(work, scrub, asyncio.get_running_loop().create_future())

    def _queue_deferred(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queued.extend(self._deferred)
        self._deferred.clear()

    def _commit_deferred(self) -> None:
        self._queue_deferred()
        self._commit_next()

    def read(self, statement: str, values: Sequence[object]) -> tuple[Any, ...] | None:
        """The first row of `read_all`, or None."""
        rows = self.read_all(statement, values)
        return rows[0] if rows else None

    def read_all(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Read a few rows by key on the event loop; each read takes some ten microseconds.

        Sees all commits of all processes; empty if the file was never written."""
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
        """The open reader; None if there is no file yet."""
        place = self._place
        if self._reader is not None and self._read_from is place:
            return self._reader
        self._close_reader()
        # A replaced file may lack committed data.
        self._refuse_taken_away()
        if not self._path.exists():
            return None
        self._reader, self._read_from = self._connect(_GLANCE), place
        application, version = _stamps(self._reader)
        self._check(application, version)
        if version < self._schema.version:
            raise TransientError(f"{self._path.name} is not brought up to date yet")
        return self._reader

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _commit_next(self) -> None:
        if self._committing is not None:
            return
        if not self._queued:
            if not self._deferred:
                self._idle.set()
            return
        self._idle.clear()
        batch = [self._queued.popleft() for _ in range(min(len(self._queued), _MOST_AT_ONCE))]
        try:
            committing = asyncio.get_running_loop().run_in_executor(self._thread, self._commit, batch)
        except RuntimeError:  # no thread can be started now
            committing = asyncio.get_running_loop().create_future()
            committing.set_exception(TransientError(f"{self._path.name} has no thread to write it"))
        self._committing = committing
        committing.add_done_callback(partial(self._resolve, batch))

    def _resolve(self, batch: Sequence[_Operation[Any]], committed: asyncio.Future[list[_Done]]) -> None:
        self._committing = None
        if self._refused:
            # A reader opened while the disk was read-only holds a read-only log index, which SQLite shares within
            # the process: no writer could write until that reader is closed.
            self._close_reader()
        self._commit_next()
        fault = committed.exception()  # a bug in some *work*: it fails the whole batch
        results = [_Done()] * len(batch) if fault else committed.result()
        for operation, done in zip(batch, results, strict=True):
            if operation.waiter.done():  # the caller was cancelled; the operation was executed nevertheless
                continue
            error = fault or done.error
            if error is not None:
                operation.waiter.set_exception(error)
            else:
                operation.waiter.set_result(done.value)

    def _commit(self, batch: Sequence[_Operation[Any]]) -> list[_Done]:
        try:
            self._refuse_taken_away()
            connection = self._open_writer()
            before = connection.total_changes
            results = self._transaction(connection, batch)
            self._refused = False
            if connection.total_changes > before and any(operation.scrub for operation in batch):
                # The log keeps old pages until a checkpoint; busy readers only delay it.
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                self._reserve.fill()
        except sqlite3.Error as error:
            code = code_of(error)
            if code == sqlite3.SQLITE_FULL and self._reserve.release():
                return self._commit(batch)
            if code not in LOCKED and code != sqlite3.SQLITE_FULL:
                self._close_writer()
                self._refused = True
            if len(batch) > 1 and code not in LOCKED:
                # Retry separately, so that a failing operation does not affect the others.
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
            # Some faults (e.g. disk full) end the whole transaction:
            # https://www.sqlite.org/lang_transaction.html#response_to_errors_within_a_transaction A connection
            # opened on a read-only file stays read-only but still begins transactions.
            if not connection.in_transaction or code_of(error) == sqlite3.SQLITE_READONLY:
                raise
            connection.execute("ROLLBACK TO one")
            name = self._path.name
            done = _Done(error=translate_error(error, name) if isinstance(error, sqlite3.Error) else error)
        connection.execute("RELEASE one")
        return done

    def _open_writer(self) -> sqlite3.Connection:
        if self._writer is not None:
            return self._writer
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._path.exists():
                self._create()
        except OSError as error:
            raise TransientError(f"{self._path.name} is not to be opened: {error.strerror}") from error
        connection = self._connect(self._patience)
        try:
            self._prepare(connection)
        except BaseException:  # any error: the connection has no other owner
            connection.close()
            raise
        self._writer, self._place = connection, FileIdentity(self._path)
        self._reserve.fill()
        return connection

    def _create(self) -> None:
        """Make the file whole under another name first: one that is empty has lost what it held."""
        made = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}.new")
        # Before SQLite makes it: the log and its index inherit its mode.
        os.close(os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            with closing(self._connect(self._patience, made)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("BEGIN IMMEDIATE")
                self._take(connection, self._schema.script)
                connection.execute(f"PRAGMA application_id = {self._schema.application}")
                connection.execute(f"PRAGMA user_version = {self._schema.version}")
                connection.execute("COMMIT")
            try:
                os.link(made, self._path)
            except FileExistsError:
                pass  # another process was quicker
            except OSError:  # a file system without hard links
                made.rename(self._path)
        finally:
            for end in ("", LOG, INDEX):
                made.with_name(made.name + end).unlink(missing_ok=True)

    def _leave(self) -> None:
        if self._writer is not None and self._place is not None and self._place.harm is not None:
            # SQLite leaves the log of a moved file in place, which would damage the new file at that path.
            with suppress(sqlite3.Error):
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self._close_writer()

    def _refuse_taken_away(self) -> None:
        """TransientError if the next start would not find data written now. On either thread."""
        if (place := self._place) is not None and (harm := place.harm) is not None:
            name = self._path.name
            raise TransientError(f"{name} was taken away while in use ({harm.value}): put it back, or restart")

    def _connect(self, patience: timedelta, path: Path | None = None) -> sqlite3.Connection:
        connection = sqlite3.connect(
            path or self._path, timeout=patience.total_seconds(), isolation_level=None, check_same_thread=True
        )
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._fsync else 'NORMAL'}")
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        self._check(*_stamps(connection))
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            application, version = _stamps(connection)
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
        """Upgrade an older file before its first read. Faults are ignored here: the next use reports them."""
        with suppress(sqlite3.Error, MemoryExtprocError):
            if not self._path.exists():
                return
            with closing(self._connect(_GLANCE)) as glance:
                _, version = _stamps(glance)
            if 0 < version < self._schema.version:
                self._open_writer()

    @staticmethod
    def _take(connection: sqlite3.Connection, script: str) -> None:
        for statement in script.split(";\n\n"):
            connection.execute(statement)

    def _check(self, application: int, version: int) -> None:
        """TransientError for an unusable file: a retry works with a suitable program or another file."""
        if application != self._schema.application:
            fault = "is empty, or a database of something else: restore it, or move it aside to begin anew"
        elif version > self._schema.version:
            fault = (
                f"has schema version {version} of a newer memory-extproc, this one knows versions"
                f" up to {self._schema.version}: run the newer program, or move the file aside"
            )
        else:
            return
        if not self._foreign:
            log.error("file.not_ours", file=str(self._path), detail=fault)
        self._foreign = True
        raise TransientError(f"{self._path.name} {fault}")

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = self._place = None


class SqliteBacked:
    """A part that keeps its data in a SQLite file of its own. Use within `async with`."""

    _file: SqliteFile

    async def __aenter__(self) -> Self:
        await self._file.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._file.__aexit__()

    async def open(self) -> None:
        """Open the file; raises its faults."""
        await self._file.open()


def _stamps(connection: sqlite3.Connection) -> tuple[int, int]:
    """The application id and schema version; zeros for an empty file."""
    # Order matters: both are committed together, so a reader that sees a version also sees the application id.
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    return application, version


# SQLite errors, sorted into transient and permanent.

# https://www.sqlite.org/rescode.html, primary codes. Codes in none of these lists are treated as transient.
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
# Caused by the values of a statement: a retry fails again.
_PERMANENT = {sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE}
LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}


def code_of(error: BaseException) -> int:
    """The primary code; 0 if SQLite gave none."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def translate_error(error: sqlite3.Error, name: str) -> MemoryExtprocError:
    """Translate a SQLite error; *name* is the file's name without its directory."""
    code = code_of(error)
    if code in _PASSING:
        return TransientError(f"{name} is {_PASSING[code]}")
    if code in _DAMAGED:
        # Transient: an operator moves the file aside and we open the next, so no turn is discarded.
        return TransientError(f"{name} is {_DAMAGED[code]}; move it aside to begin anew")
    kind = PermanentError if code in _PERMANENT else UnknownFaultError
    return kind(f"{name} refused an operation ({getattr(error, 'sqlite_errorname', 'no code')})")


# Whether an open SQLite file is still at its path.
#
# An open file that was deleted or replaced keeps working, but its commits are lost at the next start: SQLite does
# not report it (https://www.sqlite.org/howtocorrupt.html, 2.4).

LOG, INDEX = "-wal", "-shm"

FileId = tuple[int, int]  # device and inode, which identify a file regardless of its name


class Harm(StrEnum):
    """A fault of the file. Also the label of files_taken_away."""

    GONE = "gone"
    REPLACED = "replaced"  # another file stands at the path
    LOG_GONE = "log_gone"  # the write-ahead log or its index is gone, with commits not yet in the file
    CUT_SHORT = "cut_short"


class FileIdentity:
    """The identity of the file at *path* and of its log, taken right after opening.

    Checks take a few microseconds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._id, self._size = _stat(path)
        # Built once: building a path costs more than the check.
        beside = [path.with_name(path.name + name) for name in (LOG, INDEX)]
        self._beside = tuple((one, found) for one in beside if (found := file_id(one)))

    @property
    def harm(self) -> Harm | None:
        """The damage since opening; None if intact."""
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
    """The identity of a file by path or descriptor; None if it does not exist."""
    return _stat(file)[0]


def _stat(file: Path | str | int) -> tuple[FileId | None, int]:
    """Identity and size in bytes."""
    try:
        found = os.stat(file)  # noqa: PTH116 - a descriptor has no Path
    except OSError:
        return None, 0
    return (found.st_dev, found.st_ino), found.st_size
