"""Detect secrets in text: keys, tokens, passwords, card and account numbers. Pure.

There are three kinds of evidence: a shape that only secrets have (a provider's prefix, a PEM block, a valid
check digit), words that announce a secret ("my password is ..."), and both in weak form together (a word such as
"key" and a random-looking value). Ordinary numbers, UUIDs and hashes have none of them. Every pattern is
bounded, so the time is linear in the text."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, NamedTuple

from memory_extproc.text import lazy_re as re

# --- spans -------------------------------------------------------------------------------------------
# Stretches of text that are not kept as they are.


class SecretSpan(NamedTuple):
    """*text* from *start* to *end*, half open, is a *kind* ("card number")."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True)
class Masked:
    """A text with its secrets replaced, and the secrets."""

    text: str = field(repr=False)
    kinds: tuple[str, ...] = ()
    found: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # (original text, its kind)


def mark(kind: str) -> str:
    return f"[masked: {kind}]"


def disjoint(spans: Iterable[SecretSpan]) -> list[SecretSpan]:
    """*spans* by position, without overlaps: the earlier of two stays; of two with the same start, the longer."""
    kept: list[SecretSpan] = []
    for span in sorted(spans, key=lambda one: (one.start, -one.end)):
        if not kept or span.start >= kept[-1].end:
            kept.append(span)
        elif span.end > kept[-1].end:
            # They share an end: both are hidden, under the name of the first.
            kept[-1] = SecretSpan(kept[-1].start, span.end, kept[-1].kind)
    return kept


def mask_spans(text: str, spans: Iterable[SecretSpan], *, drop: bool = False) -> Masked:
    """*text* with each of *spans* replaced by its mark, or by nothing. All else stays as it is."""
    parts: list[str] = []
    found: list[tuple[str, str]] = []
    at = 0
    for start, end, kind in disjoint(spans):
        parts += (text[at:start], "" if drop else mark(kind))
        found.append((text[start:end], kind))
        at = end
    if not found:
        return Masked(text)
    parts.append(text[at:])
    return Masked("".join(parts), tuple(kind for _, kind in found), tuple(found))


# --- words -------------------------------------------------------------------------------------------
# The word lists of this package.

WORDS: Mapping[str, Any] = tomllib.loads((files(__package__) / "words.toml").read_text(encoding="utf-8"))


# --- secrets -----------------------------------------------------------------------------------------

KEY, TOKEN, PASSWORD, PRIVATE_KEY, CODE = "api key", "token", "password", "private key", "code"

# Keys in their providers' formats. There is no trailing (?![\w-]): a longer key is a secret all the same.
_PREFIXED = re.compile(
    r"""(?x)(?<![A-Za-z0-9])(?:
        (?P<key>sk-(?:[A-Za-z0-9]{1,12}-){0,3}[A-Za-z0-9_-]{16,300}
          |(?:AKIA|ASIA|AROA|AIDA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])
          |AIza[A-Za-z0-9_-]{30,60}|GOCSPX-[A-Za-z0-9_-]{20,60}
          |(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{8,300}|whsec_[A-Za-z0-9+/=]{16,200}
          |SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,64}|key-[0-9a-f]{32}
          |gsk_[A-Za-z0-9]{20,200}|xai-[A-Za-z0-9]{20,200}|pplx-[A-Za-z0-9]{20,200}|r8_[A-Za-z0-9]{20,100}
          |sq0(?:atp|csp)-[A-Za-z0-9_-]{20,80}|AC[0-9a-f]{32}(?![0-9a-f])|AGE-SECRET-KEY-1[A-Z0-9]{40,80})
      | (?P<token>gh[pousr]_[A-Za-z0-9]{20,300}|github_pat_[A-Za-z0-9_]{20,300}
          |gl(?:pat|ptt|dt|rt|cbt)-[\w-]{16,100}
          |xox[abeoprs]-[A-Za-z0-9-]{10,300}|xapp-[A-Za-z0-9-]{10,300}|ya29\.[A-Za-z0-9_-]{16,500}
          |npm_[A-Za-z0-9]{30,100}|pypi-[A-Za-z0-9_-]{30,300}|hf_[A-Za-z0-9]{20,100}
          |do[oprt]_v1_[0-9a-f]{40,80}|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{20,80}|dckr_pat_[A-Za-z0-9_-]{20,80}
          |hv[sbr]\.[A-Za-z0-9_-]{20,300}|lin_api_[A-Za-z0-9]{20,80}|secret_[A-Za-z0-9]{40,80}|ntn_[A-Za-z0-9]{40,80}
          |EAA[A-Za-z0-9]{60,300}|\d{8,10}:AA[A-Za-z0-9_-]{30,40}
          |eyJ[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]{6,8000}(?:\.[A-Za-z0-9_-]{0,4000})?)
    )"""
)
_WEBHOOK = re.compile(
    r"hooks\.slack\.com/(?:services|workflows)/(?P<slack>[A-Za-z0-9/_-]{16,120})"
    r"|discord(?:app)?\.com/api/webhooks/(?P<discord>\d{5,25}/[\w-]{30,120})"
)
_PEM_BEGINS = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_PEM_ENDS = re.compile(r"-----END (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_IN_URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s:/@\"'<>]{0,100}:(?P<value>[^\s/@\"'<>]{1,200})@")
_AUTHORIZATION = re.compile(r"(?i)\b(?:bearer|basic)[ \t]{1,4}(?P<value>[A-Za-z0-9+/=._~-]{16,4000})")

_IS = (
    r"""["'`*_)\]]{0,4}\s{0,3}(?:=>|:=|==?|:|\uff1a|\uff1d|\u662f|\u4e3a|\bis\b|\bwas\b|\blautet\b|\bist\b|\best\b"""
    r"""|\bes\b|\b\u00e8\b|\b\u00e9\b|(?:[- ]{1,2}>|\u2192))\s{0,3}"""
    r"""(?:now\s|set\sto\s|still\s|just\s|always\s|jetzt\s)?"""
)
_PASSWORDS = re.compile(
    r"""(?ix)(?<![a-z])(?<!masked:\ )(?:
      pass[ _-]?(?:word|phrase|code|wd)s?|passwd|psswd|pwd|pw|pass|passwort|kennwort|zugangscode
      |mot\ de\ passe|mdp|contrase\u00f1a|contrasena|clave|senha|parola(?:\ d'ordine)?|wachtwoord|has\u0142o
      |\u043f\u0430\u0440\u043e\u043b\u044c|\u5bc6\u7801|\u53e3\u4ee4|\u30d1\u30b9\u30ef\u30fc\u30c9
      |(?P<phrase>(?:seed|recovery|backup|mnemonic)[ -]phrase|mnemonic|passphrase)
      )(?:\ (?:for|of|to|on|f\u00fcr|pour|para|de|del|von|at)\ [^\n:=?!.,;]{1,40}?)?"""
    + _IS
)
_CODES = re.compile(
    r"""(?ix)(?<![a-z])(?:pin|pin[ -](?:code|number)|cvv2?|cvc2?|csc|otp|tan|security\ code|verification\ code
      |one[ -]time\ (?:code|password)|2fa\ code|geheimzahl|code\ pin|c\u00f3digo\ pin)
      (?:\ (?:for|of|to|on|f\u00fcr|pour|para)\ [^\n:=?!.,;]{1,40}?)?"""
    + _IS
    + r"(?P<value>\d{3,8})(?![\w]|[.,]\d)"
)
_KEYS = re.compile(
    r"""(?ix)(?<!masked:\ )(?:
        (?P<strong>(?:api|access|secret|private|account|auth\w{0,12}|client|signing|encryption|license|master
        |storage|shared)[ _.-]{0,2}(?:access[ _-]?)?(?:key|token|secret)s?(?:[ _-]?id)?|credentials?
        |(?:refresh|session|bearer|id|bot|personal\ access|deploy|webhook)[ _-]{0,2}(?:token|secret)s?|geheimnis
        |token|secret|schl\u00fcssel|jeton|cl\u00e9\ api|clave\ api|\u5bc6\u94a5|\u4ee4\u724c)
      |(?P<weak>(?<![a-z])(?<!masked:\ api\ )(?<!masked:\ private\ )key)
      )(?:\ (?:for|of|to|on|f\u00fcr|pour|para)\ [^\n:=?!.,;]{1,40}?)?"""
    + _IS
    + r"""["'`*<(\[]{0,3}(?P<value>[A-Za-z0-9+/=_.~!@\#$%^&*-]{8,4000})"""
)
# Words in the place of a password that are none: "the password is wrong", "password: required".
_NO_PASSWORD = frozenset(WORDS["passwords"]["none"].split())
_QUOTES = dict(zip("\"'`\u201c\u201e\u00ab\u2018", "\"'`\u201d\u201c\u00bb\u2019", strict=True))
_WORD = re.compile(r"[^\s\"`\u201c\u201d\u201e\u00ab\u00bb\u3002\uff0c,;]{1,200}")
_NEXT_WORD = re.compile(r"[ \t]([^\s\"`\u201c\u201d,;]{1,100})")
_JOINS = frozenset(WORDS["passwords"]["joins"].split())
_PHRASE_WORD = re.compile(r"[ \t,\d.)]{0,5}[^\W\d_]{2,20}")
_MOST_WORDS, _MOST_OF_PHRASE = 5, 24
_LONGEST_QUOTED = 200
_EXACT = re.compile(r"[0-9]|(?<=.)[A-Z]|[^\w\s]")
_UUID = re.compile(r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}$")
_HEX = re.compile(r"(?i)(?:0x|sha\d{0,3}:|md5:)?[0-9a-f]+$")
_LEAST_OF_KEY, _LEAST_BITS = 12, 2.8  # characters; Shannon bits for each of them
_LEAST_OF_WEAK, _LEAST_BITS_OF_WEAK = 16, 3.4
_MARK = "[masked:"
# A pattern is tried only if one of its prefixes is in the text; the search costs a hundredth of the pattern.
_PREFIXES = tuple(WORDS["keys"]["prefixes"].split())
_OF_PASSWORDS = tuple(WORDS["passwords"]["signs"])
_OF_KEYS = tuple(WORDS["keys"]["signs"])
_OF_CODES = tuple(WORDS["codes"]["signs"])


def mask_secrets(text: str) -> Masked:
    """*text* with every secret replaced by the name of its kind. Idempotent."""
    return mask_spans(text, find_secrets(text))


def find_secrets(text: str) -> list[SecretSpan]:
    """Where secrets stand, in no particular order; spans may overlap."""
    said = text.lower()
    found = [*numbers(text), *_shapes(text)]
    if any(word in said for word in _OF_PASSWORDS):
        found += _named_passwords(text)
    if any(word in said for word in _OF_KEYS):
        found += _named_keys(text)
    if any(word in said for word in _OF_CODES):
        found += (SecretSpan(*match.span("value"), CODE) for match in _CODES.finditer(text))
    if "bearer" in said or "basic" in said:
        found += (
            SecretSpan(*match.span("value"), TOKEN)
            for match in _AUTHORIZATION.finditer(text)
            if _is_mixed(match["value"])
        )
    return found


def _shapes(text: str) -> Iterator[SecretSpan]:
    if any(prefix in text for prefix in _PREFIXES):
        for match in _PREFIXED.finditer(text):
            if _is_mixed(match[0]):
                yield SecretSpan(match.start(), match.end(), KEY if match["key"] else TOKEN)
    if "hooks.slack" in text or "api/webhooks" in text:
        for match in _WEBHOOK.finditer(text):
            yield SecretSpan(*match.span("slack" if match["slack"] else "discord"), TOKEN)
    at = 0
    while begins := _PEM_BEGINS.search(text, at):
        ends = _PEM_ENDS.search(text, begins.end())
        at = ends.end() if ends else len(text)
        yield SecretSpan(begins.start(), at, PRIVATE_KEY)
    if "://" in text and "@" in text:
        for match in _IN_URL.finditer(text):
            yield SecretSpan(*match.span("value"), PASSWORD)


def _is_mixed(value: str) -> bool:
    """Whether it is more than words with hyphens: "sk-learn-and-other-libraries" is no key."""
    return any(sign.isdigit() for sign in value) or (value != value.lower() and value != value.upper())


def _named_passwords(text: str) -> Iterator[SecretSpan]:
    for match in _PASSWORDS.finditer(text):
        start = match.end()
        if text.startswith(_MARK, start):
            continue
        end = _quoted_end(text, start)
        if end is None:
            end = _phrase_end(text, start) if match["phrase"] else _password_end(text, start)
        if end is not None:
            yield SecretSpan(start, end, PASSWORD)


def _quoted_end(text: str, start: int) -> int | None:
    """Behind the quotation that begins at *start*; None where none does."""
    closes = _QUOTES.get(text[start : start + 1])
    if closes is None:
        return None
    end = text.find(closes, start + 1, start + _LONGEST_QUOTED)
    return end + 1 if end > start + 1 and "\n" not in text[start:end] else None


def _password_end(text: str, start: int) -> int | None:
    word = _WORD.match(text, start)
    if word is None:
        return None
    end = word.start() + len(word[0].rstrip(".?!:)]}>'\u2019"))
    if end == start or text[start:end].casefold() in _NO_PASSWORD:
        return None
    if _EXACT.search(text, start, end):
        return _rest(text, end) if text[start].isalpha() and text[start:end].isalpha() else end
    # A word as any other: all of the few that stand together may be meant.
    return _rest(text, end)


def _rest(text: str, end: int) -> int:
    for _ in range(_MOST_WORDS - 1):
        following = _NEXT_WORD.match(text, end)
        if following is None or text[end - 1] in ".!?" or following[1].casefold().rstrip(".!?") in _JOINS:
            break
        end = following.end() - (len(following[1]) - len(following[1].rstrip(".?!")))
        if text[end : end + 1] in {".", "?", "!"}:
            break
    return end


def _phrase_end(text: str, start: int) -> int | None:
    end = start
    for _ in range(_MOST_OF_PHRASE):
        word = _PHRASE_WORD.match(text, end)
        if word is None:
            break
        end = word.end()
    first = text[start:end].split(maxsplit=1)
    return None if not first or first[0].casefold().strip(",") in _NO_PASSWORD else end


def _named_keys(text: str) -> Iterator[SecretSpan]:
    for match in _KEYS.finditer(text):
        start = match.start("value")
        value = match["value"].rstrip(".!")
        if _is_key(value, weak=match["weak"] is not None):
            yield SecretSpan(start, start + len(value), KEY)


def _is_key(value: str, *, weak: bool) -> bool:
    if not any(sign.isdigit() for sign in value) or not any(sign.isalpha() for sign in value):
        return False
    if weak and (_UUID.match(value) or _HEX.match(value) or "/" in value or value.count(".") > 1):
        return False
    least, bits = (_LEAST_OF_WEAK, _LEAST_BITS_OF_WEAK) if weak else (_LEAST_OF_KEY, _LEAST_BITS)
    return len(value) >= least and _entropy(value) >= bits


def _entropy(value: str) -> float:
    """Shannon's, in bits for each character."""
    counts = Counter(value).values()
    return -sum(count / len(value) * math.log2(count / len(value)) for count in counts)


# --- numbers -----------------------------------------------------------------------------------------
# Numbers with a checksum: payment cards and bank accounts. Pure; linear in the text.

CARD, IBAN = "card number", "bank account"

# A single sign may separate digits: blanks (no-break too), dots, hyphens, dashes.
_PART = r"[ \u00a0\u202f.\u2010-\u2015-]"
# As printed on cards, or without separators: a row of short numbers is no card.
_CARD = re.compile(
    rf"(?<![\w.,+#-])(?:\d{{4}}(?:{_PART}{{1,3}}\d{{4}}){{2,3}}{_PART}{{1,3}}\d{{1,4}}"
    rf"|\d{{4}}(?:{_PART}{{1,3}}\d{{4}}){{3}}"
    rf"|\d{{4}}{_PART}{{1,3}}\d{{6}}{_PART}{{1,3}}\d{{4,5}}|\d{{12,19}})(?![\w-]|[.,]\d)"
)
_PAYS = re.compile(
    r"(?i)\b(?:card|visa|master\s?card|amex|american express|discover|diners|maestro|credit|debit|cc|cvv|cvc"
    r"|kredit\w*|kartennummer|karte|carte|tarjeta|carta|cart\u00e3o)\b|\u5361\u53f7|\u4fe1\u7528\u5361"
)
_NEAR = 60  # characters before a number in which a word about cards identifies it

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


def numbers(text: str) -> Iterator[SecretSpan]:
    """Card numbers of a known issuer with a valid check digit, and IBANs with valid check digits."""
    yield from _cards(text)
    yield from _ibans(text)


def _cards(text: str) -> Iterator[SecretSpan]:
    for match in _CARD.finditer(text):
        digits = "".join(str(int(sign)) for sign in match[0] if sign.isdecimal())
        if len(set(digits)) == 1 or not luhn(digits):
            continue
        known = _has_issuer(digits)
        if known or (known is False and _PAYS.search(text, max(0, match.start() - _NEAR), match.start())):
            yield SecretSpan(match.start(), match.end(), CARD)


def _has_issuer(digits: str) -> bool | None:
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


def _ibans(text: str) -> Iterator[SecretSpan]:
    for match in _IBAN_STARTS.finditer(text):
        length = _IBAN_LENGTHS.get(match[0][:2].upper())
        end = None if length is None else _iban_end(text, match.start(), int(length))
        if end is not None:
            yield SecretSpan(match.start(), end, IBAN)


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
