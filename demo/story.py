"""The story: what a user says in session A is known in session B, days and a restart later; to nobody else."""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from demo.llm import BLOCK, UNKNOWN, DemoLLM, text_of
from demo.remembered import remembered
from demo.stack import Ports, Stack, write_config

ALICE, BOB = "alice", "bob"
RECALL_SUM = re.compile(r'^memory_extproc_recall_seconds_sum\{stage="total"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Said:
    """One request, how it was answered and what memory did with it."""

    user: str
    words: str
    answer: str
    status: str
    block: str
    exchange_ms: float
    recall_ms: float


@dataclass(slots=True)
class Chat:
    """One conversation of one user, through an unmodified OpenAI client that resends the whole history."""

    client: AsyncOpenAI
    user: str
    session: str
    llm: DemoLLM
    metrics: str
    messages: list[ChatCompletionMessageParam] = field(default_factory=list)

    async def say(self, words: str, *, stream: bool = False, ends: bool = False) -> Said:
        self.messages.append({"role": "user", "content": words})
        headers = {"x-authz-user-id": self.user, "x-session-id": self.session}
        if ends:
            headers["x-memory-session"] = "end"
        before = await self._recall_seconds()
        started = time.perf_counter()
        answer, status = await (self._streamed(headers) if stream else self._whole(headers))
        took = time.perf_counter() - started
        recalled = await self._recall_seconds() - before
        self.messages.append({"role": "assistant", "content": answer})
        shown = "\n".join(text_of(message) for message in self.llm.seen[-1]["messages"])
        block = "\n".join(match.strip() for match in BLOCK.findall(shown))
        return Said(self.user, words, answer, status, block, took * 1e3, recalled * 1e3)

    async def _whole(self, headers: dict[str, str]) -> tuple[str, str]:
        raw = await self.client.chat.completions.with_raw_response.create(
            model="demo-llm", messages=self.messages, extra_headers=headers
        )
        return raw.parse().choices[0].message.content or "", raw.headers.get("x-memory-status", "")

    async def _streamed(self, headers: dict[str, str]) -> tuple[str, str]:
        raw = await self.client.chat.completions.with_raw_response.create(
            model="demo-llm", messages=self.messages, extra_headers=headers, stream=True
        )
        text = ""
        async for chunk in raw.parse():
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        return text, raw.headers.get("x-memory-status", "")

    async def _recall_seconds(self) -> float:
        async with aiohttp.ClientSession() as http, http.get(self.metrics) as answer:
            found = RECALL_SUM.search(await answer.text())
        return float(found[1]) if found else 0.0


async def tell(console: Console) -> bool:
    """Plays the story; whether every promise of it held."""
    with tempfile.TemporaryDirectory(prefix="memory-demo-") as name:
        directory = Path(name)
        llm, ports = DemoLLM(), Ports.free()
        config = directory / "config.yaml"
        write_config(config, ports, directory / "data")
        stack = Stack(config, ports, f"http://127.0.0.1:{await llm.start()}", directory)
        try:
            with console.status("starting the sidecar and Envoy") as status:
                await stack.start(status.update)
            return await _play(console, stack, llm)
        finally:
            await stack.stop()
            await llm.stop()


async def _play(console: Console, stack: Stack, llm: DemoLLM) -> bool:
    base = f"http://127.0.0.1:{stack.ports.envoy}/v1"
    metrics = f"http://127.0.0.1:{stack.ports.http}/metrics"
    async with AsyncOpenAI(base_url=base, api_key="demo", max_retries=0) as client:

        def chat(user: str, session: str) -> Chat:
            return Chat(client, user, session, llm, metrics)

        first = chat(ALICE, "monday")
        session_a = [
            await first.say("My budget for the Hawaii trip is $10,000."),
            await first.say("I prefer window seats on long flights.", stream=True),
            await first.say(
                "To deploy payment-service: run make release, then kubectl rollout status deploy/payment.",
                stream=True,
                ends=True,
            ),
        ]
        _show(console, "Session A, Monday: Alice says three things", session_a)
        with console.status("the sidecar is stopped, its store read, and started again"):
            code = await stack.stop_sidecar()
            facts = await remembered(stack.config, ALICE)
            await stack.restart_sidecar()
        _show_remembered(console, facts)
        second = chat(ALICE, "friday")
        session_b = [
            await second.say("What's my budget for the trip?"),
            await second.say("Which seats do I prefer on flights?", stream=True),
            await second.say("How do I deploy payment-service?"),
        ]
        session_c = [await chat(ALICE, "sunday").say("What do you know about me?")]
        _show(console, "Session B, Friday, after a restart: Alice asks, in a new conversation", session_b)
        _show_blocks(console, session_b)
        _show(console, "Session C, Sunday: no word of the question stands in a memory", session_c)
        _show_blocks(console, session_c)
        strangers = [await chat(BOB, "friday").say("What's my budget for the trip?")]
        _show(console, "Bob asks the same and learns nothing", strangers)
    faults = _faults(code, [*session_b, *session_c], strangers[0], [text for _, text in facts])
    for fault in faults:
        console.print(f"[bold red]✗[/] {fault}")
    if not faults:
        console.print("[bold green]✓[/] what was said in session A was known in session B, and to nobody else")
    return not faults


def _faults(code: int, answers: list[Said], stranger: Said, facts: list[str]) -> list[str]:
    expected = ("$10,000", "window", "make release", "window seats")
    faults = [
        f"asked {said.words!r}, the answer {said.answer!r} does not hold {word!r} (x-memory-status: {said.status})"
        for said, word in zip(answers, expected, strict=True)
        if word not in said.answer or not said.status.startswith("used")
    ]
    if UNKNOWN not in stranger.answer or stranger.block:
        faults.append(f"Bob was told {stranger.answer!r}")
    if not any("budget" in fact and "$10,000" in fact and fact.startswith("User") for fact in facts):
        faults.append("no fact about the budget was extracted")
    if code:
        faults.append(f"the sidecar ended with exit code {code}")
    return faults


def _show(console: Console, title: str, exchanges: list[Said]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold", expand=True)
    table.add_column("asked or said", ratio=4, overflow="fold")
    table.add_column("answered", ratio=5, overflow="fold")
    table.add_column("x-memory-status", no_wrap=True)
    table.add_column("recall", justify="right", no_wrap=True)
    table.add_column("exchange", justify="right", no_wrap=True)
    for said in exchanges:
        table.add_row(
            said.words, said.answer, said.status, f"{said.recall_ms:.1f} ms", f"{said.exchange_ms:.0f} ms"
        )
    console.print(table)


def _show_remembered(console: Console, facts: list[tuple[str, str]]) -> None:
    table = Table(title="What was remembered of Alice", title_justify="left", title_style="bold", expand=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("memory", ratio=1, overflow="fold")
    for kind, text in facts:
        table.add_row(kind, text)
    console.print(table)


def _show_blocks(console: Console, exchanges: list[Said]) -> None:
    for said in exchanges:
        console.print(Panel(said.block or "(nothing)", title=f"injected into “{said.words}”", title_align="left"))


def main(console: Console) -> int:
    try:
        return 0 if asyncio.run(tell(console)) else 1
    except KeyboardInterrupt:
        return 130  # as shells say of who was interrupted
