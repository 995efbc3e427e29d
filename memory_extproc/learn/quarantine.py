"""Poison is stored inert: what instructs an assistant, or was put into a caller's mouth, is kept aside for review.

A turn whose words are suspicious becomes memories in the state quarantined, its answer with it; no fact is taken
from it. Neither is recalled by anyone. An operator lists them, and releases what was innocent or drops the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from memory_extproc.language.words import tokens
from memory_extproc.learn.extract import Extracts, Fact
from memory_extproc.learn.remember import Judged
from memory_extproc.model import Embedded, Memory, MemoryState, Owner, Role, Source, Turn
from memory_extproc.ports import KeepsMemories, MemoryStore
from memory_extproc.safety.poison import Suspicion, suspicion
from memory_extproc.safety.sensitive import sensitivity

FOREIGN = "foreign"  # a fact in words that the caller did not say
_PAGE = 200  # rows read at once
_AT_ONCE = 4_000  # characters read on the event loop, some milliseconds; what is more goes to a thread
_CONFIRMS = 6  # words; who says no more may well confirm what the assistant said
_TELLING = 4  # characters a word has at least that tells whose words they were; or a digit

Judging = Callable[[Turn, datetime], Sequence[Judged]]


class PutAside:
    """A judge of messages around another: marks what is suspicious, and what belongs to a special category."""

    def __init__(self, judges: Judging, *, aside: Callable[[], bool] = lambda: True) -> None:
        """*aside*: asked for each turn; False keeps the suspicious like everything else."""
        self._judges, self._aside = judges, aside

    def __call__(self, turn: Turn, now: datetime) -> Sequence[Judged]:
        if not self._aside():
            return tuple(_marked(one, None) for one in self._judges(turn, now))
        asked = suspicion(turn.asked)
        answered = asked or suspicion(turn.answered)
        why = {Role.USER: asked, Role.ASSISTANT: answered}
        return tuple(_marked(one, why[one.role]) for one in self._judges(turn, now))


def _marked(judged: Judged, why: Suspicion | None) -> Judged:
    memory = judged.memory
    if memory is None:
        return judged
    category = sensitivity(memory.content)
    noted = {**({"sensitivity": category.value} if category else {}), **({"suspicion": why.value} if why else {})}
    if not noted:
        return judged
    state = MemoryState.QUARANTINED if why else memory.state
    return replace(judged, memory=replace(memory, state=state, metadata={**memory.metadata, **noted}))


class Trusting:
    """An extractor around another, which reads turns without suspicion only. What it finds is looked at once more:
    a fact that instructs, or that is not in the caller's words, is put aside."""

    def __init__(self, extractor: Extracts, *, aside: Callable[[], bool] = lambda: True) -> None:
        """*aside*: asked for each batch; False trusts everything."""
        self._extractor, self._aside = extractor, aside

    @property
    def name(self) -> str:
        return self._extractor.name

    async def extract(self, turns: Sequence[Turn], *, earlier: Sequence[Turn] = ()) -> list[Fact]:
        if not self._aside():
            return list(await self._extractor.extract(turns, earlier=earlier))
        everything = [*earlier, *turns]
        if sum(len(turn.asked) + len(turn.answered) for turn in everything) > _AT_ONCE:
            read = await asyncio.to_thread(_trusted, everything)
        else:
            read = _trusted(everything)
        said = {turn.id: turn for turn in turns if turn.id in read}
        if not said:
            return []
        before = [read[turn.id] for turn in earlier if turn.id in read]
        facts = await self._extractor.extract([read[turn_id] for turn_id in said], earlier=before)
        return [_looked_at(fact, said.get(fact.turn_id), before) for fact in facts]


def _trusted(turns: Iterable[Turn]) -> dict[str, Turn]:
    """By id, those whose asker does not instruct; an answer that does is not shown to who extracts."""
    trusted = (turn for turn in turns if suspicion(turn.asked) is None)
    return {turn.id: replace(turn, answered="") if suspicion(turn.answered) else turn for turn in trusted}


def _looked_at(fact: Fact, turn: Turn | None, earlier: Iterable[Turn]) -> Fact:
    category = sensitivity(fact.content)
    found = suspicion(fact.content)
    why = found.value if found else ""
    if not why and fact.source is Source.LLM and turn is not None and _foreign(fact, turn, earlier):
        why = FOREIGN
    if not (category or why):
        return fact
    return replace(fact, sensitivity=category.value if category else "", suspicion=why)


def _foreign(fact: Fact, turn: Turn, earlier: Iterable[Turn]) -> bool:
    """Whether what *fact* says is in the assistant's words alone. A short reply may confirm them, and a fact in yet
    other words is the model's own wording."""
    if len(tokens(turn.asked)) <= _CONFIRMS:
        return False
    words = _telling(fact.value)
    own = _telling(turn.asked).union(*(_telling(before.asked) for before in earlier))
    return bool(words & _telling(turn.answered)) and not words & own


def _telling(text: str) -> frozenset[str]:
    return frozenset(
        word.casefold() for word in tokens(text) if len(word) >= _TELLING or any(sign.isdigit() for sign in word)
    )


@dataclass(frozen=True, slots=True)
class Quarantine:
    """What was put aside of one owner, and what becomes of it."""

    store: MemoryStore
    keeps: KeepsMemories

    async def held(self, owner: Owner) -> AsyncIterator[Memory]:
        """Every memory of *owner* in quarantine, each once; its suspicion stands in its metadata."""
        async for page in self.store.pages(owner, _PAGE, fresh=True):
            for row in page:
                if row.memory.state is MemoryState.QUARANTINED:
                    yield row.memory

    async def release(self, owner: Owner, ids: Sequence[str], now: datetime) -> int:
        """Makes those of *ids* that are in quarantine memories as any other; says how many."""
        rows = await self._of(owner, ids)
        released = [
            Embedded(
                replace(
                    row.memory,
                    state=MemoryState.ACTIVE,
                    updated_at=max(row.memory.updated_at, now.replace(microsecond=0)),
                    metadata={**row.memory.metadata, "released": True},
                ),
                row.vector,
            )
            for row in rows
        ]
        if released:
            await self.keeps.put(owner, released)
        return len(released)

    async def drop(self, owner: Owner, ids: Sequence[str]) -> int:
        """Deletes those of *ids* that are in quarantine; says how many."""
        rows = await self._of(owner, ids)
        if rows:
            await self.keeps.delete(owner, [row.memory.id for row in rows])
        return len(rows)

    async def _of(self, owner: Owner, ids: Sequence[str]) -> list[Embedded]:
        rows = await self.store.fetch(owner, ids)
        return [row for row in rows if row.memory.state is MemoryState.QUARANTINED]
