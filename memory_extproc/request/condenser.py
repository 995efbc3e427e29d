"""Condenses the older part of a long conversation into a state, by a model or by rules."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.learn.extract.extractor import FactExtractor
from memory_extproc.learn.extract.llm_client import Budget, LlmPrompt, strict_schema
from memory_extproc.model import ChatState, Message, Owner, Role, Turn, digest
from memory_extproc.observe.log import logger
from memory_extproc.ports import ChatCondenser, CompletionModel, Now
from memory_extproc.safety.secrets import mask_secrets
from memory_extproc.text.intents import asks
from memory_extproc.text.words import sentences

log = logger(__name__)
PROMPT: Final = "condense-1"
_DECISIONS, _VALUES, _QUESTIONS = 12, 30, 6
_LONGEST = 240  # characters per entry
_AT_ONCE = 24_000  # characters of messages per model call
_LONGEST_SHOWN = 4_000  # characters per message
_DECIDED = re.compile(
    r"""(?ix)\b(?:decided?|let'?s|we'?ll|i'?ll|going\ (?:with|to)|go\ with|choose|chose|chosen|agreed?|settled?|must
    |has\ to|deadline|budget|remember|important|entschieden|entscheiden|nehmen\ wir|wichtig|muss|décidé|décidons
    |on\ prend|decidido|decidimos|vamos\ a|importante)\b|\u51b3\u5b9a|\u5fc5\u987b|\u91cd\u8981|\u9884\u7b97"""
)


def _short(text: str) -> str:
    bare = " ".join(text.split())
    return bare if len(bare) <= _LONGEST else f"{bare[: _LONGEST - 1]}\u2026"


class OfValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=400)]
    value: Annotated[str, Meta(min_length=1, max_length=2000)]


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: Annotated[str, Meta(max_length=2000)]
    decisions: tuple[Annotated[str, Meta(max_length=2000)], ...]
    values: tuple[OfValue, ...]
    questions: tuple[Annotated[str, Meta(max_length=2000)], ...]


_DECODER = msgspec.json.Decoder(State)


class RulesCondenser:
    """Implements ChatCondenser without a model.

    Keeps facts found by the rules, sentences with decisions or figures, and the assistant's last question. It keeps
    less than a model does, and adds nothing that was not said."""

    def __init__(self, extractor: FactExtractor, *, now: Now) -> None:
        self._extractor, self._now = extractor, now

    async def condense(self, owner: Owner, before: ChatState, messages: Sequence[Message]) -> ChatState:
        turns = _turns(owner, messages, self._now())
        values = dict(before.values)
        for fact in await self._extractor.extract(turns):
            name = fact.attribute if fact.subject == "user" else f"{fact.subject}: {fact.attribute}"
            values.pop(_short(name), None)  # a repeated value moves to the end, and is trimmed last
            values[_short(name)] = _short(mask_secrets(fact.content).text)
        decisions = list(before.decisions)
        questions: list[str] = []
        topic = before.topic
        for message in messages:
            for sentence in sentences(message.text[:_LONGEST_SHOWN]):
                said = _short(mask_secrets(sentence).text)
                if asks(sentence):
                    questions += [said] if message.role is Role.ASSISTANT else []
                elif _DECIDED.search(sentence) or (message.role is Role.USER and any(map(str.isdigit, sentence))):
                    decisions.append(said)
                if message.role is Role.USER:
                    topic = topic or said
        return ChatState(
            topic=topic,
            decisions=tuple(dict.fromkeys(decisions))[-_DECISIONS * 2 :],
            values=tuple(values.items())[-_VALUES:],
            questions=tuple(questions[-1:]),
        )


class LlmCondenser:
    """Implements ChatCondenser by a language model; falls back to *otherwise* without a usable answer."""

    def __init__(self, completes: CompletionModel, budget: Budget, otherwise: ChatCondenser) -> None:
        self._asks = LlmPrompt(completes, PROMPT, strict_schema(State), budget)
        self._otherwise = otherwise

    async def condense(self, owner: Owner, before: ChatState, messages: Sequence[Message]) -> ChatState:
        state = before
        try:
            for chunk in _chunks(messages):
                shown = "\n".join([_json(as_fields(state)), *(_line(message) for message in chunk)])
                state = _of(await self._asks.answer(owner, shown, _DECODER.decode))
        except MemoryExtprocError as error:
            log.warning("condense.by_rules", kind=type(error).__name__)
            return await self._otherwise.condense(owner, before, messages)
        return state


def as_fields(state: ChatState) -> dict[str, object]:
    """*state* as shown to a model. Equal states give equal fields in the same order."""
    return {
        "topic": state.topic,
        "decisions": list(state.decisions),
        "values": [{"name": name, "value": value} for name, value in state.values],
        "questions": list(state.questions),
    }


def _of(state: State) -> ChatState:
    values = {_short(one.name): _short(mask_secrets(one.value).text) for one in state.values}
    return ChatState(
        topic=_short(state.topic),
        decisions=tuple(_short(mask_secrets(one).text) for one in state.decisions[:_DECISIONS]),
        values=tuple(values.items())[:_VALUES],
        questions=tuple(_short(one) for one in state.questions[:_QUESTIONS]),
    )


def _chunks(messages: Sequence[Message]) -> list[list[Message]]:
    chunks: list[list[Message]] = []
    room = 0
    for message in messages:
        cost = min(len(message.text), _LONGEST_SHOWN)
        if not chunks or cost > room:
            chunks.append([])
            room = _AT_ONCE
        chunks[-1].append(message)
        room -= cost
    return chunks


def _line(message: Message) -> str:
    return _json({message.role.value: mask_secrets(message.text[:_LONGEST_SHOWN]).text})


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _turns(owner: Owner, messages: Sequence[Message], now: datetime) -> list[Turn]:
    nothing = Turn(id="", owner=owner, project="", session="", seq=0, asked="", answered="", at=now)
    turns: list[Turn] = []
    for place, message in enumerate(messages):
        if message.role is Role.USER:
            turns.append(replace(nothing, id=digest("condensed", str(place)), seq=place, asked=message.text))
        elif turns:
            turns[-1] = replace(turns[-1], answered=message.text)
    return turns
