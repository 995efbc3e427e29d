"""Parts (a) to (c): what a chat costs on its way, always beside the plain route and beside a peer."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec

from benchmarks.attacker import EVERY, Attack, Attacked, bodies
from benchmarks.figures import MS, Chunks, Hostility, Requests, Spread, median, percentile
from benchmarks.gateway import IN_PIECES, TWO_FILTERS, gateway
from benchmarks.lines import Child, child
from benchmarks.load import Round, Sent
from benchmarks.sidecar import Place, Running, serving

READER, *LEARNERS = USERS = [f"caller-{number}" for number in range(10)]
CLIENTS = 8
PLAIN, PEER, RECALL, LEARN, ANSWERS = "plain", "peer", "recall", "recall and learn", "only answers"
LEARNING = (LEARN, TWO_FILTERS, IN_PIECES)  # ways of ours on which answers are learned
LEAST_USED = 0.95  # share of our requests that must have got memories
ROUND_WITHIN = 120.0  # seconds
PROBE_EVERY = 0.1  # seconds between an answer of /healthz and the next question
ASKED_BEFORE = 1_000  # numbers of questions kept for learning the size of a block


class Listening(msgspec.Struct, frozen=True):
    port: int


class NotMeasuredError(Exception):
    """The run did not do what it was to measure."""


@dataclass(frozen=True, slots=True)
class Effort:
    rounds: int
    requests: int  # of one client in a round of latency
    seconds: float  # of a round of throughput
    stream_rounds: int

    @classmethod
    def of(cls, *, quick: bool) -> Effort:
        return cls(2, 50, 0.5, 1) if quick else cls(7, 150, 2.0, 3)


@dataclass(slots=True)
class Stand:
    """Everything up: ask it to send."""

    ports: Mapping[str, int]
    client: Child
    attacker: Child
    sidecar: Running
    added_bytes: float
    first: int  # number of the next question to us: no other way remembers what it was asked

    async def send(self, way: str, callers: list[str], **plan: float) -> Sent:
        """One round over *way*; our own has learned everything when it returns."""
        ours = way == RECALL or way in LEARNING
        question = Round(
            port=self.ports[RECALL if way == LEARN else way],
            callers=callers,
            first=self.first if ours else 0,
            requests=int(plan.get("requests", 0)),
            seconds=plan.get("seconds", 0.0),
            stream=bool(plan.get("stream", 0)),
            warmup=int(plan.get("warmup", 5)),
            learn=way in LEARNING,
        )
        sent = await self.client.ask(question, Sent, within=ROUND_WITHIN)
        if ours:
            self.first = sent.next
        if way in LEARNING:
            await self.sidecar.quiet()
        return sent


@asynccontextmanager
async def stand(place: Place, scratch: Path) -> AsyncIterator[Stand]:
    async with AsyncExitStack() as stack:
        upstream = await _listening(stack, "upstream", scratch=scratch)
        sidecar = await stack.enter_async_context(serving(place))
        client = await stack.enter_async_context(child("load", scratch=scratch))
        attacker = await stack.enter_async_context(child("attacker", scratch=scratch))
        added = await _block_size(client, upstream, place, scratch)
        ways = {
            PLAIN: None,
            PEER: await _listening(stack, "peer", str(round(added)), scratch=scratch),
            ANSWERS: await _listening(stack, "peer", "0", scratch=scratch),
            RECALL: place.ext_proc,
            TWO_FILTERS: place.ext_proc,
            IN_PIECES: place.ext_proc,
        }
        ports = await stack.enter_async_context(gateway(upstream, ways, scratch))
        yield Stand(ports, client, attacker, sidecar, added, ASKED_BEFORE)


async def _listening(stack: AsyncExitStack, module: str, *arguments: str, scratch: Path) -> int:
    process = await stack.enter_async_context(child(module, *arguments, scratch=scratch))
    return (await process.hear(Listening, within=20)).port


async def _block_size(client: Child, upstream: int, place: Place, scratch: Path) -> float:
    """By how many bytes our block lengthens a request, so that the peer may do the same."""
    async with gateway(upstream, {RECALL: place.ext_proc}, scratch) as ports:
        plan = Round(port=ports[RECALL], callers=[READER], first=0, requests=100, warmup=50)
        sent = await client.ask(plan, Sent, within=ROUND_WITHIN)
    if sent.added_bytes < 1:
        raise NotMeasuredError(f"no block was injected: {sent.outcomes}")
    return sent.added_bytes


async def requests(at: Stand, effort: Effort, order: random.Random) -> Requests:
    ways = [PLAIN, PEER, RECALL, LEARN]
    times: dict[str, list[list[float]]] = {way: [] for way in ways}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    outcomes: Counter[str] = Counter()
    for _ in range(effort.rounds):
        for way in order.sample(ways, len(ways)):
            caller = LEARNERS[-1] if way == LEARN else READER
            sent = await at.send(way, [caller], requests=effort.requests)
            times[way].append(sent.times)
            if way == RECALL:
                outcomes.update(sent.outcomes)
        for way in order.sample(ways, len(ways)):
            callers = LEARNERS[:CLIENTS] if way == LEARN else [READER] * CLIENTS
            sent = await at.send(way, callers, seconds=effort.seconds)
            rates[way].append(len(sent.times) / sent.elapsed)
            if way == RECALL:
                outcomes.update(sent.outcomes)
    if outcomes["used"] < LEAST_USED * outcomes.total():
        raise NotMeasuredError(f"too few of our requests got memories: {dict(outcomes)}")
    p50 = {way: [percentile(one, 50) for one in rounds] for way, rounds in times.items()}
    p99 = {way: percentile([took for one in rounds for took in one], 99) for way, rounds in times.items()}
    return Requests(
        latency={way: Spread(1000 * median(p50[way]), 1000 * p99[way]) for way in ways},
        added_to_peer=median(
            [
                (ours - plain) / (peer - plain)
                for ours, peer, plain in zip(p50[RECALL], p50[PEER], p50[PLAIN], strict=True)
            ]
        ),
        added_to_peer_p99=(p99[RECALL] - p99[PLAIN]) / (p99[PEER] - p99[PLAIN]),
        throughput={way: median(rates[way]) for way in ways},
        outcomes=dict(outcomes),
        added_bytes=at.added_bytes,
        samples=effort.rounds * effort.requests,
    )


async def chunks(at: Stand, effort: Effort, order: random.Random) -> Chunks:
    delay: dict[str, dict[str, Spread]] = {}
    ratios: dict[str, float] = {}
    ways = [PLAIN, ANSWERS, *LEARNING]
    for streams in (1, 10):
        # One stream has fewer events, so it is measured more often.
        rounds = effort.stream_rounds * (3 if streams == 1 else 1)
        times: defaultdict[str, list[list[float]]] = defaultdict(list)
        for _ in range(rounds):
            for way in order.sample(ways, len(ways)):
                # Ten callers, and none of them asks again before what it said was learned.
                sent = await at.send(way, USERS[:streams], requests=1, warmup=0, stream=1)
                times[way].append(sent.times)
        p50 = {way: [percentile(one, 50) for one in times[way]] for way in ways}
        delay[str(streams)] = {
            way: Spread(1000 * median(p50[way]), Spread.of([t for one in times[way] for t in one]).p99)
            for way in ways
        }
        ratios[str(streams)] = median([ours / peer for ours, peer in zip(p50[LEARN], p50[ANSWERS], strict=True)])
    return Chunks(delay=delay, to_answering=ratios)


ATTACKER = "attacker"
RATE = 20.0  # recalls a second of the caller beside the attacker, at random moments


async def hostility(at: Stand, effort: Effort) -> Hostility:
    """Recalls of one caller, alone and beside costly requests of another, in turns; each body once a round."""
    seconds = float(len(bodies())) * EVERY
    alone: list[float] = []
    beside: list[float] = []
    attacked: list[Attacked] = []
    probes: list[float] = []
    worked = 0.0
    for _ in range(effort.stream_rounds):
        before = at.sidecar.cpu_seconds()
        alone += await _recalls(at, seconds)
        usual = at.sidecar.cpu_seconds() - before
        plan = Attack(at.ports[RECALL], ATTACKER, 0, seconds)
        probing = asyncio.create_task(_probe(at.sidecar.place.http, probes))
        sending = asyncio.create_task(at.attacker.ask(plan, Attacked, within=ROUND_WITHIN))
        beside += await _recalls(at, seconds)
        attacked.append(await sending)
        await at.sidecar.quiet()
        probing.cancel()
        await asyncio.wait({probing})
        worked += at.sidecar.cpu_seconds() - before - 2 * usual
    sent = sum(one.sent for one in attacked)
    return Hostility(
        alone=Spread.of(alone),
        beside=Spread.of(beside),
        health=Spread.of(probes),
        slowest_health=MS * max(probes),
        sent=sent,
        slowest=MS * max(one.slowest for one in attacked),
        turn=worked / sent,
    )


async def _probe(port: int, took: list[float]) -> None:
    """Asks for /healthz as a kubelet does, each time over a connection of its own."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as client:
        while True:
            began = time.monotonic()
            async with client.get(f"http://127.0.0.1:{port}/healthz") as answer:
                await answer.read()
                answer.raise_for_status()
            took.append(time.monotonic() - began)
            await asyncio.sleep(PROBE_EVERY)


async def _recalls(at: Stand, seconds: float) -> list[float]:
    plan = Round(at.ports[RECALL], [READER] * CLIENTS, at.first, seconds=seconds, rate=RATE)
    sent = await at.client.ask(plan, Sent, within=ROUND_WITHIN)
    at.first = sent.next
    return sent.times
