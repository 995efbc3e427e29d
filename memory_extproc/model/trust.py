"""How far a memory's words are trusted: by where they come from, never further than anything they were made of."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from memory_extproc.model.memory import Memory, Role, Source
from memory_extproc.model.owner import OwnerKind

TRUST = "trust"  # of metadata: the class, where it is another than role, source and owner say


class Trust(StrEnum):
    """From the most trusted to the least. The values are stored and public: none is renamed."""

    OPERATOR = "operator"  # an operator's, shared with everyone
    CALLER = "caller"  # the caller's own words
    CONFIRMED = "confirmed"  # another's words that the caller repeated
    IMPORT = "import"  # from a file
    MEMBER = "member"  # a project's
    ASSISTANT = "assistant"
    TOOL = "tool"  # from the results of tools, or from a document

    def covers(self, least: Trust) -> bool:
        """Whether it is trusted as far as *least*, or further."""
        return _RANKS[self] <= _RANKS[least]


_RANKS = {trust: rank for rank, trust in enumerate(Trust)}
_VALUES = {trust.value: trust for trust in Trust}


def least_trusted(classes: Iterable[Trust]) -> Trust:
    return max(classes, key=_RANKS.__getitem__)


def trust_of(memory: Memory) -> Trust:
    """The class in the metadata, else the class of role, source and owner, which rows of earlier versions have."""
    kind = memory.owner.kind
    if kind is OwnerKind.GLOBAL:
        return Trust.OPERATOR
    stored = memory.metadata.get(TRUST)
    trust = _VALUES.get(stored) if isinstance(stored, str) else None
    trust = trust or _of_origin(memory)
    return least_trusted((trust, Trust.MEMBER)) if kind is OwnerKind.PROJECT else trust


def trust_noted(memory: Memory, trust: Trust) -> dict[str, object]:
    """The metadata of *memory* with the class *trust*, which is written only where nothing else tells it."""
    metadata = {name: value for name, value in memory.metadata.items() if name != TRUST}
    return metadata if trust is _of_origin(memory) else {**metadata, TRUST: trust.value}


def _of_origin(memory: Memory) -> Trust:
    by_assistant = memory.role is Role.ASSISTANT or memory.source is Source.SUMMARY
    return Trust.ASSISTANT if by_assistant else Trust.CALLER
