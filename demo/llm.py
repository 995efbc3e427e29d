"""An OpenAI-compatible LLM of no wit at all: it answers from what it is shown, and only from that.

So whatever it knows of an earlier conversation was put into the request by memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

NOTE = re.compile(r"^- \[\d{4}-\d{2}-\d{2}\] (?P<text>.+)$", re.MULTILINE)
BLOCK = re.compile(r"\s*<memory>.*?</memory>", re.DOTALL)
WORD = re.compile(r"[a-z0-9$][a-z0-9$,.-]*[a-z0-9]|[a-z0-9]")
DULL_WORDS = "a an and are do does for how i in is it me my of on s the to user user's what which who you your"
DULL = frozenset(DULL_WORDS.split())
UNKNOWN = "I don't know that about you."


def text_of(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content if isinstance(part, dict))


def reply_to(messages: list[dict[str, Any]]) -> str:
    """The remembered note that shares most words with the last thing the user said."""
    shown = "\n".join(text_of(message) for message in messages)
    said = BLOCK.sub("", next((text_of(m) for m in reversed(messages) if m.get("role") == "user"), "")).strip()
    if "?" not in said:
        return "Got it."
    if "about me" in said.lower() and (notes := notes_in(shown)):
        return f"This is what I was told: {'; '.join(notes)}"
    asked = stems(said)
    notes = notes_in(shown)
    best = max(notes, key=lambda note: len(asked & stems(note)), default="")
    return f"From what I was told: {best}" if best and asked & stems(best) else UNKNOWN


def notes_in(shown: str) -> list[str]:
    return [match["text"] for block in BLOCK.findall(shown) for match in NOTE.finditer(block)]


def stems(text: str) -> frozenset[str]:
    words = WORD.findall(text.lower().replace("'s", ""))
    return frozenset(word.rstrip("s") for word in words if word not in DULL)


class DemoLLM:
    """Serves /v1/chat/completions; *seen* keeps the request bodies as they arrived, the newest last."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> int:
        app = web.Application(client_max_size=32 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "demo-llm", "object": "model"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen = [*self.seen[-63:], body]
        text = reply_to(body["messages"])
        if body.get("stream"):
            return await self._streamed(request, body, text)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return web.json_response(envelope(body, "chat.completion", choice))

    async def _streamed(self, request: web.Request, body: dict[str, Any], text: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-cache"})
        await response.prepare(request)
        async for piece in pieces(text):
            choice = {"index": 0, "delta": {"content": piece}, "finish_reason": None}
            await response.write(event(envelope(body, "chat.completion.chunk", choice)))
        last = {"index": 0, "delta": {}, "finish_reason": "stop"}
        await response.write(event(envelope(body, "chat.completion.chunk", last)))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


async def pieces(text: str) -> AsyncIterator[str]:
    for word in re.findall(r"\S+\s*", text):
        yield word
        await asyncio.sleep(0.01)  # a token at a time, as a model would


def envelope(body: dict[str, Any], kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{time.monotonic_ns()}",
        "object": kind,
        "created": int(time.time()),
        "model": body.get("model", "demo-llm"),
        "choices": [choice],
    }


def event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def main() -> None:
    """Serves until it is stopped; for the compose stand, where it is a container of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    print(f"demo LLM on {given.host}:{await DemoLLM().start(given.port, given.host)}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
