"""Values for tests, by what matters about them; everything else has a plain default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from memory_extproc.learn.messages import ChunkLimits, judge
from memory_extproc.model import (
    Caller,
    Consent,
    Memory,
    MemoryType,
    Owner,
    Provenance,
    RecallRequest,
    Role,
    Source,
    Turn,
    digest,
)
from memory_extproc.settings import Settings
from memory_extproc.settings.identity import Privacy
from memory_extproc.settings.paths import ModelTokens

MONDAY = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
ANN = Owner("acme", "ann")
BOB = Owner("acme", "bob")
OTHER_ANN = Owner("globex", "ann")  # the same name in another tenant is another person


class Clock:
    """A port's `now` that stands still until it is set."""

    def __init__(self, now: datetime = MONDAY) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


def a_memory(
    content: str, owner: Owner = ANN, *, metadata: Mapping[str, Any] | None = None, **changes: Any
) -> Memory:
    """An active semantic memory of Ann, made on Monday, with an id of its owner and words.

    *metadata*: its provenance in the stored form."""
    memory = Memory(
        id=digest("test", owner.key, content),
        owner=owner,
        type=MemoryType.SEMANTIC,
        content=content,
        source=Source.RULES,
        created_at=MONDAY,
        updated_at=MONDAY,
        provenance=Provenance.decode(metadata or {}),
    )
    return replace(memory, **changes)


def a_message(content: str, owner: Owner = ANN, role: Role = Role.USER, **changes: Any) -> Memory:
    """A message as it was said."""
    return a_memory(
        content, owner, **{"type": MemoryType.EPISODIC, "source": Source.VERBATIM, "role": role, **changes}
    )


def a_turn(asked: str, answered: str = "Noted.", owner: Owner = ANN, **changes: Any) -> Turn:
    """The first turn of a session of Ann's on Monday."""
    turn = Turn(
        id=digest("turn", owner.key, asked),
        owner=owner,
        project="",
        session="session-1",
        seq=0,
        asked=asked,
        answered=answered,
        at=MONDAY,
    )
    return replace(turn, **changes)


def a_wish(asked: str, owner: Owner = ANN, **changes: Any) -> RecallRequest:
    """Recall for Ann's words with the usual limits."""
    return replace(RecallRequest(caller=Caller(owner), asked=asked), **changes)


def later(**delta: float) -> datetime:
    """Monday plus *delta* (days=…, hours=…)."""
    return MONDAY + timedelta(**delta)


def memories_of(turn: Turn, now: datetime, limits: ChunkLimits | None = None) -> list[Memory]:
    """What is remembered of *turn* word for word, the caller's message first; none at all is possible."""
    return [judged.memory for judged in judge(turn, now, limits or ChunkLimits()) if judged.memory is not None]


def tokens(**most: int) -> Callable[[], ModelTokens]:
    """A budget of language models without bounds but these; 0 is one that is spent."""
    given: dict[str, Any] = {"caller_hour": None, "caller_day": None, **most}
    section = ModelTokens.model_construct(**given)
    return lambda: section


def consent_default(default: Consent) -> Settings:
    """What holds for who made no choice: ON or OFF."""
    return Settings(privacy=Privacy(consent="opt_out" if default is Consent.ON else "opt_in"))


OPT_IN = consent_default(Consent.OFF)
