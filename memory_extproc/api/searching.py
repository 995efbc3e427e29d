"""Searching as recall does, and saying why."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from memory_extproc.api.call import Call, Operation, scope_of
from memory_extproc.api.fields import Fields
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.api.messages import message_of
from memory_extproc.model import Caller, Consent, MemoryType, Outcome, Scope, Wish
from memory_extproc.ports import KnowsConsent, Learns
from memory_extproc.recall.explanation import Considered, Explanation, Verdict

MOST_EARLIER = 32
_SHOWN = 200  # candidates in an explanation
# What recall chose: what the block had no room for is relevant all the same.
_CHOSEN = frozenset({Verdict.INJECTED, Verdict.NO_ROOM})


class Explains(Protocol):
    """The read path, laid open."""

    async def explain(self, wish: Wish) -> Explanation: ...


@dataclass(frozen=True, slots=True)
class SearchDefaults:
    """What recall takes where a request says nothing."""

    limit: int = 5
    threshold: float = 0.6  # on relevance
    settle: timedelta = timedelta(seconds=1)  # most to wait for the user's turn of a moment ago to be findable


class Searching:
    def __init__(
        self, explains: Explains, learns: Learns, defaults: SearchDefaults, *, consent: KnowsConsent | None
    ) -> None:
        self._explains, self._learns, self._defaults = explains, learns, defaults
        self._consent = consent

    def use(self, defaults: SearchDefaults) -> None:
        self._defaults = defaults

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {"SearchMemories": self.search, "ExplainRecall": self.explain}

    async def search(self, call: Call, request: pb.SearchMemoriesRequest) -> pb.SearchMemoriesResponse:
        fields = Fields()
        text = fields.text("query", request.query)
        wish = self._wish(call, fields, request, text, force=True)
        fields.check()
        call.scope = scope_of(request, "query", "project_id", "type")
        explanation = await self._explained(call, wish)
        chosen = [one for one in explanation.considered if one.verdict in _CHOSEN]
        call.count = len(chosen)
        results = [pb.FoundMemory(memory=message_of(one.memory), relevance=one.relevance) for one in chosen]
        return pb.SearchMemoriesResponse(results=results, total=len(results), limit=wish.limit)

    async def explain(self, call: Call, request: pb.ExplainRecallRequest) -> pb.ExplainRecallResponse:
        fields = Fields()
        text = fields.text("text", request.text)
        if len(request.earlier) > MOST_EARLIER:
            fields.fault("earlier", f"at most {MOST_EARLIER} messages")
        earlier = tuple(fields.text(f"earlier[{at}]", one) for at, one in enumerate(request.earlier[:MOST_EARLIER]))
        wish = self._wish(call, fields, request, text, earlier=earlier, force=request.force)
        fields.check()
        call.scope = scope_of(request, "text", "earlier", "project_id", "type")
        explanation = await self._explained(call, wish)
        call.count = len(explanation.considered)
        return pb.ExplainRecallResponse(
            outcome=explanation.outcome.value,
            gate=explanation.gate.value if explanation.gate else "",
            query=explanation.query,
            path=explanation.path,
            total=explanation.total,
            worth=explanation.worth,
            considered=map(_considered, explanation.considered[:_SHOWN]),
            block=explanation.block,
        )

    def _wish(
        self,
        call: Call,
        fields: Fields,
        request: pb.SearchMemoriesRequest | pb.ExplainRecallRequest,
        text: str,
        *,
        earlier: Sequence[str] = (),
        force: bool,
    ) -> Wish:
        project = fields.name("project_id", request.project_id)
        given = request.HasField("threshold")
        return Wish(
            caller=Caller(call.owner, project=project),
            asked=text,
            earlier=tuple(earlier),
            force=force,
            limit=fields.limit("limit", request.limit, self._defaults.limit),
            threshold=fields.share("threshold", request.threshold) if given else self._defaults.threshold,
            scope=Scope(project=project, types=fields.words("type", request.type, MemoryType)),
        )

    async def _explained(self, call: Call, wish: Wish) -> Explanation:
        if self._consent is not None and await self._consent.get(call.owner) is Consent.OFF:
            return Explanation(outcome=Outcome.NO_CONSENT)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._defaults.settle.total_seconds()):
                await self._learns.settled(wish.caller)
        return await self._explains.explain(wish)


def _considered(one: Considered) -> pb.ConsideredMemory:
    return pb.ConsideredMemory(
        memory=message_of(one.memory),
        score=one.score,
        relevance=one.relevance,
        verdict=one.verdict.value,
        features={name: value for name, value in one.features.items() if value == value},  # noqa: PLR0124 - not NaN
    )
