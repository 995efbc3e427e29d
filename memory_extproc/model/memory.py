"""Memories, their provenance, and search results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt

from memory_extproc.model.owner import Owner, OwnerKind

# Both are float32, every row of unit Euclidean length.
Vector = npt.NDArray[np.float32]  # shape (dimension,)
Matrix = npt.NDArray[np.float32]  # shape (n, dimension)
# Masks of attributes by row, of memories by their vectors.
AttributeReader = Callable[[Matrix], npt.NDArray[np.int64]]


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
    SUMMARY = "summary"  # of a topic or session; its sources are in provenance.sources


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


class Trust(StrEnum):
    """The trust of a memory: by its origin, never more than that of anything it was made of.

    From the most trusted to the least. The values are stored and public: none is renamed."""

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


def least_trusted(classes: Iterable[Trust]) -> Trust:
    return max(classes, key=_RANKS.__getitem__)


# The limit of datetime; https://docs.python.org/3/library/datetime.html#datetime.MAXYEAR
_END_OF_TIME = 253_402_300_800.0  # the year 10000, in seconds since 1970

Ids = tuple[str, ...]
Seconds = Annotated[float | None, "seconds since 1970"]  # up to the year 10000
Number = int | None


# A Struct, not a dataclass: loading an owner's memories builds thousands, and a Struct of 50 fields takes 1/40 of
# the time.
class Provenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The origin and the history of a memory. Names are stored and public: none is renamed.

    A field that has its default is not stored. A value of another type than its name has here, as an imported file
    may hold, stands in *extra*: it is kept, and no reader sees it."""

    # The turn.
    turn: str = ""  # its id
    said: Seconds = None  # the time of the turn, with fractions, unlike the times of rows
    ordinal: Number = None  # place of a fact among the facts of its turn
    piece: Number = None  # place of a chunk in a long message
    whole: str = ""  # a chunk or shortened message: hash of the whole message
    heard: str = ""  # a message: Turn.heard
    speaker: str = ""  # a shared memory: keyed hash of the member
    # The statement of a fact.
    subject: str = ""
    attribute: str = ""
    value: str = ""
    ends: bool = False  # it states that something holds no longer
    context: str = ""
    event_date: str = ""
    # Extraction and screening.
    version: str = ""  # of the rules, or of the prompt
    confidence: float | None = None  # 0 to 1
    judge: str = ""  # version of the prompt that compared it with earlier facts
    trust: Trust | None = None  # None: by role, source and owner
    sensitivity: str = ""  # special category of personal data
    suspicion: str = ""  # reason of a quarantine
    released: bool = False  # from quarantine
    # Related facts and turns.
    drawn_from: Ids = ()  # a fact drawn from several turns: their ids; without *turn* those of its kept details
    beside: Ids = ()  # the other facts of its turn
    replaces: Ids = ()  # the facts that it replaced
    corrects: Ids = ()  # the turns of the facts that it replaced
    confirmations: int = 0
    also: dict[str, Ids] = {}  # the later turns that repeated it, each with the facts beside it
    # A memory derived from others.
    derived: str = ""  # "history", "reflection" or "subject"
    sources: Ids = ()  # the memories that it was derived from
    past: Ids | None = None  # sources that were already history; None: times decide
    made: Seconds = None  # the time of reading the sources
    # A summary.
    kind: str = ""  # topic, part, session or subject
    name: str = ""  # a topic's
    level: Number = None  # 1: of topics; higher: of summaries
    levels: Number = None
    span: tuple[int, int] | None = None  # places of its messages in the session, half open
    until: Seconds = None  # the time of its last turn
    turns: Number = None
    ratio: float | None = None  # its tokens to the tokens of its sources
    # Later changes.
    revision: Number = None  # corrections by a person, plus 1
    rating: Rating = Rating.NONE
    pinned: bool = False  # exempt from pruning; any API client with write access may set it
    accessed: Seconds = None  # the last time that a model was given it, in whole seconds
    merged: str = ""  # id of the memory that repeats its content
    retired: str = ""  # reason of a soft deletion
    retired_at: Seconds = None
    retired_from: str = ""  # the state before
    unretired: Seconds = None  # the time of its owner's undoing a soft deletion
    sealed: str = ""  # in an encrypted store: all other fields, encrypted
    # Opaque fields of its owner, and values that no reader accepts.
    extra: dict[str, Any] = {}

    def __repr__(self) -> str:
        """Subject, value and extra fields are private."""
        return "Provenance(…)"

    @classmethod
    def decode(cls, metadata: Mapping[str, Any]) -> Provenance:
        """Read the stored form. It may come from a file, with any JSON value anywhere."""
        known: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for name, value in metadata.items():
            read = _READERS.get(name)
            said = None if read is None else read(value)
            if said is None or said == _DEFAULTS[name]:
                extra[name] = value
            else:
                known[name] = said
        return cls(**known, extra=extra) if extra else cls(**known)

    def encode(self) -> dict[str, Any]:
        """The stored and public form: JSON values by name."""
        stated = {name: value for name in _DEFAULTS if (value := getattr(self, name)) != _DEFAULTS[name]}
        return {**self.extra, **{name: _plain(value) for name, value in stated.items()}}

    def replace(self, **changes: Any) -> Provenance:
        return msgspec.structs.replace(self, **changes)

    def with_fields(self, metadata: Mapping[str, Any]) -> Provenance:
        """Overwrite with the fields of *metadata*, in the stored form."""
        return self.decode({**self.encode(), **metadata})

    def without_doubt(self) -> Provenance:
        """Remove a rating as wrong, as for a memory that was confirmed."""
        return self.replace(rating=Rating.NONE) if self.rating is Rating.WRONG else self


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, dict):
        return {name: list(ids) for name, ids in value.items()}
    return value.value if isinstance(value, Enum) else value


# Readers of single values: None for a value of another type.


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    return value if type(value) is int else None


def _number(value: object) -> float | None:
    return value if type(value) in {int, float} else None  # type: ignore[return-value]


def _seconds(value: object) -> float | None:
    number = _number(value)
    return number if number is not None and 0 <= number < _END_OF_TIME else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _ids(value: object) -> Ids | None:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list | tuple) else None


def _ids_by_turn(value: object) -> dict[str, Ids] | None:
    return {turn: _ids(ids) or () for turn, ids in value.items()} if isinstance(value, Mapping) else None


def _span(value: object) -> tuple[int, int] | None:
    ends = value if isinstance(value, list | tuple) else ()
    return (ends[0], ends[1]) if len(ends) == 2 and all(type(end) is int for end in ends) else None  # noqa: PLR2004


def _rating(value: object) -> Rating | None:
    return _RATINGS.get(value) if isinstance(value, str) else None


def _trust(value: object) -> Trust | None:
    return _TRUSTS.get(value) if isinstance(value, str) else None


_RATINGS = {each.value: each for each in Rating}
_TRUSTS = {each.value: each for each in Trust}
_OF_TYPE: dict[Any, Callable[[object], Any]] = {
    str: _text, int: _whole, Number: _whole, float | None: _number, Seconds: _seconds, bool: _flag, Ids: _ids,
    Ids | None: _ids, dict[str, Ids]: _ids_by_turn, tuple[int, int] | None: _span, Rating: _rating,
    Trust | None: _trust,
}  # fmt: skip
_HINTS = get_type_hints(Provenance, include_extras=True)
_READERS = {name: _OF_TYPE[kind] for name, kind in _HINTS.items() if name != "extra"}
_DEFAULTS = {name: getattr(Provenance(), name) for name in _READERS}


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
    provenance: Provenance = field(default=Provenance(), repr=False)  # stored as `metadata`

    def recallable(self, now: datetime) -> bool:
        """Whether recall may ever return it at *now*: active, not expired, not a bare question, and not
        called wrong by its owner."""
        return (
            self.state is MemoryState.ACTIVE
            and self.source is not Source.QUESTION
            and (self.expires_at is None or now < self.expires_at)
            and self.provenance.rating is not Rating.WRONG
        )

    @property
    def head(self) -> MemoryHead:
        expires = 0 if self.expires_at is None else int(self.expires_at.timestamp())
        return MemoryHead(self.id, self.type, int(self.created_at.timestamp()), self.state, self.source, expires)

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
    rating: Rating | None = None  # helpful or wrong; None: any

    def holds(self, memory: Memory) -> bool:
        return (
            memory.state in self.states
            and memory.type in self.types
            and memory.source in self.sources
            and (not self.project or memory.project == self.project)
            and (not self.session or memory.session == self.session)
            and (self.after is None or memory.created_at >= self.after)
            and (self.before is None or memory.created_at < self.before)
            and (self.rating is None or memory.provenance.rating is self.rating)
        )


class MemoryHead(NamedTuple):
    """The fields of a memory that place it in a list and count it."""

    id: str
    type: MemoryType
    created: int  # seconds since 1970, as expires
    state: MemoryState = MemoryState.ACTIVE
    source: Source = Source.RULES
    expires: int = 0  # 0: never


_KINDS = (tuple(MemoryType), tuple(MemoryState), tuple(Source))
_CODES = tuple({value: code for code, value in enumerate(kind)} for kind in _KINDS)


@dataclass(frozen=True, slots=True, eq=False)
class MemoryHeads:
    """Heads by column: 60,000 of them as objects would occupy a core for 0.2 s."""

    ids: npt.NDArray[np.object_]
    types: npt.NDArray[np.int8]  # places in their enum, as states and sources
    created: npt.NDArray[np.int64]
    states: npt.NDArray[np.int8]
    sources: npt.NDArray[np.int8]
    expires: npt.NDArray[np.int64]

    @classmethod
    def of_columns(
        cls,
        ids: Sequence[str],
        types: Iterable[str],
        created: Sequence[int],
        states: Iterable[str],
        sources: Iterable[str],
        expires: Sequence[int],
    ) -> tuple[MemoryHeads, int]:
        """Also returns how many rows were left out for words that we do not know."""
        coded = [
            np.fromiter((codes.get(value, -1) for value in values), np.int8, len(ids))  # type: ignore[call-overload]
            for codes, values in zip(_CODES, (types, states, sources), strict=True)
        ]
        heads = cls(
            np.asarray(ids, dtype=np.object_),
            coded[0],
            np.asarray(created, dtype=np.int64),
            coded[1],
            coded[2],
            np.asarray(expires, dtype=np.int64),
        )
        known = (coded[0] >= 0) & (coded[1] >= 0) & (coded[2] >= 0)
        return (heads, 0) if known.all() else (heads.take(known), int((~known).sum()))

    @classmethod
    def of(cls, heads: Iterable[MemoryHead]) -> MemoryHeads:
        columns = tuple(zip(*heads, strict=True)) or ((),) * len(MemoryHead._fields)
        return cls.of_columns(*columns)[0]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[MemoryHead]:
        types, states, sources = _KINDS
        for id_, type_, created, state, source, expires in zip(
            *(column.tolist() for column in self._columns()), strict=True
        ):
            yield MemoryHead(id_, types[type_], created, states[state], sources[source], expires)

    def take(self, chosen: npt.NDArray[np.bool_]) -> MemoryHeads:
        return MemoryHeads(*(column[chosen] for column in self._columns()))

    def without(self, ids: AbstractSet[str]) -> MemoryHeads:
        if not ids:
            return self
        return self.take(np.fromiter((one not in ids for one in self.ids), np.bool_, len(self)))

    def only(self, ids: AbstractSet[str]) -> MemoryHeads:
        return self.take(np.fromiter((one in ids for one in self.ids), np.bool_, len(self)))

    def concatenate(self, other: MemoryHeads) -> MemoryHeads:
        if not len(other):
            return self
        pairs = zip(self._columns(), other._columns(), strict=True)
        return MemoryHeads(*(np.concatenate(pair) for pair in pairs))

    def of_types(self, types: Iterable[MemoryType]) -> npt.NDArray[np.bool_]:
        wanted: npt.NDArray[np.bool_] = np.isin(self.types, [_CODES[0][one] for one in types])
        return wanted

    def active(self) -> npt.NDArray[np.bool_]:
        wanted: npt.NDArray[np.bool_] = self.states == _CODES[1][MemoryState.ACTIVE]
        return wanted

    def recallable(self, now: datetime) -> npt.NDArray[np.bool_]:
        """As Memory.recallable, but for ratings."""
        unexpired = (self.expires == 0) | (self.expires > now.timestamp())
        wanted: npt.NDArray[np.bool_] = self.active() & unexpired
        return wanted & np.asarray(self.sources != _CODES[2][Source.QUESTION], dtype=np.bool_)

    def counts(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        """How many heads have each type, state and source, by its value."""
        coded = (self.types, self.states, self.sources)
        return tuple(  # type: ignore[return-value]
            {kind[code].value: number for code, number in enumerate(np.bincount(codes).tolist()) if number}
            for kind, codes in zip(_KINDS, coded, strict=True)
        )

    def _columns(self) -> tuple[npt.NDArray[Any], ...]:
        return (self.ids, self.types, self.created, self.states, self.sources, self.expires)


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
    spelled: frozenset[str] = field(default=frozenset(), repr=False)  # names in any case, folded: "amayas 6 now"
    days: tuple[int, int] | None = None
    everything: bool = False
    most: int = 2_000  # memories, the newest


class Selected(msgspec.Struct, frozen=True, gc=False):  # a question for days makes a thousand
    """A selected memory with the masks of its attributes, by its words and by its vector."""

    memory: Memory
    tells: int
    alike: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class WordPieces:
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
    *total*: the owner's memories in any state or scope; None if unknown. *projected*: whether the words of the
    question were projected before they were compared (`recall.late_interaction.QuestionProjection`).
    """

    memories: tuple[Memory, ...]
    names: tuple[str, ...]
    features: npt.NDArray[np.float64]
    centre: npt.NDArray[np.float64]
    spread: npt.NDArray[np.float64]
    searched: int
    total: int | None
    path: str  # "hybrid" or "lexical" from the owner's partition in process, "store" from the store's own search
    projected: bool = False


def trust_of(memory: Memory) -> Trust:
    """Its stored class, else the class of role, source and owner, which rows of earlier versions have."""
    kind = memory.owner.kind
    if kind is OwnerKind.GLOBAL:
        return Trust.OPERATOR
    trust = memory.provenance.trust or _of_origin(memory)
    return least_trusted((trust, Trust.MEMBER)) if kind is OwnerKind.PROJECT else trust


def with_trust(memory: Memory, trust: Trust) -> Memory:
    """*memory* with the class *trust*, which is stored only where nothing else tells it."""
    stored = None if trust is _of_origin(memory) else trust
    return replace(memory, provenance=memory.provenance.replace(trust=stored))


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
