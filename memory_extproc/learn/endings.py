"""Facts ended by a new one: a thing or person is lost or replaced, or an abstention is over. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from memory_extproc.learn.extract.clauses import LISTS
from memory_extproc.learn.extract.extractor import Fact
from memory_extproc.learn.wording import HAVING, USER, PeopleNamed, about, saying
from memory_extproc.model import Memory
from memory_extproc.text.words import negates, stem, tokens

# Statements that hold only while a thing or person is there: "drives a Toyota", "is married to Paul".
_HOLDS = re.compile(
    r"(?:User(?:'s [a-z][\w' -]{1,40}?)?|[A-Z]\w{1,30})(?: currently)? (?:has|owns|drives|rides|rents|uses|keeps"
    r"|leases|shares|sails|wears|lives with|takes|drinks|eats|smokes|vapes|plays|sings|learns|studies|teaches|does"
    r"|attends|practi[cs]es|runs|swims|cycles|goes to|works (?:for|at)|volunteers|coaches|belongs to|trains|rows"
    r"|dances|writes for|is (?:married to|engaged to|dating|learning|studying|training for|preparing for|in|on"
    r"|eating|drinking|taking|playing|a member of))\b"
)
_DRIVEN = re.compile(r"User (?:drives|rides|sails) ")
_VEHICLES = frozenset(map(stem, tokens("car van truck bike motorbike motorcycle scooter boat horse camper")))
_PARTNERS = frozenset(map(stem, tokens("wife husband partner spouse fiance fiancee girlfriend boyfriend gf bf")))
_IS_NAMED = re.compile(
    rf"User's (?P<who>(?:(?:{LISTS['which']}) )?(?:{LISTS['relations']}))(?: is)? (?P<name>[A-Z][\w'-]+)\b"
)
_PAST = re.compile(r"\b(?:was|were|died|born|had|used to|(?!named|called|married|retired)[a-z]+ed)\b")


def find_ended(fact: Fact, known: Sequence[Memory], people: PeopleNamed) -> list[Memory]:
    """The *known* memories of the thing or person that the caller has lost. The name and the past of somebody
    dead stay. Empty where several may be meant."""
    if (lead := fact.lost.partition(" "))[0] in {"no", "other"}:
        same = [one for one in known if people.key(one.provenance.subject) == people.key(fact.subject)]
        return _find_over(lead[2], same) if lead[0] == "no" else _find_of_kind(fact, same)
    named = [_IS_NAMED.match(memory.content) for memory in known]
    names = {stem(one["name"]): about(one["who"]) for one in named if one is not None}
    words = about(fact.lost) - about("going doing") or about(fact.lost)
    lost = {one for word in words for one in names.get(word, {word})}  # "Lisa" is "the girlfriend"
    if fact.known_only:
        lost = set(words)
    if "partner" in lost:
        related = [*names.values(), *(about(memory.provenance.subject) for memory in known)]
        lost = {one for who in related for one in who & _PARTNERS} or lost
    others = {name for name, who in names.items() if lost <= who and name not in words}
    by_name = bool(words & names.keys())
    if not lost or (len(others) > 1 and not by_name):
        return []
    known = [memory for memory in known if not (by_name and others & set(saying(memory.content)))]
    gone = [memory for memory in known if _is_about_lost(memory, lost, fact, people)]
    if not gone and lost & _VEHICLES:
        driven = [memory for memory in known if _DRIVEN.match(memory.content)]
        gone = driven if len(driven) == 1 else []
    died = fact.value == "died"
    return [one for one in gone if not one.provenance.ends and not (died and _outlives(one))]


def _is_about_lost(memory: Memory, lost: AbstractSet[str], fact: Fact, people: PeopleNamed) -> bool:
    known = memory.provenance
    same, holds = people.key(known.subject) == people.key(fact.subject), _HOLDS.match(memory.content) is not None
    if fact.known_only:
        held = holds or (not fact.ends and memory.content.startswith("User's "))
        return same and held and lost <= set(saying(memory.content))
    if lost <= about(known.subject) or (same and lost <= about(known.attribute) - HAVING - USER - {stem("name")}):
        return holds or memory.content.startswith("User's ")
    if same and lost & _PARTNERS and known.attribute == "marital state":
        return True
    return same and holds and lost <= set(saying(memory.content))


_DIET = re.compile(rf"\bis (?:an? )?(?:\w+ )?({'|'.join(LISTS['abstains'])})\b")
_ABSTAINED = {diet: frozenset(map(stem, tokens(foods))) for diet, foods in LISTS["abstains"].items()}
_TAKING = about("eat drink have take use do wear play run drive")
_KINDS = [re.compile(rf"\b(?:{things})\b", re.IGNORECASE) for things in LISTS["kinds"].values()]


def _find_over(again: str, known: Sequence[Memory]) -> list[Memory]:
    """The endings, refusals and diets among *known* against doing *again*."""
    words = about(again) - _TAKING or about(again)

    def is_over(memory: Memory) -> bool:
        diet = _DIET.search(memory.content)
        abstains = memory.provenance.ends or negates(memory.content)
        return words <= set(saying(memory.content)) if abstains else bool(diet and words & _ABSTAINED[diet[1]])

    return [memory for memory in known if is_over(memory)]


def _find_of_kind(fact: Fact, known: Sequence[Memory]) -> list[Memory]:
    """The only other thing among *known* of the kind of the new one in *fact*."""
    kind = next((one for one in _KINDS if one.search(fact.value)), None)
    held = [one for one in known if _HOLDS.match(one.content) or one.content.startswith("User's ")]
    found = [one for one in held if kind is not None and kind.search(one.provenance.value)]
    return found if len(found) == 1 else []


def _outlives(memory: Memory) -> bool:
    """Whether *memory* tells a name or the past."""
    named = _IS_NAMED.match(memory.content)
    whole = named is not None and memory.content == named[0]
    return whole or _PAST.search(memory.content) is not None or "birth" in memory.provenance.attribute
