"""Access to all memories for commands, without a sidecar."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING

from memory_extproc.app.context import AppContext, make_context, milvus_options, partition_limits
from memory_extproc.app.coordination import (
    CONSENT,
    JOURNAL,
    LEDGER,
    find_journals,
    ledger_file,
    open_coordination,
    open_link,
)
from memory_extproc.app.maintenance import make_reflector, make_retention, make_summing
from memory_extproc.app.models import open_embedder
from memory_extproc.app.storage import (
    Stores,
    hold_data_directory,
    hold_lite,
    open_keys,
    open_milvus,
    sealed_coordination,
    sealed_store,
)
from memory_extproc.concurrency import steady_now, utc_now
from memory_extproc.coordination.consent import RedisConsent, SqliteConsent
from memory_extproc.coordination.mirror import Copied, CopyKind
from memory_extproc.coordination.recovery import generation_key
from memory_extproc.coordination.sqlite import SoleReplica, SqliteLedger
from memory_extproc.erasure.receipts import Look, Proof, look_again
from memory_extproc.erasure.tombstones import TombstoneFilteringStore, TombstoneIndex
from memory_extproc.errors import ConfigurationError, MemoryExtprocError, PermanentError, TransientError
from memory_extproc.learn.screening import Quarantine
from memory_extproc.model import Embedded, Owner
from memory_extproc.ports import MemoryStore, Now
from memory_extproc.retention.passes import SummaryRebuilder
from memory_extproc.retention.reembed import Pace, Reembedding
from memory_extproc.retention.reflection import ThemeReflector
from memory_extproc.retention.scheduler import RetentionJob
from memory_extproc.settings import Settings
from memory_extproc.store.archive import Head, Row, read_head, read_rows, writing
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.milvus.rows import readable, to_embedded
from memory_extproc.store.milvus.store import MilvusStore
from memory_extproc.store.partition import Partitions

if TYPE_CHECKING:
    from memory_extproc.coordination.redis import RedisLedger
    from memory_extproc.coordination.redis_client import RedisLink


_SMALL = 1 << 20  # bytes of cached memories: a command reads every owner once


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineContext(Stores):
    """Access to all memories for a command; running sidecars see changes."""

    context: AppContext
    forgotten: TombstoneIndex
    rebuilds: SummaryRebuilder
    reflects: ThemeReflector | None

    def make_retention_job(self) -> RetentionJob:
        return make_retention(self.context, self, self.rebuilds, self.reflects)


@asynccontextmanager
async def open_offline(
    settings: Settings, *, now: Now = utc_now, reflecting: bool = False
) -> AsyncIterator[OfflineContext]:
    """Open the memories. The caller holds the data directory if needed (`hold_lite`).

    The ledger's forgotten memories stay hidden, as in a sidecar. *reflecting*: enable reflection regardless of the
    settings; ConfigurationError without a model."""
    async with AsyncExitStack() as stack:
        context = make_context(settings, stack, now=now)
        embedder = await open_embedder(context)
        link = await open_link(context)
        keys = await open_keys(context, link)
        coordination = sealed_coordination(await open_coordination(context, link), keys)
        store = await open_milvus(context, embedder)
        forgotten = await read_forgotten(context, link)
        unsealed = sealed_store(settings, store, keys, context.metrics)
        shown = TombstoneFilteringStore(unsealed, forgotten)
        limits = replace(partition_limits(settings), bytes=_SMALL, patience=timedelta())
        partitions = await stack.enter_async_context(
            Partitions(
                shown, coordination, limits, context.metrics, now=now, monotonic_now=steady_now, forgotten=forgotten
            )
        )
        reflects = make_reflector(context, always=reflecting)
        if reflecting and reflects is None:
            raise ConfigurationError(
                ["external_models: no model of role memory_extraction is configured to reflect"]
            )
        yield OfflineContext(
            embedder=embedder,
            keys=keys,
            coordination=coordination,
            store=store,
            unsealed=unsealed,
            shown=shown,
            partitions=partitions,
            context=context,
            forgotten=forgotten,
            rebuilds=make_summing(context, embedder)[1],
            reflects=reflects,
        )


async def read_forgotten(context: AppContext, link: RedisLink | None) -> TombstoneIndex:
    """Read the ledger for a command: without a lease, because it does not serve."""
    settings = context.settings
    key = settings.privacy.key or b""
    if link is None:
        ledger = await context.stack.enter_async_context(SqliteLedger(ledger_file(settings, context.data)))
        return TombstoneIndex(ledger, SoleReplica(), key=key)
    from memory_extproc.coordination.redis import RedisLedger  # noqa: PLC0415 - Redis takes 0.2 s to import

    return TombstoneIndex(RedisLedger(link, prefix=settings.coordination.prefix), SoleReplica(), key=key)


async def open_reembedding(
    tended: OfflineContext, *, source: str = "", says: Says
) -> tuple[Reembedding, MemoryStore | None]:
    """Open re-embedding. *source*: another collection of the same Milvus, opened read-only."""
    context, lists = tended.context, tended.store
    kept: MemoryStore | None = None
    if source:
        options = milvus_options(context.settings, context.data, tended.embedder.fingerprint)
        # Milvus Lite admits a single process: use the socket of the process that has it open.
        place = {
            "collection": source,
            "address": options.section.address or tended.store.address,
            "layout": options.chosen_layout.value,
        }
        other = replace(options, section=options.section.model_copy(update=place), as_it_is=True)
        lists = MilvusStore(other, context.metrics, now=context.now)
        context.stack.push_async_callback(lists.close)
        await lists.open()
        kept = sealed_store(context.settings, lists, tended.keys, context.metrics)
    partitions = tended.partitions
    return Reembedding(lists, tended.shown, partitions, partitions, tended.embedder, Pace(), says=says), kept


@asynccontextmanager
async def open_quarantine(settings: Settings) -> AsyncIterator[Quarantine]:
    """Open the quarantine for review; running sidecars see changes."""
    async with AsyncExitStack() as stack:
        context = make_context(settings, stack)
        hold_lite(settings, stack)
        store = await open_milvus(context, await open_embedder(context))
        link = await open_link(context)
        coordination = await open_coordination(context, link)
        kept = sealed_store(settings, store, await open_keys(context, link), context.metrics)
        limits = PartitionLimits(bytes=settings.recall.partition_bytes)
        partitions = await stack.enter_async_context(
            Partitions(kept, coordination, limits, context.metrics, now=context.now)
        )
        yield Quarantine(kept, partitions)


# Verification of a forget receipt, beside a running sidecar or without.


async def verify_gone(settings: Settings, proof: Proof, owner: Owner) -> Sequence[Look]:
    """Search all stores. PermanentError if the receipt belongs to another owner."""
    async with AsyncExitStack() as stack:
        context = make_context(settings, stack)
        forgotten = await read_forgotten(context, await open_link(context))
        store = await _store(context)
        journals = await find_journals(context)
        return await look_again(proof, owner, forgotten, store=store, journal=journals.main)


async def _store(context: AppContext) -> MemoryStore | None:
    """The store; None if a running sidecar holds the file, or the server is unreachable."""
    try:
        if not context.settings.memory.milvus.address:
            hold_data_directory(context.settings, context.stack)
        return await open_milvus(context, await open_embedder(context))
    except (ConfigurationError, MemoryExtprocError):
        return None


# Backups of an installation: its memories as stored, and the files beside them.

MEMORIES = "memories.jsonl.gz"
_PAGE = 200
Says = Callable[[str, int, int], None]  # the step, items done, items in total


def _files(settings: Settings) -> dict[str, Path]:
    """The files in a backup, by name. Not the keys: destroying a key must affect backups too."""
    data = Path(settings.data_dir).absolute()
    return {JOURNAL: data / JOURNAL, CONSENT: data / CONSENT, LEDGER: ledger_file(settings, data)}


def back_up_files(settings: Settings, to: Path) -> list[str]:
    """Copy each existing file consistently, beside a sidecar that writes to it."""
    copied = []
    for name, path in _files(settings).items():
        if path.exists():
            _copy_database(path, to / name)
            copied.append(name)
    return copied


def _copy_database(path: Path, to: Path) -> None:
    with (
        _whole_copy(path, to) as partial,
        closing(sqlite3.connect(path)) as source,
        closing(sqlite3.connect(partial)) as target,
    ):
        source.backup(target)


@contextmanager
def _whole_copy(path: Path, to: Path) -> Iterator[Path]:
    """A file to copy *path* to, which becomes *to* once all is copied: half a file would be kept by the next try.
    Readable by its owner alone."""
    partial = to.with_name(f"{to.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        partial.touch(mode=0o600)
        yield partial
        partial.rename(to)
    except (sqlite3.Error, OSError) as error:
        reason = error.sqlite_errorname if isinstance(error, sqlite3.Error) else error.strerror
        raise TransientError(f"{path} cannot be copied ({reason})") from error
    finally:
        partial.unlink(missing_ok=True)


def _refuse_damaged(copy: Path, path: Path) -> None:
    """PermanentError if *copy*, of the backup's file *path*, is damaged or empty."""
    try:
        with closing(sqlite3.connect(copy)) as copied:
            version = copied.execute("PRAGMA user_version").fetchone()[0]
            whole = version and copied.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"
    except sqlite3.DatabaseError:
        whole = False
    if not whole:
        raise PermanentError(f"{path} is damaged: take it from another backup, or remove it to restore the others")


async def back_up_memories(tended: OfflineContext, to: Path, says: Says) -> int:
    """Back up all rows and return their number."""
    head = Head(model=tended.embedder.fingerprint, dimension=tended.embedder.dimension)
    owners = [owner async for page in tended.store.owners() for owner in page]
    with writing(to / MEMORIES, head) as file:
        for number, owner in enumerate(owners):
            says("memories of callers", number, len(owners))
            async for page in tended.store.as_they_rest(owner, _PAGE):
                file.write(page)
        return file.rows


def restore_files(settings: Settings, source: Path) -> dict[str, list[str]]:
    """Restore missing files; the data directory must be locked.

    Existing files stay: replacing them would lose later forgets and accepted turns."""
    done: dict[str, list[str]] = {"restored": [], "kept": []}
    for name, path in _files(settings).items():
        if path.exists():
            done["kept"].append(name)
        elif (source / name).exists():
            with _whole_copy(source / name, path) as partial:
                shutil.copyfile(source / name, partial)
                _refuse_damaged(partial, source / name)
            done["restored"].append(name)
    return done


async def restore_shared(settings: Settings, source: Path) -> list[str]:
    """Merge the consent and the forgets of a backup into the configured Redis, if any. Only an installation with
    files has them in its backup. Returns the names of the files; merging twice changes nothing. PermanentError if
    that Redis has its own ledger, or if replicas serve from it already: they would hold no copies of the merged
    records."""
    if not settings.coordination.url:
        return []
    from memory_extproc.coordination.redis import RedisLedger  # noqa: PLC0415 - Redis takes 0.2 s to import

    prefix, names = settings.coordination.prefix, [name for name in (LEDGER, CONSENT) if (source / name).exists()]
    async with AsyncExitStack() as stack:
        link = await open_link(make_context(settings, stack))
        if link is None or not names:
            return []
        # Opening a file may upgrade it, and the backup must stay unchanged.
        copied = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in names:
            _copy_database(source / name, copied / name)
        if await link.limit_time(link.client.exists(generation_key(prefix))):
            raise PermanentError(
                "coordination.url: replicas have served from this Redis already, and would lose what is merged"
                " behind them when Redis does. Restore into an empty coordination.prefix before their first start"
            )
        into = RedisLedger(link, prefix=prefix)
        for name in names:
            kept = SqliteLedger(copied / name) if name == LEDGER else SqliteConsent(copied / name)
            target = into if name == LEDGER else RedisConsent(link, prefix=prefix)
            async with kept:
                async for copies in kept.copies():
                    if copies[0].kind is CopyKind.KEY:
                        await _refuse_other_key(into, copies[0])
                    await target.merge(copies)
    return names


async def _refuse_other_key(ledger: RedisLedger, ours: Copied) -> None:
    async for copies in ledger.copies():
        if any(copy.kind is CopyKind.KEY and copy.body != ours.body for copy in copies):
            raise PermanentError(
                "coordination.url: this Redis has a ledger of forgets of its own, hashed with another key. Restore"
                " into an empty coordination.prefix"
            )
        return


async def restore_memories(tended: OfflineContext, source: Path, says: Says) -> Counter[str]:
    """Restore rows and count them by result. Idempotent.

    Results: restored; newer, which stay; forgotten, which are skipped; unreadable, of a newer version.
    PermanentError before any change if the backup is damaged or of another model."""
    path = source / MEMORIES
    head, rows = read_head(path)
    embedder = tended.embedder
    if (head.model, head.dimension) != (embedder.fingerprint, embedder.dimension):
        raise PermanentError(
            f"{path} holds vectors of {head.model!r} ({head.dimension}), the configuration has"
            f" {embedder.fingerprint!r} ({embedder.dimension}): restore with the former, then `store reembed`"
        )
    counted: Counter[str] = Counter()
    done = 0
    for owner, page in _pages(path):
        says("rows", done, rows)
        done += len(page)
        counted += await _restore_rows(tended, owner, page)
    return counted


def _pages(path: Path) -> Iterator[tuple[Owner, list[Row]]]:
    for (tenant, user), owned in groupby(read_rows(path), key=lambda row: (row["tenant_id"], row["user_id"])):
        while page := list(islice(owned, _PAGE)):
            yield Owner(tenant, user), page


async def _restore_rows(tended: OfflineContext, owner: Owner, page: list[Row]) -> Counter[str]:
    found: list[Embedded] = readable(page, to_embedded, tended.context.metrics.unreadable)
    there = {memory.id: memory for memory in await tended.store.get(owner, [row.memory.id for row in found])}
    older = [
        row
        for row in found
        if row.memory.id not in there or there[row.memory.id].updated_at < row.memory.updated_at
    ]
    ids = [row.memory.id for row in older]
    out: set[str] = set()
    if older:
        # The sources of encrypted rows are known only after they are stored; until then readers also check the
        # ledger.
        await tended.store.put(owner, older)
        out = await _forgotten_among(tended, owner, ids)
        await tended.store.delete(owner, sorted(out))
        await tended.coordination.bump(owner)
    return Counter(
        restored=len(older) - len(out),
        newer=len(found) - len(older),
        forgotten=len(out),
        unreadable=len(page) - len(found),
    )


async def _forgotten_among(tended: OfflineContext, owner: Owner, ids: Sequence[str]) -> set[str]:
    """The stored rows among *ids* that are forgotten."""
    marks = await tended.forgotten.of(owner)
    if not marks:
        return set()
    return {memory.id for memory in await tended.unsealed.get(owner, ids) if marks.covers(memory)}
