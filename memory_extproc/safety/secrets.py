"""Secrets in people's words: keys, tokens, passwords, card and account numbers. Pure.

Three kinds of evidence: a shape that only a secret has (a provider's prefix, a PEM block, a valid check digit), a
word that says what follows ("my password is ..."), and both weak ones together (a word such as "key" and a value
that nobody would write but to be exact). Ordinary numbers, UUIDs and hashes have none of them. Every pattern is
bounded, so that the time is linear in the text whatever it holds.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from memory_extproc.safety.numbers import numbers
from memory_extproc.safety.spans import Masked, Span, masked
from memory_extproc.safety.words import WORDS

KEY, TOKEN, PASSWORD, PRIVATE_KEY, CODE = "api key", "token", "password", "private key", "code"

# Keys as their providers write them. A trailing (?![\w-]) is left out: a longer one is a secret all the same.
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
# What stands where a password would and is none: "the password is wrong", "password: required".
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
# A pattern is tried where one of these stands in the text; looking for them costs a hundredth of trying it.
_PREFIXES = tuple(WORDS["keys"]["prefixes"].split())
_OF_PASSWORDS = tuple(WORDS["passwords"]["signs"])
_OF_KEYS = tuple(WORDS["keys"]["signs"])
_OF_CODES = tuple(WORDS["codes"]["signs"])


def mask_secrets(text: str) -> Masked:
    """*text* with every secret replaced by its kind in words. Masking what is masked changes nothing."""
    return masked(text, find_secrets(text))


def find_secrets(text: str) -> list[Span]:
    """Where secrets stand, in no particular order; spans may overlap."""
    said = text.lower()
    found = [*numbers(text), *_shapes(text)]
    if any(word in said for word in _OF_PASSWORDS):
        found += _named_passwords(text)
    if any(word in said for word in _OF_KEYS):
        found += _named_keys(text)
    if any(word in said for word in _OF_CODES):
        found += (Span(*match.span("value"), CODE) for match in _CODES.finditer(text))
    if "bearer" in said or "basic" in said:
        found += (
            Span(*match.span("value"), TOKEN) for match in _AUTHORIZATION.finditer(text) if _mixed(match["value"])
        )
    return found


def _shapes(text: str) -> Iterator[Span]:
    if any(prefix in text for prefix in _PREFIXES):
        for match in _PREFIXED.finditer(text):
            if _mixed(match[0]):
                yield Span(match.start(), match.end(), KEY if match["key"] else TOKEN)
    if "hooks.slack" in text or "api/webhooks" in text:
        for match in _WEBHOOK.finditer(text):
            yield Span(*match.span("slack" if match["slack"] else "discord"), TOKEN)
    at = 0
    while begins := _PEM_BEGINS.search(text, at):
        ends = _PEM_ENDS.search(text, begins.end())
        at = ends.end() if ends else len(text)
        yield Span(begins.start(), at, PRIVATE_KEY)
    if "://" in text and "@" in text:
        for match in _IN_URL.finditer(text):
            yield Span(*match.span("value"), PASSWORD)


def _mixed(value: str) -> bool:
    """Whether it is more than words with hyphens: "sk-learn-and-other-libraries" is no key."""
    return any(sign.isdigit() for sign in value) or (value != value.lower() and value != value.upper())


def _named_passwords(text: str) -> Iterator[Span]:
    for match in _PASSWORDS.finditer(text):
        start = match.end()
        if text.startswith(_MARK, start):
            continue
        end = _quoted_end(text, start)
        if end is None:
            end = _phrase_end(text, start) if match["phrase"] else _password_end(text, start)
        if end is not None:
            yield Span(start, end, PASSWORD)


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


def _named_keys(text: str) -> Iterator[Span]:
    for match in _KEYS.finditer(text):
        start = match.start("value")
        value = match["value"].rstrip(".!")
        if _is_key(value, weak=match["weak"] is not None):
            yield Span(start, start + len(value), KEY)


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
