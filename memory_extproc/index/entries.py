"""Entries of the index: the terms of a memory and its traits that need no question; and facets, which are
attributes, days and names, for questions of a kind.

An entry or a facet is made from its row when the row comes, and goes with it, so a forgotten memory cannot be found
by it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property, lru_cache
from math import log1p
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from memory_extproc.model import AttributeReader, Matrix, Memory, Role, Selected, Selection, Source, WordPieces
from memory_extproc.text import lazy_re as re
from memory_extproc.text.attributes import ATTRIBUTES, plain_words, word_set
from memory_extproc.text.dates import Span, days_asked_for, days_named
from memory_extproc.text.persons import NAMED_SHARE, about_caller, subject
from memory_extproc.text.words import (
    LEXICONS,
    MONTHS,
    MOST_SETS,
    PHRASES,
    fold,
    memoize_by_hash,
    rarity,
    related_stems,
    terms,
    terms_in,
    tokens,
)

# Features of a memory by itself, in this order.
BY_ITSELF = ("length", "rarity", "asks", "ends_asking", "tells_time", "tells_number", "tells_names")
NO_DAYS: Span = (0, 0)
_SPANS = 2  # spans of days kept of a memory
_MOST_NAMES = 3
_SPEAKER = re.compile(r"^([A-Z\u00c0-\u024f][\w'-]{0,30}): ")
_MARKS = re.compile(r"[?\uff1f\u061f]")
_ENDS_ASKING = re.compile(r"[?\uff1f\u061f][\"')\]\s]*$")
_TIME = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|recently|since|ago|the other day|(?:last|next|this)\s+(?:week|month|"
    r"year|night|weekend|summer|winter|spring|fall|autumn|morning|past|mon|tue|wed|thu|fri|sat|sun)\w*|"
    rf"(?:in|on)\s+(?:{MONTHS})|(?:19|20)\d\d)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|first|second|twice|once|couple|few)\b", re.IGNORECASE
)
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]+")
_READ = 2_000  # characters that the marks are looked for in; terms are taken of all


@dataclass(frozen=True, slots=True)
class IndexEntry:
    counts: Mapping[str, int]  # how often each term stands in it
    length: int  # in terms, at least 1
    language: str
    speaker: str  # "caroline" where a name stands before the words ("Caroline: …"), else empty
    by_itself: tuple[float, ...]  # as BY_ITSELF has it
    days: tuple[Span, ...]  # always two: days it names, NO_DAYS where it names fewer
    said: int  # the day it was said or made, as an ordinal

    @property
    def size(self) -> int:
        """About the bytes it takes, postings included."""
        return 400 + 24 * len(self.counts)


def entry_of(memory: Memory) -> IndexEntry:
    """Linear in the words: about 0.1 ms for a message of a chat, 2 ms for 8 KiB; recent entries are cached. So many
    memories are read ahead, a few at a time, with other work in between."""
    said = (memory.valid_from or memory.created_at).date().toordinal()
    return _read(memory.content, said, memory.role is Role.NONE)


def days_told(content: str, said: int) -> Sequence[Span]:
    """The first days that *content*, said on the day *said*, names."""
    return days_named(content[:_READ], date.fromordinal(said))[:_SPANS]


@lru_cache(maxsize=256)
def _read(content: str, said: int, nobody: bool) -> IndexEntry:  # noqa: FBT001 - a key of the cache
    found, language = terms(content)
    counts = Counter(found)
    beginning = content[:_READ]
    days = days_told(content, said)
    speaker = None if nobody else _SPEAKER.match(content)
    marks = (
        log1p(len(found)),
        sum(map(rarity, counts)) / max(1, len(counts)),
        float(_MARKS.search(beginning) is not None),
        float(_ENDS_ASKING.search(content[-40:]) is not None),
        float(_TIME.search(beginning) is not None),
        float(_NUMBER.search(beginning) is not None),
        float(min(_MOST_NAMES, len(_NAME.findall(beginning)))),
    )
    return IndexEntry(
        counts=counts,
        length=max(1, len(found)),
        language=language,
        speaker=fold(speaker[1]) if speaker else "",
        by_itself=marks,
        days=(*days, *(NO_DAYS,) * (_SPANS - len(days))),
        said=said,
    )


# A question for the index: its terms, subjects, days and expected kind of answer.

CALLER, ANSWERER = "<caller>", "<answerer>"  # subjects without a name; no name looks like these
MOST_TERMS = 24  # a longer query repeats itself, and every term costs time
_MOST_RELATED = 12  # of a term

_WHEN = re.compile(
    r"\b(?:when|how long|what (?:date|year|month|day|time)|wann|quand|cu\u00e1ndo|quando)\b", re.IGNORECASE
)
_WHICH_NAME = re.compile(
    r"^\W*(?:who|whose|where|which|what(?:'s|\s+is|\s+was)?\s+(?:the\s+|my\s+)?"
    r"(?:name|book|movie|game|city|country|state|band|song))\b",
    re.IGNORECASE,
)
# "You suggested a plan", "your last draft": about the assistant's own words.
_OF_ASSISTANT = re.compile(
    r"\b(?:you(?:'ve|'d| have| had| just| already| once| did| also)* (?:(?:say|said|t(?:ell|old)|mean|meant|"
    r"g[ai]ve|given|wr[io]te|written|draw|drew|drawn|show(?:n)?|sen[dt]|ma[dk]e|built|build|c[ao]me up)\b"
    r"|(?:suggest|recommend|mention|propos|advi[sc]|explain|describ|list|shar|outlin|provid|draft|creat|generat|"
    r"answer|repl[iy]|summari|point|calculat|walk)\w*)"
    r"|your (?:\w+ ){0,2}(?:suggest|recommend|advice|answer|plan|list|expla|respon|propos|draft|summar|outline|"
    r"version|code|script|example|instruction)\w*"
    r"|hast du|haben sie|dein(?:e[mnrs]?)? (?:vorschl|antwort|plan|liste)\w*|(?:tu m'as|vous m'avez)"
    r"|me (?:dijiste|recomendaste|sugeriste|diste|explicaste))",
    re.IGNORECASE,
)
_ADDRESSES = re.compile(r"\b(?:you|your|yours)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Term:
    """*keys*: the keys of the term in the languages at hand; *near*: terms close in meaning, with their
    closeness."""

    keys: tuple[str, ...]
    near: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class IndexedQuestion:
    terms: tuple[Term, ...]
    subjects: tuple[str, ...]  # in the order it names them: names of speakers, CALLER, ANSWERER
    days: tuple[Span, ...]
    when: bool
    which_name: bool
    of_assistant: bool  # about the assistant's words


def asked_of(text: str, today: date, speakers: Collection[str], languages: Collection[str]) -> IndexedQuestion:
    """*speakers* and *languages* of the searched memories. Names of speakers are no terms: they stand for the
    speaker of a memory."""
    text = text[:_READ]
    words = [fold(token).partition("'")[0] for token in tokens(text)]
    named = [word for word in dict.fromkeys(words) if word in speakers]
    found, language = terms(text)
    others = [terms_in(text, other) for other in sorted(languages) if other != language]
    # Stems of languages are comparable only if the languages drop the same words.
    rows = [found, *(other for other in others if len(other) == len(found))]
    names = {key for name in named for key in terms_in(name, language)}
    keys = dict.fromkeys(
        tuple(dict.fromkeys(column)) for column in zip(*rows, strict=True) if column[0] not in names
    )
    return IndexedQuestion(
        terms=tuple(
            Term(key, related_stems(key[0])[:_MOST_RELATED] if language == "en" else ())
            for key in list(keys)[:MOST_TERMS]
        ),
        subjects=tuple(named) or _by_person(text),
        days=days_asked_for(text, today),
        when=_WHEN.search(text) is not None,
        which_name=_WHICH_NAME.search(text) is not None,
        of_assistant=_OF_ASSISTANT.search(text) is not None,
    )


def _by_person(text: str) -> tuple[str, ...]:
    if not about_caller(text):
        return ()
    # "What did you tell me?" is about both.
    return (CALLER, ANSWERER) if _ADDRESSES.search(text) else (CALLER,)


# Messages in the order of saying, session by session, and sums over their surroundings.
#
# A long message is several memories, its pieces, but counts as a single message: otherwise its pieces would compete
# with each other, be each other's surroundings and crowd out short messages.

Ints = npt.NDArray[np.int64]
AnyNumbers = TypeVar(
    "AnyNumbers", npt.NDArray[np.bool_], npt.NDArray[np.float32], npt.NDArray[np.float64], npt.NDArray[np.int64]
)
Sums = npt.NDArray[np.floating]
Bools = npt.NDArray[np.bool_]

_SEQ_BITS = 32
_LOOKS_BACK = 2  # messages: the answer to a question is the next message or the message after it


@dataclass(frozen=True, eq=False)
class Timeline:
    """All arrays but *places* are by position: messages in the order of their sessions, behind them
    memories without a session. *first* and *end* bound the session of a position, half open; a memory without a
    session is its own."""

    places: Ints  # of the memories: the pieces of all messages in their order
    starts: Ints  # where in *places* the pieces of a position begin
    first: Ints
    end: Ints
    session: Ints  # a number for each session, from 0
    anchor: Ints  # the position of the message that a fact was taken from, else the position itself
    question: Ints  # the position of the question that a message follows; -1 where it follows none
    alone: Bools  # nothing stands around the position or its anchor

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def sessions(self) -> int:
        return int(self.session[-1]) + 1 if len(self.session) else 0

    @property
    def in_pieces(self) -> bool:
        """Whether any message has several pieces."""
        return len(self.starts) < len(self.places)

    def reduce(self, ufunc: np.ufunc, values: AnyNumbers) -> AnyNumbers:
        """*values*, by piece along the last axis, reduced to a value for each position."""
        if not self.in_pieces:
            return values
        reduced: AnyNumbers = ufunc.reduceat(values, self.starts, axis=-1)
        return reduced

    def best_pieces(self, at: Ints, scores: npt.NDArray[np.float64]) -> Ints:
        """The place of the piece with the highest of *scores* (by piece), for each position *at*."""
        if not self.in_pieces:
            return self.places[at]
        ends = np.append(self.starts[1:], len(self.places))
        spans = zip(self.starts[at].tolist(), ends[at].tolist(), strict=True)
        best = [low if end - low == 1 else low + int(scores[low:end].argmax()) for low, end in spans]
        return self.places[np.array(best, dtype=np.int64)]

    def window(self, reach: int) -> tuple[Ints, Ints]:
        """For each position, where the positions at most *reach* away in its session begin and end, half open."""
        known = self._windows.get(reach)
        if known is None:
            at = np.arange(len(self))
            known = np.maximum(at - reach, self.first), np.minimum(at + reach + 1, self.end)
            self._windows[reach] = known
        return known

    @cached_property
    def _windows(self) -> dict[int, tuple[Ints, Ints]]:
        return {}

    def around(self, running: Sums, reach: int) -> Sums:
        """Sums over the positions at most *reach* away within the session; *running* as `running_sums` gives."""
        low, high = self.window(reach)
        found: Sums = np.take(running, high, axis=-1) - np.take(running, low, axis=-1)
        return found


def running_sums(values: npt.NDArray[np.floating]) -> Sums:
    """Running sums of the last axis, with a leading zero."""
    total: Sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1), dtype=values.dtype)
    np.cumsum(values, axis=-1, out=total[..., 1:])
    return total


@dataclass(frozen=True, slots=True, eq=False)
class ConversationColumns:
    """By place: where in which conversation a memory belongs. *session* -1: in none."""

    there: Bools
    message: Bools  # a literal message, not a fact drawn from it
    session: Ints
    seq: Ints
    piece: Ints  # of a message in several
    role: Ints
    asks: Bools


def timeline_of(said: ConversationColumns) -> Timeline:
    """Equal for the same memories at any places, but for the order of sessions and of memories without a session,
    on which no sum depends."""
    told = said.there & said.message & (said.session >= 0)
    pieces = np.flatnonzero(told)
    pieces = pieces[np.lexsort((said.piece[pieces], said.seq[pieces], said.session[pieces]))]
    keys = (said.session[pieces] << _SEQ_BITS) + said.seq[pieces]
    begins = np.flatnonzero(np.diff(keys, prepend=-1))  # of messages, among their pieces
    keys, order = keys[begins], pieces[begins]
    rest = np.flatnonzero(said.there & ~told)
    of, count, total = said.session[order], len(order), len(order) + len(rest)
    starts = np.concatenate([begins, len(pieces) + np.arange(len(rest))])
    first, end = np.arange(total), np.arange(1, total + 1)
    first[:count], end[:count] = np.searchsorted(of, of, "left"), np.searchsorted(of, of, "right")
    session = np.cumsum(first == np.arange(total)) - 1
    anchor = np.arange(total)
    if count and len(rest):
        wanted = (said.session[rest] << _SEQ_BITS) + said.seq[rest]
        at = np.minimum(np.searchsorted(keys, wanted), count - 1)
        anchor[count:] = np.where((said.session[rest] >= 0) & (keys[at] == wanted), at, anchor[count:])
    places = np.concatenate([pieces, rest])
    asks = np.logical_or.reduceat(said.asks[places], starts) if len(starts) else said.asks[places]
    return Timeline(
        places=places,
        starts=starts,
        first=first,
        end=end,
        session=session,
        anchor=anchor,
        question=_questions(first, asks, said.role[places[starts]]),
        alone=(end - first)[anchor] <= 1,
    )


def _questions(first: Ints, asks: Bools, role: Ints) -> Ints:
    at = np.arange(len(first))
    found = np.full(len(first), -1)
    for back in range(_LOOKS_BACK, 0, -1):  # the nearest counts
        before = np.maximum(at - back, 0)
        found = np.where((at - back >= first) & asks[before] & (role[before] != role), before, found)
    return found


# Word vectors, packed: four bits a number, which changed no figure of recall against the model's own 32.
#
# A match is a sum over hundreds of numbers, so that their rounding errors even out.

Singles = npt.NDArray[np.float32]

_MOST = 7  # of a number; kept with _ZERO added, so that it fits four bits without a sign
_ZERO = 8
_BITS = 4
_LOW = 0x0F
_LEAST = 1e-6


def pack(vectors: Singles) -> WordPieces:
    """Pack *vectors*: a row for each piece, at least a single row, of any length; zeros stay zeros."""
    steps = np.maximum(np.abs(vectors).max(axis=1), _LEAST) / _MOST
    rounded = np.round(vectors / steps[:, None])
    # The length of the packed vector, so that a piece is nearest to itself.
    lengths = np.maximum(np.sqrt(np.einsum("ij,ij->i", rounded, rounded)), _LEAST)
    numbers = (rounded + _ZERO).astype(np.uint8)
    if numbers.shape[1] % 2:
        numbers = np.pad(numbers, ((0, 0), (0, 1)), constant_values=_ZERO)
    half = numbers.shape[1] // 2
    return WordPieces(numbers[:, :half] | (numbers[:, half:] << _BITS), (1.0 / lengths).astype(np.float32))


def unpack(words: WordPieces) -> Singles:
    """A row of unit length for each piece; an odd dimension gets a further zero."""
    numbers = np.concatenate([words.packed & _LOW, words.packed >> _BITS], axis=1).astype(np.float32)
    found: Singles = (numbers - _ZERO) * words.scale[:, None]
    return found


def together(several: Sequence[WordPieces]) -> WordPieces:
    """All pieces of *several*, in order."""
    return WordPieces(
        np.concatenate([one.packed for one in several]), np.concatenate([one.scale for one in several])
    )


def cosines(pieces: WordPieces, asked: Singles) -> Singles:
    """A row for each of *pieces*, a column for each row of *asked*, which are of unit length. The pieces are never
    unpacked as a whole."""
    there = asked.T
    half = len(there) // 2
    sums = (pieces.packed & _LOW).astype(np.float32) @ there[:half]
    sums += (pieces.packed >> _BITS).astype(np.float32) @ there[half:]
    sums -= _ZERO * there.sum(axis=0)
    found: Singles = sums * pieces.scale[:, None]
    return found


# --- facets ------------------------------------------------------------------------------------------


_FIRST_CAPACITY = 16
_READ_FOR_NAMES = 600  # characters that are searched for names
_MOST_NAMES_SET = 12  # of one memory
_COLUMNS = np.dtype(
    [
        ("tells", np.int64),
        ("own", np.bool_),  # a fact or the owner's words, in a language that vectors are read in
        ("alike", np.int64),  # attributes by the vector
        ("said", np.int32),
        ("days", np.int32, (2, 2)),
    ]
)
_READ_BY_VECTOR = frozenset({"", "en"})  # languages
_FACTS = frozenset({Source.RULES, Source.LLM, Source.API})
_NAME_WORD = re.compile(r"(?<![\w'-])[A-Z\u00c0-\u00de][\w-]*[a-z\u00df-\u00ff][\w-]*")
_NO_NAMES = frozenset(PHRASES["no_names"].split()).union(*(lexicon.stop for lexicon in LEXICONS.values()))


@memoize_by_hash(MOST_SETS)
def names_in(text: str) -> frozenset[str]:
    """Names of people, places, organisations and things in *text*, folded and word by word."""
    found: dict[str, None] = {}
    for name in _NAME_WORD.findall(text[:_READ_FOR_NAMES]):
        for word in plain_words(name):
            if len(word) > 1 and word not in _NO_NAMES and not ATTRIBUTES.named_in([word]):
                found.setdefault(word.removesuffix("'s"))
        if len(found) >= _MOST_NAMES_SET:
            break
    return frozenset(found)


def spells(text: str, names: frozenset[str]) -> bool:
    """Whether one of *names* is a word of *text*, in any case and with an s behind it."""
    folded = text.casefold()
    if not any(name in folded for name in names):
        return False
    words = (word.removesuffix("'s") for word in word_set(text))
    return any(word in names or word.removesuffix("s") in names for word in words)


def tells_of(memory: Memory) -> int:
    """The mask of the attributes that *memory* tells of its owner; an assistant's words tell of no attribute."""
    if not _is_own(memory):
        return 0
    named = memory.provenance.attribute if memory.source in _FACTS else ""
    return ATTRIBUTES.told_by(memory.content, named)


def _is_own(memory: Memory) -> bool:
    return memory.source in _FACTS or (memory.source is Source.VERBATIM and memory.role is Role.USER)


class Facets:
    """By the places that `OwnerIndex` gives. Not safe across threads."""

    def __init__(self) -> None:
        self._rows = np.zeros(0, dtype=_COLUMNS)
        self._names: defaultdict[str, set[int]] = defaultdict(set)
        self._named: dict[int, frozenset[str]] = {}
        self._names_held = 0  # a name counts for each memory that has it
        self._read: tuple[AttributeReader | None, int] = (None, 0)  # and the places that it has read

    @property
    def size(self) -> int:
        """About the bytes it takes."""
        return int(self._rows.nbytes) + 150 * self._names_held

    def add(self, place: int, memory: Memory) -> None:
        """Costs about 0.05 ms for a message of a chat."""
        if place >= len(self._rows):
            grown = np.zeros(max(_FIRST_CAPACITY, place * 2), dtype=_COLUMNS)
            grown[: len(self._rows)] = self._rows
            self._rows = grown
        entry = entry_of(memory)
        who, sure = subject(memory.content)
        named_another = sure == NAMED_SHARE and who not in {"we", "they", "you"}  # "Priscilla has a daughter"
        own = _is_own(memory) and entry.language in _READ_BY_VECTOR and not named_another
        self._rows[place] = (tells_of(memory), own, 0, entry.said, entry.days)
        if names := names_in(memory.content):
            self._named[place] = names
            self._names_held += len(names)
            for name in names:
                self._names[name].add(place)

    def drop(self, place: int) -> None:
        names = self._named.pop(place, frozenset())
        self._names_held -= len(names)
        for name in names:
            self._names[name].discard(place)
            if not self._names[name]:
                del self._names[name]

    def keep(self, places: Sequence[int]) -> None:
        """Gives the memories at *places*, and no others are left, the places 0, 1, 2 … in this order."""
        self._rows = self._rows[np.asarray(places, dtype=np.int64)]
        self._read = (None, 0)
        named, self._named = self._named, {}
        self._names, self._names_held = defaultdict(set), 0
        for new, old in enumerate(places):
            if names := named.get(old):
                self._named[new] = names
                self._names_held += len(names)
                for name in names:
                    self._names[name].add(new)

    def read_vectors(self, reader: AttributeReader, vectors: Matrix) -> None:
        """Let *reader* find attributes by *vectors*, which stand by place; each place is read once."""
        known, start = self._read
        start = start if known == reader else 0
        if start < len(vectors):
            rows = self._rows[start : len(vectors)]
            rows["alike"] = np.where(rows["own"], reader(vectors[start:]), 0)
            self._read = (reader, len(vectors))

    def select(self, wanted: Selection, count: int) -> npt.NDArray[np.bool_]:
        """A mask over the first *count* places: true where a memory is *wanted*."""
        rows = self._rows[:count]
        if wanted.everything:
            return np.ones(count, dtype=np.bool_)
        tells = rows["tells"] if wanted.reads is None else rows["tells"] | rows["alike"]
        found: npt.NDArray[np.bool_] = (tells & wanted.attributes) != 0
        if wanted.days is not None:
            first, last = wanted.days
            found |= (rows["said"] >= first) & (rows["said"] <= last)
            starts, ends = rows["days"][:, :, 0], rows["days"][:, :, 1]
            # A memory about a whole year says nothing of a day in it.
            within = (starts > 0) & (starts >= first) & (ends <= last)
            found |= within[:, 0] | within[:, 1]
        for name in wanted.names:
            found[[place for place in self._names.get(name, ()) if place < count]] = True
        return found

    def masks(self, places: npt.NDArray[np.int64], wanted: Selection) -> tuple[list[int], list[int]]:
        """The attributes of the memories at *places*, by their words and, where *wanted* reads them, by vectors."""
        rows = self._rows[places]
        return rows["tells"].tolist(), (rows["alike"] if wanted.reads else 0 * rows["alike"]).tolist()


def select_among(memories: Iterable[Memory], wanted: Selection) -> list[Selected]:
    """As `Facets.select`, over memories that are not held in process. Reads only the facets in *wanted*."""
    return [Selected(memory, tells_of(memory)) for memory in memories if _is_selected(memory, wanted)]


def _is_selected(memory: Memory, wanted: Selection) -> bool:
    if wanted.everything:
        return True
    if wanted.attributes and tells_of(memory) & wanted.attributes:
        return True
    if wanted.names and not names_in(memory.content).isdisjoint(wanted.names):
        return True
    if wanted.spelled and spells(memory.content, wanted.spelled):
        return True
    if wanted.days is None:
        return False
    first, last = wanted.days
    said = (memory.valid_from or memory.created_at).date().toordinal()
    return first <= said <= last or any(
        first <= start and end <= last for start, end in days_told(memory.content, said)
    )
