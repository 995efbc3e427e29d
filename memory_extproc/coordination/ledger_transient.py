"""The ledger of forgets kept in memory. For tests; passes the contract suite of Ledger."""

from __future__ import annotations

from collections.abc import Sequence

from memory_extproc.model import LedgerJob, LedgerMarks


class TransientLedger:
    """Several users of one object are replicas that share it. *fault*, when set, is raised by every call.
    What rests in *jobs* may be looked at."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.jobs: dict[str, LedgerJob] = {}
        self._cuts: dict[str, list[bytes]] = {}
        self._items: dict[str, dict[bytes, float]] = {}

    async def key(self) -> bytes:
        self._check()
        return b"a key that holds for one process"[:32]

    async def write(
        self, job: LedgerJob, *, cut: bytes | None = None, items: Sequence[bytes] = (), at: float = 0.0
    ) -> None:
        self._check()
        self.jobs[job.id] = job
        cuts = self._cuts.setdefault(job.subject, [])
        if cut is not None and cut not in cuts:
            cuts.append(cut)
        known = self._items.setdefault(job.subject, {})
        known.update({item: max(at, known.get(item, at)) for item in items})

    async def job(self, job_id: str) -> LedgerJob | None:
        self._check()
        return self.jobs.get(job_id)

    async def unfinished(self) -> Sequence[LedgerJob]:
        self._check()
        return [job for job in self.jobs.values() if job.open]

    async def marks(self, subject: str) -> LedgerMarks:
        self._check()
        shut = any(job.shut for job in self.jobs.values() if job.subject == subject)
        return LedgerMarks(tuple(self._cuts.get(subject, ())), dict(self._items.get(subject, {})), shut)

    def _check(self) -> None:
        if self.fault is not None:
            raise self.fault
