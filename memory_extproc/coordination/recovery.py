"""Detects data loss in Redis, and restores forget marks and consent from copies.

A random generation id is kept in Redis, in every data directory and in the shared mirror; Redis also keeps a number
per data directory that grows with its writes and lease renewals. Redis was wiped if its generation is missing or
different, and rolled back if a directory's number is lower than the directory remembers. A replica then answers
nothing that depends on forgets or consent until it has merged the copies of its own directory and of the shared
mirror into Redis. Merging is idempotent and may run on several replicas at once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec

from memory_extproc.concurrency import contain_faults, wait_for_event
from memory_extproc.coordination import read_lua
from memory_extproc.coordination.mirror import Copied, decode_copies, encode_copies
from memory_extproc.errors import MemoryExtprocError, TransientError
from memory_extproc.observe.log import logger

if TYPE_CHECKING:
    from memory_extproc.coordination.mirror import SqliteMirror
    from memory_extproc.coordination.redis_client import RedisLink
    from memory_extproc.ports import Mirror


log = logger(__name__)

_GENERATION = "generation"  # the record of a mirror that names it
_AT_ONCE = 50  # copies per message
_KEPT_MERGED = timedelta(hours=1)
_ACCEPTED_FOR = timedelta(minutes=2)


Register = Mapping[str, tuple[str, str, bool]]  # holder → directory, entry, whether it serves


class Loss(StrEnum):
    """How Redis lost data. Used as metric label, so values are never renamed."""

    WIPED = "wiped"
    ROLLED_BACK = "rolled_back"
    REPLACED = "replaced"  # another generation: restored by other replicas meanwhile, or an older Redis


async def accept_loss(link: RedisLink, prefix: str) -> None:
    """Let replicas start for a limited time without copies that they cannot read."""
    await link.limit_time(link.client.set(_acceptance_key(prefix), "1", ex=_ACCEPTED_FOR))


def generation_key(prefix: str) -> str:
    """There as soon as a replica has served from this Redis."""
    return f"{prefix}:{{ledger}}:generation"


def _acceptance_key(prefix: str) -> str:
    return f"{prefix}:{{ledger}}:accepted"


class Restorable(Protocol):
    """A part of Redis that has copies."""

    async def merge(self, copies: Sequence[Copied]) -> None:
        """Add missing records; copies of other kinds are ignored."""

    def copies(self) -> AsyncIterator[Sequence[Copied]]:
        """All records in Redis."""


_PAUSE = timedelta(seconds=1)  # between two tries
_SHARED = timedelta(seconds=2)  # of an accepted write, for the copy in the shared mirror


@dataclass(slots=True)
class Hooks:
    """Callbacks of the recovery."""

    register: Callable[[], Register] = dict  # the last known register of data directories
    put_back: Callable[[Register], Awaitable[object]] | None = None  # restores missing register entries
    lost: Callable[[str], object] = lambda _kind: None
    # Before our copies count as merged: no replica serves or accepts a forget until then.
    restoring: list[Callable[[], Awaitable[object]]] = field(default_factory=list)
    restored: list[Callable[[], Awaitable[object]]] = field(default_factory=list)


async def _run_hooks(hooks: Sequence[Callable[[], Awaitable[object]]]) -> None:
    for hook in hooks:
        await hook()


class Recovery:
    """Enter it after the parts are registered. Owned by a single event loop."""

    def __init__(
        self,
        link: RedisLink,
        *,
        prefix: str,
        directory: DirectoryFile,
        own: SqliteMirror,
        shared: Mirror | None,
        others: timedelta = timedelta(seconds=20),
    ) -> None:
        """*shared*: None if the memory store is not a server. *others*: time for other replicas to merge
        their copies."""
        self._link, self._directory, self._own, self._shared, self._others = link, directory, own, shared, others
        base = f"{prefix}:{{ledger}}"
        self.key, self._acceptance_key = generation_key(prefix), _acceptance_key(prefix)
        self._merged = f"{base}:merged"
        self._advance = link.client.register_script(read_lua("advance_generation"))
        self._begin = link.client.register_script(read_lua("begin_generation"))
        self.parts: list[Restorable] = []
        self.hooks = Hooks()
        self.loss: Loss | None = None
        self.fields = [
            "id",
            directory.now.name,
        ]  # of the generation, read together with the data that depends on it
        self.sequence = directory.now.sequence  # the highest number that was seen
        self._open = False
        self._register: Register = {one: (*entry, False) for one, entry in directory.now.register.items()}
        self._why = "it is not known yet whether Redis has all forgets"
        self._noted = ""  # the generation that the shared mirror knows
        self._soon = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._try()
        self._task = asyncio.create_task(self._keep_trying(), name="recovery of Redis")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._remember)

    def is_whole(self) -> bool:
        return self._open

    def check(self) -> None:
        """TransientError while Redis may lack forgets or consent changes."""
        if not self._open:
            raise TransientError(self._why)

    def compare(self, generation: bytes | None, number: bytes | int | None, floor: int) -> None:
        """Compare the generation and number that Redis returned with a read.

        *floor*: `sequence` before the read."""
        self.check()
        standing, seen = (generation or b"").decode(), int(number or 0)
        loss = self._loss_of(standing, seen, floor)
        if loss is not None:
            self._close(loss)
        self.check()
        self.sequence = max(self.sequence, seen)

    async def read(self, pipeline: Any) -> list[Any]:
        """The answers to *pipeline*, which needs no transaction: Redis cannot be wiped and refilled within it.
        TransientError if Redis lost data."""
        floor = self.sequence
        pipeline.hmget(self.key, self.fields)
        answers: list[Any]
        *answers, standing = await self._link.limit_time(pipeline.execute())
        self.compare(standing[0], standing[1], floor)
        return answers

    async def advance(self) -> None:
        """Advance the number, with every write and lease renewal."""
        self.check()
        floor = self.sequence
        args: list[str | int] = [self._directory.now.generation, self._directory.now.name, floor]
        generation, number = await self._link.limit_time(self._advance(keys=[self.key], args=args))
        self.compare(generation, number, floor)

    async def watch(self) -> None:
        """Advance with a lease renewal; a closed recovery is no error here."""
        if self._open:
            try:
                await self.advance()
            except TransientError:
                if self._open:
                    raise

    async def keep(self, copies: Sequence[Copied]) -> None:
        """Store copies in our directory, or in the shared mirror if ours is not writable. Returns once stored."""
        records = encode_copies(copies)
        try:
            await self._own.put(records, waits=self._shared is not None)
            await asyncio.to_thread(self._remember)
        except MemoryExtprocError:
            if self._shared is None:
                raise
            await self._shared.put(records)
            return
        if self._shared is None:
            return
        try:
            async with asyncio.timeout(_SHARED.total_seconds()):
                await self._shared.put(records)
            await self._own.mark_sent(records)
        except (MemoryExtprocError, TimeoutError):
            self._soon.set()  # behind the caller, until it is done

    async def copy(self, copies: Sequence[Copied]) -> None:
        """Copy records of other replicas into our directory only."""
        if copies:
            await self._own.put(encode_copies(copies))

    async def _keep_trying(self) -> None:
        while True:
            self._soon.clear()
            await wait_for_event(self._soon, _PAUSE.total_seconds())
            await contain_faults(self._try)

    async def _try(self) -> None:
        try:
            await (self._copy_on() if self._open else self._recover())
        except MemoryExtprocError as error:
            if not self._open and self._why != str(error):
                self._why = str(error)
                log.warning("coordination.restore_waits", error=type(error).__name__, detail=str(error))

    def _loss_of(self, standing: str, seen: int, floor: int) -> Loss | None:
        known = self._directory.now.generation
        if not standing:
            return Loss.WIPED
        if standing != known:
            return Loss.REPLACED
        return Loss.ROLLED_BACK if seen < floor else None

    def _close(self, loss: Loss) -> None:
        self._open, self.loss = False, loss
        self._why = "Redis lost what it was given: forgets are being restored"
        self._register = self.hooks.register() or self._register
        self.hooks.lost(loss.value)
        log.error("coordination.lost", kind=loss.value)
        self._soon.set()

    async def _recover(self) -> None:
        known = self._directory.now.generation
        if self.loss is None:
            generation, number = await self._link.limit_time(self._link.client.hmget(self.key, self.fields))
            standing, seen = (generation or b"").decode(), int(number or 0)
            joins = not known and (standing or await self._is_first())
            loss = self._loss_of(standing, seen, self._directory.now.sequence)
            if joins and not (standing and self._directory.unsure):
                await self._settle()
                return
            if loss is None:
                self._reopen(standing, seen)
                return
            self._close(loss)
        await self._restore()

    async def _is_first(self) -> bool:
        """Whether there never was a generation: Redis is new, or was written by an older version."""
        async for page in self._own.all():
            if page:
                return False
        if self._directory.unsure:
            return False
        if self._shared is not None:
            async for page in self._shared.all():
                if page:
                    return False
        return True

    async def _settle(self) -> None:
        args = [self._directory.now.generation or "-", secrets.token_hex(8), self._directory.now.name]
        generation, number = await self._link.limit_time(self._begin(keys=[self.key], args=args))
        self._reopen(generation.decode(), int(number or 0))

    async def _restore(self) -> None:
        await _run_hooks(self.hooks.restoring)
        ours = f"{self._merged}:{self._directory.now.generation}"
        client, limit_time = self._link.client, self._link.limit_time
        merged = dict[str, bytes]()
        accepted = await limit_time(client.get(self._acceptance_key)) is not None
        for mirror in (self._own, self._shared):
            if mirror is None:
                continue
            try:
                await self._merge(mirror, merged)
            except MemoryExtprocError as error:
                if not accepted:
                    raise TransientError(f"forgets cannot be restored: {error}") from error
            if mirror is self._own:
                await limit_time(client.sadd(ours, self._directory.now.name))
                await limit_time(client.expire(ours, _KEPT_MERGED))
        if not merged and self._directory.unsure and not accepted:
            raise TransientError("forgets cannot be restored: there is no copy, and one was set aside")
        if accepted:
            log.warning("coordination.loss_accepted")
        await self._wait_for_others(ours)
        if self.hooks.put_back is not None:
            await self.hooks.put_back(self._register)
        await _run_hooks(self.hooks.restored)
        loss = self.loss or Loss.WIPED
        await self._settle()
        log.warning("coordination.restored", kind=loss.value, records=len(merged))

    async def _merge(self, mirror: Mirror, merged: dict[str, bytes]) -> None:
        """Merge a mirror. *merged*, hashes of bodies by id, lists the records to skip and is extended."""
        async for page in mirror.all():
            hashes = {id_: hashlib.blake2b(body, digest_size=16).digest() for id_, body in page.items()}
            fresh = {one: page[one] for one in page if merged.get(one) != hashes[one] and one != _GENERATION}
            copies = decode_copies(fresh)
            for start in range(0, len(copies), _AT_ONCE):
                for part in self.parts:
                    await part.merge(copies[start : start + _AT_ONCE])
            if mirror is not self._own:
                await self.copy(copies)
            merged.update((one, hashes[one]) for one in fresh)

    async def _wait_for_others(self, merged: str) -> None:
        """Wait until every formerly active replica has merged its copies, or is considered dead."""
        late = {directory for directory, _, serves in self._register.values() if serves}
        try:
            async with asyncio.timeout(self._others.total_seconds()):
                while late:
                    there = await self._link.limit_time(self._link.client.smembers(merged))
                    late -= {name.decode() for name in there}
                    await asyncio.sleep(_PAUSE.total_seconds() / 5 if late else 0)
        except TimeoutError:
            log.warning("coordination.restored_without", replicas=len(late))

    def _reopen(self, generation: str, number: int) -> None:
        self._directory.update(generation=generation, sequence=number)
        self._directory.unsure = False
        self.sequence, self.loss, self._open = number, None, True

    async def _copy_on(self) -> None:
        await asyncio.to_thread(self._remember)
        if not self._directory.now.copied:
            first = self._shared is not None and await self._shared_lacks_generation()
            for part in self.parts:
                async for copies in part.copies():
                    await self._own.put(encode_copies(copies), waits=first)
            self._directory.update(copied=True)
        if self._shared is None:
            return
        if self._noted != (generation := self._directory.now.generation):
            await self._own.put({_GENERATION: msgspec.json.encode(generation)}, waits=True)
            self._noted = generation
        while records := await self._own.waiting():
            await self._shared.put(records)
            await self._own.mark_sent(records)

    async def _shared_lacks_generation(self) -> bool:
        assert self._shared is not None  # noqa: S101
        async for page in self._shared.all():
            if _GENERATION in page:
                return False
        return True

    def _remember(self) -> None:
        if not self._open:
            return
        register = {one: (directory, entry) for one, (directory, entry, _) in self.hooks.register().items()}
        now = self._directory.now
        if (self.sequence, register) != (now.sequence, now.register):
            self._directory.update(sequence=self.sequence, register=register)


# `replica.json` in the data directory: its name in the register and the last known generation of Redis.

FILE = "replica.json"
_VERSION = 1


class Remembered(msgspec.Struct, frozen=True):
    """The persistent state of a data directory."""

    name: str
    version: int = _VERSION
    generation: str = ""  # empty: none was seen yet
    sequence: int = 0  # the highest number that was seen of this directory there
    copied: bool = False  # whether the mirror holds all Redis data from before this directory existed
    register: dict[str, tuple[str, str]] = {}  # of data directories: holder → directory, entry


class DirectoryFile:
    """The file, replaced atomically.

    An unreadable file is renamed and kept, and *unsure* reports that it may have held a state."""

    def __init__(self, data: Path) -> None:
        self._path = data / FILE
        self.unsure = False
        self._writing = threading.Lock()
        self.now = self._read() or Remembered(f"{socket.gethostname()}-{secrets.token_hex(4)}")
        self.update()

    def update(self, **changes: object) -> None:
        """Write changes, from any thread.

        A failed write does not stop serving: the next write includes the changes."""
        with self._writing:
            self.now = msgspec.structs.replace(self.now, **changes)
            made = self._path.with_suffix(".new")
            try:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                    file.write(msgspec.json.encode(self.now))
                    file.flush()
                    os.fsync(file.fileno())
                made.replace(self._path)
            except OSError as error:
                log.warning("file.not_written", file=FILE, why=error.strerror)

    def _read(self) -> Remembered | None:
        try:
            body = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError:
            body = b""
        why = "damaged"
        try:
            if json.loads(body)["version"] <= _VERSION:
                return msgspec.json.decode(body, type=Remembered)
            why = "newer"
        except (ValueError, LookupError, TypeError):
            pass
        self.unsure = True
        aside = self._path.with_name(f"{FILE}.{why}-{secrets.token_hex(4)}")
        with suppress(OSError):
            self._path.rename(aside)
        log.error("file.set_aside", file=FILE, why=why, aside=aside.name)
        return None
