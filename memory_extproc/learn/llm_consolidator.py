"""What is known of one subject in one text, by a language model. A text that loses or adds anything is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from memory_extproc.language.stemming import terms
from memory_extproc.language.words import negates, number_key, tokens
from memory_extproc.learn.asking import Asks
from memory_extproc.learn.budget import Budget
from memory_extproc.learn.same import currencies, repeats
from memory_extproc.learn.strict_schema import strict_schema
from memory_extproc.model import Memory, Owner
from memory_extproc.ports import Completes
from memory_extproc.safety.poison import suspicion
from memory_extproc.safety.secrets import mask_secrets
from memory_extproc.safety.sensitive import sensitivity

PROMPT: Final = "consolidate-1"
_OWN_WORDS = 0.4  # share of its terms that may be the model's own


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    says: Annotated[str, Meta(min_length=10, max_length=1_000)]


_DECODER = msgspec.json.Decoder(Told)


class LlmConsolidator:
    version = PROMPT

    def __init__(self, completes: Completes, budget: Budget) -> None:
        self._asks = Asks(completes, PROMPT, strict_schema(Told), budget)

    async def consolidate(self, owner: Owner, memories: Sequence[Memory]) -> str:
        """All that *memories* say. Raises as Asks.answer does: a text that does not keep every value, says what
        none of them says or may not be kept is asked for once more, and then refused."""
        lines = [
            json.dumps({"note": number, "says": memory.content}, ensure_ascii=False)
            for number, memory in enumerate(memories, start=1)
        ]
        return await self._asks.answer(owner, "\n".join(lines), _parser(memories))


def _parser(memories: Sequence[Memory]) -> Callable[[bytes], str]:
    def parsed(answer: bytes) -> str:
        says = _DECODER.decode(answer).says.strip()
        if fault := _fault(says, memories):
            raise msgspec.ValidationError(f"{fault} - at `$.says`")
        return says

    return parsed


def _fault(says: str, memories: Sequence[Memory]) -> str:
    """What is wrong with it, in no word of anybody's; empty: nothing."""
    lost = [number for number, memory in enumerate(memories, start=1) if not _kept(memory, says)]
    if lost:
        return f"the values of notes {lost} do not stand in it word for word"
    told = " ".join(memory.content for memory in memories)
    if not _figures(says) <= _figures(told):
        return "a figure that stands in no note"
    denied = sum(negates(memory.content) for memory in memories)
    if negates(says) is not bool(denied) or (0 < denied < len(memories)):
        return "something denied is not told apart from what holds"
    wanted, known = set(terms(says)[0]), set(terms(told)[0])
    if len(wanted - known) > _OWN_WORDS * len(wanted):
        return "too much that stands in no note"
    unfit = suspicion(says) is not None or mask_secrets(says).text != says
    new = sensitivity(says) is not None and all(sensitivity(memory.content) is None for memory in memories)
    return "what may not be kept" if unfit or new else ""


def _kept(memory: Memory, says: str) -> bool:
    value = str(memory.metadata.get("value") or memory.content)
    return repeats(value, says) and currencies(value) <= currencies(says)


def _figures(text: str) -> set[str]:
    return {number_key(token) for token in tokens(text) if any(char.isdigit() for char in token)}
