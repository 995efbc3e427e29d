"""Questions about the people in the caller's memories: lookups for a list of all people and for a single person."""

from __future__ import annotations

import re

from memory_extproc.index.facets import names_in
from memory_extproc.model import Memory, Selection, Source
from memory_extproc.recall.asked import Asked, Lookup
from memory_extproc.recall.intent import INTENTS
from memory_extproc.recall.memory_traits import (
    FACTS,
    READ_FOR_STATEMENT,
    all_names,
    facts_first,
    having_most,
    said_by_owner,
)
from memory_extproc.text.attributes import ATTRIBUTES, plain_words
from memory_extproc.text.intents import asks, content_stems
from memory_extproc.text.persons import relation_words
from memory_extproc.text.words import fold

_PEOPLE = ATTRIBUTES.in_groups({"people"}) & ~ATTRIBUTES.mask(["pets"])
_LIKELY = 0.5  # relevance of a candidate that names the person
_MOST_WORDS = 16  # of a question about a person
_MOST_FOUND = 3

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
_IN_FULL = re.compile(r"\b([A-Z\u00c0-\u00de][\w-]+) ([A-Z\u00c0-\u00de][\w-]+)")


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


async def list_people(asked: Asked) -> Lookup | None:
    """List a memory per person in the caller's words, then a memory per relation without a name."""
    sources = (FACTS | {Source.VERBATIM}) & asked.wish.scope.sources
    rows = await asked.select(Selection(everything=True), sources=sources)
    if asked.intent.days is not None:
        first, last = asked.intent.days
        rows = [one for one in rows if first <= one.created_at.date().toordinal() <= last]
    told = facts_first(one for one in rows if said_by_owner(one))
    related = (one for one in told if asked.tells_by_words(one) & _PEOPLE)
    seen: set[str] = set()
    found: dict[str, Memory] = {}
    for memory, people in (
        *((one, people_in(one.content)) for one in told),
        *((one, relation_words(plain_words(one.content))) for one in related),
    ):
        if people - seen:
            seen |= people | relation_words(plain_words(memory.content))
            found.setdefault(memory.id, memory)
    return asked.lookup(found.values(), alone=True, all_of_it=True)


async def find_named(asked: Asked) -> Lookup | None:
    """Find memories with the name of a person in the question, and with its words or its attribute; None if the
    search passes such a memory."""
    words = frozenset(asked.intent.words)
    if len(asked.intent.words) > _MOST_WORDS or not asks(asked.wish.question):
        return None
    rows = [one for one in await asked.select(Selection(names=words)) if said_by_owner(one)]
    names = frozenset[str]().union(*(people_in(one.content) for one in rows)) & words
    passing = (one.memory for one in asked.searched if one.relevance >= asked.wish.threshold)
    if not names or any(names & names_in(one.content) for one in passing):
        return None
    for first, last in _IN_FULL.findall(asked.wish.question):  # "Ada Lovelace" is not the caller's Ada
        if fold(first) in names and fold(last) not in all_names(rows):
            return None
    wanted = ATTRIBUTES.named_in([*words]) | ATTRIBUTES.asked_by(" ".join(asked.intent.words))
    rest = content_stems(" ".join(word for word in asked.intent.words if word not in names))
    about = [one for one in rows if names & names_in(one.content)]
    fitting = {one.id for one in having_most(rest, about)}
    fitting |= {one.memory.id for one in asked.searched if one.relevance >= _LIKELY}
    found = [one for one in about if one.id in fitting or asked.tells_anybody(one) & wanted]
    place = asked.place()
    found.sort(key=lambda one: (-len(rest & content_stems(one.content)), place.get(one.id, len(place))))
    return asked.lookup(found[:_MOST_FOUND], leads=False)
