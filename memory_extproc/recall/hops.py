"""Answers that stand several memories away, or by a name: walks over names and people whom the
caller named."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

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
from memory_extproc.text.persons import relation_over, relation_words, same_relation, steps_to
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
    these names."""
    intent = asked.intent
    related = relation_words([intent.subject, *sorted(intent.people, key=_place_in(intent.words))])
    through = {word for known in (intent.subject, *related) for word in (known, *same_relation(known))}
    rest = content_stems(" ".join(word for word in intent.words if word.removesuffix("'s") not in through))
    if rest <= _NAMING:  # "my children's names": no step leads further
        return None
    chain, names = await _follow(asked)
    if not names:
        return None
    seen = {one.id for one in chain}
    rest -= content_stems(" ".join(names))
    front = facts_first(one for one in await _naming(asked, names) if one.id not in seen)
    best = [one for one in front if _meets(asked, rest, one)] or (having_most(rest, chain) if rest else [])
    best.sort(key=lambda one: (-len(rest & content_stems(one.content)), one.source not in FACTS))
    if not best:  # the answer uses other words: what the search has first
        place = asked.place()
        last = _REACHED if _asked_of_chain(asked) else len(place)
        reached = [one for one in front if place.get(one.id, len(place)) <= last]
        best = sorted(reached, key=lambda one: place.get(one.id, len(place)))
    return asked.lookup(each_once([*best[:_MOST_TARGETS], *chain[:MOST_CHAIN]]), alone=True) if best else None


async def _follow(asked: QuestionReading) -> tuple[list[Memory], frozenset[str]]:
    """The memories on the way over the people in the question, and the names at its end; no names where a step is
    not known."""
    anchor, words = asked.intent.subject, asked.intent.words
    steps = sorted(asked.intent.people, key=_place_in(words))
    named = names_in(asked.wish.question[1:]) if steps and not anchor else frozenset[str]()
    if named:  # "Bram's daughter"
        return await _over(asked, [], named, steps)
    if not relation_words([anchor]):
        chain = await _anchors(asked, anchor)
        return await _over(asked, chain, all_names(chain[:1]), steps)
    steps = [one for one in steps if anchor not in same_relation(one)]
    for whole in (one for step in steps[:1] for one in relation_over(anchor, step)):
        chain, names = await _introduced(asked, whole)
        if names:  # "my brother-in-law", for a sister's husband
            return await _over(asked, chain, names, steps[1:])
    chain, names = await _introduced(asked, anchor)
    for near, far in [] if names else steps_to(anchor):
        found, named = await _introduced(asked, near)
        chain, names = await _over(asked, found, named, [far])
        if names:
            break
    return await _over(asked, chain, names, steps)


async def _over(
    asked: QuestionReading, chain: Sequence[Memory], names: frozenset[str], steps: Sequence[str]
) -> tuple[list[Memory], frozenset[str]]:
    """*chain* and *names* after the *steps*: from a person to the one who is a relation of theirs."""
    way = list(chain)
    for step in steps:
        word = frozenset({step})
        found = [one for one in await _naming(asked, names) if mentions(one, word)] if names else []
        near = frozenset[str]().union(*(names_near(one, word) for one in found)) - names
        names = near or all_names(found[:1]) - names
        way += facts_first(one for one in found if names & names_in(one.content))[:_MOST_TARGETS]
    return way, names


async def _naming(asked: QuestionReading, names: frozenset[str]) -> list[Memory]:
    found = await asked.naming(names)
    return [one for one in found if said_by_owner(one) and one.source is not Source.SUMMARY]


async def _introduced(asked: QuestionReading, relation: str) -> tuple[list[Memory], frozenset[str]]:
    """The memories that say who is the caller's *relation*, and the names in them."""
    found = await _anchors(asked, relation)
    near = frozenset[str]().union(*(names_near(one, frozenset({relation})) for one in found))
    return found, near or all_names(found[:1])


def _place_in(words: Sequence[str]) -> Callable[[str], int]:
    places = {word.removesuffix("'s"): at for at, word in reversed(list(enumerate(words)))}
    return lambda word: places.get(word, len(places))


_NAMING = content_stems("name names named called")


async def _anchors(asked: QuestionReading, anchor: str) -> list[Memory]:
    """Memories that say which person or thing of the caller's the question begins with."""
    if not anchor:
        found = [one.memory for one in asked.searched[:FIRST] if said_by_owner(one.memory)]
        found = [one for one in found if one.source is not Source.SUMMARY][:_MOST_DESCRIBED]
    elif relation_words([anchor]):
        telling = await asked.select(Selection(attributes=ATTRIBUTES.named_in([anchor]) or ATTRIBUTES.every))
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


_REACHED = 40  # places of the search
_MOST_DESCRIBED = 2  # memories of a person that the question describes


# "on Elm Street", "at the zoo", "in Building 7"
_AT_A_PLACE = re.compile(
    r"\b(?:in|at|on) (?:the |a |an )?[A-Z]\w+|\b(?:works?|lives?|sits?|office is|shifts) (?:in|at|on) "
)


# --- people ------------------------------------------------------------------------------------------


async def find_named(asked: QuestionReading) -> Lookup | None:
    """Find memories with the name of a person in the question, and with its words or its attribute; None if the
    search passes such a memory."""
    words = frozenset(asked.intent.words)
    requesting = INTENTS.words["requesting"].intersection(asked.intent.words[:1])
    if len(asked.intent.words) > _MOST_WORDS or not (requesting or asks(asked.wish.question)):
        return None
    if people := relation_words(asked.intent.words):  # "Bram's daughter"
        named = ATTRIBUTES.named_in(asked.intent.words)
        walk = replace(asked, intent=replace(asked.intent, people=people, attributes=named))
        if (found := await walk_to_answer(walk)) is not None:
            return found
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
