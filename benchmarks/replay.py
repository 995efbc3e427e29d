"""`python -m benchmarks.replay`: how much of each request the provider has seen before, with and without replay.

Two conversations of a caller with 1,000 memories: a chat of 30 turns, and 6 questions with a loop of 12 tool calls
each. Each is played without memory, with it, and with it but `inject.replay: false`, through Envoy to an upstream
that keeps what it got. A provider's prompt cache can serve what a request shares with the one before, from its
first byte on.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import aiohttp
import typer
import yaml
from aiohttp import web
from rich.console import Console
from rich.markdown import Markdown

from benchmarks import words
from benchmarks.gateway import gateway
from benchmarks.sidecar import Place, prepare, serving

USER = "ann"
TURNS, QUESTIONS, STEPS = 30, 6, 12
ANSWER = "It is as you told me the last time; I have put it into the plan beside what we had there before. " * 2
RESULT = json.dumps({"rows": [{"number": number, "state": "open", "note": "checked"} for number in range(8)]})
OFF, REPLAY, WITHOUT = "without memory", "with memory", "with memory, without replay"
WANTED = 0.99
DOCS = Path("docs/benchmarks/replay.md")

Messages = list[dict[str, Any]]


class Played(NamedTuple):
    """The requests of one conversation as the upstream got them."""

    bodies: list[bytes]
    used: int  # requests that left with memories

    @property
    def cacheable(self) -> float:
        """Bytes that a request shares with the beginning of the one before, of all bytes but the first one's."""
        return self._common_bytes / sum(map(len, self.bodies[1:]))

    @property
    def repeat_share(self) -> float:
        """The share of each request's bytes, without the end of its JSON, with which the next request begins."""
        return self._common_bytes / sum(len(body.removesuffix(b"]}")) for body in self.bodies[:-1])

    @property
    def _common_bytes(self) -> int:
        pairs = zip(self.bodies, self.bodies[1:], strict=False)
        return sum(count_common_bytes(before, after) for before, after in pairs)


def count_common_bytes(before: bytes, after: bytes) -> int:
    """The length of the beginning that both have in common."""
    lengths = range(1, min(len(before), len(after)) + 1)
    return bisect_left(lengths, True, key=lambda length: before[:length] != after[:length])  # noqa: FBT003  # what is looked for


def chat() -> Iterator[Messages]:
    """The messages of each request of a chat."""
    messages: Messages = [{"role": "system", "content": "You are a helpful assistant. " * 20}]
    for turn in range(TURNS):
        messages.append({"role": "user", "content": words.question(turn)})
        yield messages
        messages.append({"role": "assistant", "content": ANSWER})


def tool_loop() -> Iterator[Messages]:
    messages: Messages = [{"role": "system", "content": "You are a helpful assistant. " * 20}]
    for question in range(QUESTIONS):
        messages.append({"role": "user", "content": words.question(1000 + question)})
        for step in range(STEPS):
            yield messages
            name = f"call_{question}_{step}"
            call = {"id": name, "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": name, "content": RESULT})
        yield messages
        messages.append({"role": "assistant", "content": ANSWER})


CONVERSATIONS = {f"chat of {TURNS} turns": chat, f"tool loop of {QUESTIONS} x {STEPS} steps": tool_loop}
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


class Upstream:
    """Keeps what it gets, and answers always the same."""

    def __init__(self) -> None:
        self.got: list[bytes] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.got.append(await request.read())
        choice = {"index": 0, "message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}
        return web.json_response({"id": "c", "object": "chat.completion", "choices": [choice]})

    async def serve(self, stack: AsyncExitStack) -> int:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/{tail:.*}", self.answer)
        runner = web.AppRunner(app)
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return int(runner.addresses[0][1])


async def play(port: int, upstream: Upstream, conversation: Iterator[Messages], *, tools: bool) -> Played:
    upstream.got.clear()
    used = 0
    async with aiohttp.ClientSession(headers={"x-authz-user-id": USER, "x-memory-store": "skip"}) as session:
        for messages in conversation:
            body = {"model": "gpt-4o", **({"tools": TOOLS} if tools else {}), "messages": messages}
            async with session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as answer:
                answer.raise_for_status()
                used += answer.headers.get("x-memory-status", "").startswith("used")
    return Played(list(upstream.got), used)


async def measure() -> dict[str, dict[str, Played]]:
    """By conversation, then by way."""
    found: dict[str, dict[str, Played]] = {}
    with tempfile.TemporaryDirectory(prefix="memory-replay-") as made:
        scratch = Path(made)
        places = {REPLAY: Place.make(scratch, "replay"), WITHOUT: Place.make(scratch, "without")}
        changed = yaml.safe_load(places[WITHOUT].config.read_text())
        places[WITHOUT].config.write_text(yaml.safe_dump({**changed, "inject": {"replay": False}}))
        for place in places.values():
            await prepare(place, [USER])
        async with AsyncExitStack() as stack:
            for place in places.values():
                await stack.enter_async_context(serving(place))
            upstream = Upstream()
            ways = {OFF: None, **{way: place.ext_proc for way, place in places.items()}}
            ports = await stack.enter_async_context(gateway(await upstream.serve(stack), ways, scratch))
            for name, conversation in CONVERSATIONS.items():
                found[name] = {
                    way: await play(port, upstream, conversation(), tools=conversation is tool_loop)
                    for way, port in ports.items()
                }
    return found


def markdown(found: dict[str, dict[str, Played]]) -> Iterator[str]:
    yield "# Replay in a conversation"
    yield ""
    yield (
        "Measured by `python -m benchmarks.replay`: requests as the upstream got them through Envoy, a caller "
        "with 1,000 memories in Milvus Lite, the real embedding model. *repeated*: of the bytes of a request, "
        "those with which the next one begins. *cacheable*: of the bytes of a request, those that the one before "
        "began with; what is new in a turn is never among them. *of memory off*: the latter as a share of what it "
        "is without memory."
    )
    yield ""
    yield "| conversation | way | requests | with memories | bytes | repeated | cacheable | of memory off |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, ways in found.items():
        for way, played in ways.items():
            ratio = played.cacheable / ways[OFF].cacheable
            size = sum(map(len, played.bodies))
            counts = f"{len(played.bodies)} | {played.used} | {size:,}"
            shares = f"{played.repeat_share:.3f} | {played.cacheable:.3f} | {ratio:.3f}"
            yield f"| {name} | {way} | {counts} | {shares} |"


def keeps_cacheable(found: dict[str, dict[str, Played]]) -> bool:
    return all(
        getattr(ways[REPLAY], share) >= WANTED * getattr(ways[OFF], share)
        for ways in found.values()
        for share in ("cacheable", "repeat_share")
    )


def main(
    out: Annotated[Path, typer.Option(help="where the table goes")] = DOCS,
) -> None:
    """The table, and exit 1 where replay does not reach 0.99 of what is cacheable without memory."""
    found = asyncio.run(measure())
    lines: Sequence[str] = list(markdown(found))
    Console().print(Markdown("\n".join(lines)))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines) + "\n")
    if not keeps_cacheable(found):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
