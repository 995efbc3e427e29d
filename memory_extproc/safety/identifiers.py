"""What names or reaches a person: mail addresses, phones, national ids, street addresses. Pure.

Phones are found by Google's libphonenumber, national ids by python-stdnum's checksums. Both are imported when they
are first needed, which is where a policy other than `keep` is configured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum

from memory_extproc.language.sentences import sentence_ends
from memory_extproc.safety.spans import Masked, Span, masked

MAIL, PHONE, NATIONAL_ID, ADDRESS = "mail address", "phone number", "national id", "street address"


class Identifiers(StrEnum):
    """What becomes of them in what is stored."""

    KEEP = "keep"
    MASK = "mask"  # a word for the kind stands in their place
    DROP = "drop"  # the sentence that has one is not stored


_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,6}(?![\w-])")
_ENOUGH_DIGITS = re.compile(r"\d(?:[^\w\n]{0,3}\d){5}")
# A number without a country is a phone where a word says so.
_CALLS = re.compile(
    r"(?i)\b(?:phone|mobile|cell|tel|telephone|call|text|whatsapp|fax|reach|ring|handy\w*|telefon\w*|rufnummer|ruf|anrufen"
    r"|t\u00e9l\w*|portable|appelle\w*|tel\u00e9fono|m\u00f3vil|celular|ll\u00e1mame)\b|\u7535\u8bdd|\u624b\u673a"
)
_LOCAL = re.compile(r"(?<![\w.,/-])\(?0?\d{2,5}\)?(?:[ \-/.\u00a0]{0,2}\d{2,5}){1,5}(?![\w]|[.,]\d)")
_LEAST_LOCAL, _MOST_LOCAL, _NEAR = 7, 13, 40
_ADDRESS = re.compile(
    r"""(?x)\b(?:\d{1,5}[a-zA-Z]?,?\ (?:[A-Z][\w'.-]{1,30}\ ){1,4}
        (?:Street|St|Avenue|Ave|Road|Rd|Lane|Ln|Drive|Dr|Boulevard|Blvd|Court|Ct|Place|Pl|Square|Terrace|Crescent)\b\.?
      |(?:[A-Z\u00c4\u00d6\u00dc][\w.-]{1,30}\ ?){1,3}
        (?:stra\u00dfe|strasse|str\.|weg|platz|allee|gasse|ring|Stra\u00dfe|Weg|Platz|Allee)
        \ \d{1,4}\ ?[a-zA-Z]?\b
      |\d{1,4},?\ (?:bis\ |ter\ )?(?:rue|avenue|boulevard|place|chemin|all\u00e9e)\ [\w'\u00e0-\u00ff -]{3,40}
      |(?:Calle|C/|Avenida|Plaza|Via|Rua)\ [\w'\u00e0-\u00ff ]{3,40},?\ \d{1,4}\b)"""
)
# As written, and python-stdnum's module that knows the checksum. *sure*: the checksum and shape alone tell.
_NATIONAL: tuple[tuple[re.Pattern[str], str, bool], ...] = (
    (re.compile(r"(?<![\w-])\d{3}-\d{2}-\d{4}(?![\w-])"), "us.ssn", True),
    (re.compile(r"(?<!\w)[12]\ ?\d{2}\ ?\d{2}\ ?\d[\dAB]\ ?\d{3}\ ?\d{3}\ ?\d{2}(?!\w)"), "fr.nir", True),
    (re.compile(r"(?<!\w)\d{8}-?[A-Z](?!\w)"), "es.dni", True),
    (re.compile(r"(?<!\w)[XYZ]-?\d{7}-?[A-Z](?!\w)"), "es.nie", True),
    (re.compile(r"(?<!\w)[A-Z]{6}\d{2}[A-Z]\d{2}[A-Z]\d{3}[A-Z](?!\w)"), "it.codicefiscale", True),
    (re.compile(r"(?<![\w.])\d{3}\.\d{3}\.\d{3}-\d{2}(?!\w)"), "br.cpf", True),
    (re.compile(r"(?<!\w)\d{17}[\dX](?!\w)"), "cn.ric", True),
    (re.compile(r"(?<!\w)\d{4}\ \d{4}\ \d{4}(?!\w)"), "in_.aadhaar", False),
    (re.compile(r"(?<!\w)\d{2}\ ?\d{3}\ ?\d{3}\ ?\d{3}(?!\w)"), "de.idnr", False),
    (re.compile(r"(?<!\w)\d{9}(?!\w)"), "nl.bsn", False),
    (re.compile(r"(?<!\w)\d{11}(?!\w)"), "pl.pesel", False),
)
_IDENTIFIES = re.compile(
    r"(?i)\b(?:ssn|social security|national id|id number|identity|tax id|steuer-?id\w*|idnr|bsn|pesel|aadhaar"
    r"|nino|ausweis\w*)\b"
)


def without_identifiers(text: str, policy: Identifiers) -> Masked:
    """*text* as *policy* wants it stored."""
    if policy is Identifiers.KEEP:
        return Masked(text)
    found = sorted(identifiers(text))
    if policy is Identifiers.MASK or not found:
        return masked(text, found)
    return masked(text, _sentences_with(text, found), drop=True)


def identifiers(text: str) -> Iterator[Span]:
    """Where they stand, in no particular order; spans may overlap."""
    if "@" in text:
        for match in _MAIL.finditer(text):
            yield Span(match.start(), match.end(), MAIL)
    for match in _ADDRESS.finditer(text):
        yield Span(match.start(), match.end(), ADDRESS)
    if _ENOUGH_DIGITS.search(text) is not None:
        yield from _national(text)
        yield from _phones(text)


def _national(text: str) -> Iterator[Span]:
    from stdnum import get_cc_module  # noqa: PLC0415 - see above

    for shape, name, sure in _NATIONAL:
        country, _, kind = name.partition(".")
        for match in shape.finditer(text):
            told = sure or _IDENTIFIES.search(text, max(0, match.start() - _NEAR), match.start())
            module = get_cc_module(country.rstrip("_"), kind)
            if told and module is not None and module.is_valid(match[0]):
                yield Span(match.start(), match.end(), NATIONAL_ID)


def _phones(text: str) -> Iterator[Span]:
    from phonenumbers import PhoneNumberMatcher  # noqa: PLC0415 - see above

    for found in PhoneNumberMatcher(text, None):
        yield Span(found.start, found.end, PHONE)
    for match in _LOCAL.finditer(text):
        digits = sum(sign.isdigit() for sign in match[0])
        near = _CALLS.search(text, max(0, match.start() - _NEAR), match.start())
        if near and _LEAST_LOCAL <= digits <= _MOST_LOCAL:
            yield Span(match.start(), match.end(), PHONE)


def _sentences_with(text: str, found: list[Span]) -> Iterator[Span]:
    start = 0
    for end in (*sentence_ends(text), len(text)):
        inside = next((one for one in found if start <= one.start < end), None)
        if inside is not None:
            yield Span(start, end, inside.kind)
        start = end
