"""Text into words and sentences, the same way everywhere: Unicode-aware, numbers, dates and money kept whole."""

from __future__ import annotations

import hashlib
import math
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, wraps
from importlib.resources import files
from itertools import chain
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import snowballstemmer

from memory_extproc.text import lazy_re as re

# Scripts written without spaces between words; a run of such a script is a single token.
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_KANA = "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
UNSPACED = f"[{_HAN}{_KANA}]"  # a character of such a script, as a regular expression
_UNSPACED = re.compile(UNSPACED)
_KANA_RUN = re.compile(f"[{_KANA}]")
_HAN_RUN = re.compile(f"[{_HAN}]")
_READ_FOR_LANGUAGE = 2000  # characters
_WORDS_READ_FOR_LANGUAGE = 300
_CURRENCY = "$\u20ac\u00a3\u00a5\u20b9\u20bd\u20a9"

_TOKEN = re.compile(
    rf"""
    [{_CURRENCY}]\s?\d+(?:[.,]\d+)*(?:\s?(?:k|m|bn|thousand|million|billion)\b)?  # $10,000, $10k, $ 1.5 million
  | \d+(?:[.,:/-]\d+)+(?:[%{_CURRENCY}]|\w+)?  # 10,000.50, 2024-05-03, 10:30am, 5/8
  | \d+[%{_CURRENCY}\u00b0]  # 20%, 500 with a currency behind it
  | {UNSPACED}+
  | [^\W_](?:[^\W_]|[\u0300-\u036f\u0900-\u0903\u093a-\u094f])*(?:['\u2019.+#_-](?=[^\W_])(?:[^\W_])+)*(?:\+\+|\#)?
    """,
    re.VERBOSE | re.IGNORECASE,
)
_APOSTROPHES = str.maketrans({"\u2019": "'", "\u2018": "'", "\u02bc": "'", "\u00b4": "'", "\u201b": "'"})
_POSSESSIVE = re.compile(r"(?<=\w)'s$|(?<=s)'$")
_ENGLISH_ENDINGS = ("ingly", "edly", "ies", "ing", "ed", "es", "s")
_SHORTEST_STEM = 3


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Words and patterns of a language."""

    language: str  # ISO 639-1
    stop: frozenset[str]
    negations: frozenset[str]
    person: str  # a regular expression for the speaker's own person


def _read(name: str) -> Mapping[str, Any]:
    return tomllib.loads((files(__package__) / name).read_text(encoding="utf-8"))


def _lexicons() -> Mapping[str, Lexicon]:
    parsed = _read("lexicon.toml")
    return {
        language: Lexicon(
            language, frozenset(fold(entry["stop"]).split()), frozenset(fold(entry["not"]).split()), entry["person"]
        )
        for language, entry in parsed.items()
    }


_MOST_MARKS = 30  # combining marks in a row: UAX #15, 13 (Stream-Safe Text Format)


def normalize(form: Literal["NFC", "NFKC"], text: str) -> str:
    """*text* in a Unicode normal form, in linear time: CPython sorts a run of combining marks in time that is
    quadratic in the run, so marks beyond the thirtieth in a row are dropped. No language writes as many."""
    if text.isascii() or unicodedata.is_normalized(form, text):
        return text
    if form == "NFKC":  # U+FDFA expands to eighteen letters
        text = text.replace("\ufdfa", " ")
    return unicodedata.normalize(form, _long_runs_of_marks().sub(r"\1", text))


@cache
def _long_runs_of_marks() -> re.Pattern[str]:
    """Runs of characters that are combining marks, or become some when they are decomposed."""
    marks = (chr(code) for code in chain(range(0x300, 0x20000), range(0xE0000, 0xE0100)))
    ranges = "".join(mark for mark in marks if unicodedata.combining(unicodedata.normalize("NFKD", mark)[0]))
    return re.compile(f"([{ranges}]{{{_MOST_MARKS}}})[{ranges}]+")


def fold(text: str) -> str:
    """Compatibility forms, case and typographic apostrophes evened out, for comparing; idempotent."""
    if text.isascii():  # has neither other forms nor other apostrophes
        return text.lower()
    # casefold may leave a form that NFKC composes anew, hence normalising after it as well
    return normalize("NFKC", normalize("NFKC", text).translate(_APOSTROPHES).casefold())


def strip_accents(folded: str) -> str:
    """*folded* without the accents of Latin letters: people leave them out."""
    if folded.isascii():
        return folded
    decomposed = unicodedata.normalize("NFD", folded)
    return unicodedata.normalize("NFC", "".join(sign for sign in decomposed if not "\u0300" <= sign <= "\u036f"))


LEXICONS = _lexicons()
PHRASES = _read("phrases.toml")
# Whole words for regular expressions, with and without accents: "mar" is a month, "married" is not.
MONTHS = "|".join(sorted({form for name in PHRASES["month_names"].split() for form in (name, strip_accents(name))}))
ENGLISH = LEXICONS["en"]


def tokens(text: str) -> list[str]:
    """Words, numbers, dates and sums of money ("$10,000") in order, as written. Linear in *text*."""
    return _TOKEN.findall(text)


@lru_cache(maxsize=1024)
def _lexicon_of(words: frozenset[str]) -> Lexicon:
    best, most = ENGLISH, len(words & ENGLISH.stop)
    for lexicon in LEXICONS.values():
        hits = len(words & lexicon.stop)
        if hits > most:
            best, most = lexicon, hits
    return best


def lexicon_of(text: str) -> Lexicon:
    """The language whose small words *text* uses most; English when none stands out. A word such as
    "son" is a stop word in French and a noun in English, so lists are never merged."""
    return _lexicon_of_beginning(text if len(text) <= _READ_FOR_LANGUAGE else text[:_READ_FOR_LANGUAGE])


def _read_lexicon(beginning: str) -> Lexicon:
    if _KANA_RUN.search(beginning):
        return LEXICONS["ja"]
    if _HAN_RUN.match(beginning.strip()):
        return LEXICONS["zh"]
    return _lexicon_of(frozenset(fold(token) for token in tokens(beginning)))


def lexicon_of_words(folded: Sequence[str]) -> Lexicon:
    """As `lexicon_of`, for words that are folded already."""
    beginning = folded[:_WORDS_READ_FOR_LANGUAGE]
    if any(_KANA_RUN.match(word) for word in beginning):
        return LEXICONS["ja"]
    if beginning and _HAN_RUN.match(beginning[0]):
        return LEXICONS["zh"]
    return _lexicon_of(frozenset(beginning))


def content_words(text: str) -> list[str]:
    """The tokens of *text* that mean something by themselves, in order, as written."""
    stop = lexicon_of(text).stop
    return [token for token in tokens(text) if _is_content(fold(token), stop)]


def _is_content(folded: str, stop: frozenset[str]) -> bool:
    bare = _bare(folded)
    if folded in stop or bare in stop:
        return False
    return len(bare) > 1 or bare.isdigit() or _UNSPACED.match(bare) is not None


def _bare(folded: str) -> str:
    return _POSSESSIVE.sub("", folded) if "'" in folded else folded


def stem(word: str) -> str:
    """The common key of the forms of a word ("lives", "living", "live"); not itself a word."""
    return _stem_of_short(word) if len(word) <= _LONGEST_WORD else _find_stem(word)


def _find_stem(word: str) -> str:
    folded = _bare(fold(word))
    if not folded.isascii() or (not folded.isalpha() and any(map(str.isdigit, folded))):
        return number_key(folded)
    for ending in ("s",) if folded.endswith("ees") else _ENGLISH_ENDINGS:  # "employees" of "employee"
        if folded.endswith(ending) and len(folded) - len(ending) >= _SHORTEST_STEM:
            folded = folded[: -len(ending)]
            break
    return folded.removesuffix("e").removesuffix("y").removesuffix("i")


_stem_of_short = lru_cache(maxsize=16_384)(_find_stem)


_THOUSANDS = re.compile(r"(?<=\d)[, ](?=\d{3}(?!\d))")
_SCALES = {"k": 1_000, "thousand": 1_000, "m": 1_000_000, "million": 1_000_000, "bn": 1_000_000_000,
           "billion": 1_000_000_000}  # fmt: skip
_LONGEST_NUMBER = 64  # characters; a longer number is no amount, and too much for a float
_NUMBER = re.compile(rf"^[{_CURRENCY}]?\s?(\d+(?:\.\d+)?)\s?(k|m|bn|thousand|million|billion)?\s?[{_CURRENCY}]?$")


def number_key(token: str) -> str:
    """The common key of an amount: "$10,000", "10k" and "10000" agree; other tokens come back folded.

    The currency is dropped: people leave it out when they repeat a sum.
    """
    folded = fold(token).strip()
    matched = _NUMBER.match(_THOUSANDS.sub("", folded))
    if matched is None:
        return folded
    if len(folded) > _LONGEST_NUMBER:
        return folded
    amount = float(matched[1]) * _SCALES.get(matched[2] or "", 1)
    return f"{amount:.10g}" if amount != int(amount) else str(int(amount))


def stems(text: str) -> frozenset[str]:
    """The stems of the content words of *text*; runs of unspaced scripts as pairs of characters."""
    return _stems_of_short(text) if len(text) <= _KEPT_STEMS_OF else frozenset(_stems(content_words(text)))


def _stems(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        if _UNSPACED.match(word):
            yield from (word[at : at + 2] for at in range(max(1, len(word) - 1)))
        else:
            yield stem(word)


def negates(text: str) -> bool:
    """Whether *text* has a word that turns a sentence into its contrary, in its own language."""
    lexicon = lexicon_of(text)
    if lexicon.language in {"zh", "ja"}:
        return any(word in text for word in lexicon.negations)
    return any(fold(token) in lexicon.negations for token in tokens(text))


# --- stemming ----------------------------------------------------------------------------------------
# Text into search terms: function words removed, the forms of a word under a common key.
#
# Stemmers are Snowball's (M. F. Porter, https://snowballstem.org), for the languages it has and we tell apart.

# English words without meaning of their own; "first", "before" and "again" help to find a message, so they count.
_FUNCTION_WORDS = frozenset(PHRASES["function_words"].split())
_STEMMERS = {
    "en": "english", "de": "german", "fr": "french", "es": "spanish", "it": "italian", "pt": "portuguese",
    "nl": "dutch", "pl": "polish", "ru": "russian", "tr": "turkish", "hi": "hindi", "ar": "arabic",
}  # fmt: skip
_LONGEST_WORD = 64  # characters; a longer token is no word, and its stemming would take long


def terms(text: str) -> tuple[list[str], str]:
    """The terms of *text* in order, with repetitions, and its language (ISO 639-1). Runs of unspaced scripts become
    pairs of characters; a number, date or sum keeps a single key."""
    words = [_fold_token(token) for token in tokens(text)]
    language = lexicon_of_words(words).language
    return _terms(words, language), language


def terms_in(text: str, language: str) -> list[str]:
    """As `terms`, in a language that is known."""
    return _terms([_fold_token(token) for token in tokens(text)], language)


def carries_meaning(word: str) -> bool:
    """Whether a folded word is no function word of English: "the" and "with" say nothing by themselves."""
    return word not in _FUNCTION_WORDS


def stem_key(word: str, language: str) -> str:
    """The key of a folded word; for a number `number_key`."""
    if not word.isalpha() or len(word) > _LONGEST_WORD:
        return number_key(word[:_LONGEST_WORD])
    return _stem_word(word, language)


def _terms(words: Iterable[str], language: str) -> list[str]:
    stop = _FUNCTION_WORDS if language == "en" else LEXICONS[language].stop
    found: list[str] = []
    for word in words:
        if _UNSPACED.match(word):
            found.extend(word[at : at + 2] for at in range(max(1, len(word) - 1)))
            continue
        bare = word.partition("'")[0]
        if word not in stop and bare not in stop and (len(bare) > 1 or bare.isdigit()):
            found.append(stem_key(bare, language))
    return found


def _fold_token(token: str) -> str:
    return token.lower() if token.isascii() else fold(token)


@lru_cache(maxsize=65_536)
def _stem_word(word: str, language: str) -> str:
    name = _STEMMERS.get(language)
    return word if name is None else str(_stemmer(name).stemWord(word))


@lru_cache(maxsize=len(_STEMMERS))
def _stemmer(name: str) -> snowballstemmer.basestemmer.BaseStemmer:
    return snowballstemmer.stemmer(name)


# --- related -----------------------------------------------------------------------------------------
# English words that are close in meaning, and how rare a word is; read from a file that a script made.
#
# `scripts/make_related_words.py` says how. Only words of everyday frequency are in it: a name or a number is
# related to nothing but itself.

_FULL = 255.0  # the closeness 1.0 in the file


@dataclass(frozen=True, slots=True)
class _Thesaurus:
    stems: tuple[str, ...]  # most frequent first
    at: dict[str, int]
    starts: npt.NDArray[np.int32]
    others: npt.NDArray[np.uint16]
    closeness: npt.NDArray[np.uint8]


@lru_cache(maxsize=1)
def _thesaurus() -> _Thesaurus:
    with (files(__package__) / "related.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        stems = tuple(arrays["stems"].tobytes().decode("ascii").split("\n"))
        at = {stem: place for place, stem in enumerate(stems)}
        return _Thesaurus(stems, at, arrays["starts"], arrays["others"], arrays["closeness"])


@lru_cache(maxsize=4096)
def related_stems(stem: str) -> tuple[tuple[str, float], ...]:
    """Stems close in meaning to *stem*, closest first, each with its closeness in [0.5, 1]. English."""
    known = _thesaurus()
    place = known.at.get(stem)
    if place is None:
        return ()
    span = slice(int(known.starts[place]), int(known.starts[place + 1]))
    return tuple(
        (known.stems[other], close / _FULL)
        for other, close in zip(known.others[span].tolist(), known.closeness[span].tolist(), strict=True)
    )


def rarity(stem: str) -> float:
    """In [0, 1]: near 0 for the most frequent words of English, 1 for a word outside the everyday vocabulary (a
    name, a number, a word of another language)."""
    known = _thesaurus()
    place = known.at.get(stem)
    return 1.0 if place is None else math.log1p(place) / math.log1p(len(known.stems))


# --- comparing ---------------------------------------------------------------------------------------
# Comparison of texts: messages that clients send back differ in whitespace and Unicode form alone.

# A number with its separators is a single word, so that "$10,000" and "10 000" are equal.
_WORD = re.compile(r"\d+(?:[.,'\u00a0\u202f ]\d{3})+(?!\d)|\w+")
_SEPARATORS = re.compile(r"[.,'\u00a0\u202f ]")


def normal(text: str) -> str:
    """*text* with its whitespace collapsed and in one Unicode form."""
    return " ".join(normalize("NFC", text).split())


def words_hash(text: str) -> str:
    """32 hex digits, the same for texts that are the same as they are compared."""
    return hashlib.blake2b(normal(text).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def word_set(text: str) -> frozenset[str]:
    """The words of *text*, case folded, numbers without their separators."""
    found = _WORD.findall(normalize("NFKC", text).casefold())
    return frozenset(_SEPARATORS.sub("", word) if word[0].isdigit() else word for word in found)


# --- tokens ------------------------------------------------------------------------------------------
# How many tokens a text costs, estimated without any model's tokenizer.
#
# Byte-pair encodings of today's models take about four characters of English to a token, two of other alphabetic
# scripts, and about a token for each ideograph, syllable or emoji. The estimate errs upwards: the provider
# refuses a text that exceeds its limit.


def estimate_tokens(text: str) -> int:
    """Estimated tokens, at least 1 for any text that is not empty; never falls as the text grows, and never
    more for two texts joined than for the two apart."""
    plain = len(text.encode("ascii", "ignore"))
    if plain == len(text):
        return (plain + 3) // 4
    wide = len(text) - len(_WIDE_RUNS.sub("", text))  # runs, not characters: bodies of megabytes come by here
    alphabetic = len(text) - plain - wide
    return (plain + 2 * alphabetic + 4 * wide + 3) // 4


WIDE = 0x2E80  # from here on a character is mostly a token or more (CJK, Hangul, emoji)
_WIDE_RUNS = re.compile(f"[{chr(WIDE)}-\U0010ffff]+")


# --- remembered --------------------------------------------------------------------------------------
# Memoized results of pure functions of texts; the texts themselves are not kept.

R = TypeVar("R")
MOST_REMEMBERED = 16_384  # answers: some 2 MB of them
MOST_SETS = 4_096  # answers that are sets of words


def memoize_by_hash(most: int) -> Callable[[Callable[[str], R]], Callable[[str], R]]:
    """At most *most* answers, by Python's own hash of the text, which is keyed anew for every process and computed
    once for a text in memory: a question reads a hundred memories. Texts of equal hash and length
    are not to be expected. Used from any thread."""

    def around(function: Callable[[str], R]) -> Callable[[str], R]:
        known: dict[tuple[int, int], R] = {}
        before: dict[tuple[int, int], R] = {}  # answers of the time before; those asked for again stay

        @wraps(function)
        def look_up(text: str) -> R:
            nonlocal known, before
            key = hash(text), len(text)
            try:
                return known[key]
            except KeyError:
                answer = before.pop(key) if key in before else function(text)
            if 2 * len(known) >= most:
                known, before = {}, known
            known[key] = answer
            return answer

        return look_up

    return around


# Texts are read for several questions each, and a question by several readers.
_KEPT_STEMS_OF = 400  # characters
_lexicon_of_beginning = memoize_by_hash(MOST_REMEMBERED)(_read_lexicon)


# As many as two owners of many memories have: with fewer, questions read each text anew. 900 bytes each.
@memoize_by_hash(MOST_REMEMBERED)
def _stems_of_short(text: str) -> frozenset[str]:
    return frozenset(_stems(content_words(text)))


# Sentences: survives "$10,000.50", "e.g.", initials, versions and addresses.

_ABBREVIATIONS = frozenset(PHRASES["abbreviations"].split())
_MONTHS = tuple(PHRASES["months"].split())
_DIGITS_OF_A_DAY = 2
_WITHIN_NUMBERS = frozenset(":,/-+#$\u20ac\u00a3")  # "3:45" and "$20" are no places in a row
# Only at the first of several marks: else each of a thousand is followed to their end.
_ENDING = re.compile(
    r"(?<![.!?\u2026])[.!?\u2026]+[\"'\u201d\u2019)\]]*(?=\s|$)|[\u3002\uff01\uff1f]+[\u300d\u300f\u201d]?|\n+"
)
_LAST_WORD = re.compile(r"[\w.]+$")
_BULLET = re.compile(r"^\s*(?:[-*\u2022\u2013]|\(?\d{1,2}[.)])\s+")
_BLANKS = re.compile(r"\s{9,}")
# Words that begin a sentence also where a writer uses no capitals: "the exam is on june 9. can you ...".
_OPENERS = re.compile(
    r"(?:i|i'm|i've|i'll|i'd|we|we're|you|he|she|it|it's|they|my|our|his|her|their|there|this|that|but|so|also|please|can|could"
    r"|would|will|should|do|does|did|is|are|was|what|what's|how|where|when|why|who|which|if|then|last|next|yesterday"
    r"|today|tomorrow|tonight|ich|wir|er|sie|es|mein\w*|kannst|was|wie|wann|wo"
    r"|je|nous|il|elle|mon|ma|mes|yo|mi|mis)\b",
    re.IGNORECASE,
)


def collapse_whitespace(text: str) -> str:
    """*text* with long runs of white space made short: rules that pass over white space do so from each place in a
    run, and would take a minute for a screen of empty lines."""
    return _BLANKS.sub(lambda run: "\n\n" if "\n" in run[0] else "  ", text)


def sentences(text: str) -> list[str]:
    """The sentences of *text* in order, stripped, without list bullets; their end marks stay. Lines end
    sentences too. Linear in *text*; every word of it is in exactly one of them."""
    found: list[str] = []
    start = 0
    for end in sentence_ends(text):
        _append(found, text[start:end])
        start = end
    _append(found, text[start:])
    return found


_CLAUSE = re.compile(
    r"[,;:]\s+|\s[-\u2013\u2014]+\s|[\uff0c\uff1b\uff1a\u3001]"
    r"|\s(?:and|but|so|because|though|und|aber|denn|mais|et|donc|pero|y)\s"
)


def clauses(sentence: str) -> list[str]:
    """*sentence* taken apart where one statement may end and another begin; too often rather than too seldom."""
    return [one for one in _CLAUSE.split(sentence) if one.strip()]


def sentence_ends(text: str) -> Iterator[int]:
    """Where the sentences and lines of *text* end, in order: behind their end marks, before what follows."""
    start = 0
    for ending in _ENDING.finditer(text):
        if ending[0][0] == "." and _continues(text, start, ending):
            continue
        yield ending.end()
        start = ending.end()


def _continues(text: str, start: int, ending: re.Match[str]) -> bool:
    last = _LAST_WORD.search(text, max(start, ending.start() - 20), ending.start())
    if last is None:
        return False
    word = last[0].casefold()
    following = text[ending.end() : ending.end() + 40].lstrip(" \t")
    if not following or following[0] == "\n":
        return False
    if word in {"a.m", "p.m", "etc", "usw"}:
        return following[0].islower()
    initial = len(word) == 1 and word.isalpha() and last[0].isupper() and last[0] != "I"
    in_row = text[last.start() - 1 : last.start()] not in _WITHIN_NUMBERS and _counts(word, following)
    return word in _ABBREVIATIONS or initial or in_row or _is_bullet(text, start, ending)


def _counts(word: str, following: str) -> bool:
    """Whether *word* is a day or place in a row, as in "am 3. Mai", "the 2. try"."""
    short = word.isdigit() and len(word) <= _DIGITS_OF_A_DAY
    in_row = following[0].islower() and _OPENERS.match(following) is None
    return short and (in_row or following.casefold().startswith(_MONTHS))


def _is_bullet(text: str, start: int, ending: re.Match[str]) -> bool:
    head = text[start : ending.start()].strip()
    return head.isdigit() and len(head) <= _DIGITS_OF_A_DAY  # "1. Buy milk"


def _append(found: list[str], piece: str) -> None:
    stripped = _BULLET.sub("", piece.strip())
    if any(character.isalnum() for character in stripped):
        found.append(stripped)
