"""Detect text that instructs an assistant instead of describing a person. Pure.

A model reads memories in later conversations. A text that tells it which product to recommend, which rule to
ignore or which rights somebody has is therefore quarantined, in any disguise. Requests about the conversation
itself (a language, a tone, a form of address) are allowed."""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Any
from urllib.parse import unquote

from memory_extproc.text import lazy_re as re
from memory_extproc.text.words import collapse_whitespace, memoize_by_hash, normalize, sentences

# --- invisible ---------------------------------------------------------------------------------------
# Unicode's default-ignorable code points (DerivedCoreProperties.txt): shown as nothing, read by models.
_IGNORABLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Scripts whose letters join, or whose conjuncts a joiner breaks up: Arabic to N'Ko, the scripts of India, Burmese,
# Khmer, Mongolian, Balinese, Javanese, and the letters of old India.
_JOINING = (
    "\u0600-\u08ff\u0900-\u0dff\u1000-\u109f\u1780-\u17b3\u17b6-\u17ff\u1820-\u18af\u1b00-\u1b7f\ua980-\ua9df\ufb50-\ufdff"
    "\ufe70-\ufefc\U00011000-\U00011fff"
)
_EMOJI = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u2460-\u24ff\u25a0-\u27bf\u2900-\u297f\u2b00-\u2bff"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
_NATIONS = "|".join(  # England, Scotland, Wales: the only flags that tag characters spell (Unicode RGI set)
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(sign)) for sign in nation) + "\U000e007f"
    for nation in ("gbeng", "gbsct", "gbwls")
)
_INVISIBLE = re.compile(
    rf"(?P<kept>{_NATIONS}"
    rf"|(?<=[{_JOINING}])[\u200c\u200d](?=[{_JOINING}])"
    rf"|(?<=[{_EMOJI}\ufe0f])\u200d(?=[{_EMOJI}])"
    rf"|(?<=[{_EMOJI}])[\ufe0e\ufe0f](?![\ufe00-\ufe0f])|(?<=[0-9#*])\ufe0f(?=\u20e3))"
    rf"|[{_IGNORABLE}]"
)


def drop_invisible(text: str) -> str:
    """*text* without invisible characters. Some shape visible text and stay: joiners between letters that join and
    between emoji, and the selectors of an emoji's form."""
    return text if text.isascii() else _INVISIBLE.sub(lambda found: found["kept"] or "", text)


def _visible(char: str) -> str:
    if char.isprintable():
        return char
    category = unicodedata.category(char)
    if category in {"Cc", "Zl", "Zp"}:
        return "\n" if char in "\n\r\u0085\u2028\u2029" else " "
    if category == "Zs":
        return " "
    # Characters that drop_invisible left, and emoji that are newer than this Python's Unicode.
    return char if char in "\u200c\u200d" or "\U000e0020" <= char <= "\U000e007f" or _is_new(char) else ""


def _is_new(char: str) -> bool:
    return "\U0001f000" <= char <= "\U0001faff"


# --- markup ------------------------------------------------------------------------------------------
_BARS = "|\u00a6\u01c0\u2223\u2502\u2503\u2758\uff5c\uffe8"
_ANGLE = "<\uff1c\ufe64"
_MARKUP = re.compile(
    rf"""(?x)
      [{_ANGLE}](?=[{_BARS}/!\uff0f{_ANGLE}]|\s?/?\s?(?:
          (?i:memory|(?:system|assistant|user|human|developer|tool|instructions?|think)\b)  # whole or not
        | [^\W\d][\w.:\u2581-]{{0,60}}\s?/?>  # <name>, </name>, <name/>
        | 0x[0-9A-Fa-f]{{2}}>  # a token for one byte
        | [^\W\d][\w.:-]{{0,60}}\s{{1,3}}[\w.:-]{{1,40}}\s?=  # <name key=
      ))
    | (?<=[{_BARS}])[>\uff1e]
    | \[(?=\s?/?\s?(?:[A-Za-z]{{0,9}}[A-Z]{{2}}[A-Z0-9_ ]{{0,40}}\]|(?:INST|SYS)\b
        |(?i:system|user|assistant|human|tool)\s?\]))
    | \[(?=[a-z]{{1,30}}_[0-9]{{1,4}}\])|(?<!\w)\[(?=/?[A-Za-z0-9]{{1,30}}_\w{{1,30}}\])
    | [\[\]](?=[a-z]?~)
    """,
)
_BROKEN = {"<": "\u2039", "\uff1c": "\u2039", "\ufe64": "\u2039", ">": "\u203a", "\uff1e": "\u203a"}
_BROKEN |= {"[": "\u27e6", "]": "\u27e7"}
# A speaker's label, or a heading with a colon, where a line or a sentence may begin; in capitals anywhere.
_LABEL = re.compile(
    r"(?P<before>(?:^|[\n\r.!?:;>\"'])\s?(?:\#{1,6}\s?)?(?:\*\*)?"
    r"(?:system|assistant|developer|human|user|tool|model)"
    r"|(?:^|[\n\r.!?:;>\"'])\s?\#{1,6}\s?(?:\*\*)?[A-Za-z][\w ]{0,40}"
    r"|\b(?-i:SYSTEM|ASSISTANT|DEVELOPER|HUMAN|USER|TOOL))(?P<bold>\*\*)?\s?:",
    re.IGNORECASE,
)
_UNEVEN_SPACES = re.compile(r"\s{2,}|[^\S ]")


def neutralize(text: str) -> str:
    """*text* on a single line, without invisible characters, its markup and role labels broken. Angle and square
    brackets of ordinary text stay."""
    plain = text.isascii() and text.isprintable()  # then every character is visible, and has a single form
    visible = text if plain else "".join(map(_visible, normalize("NFC", drop_invisible(text))))
    # Runs of white space first: a label is looked for from each place in them.
    visible = _UNEVEN_SPACES.sub(lambda run: "\n" if "\n" in run[0] else " ", visible)
    if ":" in visible:
        visible = _LABEL.sub(lambda found: f"{found['before']}{found['bold'] or ''} -", visible)
    if not _BROKEN.keys().isdisjoint(visible):
        visible = _MARKUP.sub(lambda found: _BROKEN[found[0]], visible)
    return _UNEVEN_SPACES.sub(" ", visible).strip().replace('"', "'")


class Suspicion(StrEnum):
    """Why a text is put aside: kept with it and counted, so a value is never renamed."""

    OVERRIDE = "override"  # against the assistant's own rules
    INSTRUCTION = "instruction"  # a standing order in the interest of somebody other than its author
    AUTHORITY = "authority"  # claims rights, consent or trust
    MARKER = "marker"  # pretends to be another's turn
    TOOL = "tool"  # makes the assistant act or send
    ENCODED = "encoded"  # one of the above in disguise


@dataclass(frozen=True, slots=True)
class _Rule:
    kind: Suspicion
    whole: bool
    pattern: re.Pattern[str]
    needs: re.Pattern[str] | None
    unless: re.Pattern[str] | None

    def holds(self, text: str) -> bool:
        if self.pattern.search(text) is None:
            return False
        if self.needs is not None and self.needs.search(text) is None:
            return False
        return self.unless is None or self.unless.search(text) is None


def _rules() -> tuple[_Rule, ...]:
    parsed = tomllib.loads((files(__package__) / "poison.toml").read_text(encoding="utf-8"))
    terms: dict[str, str] = parsed["terms"]

    def compile_pattern(text: str | None) -> re.Pattern[str] | None:
        if text is None:
            return None
        for name, term in terms.items():
            text = text.replace(f"{{{name}}}", term)
        return re.compile(text, re.IGNORECASE | re.VERBOSE | re.MULTILINE)

    made = []
    for entry in parsed["rule"]:
        pattern = compile_pattern(entry["pattern"])
        if pattern is None:
            raise ValueError("a rule without a pattern")
        made.append(
            _Rule(
                Suspicion(entry["kind"]),
                entry.get("whole", False),
                pattern,
                compile_pattern(entry.get("needs")),
                compile_pattern(entry.get("unless")),
            )
        )
    return tuple(made)


_RULES = _rules()
_LONGEST = 2000  # characters of a sentence read at once; a longer sentence is read in overlapping parts
_OVERLAP = 300
_REMEMBERED = 1_024  # answers: a turn's words are read when they are stored and when facts are taken from them
_LEAST_UNMASKED = 16_000  # characters in disguise that any text may have
_LONGEST_LIGATURE = 3

_TAGS = re.compile("[\U000e0020-\U000e007e]+")
_FLAG = "\U0001f3f4"
# Letters of other scripts that look like Latin letters, for words that mix scripts.
_LOOKALIKES = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u04bb"
    "\u0412\u0415\u041d\u041a\u041c\u041e\u0420\u0421\u0422\u0425\u0406\u0410"
    "\u0433\u03bf\u03b1\u03b5\u03b9\u03ba\u03bd\u03c1\u03c4\u03c5\u03c7"
    "\u0391\u0392\u0395\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a7",
    "aeopcyxijsdhBEHKMOPCTXIAroaeiknptuxABEHIKMNOPTX",
)
_MIXED = re.compile(r"(?<!\w)(?=\w*[A-Za-z])(?=\w*[\u0370-\u03ff\u0400-\u052f])\w+")
_LEET = (str.maketrans("013457@$!", "oieastasi"), str.maketrans("013457@$!", "oleastasi"))  # 1: i or l
_LEET_WORD = re.compile(r"(?<![\w.])(?=\w*[a-z])(?=\w*[013457])[a-z013457@$!]{3,20}(?![\w])", re.IGNORECASE)
_LEAST_LEET = 2  # leetspeak words in a text, before it is read as leetspeak
# A letter is none of the signs between letters: a run that can be read in many ways is read in all of them.
_SPACED = re.compile(r"(?<!\w)(?:[^\W_][ .\-_*]{1,2}){6,}[^\W_](?!\w)")
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{20,8000}={0,2}")
_PERCENT = re.compile(r"%20|(?:%[0-9A-Fa-f]{2}){3}")
_HEX = re.compile(r"(?<![0-9A-Za-z])(?:0x)?((?:[0-9a-f]{2}[ :]?){12,4000})(?![0-9a-z])", re.IGNORECASE)
_LEAST_READABLE = 0.9
_ROT13_SIGNS = re.compile(
    r"\b(?:vtaber|vafgehpgvba\w*|erpbzzraq\w*|cerivbhf|nyjnlf|flfgrz|sbetrg|qvfertneq|erzrzore|hfref?)\b",
    re.IGNORECASE,
)
_LEAST_ROT13 = 2


@memoize_by_hash(_REMEMBERED)
def suspicion(text: str) -> Suspicion | None:
    """Why *text*, a person's words or an assistant's, should not be remembered as it is; None for words of people.
    Linear in *text*."""
    return _suspicion(text, foreign=False)


@memoize_by_hash(_REMEMBERED)
def foreign_suspicion(text: str) -> Suspicion | None:
    """As `suspicion`, for words of a tool or a document, where any order to an assistant is suspicious."""
    return _suspicion(text, foreign=True)


def _suspicion(text: str, *, foreign: bool) -> Suspicion | None:
    shown = drop_invisible(_TAGS.sub("", text)).translate(_long_ligatures())
    plain = collapse_whitespace(normalize("NFKC", shown))
    sentences_read = dict.fromkeys(_parts(plain)).keys()
    if (found := _read(plain, sentences_read, foreign=foreign)) is not None:
        return found
    # A text with more in disguise than in plain words is no message; reading on would take long.
    left = len(plain) + _LEAST_UNMASKED
    for disguised in map(collapse_whitespace, _unmask_readings(text, plain)):
        fresh = dict.fromkeys(_parts(disguised)).keys() - sentences_read
        left -= sum(map(len, fresh))
        if left < 0 or _read(disguised, fresh, foreign=foreign) is not None:
            return Suspicion.ENCODED
    return None


def _read(text: str, parts: Iterable[str], *, foreign: bool) -> Suspicion | None:
    for rule in _RULES:
        if rule.whole and rule.holds(text):
            return rule.kind
    for part in parts:
        for rule in _RULES:
            if not rule.whole and rule.holds(part):
                return rule.kind
        if (kind := ORDERS.kind_of(part, foreign=foreign)) is not None:
            return Suspicion(kind)
    return None


@cache
def _long_ligatures() -> Mapping[int, str]:
    """Characters that stand for whole words of up to eighteen letters, as blanks: such words instruct no assistant,
    and a text full of them would grow to eighteen times its length."""
    signs = map(chr, chain(range(0x2000, 0x3400), range(0xFB00, 0xFE00), range(0x1F100, 0x1F300)))
    return {ord(sign): " " for sign in signs if len(unicodedata.normalize("NFKC", sign)) > _LONGEST_LIGATURE}


def _parts(text: str) -> Iterator[str]:
    for sentence in sentences(text.replace("\u2019", "'")):
        if _asks_about(sentence):
            continue
        for start in range(0, len(sentence), _LONGEST - _OVERLAP):
            yield sentence[start : start + _LONGEST]
            if start + _LONGEST >= len(sentence):
                break


_ABOUT = re.compile(
    r"(?i)^\W*(?:what|how|why|is|are|does|explain|translate|proofread|rewrite|summari[sz]e|define"
    r"|can\ (?:you|someone)\ explain)\b"
)
_QUOTED = re.compile(r"[\"\u201c\u00ab\u2018].{3,300}[\"\u201d\u00bb\u2019]")


def _asks_about(sentence: str) -> bool:
    """Whether it asks about such words, or passes them on as material: they are in quotes there."""
    return _ABOUT.match(sentence) is not None and _QUOTED.search(sentence) is not None


# --- disguises ---------------------------------------------------------------------------------------
def _unmask_readings(text: str, plain: str) -> Iterator[str]:
    """Decoded readings of *text* that differ from *plain*."""
    yield from _read_tag_characters(text)
    if _MIXED.search(plain):
        yield _MIXED.sub(lambda word: word[0].translate(_LOOKALIKES), plain)
    if len(_LEET_WORD.findall(plain)) >= _LEAST_LEET:
        yield from (_LEET_WORD.sub(lambda word: word[0].translate(letters), plain) for letters in _LEET)  # noqa: B023
    if _SPACED.search(plain):
        # Double blanks part the words of such a text, where it has them.
        yield re.sub(r"(?<=\w)[ .\-_*](?=\w\b)", "", plain)
        # In others blanks part them, and another sign their letters.
        yield re.sub(r"(?<=\b\w)[.\-_*](?=\w\b)", "", plain)
    if "&#" in plain or _PERCENT.search(plain):
        yield unquote(html.unescape(plain))
    if len(_ROT13_SIGNS.findall(plain)) >= _LEAST_ROT13:
        yield codecs.decode(plain, "rot13")
    yield from _decode_base64(plain)


def _read_tag_characters(text: str) -> Iterator[str]:
    """Text in tag characters, which are invisible to people and read by models; flags use them too."""
    for run in _TAGS.finditer(text):
        if text[run.start() - 1 : run.start()] != _FLAG:
            yield "".join(chr(ord(sign) - 0xE0000) for sign in run[0])


def _decode_base64(text: str) -> Iterator[str]:
    for run in _BASE64.finditer(text):
        packed = run[0].rstrip("=").replace("-", "+").replace("_", "/")
        try:
            yield from _readable(base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True))
        except binascii.Error:
            continue
    for run in _HEX.finditer(text):
        yield from _readable(bytes.fromhex(re.sub(r"[ :]", "", run[1])))


def _readable(decoded: bytes) -> Iterator[str]:
    text = decoded.decode("utf-8", "ignore")
    if text and sum(sign.isprintable() or sign.isspace() for sign in text) >= _LEAST_READABLE * len(decoded):
        yield text


# --- orders ----------------------------------------------------------------------------------------------
# Orders to an assistant, found by structure: each word of a sentence gets the roles that it may have in an order
# (the addressee, a deontic verb, a condition, a standing time, a third party), and sequences of roles are searched.
# The words of a new attack change; the roles hardly do. Pure; linear in the text.

_ROLES = tomllib.loads((files(__package__) / "roles.toml").read_text(encoding="utf-8"))
_ROLE_WORD = re.compile(
    r"""(?x)(?P<address>https?://\S{1,300}|[\w.+-]{1,64}@[\w.-]{1,64}|\b[\w-]{1,40}\.(?:[\w-]{1,20}\.){0,3}
      (?:com|net|org|io|example|me|xyz|shop|app|dev|co|info)\b(?:/\S{0,200})?)
    |(?P<quoted>["\u201c\u00ab][^"\u201d\u00bb\n]{1,80}["\u201d\u00bb]|\#\#\w{1,20})
    |(?P<word>[^\W\d_][\w'-]{0,30})
    |(?P<joint>[=+])
    |(?P<mark>[,;:.!?()\u2013\u2014])"""
)
_SUBJECTS = frozenset("SUuA")
_OBJECTS = frozenset(_ROLES["words"]["objects"].split())
_NO_VERB = re.compile(r"(?:s|ing|ed|ly|tion|ness|ity)\Z")
_NO_VERBS = frozenset(_ROLES["words"]["no_verbs"].split())
_LEADS = frozenset(_ROLES["words"]["leads"].split())
_MOST_WORDS = 400  # words of a sentence that are read
_MOST_OF_PHRASE = 4


@dataclass(frozen=True, slots=True)
class _Order:
    kind: str
    foreign: bool  # only in words that came from a tool or a document
    own: bool  # also if the speaker takes part: otherwise that is a wish, not an order
    named: bool  # only with a name or an address in it
    shapes: tuple[_Shape, ...]


@dataclass(frozen=True, slots=True)
class _Shape:
    """A sequence of roles. A match needs all of *all* and a role from each of *some*."""

    all: frozenset[str]
    some: tuple[frozenset[str], ...]
    sequence: re.Pattern[str]

    def is_in(self, line: str, roles: frozenset[str]) -> bool:
        return (
            self.all <= roles
            and not any(map(roles.isdisjoint, self.some))
            and self.sequence.search(line) is not None
        )


class OrderGrammar:
    """The roles of words, and the sequences of roles that make an order."""

    def __init__(self, parsed: Mapping[str, Any]) -> None:
        self._roles: dict[str, str] = {}
        self._endings: dict[str, str] = {}
        for role, words in parsed["roles"].items():
            for word in words.split():
                known = self._endings if word.endswith("*") else self._roles
                plain = word.rstrip("*").replace("_", " ")
                known[plain] = known.get(plain, "") + role
        self._beginnings = tuple(self._endings)
        self._starts = frozenset(phrase.partition(" ")[0] for phrase in self._roles if " " in phrase)
        self._orders = [
            _Order(
                order["kind"],
                order.get("of", "anybody") == "foreign",
                order.get("own", False),
                order.get("named", False),
                tuple(map(_shape, order["shapes"])),
            )
            for order in parsed["order"]
        ]

    def kind_of(self, sentence: str, *, foreign: bool) -> str | None:
        """The kind of order that *sentence* gives; None: none."""
        if not foreign and sentence.rstrip().endswith("?"):
            return None
        roles = self._read(sentence)
        line = "".join(f"{one} " for one in roles)
        there = frozenset(line)
        own, named = "S" in there, not there.isdisjoint("WL")
        for order in self._orders:
            if (order.foreign and not foreign) or (own and not order.own and not foreign):
                continue
            if (named or not order.named) and any(shape.is_in(line, there) for shape in order.shapes):
                return order.kind
        return None

    def _read(self, sentence: str) -> list[str]:
        """The roles of each word, in order; "o" for a word that has none."""
        found = [(match.lastgroup or "", match[0]) for match in _words(sentence)]
        roles: list[str] = []
        starts = True  # an order may begin here
        at = 0
        while at < len(found):
            kind, text = found[at]
            size = 1
            if kind == "address":
                roles.append("L")
            elif kind == "quoted":
                roles.append("Q")
            elif kind == "joint":
                roles.append("J")
            elif kind == "mark":
                roles.append(",")
                starts = True
            else:
                word = text.lower()
                size, has = self._roles_of(word, found, at)
                if text[0].isupper() and at and found[at - 1][1] not in ".!?" and not has:
                    has = "W"
                verb = not _SUBJECTS & set(has) and set(has) & set("PXEVKZp")
                following = found[at + size][1].lower() if at + size < len(found) else ""
                unknown = starts and not has and following in _OBJECTS and _is_base(word)
                roles.append(has + ("I" if starts and verb else "") + ("v" if unknown else "") or "o")
                # The subject of the deontic verb is the addressee, or it is no order to them.
                to_them = len(roles) > 1 and bool(set(roles[-2]) & set("YA"))
                starts = word in _LEADS or "T" in has or ("M" in has and to_them)
            at += size
        return roles

    def _roles_of(self, word: str, found: list[tuple[str, str]], at: int) -> tuple[int, str]:
        """How many words it takes, and their roles."""
        has = self._roles.get(word, "")
        if not has and word.startswith(self._beginnings):
            has = next(roles for start, roles in self._endings.items() if word.startswith(start))
        if word in self._starts:
            for size in range(_MOST_OF_PHRASE, 1, -1):
                phrase = " ".join(text.lower() for _, text in found[at : at + size])
                if phrase in self._roles:
                    return size, self._roles[phrase]
        return 1, has


def _is_base(word: str) -> bool:
    return word not in _NO_VERBS and (_NO_VERB.search(word) is None or word.endswith("ss"))


def _words(sentence: str) -> Iterator[re.Match[str]]:
    for number, match in enumerate(_ROLE_WORD.finditer(sentence)):
        if number >= _MOST_WORDS:
            return
        yield match


_PART = re.compile(r"\{(?P<all>\w+)\}|\[(?P<any>[\w,]+)\]|~(?P<gap>\d+)|(?P<start>\^)|(?P<one>[A-Za-z,])")


def _shape(shape: str) -> _Shape:
    made, every, some = [], set[str](), list[frozenset[str]]()
    for part in _PART.finditer(shape):
        if part["all"]:
            every.update(part["all"])
            made.append("".join(rf"(?=\S{{0,16}}{role})" for role in part["all"]) + r"\S{1,16} ")
        elif part["any"]:
            some.append(frozenset(part["any"]))
            made.append(rf"\S{{0,16}}[{part['any']}]\S{{0,16}} ")
        elif part["gap"]:
            made.append(rf"(?:\S{{1,16}} ){{0,{part['gap']}}}")
        elif part["start"]:
            made.append("^")
        else:
            every.add(part["one"])
            made.append(rf"\S{{0,16}}{part['one']}\S{{0,16}} ")
    return _Shape(frozenset(every), tuple(some), re.compile(r"(?<!\S)" + "".join(made)))


ORDERS = OrderGrammar(_ROLES)
