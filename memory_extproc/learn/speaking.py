"""Which memories speak of what somebody wants forgotten, or holds for over. Pure.

A person names a thing in few words, in any language; what was learned of it may have others. So with what has these
words goes what has the name that it gives the thing, and the fact that was taken from the very sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from memory_extproc.language.sentences import sentences
from memory_extproc.language.stemming import terms, terms_in
from memory_extproc.learn.verdicts import FACTS
from memory_extproc.model import Memory, Source

# Facts begin with whom they are about, so that the word says nothing: "User's budget ...".
_CALLER = re.compile(r"^(?:the\s+)?user(?:'s|\u2019s)?\s+", re.IGNORECASE)
_SELF = "user"


def holds_words(what: str, text: str) -> bool:
    """Whether *text* has all words of *what* that mean something, in whatever form."""
    found, language = terms(text)
    present = set(found)
    return any(wanted and wanted <= present for wanted in (set(terms(what)[0]), set(terms_in(what, language))))


def speaking_of(what: str, rows: Sequence[Memory], near: AbstractSet[str] = frozenset()) -> set[str]:
    """Ids of those of *rows* that speak of *what*; *near* are those that do so in other words."""
    found = {memory.id: memory for memory in rows if memory.id in near or holds_words(what, told(memory))}
    names = [
        _text(memory, "value")
        for memory in found.values()
        if memory.source in FACTS.sources and "name" in _text(memory, "attribute").split()
    ]
    found |= {
        memory.id: memory for memory in rows if any(name and holds_words(name, told(memory)) for name in names)
    }
    said = _said(what, found.values())
    found |= {
        memory.id: memory
        for memory in rows
        if memory.source in FACTS.sources and _taken_from(memory, said.get(_text(memory, "turn"), ()))
    }
    return found.keys() | _beneath(found.keys(), near, rows)


def _beneath(spoken: AbstractSet[str], near: AbstractSet[str], rows: Iterable[Memory]) -> set[str]:
    """Ids of what was merged into memories that go: it would speak for itself again. Where some of what such a one
    was made of is meant by its own words, the rest is not."""
    whole = {
        memory.id for memory in rows if memory.id in near or (memory.id in spoken and not spoken & _sources(memory))
    }
    return {
        memory.id
        for memory in rows
        if memory.superseded_by in whole and memory.metadata.get("merged") == memory.superseded_by
    }


def made_of(ids: Iterable[str], rows: Sequence[Memory]) -> set[str]:
    """*ids* and those of *rows* that were made of any of them, however many steps lie between."""
    gone = set(ids)
    made = {memory.id: sources for memory in rows if (sources := _sources(memory))}
    while more := {one for one, sources in made.items() if one not in gone and not gone.isdisjoint(sources)}:
        gone |= more
    return gone


def told(memory: Memory) -> str:
    """What *memory* says, and whom it is about, but for the caller, whom all facts are about."""
    if memory.source not in FACTS.sources:
        return memory.content
    subject = _text(memory, "subject")
    return f"{'' if subject == _SELF else subject} {_CALLER.sub('', memory.content)}"


def _said(what: str, found: Iterable[Memory]) -> Mapping[str, Sequence[str]]:
    """By turn, the sentences that speak of *what*; of a message that does so in other words, all of them."""
    said: dict[str, list[str]] = {}
    for memory in found:
        if memory.source is Source.VERBATIM:
            each = sentences(memory.content)
            meant = [sentence for sentence in each if holds_words(what, sentence)]
            said.setdefault(_text(memory, "turn"), []).extend(meant or each)
    return said


def _taken_from(fact: Memory, said: Iterable[str]) -> bool:
    value = _text(fact, "value")
    return bool(value) and any(holds_words(value, sentence) for sentence in said)


def _text(memory: Memory, name: str) -> str:
    value = memory.metadata.get(name)
    return value if isinstance(value, str) else ""


def _sources(memory: Memory) -> frozenset[str]:
    named = memory.metadata.get("sources")
    return frozenset(filter(_is_text, named)) if isinstance(named, list | tuple) else frozenset()


def _is_text(value: object) -> bool:
    return isinstance(value, str)
