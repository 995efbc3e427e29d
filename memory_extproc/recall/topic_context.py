"""The messages of a topic whose summary matches well, as far as they fit."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import Memory, Ranked, RecallRequest, Source
from memory_extproc.observe.log import logger
from memory_extproc.ports import MemoryReader
from memory_extproc.recall.candidate import Considered, Verdict
from memory_extproc.settings import CurrentSettings
from memory_extproc.text.words import stems

log = logger(__name__)


class ThreadFetcher:
    """Fetches the messages of a summary; they follow the found memories, so that they take no room from them. A
    failure here leaves the found memories unchanged."""

    def __init__(self, reads: MemoryReader, current: CurrentSettings) -> None:
        self._reads, self._current = reads, current

    async def add_messages(
        self,
        ranked: tuple[Ranked, ...],
        asked: str,
        in_view: frozenset[str],
        now: datetime,
        within: timedelta,
        *,
        whole: bool = False,
    ) -> tuple[Ranked, ...]:
        """*ranked*, then the messages, each once, ordered by the words they share with *asked*. *whole*: all
        messages, because the question asks for the conversation itself."""
        topics = [one for one in ranked if self._opens(one)]
        if not topics or not self._current.settings.recall.threads.max:
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
        return (*ranked, *(best if whole else best[: self._current.settings.recall.threads.max]))

    def _opens(self, one: Ranked) -> bool:
        return (
            one.memory.source is Source.SUMMARY
            and one.relevance >= self._current.settings.recall.threads.min_relevance
        )

    async def _messages(self, topic: Memory) -> Sequence[Memory]:
        ids = topic.provenance.sources
        found = await self._reads.get(topic.owner, ids) if ids else ()
        messages = [row for row in found if row.source is Source.VERBATIM]
        return sorted(messages, key=lambda row: (row.seq, row.id))


def with_threads(weighed: Sequence[Considered], ranked: Sequence[Ranked]) -> list[Considered]:
    """*weighed* with the fetched messages of *ranked*: at their own places where the search found them too,
    otherwise last and without a relevance of their own."""
    there = {one.memory.id: one for one in weighed}
    chosen = {one.memory.id for one in weighed if one.verdict is Verdict.INJECTED}
    fetched = {one.memory.id: one.memory for one in ranked if one.memory.id not in chosen}
    found = [replace(one, verdict=Verdict.THREAD) if one.memory.id in fetched else one for one in weighed]
    return [
        *found,
        *(Considered(memory, 0.0, 0.0, Verdict.THREAD) for id_, memory in fetched.items() if id_ not in there),
    ]


# Summaries of the visible conversation: the model does not need them beside the full text.

_MOST = 8  # summaries checked for a request, best first
_LEVELS = 5  # from the summary of a session down to its messages
_FETCHED = 400  # memories fetched for a summary and level
_SAID = frozenset({Source.VERBATIM, Source.QUESTION})


class Ongoing:
    """Recognises the visible conversation by its messages, with any session name of the client and in any process:
    a summary belongs to it when the model sees more than half of the summarised messages. Once a client, or the
    condensing of a long chat, has left them out, the summary serves again."""

    def __init__(self, reads: MemoryReader) -> None:
        self._reads = reads

    async def find_in_view(self, found: Sequence[Memory], wish: RecallRequest, within: timedelta) -> frozenset[str]:
        """Ids of the summaries in *found*, best first, of the visible conversation. None after a fault."""
        summaries = [memory for memory in found if memory.source is Source.SUMMARY][:_MOST]
        behind = {memory.id for memory in summaries if wish.behind and memory.session == wish.behind}
        seen = wish.in_view - {wish.asked}
        if not summaries or not seen:
            return frozenset(behind)
        view = View(seen)
        try:
            async with asyncio.timeout(max(within.total_seconds(), 0.0)):
                seen_here = {memory.id for memory in summaries if await self._seen(memory, view)}
        except (TimeoutError, MemoryExtprocError) as error:
            log.info("recall.ongoing_unknown", error=type(error).__name__)
            return frozenset(behind)
        return frozenset(behind | seen_here)

    async def _seen(self, summary: Memory, view: View) -> bool:
        messages = await self._messages(summary)
        return 2 * sum(map(view.shows, messages)) > len(messages)

    async def _messages(self, summary: Memory) -> Sequence[Memory]:
        """The messages under *summary*, through the summaries between."""
        messages: list[Memory] = []
        below: Sequence[Memory] = [summary]
        for _ in range(_LEVELS):
            ids = [one for memory in below for one in memory.provenance.sources][:_FETCHED]
            rows = await self._reads.get(summary.owner, ids) if ids else ()
            messages += (row for row in rows if row.source in _SAID)
            below = [row for row in rows if row.source is Source.SUMMARY]
        return messages


# --- view --------------------------------------------------------------------------------------------
# The visible conversation, so that nothing is given twice. Pure.

_SPACED = 2  # a text is compared over so many times its length, because of white space
_MARGIN = 64  # further characters


class View:
    """The texts of a conversation: possibly megabytes, so only relevant texts are compared."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = sorted(texts, key=len)
        self._lengths = [len(text) for text in self._texts]
        self._normal: dict[str, str] = {}
        self._holding: dict[tuple[str, int], str] = {}  # by session and seq: the text that held another piece

    def shows(self, memory: Memory) -> bool:
        """Whether the model sees *memory* literally, but for case and white space: as a message of the
        conversation, or, for a piece of a long message, within a message."""
        words = normal(memory.content)
        first = bisect_left(self._lengths, len(words) // 2)  # folding case may lengthen a text
        last = bisect_left(self._lengths, _SPACED * len(words) + _MARGIN)
        if any(self._normal_of(text) == words for text in self._texts[first:last]):
            return True
        return memory.provenance.piece is not None and self._holds(memory)

    def _normal_of(self, text: str) -> str:
        known = self._normal.get(text)
        if known is None:
            known = self._normal[text] = normal(text)
        return known

    def _holds(self, piece: Memory) -> bool:
        message = (piece.session, piece.seq)
        if piece.content in self._holding.get(message, ""):
            return True
        for text in self._texts[bisect_left(self._lengths, len(piece.content)) :]:
            if piece.content in text:
                self._holding[message] = text
                return True
        return False


def normal(text: str) -> str:
    """*text* as it is compared."""
    return " ".join(text.casefold().split()).rstrip(".!?… ")
