"""Words that instruct an assistant instead of telling about a person: not for memory to repeat. Pure.

A memory is read by a model in a later conversation. What tells it whom to recommend, what to ignore or what
somebody may do is therefore put aside, in whatever disguise it comes. What people ask for themselves (a language,
a tone, how they want to be called) is no such thing.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from itertools import chain
from urllib.parse import unquote

from memory_extproc.safety.neutralize import drop_invisible
from memory_extproc.safety.orders import ORDERS
from memory_extproc.text.sentences import collapse_whitespace, sentences
from memory_extproc.text.words import memoize_by_hash, normalize


class Suspicion(StrEnum):
    """Why a text is put aside: kept with it and counted, so a value is never renamed."""

    OVERRIDE = "override"  # against the assistant's own rules
    INSTRUCTION = "instruction"  # a standing order that serves others than who spoke
    AUTHORITY = "authority"  # claims rights, consent or trust
    MARKER = "marker"  # pretends to be another's turn
    TOOL = "tool"  # makes the assistant act or send
    ENCODED = "encoded"  # one of these in disguise


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

    def compiled(text: str | None) -> re.Pattern[str] | None:
        if text is None:
            return None
        for name, term in terms.items():
            text = text.replace(f"{{{name}}}", term)
        return re.compile(text, re.IGNORECASE | re.VERBOSE | re.MULTILINE)

    made = []
    for entry in parsed["rule"]:
        pattern = compiled(entry["pattern"])
        if pattern is None:
            raise ValueError("a rule without a pattern")
        made.append(
            _Rule(
                Suspicion(entry["kind"]),
                entry.get("whole", False),
                pattern,
                compiled(entry.get("needs")),
                compiled(entry.get("unless")),
            )
        )
    return tuple(made)


_RULES = _rules()
_LONGEST = 2000  # characters of a sentence read at once; a longer one is read in overlapping parts
_OVERLAP = 300
_REMEMBERED = 1_024  # answers: a turn's words are read when they are stored and when facts are taken from them
_LEAST_UNMASKED = 16_000  # characters in disguise that any text may have
_LONGEST_LIGATURE = 3

_TAGS = re.compile("[\U000e0020-\U000e007e]+")
_FLAG = "\U0001f3f4"
# Letters of other scripts that look like Latin ones, for words that mix scripts.
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
_LEAST_LEET = 2  # such words in a text, before it is read as one of them
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
    """As `suspicion`, for words that come from a tool or a document, which have no business with an assistant: an
    order to one is suspicious there, whomever it serves."""
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
    """Whether it asks what such words mean, or hands them over to be worked on: they stand in quotes there."""
    return _ABOUT.match(sentence) is not None and _QUOTED.search(sentence) is not None


# --- disguises ---------------------------------------------------------------------------------------
def _unmask_readings(text: str, plain: str) -> Iterator[str]:
    """What *text* may say to who knows how to read it. Only readings that differ from *plain*."""
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
    """What stands in tag characters, which no one sees and a model reads; flags are written with them too."""
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
