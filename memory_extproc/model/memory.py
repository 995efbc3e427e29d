"""Memories and search results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memory_extproc.model.owner import Owner, OwnerKind

# Both are float32, every row of unit Euclidean length.
Vector = npt.NDArray[np.float32]  # shape (dimension,)
Matrix = npt.NDArray[np.float32]  # shape (n, dimension)
# Masks of attributes by row, of memories by their vectors and by whether they ask something.
AttributeReader = Callable[[Matrix, npt.NDArray[np.bool_]], npt.NDArray[np.int64]]


class MemoryType(StrEnum):
    SEMANTIC = "semantic"
    PROCEDURAL = "procedural"
    EPISODIC = "episodic"
    REFLECTIVE = "reflective"


class Role(StrEnum):
    """The author of a message. NONE: no verbatim message, such as an extracted fact."""

    USER = "user"
    ASSISTANT = "assistant"
    NONE = "none"


class MemoryState(StrEnum):
    ACTIVE = "active"
    SUPERSEDED = "superseded"
    QUARANTINED = "quarantined"
    DELETED = "deleted"


class Source(StrEnum):
    """The origin of a memory."""

    VERBATIM = "verbatim"  # a message as it was said
    QUESTION = "question"  # a message that only asks: context of its answer, never recalled itself
    RULES = "rules"  # extracted by the rules
    LLM = "llm"  # extracted by a model
    API = "api"  # written through the memory API
    SUMMARY = "summary"  # of a topic or session; its sources are in metadata.sources


@dataclass(frozen=True, slots=True)
class Period:
    """A past period from *first* up to *until*, exclusive."""

    first: datetime
    until: datetime


class Rating(StrEnum):
    """An owner's opinion of a memory. Values are stored, so a value is never renamed."""

    NONE = "none"
    HELPFUL = "helpful"  # found more easily, kept longer
    WRONG = "wrong"  # not recalled, and the first to go


RATING = "rating"  # in a memory's metadata
_RATINGS = {each.value: each for each in Rating}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A fact or message. Times are UTC in whole seconds; *content* is private."""

    id: str  # 64 hex digits of owner, turn and ordinal; never moves between owners
    owner: Owner
    type: MemoryType
    content: str = field(repr=False)
    source: Source
    created_at: datetime
    updated_at: datetime
    project: str = ""
    session: str = ""
    seq: int = 0
    role: Role = Role.NONE
    origin: str = ""
    state: MemoryState = MemoryState.ACTIVE
    importance: float = 0.5  # 0 to 1
    access_count: int = 0
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    expires_at: datetime | None = None
    superseded_by: str = ""
    embed_model: str = ""  # fingerprint of the model that made the vector
    metadata: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False)

    def recallable(self, now: datetime) -> bool:
        """Whether recall may ever return it at *now*: active, not expired, not a bare question, and not
        called wrong by its owner."""
        return (
            self.state is MemoryState.ACTIVE
            and self.source is not Source.QUESTION
            and (self.expires_at is None or now < self.expires_at)
            and self.rating is not Rating.WRONG
        )

    @property
    def rating(self) -> Rating:
        """The owner's opinion, from metadata; an imported file may hold any value there."""
        said = self.metadata.get(RATING)
        return _RATINGS.get(said, Rating.NONE) if isinstance(said, str) else Rating.NONE

    @property
    def head(self) -> MemoryHead:
        return MemoryHead(self.id, self.type, int(self.created_at.timestamp()))

    def held_in(self, period: Period, now: datetime) -> bool:
        """Whether it was valid during *period* and has been superseded since."""
        began = self.valid_from or self.created_at
        return (
            self.state is MemoryState.SUPERSEDED
            and self.source is not Source.QUESTION
            and self.valid_to is not None
            and began < period.until
            and period.first < self.valid_to
            and (self.expires_at is None or now < self.expires_at)
        )


def without_doubt(memory: Memory) -> Mapping[str, Any]:
    """Return the metadata of *memory* without a rating as wrong, for a memory that was confirmed."""
    if memory.rating is not Rating.WRONG:
        return memory.metadata
    return {name: value for name, value in memory.metadata.items() if name != RATING}


@dataclass(frozen=True, slots=True)
class Embedded:
    """A memory with the vector of its content."""

    memory: Memory
    vector: Vector = field(repr=False)


@dataclass(frozen=True, slots=True)
class Hit:
    """A search result; *cosine* in [-1, 1] to the query."""

    memory: Memory
    cosine: float


@dataclass(frozen=True, slots=True)
class Scope:
    """Narrows a search within an owner's memories. An empty *project* or *origins* means all.

    *as_of* widens it: memories valid then and superseded since are searched too.
    """

    project: str = ""
    types: frozenset[MemoryType] = frozenset(MemoryType)
    origins: tuple[str, ...] = ()  # globs over parts of Memory.origin, such as "route=support-*"
    sources: frozenset[Source] = frozenset(Source)
    as_of: Period | None = None

    def holds(self, memory: Memory) -> bool:
        narrow_enough = memory.type in self.types and (not self.project or memory.project == self.project)
        return narrow_enough and memory.source in self.sources and self.comes_from(memory.origin)

    def comes_from(self, origin: str) -> bool:
        """Whether *origins* admits a memory of *origin*."""
        if not self.origins:
            return True
        return any(fnmatchcase(part, wanted) for part in origin.split() for wanted in self.origins)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions of a list. All given conditions must hold; a condition with several values accepts any of them."""

    project: str = ""
    session: str = field(default="", repr=False)
    types: frozenset[MemoryType] = frozenset(MemoryType)
    sources: frozenset[Source] = frozenset(Source)
    states: frozenset[MemoryState] = frozenset({MemoryState.ACTIVE})
    after: datetime | None = None  # created then or later
    before: datetime | None = None  # created earlier

    def holds(self, memory: Memory) -> bool:
        return (
            memory.state in self.states
            and memory.type in self.types
            and memory.source in self.sources
            and (not self.project or memory.project == self.project)
            and (not self.session or memory.session == self.session)
            and (self.after is None or memory.created_at >= self.after)
            and (self.before is None or memory.created_at < self.before)
        )


class MemoryHead(NamedTuple):
    """The fields of a memory that place it in a list."""

    id: str
    type: MemoryType
    created: int  # seconds since 1970: a list of 10,000 needs no 10,000 datetimes


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Best first. *total*: the owner's memories in any state or scope; None if unknown."""

    found: tuple[Hit, ...]
    total: int | None
    path: str  # "hybrid" from the owner's partition in process, "store" from the store's own search


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A query: its text, and its vector if available."""

    text: str = field(repr=False)
    vector: Vector | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions for memories, any of which suffices.

    *attributes* is a mask of `text.attributes`; *names* are folded; *days* are the first and last day as
    date.toordinal(). *reads* finds attributes by vectors, beside those found by words, where vectors are at hand.
    """

    attributes: int = 0
    reads: AttributeReader | None = field(default=None, repr=False)
    names: frozenset[str] = field(default=frozenset(), repr=False)
    days: tuple[int, int] | None = None
    everything: bool = False
    most: int = 2_000  # memories, the newest


class Selected(NamedTuple):
    """A selected memory with the masks of its attributes, by its words and by its vector."""

    memory: Memory
    tells: int
    alike: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """The contextual vectors of a text's meaningful word pieces, packed by `index.packing`.

    At least one piece.
    """

    packed: npt.NDArray[np.uint8] = field(repr=False)  # (pieces, half the dimension)
    # (pieces,): factors that normalise the vectors to unit length
    scale: npt.NDArray[np.float32] = field(repr=False)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return int(self.packed.nbytes + self.scale.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Search candidates, unordered, with their features.

    *features* has a row for each memory and a column for each of *names*; NaN: unknown. *centre* and *spread* are
    mean and standard deviation of the columns over all *searched* memories, of which these are the most likely.
    *total*: the owner's memories in any state or scope; None if unknown.
    """

    memories: tuple[Memory, ...]
    names: tuple[str, ...]
    features: npt.NDArray[np.float64]
    centre: npt.NDArray[np.float64]
    spread: npt.NDArray[np.float64]
    searched: int
    total: int | None
    path: str  # "hybrid" or "lexical" from the owner's partition in process, "store" from the store's own search


# The limit of datetime; https://docs.python.org/3/library/datetime.html#datetime.MAXYEAR
_END_OF_TIME = 253_402_300_800.0  # the year 10000, in seconds since 1970


def seconds_said(value: object) -> float | None:
    """A time from metadata, in seconds since 1970; None if invalid.

    Metadata may come from a file, with an integer of any length.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < _END_OF_TIME else None


# The trust of a memory: by its origin, never more than that of anything it was made of.

TRUST = "trust"  # of metadata: the class, where it is another than role, source and owner say


class Trust(StrEnum):
    """From the most trusted to the least. The values are stored and public: none is renamed."""

    OPERATOR = "operator"  # an operator's, shared with everyone
    CALLER = "caller"  # the caller's own words
    CONFIRMED = "confirmed"  # another's words that the caller repeated
    IMPORT = "import"  # from a file
    MEMBER = "member"  # a project's
    ASSISTANT = "assistant"
    TOOL = "tool"  # from the results of tools, or from a document

    def covers(self, least: Trust) -> bool:
        """Whether it is trusted as far as *least*, or further."""
        return _RANKS[self] <= _RANKS[least]


_RANKS = {trust: rank for rank, trust in enumerate(Trust)}
_VALUES = {trust.value: trust for trust in Trust}


def least_trusted(classes: Iterable[Trust]) -> Trust:
    return max(classes, key=_RANKS.__getitem__)


def trust_of(memory: Memory) -> Trust:
    """The class in the metadata, else the class of role, source and owner, which rows of earlier versions have."""
    kind = memory.owner.kind
    if kind is OwnerKind.GLOBAL:
        return Trust.OPERATOR
    stored = memory.metadata.get(TRUST)
    trust = _VALUES.get(stored) if isinstance(stored, str) else None
    trust = trust or _of_origin(memory)
    return least_trusted((trust, Trust.MEMBER)) if kind is OwnerKind.PROJECT else trust


def trust_noted(memory: Memory, trust: Trust) -> dict[str, object]:
    """The metadata of *memory* with the class *trust*, which is written only where nothing else tells it."""
    metadata = {name: value for name, value in memory.metadata.items() if name != TRUST}
    return metadata if trust is _of_origin(memory) else {**metadata, TRUST: trust.value}


def _of_origin(memory: Memory) -> Trust:
    by_assistant = memory.role is Role.ASSISTANT or memory.source is Source.SUMMARY
    return Trust.ASSISTANT if by_assistant else Trust.CALLER


# Results of an import.


@dataclass(frozen=True, slots=True)
class ImportProblem:
    """Why a memory was rejected, without its text."""

    index: int  # its index in the stream, from 0
    id: str  # as it was sent
    reason: str  # a stable identifier: conflict, forgotten, bad_field, too_large, no_consent, deleted
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """The result of an import. *problems* are the first 1,000 conflicts and rejections."""

    added: int = 0
    same: int = 0
    replaced: int = 0
    conflicting: int = 0
    refused: int = 0
    problems: tuple[ImportProblem, ...] = ()
