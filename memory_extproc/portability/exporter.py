"""The export: everything that is known of one owner, in an order that does not change."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from memory_extproc.errors import GiveUpError
from memory_extproc.model import JournalState, Memory, Owner
from memory_extproc.portability.record import ID
from memory_extproc.portability.spilled import Spilled
from memory_extproc.ports import Exported, Journal, KnowsConsent, MemoryStore

_PLACE = re.compile(rf"m\.(-?[0-9]{{1,18}})\.({ID})")
# The place of all that follows the memories: it is little, and moves while it is read, so it is given again whole.
_REST = "rest"


class NoPlaceError(GiveUpError):
    """An export is to go on after a place that is none."""


@dataclass(frozen=True, slots=True)
class ExportLimits:
    page: int = 200  # memories read at a time; so many are held at most, whatever there is


class Exporter:
    """Exports over the store, the journal and the consent. The store gives rows in no order, so it is read twice:
    first for the order, which is kept as times and ids alone, then for the memories as they are by then."""

    def __init__(
        self,
        store: MemoryStore,
        journal: Journal,
        limits: ExportLimits = ExportLimits(),
        *,
        consent: KnowsConsent | None = None,
    ) -> None:
        self._store, self._journal, self._limits, self._consent = store, journal, limits, consent

    async def count(self, owner: Owner) -> int:
        return await self._store.count(owner)

    async def export(self, owner: Owner, *, project: str = "", after: str = "") -> AsyncIterator[Exported]:
        if after != _REST:
            async for memory in self._memories(owner, project, _read_place(after)):
                yield Exported(memory, _place_of(memory))
        async for entry in self._journal.of_owner(owner):
            # What is learned is among the memories; the journal keeps it only to know a retry.
            if entry.state is not JournalState.LEARNED and project in {"", entry.turn.project}:
                yield Exported(entry, _REST)
        if self._consent is not None and not project:
            for change in await self._consent.history(owner):
                yield Exported(change, _REST)

    async def _memories(self, owner: Owner, project: str, after: tuple[int, str] | None) -> AsyncIterator[Memory]:
        with Spilled() as order:
            async for page in self._store.pages(owner, self._limits.page, fresh=True):
                order.add(_key(row.memory) for row in page if not project or row.memory.project == project)
            for keys in order.after(after, self._limits.page):
                found = {one.id: one for one in await self._store.get(owner, [id_ for _, id_ in keys])}
                for _, id_ in keys:
                    if id_ in found:  # else it went since
                        yield found[id_]


def _key(memory: Memory) -> tuple[int, str]:
    return int(memory.created_at.timestamp()), memory.id


def _place_of(memory: Memory) -> str:
    seconds, id_ = _key(memory)
    return f"m.{seconds}.{id_}"


def _read_place(place: str) -> tuple[int, str] | None:
    """Behind which memory; None: before the first."""
    if not place:
        return None
    found = _PLACE.fullmatch(place)
    if found is None:
        raise NoPlaceError("no place of an export")
    return int(found[1]), found[2]
