"""Topics and sessions that have come to their end, written down as memories."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from memory_extproc.errors import TryLaterError
from memory_extproc.model import Embedded, Memory, MemoryState, Owner, Vector
from memory_extproc.ports import Embeds, KeepsMemories, Now
from memory_extproc.topics import rows, state
from memory_extproc.topics.condensing import Condensed, Part, condensed, is_topic
from memory_extproc.topics.rows import Kind, Written
from memory_extproc.topics.sayings import Said, Sayings
from memory_extproc.topics.shift import unit
from memory_extproc.topics.state import Group, Thread
from memory_extproc.topics.summing import Summaries

Checks = Callable[[], Awaitable[None]]  # raises TryLaterError when what was read may not be written any more


@dataclass(frozen=True, slots=True)
class _Closed:
    """A closed topic as part of its session; *first* word and when it was *made*, in seconds since 1970. *rows*: of
    all that was read of it."""

    part: Part
    first: float
    made: float
    rows: tuple[Memory, ...] = field(repr=False)


class Closing:
    """Writing the same end twice, after a crash in between, writes the same memories."""

    def __init__(
        self,
        keeps: KeepsMemories,
        sayings: Sayings,
        summaries: Summaries,
        embedder: Embeds,
        *,
        now: Now,
        least: int,
        content_bytes: int,
    ) -> None:
        self._keeps, self._sayings, self._summaries, self._embedder = keeps, sayings, summaries, embedder
        self._now, self._least, self._bytes = now, least, content_bytes

    async def topic(self, owner: Owner, thread: Thread, group: Group, checks: Checks) -> bool:
        """Whether *group* became a memory: with fewer messages left than a topic has at least, and short ones, they
        speak for themselves."""
        read = self._now().timestamp()
        said = _bounded([one for one in await self._sayings.of(owner, group) if one.messages])
        if not is_topic(said, self._least):
            return False
        summary = await self._summaries.of_topic(owner, said)
        row = rows.topic_row(self._written(owner, read), thread, group, said, summary)
        vector = await self._middle([one.text for one in said])
        await checks()
        await self._unchanged(owner, [row for one in said for row in one.rows])
        await self._keeps.put(owner, [Embedded(row, vector)])
        return True

    async def session(self, owner: Owner, thread: Thread, before: state.Finished, checks: Checks) -> str:
        """The id of the memory that sums up *thread*, all of whose topics are closed, and what was *before* in the
        session; empty if it is too small for one."""
        read = self._now().timestamp()
        groups = [await self._part(owner, thread, group) for group in thread.closed]
        kept = _within_bounds([one for one in groups if one is not None])
        parts, moments = [one.part for one in kept], [one.first for one in kept]
        known = await self._keeps.get(owner, [before.summary]) if before.summary else ()
        earlier = next((row for row in known if row.state is MemoryState.ACTIVE), None)
        levels = await condensed(self._summaries, owner, parts, earlier.content if earlier else "")
        if not levels:
            return ""
        written = self._written(owner, max([read, *(one.made for one in kept)]))
        made: list[Embedded] = []
        sources: list[tuple[str, ...]] = [part.sources for part in parts]
        moments += [earlier.created_at.timestamp()] if earlier else []
        for number, level in enumerate(levels, start=1):
            ids = [
                rows.summary_id(owner, thread.session, thread.closed[0], number, place)
                for place in range(len(level))
            ]
            final = number == len(levels)
            for memory_id, one in zip(ids, level, strict=True):
                named = [source for of in sources[one.parts[0] : one.parts[1]] for source in of]
                row = rows.summary_row(
                    written,
                    thread,
                    memory_id,
                    one.text,
                    moments,
                    kind=Kind.SESSION if final else Kind.PART,
                    sources=[*named, *([earlier.id] if final and earlier else [])],
                    **_level(one, len(levels)),
                )
                made.append(Embedded(row, await self._middle([one.text])))
            sources = [(memory_id,) for memory_id in ids]
        await checks()
        read_rows = [row for one in kept for row in one.rows]
        await self._unchanged(owner, [*read_rows, *([earlier] if earlier else [])])
        await self._keeps.put(owner, made)
        latest = made[-1].memory
        if earlier is not None and earlier.id != latest.id:
            await self._keeps.supersede(owner, earlier.id, latest.id, latest.updated_at)
        return latest.id

    async def _part(self, owner: Owner, thread: Thread, group: Group) -> _Closed | None:
        """What is left of *group* in full, standing on the memory of its topic if there is one."""
        said = _bounded([one for one in await self._sayings.of(owner, group) if one.messages])
        if not said:
            return None
        topic = await self._keeps.get(owner, [rows.topic_id(owner, thread.session, group)])
        there = [row for row in topic if row.state is MemoryState.ACTIVE]
        sources = [row.id for row in there] or [source for one in said for source in one.sources]
        moments = [one.moment for one in said]
        part = Part("\n".join(one.text for one in said), tuple(sources))
        read = (*there, *(row for one in said for row in one.rows))
        return _Closed(part, min(moments), max([*moments, *map(rows.made_at, there)]), read)

    async def _unchanged(self, owner: Owner, read: Sequence[Memory]) -> None:
        """TryLaterError where something that was *read* was forgotten in a chat, corrected, put aside or replaced
        while a model worked on it: no epoch tells of that, and nobody looks again for it."""
        there = {row.id: row for row in await self._keeps.get(owner, [row.id for row in read])}
        for row in read:
            now = there.get(row.id)
            if now is None or now.state is not MemoryState.ACTIVE or now.content != row.content:
                raise TryLaterError("what was summed up changed while we worked")

    async def _middle(self, texts: Sequence[str]) -> Vector:
        """Of what was said, whatever words sum it up."""
        vectors = await self._embedder.embed(texts)
        middle = unit(np.sum(vectors, axis=0))
        # Opposite vectors have no middle; a store takes no vector of nothing.
        return middle if np.isclose(np.linalg.norm(middle), 1.0, atol=1e-3) else vectors[0]

    def _written(self, owner: Owner, read: float) -> Written:
        return Written(owner, read, self._embedder.fingerprint, self._bytes)


def _level(one: Condensed, levels: int) -> dict[str, object]:
    return {"level": one.level, "levels": levels, "ratio": one.ratio, "version": one.by}


def _bounded(said: Sequence[Said]) -> list[Said]:
    """All of *said*, as far as one memory can name it: of messages in dozens of pieces the first of these."""
    room, waiting = rows.MOST_SOURCES, len(said)
    allowed: dict[bytes, int] = {}
    for one in sorted(said, key=lambda one: len(one.sources)):
        allowed[one.turn.id] = room // waiting
        room -= min(len(one.sources), allowed[one.turn.id])
        waiting -= 1
    return [one.beginning(allowed[one.turn.id]) for one in said]


def _within_bounds(groups: Sequence[_Closed]) -> list[_Closed]:
    kept: list[_Closed] = []
    left = rows.MOST_SOURCES - 1  # and the summary of what was before
    for one in groups:
        if len(one.part.sources) <= left:
            kept.append(one)
            left -= len(one.part.sources)
    return kept
