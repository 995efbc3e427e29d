"""Consent: users' choices, tenants' defaults, and a local cache of both.

An `off` is never overridden. While the records are unreachable, recall obeys a cached `off`; a cached permission
holds only for a short grace period, after which nothing is allowed. Learning obeys neither: whether a turn may be
kept stays undecided until the records answer."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from cachetools import LRUCache

from memory_extproc.coordination import read_lua
from memory_extproc.coordination.mirror import Copied, CopyKind, split_pages
from memory_extproc.coordination.sqlite_file import Schema, SqliteBacked, SqliteFile
from memory_extproc.errors import MemoryExtprocError, PermanentError, TransientError
from memory_extproc.model import SHARED, Consent, ConsentChange, Owner
from memory_extproc.observe.log import logger
from memory_extproc.ports import ConsentRecords, Now, Steady
from memory_extproc.settings import CurrentSettings
from memory_extproc.settings.identity import ConsentDefault, Privacy

if TYPE_CHECKING:
    from memory_extproc.coordination.recovery import Recovery
    from memory_extproc.coordination.redis_client import RedisLink


log = logger(__name__)
_NOBODY = Owner("", f"{SHARED}nobody")  # whose choice is asked for to see whether choices can be
_TRIES = 5  # to write a change, while others write changes of the same owner


_DEFAULTS: Mapping[ConsentDefault, Consent] = {"opt_out": Consent.ON, "opt_in": Consent.OFF}
_PAUSE = timedelta(seconds=1)  # after a failure, during which the records are not queried


def default_consent(privacy: Privacy, owner: Owner) -> Consent:
    """The consent of an owner who made no choice."""
    return _DEFAULTS[privacy.consent_of.get(owner.tenant, privacy.consent)]


@dataclass(frozen=True, slots=True)
class _Known:
    consent: Consent | None  # None: the owner made no choice, and the default holds
    at: datetime  # when the records said so, by the steady time
    chosen: datetime | None = None  # when the owner made it
    written: bool = True  # False: a denial that the records may not have


class Consents:
    """Implements ports.ConsentRegistry over *records*. Owned by a single event loop."""

    def __init__(
        self,
        records: ConsentRecords,
        current: CurrentSettings,
        *,
        now: Now,
        monotonic_now: Steady | None = None,
        owners: int = 100_000,
    ) -> None:
        """*monotonic_now*: measures the age of cached answers; defaults to *now*. *owners*: whose consent is held
        in process; the least recently asked go first."""
        self._records, self._current, self._now = records, current, now
        self._monotonic_now = monotonic_now or now
        self._known: LRUCache[Owner, _Known] = LRUCache(owners)
        self._not_before: datetime | None = None  # after a failure: the time of the next query
        self._changes = 0  # made through us; an answer read before a change must not be cached after it

    @property
    def _privacy(self) -> Privacy:
        return self._current.settings.privacy

    async def read_consent(self, owner: Owner) -> Consent | None:
        now = self._monotonic_now()
        known = self._known.get(owner)
        if known is not None and self._is_fresh(known):
            return self._consent(owner, known)
        if self._not_before is None or now >= self._not_before:
            try:
                async with asyncio.timeout((self._current.settings.deadline / 3).total_seconds()):
                    return await self.get(owner)
            except (MemoryExtprocError, TimeoutError) as error:
                if self._not_before is None:
                    log.warning("consent.unknown", error=type(error).__name__)
                self._not_before = now + _PAUSE
                known = self._known.get(owner)
        return self._last_known(owner, known)

    def refuses(self, owner: Owner) -> bool:
        known = self._known.get(owner)
        if known is None or self._consent(owner, known) is Consent.ON:
            return False
        return self._is_fresh(known) or not known.written

    async def answers(self) -> bool:
        try:
            await self._records.latest(_NOBODY)
        except MemoryExtprocError:
            return False
        return True

    async def allows_learning(self, owner: Owner, since: datetime | None = None) -> bool | None:
        known = self._known.get(owner)
        try:
            if known is None or not self._is_fresh(known):
                await self.get(owner)
                known = self._known[owner]
            if known.consent is Consent.ON and since is not None and known.chosen and known.chosen > since:
                changes = await self._records.history(owner)
                before = [change.consent for change in changes if change.at <= since]
                then = (before or [default_consent(self._privacy, owner)])[-1:]
                after = [change.consent for change in changes if change.at > since]
                return {*then, *after} == {Consent.ON}
        except MemoryExtprocError:
            # An old answer decides nothing: the owner may have chosen otherwise on another replica since.
            return False if self.refuses(owner) else None
        return self._consent(owner, known) is Consent.ON

    def _consent(self, owner: Owner, known: _Known) -> Consent:
        return default_consent(self._privacy, owner) if known.consent is None else known.consent

    def _is_fresh(self, known: _Known) -> bool:
        return self._monotonic_now() - known.at < self._privacy.consent_fresh

    def _last_known(self, owner: Owner, known: _Known | None) -> Consent | None:
        if known is None:
            return None
        consent = self._consent(owner, known)
        if consent is Consent.OFF or self._monotonic_now() - known.at < self._privacy.consent_grace:
            return consent
        return None

    async def get(self, owner: Owner) -> Consent:
        while True:
            changes, asked = self._changes, self._monotonic_now()
            latest = await self._records.latest(owner)
            if self._not_before is not None:
                self._not_before = None
                log.info("consent.known_again")
            if changes == self._changes:
                known = _Known(None, asked) if latest is None else _Known(latest.consent, asked, chosen=latest.at)
                self._hold(owner, known)
                return self._consent(owner, known)

    async def set(self, owner: Owner, consent: Consent, *, by: str) -> ConsentChange:
        if consent is Consent.OFF:
            # Cache the denial before the write: even if the write fails, it holds in this process.
            self._changes += 1
            self._hold(owner, _Known(consent, self._monotonic_now(), chosen=self._now(), written=False))
        for _ in range(_TRIES):
            latest = await self._records.latest(owner)
            at = self._now() if latest is None else max(self._now(), latest.at + timedelta(microseconds=1))
            change = ConsentChange(consent, at, by)
            if await self._records.add(owner, change, after=latest):
                self._changes += 1
                self._hold(owner, _Known(consent, self._monotonic_now(), chosen=change.at))
                return change
        raise TransientError("others keep changing this consent")

    async def history(self, owner: Owner) -> tuple[ConsentChange, ...]:
        return tuple(await self._records.history(owner))

    async def counts(self) -> Mapping[Consent, int]:
        return await self._records.counts()

    def _hold(self, owner: Owner, known: _Known) -> None:
        self._known[owner] = known


# Consent storage: SQLite or Redis. Choices never expire, and a forget does not erase them.

# Owners are stored by key, never by name.
_SCHEMA = Schema(
    application=0x6D657873,  # "mexs"
    version=1,
    script="""
CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    consent TEXT NOT NULL,
    at REAL NOT NULL,
    by TEXT NOT NULL
);

CREATE INDEX changes_by_owner ON changes (owner, number)
""",
)


class SqliteConsent(SqliteBacked):
    """ConsentRecords in a separate file, so that backups can exclude everything else.

    A change survives power loss: changes are rare, and users rely on them."""

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path, _SCHEMA, fsync=True)

    async def add(self, owner: Owner, change: ConsentChange, *, after: ConsentChange | None) -> bool:
        values = (owner.key, change.consent.value, change.at.timestamp(), change.by)
        latest = () if after is None else (after.consent.value, after.at.timestamp(), after.by)

        def add(connection: sqlite3.Connection) -> bool:
            if (connection.execute(f"{_CHANGES} DESC LIMIT 1", (owner.key,)).fetchone() or ()) != latest:
                return False
            connection.execute("INSERT INTO changes (owner, consent, at, by) VALUES (?, ?, ?, ?)", values)
            return True

        return await self._file.run(add)

    async def latest(self, owner: Owner) -> ConsentChange | None:
        row = self._file.read(f"{_CHANGES} DESC LIMIT 1", (owner.key,))
        return None if row is None else _of_row(row)

    async def copies(self) -> AsyncIterator[Sequence[Copied]]:
        """Read every change, in the form in which replicas keep copies of it."""
        for some in split_pages(
            await self._file.fetch("SELECT owner, consent, at, by FROM changes ORDER BY number")
        ):
            yield [
                Copied(CopyKind.CONSENT, owner, msgspec.json.encode(_Written(Consent(consent), at, by)))
                for owner, consent, at, by in some
            ]

    async def history(self, owner: Owner) -> Sequence[ConsentChange]:
        return tuple(map(_of_row, await self._file.fetch(_CHANGES, (owner.key,))))

    async def counts(self) -> Mapping[Consent, int]:
        rows = await self._file.fetch(_LATEST_CHOICES)
        return {Consent(consent): count for consent, count in rows}


_LATEST_CHOICES = """
SELECT consent, COUNT(*) FROM changes
WHERE number IN (SELECT MAX(number) FROM changes GROUP BY owner) GROUP BY consent
"""
_CHANGES = "SELECT consent, at, by FROM changes WHERE owner = ? ORDER BY number"


class _Written(msgspec.Struct, frozen=True, array_like=True):
    """A change as stored in Redis."""

    consent: Consent
    at: float
    by: str


class RedisConsent:
    """ConsentRecords as a Redis list per owner, with the link's timeout on each call.

    Also a Restorable: with a *recovery*, nothing is read from a Redis that lost data, and each change has a copy
    when `add` returns."""

    def __init__(
        self, link: RedisLink, *, prefix: str = "memory-extproc", recovery: Recovery | None = None
    ) -> None:
        self._link, self._prefix, self._recovery = link, prefix, recovery
        self._add = link.client.register_script(read_lua("add_choice"))
        self._merge = link.client.register_script(read_lua("merge_choice"))

    async def add(self, owner: Owner, change: ConsentChange, *, after: ConsentChange | None) -> bool:
        if self._recovery is not None:
            self._recovery.check()
        written, latest = _to_bytes(change), b"" if after is None else _to_bytes(after)
        if not await self._link.run_replicated(self._add, [self._key(owner.key)], [written, latest]):
            return False
        if self._recovery is not None:
            await self._recovery.advance()
            await self._recovery.keep([Copied(CopyKind.CONSENT, owner.key, written)])
        return True

    async def latest(self, owner: Owner) -> ConsentChange | None:
        found = await self._range(owner, -1)
        return found[0] if found else None

    async def history(self, owner: Owner) -> Sequence[ConsentChange]:
        return await self._range(owner, 0)

    async def _range(self, owner: Owner, first: int) -> Sequence[ConsentChange]:
        pipeline = self._link.client.pipeline(transaction=False)
        pipeline.lrange(self._key(owner.key), first, -1)
        if self._recovery is None:
            (found,) = await self._link.limit_time(pipeline.execute())
        else:
            (found,) = await self._recovery.read(pipeline)
        return tuple(map(_of_bytes, found))

    async def counts(self) -> Mapping[Consent, int]:
        latest: dict[str, Consent] = {}  # a scan may show a key twice
        async for names in self._link.scan(f"{self._prefix}:{{*}}:consent", 1_000):
            pipeline = self._link.client.pipeline(transaction=False)
            for name in names:
                pipeline.lindex(name, -1)
            found = await self._link.limit_time(pipeline.execute()) if names else ()
            latest.update((name, _of_bytes(one).consent) for name, one in zip(names, found, strict=True) if one)
        return Counter(latest.values())

    async def merge(self, copies: Sequence[Copied]) -> None:
        for copy in copies:
            if copy.kind is CopyKind.CONSENT:
                await self._link.limit_time(self._merge(keys=[self._key(copy.subject)], args=[copy.body]))

    async def copies(self) -> AsyncIterator[Sequence[Copied]]:
        start = f"{self._prefix}:{{"
        async for names in self._link.scan(f"{start}*}}:consent", 1_000):
            for name in names:
                key = name.removeprefix(start).removesuffix("}:consent")
                changes = await self._link.limit_time(self._link.client.lrange(name, 0, -1))
                yield [Copied(CopyKind.CONSENT, key, bytes(change)) for change in changes]

    def _key(self, key: str) -> str:
        return f"{self._prefix}:{{{key}}}:consent"


def _of_row(row: Sequence[Any]) -> ConsentChange:
    consent, at, by = row
    return _change(consent, at, by)


def _to_bytes(change: ConsentChange) -> bytes:
    return msgspec.json.encode(_Written(change.consent, change.at.timestamp(), change.by))


def _of_bytes(raw: bytes) -> ConsentChange:
    try:
        written = msgspec.json.decode(raw, type=_Written)
    except msgspec.MsgspecError as error:
        raise PermanentError("a record of consent is not as we write them") from error
    return _change(written.consent, written.at, written.by)


def _change(consent: str, at: float, by: str) -> ConsentChange:
    """Build a change. PermanentError for an invalid value: unreadable consent allows nothing."""
    try:
        return ConsentChange(Consent(consent), datetime.fromtimestamp(at, UTC), by)
    except ValueError as error:
        raise PermanentError("a record of consent is not as we write them") from error
