"""Unanswerable questions: a conversation's questions put to the memories of another person.

The names of the speakers are taken out, so that a name alone does not tell whether a memory can help."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from memory_extproc.evaluation.datasets import Conversation, Question


class Names(StrEnum):
    """The replacement for a speaker's name."""

    FIRST_PERSON = "first-person"  # "What is my budget?", "When did I go?"
    NEUTRAL = "neutral"  # names unknown to both conversations
    SWAPPED = "swapped"  # the names of the people asked: the hardest
    KEPT = "kept"  # as it stands: the easiest, a name gives it away


NEUTRAL = ("Alex", "Robin")
_FIRST_PERSON = {"is": "am", "has": "have", "does": "do"}
_SHORTEST_SHORT_FORM = 3


def reword(text: str, speakers: Sequence[str], names: Names, others: Sequence[str] = ()) -> str:
    """*text* with each of *speakers* (also by a short form, "Kat" for "Katrin") put differently."""
    if names is Names.KEPT:
        return text
    both = all(_mentions(text, speaker) for speaker in speakers)
    for at, speaker in enumerate(speakers):
        if names is Names.FIRST_PERSON:
            # With both speakers in a question, the first asks and the second is a friend.
            text = _replace_name(text, speaker, "my friend") if both and at else _first_person(text, speaker)
        else:
            instead = (NEUTRAL if names is Names.NEUTRAL else others)[at : at + 1]
            text = _replace_name(text, speaker, instead[0] if instead else NEUTRAL[at % len(NEUTRAL)])
    return text


def foreign(conversations: Sequence[Conversation]) -> list[tuple[Conversation, Conversation, Question]]:
    """(whose question, whose memories, the question): each question once, of the other conversations in turn.
    Only between conversations of named people: notes of several owners may answer the same question."""
    named = [one for one in conversations if one.speakers]
    pairs = []
    others = len(named) - 1
    for at, home in enumerate(named):
        for number, question in enumerate(home.questions if others > 0 else ()):
            pairs.append((home, named[(at + 1 + number % others) % len(named)], question))
    return pairs


def _pattern(speaker: str) -> str:
    """The name, or its beginning as people shorten it: at least three letters, capital first."""
    whole = re.escape(speaker)
    short = [re.escape(speaker[:length]) for length in range(len(speaker) - 1, _SHORTEST_SHORT_FORM - 1, -1)]
    return rf"\b(?:{'|'.join([whole, *short])})\b"


def _mentions(text: str, speaker: str) -> bool:
    return re.search(_pattern(speaker), text) is not None


def _replace_name(text: str, speaker: str, instead: str) -> str:
    return re.sub(_pattern(speaker), lambda _: instead, text)


# After these a name stands as an object, where the first person is "me".
_BEFORE_OBJECT = (
    "to|for|with|from|by|of|about|at|on|like|than|make|makes|made|help|helps|helped|give|gives|gave|tell|told|"
    "inspire|inspires|inspired|remind|reminds|reminded"
)


def _first_person(text: str, speaker: str) -> str:
    name = _pattern(speaker)
    text = re.sub(rf"{name}['\u2019]s?(?=\W|$)", "my", text)
    text = re.sub(rf"\b(is|has|does)\s+{name}", lambda m: f"{_as_said(m[1])} I", text, flags=re.IGNORECASE)
    text = re.sub(rf"{name}\s+(is|has|does)\b", lambda m: f"I {_as_said(m[1])}", text)
    text = re.sub(rf"\b({_BEFORE_OBJECT})\s+{name}", r"\1 me", text)
    return re.sub(name, "I", text)


def _as_said(auxiliary: str) -> str:
    """The form of the first person, with the capital of the third."""
    first = _FIRST_PERSON[auxiliary.lower()]
    return first.capitalize() if auxiliary[0].isupper() else first
