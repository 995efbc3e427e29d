"""What was said of a topic whose summary matches well: its own words, as far as they fit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.language.words import stems
from memory_extproc.model import Memory, Ranked, Source
from memory_extproc.observe.log import logger
from memory_extproc.ports import ReadsMemories
from memory_extproc.recall.explanation import Considered, Verdict
from memory_extproc.recall.ongoing import sources_of
from memory_extproc.recall.view import View

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class ThreadLimits:
    min_relevance: float = 0.8  # of a summary, in [0, 1]
    max: int = 4  # messages fetched for one request; 0: none


class Threads:
    """Fetches the messages that a summary was made of; they follow what was found, so that they take no room from
    it. Whatever fails here leaves what was found as it is."""

    def __init__(self, reads: ReadsMemories, limits: ThreadLimits) -> None:
        self._reads, self._limits = reads, limits

    def use(self, limits: ThreadLimits) -> None:
        self._limits = limits

    async def extended(
        self, ranked: tuple[Ranked, ...], asked: str, in_view: frozenset[str], now: datetime, within: timedelta
    ) -> tuple[Ranked, ...]:
        """*ranked* and behind it the messages, those that share most with *asked* first, none of them twice."""
        topics = [one for one in ranked if self._opens(one)]
        if not topics or not self._limits.max:
            return ranked
        try:
            async with asyncio.timeout(max(within.total_seconds(), 0.0)):
                fetched = [(one, row) for one in topics for row in await self._messages(one.memory)]
        except (TimeoutError, MemoryExtprocError) as error:
            log.info("recall.no_threads", error=type(error).__name__)
            return ranked
        there = {one.memory.id for one in ranked}
        said = {one.memory.content for one in ranked}
        view, wanted = View(in_view), stems(asked)
        fitting = {
            row.id: Ranked(row, topic.relevance)
            for topic, row in fetched
            if row.id not in there and row.content not in said and row.recallable(now) and not view.shows(row)
        }
        best = sorted(fitting.values(), key=lambda one: -len(wanted & stems(one.memory.content)))
        return (*ranked, *best[: self._limits.max])

    def _opens(self, one: Ranked) -> bool:
        return one.memory.source is Source.SUMMARY and one.relevance >= self._limits.min_relevance

    async def _messages(self, topic: Memory) -> Sequence[Memory]:
        ids = sources_of(topic)
        found = await self._reads.get(topic.owner, ids) if ids else ()
        messages = [row for row in found if row.source is Source.VERBATIM]
        return sorted(messages, key=lambda row: (row.seq, row.id))


def with_threads(weighed: Sequence[Considered], ranked: Sequence[Ranked]) -> list[Considered]:
    """*weighed* with what of *ranked* was fetched beside the chosen: at its own place where the search came upon it
    too, else behind all others and with no relevance of its own."""
    there = {one.memory.id: one for one in weighed}
    chosen = {one.memory.id for one in weighed if one.verdict is Verdict.INJECTED}
    fetched = {one.memory.id: one.memory for one in ranked if one.memory.id not in chosen}
    found = [replace(one, verdict=Verdict.THREAD) if one.memory.id in fetched else one for one in weighed]
    return [
        *found,
        *(Considered(memory, 0.0, 0.0, Verdict.THREAD) for id_, memory in fetched.items() if id_ not in there),
    ]
