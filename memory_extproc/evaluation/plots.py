"""Small plots as SVG, drawn here so that a report is one file that needs nothing else. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 16, 44
# Apart for the colour-blind, too.
COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea")


@dataclass(frozen=True, slots=True)
class Line:
    """Points (x, y), x from 0 to 1, joined in their order; *labels*: a few words at some of them."""

    name: str
    points: Sequence[tuple[float, float]]
    labels: Mapping[int, str]


def lines(found: Sequence[Line], across: str, up: str, *, most: float = 1.0) -> str:
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
    """A group of bars for each key, one bar for each of *names*, from 0 to *most*; what is None has no bar."""
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
