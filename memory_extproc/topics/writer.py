"""Topics and sessions that have come to their end, written down as memories."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import numpy as np

from memory_extproc.errors import TransientError
from memory_extproc.model import (
    Embedded,
    Memory,
    MemoryState,
    MemoryType,
    Owner,
    Provenance,
    Role,
    Source,
    Vector,
    digest,
    least_trusted,
    trust_of,
    with_trust,
)
from memory_extproc.ports import EmbeddingModel, MemoryWriter, Now
from memory_extproc.text.words import estimate_tokens
from memory_extproc.topics import state
from memory_extproc.topics.state import Group, SaidTurn, Sayings, Thread, TurnWords, said_in, unit
from memory_extproc.topics.summarizer import (
    PARAGRAPH,
    SENTENCE,
    Band,
    Part,
    Summaries,
    Summary,
    condense_parts,
    is_topic,
)

Checks = Callable[[], Awaitable[None]]  # raises TransientError if the messages read may not be written any more


@dataclass(frozen=True, slots=True)
class _Closed:
    """A closed topic as part of its session; its *first* and *last* turn and when it was *made*, in seconds since
    1970. *rows*: all memories that were read of it."""

    part: Part
    first: float
    last: float
    made: float
    rows: tuple[Memory, ...] = field(repr=False)


class Closing:
    """Writing the same end twice, after a crash in between, writes the same memories."""

    def __init__(
        self,
        keeps: MemoryWriter,
        sayings: Sayings,
        summaries: Summaries,
        embedder: EmbeddingModel,
        *,
        now: Now,
        least: int,
        content_bytes: int,
    ) -> None:
        self._keeps, self._sayings, self._summaries, self._embedder = keeps, sayings, summaries, embedder
        self._now, self._least, self._bytes = now, least, content_bytes

    async def topic(self, owner: Owner, thread: Thread, group: Group, checks: Checks) -> bool:
        """Store a summary of *group*. False if too few or too short messages are left, or only unanswered
        questions."""
        read = self._now().timestamp()
        said = _bound_messages([one for one in await self._sayings.of(owner, group) if one.messages])
        if not is_topic(said, self._least):
            return False
        summary = await self._summaries.of_topic(owner, said)
        if not summary.text:
            return False
        row = topic_row(self._key_of(owner, read), thread, group, said, summary)
        vector = await embed_middle(self._embedder, [text for one in said for text in one.beginnings])
        await checks()
        rows = [row for one in said for row in one.rows]
        await self._check_unchanged(owner, rows)
        await self._keeps.put(owner, [Embedded(_trusted_as(row, rows), vector)])
        return True

    async def session(self, owner: Owner, thread: Thread, before: state.Finished, checks: Checks) -> str:
        """Store a summary of *thread*, whose topics are all closed, and of the *before* part of the session.
        Returns its id; empty if the session is too small."""
        read = self._now().timestamp()
        groups = [await self._part(owner, thread, group) for group in thread.closed]
        kept = _within_bounds([one for one in groups if one is not None])
        parts = [one.part for one in kept]
        moments = [moment for one in kept for moment in (one.first, one.last)]
        known = await self._keeps.get(owner, [before.summary]) if before.summary else ()
        earlier = next((row for row in known if row.state is MemoryState.ACTIVE), None)
        levels = await condense_parts(self._summaries, owner, parts, earlier.content if earlier else "")
        if not levels:
            return ""
        written = self._key_of(owner, max([read, *(one.made for one in kept)]))
        made: list[Embedded] = []
        sources: list[tuple[str, ...]] = [part.sources for part in parts]
        moments += [earlier.created_at.timestamp()] if earlier else []
        for number, level in enumerate(levels, start=1):
            ids = [
                summary_id(owner, thread.session, thread.closed[0], number, place) for place in range(len(level))
            ]
            final = number == len(levels)
            for memory_id, one in zip(ids, level, strict=True):
                named = [source for of in sources[one.parts[0] : one.parts[1]] for source in of]
                row = summary_row(
                    written,
                    thread,
                    memory_id,
                    one.text,
                    moments,
                    kind=SummaryKind.SESSION if final else SummaryKind.PART,
                    sources=(*named, *((earlier.id,) if final and earlier else ())),
                    level=one.level,
                    levels=len(levels),
                    ratio=one.ratio,
                    version=one.by,
                )
                made.append(Embedded(row, await embed_middle(self._embedder, [one.text])))
            sources = [(memory_id,) for memory_id in ids]
        await checks()
        read_rows = [row for one in kept for row in one.rows]
        read_rows += [earlier] if earlier else []
        await self._check_unchanged(owner, read_rows)
        await self._keeps.put(owner, [Embedded(_trusted_as(one.memory, read_rows), one.vector) for one in made])
        latest = made[-1].memory
        if earlier is not None and earlier.id != latest.id:
            await self._keeps.supersede(owner, earlier.id, latest.id, latest.updated_at)
        return latest.id

    async def _part(self, owner: Owner, thread: Thread, group: Group) -> _Closed | None:
        """The remaining messages of *group*, linked to the memory of its topic, if any."""
        said = _bound_messages([one for one in await self._sayings.of(owner, group) if one.messages])
        if not said:
            return None
        topic = await self._keeps.get(owner, [topic_id(owner, thread.session, group)])
        there = [row for row in topic if row.state is MemoryState.ACTIVE]
        sources = [row.id for row in there] or [source for one in said for source in one.sources]
        moments = [one.moment for one in said]
        part = Part.of_turns(said, sources)
        read = (*there, *(row for one in said for row in one.rows))
        return _Closed(part, min(moments), max(moments), max([*moments, *map(made_at, there)]), read)

    async def _check_unchanged(self, owner: Owner, read: Sequence[Memory]) -> None:
        """TransientError if a memory in *read* was forgotten in a chat, corrected, quarantined or replaced while a
        model worked on it: such changes advance no epoch."""
        there = {row.id: row for row in await self._keeps.get(owner, [row.id for row in read])}
        for row in read:
            now = there.get(row.id)
            if now is None or now.state is not MemoryState.ACTIVE or now.content != row.content:
                raise TransientError("what was summed up changed while we worked")

    def _key_of(self, owner: Owner, read: float) -> Written:
        return Written(owner, read, self._embedder.fingerprint, self._bytes)


async def embed_middle(embedder: EmbeddingModel, texts: Sequence[str]) -> Vector:
    """Mean vector of *texts*: of the messages, so it does not depend on the words of their summary."""
    vectors = await embedder.embed(texts)
    middle = unit(np.sum(vectors, axis=0))
    # Opposite vectors have no middle; a store takes no vector of nothing.
    return middle if np.isclose(np.linalg.norm(middle), 1.0, atol=1e-3) else vectors[0]


def _bound_messages(said: Sequence[TurnWords]) -> list[TurnWords]:
    """The messages that a memory can name as sources: of a message in dozens of chunks, the first chunks."""
    room, waiting = MOST_SOURCES, len(said)
    allowed: dict[bytes, int] = {}
    for one in sorted(said, key=lambda one: len(one.sources)):
        allowed[one.turn.id] = room // waiting
        room -= min(len(one.sources), allowed[one.turn.id])
        waiting -= 1
    return [one.beginning(allowed[one.turn.id]) for one in said]


def _within_bounds(groups: Sequence[_Closed]) -> list[_Closed]:
    kept: list[_Closed] = []
    left = MOST_SOURCES - 1  # the summary of the earlier part is a source too
    for one in groups:
        if len(one.part.sources) <= left:
            kept.append(one)
            left -= len(one.part.sources)
    return kept


# Topics and summaries of sessions as memories. Pure; the same turns give the same ids.

MOST_SOURCES = 100  # ids in one memory's provenance, of which the memory API accepts 8 KiB


class SummaryKind(StrEnum):
    """The subject of a summary; in its provenance, so never renamed."""

    TOPIC = "topic"
    PART = "part"  # of a session too long for a single summary
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class Written:
    """Fields shared by all memories of one write."""

    owner: Owner
    read: float  # time of reading the sources, or earlier; in seconds since 1970
    embed_model: str
    bytes: int  # of a memory's content at most


def topic_id(owner: Owner, session: str, group: Group) -> str:
    return digest("topic", owner.key, session, group[0].id.hex())


def summary_id(owner: Owner, session: str, first: Group, level: int, place: int) -> str:
    return digest("summary", owner.key, session, first[0].id.hex(), str(level), str(place))


def topic_row(
    written: Written, thread: Thread, group: Group, said: Sequence[TurnWords], summary: Summary
) -> Memory:
    """*said*: the remaining messages of *group*, at least one."""
    text = f"{summary.name}: {summary.text}" if summary.name else summary.text
    return _row(
        written,
        thread,
        [one.turn.seq for one in said],
        [one.moment for one in said],
        topic_id(written.owner, thread.session, group),
        text,
        kind=SummaryKind.TOPIC,
        name=summary.name,
        turns=len(said),
        sources=tuple(source for one in said for source in one.sources),
        version=summary.by,
    )


def summary_row(
    written: Written, thread: Thread, memory_id: str, text: str, moments: Sequence[float], **known: Any
) -> Memory:
    seqs = [turn.seq for group in thread.closed for turn in group]
    return _row(written, thread, seqs, moments, memory_id, text, **known)


def _row(
    written: Written,
    thread: Thread,
    seqs: Sequence[int],
    moments: Sequence[float],
    memory_id: str,
    text: str,
    **known: Any,
) -> Memory:
    # Time of its first message, so that a forget by period that covers this message covers the summary.
    first, last = min(moments), max(moments)
    at = datetime.fromtimestamp(int(first), UTC)
    return Memory(
        id=memory_id,
        owner=written.owner,
        type=MemoryType.EPISODIC,
        content=truncate_utf8(text, written.bytes),
        source=Source.SUMMARY,
        created_at=at,
        updated_at=max(at, datetime.fromtimestamp(int(last), UTC)),
        valid_from=at,
        project=thread.project,
        session=thread.session,
        seq=min(seqs),
        role=Role.NONE,
        origin=thread.origin,
        embed_model=written.embed_model,
        provenance=Provenance(
            said=round(first, 3), until=round(last, 3), span=span_of(seqs), made=max(written.read, last), **known
        ),
    )


def made_at(memory: Memory) -> float:
    """Time of reading the sources, in seconds since 1970; 0 without sources."""
    return memory.provenance.made or 0.0


def _trusted_as(summary: Memory, sources: Iterable[Memory]) -> Memory:
    return with_trust(summary, least_trusted((trust_of(summary), *map(trust_of, sources))))


def span_of(seqs: Sequence[int]) -> tuple[int, int]:
    """The places, half open, of the messages of turns that begin at *seqs*: each has its own and its answer's."""
    return min(seqs), max(seqs) + 2


def truncate_utf8(text: str, most: int) -> str:
    """The beginning of *text* that fits into *most* bytes of UTF-8."""
    return text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


# Rebuild summaries from their remaining sources, under their old ids.

_MESSAGES = frozenset({Source.VERBATIM, Source.QUESTION})


@dataclass(frozen=True, slots=True)
class _Left:
    """The remaining sources of a summary: *parts* to sum up, the turns *said* among them, and *earlier*, the
    summary of the part before. *sources*: the memories that hold them."""

    parts: list[Part] = field(repr=False)
    sources: list[Memory]
    said: list[TurnWords]
    earlier: Memory | None = None


class Rebuilding:
    """Implements retention's port: retention decides which memories hold, this class sums them up."""

    def __init__(
        self, summaries: Summaries, embedder: EmbeddingModel, *, now: Now, least: int, content_bytes: int
    ) -> None:
        self._summaries, self._embedder, self._now = summaries, embedder, now
        self._least, self._bytes = least, content_bytes

    async def rebuild(self, memory: Memory, known: Mapping[str, Memory]) -> Embedded | None:
        now = self._now().timestamp()
        left = _left_of(memory, known)
        if memory.provenance.kind == SummaryKind.TOPIC:
            return await self._topic(memory, left, now)
        return await self._summary(memory, left, now)

    async def _topic(self, memory: Memory, left: _Left, now: float) -> Embedded | None:
        if not is_topic(left.said, self._least):
            return None
        summary = await self._summaries.of_topic(memory.owner, left.said)
        if not summary.text:
            return None
        text = f"{summary.name}: {summary.text}" if summary.name else summary.text
        fields = {"name": summary.name, "turns": len(left.said), "version": summary.by}
        return Embedded(
            self._row(memory, text, left, now, fields),
            await embed_middle(self._embedder, [one.text for one in left.said]),
        )

    async def _summary(self, memory: Memory, left: _Left, now: float) -> Embedded | None:
        tokens = sum(part.tokens for part in left.parts)
        whole = memory.provenance.kind == SummaryKind.SESSION and memory.provenance.level == 1
        if not left.parts or (whole and left.earlier is None and Band.of(tokens) is Band.NOTHING):
            return None
        sentences = SENTENCE if whole and Band.of(tokens) is Band.SENTENCE else PARAGRAPH
        earlier = left.earlier.content if left.earlier else ""
        made = await self._summaries.of_parts(memory.owner, left.parts, sentences, earlier)
        if not made.text:
            return None
        fields = {"ratio": round(estimate_tokens(made.text) / max(1, tokens), 3), "version": made.by}
        return Embedded(
            self._row(memory, made.text, left, now, fields), await embed_middle(self._embedder, [made.text])
        )

    def _row(self, memory: Memory, text: str, left: _Left, now: float, fields: Mapping[str, object]) -> Memory:
        moments = [source.created_at.timestamp() for source in left.sources]
        seqs = [turn.turn.seq for turn in left.said]
        span = span_of(seqs) if seqs and left.earlier is None else memory.provenance.span
        return replace(
            memory,
            state=MemoryState.ACTIVE,
            content=truncate_utf8(text, self._bytes),
            updated_at=max(memory.updated_at, datetime.fromtimestamp(int(now), UTC)),
            embed_model=self._embedder.fingerprint,
            provenance=memory.provenance.replace(
                **fields,
                span=span,
                sources=tuple(source.id for source in left.sources),
                made=max([now, *moments, *(made_at(source) for source in left.sources)]),
            ),
        )


def _left_of(memory: Memory, known: Mapping[str, Memory]) -> _Left:
    """The turns of a topic, or the texts of the summaries below."""
    sums_up_summaries = (memory.provenance.level or 0) > 1
    loose: list[Memory] = []
    topics: list[list[Memory]] = [loose]
    sources: list[Memory] = []
    summed: list[Part] = []
    earlier: Memory | None = None
    for source in _rows(memory, known):
        if source.superseded_by == memory.id and source.source is Source.SUMMARY:
            earlier = source if _whole(source, known) else None
            sources += [source] if earlier else []
            gone = [] if earlier else _messages(source, known)
            loose += gone
            sources += gone
        elif source.state is not MemoryState.ACTIVE:
            # A topic of which too little is left is none any more; its messages still were said.
            loose += (lost := _messages(source, known))
            sources += lost
        elif source.source is Source.SUMMARY and sums_up_summaries:
            summed.append(Part(source.content, (source.id,)))
            sources.append(source)
        elif source.source is Source.SUMMARY:
            topics.append(_messages(source, known))
            sources.append(source)
        else:
            loose += _messages(source, known)
            sources.append(source)
    parts = [Part.of_turns(_turns(messages), ()) for messages in topics if messages]
    return _Left(
        [*parts, *summed],
        list({one.id: one for one in sources}.values()),
        _turns(message for messages in topics for message in messages),
        earlier,
    )


def _whole(memory: Memory, known: Mapping[str, Memory]) -> bool:
    """Whether every message that it was made of is there as it was."""
    found = _rows(memory, known)
    return len(found) == len(memory.provenance.sources) and all(
        source.state is MemoryState.ACTIVE
        and max((source.valid_from or source.created_at).timestamp(), made_at(source)) <= made_at(memory)
        for source in found
    )


def _messages(memory: Memory, known: Mapping[str, Memory], seen: frozenset[str] = frozenset()) -> list[Memory]:
    """*memory* if it is a valid message, else the messages it derives from."""
    if memory.id in seen:
        return []
    if memory.source in _MESSAGES:
        return [memory] if memory.state is MemoryState.ACTIVE else []
    seen = seen | {memory.id}
    return [message for source in _rows(memory, known) for message in _messages(source, known, seen)]


def _rows(memory: Memory, known: Mapping[str, Memory]) -> list[Memory]:
    return [known[one] for one in memory.provenance.sources if one in known]


def _turns(messages: Iterable[Memory]) -> list[TurnWords]:
    by_turn: defaultdict[str, dict[str, Memory]] = defaultdict(dict)
    for row in messages:
        by_turn[row.provenance.turn][row.id] = row
    said = [said_in(_turn(turn, rows.values()), rows.values()) for turn, rows in by_turn.items()]
    return sorted(said, key=lambda one: (one.turn.seq, one.moment))


def _turn(turn: str, rows: Iterable[Memory]) -> SaidTurn:
    first = min(rows, key=lambda row: (row.seq, row.id))
    said = first.provenance.said
    moment = first.created_at.timestamp() if said is None else said
    seq = first.seq - (first.role is Role.ASSISTANT)
    # The turn's place in its session does not matter here, so files need not give it.
    return SaidTurn(turn.encode("utf-8", "surrogatepass"), seq, moment)
