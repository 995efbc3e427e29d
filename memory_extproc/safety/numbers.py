"""Numbers with a checksum: payment cards and bank accounts. Pure; linear in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memory_extproc.safety.spans import Span
from memory_extproc.safety.words import WORDS

CARD, IBAN = "card number", "bank account"

# One sign may part digits: blanks (no-break ones too), dots, hyphens, dashes.
_PART = r"[ \u00a0\u202f.\u2010-\u2015-]"
# As printed on cards, or in one piece: a row of short numbers is no card.
_CARD = re.compile(
    rf"(?<![\w.,+#-])(?:\d{{4}}(?:{_PART}{{1,3}}\d{{4}}){{2,3}}{_PART}{{1,3}}\d{{1,4}}"
    rf"|\d{{4}}(?:{_PART}{{1,3}}\d{{4}}){{3}}"
    rf"|\d{{4}}{_PART}{{1,3}}\d{{6}}{_PART}{{1,3}}\d{{4,5}}|\d{{12,19}})(?![\w-]|[.,]\d)"
)
_PAYS = re.compile(
    r"(?i)\b(?:card|visa|master\s?card|amex|american express|discover|diners|maestro|credit|debit|cc|cvv|cvc"
    r"|kredit\w*|kartennummer|karte|carte|tarjeta|carta|cart\u00e3o)\b|\u5361\u53f7|\u4fe1\u7528\u5361"
)
_NEAR = 60  # characters before a number in which a word about cards says what it is

# ISO/IEC 7812: first digits as a range of equally long prefixes, and the lengths in use. *sure*: common enough for
# the number alone to tell; of the others a word nearby must.
_ISSUERS: tuple[tuple[int, int, frozenset[int], bool], ...] = (
    (4, 4, frozenset({16, 19}), True),
    (4, 4, frozenset({13}), False),
    (51, 55, frozenset({16}), True),
    (2221, 2720, frozenset({16}), True),
    (34, 34, frozenset({15}), True),
    (37, 37, frozenset({15}), True),
    (6011, 6011, frozenset({16, 19}), True),
    (644, 649, frozenset({16, 19}), True),
    (65, 65, frozenset({16, 19}), True),
    (300, 305, frozenset({14}), True),
    (309, 309, frozenset({14}), True),
    (36, 36, frozenset({14}), True),
    (38, 39, frozenset({14}), True),
    (3528, 3589, frozenset({16, 17, 18, 19}), True),
    (62, 62, frozenset({16, 17, 18, 19}), True),
    (81, 81, frozenset({16, 17, 18, 19}), False),
    (2200, 2204, frozenset({16, 17, 18, 19}), False),
    (50, 50, frozenset(range(12, 20)), False),
    (56, 58, frozenset(range(12, 20)), False),
    (60, 61, frozenset(range(12, 20)), False),
    (63, 64, frozenset(range(12, 20)), False),
    (66, 69, frozenset(range(12, 20)), False),
    (9792, 9792, frozenset({16}), False),
)

# ISO 13616: how long an account number of each country is.
_IBAN_LENGTHS = dict(pair.split(":") for pair in WORDS["accounts"]["lengths"].split())
_IBAN_STARTS = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}\d{2}(?=[ \u00a0.\-]?[A-Za-z0-9])")
_IBAN_PARTS = frozenset(" \u00a0\u202f-.")


def numbers(text: str) -> Iterator[Span]:
    """Card numbers of a known issuer with a valid check digit, and IBANs with valid check digits."""
    yield from _cards(text)
    yield from _ibans(text)


def _cards(text: str) -> Iterator[Span]:
    for match in _CARD.finditer(text):
        digits = "".join(str(int(sign)) for sign in match[0] if sign.isdecimal())
        if len(set(digits)) == 1 or not luhn(digits):
            continue
        known = _issued(digits)
        if known or (known is False and _PAYS.search(text, max(0, match.start() - _NEAR), match.start())):
            yield Span(match.start(), match.end(), CARD)


def _issued(digits: str) -> bool | None:
    """Whether an issuer is known for it: True surely, False if it is a card at all, None: no card."""
    found: bool | None = None
    for first, last, lengths, sure in _ISSUERS:
        if len(digits) in lengths and first <= int(digits[: len(str(first))]) <= last:
            if sure:
                return True
            found = False
    return found


def luhn(digits: str) -> bool:
    """ISO/IEC 7812-1, annex B."""
    total = 0
    for place, digit in enumerate(map(int, reversed(digits))):
        doubled = digit * 2 if place % 2 else digit
        total += doubled - 9 if doubled > 9 else doubled  # noqa: PLR2004 - the sum of two digits
    return total % 10 == 0


def _ibans(text: str) -> Iterator[Span]:
    for match in _IBAN_STARTS.finditer(text):
        length = _IBAN_LENGTHS.get(match[0][:2].upper())
        end = None if length is None else _iban_end(text, match.start(), int(length))
        if end is not None:
            yield Span(match.start(), end, IBAN)


def _iban_end(text: str, start: int, length: int) -> int | None:
    """Where the account number of *length* signs that begins at *start* ends; None where there is none."""
    signs: list[str] = []
    at = start
    parted = False
    while at < len(text) and len(signs) < length:
        sign = text[at]
        if sign.isascii() and sign.isalnum():
            signs.append(sign.upper())
            parted = False
        elif sign in _IBAN_PARTS and not parted:
            parted = True
        else:
            return None
        at += 1
    goes_on = at < len(text) and text[at].isascii() and text[at].isalnum()
    return None if len(signs) < length or goes_on or not iban("".join(signs)) else at


def iban(signs: str) -> bool:
    """ISO 7064, MOD 97-10, as ISO 13616 uses it; letters in upper case."""
    return int("".join(str(int(sign, 36)) for sign in signs[4:] + signs[:4])) % 97 == 1
