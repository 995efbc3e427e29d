"""More requests than a replica carries: what accepted ones wait, and what a refused one costs.

`python -m benchmarks.overload [SECONDS] [--learn]` prints a table; docs/sizing.md has it. The sidecar has a core of
its own, and the load generator, Envoy and the upstream share the others, so that they take nothing from it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from benchmarks.exchanges import RECALL, USERS, Listening
from benchmarks.figures import MS, percentile
from benchmarks.gateway import gateway
from benchmarks.lines import Child, child
from benchmarks.load import Round, Sent
from benchmarks.sidecar import Place, Running, cpu_seconds, family, prepare, serving

LOADS = (0.5, 1, 2, 4)  # times the capacity
UNLOADED = 10.0  # requests a second
CONNECTIONS = 400
MEMORIES = 200  # of each caller
NOT_CHAT = "/v1/other"  # passes at the headers, as a refused request does
SEARCHED = ("used", "nothing_relevant")
_WITHIN = 120.0


@dataclass(slots=True)
class Bench:
    sidecar: Running
    client: Child
    port: int
    others: Sequence[int]  # processes beside the sidecar: Envoy and the upstream
    first: int = 1_000

    async def round(self, plan: Round) -> tuple[Sent, list[float]]:
        """The results of *plan*, and the CPU seconds of the sidecar, the generator and the others."""
        whose = (family(self.sidecar.pid), [self.client.pid], self.others)
        before = [sum(map(cpu_seconds, pids)) for pids in whose]
        plan = structs.replace(plan, port=self.port, first=self.first)
        sent = await self.client.ask(plan, Sent, within=_WITHIN)
        self.first = sent.next
        return sent, [sum(map(cpu_seconds, pids)) - was for pids, was in zip(whose, before, strict=True)]


def spread(times: Sequence[float]) -> str:
    return f"{MS * percentile(times, 50):,.0f} / {MS * percentile(times, 99):,.0f}" if times else ""


@asynccontextmanager
async def standing(scratch: Path, more: Mapping[str, int] | None = None) -> AsyncIterator[Bench]:
    """*more*: further callers and the number of their memories."""
    place = Place.make(scratch, "store")
    await prepare(place, USERS, MEMORIES)
    for caller, count in (more or {}).items():
        await prepare(place, [caller], count)
    cores = sorted(os.sched_getaffinity(0))
    async with AsyncExitStack() as stack:
        os.sched_setaffinity(0, cores[:1])
        sidecar = await stack.enter_async_context(serving(place))
        os.sched_setaffinity(0, cores[1:] or cores)
        upstream = await stack.enter_async_context(child("upstream", scratch=scratch))
        port = (await upstream.hear(Listening, within=20)).port
        client = await stack.enter_async_context(child("load", scratch=scratch))
        before = set(family(os.getpid()))
        ports = await stack.enter_async_context(gateway(port, {RECALL: place.ext_proc}, scratch))
        envoy = set(family(os.getpid())) - before
        yield Bench(sidecar, client, ports[RECALL], [upstream.pid, *envoy])


async def measure(bench: Bench, seconds: float, *, learn: bool) -> None:
    callers = [USERS[at % len(USERS)] for at in range(CONNECTIONS)]
    plan = Round(port=0, callers=callers, first=0, learn=learn, warmup=0)
    await bench.round(structs.replace(plan, callers=USERS, requests=20))
    closed, cpu = await bench.round(structs.replace(plan, callers=USERS[:8], seconds=seconds))
    capacity = sum(closed.outcomes.get(one, 0) for one in SEARCHED) / closed.elapsed
    print(f"capacity: {capacity:.0f} requests/s, {MS * cpu[0] / len(closed.times):.1f} ms of the sidecar each")
    passing, cpu = await bench.round(structs.replace(plan, callers=USERS, seconds=seconds / 2, path=NOT_CHAT))
    shares = ", ".join(f"{MS * one / len(passing.times):.2f}" for one in cpu)
    print(f"passed at the headers: {shares} ms of the sidecar, the generator, Envoy and the upstream")
    print(
        "| times the capacity | requests/s | accepted: p50 / p99 | p99 to unloaded | accepted/s |"
        " refused: p50 / p99 | refused/s | cores: sidecar | generator | Envoy and upstream |"
    )
    print("|---" * 10 + "|")
    unloaded = 0.0
    for load in (0.0, *LOADS):
        await bench.sidecar.quiet()
        rate = load * capacity or UNLOADED
        sent, cpu = await bench.round(structs.replace(plan, seconds=seconds, rate=rate))
        used = [took for one in SEARCHED for took in sent.by_outcome.pop(one, ())]
        refused = [took for times in sent.by_outcome.values() for took in times]
        p99 = percentile(used, 99)
        unloaded = unloaded or p99
        shares = " | ".join(f"{one / sent.elapsed:.2f}" for one in cpu)
        print(
            f"| {load} | {rate:.0f} | {spread(used)} | {p99 / unloaded:.1f} | {len(used) / sent.elapsed:.0f} |"
            f" {spread(refused)} | {len(refused) / sent.elapsed:.0f} | {shares} |",
            flush=True,
        )


async def main(seconds: float, *, learn: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="overload") as made:
        async with standing(Path(made)) as bench:
            await measure(bench, seconds, learn=learn)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", type=float, nargs="?", default=8)
    parser.add_argument("--learn", action="store_true")
    chosen = parser.parse_args()
    asyncio.run(main(chosen.seconds, learn=chosen.learn))
