"""Views of the page beside the memories: conversations over time and a picture of subjects; why a question is
answered with a memory; a chat box to try memory out through Envoy; the operator's pages."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from datetime import timedelta
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

import aiohttp
import grpc
from aiohttp import web

from memory_extproc.api.call import RefusedError
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.api.rest import to_json
from memory_extproc.api.review import DROPPED
from memory_extproc.api.service import MemoryService
from memory_extproc.console.pages import (
    FACTS,
    Pages,
    PageVisit,
    capitalize_as,
    moment,
    see_other,
    shown_memory,
    subject_words,
)
from memory_extproc.console.server import PATH
from memory_extproc.model import Consent, JournalState, Outcome, Source
from memory_extproc.settings.api import Console
from memory_extproc.settings.identity import IdentitySection

_MESSAGES = 100
_SUBJECTS, _LINKS = 12, 8  # in the picture; links of each subject
_ROW, _WIDE, _SHORT = 26, 520, 38  # points, points, characters


class TimelinePage:
    def __init__(self, pages: Pages, service: MemoryService) -> None:
        self._pages, self._service = pages, service

    def register(self, application: web.Application) -> None:
        application.router.add_get(f"{PATH}/timeline", self._pages.for_reader(self._show))

    async def _show(self, visit: PageVisit) -> web.StreamResponse:
        page = visit.request.query.get("page", "")
        asked = pb.ListMemoriesRequest(
            source=[Source.VERBATIM, Source.QUESTION, Source.SUMMARY], limit=_MESSAGES, page_token=page
        )
        said: Any = await self._service.call("ListMemories", asked, visit.presented)
        picture = None
        if not page:
            facts: Any = await self._service.call(
                "ListMemories", pb.ListMemoriesRequest(type=FACTS, limit=_MESSAGES), visit.presented
            )
            picture = draw(facts.memories)
        days = groupby(_conversations(said.memories), lambda one: one["day"])
        return self._pages.render(
            "timeline.html",
            visit.principal,
            days=[(day, list(each)) for day, each in days],
            picture=picture,
            following=urlencode({"page": said.next_page_token}) if said.next_page_token else "",
        )


def _conversations(memories: Iterable[Any]) -> list[dict[str, Any]]:
    """Group *memories*, the newest first, by conversation; each stands at the day of its newest message."""
    found: dict[str, dict[str, Any]] = {}
    for memory in memories:
        shown = shown_memory(memory)
        one = found.setdefault(
            memory.session_id or memory.id,
            {"session": memory.session_id, "day": shown["created"][:10], "until": shown["created"][11:],
             "summaries": [], "messages": 0, "first": None},
        )  # fmt: skip
        if memory.source == Source.SUMMARY:
            one["summaries"].append(shown)
            continue
        one["messages"] += 1
        if one["first"] is None or (memory.session_id and memory.seq <= int(one["first"]["seq"])):
            one["first"] = shown
    return list(found.values())


def draw(memories: Iterable[Any]) -> dict[str, Any] | None:
    """Lay out subjects and their facts for an SVG. None if no fact has a subject."""
    links: dict[str, dict[tuple[str, str], Any]] = {}
    for memory in memories:
        fields = dict(memory.metadata.items())
        subject, attribute, value = (fields.get(name, "") for name in ("subject", "attribute", "value"))
        if all(isinstance(one, str) for one in (subject, attribute, value)) and subject and value:
            links.setdefault(subject, {}).setdefault((attribute, value), memory)
    subjects, lines, row = [], [], 0
    for subject, known in sorted(links.items(), key=lambda one: -len(one[1]))[:_SUBJECTS]:
        first = row
        for (attribute, value), memory in list(known.items())[:_LINKS]:
            named = capitalize_as(memory.content, attribute.replace("_", " ").replace(value.lower(), value))
            words = named if value in named else f"{named}: {value}" if named else value
            lines.append({"y": _middle(row), "words": _shorten(words), "id": memory.id, "whole": words})
            row += 1
        at = (_middle(first) + _middle(row - 1)) / 2
        content = next(iter(known.values())).content
        subjects.append({"y": at, "words": _shorten(subject_words(subject, content))})
        for line in lines[first:row]:
            line["from"] = at
    return {"subjects": subjects, "lines": lines, "wide": _WIDE, "high": row * _ROW + 8} if lines else None


def _middle(row: int) -> float:
    return (row + 0.5) * _ROW + 4


def _shorten(words: str) -> str:
    return words if len(words) <= _SHORT else f"{words[: _SHORT - 1]}…"


# --- why ---------------------------------------------------------------------------------------------


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


# --- try-out -----------------------------------------------------------------------------------------


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


# --- operator ----------------------------------------------------------------------------------------


_LETTERS = 50  # dead letters, and memories of a user, on a page
_USERS = 25


class OperatorPage:
    def __init__(self, pages: Pages, service: MemoryService) -> None:
        self._pages, self._service = pages, service

    def register(self, application: web.Application) -> None:
        router, known = application.router, self._pages.for_reader
        router.add_get(f"{PATH}/operator", known(self._show))
        router.add_get(f"{PATH}/operator/user", known(self._user))
        router.add_post(f"{PATH}/operator/review", known(self._review))
        router.add_post(f"{PATH}/operator/retry", known(self._retry))

    async def _show(self, visit: PageVisit) -> web.StreamResponse:
        status = await self._call("GetServerStatus", pb.GetServerStatusRequest(), visit)
        configured = await self._call("GetConfiguration", pb.GetConfigurationRequest(), visit)
        letters = await self._call("ListDeadLetters", pb.ListDeadLettersRequest(limit=_LETTERS), visit)
        query = visit.request.query
        asked = pb.ListUsersRequest(
            limit=_USERS,
            tenant_id=query.get("tenant", "").strip(),
            page_token=query.get("page", ""),
            quarantined="quarantined" in query,
        )
        users: Any = await self._call("ListUsers", asked, visit)
        filters = {"tenant": asked.tenant_id, **({"quarantined": "on"} if asked.quarantined else {})}
        planned = None
        if query.get("show") == "retention":
            wanted = pb.PlanRetentionRoundRequest(page_token=query.get("from", ""))
            planned = await self._call("PlanRetentionRound", wanted, visit)
        plain = to_json(configured, verbose=True)
        flat = _flat(plain["configuration"])
        shown = to_json(status, verbose=True)
        return self._pages.render(
            "operator.html",
            visit.principal,
            status_=shown,
            examined=moment(shown.get("examined_at", "")),
            oldest=moment(shown.get("oldest_waiting_at", "")),
            since=moment(shown["outcomes_since"]),
            outcomes=sorted(shown["outcomes"].items(), key=lambda one: -int(one[1])),
            users=[{**one, "updated": moment(one["updated_at"])} for one in to_json(users, verbose=True)["users"]],
            filters=filters,
            following=urlencode({**filters, "page": users.next_page_token}) if users.next_page_token else "",
            planned=None if planned is None else to_json(planned, verbose=True),
            hashed=flat.get("privacy.hash_user_ids") == "true",
            sections=sorted(flat.items()),
            waiting=plain["needs_restart"],
            letters=[to_json(letter, verbose=True) for letter in letters.letters],
        )

    async def _user(self, visit: PageVisit) -> web.StreamResponse:
        """Show a user's counts. Showing their words is a separate call, and the audit log has it."""
        query = visit.request.query
        user, words = query.get("user", "").strip(), query.get("show", "")
        stats = await self._call("GetStats", pb.GetStatsRequest(user_id=user), visit)
        consent = await self._pages.get_consent(visit, user)
        held = memories = plan = None
        if words == "quarantine":
            held = await self._call("ListQuarantine", pb.ListQuarantineRequest(user_id=user, limit=_LETTERS), visit)
        elif words == "memories":
            listed = pb.ListMemoriesRequest(user_id=user, limit=_LETTERS)
            memories = await self._call("ListMemories", listed, visit)
        elif words == "retention":
            plan = to_json(
                await self._call("PlanRetention", pb.PlanRetentionRequest(user_id=user), visit), verbose=True
            )
        return self._pages.render(
            "user.html",
            visit.principal,
            user=user,
            stats=to_json(stats, verbose=True),
            consent="" if consent is None else consent.state,
            plan=plan,
            held=None if held is None else [shown_memory(memory) for memory in held.memories],
            memories=None if memories is None else [shown_memory(memory) for memory in memories.memories],
        )

    async def _review(self, visit: PageVisit) -> web.StreamResponse:
        user, chosen = visit.field("user"), visit.form.get("id", [])
        asked = pb.ReviewQuarantineRequest(user_id=user, memory_ids=chosen, verdict=visit.field("verdict"))
        await self._call("ReviewQuarantine", asked, visit)
        return see_other(f"{PATH}/operator/user?{urlencode({'user': user, 'show': 'quarantine'})}")

    async def _retry(self, visit: PageVisit) -> web.StreamResponse:
        await self._call("RetryDeadLetters", pb.RetryDeadLettersRequest(turn_ids=visit.form.get("id", [])), visit)
        return see_other(f"{PATH}/operator")

    async def _call(self, method: str, asked: Any, visit: PageVisit) -> Any:
        return await self._service.call(method, asked, visit.presented)


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{above}{name}.")
        else:
            flat[above + name] = json.dumps(value, ensure_ascii=False)
    return flat
