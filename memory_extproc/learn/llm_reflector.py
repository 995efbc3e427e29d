"""What several memories show together, by a language model. Its answer is checked against what it was shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from memory_extproc.language.tokens import estimate_tokens
from memory_extproc.language.words import number_key, tokens
from memory_extproc.learn.asking import Asks
from memory_extproc.learn.budget import Budget
from memory_extproc.learn.strict_schema import strict_schema
from memory_extproc.model import Memory, Owner
from memory_extproc.ports import Completes
from memory_extproc.safety.poison import suspicion
from memory_extproc.safety.secrets import mask_secrets
from memory_extproc.safety.sensitive import sensitivity

PROMPT: Final = "reflect-1"
_MOST_TOKENS = 4_000  # of what is shown
_LEAST_NOTES = 2


class Insight(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    says: Annotated[str, Meta(min_length=10, max_length=300)]
    notes: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=_LEAST_NOTES, max_length=20)]


class Insights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    insights: Annotated[tuple[Insight, ...], Meta(max_length=3)]


_DECODER = msgspec.json.Decoder(Insights)


class LlmReflector:
    version = PROMPT

    def __init__(self, completes: Completes, budget: Budget) -> None:
        self._asks = Asks(completes, PROMPT, strict_schema(Insights), budget)

    async def reflect(self, owner: Owner, memories: Sequence[Memory]) -> list[tuple[str, tuple[str, ...]]]:
        """Sentences, each with the ids of the *memories* it is drawn from. What cannot be shown beside them, or
        says what may not be kept, is left out. Raises as Asks.answer does."""
        shown: list[Memory] = []
        lines: list[str] = []
        room = _MOST_TOKENS
        for memory in memories:
            line = json.dumps({"note": len(shown) + 1, "says": memory.content}, ensure_ascii=False)
            room -= estimate_tokens(line)
            if room < 0:
                break
            shown.append(memory)
            lines.append(line)
        found = await self._asks.answer(owner, "\n".join(lines), _parser(len(shown)))
        drawn = [(one.says.strip(), [shown[at - 1] for at in dict.fromkeys(one.notes)]) for one in found]
        return [(says, tuple(memory.id for memory in of)) for says, of in drawn if _may_be_kept(says, of)]


def _parser(notes: int) -> Callable[[bytes], Sequence[Insight]]:
    def parsed(answer: bytes) -> Sequence[Insight]:
        found = _DECODER.decode(answer).insights
        if any(max(one.notes) > notes or len(set(one.notes)) < _LEAST_NOTES for one in found):
            raise msgspec.ValidationError(f"each insight names two or more of the notes 1 to {notes}")
        return found

    return parsed


def _may_be_kept(says: str, of: Sequence[Memory]) -> bool:
    """Whether its figures are those of its notes, and it neither instructs nor tells what is nobody's business."""
    known = {key for memory in of for key in _figures(memory.content)}
    sound = suspicion(says) is None and sensitivity(says) is None and mask_secrets(says).text == says
    return sound and _figures(says) <= known


def _figures(text: str) -> set[str]:
    return {number_key(token) for token in tokens(text) if any(char.isdigit() for char in token)}
