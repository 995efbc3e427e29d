"""`python -m benchmarks`: every part in one run, as a table and plots."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markdown import Markdown

from benchmarks import cost, draining, exchanges, growth, learning, memory_api, report, stage, starting
from benchmarks.exchanges import USERS, Effort, NotMeasuredError
from benchmarks.figures import Results
from benchmarks.lines import ChildFailedError
from benchmarks.sidecar import Place, prepare
from memory_extproc.observe import log

PARTS = ("start", "requests", "hostile", "chunks", "growth", "learn", "drain", "api", "stage", "cost")
DOCS = Path("docs/benchmarks")
Say = Callable[[str], None]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="few rounds and small stores: does it run?")] = False,  # noqa: FBT002
    million: Annotated[bool, typer.Option("--million", help="growth up to 1,000,000 rows: minutes, 8 GiB")] = False,  # noqa: FBT002
    only: Annotated[str, typer.Option(help=f"parts, by commas: {', '.join(PARTS)}")] = "",
    json: Annotated[Path | None, typer.Option(help="also write the figures here")] = None,
    out: Annotated[Path | None, typer.Option(help="table and plots go here; a whole run: docs/benchmarks")] = None,
    seed: Annotated[int, typer.Option(help="of the order in which the ways take turns")] = 1,
) -> None:
    """Measure the cost of memory: added latency, throughput, streamed answers, start, growth, learning."""
    console = Console(stderr=True)
    log.configure("warning", "console")
    parts = [part.strip() for part in only.split(",")] if only else list(PARTS)
    if unknown := set(parts) - set(PARTS):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: known are {', '.join(PARTS)}", param_hint="--only")
    try:
        results = asyncio.run(measure(parts, random.Random(seed), console.log, quick=quick, million=million))
    except (ChildFailedError, NotMeasuredError) as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(1) from None
    Console().print(Markdown("\n".join(report.markdown(results))))
    if json is not None:
        json.write_bytes(msgspec.json.encode(results))
    if out is None and not quick and set(parts) == set(PARTS):
        out = DOCS
    if out is not None:
        report.write(results, out)
        console.log(f"written to {out}")


async def measure(parts: list[str], order: random.Random, say: Say, *, quick: bool, million: bool) -> Results:
    found: dict[str, Any] = {}
    machine = report.machine()  # before we load it ourselves
    with tempfile.TemporaryDirectory(prefix="memory-bench-") as made:
        scratch = Path(made)
        place = Place.make(scratch, "store")
        rows = 0
        if set(parts) & {"start", "requests", "hostile", "chunks"}:
            say(f"{len(USERS)} callers say what they say, 1,000 memories each")
            rows = await prepare(place, USERS)
        for part, run in _runs(place, rows, scratch, order, quick=quick, million=million).items():
            if part in parts:
                say(part)
                found[part] = await run()
    return Results(at=datetime.now(UTC).date().isoformat(), quick=quick, machine=machine, **found)


def _runs(
    place: Place, rows: int, scratch: Path, order: random.Random, *, quick: bool, million: bool
) -> dict[str, Callable[[], Awaitable[object]]]:
    effort = Effort.of(quick=quick)

    async def stand(measure: Callable[[exchanges.Stand], Awaitable[object]]) -> object:
        async with exchanges.stand(place, scratch) as at:
            return await measure(at)

    return {
        "start": lambda: starting.start(place, rows, scratch, quick=quick),
        "requests": lambda: stand(lambda at: exchanges.requests(at, effort, order)),
        "hostile": lambda: stand(lambda at: exchanges.hostility(at, effort)),
        "chunks": lambda: stand(lambda at: exchanges.chunks(at, effort, order)),
        "growth": lambda: growth.growth(scratch, order, quick=quick, million=million),
        "learn": lambda: learning.learning(scratch, quick=quick),
        "drain": lambda: draining.drain(scratch, quick=quick),
        "api": lambda: memory_api.memory_api(scratch, quick=quick),
        "stage": lambda: stage.stages(quick=quick),
        "cost": lambda: cost.costs(scratch, quick=quick),
    }


app()
