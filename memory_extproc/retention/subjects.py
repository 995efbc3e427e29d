"""What is known of one subject, told together by a language model: one memory in the place of many. The facts
stay as they are, so that each can be replaced, corrected and forgotten; recall gives what tells them together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from memory_extproc.model import Embedded, Memory, MemoryState, MemoryType, Owner, OwnerKind, Source, digest
from memory_extproc.ports import Embeds, KeepsMemories, Now
from memory_extproc.retention.derived import (
    DERIVED,
    MADE,
    PAST,
    SOURCES,
    SUBJECT,
    expires_with,
    read_at,
    sources_of,
)
from memory_extproc.retention.histories import About
from memory_extproc.retention.reasons import Reason
from memory_extproc.retention.rules import retired
from memory_extproc.retention.writing import same_words

_FACTS = frozenset({Source.RULES, Source.LLM, Source.API})
_SELF = "user"  # the caller, as facts name them: all that is known is about them


class Consolidates(Protocol):
    """A language model that tells several facts in one text."""

    @property
    def version(self) -> str:
        """Of its prompt, kept with what it says."""

    async def consolidate(self, owner: Owner, memories: Sequence[Memory]) -> str:
        """All that *memories* say, every value of theirs in it. GiveUpError where no text does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectRules:
    above: int | None = None  # facts of one subject from which on they are told together; None: never
    grown: int = 3  # more of them until they are told together again
    most: int = 24  # in one text, the newest


class Subjects:
    def __init__(
        self,
        consolidates: Consolidates,
        keeps: KeepsMemories,
        embedder: Embeds,
        rules: SubjectRules,
        about: About,
        *,
        now: Now,
    ) -> None:
        self._consolidates, self._keeps, self._embedder = consolidates, keeps, embedder
        self._rules, self._about, self._now = rules, about, now

    def use(self, rules: SubjectRules) -> None:
        self._rules = rules

    def due(self, owner: Owner, memories: Iterable[Memory]) -> list[tuple[Memory, ...]]:
        """Facts that are to be told together. Of what several people share nothing is: it is nobody's subject."""
        rules, now = self._rules, self._now()
        if rules.above is None or owner.kind is not OwnerKind.OWN:
            return []
        subjects: defaultdict[Hashable, list[Memory]] = defaultdict(list)
        told: set[str] = set()
        for memory in memories:
            if memory.state is MemoryState.ACTIVE and memory.metadata.get(DERIVED) == SUBJECT:
                told |= set(sources_of(memory))
            elif (named := self._subject(memory, now)) is not None:
                subjects[memory.project, named].append(memory)
        found: list[tuple[Memory, ...]] = []
        for facts in subjects.values():
            facts.sort(key=lambda memory: (-memory.created_at.timestamp(), memory.id))
            new = sum(memory.id not in told for memory in facts)
            if len(facts) >= rules.above and (new == len(facts) or new >= rules.grown):
                found.append(tuple(facts[: rules.most]))
        return sorted(found, key=lambda facts: facts[0].id)

    def _subject(self, memory: Memory, now: datetime) -> Hashable | None:
        named = memory.metadata
        subject, value = named.get("subject"), named.get("value")
        fact = memory.source in _FACTS and memory.type is MemoryType.SEMANTIC and not named.get("ends")
        if not fact or not memory.recallable(now) or not isinstance(subject, str) or not isinstance(value, str):
            return None
        key = self._about(subject)
        return key if subject and value and key != self._about(_SELF) else None

    async def tell(self, owner: Owner, facts: Sequence[Memory], known: Iterable[Memory]) -> list[Embedded]:
        """The rows that tell *facts* together, and those that did before, gone softly. Written by whoever asked."""
        now = self._now().replace(microsecond=0)
        says = await self._consolidates.consolidate(owner, facts)
        vector = (await self._embedder.embed([says]))[0]
        row = self._row(owner, says, facts, now)
        ids = {memory.id for memory in facts}
        before = [
            memory.id
            for memory in known
            if memory.state is MemoryState.ACTIVE
            and memory.metadata.get(DERIVED) == SUBJECT
            and memory.id != row.id
            and ids & set(sources_of(memory))
        ]
        there = await self._keeps.get(owner, [*ids, *before])
        standing = {memory.id: memory for memory in there}
        if not all(one.id in standing and same_words(standing[one.id], one) for one in facts):
            return []  # one of them was replaced meanwhile: what was made of it would not hold
        gone = [standing[one] for one in before if one in standing]
        return [Embedded(row, vector), *(Embedded(retired(one, Reason.SOURCES, now), vector) for one in gone)]

    def _row(self, owner: Owner, says: str, facts: Sequence[Memory], now: datetime) -> Memory:
        return Memory(
            id=digest("derived", SUBJECT, owner.key, *sorted(memory.id for memory in facts)),
            owner=owner,
            type=MemoryType.SEMANTIC,
            content=says,
            # no fact by itself: nothing replaces it but what replaces one of them
            source=Source.SUMMARY,
            created_at=now,
            updated_at=now,
            valid_from=now,
            expires_at=expires_with(facts),
            project=facts[0].project,
            importance=max(memory.importance for memory in facts),
            embed_model=self._embedder.fingerprint,
            metadata={
                DERIVED: SUBJECT,
                "kind": SUBJECT,
                "subject": facts[0].metadata["subject"],
                SOURCES: [memory.id for memory in facts],
                PAST: [],
                MADE: read_at(now.timestamp(), facts),
                "version": self._consolidates.version,
            },
        )
