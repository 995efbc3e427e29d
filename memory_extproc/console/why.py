"""Why a question would be answered with a memory, and why a request that is over was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from aiohttp import web

from memory_extproc.api.call import RefusedError
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.api.rest import to_json
from memory_extproc.api.service import MemoryService
from memory_extproc.console.pages import Pages, PageVisit, moment, shown_memory
from memory_extproc.console.sessions import PATH

_LATEST = 10
_STAGES = ("gate", "query", "embed", "search", "rank", "total")
_VERDICTS: Mapping[str, str] = {
    "injected": "sent to the model",
    "no_room": "left out: the block was full",
    "over_limit": "left out: others ranked higher",
    "below_threshold": "left out: not relevant enough",
    "duplicate": "left out: duplicate of another",
    "in_view": "left out: already in the conversation",
    "thread": "added for its topic",
    "not_recallable": "left out: expired, replaced, rated wrong, or a bare question",
}
_PATHS: Mapping[str, str] = {
    "rerank": "by words and meaning, reranked",
    "hybrid": "by words and meaning",
    "lexical": "by words",
    "store": "by meaning, in the store",
    "lookup": "by conditions, such as a date",
    "replay": "as in the conversation so far",
}
_SINCE: Mapping[str, str] = {
    "changed": "changed since",
    "gone": "forgotten or deleted since",
    "shared": "of a project or of everyone",
}


class WhyPage:
    def __init__(self, pages: Pages, service: MemoryService) -> None:
        self._pages, self._service = pages, service

    def register(self, application: web.Application) -> None:
        application.router.add_get(f"{PATH}/why", self._pages.for_reader(self._show))

    async def _show(self, visit: PageVisit) -> web.StreamResponse:
        text, request_id = (visit.request.query.get(name, "").strip() for name in ("text", "request"))
        explained = decision = None
        missing = False
        if request_id:
            try:
                asked = pb.GetDecisionRequest(request_id=request_id)
                decision = _show_explanation(await self._service.call("GetDecision", asked, visit.presented))
            except RefusedError as refused:
                if refused.code is not grpc.StatusCode.NOT_FOUND:
                    raise
                missing = True
        elif text:
            explained = _show_explanation(
                await self._service.call("ExplainRecall", pb.ExplainRecallRequest(text=text), visit.presented)
            )
        return self._pages.render(
            "why.html",
            visit.principal,
            status=404 if missing else 200,
            text=text,
            request_id=request_id,
            missing=missing,
            explained=explained,
            decision=decision,
            latest=await self._latest(visit),
            stages=_STAGES,
        )

    async def _latest(self, visit: PageVisit) -> list[dict[str, Any]] | None:
        """None where no decisions are kept."""
        try:
            asked = pb.ListDecisionsRequest(limit=_LATEST)
            found: Any = await self._service.call("ListDecisions", asked, visit.presented)
        except RefusedError as refused:
            if refused.code is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            return None
        return [
            {**to_json(one, verbose=False), "time": one.at.ToJsonString()[:19].replace("T", " ")}
            for one in found.decisions
        ]


def _show_explanation(explained: Any) -> dict[str, Any]:
    """An explanation or a decision as the templates show it."""
    plain = to_json(explained, verbose=False)
    for shown, one in zip(plain["considered"], explained.considered, strict=True):
        shown["memory"] = shown_memory(one.memory)
        shown["verdict_words"] = _VERDICTS.get(one.verdict, one.verdict)
        shown["since_words"] = _SINCE.get(one.since, "")
        shown["percent"] = round(100 * one.relevance)
    plain["time"] = moment(plain.get("at", ""))
    plain["path"] = _PATHS.get(plain["path"], plain["path"])
    return plain
