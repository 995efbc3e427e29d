"""What the write path changes in a memory that is there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from memory_extproc.model import Memory, MemoryState

# That said a fact again, kept with it, each with the facts beside it; metadata has its bounds.
_MOST_TURNS = 16
_MOST_BESIDE = 4


def superseded(memory: Memory, *, by: str, at: datetime) -> Memory:
    """*memory* as history since *at*, when *by* took its place."""
    return replace(
        memory,
        state=MemoryState.SUPERSEDED,
        superseded_by=by,
        valid_to=at,
        updated_at=max(at, memory.updated_at),
    )


def confirmed(memory: Memory, *, at: datetime, turn: str = "", beside: Sequence[str] = ()) -> Memory:
    """*memory*, said again at *at* by *turn* together with the facts *beside*."""
    before = memory.metadata.get("confirmations", 0)
    count = before + 1 if isinstance(before, int) else 1
    metadata = {**memory.metadata, "confirmations": count}
    if turn and len(beside) <= _MOST_BESIDE:
        known = memory.metadata.get("also")
        also = [*(known.items() if isinstance(known, dict) else ()), (turn, list(beside))]
        metadata["also"] = dict(also[-_MOST_TURNS:])
    return replace(memory, updated_at=max(at, memory.updated_at), metadata=metadata)
