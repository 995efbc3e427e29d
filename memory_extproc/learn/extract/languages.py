"""German, French and Spanish sentences read as English clauses, so that the English rules learn from them too.

"Mein Mann heißt Karim und arbeitet bei Bosch" is "my husband is called Karim" and "my husband works for Bosch":
languages.toml has the verbs, relations and things; values stay as written. A clause in doubt, or
whose verb is not listed, says nothing here. Every pattern is bounded: the time is linear in the sentence.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from memory_extproc.learn.extract.clauses import LISTS, People, split_clauses, strip_openers, third_person
from memory_extproc.text.words import LEXICONS, fold, tokens

_NUMBERS = ("a", *LISTS["grammar"]["numbers"].split("|")[1:])
TRANSLATED = "translated "  # begins a clause that was read from another language
_NAME = r"(?-i:[A-ZÀ-Þ][a-zß-ÿ]+(?:[- ][A-ZÀ-Þ][a-zß-ÿ]+)?)"
_BLANKS = re.compile(r"\s+")
_NO_NAME = re.compile(r"\b\w{2,30}(?:ung|heit|keit|schaft|tion|tät)$")  # German nouns have capitals too
_PLURAL = re.compile(r"(?:e?[ns]|e|er)?", re.IGNORECASE)
_AGE = re.compile(r"\d{2}(?: jahre(?: alt)?| ans| años)?", re.IGNORECASE)
_NAME_AND_AGE = re.compile(r"(?:ich bin|je suis|soy) ([^\W\d]{2,20})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Verb:
    """A verb in both persons, with the words that may stand before its value."""

    i: re.Pattern[str]
    he: re.Pattern[str]
    rest: re.Pattern[str]
    says: str


class _Language:
    """The grammar of a language, as languages.toml has it."""

    def __init__(self, code: str, parts: Mapping[str, Any]) -> None:
        self.code = code
        self.small = LEXICONS[code].stop
        verbs = [*parts["verbs"]]
        verbs += [f"{forms} / (?=.*|$) / {does} {{value}}" for does, forms in parts["deeds"].items()]
        split = [[part.strip() for part in re.split(r" /|/ ", verb)] for verb in verbs]
        self.verbs = [_read_verb(parts) for parts in split]
        self.kin: dict[re.Pattern[str], str] = {
            re.compile(rf"(?:{words})", re.IGNORECASE): name for name, words in parts["kin"].items()
        }
        self.things: dict[re.Pattern[str], str] = {
            re.compile(rf"(?:{words})", re.IGNORECASE): name for name, words in parts["things"].items()
        }
        self.numbers = [
            (re.compile(rf"{word}(?=\s|$)", re.IGNORECASE), number)
            for word, number in zip(parts["numbers"].split(), _NUMBERS, strict=True)
        ]
        self.states: list[tuple[re.Pattern[str], str]] = [
            (re.compile(rf"(?:{words})\b", re.IGNORECASE), name) for name, words in parts["states"].items()
        ]
        self.he: dict[str, str] = {word: he for he, words in parts["he"].items() for word in words.split("|")}
        self.no = {
            name: re.compile(rf"\b(?:{words})(?:\s|$)", re.IGNORECASE) for name, words in parts["no"].items()
        }
        self.denies = "|".join(parts["no"].values())
        kin = "|".join(parts["kin"].values())
        mine = (
            rf"(?:{parts['mine']})\s+(?:[a-zß-ÿ]+(?:er|en|es?|a|o)\s+)?(?P<kin>{kin})(?:\s*,?\s+(?P<name>{_NAME}))?"
        )
        self.mine = re.compile(rf"\b{mine}(?![\w-])", re.IGNORECASE)
        article = "eine?n?|nen?|une?|una|un|der|die|das|le|la|el"
        self.someone = re.compile(
            rf"\b(?:{article}|{parts['mine']})\s+(?P<kin>{kin})\b(?:\s(?P<name>{_NAME}))?", re.IGNORECASE
        )
        forms = "|".join(
            sorted(
                {form for one in split for part in one[:2] for form in part.split("|") if form},
                key=len,
                reverse=True,
            )
        ).replace("!", "")
        he = rf"(?P<he>{'|'.join(self.he)}|{parts['verbless']})"
        named = rf"(?P<named>(?!(?:{self.denies})\b){_NAME})"
        subject = rf"(?:a\s+)?(?P<subject>(?P<i>{parts['i']})|{mine}|{he}|{named})(?:(?<=')|,?\s+)"
        self.clause = re.compile(
            rf"(?P<front>(?:{parts['front']})(?:\s\S+){{0,5}}?\s)??(?:{subject})?(?P<no>(?:{self.denies})\s|n(?:e\s|'))?"
            rf"(?P<verb>{forms})(?=[\s.!]|$)(?!\s(?:{parts['i']}|er|sie)\b)(?P<rest>.*)",
            re.IGNORECASE,
        )
        turned = subject.replace(r"(?:(?<=')|,?\s+)", r"(?=\s|$)")
        self.turned = (
            re.compile(
                rf"(?P<front>(?:{parts['front']})(?:\s\S+){{0,6}}?)\s(?P<verb>{forms})\s{turned}(?P<rest>.*)",
                re.IGNORECASE,
            )
            if code == "de"
            else None
        )
        noun = r"[^\W\d][\w-]{2,30}(?:\s(?:de|du|des)\s[\w-]{2,20})?"
        pronoun = r"(?:(?P<it>sie|er|es|il|elle|ça|ce|esto|eso|lo)\s)"
        whose = rf"(?:(?P<mine>{parts['mine']})\s+|(?P<the>die|der|das|le|la|el)\s+|(?P<elided>l')|)"
        about = r"(?P<about>\s(?:für|pour|para|chez)\s[\w' -]{2,40}?)?"
        things = "|".join(parts["things"].values())
        self.nominal = re.compile(
            rf"{whose}(?P<thing>{things}){about}\s(?:{parts['nominal']})\s(?P<value>.{{1,60}})", re.IGNORECASE
        )
        self.changed = [
            re.compile(rf"(?:{pronoun}|{whose}(?P<thing>{noun}){about}\s)(?:{one})", re.IGNORECASE)
            for one in parts["changed"]
        ]
        joined = rf"(?:{parts['joins']})"
        begins = rf"(?:{subject}(?:n(?:e\s|'))?|(?:{self.denies})\s)?(?:{forms})(?=[\s.!]|$)"
        begins = re.sub(r"\?P<\w+>", "?:", begins)
        relative = "" if code == "de" else rf"|\s(?={parts['verbless']}\s(?:{forms})\s)"
        self.joins = re.compile(
            rf"\s?[;:()\u2013\u2014]\s?|\s-\s|,\s(?:{joined}\s)?|\s{joined}\s(?={begins}|a\s){relative}",
            re.IGNORECASE,
        )
        self.fillers = re.compile(rf"^\s?(?:(?:{parts['fillers']})(?:\s|$)){{1,4}}", re.IGNORECASE)
        self.trailing = re.compile(rf"(?:,?\s(?:{parts['trailing']})){{1,3}}$", re.IGNORECASE)
        self.joined = re.compile(rf"^\s*{joined}\s+", re.IGNORECASE)
        self.reports = re.compile(rf"\b(?:{parts['reports']})\b", re.IGNORECASE)
        self.doubts = re.compile(rf"\b(?:{parts['doubts']})\b", re.IGNORECASE)
        self.passing = re.compile(rf"\b(?:{parts['passing']})\b", re.IGNORECASE)
        self.yours = re.compile(rf"\b(?:{parts['yours']})\b", re.IGNORECASE)
        self.idle = re.compile(rf"(?:eine?n?\s+|une?\s+|una\s+|keine?n?\s+)?(?:{parts['idle']})\b", re.IGNORECASE)


def _read_verb(parts: Sequence[str]) -> _Verb:
    i, he, rest, says = parts
    return _Verb(
        re.compile(rf"(?:{i.replace('!', '')})", re.IGNORECASE),
        re.compile(rf"(?:{he.replace('!', '')})" if he else r"(?!)", re.IGNORECASE),
        re.compile(rf"\s*{rest}\s*(?P<value>.*)" if rest else r"\s*(?P<value>.+)", re.IGNORECASE),
        says,
    )


def _read() -> list[_Language]:
    text = (files(__package__) / "languages.toml").read_text(encoding="utf-8")
    return [_Language(code, parts) for code, parts in tomllib.loads(text).items()]


_LANGUAGES = _read()


def name_people(text: str) -> str:
    """The speaker's people in *text*, which is in another language: "my boss, my sister Odette"."""
    return ", ".join(
        f"my {_relation(language, one['kin'])}{_name(one['name'])}"
        for language in _LANGUAGES
        for one in language.mine.finditer(text)
    )


def translate(sentence: str, people: People) -> list[str]:
    """The statements of *sentence*, if it is in German, French or Spanish, as English clauses."""
    for language in _spoken(sentence):
        asked = sentence.endswith("?")
        if found := list(_introduce_people(language, sentence) if asked else _clauses(language, sentence, people)):
            return list(dict.fromkeys(found))
    return []


def _spoken(sentence: str) -> list[_Language]:
    """The languages other than English that *sentence* may be in, by its small words; likeliest first."""
    words = frozenset(map(fold, tokens(sentence)))
    english = len(words & LEXICONS["en"].stop) + sentence.isascii()  # accents decide a tie
    hits = [(len(words & language.small), language) for language in _LANGUAGES]
    return [one for count, one in sorted(hits, key=lambda hit: -hit[0]) if count and count >= english]


def _introduce_people(language: _Language, sentence: str) -> Iterator[str]:
    for one in language.mine.finditer(sentence):
        if one["name"] and not (language.code == "de" and _NO_NAME.match(one["name"])):
            yield f"there is my {_relation(language, one['kin'])} {one['name']}"


def _clauses(language: _Language, sentence: str, people: People) -> Iterator[str]:
    yield from _introduce_people(language, sentence)
    told = _BLANKS.sub(" ", sentence.strip(" .!\u2026"))
    told = told if told.lower().startswith("no ") else strip_openers(told)  # denies in Spanish
    if (introduced := _NAME_AND_AGE.match(told)) is not None and _AGE.match(told[introduced.end() :].lstrip(" ,")):
        yield f"my name is {introduced[1]}"
    subject = ""
    for at, piece in enumerate(language.joins.split(told)):
        text = _BLANKS.sub(" ", language.trailing.sub("", language.joined.sub("", piece))).strip(" ,.!")
        if language.reports.search(text) or (not at and language.doubts.search(text)):
            return
        if not text or language.doubts.search(text):
            continue
        changed = _value(language, text)
        if changed or language.passing.search(text):
            yield from filter(None, (changed,))
        elif subject == "I" and _AGE.fullmatch(text):
            yield f"I'm {text[:2]}"
        else:
            subject, said = _statement(language, text, subject)
            if said:
                yield from (f"{TRANSLATED}{one}" for one in split_clauses(said, people))
        for one in language.someone.finditer(text):
            subject = f"my {_relation(language, one['kin'])}{_name(one['name'])}"


def _value(language: _Language, text: str) -> str:
    """The English clause of a *text* that gives a thing of the speaker's its value, or a new value."""
    for pattern in language.changed:
        one = pattern.fullmatch(text)
        if one is not None and (
            one["mine"] or any(map(str.isdigit, one["value"])) or _find_thing(language, one["thing"])
        ):
            formerly = one.groupdict().get("formerly")
            before = f" from {formerly}" if formerly else ""
            thing = _thing(language, one)
            return f"{f'my {thing}' if thing else 'it'} was moved{before} to {one['value']}"
    one = language.nominal.fullmatch(text)
    if one is None or not (one["mine"] or any(map(str.isdigit, one["value"]))):
        return ""
    return f"{TRANSLATED}my {_thing(language, one)} is {one['value']}"


def _thing(language: _Language, one: re.Match[str]) -> str:
    if not one["thing"]:
        return ""
    return f"{_find_thing(language, one['thing']) or one['thing'].lower()}{one['about'] or ''}"


def _find_thing(language: _Language, thing: str | None) -> str:
    return next((name for words, name in language.things.items() if words.fullmatch(thing or "")), "")


def _statement(language: _Language, text: str, before: str) -> tuple[str, str]:
    """The subject of *text* and its statement in English, empty for a verb that is not listed. A clause without a
    subject has that of the clause *before*, or is of the speaker by the form of its verb."""
    one = (language.turned.fullmatch(text) if language.turned is not None else None) or language.clause.fullmatch(
        text
    )
    if one is None:
        return before, ""
    subject = _subject(language, one)
    mine = subject == "I" or not subject
    rest, no = _split_denial(
        language, one["no"] if "no" in one.groupdict() else "", language.fillers.sub(" ", one["rest"], 1)
    )
    if (front := one["front"]) and language.turned is not None:
        rest = f"{rest} {front.strip()}"
    for verb in language.verbs:
        of_i = mine and verb.i.fullmatch(one["verb"]) is not None
        of_he = subject != "I" and verb.he.fullmatch(one["verb"]) is not None
        if not (of_i or of_he) or (matched := verb.rest.fullmatch(rest.strip())) is None:
            continue
        groups = {name: _in_english(language, (words or "").strip()) for name, words in matched.groupdict().items()}
        if language.idle.match(matched["value"]) or language.yours.search(matched["value"]):
            return subject or before, ""
        who = subject or ("I" if of_i else before or ("they" if one["verb"].endswith("n") else "he"))
        if of_i and not subject and of_he:
            who = before or "I"  # the same form in both persons
        return who, _put(who, no, verb.says.format_map(groups).strip())
    return subject or before, ""


def _subject(language: _Language, one: re.Match[str]) -> str:
    if one["i"]:
        return "I"
    if one["kin"]:
        return f"my {_relation(language, one['kin'])}{_name(one['name'])}"
    if one["he"]:
        return language.he.get(one["he"].lower(), "")  # a relative pronoun stands for the last person
    return one["named"] or ""


def _split_denial(language: _Language, before: str | None, rest: str) -> tuple[str, str]:
    """*rest* without its negation, and which it is: "not", "no longer" or none."""
    for name, words in language.no.items():
        if before and words.match(before):
            return rest, name
        if (
            language.code != "es"
            and (found := words.search(rest)) is not None
            and (before or language.code == "de" or not found.start())
        ):
            bare = re.sub(r"^\s*(?:de |d')", "", rest[: found.start()] + rest[found.end() :])
            return re.sub(r" mehr$", "", bare), name
    return rest, ""


def _put(who: str, no: str, verb: str) -> str:
    """The English clause of *who* and a *verb* phrase in the first person, with the negation *no*."""
    several = who == "they" or who.endswith(_SEVERAL)
    first, _, rest = verb.partition(" ")
    if first in {"am", "was"}:
        be = {"am": "are", "was": "were"}[first] if several else first if who == "I" else third_person(first)
        return " ".join(filter(None, (who, be, no, rest)))
    if no == "not":
        return f"{who} can't {rest}" if first == "can" else f"{who} {_DONT[several or who == 'I']} {verb}"
    said = verb if several or who == "I" else third_person(verb)
    return " ".join(filter(None, (who, no, said)))


_SEVERAL = ("children", "parents", "twins", "sons", "daughters", "siblings")
_DONT = {True: "don't", False: "doesn't"}


def _in_english(language: _Language, value: str) -> str:
    """*value* with its first words in English: "zwei Söhne" is "two sons", "Veganerin" is "vegan"."""
    for words, state in language.states:
        if (one := words.match(value)) is not None:
            return state + value[one.end() :]
    for words, number in language.numbers:
        if (one := words.match(value)) is not None:
            noun, blank, rest = value[one.end() :].strip().partition(" ")
            return f"{number} {_kin(language, noun, plural=number != 'a') or noun}{blank}{rest}"
    return value


def _kin(language: _Language, noun: str, *, plural: bool) -> str:
    """The English name of the relation *noun*, singular or plural; empty for any other noun."""
    for kind, name in language.kin.items():
        if kind.fullmatch(noun) is not None:
            return name if name in _SEVERAL or not plural else f"{name}s"
    for kind, name in language.kin.items():
        if (found := kind.match(noun)) is not None and _PLURAL.fullmatch(noun, found.end()):
            return f"{name}s"
    return ""


def _relation(language: _Language, kin: str) -> str:
    return next((name for words, name in language.kin.items() if words.fullmatch(kin)), kin)


def _name(name: str | None) -> str:
    return f" {name}" if name else ""
