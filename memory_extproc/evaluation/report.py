"""Write the figures as one HTML file, plots included, and as JSON beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from memory_extproc.errors import PermanentError

PAGE = "index.html"
FIGURES = "figures.json"
_STYLE = """
:root { color-scheme: light dark; --ink: #1f2937; --soft: #6b7280; --line: #d1d5db; --paper: #fff;
  --panel: #f9fafb; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5e7eb; --soft: #9ca3af; --line: #374151; --paper: #111827; --panel: #1f2937; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1200px;
  margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p.soft, figcaption { color: var(--soft); }
.numbers { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.5rem 0; }
.number { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: .7rem 1.1rem; }
.number b { display: block; font-size: 1.6rem; font-variant-numeric: tabular-nums; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 1.5rem; }
figure { margin: 0; } svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--ink); }
svg text.small { font-size: 9px; } .grid { stroke: var(--line); stroke-width: .5; }
.axis { stroke: var(--soft); fill: none; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
"""
_STAGES = ("embed", "search", "rank", "total")


def write_report(directory: Path, figures: Mapping[str, Any]) -> None:
    """Writes both files below *directory*, which is made if it is not there. PermanentError when that fails."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / PAGE).write_text(page(figures), encoding="utf-8")
        (directory / FIGURES).write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise PermanentError(f"{directory}: the report cannot be written: {error.strerror}") from error


def page(figures: Mapping[str, Any]) -> str:
    """The whole page; it loads nothing from anywhere."""
    title = f"Recall on {figures['dataset']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_about(figures))}</p>',
        _numbers(figures),
        '<div class="plots">',
        _figure(
            _precision_and_recall(figures["sweep"]), "Precision against recall of what is injected, by threshold"
        ),
        _figure(_over_threshold(figures["sweep"]), "What the threshold does"),
        _figure(_by_category(figures["by_category"]), "Evidence recall by category"),
        _figure(_latency(figures["latency_ms"]), "Milliseconds by stage; the whole is one recall in process"),
        "</div>",
        "<h2>By category</h2>",
        _category_table(figures),
        "<h2>Threshold</h2>",
        _table(("threshold", "recall", "precision", "abstention", "memories"), figures["sweep"]),
    ]
    if figures.get("ablation"):
        parts += ["<h2>What each feature is worth</h2>", _table(tuple(figures["ablation"][0]), figures["ablation"])]
    body = "\n".join(parts)
    head = (
        f'<meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _about(figures: Mapping[str, Any]) -> str:
    learned = figures["learned"]
    return (
        f"System {figures['system']}, {figures['questions']} answerable questions about {learned['conversations']} "
        f"conversations, {learned['memories']} memories, embedding model {figures['embedding_model']}. "
        "k counts what the data set names, not memories. Answered: "
        + ", ".join(f"{path} {share:.1%}" for path, share in figures["paths"].items())
        + "."
    )


def _numbers(figures: Mapping[str, Any]) -> str:
    injection, abstention = figures["injection"], figures["abstention"]
    shown = {
        "recall@5": figures["recall@5"],
        "recall@10": figures["recall@10"],
        "recall@20": figures["recall@20"],
        "MRR": figures["mrr"],
        f"precision at {injection['threshold']:g}": injection["precision"],
        f"recall lost at {injection['threshold']:g}": injection["loss"],
        "abstention": abstention["share"],
    }
    boxes = (f'<div class="number"><b>{_share(value)}</b>{escape(name)}</div>' for name, value in shown.items())
    return f'<div class="numbers">{"".join(boxes)}</div>'


def _precision_and_recall(sweep: Sequence[Mapping[str, Any]]) -> str:
    known = [one for one in sweep if one["precision"] is not None and one["recall"] is not None]
    points = [(one["recall"], one["precision"]) for one in known]
    labels: dict[int, str] = {}
    last: tuple[float, float] | None = None
    for at, point in enumerate(points):
        # Label a point only at a distance from the previous label, to avoid overlaps.
        if last is None or abs(point[0] - last[0]) + abs(point[1] - last[1]) > 0.08:  # noqa: PLR2004 - of the plot
            labels[at], last = f"{known[at]['threshold']:g}", point
    return lines(
        [PlotLine("threshold", points, labels)],
        "evidence recall",
        "precision",
        most=steps(max((y for _, y in points), default=1.0) or 1.0),
    )


def _over_threshold(sweep: Sequence[Mapping[str, Any]]) -> str:
    drawn = [
        PlotLine(name, [(one["threshold"], one[name]) for one in sweep if one[name] is not None], {})
        for name in ("recall", "precision", "abstention")
    ]
    return lines([line for line in drawn if line.points], "threshold", "share")


def _by_category(groups: Mapping[str, Mapping[str, Any]]) -> str:
    names = ("recall@5", "recall@10", "recall@20")
    return bars({name: [group[k] for k in names] for name, group in groups.items()}, names, "evidence recall")


def _latency(latency: Mapping[str, Any]) -> str:
    stages = {stage: latency[stage] for stage in _STAGES if stage in latency}
    values = {stage: [times["p50"], times["p95"]] for stage, times in stages.items()}
    most = max((time for pair in values.values() for time in pair), default=0.0)
    return bars(values, ("p50", "p95"), "ms", most=steps(most) if most > 0 else 1.0)


def _category_table(figures: Mapping[str, Any]) -> str:
    columns = ("category", "questions", "recall@5", "recall@10", "recall@20", "ndcg@10", "mrr")
    rows = [{"category": "1 to 4", **figures}]
    rows += [{"category": name, **group} for name, group in figures["by_category"].items()]
    return _table(columns, [{**row, **_with_intervals(row)} for row in rows])


def _with_intervals(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: f"{_share(row[name])} ({_share(bounds[0])} to {_share(bounds[1])})"
        for name, bounds in row.get("intervals", {}).items()
        if bounds is not None
    }


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(row[name])}</td>' for name in columns)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    return escape(value) if isinstance(value, str) else str(value) if isinstance(value, int) else _share(value)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


# Small SVG plots, drawn here so that a report is a self-contained file. Pure.

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 16, 44
# Apart for the colour-blind, too.
COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea")


@dataclass(frozen=True, slots=True)
class PlotLine:
    """Points (x, y), x from 0 to 1, joined in their order; *labels*: a few words at some of them."""

    name: str
    points: Sequence[tuple[float, float]]
    labels: Mapping[int, str]


def lines(found: Sequence[PlotLine], across: str, up: str, *, most: float = 1.0) -> str:
    """Curves; across from 0 to 1, up from 0 to *most*."""
    parts = [*_grid(most), _axes(across, up)]
    parts += [_text(_x(at / 5), HEIGHT - BOTTOM + 16, f"{at / 5:g}", "middle") for at in range(6)]
    for line, colour in zip(found, COLOURS, strict=False):
        joined = " ".join(f"{_x(x):.1f},{_y(y / most):.1f}" for x, y in line.points)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for at, (x, y) in enumerate(line.points):
            parts.append(f'<circle cx="{_x(x):.1f}" cy="{_y(y / most):.1f}" r="3" fill="{colour}"/>')
            if at in line.labels:
                parts.append(_text(_x(x) + 5, _y(y / most) - 6, line.labels[at], "start"))
    if len(found) > 1:
        parts += _legend([line.name for line in found])
    return _svg(parts)


def bars(groups: Mapping[str, Sequence[float | None]], names: Sequence[str], up: str, *, most: float = 1.0) -> str:
    """A group of bars per key, a bar for each of *names*, from 0 to *most*; None draws no bar."""
    parts = [*_grid(most), _axes("", up)]
    wide = (WIDTH - LEFT - RIGHT) / max(1, len(groups))
    each = 0.8 * wide / max(1, len(names))
    for number, (group, values) in enumerate(groups.items()):
        start = LEFT + number * wide + 0.1 * wide
        for at, value in enumerate(values):
            if value is not None:
                parts.append(
                    _bar(start + at * each, each, value / most, COLOURS[at % len(COLOURS)], f"{value:.2f}")
                )
        parts.append(_text(start + 0.4 * wide, HEIGHT - BOTTOM + 16, group, "middle"))
    if len(names) > 1:
        parts += _legend(names)
    return _svg(parts)


def steps(last: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, … that is not below *last*, which is above 0."""
    power = 1.0
    while power < last:
        power *= 10
    while power / 10 >= last:
        power /= 10
    return next(power * share for share in (0.2, 0.5, 1.0) if power * share >= last)


def _bar(left: float, wide: float, share: float, colour: str, label: str) -> str:
    top = _y(min(1.0, share))
    tall = HEIGHT - BOTTOM - top
    drawn = (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(1.0, wide - 2):.1f}" height="{tall:.1f}" fill="{colour}"/>'
    )
    return drawn + _text(left + wide / 2 - 1, top - 3, label, "middle", small=True)


def _grid(most: float = 1.0) -> list[str]:
    parts = []
    for at in range(6):
        y = _y(at / 5)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" class="grid"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{most * at / 5:g}", "end"))
    return parts


def _axes(across: str, up: str) -> str:
    base = HEIGHT - BOTTOM
    drawn = f'<path d="M{LEFT} {TOP}V{base}H{WIDTH - RIGHT}" class="axis"/>'
    turned = f'transform="translate(14 {(TOP + base) / 2:.0f}) rotate(-90)" text-anchor="middle"'
    name = f"<text {turned}>{escape(up)}</text>"
    return drawn + name + _text(LEFT, HEIGHT - 6, across, "start")


def _legend(names: Sequence[str]) -> list[str]:
    """Below the plot, from the right; long names of several lines would not fit, ours are short."""
    widths = [14 + 7 * len(name) + 16 for name in names]
    lefts = [WIDTH - RIGHT - sum(widths[at:]) for at in range(len(names))]
    return [
        f'<rect x="{left}" y="{HEIGHT - 15}" width="10" height="10" fill="{colour}"/>'
        + _text(left + 14, HEIGHT - 6, name, "start")
        for left, name, colour in zip(lefts, names, COLOURS, strict=False)
    ]


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _text(x: float, y: float, words: str, anchor: str, *, small: bool = False) -> str:
    kind = ' class="small"' if small else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(words)}</text>'


def _svg(parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'
