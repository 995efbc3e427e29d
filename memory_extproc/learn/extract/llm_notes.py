"""Notes on helping a caller better, written by a model when their session is extracted."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.learn.extract.extractor import Fact, FactExtractor
from memory_extproc.learn.extract.llm_client import Budget, LlmPrompt, strict_schema
from memory_extproc.learn.wording import currencies, repeats
from memory_extproc.model import Memory, MemoryType, Owner, Source, Turn
from memory_extproc.observe.log import logger
from memory_extproc.ports import CompletionModel
from memory_extproc.safety.policy import sensitivity
from memory_extproc.safety.prompt_injection import suspicion
from memory_extproc.safety.secrets import mask_secrets
from memory_extproc.text.words import estimate_tokens, negates, number_key, terms, tokens

log = logger(__name__)
NOTES_PROMPT: Final = "notes-1"
_MOST = 3
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
        return [*facts, *(_fact(note, shown_turns) for note in notes[:_MOST] if sensitivity(note) is None)]


def _fact(note: str, shown: Sequence[Turn]) -> Fact:
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
        found = await self._asks.answer(owner, "\n".join(lines), _parser(len(shown)))
        drawn = [(one.says.strip(), [shown[at - 1] for at in dict.fromkeys(one.notes)]) for one in found]
        return [(says, tuple(memory.id for memory in of)) for says, of in drawn if _may_be_kept(says, of)]


def _parser(notes: int) -> Callable[[bytes], Sequence[Insight]]:
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
