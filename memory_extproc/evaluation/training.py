"""Features of each candidate of every question of a data set: the input of the fit. And the choice of
settings: each in turn, every value on the same learned memories."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from functools import reduce
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from memory_extproc.evaluation.datasets import Dataset, EvaluationCase, Names, Question, foreign, reword
from memory_extproc.evaluation.metrics import covered_share, mean, positions, recall_at, sign_test, unanswerable
from memory_extproc.evaluation.runner import (
    ASKED_AFTER,
    FOREIGN_NAMES,
    Bench,
    Bounds,
    EvaluatedQuestion,
    Played,
    Says,
    System,
    ask_everything,
    make_system,
    wait_filled,
)
from memory_extproc.index.features import CLOSELY
from memory_extproc.model import Candidates, Scope, SearchQuery
from memory_extproc.ports import TokenEmbeddingModel
from memory_extproc.recall.fusion import FEW, Ranker, diversify_sessions, likeliest
from memory_extproc.recall.late_interaction import FIRST_READ, LateInteractionScorer, QuestionProjection
from memory_extproc.recall.query import plain_query
from memory_extproc.settings import Settings

_UNHURRIED = timedelta(minutes=5)
CANDIDATES = 100  # of a question, as recall asks for


class StoreKind(StrEnum):
    """Kinds of store: features have other usual values in each, so each counts by itself."""

    TALK = "talk"  # of two people with names
    CHAT = "chat"  # with an assistant, of many messages
    NOTES = "notes"  # notes and short exchanges

    @classmethod
    def of(cls, conversation: EvaluationCase) -> Self:
        if conversation.speakers:
            return cls("talk")
        return cls("chat" if len(conversation.said) >= FEW else "notes")


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """A question and its candidates. *covers*: ids that each candidate covers; *names*: treatment of the
    speakers' names in the question; a foreign question has no relevant ids."""

    conversation: str  # whose question it is
    question: Question
    candidates: Candidates
    covers: tuple[tuple[str, ...], ...]
    names: Names = Names.KEPT
    kind: StoreKind = StoreKind.TALK

    @property
    def answers(self) -> npt.NDArray[np.bool_]:
        """Which candidates hold a piece of the evidence."""
        return np.array([not self.question.relevant.isdisjoint(ids) for ids in self.covers], dtype=bool)

    def recall(self, k: int, scores: npt.NDArray[np.float64]) -> float:
        """Evidence recall within *k* when the candidates stand in the order that recall makes of *scores*."""
        order = np.argsort(-scores, kind="stable").tolist()
        if CLOSELY in self.candidates.names:
            order = diversify_sessions(order, scores, self.candidates.memories)
        return recall_at(k, positions(self.covers[at] for at in order), self.question.relevant)


@asynccontextmanager
async def learn_all(
    dataset: Dataset, bench: Bench, says: Says = lambda _step, _done, _whole: None
) -> AsyncIterator[Mapping[str, Played]]:
    """Every conversation of *dataset*, learned once and held while entered, by name."""
    async with AsyncExitStack() as stack:
        stage: dict[str, Played] = {}
        for at, one in enumerate(dataset.conversations):
            says("learning", at, len(dataset.conversations))
            there = await stack.enter_async_context(bench.play(one, bench.partition))
            await wait_filled(there, bench.embedder)
            stage[one.name] = there
        yield stage


async def gather(
    stage: Mapping[str, Played],
    bench: Bench,
    *,
    dense: bool = True,
    closely: Ranker | None = None,
    projection: QuestionProjection | None = None,
    says: Says = lambda _step, _done, _whole: None,
) -> list[Gathered]:
    """Gather every question that counts, to its own and to foreign memories. Without *dense*, as while the
    embedding model is down; *closely*: the first candidates of this ranker are read word by word, the
    question's words under *projection* where it suits."""
    reader = close_reader(bench, projection) if closely else None
    asked = _list_questions([one.conversation for one in stage.values()])
    found = []
    for at, (home, away, question, names) in enumerate(asked):
        says("gathering", at, len(asked))
        candidates = await _candidates(stage[away], question, bench, dense=dense)
        if reader is not None and closely is not None:
            candidates = await reader.read(
                plain_query(question.text, question.earlier).text,
                likeliest(closely.features, candidates, FIRST_READ),
            )
        covers = tuple(stage[away].covers(memory) for memory in candidates.memories)
        kind = StoreKind.of(stage[away].conversation)
        found.append(Gathered(home, question, candidates, covers, names, kind))
    says("gathering", len(asked), len(asked))
    return found


def close_reader(bench: Bench, projection: QuestionProjection | None = None) -> LateInteractionScorer | None:
    """None if the embedding model has no vectors of single words."""
    embedder = bench.embedder
    if not isinstance(embedder, TokenEmbeddingModel) or not embedder.reads_words:
        return None
    return LateInteractionScorer(embedder, _UNHURRIED, bench.metrics, projection)


async def _candidates(there: Played, question: Question, bench: Bench, *, dense: bool) -> Candidates:
    text = plain_query(question.text, question.earlier).text
    vector = await bench.embedder.embed_query(text) if dense else None
    return await there.partitions.candidates(there.owner, SearchQuery(text, vector), CANDIDATES, Scope())


def _list_questions(conversations: Sequence[EvaluationCase]) -> list[tuple[str, str, Question, Names]]:
    """(asker, owner of the memories, the question, treatment of its names). Own memories are asked under neutral
    names too: otherwise names alone would identify foreign questions."""
    asked: list[tuple[str, str, Question, Names]] = []
    for one in conversations:
        for question in one.questions:
            if question.counts or not one.speakers:
                asked.append((one.name, one.name, question, Names.KEPT))
            if question.counts and one.speakers:
                for names in (Names.FIRST_PERSON, Names.NEUTRAL):
                    other_words = replace(question, text=reword(question.text, one.speakers, names))
                    asked.append((one.name, one.name, other_words, names))
    for names in FOREIGN_NAMES:
        for home, away, question in foreign(conversations):
            text = reword(question.text, home.speakers, names, away.speakers)
            asked.append((home.name, away.name, replace(question, text=text, relevant=frozenset()), names))
    return asked


# Measure a ranker on held-out conversations, and the value of each feature.

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


def cross_validate(gathered: Sequence[Gathered], examples: Sequence[Example], l2: float) -> Validated:
    """Fit on all conversations but one and judge by that one, for each. *gathered* and *examples* correspond and
    are answerable."""
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
    """The loss of recall when a feature, or a group, is left out and the rest is fitted again, on held-out
    conversations; the largest first."""
    whole = cross_validate(gathered, examples, l2)
    left_out = groups or {name: (name,) for name in names}
    rows = []
    for at, (label, out) in enumerate(left_out.items()):
        says("leaving out", at, len(left_out))
        kept = np.array([name not in out for name in names])
        fewer = [replace(one, features=one.features[:, kept]) for one in examples]
        without = cross_validate(gathered, fewer, l2)
        rows.append((label, {k: without.recall[k] - whole.recall[k] for k in DEPTHS}))
    says("leaving out", len(left_out), len(left_out))
    rows.sort(key=lambda row: (row[1][DEPTHS[0]], row[0]))
    return [
        {"left out": label, **{f"recall@{k}": round(change, 4) for k, change in changes.items()}}
        for label, changes in rows
    ]


# Fit few weights to few questions: a ranker over candidates, and a probability. Pure numpy. Both losses are convex
# with an L2 term, so Newton's method with halved steps reaches the single optimum: start, seed and number of rounds
# do not affect the weights.

Bools = npt.NDArray[np.bool_]
T = TypeVar("T")
_Loss = Callable[[Floats], tuple[float, Floats, Floats]]  # weights → loss, gradient, Hessian

ROUNDS = 100
SMALL = 1e-8  # decrease promised by a Newton step; smaller steps change no figure
_HALVINGS = 40


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A question: a row of *features* per candidate, and the answering candidates. *group*: its conversation; a
    fit on a group is never judged on it. *weight*: how much it counts."""

    group: str
    features: Floats = field(repr=False)  # (candidates, features), already normalised
    answers: Bools = field(repr=False)  # (candidates,)
    weight: float = 1.0


def fit_ranker(examples: Sequence[Example], l2: float) -> Floats:
    """Weights of a linear score: a softmax over each question's candidates should spread its probability evenly
    over the answers (ListNet: Cao et al. 2007). Questions without an answering candidate are ignored. *l2* is
    per question and feature. ValueError if no question is left."""
    useful = [one for one in examples if one.answers.any()]
    if not useful:
        raise ValueError("no example has a candidate that answers it")
    wanted = [one.answers / one.answers.sum() for one in useful]
    count = sum(one.weight for one in useful)

    def loss(weights: Floats) -> tuple[float, Floats, Floats]:
        value = 0.0
        gradient = np.zeros_like(weights)
        hessian = np.zeros((len(weights), len(weights)))
        for one, target in zip(useful, wanted, strict=True):
            scores = one.features @ weights
            top = float(scores.max())
            powers = np.exp(scores - top)
            whole = float(powers.sum())
            share = powers / whole
            value += one.weight * (top + np.log(whole) - float(target @ scores))
            gradient += one.weight * (one.features.T @ (share - target))
            centred = one.features - share @ one.features
            hessian += one.weight * ((centred * share[:, None]).T @ centred)
        return value / count, gradient / count, hessian / count

    return _newton(loss, useful[0].features.shape[1], np.full(useful[0].features.shape[1], l2))


@dataclass(frozen=True, slots=True, eq=False)
class Logistic:
    """A probability from features: 1 / (1 + e^-(features · weights + bias))."""

    weights: Floats
    bias: float

    def __call__(self, features: Floats) -> Floats:
        """A probability in (0, 1) per row."""
        found: Floats = _logistic(features @ self.weights + self.bias)
        return found


def fit_logistic(features: Floats, truth: Bools, l2: float, weight: Floats | None = None) -> Logistic:
    """Fitted by maximum likelihood; *weight* says how much each row counts. The bias is not drawn to 0.
    ValueError unless there are rows of both kinds."""
    if truth.all() or not truth.any():
        raise ValueError("a probability cannot be fitted to one outcome alone")
    counted = np.ones(len(truth)) if weight is None else weight
    whole = float(counted.sum())
    rows = np.column_stack([features, np.ones(len(features))])

    def loss(weights: Floats) -> tuple[float, Floats, Floats]:
        scores = rows @ weights
        likely = _logistic(scores)
        # log(1 + e^s) - y s, without overflow
        each = np.logaddexp(0.0, scores) - truth * scores
        gradient = rows.T @ (counted * (likely - truth)) / whole
        hessian = (rows * (counted * likely * (1.0 - likely))[:, None]).T @ rows / whole
        return float(counted @ each) / whole, gradient, hessian

    penalty = np.full(rows.shape[1], l2)
    penalty[-1] = 0.0
    fitted = _newton(loss, rows.shape[1], penalty)
    return Logistic(fitted[:-1], float(fitted[-1]))


def by_group(examples: Sequence[Example]) -> Iterator[tuple[str, list[Example], list[Example]]]:
    """Each group once: (its name, all others, itself). ValueError when there are fewer than two."""
    groups = sorted({one.group for one in examples})
    if len(groups) < 2:  # noqa: PLR2004 - one to fit on, another to judge by
        raise ValueError("cross-validation needs two conversations or more")
    for group in groups:
        rest = [one for one in examples if one.group != group]
        yield group, rest, [one for one in examples if one.group == group]


def _newton(loss: _Loss, count: int, penalty: Floats) -> Floats:
    """The minimum of *loss* plus half the squared weights times *penalty*."""

    def penalise(weights: Floats) -> tuple[float, Floats, Floats]:
        value, gradient, hessian = loss(weights)
        value += 0.5 * float(penalty @ weights**2)
        # The last term keeps the step finite along a direction in which nothing is known at all.
        return value, gradient + penalty * weights, hessian + np.diag(penalty + 1e-10)

    weights = np.zeros(count)
    value, gradient, hessian = penalise(weights)
    for _ in range(ROUNDS):
        step = np.linalg.solve(hessian, gradient)
        promised = float(gradient @ step)
        if promised < SMALL:
            break
        length = 1.0
        for _ in range(_HALVINGS):
            tried = penalise(weights - length * step)
            if tried[0] <= value - 1e-4 * length * promised:
                break
            length /= 2
        else:
            break  # as good as floating point gets
        weights = weights - length * step
        value, gradient, hessian = tried
    return weights


def _logistic(scores: Floats) -> Floats:
    found: Floats = np.exp(-np.logaddexp(0.0, -scores))
    return found


# --- choice of settings ------------------------------------------------------------------------------


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
