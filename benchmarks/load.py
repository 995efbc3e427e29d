"""The client, a process of its own: keep-alive connections, raw asyncio, one line of JSON per round."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from benchmarks import words
from benchmarks.lines import answer_lines

SYSTEM = "You are a careful assistant of a travel agency. Answer briefly and name your sources. " * 6
HISTORY = [
    {"role": "user", "content": "I am planning a few journeys and would like to keep an overview of them."},
    {
        "role": "assistant",
        "content": "Gladly. Tell me what you know already, and I shall keep it in order for you.",
    },
    {"role": "user", "content": "I travel light, by train where I can, and never before nine in the morning."},
    {"role": "assistant", "content": "Noted: light luggage, trains first, and no departures before nine."},
]
EVENT_AT = re.compile(rb'"at": ?(\d+)')
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
BODY_BYTES = re.compile(rb"x-body-bytes: *(\d+)", re.IGNORECASE)
STATUS = re.compile(rb"x-memory-status: *([a-z_]+)", re.IGNORECASE)
LAST_CHUNK = b"0\r\n\r\n"
NANOSECONDS = 1e9


class Round(msgspec.Struct, frozen=True):
    """A plan of requests: to *port*, one client per caller, until *requests* of each or *seconds* are over."""

    port: int
    callers: Sequence[str]
    first: int  # number of the first question; the next ones follow
    requests: int = 0  # per client; 0: until *seconds* are over
    seconds: float = 0.0
    rate: float = 0.0  # requests a second at random moments, for *seconds*, whatever becomes of those before
    learn: bool = False
    stream: bool = False
    path: str = "/v1/chat/completions"
    warmup: int = 5  # requests of each client before anything is counted; they have questions of their own


class Sent(msgspec.Struct, frozen=True):
    """Results of a round. Times in seconds: of a whole exchange each or, streamed, the delay of an event each."""

    times: list[float]
    elapsed: float
    next: int  # the first question not asked yet
    outcomes: dict[str, int]  # x-memory-status, by its first word; "" where there was none
    by_outcome: dict[str, list[float]]  # of requests at a rate: their times
    added_bytes: float  # by which the upstream's body was longer than ours, on average


class Client:
    def __init__(self, plan: Round, caller: str, numbers: Numbers) -> None:
        self._plan, self._caller, self._numbers = plan, caller, numbers
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self.times: list[float] = []
        self.outcomes: Counter[str] = Counter()
        self.added: list[int] = []

    async def connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._plan.port, limit=2**20)
        for _ in range(self._plan.warmup):
            await self.exchange()
        self.times, self.outcomes, self.added = [], Counter(), []

    async def run(self, until: float) -> None:
        if self._plan.requests:
            for _ in range(self._plan.requests):
                await self.exchange()
        else:
            while time.monotonic() < until:
                await self.exchange()

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def exchange(self) -> str:
        """Send a request and read its answer; returns its outcome."""
        body = self._body(words.question(self._numbers.take()))
        request = self._head(len(body)) + body
        started = time.perf_counter()
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode(errors="replace"))
        if self._plan.stream:
            await self._read_events()
        else:
            length = LENGTH.search(head)
            # Where an ext_proc filter sees the answer in pieces, Envoy sends it on in chunks.
            await (self._reader.readexactly(int(length[1])) if length else self._reader.readuntil(LAST_CHUNK))
            self.times.append(time.perf_counter() - started)
        seen = BODY_BYTES.search(head)
        if seen is not None:
            self.added.append(int(seen[1]) - len(body))
        status = STATUS.search(head)
        outcome = status[1].decode() if status else ""
        self.outcomes[outcome] += 1
        return outcome

    async def _read_events(self) -> None:
        rest = b""
        while not rest.endswith(LAST_CHUNK):
            piece = await self._reader.read(65536)
            now = time.monotonic_ns()
            if not piece:
                raise RuntimeError("the event stream was cut off")
            rest += piece
            whole = rest.rfind(b"\n\n") + 2
            if whole > 1:
                self.times.extend((now - int(at)) / NANOSECONDS for at in EVENT_AT.findall(rest, 0, whole))
                rest = rest[whole:]

    def _body(self, question: str) -> bytes:
        messages = [{"role": "system", "content": SYSTEM}, *HISTORY, {"role": "user", "content": question}]
        return json.dumps({"model": "gpt-4o-mini", "messages": messages, "stream": self._plan.stream}).encode()

    def _head(self, length: int) -> bytes:
        store = "" if self._plan.learn else "x-memory-store: skip\r\n"
        return (
            f"POST {self._plan.path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"x-authz-user-id: {self._caller}\r\n{store}content-length: {length}\r\n\r\n"
        ).encode()


class Numbers:
    """Gives each question to one client only."""

    def __init__(self, first: int) -> None:
        self.next = first

    def take(self) -> int:
        self.next += 1
        return self.next - 1


async def send(plan: Round) -> Sent:
    numbers = Numbers(plan.first)
    clients = [Client(plan, caller, numbers) for caller in plan.callers]
    await asyncio.gather(*(client.connect() for client in clients))
    started = time.monotonic()
    by_outcome: dict[str, list[float]] = {}
    if plan.rate:
        by_outcome = await _arrivals(plan, clients)
        times = [took for some in by_outcome.values() for took in some]
    else:
        await asyncio.gather(*(client.run(started + plan.seconds) for client in clients))
        times = [took for client in clients for took in client.times]
    elapsed = time.monotonic() - started
    await asyncio.gather(*(client.close() for client in clients))
    outcomes: Counter[str] = Counter()
    for client in clients:
        outcomes.update(client.outcomes)
    added = [size for client in clients for size in client.added]
    return Sent(
        times=times,
        elapsed=elapsed,
        next=numbers.next,
        outcomes=dict(outcomes),
        by_outcome=by_outcome,
        added_bytes=sum(added) / len(added) if added else 0.0,
    )


async def _arrivals(plan: Round, clients: Sequence[Client]) -> dict[str, list[float]]:
    """Each request takes the first free client; its time counts from the moment it was due."""
    free: asyncio.Queue[Client] = asyncio.Queue()
    for client in clients:
        free.put_nowait(client)
    times = defaultdict[str, list[float]](list)

    async def arrival(due: float) -> None:
        client = await free.get()
        try:
            outcome = await client.exchange()
        finally:
            free.put_nowait(client)
        times[outcome].append(time.monotonic() - due)

    chance = random.Random(plan.first)
    due = time.monotonic()
    end = due + plan.seconds
    async with asyncio.TaskGroup() as running:
        while (due := due + chance.expovariate(plan.rate)) < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            running.create_task(arrival(due))
    return times


if __name__ == "__main__":
    asyncio.run(answer_lines(Round, send))
