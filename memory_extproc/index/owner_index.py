"""An index of an owner's memories by their words and surroundings.

Memories are added and dropped singly; values that depend on all memories are computed on demand. So the index
answers like a freshly filled index, whatever the order of changes."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
import numpy.typing as npt

from memory_extproc.index.entries import (
    ANSWERER,
    BY_ITSELF,
    CALLER,
    ConversationColumns,
    IndexedQuestion,
    IndexEntry,
    Term,
    Timeline,
    asked_of,
    entry_of,
    timeline_of,
)
from memory_extproc.index.features import IMAGINED, Known, Matched, of_vectors, of_words, standardise
from memory_extproc.model import Memory, MemoryState, Role, Source

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Singles = npt.NDArray[np.float32]

_FIRST_CAPACITY = 16
_LEAST_SPEAKING = 2  # memories with a name before their words that make the name a speaker's
_LEAST_DEAD = 64
_SEQ_MOST = 2**31 - 1
_NOBODY = -2
_ROLES = {role: number for number, role in enumerate(Role)}
_COLUMNS = np.dtype(
    [
        ("there", "?"),  # not dropped
        ("counts", "?"),  # counts: replaced, forgotten and held memories are no context and have no terms
        ("message", "?"),
        ("session", "i8"),
        ("seq", "i8"),
        ("piece", "i8"),
        ("role", "i8"),
        ("about_caller", "?"),
        ("length", "f8"),
        ("speaker", "i8"),
        ("said", "i8"),
        ("days", "i8", (2, 2)),
        ("by_itself", "f8", len(BY_ITSELF)),
    ]
)
_MESSAGES = frozenset({Source.VERBATIM, Source.QUESTION})


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """The features of messages whose likeliest pieces stand at *places*: rows of equal length in *by_name*."""

    places: npt.NDArray[np.int64]
    by_name: dict[str, Floats]


@dataclass(frozen=True, slots=True, eq=False)
class Worded:
    """The result of a search by words, before the vector of the question is known; of the memories at that time."""

    known: Known
    by_name: dict[str, Floats]
    pieces: Floats  # BM25 of each piece by itself

    def among(self, allowed: Bools) -> npt.NDArray[np.int64]:
        """Positions of the messages with a piece that is *allowed*, which is by place."""
        line = self.known.timeline
        return np.flatnonzero(line.reduce(np.logical_or, allowed[line.places]))

    def beside(self, dense: npt.NDArray[np.floating] | None) -> dict[str, Floats]:
        """The features that are still missing; *dense* are the cosines by place, None when there are none."""
        line = self.known.timeline
        cosines = None if dense is None else np.asarray(dense, dtype=np.float64)[line.places]
        return of_vectors(line, self.by_name["bm25"], cosines)

    def best_pieces(
        self, at: npt.NDArray[np.int64], dense: npt.NDArray[np.floating] | None, allowed: Bools
    ) -> npt.NDArray[np.int64]:
        """The place of the likeliest *allowed* piece, for each position *at*."""
        line = self.known.timeline
        if not line.in_pieces:
            return line.places[at]
        scores = standardise(self.pieces)
        if dense is not None:
            scores = scores + standardise(np.asarray(dense, dtype=np.float64)[line.places])
        return line.best_pieces(at, np.where(allowed[line.places], scores, -np.inf))


class OwnerIndex:
    """Places are the numbers of memories in the order they were added, from 0, never given twice. Not safe
    across threads."""

    def __init__(self) -> None:
        self._rows = np.zeros(0, dtype=_COLUMNS)
        self._entries: list[IndexEntry | None] = []
        self._postings = Postings()
        self._codes: dict[str, int] = {}  # of sessions and speakers
        self._speakers: Counter[str] = Counter()
        self._languages: Counter[str] = Counter()
        self._alive = 0
        self._bytes = 0
        self._known: Known | None = None
        self._positions: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return self._alive

    @property
    def size(self) -> int:
        """Bytes."""
        return self._bytes + self._postings.size + 2 * int(self._rows.nbytes)

    @property
    def needs_rebuild(self) -> bool:
        """Whether so many memories were dropped that the index should be built anew."""
        dead = len(self._entries) - self._alive
        return dead > max(_LEAST_DEAD, self._alive // 3)

    def add(self, memory: Memory) -> int:
        """Add *memory* and return its place, the next free place."""
        place = len(self._entries)
        if place == len(self._rows):
            grown = np.zeros(max(_FIRST_CAPACITY, place * 2), dtype=_COLUMNS)
            grown[:place] = self._rows
            self._rows = grown
        stands = memory.state is MemoryState.ACTIVE
        entry = entry_of(memory)
        row = self._rows[place]
        row["there"], row["counts"] = True, stands
        row["message"] = memory.source in _MESSAGES
        row["session"] = self._code(f"session:{memory.session}") if memory.session and stands else -1
        row["seq"] = min(max(memory.seq, 0), _SEQ_MOST)
        row["piece"] = memory.provenance.piece or 0
        row["role"] = _ROLES[memory.role]
        # A fact is about the caller, even if drawn from the assistant's words.
        row["about_caller"] = memory.role is Role.USER or memory.source in {Source.RULES, Source.LLM}
        row["length"], row["by_itself"] = entry.length, entry.by_itself
        row["speaker"] = self._code(f"speaker:{entry.speaker}") if entry.speaker else -1
        row["said"], row["days"] = entry.said, entry.days
        self._entries.append(entry)
        self._bytes += entry.size
        self._alive += 1
        self._known = None
        if stands:
            self._postings.add(place, entry.counts)
            self._speakers[entry.speaker] += 1
            self._languages[entry.language] += 1
        return place

    def drop(self, place: int) -> None:
        """Takes the memory at *place* out."""
        entry = self._entries[place]
        if entry is None:
            return
        self._entries[place] = None
        if self._rows[place]["counts"]:
            self._postings.drop(entry.counts)
            self._speakers[entry.speaker] -= 1
            self._languages[entry.language] -= 1
        self._rows[place]["there"] = False
        self._bytes -= entry.size
        self._alive -= 1
        self._known = None

    def keep(self, places: Sequence[int]) -> None:
        """Gives the memories at *places*, and no others are left, the places 0, 1, 2 … in this order."""
        entries = [self._entries[place] for place in places]
        rows = self._rows[np.asarray(places, dtype=np.int64)]
        self._rows, self._entries, self._known = rows, list(entries), None
        self._postings = Postings()
        for place, entry in enumerate(entries):
            if entry is not None and rows[place]["counts"]:
                self._postings.add(place, entry.counts)

    def rate(self, text: str, dense: npt.NDArray[np.floating] | None, today: date) -> Seen:
        """Every memory's features for the question *text*, asked on the day *today*; *dense* are the cosines by
        place, None when there are none."""
        worded = self.scan_words(text, today)
        everything = np.arange(len(worded.known.timeline))
        places = worded.best_pieces(everything, dense, np.ones(len(self._entries), dtype=bool))
        return Seen(places, worded.by_name | worded.beside(dense))

    def scan_words(self, text: str, today: date) -> Worded:
        """As `rate`, as far as words go."""
        known = self._all_known()
        asked = self.read_question(text, today)
        subjects = [self._is_said_by(known, one) for one in asked.subjects]
        return Worded(known, *of_words(known, self._match_terms(asked.terms, known.timeline), asked, subjects))

    def stands(self, worded: Worded) -> bool:
        """Whether nothing was added or taken out since."""
        return self._known is worded.known

    def read_question(self, text: str, today: date) -> IndexedQuestion:
        """*text* as this index reads it."""
        speakers = {name for name, count in self._speakers.items() if name and count >= _LEAST_SPEAKING}
        return asked_of(text, today, speakers, {name for name, count in self._languages.items() if count > 0})

    def _match_terms(self, terms: Sequence[Term], line: Timeline) -> Matched:
        shape = (len(terms), len(line.places))
        # Small whole numbers and closenesses: half the bytes to go through for the same figures.
        counts, near = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
        for at, term in enumerate(terms):
            for key in term.keys:
                self._lay(counts[at], key, None)
            np.copyto(near[at], counts[at] > 0)
            for other, closeness in term.near:
                self._lay(near[at], other, closeness)
        pieces = counts
        counts, near = line.reduce(np.add, counts), line.reduce(np.maximum, near)
        within = np.count_nonzero(counts, axis=1)
        idf = np.log1p((len(line) + IMAGINED - within + 0.5) / (within + 0.5))
        return Matched(pieces, counts, near, idf)

    def _lay(self, row: Singles, term: str, closeness: float | None) -> None:
        """Onto *row*, by piece: how often *term* stands there, or *closeness* where it stands at all."""
        postings = self._postings.of(term)
        if postings is None:
            return
        at = self._positions[postings[0]]
        there = at >= 0
        if closeness is None:
            row[at[there]] += postings[1][there]
        else:
            row[at[there]] = np.maximum(row[at[there]], closeness)

    def _all_known(self) -> Known:
        if self._known is not None:
            return self._known
        rows = self._rows[: len(self._entries)]
        line = timeline_of(
            ConversationColumns(
                there=rows["there"],
                message=rows["message"],
                session=rows["session"],
                seq=rows["seq"],
                piece=rows["piece"],
                role=rows["role"],
                asks=rows["by_itself"][:, BY_ITSELF.index("asks")] > 0,
            )
        )
        self._positions = np.full(len(rows), -1)
        self._positions[line.places] = np.arange(len(line.places))
        # Field by field: whole rows are copied through memory several times as wide.
        first = line.places[line.starts]  # all pieces have the same speaker
        piece_length: Floats = rows["length"][line.places]
        by_piece: Floats = np.ascontiguousarray(rows["by_itself"][line.places].T)
        length = line.reduce(np.add, piece_length)
        by_itself = line.reduce(np.maximum, by_piece).T.copy()
        by_itself[:, BY_ITSELF.index("length")] = np.log1p(length)
        role, speaker, about_caller = rows["role"][first], rows["speaker"][first], rows["about_caller"][first]
        self._known = Known(
            timeline=line,
            piece_length=piece_length,
            length=length,
            by_itself=by_itself,
            speaker=speaker,
            role=role,
            assistant=(role == _ROLES[Role.ASSISTANT]) & (speaker < 0) & ~about_caller,
            about_caller=about_caller,
            said=rows["said"][first],
            days=rows["days"][line.places],
        )
        return self._known

    def _is_said_by(self, known: Known, subject: str) -> Floats:
        """By position: 1 for words of *subject* or a fact about them, -1 for another subject, 0 for neither."""
        if subject == CALLER:
            found = np.where(known.about_caller, 1.0, -1.0)
        elif subject == ANSWERER:
            found = np.where(known.role == _ROLES[Role.ASSISTANT], 1.0, -1.0)
        else:
            found = np.where(known.speaker == self._codes.get(f"speaker:{subject}", _NOBODY), 1.0, -1.0)
        nobody = (known.role == _ROLES[Role.NONE]) & ~known.about_caller
        return np.where(nobody, 0.0, found)

    def _code(self, name: str) -> int:
        return self._codes.setdefault(name, len(self._codes))


# Which memories a term stands in, and how often: lists that only grow, until they are made anew.

_PER_TERM = 250  # bytes of an entry of the dictionary with its two arrays
_PER_POSTING = 8


class Postings:
    """Places are numbers that the caller gives out, each once."""

    def __init__(self) -> None:
        self._places: dict[str, array[int]] = {}
        self._counts: dict[str, array[int]] = {}
        self._alive: Counter[str] = Counter()  # memories with a term, without dropped memories
        self._postings = 0

    @property
    def size(self) -> int:
        """Bytes."""
        return _PER_TERM * len(self._places) + _PER_POSTING * self._postings

    def add(self, place: int, counts: Mapping[str, int]) -> None:
        for term, count in counts.items():
            if term not in self._places:
                self._places[term], self._counts[term] = array("i"), array("H")
            self._places[term].append(place)
            self._counts[term].append(min(count, 65_535))
            self._alive[term] += 1
        self._postings += len(counts)

    def drop(self, counts: Mapping[str, int]) -> None:
        """Drop the counts of an added memory; its place stays in the lists, where the caller skips it."""
        for term in counts:
            self._alive[term] -= 1

    def within(self, term: str) -> int:
        """How many memories *term* stands in."""
        return self._alive.get(term, 0)

    def of(self, term: str) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint16]] | None:
        """Places and counts, dropped memories included; None for an unknown term. Copies, because a view would keep
        the lists from growing."""
        places = self._places.get(term)
        if places is None:
            return None
        return np.array(places, dtype=np.int32), np.array(self._counts[term], dtype=np.uint16)
