"""Store the messages of turns: judge, embed and put them, and delete the rows of a replaced answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from memory_extproc.concurrency import HELPER
from memory_extproc.learn.chunking import Chunker, ChunkLimits, pieces
from memory_extproc.model import (
    Embedded,
    Memory,
    MemoryType,
    Origin,
    Owner,
    Provenance,
    Role,
    Source,
    Trust,
    Turn,
    message_id_of,
    message_ids,
)
from memory_extproc.ports import EmbeddingModel, JournalEntry, MemoryWriter, Now
from memory_extproc.safety.operator_rules import says_more_than_masks
from memory_extproc.text.intents import acknowledgement, echoes, only_asks, polite, refusal
from memory_extproc.text.words import words_hash

# Which messages of a turn become memories, at once and without a model. Pure.

_LONGEST_JUDGED = 4000  # characters; a longer message holds something, and reading it would hold up others
_USUAL = ChunkLimits()
_ORIGIN_BYTES = 512  # of UTF-8; the field of every store holds as many
_MESSAGES = (Role.USER, Role.ASSISTANT)  # of a turn; the place is the message's ordinal


class Decision(StrEnum):
    """The decision on a message or chunk: also the label of remembered_total, so never renamed."""

    KEPT = "kept"
    QUESTION = "question"  # kept as the context of its answer, never recalled itself
    EMPTY = "empty"  # or nothing but masks
    POLITE = "polite"  # a greeting, thanks, goodbye or acknowledgement
    REFUSAL = "refusal"
    ECHO = "echo"  # repeats an injected memory or the caller's last message
    SURPLUS = "surplus"  # the rest of a message longer than all the pieces it may have


_STORED = frozenset({Decision.KEPT, Decision.QUESTION})
_NOTHING = Chunker((), whole=True)
_OF_ANSWER = 0.375  # of a turn's pieces, where both messages are long


@dataclass(frozen=True, slots=True)
class Judged:
    """A message of a turn, or a chunk; *memory* is set for KEPT and QUESTION alone."""

    role: Role
    decision: Decision
    memory: Memory | None


def judge(turn: Turn, now: datetime, limits: ChunkLimits = _USUAL) -> tuple[Judged, ...]:
    """The caller's message and the answer, in this order, split into chunks if long. The same turn gives the same
    ids, so a repetition changes nothing. *now* is the time of writing; times are in whole seconds."""
    messages = ((turn.asked, _of_caller(turn)), (turn.answered, _of_answer(turn)))
    found = [pieces(text, limits) if decision in _STORED else _NOTHING for text, decision in messages]
    needed = [len(one.texts) for one in found]
    answer = min(needed[1], max(limits.pieces - needed[0], int(limits.pieces * _OF_ANSWER)))
    judged: list[Judged] = []
    for ordinal, most in enumerate((limits.pieces - answer, answer)):
        text, decision = messages[ordinal]
        fits = needed[ordinal] <= most
        chunks = found[ordinal] if fits else pieces(text, replace(limits, pieces=most))
        judged += _judge_chunks(turn, ordinal, decision, chunks, now, limits)
    return tuple(judged)


def _of_caller(turn: Turn) -> Decision:
    if (at_once := _at_a_glance(turn.asked)) is not None:
        return at_once
    if polite(turn.asked):
        return Decision.POLITE
    if only_asks(turn.asked):
        return Decision.QUESTION
    # Compare with single memories: words of several could be combined into a new statement.
    if any(echoes(turn.asked, (one,), "") for one in turn.injected):
        return Decision.ECHO
    return Decision.KEPT


def _of_answer(turn: Turn) -> Decision:
    if (at_once := _at_a_glance(turn.answered)) is not None:
        return at_once
    if refusal(turn.answered):
        return Decision.REFUSAL
    if acknowledgement(turn.answered):
        return Decision.POLITE
    if only_asks(turn.answered):
        return Decision.QUESTION
    return Decision.ECHO if echoes(turn.answered, turn.injected, turn.asked) else Decision.KEPT


def _at_a_glance(text: str) -> Decision | None:
    """The decision for a text that needs no reading, else None."""
    if not text.strip() or not says_more_than_masks(text):
        return Decision.EMPTY
    return Decision.KEPT if len(text) > _LONGEST_JUDGED else None


def _judge_chunks(
    turn: Turn, ordinal: int, decision: Decision, found: Chunker, now: datetime, limits: ChunkLimits
) -> Iterator[Judged]:
    role = _MESSAGES[ordinal]
    if decision not in _STORED:
        yield Judged(role, decision, None)
        return
    whole = words_hash(turn.asked if role is Role.USER else turn.answered) if len(found.texts) > 1 else ""
    for number, text in enumerate(found.texts):
        if not says_more_than_masks(text):
            continue
        memory = _memory(turn, ordinal, number, cut(text, limits.bytes), now, whole)
        if decision is Decision.QUESTION:
            memory = replace(memory, source=Source.QUESTION)
        yield Judged(role, decision, memory)
    if not found.whole:
        yield Judged(role, Decision.SURPLUS, None)


def _memory(turn: Turn, ordinal: int, number: int, content: str, now: datetime, whole: str) -> Memory:
    said = turn.at.replace(microsecond=0)
    return Memory(
        id=message_id(turn, ordinal, number),
        owner=turn.owner,
        type=MemoryType.EPISODIC,
        content=content,
        source=Source.VERBATIM,
        created_at=said,
        updated_at=max(said, now.replace(microsecond=0)),
        valid_from=said,
        project=turn.project,
        session=turn.session,
        seq=turn.seq + ordinal,
        role=_MESSAGES[ordinal],
        origin=format_origin(turn.origin),
        provenance=Provenance(
            turn=turn.id,
            said=turn.at.timestamp() if turn.at.microsecond else None,
            heard="" if ordinal else turn.heard,
            # A whole message needs no number; chunks do, because they share their place in the session.
            piece=number if whole else None,
            whole=whole,
            trust=Trust.TOOL if turn.tools and ordinal else None,
        ),
    )


def message_id(turn: Turn, ordinal: int, number: int = 0) -> str:
    """Memory id of *turn*'s first (0, the caller's) or second message (1, the answer), or of a chunk. The first
    chunk has the id of the unsplit message, so a new version replaces it."""
    return message_id_of(turn.owner, turn.id, ordinal, number)


def cut(text: str, most_bytes: int) -> str:
    """The beginning of *text* that fits into *most_bytes* of UTF-8, never half a character. Lone
    surrogates, which no store takes, become question marks."""
    encoded = text[:most_bytes].encode("utf-8", "replace")
    return encoded[:most_bytes].decode("utf-8", "ignore")


def format_origin(origin: Origin) -> str:
    """*origin* as a line for the store's field, without empty parts: "app=chat model=qwen3". White space in
    client-supplied names cannot add parts, and the line is always valid in the store."""
    named = (("app", origin.app), ("dialect", origin.dialect), ("model", origin.model), ("route", origin.route))
    whole = _line(named, _ORIGIN_BYTES)
    if len(whole.encode()) <= _ORIGIN_BYTES:
        return whole
    return _line(named, _ORIGIN_BYTES // len(named) - len("dialect= "))


def _line(named: Iterable[tuple[str, str]], most_bytes: int) -> str:
    """Each value cut to *most_bytes* of UTF-8."""
    written = ((name, "_".join(value.replace("\0", " ").split())) for name, value in named)
    return " ".join(f"{name}={cut(value, most_bytes)}" for name, value in written if value)


_AT_ONCE = 4_000  # characters judged on the event loop (a few milliseconds)

Judges = Callable[[Turn, datetime], Sequence[Judged]]  # pure; can be pickled


async def judge_turns(judges: Judges, turns: Sequence[Turn], now: datetime) -> list[Sequence[Judged]]:
    """The decisions on each of *turns*, apart from the event loop where they are long."""
    size = sum(len(turn.asked) + len(turn.answered) for turn in turns)
    if size > _AT_ONCE:
        return await HELPER.run(size, _judge_all, judges, turns, now)
    return _judge_all(judges, turns, now)


def _judge_all(judges: Judges, turns: Sequence[Turn], now: datetime) -> list[Sequence[Judged]]:
    return [judges(turn, now) for turn in turns]


class Messages:
    """Stores messages, idempotently. *rows*: most rows in one call of the store."""

    def __init__(
        self, keeps: MemoryWriter, embedder: EmbeddingModel, judges: Judges, *, rows: int, now: Now
    ) -> None:
        self._keeps, self._embedder, self._judges = keeps, embedder, judges
        self._rows, self._now = rows, now
        # Place in the journal and messages by turn id. A regenerated turn has the same id and another place.
        self._shown: dict[str, tuple[str, Sequence[Judged]]] = {}

    async def store(
        self,
        owner: Owner,
        entries: Sequence[JournalEntry],
        *,
        still_in: Callable[[], Awaitable[None]],
        shown: Callable[[], None],
    ) -> list[Judged]:
        """The decisions on *entries* of *owner*. *still_in* raises if nothing may be written any more; *shown* is
        called once all rows can be found, which is before the store has them."""
        settled, entries = await self._store_shown(owner, entries, still_in)
        judged = await self._judge_entries(entries)
        everything = [one for _, all_of_it in judged for one in all_of_it]
        theirs = await find_corrected(self._keeps, owner, entries, everything)
        rows = await self._embed(everything, theirs)
        await still_in()
        await self._put(owner, rows, shown)
        unsaid = {memory_id for entry, all_of_it in judged for memory_id in _unsaid(entry, all_of_it)} - theirs
        if unsaid:
            await self._keeps.delete(owner, sorted(unsaid))
        return [*settled, *everything]

    async def show(
        self, owner: Owner, entries: Sequence[JournalEntry], *, still_in: Callable[[], Awaitable[None]]
    ) -> None:
        """Make the messages of turns that no process can have stored yet visible in this one, ahead of `store`."""
        judged = await self._judge_entries(entries)
        rows = await self._embed([one for _, all_of_it in judged for one in all_of_it], frozenset())
        await still_in()
        if rows:
            await self._keeps.show(owner, rows)
        self._shown |= {entry.turn.id: (entry.place, all_of_it) for entry, all_of_it in judged}

    def drop_shown(self, turn_ids: Iterable[str]) -> None:
        """Have `store` read these turns' words again."""
        for turn_id in turn_ids:
            self._shown.pop(turn_id, None)

    async def _store_shown(
        self, owner: Owner, entries: Sequence[JournalEntry], still_in: Callable[[], Awaitable[None]]
    ) -> tuple[list[Judged], Sequence[JournalEntry]]:
        """Store messages of *entries* that were shown, with corrections made since. Returns their decisions, and
        the entries that are left to store."""
        known = {entry.turn.id: self._shown.get(entry.turn.id, ("", ())) for entry in entries}
        others = [entry for entry in entries if known[entry.turn.id][0] != entry.place]
        left_out = {entry.turn.id for entry in others}
        judged = [one for turn_id, (_, all_) in known.items() if turn_id not in left_out for one in all_]
        ids = [one.memory.id for one in judged if one.memory is not None]
        if not ids or len(ids) > self._rows:
            return [], entries
        await still_in()
        return (judged, others) if await self._keeps.store_shown(owner, ids) else ([], entries)

    async def _judge_entries(self, entries: Sequence[JournalEntry]) -> list[tuple[JournalEntry, Sequence[Judged]]]:
        now = self._now()

        judged = await judge_turns(self._judges, [entry.turn for entry in entries], now)
        return list(zip(entries, judged, strict=True))

    async def _embed(self, judged: Sequence[Judged], but: frozenset[str]) -> list[Embedded]:
        memories = [one.memory for one in judged if one.memory is not None and one.memory.id not in but]
        if not memories:
            return []
        vectors = await self._embedder.embed([memory.content for memory in memories])
        made_by = self._embedder.fingerprint
        return [
            Embedded(replace(memory, embed_model=made_by), vector)
            for memory, vector in zip(memories, vectors, strict=True)
        ]

    async def _put(self, owner: Owner, rows: Sequence[Embedded], shown: Callable[[], None]) -> None:
        for start in range(0, len(rows), self._rows):
            last = start + self._rows >= len(rows)
            await self._keeps.put(owner, rows[start : start + self._rows], shown=shown if last else _not_yet)


def _unsaid(entry: JournalEntry, judged: Sequence[Judged]) -> list[str]:
    """Ids of messages and chunks of an earlier answer of this turn that the new answer does not replace."""
    if not entry.replaced:
        return []
    kept = {one.memory.id for one in judged if one.memory is not None}
    return [memory_id for memory_id in message_ids(entry.turn) if memory_id not in kept]


def _not_yet() -> None:
    """Not all of it is visible yet."""


# Corrected memories belong to the person: neither a repeated turn with a new answer nor one that is learned again
# overwrites them.


async def find_corrected(
    keeps: MemoryWriter, owner: Owner, entries: Iterable[JournalEntry], judged: Iterable[Judged]
) -> frozenset[str]:
    """The ids of messages and chunks that a person corrected: of *judged*, which another process or an earlier try
    may have stored, and of earlier answers of *entries*."""
    ids = [memory_id for entry in entries if entry.replaced for memory_id in message_ids(entry.turn)]
    ids += [one.memory.id for one in judged if one.memory is not None]
    if not ids:
        return frozenset()
    return frozenset(memory.id for memory in await keeps.get(owner, ids) if memory.provenance.revision)
