"""Traits of a memory: the person that it is about, and whether it states anything of its owner.

By the memory's words and provenance alone, for lookups by kind of question. Pure; linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from memory_extproc.index.facets import names_in
from memory_extproc.model import Memory, Owner, Role, Source
from memory_extproc.recall.intent import INTENTS
from memory_extproc.text.attributes import ATTRIBUTES, plain_words
from memory_extproc.text.intents import asks, content_stems, polite
from memory_extproc.text.persons import about_caller, relation_words, same_relation, subject
from memory_extproc.text.sentences import clauses, sentences
from memory_extproc.text.words import MOST_SETS, fold, memoize_by_hash, rarity

_READ_FOR_SUBJECT = 60  # characters
_SUBJECT_WITHIN = 4  # words
PETS = ATTRIBUTES.attributes["pets"].told
FACTS = frozenset({Source.RULES, Source.LLM, Source.API})
_NEAR = 4  # words
# The writer of a quoted message, and the person who is spoken to: "Ann: Hey Maria, my sister is here".
_ADDRESSED = re.compile(
    r"(?:\A\w{1,40}:\s)|\b(?i:hey|hi|hello|thanks|thank you|wow|yeah|yes|sure|hallo|salut|hola|danke),? [A-Z]\w+"
    r"|, [A-Z]\w+(?=[!.?])"
)
_SPEAKER = re.compile(
    r"\b(?:i|i'm|i've|my|mine|me|we|our|us|ich|mein\w*|mir|mich|wir|unser\w*|je|j'\w+|mon|ma|mes|nous|notre|nos|yo|mi|mis|soy|tengo|nuestr\w+)\b"
)
OWN_START = re.compile(
    r"\b(?:i|we|i'm|we're|i've|we've|my|our|ich|wir|je|j'\w+|on|nous|yo|nos)\b"
    r"|^(?:just |finally )?\w+ed (?:in )?to\b"
)
HERE = re.compile(r"\bhere\b")
_LISTENER = re.compile(r"\b(?:you|your|yours|you're|you've|du|dein\w*|tu|ton|ta|tes|vous|votre|vos|te)\b")
READ_FOR_STATEMENT = 600  # characters
_LEAST_STATED = 3  # content words
_NOBODY_ELSE = frozenset({"", "we", "they", "you"})  # "We got a dog" is about no other person
_LEADS = re.compile(r"\A(?:(?i:ok|okay|so|and|but|hey|oh|btw|also|anyway|well|yo)\b[,.!]? ?){1,4}")

# Names that their words show to be people's.
_ONE = r"[A-Z\u00c0-\u00de][\w-]{0,30}+(?<=[a-z\u00df-\u00ff])"
_SHOWN = re.compile(
    r"\b(?:(?:Mr|Mrs|Ms|Miss|Dr|Prof|Professor|Herr|Frau|Madame|Monsieur"
    r"|Do\u00f1a|Dona|Se\u00f1ora?|Aunt|Uncle)\.? "
    r"|(?:with|meet|met|ask|asked|visit|visited|invite|invited|thank|mit|avec|con) "
    r"|[Nn]ame's |(?P<role>[^\W\d_]{2,30}+),? (?P<called>(?:is |was |are )?(?:called|named) )?(?:is |are )?)"
    rf"(?P<name>{_ONE})(?P<others>(?: {_ONE})?(?:, {_ONE}){{0,6}}(?:,? (?:and|und|et|y) {_ONE})?)"
    rf"|\b(?P<acting>{_ONE})(?:'s (?P<whose>[^\W\d_]{{2,30}})\b| (?:{_ONE} )?(?:only |also |just |really |now )?"
    r"(?:wants?|says?|said|told|thinks|needs?|lives?|works?|loves?|hates?|likes?|gave|gets?|will|keeps?"
    r"|drives?|helps?|turned|signed|started|finished|handed|moved|broke|bought|plays?|eats?|mustn't|can't|joins?"
    r"|hilft|wohnt|arbeitet|travaille|habite|vive|trabaja"
    r"|(?:is|was) (?:an?|my|coming|leaving|moving|going|getting|doing|married|pregnant)"
    r"|has (?:an?|been|broken|become|got))\b)"
)
_ACTS = re.compile(r"\w{3,30}(?:er|or|ist|ian|man|woman)")


def is_of_family(memory: Memory) -> bool:
    who, sure = subject(memory.content)
    if who and sure < 1.0:  # "Priscilla has a daughter"
        return False
    first = plain_words(memory.content[:_READ_FOR_SUBJECT])[:_SUBJECT_WITHIN]
    return not INTENTS.words["family"].isdisjoint(first)


def about_self(memory: Memory) -> bool:
    """Whether *memory* is about its owner, and not about another person or an animal."""
    named = memory.provenance.subject
    if named and memory.source in FACTS:
        return named.casefold() == "user"
    if subject(memory.content)[0] not in _NOBODY_ELSE:
        return False
    first = plain_words(memory.content[:_READ_FOR_SUBJECT])[:_SUBJECT_WITHIN]
    return not first or first[0] not in INTENTS.words["possessive"] or PETS.isdisjoint(first[1:])


def is_of_caller(memory: Memory) -> bool:
    """True for "my sister", not for "Anna's sister"."""
    return memory.source in FACTS or about_caller(memory.content)


def asks_of_another(memory: Memory) -> bool:
    """Whether *memory* is a question behind a statement about another person ("Ann eats no eggs, so what can I
    bake?")."""
    if memory.source in FACTS:
        return False
    said = sentences(memory.content[:READ_FOR_STATEMENT])
    stated = (part for one in said for part in clauses(one)[:-1])
    return bool(said) and all(map(asks, said)) and not any(map(about_caller, stated))


def mentions(memory: Memory, people: frozenset[str]) -> bool:
    """Whether *memory* names any of *people*, also by a synonym."""
    there = {word.removesuffix("'s").removesuffix("'") for word in plain_words(memory.content)}
    return any(not there.isdisjoint(same_relation(word)) for word in people)


def facts_first(memories: Iterable[Memory]) -> list[Memory]:
    """Facts before messages; each of them the weightiest, then the newest first."""
    return sorted(memories, key=lambda one: (one.source not in FACTS, -weight(one), -valid_since(one)))


def weight(memory: Memory) -> float:
    """How much *memory* matters to its owner: its importance, and a little for each time it was said or used."""
    said = min(memory.provenance.confirmations, 5)
    return memory.importance + 0.03 * said + 0.01 * min(memory.access_count, 5)


def valid_since(memory: Memory) -> float:
    return (memory.valid_from or memory.created_at).timestamp()


def is_of_household(memory: Memory) -> bool:
    return about_self(memory) or is_of_family(memory)


def names_near(memory: Memory, people: frozenset[str]) -> frozenset[str]:
    """Names of *people* in *memory*: they stand beside the relation ("Schwester Klara", "Jo, my boss")."""
    content = _ADDRESSED.sub(" ", memory.content)
    words, names = plain_words(content), names_in(content)
    alike = frozenset[str]().union(*map(same_relation, people))
    places = [at for at, word in enumerate(words) if word.removesuffix("'s") in alike]
    near = {word.removesuffix("'s") for at in places for word in words[max(0, at - _NEAR) : at + _NEAR + 1]}
    return names & near


def having_most(wanted: frozenset[str], memories: Iterable[Memory]) -> list[Memory]:
    """The memories with the larger part of *wanted*; rare words count more."""
    whole = sum(map(rarity, wanted))
    return [one for one in memories if 2 * sum(map(rarity, wanted & content_stems(named_content(one)))) > whole]


def said_by_owner(memory: Memory) -> bool:
    return memory.source in FACTS or memory.role is Role.USER


def named_content(memory: Memory) -> str:
    name = memory.provenance.name
    return f"{name} {memory.content}" if name else memory.content


def states(memory: Memory, attributes: int, *, of_self: bool = False) -> bool:
    """Whether *memory* states one of *attributes* of its owner: of a message, in a sentence that is not about the
    other side and asks nothing; *of_self*: nor about other people."""
    if memory.source in FACTS:
        return True
    for sentence in sentences(memory.content[:READ_FOR_STATEMENT]):
        folded = fold(sentence)
        if of_self and subject(sentence)[0]:
            continue
        addressed = _LISTENER.search(folded) is not None or sentence.rstrip().endswith("?")
        if (not addressed or _SPEAKER.search(folded)) and ATTRIBUTES.told_by(sentence) & attributes:
            return True
    return False


def states_something(memory: Memory) -> bool:
    """Whether *memory* has a sentence of its owner's that neither asks nor is mere politeness."""
    said = sentences(memory.content[:READ_FOR_STATEMENT])
    return memory.role is Role.USER and any(
        not asks(one)
        and not asks(_LEADS.sub("", " ".join(plain_words(one))))
        and not polite(one)
        and len(content_stems(one)) >= _LEAST_STATED
        for one in said
    )


def all_names(memories: Iterable[Memory]) -> frozenset[str]:
    return frozenset[str]().union(*(names_in(one.content) for one in memories))


def span_of(memory: Memory) -> range | None:
    """The places of the messages under a summary; None for other memories."""
    span = memory.provenance.span if memory.source is Source.SUMMARY else None
    return None if span is None else range(*span)


def stands_in(memory: Memory, owner: Owner, session: str, span: range) -> bool:
    return memory.owner == owner and memory.session == session and memory.seq in span


def last_said(summary: Memory) -> float:
    until = summary.provenance.until
    return summary.updated_at.timestamp() if until is None else until


def said_within(memory: Memory, days: tuple[int, int]) -> bool:
    return days[0] <= memory.created_at.date().toordinal() <= days[1]


@memoize_by_hash(MOST_SETS)
def people_in(text: str) -> frozenset[str]:
    """Names in *text*, folded, that its words show to be people's: "my apprentice Liam", "Mrs Pym", "Raj wants"."""
    known = names_in(text)
    found: set[str] = set()
    text, at = text[:READ_FOR_STATEMENT] if known else "", 0
    while one := _SHOWN.search(text, at):
        role, whose = (fold(one[group] or "") for group in ("role", "whose"))
        titled = one["called"] and role not in INTENTS.words["named_things"]
        shown = (not role or titled or _is_role(role)) and (
            not whose or relation_words([whose]) or whose in INTENTS.words["events"]
        )
        if shown:
            found.update(plain_words(f"{one['name'] or one['acting']}{one['others'] or ''}"))
        at = one.end("acting") if one["acting"] else one.end() if shown else one.end("role")
    return known & {word.removesuffix("'s") for word in found}


def _is_role(word: str) -> bool:
    if relation_words([word]) or word in INTENTS.words["roles"]:
        return True
    return _ACTS.fullmatch(word) is not None and word not in INTENTS.words["no_roles"]
