"""Stretches of text that are not kept as they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Span(NamedTuple):
    """*text* from *start* to *end*, half open, is a *kind* ("card number")."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True)
class Masked:
    """A text with its finds replaced, and what they were."""

    text: str = field(repr=False)
    kinds: tuple[str, ...] = ()
    found: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # (what stood there, its kind)


def mark(kind: str) -> str:
    return f"[masked: {kind}]"


def disjoint(spans: Iterable[Span]) -> list[Span]:
    """In order of place. Of two that overlap the earlier stays; of two that begin together, the longer."""
    kept: list[Span] = []
    for span in sorted(spans, key=lambda one: (one.start, -one.end)):
        if not kept or span.start >= kept[-1].end:
            kept.append(span)
        elif span.end > kept[-1].end:
            # They share an end: both are hidden, under the name of the first.
            kept[-1] = Span(kept[-1].start, span.end, kept[-1].kind)
    return kept


def masked(text: str, spans: Iterable[Span], *, drop: bool = False) -> Masked:
    """*text* with each of *spans* replaced by its mark, or by nothing. All else stays as it is."""
    parts: list[str] = []
    found: list[tuple[str, str]] = []
    at = 0
    for start, end, kind in disjoint(spans):
        parts += (text[at:start], "" if drop else mark(kind))
        found.append((text[start:end], kind))
        at = end
    if not found:
        return Masked(text)
    parts.append(text[at:])
    return Masked("".join(parts), tuple(kind for _, kind in found), tuple(found))
