"""The ledger of forgets in Redis, for several replicas. To be kept out of backups."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from memory_extproc.model import LedgerJob, LedgerMarks
from memory_extproc.redis_link import RedisLink

# All keys carry one hash tag: a job and its marks are written in one step.
# KEYS: jobs, order, counter, shut ones of the subject, cuts, items. ARGV: id, job, shut, open, cut, at, items...
_WRITE = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
if ARGV[4] == '1' then
  if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then
    redis.call('ZADD', KEYS[2], redis.call('INCR', KEYS[3]), ARGV[1])
  end
else
  redis.call('ZREM', KEYS[2], ARGV[1])
end
if ARGV[3] == '1' then redis.call('SADD', KEYS[4], ARGV[1]) else redis.call('SREM', KEYS[4], ARGV[1]) end
if ARGV[5] ~= '' then redis.call('SADD', KEYS[5], ARGV[5]) end
for n = 7, #ARGV do
  local known = redis.call('HGET', KEYS[6], ARGV[n])
  if not known or tonumber(known) < tonumber(ARGV[6]) then redis.call('HSET', KEYS[6], ARGV[n], ARGV[6]) end
end
return 1
"""
# KEYS: shut ones, cuts, items.
_MARKS = """
return {redis.call('SCARD', KEYS[1]), redis.call('SMEMBERS', KEYS[2]), redis.call('HGETALL', KEYS[3])}
"""
_AT_ONCE = 2_000  # items in one step; the job stays shut until all of them are written


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    subject: str
    body: bytes
    shut: bool
    open: bool


class RedisLedger:
    def __init__(self, link: RedisLink, *, prefix: str) -> None:
        self._link = link
        self._base = f"{prefix}:{{ledger}}"
        self._write = link.client.register_script(_WRITE)
        self._marks = link.client.register_script(_MARKS)

    async def key(self) -> bytes:
        client, name = self._link.client, f"{self._base}:key"
        await self._link.bounded(client.set(name, secrets.token_bytes(32), nx=True))
        return bytes(await self._link.bounded(client.get(name)))

    async def write(
        self, job: LedgerJob, *, cut: bytes | None = None, items: Sequence[bytes] = (), at: float = 0.0
    ) -> None:
        kept = msgspec.json.encode(_Kept(job.subject, job.body, job.shut, job.open))
        keys = [f"{self._base}:{name}" for name in ("jobs", "order", "counter")] + self._of(job.subject)
        for start in range(0, len(items) or 1, _AT_ONCE):
            few = items[start : start + _AT_ONCE]
            args: list[str | bytes | int] = [job.id, kept, int(job.shut), int(job.open), cut or b"", repr(at), *few]
            await self._link.bounded(self._write(keys=keys, args=args))

    async def job(self, job_id: str) -> LedgerJob | None:
        raw = await self._link.bounded(self._link.client.hget(f"{self._base}:jobs", job_id))
        return None if raw is None else _read(job_id, raw)

    async def unfinished(self) -> Sequence[LedgerJob]:
        ids = await self._link.bounded(self._link.client.zrange(f"{self._base}:order", 0, -1))
        found = [await self.job(one.decode()) for one in ids]
        return [job for job in found if job is not None and job.open]

    async def marks(self, subject: str) -> LedgerMarks:
        shut, cuts, items = await self._link.bounded(self._marks(keys=self._of(subject)))
        pairs = zip(items[::2], items[1::2], strict=True)
        return LedgerMarks(
            tuple(sorted(bytes(cut) for cut in cuts)), {bytes(item): float(at) for item, at in pairs}, shut > 0
        )

    def _of(self, subject: str) -> list[str]:
        return [f"{self._base}:{what}:{subject}" for what in ("shut", "cuts", "items")]


def _read(job_id: str, raw: bytes) -> LedgerJob:
    kept = msgspec.json.decode(raw, type=_Kept)
    return LedgerJob(job_id, kept.subject, kept.body, kept.shut, kept.open)
