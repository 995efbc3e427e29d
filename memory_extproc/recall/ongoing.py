"""Summaries of the conversation that the model sees itself: it is not to be told in short what it has in full."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import Memory, Source, Wish
from memory_extproc.observe.log import logger
from memory_extproc.ports import ReadsMemories
from memory_extproc.recall.view import View

log = logger(__name__)
_MOST = 8  # summaries looked at for one request, best first
_LEVELS = 5  # from the summary of a session down to what was said
_FETCHED = 400  # memories fetched for one summary and level
_SAID = frozenset({Source.VERBATIM, Source.QUESTION})


class Ongoing:
    """Knows the conversation by what was said in it, whatever session its client names and whichever process was
    told of it: a summary is of it when the model sees more than half of the messages that it stands on. Once a
    client, or the condensing of a long chat, has left them out, the summary serves again."""

    def __init__(self, reads: ReadsMemories) -> None:
        self._reads = reads

    async def told(self, found: Sequence[Memory], wish: Wish, within: timedelta) -> frozenset[str]:
        """Ids of those of *found*, best first, that sum up what the model sees. A fault tells of none."""
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
        """What was said that *summary* stands on, by way of the summaries between."""
        messages: list[Memory] = []
        below: Sequence[Memory] = [summary]
        for _ in range(_LEVELS):
            ids = [one for memory in below for one in sources_of(memory)][:_FETCHED]
            rows = await self._reads.get(summary.owner, ids) if ids else ()
            messages += (row for row in rows if row.source in _SAID)
            below = [row for row in rows if row.source is Source.SUMMARY]
        return messages


def sources_of(memory: Memory) -> list[str]:
    """Ids of what *memory* was made of."""
    named = memory.metadata.get("sources", ())
    return [one for one in named if isinstance(one, str)] if isinstance(named, list | tuple) else []
