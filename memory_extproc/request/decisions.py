"""Records of decisions: for each request the ids of its candidates and numbers, without any words.

The hash of the request id selects one of a fixed number of slots of the caller, which bounds the records of a
caller without an index; a newer record replaces an older one in its slot. Records are written in the background."""

from __future__ import annotations

import asyncio
import uuid
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from memory_extproc.concurrency import Background
from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import Caller, Memory, Outcome, Owner, RecallTrace, TurnOutcome
from memory_extproc.observe.log import Trail, logger
from memory_extproc.ports import Coordination, Now
from memory_extproc.request.body import Enriched
from memory_extproc.settings import CurrentSettings

log = logger(__name__)
KIND, TURN_KIND = "decision", "turn_of"  # of records in Coordination
_READ_AT_ONCE = 32


class TracedCandidate(msgspec.Struct, frozen=True):
    """A candidate by id. *checksum*: of its words at that time; *shared*: it is of a project or of everyone."""

    id: str
    score: float
    relevance: float
    verdict: str
    checksum: int
    shared: bool = False


class DecisionRecord(msgspec.Struct, frozen=True):
    """The decision of a request. *at*: seconds since 1970; *stages*: seconds by name."""

    request_id: str
    at: float
    outcome: str
    path: str
    kind: str
    total: int | None
    worth: float | None
    threshold: float
    memories: int
    tokens: int
    stages: dict[str, float]
    considered: tuple[TracedCandidate, ...]

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)


class TurnRecord(msgspec.Struct, frozen=True):
    """The outcome of a request's turn. *turn_id*: empty if the turn was not accepted."""

    request_id: str
    turn_id: str
    outcome: str


def checksum(memory: Memory) -> int:
    return zlib.crc32(memory.content.encode("utf-8", "surrogatepass"))


class DecisionLog:
    """Implements ports.TurnReceipts."""

    def __init__(
        self, records: Coordination, current: CurrentSettings, *, background: Background, now: Now
    ) -> None:
        self._records, self._current, self._background, self._now = records, current, background, now

    @property
    def is_on(self) -> bool:
        return self._current.settings.trace.keep > timedelta()

    def record(self, owner: Owner, request_id: str, enriched: Enriched, trace: RecallTrace | None) -> str:
        """Keep a decision; return the id that it is found by. *request_id*: the x-request-id; may be empty."""
        known = Trail(request_id=request_id).request_id or uuid.uuid4().hex
        self._background.start(self._keep_decision(owner, known, enriched, trace, self._now()))
        return known

    def note(self, caller: Caller, request_id: str, outcome: TurnOutcome, turn_id: str = "") -> None:
        if self.is_on and request_id:
            kept = TurnRecord(request_id, turn_id, outcome.value)
            self._background.start(self._put(TURN_KIND, caller.person.owner, request_id, kept))

    async def find(self, owner: Owner, request_id: str) -> DecisionRecord | None:
        raw = await self._records.get_record(KIND, owner, self._place(request_id))
        kept = None if raw is None else msgspec.json.decode(raw, type=DecisionRecord)
        return kept if kept is not None and kept.request_id == request_id else None

    async def find_turn(self, owner: Owner, request_id: str) -> TurnRecord | None:
        raw = await self._records.get_record(TURN_KIND, owner, self._place(request_id))
        kept = None if raw is None else msgspec.json.decode(raw, type=TurnRecord)
        return kept if kept is not None and kept.request_id == request_id else None

    async def latest(self, owner: Owner, limit: int) -> Sequence[DecisionRecord]:
        """The newest first."""
        found: list[DecisionRecord] = []
        for first in range(0, self._current.settings.trace.most, _READ_AT_ONCE):
            places = range(first, min(first + _READ_AT_ONCE, self._current.settings.trace.most))
            some = await asyncio.gather(*(self._records.get_record(KIND, owner, str(one)) for one in places))
            found += (msgspec.json.decode(raw, type=DecisionRecord) for raw in some if raw is not None)
        return sorted(found, key=lambda one: one.at, reverse=True)[:limit]

    async def _keep_decision(
        self, owner: Owner, request_id: str, enriched: Enriched, trace: RecallTrace | None, at: datetime
    ) -> None:
        trace = trace or RecallTrace()
        considered = tuple(
            TracedCandidate(
                one.memory.id,
                round(one.score, 4),
                round(one.relevance, 4),
                one.verdict,
                checksum(one.memory),
                one.memory.owner != owner,
            )
            for one in trace.considered
        )
        kept = DecisionRecord(
            request_id=request_id,
            at=at.timestamp(),
            outcome=enriched.outcome.value,
            path=enriched.path if enriched.outcome is Outcome.USED else "",
            kind=trace.kind,
            total=trace.total,
            worth=trace.worth,
            threshold=trace.threshold,
            memories=enriched.count,
            tokens=enriched.tokens,
            stages={name: round(seconds, 6) for name, seconds in trace.stages.items()},
            considered=considered,
        )
        await self._put(KIND, owner, request_id, kept)

    async def _put(self, kind: str, owner: Owner, request_id: str, kept: msgspec.Struct) -> None:
        try:
            raw = msgspec.json.encode(kept)
            await self._records.put_record(
                kind, owner, self._place(request_id), raw, self._current.settings.trace.keep
            )
        except MemoryExtprocError as error:
            log.info("decision.not_kept", kind=type(error).__name__)

    def _place(self, request_id: str) -> str:
        return str(zlib.crc32(request_id.encode()) % self._current.settings.trace.most)
