"""What was made of several facts of one subject, in their place, where several of them are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from memory_extproc.model import Memory
from memory_extproc.recall.ongoing import sources_of

_SEVERAL = 2


class Holds(Protocol):
    @property
    def memory(self) -> Memory: ...


C = TypeVar("C", bound=Holds)


def together(ordered: Sequence[C], passing: Sequence[C]) -> tuple[Sequence[C], frozenset[str]]:
    """*ordered* with what tells several of *passing* in the place of the first of them, and the ids of those that
    are told by another: these facts, or what was made of them where only one of them is asked for."""
    wholes = [one for one in passing if one.memory.metadata.get("derived") == "subject"]
    if not wholes:
        return ordered, frozenset()
    found = {one.memory.id for one in passing}
    at = {one.memory.id: place for place, one in enumerate(ordered)}
    place = {one: float(number) for one, number in at.items()}
    hidden: set[str] = set()
    for whole in wholes:
        told = [one for one in sources_of(whole.memory) if one in found]
        if len(told) >= _SEVERAL:
            hidden |= set(told)
            # Just ahead of it: two wholes do not meet, for a fact is of one subject.
            place[whole.memory.id] = min(at[whole.memory.id], min(at[one] for one in told) - 0.5)
        elif told:
            hidden.add(whole.memory.id)
    return sorted(ordered, key=lambda one: place[one.memory.id]), frozenset(hidden)
