"""Part (h): the memory API of a sidecar with one user's 10,000 memories, over gRPC, and the page."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import yaml

from benchmarks import words
from benchmarks.exchanges import NotMeasuredError
from benchmarks.figures import PAGE, Api, Spread
from benchmarks.gateway import free_ports
from benchmarks.sidecar import Place, serving
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.cli.api_client import open_stub

USER = "x-authz-user-id"
QUESTIONS = ("What's my budget for the trip?", "Which city do I live in?", "What is my dog called?")


async def memory_api(scratch: Path, *, quick: bool) -> Api:
    count, calls = (1_000, 30) if quick else (10_000, 300)
    place = Place.make(scratch, "api")
    settings = yaml.safe_load(place.config.read_text())
    settings["api"] = {"rate": {"per_second": 1_000_000, "burst": 1_000_000}}
    (port,) = free_ports(1)
    settings["listen"]["console"] = f"127.0.0.1:{port}"
    settings["console"] = {"page": True}
    place.config.write_text(yaml.safe_dump(settings))
    async with serving(place) as running, grpc.aio.insecure_channel(settings["listen"]["api"]) as channel:
        stub: Any = open_stub(channel)
        who = ((USER, "ann"),)

        started = time.monotonic()
        report = await stub.ImportMemories(_brought(count), metadata=who)
        imported = report.added / (time.monotonic() - started)
        before = running.resident("VmHWM")

        first = await stub.ListMemories(pb.ListMemoriesRequest(limit=20), metadata=who)
        chosen = first.memories[0].id
        ways: dict[str, Callable[[int], Awaitable[object]]] = {
            "GetMemory": lambda _: stub.GetMemory(pb.GetMemoryRequest(id=chosen), metadata=who),
            "ListMemories, a page of 20": lambda _: stub.ListMemories(
                pb.ListMemoriesRequest(limit=20), metadata=who
            ),
            "SearchMemories": lambda n: stub.SearchMemories(
                pb.SearchMemoriesRequest(query=f"{QUESTIONS[n % len(QUESTIONS)]} ({n})"), metadata=who
            ),
        }
        latency = {name: await _timed(call, calls) for name, call in ways.items()}

        rates = []
        for _ in range(1 if quick else 3):
            started, pieces = time.monotonic(), 0
            async for piece in stub.ExportMemories(pb.ExportMemoriesRequest(), metadata=who):
                pieces += piece.HasField("memory")
            rates.append(pieces / (time.monotonic() - started))
        grown = running.resident("VmHWM") - before
    # Started again, for the first visit: no memory is in the process, and no template.
    async with serving(place), aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers={USER: "ann"}) as browser:
        opened = await _open_page(browser)
        latency[PAGE] = await _timed(lambda _: _open_page(browser), calls)
    return Api(
        memories=first.total,
        latency=latency,
        imported=imported,
        exported=sorted(rates)[len(rates) // 2],
        export_mib=grown,
        page_opened=opened,
    )


async def _open_page(browser: aiohttp.ClientSession) -> float:
    """Milliseconds until the list of one's memories is there whole."""
    started = time.perf_counter()
    async with browser.get("/console") as answer:
        shown = await answer.text()
    took = (time.perf_counter() - started) * 1000
    if answer.status != HTTPStatus.OK or 'class="card"' not in shown:
        raise NotMeasuredError(f"the page answered {answer.status} without memories")
    return took


def _brought(count: int) -> Iterator[pb.ImportMemoriesRequest]:
    texts = words.memories()
    yield pb.ImportMemoriesRequest(start=pb.ImportStart())
    for number in range(count):
        content = f"{texts[number % len(texts)]} ({number})"
        yield pb.ImportMemoriesRequest(memory=pb.Memory(content=content, type="semantic", source="api"))


async def _timed(call: Callable[[int], Awaitable[object]], calls: int) -> Spread:
    for number in range(10):
        await call(-number)
    took = []
    for number in range(calls):
        started = time.perf_counter()
        await call(number)
        took.append(time.perf_counter() - started)
    return Spread.of(took)
