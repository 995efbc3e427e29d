"""`python -m benchmarks.soak`: hours of traffic, in which the sidecar's memory, files and threads must not grow.

Many callers chat in turn, and each turn is learned; one has tens of thousands of memories and asks; some turns are
long; some answers are streamed for a minute each. Everything is sampled; the last third of the run is held against
the third before it, the first is for warming up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

from benchmarks import words
from benchmarks.figures import median, percentile
from benchmarks.gateway import gateway
from benchmarks.sidecar import Place, Running, prepare, resident, serving

READER = "reader"  # the caller with many memories
CHAT = "chat"
EVERY = 10.0  # seconds between two samples
EVENT_EVERY, EVENTS = 2.0, 30  # of a slow stream
LONG_TURN, PASTED = 100, "2026-01-05 12:00:01 worker 7 finished in 31 ms\n" * 500  # every so many turns
READS = 10  # one request in so many is the reader's
GROWTH, MORE = 1.05, 8  # allowed of memory, and of descriptors or threads, from the second third to the last
_TIMEOUT = aiohttp.ClientTimeout(total=180)


class Sample(msgspec.Struct, frozen=True):
    """The sidecar and the processes that it started."""

    at: float  # seconds since the start
    mib: float
    descriptors: int
    threads: int
    processes: int


class Soaked(msgspec.Struct, frozen=True):
    seconds: float
    outcomes: dict[str, int]  # of chats, by x-memory-status
    streams: int
    failed: dict[str, int]  # statuses and errors other than success
    p50: float  # seconds of a chat
    p99: float
    samples: list[Sample]

    def growth(self) -> dict[str, tuple[float, float]]:
        """Medians of the second and of the last third."""
        third = max(1, len(self.samples) // 3)
        middle, last = self.samples[third : 2 * third] or self.samples, self.samples[-third:]
        fields = ("mib", "descriptors", "threads", "processes")
        return {
            field: (median([getattr(one, field) for one in middle]), median([getattr(one, field) for one in last]))
            for field in fields
        }

    def faults(self) -> list[str]:
        found = [f"{count} times {what}" for what, count in self.failed.items()]
        for field, (before, after) in self.growth().items():
            if after > (before * GROWTH if field == "mib" else before + MORE):
                found.append(f"{field} grew from {before:.0f} to {after:.0f}")
        return found


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    found = [pid]
    for one in found:  # grows meanwhile
        found += [int(child) for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
    return found


def sample(pid: int, at: float) -> Sample:
    pids = family(pid)
    return Sample(
        at,
        sum(map(resident, pids)),
        sum(len(list(Path(f"/proc/{one}/fd").iterdir())) for one in pids),
        sum(len(list(Path(f"/proc/{one}/task").iterdir())) for one in pids),
        len(pids),
    )


class Traffic:
    def __init__(self, port: int, users: int, client: aiohttp.ClientSession) -> None:
        self._url, self._client = f"http://127.0.0.1:{port}/v1/chat/completions", client
        self._users, self._number = users, 0
        self.times: list[float] = []
        self.outcomes, self.failed = Counter[str](), Counter[str]()
        self.streams = 0

    async def chat(self) -> None:
        self._number += 1
        number = self._number
        if number % READS == 0:
            caller, text = READER, words.question(number)
        else:
            caller, text = f"user-{number % self._users}", f"My locker at the gym has number {number}. "
        if number % LONG_TURN == 1:
            text += PASTED
        began = time.monotonic()
        status = await self._send(caller, text, model="quick")
        self.times.append(time.monotonic() - began)
        self.outcomes[status] += 1

    async def keep_streaming(self, number: int, until: float) -> None:
        """One slow stream after another."""
        while time.monotonic() < until:
            await self._send(f"stream-{number}", f"Tell me slowly about journey {self.streams}.", model="slow")
            self.streams += 1

    async def _send(self, caller: str, text: str, *, model: str) -> str:
        body = {"model": model, "stream": model == "slow", "messages": [{"role": "user", "content": text}]}
        headers = {"x-authz-user-id": caller}
        try:
            async with self._client.post(self._url, json=body, headers=headers) as answer:
                got = await answer.read()
                if answer.status != 200 or (model == "slow" and not got.endswith(b"[DONE]\n\n")):
                    self.failed[f"status {answer.status}, {len(got)} bytes"] += 1
                return answer.headers.get("x-memory-status", "").split(";")[0].split(" ")[0]
        except (aiohttp.ClientError, TimeoutError) as error:
            self.failed[type(error).__name__] += 1
            return "error"


async def answer(request: web.Request) -> web.StreamResponse:
    """The upstream: an answer at once, or an event every two seconds."""
    if (await request.json())["model"] != "slow":
        message = {"role": "assistant", "content": "Noted, thank you."}
        return web.json_response({"model": "quick", "choices": [{"index": 0, "message": message}]})
    made = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await made.prepare(request)
    for number in range(EVENTS):
        await made.write(_event({"content": f"word{number} "}))
        await asyncio.sleep(EVENT_EVERY)
    await made.write(_event({}, "stop") + b"data: [DONE]\n\n")
    return made


def _event(delta: dict[str, str], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return b"data: " + json.dumps({"object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"


async def soak(scratch: Path, *, seconds: float, users: int, memories: int, streams: int, rate: float) -> Soaked:
    async with AsyncExitStack() as stack:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        upstream = runner.addresses[0][1]
        place = Place.make(scratch, "store", retention={"max_memories": 2 * memories})
        await prepare(place, [READER], memories)
        sidecar = await stack.enter_async_context(serving(place))
        ports = await stack.enter_async_context(gateway(upstream, {CHAT: place.ext_proc}, scratch, fails_open=True))
        connections = aiohttp.TCPConnector(limit=0)
        client = await stack.enter_async_context(aiohttp.ClientSession(connector=connections, timeout=_TIMEOUT))
        return await _run(sidecar, Traffic(ports[CHAT], users, client), seconds, streams, rate)


async def _run(sidecar: Running, traffic: Traffic, seconds: float, streams: int, rate: float) -> Soaked:
    began = time.monotonic()
    until = began + seconds
    samples: list[Sample] = []

    async def keep_sampling() -> None:
        while time.monotonic() < until:
            await asyncio.sleep(EVERY)
            samples.append(sample(sidecar.pid, time.monotonic() - began))

    async with asyncio.TaskGroup() as running:
        running.create_task(keep_sampling())
        for number in range(streams):
            running.create_task(traffic.keep_streaming(number, until))
        for due in _moments(began, until, rate):
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            running.create_task(traffic.chat())
    return Soaked(
        time.monotonic() - began,
        dict(traffic.outcomes),
        traffic.streams,
        dict(traffic.failed),
        percentile(traffic.times, 50),
        percentile(traffic.times, 99),
        samples,
    )


def _moments(began: float, until: float, rate: float) -> Iterator[float]:
    number = 0
    while (due := began + number / rate) < until:
        yield due
        number += 1


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--memories", type=int, default=50_000, help="of one caller")
    parser.add_argument("--streams", type=int, default=200, help="slow ones, at any time")
    parser.add_argument("--rate", type=float, default=10.0, help="chats a second")
    parser.add_argument("--out", type=Path, default=Path(".cache/soak.json"))
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as made:
        soaked = asyncio.run(
            soak(
                Path(made),
                seconds=asked.seconds,
                users=asked.users,
                memories=asked.memories,
                streams=asked.streams,
                rate=asked.rate,
            )
        )
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_bytes(msgspec.json.encode(soaked))
    print(f"{soaked.seconds:.0f} s, {soaked.streams} slow streams, chats {soaked.outcomes}")
    print(f"a chat: p50 {1000 * soaked.p50:.0f} ms, p99 {1000 * soaked.p99:.0f} ms")
    for field, (before, after) in soaked.growth().items():
        print(f"{field}: median {before:.0f} in the second third, {after:.0f} in the last")
    if faults := soaked.faults():
        raise SystemExit("; ".join(faults))


if __name__ == "__main__":
    main()
