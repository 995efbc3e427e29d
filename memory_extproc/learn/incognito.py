"""Conversations of which nothing is kept: once one request of them asked for that, the later ones need not.

A conversation is known again by the session its client names, by the response it continues from, and by what its
user said: hashes of the user's words up to a turn, so that a client that sends the history again is recognised
whatever it makes of the answers. It stays one when a later request names a project, or another one. Marks are kept
for all replicas, and in the intake log until they are. Like other choices of a person's they outlive the
forgetting of everything: what goes on in such a conversation afterwards is not to be kept either.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

import msgspec

from memory_extproc.errors import GiveUpError, MemoryExtprocError
from memory_extproc.language.comparing import normal
from memory_extproc.learn.intake_log import IntakeLog
from memory_extproc.learn.intake_segment import Kind, Record
from memory_extproc.model import SHARED, Caller, Exchanged, Message, Owner, Role, digest
from memory_extproc.observe.log import logger
from memory_extproc.ports import Coordination

log = logger(__name__)

_KIND = "incognito"
_LOOKBACK = 3  # turns looked back over for a mark: each one that was recognised is marked itself
_MARK = b"1"
_Mark = dict[str, timedelta]  # for how long each key of a conversation stays marked
_NOBODY = Owner("", f"{SHARED}nobody")  # whose record is asked for to see whether records can be
_EPOCH = datetime.fromtimestamp(0, UTC)  # a mark has no time of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class IncognitoLimits:
    keep: timedelta = timedelta(days=30)  # as long as a conversation is known again at all
    opening: timedelta = timedelta(minutes=30)  # of a mark by a first message alone: other chats begin like it
    patience: timedelta = timedelta(milliseconds=50)  # of a request that waits; what takes longer goes on behind it
    give_up: timedelta = timedelta(seconds=30)  # of one attempt at sharing a mark
    retry: timedelta = timedelta(seconds=1)  # between two attempts
    in_process: int = 10_000  # marks held here; the oldest go first


class Incognito:
    """Implements ports.NotesIncognito. One event loop owns it."""

    def __init__(self, records: Coordination, limits: IncognitoLimits, intake_log: IntakeLog | None = None) -> None:
        """*intake_log*: where marks are kept until they are shared; None: what cannot be shared is given up."""
        self._records, self._limits, self._log = records, limits, intake_log
        self._here: OrderedDict[tuple[Owner, str], timedelta] = OrderedDict()
        self._marked = Counter[Owner]()  # how many of them each has
        self._writing: set[asyncio.Task[bool]] = set()
        self._unshared: dict[Record, _Mark] = {}
        self._sharing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._log is not None:
            self._take_left(self._log)
            self._sharing = asyncio.create_task(self._share(self._log), name="incognito marks")
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Waits for what is still being written down."""
        await asyncio.gather(*self._writing)
        if self._sharing is not None:
            self._sharing.cancel()
            await asyncio.gather(self._sharing, return_exceptions=True)

    async def mark(self, caller: Caller, history: Sequence[Message], asked: str, continues: str) -> None:
        """Never raises. *continues*: as Exchanged.continues."""
        caller = caller.person
        said = [message.text for message in history if message.role is Role.USER]
        keys = {_spoken([*said, asked]): self._limits.keep if said else self._limits.opening}
        if caller.session:
            keys[_named(caller)] = self._limits.keep
        if continues:
            keys[_continued(continues)] = self._limits.keep
        await self._mark(caller.owner, keys)

    async def mark_response(self, owner: Owner, response_id: str) -> None:
        """What continues from that response is incognito too. Never raises."""
        await self._mark(owner, {_continued(response_id): self._limits.keep})

    async def holds(self, exchanged: Exchanged) -> bool:
        """Whether *exchanged* belongs to such a conversation; its own turn is then marked too. Raises where that
        cannot be found out."""
        caller = exchanged.caller.person
        if not await self._any(caller.owner, _keys_of(exchanged)):
            return False
        await self.mark(caller, exchanged.history, exchanged.asked, exchanged.continues)
        if exchanged.response_id:
            await self.mark_response(caller.owner, exchanged.response_id)
        return True

    def is_marked(self, exchanged: Exchanged) -> bool:
        """Whether that is known in this process."""
        owner = exchanged.caller.person.owner
        return owner in self._marked and any((owner, key) in self._here for key in _keys_of(exchanged))

    async def is_shared(self) -> bool:
        """Whether every mark of ours is shared by now, and those of others can be asked for."""
        try:
            await self._records.get_record(_KIND, _NOBODY, _KIND)
        except MemoryExtprocError:
            return False
        return not self._unshared

    async def _any(self, owner: Owner, keys: Iterable[str]) -> bool:
        wanted = list(keys)
        if any((owner, key) in self._here for key in wanted):
            return True
        found = await asyncio.gather(*(self._records.get_record(_KIND, _apart(owner), key) for key in wanted))
        return any(record is not None for record in found)

    async def _mark(self, owner: Owner, keys: _Mark) -> None:
        self._hold(owner, keys)
        body = msgspec.json.encode(keys)
        record = None if self._log is None else self._log.append(Kind.MARK, owner, _EPOCH, body)
        # A task of our own: a request that leaves, or has waited long enough, takes no mark with it.
        writing = asyncio.create_task(self._write(owner, keys, record))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        done, _ = await asyncio.wait({writing}, timeout=self._limits.patience.total_seconds())
        for task in done:
            task.result()  # a bug is raised, as if it had been awaited

    async def write_again(self) -> None:
        """Every mark that this process knows, where the records were lost."""
        for (owner, key), ttl in list(self._here.items()):
            await self._write(owner, {key: ttl}, None)

    def _hold(self, owner: Owner, keys: _Mark) -> None:
        for key, ttl in keys.items():
            self._marked[owner] += (owner, key) not in self._here
            self._here[owner, key] = ttl
            self._here.move_to_end((owner, key))
        while len(self._here) > self._limits.in_process:
            (whose, _), _ = self._here.popitem(last=False)
            self._marked[whose] -= 1
            if not self._marked[whose]:
                del self._marked[whose]

    async def _write(self, owner: Owner, keys: _Mark, record: Record | None) -> bool:
        writes: list[Awaitable[None]] = [
            self._records.put_record(_KIND, _apart(owner), key, _MARK, ttl) for key, ttl in keys.items()
        ]
        try:
            async with asyncio.timeout(self._limits.give_up.total_seconds()):
                await asyncio.gather(*writes)
        except (MemoryExtprocError, TimeoutError) as error:
            if record not in self._unshared:
                log.warning("incognito.not_noted", error=type(error).__name__)
            if record is not None:
                self._unshared[record] = keys
            return False
        if record is not None and self._log is not None:
            self._unshared.pop(record, None)
            self._log.discard(record)
        return True

    async def _share(self, intake_log: IntakeLog) -> None:
        """Marks that could not be shared, until they are."""
        while True:
            await asyncio.sleep(self._limits.retry.total_seconds())
            self._take_left(intake_log)
            for record, keys in list(self._unshared.items()):
                if not await self._write(record.owner, keys, record):
                    break

    def _take_left(self, intake_log: IntakeLog) -> None:
        for record in intake_log.take_left(Kind.MARK):
            try:
                keys = msgspec.json.decode(intake_log.read(record), type=_Mark)
            except (GiveUpError, msgspec.MsgspecError) as error:
                log.warning("incognito.not_noted", error=type(error).__name__)
                intake_log.discard(record)
                continue
            self._hold(record.owner, keys)
            self._unshared[record] = keys


def _apart(owner: Owner) -> Owner:
    """Nobody, for each somebody: their records, and the key that seals those, go with no forget."""
    return Owner(owner.tenant, f"{SHARED}incognito{SHARED}{owner.key}")


def _spoken(said: Sequence[str]) -> str:
    running = hashlib.sha256(digest("spoken").encode())
    for text in said:
        encoded = normal(text).encode("utf-8", "surrogatepass")
        running.update(f"{len(encoded)}:".encode())
        running.update(encoded)
    return running.hexdigest()


def _named(caller: Caller) -> str:
    return digest("named", caller.session)


def _continued(response_id: str) -> str:
    return digest("continued", response_id)


def _keys_of(exchanged: Exchanged) -> list[str]:
    """By any of which its conversation is known."""
    caller = exchanged.caller.person
    said = [message.text for message in exchanged.history if message.role is Role.USER]
    before = range(max(1, len(said) - _LOOKBACK + 1), len(said) + 1)
    keys = [_spoken(said[:count]) for count in before]
    if said:
        keys.append(_spoken([*said, exchanged.asked]))
    if caller.session:
        keys.append(_named(caller))
    if exchanged.continues:
        keys.append(_continued(exchanged.continues))
    return keys
