"""Turns moved from one journal to another: what was put aside, what another sidecar left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memory_extproc.model import Stored
from memory_extproc.ports import Journal, JournalEntry


@dataclass(slots=True)
class Moved:
    """What became of turns that were to be moved."""

    ids: list[str]  # by now in the target, and new there
    known: int = 0  # in the target already
    full: bool = False  # the target takes no more: what is left stays where it is


async def move(
    entries: Sequence[JournalEntry], source: Journal, target: Journal, moved: Moved | None = None
) -> Moved:
    """Each is in *target* before it leaves *source*, so that none is lost in between; a second time it is known.
    *moved* is added to, and says what was moved where it breaks off.
    What was forgotten meanwhile is found out when the target's turns are learned."""
    moved = moved or Moved([])
    for turn in (entry.turn for entry in entries):
        stored = await target.append(turn)
        if stored is Stored.JOURNAL_FULL:
            moved.full = True
            break
        if stored is Stored.DUPLICATE:
            moved.known += 1
        else:
            moved.ids.append(turn.id)
        await source.erase(turn.owner, [turn.id])
    return moved
