"""The operator's rules for storage and injection: patterns that block, and secrets by their class. Pure."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from memory_extproc.errors import ConfigurationError
from memory_extproc.safety import secrets
from memory_extproc.safety.secrets import Masked, SecretSpan, find_secrets, mark, mask_spans
from memory_extproc.text.words import sentence_ends

BLOCKED = "blocked"  # the kind of a text that a pattern blocks, in metrics


class SecretClass(StrEnum):
    """Also keys of `privacy.secrets`, so a value is never renamed."""

    API_KEY = "api_key"
    TOKEN = "token"  # noqa: S105 - a class of secrets
    PASSWORD = "password"  # noqa: S105 - a class of secrets
    PRIVATE_KEY = "private_key"
    CODE = "code"  # PINs, card verification values, TAN codes
    CARD = "card_number"
    BANK_ACCOUNT = "bank_account"


class SecretPolicy(StrEnum):
    """The treatment of a secret in stored text."""

    MASK = "mask"  # a word for the class replaces it
    DROP = "drop"  # its sentence is not stored
    KEEP = "keep"


_CLASSES: Mapping[str, SecretClass] = {
    secrets.KEY: SecretClass.API_KEY,
    secrets.TOKEN: SecretClass.TOKEN,
    secrets.PASSWORD: SecretClass.PASSWORD,
    secrets.PRIVATE_KEY: SecretClass.PRIVATE_KEY,
    secrets.CODE: SecretClass.CODE,
    secrets.CARD: SecretClass.CARD,
    secrets.IBAN: SecretClass.BANK_ACCOUNT,
}


class BlockPatterns:
    """Regular expressions in RE2's syntax. A search takes time linear in the text for all patterns."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        """ConfigurationError names a pattern that RE2 does not read."""
        self._written = tuple(patterns)
        self._patterns = tuple(_compile(pattern) for pattern in patterns)

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockPatterns, (self._written,)  # compiled patterns cannot be pickled

    def match(self, text: str) -> bool:
        """Whether any of them occurs in *text*."""
        if not self._patterns:
            return False
        plain = text.encode("utf-8", "replace").decode()  # RE2 reads no lone surrogates
        return any(pattern.search(plain) is not None for pattern in self._patterns)


def _compile(pattern: str) -> Any:
    try:
        re2 = importlib.import_module("re2")  # imported where patterns are configured
    except ModuleNotFoundError as error:
        raise ConfigurationError(["block patterns need google-re2: pip install google-re2"]) from error
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0].decode("utf-8", "replace") if error.args else "cannot be read"
        raise ConfigurationError(
            [f"{pattern!r} is no pattern of RE2 ({why}); look-around and back references are not"]
        ) from error


NO_PATTERNS = BlockPatterns()


@dataclass(frozen=True, slots=True)
class StorageRules:
    """Which texts may be stored, and in which form."""

    secrets: Mapping[SecretClass, SecretPolicy] = field(default_factory=dict)  # absent: MASK
    never_store: BlockPatterns = NO_PATTERNS

    def of(self, kind: str) -> SecretPolicy:
        """The policy for *kind*, a kind of `find_secrets`."""
        return self.secrets.get(_CLASSES[kind], SecretPolicy.MASK)

    def find(self, text: str) -> Iterator[SecretSpan]:
        """The secrets of *text* that are not kept."""
        return (span for span in find_secrets(text) if self.of(span.kind) is not SecretPolicy.KEEP)

    def apply(self, text: str) -> str:
        """*text* with its secrets masked, and without sentences that hold a secret of a class to drop."""
        return self.drop(mask_spans(text, self.find(text)).text).text

    def drop(self, masked: str) -> Masked:
        """*masked* without sentences that hold the mask of a class to drop."""
        unwanted = {mark(kind): kind for kind in _CLASSES if self.of(kind) is SecretPolicy.DROP}
        if not any(one in masked for one in unwanted):
            return Masked(masked)
        spans, start = list[SecretSpan](), 0
        for end in (*sentence_ends(masked), len(masked)):
            kind = next((kind for one, kind in unwanted.items() if masked.find(one, start, end) >= 0), "")
            if kind:
                spans.append(SecretSpan(start, end, kind))
            start = end
        return mask_spans(masked, spans, drop=True)

    def refusal(self, text: str) -> str:
        """Why *text*, as `apply` left it, is not stored; "" where it may be."""
        if self.never_store.match(text):
            return "a pattern of privacy.never_store matches it"
        return "" if says_more_than_masks(text) else "nothing but secrets, which are not stored"


MASK_SECRETS = StorageRules()

# --- masks -------------------------------------------------------------------------------------------
# Marks in place of masked words: our own, and the placeholders of a masking plugin in front ("[EMAIL_ADDRESS_0]").
# A placeholder stands for other words in each request, so it is worth nothing in another.

OUR_MASK = re.compile(r"\[masked: [^\]\n]{0,40}\]?")
PLACEHOLDER = re.compile(
    r"\[(?P<kind>[A-Z][A-Z]{1,20}(?:_[A-Z]{1,20}){0,4})_\d{1,4}\]?|<(?P<tag>[A-Z]{2,20}(?:_[A-Z]{1,20}){0,4})_\d{1,4}>"
)


def has_placeholder(text: str) -> bool:
    return "_" in text and PLACEHOLDER.search(text) is not None


def mask_placeholders(text: str) -> Masked:
    """*text* with each placeholder replaced by a mask that says the same in every request."""
    if "_" not in text:
        return Masked(text)
    return mask_spans(
        text,
        (
            SecretSpan(match.start(), match.end(), (match["kind"] or match["tag"]).replace("_", " ").lower())
            for match in PLACEHOLDER.finditer(text)
        ),
    )


def says_more_than_masks(text: str) -> bool:
    """Whether *text* has a word that is no mask. A text without any word stays: "👍", "…"."""
    if not OUR_MASK.search(text) and not has_placeholder(text):
        return True
    return any(sign.isalnum() for sign in PLACEHOLDER.sub("", OUR_MASK.sub("", text)))


def may_be_injected(text: str, never: BlockPatterns) -> bool:
    """Whether the memory *text* may stand in a prompt."""
    return not has_placeholder(text) and not never.match(text)
