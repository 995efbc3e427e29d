"""The cost of a sidecar with each kind of store: to start, for a caller held in process, for a recall.

`python -m benchmarks.stores [CALLERS]` prints a table; docs/sizing.md has it. Seconds of a core are those of the
sidecar alone: what else the machine does shows in them far less than in times.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.exchanges import RECALL, Listening, NotMeasuredError
from benchmarks.figures import median
from benchmarks.gateway import gateway
from benchmarks.lines import Child, child
from benchmarks.load import Round, Sent
from benchmarks.sidecar import Place, Running, prepare, serving
from tests.support.milvus_server import lite_server, milvus_server

OF_ONE_CALLER = 200  # memories
AT_ONCE = 2  # clients
WARM = 4  # rounds over all callers whose memories are held
STARTS = 3
LEAST_HELD = 0.9  # share of recalls of held callers that must have done their work
_WITHIN = 300.0  # seconds


@dataclass(frozen=True, slots=True)
class Taken:
    """MiB, seconds, seconds of a core, KiB, and the same for one recall in milliseconds."""

    store: str
    ready: float
    start: float
    resident: float
    held: float
    first: float
    warm: float


@dataclass(slots=True)
class Asking:
    client: Child
    port: int
    sidecar: Running
    next: int = 0

    async def everybody(self, callers: Sequence[str]) -> tuple[float, float]:
        """One question of each of *callers*: milliseconds of a core that the sidecar took for one, what it did
        behind the answer included, and the share of them that were searched for in time."""
        before, outcomes = self.sidecar.cpu_seconds(), Counter[str]()
        for at in range(0, len(callers), AT_ONCE):
            some = callers[at : at + AT_ONCE]
            plan = Round(port=self.port, callers=some, first=self.next, requests=1, warmup=0)
            sent = await self.client.ask(plan, Sent, within=_WITHIN)
            self.next = sent.next
            outcomes.update(sent.outcomes)
        await self.sidecar.quiet()
        worked = 1000 * (self.sidecar.cpu_seconds() - before) / outcomes.total()
        return worked, (outcomes["used"] + outcomes["nothing_relevant"]) / outcomes.total()


@asynccontextmanager
async def asking(place: Place, scratch: Path) -> AsyncIterator[Asking]:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(child("upstream", scratch=scratch))
        port = (await upstream.hear(Listening, within=20)).port
        sidecar = await stack.enter_async_context(serving(place))
        client = await stack.enter_async_context(child("load", scratch=scratch))
        ports = await stack.enter_async_context(gateway(port, {RECALL: place.ext_proc}, scratch))
        yield Asking(client, ports[RECALL], sidecar)


async def measure(name: str, address: str, scratch: Path, callers: Sequence[str]) -> Taken:
    place = Place.make(scratch, name, address)
    await prepare(place, callers, OF_ONE_CALLER)
    ready, start, resident = [], [], []
    for _ in range(STARTS):
        async with serving(place) as sidecar:
            ready.append(sidecar.took)
            start.append(sidecar.cpu_seconds())
            resident.append(sidecar.resident())
    async with asking(place, scratch) as at:
        strangers = [f"stranger-{number}" for number in range(AT_ONCE)]
        await at.client.ask(Round(port=at.port, callers=strangers, first=0, requests=20), Sent, within=_WITHIN)
        at.next = 1_000
        await at.sidecar.quiet()
        before = at.sidecar.resident()
        first, _ = await at.everybody(callers)
        held = (at.sidecar.resident() - before) * 1024 / len(callers)
        warm = [await at.everybody(callers) for _ in range(WARM)]
    if min(done for _, done in warm) < LEAST_HELD:
        raise NotMeasuredError(f"too few recalls did their work: {warm}")
    recall = median([worked for worked, _ in warm])
    return Taken(name, median(ready), median(start), median(resident), held, first, recall)


async def main(callers: int) -> None:
    names = [f"caller-{number}" for number in range(callers)]
    print(f"{callers} callers with {OF_ONE_CALLER} memories each")
    print("| store | ready after | CPU until then | resident | a caller held | CPU: first recall | CPU: recall |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="stores") as directory, ExitStack() as stack:
        scratch = Path(directory)
        stores = (
            ("Milvus Lite, in process", None),
            ("milvus-lite server", lite_server),
            ("Milvus 2.3.5", milvus_server),
        )
        for name, opened in stores:
            address = stack.enter_context(opened(scratch)).address if opened else ""
            taken = await measure(name, address, scratch, names)
            print(
                f"| {taken.store} | {taken.ready:.1f} s | {taken.start:.1f} s | {taken.resident:.0f} MiB |"
                f" {taken.held:.0f} KiB | {taken.first:.1f} ms | {taken.warm:.1f} ms |",
                flush=True,
            )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
