"""Notes on what helps a caller, taken by a model when their session is extracted from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.learn.asking import Asks
from memory_extproc.learn.budget import Budget
from memory_extproc.learn.extract import Extracts, Fact
from memory_extproc.learn.strict_schema import strict_schema
from memory_extproc.model import MemoryType, Source, Turn
from memory_extproc.observe.log import logger
from memory_extproc.ports import Completes
from memory_extproc.safety.poison import suspicion
from memory_extproc.safety.sensitive import sensitivity

log = logger(__name__)
PROMPT: Final = "notes-1"
_MOST = 3
_SHOWN = 2_000  # characters of one message
_IMPORTANCE = 0.7


class Notes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    notes: tuple[Annotated[str, Meta(min_length=3, max_length=300)], ...]


_DECODER = msgspec.json.Decoder(Notes)


class Noting:
    """An extractor around another, which adds notes as reflective facts. Where no note comes of it the facts are
    what they are: a note is never worth a turn."""

    def __init__(self, extractor: Extracts, completes: Completes, budget: Budget) -> None:
        self._extractor = extractor
        self._asks = Asks(completes, PROMPT, strict_schema(Notes), budget)

    @property
    def name(self) -> str:
        return self._extractor.name

    async def extract(self, turns: Sequence[Turn], *, earlier: Sequence[Turn] = ()) -> list[Fact]:
        facts = await self._extractor.extract(turns, earlier=earlier)
        if not turns:
            return facts
        lines = (
            {role: text[:_SHOWN]}
            for turn in (*earlier, *turns)
            for role, text in (("user", turn.asked), ("assistant", turn.answered))
            if text
        )
        shown = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
        try:
            notes = (await self._asks.answer(turns[-1].owner, shown, _DECODER.decode)).notes
        except MemoryExtprocError as error:
            log.warning("notepad.no_note", kind=type(error).__name__)
            return facts
        shown_turns = (*earlier, *turns)
        return [*facts, *(_fact(note, shown_turns) for note in notes[:_MOST] if sensitivity(note) is None)]


def _fact(note: str, shown: Sequence[Turn]) -> Fact:
    """Of all that was *shown*: who has any of it forgotten means the note, too."""
    found = suspicion(note)
    return Fact(
        content=note,
        type=MemoryType.REFLECTIVE,
        subject="user",
        attribute="what helps",
        value=note,
        turn_id=shown[-1].id,
        drawn_from=tuple(turn.id for turn in shown),
        began=min(turn.at for turn in shown),
        source=Source.LLM,
        version=PROMPT,
        importance=_IMPORTANCE,
        suspicion=found.value if found else "",
    )
