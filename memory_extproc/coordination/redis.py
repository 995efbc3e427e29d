"""Coordination in Redis, for several replicas. Needs Redis 6 or newer with `maxmemory-policy noeviction`.

Versions and epochs must not be evicted: without its epoch, a write from before a forget would be accepted. All keys
of an owner share a hash tag and so lie on the same cluster node."""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from memory_extproc.coordination import read_lua
from memory_extproc.coordination.mirror import Copied, CopyKind, of_items
from memory_extproc.coordination.recovery import Recovery
from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.coordination.sqlite import check_registered
from memory_extproc.errors import PermanentError
from memory_extproc.model import LedgerJob, LedgerMarks, Owner
from memory_extproc.ports import Changes, KeyWrapper, OwnerEntry, OwnerTotals

_GLANCE = timedelta(milliseconds=60)  # how long a request waits for the version of cached data


_CHANGES_KEPT = 32  # writes of an owner, for replicas that hold the owner's memories as of an earlier version
_CHANGES_FOR = timedelta(minutes=10)
_MOST_CHANGED = 100  # ids of one write; beyond them reading all anew costs little more


def _milliseconds(ttl: timedelta) -> int:
    return max(1, int(ttl.total_seconds() * 1000))


class RedisCoordination:
    """Coordination over *link*, whose owner closes it."""

    def __init__(self, link: RedisLink, *, prefix: str = "memory-extproc") -> None:
        self._link, self._prefix = link, prefix
        self._client = link.client
        self._swap = self._client.register_script(read_lua("swap_record"))
        self._delete = self._client.register_script(read_lua("delete_records"))
        self._acquire = self._client.register_script(read_lua("acquire_lease"))
        self._bump = self._client.register_script(read_lua("bump_version"))
        self._release = self._client.register_script(read_lua("release_lease"))
        self._advance = self._client.register_script("return redis.call('INCR', KEYS[1])")

    async def open(self) -> None:
        """Ping the server; raises connection and authentication errors."""
        await self._link.open()

    async def version(self, owner: Owner) -> int:
        call = self._client.get(self._key(owner, "version"))
        return int(await self._link.limit_time(call, within=_GLANCE) or 0)

    async def bump(self, owner: Owner, changed: Sequence[str] | None = None) -> int:
        known = changed is not None and 0 < len(changed) <= _MOST_CHANGED
        keys = [self._key(owner, "version"), self._key(owner, "changes")]
        args = [" ".join(changed or ()) if known else "", _CHANGES_KEPT, _milliseconds(_CHANGES_FOR)]
        return int(await self._call_within_timeout(self._bump(keys=keys, args=args)))

    async def changes(self, owner: Owner, since: int) -> Changes | None:
        kept = await self._call_within_timeout(self._client.lrange(self._key(owner, "changes"), 0, -1))
        version, ids = since, set[str]()
        for entry in kept:
            number, *changed = bytes(entry).decode().split(" ")
            if int(number) <= since:
                continue
            if int(number) != version + 1:
                return None
            version = int(number)
            ids.update(changed)
        return Changes(version, frozenset(ids)) if version > since else None

    async def epoch(self, owner: Owner) -> int:
        return int(await self._call_within_timeout(self._client.get(self._key(owner, "epoch"))) or 0)

    async def advance_epoch(self, owner: Owner) -> int:
        return int(await self._link.run_replicated(self._advance, [self._key(owner, "epoch")], []))

    async def get_record(self, kind: str, owner: Owner, key: str) -> bytes | None:
        value = await self._call_within_timeout(self._client.get(self._record(kind, owner, key)))
        return None if value is None else bytes(value)

    async def find_records(self, kind: str, owner: Owner, keys: Sequence[str]) -> Mapping[str, bytes]:
        values = await asyncio.gather(*(self.get_record(kind, owner, key) for key in keys))
        return {key: value for key, value in zip(keys, values, strict=True) if value is not None}

    async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None:
        await self._swap_record(kind, owner, key, ("put", b"", value, _milliseconds(ttl)))

    async def replace_record(
        self, kind: str, owner: Owner, key: str, old: bytes | None, new: bytes, ttl: timedelta
    ) -> bool:
        expected = ("absent", b"") if old is None else ("same", old)
        return await self._swap_record(kind, owner, key, (*expected, new, _milliseconds(ttl)))

    async def delete_records(self, owner: Owner, kinds: Sequence[str] | None = None) -> None:
        if kinds is not None and not kinds:
            return
        starts = [self._record(kind, owner, "") for kind in kinds or ()]
        await self._call_within_timeout(self._delete(keys=[self._key(owner, "records")], args=starts))

    async def acquire(self, name: str, holder: str, ttl: timedelta) -> bool:
        lease = f"{self._prefix}:lease:{name}"
        return bool(await self._call_within_timeout(self._acquire(keys=[lease], args=[holder, _milliseconds(ttl)])))

    async def release(self, name: str, holder: str) -> None:
        await self._call_within_timeout(self._release(keys=[f"{self._prefix}:lease:{name}"], args=[holder]))

    async def _swap_record(self, kind: str, owner: Owner, key: str, args: Sequence[str | bytes | int]) -> bool:
        keys = [self._record(kind, owner, key), self._key(owner, "records")]
        return bool(await self._call_within_timeout(self._swap(keys=keys, args=args)))

    async def _call_within_timeout(self, call: Awaitable[Any]) -> Any:
        return await self._link.limit_time(call)

    def _key(self, owner: Owner, what: str) -> str:
        return f"{self._prefix}:{{{owner.key}}}:{what}"

    def _record(self, kind: str, owner: Owner, key: str) -> str:
        check_registered([kind])
        # The kind's length is a prefix, so that no two pairs of kind and key collide.
        return self._key(owner, f"record:{len(kind)}:{kind}:{key}")


# The registry of owners: names in a sorted set of equal scores, which Redis keeps in the order of their bytes.


class RedisOwners:
    """Implements OwnerRegistry. *link* is others', too, and outlives it."""

    def __init__(self, link: RedisLink, *, prefix: str = "memory-extproc") -> None:
        self._link, self._client = link, link.client
        self._names, self._counts, self._totals, self._quarantined = (
            f"{prefix}:{{owners}}:{what}" for what in ("names", "counts", "totals", "quarantined")
        )
        self._put = self._client.register_script(read_lua("put_owner"))

    async def put(self, entry: OwnerEntry) -> None:
        at = int(entry.updated_at.timestamp())
        args: list[str | int] = [_owner_name(entry.owner), entry.memories, at, entry.quarantined]
        keys = [self._names, self._counts, self._totals, self._quarantined]
        await self._link.limit_time(self._put(keys=keys, args=args))

    async def page(
        self, after: Owner | None, limit: int, *, tenant: str = "", quarantined: bool = False
    ) -> Sequence[OwnerEntry]:
        first, last = (f"[{tenant}\0", f"({tenant}\1") if tenant else ("-", "+")
        if after is not None:
            first = f"({_owner_name(after)}"
        listed = self._quarantined if quarantined else self._names
        names = await self._link.limit_time(self._client.zrangebylex(listed, first, last, 0, limit))
        counts = await self._link.limit_time(self._client.hmget(self._counts, names)) if names else []
        found = []
        for name, count in zip(names, counts, strict=True):
            if count is not None:  # it went between the two
                memories, at, *held = map(int, bytes(count).split())
                whose = Owner(*bytes(name).decode("utf-8", "surrogatepass").split("\0", 1))
                found.append(OwnerEntry(whose, memories, datetime.fromtimestamp(at, UTC), *held))
        return found

    async def totals(self) -> OwnerTotals:
        owners = await self._link.limit_time(self._client.zcard(self._names))
        totals = await self._link.limit_time(self._client.hmget(self._totals, ["memories", "quarantined"]))
        return OwnerTotals(int(owners), *(int(one or 0) for one in totals))


def _owner_name(owner: Owner) -> str:
    return f"{owner.tenant}\0{owner.user}"


# The ledger of forgets in Redis, for several replicas. To be kept out of backups.

_CONTEXT = b"key of the ledger of forgets"
_WRAPPED = "wrapped"  # in the place of a subject
_AT_ONCE = 2_000  # items per call; the job stays shut until all are written


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    subject: str
    body: bytes
    shut: bool
    open: bool


class RedisLedger:
    """The ledger in Redis; also a Restorable.

    With a *recovery*, nothing is read from a Redis that lost data, and each write has a copy when the call returns.
    The copy of the key is wrapped by *wraps*, if given."""

    def __init__(
        self, link: RedisLink, *, prefix: str, recovery: Recovery | None = None, wraps: KeyWrapper | None = None
    ) -> None:
        self._link, self._recovery, self._wraps = link, recovery, wraps
        self._base = f"{prefix}:{{ledger}}"
        self._write = link.client.register_script(read_lua("write_forget"))
        self._marks = link.client.register_script(read_lua("read_marks"))
        self._key: bytes | None = None  # once it has a copy

    async def key(self) -> bytes:
        self._check()
        if self._key is None:
            client, name = self._link.client, f"{self._base}:key"
            await self._link.limit_time(client.set(name, secrets.token_bytes(32), nx=True))
            key = bytes(await self._link.limit_time(client.get(name)))
            if self._recovery is not None:
                await self._recovery.advance()
                await self._recovery.keep([await self._copy_of_key(key)])
            self._key = key
        return self._key

    async def write(
        self, job: LedgerJob, *, cut: bytes | None = None, items: Sequence[bytes] = (), at: float = 0.0
    ) -> None:
        self._check()
        for start in range(0, len(items) or 1, _AT_ONCE):
            written = self._script_arguments(job, cut or b"", items[start : start + _AT_ONCE], at)
            await self._link.run_replicated(self._write, *written)
        if self._recovery is not None:
            await self._recovery.advance()
            cuts = [Copied(CopyKind.CUT, job.subject, cut)] if cut else []
            await self._recovery.keep([Copied.of_job(job), *cuts, *of_items(job.subject, items, at)])

    def _script_arguments(
        self, job: LedgerJob, cut: bytes, items: Sequence[bytes], at: float, *, copy: bool = False
    ) -> tuple[list[str], list[str | bytes | int]]:
        """Script arguments for the items of a single call."""
        kept = msgspec.json.encode(_Kept(job.subject, job.body, job.shut, job.open))
        keys = [f"{self._base}:{name}" for name in ("jobs", "order", "counter")] + self._of(job.subject)
        return keys, [job.id, kept, int(job.shut), int(job.open), cut, repr(at), int(copy), *items]

    async def job(self, job_id: str) -> LedgerJob | None:
        found = await self._jobs([job_id])
        return found[0] if found else None

    async def list_unfinished(self) -> Sequence[LedgerJob]:
        self._check()
        pipeline = self._link.client.pipeline(transaction=False)
        pipeline.zrange(f"{self._base}:order", 0, -1)
        (ids,) = await self._read(pipeline)
        parts = (ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE))
        return [job for part in parts for job in await self._jobs([one.decode() for one in part]) if job.open]

    async def _jobs(self, ids: Sequence[str]) -> list[LedgerJob]:
        """The existing jobs of *ids*, in their order."""
        self._check()
        if not ids:
            return []
        pipeline = self._link.client.pipeline(transaction=False)
        pipeline.hmget(f"{self._base}:jobs", ids)
        (kept,) = await self._read(pipeline)
        return [_read(one, raw) for one, raw in zip(ids, kept, strict=True) if raw is not None]

    async def _read(self, pipeline: Any) -> list[Any]:
        if self._recovery is not None:
            return await self._recovery.read(pipeline)
        answers: list[Any] = await self._link.limit_time(pipeline.execute())
        return answers

    async def marks(self, subject: str) -> LedgerMarks:
        return (await self._marks_of(subject))[0]

    async def _marks_of(self, subject: str) -> tuple[LedgerMarks, list[str]]:
        """The marks, with the ids of the jobs that shut the subject."""
        floor = 0 if self._recovery is None else self._recovery.sequence
        keys = [*self._of(subject), f"{self._base}:generation"]
        fields = ["id"] if self._recovery is None else self._recovery.fields
        shut, cuts, items, standing = await self._link.limit_time(self._marks(keys=keys, args=fields))
        if self._recovery is not None:
            self._recovery.compare(standing[0], standing[1], floor)
        pairs = zip(items[::2], items[1::2], strict=True)
        marks = LedgerMarks(
            tuple(sorted(bytes(cut) for cut in cuts)), {bytes(item): float(at) for item, at in pairs}, bool(shut)
        )
        return marks, [one.decode() for one in shut]

    async def merge(self, copies: Sequence[Copied]) -> None:
        for copy in copies:
            job = LedgerJob(copy.id, copy.subject, copy.body, copy.shut, copy.open)
            none = LedgerJob("", copy.subject, b"", shut=False, open=False)
            match copy.kind:
                case CopyKind.KEY:
                    key = await self._key_in(copy)
                    await self._link.limit_time(self._link.client.set(f"{self._base}:key", key))
                case CopyKind.JOB:
                    await self._write_copy(job, b"", (), 0.0)
                case CopyKind.CUT:
                    await self._write_copy(none, copy.body, (), 0.0)
                case CopyKind.ITEMS:
                    await self._write_copy(none, b"", copy.items, copy.at)

    async def _write_copy(self, job: LedgerJob, cut: bytes, items: Sequence[bytes], at: float) -> None:
        await self._link.limit_time(self._write(*self._script_arguments(job, cut, items, at, copy=True)))

    async def _key_in(self, copy: Copied) -> bytes:
        if copy.subject != _WRAPPED:
            return copy.body
        if self._wraps is None:
            raise PermanentError("the copy of the ledger's key is wrapped with a master key")
        return await self._wraps.unwrap(copy.body, _CONTEXT)

    async def copies_of(self, subject: str) -> Sequence[Copied]:
        """Copies of a subject's records, including only jobs that shut it."""
        marks, shut = await self._marks_of(subject)
        by_moment = defaultdict[float, list[bytes]](list)
        for item, at in marks.items.items():
            by_moment[at].append(item)
        return [
            *map(Copied.of_job, await self._jobs(shut)),
            *(Copied(CopyKind.CUT, subject, cut) for cut in marks.cuts),
            *(copy for at, found in by_moment.items() for copy in of_items(subject, sorted(found), at)),
        ]

    async def copies(self) -> AsyncIterator[Sequence[Copied]]:
        client = self._link.client
        if (key := await self._link.limit_time(client.get(f"{self._base}:key"))) is not None:
            yield [await self._copy_of_key(bytes(key))]
        cursor = -1
        while cursor:
            call = client.hscan(f"{self._base}:jobs", cursor=max(cursor, 0), count=_AT_ONCE)
            cursor, jobs = await self._link.limit_time(call)
            yield [Copied.of_job(_read(one.decode(), raw)) for one, raw in jobs.items()]
        for what in ("cuts", "items"):
            async for names in self._link.scan(f"{self._base}:{what}:*", _AT_ONCE):
                for name in names:
                    yield await self.copies_of(name.rpartition(":")[2])

    async def _copy_of_key(self, key: bytes) -> Copied:
        if self._wraps is None:
            return Copied(CopyKind.KEY, "", key, "ledger")
        return Copied(CopyKind.KEY, _WRAPPED, await self._wraps.wrap(key, _CONTEXT), "ledger")

    def _check(self) -> None:
        if self._recovery is not None:
            self._recovery.check()

    def _of(self, subject: str) -> list[str]:
        return [f"{self._base}:{what}:{subject}" for what in ("shut", "cuts", "items")]


def _read(job_id: str, raw: bytes) -> LedgerJob:
    kept = msgspec.json.decode(raw, type=_Kept)
    return LedgerJob(job_id, kept.subject, kept.body, kept.shut, kept.open)
