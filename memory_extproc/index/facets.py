"""Facets of the memories of an owner: attributes, days and names, for questions of a kind and not by likeness.

A facet is made from its row when the row comes, and goes with it, so a forgotten memory cannot be found by it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from memory_extproc.index.entries import days_told, entry_of
from memory_extproc.model import AttributeReader, Matrix, Memory, Role, Selected, Selection, Source
from memory_extproc.text.attributes import ATTRIBUTES, plain_words, word_set
from memory_extproc.text.persons import NAMED_SHARE, subject
from memory_extproc.text.words import LEXICONS, MOST_SETS, PHRASES, memoize_by_hash

_FIRST_CAPACITY = 16
_READ = 600  # characters that are searched for names
_MOST_NAMES = 12  # of one memory
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
_NAME = re.compile(r"(?<![\w'-])[A-Z\u00c0-\u00de][\w-]*[a-z\u00df-\u00ff][\w-]*")
_NO_NAMES = frozenset(PHRASES["no_names"].split()).union(*(lexicon.stop for lexicon in LEXICONS.values()))


@memoize_by_hash(MOST_SETS)
def names_in(text: str) -> frozenset[str]:
    """Names of people, places, organisations and things in *text*, folded and word by word."""
    found: dict[str, None] = {}
    for name in _NAME.findall(text[:_READ]):
        for word in plain_words(name):
            if len(word) > 1 and word not in _NO_NAMES and not ATTRIBUTES.named_in([word]):
                found.setdefault(word.removesuffix("'s"))
        if len(found) >= _MOST_NAMES:
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
