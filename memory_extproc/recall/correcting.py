"""Whether one message takes back what another said. Pure."""

from __future__ import annotations

from memory_extproc.language.corrections import corrects
from memory_extproc.model import Memory, Role, Source

_LEARNED = frozenset({Source.RULES, Source.LLM})  # facts
AT_ONCE = 2  # messages: what the caller says next need not name what it corrects


def is_correction(new: Memory, old: Memory) -> bool:
    """Whether *new*, the caller's own words, takes back what *old* says: a message of theirs, or a fact."""
    told = said_by_caller(old) or old.source in _LEARNED
    if not said_by_caller(new) or not told or new.owner != old.owner or when(new) <= when(old):
        return False
    at_once = bool(new.session) and new.session == old.session and new.seq - old.seq <= AT_ONCE
    return corrects(new.content, old.content, at_once=at_once)


def said_by_caller(memory: Memory) -> bool:
    """In their own words, not in those of a fact."""
    return memory.role is Role.USER and memory.source is Source.VERBATIM


def when(memory: Memory) -> tuple[float, int]:
    """For putting messages in the order in which they were said."""
    return memory.created_at.timestamp(), memory.seq
