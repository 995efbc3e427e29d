"""Decisions for past requests, over the API: records of ids, shown with today's texts."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from memory_extproc.api.call import Call, ErrorReason, Fields, Operation, RefusedError, message_of
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.model import Memory, MemoryState, Ranked
from memory_extproc.ports import MemoryReader
from memory_extproc.recall.candidate import Verdict
from memory_extproc.recall.prompt_block import render
from memory_extproc.request.decisions import DecisionLog, DecisionRecord, TracedCandidate, checksum

_DEFAULT_LIMIT = 20
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
