"""A chat box for the demo: a message goes through Envoy as the reader's own, and its effect on memory is shown."""

from __future__ import annotations

import json
import secrets
from datetime import timedelta
from typing import Any

import aiohttp
import grpc
from aiohttp import web

from memory_extproc.api.call import RefusedError
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.api.review import DROPPED
from memory_extproc.api.service import MemoryService
from memory_extproc.console.pages import Pages, PageVisit, shown_memory
from memory_extproc.console.sessions import PATH
from memory_extproc.model import Consent, JournalState, Outcome
from memory_extproc.settings.api import Console
from memory_extproc.settings.identity import IdentitySection

_ANSWER_BYTES = 256 * 1024
_WAIT = timedelta(seconds=60)  # for a model's answer
_ENDED = frozenset({JournalState.LEARNED, JournalState.DEAD, DROPPED})
_TEXT = 4000  # characters of a message


class TryOut:
    """Chats with the API behind Envoy. The reader is named to it by the identity headers, so it is for a gateway
    that believes this machine."""

    def __init__(self, pages: Pages, service: MemoryService, console: Console, identity: IdentitySection) -> None:
        self._pages, self._service, self._console, self._identity = pages, service, console, identity

    def register(self, application: web.Application) -> None:
        application.router.add_get(f"{PATH}/try", self._pages.for_reader(self._show))
        application.router.add_post(f"{PATH}/try", self._pages.for_reader(self._say))
        application.router.add_get(f"{PATH}/try/learned", self._pages.for_reader(self._show_learned))

    async def _show(self, visit: PageVisit) -> web.StreamResponse:
        return self._page(visit, session=f"try-{secrets.token_hex(4)}")

    async def _say(self, visit: PageVisit) -> web.StreamResponse:
        text, session = visit.field("text")[:_TEXT], visit.field("session")[:64]
        explained: Any = await self._service.call(
            "ExplainRecall", pb.ExplainRecallRequest(text=text), visit.presented
        )
        answer, status = await self._send(visit, text, session)
        outcome = status.partition(";")[0]
        trace = dict(part.partition("=")[::2] for part in status.split(";")).get("trace", "")
        return self._page(
            visit,
            session=session,
            said=text,
            answer=answer,
            outcome=outcome,
            trace=trace,
            block=explained.block if outcome == Outcome.USED else "",
            **await self._read_receipt(visit, session, trace),
        )

    async def _show_learned(self, visit: PageVisit) -> web.StreamResponse:
        """The list alone, for the page that looks every second until the turn is learned."""
        session, trace = (visit.request.query.get(name, "")[:64] for name in ("session", "trace"))
        learned = await self._read_receipt(visit, session, trace)
        return self._page(visit, session=session, said="-", trace=trace, **learned)

    async def _read_receipt(self, visit: PageVisit, session: str, trace: str) -> dict[str, Any]:
        """The memories made of a request's turn, or of the session's newest; no state while it is unknown."""
        wanted = trace
        if not wanted:
            consent = await self._pages.get_consent(visit)
            if consent is not None and consent.state != Consent.ON:  # nothing is kept, no receipt either
                return {"state": DROPPED, "reason": Outcome.NO_CONSENT, "done": True}
            asked = pb.ListTurnsRequest(session_id=session, limit=1)
            turns: Any = await self._service.call("ListTurns", asked, visit.presented)
            wanted = turns.turns[0].id if turns.turns else ""
        try:
            receipt: Any = await self._service.call("GetTurn", pb.GetTurnRequest(id=wanted), visit.presented)
        except RefusedError as refused:
            if refused.code is not grpc.StatusCode.NOT_FOUND:
                raise
            receipt = pb.TurnReceipt()
        return {
            "state": receipt.state,
            "reason": receipt.reason,
            "learned": [shown_memory(memory) for memory in receipt.learned],
            "done": receipt.state in _ENDED,
        }

    async def _send(self, visit: PageVisit, text: str, session: str) -> tuple[str, str]:
        """The model's answer, and the word of memory that came with it."""
        console, identity, principal = self._console, self._identity, visit.principal
        headers = {identity.user_header: principal.user, "x-session-id": session}
        if principal.tenant and identity.tenant_header:
            headers[identity.tenant_header] = principal.tenant
        body = {"model": console.chat_model, "messages": [{"role": "user", "content": text}]}
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_WAIT.total_seconds())) as http,
                http.post(f"{console.chats}/chat/completions", json=body, headers=headers) as answer,
            ):
                whole = await answer.content.read(_ANSWER_BYTES)
                status = answer.headers.get("x-memory-status", "")
                if answer.status != web.HTTPOk.status_code:
                    return f"The gateway answered with {answer.status}.", status
            return _text_of(whole), status
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return "The gateway cannot be reached, or its answer cannot be read.", ""

    def _page(self, visit: PageVisit, *, session: str, said: str = "", **found: Any) -> web.Response:
        words = dict.fromkeys(("answer", "outcome", "trace", "block", "state", "reason"), "")
        shown = {**words, "learned": [], "done": False, **found}
        return self._pages.render("try.html", visit.principal, session=session, said=said, **shown)


def _text_of(body: bytes) -> str:
    """ValueError for a body that is no chat completion."""
    try:
        return str(json.loads(body)["choices"][0]["message"]["content"])
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError("no chat completion") from error
