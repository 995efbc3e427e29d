"""Which messages of a turn become memories, at once and without a model. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from memory_extproc.language.answers import acknowledgement, echoes, refusal
from memory_extproc.language.greetings import polite
from memory_extproc.language.questions import only_asks
from memory_extproc.model import Memory, MemoryType, Origin, Role, Source, Turn, digest

CONTENT_BYTES = 8192  # of UTF-8: the length of the store's content field
_LONGEST_JUDGED = 4000  # characters; a longer message holds something, and reading it would hold up others
_KIND = "memory"  # first part of every id, so that a fact's id is never a message's


class Decision(StrEnum):
    """What became of a message: also the label of remembered_total, so a value is never renamed."""

    KEPT = "kept"
    QUESTION = "question"  # kept as the context of what answers it, never recalled itself
    EMPTY = "empty"
    POLITE = "polite"  # a greeting, thanks, goodbye or acknowledgement
    REFUSAL = "refusal"
    ECHO = "echo"  # says nothing beyond what we injected or the caller had just said


@dataclass(frozen=True, slots=True)
class Judged:
    """One message of a turn; *memory* is there for KEPT and QUESTION alone."""

    role: Role
    decision: Decision
    memory: Memory | None


def judge(turn: Turn, now: datetime, content_bytes: int = CONTENT_BYTES) -> tuple[Judged, Judged]:
    """The caller's message and the answer, in this order. The same turn gives the same ids, so that
    remembering it once more changes nothing. *now* is when it is written; times lose their fractions."""
    return (
        _judged(turn, 0, Role.USER, _of_caller(turn), now, content_bytes),
        _judged(turn, 1, Role.ASSISTANT, _of_answer(turn), now, content_bytes),
    )


def memories_of(turn: Turn, now: datetime, content_bytes: int = CONTENT_BYTES) -> list[Memory]:
    """The episodic memories of *turn*: none, one or two, the caller's first."""
    return [judged.memory for judged in judge(turn, now, content_bytes) if judged.memory is not None]


def _of_caller(turn: Turn) -> Decision:
    if (at_once := _at_a_glance(turn.asked)) is not None:
        return at_once
    if polite(turn.asked):
        return Decision.POLITE
    if only_asks(turn.asked):
        return Decision.QUESTION
    # Within one memory: words of several could be put together to say something new.
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
    """What needs no reading; None for what does."""
    if not text.strip():
        return Decision.EMPTY
    return Decision.KEPT if len(text) > _LONGEST_JUDGED else None


def _judged(turn: Turn, ordinal: int, role: Role, decision: Decision, now: datetime, content_bytes: int) -> Judged:
    if decision not in {Decision.KEPT, Decision.QUESTION}:
        return Judged(role, decision, None)
    said = turn.at.replace(microsecond=0)
    memory = Memory(
        id=message_id(turn, ordinal),
        owner=turn.owner,
        type=MemoryType.EPISODIC,
        content=cut(turn.asked if role is Role.USER else turn.answered, content_bytes),
        source=Source.QUESTION if decision is Decision.QUESTION else Source.VERBATIM,
        created_at=said,
        updated_at=max(said, now.replace(microsecond=0)),
        valid_from=said,
        project=turn.project,
        session=turn.session,
        seq=turn.seq + ordinal,
        role=role,
        origin=provenance(turn.origin),
        metadata={"turn": turn.id},
    )
    return Judged(role, decision, memory)


def message_id(turn: Turn, ordinal: int) -> str:
    """The id of the memory of *turn*'s first (0, the caller's) or second message (1, the answer)."""
    return digest(_KIND, turn.owner.key, turn.id, str(ordinal))


def cut(text: str, most_bytes: int) -> str:
    """The beginning of *text* that fits into *most_bytes* of UTF-8, never half a character. Lone
    surrogates, which no store takes, become question marks."""
    encoded = text[:most_bytes].encode("utf-8", "replace")
    return encoded[:most_bytes].decode("utf-8", "ignore")


def provenance(origin: Origin) -> str:
    """*origin* as one line for the store's field, empty parts left out: "app=chat model=qwen3"."""
    named = (("app", origin.app), ("dialect", origin.dialect), ("model", origin.model), ("route", origin.route))
    return " ".join(f"{name}={value}" for name, value in named if value)
