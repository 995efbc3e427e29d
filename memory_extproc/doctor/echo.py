"""A model of no wit that shows what reached it: behind a gateway, the other end of what the doctor sends."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
from typing import Any

from aiohttp import web

from memory_extproc.doctor.gateway import ECHO

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
        # A token proves who somebody is wherever it is shown.
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
