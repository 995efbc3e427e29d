"""Facts by a language model. What it answers is input: parsed strictly, held against the caller's words."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from memory_extproc.errors import GiveUpError
from memory_extproc.language.greetings import polite
from memory_extproc.language.questions import only_asks
from memory_extproc.language.words import number_key, tokens
from memory_extproc.learn.extract import SHORTEST_FACT, Fact
from memory_extproc.model import MemoryType, Source, Turn
from memory_extproc.observe import log
from memory_extproc.ports import Completes

PROMPT: Final = "facts-1"  # the file's name and the version kept with every memory made by it
_MOST_FACTS = 50
_ASKED_CHARACTERS = 4000
_ANSWERED_CHARACTERS = 800
_SHORT_TEXT = Meta(min_length=1, max_length=200)
_SHARE = Meta(ge=0, le=1)

_FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)
_FIRST_PERSON = re.compile(r"\A(?:i|i'm|i've|my|we|our)\b", re.IGNORECASE)
_NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve"
_SPELLED = {word: str(number) for number, word in enumerate(tokens(_NUMBER_WORDS))}
_log = log.logger(__name__)


class Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fact the model proposes to remember."""

    fact: Annotated[str, Meta(min_length=SHORTEST_FACT, max_length=300)]
    type: Literal["semantic", "procedural"]
    subject: Annotated[str, _SHORT_TEXT]
    attribute: Annotated[str, _SHORT_TEXT]
    value: Annotated[str, Meta(min_length=1, max_length=300)]
    turn: Annotated[int, Meta(ge=1)]  # position in the list we showed, never an id: models invent ids
    exclusive: bool = False
    importance: Annotated[float, _SHARE] = 0.5
    confidence: Annotated[float, _SHARE] = 0.8


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    facts: Annotated[tuple[Candidate, ...], Meta(max_length=_MOST_FACTS)]


_DECODER = msgspec.json.Decoder(Reply)
_BARE_DECODER = msgspec.json.Decoder(tuple[Candidate, ...])


class LlmExtractor:
    """Asks a model once for a batch of turns, and once more, with the fault named, if it answers malformed."""

    name = "llm"

    def __init__(self, completes: Completes) -> None:
        self._completes = completes
        self._system = (files(__package__) / "prompts" / f"{PROMPT}.txt").read_text(encoding="utf-8")
        self._schema: Mapping[str, Any] = msgspec.json.schema(Reply)

    async def extract(self, turns: Sequence[Turn]) -> list[Fact]:
        """As Extracts.extract. GiveUpError when both answers were malformed; what the port raises passes."""
        telling = [turn for turn in turns if not only_asks(turn.asked) and not polite(turn.asked)]
        if not telling:
            return []
        shown = _shown(turns)
        answer = await self._completes.complete(self._system, shown, schema=self._schema)
        try:
            candidates = _parsed(answer, len(turns))
        except msgspec.DecodeError as fault:
            again = f"{shown}\n\nYour last answer could not be used: {fault}. Answer again, with the JSON alone."
            answer = await self._completes.complete(self._system, again, schema=self._schema)
            try:
                candidates = _parsed(answer, len(turns))
            except msgspec.DecodeError:
                # without the cause: its text may hold what the person said
                raise GiveUpError("the extraction model answered malformed JSON twice") from None
        return self._facts(candidates, turns)

    def _facts(self, candidates: Sequence[Candidate], turns: Sequence[Turn]) -> list[Fact]:
        said = _numbers(" ".join(turn.asked for turn in turns))
        kept = [candidate for candidate in candidates if _grounded(candidate, said)]
        if len(kept) < len(candidates):
            _log.info("extract.ungrounded", facts=len(candidates) - len(kept))
        ordered = sorted(kept, key=lambda candidate: candidate.turn)
        return [_fact(candidate, turns[candidate.turn - 1]) for candidate in ordered]


def _shown(turns: Sequence[Turn]) -> str:
    """The turns as JSON lines: no text in them can look like the end of its own field."""
    lines = (
        {"turn": at, "user": turn.asked[:_ASKED_CHARACTERS], "assistant": turn.answered[:_ANSWERED_CHARACTERS]}
        for at, turn in enumerate(turns, start=1)
    )
    return "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)


def _parsed(answer: str, turns: int) -> tuple[Candidate, ...]:
    """The candidates; code fences and a bare list are tolerated, nothing else. Raises msgspec.DecodeError."""
    fenced = _FENCE.match(answer)
    text = (fenced[1] if fenced is not None else answer).strip()
    encoded = text.encode("utf-8", "replace")
    candidates = _BARE_DECODER.decode(encoded) if text.startswith("[") else _DECODER.decode(encoded).facts
    if any(candidate.turn > turns for candidate in candidates):
        raise msgspec.ValidationError(f"there are only {turns} turns - at `$.facts[...].turn`")
    return candidates


def _numbers(text: str) -> frozenset[str]:
    keys = (number_key(_SPELLED.get(token.lower(), token)) for token in tokens(text))
    return frozenset(key for key in keys if any(character.isdigit() for character in key))


def _grounded(candidate: Candidate, said: frozenset[str]) -> bool:
    """In the third person, and with no number that the caller did not say."""
    if _FIRST_PERSON.match(candidate.fact):
        return False
    return _numbers(candidate.fact) | _numbers(candidate.value) <= said


def _fact(candidate: Candidate, turn: Turn) -> Fact:
    return Fact(
        content=candidate.fact.strip(),
        type=MemoryType(candidate.type),
        subject=candidate.subject,
        attribute=candidate.attribute,
        value=candidate.value,
        turn_id=turn.id,
        source=Source.LLM,
        version=PROMPT,
        exclusive=candidate.exclusive,
        importance=candidate.importance,
        confidence=candidate.confidence,
    )
