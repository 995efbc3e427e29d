"""How good a ranker is on conversations that it was not fitted on, and what each feature is worth to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from memory_extproc.evaluation.fit import Example, by_group, fit_ranker
from memory_extproc.evaluation.gathering import Gathered
from memory_extproc.evaluation.scoring import mean

DEPTHS = (5, 10, 20)
Floats = npt.NDArray[np.float64]
Normalises = Callable[[Gathered], Floats]  # features as the ranker gets them, a row for each candidate


@dataclass(frozen=True, slots=True)
class Validated:
    """Evidence recall by depth: over all questions, and its mean and spread over the conversations."""

    recall: Mapping[int, float]
    by_conversation: Mapping[str, Mapping[int, float]]

    def spread(self, k: int) -> float:
        """Standard deviation over the conversations."""
        return float(np.std([found[k] for found in self.by_conversation.values()]))


def examples_of(gathered: Iterable[Gathered], normalise: Normalises) -> list[Example]:
    return [Example(one.conversation, normalise(one), one.answers) for one in gathered]


def validated(gathered: Sequence[Gathered], examples: Sequence[Example], l2: float) -> Validated:
    """Fitted on all conversations but one and judged by that one, for each. *gathered* and *examples* go
    together and are answerable."""
    place = {id(example): one for one, example in zip(gathered, examples, strict=True)}
    judged: list[tuple[Gathered, Floats]] = []
    for _, rest, own in by_group(examples):
        weights = fit_ranker(rest, l2)
        judged += [(place[id(example)], example.features @ weights) for example in own]
    return judged_by(judged)


def judged_by(judged: Iterable[tuple[Gathered, Floats]]) -> Validated:
    """The figures of questions with the scores of their candidates."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one, scores in judged:
        for k in DEPTHS:
            found[one.conversation][k].append(one.recall(k, scores))
    whole = {k: mean([value for by_k in found.values() for value in by_k[k]]) or 0.0 for k in DEPTHS}
    by_conversation = {name: {k: mean(by_k[k]) or 0.0 for k in DEPTHS} for name, by_k in sorted(found.items())}
    return Validated(whole, by_conversation)


def ablation(
    gathered: Sequence[Gathered],
    examples: Sequence[Example],
    names: Sequence[str],
    l2: float,
    groups: Mapping[str, Sequence[str]] | None = None,
    says: Callable[[str, int, int], None] = lambda _step, _done, _whole: None,
) -> list[dict[str, str | float]]:
    """What recall loses when a feature, or a group of them, is left out and the rest is fitted anew, judged on
    conversations held out; the dearest first."""
    whole = validated(gathered, examples, l2)
    left_out = groups or {name: (name,) for name in names}
    rows = []
    for at, (label, out) in enumerate(left_out.items()):
        says("leaving out", at, len(left_out))
        kept = np.array([name not in out for name in names])
        fewer = [replace(one, features=one.features[:, kept]) for one in examples]
        without = validated(gathered, fewer, l2)
        rows.append((label, {k: without.recall[k] - whole.recall[k] for k in DEPTHS}))
    says("leaving out", len(left_out), len(left_out))
    rows.sort(key=lambda row: (row[1][DEPTHS[0]], row[0]))
    return [
        {"left out": label, **{f"recall@{k}": round(change, 4) for k, change in changes.items()}}
        for label, changes in rows
    ]
