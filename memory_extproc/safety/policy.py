"""The storage policy for an exchange's words, from the rules of this package and of the operator:
patterns that block, and secrets by their class. Pure."""

from __future__ import annotations

import importlib
import tomllib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib.resources import files
from typing import Any

from memory_extproc.errors import ConfigurationError
from memory_extproc.model import Exchanged, Role
from memory_extproc.safety import secrets
from memory_extproc.safety.secrets import Masked, SecretSpan, find_secrets, mark, mask_spans
from memory_extproc.text import lazy_re as re
from memory_extproc.text.words import MOST_REMEMBERED, memoize_by_hash, sentence_ends

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


# --- identifiers -------------------------------------------------------------------------------------
# Personal identifiers: mail addresses, phones, national ids, street addresses. Pure. Phones are found by Google's
# libphonenumber, national ids by python-stdnum's checksums. Both are imported on first use, that is, with a policy
# other than `keep`.

MAIL, PHONE, NATIONAL_ID, ADDRESS = "mail address", "phone number", "national id", "street address"


class Identifiers(StrEnum):
    """The treatment of identifiers in stored text."""

    KEEP = "keep"
    MASK = "mask"  # a word for the kind stands in their place
    DROP = "drop"  # a sentence with an identifier is not stored


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
      |(?:[A-Z\u00c4\u00d6\u00dc][\w.-]{1,30}\ ){0,2}[A-Z\u00c4\u00d6\u00dc][\w.-]{1,30}\ ?
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
        return mask_spans(text, found)
    return mask_spans(text, _sentences_with(text, found), drop=True)


def identifiers(text: str) -> Iterator[SecretSpan]:
    """Where they stand, in no particular order; spans may overlap."""
    if "@" in text:
        for match in _MAIL.finditer(text):
            yield SecretSpan(match.start(), match.end(), MAIL)
    for match in _ADDRESS.finditer(text):
        yield SecretSpan(match.start(), match.end(), ADDRESS)
    if _ENOUGH_DIGITS.search(text) is not None:
        yield from _national(text)
        yield from _phones(text)


def _national(text: str) -> Iterator[SecretSpan]:
    from stdnum import get_cc_module  # noqa: PLC0415 - see above

    for shape, name, sure in _NATIONAL:
        country, _, kind = name.partition(".")
        for match in shape.finditer(text):
            told = sure or _IDENTIFIES.search(text, max(0, match.start() - _NEAR), match.start())
            module = get_cc_module(country.rstrip("_"), kind)
            if told and module is not None and module.is_valid(match[0]):
                yield SecretSpan(match.start(), match.end(), NATIONAL_ID)


def _phones(text: str) -> Iterator[SecretSpan]:
    from phonenumbers import PhoneNumberMatcher  # noqa: PLC0415 - see above

    for found in PhoneNumberMatcher(text, None):
        yield SecretSpan(found.start, found.end, PHONE)
    for match in _LOCAL.finditer(text):
        digits = sum(sign.isdigit() for sign in match[0])
        near = _CALLS.search(text, max(0, match.start() - _NEAR), match.start())
        if near and _LEAST_LOCAL <= digits <= _MOST_LOCAL:
            yield SecretSpan(match.start(), match.end(), PHONE)


def _sentences_with(text: str, found: list[SecretSpan]) -> Iterator[SecretSpan]:
    start = 0
    for end in (*sentence_ends(text), len(text)):
        inside = next((one for one in found if start <= one.start < end), None)
        if inside is not None:
            yield SecretSpan(start, end, inside.kind)
        start = end


# --- sensitive ---------------------------------------------------------------------------------------
# Statements of people about themselves in special categories: health, religion, politics and the like. Such a
# sentence is stored only if the configuration keeps its category, or the person asked to remember it, which is
# consent. Pure. The lists hold words, so statements without these words are missed.


class SensitiveCategory(StrEnum):
    """Also in `privacy.sensitive` and a memory's sensitivity, so a value is never renamed."""

    HEALTH = "health"
    RELIGION = "religion"
    POLITICS = "politics"
    SEXUALITY = "sexuality"
    ETHNICITY = "ethnicity"
    UNION = "union"  # membership in a trade union
    CRIME = "crime"  # convictions and offences
    BIOMETRY = "biometry"  # and genetics
    DIET = "diet"  # intolerances, and allergies other than to medicines


def _compile_pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE | re.VERBOSE)


_WORDS = tomllib.loads((files(__package__) / "sensitive.toml").read_text(encoding="utf-8"))
_CATEGORIES = {category: _compile_pattern(_WORDS[category.value]["words"]) for category in SensitiveCategory}
_ANY = _compile_pattern("|".join(f"(?:{_WORDS[category.value]['words']})" for category in SensitiveCategory))
_PERSON = _compile_pattern(_WORDS["person"]["words"])
_ADDRESSED = _compile_pattern(_WORDS["person"]["addressed"])
_ASKED_TO_KEEP = _compile_pattern(_WORDS["person"]["asked_to_keep"])
_GOES_ON = re.compile(
    r"(?i)^\W*(?:it|it's|this|that|that's|they|she|he|also|and|es|das|c'est|eso|es\ ist|\u8fd9)\b"
)


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A text without its sentences of special categories, and the categories found."""

    text: str
    dropped: tuple[SensitiveCategory, ...] = ()


# A search of a regular expression holds up every other thread, and with them every stream: some 5 ms for so much.
_AT_ONCE = 4_000  # characters
_LONGEST = 400  # of a match with its lookahead, except for endless words


def _stands(words: re.Pattern[str], text: str) -> bool:
    """Whether *words* match anywhere in *text*, searched in parts. A match near the end of a part, where a word
    may be cut, is left to the next part, which overlaps."""
    start = 0
    while start + _AT_ONCE < len(text):
        end = start + _AT_ONCE
        found = words.search(text, start, end)
        start = end - _LONGEST
        if found is not None and found.start() < start:
            return True
    return words.search(text, start) is not None


@memoize_by_hash(MOST_REMEMBERED)
def sensitivity(text: str) -> SensitiveCategory | None:
    """The first category with words in *text*, whoever it is about."""
    if not _may_be_sensitive(text):
        return None
    return next(category for category, words in _CATEGORIES.items() if words.search(_straight(text)))


@memoize_by_hash(MOST_REMEMBERED)
def _may_be_sensitive(text: str) -> bool:
    """Whether *text* has words of any category. A client sends its messages again with every request."""
    return _stands(_ANY, _straight(text))


@memoize_by_hash(MOST_REMEMBERED)
def asks_to_keep(text: str) -> bool:
    """Whether it asks for something to be remembered."""
    return _stands(_ASKED_TO_KEEP, _straight(text))


def of_caller(text: str, kept: frozenset[SensitiveCategory]) -> Trimmed:
    """A person's words without statements about themselves in categories that are not *kept*. Text is unchanged
    if they ask to remember it, or if there are no such statements."""
    if not _may_be_sensitive(text) or asks_to_keep(text):
        return Trimmed(text)
    return _trim_text(text, _PERSON, kept)


def of_assistant(text: str, kept: frozenset[SensitiveCategory], dropped: frozenset[SensitiveCategory]) -> Trimmed:
    """An answer without statements about the addressee; of categories that were *dropped* from the question,
    without any sentence."""
    if not _may_be_sensitive(text):
        return Trimmed(text)
    return _trim_text(text, _ADDRESSED, kept, dropped)


def _trim_text(
    text: str,
    person: re.Pattern[str],
    kept: frozenset[SensitiveCategory],
    anyway: frozenset[SensitiveCategory] = frozenset(),
) -> Trimmed:
    parts: list[str] = []
    dropped: list[SensitiveCategory] = []
    personal = False  # the sentence before spoke of the person
    for sentence in _sentences(text):
        straight = _straight(sentence)
        goes_on = personal and _GOES_ON.match(straight) is not None
        personal = person.search(straight) is not None or goes_on
        found = [one for one, words in _CATEGORIES.items() if one not in kept and words.search(straight)]
        unwanted = [one for one in found if personal or one in anyway]
        if unwanted:
            dropped += unwanted
        else:
            parts.append(sentence)
    return Trimmed("".join(parts).strip(), tuple(dict.fromkeys(dropped))) if dropped else Trimmed(text)


def _sentences(text: str) -> Iterator[str]:
    """Every character of *text*, cut behind its sentences."""
    start = 0
    for end in sentence_ends(text):
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _straight(text: str) -> str:
    return text.replace("\u2019", "'")


# --- policy ------------------------------------------------------------------------------------------

WRITTEN = 3  # of the user's messages before, at most, go into a record (learn/sessions.py)
_SHORTEST_REPEATED = 5  # characters; a shorter secret repeated without its keyword looks like other text


@dataclass(frozen=True, slots=True)
class Found:
    """An exchange without forbidden text, and the kinds of text removed."""

    exchanged: Exchanged
    kinds: tuple[str, ...] = ()
    behind: Secrets | None = field(default=None, repr=False)  # masks the rest of a long conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Filters an exchange whose secrets are masked already."""

    identifiers: Identifiers = Identifiers.KEEP
    sensitive: frozenset[SensitiveCategory] = frozenset(
        {SensitiveCategory.DIET}
    )  # categories that are kept unasked
    rules: StorageRules = MASK_SECRETS

    def filter_exchange(self, exchanged: Exchanged) -> Found:
        """*exchanged* with storable words only, and with the last user messages of its history."""
        kinds: list[str] = []

        def screen(text: str) -> str:
            """*text* without placeholders and dropped secrets; nothing of a text that a pattern blocks."""
            if self.rules.never_store.match(text):
                kinds.append(BLOCKED)
                return ""
            left = self.rules.drop(mask_placeholders(text).text)
            kinds.extend(left.kinds)
            return left.text

        def screen_caller(text: str) -> str:
            trimmed = of_caller(screen(text), self.sensitive)
            named = without_identifiers(trimmed.text, self.identifiers)
            kinds.extend((*trimmed.dropped, *named.kinds))
            return named.text

        asked = screen_caller(exchanged.asked)
        dropped = frozenset(kind for kind in SensitiveCategory if kind in kinds)
        # A person who asks to store something agrees to an answer that repeats it.
        told = screen(exchanged.answered)
        answered = Trimmed(told) if asks_to_keep(exchanged.asked) else of_assistant(told, self.sensitive, dropped)
        named = without_identifiers(answered.text, self.identifiers)
        kinds.extend((*answered.dropped, *named.kinds))
        users = [message for message in exchanged.history if message.role is Role.USER][-WRITTEN:]
        history = tuple(replace(message, text=screen_caller(message.text)) for message in users)
        return Found(replace(exchanged, history=history, asked=asked, answered=named.text), tuple(kinds))


# Characters of a conversation, from its beginning, that are searched for secrets. The rest only goes into hashes;
# texts that are written are masked wherever they stand.
MOST_SEARCHED = 512 * 1024
_MOST_SECRETS = 256  # the latest of a conversation, to be known when they are repeated


def without_secrets(exchanged: Exchanged, rules: StorageRules = MASK_SECRETS) -> Found:
    """*exchanged* with its secrets masked in every text, history included, for `MOST_SEARCHED` characters.

    A secret that was named once is masked wherever it is repeated after that, with or without the word that named
    it. A message's masks depend on itself and on the messages before it: a conversation that is sent again and
    longer begins with the same text, by which it is recognised.
    """
    said = Secrets(rules)
    left = MOST_SEARCHED

    def mask(text: str) -> str:
        nonlocal left
        searched, left = max(0, left), left - len(text)
        return said.mask(text) if len(text) <= searched else said.mask(text[:searched]) + text[searched:]

    history = tuple(
        message if (text := mask(message.text)) is message.text else replace(message, text=text)
        for message in exchanged.history
    )
    asked, answered = mask(exchanged.asked), mask(exchanged.answered)
    injected = tuple(said.mask(text) for text in exchanged.injected)
    behind = said if left < 0 else None
    if not said.kinds:
        return Found(exchanged, behind=behind)
    changed = replace(exchanged, history=history, asked=asked, answered=answered, injected=injected)
    return Found(changed, tuple(said.kinds), behind)


class Secrets:
    """The secrets that a conversation has named so far."""

    def __init__(self, rules: StorageRules = MASK_SECRETS) -> None:
        self._rules = rules
        self.kinds: list[str] = []
        self._secrets: OrderedDict[str, str] = OrderedDict()

    def mask(self, text: str) -> str:
        done = mask_spans(text, [*self._rules.find(text), *self._again(text)])
        if not done.found:
            return text
        self.kinds += done.kinds
        for what, kind in done.found:
            if len(bare := _bare(what)) >= _SHORTEST_REPEATED:
                self._secrets[bare] = kind
                self._secrets.move_to_end(bare)
        while len(self._secrets) > _MOST_SECRETS:
            self._secrets.popitem(last=False)
        return done.text

    def _again(self, text: str) -> Iterable[SecretSpan]:
        for secret, kind in self._secrets.items():
            at = text.find(secret)
            while at >= 0:
                yield SecretSpan(at, at + len(secret), kind)
                at = text.find(secret, at + len(secret))


def _bare(secret: str) -> str:
    return secret.strip("\"'`\u201c\u201d\u201e\u00ab\u00bb\u2018\u2019 \t")
