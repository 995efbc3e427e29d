"""The order of filters in each gateway, as pictures: docs/gateways/*.svg. `--check`: fail where one is stale."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

PLACE = Path(__file__).parents[1] / "docs" / "gateways"
_WIDTH, _HIGH, _GAP, _LEFT = 116, 62, 16, 16
_GREY, _DASHED = "#475569", 'fill="none" stroke="#cbd5e1" stroke-dasharray="5 4"'
_COLOURS = {
    "edge": ("#fef3c7", "#f59e0b"),
    "ours": ("#dcfce7", "#22c55e"),
    "theirs": ("#e0f2fe", "#38bdf8"),
    "": ("#ffffff", "#94a3b8"),
}


@dataclass(frozen=True)
class Box:
    name: str
    what: str
    kind: str = ""  # edge: what keeps clients from naming themselves; ours; theirs: the router's


CLIENT, MODEL = Box("client", "anything it likes"), Box("model", "any")
STRIP = Box("strip", "identity headers", "edge")
WHO = Box("who asks", "jwt, ext_authz, …", "edge")
MEMORY = Box("memory", "ext_proc", "ours")
ROUTER = Box("Envoy", "routes")
PICTURES = {
    "envoy": ("Envoy", (CLIENT, STRIP, WHO, MEMORY, Box("strip again", "x-memory-*", "ours"), ROUTER, MODEL)),
    "envoy-gateway": (
        "Envoy Gateway",
        (CLIENT, Box("strip", "early headers", "edge"), Box("jwt_authn", "SecurityPolicy", "edge"),
         Box("memory", "ExtensionPolicy", "ours"), ROUTER, MODEL),
    ),
    "envoy-ai-gateway": (
        "Envoy AI Gateway",
        (CLIENT, Box("strip", "early headers", "edge"), Box("jwt_authn", "SecurityPolicy", "edge"), MEMORY,
         Box("buffer", "requestBuffer"), Box("AI gateway", "its ext_proc", "theirs"), ROUTER, MODEL),
    ),
    "istio": (
        "Istio",
        (CLIENT, Box("strip", "INSERT_FIRST", "edge"), Box("jwt_authn", "RequestAuth…", "edge"),
         Box("memory", "EnvoyFilter", "ours"), Box("strip again", "x-memory-*", "ours"), ROUTER, MODEL),
    ),
    "semantic-router": (
        "vLLM Semantic Router",
        (CLIENT, STRIP, WHO, Box("bypass cache", "for callers", "ours"),
         Box("the router", "its ext_proc", "theirs"), MEMORY, ROUTER, MODEL),
    ),
}  # fmt: skip


def drawn(title: str, boxes: tuple[Box, ...]) -> str:
    width = 2 * _LEFT + len(boxes) * _WIDTH + (len(boxes) - 1) * _GAP
    first, last = _LEFT + _WIDTH + _GAP / 2, width - _LEFT - _WIDTH - _GAP / 2
    font = 'font-family="ui-sans-serif, system-ui, sans-serif"'
    said = f"{title}: a request passes from left to right, its answer from right to left"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 150" {font}>',
        f"  <title>{escape(title)}: the order of filters, as a request passes them</title>",
        f'  <rect width="{width}" height="150" rx="10" fill="#f8fafc"/>',
        f'  <text x="{_LEFT}" y="28" font-size="14" fill="{_GREY}">{escape(said)}</text>',
        f'  <rect x="{first}" y="42" width="{last - first}" height="96" rx="8" {_DASHED}/>',
    ]
    for place, box in enumerate(boxes):
        x = _LEFT + place * (_WIDTH + _GAP)
        if place:
            arrow = f"M{x - _GAP + 2} 90h{_GAP - 4}l-4-4m4 4l-4 4"
            lines.append(f'  <path d="{arrow}" stroke="{_GREY}" stroke-width="1.5" fill="none"/>')
        lines += _boxed(box, x)
    return "\n".join([*lines, "</svg>", ""])


def _boxed(box: Box, x: int) -> list[str]:
    fill, stroke = _COLOURS[box.kind]
    middle = f'x="{x + _WIDTH / 2}" text-anchor="middle"'
    paint = f'rx="7" fill="{fill}" stroke="{stroke}" stroke-width="1.5"'
    return [
        f'  <rect x="{x}" y="59" width="{_WIDTH}" height="{_HIGH}" {paint}/>',
        f'  <text {middle} y="86" font-size="14" font-weight="600" fill="#0f172a">{escape(box.name)}</text>',
        f'  <text {middle} y="107" font-size="12" fill="{_GREY}">{escape(box.what)}</text>',
    ]


def main() -> None:
    stale = []
    for name, (title, boxes) in PICTURES.items():
        path, text = PLACE / f"{name}.svg", drawn(title, boxes)
        if not path.exists() or path.read_text() != text:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text)
    if stale and "--check" in sys.argv:
        sys.exit(f"not up to date: {', '.join(stale)}")


if __name__ == "__main__":
    main()
