"""The comparison as a table for docs/comparison.md, and its plot."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import matplotlib as mpl
import msgspec
from matplotlib.figure import Figure

Say = Callable[[str], None]
Figures = dict[str, dict[str, dict[str, float | None]]]  # set → system → figure
PAGE = "comparison.md"
_BLOCK = re.compile(r"(<!-- measured -->\n).*(<!-- /measured -->)", re.DOTALL)
_COLOURS = {
    "memory-extproc": "#d9822b",
    "mem0": "#5b8db8",
    "milvus": "#8c4a9e",
    "dense": "#9aa5b1",
    "bm25": "#5f6b76",
}
_QUALITY = ("recall@5", "recall@10", "evidence in the prompt", "precision of the prompt", "abstention")
_COST = (
    "search p50 ms", "search p99 ms", "CPU ms a search", "add p50 ms", "CPU ms a message added",
    "resident MiB", "disk MiB",
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    at: str  # the day
    versions: dict[str, str]
    figures: Figures


def versions(python: Path) -> dict[str, str]:
    """Of what was compared; the peers' from their own environment."""
    found = {name: version(name) for name in ("memory-extproc", "pymilvus", "milvus-lite")}
    if python.exists():
        ask = "from importlib.metadata import version as v; print(v('mem0ai'), v('qdrant-client'), v('bm25s'))"
        said = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.split()
        found |= dict(zip(("mem0ai", "qdrant-client", "bm25s"), said, strict=True))
    return found


def markdown(measured: Measured) -> Iterator[str]:
    facts = ", ".join(f"{name} {number}" for name, number in measured.versions.items())
    yield f"Measured on {measured.at} on {os.cpu_count()} cores ({platform.machine()}): {facts}."
    for title, systems in measured.figures.items():
        asked = any(figures["recall@5"] is not None for figures in systems.values())
        for columns in (_QUALITY, _COST) if asked else (_COST,):
            yield ""
            yield f"**{title}**"
            yield ""
            yield "| | " + " | ".join(columns) + " |"
            yield "|---|" + "---:|" * len(columns)
            for name, figures in systems.items():
                yield f"| {name} | " + " | ".join(_cell(figures[column]) for column in columns) + " |"


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:,g}"


def write(measured: Measured, out: Path) -> None:
    """The table into the page between its marks; figures and plot beside it. ValueError: the page has no marks."""
    page = out / PAGE
    text, count = _BLOCK.subn(
        lambda mark: mark[1] + "\n".join(markdown(measured)) + "\n\n" + mark[2], page.read_text()
    )
    if count != 1:
        raise ValueError(f"{page}: the marks <!-- measured --> and <!-- /measured --> must stand there once")
    page.write_text(text)
    (out / "comparison.json").write_bytes(msgspec.json.format(msgspec.json.encode(measured), indent=1) + b"\n")
    plot(measured.figures, out / "comparison.svg")


def plot(figures: Figures, to: Path) -> None:
    """Quality against cost: one point for each system on each set with answers."""
    mpl.rcParams["svg.hashsalt"] = "peers"
    sets = {
        title: systems
        for title, systems in figures.items()
        if any(each["recall@10"] is not None for each in systems.values())
    }
    figure = Figure(figsize=(4.6 * max(1, len(sets)), 3.8), layout="constrained")
    for at, (title, systems) in enumerate(sets.items()):
        axes = figure.add_subplot(1, len(sets), at + 1)
        for name, each in systems.items():
            if each["recall@10"] is None or each["CPU ms a search"] is None:
                continue
            axes.scatter(
                each["CPU ms a search"], each["recall@10"], color=_COLOURS[name], s=60, zorder=3, label=name
            )
        axes.set(title=title, xlabel="CPU ms of a search, embedding included", ylabel="recall@10", ylim=(0, 1.05))
        axes.set_xscale("log")
        axes.margins(x=0.2)
        axes.grid(alpha=0.3)
    if figure.axes:
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(_COLOURS))
    figure.savefig(to, metadata={"Date": None})
