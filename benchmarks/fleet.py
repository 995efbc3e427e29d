"""How many pods, how much Milvus and Redis a number of users needs: measured inputs and a model of queues.

`python -m benchmarks.fleet measure` starts Envoy, a serving replica, a learning one, Milvus and Redis, counts the
processor time of each process per request and per learned turn, and checks what the model says of one and of two
replicas. It writes docs/benchmarks/fleet.json, from which `python -m benchmarks.fleet plan` makes a table.
"""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import redis
import typer

from benchmarks.exchanges import Listening, NotMeasuredError
from benchmarks.figures import MS, percentile
from benchmarks.gateway import gateway
from benchmarks.lines import Child, child
from benchmarks.load import Round, Sent
from benchmarks.sidecar import Place, Running, cpu_seconds, prepare, serving
from tests.support.milvus_server import milvus_server
from tests.support.redis import RedisServer, start_redis

INPUTS = Path("docs/benchmarks/fleet.json")
CALLERS = [f"caller-{number}" for number in range(20)]
OF_ONE_CALLER = 200  # memories
PROCESSES = ("serving", "learning", "envoy", "milvus", "redis")
LOADS = (0.25, 0.5, 0.7)  # of what two cores carry
_WITHIN = 300.0  # seconds


class Check(msgspec.Struct, frozen=True):
    """The p99 of the model and the measured one, in milliseconds."""

    replicas: int
    rate: float  # requests/s
    busy: float  # share of the two cores that the model expects to be in use
    said: float
    measured: float


class Inputs(msgspec.Struct, frozen=True):
    """Milliseconds of a core, by process."""

    request: dict[str, float]
    turn: dict[str, float]
    unloaded_p50: float  # ms of a whole request, one at a time
    unloaded_p99: float
    redis_turn: float  # bytes in Redis times the seconds that they are kept, of a turn
    checks: list[Check]


def waiting_p99(busy: float, service: float) -> float:
    """The time that 99 of 100 requests wait at most, in the unit of *service*, behind one server of which the share
    *busy* is in use: M/M/1, P(wait > t) = busy * exp(-t (1 - busy) / service)."""
    return max(0.0, service / (1 - busy) * math.log(100 * busy)) if busy else 0.0


def busiest(inputs: Inputs, times: float = 3.0) -> float:
    """The largest share in use of a serving core for which p99 stays below *times* the unloaded one."""
    service, most = inputs.request["serving"], (times - 1) * inputs.unloaded_p99
    return max(share / 100 for share in range(1, 91) if waiting_p99(share / 100, service) <= most)


@dataclass(frozen=True)
class Use:
    """Parameters of a plan: the load that people make. A reader puts in their own numbers."""

    users: int
    active: float = 0.2  # share of the users on one day
    requests: float = 10.0  # of an active user a day
    peak: float = 3.0  # the busiest hour against the mean
    memories: float = 2.0  # of a turn
    days: float = 365.0  # that a memory is kept

    @property
    def mean_rate(self) -> float:
        return self.users * self.active * self.requests / 86_400

    @property
    def rows(self) -> float:
        return self.users * self.active * self.requests * self.days * self.memories


@dataclass(frozen=True)
class Prices:
    """Dollars an hour: about what large clouds ask for on demand."""

    core: float = 0.04
    gib: float = 0.005


@dataclass(frozen=True, slots=True)
class Plan:
    use: Use
    serving: int  # pods of one core
    learning: int
    envoy: float  # cores
    milvus_cores: float
    milvus_gib: float
    redis_cores: float
    redis_gib: float
    cost: float  # dollars an hour
    first: str  # what reaches its limit first


POD_GIB = 1.0
ROW = 384 * 4 + 2 * 16 * 4 + 1_200  # bytes: a vector, its links in an HNSW index with M = 16, the other fields
LEARNING_BUSY = 0.7  # nobody waits for it: a backlog of the peak is caught up
ROWS_OF_A_COLLECTION = 1e9  # a Milvus cluster is run with about that many vectors; beyond it, several clusters
REDIS_BUSY = 0.6  # of one core: Redis runs commands one after the other
REDIS_GIB = 64.0  # of one primary: a larger one takes minutes to copy and to load
PLANS = (10**4, 10**6, 10**8)


def make_plan(inputs: Inputs, use: Use, prices: Prices) -> Plan:
    peak = use.mean_rate * use.peak

    def cores(process: str, rate: float = peak) -> float:
        return rate * (inputs.request[process] + inputs.turn[process]) / MS

    serving = max(2, math.ceil(cores("serving") / busiest(inputs)))
    learning = max(1, math.ceil(cores("learning") / LEARNING_BUSY))
    milvus_gib = use.rows * ROW / 2**30
    redis_gib = use.mean_rate * inputs.redis_turn / 2**30
    envoy, milvus, redis_cores = cores("envoy"), cores("milvus"), cores("redis")
    limits = {
        "Milvus, rows of one cluster": use.rows / ROWS_OF_A_COLLECTION,
        "Redis, commands of one primary": redis_cores / REDIS_BUSY,
        "Redis, memory of one primary": redis_gib / REDIS_GIB,
    }
    nearest = max(limits, key=lambda name: limits[name])
    return Plan(
        use, serving, learning, envoy, milvus, milvus_gib, redis_cores, redis_gib,
        cost=prices.core * (serving + learning + envoy + milvus + redis_cores)
        + prices.gib * (POD_GIB * (serving + learning) + milvus_gib + redis_gib),
        first=f"{nearest}: {math.ceil(limits[nearest])} needed" if limits[nearest] > 1 else "nothing",
    )  # fmt: skip


@dataclass(slots=True)
class Stand:
    client: Child
    ports: Sequence[int]  # of the listener before one serving replica, and before two
    processes: Mapping[str, Sequence[int]]  # pids
    replicas: Sequence[Running]
    redis: RedisServer
    asked: int = 1_000

    def cpu_seconds(self) -> dict[str, float]:
        """Seconds of a core so far, by process."""
        return {name: sum(cpu_seconds(pid) for pid in pids) for name, pids in self.processes.items()}

    async def send(self, port: int, callers: Sequence[str] = CALLERS[:2], **plan: float) -> Sent:
        learn = bool(plan.pop("learn", False))
        sent = await self.client.ask(
            Round(port=port, callers=callers, first=self.asked, learn=learn, **plan),  # type: ignore[arg-type]
            Sent,
            within=_WITHIN,
        )
        self.asked = sent.next
        return sent

    async def rest(self) -> None:
        for replica in self.replicas:
            await replica.quiet()

    async def cost(self, requests: int, *, learn: bool) -> dict[str, float]:
        """Milliseconds of a core that each process used for one request, what it does by itself taken off."""
        await self.rest()
        idle, began = self.cpu_seconds(), asyncio.get_running_loop().time()
        await asyncio.sleep(5)
        before, at = self.cpu_seconds(), asyncio.get_running_loop().time()
        rates = {name: (before[name] - idle[name]) / (at - began) for name in before}
        sent = await self.send(self.ports[0], requests=requests // 2, warmup=0, learn=learn)
        await self.rest()
        spent, took = self.cpu_seconds(), asyncio.get_running_loop().time() - at
        if sum(sent.outcomes.values()) - sent.outcomes.get("used", 0) > requests / 5:
            raise NotMeasuredError(f"too few requests got memories: {sent.outcomes}")
        return {name: max(0.0, MS * (spent[name] - before[name] - rates[name] * took) / requests) for name in spent}


def _children(name: str) -> list[int]:
    """The processes called *name* that this one has started."""
    found = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in found if Path(f"/proc/{pid}/comm").read_text().strip() == name]


@contextmanager
def _redis(directory: Path) -> Iterator[RedisServer]:
    server = start_redis(directory, lasting=True)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


@asynccontextmanager
async def stand(scratch: Path) -> AsyncIterator[Stand]:
    """Everything up, and the callers' memories held."""
    async with AsyncExitStack() as stack:
        milvus = stack.enter_context(milvus_server(scratch))
        shared = stack.enter_context(_redis(scratch))
        roles = {"first": "serve", "second": "serve", "learner": "learn"}
        places = {
            name: Place.make(scratch, name, milvus.address, role=role, coordination={"url": shared.url})
            for name, role in roles.items()
        }
        await prepare(places["first"], CALLERS, OF_ONE_CALLER)
        running = {name: await stack.enter_async_context(serving(place)) for name, place in places.items()}
        upstream = await stack.enter_async_context(child("upstream", scratch=scratch))
        behind = (await upstream.hear(Listening, within=20)).port
        client = await stack.enter_async_context(child("load", scratch=scratch))
        serve, first = ("first", "second"), places["first"].ext_proc
        ports = await stack.enter_async_context(
            gateway(behind, {"one": first, "two": (first, places["second"].ext_proc)}, scratch)
        )
        made = Stand(
            client,
            [ports["one"], ports["two"]],
            {
                "serving": [running[name].pid for name in serve],
                "learning": [running["learner"].pid],
                "envoy": _children("envoy"),
                "milvus": [milvus.pid],
                "redis": [shared.process.pid],
                "others": [upstream.pid, client.pid],
            },
            list(running.values()),
            shared,
        )
        for port in made.ports:
            await made.send(port, CALLERS, requests=5)
        yield made


async def check_model(at: Stand, replicas: int, load: float, whole: float, alone: float) -> Check:
    """At *load* of the two cores, which the model takes for one server that is twice as quick. *whole* is the time
    of a core that all processes together use for a request, *alone* the p99 of a request that meets no other."""
    rate = load * 2 * MS / whole
    sent = await at.send(at.ports[replicas - 1], CALLERS * 2, seconds=15.0, rate=rate)
    return Check(replicas, rate, load, alone + waiting_p99(load, whole / 2), MS * percentile(sent.times, 99))


async def measure_inputs(requests: int) -> Inputs:
    with tempfile.TemporaryDirectory(prefix="fleet") as directory:
        async with stand(Path(directory)) as at:
            read = await at.cost(requests, learn=False)
            before = _kept(at.redis)
            learned = await at.cost(requests, learn=True)
            redis_turn = (_kept(at.redis) - before) / requests
            alone = (await at.send(at.ports[0], CALLERS[:1], requests=requests)).times
            whole, p99 = sum(read.values()), MS * percentile(alone, 99)
            checks = [await check_model(at, replicas, load, whole, p99) for replicas in (1, 2) for load in LOADS]
    return Inputs(
        request={name: read[name] for name in PROCESSES},
        turn={name: max(0.0, learned[name] - read[name]) for name in PROCESSES},
        unloaded_p50=MS * percentile(alone, 50),
        unloaded_p99=p99,
        redis_turn=redis_turn,
        checks=checks,
    )


def _kept(server: RedisServer) -> float:
    """Bytes times the seconds until they expire, of all that does."""
    with redis.Redis.from_url(server.url) as client:
        lasting = [(key, client.pttl(key)) for key in client.scan_iter(count=1000)]
        return float(sum((client.memory_usage(key) or 0) * left / MS for key, left in lasting if left > 0))


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def measure(requests: int = 400) -> None:
    """Measures the inputs of the model and checks it; writes docs/benchmarks/fleet.json."""
    inputs = asyncio.run(measure_inputs(requests))
    INPUTS.write_bytes(msgspec.json.format(msgspec.json.encode(inputs), indent=2) + b"\n")
    print("\n".join([*_processes(inputs), "", *_checks(inputs)]))


@app.command()
def plan(
    users: Annotated[list[int], typer.Argument(help="how many users, several for several plans")] = list(PLANS),  # noqa: B006
    active: Annotated[float, typer.Option(help="share of the users on one day")] = Use.active,
    requests: Annotated[float, typer.Option(help="of an active user a day")] = Use.requests,
    peak: Annotated[float, typer.Option(help="the busiest hour against the mean")] = Use.peak,
    days: Annotated[float, typer.Option(help="that a memory is kept")] = Use.days,
    core: Annotated[float, typer.Option(help="dollars an hour for a core")] = Prices.core,
    gib: Annotated[float, typer.Option(help="dollars an hour for a GiB of memory")] = Prices.gib,
) -> None:
    """Pods, Milvus, Redis and cost for a number of users, from docs/benchmarks/fleet.json."""
    inputs = msgspec.json.decode(INPUTS.read_bytes(), type=Inputs)
    uses = (Use(each, active, requests, peak, Use.memories, days) for each in users)
    print("\n".join(_plans([make_plan(inputs, use, Prices(core, gib)) for use in uses])))


def _processes(inputs: Inputs) -> list[str]:
    rows = (f"| {name} | {inputs.request[name]:.2f} | {inputs.turn[name]:.2f} |" for name in PROCESSES)
    return ["| process | ms of CPU per request | more per learned turn |", "|---|---|---|", *rows]


def _checks(inputs: Inputs) -> list[str]:
    rows = (
        f"| {one.replicas} | {one.rate:.0f} | {one.busy:.0%} | {one.said:.0f} | {one.measured:.0f} |"
        for one in inputs.checks
    )
    head = "| serving replicas | requests/s | cores in use | p99 by the model, ms | measured, ms |"
    return [head, "|---|---|---|---|---|", *rows]


def _plans(plans: Sequence[Plan]) -> list[str]:
    head = (
        "| users | requests/s at the peak | serving pods | learning pods | Envoy cores | Milvus | Redis |"
        " $ an hour | beyond one cluster |"
    )
    rows = (
        f"| {one.use.users:,} | {one.use.mean_rate * one.use.peak:,.0f} | {one.serving:,} | {one.learning:,} |"
        f" {one.envoy:,.1f} | {one.milvus_cores:,.1f} cores, {one.milvus_gib:,.0f} GiB |"
        f" {one.redis_cores:,.2f} cores, {one.redis_gib:,.2f} GiB | {one.cost:,.2f} | {one.first} |"
        for one in plans
    )
    return [head, "|" + "---|" * 9, *rows]


if __name__ == "__main__":
    app()
