"""The gateway as a client sees it: one chat sent through it, and what came back."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

STATUS = "x-memory-status"
ECHO = "memory_extproc_echo"  # the field of an answer in which the echo model shows what reached it
_OK = 200


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody the gateway knows by these headers. Never shown: they may hold a token."""

    headers: Mapping[str, str] = field(repr=False)

    def also(self, headers: Mapping[str, str]) -> Person:
        """The same somebody, who says more."""
        return Person({**self.headers, **headers})


@dataclass(frozen=True, slots=True)
class Answer:
    """*status* 0: none came; *fault* says why. *at*: when each piece of the body came, seconds after the
    request."""

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
        """The whole value of x-memory-status, empty where there is none."""
        return self.headers.get(STATUS, "")

    @property
    def outcome(self) -> str:
        return self.memory.partition(";")[0]

    @property
    def seconds(self) -> float:
        return self.at[-1] if self.at else 0.0

    @property
    def packed(self) -> bool:
        return self.headers.get("content-encoding", "").lower() == "gzip"

    @property
    def text(self) -> str:
        """The body unpacked; empty where it cannot be."""
        try:
            body = gzip.decompress(self.body) if self.packed else self.body
        except (OSError, EOFError, zlib.error):
            return ""
        return body.decode(errors="replace")

    @property
    def json(self) -> Mapping[str, Any]:
        """The body's object; empty for whatever is none."""
        try:
            read = json.loads(self.text)
        except ValueError:
            return {}
        return read if isinstance(read, dict) else {}

    @property
    def echo(self) -> Mapping[str, Any] | None:
        """What the echo model was sent: `headers` with lower-case names and `body`; None from any other model."""
        shown = self.json.get(ECHO)
        return shown if isinstance(shown, dict) else None

    @property
    def prompt_tokens(self) -> int | None:
        """As the model counted them."""
        usage = self.json.get("usage")
        count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        return count if isinstance(count, int) else None

    def __str__(self) -> str:
        if self.fault:
            return self.fault
        return f"HTTP {self.status}, {STATUS}: {self.memory or 'absent'}"


class Gateway:
    """Sends chats to *url* + *path*. Each call ends within *patience* seconds. Keeps every answer, the newest
    last."""

    def __init__(self, session: aiohttp.ClientSession, *, url: str, path: str, model: str, patience: float) -> None:
        """*session* must not unpack answers: the checks look at the encoding."""
        self._session, self._url, self._path = session, url.rstrip("/"), path
        self._timeout = aiohttp.ClientTimeout(total=patience)
        self.model = model
        self.answers: list[Answer] = []  # to chats alone

    def chat(self, *messages: Mapping[str, Any], **more: Any) -> bytes:
        body = {"model": self.model, "messages": list(messages), "max_tokens": 64, **more}
        return json.dumps(body).encode()

    def said(self, words: str, **more: Any) -> bytes:
        return self.chat({"role": "user", "content": words}, **more)

    async def ask(self, person: Person, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """One chat request; never raises for what the gateway does."""
        sent = {"content-type": "application/json", "accept-encoding": "identity"}
        answer = await self.call("POST", self._path, {**sent, **person.headers, **(headers or {})}, body)
        self.answers.append(answer)
        return answer

    async def first_model(self, person: Person) -> str:
        """The first model that is listed at /v1/models; empty where no list is to be had."""
        listed = (await self.call("GET", "/v1/models", person.headers)).json.get("data")
        first = listed[0] if isinstance(listed, list) and listed else None
        return str(first.get("id", "")) if isinstance(first, dict) else ""

    async def call(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None) -> Answer:
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
                return Answer(got.status, names, b"".join(pieces), at[1:])
        except TimeoutError:
            return Answer(0, fault=f"no whole answer within {self._timeout.total:g} s")
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
            return Answer(0, fault=f"the connection failed: {type(error).__name__}")
