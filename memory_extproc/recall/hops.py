"""Answers that stand several memories away, or by a name: walks over names and people whom the
caller named."""

from __future__ import annotations

import re

from memory_extproc.index.facets import names_in
from memory_extproc.model import Memory, Selection, Source
from memory_extproc.recall.asked import (
    FACTS,
    FIRST,
    Lookup,
    QuestionReading,
    all_names,
    each_once,
    facts_first,
    having_most,
    is_of_caller,
    mentions,
    names_near,
    people_in,
    said_by_owner,
    states,
)
from memory_extproc.recall.intent import INTENTS
from memory_extproc.text.attributes import ATTRIBUTES, plain_words
from memory_extproc.text.intents import asks, content_stems
from memory_extproc.text.persons import relation_words, same_relation
from memory_extproc.text.words import fold

MOST_CHAIN = 4  # memories on the way to an answer of several hops
_MOST_TARGETS = 2  # answers of several hops
_SHORTEST_HEAD = 4  # letters that forms of a word share
_NAMED = 0.5  # relevance of a candidate that names the person
_MOST_WORDS = 16  # of a question about a person
_MOST_NAMED = 3
_IN_FULL = re.compile(r"\b([A-Z\u00c0-\u00de][\w-]+) ([A-Z\u00c0-\u00de][\w-]+)")


async def walk_to_answer(asked: QuestionReading) -> Lookup | None:
    """From the caller's people or things in the question ("my sister's husband") to names, and on to memories with
    these names, at most two steps."""
    intent = asked.intent
    through = {word for known in (intent.subject, *intent.people) for word in (known, *same_relation(known))}
    rest = content_stems(" ".join(word for word in intent.words if word.removesuffix("'s") not in through))
    if rest <= _NAMING:  # "my children's names": no step leads further
        return None
    anchors = await _anchors(asked)
    chain, seen, fronts = list(anchors), {one.id for one in anchors}, list[list[Memory]]()
    front, targets = anchors, [one for one in having_most(rest, anchors) if rest] if len(rest) > 1 else []
    people = relation_words([intent.subject])
    for step in range(_STEPS):
        near = people or frozenset({intent.subject})
        close = frozenset[str]().union(*(names_near(one, near) for one in front)) if not step else frozenset[str]()
        names = close or all_names(front[: 1 if not step else None])
        if targets or not names:
            break
        found = await asked.naming(names)
        front = [one for one in found if one.id not in seen and said_by_owner(one)]
        seen.update(one.id for one in front)
        targets = [one for one in front if _meets(asked, rest, one)]
        front = facts_first(front)[:MOST_CHAIN]
        fronts.append(front)
        chain += [] if targets else front
    if targets:
        best = sorted(targets, key=lambda one: (-len(rest & content_stems(one.content)), one.source not in FACTS))
    elif _asked_of_chain(asked):  # no memory on the way tells it; another reading may find it
        best = []
    else:  # the answer uses other words: of each step the memory that the search has first
        place = asked.place()
        reached = [[one for one in front if place.get(one.id, _REACHED) < _REACHED] for front in fronts[::-1]]
        best = [min(front, key=lambda one: place[one.id]) for front in reached if front]
    if not best:
        return None
    best = best[:_MOST_TARGETS]
    linked = [one for one in chain if names_in(one.content) & all_names(best)]
    return asked.lookup(each_once([*best, *linked[:MOST_CHAIN]]), alone=True)


_NAMING = content_stems("name names named called")


async def _anchors(asked: QuestionReading) -> list[Memory]:
    """Memories that say which person or thing of the caller's the question begins with."""
    anchor = asked.intent.subject
    if not anchor:
        found = [one.memory for one in asked.searched[:FIRST] if said_by_owner(one.memory)]
        found = [one for one in found if one.source is not Source.SUMMARY][:_MOST_DESCRIBED]
    elif relation_words([anchor]):
        telling = await asked.select(Selection(attributes=ATTRIBUTES.named_in([anchor]) or asked.intent.attributes))
        found = [one for one in telling if mentions(one, frozenset({anchor})) and is_of_caller(one)]
    else:
        head = anchor[: max(_SHORTEST_HEAD, len(anchor) - 3)]
        there = [one.memory for one in asked.searched if said_by_owner(one.memory)]
        found = [one for one in there if any(word.startswith(head) for word in plain_words(one.content))]
    place = asked.place()
    best = sorted(facts_first(found), key=lambda one: place.get(one.id, len(place)))
    return [one for one in best if names_in(one.content)][:MOST_CHAIN]


def _meets(asked: QuestionReading, rest: frozenset[str], memory: Memory) -> bool:
    """Whether *memory* has most of the *rest* of the question, or tells the attribute that it asks for."""
    if rest and having_most(rest, [memory]):
        return True
    if INTENTS.patterns["place"].search(" ".join(asked.intent.words)) and _AT_A_PLACE.search(memory.content):
        return True
    asked_for = _asked_of_chain(asked)
    return bool(asked.tells_anybody(memory) & asked_for and states(memory, asked_for))


def _asked_of_chain(asked: QuestionReading) -> int:
    """The attributes that the question asks for at the end of the chain."""
    return asked.intent.attributes & ~ATTRIBUTES.of_others & ~ATTRIBUTES.named_in([asked.intent.subject])


_MOST_DESCRIBED = 2  # memories of a person that the question describes
_REACHED = 25  # places of the search


# "on Elm Street", "at the zoo", "in Building 7"
_AT_A_PLACE = re.compile(
    r"\b(?:in|at|on) (?:the |a |an )?[A-Z]\w+|\b(?:works?|lives?|sits?|office is|shifts) (?:in|at|on) "
)
_STEPS = 2


# --- people ------------------------------------------------------------------------------------------


async def find_named(asked: QuestionReading) -> Lookup | None:
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
    fitting |= {one.memory.id for one in asked.searched if one.relevance >= _NAMED}
    found = [one for one in about if one.id in fitting or asked.tells_anybody(one) & wanted]
    place = asked.place()
    found.sort(key=lambda one: (-len(rest & content_stems(one.content)), place.get(one.id, len(place))))
    return asked.lookup(found[:_MOST_NAMED], leads=False)
