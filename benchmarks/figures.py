"""Results as plain values, and the few statistics they need."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

MS = 1000.0
CHUNKS = 300  # events of a streamed answer


class Spread(msgspec.Struct, frozen=True):
    """Milliseconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        return cls(MS * percentile(seconds, 50), MS * percentile(seconds, 99))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of *values* that is not exceeded by *share* percent of them."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


PAGE = "first page in the browser"
COST_OF = 1_000  # memories of the caller whose cost has a bound


class Target(NamedTuple):
    """A figure to reach, and whether this run reached it: at most *bound*, or at least with *floor*."""

    what: str
    bound: float
    seen: float
    unit: str = ""
    floor: bool = False

    @property
    def goal(self) -> str:
        return f"{'at least' if self.floor else 'at most'} {self.bound:g}{self.unit}"

    @property
    def is_reached(self) -> bool:
        return self.seen >= self.bound if self.floor else self.seen <= self.bound


class Requests(msgspec.Struct, frozen=True):
    """Parts (a) and (b); keys are the ways to the upstream."""

    latency: dict[str, Spread]  # of a whole exchange, one client
    added_to_peer: float  # (recall - plain) / (peer - plain) of the p50 of each round, the median of rounds
    added_to_peer_p99: float  # the same of the p99 of all rounds together
    throughput: dict[str, float]  # requests/s, 8 clients
    outcomes: dict[str, int]  # of our rounds
    added_bytes: float
    samples: int  # of each way


class Chunks(msgspec.Struct, frozen=True):
    """Part (c); keys are the number of streams, then the way."""

    delay: dict[str, dict[str, Spread]]
    to_answering: dict[str, float]  # ours / only answering, p50 of each round, the median of rounds


class Hostility(msgspec.Struct, frozen=True):
    """Part (k): one caller's recalls, alone and beside another caller's costly requests."""

    alone: Spread
    beside: Spread
    health: Spread  # of /healthz beside them, asked ten times a second
    slowest_health: float  # ms
    sent: int  # costly requests, one a second
    slowest: float  # ms, of the costly requests
    turn: float  # CPU seconds of one of them, answered and learned


class Start(msgspec.Struct, frozen=True):
    """Part (d)."""

    rows: int
    ready: list[float]  # seconds, each start
    resident: float  # MiB when ready, the median of starts
    resident_used: float  # MiB after every caller has asked


class Size(msgspec.Struct, frozen=True):
    """One store of part (e)."""

    rows: int
    store: Spread  # search through the adapter
    cold: Spread  # through the partition, the caller's first question
    warm: Spread  # through the partition, the next ones
    filling: float  # rows/s while it was filled


class Growth(msgspec.Struct, frozen=True):
    """Part (e); keys are the backends. *missing* says why there is none."""

    sizes: dict[str, list[Size]]
    ratios: dict[str, dict[str, float]]  # backend, store|cold|warm: p50 at the largest / at the smallest
    missing: dict[str, str]


class Learning(msgspec.Struct, frozen=True):
    """Part (f); calls and tokens are for 100 turns."""

    turns: int  # of one round
    by_rules: list[float]  # turns learned a second, each round
    by_model: float  # the same with a model that answers at once
    calls: dict[str, float]  # of the model, by what for
    prompt_tokens: float
    completion_tokens: float


class Drain(msgspec.Struct, frozen=True):
    """Part (g), of one journal; turns a second."""

    turns: int
    journalled: float  # appended all at once
    drained: float  # learned from the journal, facts included


class Api(msgspec.Struct, frozen=True):
    """Part (h), of one user's memories."""

    memories: int
    latency: dict[str, Spread]  # by method, one call after another
    imported: float  # memories a second, embedded and stored
    exported: float  # memories a second
    export_mib: float  # by which the most memory in use grew with all of the reading calls
    page_opened: float = 0.0  # ms, the first visit of the page after a start


class Stage(msgspec.Struct, frozen=True):
    """Part (i), for one size of an owner; medians over the rounds of the medians of each."""

    memories: int
    embedding: float  # ms
    recall: float  # ms, the embedding of its own query included
    multiple: float  # recall / embedding
    read_closely: float  # share of the questions
    resident: float  # MiB of the process that held them, its stand-in for a store included
    most: float  # that the multiple may be


class Cost(msgspec.Struct, frozen=True):
    """Part (j), for one way and one size of an owner; milliseconds of CPU."""

    way: str
    memories: int
    embedding: float  # of one query by the graph for any processor, the unit of *multiple*
    whole: float  # of one exchange, until it is learned
    multiple: float  # whole / embedding
    stages: dict[str, float]  # of the whole, most first: packages on the event loop, and other threads
    functions: dict[str, float]  # of the event loop, most first


class Machine(msgspec.Struct, frozen=True):
    cores: int
    architecture: str
    python: str
    versions: dict[str, str]
    load: float | None = None  # processes that wanted a core in the minute before; others' work distorts


class Results(msgspec.Struct, frozen=True):
    """The figures of a run; an omitted part is None."""

    at: str
    quick: bool
    machine: Machine
    requests: Requests | None = None
    chunks: Chunks | None = None
    start: Start | None = None
    growth: Growth | None = None
    learn: Learning | None = None
    drain: dict[str, Drain] | None = None  # by journal
    api: Api | None = None
    stage: list[Stage] | None = None
    cost: list[Cost] | None = None
    hostile: Hostility | None = None

    def targets(self) -> list[Target]:
        return [*self._speed(), *self._processor(), *self._size(), *self._growth()]

    def _speed(self) -> Iterator[Target]:
        if self.requests:
            yield Target(
                "latency added to a request, p50, against the peer's", 4, self.requests.added_to_peer, " times"
            )
            rates = self.requests.throughput
            yield Target("requests with recall, 8 clients", 220, rates["recall"], "/s", floor=True)
            yield Target("recall and learn, 8 clients", 80, rates["recall and learn"], "/s", floor=True)
        if self.hostile:
            slower = self.hostile.beside.p99 - self.hostile.alone.p99
            yield Target("recall beside one costly request a second, p99, slower by", 50, slower, " ms")
            yield Target("/healthz beside them, slowest", 100, self.hostile.slowest_health, " ms")
        if self.drain:
            slowest = min(found.drained for found in self.drain.values())
            yield Target("turns learned from a backlog", 150, slowest, "/s", floor=True)
        if self.chunks:
            for streams, ratio in self.chunks.to_answering.items():
                yield Target(
                    f"delay of a chunk, p50, {streams} at once, against only answering", 1.1, ratio, " times"
                )
        if self.api and self.api.page_opened:
            visits = {"first after a start": self.api.page_opened, "p50": self.api.latency[PAGE].p50}
            for visit, took in visits.items():
                yield Target(f"{PAGE}, {self.api.memories:,} memories, {visit}", 300, took, " ms")

    def _processor(self) -> Iterator[Target]:
        spent = {found.way: found for found in self.cost or () if found.memories == COST_OF}
        unit = " embeddings"
        if "recall" in spent:
            yield Target("CPU of a recall", 1.9, spent["recall"].multiple, unit)
        if learned := spent.get("recall and learn"):
            yield Target("CPU of recall and learn", 4.0, learned.multiple, unit)
            if streamed := spent.get("streamed"):
                of_chunk = (streamed.multiple - learned.multiple) / CHUNKS
                yield Target("CPU of a streamed chunk", 0.055, of_chunk, unit)
        for found in self.stage or ():
            what = f"recall in process with {found.memories:,} memories, p50, against embedding its query"
            yield Target(what, found.most, found.multiple, " times")

    def _size(self) -> Iterator[Target]:
        if self.start:
            yield Target("from start to ready", 3, median(self.start.ready), " s")
            yield Target("resident when ready", 381, self.start.resident, " MiB")

    def _growth(self) -> Iterator[Target]:
        for backend, ways in self.growth.ratios.items() if self.growth else ():
            for way, ratio in ways.items():
                what = f"search, p50, {backend}, {way}, largest against smallest store"
                yield Target(what, 1.5, ratio, " times")
