"""A language model's word on whether a fact changes what is known. Its answer is checked, number by number."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from memory_extproc.learn.asking import Asks
from memory_extproc.learn.budget import Budget
from memory_extproc.learn.extract import Fact
from memory_extproc.learn.strict_schema import strict_schema
from memory_extproc.learn.verdicts import Verdict
from memory_extproc.model import Memory, Owner
from memory_extproc.ports import Completes

PROMPT: Final = "reconcile-1"


class OfNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    note: Annotated[int, Meta(ge=1)]  # its number in the list we showed: models invent ids
    verdict: Verdict


class Verdicts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    verdicts: tuple[OfNote, ...]


_DECODER = msgspec.json.Decoder(Verdicts)


class LlmJudge:
    """Implements Judges."""

    version = PROMPT

    def __init__(self, completes: Completes, budget: Budget) -> None:
        self._asks = Asks(completes, PROMPT, strict_schema(Verdicts), budget)

    async def judge(self, owner: Owner, fact: Fact, memories: Sequence[Memory]) -> Sequence[Verdict]:
        """As Judges.judge. GiveUpError when two answers did not judge every note once, OverBudgetError when the
        owner's tokens are spent; what the model's port raises passes."""
        lines: list[dict[str, object]] = [{"fact": fact.content}]
        lines += [
            {"note": at, "date": f"{memory.created_at:%Y-%m-%d}", "says": memory.content}
            for at, memory in enumerate(memories, start=1)
        ]
        shown = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
        return await self._asks.answer(owner, shown, _parser(len(memories)))


def _parser(notes: int) -> Callable[[bytes], Sequence[Verdict]]:
    def parsed(answer: bytes) -> Sequence[Verdict]:
        found = _DECODER.decode(answer).verdicts
        by_note = {one.note: one.verdict for one in found}
        if len(found) != notes or set(by_note) != set(range(1, notes + 1)):
            raise msgspec.ValidationError(f"each of the notes 1 to {notes} needs one verdict - at `$.verdicts`")
        return [by_note[note] for note in range(1, notes + 1)]

    return parsed
