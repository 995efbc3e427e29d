"""The messages of a turn: which become memories, their chunks and ids, and their rows for the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from memory_extproc.concurrency import HELPER_THREAD, HelperThread
from memory_extproc.learn.chunking import Chunker, ChunkLimits, pieces
from memory_extproc.model import (
    Embedded,
    Memory,
    MemoryType,
    Owner,
    Provenance,
    Role,
    Source,
    Trust,
    Turn,
    cut,
    format_origin,
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
_MESSAGES = (Role.USER, Role.ASSISTANT)  # of a turn; the place is the message's ordinal


class MessageDecision(StrEnum):
    """The decision on a message or chunk: also the label of remembered_total, so never renamed."""

    KEPT = "kept"
    QUESTION = "question"  # kept as the context of its answer, never recalled itself
    EMPTY = "empty"  # or nothing but masks
    POLITE = "polite"  # a greeting, thanks, goodbye or acknowledgement
    REFUSAL = "refusal"
    ECHO = "echo"  # repeats an injected memory or the caller's last message
    SURPLUS = "surplus"  # the rest of a message longer than all the pieces it may have


_STORED = frozenset({MessageDecision.KEPT, MessageDecision.QUESTION})
_NOTHING = Chunker((), whole=True)
_OF_ANSWER = 0.375  # of a turn's pieces, where both messages are long


@dataclass(frozen=True, slots=True)
class JudgedMessage:
    """A message of a turn, or a chunk; *memory* is set for KEPT and QUESTION alone."""

    role: Role
    decision: MessageDecision
    memory: Memory | None


def judge(turn: Turn, now: datetime, limits: ChunkLimits = _USUAL) -> tuple[JudgedMessage, ...]:
    """The caller's message and the answer, in this order, split into chunks if long. The same turn gives the same
    ids, so a repetition changes nothing. *now* is the time of writing; times are in whole seconds."""
    messages = ((turn.asked, _of_caller(turn)), (turn.answered, _of_answer(turn)))
    found = [pieces(text, limits) if decision in _STORED else _NOTHING for text, decision in messages]
    needed = [len(one.texts) for one in found]
    answer = min(needed[1], max(limits.pieces - needed[0], int(limits.pieces * _OF_ANSWER)))
    judged: list[JudgedMessage] = []
    for ordinal, most in enumerate((limits.pieces - answer, answer)):
        text, decision = messages[ordinal]
        fits = needed[ordinal] <= most
        chunks = found[ordinal] if fits else pieces(text, replace(limits, pieces=most))
        judged += _judge_chunks(turn, ordinal, decision, chunks, now, limits)
    return tuple(judged)


def _of_caller(turn: Turn) -> MessageDecision:
    if (at_once := _at_a_glance(turn.asked)) is not None:
        return at_once
    if polite(turn.asked):
        return MessageDecision.POLITE
    if only_asks(turn.asked):
        return MessageDecision.QUESTION
    # Compare with single memories: words of several could be combined into a new statement.
    if any(echoes(turn.asked, (one,), "") for one in turn.injected):
        return MessageDecision.ECHO
    return MessageDecision.KEPT


def _of_answer(turn: Turn) -> MessageDecision:
    if (at_once := _at_a_glance(turn.answered)) is not None:
        return at_once
    if refusal(turn.answered):
        return MessageDecision.REFUSAL
    if acknowledgement(turn.answered):
        return MessageDecision.POLITE
    if only_asks(turn.answered):
        return MessageDecision.QUESTION
    return MessageDecision.ECHO if echoes(turn.answered, turn.injected, turn.asked) else MessageDecision.KEPT


def _at_a_glance(text: str) -> MessageDecision | None:
    """The decision for a text that needs no reading, else None."""
    if not text.strip() or not says_more_than_masks(text):
        return MessageDecision.EMPTY
    return MessageDecision.KEPT if len(text) > _LONGEST_JUDGED else None


def _judge_chunks(
    turn: Turn, ordinal: int, decision: MessageDecision, found: Chunker, now: datetime, limits: ChunkLimits
) -> Iterator[JudgedMessage]:
    role = _MESSAGES[ordinal]
    if decision not in _STORED:
        yield JudgedMessage(role, decision, None)
        return
    whole = words_hash(turn.asked if role is Role.USER else turn.answered) if len(found.texts) > 1 else ""
    for number, text in enumerate(found.texts):
        if not says_more_than_masks(text):
            continue
        memory = _memory(turn, ordinal, number, cut(text, limits.bytes), now, whole)
        if decision is MessageDecision.QUESTION:
            memory = replace(memory, source=Source.QUESTION)
        yield JudgedMessage(role, decision, memory)
    if not found.whole:
        yield JudgedMessage(role, MessageDecision.SURPLUS, None)


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


_AT_ONCE = 4_000  # characters judged on the event loop (a few milliseconds)

Judges = Callable[[Turn, datetime], Sequence[JudgedMessage]]  # pure; can be pickled
Decisions = dict[str, Sequence[JudgedMessage]]  # by turn id


async def judge_turns(
    judges: Judges, turns: Sequence[Turn], now: datetime, helper: HelperThread = HELPER_THREAD
) -> list[Sequence[JudgedMessage]]:
    """The decisions on each of *turns*, apart from the event loop where they are long."""
    size = sum(len(turn.asked) + len(turn.answered) for turn in turns)
    if size > _AT_ONCE:
        return await helper.run(size, _judge_all, judges, turns, now)
    return _judge_all(judges, turns, now)


def _judge_all(judges: Judges, turns: Sequence[Turn], now: datetime) -> list[Sequence[JudgedMessage]]:
    return [judges(turn, now) for turn in turns]


class MessagePreparer:
    """Prepares the messages of turns for the store. Remembers the decisions on messages that were shown before."""

    def __init__(
        self, embedder: EmbeddingModel, judges: Judges, *, now: Now, helper: HelperThread = HELPER_THREAD
    ) -> None:
        self._embedder, self._judges, self._now, self._helper = embedder, judges, now, helper
        # Place in the journal and messages by turn id. A regenerated turn has the same id and another place.
        self._shown: dict[str, tuple[str, Sequence[JudgedMessage]]] = {}

    async def judge(self, entries: Sequence[JournalEntry]) -> Decisions:
        """The decisions on the messages of *entries*, by turn id."""
        turns = [entry.turn for entry in entries]
        judged = await judge_turns(self._judges, turns, self._now(), self._helper)
        return {turn.id: theirs for turn, theirs in zip(turns, judged, strict=True)}

    async def embed(self, decisions: Decisions, *, but: AbstractSet[str] = frozenset()) -> list[Embedded]:
        """Rows of the memories in *decisions*, without the ids *but*."""
        memories = [memory for memory in memories_of(decisions) if memory.id not in but]
        if not memories:
            return []
        vectors = await self._embedder.embed([memory.content for memory in memories])
        made_by = self._embedder.fingerprint
        return [
            Embedded(replace(memory, embed_model=made_by), vector)
            for memory, vector in zip(memories, vectors, strict=True)
        ]

    def note_shown(self, entries: Iterable[JournalEntry], decisions: Decisions) -> None:
        """The messages of *entries* are visible in this process, and not stored yet."""
        self._shown |= {entry.turn.id: (entry.place, decisions[entry.turn.id]) for entry in entries}

    def drop_shown(self, turn_ids: Iterable[str]) -> None:
        """The words of these turns are judged again when they are stored."""
        for turn_id in turn_ids:
            self._shown.pop(turn_id, None)

    def find_shown(self, entries: Sequence[JournalEntry]) -> Decisions:
        """The decisions on those of *entries* that were shown, as they are now."""
        known = {entry.turn.id: self._shown.get(entry.turn.id, ("", ())) for entry in entries}
        return {
            entry.turn.id: known[entry.turn.id][1] for entry in entries if known[entry.turn.id][0] == entry.place
        }


def memories_of(decisions: Decisions) -> list[Memory]:
    return [one.memory for theirs in decisions.values() for one in theirs if one.memory is not None]


def list_outdated(entries: Iterable[JournalEntry], decisions: Decisions) -> set[str]:
    """Ids of messages and chunks of earlier answers of *entries* that the new answers do not replace."""
    kept = {memory.id for memory in memories_of(decisions)}
    return {memory_id for entry in entries if entry.replaced for memory_id in message_ids(entry.turn)} - kept


async def find_corrected(
    memories: MemoryWriter, owner: Owner, entries: Iterable[JournalEntry], decisions: Decisions
) -> frozenset[str]:
    """The ids of messages and chunks that a person corrected: in *decisions*, which another process or an earlier
    try may have stored, and of earlier answers of *entries*. They belong to the person: neither a repeated turn
    with a new answer nor a turn that is learned again overwrites them."""
    ids = [memory_id for entry in entries if entry.replaced for memory_id in message_ids(entry.turn)]
    ids += [memory.id for memory in memories_of(decisions)]
    if not ids:
        return frozenset()
    return frozenset(memory.id for memory in await memories.get(owner, ids) if memory.provenance.revision)
