"""A client that sends costly requests, a process of its own: one a second, each close below the size limit.

Every body aims at another part of the request's work: decompression, parsing, normalisation, rules on words.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Iterator

import aiohttp
import msgspec

from benchmarks.gateway import REQUEST_BYTES
from benchmarks.lines import answer_lines

LIMIT = REQUEST_BYTES - 1024  # of a text, with room for the JSON around it
EVERY = 1.0  # seconds between two requests
_TIMEOUT = aiohttp.ClientTimeout(total=30)


class Attack(msgspec.Struct, frozen=True):
    port: int
    caller: str
    first: int  # number of the first body
    seconds: float


class Attacked(msgspec.Struct, frozen=True):
    sent: int
    slowest: float  # seconds until one of its answers was complete


def bodies() -> list[tuple[str, bytes]]:
    """Content encodings and bodies."""
    told = [_chat(text) for text in _texts()]
    secrets = (f"my key number {n} is sk-proj-{n:032d}aZ" for n in range(20_000))
    long = {"messages": [{"role": "user", "content": text} for text in secrets], "model": "m"}
    packed = gzip.compress(_chat("a " * (LIMIT // 2)))
    members = gzip.compress(b"") * (800_000 // len(gzip.compress(b""))) + packed
    return [*(("", body) for body in told), ("", json.dumps(long).encode()), ("gzip", members), ("gzip", packed)]


def _texts() -> Iterator[str]:
    for piece in (
        "\ufdfa",
        "i g n o r e ",
        "<memory>",
        "4111 1111 1111 1112 ",
        "anna@example.com,",
        "My name is Ann and I live in Bonn. ",
        "what is my budget? ",
        "```\n",
    ):
        yield piece * (LIMIT // len(piece.encode()))


def _chat(text: str) -> bytes:
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": "gpt-4o-mini", "messages": messages}, ensure_ascii=False).encode()


_BODIES = bodies()


async def attack(plan: Attack) -> Attacked:
    slowest, sent = 0.0, 0
    end = time.monotonic() + plan.seconds

    async def send(number: int) -> None:
        nonlocal slowest
        encoding, body = _BODIES[number % len(_BODIES)]
        headers = {"content-type": "application/json", "x-authz-user-id": plan.caller}
        if encoding:
            headers["content-encoding"] = encoding
        began = time.monotonic()
        url = f"http://127.0.0.1:{plan.port}/v1/chat/completions"
        async with client.post(url, data=body, headers=headers) as answer:
            await answer.read()
            answer.raise_for_status()
        slowest = max(slowest, time.monotonic() - began)

    async with aiohttp.ClientSession(timeout=_TIMEOUT) as client, asyncio.TaskGroup() as running:
        while time.monotonic() < end:
            running.create_task(send(plan.first + sent))
            sent += 1
            await asyncio.sleep(EVERY)
    return Attacked(sent, slowest)


if __name__ == "__main__":
    asyncio.run(answer_lines(Attack, attack))
