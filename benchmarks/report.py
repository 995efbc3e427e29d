"""The figures for people: a table in Markdown with its plots."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib as mpl
import msgspec
from matplotlib.figure import Figure

from benchmarks.figures import Growth, Machine, Results, Spread, median

PACKAGES = ("grpcio", "protobuf", "pymilvus", "milvus-lite", "onnxruntime", "numpy")
ENVOY = "1.40.0"
COLOURS = ("#9aa5b1", "#5b8db8", "#d9822b", "#8c4a9e")
RESULTS = "results.json"
README = "README.md"


def machine() -> Machine:
    return Machine(
        cores=os.cpu_count() or 0,
        architecture=platform.machine(),
        python=platform.python_version(),
        versions={"envoy": ENVOY, **{name: version(name) for name in PACKAGES}},
        load=os.getloadavg()[0],
    )


def write(results: Results, out: Path) -> None:
    """README.md, results.json and the plots into *out*; what an earlier run measured there gives way."""
    out.mkdir(parents=True, exist_ok=True)
    (out / RESULTS).write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    (out / README).write_text("\n".join(markdown(results)) + "\n")
    plots(results, out)


# --- the table -------------------------------------------------------------------------------------
def markdown(results: Results) -> Iterator[str]:
    facts = results.machine
    yield "# Cost of memory"
    yield ""
    yield (
        "Measured by `make bench`: everything on one machine over loopback, load generator, Envoy, upstream and "
        "sidecar each a process of its own, rounds of all ways interleaved, medians of rounds. Absolute figures "
        "move from machine to machine; the ratios are what counts."
    )
    yield ""
    yield f"{facts.cores} cores ({facts.architecture}), Python {facts.python}, " + ", ".join(
        f"{name} {number}" for name, number in facts.versions.items()
    )
    if facts.load is not None:
        yield f"\nOther work on the machine when the run began: a load of {facts.load:.1f}."
    if results.quick:
        yield "\nA quick run: few rounds, small stores. Not to be quoted."
    yield from _targets(results)
    yield from _requests(results)
    yield from _hostile(results)
    yield from _chunks(results)
    yield from _start(results)
    yield from _growth(results)
    yield from _learn(results)
    yield from _drain(results)
    yield from _api(results)
    yield from _stage(results)
    yield from _cost(results)


def _table(*head: str) -> Iterator[str]:
    yield ""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _targets(results: Results) -> Iterator[str]:
    yield "\n## Figures to reach"
    yield from _table("what", "to reach", "measured", "reached")
    for target in results.targets():
        reached = "yes" if target.is_reached else "**no**"
        yield _row(target.what, target.goal, f"{target.seen:.2f}{target.unit}", reached)


def _requests(results: Results) -> Iterator[str]:
    found = results.requests
    if found is None:
        return
    plain, peer = found.latency["plain"], found.latency["peer"]
    yield "\n## A request"
    yield ""
    yield (
        "A chat completion in JSON, answered at once by a stub. *plain*: no ext_proc. *peer*: an ext_proc server "
        f"that only replaces the request body, by as many bytes more as our block has ({found.added_bytes:.0f}). "
        "*recall*: a caller with 1,000 memories in Milvus Lite, the real embedding model, no question twice, "
        "nothing learned. *recall and learn*: every answer is also journalled, embedded, stored and searched for "
        "facts, on the same cores; a caller who asks again at once waits until the last turn can be found."
    )
    yield from _table("way", "p50 ms", "p99 ms", "added p50 ms", "added / peer's", "requests/s, 8 clients")
    for way, spread in found.latency.items():
        added = spread.p50 - plain.p50
        ratio = "" if way == "plain" else f"{added / (peer.p50 - plain.p50):.2f}"
        rate = f"{found.throughput[way]:,.0f}"
        yield _row(way, f"{spread.p50:.2f}", f"{spread.p99:.2f}", f"{added:.2f}", ratio, rate)
    yield ""
    yield (
        f"{found.samples:,} requests of each way. Added p99, recall against peer: {found.added_to_peer_p99:.2f}. "
        f"Outcomes of the recalls: {_outcomes(found.outcomes)}."
    )
    yield "\n![latency of a request](latency.svg)"


def _outcomes(outcomes: dict[str, int]) -> str:
    return ", ".join(f"{word or 'none'} {count:,}" for word, count in sorted(outcomes.items()))


def _hostile(results: Results) -> Iterator[str]:
    found = results.hostile
    if found is None:
        return
    yield "\n## Costly requests of another caller"
    yield ""
    yield (
        "One caller recalls 20 times a second at random moments; another sends one request a second of nearly "
        "4 MiB, made to cost: gzip members without contents, keys and card numbers by the thousand, nested "
        "markers, characters that grow when normalised, orders and facts without end. It is learned from."
    )
    yield from _table("recalls", "p50 ms", "p99 ms")
    yield _row("alone", f"{found.alone.p50:.2f}", f"{found.alone.p99:.2f}")
    yield _row("beside the costly requests", f"{found.beside.p50:.2f}", f"{found.beside.p99:.2f}")
    yield _row("/healthz beside them", f"{found.health.p50:.2f}", f"{found.health.p99:.2f}")
    yield (
        f"\n{found.sent} costly requests; the slowest took {found.slowest:,.0f} ms, and one took "
        f"{found.turn:.1f} s of CPU until it was learned. "
        f"The slowest answer of /healthz took {found.slowest_health:,.0f} ms."
    )


def _chunks(results: Results) -> Iterator[str]:
    found = results.chunks
    if found is None:
        return
    yield "\n## A streamed answer"
    yield ""
    yield (
        "300 events, one every 5 ms; the delay of each from the upstream's write to the client's read. *only "
        "answers*: an ext_proc server that answers every message and does nothing. *two filters*, *full "
        "duplex*: recall and learn where one of two filters watches the answer; where Envoy keeps no copy of it."
    )
    yield from _table("streams", "way", "p50 ms", "p99 ms")
    for streams, ways in found.delay.items():
        for way, spread in ways.items():
            yield _row(streams, way, f"{spread.p50:.2f}", f"{spread.p99:.2f}")
    yield "\n![delay of a chunk](chunks.svg)"


def _start(results: Results) -> Iterator[str]:
    found = results.start
    if found is None:
        return
    yield "\n## Start and memory"
    yield from _table("what", "measured")
    yield _row("rows in the store", f"{found.rows:,}")
    yield _row("from start to ready, s", ", ".join(f"{took:.2f}" for took in sorted(found.ready)))
    yield _row("resident when ready, MiB", f"{found.resident:.0f}")
    yield _row("resident after all callers have asked, MiB", f"{found.resident_used:.0f}")
    yield _row("start, median s", f"{median(found.ready):.2f}")


def _growth(results: Results) -> Iterator[str]:
    found = results.growth
    if found is None:
        return
    yield "\n## Growth"
    yield ""
    yield (
        "100 rows per caller at every size. *store*: a search through the adapter. *cold*: the caller's first "
        "question, while the partition fills. *warm*: the next ones, from the partition in process. p50 / p99, ms."
    )
    yield from _table("backend", "rows", "store", "cold", "warm", "rows/s while filling")
    for backend, sizes in found.sizes.items():
        for size in sizes:
            yield _row(
                *(backend, f"{size.rows:,}", _pair(size.store), _pair(size.cold), _pair(size.warm)),
                f"{size.filling:,.0f}",
            )
    for backend, why in found.missing.items():
        yield _row(backend, "not measured", why, "", "", "")
    yield "\n![growth](growth.svg)"


def _learn(results: Results) -> Iterator[str]:
    found = results.learn
    if found is None:
        return
    yield "\n## Learning"
    yield ""
    yield (
        "Exchanges handed to the write path at once by eight callers: journalled in SQLite, embedded, stored in "
        "Milvus Lite, facts extracted in batches of ten and reconciled; of ten turns six tell something. *By a "
        "model*: an endpoint that answers at once with what the rules find; tokens are estimates, the "
        "prompts' words included."
    )
    yield from _table("what", "measured")
    yield _row("turns learned a second, by the rules", ", ".join(f"{rate:.0f}" for rate in found.by_rules))
    yield _row("turns learned a second, by a model that answers at once", f"{found.by_model:.0f}")
    for kind, calls in found.calls.items():
        yield _row(f"calls of the model in 100 turns, to {kind}", f"{calls:.1f}")
    yield _row("prompt tokens in 100 turns", f"{found.prompt_tokens:,.0f}")
    yield _row("answer tokens in 100 turns", f"{found.completion_tokens:,.0f}")


def _drain(results: Results) -> Iterator[str]:
    if results.drain is None:
        return
    yield "\n## A backlog"
    yield ""
    yield (
        "Turns appended to a journal all at once, then learned from it by a sidecar that starts: embedded, stored "
        "in Milvus Lite, facts extracted by the rules and reconciled."
    )
    yield from _table("journal", "turns", "journalled a second", "learned a second")
    for name, found in results.drain.items():
        yield _row(name, f"{found.turns:,}", f"{found.journalled:,.0f}", f"{found.drained:.0f}")


def _api(results: Results) -> Iterator[str]:
    found = results.api
    if found is None:
        return
    yield "\n## The memory API"
    yield ""
    yield (
        f"One user's {found.memories:,} memories in Milvus Lite, over gRPC, one call after another; each search "
        "asks for something new, so its words are embedded. The page is fetched over HTTP."
    )
    yield from _table("what", "measured")
    for name, spread in found.latency.items():
        yield _row(f"{name}, ms p50 / p99", _pair(spread))
    if found.page_opened:
        yield _row("that page on the first visit after a start, ms", f"{found.page_opened:.0f}")
    yield _row("memories taken in a second, embedded and stored", f"{found.imported:,.0f}")
    yield _row("memories exported a second", f"{found.exported:,.0f}")
    yield _row("memory that reading and exporting took on top, MiB", f"{found.export_mib:.1f}")


def _stage(results: Results) -> Iterator[str]:
    if not results.stage:
        return
    yield "\n## The recall stage by itself"
    yield ""
    yield (
        "One caller's memories held in process; each question is put to the read path and, in other words, to the "
        "embedding model alone, in turns. Read closely: word by word, with words that were at hand."
    )
    yield from _table(
        "memories", "embedding, ms", "recall with it, ms", "times", "to reach", "read closely", "process, MiB"
    )
    for found in results.stage:
        yield _row(
            f"{found.memories:,}", f"{found.embedding:.2f}", f"{found.recall:.2f}", f"{found.multiple:.2f}",
            f"{found.most:g}", f"{found.read_closely:.0%}", f"{found.resident:.0f}",
        )  # fmt: skip


def _cost(results: Results) -> Iterator[str]:
    if not results.cost:
        return
    yield "\n## Processor time of an exchange"
    yield ""
    yield (
        "CPU of the whole sidecar behind Envoy, until the exchange is learned, in embeddings of a query by the "
        "graph for any processor, measured in the same run. Beside it the largest stages: packages on the event "
        "loop, and other threads."
    )
    yield from _table("way", "memories", "one embedding, ms", "CPU, ms", "embeddings", "where it goes, ms")
    for found in results.cost:
        stages = list(found.stages.items())[:_STAGES]
        yield _row(
            found.way, f"{found.memories:,}", f"{found.embedding:.2f}", f"{found.whole:.2f}",
            f"{found.multiple:.2f}", ", ".join(f"{name} {spent:.2f}" for name, spent in stages),
        )  # fmt: skip


_STAGES = 12


def _pair(spread: Spread) -> str:
    return f"{spread.p50:.2f} / {spread.p99:.2f}"


# --- the plots -------------------------------------------------------------------------------------
def plots(results: Results, out: Path) -> None:
    # Without these two a plot of the same figures would be another file each time.
    with mpl.rc_context({"svg.hashsalt": "memory-extproc", "font.size": 10, "axes.axisbelow": True}):
        if results.requests:
            _save(
                _bars({"one client": results.requests.latency}, "a request through Envoy, ms"), out / "latency.svg"
            )
        if results.chunks:
            delays = {f"{count} at once": ways for count, ways in results.chunks.delay.items()}
            _save(_bars(delays, "delay of a streamed chunk, ms"), out / "chunks.svg")
        if results.growth and results.growth.sizes:
            _save(_lines(results.growth), out / "growth.svg")


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})


def _bars(groups: dict[str, dict[str, Spread]], label: str) -> Figure:
    """Per group one axis with p50 (full) and p99 (pale) of each way."""
    figure = Figure(figsize=(4.2 * len(groups) + 1.2, 3.4), layout="constrained")
    axes: Any = figure.subplots(1, len(groups), squeeze=False)[0]
    for axis, (name, ways) in zip(axes, groups.items(), strict=True):
        names = list(ways)
        for place, way in enumerate(names):
            spread = ways[way]
            colour = COLOURS[place % len(COLOURS)]
            axis.bar(place, spread.p99, color=colour, alpha=0.3, width=0.7)
            axis.bar(place, spread.p50, color=colour, width=0.7)
            axis.text(place, spread.p50, f"{spread.p50:.2f}", ha="center", va="bottom")
        axis.set_xticks(range(len(names)), [way.replace(" ", "\n", 1) for way in names])
        axis.set_ylabel(label)
        axis.set_title(f"{name}: p50 full, p99 pale")
        axis.grid(axis="y", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _lines(growth: Growth) -> Figure:
    figure = Figure(figsize=(4.4 * len(growth.sizes) + 0.8, 3.4), layout="constrained")
    axes: Any = figure.subplots(1, len(growth.sizes), squeeze=False, sharey=True)[0]
    for axis, (backend, sizes) in zip(axes, growth.sizes.items(), strict=True):
        rows = [size.rows for size in sizes]
        for colour, kind in zip(COLOURS[1:], ("store", "cold", "warm"), strict=True):
            axis.plot(rows, [getattr(size, kind).p50 for size in sizes], "o-", color=colour, label=kind)
        axis.set(xscale="log", yscale="log", xlabel="rows in the store", title=backend)
        axis.set_xticks(rows, [f"{count:,}" for count in rows])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("search of one caller, p50, ms")
    axes[0].legend(frameon=False)
    return figure
