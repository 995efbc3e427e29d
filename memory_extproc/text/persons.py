"""People in texts: first person, subjects, relations, corrections and kinds of values."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from importlib.resources import files
from typing import Any

from memory_extproc.text import lazy_re as re
from memory_extproc.text.intents import only_asks
from memory_extproc.text.words import (
    LEXICONS,
    MONTHS,
    MOST_REMEMBERED,
    MOST_SETS,
    content_words,
    fold,
    memoize_by_hash,
    stems,
    strip_accents,
)

_LONGEST_READ = 4000  # characters
# A regular expression per language; configuration can repeat, shorten or extend them.
DEFAULT_PATTERNS: tuple[str, ...] = tuple(lexicon.person for lexicon in LEXICONS.values())


def compile_patterns(patterns: Iterable[str]) -> re.Pattern[str]:
    """Join *patterns* into a pattern without regard to case. re.error names a bad pattern."""
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE)


_DEFAULT = compile_patterns(DEFAULT_PATTERNS)


def about_caller(text: str, patterns: re.Pattern[str] | None = None) -> bool:
    """Whether *text* speaks in the first person ("What's my budget?"). Typographic apostrophes count as
    straight apostrophes. Errs towards yes: it decides whether to search, and a needless search costs little. Only
    the beginning and the end of a long text are read: people put their own words around pasted text."""
    if patterns is None:
        return _about_caller(text)
    if len(text) > 2 * _LONGEST_READ:
        text = f"{text[:_LONGEST_READ]}\n{text[-_LONGEST_READ:]}"
    return patterns.search(fold(text)) is not None


@memoize_by_hash(MOST_REMEMBERED)
def _about_caller(text: str) -> bool:
    return about_caller(text, _DEFAULT)


# --- others ------------------------------------------------------------------------------------------
# Tells texts about other people from texts about the subject of a question. Pure.
#
# "My sister has just moved to Toronto" shares its words with "Where do I live?" and does not answer it. Only
# the beginning of a text is read, where a sentence names its subject; a person further on ("we went there with my
# sister") is not taken for the subject.

_LONGEST_HEARD = 200  # characters of a text: its first sentence names its subject
_LONGEST_ASKED = 1_000
NAMED_SHARE = 0.5  # certainty of a name at the beginning; "my sister" is surer


def _parse_phrases() -> Mapping[str, Any]:
    return tomllib.loads((files(__package__) / "others.toml").read_text(encoding="utf-8"))


def _any_of(words: set[str]) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


def _patterns() -> tuple[
    re.Pattern[str], Mapping[str, frozenset[str]], frozenset[str], tuple[tuple[str, str, str], ...]
]:
    parsed = dict(_parse_phrases())
    through = tuple(
        (whole, first, second) for whole, first, second in map(str.split, parsed.pop("through")["steps"])
    )
    same: dict[str, set[str]] = {}
    for group in parsed.pop("same")["groups"]:
        for word in fold(group).split():
            same.setdefault(word, set()).update(fold(group).split())
    people = {word for language in parsed.values() for word in fold(language["people"]).split()}
    before = {word for language in parsed.values() for word in fold(language["before"]).split()}
    lead = r"(?:(?:and|but|so|oh|btw|also|ok|well|yes|now|yesterday|today|und|aber|et|mais|y|pero)[\s,]+){0,2}"
    subject = re.compile(
        rf"{lead}(?:(?:one\s+of\s+)?(?:{_any_of(before)})\s+(?:[\w-]+\s+){{0,2}}?)?({_any_of(people)})(?:'s?)?(?![\w-])"
    )
    plain = frozenset(strip_accents(word) for word in people)
    return subject, {word: frozenset(group) for word, group in same.items()}, plain, through


_SUBJECT, _SAME, _RELATIONS, _THROUGH = _patterns()
_NO_RELATIONS = frozenset(
    {"people", "guy", "guys", "somebody", "someone", "everybody", "everyone", "chef", "frau", "mann"}
)
_NAMED = re.compile(
    r"([A-Z][a-z\u00e0-\u00ff]+)\s+(?:from|next\s+door|upstairs|has|is|was|got|plays|bought|calls|wants|lives|runs)\b"
)
_ENDS = re.compile(r"[.!?;]\s")
_WORD = re.compile(r"\w(?:[\w-]*\w)?")
_NOBODY = frozenset({"user", "it", "this", "that", "there", "he", "she", "what", "who", "where", "how", "which"})


@memoize_by_hash(MOST_REMEMBERED)
def subject(text: str) -> tuple[str, float]:
    """The subject of the first sentence of *text*, folded, with its certainty in (0, 1]; an empty word and 0 for
    the speaker and for unnamed people."""
    first = _ENDS.split(text[:_LONGEST_HEARD].lstrip(), maxsplit=1)[0]
    matched = _SUBJECT.match(fold(first))
    if matched is not None:
        return matched[1], 1.0
    named = _NAMED.match(first)
    if named is not None and (name := fold(named[1])) not in _NOBODY:
        return name, NAMED_SHARE
    return "", 0.0


def mentioned_words(question: str) -> frozenset[str]:
    """The words of *question* that may mention people."""
    folded = fold(question[:_LONGEST_ASKED]).replace("'s", " ")
    return frozenset(_WORD.findall(folded))


def relation_words(words: Iterable[str]) -> frozenset[str]:
    """The words in *words*, folded and without accents, that name a relation: "sister", "manager"."""
    bare = (word.removesuffix("'s").removesuffix("'") for word in words)
    bare = (word if word in _RELATIONS else word.removesuffix("s") for word in bare)  # "meines Bruders"
    return frozenset(word for word in bare if word in _RELATIONS and word not in _NO_RELATIONS)


def same_relation(word: str) -> frozenset[str]:
    """*word* and its synonyms for the same person."""
    return _SAME.get(word, frozenset()) | {word}


def steps_to(relation: str) -> list[tuple[str, str]]:
    """The pairs of relations that lead to *relation*: to a brother-in-law over a sister and her husband."""
    return [(first, second) for whole, first, second in _THROUGH if whole == relation]


def relation_over(first: str, second: str) -> frozenset[str]:
    """The relations that *second* of *first* has to the speaker: a sister's husband is a brother-in-law."""
    near, far = same_relation(first), same_relation(second)
    return frozenset(whole for whole, one, other in _THROUGH if one in near and other in far)


def of_another(asked: frozenset[str], text: str) -> float:
    """Compare the subject of *text* with the words *asked* of a question. In (0, 1]: another person; in [-1, 0): a
    person that the question mentions; 0: the speaker."""
    who, sure = subject(text)
    if not who:
        return 0.0
    return -sure if asked & _SAME.get(who, frozenset({who})) or who in asked else sure


# --- corrections -------------------------------------------------------------------------------------
# Corrections of earlier statements: "no, I meant 12,000", "actually we moved it to June". Pure.

_SHARED = 2  # the subject of the shorter has at most so many times the words that both have
_SHARED_AT_ONCE = 4  # the same, of the next messages: "lecture hall 3" is not the hall with a deposit
_LONGEST = 400  # characters; a longer text tells a story
_LEAD = (
    r"^(?:(?:oh|ah|wait|sorry|oops|hm+|um|well|ugh|and|but|ok|okay|hang\s+on|hold\s+on|my\s+bad|btw|by\s+the\s+way|no"
    r"|nope|ach|moment|entschuldigung|nein|doch|pardon|d\u00e9sol\u00e9e?|non|perd\u00f3n|perdona|ay)[\s,.!:;\u2013-]+)*"
)
# Said so, a text is a correction and nothing else.
_PLAINLY = re.compile(
    _LEAD
    + r"""(?x:
        i\s+meant?\b | i\s+(?:misspoke|was\s+wrong|mixed\s+(?:it|that|them)\s+up)\b | (?:scratch|strike)\s+that\b
      | correction\b | (?:let\s+me\s+|to\s+)correct\b | make\s+(?:that|it)\s+\S | change\s+of\s+plans?\b
      | that\s+was\s+(?:wrong|a\s+typo)\b | typo\b
      | ich\s+meinte?\b | korrektur\b | das\s+war\s+falsch\b | streich\s+das\b
      | je\s+voulais\s+dire\b | c'\u00e9tait\s+faux\b
      | quer\u00eda\s+decir\b | quise\s+decir\b | correcci\u00f3n\b | me\s+equivoqu\u00e9\b
      | \u6211\u662f\u8bf4 | \u6211\u8bf4\u9519\u4e86 | \u66f4\u6b63 | \u8bf4\u9519\u4e86 | \u9593\u9055\u3048
      | \u8a02\u6b63
    )"""
)
_BEGINS_NO = re.compile(
    r"""(?x)^(?:(?:oh|wait|sorry|oops|hm+|well)[\s,.!]+)*(?:no|nope|nein|non|wait|oops|sorry)[\s,.!:\u2013-]+
    (?!(?:idea|thanks?|problem|worries|way|need|one|doubt|matter|rush|chance|danke|merci|gracias)\b)\S"""
)
# Words of texts that may renew an earlier statement.
_ANEW = re.compile(
    r"""(?x)\b(?: actually | instead | (?<!would\ )(?<!'d\ )rather | no\s+longer | not\s+any\s*more | cancell?ed
      | (?:is|are|'s|'re)\s+now
      | now\s+(?:at|on|in|is|it's)
      | (?:moved|changed|pushed|postponed|rescheduled|shifted|switched|raised|lowered|updated|brought)\b
          (?:\s+\S+){0,4}?\s+(?:to|till|until|back|forward)
      | not\s+[\d$\u20ac\u00a3]\S* | doch | eigentlich | stattdessen | jetzt | verschoben | finalement
      | plut\u00f4t | d\u00e9sormais | report\u00e9e? | en\s+realidad | ahora | mejor | cambiado | aplazado )(?!\w)
      | \u5176\u5b9e | \u6539\u5230 | \u6539\u6210 | \u3084\u3063\u3071\u308a | \u5909\u66f4"""
)
# Names nothing by itself: "actually it's 12,000", "we moved it to June".
_LEANS = re.compile(
    r"""(?x)^(?:(?:and|but|so|ok|well|oh|actually|eigentlich|finalement)[\s,]+)*
        (?:it|that|this|they|es|das|c'est|ahora)\b
      | \b(?:moved|changed|pushed|postponed|rescheduled|shifted|switched|raised|lowered|updated|brought)
        \s+(?:it|that|them)\b
      | \b(?:es|das)\b.*\bverschoben\b | \u6539\u5230 | \u6539\u6210"""
)
_NOW_AT = re.compile(
    r"(?x)\b(?:it's|it\s+is|that's|they're|es\s+sind|das\s+sind|c'est|ahora\s+(?:es|son))\s+(?:now\s+)?(?:up\s+to\s+|down\s+to\s+)?"
    r"[\d$\u20ac\u00a3]\S*(?:\s+\w+)?\s+(?:now|jetzt|maintenant|instead)\b"
    r"|\b(?:it's|it\s+is|that's|they're)\s+now\s+(?:up\s+to\s+|down\s+to\s+)?[\d$\u20ac\u00a3]"
)
# An addition corrects nothing.
_ADDS = re.compile(r"\b(?:also|another|too|as\s+well|besides|auch|aussi|tambi\u00e9n)\b|\u4e5f|\u3082\u3046\u4e00")
_DAY = re.compile(
    rf"(?i)\b(?:(?:{MONTHS})\b\.?"
    r"|(?:mon|tues?|wednes|thurs?|fri|satur|sun)day|montag|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag"
    r"|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|lunes|martes|mi\u00e9rcoles|jueves|viernes|s\u00e1bado"
    r"|domingo|today|tomorrow|tonight|morgen|heute|demain|ma\u00f1ana|spring|summer|autumn|winter|week|month|year)\b"
    r"|\d{4}-\d\d-\d\d|\d{1,2}[:.]\d\d\b|\d{1,2}\s?[ap]m\b|\d{1,2}(?:st|nd|rd|th)\b|\d[\u6708\u65e5\u53f7\u70b9\u6642]"
)
_NUMBER = re.compile(
    r"(?i)\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|hundred|thousand)\b"
    r"|[\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d\u5341\u767e\u5343\u4e07]"
)
_NAME = re.compile(r"(?<=[a-z,:'] )[A-Z\u00c0-\u00de]\w+")
_MARKERS = frozenset(stems(
    "actually meant mean scratch correction instead rather moved changed sorry wait now make wrong typo plan "
    "eigentlich meinte stattdessen jetzt finalement voulais dire realidad ahora"
))  # fmt: skip


class ValueKind(StrEnum):
    """The kind of a value in a text."""

    DAY = "day"
    NUMBER = "number"
    NAME = "name"


@memoize_by_hash(MOST_REMEMBERED)
def kinds(text: str) -> frozenset[ValueKind]:
    beginning = text[:_LONGEST]
    found = {ValueKind.DAY} if _DAY.search(beginning) else set()
    if _NUMBER.search(_DAY.sub(" ", beginning)):
        found.add(ValueKind.NUMBER)
    if _NAME.search(_DAY.sub(" ", beginning)):
        found.add(ValueKind.NAME)
    return frozenset(found)


@memoize_by_hash(MOST_REMEMBERED)
def may_correct(text: str) -> bool:
    """Whether *text* has words that renew an earlier statement: a necessary condition of a correction."""
    if len(text) > _LONGEST:
        return False
    folded = fold(text)
    plainly = _PLAINLY.match(folded) is not None
    anew = _ANEW.search(folded) is not None or _NOW_AT.search(folded) is not None
    if not plainly and _BEGINS_NO.match(folded) is None and not anew:
        return False
    if not content_words(text):
        return False
    return plainly or (_ADDS.search(folded) is None and not only_asks(text))


_IS_NOW = re.compile(
    r"(?:^|[,.;:] )(?:(?:and|so|the|my|our) ){0,2}(?P<what>[\w'-]+(?: [\w'-]+){0,2}?)(?: is| are|'s) now "
)
_NEAR = 24  # characters behind "now" that have the day


def corrects(new: str, old: str, *, at_once: bool) -> bool:
    """Whether *new*, said later by the same person, renews the statement *old*. *at_once*: within a few messages of
    *old*, so that it need not name its subject. In doubt not."""
    if not may_correct(new):
        return False
    shared = _subjects(new) & _subjects(old)
    alike = kinds(new) & kinds(old)
    folded = fold(new)
    # "The garage rang, it's 410 now": a thing named in both, and a value that nothing else is said to have.
    if ValueKind.NUMBER in alike and shared and _NOW_AT.search(folded) is not None:
        return True
    # "Change of plan, Orkney is now 5-14 June, and my flatmate moves out" names the thing with the day.
    if ValueKind.DAY in alike and (moved := _IS_NOW.search(folded)) and _DAY.search(folded[moved.end() :][:_NEAR]):
        named = _subjects(moved["what"])
        if named and named <= _subjects(old):
            return True
    if not at_once:  # of two that only have a word in common, neither takes the other back
        return bool(alike) and _SHARED * len(shared) >= min(len(_subjects(new)), len(_subjects(old))) > 0
    if _PLAINLY.match(folded):
        return bool(alike or shared) or not kinds(old)
    # A renewed statement names no other subject: "my sister moved to Toronto" corrects nothing.
    leans = _BEGINS_NO.match(folded) is not None or _LEANS.search(folded) is not None
    same = _SHARED_AT_ONCE * len(shared) >= min(len(_subjects(new)), len(_subjects(old))) > 0
    return bool(alike and (same or leans))


# A choice that is still open, from its first option on: "thinking sage green or maybe a warm white".
_OPEN_CHOICE = re.compile(
    r"""(?x)(?:\b(?: thinking(?:\s+(?:of|about))? | considering | torn\s+between
        | (?:can't|cannot|can\s+not)\s+decide
        | not\s+sure\s+(?:about|whether|if|which) | undecided | leaning\s+towards? | choosing\s+between | either
        | whether | \u00fcberleg\w* | entweder | schwank\w* | j'h\u00e9site | h\u00e9site | soit | dudo | dudando
        )\b[^.!?]* | (?<!\S)(?:\S{1,30}\s{1,2}){1,4}(?:or|oder|ou|o)\s[^.!?]*)"""
)
_CHOSEN = re.compile(
    r"""(?x)\b(?: went\s+(?:with|for) | in\s+the\s+end | after\s+all | ended\s+up | settled\s+(?:on|for)
        | decided\s+(?:on|to|for|against) | chose | picked | opted\s+for | going\s+with
        | we'll\s+take | booked | bought
        | am\s+ende | schlie\u00dflich | entschieden | ist\s+es\s+geworden | genommen
        | finalement | (?:ai|avons)\s+(?:choisi|pris)
        | al\s+final | eleg\u00ed | elegimos | me\s+qued\u00e9\s+con | nos\s+quedamos\s+con )\b"""
)


@memoize_by_hash(MOST_REMEMBERED)
def may_choose(text: str) -> bool:
    """Whether *text* has words that settle an open choice."""
    return len(text) <= _LONGEST and _CHOSEN.search(fold(text)) is not None and not only_asks(text)


def chooses(new: str, old: str) -> bool:
    """Whether *new*, said later by the same person, names an option of a choice that *old* leaves open."""
    return may_choose(new) and not _subjects(new).isdisjoint(_options(old))


@memoize_by_hash(MOST_SETS)
def _options(text: str) -> frozenset[str]:
    """Stems of the options between which *text* is undecided."""
    found = _OPEN_CHOICE.findall(fold(text[:_LONGEST]))
    return frozenset().union(*map(_subjects, found))


@memoize_by_hash(MOST_SETS)
def _subjects(text: str) -> frozenset[str]:
    """Possible subjects of *text*: its stems without numbers, days and words of correction."""
    bare = _DAY.sub(" ", text[:_LONGEST])
    return frozenset(one for one in stems(bare) - _MARKERS if not any(sign.isdigit() for sign in one))


# --- kind asked --------------------------------------------------------------------------------------
# The kind of value that answers a question, by the first words of the question. Pure.

_ASKS = r"^\W*(?:(?:and|so|but|hey|hi|also|und|et|y)[\s,]+)?"
# "Who" is missing: the name of a place would pass for the name of a person.
_KINDS = (
    (ValueKind.NAME, re.compile(_ASKS + r"(?:where|wo|woher|wohin|o\u00f9|d\u00f3nde)\b")),
    (ValueKind.DAY, re.compile(_ASKS + r"(?:when|what\s+(?:day|date|time|month|year)|wann|quand|cu\u00e1ndo)\b")),
    (ValueKind.NUMBER, re.compile(_ASKS + r"(?:how\s+(?:many|much|old)|wie\s?viele?|combien|cu\u00e1nt[oa]s?)\b")),
)
_READ = 200  # characters


def expected_answer_type(question: str) -> ValueKind | None:
    folded = fold(question[:_READ])
    return next((kind for kind, asks in _KINDS if asks.match(folded)), None)
