"""Extract facts with a language model. Its answer is untrusted: parsed strictly and checked against the caller's
words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from memory_extproc.errors import TruncatedAnswerError
from memory_extproc.learn.extract.answers import confirms
from memory_extproc.learn.extract.extractor import SHORTEST_FACT, Fact, resolve_event_time
from memory_extproc.learn.extract.llm_client import Budget, LlmPrompt, strict_schema
from memory_extproc.learn.extract.statements import without_quotes
from memory_extproc.model import MemoryType, Source, Turn
from memory_extproc.observe.log import logger
from memory_extproc.ports import CompletionModel
from memory_extproc.text.intents import only_asks, polite
from memory_extproc.text.words import number_key, stems, tokens

PROMPT: Final = "facts-2"  # the file's name and the version kept with every memory made by it
_MOST_FACTS = 50
_ASKED_CHARACTERS = 4000
_ANSWERED_CHARACTERS = 800
_SHORT_TEXT = Meta(min_length=1, max_length=200)

_FIRST_PERSON = re.compile(r"\A(?:i|i'm|i've|my|we|our)\b", re.IGNORECASE)
_NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve"
_SPELLED = {word: str(number) for number, word in enumerate(tokens(_NUMBER_WORDS))}
log = logger(__name__)


class ProposedFact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fact proposed by the model."""

    fact: Annotated[str, Meta(min_length=SHORTEST_FACT, max_length=300)]
    type: Literal["semantic", "procedural", "episodic"]
    subject: Annotated[str, _SHORT_TEXT]
    attribute: Annotated[str, _SHORT_TEXT]
    value: Annotated[str, Meta(min_length=1, max_length=300)]
    turn: Annotated[int, Meta(ge=1)]  # position in the list we showed, never an id: models invent ids
    context: Annotated[str, Meta(max_length=200)] = ""
    exclusive: bool = False
    ended: bool = False
    importance: Annotated[float, Meta(ge=0, le=10)] = 5
    event_date: Annotated[str, Meta(max_length=10)] = ""
    confidence: Annotated[float, Meta(ge=0, le=1)] = 0.8


class ProposedFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    facts: Annotated[tuple[ProposedFact, ...], Meta(max_length=_MOST_FACTS)]


_DECODER = msgspec.json.Decoder(ProposedFacts)
_BARE_DECODER = msgspec.json.Decoder(tuple[ProposedFact, ...])


@dataclass(frozen=True, slots=True)
class _Said:
    """Words of the caller, including confirmed words of the assistant, and words of others."""

    numbers: frozenset[str]
    own: frozenset[str]
    others: frozenset[str]


class LlmExtractor:
    """Asks a model once for a batch of turns, and once more, with the fault named, if it answers malformed. An
    answer that does not fit is asked for in halves."""

    name = "llm"

    def __init__(self, completes: CompletionModel, budget: Budget) -> None:
        self._asks = LlmPrompt(completes, PROMPT, strict_schema(ProposedFacts), budget)

    async def extract(self, turns: Sequence[Turn], *, earlier: Sequence[Turn] = ()) -> list[Fact]:
        """As Extracts.extract. PermanentError after two malformed answers; errors of the port pass."""
        before = [*earlier[-1:], *turns][: len(turns)] if earlier else [None, *turns[:-1]]
        telling = [turn for turn, last in zip(turns, before, strict=True) if tells(turn, last)]
        if not telling:
            return []
        try:
            candidates = await self._asks.answer(turns[0].owner, _render_turns(turns, earlier), _parser(len(turns)))
        except TruncatedAnswerError:
            half = len(turns) // 2
            if not half:
                raise
            first = await self.extract(turns[:half], earlier=earlier)
            return [*first, *await self.extract(turns[half:], earlier=[*earlier, *turns[:half]])]
        return _facts(candidates, turns, earlier)


def tells(turn: Turn, before: Turn | None) -> bool:
    """Whether anything in *turn* can be a fact of the caller's: neither politeness, questions and requests alone,
    nor pasted or quoted through and through. A plain yes can, where the turn *before* it ended with a question."""
    if confirms(turn.asked):
        return before is not None and "?" in before.answered
    return not polite(turn.asked) and not only_asks(turn.asked) and bool(without_quotes(turn.asked).strip())


def _render_turns(turns: Sequence[Turn], earlier: Sequence[Turn]) -> str:
    """The turns as JSON lines: no text in them can look like the end of its own field."""
    lines = [{"earlier": True, **_line(turn)} for turn in earlier]
    lines += [{"turn": at, **_line(turn)} for at, turn in enumerate(turns, start=1)]
    return "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)


def _line(turn: Turn) -> dict[str, object]:
    return {
        "date": f"{turn.at:%Y-%m-%d, %A}",
        "user": turn.asked[:_ASKED_CHARACTERS],
        "assistant": turn.answered[:_ANSWERED_CHARACTERS],
    }


def _parser(turns: int) -> Callable[[bytes], tuple[ProposedFact, ...]]:
    def parse(answer: bytes) -> tuple[ProposedFact, ...]:
        """The candidates; a bare list is tolerated, nothing else. Raises msgspec.DecodeError."""
        candidates = _BARE_DECODER.decode(answer) if answer.startswith(b"[") else _DECODER.decode(answer).facts
        if any(candidate.turn > turns for candidate in candidates):
            raise msgspec.ValidationError(f"there are only {turns} turns - at `$.facts[...].turn`")
        if not all(_says_something(candidate) for candidate in candidates):
            raise msgspec.ValidationError("fact, subject, attribute and value are words - at `$.facts[...]`")
        return candidates

    return parse


def _says_something(candidate: ProposedFact) -> bool:
    """Whether it has words: blanks and marks alone would be found by everything and tell nothing."""
    about = (candidate.subject, candidate.attribute, candidate.value)
    return bool(tokens(candidate.fact)) and all(
        any(character.isprintable() and not character.isspace() for character in text) for text in about
    )


def _facts(candidates: Sequence[ProposedFact], turns: Sequence[Turn], earlier: Sequence[Turn]) -> list[Fact]:
    said = _collect_said(turns, earlier)
    facts = [
        _fact(candidate, turns[candidate.turn - 1])
        for candidate in sorted(candidates, key=lambda candidate: candidate.turn)
    ]
    kept = [fact for fact in facts if _is_grounded(fact, said)]
    if len(kept) < len(facts):
        log.info("extract.ungrounded", facts=len(facts) - len(kept))
    return kept


def _collect_said(turns: Sequence[Turn], earlier: Sequence[Turn]) -> _Said:
    everything = [*earlier, *turns]
    own = [turn.asked for turn in everything]
    own += [before.answered for before, turn in pairwise(everything) if confirms(turn.asked)]
    others = [text for turn in everything for text in (turn.answered, *turn.injected)]
    return _Said(_numbers(" ".join(own)), stems(" ".join(own)), stems(" ".join(others)))


def _numbers(text: str) -> frozenset[str]:
    keys = (number_key(_SPELLED.get(token.lower(), token)) for token in tokens(text))
    return frozenset(key for key in keys if any(character.isdigit() for character in key))


def _is_grounded(fact: Fact, said: _Said) -> bool:
    """In the third person, with no number that the caller did not say, and not in others' words alone."""
    if _FIRST_PERSON.match(fact.content):
        return False
    value = stems(fact.value)
    if value and value <= said.others and not value & said.own:
        return False
    return _numbers(fact.content) | _numbers(fact.value) <= said.numbers | frozenset(_parts(fact.happens))


def _parts(day: str) -> Iterator[str]:
    """The numbers in which a date may be written."""
    parts = day.split("-") if day else []
    yield from (day, *parts)
    yield from (str(int(part)) for part in parts)


def _fact(candidate: ProposedFact, turn: Turn) -> Fact:
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
        ends=candidate.ended,
        importance=candidate.importance / 10,
        confidence=candidate.confidence,
        context=candidate.context.strip(),
        happens=resolve_event_time(turn.asked[:_ASKED_CHARACTERS], turn.at.date(), candidate.event_date),
    )
