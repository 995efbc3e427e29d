"""What an extractor gives: facts out of turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from memory_extproc.model import MemoryType, Source, Turn

LONGEST_FACT = 400  # characters; a longer one is a text, not a fact
SHORTEST_FACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing to remember about the caller, in the third person: "User's budget is $10,000".

    *subject* and *attribute* say what it is about, *value* what it says of it: two facts with the first two
    alike speak of the same, and the newer holds. All four are a person's words and never printed.
    """

    content: str = field(repr=False)
    type: MemoryType  # semantic, procedural, or episodic: something that happened or will
    subject: str = field(repr=False)
    attribute: str = field(repr=False)
    value: str = field(repr=False)
    turn_id: str
    source: Source  # rules or llm
    version: str  # of the rules or the prompt that made it, kept with the memory
    exclusive: bool = False  # only one value can hold at a time: a home, an employer, one trip's budget
    ends: bool = False  # what *value* names has stopped being so: "User no longer lives in Paris"
    moved: bool = False  # one of several of its kind changed its date or place: "the meeting moved to Friday"
    formerly: str = field(default="", repr=False)  # of one that moved: from what, where it was said
    context: str = field(default="", repr=False)  # what one must know to understand it, where *content* lacks it
    happens: str = ""  # the day, month or year it is about: YYYY-MM-DD, YYYY-MM or YYYY; empty: none, or not known
    importance: float = 0.5  # 0 to 1
    confidence: float = 1.0  # 0 to 1
    sensitivity: str = ""  # the special category it belongs to; empty: none
    suspicion: str = ""  # why it is put aside for review and never recalled; empty: it is not
    drawn_from: tuple[str, ...] = ()  # ids of the turns that it was drawn from together; empty: *turn_id* alone
    began: datetime | None = None  # when the first of those was asked


class Extracts(Protocol):
    """Turns turns of one owner into facts."""

    @property
    def name(self) -> str:
        """The metric label: "rules" or "llm"."""

    async def extract(self, turns: Sequence[Turn], *, earlier: Sequence[Turn] = ()) -> list[Fact]:
        """Facts the caller stated, in the order of *turns* (oldest first). *earlier* turns of the session were
        learned from before: they help to understand these and give no facts. Raises TryLaterError or
        GiveUpError and then has learned nothing."""
