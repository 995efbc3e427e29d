"""Part (d): from `memory-extproc serve` to ready, and what it holds in memory, with a full store."""

from __future__ import annotations

import compileall
from pathlib import Path

import memory_extproc
from benchmarks.exchanges import READER, USERS, NotMeasuredError, stand
from benchmarks.figures import Start, median
from benchmarks.sidecar import Place, serving


async def start(place: Place, rows: int, scratch: Path, *, quick: bool) -> Start:
    # As an installation leaves it; a checkout's modules may be compiled anew by every process.
    compileall.compile_dir(Path(memory_extproc.__file__).parent, quiet=1)
    ready: list[float] = []
    resident: list[float] = []
    for _ in range(1 if quick else 5):
        async with serving(place) as sidecar:
            ready.append(sidecar.took)
            resident.append(sidecar.resident())
    async with stand(place, scratch) as at:
        for user in USERS:
            sent = await at.send("recall", [user], requests=20)
            if user == READER and not sent.outcomes.get("used"):
                raise NotMeasuredError(f"no memories were found: {sent.outcomes}")
        used = at.sidecar.resident()
    return Start(rows=rows, ready=ready, resident=median(resident), resident_used=used)
