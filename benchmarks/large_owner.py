"""Others' questions beside a caller with 60,000 memories: its questions, list, statistics and export.

`python -m benchmarks.large_owner [MEMORIES]` prints a table; docs/sizing.md has it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio
import yaml
from msgspec import structs

from benchmarks import load
from benchmarks.exchanges import USERS
from benchmarks.figures import percentile
from benchmarks.load import Round, Sent
from benchmarks.overload import Bench, spread, standing
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.cli.api_client import open_stub

LARGE = "caller-with-much"
RATE = 20.0  # questions of others a second
ALONE = 10.0  # seconds
LASTS = 4.0  # seconds of a round at least
_WITHIN = 120.0


async def beside(bench: Bench, work: Callable[[], Awaitable[object]] | None) -> tuple[Sent, list[float]]:
    """Others' questions during *work*, which is repeated for `LASTS` at least, and the seconds that it takes."""
    took: list[float] = []
    plan = Round(port=0, callers=USERS, first=0, warmup=0, rate=RATE, seconds=ALONE if work is None else LASTS)
    asking = asyncio.create_task(bench.round(plan))
    while work is not None and not asking.done():
        began = time.monotonic()
        await work()
        took.append(time.monotonic() - began)
    sent, _ = await asking
    return sent, took


async def measure(bench: Bench, stub: Any) -> None:
    who = (("x-authz-user-id", LARGE),)
    own = Round(port=bench.port, callers=[LARGE], first=70_000, requests=1, warmup=0)

    async def ask() -> None:
        nonlocal own
        own = structs.replace(own, first=own.first + 1)
        await load.send(own)

    async def export() -> None:
        async for _ in stub.ExportMemories(pb.ExportMemoriesRequest(), metadata=who):
            pass

    works: dict[str, Callable[[], Awaitable[object]] | None] = {
        "alone": None,
        "a question of the large caller, cold": ask,
        "its questions": ask,
        "list": lambda: stub.ListMemories(pb.ListMemoriesRequest(limit=50), metadata=who),
        "statistics": lambda: stub.GetStats(pb.GetStatsRequest(), metadata=who),
        "export": export,
    }
    await bench.round(Round(port=0, callers=USERS, first=0, requests=20))
    print("| beside | others: p50 / p99 | of alone | takes, s |\n|---|---|---|---|")
    alone = 0.0
    for name, work in works.items():
        sent, took = await beside(bench, work)
        p99 = percentile(sent.times, 99)
        alone = alone or p99
        own_times = f"{min(took):.2f} to {max(took):.2f}" if took else ""
        print(f"| {name} | {spread(sent.times)} | {p99 / alone:.1f} | {own_times} |", flush=True)
    print(f"resident {bench.sidecar.resident():.0f} MiB, at most {bench.sidecar.resident('VmHWM'):.0f}")


async def main(count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="large-owner") as made:
        scratch = Path(made)
        async with AsyncExitStack() as stack:
            bench = await stack.enter_async_context(standing(scratch, {LARGE: count}))
            address = yaml.safe_load(bench.sidecar.place.config.read_text())["listen"]["api"]
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
            await measure(bench, open_stub(channel))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 60_000))
