"""When two facts speak of the same, and when they say the same of it. Pure."""

from __future__ import annotations

import re

from memory_extproc.language.words import ENGLISH, fold, number_key, stem, tokens

# Words that name nothing by themselves: "the Hawaii trip's total budget" is the budget for Hawaii.
_NAMES_NOTHING = """
the a an of for to my our their his her user's current total overall new planned trip vacation
holiday name's is are was with on in at by about around approximately roughly exactly usd eur gbp
dollar dollars euro euros pound pounds per cent percent
"""
_BARE = frozenset(map(stem, tokens(_NAMES_NOTHING)))
_SYNONYMS = {
    stem(word): stem(meaning)
    for word, meaning in (
        ("mom", "mother"), ("mum", "mother"), ("mommy", "mother"), ("dad", "father"), ("daddy", "father"),
        ("kid", "child"), ("kids", "child"), ("children", "child"), ("favorite", "favourite"), ("color", "colour"),
        ("residence", "home"), ("city", "home"), ("location", "home"), ("company", "employer"),
        ("workplace", "employer"), ("work", "employer"),
        ("profession", "occupation"), ("job", "occupation"), ("grandma", "grandmother"), ("grandpa", "grandfather"),
        ("puppy", "dog"), ("kitten", "cat"), ("spouse", "partner"), ("e-mail", "email"), ("cell", "phone"),
    )
}  # fmt: skip
_CURRENCIES = {
    "$": "usd", "usd": "usd", "dollar": "usd", "dollars": "usd", "buck": "usd", "bucks": "usd",
    "\u20ac": "eur", "eur": "eur", "euro": "eur", "euros": "eur",
    "\u00a3": "gbp", "gbp": "gbp", "pound": "gbp", "pounds": "gbp", "quid": "gbp",
    "\u00a5": "yen", "jpy": "yen", "yen": "yen",
    "cny": "yuan", "rmb": "yuan", "yuan": "yuan", "chf": "chf", "francs": "chf",
    "\u20b9": "inr", "inr": "inr", "rupees": "inr",
}  # fmt: skip
_SIGNS = re.compile("[$\u20ac\u00a3\u00a5\u20b9]|[^\\W\\d_]+")
_NEGATIONS = frozenset(stem(word) for word in ENGLISH.negations)


def about(text: str) -> frozenset[str]:
    """The key of a subject or attribute: case, order, articles, number and near synonyms do not count."""
    found = [_SYNONYMS.get(key, key) for key in map(stem, tokens(text))]
    return frozenset(key for key in found if key not in _BARE) or frozenset(found)


def saying(text: str) -> tuple[str, ...]:
    """The key of a value: "$10,000", "10k" and "10,000 dollars" agree; the order of words counts, for
    "tea over coffee" is not "coffee over tea", and so does every "not"."""
    keys = [stem(token) if token.isalpha() else number_key(_joined(token)) for token in tokens(text)]
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
    """Those that *text* names, by word or by sign."""
    found = (_CURRENCIES.get(word) for word in _SIGNS.findall(fold(text)))
    return frozenset(one for one in found if one is not None)


def repeats(text: str, other: str) -> bool:
    """Whether everything *text* says stands in *other* too, in the same order."""
    rest = iter(saying(other))
    said = saying(text)
    return bool(said) and all(word in rest for word in said)


def _joined(token: str) -> str:
    # "10 k" is "10k"
    return fold(token).replace(" ", "")
