"""Choose settings of recall on a data set: each setting in turn, every value on the same learned memories."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from typing import Any

from memory_extproc.evaluation.datasets import Dataset, Names
from memory_extproc.evaluation.metrics import covered_share, mean, sign_test, unanswerable
from memory_extproc.evaluation.runner import (
    ASKED_AFTER,
    Bench,
    Bounds,
    EvaluatedQuestion,
    Played,
    Says,
    System,
    ask_everything,
    make_system,
)
from memory_extproc.evaluation.training import learn_all
from memory_extproc.settings import Settings

Opens = Callable[[Settings], AbstractAsyncContextManager[Bench]]

# Values of each setting, tried in this order; the threshold last, because its effect depends on the rest.
GRID: Mapping[str, tuple[object, ...]] = {
    "recall.candidates": (50, 100, 200),
    "recall.half_life": (timedelta(days=14), timedelta(days=60), timedelta(days=240)),
    "recall.mmr_lambda": (None, 0.5, 0.7, 0.9),
    "memory.default_similarity_threshold": (0.5, 0.55, 0.6, 0.65, 0.7),
}
# From the last message to the questions: a half-life that is fitted to the next day alone would be worth nothing.
DISTANCES = (ASKED_AFTER, timedelta(days=30), timedelta(days=180))
LEAST_GAIN = 0.005  # of the mean of both shares; less is not worth a line of configuration
SURE = 0.05  # the probability by chance below which a gain counts


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a value of a setting.

    *evidence*: share of a question's evidence that is injected. *abstention*: share of unanswerable questions that
    get nothing. *gain*: of the mean of both, over the value in force. *p*: of such a gain by chance."""

    setting: str
    value: object
    evidence: float | None
    abstention: float | None
    gain: float
    p: float
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    trials: tuple[Trial, ...]
    changes: Mapping[str, object]  # setting → value, where it did better than the configured value


@dataclass(frozen=True, slots=True)
class _Scores:
    """By question: shares of evidence injected, and 1 for each unanswerable question that got nothing."""

    evidence: Sequence[float]
    silent: Sequence[float]

    @property
    def balanced_score(self) -> float:
        """The mean of both shares, however many questions of each kind there are."""
        return sum(mean(one) or 0.0 for one in (self.evidence, self.silent)) / 2


async def choose_settings(
    dataset: Dataset,
    settings: Settings,
    opens: Opens,
    *,
    grid: Mapping[str, Sequence[object]] = GRID,
    limit_questions: int | None = None,
    says: Says = lambda _step, _done, _whole: None,
) -> Chosen:
    """Walk through *grid*; a value takes over if its gain is at least LEAST_GAIN and hardly by chance. Memories are
    learned once; *opens* makes the read path for a variant of *settings*. Cost: questions by values by
    distances."""
    trials: list[Trial] = []
    changes: dict[str, object] = {}
    async with opens(settings) as made, learn_all(dataset, made, says) as stage:
        in_force = await _score(dataset, stage, settings, opens, limit_questions)
        for at, (name, values) in enumerate(grid.items()):
            says("choosing", at, len(grid))
            tried: list[tuple[Trial, Settings, _Scores]] = []
            for value in values:
                variant = with_value(settings, name, value)
                same = read_value(settings, name) == value
                scores = in_force if same else await _score(dataset, stage, variant, opens, limit_questions)
                tried.append((_trial(name, value, in_force, scores), variant, scores))
            best, variant, scores = max(tried, key=lambda one: one[0].gain)
            wins = best.gain >= LEAST_GAIN and best.p < SURE
            if wins:
                changes[name], settings, in_force = best.value, variant, scores
            kept = read_value(settings, name)
            trials += [
                Trial(one.setting, one.value, one.evidence, one.abstention, one.gain, one.p, one.value == kept)
                for one, _, _ in tried
            ]
    return Chosen(tuple(trials), changes)


def with_value(settings: Settings, name: str, value: object) -> Settings:
    """*settings* with the setting of this dotted name changed."""
    section, _, rest = name.partition(".")
    inner = getattr(settings, section)
    changed = with_value(inner, rest, value) if "." in rest else inner.model_copy(update={rest: value})
    return settings.model_copy(update={section: changed})


def read_value(settings: Settings, name: str) -> object:
    return reduce(getattr, name.split("."), settings)


def as_fragment(changes: Mapping[str, object]) -> dict[str, Any]:
    """*changes* as the tree of a configuration file."""
    tree: dict[str, Any] = {}
    for name, value in changes.items():
        *sections, last = name.split(".")
        inner = reduce(lambda at, key: at.setdefault(key, {}), sections, tree)
        inner[last] = f"{value // timedelta(days=1)}d" if isinstance(value, timedelta) else value
    return tree


async def _score(
    dataset: Dataset, stage: Mapping[str, Played], settings: Settings, opens: Opens, limit_questions: int | None
) -> _Scores:
    bounds = Bounds(settings.memory.default_similarity_threshold, settings.memory.default_retrieval_limit)
    asked: list[EvaluatedQuestion] = []
    async with opens(settings) as made:
        systems = {name: (one, make_system(System.HYBRID, made, one, bounds)) for name, one in stage.items()}
        for distance in DISTANCES:
            async with _asked_after(stage, distance):
                asked += await ask_everything(dataset.conversations, systems, limit_questions, [Names.FIRST_PERSON])
    counted = [one for one in asked if one.names is None and one.question.counts]
    return _Scores(
        [covered_share(one, one.answer.injected) for one in counted],
        [float(not one.answer.injected) for one in asked if unanswerable(one)],
    )


@asynccontextmanager
async def _asked_after(stage: Mapping[str, Played], distance: timedelta) -> AsyncIterator[None]:
    """The clocks of *stage* put *distance* behind the last message, or behind the questions' own time."""
    before = {name: one.clock.now for name, one in stage.items()}
    for one in stage.values():
        one.clock.now += distance - ASKED_AFTER
    try:
        yield
    finally:
        for name, one in stage.items():
            one.clock.now = before[name]


def _trial(name: str, value: object, in_force: _Scores, scores: _Scores) -> Trial:
    apart = [
        after - before
        for old, new in ((in_force.evidence, scores.evidence), (in_force.silent, scores.silent))
        for before, after in zip(old, new, strict=True)
    ]
    gain = scores.balanced_score - in_force.balanced_score
    return Trial(name, value, mean(scores.evidence), mean(scores.silent), gain, sign_test(apart))
