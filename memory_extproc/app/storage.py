"""Storage as configured: store, journal, coordination and their encryption; and the data directory, which a single
process locks and monitors."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from memory_extproc.app.context import AppContext, make_context, milvus_options, partition_limits
from memory_extproc.app.coordination import (
    CONSENT,
    COORDINATION,
    JOURNAL,
    ErasureParts,
    ledger_file,
    open_coordination,
    open_erasing,
    open_journal,
    open_link,
    take_part,
)
from memory_extproc.app.models import open_embedder
from memory_extproc.concurrency import steady_now
from memory_extproc.coordination.replicas import OldestWaiting, RedisReplicas
from memory_extproc.coordination.sqlite import SqliteOwners
from memory_extproc.coordination.sqlite_file import INDEX, LOG, FileId, Harm, file_id
from memory_extproc.encryption.codecs import EncryptedCoordination, EncryptedJournal, EncryptedStore
from memory_extproc.encryption.keys import (
    KeyTable,
    MasterKeyFile,
    RedisKeyTable,
    RenewedKeys,
    SqliteKeyTable,
    UnknownMasterKeyError,
    WrappedKeys,
)
from memory_extproc.erasure.tombstones import TombstoneFilteringStore
from memory_extproc.errors import ConfigurationError, PermanentError, TransientError
from memory_extproc.journal.failover import Check
from memory_extproc.learn.intake_log import IntakeLog
from memory_extproc.learn.restorable_journal import UNSTORED, RestorableJournal
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, EmbeddingModel, Journal, KeyStore, MemoryStore, OwnerRegistry
from memory_extproc.retention.usage import OwnerCounter
from memory_extproc.settings import Settings
from memory_extproc.settings.loading import DATA_DIR_LOCK
from memory_extproc.store.milvus.connect import Opener
from memory_extproc.store.milvus.store import MilvusStore
from memory_extproc.store.partition import Partitions

if TYPE_CHECKING:
    from memory_extproc.coordination.redis_client import RedisLink


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The memories, in a sidecar or for a command."""

    embedder: EmbeddingModel
    keys: WrappedKeys | None  # None: encryption is off
    coordination: Coordination
    store: MilvusStore
    unsealed: MemoryStore  # decrypted rows, including forgotten rows not erased yet
    shown: TombstoneFilteringStore  # without forgotten rows
    partitions: Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage(Stores):
    """The storage shared by read path and write path; it outlives both."""

    erasing: ErasureParts
    journal: Journal
    owners: OwnerRegistry
    writable: Check  # whether a turn could be journalled now
    oldest_aside: OldestWaiting  # of the turns that the shared journal may lack


async def open_storage(context: AppContext) -> Storage:
    settings, stack, now = context.settings, context.stack, context.now
    embedder = await open_embedder(context)
    link = await open_link(context)
    keys = await open_keys(context, link)
    coordination = sealed_coordination(await open_coordination(context, link), keys)
    options = milvus_options(settings, context.data, embedder.fingerprint)
    store = MilvusStore(options, context.metrics, now=now)
    opener = Opener(store, at=options.place)
    await stack.enter_async_context(opener)
    erasing = await open_erasing(context, link, shared=store.meta(), wraps=None if keys is None else keys.master)
    unsealed = sealed_store(settings, store, keys, context.metrics)
    shown = erasing.hiding(unsealed)
    owners = await open_owners(context, link)
    counter = await stack.enter_async_context(OwnerCounter(owners, store, now=now))
    partitions = await stack.enter_async_context(
        Partitions(
            shown,
            coordination,
            partition_limits(settings),
            context.metrics,
            now=now,
            monotonic_now=steady_now,
            forgotten=erasing.forgotten,
            written=counter.note,
        )
    )
    context.live.subscribe(lambda new: partitions.reconfigure(partition_limits(new)))
    counter.held = partitions
    journal, writable, oldest_aside = await open_journal(context, link, lambda: store.failing_for)
    journal = journal if keys is None else EncryptedJournal(journal, keys)
    oldest = [oldest_aside]
    restorable = await open_restorable_journal(context, journal, erasing)
    await take_part(erasing, partitions, stack)
    if restorable is not None:
        journal = await stack.enter_async_context(restorable)  # left while the register can still be told
        oldest.append(restorable.oldest_lacking)
        review_forgotten(erasing, restorable)
    return Storage(
        embedder=embedder,
        keys=keys,
        coordination=coordination,
        store=store,
        unsealed=unsealed,
        shown=shown,
        erasing=erasing,
        partitions=partitions,
        journal=journal,
        writable=writable if options.uri else _check_all(opener.check_settled, writable),
        oldest_aside=lambda: min(filter(None, (look() for look in oldest)), default=None),
        owners=owners,
    )


async def open_restorable_journal(
    context: AppContext, journal: Journal, erasing: ErasureParts
) -> RestorableJournal | None:
    """Keep copies of *journal*'s turns until they are stored. None for a single replica: its journal is a file."""
    if erasing.fleet is None:
        return None
    recovery = erasing.fleet.recovery
    copies = await context.stack.enter_async_context(
        IntakeLog(
            context.data / UNSTORED,
            context.settings.learn.journal,
            wraps=make_master_key(context.settings),
            tells=lambda why: context.metrics.intake_aside.labels(why).inc(),
        )
    )
    made = RestorableJournal(journal, copies, recovery.advance)
    made.load()
    count = recovery.hooks.lost

    def note_loss(kind: str) -> None:
        count(kind)
        made.note_loss()

    recovery.hooks.lost = note_loss
    recovery.hooks.restoring.append(made.put_back)
    return made


def review_forgotten(erasing: ErasureParts, journal: RestorableJournal) -> None:
    """Review the copies of an owner as soon as a replica forgot anything of that owner. After `take_part`."""
    replicas = erasing.replicas
    assert isinstance(replicas, RedisReplicas)  # noqa: S101 - there are copies only where there is a fleet
    heard = replicas.heard

    async def apply_news(subject: str) -> None:
        await heard(subject)
        if subject:
            blind = await erasing.forgotten.blind()
            journal.review_soon(lambda owner: blind.subject(owner) == subject)

    replicas.heard = apply_news


async def open_owners(context: AppContext, link: RedisLink | None) -> OwnerRegistry:
    if link is None:
        return await context.stack.enter_async_context(SqliteOwners(context.data / OWNERS))
    from memory_extproc.coordination.redis import RedisOwners  # noqa: PLC0415 - where it is configured

    return RedisOwners(link, prefix=context.settings.coordination.prefix)


def _check_all(*checks: Check) -> Check:
    async def check() -> None:
        for each in checks:
            await each()

    return check


# Encryption at rest as configured.

log = logger(__name__)

KEYS = "keys.db"
OWNERS = "owners.db"
SEALED = "sealed.txt"  # beside what is sealed: keys that rest elsewhere may be missing without leaving a trace


async def open_keys(context: AppContext, link: RedisLink | None) -> WrappedKeys | None:
    """Open the data keys; None without encryption.

    ConfigurationError if the master key does not match, if the keys of encrypted texts are missing, or if texts
    were encrypted and encryption is now off."""
    if (master := make_master_key(context.settings)) is None:
        await _refuse_sealed(context, link)
        return None
    if master.open_to_others:
        log.warning("keys.master_key_open_to_others")
    keys = WrappedKeys(await _table(context, link), master)
    try:
        if link is None:
            await _look_for_keys(context, keys)
        await keys.check()
        if link is None:
            await asyncio.to_thread(_note_sealed, context.data, keys_file(context.settings, context.data))
    except (UnknownMasterKeyError, PermanentError) as error:
        raise ConfigurationError([f"privacy.master_key_file: {error}"]) from error
    except TransientError as error:
        # Not fatal: the next call retries.
        log.warning("keys.not_checked", kind=type(error).__name__)
    return keys


def make_master_key(settings: Settings) -> MasterKeyFile | None:
    """The master key; None without encryption."""
    privacy = settings.privacy
    return MasterKeyFile(Path(privacy.master_key_file)) if privacy.encrypt_content else None


async def _look_for_keys(context: AppContext, keys: WrappedKeys) -> None:
    """ConfigurationError if the data directory was encrypted and no key exists.

    New keys would hide the fault until the old keys are restored, and then texts sealed with the new keys would be
    lost."""
    data = context.data
    note, place = data / SEALED, keys_file(context.settings, data)
    if not await keys.is_in_use() and await asyncio.to_thread(note.exists):
        fault = f"privacy.keys_file: {place} holds no keys, but texts in {data} were sealed"
        raise ConfigurationError([f"{fault}: put the keys back, or delete {note} to give the texts up"])


def _note_sealed(data: Path, place: Path) -> None:
    note = data / SEALED
    if note.exists():
        return
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        note.write_text(f"Texts in this directory are sealed. Their keys are in {place}.\n")
    except OSError as error:
        raise TransientError("the note that texts are sealed cannot be written") from error


async def open_milvus(context: AppContext, embedder: EmbeddingModel) -> MilvusStore:
    """Open the store for a command, which cannot do without it."""
    options = milvus_options(context.settings, context.data, embedder.fingerprint)
    store = MilvusStore(options, context.metrics, now=context.now)
    context.stack.push_async_callback(store.close)
    await store.open()
    return store


def sealed_store(settings: Settings, store: MemoryStore, keys: WrappedKeys | None, metrics: Metrics) -> MemoryStore:
    return (
        store if keys is None else EncryptedStore(store, keys, metrics, content_bytes=settings.limits.content_bytes)
    )


def sealed_coordination(coordination: Coordination, keys: WrappedKeys | None) -> Coordination:
    return coordination if keys is None else EncryptedCoordination(coordination, keys)


def renewed_keys(keys: WrappedKeys | None, store: MemoryStore, journal: Journal) -> KeyStore | None:
    """The key store with which a forget destroys keys."""
    return None if keys is None else RenewedKeys(keys, store, journal)


@asynccontextmanager
async def keys_alone(settings: Settings) -> AsyncIterator[tuple[WrappedKeys, MasterKeyFile]]:
    """Open the keys for a command, beside a running sidecar or without. ConfigurationError without encryption."""
    if not settings.privacy.encrypt_content:
        raise ConfigurationError(["privacy.encrypt_content: is off, so there are no keys"])
    async with AsyncExitStack() as stack:
        context = make_context(settings, stack)
        table = await _table(context, await open_link(context))
        master = MasterKeyFile(Path(settings.privacy.master_key_file))
        yield WrappedKeys(table, master), master


async def journals_to_join(
    settings: Settings, source: Journal, directory: Path, target: Journal, stack: AsyncExitStack
) -> tuple[Journal, Journal]:
    """Open *source*, left behind in *directory*, and *target*, ours, with decryption.

    Uses the keys beside *source*, or ours if there are none. Raises if encrypted turns would be unreadable."""
    beside = directory / KEYS
    left_keys = await asyncio.to_thread(beside.exists)
    if not settings.privacy.encrypt_content:
        if left_keys:
            fault = f"privacy.encrypt_content: is off, but texts in {directory} were sealed (keys in {beside})"
            raise ConfigurationError([f"{fault}: switch it on, with their master key"])
        return source, target
    ours, master = await stack.enter_async_context(keys_alone(settings))
    theirs = WrappedKeys(await stack.enter_async_context(SqliteKeyTable(beside)), master) if left_keys else ours
    for keys in (theirs, ours):
        await keys.check()
    return EncryptedJournal(source, theirs), EncryptedJournal(target, ours)


async def _table(context: AppContext, link: RedisLink | None) -> KeyTable:
    if link is not None:
        return RedisKeyTable(link, prefix=context.settings.coordination.prefix)
    return await context.stack.enter_async_context(SqliteKeyTable(keys_file(context.settings, context.data)))


def keys_file(settings: Settings, data: Path) -> Path:
    named = settings.privacy.keys_file
    return Path(named) if named else data / KEYS


async def _refuse_sealed(context: AppContext, link: RedisLink | None) -> None:
    """ConfigurationError if texts were encrypted: without encryption their ciphertext would reach the model."""
    fault = "privacy.encrypt_content: is off, but texts were sealed"
    mend = "switch it on, or delete their keys to give them up"
    if traces := [str(trace) for trace in (context.data / KEYS, context.data / SEALED) if trace.exists()]:
        raise ConfigurationError([f"{fault} (see {', '.join(traces)}): {mend}"])
    if link is None:
        return
    try:
        there = await RedisKeyTable(link, prefix=context.settings.coordination.prefix).holds_any()
    except TransientError:
        return
    if there:
        raise ConfigurationError([f"{fault} (keys in Redis): {mend}"])


# --- data directory ----------------------------------------------------------------------------------


LOCK = DATA_DIR_LOCK  # held as long as its holder lives, so a crash leaves no lock
LITE_LOCK = "LOCK"  # of Milvus Lite, in its own directory; open as long as that is


class DataDirectory:
    """Makes the directory private to its owner, and locks it while entered."""

    def __init__(self, settings: Settings) -> None:
        self.path = Path(settings.data_dir).absolute()
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        """Create and lock the directory. ConfigurationError if that fails or another process holds it."""
        try:
            self._lock = self._take_lock()
        except BlockingIOError as error:
            raise ConfigurationError(
                [f"data_dir: another sidecar is using {self.path}; give each one its own"]
            ) from error
        except OSError as error:
            remedy = "name a directory that this user may write (data_dir, or MEMORY_EXTPROC__DATA_DIR)"
            fault = f"data_dir: {self.path} cannot be used: {error.strerror}; {remedy}"
            raise ConfigurationError([fault]) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def _take_lock(self) -> IO[str]:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (self.path / LOCK).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise
        return lock


class OpenFiles:
    """Detects open files that were deleted or replaced.

    Writes to them would be lost at the next start, and are rejected by the files themselves; nothing is repaired
    here. Some twenty stat calls per check."""

    def __init__(self, paths: Sequence[Path], metrics: Metrics) -> None:
        beside = [path.with_name(path.name + name) for path in paths for name in (LOG, INDEX)]
        self._harms = {**dict.fromkeys(paths, Harm.REPLACED), **dict.fromkeys(beside, Harm.LOG_GONE)}
        self._metrics = metrics
        self._known: dict[Path, FileId] = {}  # as opened
        self._taken: dict[Path, Harm] = {}

    def check(self) -> None:
        """TransientError with the names of the missing files."""
        ours = _open_files()
        taken = {path: harm for path in self._harms if (harm := self._harm(path, ours)) is not None}
        for path, harm in taken.items():
            if path not in self._taken:
                log.error("file.taken_away", file=path.name, why=harm.value)
        self._taken = taken
        counts = Counter(taken.values())
        for harm in (Harm.GONE, Harm.REPLACED, Harm.LOG_GONE):
            self._metrics.files_taken_away.labels(harm.value).set(counts[harm])
        if taken:
            names = ", ".join(f"{path.name} ({harm.value})" for path, harm in taken.items())
            raise TransientError(f"files were taken away while in use: {names}: put them back, or restart")

    def checked_with(self, check: Check) -> Check:
        async def both() -> None:
            self.check()
            await check()

        return both

    def _harm(self, path: Path, ours: Mapping[FileId, str]) -> Harm | None:
        there, harm = file_id(path), self._harms[path]
        if there is not None and there in ours:
            self._known[path] = there
            return None
        gone = there is None and harm is Harm.REPLACED
        if gone and f"{path} (deleted)" in ours.values():  # perhaps before it was ever seen here
            return Harm.GONE
        if self._known.get(path) not in ours:  # not opened yet, or closed since
            return None
        return Harm.GONE if gone else harm


def watched_files(settings: Settings, data: Path) -> list[Path]:
    """The files that only the sidecar replaces."""
    lite = milvus_options(settings, data, "").path / LITE_LOCK
    own = [data / name for name in (LOCK, JOURNAL, COORDINATION, CONSENT)]
    return [*own, ledger_file(settings, data), keys_file(settings, data), lite]


def _open_files() -> dict[FileId, str]:
    """The files that the process has open, by identity, with their names as in proc_pid_fd(5)."""
    found: dict[FileId, str] = {}
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(OSError):  # closed meanwhile
            if one := file_id(int(descriptor)):
                found[one] = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
    return found


def hold_data_directory(settings: Settings, stack: AsyncExitStack) -> Path:
    """Lock the data directory until *stack* closes."""
    return stack.enter_context(DataDirectory(settings)).path


def hold_lite(settings: Settings, stack: AsyncExitStack) -> None:
    """Lock the Milvus Lite file for a command. ConfigurationError if it does not exist or a sidecar holds it.

    Milvus Lite admits a single process. With a Milvus server nothing is locked."""
    if settings.memory.milvus.address:
        return
    path = milvus_options(settings, Path(settings.data_dir).absolute(), "").path
    if not path.exists():
        raise ConfigurationError([f"data_dir: nothing has been remembered below {path.parent}"])
    try:
        hold_data_directory(settings, stack)
    except ConfigurationError as error:
        advice = "stop it first: a Milvus Lite file lets one process in"
        raise ConfigurationError([f"{fault}; {advice}" for fault in error.faults]) from error
