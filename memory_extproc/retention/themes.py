"""What a caller's facts are about: groups of them that are worth thinking over together. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memory_extproc.model import Embedded, Memory, digest
from memory_extproc.retention.histories import About

Floats = npt.NDArray[np.float64]

_SELF = "user"  # the caller, as facts name them: everything is about them
_LEAST_LENGTH = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ThemeRules:
    near: float = 0.45  # cosine to a theme's middle from which on a fact belongs to it
    above: int = 5  # facts of one theme
    grown: int = 3  # facts new in it, where it was thought over before
    most: int = 3  # themes of one round


@dataclass(frozen=True, slots=True)
class Theme:
    """*facts* newest first."""

    facts: tuple[Memory, ...]

    @property
    def key(self) -> str:
        """The same for the same facts."""
        return digest("theme", *sorted(memory.id for memory in self.facts))


def themes(rows: Sequence[Embedded], rules: ThemeRules, about: About) -> list[Theme]:
    """*rows*, facts of one project, in groups: those of a subject, and of what is left those that lie near one
    another. Each in one group at most; groups with too few facts are none."""
    by_subject: defaultdict[Hashable, list[Embedded]] = defaultdict(list)
    for row in rows:
        subject = row.memory.metadata.get("subject")
        named = isinstance(subject, str) and subject and about(subject) != about(_SELF)
        by_subject[about(str(subject)) if named else None].append(row)
    rest = by_subject.pop(None, [])
    found: list[list[Embedded]] = []
    for group in by_subject.values():
        if len(group) >= rules.above:
            found.append(group)
        else:
            rest += group
    found += _near_one_another(rest, rules.near)
    return [Theme(_newest_first(group)) for group in found if len(group) >= rules.above]


def due(found: Iterable[Theme], thought_over: Collection[str], rules: ThemeRules) -> list[Theme]:
    """Those of *found* that nobody thought over, or that have grown since; the most news first. *thought_over*: ids
    of facts."""
    news = [(sum(memory.id not in thought_over for memory in theme.facts), theme) for theme in found]
    wanted = [(new, theme) for new, theme in news if new == len(theme.facts) or new >= max(1, rules.grown)]
    wanted.sort(key=lambda one: (-one[0], one[1].key))
    return [theme for _, theme in wanted[: rules.most]]


def _newest_first(rows: Iterable[Embedded]) -> tuple[Memory, ...]:
    memories = [row.memory for row in rows]
    return tuple(sorted(memories, key=lambda memory: (-memory.created_at.timestamp(), memory.id)))


def _near_one_another(rows: Sequence[Embedded], near: float) -> list[list[Embedded]]:
    """Each row joins the group to whose middle it is nearest, if it is near enough, and else begins one; then once
    more, with the middles as they have become. The same rows give the same groups in whatever order they come."""
    if not rows:
        return []
    ordered = sorted(rows, key=lambda row: (row.memory.created_at, row.memory.id))
    vectors = np.stack([row.vector for row in ordered]).astype(np.float64)
    middles, lengths, count = np.zeros_like(vectors), np.zeros(len(vectors)), 0
    for vector in vectors:
        at, cosine = _nearest(vector, middles[:count], lengths[:count])
        if cosine < near:
            at, count = count, count + 1
        middles[at] += vector
        lengths[at] = max(float(np.linalg.norm(middles[at])), _LEAST_LENGTH)
    groups: defaultdict[int, list[Embedded]] = defaultdict(list)
    for row, vector in zip(ordered, vectors, strict=True):
        at, cosine = _nearest(vector, middles[:count], lengths[:count])
        if cosine >= near:
            groups[at].append(row)
    return list(groups.values())


def _nearest(vector: Floats, middles: Floats, lengths: Floats) -> tuple[int, float]:
    if not len(middles):
        return 0, -1.0
    cosines = (middles @ vector) / lengths
    at = int(np.argmax(cosines))
    return at, float(cosines[at])
