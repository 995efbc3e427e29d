"""Carries out forgets: record the job, block access, erase, verify.

1. The job is written to the ledger with its cut or ids. From here on it is completed even after a crash; until step
   3 is done, no replica recalls or writes memories of the owner.
2. Every replica drops its cached data of the owner and confirms, or loses its lease. The epoch advances, which
   invalidates earlier blocks and restarts running extractions.
3. With all other writers excluded, the cascade is computed from all rows and from the turns still waiting. Hashes
   go to the ledger; turns are erased from the journal, rows from the store, records from coordination. Recall
   cannot find the data, and the call returns. If earlier turns are unreachable (in the data directory of another
   replica) the owner is served again, and this step is repeated as they arrive: the receipt says `clean` when none
   is left.
4. Verify once more, rewrite or compact the files, and complete the receipt.

All steps are idempotent, so a crash costs only the repetition."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol, Self, TypeVar
from weakref import WeakValueDictionary

import msgspec

from memory_extproc.concurrency import Backoff, contain_faults, wait_for_event
from memory_extproc.erasure.receipts import (
    ReceiptSigner,
    Verification,
    look_again,
    parse_proof,
    signature_state,
    strip_signature,
)
from memory_extproc.erasure.steps import Erasable, Eraser, Waiting, compute_cascade
from memory_extproc.erasure.tombstones import Job, TombstoneIndex, without_words
from memory_extproc.errors import MemoryExtprocError, NotConfirmedError, PermanentError, TransientError
from memory_extproc.model import ForgetPlan, ForgetReceipt, ForgetScope, ForgetState, Memory, Owner, digest
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, Ledger, Now

log = logger(__name__)
T = TypeVar("T")


class MemoryFinder(Protocol):
    """Finds memories about a query, as recall would."""

    async def about(self, owner: Owner, query: str, scope: ForgetScope) -> Sequence[Memory]: ...


_BACKOFF = Backoff(timedelta(milliseconds=200), timedelta(seconds=30))


@dataclass(frozen=True, slots=True)
class ForgetLimits:
    patience: timedelta = timedelta(seconds=10)  # how long a call waits for its forget to be clean
    backoff: Backoff = _BACKOFF
    settle: timedelta = timedelta()  # after which no earlier write can still arrive; 0: single replica
    # the longest time until a server purges deleted rows from its files
    server_purge: timedelta = timedelta(days=4)
    plan: timedelta = timedelta(minutes=10)  # how long a dry run can be confirmed
    lease: timedelta = timedelta(seconds=30)  # of a job: when its replica ends, another carries on after it


@dataclass(slots=True)
class _Running:
    task: asyncio.Task[None]
    clean: asyncio.Event


class Forgetter:
    """Implements ports.MemoryForgetter. Entering resumes unfinished jobs; leaving stops without completing them."""

    def __init__(
        self,
        ledger: Ledger,
        forgotten: TombstoneIndex,
        holders: Erasable,
        limits: ForgetLimits,
        metrics: Metrics,
        *,
        now: Now,
        holder: str = "",
        signer: ReceiptSigner | None = None,
        seeks: MemoryFinder | None = None,
    ) -> None:
        """*holder*: of the leases on jobs. A restarted process keeps it; two replicas never share it."""
        self._holder = holder
        self._ledger = ledger
        self._forgotten = forgotten
        self._holders = holders
        self._limits = limits
        self._metrics = metrics
        self._now = now
        self._signer = signer
        self._seeks = seeks
        self._eraser = Eraser(ledger, forgotten, holders, server_purge=limits.server_purge, now=now)
        self._plans = Plans(holders.coordination, limits.plan, now)
        self._running: dict[str, _Running] = {}
        self._one_at_a_time = WeakValueDictionary[str, asyncio.Lock]()  # by subject, while a job runs
        self._pending: dict[str, datetime] = {}  # by job, since when
        self._left_to_server: set[str] = set()  # of them, until the time that their receipts name
        self._sweeping: dict[Owner, asyncio.Task[None]] = {}
        forgotten.found = self.sweep
        self._taking_up: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._metrics.forgets_pending.set_function(lambda: len(self._pending))
        self._metrics.forget_oldest_seconds.set_function(self._oldest)
        self._taking_up = asyncio.create_task(self._resume_jobs(), name="forgets of before")
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*(one.task for one in self._running.values()), *self._sweeping.values()]
        if self._taking_up is not None:
            tasks.append(self._taking_up)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def plan(self, owner: Owner, scope: ForgetScope) -> ForgetPlan:
        await self._forgotten.check(owner)
        at = self._now().timestamp()
        named = await self._resolve_query(owner, scope)
        rows = {memory.id: memory async for memory in self._eraser.rows(owner)}
        rows |= {memory.id: memory for memory in self._holders.partitions.list_unstored(owner)}
        taken = await compute_cascade(rows.values(), named, at, at)
        memories = sorted(taken.memories.values(), key=lambda one: (-one.created_at.timestamp(), one.id))
        return await self._plans.store(owner, scope, memories, taken.named & taken.memories.keys())

    async def forget(self, owner: Owner, scope: ForgetScope, *, token: str = "") -> ForgetReceipt:
        try:
            job = await self._accept(owner, scope, token)
        except MemoryExtprocError:
            self._metrics.forgets.labels(scope.name, "refused").inc()
            raise
        self._metrics.forgets.labels(scope.name, "accepted").inc()
        clean = self._start(job).clean
        if not await wait_for_event(clean, self._limits.patience.total_seconds()):
            log.warning("forget.takes_long", scope=scope.name)
        return await self.receipt(owner, job.id) or self._sign_receipt(job)

    async def receipt(self, owner: Owner, receipt_id: str) -> ForgetReceipt | None:
        kept = await self._ledger.job(receipt_id)
        blind = await self._forgotten.blind()
        if kept is None or kept.subject != blind.subject(owner):
            return None
        return self._sign_receipt(Job.read(kept))

    def sweep(self, owner: Owner) -> None:
        """Erase data that a backup restored after its forget, in the background."""
        if owner not in self._sweeping:
            task = self._sweeping[owner] = asyncio.create_task(self._erase_again(owner), name="forget again")
            task.add_done_callback(lambda _: self._sweeping.pop(owner, None))

    def _oldest(self) -> float:
        """Age in seconds of the oldest forget that waits only for us and our stores."""
        late = [since for job_id, since in self._pending.items() if job_id not in self._left_to_server]
        return max(0.0, (self._now() - min(late)).total_seconds()) if late else 0.0

    async def _accept(self, owner: Owner, scope: ForgetScope, token: str) -> Job:
        if token:
            named = await self._plans.confirm(owner, scope, token)
        elif scope.query and not scope.ids:
            raise NotConfirmedError("a query needs the token of its dry run, or the ids that it listed")
        else:
            named = without_words(scope, scope.ids)
        blind = await self._forgotten.blind()
        job = Job(
            id=uuid.uuid4().hex,
            subject=blind.subject(owner),
            name=scope.name,
            at=self._now(),
            owner=owner,
            scope=named,
        )
        cut = blind.make_cut(owner, named, job.at)
        if cut is not None:
            cut = msgspec.structs.replace(cut, at=job.until)
        items = await self._eraser.collect_items(owner, named, job.until)
        encoded = None if cut is None else msgspec.json.encode(cut)
        await self._ledger.write(job.to_ledger(), cut=encoded, items=sorted(items), at=job.until)
        # From here on this process neither shows nor stores memories of the owner.
        self._forgotten.renew(job.subject)
        return job

    async def _resolve_query(self, owner: Owner, scope: ForgetScope) -> ForgetScope:
        if not scope.query or scope.ids:
            return scope
        if self._seeks is None:
            raise PermanentError("there is nothing here to search with")
        found = await self._seeks.about(owner, scope.query, scope)
        return without_words(scope, tuple(memory.id for memory in found) or ("",))

    async def verify(self, owner: Owner, signed: bytes, signature: bytes) -> Verification:
        """Check a receipt, and search the stores. PermanentError for bytes that are no receipt."""
        proof = parse_proof(signed, signature)
        state = signature_state(proof, None if self._signer is None else self._signer.public)
        if (await self._forgotten.blind()).subject(owner) != proof.body["subject"]:
            return Verification(state, proof.body, None)
        store, journal = self._holders.store, self._holders.journal
        return Verification(
            state, proof.body, await look_again(proof, owner, self._forgotten, store=store, journal=journal)
        )

    def _sign_receipt(self, job: Job) -> ForgetReceipt:
        receipt = job.receipt()
        return strip_signature(receipt) if self._signer is None else self._signer.sign(receipt)

    def _start(self, job: Job) -> _Running:
        """Start a job, or return it if it runs: a resumed job may just have been accepted."""
        if (running := self._running.get(job.id)) is not None:
            return running
        clean = asyncio.Event()
        if job.state is not ForgetState.ACCEPTED:
            clean.set()
        running = _Running(asyncio.create_task(self._run_job(job, clean), name="forget"), clean)
        self._running[job.id] = running
        self._pending[job.id] = job.at
        running.task.add_done_callback(lambda _: self._end_job(job.id))
        return running

    def _end_job(self, job_id: str) -> None:
        running = self._running.pop(job_id)
        self._left_to_server.discard(job_id)
        if not running.task.cancelled() and (error := running.task.exception()) is not None:
            log.error("forget.failed", error=type(error).__name__)  # a bug of ours: it stays pending, and is seen
            return
        self._pending.pop(job_id, None)

    async def _resume_jobs(self) -> None:
        """Resume jobs of an earlier process, and of replicas that ended."""
        unreadable = set[str]()
        while True:
            await contain_faults(partial(self._resume_jobs_once, unreadable))
            await asyncio.sleep(self._limits.lease.total_seconds() / 3)

    async def _resume_jobs_once(self, unreadable: set[str]) -> None:
        for kept in await self._retry_until_done(self._ledger.list_unfinished):
            if kept.id in self._running or kept.id in unreadable:
                continue
            if not await self._retry_until_done(partial(self._acquire, kept.id)):
                continue
            # Its replica may have advanced or completed it before its lease expired.
            latest = await self._retry_until_done(partial(self._ledger.job, kept.id))
            try:
                job = Job.read(latest or kept)
            except msgspec.MsgspecError:
                # Written by a newer version, which carries it out; unknown fields might narrow it.
                log.warning("forget.unreadable")
                unreadable.add(kept.id)
                continue
            if job.state is not ForgetState.COMPLETE:
                self._start(job)

    async def _acquire(self, job_id: str) -> bool:
        return await self._holders.coordination.acquire(f"forget:{job_id}", self._holder, self._limits.lease)

    async def _keep_lease(self, job_id: str) -> None:
        """Renew the job's lease, and return once another replica has it.

        A second runner would find nothing to erase, and its receipt would say so."""
        while True:
            try:
                if not await self._acquire(job_id):
                    return
            except MemoryExtprocError as error:
                log.warning("forget.lease_not_renewed", error=type(error).__name__)
            await asyncio.sleep(self._limits.lease.total_seconds() / 3)

    async def _run_job(self, job: Job, clean: asyncio.Event) -> None:
        carrying = asyncio.create_task(self._carry_out(job, clean), name="steps of a forget")
        renewing = asyncio.create_task(self._keep_lease(job.id), name="lease of a forget")
        try:
            await asyncio.wait({carrying, renewing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            carrying.cancel()
            renewing.cancel()
            await asyncio.gather(carrying, renewing, return_exceptions=True)
        if not carrying.cancelled():
            carrying.result()

    async def _carry_out(self, job: Job, clean: asyncio.Event) -> None:
        lock = self._one_at_a_time.setdefault(job.subject, asyncio.Lock())
        if job.state is ForgetState.ACCEPTED:
            job = await self._clean(job, lock)
            clean.set()
        # Other replicas may show the remaining data; after a crash they are notified again too.
        await self._retry_until_done(lambda: self._holders.replicas.tell(job.subject))
        if self._limits.settle:
            await self._wait((job.clean_at or job.at) + self._limits.settle, self._limits.settle)
        async with lock:
            job = await self._retry_until_done(lambda: self._eraser.verify_gone(job))
        job = await self._retry_until_done(lambda: self._eraser.purge(job))
        until = job.steps["files"].pending_until
        if until is not None:
            self._left_to_server.add(job.id)
            await self._wait(until, self._limits.server_purge)
        await self._retry_until_done(lambda: self._eraser.complete(job))

    async def _clean(self, job: Job, lock: asyncio.Lock) -> Job:
        """Repeat step 3 until no turn of *job* is waiting. Other forgets of the owner proceed in between."""
        looks = 0
        before: Waiting | None = None
        # After this notification every replica reports the turns waiting in its directory.
        await self._retry_until_done(partial(self._holders.replicas.tell, job.subject))
        while True:
            waiting = await self._retry_until_done(partial(self._eraser.find_waiting, job))
            if waiting != before:
                async with lock:
                    job = await self._retry_until_done(partial(self._eraser.clean, job, waiting))
                if job.state is not ForgetState.ACCEPTED:
                    return job
                before = waiting
            looks += 1
            await asyncio.sleep(self._limits.backoff.seconds(looks))

    async def _wait(self, until: datetime, most: timedelta) -> None:
        """Wait until *until*, but at most *most*, in case the clock was set back."""
        await asyncio.sleep(max(timedelta(), min(most, until - self._now())).total_seconds())

    async def _erase_again(self, owner: Owner) -> None:
        late, turns = await self._retry_until_done(lambda: self._eraser.erased_again(owner))
        if late or turns:
            subject = (await self._forgotten.blind()).subject(owner)
            await self._retry_until_done(lambda: self._holders.replicas.tell(subject))
            await self._retry_until_done(lambda: self._holders.purges.purge(owner))
            log.warning("forget.again", memories=late, turns=turns)

    async def _retry_until_done(self, step: Callable[[], Awaitable[T]]) -> T:
        """Retry *step* until it succeeds: an accepted forget is never abandoned."""
        failures = 0
        while True:
            try:
                return await step()
            except TransientError as error:
                log.warning("forget.waits", error=type(error).__name__, failures=failures)
            except PermanentError as error:
                log.error("forget.refused", error=type(error).__name__, detail=str(error))  # noqa: TRY400
            failures += 1
            await asyncio.sleep(self._limits.backoff.seconds(failures))


# Plans: dry runs whose listed ids are kept for a while, so that a confirmation erases exactly these.

RECORD = "forget_plan"  # kind of a record in Coordination; contains ids and no user text
_SHOWN = 1_000


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    scope: str
    ids: tuple[str, ...]
    # The ids named by the scope itself; None: written by an older version.
    named: tuple[str, ...] | None = None


class Plans:
    def __init__(self, records: Coordination, keep: timedelta, now: Now) -> None:
        self._records, self._keep, self._now = records, keep, now

    async def store(
        self, owner: Owner, scope: ForgetScope, memories: Sequence[Memory], named: frozenset[str]
    ) -> ForgetPlan:
        """Store a plan. *memories*: newest first; *named*: ids named by *scope* itself."""
        token = uuid.uuid4().hex
        kept = _Kept(_digest_scope(scope), tuple(memory.id for memory in memories), tuple(sorted(named)))
        expires = self._now() + self._keep
        await self._records.put_record(RECORD, owner, token, msgspec.json.encode(kept), self._keep)
        return ForgetPlan(memories=tuple(memories[:_SHOWN]), total=len(memories), token=token, expires_at=expires)

    async def confirm(self, owner: Owner, scope: ForgetScope, token: str) -> ForgetScope:
        """The scope that erases exactly the listed memories.

        Messages listed because of a fact are not named, or they would take the turn's other facts along.
        NotConfirmedError for a token that has expired or belongs to another owner or scope."""
        raw = await self._records.get_record(RECORD, owner, token)
        kept = None if raw is None else msgspec.json.decode(raw, type=_Kept)
        if kept is None or kept.scope != _digest_scope(scope):
            raise NotConfirmedError("this confirmation is not of that scope, or has expired: run it dry once more")
        named = kept.ids if kept.named is None else kept.named
        return ForgetScope(ids=named or ("",), listed=tuple(sorted({*kept.ids} - {*named})))


def _digest_scope(scope: ForgetScope) -> str:
    before = "" if scope.before is None else scope.before.isoformat()
    types = ",".join(sorted(kind.value for kind in scope.types))
    return digest("forget", *sorted(scope.ids), "", scope.project, types, scope.session, before, scope.query)
