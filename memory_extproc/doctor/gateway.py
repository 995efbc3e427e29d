"""The gateway as a client sees it: sends a chat and returns the response."""

from __future__ import annotations

import asyncio
import gzip
import io
import itertools
import json
import random
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import aiohttp
from aiohttp import web

STATUS = "x-memory-status"
ECHO = "memory_extproc_echo"  # the response field in which the echo model shows its input
_OK = 200


@dataclass(frozen=True, slots=True)
class Person:
    """A person identified by these headers. Never shown: they may contain a token."""

    headers: Mapping[str, str] = field(repr=False)

    def with_headers(self, headers: Mapping[str, str]) -> Person:
        """The same person with additional headers."""
        return Person({**self.headers, **headers})


@dataclass(frozen=True, slots=True)
class GatewayResponse:
    """A response. *status* 0: none; *fault* says why.

    *at*: arrival of each piece of the body, in seconds after the request."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)  # as it was packed; `text` is unpacked
    at: Sequence[float] = ()
    fault: str = ""

    @property
    def good(self) -> bool:
        return self.status == _OK

    @property
    def memory(self) -> str:
        """The whole value of x-memory-status, empty if absent."""
        return self.headers.get(STATUS, "")

    @property
    def outcome(self) -> str:
        return self.memory.partition(";")[0]

    @property
    def seconds(self) -> float:
        return self.at[-1] if self.at else 0.0

    @property
    def is_packed(self) -> bool:
        return self.headers.get("content-encoding", "").lower() == "gzip"

    @property
    def text(self) -> str:
        """The decompressed body; empty if that fails."""
        try:
            body = gzip.decompress(self.body) if self.is_packed else self.body
        except (OSError, EOFError, zlib.error):
            return ""
        return body.decode(errors="replace")

    @property
    def json(self) -> Mapping[str, Any]:
        """The body as an object; empty if it is invalid."""
        try:
            read = json.loads(self.text)
        except ValueError:
            return {}
        return read if isinstance(read, dict) else {}

    @property
    def echo(self) -> Mapping[str, Any] | None:
        """The echo model's input: `headers` with lower-case names and `body`; None from any other model."""
        shown = self.json.get(ECHO)
        return shown if isinstance(shown, dict) else None

    @property
    def prompt_tokens(self) -> int | None:
        """The prompt tokens counted by the model."""
        usage = self.json.get("usage")
        count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        return count if isinstance(count, int) else None

    def __str__(self) -> str:
        if self.fault:
            return self.fault
        return f"HTTP {self.status}, {STATUS}: {self.memory or 'absent'}"


class Gateway:
    """Sends chats to *url* + *path* with a timeout of *patience* seconds. Keeps all responses, the newest last."""

    def __init__(self, session: aiohttp.ClientSession, *, url: str, path: str, model: str, patience: float) -> None:
        """*session* must not decompress responses: the checks look at the encoding."""
        self._session, self._url, self._path = session, url.rstrip("/"), path
        self._timeout = aiohttp.ClientTimeout(total=patience)
        self.model = model
        self.answers: list[GatewayResponse] = []  # to chats alone

    def chat(self, *messages: Mapping[str, Any], **more: Any) -> bytes:
        body = {"model": self.model, "messages": list(messages), "max_tokens": 64, **more}
        return json.dumps(body).encode()

    def user_chat(self, words: str, **more: Any) -> bytes:
        return self.chat({"role": "user", "content": words}, **more)

    async def ask(self, person: Person, body: bytes, headers: Mapping[str, str] | None = None) -> GatewayResponse:
        """Send a chat request; never raises for a fault of the gateway."""
        sent = {"content-type": "application/json", "accept-encoding": "identity"}
        answer = await self.call("POST", self._path, {**sent, **person.headers, **(headers or {})}, body)
        self.answers.append(answer)
        return answer

    async def first_model(self, person: Person) -> str:
        """The first model listed at /v1/models; empty if there is no list."""
        listed = (await self.call("GET", "/v1/models", person.headers)).json.get("data")
        first = listed[0] if isinstance(listed, list) and listed else None
        return str(first.get("id", "")) if isinstance(first, dict) else ""

    async def call(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> GatewayResponse:
        data = None if body is None else io.BytesIO(body)  # bytes of some size would hold up the loop
        began, at, pieces = time.monotonic(), [0.0], list[bytes]()
        try:
            async with self._session.request(
                method, self._url + path, data=data, headers=headers, timeout=self._timeout, allow_redirects=False
            ) as got:
                async for piece in got.content.iter_any():
                    pieces.append(piece)
                    at.append(time.monotonic() - began)
                names = {name.lower(): value for name, value in got.headers.items()}
                return GatewayResponse(got.status, names, b"".join(pieces), at[1:])
        except TimeoutError:
            return GatewayResponse(0, fault=f"no whole answer within {self._timeout.total:g} s")
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
            return GatewayResponse(0, fault=f"the connection failed: {type(error).__name__}")


# A visit: an examination of a gateway, with its persons, permissions and planted words.

_CONSONANTS, _VOWELS = "bdfklmnprstvz", "aeiou"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitOptions:
    """*proven*: the gateway knows *ann* and *bob* by credentials, not by a header that names them."""

    ann: Person
    bob: Person
    proven: bool
    everybody: Mapping[str, str] = field(default_factory=dict, repr=False)  # headers of every request
    trusted_edge: bool = False  # only an edge of the operator's own reaches this URL, so names may be believed
    user_header: str = "x-authz-user-id"
    tenant_header: str = "x-authz-tenant-id"
    session_header: str = "x-session-id"
    roles_header: str = ""  # api.trusted_proxy.roles_header; empty: callers have no roles
    body_bytes: int = 4 * 1024 * 1024  # limits.request_body of the sidecar
    learned_within: float = 15.0  # seconds until a told fact must be found


class GatewayVisit:
    """*rng* generates the words, so that visits never look for the same."""

    def __init__(self, gateway: Gateway, options: VisitOptions, rng: random.Random) -> None:
        self.gateway, self.options = gateway, options
        self.name = f"doctor-{rng.getrandbits(32):08x}"
        self._rng = rng
        self._sessions = self._asked = 0
        self.canary = self.word()  # ann's secret fact
        self.kept: list[tuple[Person, str]] = []  # sessions from which something may be remembered, and whose
        self.cold = GatewayResponse(0)  # a response without recall
        self.knows = False  # ann's fact was recalled: required by the recall checks

    @property
    def nobody(self) -> Person:
        return Person(dict(self.options.everybody))

    @property
    def question(self) -> str:
        """A question for the canary, always in new words, so that no response cache answers."""
        return self._vary("What is my boat called?")

    def word(self) -> str:
        """A meaningless word that occurs nowhere else."""
        letters = (self._rng.choice(_CONSONANTS) + self._rng.choice(_VOWELS) for _ in range(4))
        return "".join(letters).capitalize()

    def forge_caller(self, **headers: str) -> Person:
        """An unauthenticated client with forged headers; names are written with _ for -."""
        return self.nobody.with_headers({name.replace("_", "-"): value for name, value in headers.items()})

    async def tell(self, person: Person, words: str, *, stream: bool = False) -> GatewayResponse:
        """Send *words* in a new conversation, which is forgotten at the end."""
        session = self._session()
        self.kept.append((person, session))
        more = {"stream": True} if stream else {}
        headers = {self.options.session_header: session}
        return await self.gateway.ask(person, self.gateway.user_chat(words, **more), headers)

    async def ask(self, person: Person, words: str, headers: Mapping[str, str] | None = None) -> GatewayResponse:
        """Ask in a new conversation that is not stored."""
        return await self.send(person, self.gateway.user_chat(words), headers)

    async def send(self, person: Person, body: bytes, headers: Mapping[str, str] | None = None) -> GatewayResponse:
        sent = {self.options.session_header: self._session(), "x-memory-store": "skip", **(headers or {})}
        return await self.gateway.ask(person, body, sent)

    async def asked_until_used(self, person: Person, words: str) -> GatewayResponse:
        """Ask until memory is used or *learned_within* is over: learning follows the response."""
        until = time.monotonic() + self.options.learned_within
        while True:
            answer = await self.ask(person, self._vary(words))
            if answer.outcome not in {"empty", "nothing_relevant", "unavailable"} or time.monotonic() > until:
                return answer
            await asyncio.sleep(0.25)

    def _vary(self, words: str) -> str:
        self._asked += 1
        return f"{words} ({self._asked})"

    def _session(self) -> str:
        self._sessions += 1
        return f"{self.name}-{self._sessions}"


# Findings: a verdict, the observation, and the remedy.


class CheckVerdict(StrEnum):
    """The verdict. Also in the machine-readable output, so values are never renamed."""

    OK = "ok"
    WARN = "warn"  # works, and will hurt
    FAIL = "fail"  # users lose memory, or see another user's memories
    UNKNOWN = "unknown"  # could not be looked at; `seen` says why


@dataclass(frozen=True, slots=True)
class Finding:
    """*seen* and *mend* are sentences for an operator; *mend* is empty if nothing needs to be done."""

    check: str
    verdict: CheckVerdict
    seen: str
    mend: str = ""


def ok(check: str, seen: str) -> Finding:
    return Finding(check, CheckVerdict.OK, seen)


def warn(check: str, seen: str, mend: str) -> Finding:
    return Finding(check, CheckVerdict.WARN, seen, mend)


def fail(check: str, seen: str, mend: str) -> Finding:
    return Finding(check, CheckVerdict.FAIL, seen, mend)


def unknown(check: str, seen: str, mend: str = "") -> Finding:
    return Finding(check, CheckVerdict.UNKNOWN, seen, mend)


# An echo model that returns its input, as the upstream behind the gateway.

_MOST_BYTES = 64 * 1024 * 1024
_WORDS = ("Noted", ",", " thank", " you", ".")
_BETWEEN = 0.05  # seconds between two pieces, so that a gateway which holds answers back shows


def echo_app() -> web.Application:
    """Serves /v1/models, and chat completions at every other path."""
    app = web.Application(client_max_size=_MOST_BYTES)
    numbers = itertools.count(1)

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "echo", "object": "model"}]})

    async def chat(request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        try:
            asked = json.loads(raw)
        except ValueError:
            asked = None
        if not isinstance(asked, dict):
            return web.json_response({"error": {"message": "expected a JSON object"}}, status=400)
        answer: dict[str, Any] = {"id": f"chatcmpl-echo-{next(numbers)}", "model": "echo", "created": 0}
        if asked.get("stream") is True:
            return await _stream(request, answer)
        headers = {name.lower(): value for name, value in request.headers.items()}
        # A token is a credential wherever it is shown.
        headers = {name: "…" if name in {"authorization", "cookie"} else value for name, value in headers.items()}
        message = {"role": "assistant", "content": "".join(_WORDS)}
        answer |= {
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": len(raw) // 4, "completion_tokens": 5, "total_tokens": len(raw) // 4 + 5},
            ECHO: {"headers": headers, "body": asked},
        }
        body = json.dumps(answer).encode()
        if "gzip" in headers.get("accept-encoding", ""):
            packed = gzip.compress(body)
            return web.Response(body=packed, headers={"content-encoding": "gzip"}, content_type="application/json")
        return web.Response(body=body, content_type="application/json")

    app.router.add_get("/v1/models", models)
    app.router.add_post("/{path:.*}", chat)
    return app


async def _stream(request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    answer["object"] = "chat.completion.chunk"
    for word in _WORDS:
        await response.write(_event({**answer, "choices": [{"index": 0, "delta": {"content": word}}]}))
        await asyncio.sleep(_BETWEEN)
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    await response.write(_event({**answer, "choices": [end]}) + b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
