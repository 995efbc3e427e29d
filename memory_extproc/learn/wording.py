"""The keys of subjects, attributes and values, by which facts speak of the same or say the same. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from memory_extproc.learn.extract.clauses import LISTS
from memory_extproc.learn.extract.extractor import Fact
from memory_extproc.model import Hit
from memory_extproc.text.words import ENGLISH, fold, negates, number_key, stem, tokens

# Words that name nothing by themselves: "the Hawaii trip's total budget" is the budget for Hawaii.
_NAMES_NOTHING = """
the a an of for to my our their his her user's current total overall new planned trip vacation
holiday name's is are was with on in at by about around approximately roughly exactly usd eur gbp
dollar dollars euro euros pound pounds per cent percent
"""
_BARE = frozenset(map(stem, tokens(_NAMES_NOTHING)))
TELLS_NOTHING = frozenset(
    map(stem, tokens("user works work as has have lives live likes is are being wants called named"))
)
_SYNONYMS = {stem(word): stem(meaning) for word, meaning in LISTS["synonyms"].items()}
_CURRENCIES: Mapping[str, str] = LISTS["currencies"]
_SIGNS = re.compile("[$\u20ac\u00a3\u00a5\u20b9]|[^\\W\\d_]+")
_NEGATIONS = frozenset(stem(word) for word in ENGLISH.negations)
_DENYING = _NEGATIONS | frozenset(map(stem, tokens("do does did can could is are will has have")))


def about(text: str) -> frozenset[str]:
    """The key of a subject or attribute: case, order, articles, number and near synonyms do not count."""
    found = [_SYNONYMS.get(key, key) for key in map(stem, tokens(text))]
    return frozenset(key for key in found if key not in _BARE) or frozenset(found)


DEEDS = about("leaves departs arrives starts begins ends expires takes place meets costs due")
HAVING = about("has") | about("does")  # in an attribute they name no thing
USER = about("user")


def saying(text: str) -> tuple[str, ...]:
    """The key of a value: "$10,000", "10k" and "10,000 dollars" agree; the order of words counts, for
    "tea over coffee" is not "coffee over tea", and so does every "not"."""
    keys = [stem(token) if token.isalpha() else number_key(_join_number(token)) for token in tokens(text)]
    found = tuple(_SYNONYMS.get(key, key) for key in keys)
    return tuple(key for key in found if key not in _BARE or key in _NEGATIONS) or found


def agree(one: str, other: str) -> bool:
    """Whether two values are the same. A sum without a currency agrees with the same sum in any; "$500" and
    "500 euros" are two."""
    if saying(one) != saying(other):
        return False
    here, there = currencies(one), currencies(other)
    return not here or not there or here == there


def currencies(text: str) -> frozenset[str]:
    """The currencies in *text*, by word or sign."""
    found = (_CURRENCIES.get(word) for word in _SIGNS.findall(fold(text)))
    return frozenset(one for one in found if one is not None)


def denies(one: str, other: str) -> bool:
    """Whether the texts say the same but for a "not": "eats meat" and "doesn't eat meat"."""
    return negates(one) != negates(other) and set(saying(one)) - _DENYING == set(saying(other)) - _DENYING


def repeats(text: str, other: str) -> bool:
    """Whether everything *text* says stands in *other* too, in the same order."""
    rest = iter(saying(other))
    said = saying(text)
    return bool(said) and all(word in rest for word in said)


def _join_number(token: str) -> str:
    # "10 k" is "10k"
    return fold(token).replace(" ", "")


# "my sister Mara": the only sister, unless another is named; a friend without a name may be any.
_OF_RELATION = re.compile(
    rf"user's (?P<who>(?:(?:{LISTS['which']}) )?(?:{LISTS['relations']}))(?: (?P<name>\w[\w' -]*))?"
)
_ANY_OF_MANY = re.compile(r"\b(?:friend|colleague|co-?worker|neighbou?r|cousin|aunt|uncle|nephew|niece|tenant)")


class PeopleNamed:
    """The names of the caller's people in facts: "User's sister Mara" and "User's sister" are the same person while
    no other sister is named."""

    def __init__(self, fact: Fact, others: Sequence[Hit]) -> None:
        self._names: dict[str, set[str]] = {}
        self._spoken_of = {about(one.memory.provenance.subject) for one in others}
        self._note(fact.subject, fact.attribute, fact.value)
        for one in others:
            known = one.memory.provenance
            self._note(known.subject, known.attribute, known.value)

    def _note(self, subject: str, attribute: str, value: str) -> None:
        name = value.casefold()
        owned = attribute.removesuffix("'s name") if attribute.endswith("'s name") else attribute.removesuffix(name)
        told = f"user's {owned.strip()} {name}" if subject == "user" and name and owned != attribute else subject
        found = _OF_RELATION.fullmatch(told.casefold())
        if found is not None and found["name"]:
            self._names.setdefault(found["who"], set()).add(found["name"])

    def has(self, subject: str) -> bool:
        """Whether something is known of *subject*, or whose person it is."""
        return self.key(subject) in self._spoken_of or self.key(subject) != about(subject)

    def key(self, subject: str) -> frozenset[str]:
        """The key of *subject*, as `about` makes it."""
        folded = subject.casefold()
        related = [who for who, names in self._names.items() if folded in names]
        found = _OF_RELATION.fullmatch(f"user's {related[0]} {folded}" if len(related) == 1 else folded)
        if found is None:
            return about(subject)
        only = len(self._names.get(found["who"], ())) <= 1 and not _ANY_OF_MANY.search(found["who"])
        return about(f"user's {found['who']}" if only else found[0])
