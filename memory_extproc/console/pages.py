"""The page, where people see, search, correct and forget their memories.

Each page is the answer of calls to the memory API in the name of its reader, so authorisation, rate limits and the
audit log are the API's. Forms work without script; htmx only saves reloads.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import grpc
from aiohttp import web
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.struct_pb2 import ListValue

from memory_extproc.api.authentication import SHARED_HEADER, Credentials
from memory_extproc.api.call import ErrorReason, RefusedError
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.api.principal import Principal
from memory_extproc.api.rest import NO_STORE, STATUSES, json_line, shorten_id, to_json
from memory_extproc.api.service import MemoryService
from memory_extproc.console.server import (
    COOKIE,
    LIFE,
    PATH,
    TextSigner,
    begin_session,
    csrf_token,
    follow_link,
    present_credentials,
)
from memory_extproc.model import Consent, MemoryState, MemoryType, Outcome, Owner, Source, TurnOutcome
from memory_extproc.model.headers import Headers
from memory_extproc.model.turn import message_id_of
from memory_extproc.ports import Coordination
from memory_extproc.settings.api import PrincipalRole

if TYPE_CHECKING:
    from jinja2 import Environment

PAGE_SIZE = 25
_PROJECTS = 16  # whose memories are shown beside the caller's own
_SHARED = 5  # memories of each of them; a page of its own has them all
_SOURCES_SHOWN = 8  # messages, and memories, that a memory was drawn from
_FORM_BYTES = 128 * 1024  # the longest text of a field, in a script of three bytes, takes 72 KiB in a form
FACTS = frozenset({MemoryType.SEMANTIC, MemoryType.PROCEDURAL, MemoryType.REFLECTIVE})
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_SAFE: Mapping[str, str] = {
    **NO_STORE,
    "content-security-policy": _POLICY,
    "x-frame-options": "DENY",
    # Not no-referrer: with that, browsers send `Origin: null` with our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_STATIC = {
    "htmx.js": ("htmx.min.js", "text/javascript"),
    "style.css": ("style.css", "text/css"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
# The SHA-256 of the vendored htmx 2.0.4, as the npm registry has it; the file is served only if it matches.
HTMX_SHA256 = "e209dda5c8235479f3166defc7750e1dbcd5a5c1808b7792fc2e6733768fb447"
Form = Mapping[str, list[str]]
Handler = Callable[["PageVisit"], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class PageVisit:
    """A request of a known reader."""

    request: web.Request
    presented: Credentials
    principal: Principal
    form: Form

    def field(self, name: str) -> str:
        return next(iter(self.form.get(name, ())), "").replace("\r\n", "\n")


class Pages:
    """*tries*: there is a page to try memory out, which `views.TryOut` serves."""

    def __init__(
        self, service: MemoryService, signer: TextSigner, coordination: Coordination, *, tries: bool = False
    ) -> None:
        self._tries = tries
        self._service, self._signer, self._coordination = service, signer, coordination

    def register(self, application: web.Application) -> None:
        add = application.router.add_route
        for verb, path, handler in (
            ("GET", "", self._mine),
            ("GET", "/memory/{id}", self._memory),
            ("POST", "/memory/{id}/edit", self._edit),
            ("POST", "/memory/{id}/confirm", self._confirm),
            ("POST", "/memory/{id}/rate", self._rate),
            ("POST", "/memory/{id}/restore", self._restore),
            ("POST", "/add", self._add),
            ("POST", "/forget", self._plan_forget),
            ("POST", "/forget/confirm", self._forget),
            ("GET", "/receipts/{id}", self._receipt),
            ("GET", "/receipts/{id}/download", self._receipt_file),
            ("GET", "/verify", self._verify_form),
            ("POST", "/verify", self._verify),
            ("GET", "/settings", self._settings),
            ("POST", "/consent", self._consent),
            ("GET", "/export", self._export),
        ):
            add(verb, PATH + path, self.for_reader(handler))
        add("GET", f"{PATH}/enter", self._enter)
        add("POST", f"{PATH}/enter", self._sign_in)
        add("POST", f"{PATH}/leave", self.for_reader(self._leave))
        add("GET", f"{PATH}/static/{{digest}}/{{name}}", self._static)
        add("GET", f"{PATH}/", self._home)
        add("GET", f"{PATH}/{{unknown:.*}}", self.for_reader(self._unknown))  # the more special routes go first
        add("GET", "/", self._home)

    # --- readers -----------------------------------------------------------------------------------
    def for_reader(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            presented = present_credentials(request)
            principal: Principal | None = None
            try:
                principal = self._service.identify(presented)
                form = await _read_form(request)
                visit = PageVisit(request, presented, principal, form)
                self._check_form(visit)
                return await handler(visit)
            except RefusedError as refused:
                return self._refusal(refused, principal, request)

        return handle

    def _check_form(self, visit: PageVisit) -> None:
        """A form of another site, or of a session before this one, changes nothing."""
        expected = csrf_token(self._signer, visit.principal).encode()
        given = visit.field("csrf").encode("utf-8", "replace")
        if visit.request.method == "POST" and not hmac.compare_digest(expected, given):
            code = grpc.StatusCode.PERMISSION_DENIED
            raise RefusedError(
                code, ErrorReason.NOT_ALLOWED, "this form is of an earlier session: load its page again"
            )

    def _refusal(self, refused: RefusedError, principal: Principal | None, request: web.Request) -> web.Response:
        status = STATUSES.get(refused.code, 500)
        if refused.code is grpc.StatusCode.UNAUTHENTICATED:
            shown = COOKIE in request.cookies
            arrived = request.path_qs if _is_from_elsewhere(request) and not shown else ""
            response = self.render("enter.html", None, status=status, expired=shown, arrived=arrived)
            if "hx-request" in request.headers:
                response.headers["hx-refresh"] = "true"  # htmx has no place for this page: it loads its own again
            elif shown:
                response.del_cookie(COOKIE, path=PATH)
            return response
        return self.render("refused.html", principal, status=status, message=refused.message, reason=refused.reason)

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        link = request.query.get("link", "")
        if not link:
            return self.render("enter.html", None)
        try:
            principal = await follow_link(self._signer, self._coordination, link)
        except RefusedError:
            return self.render("enter.html", None, status=401, expired=True)
        return self._signed_in(request, principal)

    async def _sign_in(self, request: web.Request) -> web.StreamResponse:
        """Exchanges a token or an API key for a session."""
        token = (await _read_form(request)).get("token", [""])[0].strip()
        headers = Headers([("authorization", f"Bearer {token or '-'}")])
        try:
            principal = self._service.admit(Credentials(present_credentials(request).peer, headers))
        except RefusedError as refused:
            code = STATUSES.get(refused.code, 401)
            return self.render("enter.html", None, status=code, wrong=True)
        return self._signed_in(request, principal)

    def _signed_in(self, request: web.Request, principal: Principal) -> web.Response:
        # A redirect would still belong to the visit from the other site, and the browser would not send the cookie.
        response = self.render("entered.html", None) if _is_from_elsewhere(request) else see_other(PATH)
        response.set_cookie(
            COOKIE,
            begin_session(self._signer, principal),
            max_age=int(LIFE.total_seconds()),
            path=PATH,
            httponly=True,
            secure=request.secure or request.headers.get("x-forwarded-proto") == "https",
            samesite="Strict",
        )
        return response

    async def _leave(self, _: PageVisit) -> web.StreamResponse:
        response = see_other(f"{PATH}/enter")
        response.del_cookie(COOKIE, path=PATH)
        return response

    async def _unknown(self, visit: PageVisit) -> web.StreamResponse:
        return self.render("unknown.html", visit.principal, status=404)

    async def _home(self, _: web.Request) -> web.StreamResponse:
        return see_other(PATH)

    # --- mine ----------------------------------------------------------------------------------------
    async def _mine(self, visit: PageVisit) -> web.StreamResponse:
        return await self._mine_page(visit)

    async def _mine_page(
        self, visit: PageVisit, drafts: Mapping[str, str] | None = None, faults: Mapping[str, str] | None = None
    ) -> web.Response:
        """*drafts*: texts by the name of their field, and *faults* of them, which are shown beside the fields."""
        query, faults = visit.request.query, faults or {}
        wanted = {
            name: query.get(name, "").strip()
            for name in ("q", "type", "state", "session", "after", "before", "project")
        }
        asked = pb.ListMemoriesRequest(
            text=wanted["q"],
            type=[wanted["type"]] if wanted["type"] else FACTS if wanted["state"] != "any" else [],
            state=[wanted["state"]] if wanted["state"] else [],
            session_id=wanted["session"],
            limit=PAGE_SIZE,
            page_token=query.get("page", ""),
        )
        if wanted["type"] == "all":
            del asked.type[:]
        presented = of_project(visit.presented, wanted["project"]) if wanted["project"] else visit.presented
        listed: Any
        try:
            for name in ("after", "before"):
                if wanted[name]:
                    _set_day(getattr(asked, f"created_{name}"), wanted[name])
            listed = await self._service.call("ListMemories", asked, presented)
        except RefusedError as refused:
            if refused.reason is not ErrorReason.BAD_REQUEST:
                raise
            listed, faults = pb.ListMemoriesResponse(), {"filters": refused.message}
        memories = [shown_memory(memory) for memory in listed.memories]
        kept = {name: value for name, value in wanted.items() if value}
        following = urlencode({**kept, "page": listed.next_page_token}) if listed.next_page_token else ""
        groups = [(subject, list(each)) for subject, each in groupby(_by_subject(memories), _subject_of)]
        return self.render(
            "mine.html",
            visit.principal,
            status=400 if faults else 200,
            drafts={"content": "", "about": "", **(drafts or {})},
            faults=faults,
            groups=groups,
            shared=[]
            if wanted["project"] or asked.page_token or faults
            else await self._list_shared(visit, wanted["q"]),
            total=listed.total,
            wanted=wanted,
            following=following,
            subject_words=subject_words,
            filtered=bool(kept),
            types=[each.value for each in MemoryType],
            states=[each.value for each in MemoryState],
        )

    async def _list_shared(self, visit: PageVisit, text: str) -> list[tuple[str, list[dict[str, Any]], int]]:
        """The newest facts of the caller's projects: the project's name, the facts, how many there are in all."""
        shared = []
        for project in visit.principal.projects[:_PROJECTS]:
            asked = pb.ListMemoriesRequest(text=text, type=FACTS, limit=_SHARED)
            listed: Any = await self._service.call("ListMemories", asked, of_project(visit.presented, project))
            shared.append((project, [shown_memory(memory) for memory in listed.memories], listed.total))
        return shared

    async def _memory(self, visit: PageVisit) -> web.StreamResponse:
        return await self._memory_page(visit, visit.request.match_info["id"])

    async def _memory_page(
        self, visit: PageVisit, memory_id: str, *, draft: str | None = None, fault: str = "", status: int = 200
    ) -> web.Response:
        asked = pb.GetMemoryRequest(id=memory_id, history=True)
        memory: Any = await self._service.call("GetMemory", asked, visit.presented)
        return self.render(
            "memory.html",
            visit.principal,
            status=status,
            memory=shown_memory(memory),
            history=[shown_memory(one) for one in memory.history],
            sources=await self._sources(visit, memory),
            draft=memory.content if draft is None else draft,
            fault=fault,
        )

    async def _sources(self, visit: PageVisit, memory: Any) -> list[dict[str, Any]]:
        """The messages and memories that a memory was drawn from, as far as they are still there."""
        fields = dict(memory.metadata.items())
        turns = dict.fromkeys(_texts_in(fields.get("turn")) + _texts_in(fields.get("drawn_from")))
        owner = Owner(memory.tenant_id, memory.user_id)
        ids = [message_id_of(owner, turn, ordinal) for turn in turns for ordinal in (0, 1)]
        found = []
        for memory_id in [*ids[:_SOURCES_SHOWN], *_texts_in(fields.get("sources"))[:_SOURCES_SHOWN]]:
            if memory_id == memory.id:
                continue
            try:
                asked = pb.GetMemoryRequest(id=memory_id)
                found.append(shown_memory(await self._service.call("GetMemory", asked, visit.presented)))
            except RefusedError as refused:
                if refused.code is not grpc.StatusCode.NOT_FOUND:
                    raise
        return found

    async def _edit(self, visit: PageVisit) -> web.StreamResponse:
        memory_id, content = visit.request.match_info["id"], visit.field("content")
        asked = pb.UpdateMemoryRequest(id=memory_id, memory=pb.Memory(content=content, etag=visit.field("etag")))
        asked.update_mask.paths.append("content")
        try:
            await self._service.call("UpdateMemory", asked, visit.presented)
        except RefusedError as refused:
            if refused.code not in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION}:
                raise
            stale = refused.reason is ErrorReason.STALE
            fault = "stale" if stale else refused.message.replace("memory.content: ", "")
            return await self._memory_page(
                visit, memory_id, draft=content, fault=fault, status=409 if stale else STATUSES[refused.code]
            )
        return see_other(f"{PATH}/memory/{memory_id}")

    async def _confirm(self, visit: PageVisit) -> web.StreamResponse:
        """The same text once more confirms the memory."""
        memory_id = visit.request.match_info["id"]
        memory: Any = await self._service.call("GetMemory", pb.GetMemoryRequest(id=memory_id), visit.presented)
        asked = pb.StoreMemoryRequest(content=memory.content, type=memory.type, project_id=memory.project_id)
        await self._service.call("StoreMemory", asked, visit.presented)
        return see_other(f"{PATH}/memory/{memory_id}")

    async def _rate(self, visit: PageVisit) -> web.StreamResponse:
        memory_id = visit.request.match_info["id"]
        asked = pb.RateMemoryRequest(id=memory_id, rating=visit.field("rating"))
        await self._service.call("RateMemory", asked, visit.presented)
        return see_other(f"{PATH}/memory/{memory_id}")

    async def _restore(self, visit: PageVisit) -> web.StreamResponse:
        memory_id = visit.request.match_info["id"]
        await self._service.call("RestoreMemory", pb.RestoreMemoryRequest(id=memory_id), visit.presented)
        return see_other(f"{PATH}/memory/{memory_id}")

    async def _add(self, visit: PageVisit) -> web.StreamResponse:
        content = visit.field("content")
        try:
            asked = pb.StoreMemoryRequest(content=content)
            stored: Any = await self._service.call("StoreMemory", asked, visit.presented)
        except RefusedError as refused:
            if refused.code not in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION}:
                raise
            fault = refused.message.replace("content: ", "Required: ")
            if refused.reason is ErrorReason.NO_CONSENT:
                fault = "You have not consented to memory, see Settings"
            return await self._mine_page(visit, {"content": content}, {"content": fault})
        return see_other(f"{PATH}/memory/{shorten_id(stored.memory.id)}")

    # --- forgetting ----------------------------------------------------------------------------------
    async def _plan_forget(self, visit: PageVisit) -> web.StreamResponse:
        """The dry run: lists the memories that would go, before any does."""
        scope, everything = visit.field("scope"), visit.field("scope") == "everything"
        asked = pb.ForgetMemoriesRequest(
            memory_ids=visit.form.get("id", []) if scope == "ids" else [],
            session_id=visit.field("session") if scope == "session" else "",
            query=visit.field("about") if scope == "about" else "",
            dry_run=True,
        )
        if not everything and not (asked.memory_ids or asked.session_id or asked.query):
            # An empty scope would be everything.
            return self.render("nothing.html", visit.principal, status=400)
        try:
            plan: Any = await self._service.call("ForgetMemories", asked, visit.presented)
        except RefusedError as refused:
            if not asked.query or refused.code is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
            return await self._mine_page(
                visit, {"about": asked.query}, {"about": refused.message.replace("query: ", "Required: ")}
            )
        asked.dry_run = False
        asked.confirmation_token = plan.confirmation_token
        return self.render(
            "forget.html",
            visit.principal,
            total=plan.total,
            memories=[shown_memory(memory) for memory in plan.would_forget[:PAGE_SIZE]],
            everything=everything,
            confirmed=asked.SerializeToString(deterministic=True).hex(),
        )

    async def _forget(self, visit: PageVisit) -> web.StreamResponse:
        try:
            asked = pb.ForgetMemoriesRequest.FromString(bytes.fromhex(visit.field("confirmed")))
        except Exception:  # noqa: BLE001 - protobuf's own errors are no ValueError
            asked = pb.ForgetMemoriesRequest()
        if not asked.confirmation_token or asked.dry_run or asked.user_id:
            return self.render("nothing.html", visit.principal, status=400)
        done: Any = await self._service.call("ForgetMemories", asked, visit.presented)
        return see_other(f"{PATH}/receipts/{done.receipt.id}")

    async def _receipt(self, visit: PageVisit) -> web.StreamResponse:
        receipt = await self._receipt_of(visit)
        return self.render("receipt.html", visit.principal, receipt=to_json(receipt, verbose=True))

    async def _receipt_file(self, visit: PageVisit) -> web.StreamResponse:
        receipt = await self._receipt_of(visit)
        text = json.dumps(to_json(receipt, verbose=True), indent=2)
        name = f"receipt-{shorten_id(receipt.id)}.json"
        return _download(text.encode(), name)

    async def _receipt_of(self, visit: PageVisit) -> Any:
        asked = pb.GetForgetReceiptRequest(receipt_id=visit.request.match_info["id"])
        return await self._service.call("GetForgetReceipt", asked, visit.presented)

    async def _verify_form(self, visit: PageVisit) -> web.StreamResponse:
        return self.render("verify.html", visit.principal, found=None, receipt=None, text="", fault=False)

    async def _verify(self, visit: PageVisit) -> web.StreamResponse:
        """Checks a receipt that is named (from its own page), uploaded or pasted."""
        name, text = visit.field("id"), visit.field("file") or visit.field("receipt")
        try:
            if name:
                wanted = pb.GetForgetReceiptRequest(receipt_id=name)
                receipt: Any = await self._service.call("GetForgetReceipt", wanted, visit.presented)
            else:
                given = json.loads(text)
                receipt = ParseDict(given.get("receipt", given), pb.ForgetReceipt(), ignore_unknown_fields=True)
            asked = pb.VerifyReceiptRequest(receipt=receipt)
            found = await self._service.call("VerifyReceipt", asked, visit.presented)
        except (ValueError, TypeError, AttributeError, RecursionError, ParseError):
            return self._no_receipt(visit, text)
        except RefusedError as refused:
            if name or refused.code is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
            return self._no_receipt(visit, text)
        shown, result = to_json(receipt, verbose=True), to_json(found, verbose=True)
        return self.render("verify.html", visit.principal, found=result, receipt=shown, text="", fault=False)

    def _no_receipt(self, visit: PageVisit, text: str) -> web.Response:
        return self.render(
            "verify.html", visit.principal, status=400, found=None, receipt=None, text=text, fault=True
        )

    # --- settings ------------------------------------------------------------------------------------
    async def _settings(self, visit: PageVisit) -> web.StreamResponse:
        stats: Any = await self._service.call("GetStats", pb.GetStatsRequest(), visit.presented)
        consent = await self.get_consent(visit)
        return self.render(
            "settings.html",
            visit.principal,
            stats=to_json(stats, verbose=True),
            consent=None if consent is None else to_json(consent, verbose=True),
            choices=[each.value for each in Consent],
        )

    async def get_consent(self, visit: PageVisit, user: str = "") -> Any:
        """The consent of *user* (empty: the reader); None on a server without consents."""
        try:
            return await self._service.call("GetConsent", pb.GetConsentRequest(user_id=user), visit.presented)
        except RefusedError as refused:
            if refused.code is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            return None

    async def _consent(self, visit: PageVisit) -> web.StreamResponse:
        asked = pb.SetConsentRequest(state=visit.field("state") or "none given")
        await self._service.call("SetConsent", asked, visit.presented)
        return see_other(f"{PATH}/settings")

    async def _export(self, visit: PageVisit) -> web.StreamResponse:
        """JSON Lines, as the API gives them."""
        stream = self._service.stream("ExportMemories", pb.ExportMemoriesRequest(), visit.presented)
        async with aclosing(stream) as answers:
            first = await anext(answers, None)
            response = _download_stream("memories.jsonl")
            await response.prepare(visit.request)
            if first is not None:
                await response.write(json_line(first))
            async for answer in answers:
                await response.write(json_line(answer))
        await response.write_eof()
        return response

    # --- answers -------------------------------------------------------------------------------------
    def render(self, name: str, principal: Principal | None, *, status: int = 200, **values: Any) -> web.Response:
        reader = {
            "name": "" if principal is None else principal.user or "(no user)",
            "tenant": "" if principal is None else principal.tenant,
            "operates": principal is not None and PrincipalRole.ADMIN in principal.roles and not principal.tenant,
            "csrf": "" if principal is None else csrf_token(self._signer, principal),
            "known": principal is not None,
            "tries": self._tries,
        }
        text = templates().get_template(name).render(base=PATH, reader=reader, static=_static_url, **values)
        return web.Response(text=text, status=status, content_type="text/html", headers=_SAFE)

    async def _static(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in _STATIC or request.match_info["digest"] != _digest(name):
            raise web.HTTPNotFound(text="no such file\n")
        kept = {**_SAFE, "cache-control": "public, max-age=31536000, immutable"}
        return web.Response(body=_content(name), content_type=_STATIC[name][1], charset="utf-8", headers=kept)


# --- showing -----------------------------------------------------------------------------------------
_SOURCES: Mapping[str, str] = {
    Source.VERBATIM: "message in a chat",
    Source.QUESTION: "question in a chat",
    Source.RULES: "learned from a chat by rules",
    Source.LLM: "learned from a chat by a language model",
    Source.API: "added or corrected by you or for you",
}
_ORIGINS = (("app", "Application"), ("model", "Model"), ("route", "Route"))
# Why a request left with or without memories, or its turn was not learned. Rarer reasons are shown by their names.
_OUTCOMES: Mapping[str, str] = {
    Outcome.USED: "memories were used",
    Outcome.NOTHING_RELEVANT: "no memory was relevant enough",
    Outcome.EMPTY: "nothing is remembered yet",
    Outcome.SKIPPED_FACT: "a question of general knowledge",
    Outcome.SKIPPED_GREETING: "a greeting",
    Outcome.SKIPPED_TOOL: "a call of a tool",
    Outcome.OPTED_OUT: "the application asked for none",
    Outcome.DISABLED: "the operator has disabled memory here",
    Outcome.NO_CONSENT: "you have not consented to it, see Settings",
    Outcome.OUT_OF_TIME: "memory was too slow",
    Outcome.OVERLOADED: "the server was overloaded",
    Outcome.UNAVAILABLE: "memory was unavailable",
    Outcome.SHADOWED: "a trial run that sends nothing to the model",
    Outcome.CONTROL: "a comparison without memory",
    TurnOutcome.INCOGNITO: "an incognito conversation",
    TurnOutcome.NOT_ASKED: "storing was disabled for this request",
    TurnOutcome.NOT_OK: "the model did not answer",
    TurnOutcome.FORGOTTEN: "it was forgotten",
}
_TYPES: Mapping[str, str] = {
    MemoryType.SEMANTIC: "fact",
    MemoryType.PROCEDURAL: "how to",
    MemoryType.EPISODIC: "message",
    MemoryType.REFLECTIVE: "conclusion",
}


def shown_memory(memory: Any) -> dict[str, Any]:
    """A memory as the templates show it. Every text is escaped there."""
    plain = to_json(memory, verbose=False)
    subject = plain.get("metadata", {}).get("subject", "")
    origin = dict(part.partition("=")[::2] for part in plain.get("origin", "").split())
    return {
        **plain,
        "subject": subject if isinstance(subject, str) else "",
        "kind": _TYPES.get(plain["type"], plain["type"]),
        "rating": plain.get("metadata", {}).get("rating", ""),
        "suspicion": plain.get("metadata", {}).get("suspicion", "suspicious"),
        "known_from": _SOURCES.get(plain["source"], plain["source"]),
        "through": [(words, origin[name]) for name, words in _ORIGINS if name in origin],
        "created": moment(plain.get("created_at", "")),
        "updated": moment(plain.get("updated_at", "")),
        "until": moment(plain.get("valid_to", "") or plain.get("updated_at", "")),
    }


def of_project(presented: Credentials, project: str) -> Credentials:
    """The same credentials, for the memories that *project* shares."""
    named = (SHARED_HEADER, f"project:{quote(project, safe='')}")
    return replace(presented, headers=Headers([*presented.headers, named]))


def subject_words(subject: str, content: str) -> str:
    """A subject as its owner would say it, in the capitals of *content*: subjects are kept in lower case."""
    subject = capitalize_as(content, subject)
    if subject.lower() in {"user", "you", "i", "me"}:
        return "You"
    return "Your " + subject[7:] if subject.lower().startswith("user's ") else subject


def capitalize_as(content: str, words: str) -> str:
    """*words* with the capitals that they have in *content*."""
    at = content.lower().find(words.lower())
    return content[at : at + len(words)] if at >= 0 else words


def moment(stamp: str) -> str:
    return stamp[:16].replace("T", " ")


def outcome_words(outcome: str) -> str:
    return _OUTCOMES.get(outcome, outcome.replace("_", " "))


def _subject_of(memory: Mapping[str, Any]) -> str:
    return str(memory["subject"])


def _by_subject(memories: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each subject's memories together, where the newest of them stands."""
    order: dict[str, int] = {}
    for memory in memories:
        order.setdefault(memory["subject"], len(order))
    return sorted(memories, key=lambda memory: order[memory["subject"]])


def _set_day(into: Any, day: str) -> None:
    try:
        into.FromJsonString(f"{day}T00:00:00Z")
    except ValueError:
        message = "a day such as 2026-03-02"
        raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, ErrorReason.BAD_REQUEST, message) from None


def _texts_in(value: object) -> list[str]:
    """The texts of a field of metadata, which an import may have given any type."""
    values = value if isinstance(value, ListValue) else [value]
    return [one for one in values if isinstance(one, str) and one]


def _is_from_elsewhere(request: web.Request) -> bool:
    """Whether a page of another site led here: browsers then send no SameSite=Strict cookie."""
    return request.method == "GET" and request.headers.get("sec-fetch-site") == "cross-site"


def see_other(place: str) -> web.Response:
    return web.Response(status=303, headers={**_SAFE, "location": place})


def _download(body: bytes, name: str) -> web.Response:
    headers = {**_SAFE, "content-disposition": f'attachment; filename="{name}"'}
    return web.Response(body=body, content_type="application/json", headers=headers)


def _download_stream(name: str) -> web.StreamResponse:
    headers = {"content-disposition": f'attachment; filename="{name}"', "content-type": "application/x-ndjson"}
    return web.StreamResponse(headers={**_SAFE, **headers})


async def _read_form(request: web.Request) -> Form:
    if request.method != "POST":
        return {}
    if request.content_length is not None and request.content_length > _FORM_BYTES:
        raise web.HTTPRequestEntityTooLarge(_FORM_BYTES, request.content_length)
    found: dict[str, list[str]] = {}
    for name, value in (await request.post()).items():
        if isinstance(value, web.FileField):
            value = value.file.read().decode("utf-8", "replace")  # noqa: PLW2901 - a small file, as text
        if isinstance(value, str):
            found.setdefault(name, []).append(value)
    return found


@cache
def templates() -> Environment:
    """Made at the first page, so that a sidecar without visitors has nothing of it in memory."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415

    made = Environment(
        loader=PackageLoader("memory_extproc.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["outcome"] = outcome_words
    return made


@cache
def _content(name: str) -> bytes:
    content = files("memory_extproc.console").joinpath("static", _STATIC[name][0]).read_bytes()
    if name == "htmx.js" and hashlib.sha256(content).hexdigest() != HTMX_SHA256:
        raise RuntimeError("static/htmx.min.js is not the file that was vendored")
    return content


@cache
def _digest(name: str) -> str:
    return hashlib.sha256(_content(name)).hexdigest()[:16]


def _static_url(name: str) -> str:
    return f"{PATH}/static/{_digest(name)}/{name}"
