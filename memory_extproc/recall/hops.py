"""Answers that stand several memories away, or by a name: walks over names and people whom the
caller named, and what a name or a person of the question adds to the relevance of a candidate."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from memory_extproc.index.entries import names_in, tells_of
from memory_extproc.model import Candidate, Memory, Role, Selection, Source
from memory_extproc.recall.asked import (
    FACTS,
    FIRST,
    LONGEST_STATEMENT,
    Lookup,
    QuestionReading,
    all_names,
    each_once,
    facts_first,
    having_most,
    is_of_caller,
    is_role,
    mentions,
    names_near,
    people_in,
    said_by_owner,
    states,
)
from memory_extproc.recall.fusion import FEW
from memory_extproc.recall.intent import INTENTS, LONGEST, QuestionKind, Reading
from memory_extproc.text.attributes import ATTRIBUTES, plain_words, word_set
from memory_extproc.text.intents import asks, content_stems
from memory_extproc.text.persons import about_caller, relation_over, relation_words, same_relation, steps_to
from memory_extproc.text.words import fold, rarity, sentences

MOST_CHAIN = 4  # memories on the way to an answer of several hops
_MOST_TARGETS = 2  # answers of several hops
_SHORTEST_HEAD = 4  # letters that forms of a longer word share
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
    for way in await _ways(asked):
        if not way.names:
            continue
        seen = {one.id for one in way.chain}
        left = rest - content_stems(" ".join(way.names))
        front = facts_first(one for one in await _naming(asked, way.names) if one.id not in seen)
        best = [one for one in front if _meets(asked, left, one)]
        if not best and way.sure:
            best = (having_most(left, way.chain) if left else []) or _rank_by_search(asked, front)
        best.sort(key=lambda one: (-len(rest & content_stems(one.content)), one.source not in FACTS))
        linked = [one for one in way.chain if way.sure or names_in(one.content) & all_names(best[:_MOST_TARGETS])]
        if best:
            of_people = bool(intent.people or related)
            return asked.lookup(each_once([*best[:_MOST_TARGETS], *linked[:MOST_CHAIN]]), leads=of_people)
    return None


def _rank_by_search(asked: QuestionReading, front: Sequence[Memory]) -> list[Memory]:
    """The memories in *front* that the search has first, for an answer in other words."""
    place = asked.place()
    last = _REACHED if _asked_of_chain(asked) else len(place)
    reached = [one for one in front if place.get(one.id, len(place)) <= last]
    return sorted(reached, key=lambda one: place.get(one.id, len(place)))[:_MOST_TARGETS]


@dataclass(frozen=True, slots=True)
class _Way:
    """Memories on the way over people, and the names at its end. *sure*: each step was stated in words for it."""

    chain: Sequence[Memory]
    names: frozenset[str]
    sure: bool = True


async def _ways(asked: QuestionReading) -> list[_Way]:
    """The ways over the people in the question, the surest first."""
    anchor, words = asked.intent.subject, asked.intent.words
    steps = sorted(asked.intent.people, key=_place_in(words))
    if steps and not anchor:  # "Bram's daughter"
        called = names_in(asked.wish.question[1:])
        about = await _naming(asked, called) if called else []
        known = frozenset[str]().union(*(people_in(one.content) for one in about))
        named = called & (known | {word.removesuffix("'s") for word in words if word.endswith("'s")})
        return [await _over(asked, _Way((), named), steps)]
    if not relation_words([anchor]):
        found = await _anchors(asked, anchor)
        ways = [
            _Way(
                [one],
                _named_beside(one, frozenset()) or names_in(one.content),
                sure=bool(anchor) and len(one.content) <= LONGEST_STATEMENT,
            )
            for one in found[:_MOST_DESCRIBED]
        ]
        return [await _over(asked, way, steps) for way in ways]
    steps = [one for one in steps if anchor not in same_relation(one)]
    wholes = [
        await _over(asked, await _find_relation(asked, whole), steps[1:])
        for step in steps[:1]
        for whole in relation_over(anchor, step)
    ]  # "my brother-in-law", for a sister's husband
    first = await _find_relation(asked, anchor)
    pairs = [] if first.names else steps_to(anchor)
    first = await _over(asked, first, steps)
    through = [await _over(asked, await _find_relation(asked, near), [far, *steps]) for near, far in pairs]
    return sorted([*wholes, first, *through], key=lambda one: not one.sure)


async def _over(asked: QuestionReading, way: _Way, steps: Sequence[str]) -> _Way:
    """Go on from the names of *way* over the *steps*, from relation to relation: where no memory states a relation,
    to the names beside the person's."""
    for step in steps:
        if not way.names:
            break
        word = frozenset({step})
        about = await _naming(asked, way.names)
        found = [one for one in about if mentions(one, word)]
        near = frozenset[str]().union(*(names_near(one, word) for one in found)) - way.names
        names = near or all_names(found[:1]) - way.names
        sure = way.sure and bool(names)
        if not names:
            found = [one for one in about if _named_beside(one, way.names)]
            names = frozenset[str]().union(*(_named_beside(one, way.names) for one in found))
        beside = facts_first(one for one in found if names & names_in(one.content))
        way = _Way([*way.chain, *(beside[:_MOST_TARGETS] if sure else beside)], names, sure)
    return way


def _named_beside(memory: Memory, names: frozenset[str]) -> frozenset[str]:
    """Other names in *memory* that no preposition shows to be places."""
    return names_in(_PLACED.sub(" ", memory.content)) - names


_PLACED = re.compile(
    r"\b(?:in|to|at|from|on|near|of|for|nach|aus|bei|zu|\u00e0|au|en|de|chez|a) (?:the |der |la |le |el )?"
    r"[A-Z\u00c0-\u00de][\w-]+"
    r"(?: [A-Z\u00c0-\u00de][\w-]+)*"
)


async def _naming(asked: QuestionReading, names: frozenset[str]) -> list[Memory]:
    found = await asked.naming(names)
    return [one for one in found if said_by_owner(one) and one.source is not Source.SUMMARY]


async def _find_relation(asked: QuestionReading, relation: str) -> _Way:
    """The way to the caller's *relation*, over memories that name this person."""
    found = await _anchors(asked, relation)
    near = frozenset[str]().union(*(names_near(one, frozenset({relation})) for one in found))
    return _Way(found, near or frozenset[str]().union(*(_named_beside(one, frozenset()) for one in found[:1])))


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
        there = [one.memory for one in asked.searched if said_by_owner(one.memory)]
        found = [one for one in there if any(_is_form(word, anchor) for word in word_set(one.content))]
    place = asked.place()
    best = sorted(facts_first(found), key=lambda one: place.get(one.id, len(place)))
    return [one for one in best if names_in(one.content)][:MOST_CHAIN]


def _is_form(word: str, of: str) -> bool:
    """Whether *word* is a form of the word *of*: "paintings" for "painting", but no "career" for "car"."""
    if len(of) < _SHORTEST_HEAD:
        return _singular(word).removesuffix("s") == of.removesuffix("s")
    return word.startswith(of[: max(_SHORTEST_HEAD, len(of) - 3)])


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


def _singular(word: str) -> str:
    return word.removesuffix("'s")


def _has_role(asked: QuestionReading, word: str) -> bool:
    """Whether *word* is the role of a person. Many words end like "dentist" ("shelter", "discover"), so one that no
    list has must stand in a memory of a person."""
    if not is_role(word) or word in INTENTS.words["roles"]:
        return is_role(word)
    said = (one.memory.content for one in asked.searched if said_by_owner(one.memory))
    return any(word in word_set(one) and people_in(one) for one in said)


async def find_named(asked: QuestionReading) -> Lookup | None:
    """Find memories with the name of a person in the question, and with its words or its attribute; None if the
    search passes such a memory."""
    words = frozenset(asked.intent.words)
    requesting = INTENTS.words["requesting"].intersection(asked.intent.words[:1])
    if len(asked.intent.words) > _MOST_WORDS or not (requesting or asks(asked.wish.question)):
        return None
    people = relation_words(asked.intent.words)
    role = "" if people else next((one for one in map(_singular, asked.intent.words) if _has_role(asked, one)), "")
    if people or (
        role and about_caller(asked.wish.question)
    ):  # "Bram's daughter"; "the clinic of the dentist I see"
        named = ATTRIBUTES.named_in(asked.intent.words)
        walk = replace(asked, intent=replace(asked.intent, subject=role, people=people, attributes=named))
        if (answer := await walk_to_answer(walk)) is not None:
            # Among many people a name alone may lead astray, so the ranking goes first.
            own = about_caller(asked.wish.question)
            return answer if own else replace(answer, alone=False, leads=False)
    rows = [one for one in await asked.select(Selection(names=words)) if said_by_owner(one)]
    names = frozenset[str]().union(*(people_in(one.content) for one in rows)) & words
    if not names or any(names & names_in(one.content) for one in asked.passing()):
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


# --- support -----------------------------------------------------------------------------------------
# Evidence beside the likeness of words, for questions about the caller: among hundreds of memories the score of a
# message that answers in passing ("got a parcel from Marta, my little sister") hardly stands out.

SUPPORTED = 2.0  # log-odds; chosen on the dev half of tests/quality/intents
_SUPPORTED_FIRST = 5  # candidates
_SURE = 1e-6


def raise_for_caller(
    question: str, reading: Reading, ordered: Sequence[Candidate], searched: int
) -> Sequence[Candidate]:
    """Raise candidates of a question about the caller in a store of many memories, whose gate was fitted on other
    talk. An answer over several steps needs several memories."""
    if searched < FEW or len(question) > LONGEST or not about_caller(question):
        return ordered
    if QuestionKind.HOPS in {intent.kind for intent in reading.intents} or not any(map(asks, sentences(question))):
        return ordered
    return raise_supported(ordered, question)


def raise_supported(ordered: Sequence[Candidate], question: str) -> Sequence[Candidate]:
    """Raise the relevance of the first few candidates that tell the attribute, the person or the name in the
    *question*, or have half of its words."""
    support = _Support(question)
    first = [
        msgspec.structs.replace(one, relevance=_raise_odds(one.relevance)) if support.of(one.memory) else one
        for one in ordered[:_SUPPORTED_FIRST]
    ]
    return [*first, *ordered[_SUPPORTED_FIRST:]]


def _raise_odds(relevance: float) -> float:
    odds = math.log(max(relevance, _SURE) / max(1.0 - relevance, _SURE)) + SUPPORTED
    return max(relevance, 1.0 / (1.0 + math.exp(-odds)))


class _Support:
    def __init__(self, question: str) -> None:
        words = plain_words(question)
        self._people = relation_words(words)
        attributes = ATTRIBUTES.named_in(words) | ATTRIBUTES.asked_by(" ".join(words))
        self._attributes = attributes & ~ATTRIBUTES.mask(["name"])
        self._names, self._stems = names_in(question), content_stems(question)

    def of(self, memory: Memory) -> bool:
        if memory.source is Source.SUMMARY or memory.role is Role.ASSISTANT:
            return False
        text = memory.content
        if self._names & names_in(text) or tells_of(memory) & self._attributes:
            return True
        there = {word.removesuffix("'s") for word in plain_words(text)} if self._people else set()
        if self._people and not any(there.isdisjoint(same_relation(one)) for one in self._people):
            return True
        shared = sum(map(rarity, self._stems & content_stems(text)))
        return bool(self._stems) and 2 * shared >= sum(map(rarity, self._stems))
