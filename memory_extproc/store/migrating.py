"""Makes collections of an older schema ones of the present schema, without taking them from anybody.

What only says more about a collection is said in place. What changes its fields copies it: the rows go to a
collection beside it, while everybody reads and writes; then writers are held for the time of a last look at every
row, the alias, which everybody uses, moves to the copy in one step, and the old one is dropped with its files.
Every step can be broken off and taken again: a copy that no alias leads to was never in use, and an old collection
that the new one still names is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from memory_extproc.errors import GiveUpError
from memory_extproc.observe import log
from memory_extproc.ports import Now
from memory_extproc.store import schema
from memory_extproc.store.calls import Calls
from memory_extproc.store.capabilities import Capabilities
from memory_extproc.store.client import AsyncMilvusClient
from memory_extproc.store.copying import Copying, LeavesOut, Says
from memory_extproc.store.moving import heard_after
from memory_extproc.store.opening import Opening
from memory_extproc.store.options import MilvusOptions
from memory_extproc.store.placement import Placement
from memory_extproc.store.rewriting import twin

_LOG = log.logger(__name__)
T = TypeVar("T")
Checkpoint = Callable[[], Awaitable[None]]
Pauses = Callable[[float], Awaitable[None]]  # for so many seconds
_AT_ONCE = 8  # batches; each strong read of a server waits a time tick of 200 ms
_FEW = 1000  # rows that may be left for the last look, during which nobody writes
_LOOKS = 5  # at most, before it
_HOLD = timedelta(seconds=60)  # writers are held so long at a time
_LEFT = timedelta(seconds=20)  # of a hold, when it is said again, and at least when the alias begins to move
_SWAP = _LEFT / 2  # until then it has moved


class How(StrEnum):
    IN_PLACE = "in place"
    COPY = "copy"


class State(StrEnum):
    CURRENT = "current"
    DUE = "due"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Migration:
    """One way in which a collection differs from what would be made today. All of them can be taken while sidecars
    of this version run; *how* says what it costs."""

    what: str
    how: How
    due: Callable[[Mapping[str, Any], bool], bool]  # of what a collection says, and whether it is to have words


MIGRATIONS = (
    Migration("the schema's version", How.IN_PLACE, lambda said, _: schema.version_of(said) < schema.VERSION),
    Migration("an index of words", How.COPY, lambda said, words: words and not schema.has_words(said)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """What became, or would become, of one collection."""

    collection: str  # its alias
    schema: int
    to: int
    due: tuple[str, ...]  # what it lacks, or lacked
    how: How | None
    state: State
    rows: int = 0  # it holds
    copied: int = 0  # by this run
    left_out: int = 0  # forgotten, and not taken along


class Migrating:
    def __init__(
        self,
        client: AsyncMilvusClient,
        options: MilvusOptions,
        calls: Calls,
        capabilities: Capabilities,
        placement: Placement,
        leaves_out: LeavesOut,
        says: Says,
        *,
        now: Now,
        pauses: Pauses = asyncio.sleep,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> None:
        self._client = client
        self._options = options
        self._calls = calls
        self._capabilities = capabilities
        self._placement = placement
        self._leaves_out = leaves_out
        self._says = says
        self._now = now
        self._pauses = pauses
        self._migrations = migrations
        self._opening = Opening(client, options, calls)
        # A Lite file lets one process in: nobody else reads or writes.
        self._alone = not options.uri

    async def plan(self) -> list[Migrated]:
        """What *run* would do; changes nothing."""
        return [await self._planned(alias) for alias in self._placement.aliases]

    async def run(self, checkpoint: Checkpoint) -> list[Migrated]:
        """*checkpoint* is asked before every step that cannot be undone, and raises where this run must end."""
        return [await self._migrated(*names, checkpoint) for names in self._placement.collections()]

    async def _planned(self, alias: str) -> Migrated:
        described = await self._described(alias)
        words = self._options.full_text and self._capabilities.full_text
        due = [one for one in self._migrations if one.due(described, words)]
        how = (How.COPY if any(one.how is How.COPY for one in due) else How.IN_PLACE) if due else None
        return Migrated(
            collection=alias,
            schema=schema.version_of(described),
            to=max(schema.VERSION, schema.version_of(described)),
            due=tuple(one.what for one in due),
            how=how,
            state=State.DUE if due else State.CURRENT,
            rows=await self._copying("", "").count(alias),
        )

    async def _migrated(self, alias: str, physical: str, checkpoint: Checkpoint) -> Migrated:
        await self._tidied(alias)
        planned = await self._planned(alias)
        if planned.how is not How.COPY:
            await self._without_copy(await self._described(alias))
        if planned.how is None:
            return planned
        _LOG.info("migration.begins", schema=planned.schema, to=planned.to, how=planned.how, rows=planned.rows)
        if planned.how is How.IN_PLACE:
            await checkpoint()
            await self._say((await self._described(alias))["collection_name"], schema.stamp())
            done = replace(planned, state=State.DONE)
        else:
            done = await self._moved(planned, physical, checkpoint)
        _LOG.info("migration.ended", copied=done.copied, left_out=done.left_out)
        return done

    # --- copying ---------------------------------------------------------------------------------------
    async def _moved(self, planned: Migrated, physical: str, checkpoint: Checkpoint) -> Migrated:
        alias = planned.collection
        described = await self._described(alias)
        old = described["collection_name"]
        new = physical if physical != old else twin(old)
        await self._made(new, described)
        await self._say(new, schema.moved_from(old))
        await self._say(old, schema.moving_to(new))
        await self._heard()
        copying, copied = self._copying(old, new), 0
        for _ in range(_LOOKS):
            await checkpoint()
            look = await copying.look(lambda done: self._progress(planned, done))
            copied += look.changed
            # Lite is slow with rows that are not flushed, and a server takes its time for it.
            await self._step(lambda limit: self._client.flush(new, timeout=limit))
            if self._alone or look.changed <= _FEW:
                break
        async with self._hold(old) as keeps_on:
            look = await copying.look(keeps_on)
            if await copying.count(new) != await copying.count(old) - look.left_out:
                raise GiveUpError(f"the copy of {alias!r} does not hold every row of it; run it again")
            await checkpoint()
            await keeps_on(0)
        await self._step(lambda limit: self._client.alter_alias(new, alias, timeout=limit), most=_SWAP)
        await self._heard()  # reads of the old one that were under way have ended
        await self._tidied(alias)
        return replace(planned, state=State.DONE, copied=copied + look.changed, left_out=look.left_out)

    async def _made(self, new: str, old: Mapping[str, Any]) -> None:
        """Empty, or with what a run that was broken off has copied."""
        words = self._options.full_text and self._capabilities.full_text
        there = await self._opening.describe(new)
        if there is not None and not self._fits(there, words=words):
            await self._drop(new)
            there = None
        made = there or await self._opening.make(new, schema.shards_of(old), self._capabilities)
        if words and not schema.has_words(made):
            await self._drop(new)
            raise GiveUpError("this Milvus dropped the index of words from what it was told to make")
        await self._opening.index_and_load(made, self._capabilities)

    def _fits(self, there: Mapping[str, Any], *, words: bool) -> bool:
        try:
            schema.check(there, self._options)
        except GiveUpError:
            return False
        return schema.version_of(there) == schema.VERSION and schema.has_words(there) == words

    @asynccontextmanager
    async def _hold(self, old: str) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
        """Nobody writes within; what it gives is called while that goes on, or writers go on by themselves. Where
        it fails they go on at once, and else not before the alias has had its time to move."""
        if self._alone:
            yield _nothing
            return
        until = 0.0

        async def keeps_on(_: int) -> None:
            nonlocal until
            if until - self._now().timestamp() < _LEFT.total_seconds():
                until = (self._now() + _HOLD).timestamp()
                await self._say(old, schema.held(int(until)))

        await keeps_on(0)
        try:
            await self._heard()
            yield keeps_on
        except BaseException:
            # Cancelled, too: writers would wait until the hold is over. Whoever has the lease by now may hold them
            # as well, and needs them held.
            if schema.held_until(await self._described(old)) == int(until):
                await self._say(old, schema.held(0))
            raise

    async def _tidied(self, alias: str) -> None:
        """Drops the old collection that a move left behind."""
        described = await self._described(alias)
        if old := schema.moved_from_of(described):
            await self._drop(old)
            await self._say(described["collection_name"], schema.moved_from(""))

    async def _without_copy(self, described: Mapping[str, Any]) -> None:
        """Drops the copy that an earlier run began, where none is needed any more."""
        if copy := schema.moving_to_of(described):
            await self._drop(copy)
            await self._say(described["collection_name"], schema.moving_to(""))

    # --- around it -------------------------------------------------------------------------------------
    async def _heard(self) -> None:
        if not self._alone:
            await self._pauses(heard_after(self._options).total_seconds())

    async def _progress(self, planned: Migrated, done: int) -> None:
        self._says(f"copying {planned.collection}", done, planned.rows)

    def _copying(self, old: str, new: str) -> Copying:
        at_once = 1 if self._capabilities.one_writer else _AT_ONCE
        return Copying(self._client, self._options, self._calls, (old, new), self._leaves_out, at_once=at_once)

    async def _described(self, name: str) -> Mapping[str, Any]:
        described = await self._opening.describe(name)
        if described is None:
            raise GiveUpError(f"the collection {name!r} is gone")
        return described

    async def _say(self, name: str, properties: Mapping[str, str]) -> None:
        await self._step(
            lambda limit: self._client.alter_collection_properties(name, dict(properties), timeout=limit)
        )

    async def _drop(self, name: str) -> None:
        if await self._opening.describe(name) is not None:
            await self._step(lambda limit: self._client.drop_collection(name, timeout=limit))

    async def _step(self, call: Callable[[float], Awaitable[T]], *, most: timedelta = timedelta.max) -> T:
        return await self._calls.run("migrate", min(self._options.open_timeout, most), call)


async def _nothing(_: int) -> None:
    """Nobody writes anyway."""
