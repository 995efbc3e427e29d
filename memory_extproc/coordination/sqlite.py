"""Coordination in a SQLite file: for a single replica, or several processes on a machine that share the file."""

from __future__ import annotations

import asyncio
import json
import secrets
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby
from pathlib import Path

from memory_extproc.coordination.mirror import Copied, CopyKind, of_items, split_pages
from memory_extproc.coordination.sqlite_file import Schema, SqliteBacked, SqliteFile
from memory_extproc.errors import PermanentError
from memory_extproc.model import RECORD_KINDS, LedgerJob, LedgerMarks, Owner, WaitingPlace
from memory_extproc.observe.log import logger
from memory_extproc.ports import Changes, Now, OwnerEntry, OwnerTotals

# Statements are separated by a semicolon and an empty line. Owners are stored by key, never by name.
_SCHEMA = Schema(
    application=0x6D657863,  # "mexc"
    version=1,
    script="""
CREATE TABLE counters (
    owner TEXT PRIMARY KEY,
    version INTEGER NOT NULL DEFAULT 0,
    epoch INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE records (
    owner TEXT NOT NULL,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    expires REAL NOT NULL,
    PRIMARY KEY (owner, kind, key)
) WITHOUT ROWID;

CREATE INDEX records_by_expiry ON records (expires);

CREATE TABLE leases (name TEXT PRIMARY KEY, holder TEXT NOT NULL, expires REAL NOT NULL) WITHOUT ROWID
""",
)
_SWEEP = 16  # expired records that each write clears away, so that none is left for long
_MOST_DEFERRED = 2_000  # records; beyond it each write waits for its commit

log = logger(__name__)
_Place = tuple[str, str, str]  # of a record: owner, kind, key


@dataclass(frozen=True, slots=True, eq=False)
class _Deferred:
    """A record that waits for a commit."""

    value: bytes
    expires: float  # seconds since 1970


class SqliteCoordination(SqliteBacked):
    """Coordination in SQLite.

    Reads run on the event loop, some ten microseconds each; writes wait for their commit, but for records of kinds
    that may be *deferred*: this process has them at once, and the file within so long. A crash loses those; where
    the file cannot be written, writes wait for their commit again, and fail. Times come from *now*, in seconds
    since 1970."""

    def __init__(self, path: Path, *, now: Now, deferred: timedelta = timedelta()) -> None:
        """*deferred*: zero where each write waits for its commit."""
        self._file = SqliteFile(path, _SCHEMA)
        self._now, self._within = now, deferred
        self._deferred: dict[_Place, _Deferred] = {}
        self._failing = False  # the last deferred write was not committed

    async def version(self, owner: Owner) -> int:
        return self._counter("SELECT version FROM counters WHERE owner = ?", owner)

    async def bump(self, owner: Owner, changed: Sequence[str] | None = None) -> int:  # noqa: ARG002
        return await self._count(
            "INSERT INTO counters (owner, version) VALUES (?, 1)"
            " ON CONFLICT (owner) DO UPDATE SET version = version + 1 RETURNING version",
            owner,
        )

    async def changes(self, owner: Owner, since: int) -> Changes | None:  # noqa: ARG002
        """None: a single replica knows its own writes, and a command that wrote beside it may have written all."""
        return None

    async def epoch(self, owner: Owner) -> int:
        return self._counter("SELECT epoch FROM counters WHERE owner = ?", owner)

    async def advance_epoch(self, owner: Owner) -> int:
        return await self._count(
            "INSERT INTO counters (owner, epoch) VALUES (?, 1)"
            " ON CONFLICT (owner) DO UPDATE SET epoch = epoch + 1 RETURNING epoch",
            owner,
        )

    async def get_record(self, kind: str, owner: Owner, key: str) -> bytes | None:
        check_registered([kind])
        return self._record((owner.key, kind, key))

    async def find_records(self, kind: str, owner: Owner, keys: Sequence[str]) -> Mapping[str, bytes]:
        check_registered([kind])
        deferred = {key for key in keys if (owner.key, kind, key) in self._deferred}
        found = {key: value for key in deferred if (value := self._record((owner.key, kind, key))) is not None}
        if stored := [key for key in keys if key not in deferred]:
            rows = self._file.read_all(_LIVE_AMONG, (owner.key, kind, self._time(), json.dumps(stored)))
            found.update((key, bytes(value)) for key, value in rows)
        return found

    async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None:
        check_registered([kind])
        place, expires = (owner.key, kind, key), self._time() + ttl.total_seconds()
        if self._may_defer(kind):
            self._defer(place, value, expires)
            return
        await self._file.run(lambda connection: self._put(connection, place, value, expires))
        self._failing = False

    async def replace_record(
        self, kind: str, owner: Owner, key: str, old: bytes | None, new: bytes, ttl: timedelta
    ) -> bool:
        check_registered([kind])
        place, expires = (owner.key, kind, key), self._time() + ttl.total_seconds()
        if self._may_defer(kind):
            # Without a pause in between, so that of many swaps in this process one wins.
            if self._record(place) != old:
                return False
            self._defer(place, new, expires)
            return True

        def swap(connection: sqlite3.Connection) -> bool:
            row = connection.execute(_LIVE, (*place, self._time())).fetchone()
            if (None if row is None else bytes(row[0])) != old:
                return False
            self._put(connection, place, new, expires)
            return True

        swapped = await self._file.run(swap)
        self._failing = False
        return swapped

    async def delete_records(self, owner: Owner, kinds: Sequence[str] | None = None) -> None:
        check_registered(kinds or ())

        def delete(connection: sqlite3.Connection) -> None:
            if kinds is None:
                connection.execute("DELETE FROM records WHERE owner = ?", (owner.key,))
                return
            these = [(owner.key, kind) for kind in kinds]
            connection.executemany("DELETE FROM records WHERE owner = ? AND kind = ?", these)

        for place in [one for one in self._deferred if one[0] == owner.key]:
            if kinds is None or place[1] in kinds:
                del self._deferred[place]
        await self._file.run(delete, scrub=True)  # behind those that were deferred

    def _record(self, place: _Place) -> bytes | None:
        if (deferred := self._deferred.get(place)) is not None:
            return deferred.value if deferred.expires > self._time() else None
        row = self._file.read(_LIVE, (*place, self._time()))
        return None if row is None else bytes(row[0])

    def _may_defer(self, kind: str) -> bool:
        room = len(self._deferred) < _MOST_DEFERRED and not self._failing
        return room and bool(self._within) and RECORD_KINDS[kind].deferred

    def _defer(self, place: _Place, value: bytes, expires: float) -> None:
        deferred = _Deferred(value, expires)
        written = self._file.defer(lambda connection: self._put(connection, place, value, expires), self._within)
        self._deferred[place] = deferred
        written.add_done_callback(partial(self._settle, place, deferred))

    def _settle(self, place: _Place, deferred: _Deferred, written: asyncio.Future[None]) -> None:
        if self._deferred.get(place) is deferred:
            del self._deferred[place]
        error = None if written.cancelled() else written.exception()
        if error is not None and not self._failing:
            log.warning("coordination.not_written", kind=type(error).__name__)
        self._failing = error is not None

    async def acquire(self, name: str, holder: str, ttl: timedelta) -> bool:
        def take(connection: sqlite3.Connection) -> bool:
            now = self._time()
            ends = now + ttl.total_seconds()
            # A lease with an impossibly late end was taken before the clock was set back.
            connection.execute("UPDATE leases SET expires = ? WHERE name = ? AND expires > ?", (ends, name, ends))
            taken = connection.execute(
                "INSERT INTO leases (name, holder, expires) VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE"
                " SET holder = excluded.holder, expires = excluded.expires"
                " WHERE holder = excluded.holder OR expires <= ?",
                (name, holder, ends, now),
            )
            return taken.rowcount == 1

        return await self._file.run(take)

    async def release(self, name: str, holder: str) -> None:
        await self._file.execute("DELETE FROM leases WHERE name = ? AND holder = ?", (name, holder))

    def _time(self) -> float:
        return self._now().timestamp()

    def _counter(self, statement: str, owner: Owner) -> int:
        row = self._file.read(statement, (owner.key,))
        return 0 if row is None else int(row[0])

    async def _count(self, statement: str, owner: Owner) -> int:
        return int((await self._file.fetch(statement, (owner.key,)))[0][0])

    def _put(self, connection: sqlite3.Connection, place: _Place, value: bytes, expires: float) -> None:
        connection.execute(
            "DELETE FROM records WHERE (owner, kind, key) IN"
            " (SELECT owner, kind, key FROM records WHERE expires <= ? LIMIT ?)",
            (self._time(), _SWEEP),
        )
        connection.execute(
            "INSERT INTO records (owner, kind, key, value, expires) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (owner, kind, key) DO UPDATE SET value = excluded.value, expires = excluded.expires",
            (*place, value, expires),
        )


_LIVE = "SELECT value FROM records WHERE owner = ? AND kind = ? AND key = ? AND expires > ?"
_LIVE_AMONG = """
SELECT key, value FROM records
WHERE owner = ? AND kind = ? AND expires > ? AND key IN (SELECT value FROM json_each(?))
"""


# The ledger of forgets in a separate SQLite file. Exclude it from backups.

_LEDGER_SCHEMA = Schema(
    application=0x6D65786C,  # "mexl"
    version=1,
    script="""
CREATE TABLE keys (id INTEGER PRIMARY KEY, key BLOB NOT NULL);

CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    subject TEXT NOT NULL,
    body BLOB NOT NULL,
    shut INTEGER NOT NULL,
    open INTEGER NOT NULL
);

CREATE INDEX jobs_shut ON jobs (subject) WHERE shut = 1;

CREATE INDEX jobs_open ON jobs (number) WHERE open = 1;

CREATE TABLE cuts (subject TEXT NOT NULL, cut BLOB NOT NULL, PRIMARY KEY (subject, cut)) WITHOUT ROWID;

CREATE TABLE items (
    subject TEXT NOT NULL,
    item BLOB NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (subject, item)
) WITHOUT ROWID
""",
)
_JOBS = "SELECT id, subject, body, shut, open FROM jobs WHERE "
_JOB = """
INSERT INTO jobs (id, subject, body, shut, open) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET body = excluded.body, shut = excluded.shut, open = excluded.open
"""
_ITEM = """
INSERT INTO items (subject, item, at) VALUES (?, ?, ?)
ON CONFLICT (subject, item) DO UPDATE SET at = max(at, excluded.at)
"""
_KNOWN = """
SELECT EXISTS (SELECT 1 FROM jobs WHERE subject = ?1 AND shut = 1)
OR EXISTS (SELECT 1 FROM cuts WHERE subject = ?1) OR EXISTS (SELECT 1 FROM items WHERE subject = ?1)
"""

_RESERVE = 4 * 1024 * 1024  # bytes, for forgets on a full disk


class SqliteLedger(SqliteBacked):
    """The ledger in SQLite. Every commit survives power loss, so that no accepted forget is lost."""

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path, _LEDGER_SCHEMA, fsync=True, reserve=_RESERVE)

    async def key(self) -> bytes:
        def key(connection: sqlite3.Connection) -> bytes:
            connection.execute("INSERT OR IGNORE INTO keys VALUES (1, ?)", (secrets.token_bytes(32),))
            return bytes(connection.execute("SELECT key FROM keys").fetchone()[0])

        return await self._file.run(key)

    async def write(
        self, job: LedgerJob, *, cut: bytes | None = None, items: Sequence[bytes] = (), at: float = 0.0
    ) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute(_JOB, (job.id, job.subject, job.body, job.shut, job.open))
            if cut is not None:
                connection.execute("INSERT OR IGNORE INTO cuts VALUES (?, ?)", (job.subject, cut))
            connection.executemany(_ITEM, [(job.subject, item, at) for item in items])

        # Overwritten rows contained owner names.
        await self._file.run(write, scrub=not job.open)

    async def job(self, job_id: str) -> LedgerJob | None:
        rows = await self._jobs("id = ?", (job_id,))
        return rows[0] if rows else None

    async def list_unfinished(self) -> Sequence[LedgerJob]:
        return await self._jobs("open = 1 ORDER BY number", ())

    async def marks(self, subject: str) -> LedgerMarks:
        # Asked for every owner, and most have no forgets: a read without a transaction answers these.
        known = self._file.read(_KNOWN, (subject,))
        if known is None or not known[0]:
            return LedgerMarks()

        def read(connection: sqlite3.Connection) -> LedgerMarks:
            shut = connection.execute("SELECT 1 FROM jobs WHERE subject = ? AND shut = 1", (subject,)).fetchone()
            cuts = connection.execute("SELECT cut FROM cuts WHERE subject = ? ORDER BY cut", (subject,))
            items = connection.execute("SELECT item, at FROM items WHERE subject = ?", (subject,))
            return LedgerMarks(
                tuple(bytes(row[0]) for row in cuts), {bytes(row[0]): row[1] for row in items}, shut is not None
            )

        return await self._file.run(read)

    async def copies(self) -> AsyncIterator[Sequence[Copied]]:
        """Read the whole ledger, in the form in which replicas keep copies of it."""
        yield [Copied(CopyKind.KEY, "", await self.key(), "ledger")]
        for jobs in split_pages(await self._jobs("1 ORDER BY number", ())):
            yield [Copied.of_job(job) for job in jobs]
        for cuts in split_pages(await self._file.fetch("SELECT subject, cut FROM cuts")):
            yield [Copied(CopyKind.CUT, subject, bytes(cut)) for subject, cut in cuts]
        for rows in split_pages(await self._file.fetch("SELECT subject, at, item FROM items ORDER BY subject, at")):
            grouped = groupby(rows, key=lambda row: (row[0], row[1]))
            yield [
                copy
                for (subject, at), same in grouped
                for copy in of_items(subject, [bytes(row[2]) for row in same], at)
            ]

    async def _jobs(self, condition: str, values: tuple[object, ...]) -> list[LedgerJob]:
        rows = await self._file.fetch(_JOBS + condition, values)
        return [LedgerJob(row[0], row[1], bytes(row[2]), bool(row[3]), bool(row[4])) for row in rows]


# The registry of owners in a SQLite file of its own: no other file names owners.

_OWNERS_SCRIPT = """
CREATE TABLE owners (
    tenant TEXT NOT NULL,
    user TEXT NOT NULL,
    memories INTEGER NOT NULL,
    updated REAL NOT NULL,
    quarantined INTEGER NOT NULL,
    PRIMARY KEY (tenant, user)
) WITHOUT ROWID;

CREATE INDEX owners_quarantined ON owners (tenant, user) WHERE quarantined > 0;

CREATE TABLE totals (
    id INTEGER PRIMARY KEY, owners INTEGER NOT NULL, memories INTEGER NOT NULL, quarantined INTEGER NOT NULL
);

INSERT INTO totals VALUES (1, 0, 0, 0);

CREATE TRIGGER owner_added AFTER INSERT ON owners BEGIN
    UPDATE totals SET owners = owners + 1, memories = memories + new.memories,
        quarantined = quarantined + new.quarantined; END;

CREATE TRIGGER owner_changed AFTER UPDATE ON owners BEGIN
    UPDATE totals SET memories = memories + new.memories - old.memories,
        quarantined = quarantined + new.quarantined - old.quarantined; END;

CREATE TRIGGER owner_removed AFTER DELETE ON owners BEGIN
    UPDATE totals SET owners = owners - 1, memories = memories - old.memories,
        quarantined = quarantined - old.quarantined; END
"""
_OWNERS_SCHEMA = Schema(
    application=0x6D65786F,  # "mexo"
    version=2,
    script=_OWNERS_SCRIPT,
    # The file is counted anew from the store where it is empty, so an older one is replaced.
    upgrades={1: f"DROP TABLE owners;\n\nDROP TABLE totals;\n{_OWNERS_SCRIPT}"},
)
_PUT_OWNER = """
INSERT INTO owners (tenant, user, memories, updated, quarantined) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (tenant, user) DO UPDATE
SET memories = excluded.memories, updated = excluded.updated, quarantined = excluded.quarantined
"""
_OWNERS = """
SELECT tenant, user, memories, updated, quarantined FROM owners {}(tenant, user) > (?, ?) AND tenant <= ?
ORDER BY tenant, user LIMIT ?
"""
_ALL_OWNERS = _OWNERS.format("WHERE ")
_QUARANTINED_OWNERS = _OWNERS.format("INDEXED BY owners_quarantined WHERE quarantined > 0 AND ")


class SqliteOwners(SqliteBacked):
    """Implements OwnerRegistry."""

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path, _OWNERS_SCHEMA)

    async def put(self, entry: OwnerEntry) -> None:
        name, at = (entry.owner.tenant, entry.owner.user), entry.updated_at.timestamp()
        if entry.memories:
            await self._file.execute(_PUT_OWNER, (*name, entry.memories, at, entry.quarantined))
        else:
            await self._file.execute("DELETE FROM owners WHERE tenant = ? AND user = ?", name, scrub=True)

    async def page(
        self, after: Owner | None, limit: int, *, tenant: str = "", quarantined: bool = False
    ) -> Sequence[OwnerEntry]:
        # U+10FFFF sorts behind every tenant's name.
        last = tenant or "\U0010ffff"
        first = max((tenant, ""), ("", "") if after is None else (after.tenant, after.user))
        rows = self._file.read_all(_QUARANTINED_OWNERS if quarantined else _ALL_OWNERS, (*first, last, limit))
        return [
            OwnerEntry(Owner(row[0], row[1]), row[2], datetime.fromtimestamp(row[3], UTC), row[4]) for row in rows
        ]

    async def totals(self) -> OwnerTotals:
        row = self._file.read("SELECT owners, memories, quarantined FROM totals", ())
        return OwnerTotals(0, 0, 0) if row is None else OwnerTotals(*map(int, row))


# Only kinds of records that are registered are kept: a forget erases by the registry (model/records.py).


def check_registered(kinds: Iterable[str]) -> None:
    for kind in kinds:
        if kind not in RECORD_KINDS:
            raise PermanentError(f"records of the kind {kind!r} are not registered in model/records.py")


class SoleReplica:
    """Membership of a single replica."""

    def __init__(
        self, name: str = "data", *, oldest_waiting: Callable[[Owner | None], datetime | None] = lambda _: None
    ) -> None:
        """*name*: of the data directory.

        *oldest_waiting*: the time of the oldest accepted turn that is not in the journal yet, of a given owner or
        of all; None: there is none."""
        self._name, self.oldest_waiting = name, oldest_waiting

    def holds(self) -> bool:
        return True

    async def waiting(self, owner: Owner | None = None) -> Sequence[WaitingPlace]:
        oldest = self.oldest_waiting(owner)
        return () if oldest is None else (WaitingPlace(self._name, oldest, live=True),)

    async def tell(self, subject: str) -> None:
        """Return at once: there is no other replica."""
