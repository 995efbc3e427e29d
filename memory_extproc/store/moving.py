"""What a migration asks of those who write to a collection while its rows move to another.

A migration copies rows while everybody reads and writes. It says so in a property of the collection, which
writers look at no more than a second before each write: what is deleted is deleted in the copy as well, so that
nothing forgotten is left in it, and for the last look before the copy takes over all writes wait, so that none is
missed. The wait ends by itself where the migration dies.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from memory_extproc.errors import TryLaterError
from memory_extproc.ports import Now
from memory_extproc.store import schema
from memory_extproc.store.breaker import Clock
from memory_extproc.store.calls import Calls
from memory_extproc.store.client import AsyncMilvusClient
from memory_extproc.store.options import MilvusOptions

LOOK = timedelta(seconds=1)  # how old what a writer knows may be
_CALLS = 3  # at most, of one write, each with its own time limit


def heard_after(options: MilvusOptions) -> timedelta:
    """From when on every writer has heard of a property that was changed, and what it began before has ended."""
    return LOOK + _CALLS * options.timeout + timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    beside: str
    held_until: int


class Moving:
    def __init__(
        self, client: AsyncMilvusClient, options: MilvusOptions, calls: Calls, *, now: Now, clock: Clock
    ) -> None:
        self._client = client
        self._options = options
        self._calls = calls
        self._now = now
        self._clock = clock
        self._looks: dict[str, _Look] = {}  # by alias

    async def admit(self, alias: str) -> str:
        """The collection in which the rows of *alias* stand as well, empty for none. TryLaterError while writes
        are held."""
        if not self._options.uri:
            return ""  # a Lite file lets one process in: whoever migrates it is alone
        look = self._looks.get(alias)
        if look is None or self._clock() - look.at >= LOOK.total_seconds():
            look = self._looks[alias] = await self._look(alias)
        if look.held_until > self._now().timestamp():
            raise TryLaterError("the collection is moving: writes wait a moment")
        return look.beside

    async def _look(self, alias: str) -> _Look:
        at = self._clock()

        async def look(limit: float) -> _Look:
            described = await self._client.describe_collection(alias, timeout=limit)
            beside = schema.moving_to_of(described) or schema.moved_from_of(described)
            if beside and not await self._client.has_collection(beside, timeout=limit):
                beside = ""  # dropped, and not said yet
            return _Look(at, beside, schema.held_until(described))

        return await self._calls.run("look", self._options.timeout, look)
