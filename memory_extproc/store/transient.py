"""The memory store's fake: rows in a dictionary, gone with the process. For tests and demonstrations.

It passes the store's contract suite. Its `weather` makes it behave as a store does on a bad day.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from memory_extproc.errors import GiveUpError, TryLaterError
from memory_extproc.model import Embedded, Memory, Owner, Scope, Searched, Vector
from memory_extproc.ports import Now
from memory_extproc.store.held import nearest_of
from memory_extproc.store.rules import CONTENT_BYTES, check_owner, check_rows, check_vector, fit, searchable


@dataclass(slots=True)
class Weather:
    """What a store can suffer. Change it while the store is in use."""

    down: bool = False  # every call raises TryLaterError
    lagging: bool = False  # reads that are not fresh miss writes made since `settle`
    refuse: str = ""  # every call raises GiveUpError with this text
    calls: list[str] = field(default_factory=list)  # the operations asked for, in order
    _gates: dict[str, asyncio.Event] = field(default_factory=dict)

    def hold(self, operation: str) -> asyncio.Event:
        """Calls of *operation* wait until the returned event is set."""
        return self._gates.setdefault(operation, asyncio.Event())

    async def pass_through(self, operation: str) -> None:
        self.calls.append(operation)
        if operation in self._gates:
            await self._gates[operation].wait()
        if self.down:
            raise TryLaterError("the store is down")
        if self.refuse:
            raise GiveUpError(self.refuse)


class TransientStore:
    """A MemoryStore in a dictionary. *weather* is shared with who made it."""

    def __init__(
        self,
        dimension: int,
        *,
        now: Now,
        weather: Weather | None = None,
        lags: bool = False,
        finds_words: bool = False,
    ) -> None:
        self.weather = weather or Weather()
        self._dimension = dimension
        self._now = now
        self._lags = lags
        self._finds_words = finds_words
        self._rows: dict[Owner, dict[str, Embedded]] = {}
        self._settled: dict[Owner, dict[str, Embedded]] = {}

    @property
    def lags(self) -> bool:
        return self._lags

    @property
    def finds_words(self) -> bool:
        return self._finds_words

    def settle(self) -> None:
        """What was written so far is seen by every read from now on."""
        self._settled = {owner: dict(rows) for owner, rows in self._rows.items()}

    async def open(self) -> None:
        await self.weather.pass_through("open")

    async def close(self) -> None:
        return

    async def put(self, owner: Owner, rows: Sequence[Embedded]) -> None:
        check_rows(owner, rows, self._dimension)
        await self.weather.pass_through("put")
        self._rows.setdefault(owner, {}).update((row.memory.id, fit(row, CONTENT_BYTES)) for row in rows)

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        check_owner(owner)
        await self.weather.pass_through("get")
        return [row.memory for row in self._chosen(owner, ids)]

    async def fetch(self, owner: Owner, ids: Sequence[str]) -> Sequence[Embedded]:
        check_owner(owner)
        await self.weather.pass_through("fetch")
        return self._chosen(owner, ids)

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> Searched:
        check_vector(to, self._dimension)
        check_owner(owner)
        await self.weather.pass_through("nearest")
        rows = self._visible(owner, fresh=False)
        found = nearest_of(rows, to, limit, scope, self._now())
        return Searched(found=tuple(found), total=None, path="store")

    async def worded(self, owner: Owner, text: str, limit: int, scope: Scope) -> Sequence[Embedded]:
        check_owner(owner)
        await self.weather.pass_through("worded")
        asked = set(searchable(text).split())
        if not self._finds_words or limit <= 0:
            return []
        now = self._now()
        shared = {
            row.memory.id: (len(asked & set(searchable(row.memory.content).split())), row)
            for row in self._visible(owner, fresh=False)
            if scope.holds(row.memory) and row.memory.recallable(now)
        }
        ordered = sorted(shared.items(), key=lambda one: (-one[1][0], one[0]))
        return [row for _, (count, row) in ordered if count][:limit]

    async def pages(self, owner: Owner, size: int, *, fresh: bool) -> AsyncIterator[Sequence[Embedded]]:
        check_owner(owner)
        await self.weather.pass_through("pages")
        rows = self._visible(owner, fresh=fresh)
        for start in range(0, len(rows), size):
            if start:
                await self.weather.pass_through("page")
            yield rows[start : start + size]

    async def owners(self) -> AsyncIterator[Sequence[Owner]]:
        await self.weather.pass_through("owners")
        yield [owner for owner, rows in self._rows.items() if rows]

    async def delete(self, owner: Owner, ids: Sequence[str]) -> None:
        check_owner(owner)
        await self.weather.pass_through("delete")
        held = self._rows.get(owner, {})
        for one in ids:
            held.pop(one, None)

    async def delete_owner(self, owner: Owner) -> None:
        check_owner(owner)
        await self.weather.pass_through("delete_owner")
        self._rows.pop(owner, None)

    async def count(self, owner: Owner) -> int:
        check_owner(owner)
        await self.weather.pass_through("count")
        return len(self._rows.get(owner, {}))

    def _chosen(self, owner: Owner, ids: Sequence[str]) -> list[Embedded]:
        held = self._rows.get(owner, {})
        return [held[one] for one in dict.fromkeys(ids) if one in held]

    def _visible(self, owner: Owner, *, fresh: bool) -> list[Embedded]:
        rows = self._settled if self.weather.lagging and not fresh else self._rows
        return list(rows.get(owner, {}).values())
