"""Extract facts and notes with a language model, and let it draw conclusions and merge memories. Its answer is
untrusted: parsed strictly and checked against the caller's words, or against the memories that it was shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from memory_extproc.errors import MemoryExtprocError, TruncatedAnswerError
from memory_extproc.learn.extract.answers import confirms
from memory_extproc.learn.extract.extractor import SHORTEST_FACT, Fact, FactExtractor, resolve_event_time
from memory_extproc.learn.extract.llm_client import Budget, LlmPrompt, strict_schema
from memory_extproc.learn.extract.statements import without_quotes
from memory_extproc.learn.wording import currencies, repeats
from memory_extproc.model import Memory, MemoryType, Owner, Source, Turn
from memory_extproc.observe.log import logger
from memory_extproc.ports import CompletionModel
from memory_extproc.safety.policy import sensitivity
from memory_extproc.safety.prompt_injection import suspicion
from memory_extproc.safety.secrets import mask_secrets
from memory_extproc.text.intents import only_asks, polite
from memory_extproc.text.words import estimate_tokens, negates, number_key, stems, terms, tokens

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


# --- notes -------------------------------------------------------------------------------------------
# Notes on helping a caller better, written when their session is extracted.

NOTES_PROMPT: Final = "notes-1"
_MOST_NOTES = 3
_SHOWN = 2_000  # characters per message
_IMPORTANCE = 0.7


class Notes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    notes: tuple[Annotated[str, Meta(min_length=3, max_length=300)], ...]


_NOTES_DECODER = msgspec.json.Decoder(Notes)


class Noting:
    """Extractor that adds notes of a model as reflective facts. A failed note never costs the facts of a turn."""

    def __init__(self, extractor: FactExtractor, completes: CompletionModel, budget: Budget) -> None:
        self._extractor = extractor
        self._asks = LlmPrompt(completes, NOTES_PROMPT, strict_schema(Notes), budget)

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
            notes = (await self._asks.answer(turns[-1].owner, shown, _NOTES_DECODER.decode)).notes
        except MemoryExtprocError as error:
            log.warning("notepad.no_note", kind=type(error).__name__)
            return facts
        shown_turns = (*earlier, *turns)
        return [
            *facts,
            *(_note_fact(note, shown_turns) for note in notes[:_MOST_NOTES] if sensitivity(note) is None),
        ]


def _note_fact(note: str, shown: Sequence[Turn]) -> Fact:
    """The note as a fact of all *shown* turns, so that forgetting any of them forgets the note."""
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
        version=NOTES_PROMPT,
        importance=_IMPORTANCE,
        suspicion=found.value if found else "",
    )


# --- llm reflector -----------------------------------------------------------------------------------
# Conclusions of a model from several memories, checked against these memories.

REFLECT_PROMPT: Final = "reflect-1"
_MOST_TOKENS = 4_000  # in the prompt
_LEAST_NOTES = 2


class Insight(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    says: Annotated[str, Meta(min_length=10, max_length=300)]
    notes: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=_LEAST_NOTES, max_length=20)]


class Insights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    insights: Annotated[tuple[Insight, ...], Meta(max_length=3)]


_INSIGHTS_DECODER = msgspec.json.Decoder(Insights)


class LlmReflector:
    version = REFLECT_PROMPT

    def __init__(self, completes: CompletionModel, budget: Budget) -> None:
        self._asks = LlmPrompt(completes, REFLECT_PROMPT, strict_schema(Insights), budget)

    async def reflect(self, owner: Owner, memories: Sequence[Memory]) -> list[tuple[str, tuple[str, ...]]]:
        """Conclusions, each with the ids of its source *memories*. Conclusions with unknown sources or forbidden
        content are dropped. Raises as Asks.answer does."""
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
        found = await self._asks.answer(owner, "\n".join(lines), _insights_parser(len(shown)))
        drawn = [(one.says.strip(), [shown[at - 1] for at in dict.fromkeys(one.notes)]) for one in found]
        return [(says, tuple(memory.id for memory in of)) for says, of in drawn if _may_be_kept(says, of)]


def _insights_parser(notes: int) -> Callable[[bytes], Sequence[Insight]]:
    def parse(answer: bytes) -> Sequence[Insight]:
        found = _INSIGHTS_DECODER.decode(answer).insights
        if any(max(one.notes) > notes or len(set(one.notes)) < _LEAST_NOTES for one in found):
            raise msgspec.ValidationError(f"each insight names two or more of the notes 1 to {notes}")
        return found

    return parse


def _may_be_kept(says: str, of: Sequence[Memory]) -> bool:
    """Whether all figures come from its notes, and it neither instructs nor reveals sensitive data."""
    known = {key for memory in of for key in _figures(memory.content)}
    sound = suspicion(says) is None and sensitivity(says) is None and mask_secrets(says).text == says
    return sound and _figures(says) <= known


def _figures(text: str) -> set[str]:
    return {number_key(token) for token in tokens(text) if any(char.isdigit() for char in token)}


# --- llm consolidator --------------------------------------------------------------------------------
# Merge the memories about a subject into one text with a model. A text that loses or adds anything is refused.

CONSOLIDATE_PROMPT: Final = "consolidate-1"
_OWN_WORDS = 0.4  # share of its terms that may be the model's own


class NoteReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    says: Annotated[str, Meta(min_length=10, max_length=1_000)]


_TOLD_DECODER = msgspec.json.Decoder(NoteReply)


class LlmConsolidator:
    version = CONSOLIDATE_PROMPT

    def __init__(self, completes: CompletionModel, budget: Budget) -> None:
        self._asks = LlmPrompt(completes, CONSOLIDATE_PROMPT, strict_schema(NoteReply), budget)

    async def consolidate(self, owner: Owner, memories: Sequence[Memory]) -> str:
        """One text with the content of all *memories*. Raises as Asks.answer does: a text that loses a value, adds
        a statement or holds forbidden content is requested once more, and then refused."""
        lines = [
            json.dumps({"note": number, "says": memory.content}, ensure_ascii=False)
            for number, memory in enumerate(memories, start=1)
        ]
        return await self._asks.answer(owner, "\n".join(lines), _consolidated_parser(memories))


def _consolidated_parser(memories: Sequence[Memory]) -> Callable[[bytes], str]:
    def parse(answer: bytes) -> str:
        says = _TOLD_DECODER.decode(answer).says.strip()
        if fault := _fault(says, memories):
            raise msgspec.ValidationError(f"{fault} - at `$.says`")
        return says

    return parse


def _fault(says: str, memories: Sequence[Memory]) -> str:
    """The fault of the text, without quoting it; empty if there is none."""
    lost = [number for number, memory in enumerate(memories, start=1) if not _is_kept_whole(memory, says)]
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


def _is_kept_whole(memory: Memory, says: str) -> bool:
    value = memory.provenance.value or memory.content
    return repeats(value, says) and currencies(value) <= currencies(says)
