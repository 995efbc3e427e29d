"""Conversations of which nothing is kept: once one request of them asked for that, the later ones need not.

A conversation is known again by the session its client names, by the response it continues from, and by what its
user said: hashes of the user's words up to a turn, so that a client that sends the history again is recognised
whatever it makes of the answers. It stays one when a later request names a project, or another one. Marks are kept
for all replicas, and in this process while they cannot be. Like other choices of a person's they outlive the
forgetting of everything: what goes on in such a conversation afterwards is not to be kept either.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.language.comparing import normal
from memory_extproc.model import SHARED, Caller, Exchanged, Message, Owner, Role, digest
from memory_extproc.observe.log import logger
from memory_extproc.ports import Coordination

log = logger(__name__)

_KIND = "incognito"
_LOOKBACK = 3  # turns looked back over for a mark: each one that was recognised is marked itself
_MARK = b"1"


@dataclass(frozen=True, slots=True, kw_only=True)
class IncognitoLimits:
    keep: timedelta = timedelta(days=30)  # as long as a conversation is known again at all
    opening: timedelta = timedelta(minutes=30)  # of a mark by a first message alone: other chats begin like it
    patience: timedelta = timedelta(milliseconds=50)  # of a request that waits; what takes longer goes on behind it
    give_up: timedelta = timedelta(seconds=30)  # and then a mark is left to this process alone
    in_process: int = 10_000  # marks held here; the oldest go first


class Incognito:
    """Implements ports.NotesIncognito. One event loop owns it."""

    def __init__(self, records: Coordination, limits: IncognitoLimits) -> None:
        self._records, self._limits = records, limits
        self._here: OrderedDict[tuple[Owner, str], timedelta] = OrderedDict()
        self._writing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Waits for what is still being written down."""
        await asyncio.gather(*self._writing)

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
        said = [message.text for message in exchanged.history if message.role is Role.USER]
        before = range(max(1, len(said) - _LOOKBACK + 1), len(said) + 1)
        keys = [_spoken(said[:count]) for count in before]
        if said:
            keys.append(_spoken([*said, exchanged.asked]))
        if caller.session:
            keys.append(_named(caller))
        if exchanged.continues:
            keys.append(_continued(exchanged.continues))
        if not await self._any(caller.owner, keys):
            return False
        await self.mark(caller, exchanged.history, exchanged.asked, exchanged.continues)
        if exchanged.response_id:
            await self.mark_response(caller.owner, exchanged.response_id)
        return True

    async def _any(self, owner: Owner, keys: Iterable[str]) -> bool:
        wanted = list(keys)
        if any((owner, key) in self._here for key in wanted):
            return True
        found = await asyncio.gather(*(self._records.get_record(_KIND, _apart(owner), key) for key in wanted))
        return any(record is not None for record in found)

    async def _mark(self, owner: Owner, keys: dict[str, timedelta]) -> None:
        for key, ttl in keys.items():
            self._here[owner, key] = ttl
            self._here.move_to_end((owner, key))
        while len(self._here) > self._limits.in_process:
            self._here.popitem(last=False)
        # A task of our own: a request that leaves, or has waited long enough, takes no mark with it.
        writing = asyncio.create_task(self._write(owner, keys))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        done, _ = await asyncio.wait({writing}, timeout=self._limits.patience.total_seconds())
        for task in done:
            task.result()  # a bug is raised, as if it had been awaited

    async def write_again(self) -> None:
        """Every mark that this process made, where the records were lost."""
        for (owner, key), ttl in list(self._here.items()):
            await self._write(owner, {key: ttl})

    async def _write(self, owner: Owner, keys: dict[str, timedelta]) -> None:
        writes: list[Awaitable[None]] = [
            self._records.put_record(_KIND, _apart(owner), key, _MARK, ttl) for key, ttl in keys.items()
        ]
        try:
            async with asyncio.timeout(self._limits.give_up.total_seconds()):
                await asyncio.gather(*writes)
        except (MemoryExtprocError, TimeoutError) as error:
            log.warning("incognito.not_noted", error=type(error).__name__)


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
