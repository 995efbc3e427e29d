"""Receipts of turns, the quarantine, the dead letters and the decisions of past requests, over the API. Decisions
are records of ids, shown with today's texts."""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

import grpc

from memory_extproc.api.call import (
    Call,
    ErrorReason,
    Fields,
    Operation,
    RefusedError,
    message_of,
    scope_of,
    whole_id,
)
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.curation.editor import MemoryCatalog
from memory_extproc.learn.screening import Quarantine
from memory_extproc.model import JournalState, Memory, MemoryState, Owner, Ranked, Verdict
from memory_extproc.ports import Journal, JournalEntry, MemoryLister, MemoryReader, Now
from memory_extproc.recall.prompt_block import render
from memory_extproc.request.decisions import DecisionLog, DecisionRecord, TracedCandidate, checksum
from memory_extproc.settings.api import PrincipalRole

_DEFAULT_LIMIT = 20
_MOST_IDS = 1000
_TURN_ID = re.compile(r"[0-9a-f]{8,64}")
_PLACE = re.compile(r"[0-9]{1,18}")
DROPPED = "dropped"  # the state of a turn that was not accepted
_LETTERS = 1000  # dead letters read at a time


class QuarantineVerdict(StrEnum):
    """The ways out of the quarantine. Clients name it, so a value is never renamed."""

    RELEASE = "release"
    DROP = "drop"


class ReviewCalls:
    def __init__(
        self,
        quarantine: Quarantine,
        journal: Journal,
        lists: MemoryLister,
        catalogue: MemoryCatalog,
        *,
        now: Now,
        decisions: DecisionLog | None = None,
    ) -> None:
        """*decisions* knows turns by the request that they were said in."""
        self._quarantine, self._journal, self._lists = quarantine, journal, lists
        self._catalogue, self._now, self._decisions = catalogue, now, decisions

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {
            "GetTurn": self.turn,
            "ListTurns": self.turns,
            "ListQuarantine": self.quarantine,
            "ReviewQuarantine": self.review,
            "ListDeadLetters": self.dead_letters,
            "RetryDeadLetters": self.retry,
        }

    async def turn(self, call: Call, request: pb.GetTurnRequest) -> pb.TurnReceipt:
        turn = None if self._decisions is None else await self._decisions.find_turn(call.owner, request.id)
        wanted = request.id if turn is None else turn.turn_id
        if turn is not None and not wanted:
            return pb.TurnReceipt(state=DROPPED, reason=turn.outcome)
        if not _TURN_ID.fullmatch(wanted):
            raise _no_such_turn()
        entries = {
            entry.turn.id: entry
            async for entry in self._journal.of_owner(call.owner)
            if entry.turn.id.startswith(wanted)
        }
        memories: dict[str, list[Memory]] = {}
        async for rows in self._lists.rows(call.owner):
            for memory in rows:
                if memory.provenance.turn.startswith(wanted):
                    memories.setdefault(memory.provenance.turn, []).append(memory)
        found = entries.keys() | memories.keys()
        if not found:
            raise _no_such_turn()
        if len(found) > 1:
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT,
                ErrorReason.AMBIGUOUS_ID,
                "several turns have ids that begin so",
                violations=[("id", "more digits of it")],
            )
        (turn_id,) = found
        made = sorted(memories.get(turn_id, ()), key=lambda memory: (memory.type.value, memory.seq, memory.id))
        call.count = len(made)
        receipt = _receipt_of(entries.get(turn_id), turn_id)
        receipt.learned.extend(map(message_of, made))
        if receipt.state == JournalState.DEAD:
            receipt.reason = await self._reason(turn_id)
        return receipt

    async def _reason(self, turn_id: str) -> str:
        after = ""
        while letters := await self._journal.dead(_LETTERS, after=after):
            for letter in letters:
                if letter.turn_id == turn_id:
                    return letter.reason
            after = letters[-1].place
        return ""

    async def turns(self, call: Call, request: pb.ListTurnsRequest) -> pb.ListTurnsResponse:
        fields = Fields()
        session = fields.name("session_id", request.session_id)
        limit = fields.limit("limit", request.limit, _DEFAULT_LIMIT)
        fields.check()
        call.scope = scope_of(request, "session_id")
        newest: list[tuple[float, int, JournalEntry]] = []
        number = 0
        async for entry in self._journal.of_owner(call.owner):
            if not session or entry.turn.session == session:
                number += 1
                heapq.heappush(newest, (entry.turn.at.timestamp(), number, entry))
                if len(newest) > limit:
                    heapq.heappop(newest)
        entries = [entry for _, _, entry in sorted(newest, reverse=True, key=lambda one: one[:2])]
        call.count = len(entries)
        return pb.ListTurnsResponse(turns=[_receipt_of(entry, entry.turn.id) for entry in entries])

    async def quarantine(self, call: Call, request: pb.ListQuarantineRequest) -> pb.ListQuarantineResponse:
        fields = Fields()
        limit = fields.limit("limit", request.limit, _DEFAULT_LIMIT)
        fields.check()
        held = await self._list_held(call.owner)
        call.count = len(held[:limit])
        return pb.ListQuarantineResponse(memories=map(message_of, held[:limit]), total=len(held))

    async def review(self, call: Call, request: pb.ReviewQuarantineRequest) -> pb.ReviewQuarantineResponse:
        fields = Fields()
        if not request.verdict:
            fields.fault("verdict", f"one of {', '.join(QuarantineVerdict)}")
        verdict = fields.word("verdict", request.verdict, QuarantineVerdict, QuarantineVerdict.DROP)
        _check_ids(fields, "memory_ids", request.memory_ids)
        fields.check()
        if verdict is QuarantineVerdict.RELEASE and PrincipalRole.ADMIN not in call.principal.roles:
            # The text may have been planted to mislead the very person who would release it.
            raise RefusedError(
                grpc.StatusCode.PERMISSION_DENIED, ErrorReason.NOT_ALLOWED, "an admin releases from quarantine"
            )
        call.scope = f"memory_ids+{verdict}"
        ids = [await whole_id(self._catalogue, call, one) for one in request.memory_ids]
        if verdict is QuarantineVerdict.RELEASE:
            call.count = await self._quarantine.release(call.owner, ids, self._now())
        else:
            call.count = await self._quarantine.drop(call.owner, ids)
        return pb.ReviewQuarantineResponse(changed=call.count)

    async def _list_held(self, owner: Owner) -> list[Memory]:
        held = [memory async for memory in self._quarantine.list_quarantined(owner)]
        return sorted(held, key=lambda memory: (memory.created_at, memory.id))

    async def dead_letters(self, call: Call, request: pb.ListDeadLettersRequest) -> pb.ListDeadLettersResponse:
        fields = Fields()
        limit = fields.limit("limit", request.limit, _DEFAULT_LIMIT)
        if request.after and not _PLACE.fullmatch(request.after):
            fields.fault("after", "the place of a dead letter")
        fields.check()
        letters = await self._journal.dead(limit, after=request.after)
        call.count = len(letters)
        return pb.ListDeadLettersResponse(
            letters=[
                pb.DeadLetter(
                    turn_id=letter.turn_id,
                    place=letter.place,
                    owner=letter.owner,
                    reason=letter.reason,
                    attempts=letter.attempts,
                    asked_at=letter.asked_at,
                    failed_at=letter.failed_at,
                )
                for letter in letters
            ]
        )

    async def retry(self, call: Call, request: pb.RetryDeadLettersRequest) -> pb.RetryDeadLettersResponse:
        fields = Fields()
        _check_ids(fields, "turn_ids", request.turn_ids)
        fields.check()
        call.scope = "turn_ids"
        call.count = await self._journal.retry(list(request.turn_ids))
        return pb.RetryDeadLettersResponse(retried=call.count)


def _check_ids(fields: Fields, name: str, ids: Sequence[str]) -> None:
    if not 1 <= len(ids) <= _MOST_IDS or not all(_TURN_ID.fullmatch(one) for one in ids):
        fields.fault(name, f"1 to {_MOST_IDS} ids")


def _receipt_of(entry: JournalEntry | None, turn_id: str) -> pb.TurnReceipt:
    """Without an entry its memories alone are left: it was learned, and the journal has forgotten it."""
    if entry is None:
        return pb.TurnReceipt(id=turn_id, state=JournalState.LEARNED.value)
    return pb.TurnReceipt(
        id=turn_id,
        state=entry.state.value,
        session_id=entry.turn.session,
        project_id=entry.turn.project,
        accepted_at=entry.turn.at,
        attempts=entry.attempts,
    )


def _no_such_turn() -> RefusedError:
    return RefusedError(grpc.StatusCode.NOT_FOUND, ErrorReason.NO_SUCH_TURN, "no such turn")


# --- decisions ---------------------------------------------------------------------------------------


_WHOLE_BLOCK = 1_000_000  # tokens: what fitted then fits now
_CHOSEN = frozenset({Verdict.INJECTED, Verdict.THREAD})


class DecisionCalls:
    def __init__(self, decisions: DecisionLog, reads: MemoryReader) -> None:
        self._decisions, self._reads = decisions, reads

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {"GetDecision": self.get, "ListDecisions": self.list}

    async def get(self, call: Call, request: pb.GetDecisionRequest) -> pb.Decision:
        self._check_on()
        kept = await self._decisions.find(call.owner, request.request_id)
        if kept is None:
            raise RefusedError(
                grpc.StatusCode.NOT_FOUND, ErrorReason.NO_SUCH_DECISION, "nothing is kept of such a request"
            )
        own = [one.id for one in kept.considered if not one.shared]
        there = {memory.id: memory for memory in await self._reads.get(call.owner, own)} if own else {}
        call.count = len(there)
        decision = _head_of(kept)
        decision.considered.extend(_encode_candidate(one, there.get(one.id)) for one in kept.considered)
        left = [
            Ranked(there[one.id], one.relevance)
            for one in kept.considered
            if one.verdict in _CHOSEN and one.id in there and there[one.id].state is not MemoryState.DELETED
        ]
        decision.block = render(left, _WHOLE_BLOCK).text if left else ""
        return decision

    async def list(self, call: Call, request: pb.ListDecisionsRequest) -> pb.ListDecisionsResponse:
        self._check_on()
        fields = Fields()
        limit = fields.limit("limit", request.limit, _DEFAULT_LIMIT)
        fields.check()
        kept = await self._decisions.latest(call.owner, limit)
        return pb.ListDecisionsResponse(decisions=map(_head_of, kept))

    def _check_on(self) -> None:
        if not self._decisions.is_on:
            raise RefusedError(
                grpc.StatusCode.UNIMPLEMENTED,
                ErrorReason.NOT_OFFERED,
                "no decisions are kept: trace.keep is not set",
            )


def _head_of(kept: DecisionRecord) -> pb.Decision:
    return pb.Decision(
        request_id=kept.request_id,
        at=kept.time,
        outcome=kept.outcome,
        path=kept.path,
        kind=kept.kind,
        total=kept.total,
        worth=kept.worth,
        threshold=kept.threshold,
        memories=kept.memories,
        tokens=kept.tokens,
        stages_ms={name: 1000 * seconds for name, seconds in kept.stages.items()},
    )


def _encode_candidate(one: TracedCandidate, memory: Memory | None) -> pb.ConsideredMemory:
    since = "same"
    if one.shared:
        since = "shared"
    elif memory is None or memory.state is MemoryState.DELETED:
        since = "gone"
    elif memory.state is not MemoryState.ACTIVE or checksum(memory) != one.checksum:
        since = "changed"
    return pb.ConsideredMemory(
        memory=pb.Memory(id=one.id) if memory is None or since == "gone" else message_of(memory),
        score=one.score,
        relevance=one.relevance,
        verdict=one.verdict,
        since=since,
    )
