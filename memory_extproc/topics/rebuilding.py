"""Summaries made anew of what is left of what they were made of, under the ids they have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np

from memory_extproc.language.tokens import estimate_tokens
from memory_extproc.model import Embedded, Memory, MemoryState, Role, Source, Vector
from memory_extproc.ports import Embeds, Now
from memory_extproc.topics.condensing import PARAGRAPH, SENTENCE, Band, is_topic
from memory_extproc.topics.rows import MADE, Kind, cut, made_at, sources_of, span_of
from memory_extproc.topics.sayings import Said, said_in
from memory_extproc.topics.shift import unit
from memory_extproc.topics.state import SaidTurn
from memory_extproc.topics.summing import Summaries

_MESSAGES = frozenset({Source.VERBATIM, Source.QUESTION})


@dataclass(frozen=True, slots=True)
class _Left:
    """What is left of a summary's sources: *texts* to sum up, *said* the turns among them, and *earlier*, a summary
    of what was before. *sources*: the memories that they stand in."""

    texts: list[str] = field(repr=False)
    sources: list[Memory]
    said: list[Said]
    earlier: Memory | None = None


class Rebuilding:
    """Implements what retention asks for: it knows what holds, this knows how things are summed up."""

    def __init__(self, summaries: Summaries, embedder: Embeds, *, now: Now, least: int, content_bytes: int) -> None:
        self._summaries, self._embedder, self._now = summaries, embedder, now
        self._least, self._bytes = least, content_bytes

    async def rebuild(self, memory: Memory, known: Mapping[str, Memory]) -> Embedded | None:
        now = self._now().timestamp()
        left = _left_of(memory, known)
        if memory.metadata.get("kind") == Kind.TOPIC:
            return await self._topic(memory, left, now)
        return await self._summary(memory, left, now)

    async def _topic(self, memory: Memory, left: _Left, now: float) -> Embedded | None:
        if not is_topic(left.said, self._least):
            return None
        summary = await self._summaries.of_topic(memory.owner, left.said)
        text = f"{summary.name}: {summary.text}" if summary.name else summary.text
        fields = {"name": summary.name, "turns": len(left.said), "version": summary.by}
        return Embedded(self._row(memory, text, left, now, fields), await self._middle(left.texts))

    async def _summary(self, memory: Memory, left: _Left, now: float) -> Embedded | None:
        tokens = sum(map(estimate_tokens, left.texts))
        whole = memory.metadata.get("kind") == Kind.SESSION and memory.metadata.get("level") == 1
        if not left.texts or (whole and left.earlier is None and Band.of(tokens) is Band.NOTHING):
            return None
        sentences = SENTENCE if whole and Band.of(tokens) is Band.SENTENCE else PARAGRAPH
        earlier = left.earlier.content if left.earlier else ""
        made = await self._summaries.of_texts(memory.owner, left.texts, sentences, earlier)
        fields = {"ratio": round(estimate_tokens(made.text) / max(1, tokens), 3), "version": made.by}
        return Embedded(self._row(memory, made.text, left, now, fields), await self._middle([made.text]))

    def _row(self, memory: Memory, text: str, left: _Left, now: float, fields: Mapping[str, object]) -> Memory:
        moments = [source.created_at.timestamp() for source in left.sources]
        seqs = [turn.turn.seq for turn in left.said]
        spans = {"span": span_of(seqs)} if seqs and left.earlier is None else {}
        return replace(
            memory,
            state=MemoryState.ACTIVE,
            content=cut(text, self._bytes),
            updated_at=max(memory.updated_at, datetime.fromtimestamp(int(now), UTC)),
            embed_model=self._embedder.fingerprint,
            metadata={
                **memory.metadata,
                **fields,
                **spans,
                "sources": [source.id for source in left.sources],
                MADE: max([now, *moments, *(made_at(source) for source in left.sources)]),
            },
        )

    async def _middle(self, texts: Sequence[str]) -> Vector:
        vectors = await self._embedder.embed(texts)
        middle = unit(np.sum(vectors, axis=0))
        return middle if np.isclose(np.linalg.norm(middle), 1.0, atol=1e-3) else vectors[0]


def _left_of(memory: Memory, known: Mapping[str, Memory]) -> _Left:
    """Of a topic, its turns; of what sums topics up, the words of each; of what sums such summaries up, these."""
    level = memory.metadata.get("level")
    sums_up_summaries = isinstance(level, int) and level > 1
    messages: list[Memory] = []
    sources: list[Memory] = []
    texts: list[str] = []
    earlier: Memory | None = None
    for source in _rows(memory, known):
        if source.superseded_by == memory.id and source.source is Source.SUMMARY:
            earlier = source if _whole(source, known) else None
            sources += [source] if earlier else []
            gone = [] if earlier else _messages(source, known)
            messages += gone
            sources += gone
        elif source.state is not MemoryState.ACTIVE:
            # A topic of which too little is left is none any more; its messages still were said.
            messages += (lost := _messages(source, known))
            sources += lost
        elif source.source is Source.SUMMARY and sums_up_summaries:
            texts.append(source.content)
            sources.append(source)
        else:
            messages += _messages(source, known)
            sources.append(source)
    said = _turns(messages)
    return _Left(
        [*(one.text for one in said), *texts], list({one.id: one for one in sources}.values()), said, earlier
    )


def _whole(memory: Memory, known: Mapping[str, Memory]) -> bool:
    """Whether every message that it was made of is there as it was."""
    found = _rows(memory, known)
    return len(found) == len(sources_of(memory)) and all(
        source.state is MemoryState.ACTIVE
        and max((source.valid_from or source.created_at).timestamp(), made_at(source)) <= made_at(memory)
        for source in found
    )


def _messages(memory: Memory, known: Mapping[str, Memory], seen: frozenset[str] = frozenset()) -> list[Memory]:
    """*memory* if it is a message that holds, and else those it was made of in the end."""
    if memory.id in seen:
        return []
    if memory.source in _MESSAGES:
        return [memory] if memory.state is MemoryState.ACTIVE else []
    seen = seen | {memory.id}
    return [message for source in _rows(memory, known) for message in _messages(source, known, seen)]


def _rows(memory: Memory, known: Mapping[str, Memory]) -> list[Memory]:
    return [known[one] for one in sources_of(memory) if one in known]


def _turns(messages: Iterable[Memory]) -> list[Said]:
    by_turn: defaultdict[str, dict[str, Memory]] = defaultdict(dict)
    for row in messages:
        by_turn[str(row.metadata.get("turn", ""))][row.id] = row
    said = [said_in(_turn(turn, rows.values()), rows.values()) for turn, rows in by_turn.items()]
    return sorted(said, key=lambda one: (one.turn.seq, one.moment))


def _turn(turn: str, rows: Iterable[Memory]) -> SaidTurn:
    first = min(rows, key=lambda row: (row.seq, row.id))
    at = first.metadata.get("said")
    moment = float(at) if isinstance(at, int | float) else first.created_at.timestamp()
    seq = first.seq - (first.role is Role.ASSISTANT)
    # Not as it stands in a session: whatever a file brought it by, one turn is one here.
    return SaidTurn(turn.encode("utf-8", "surrogatepass"), seq, moment)
