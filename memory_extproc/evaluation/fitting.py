"""Fit a file of weights to data sets: both rankers, with held-out figures beside the previous weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from memory_extproc.errors import PermanentError
from memory_extproc.evaluation.datasets import Dataset, Names
from memory_extproc.evaluation.metrics import mean
from memory_extproc.evaluation.runner import Bench
from memory_extproc.evaluation.training import (
    DEPTHS,
    Example,
    Gathered,
    Logistic,
    StoreKind,
    Validated,
    ablation,
    close_reader,
    fit_logistic,
    fit_ranker,
    gather,
    judged_by,
    learn_all,
)
from memory_extproc.index.features import ANOTHER, CLOSELY, FOREIGN
from memory_extproc.recall.fusion import (
    LENGTH,
    MEASURES,
    SIZE,
    VERSION,
    Feature,
    Ranker,
    Relevance,
    Weights,
    Worth,
    measures,
    odds_of,
    packaged_weights,
    relevances,
    scores_of,
    soundness,
    standardise,
    worth_of,
)
from memory_extproc.recall.late_interaction import packaged_projection

# Fit the recall weights and measure them on held-out conversations. The ranker learns from questions and their
# evidence. The gate learns from these questions and from unanswerable questions, with scores of rankers that had
# not seen the conversation; its bias is set so that at the default threshold the wanted share of foreign questions
# gets nothing.

Floats = npt.NDArray[np.float64]
Says = Callable[[str, int, int], None]
# Flags, or measures of a memory by itself: their scale does not depend on the question.
OWN_SCALE = frozenset({
    "asks", "ends_asking", "tells_time", "tells_number", "tells_names", "subject", "only_subject", "days_agree",
    "days_same", "days_apart", "time_for_when", "names_for_which", "length", "rarity",
    "assistant", "assistant_asked", ANOTHER, FOREIGN,
})  # fmt: skip
# The same for all memories of a question: they order nothing.
_OF_QUESTION = frozenset({"known", "known_near", "asked_terms", FOREIGN})
_ENOUGH = tuple(at / 4 for at in range(-12, 5))
_SLOPES = (0.5, 1.0, 2.0, 3.0)
_OF_MEMORY = ("dense", "covered", "near", CLOSELY, ANOTHER)  # a memory's own features that predict its soundness
_LOOKED_AT = 8  # candidates of a question, in learning which of them are sound
_LEAST_SPREAD = 1e-3
_LEAST_SIZES = 0.5  # deviation of the logarithm of the number of memories
_SLOPES_BY_STORE = tuple(at / 10 for at in range(-15, 21))  # of log-odds
FOLDS = 5


@dataclass(frozen=True, slots=True)
class Aims:
    """Targets of the fit. Each kind of store counts as a whole, regardless of its number of questions: *ranked*
    for the order, *gated* for the gate. Within a kind, a question with names to its own memories counts 1; the
    weights here apply to questions under neutral names (*neutral*) and to foreign memories (*swapped*). Without
    these, names alone would identify foreign questions."""

    threshold: float = 0.6
    limit: int = 5
    abstention: float = 0.9
    abstention_chats: float = 0.85
    loss: float = 0.05  # of recall, to the threshold as a whole
    selection: float = 0.02  # share lost by judging single memories, in addition to the gate's loss
    selection_notes: float = 0.04  # the same of notes
    ranker_l2: float = 0.1
    worth_l2: float = 1e-3
    neutral: float = 0.33
    foreign: float = 0.33
    swapped: float = 0.17
    ranked: Mapping[StoreKind, float] = field(
        default_factory=lambda: {StoreKind.TALK: 1.0, StoreKind.CHAT: 1.0, StoreKind.NOTES: 0.8}
    )
    gated: Mapping[StoreKind, float] = field(
        default_factory=lambda: {StoreKind.TALK: 1.0, StoreKind.CHAT: 1.0, StoreKind.NOTES: 0.3}
    )

    def target_abstention(self, kind: StoreKind) -> float:
        """The share of questions which nothing answers that are to get nothing."""
        return self.abstention_chats if kind is StoreKind.CHAT else self.abstention


@dataclass(frozen=True, slots=True)
class HeldOutFigures:
    """Held-out figures. *recall_at_threshold* and *loss* at the limit of the aims."""

    recall: Validated
    abstention: float | None
    abstention_swapped: float | None
    loss: float
    precision: float | None


@dataclass(frozen=True, slots=True)
class Tuned:
    """*judged*: every question with a ranker that has not seen the memories asked; *held*: how they fare."""

    ranker: Ranker  # fitted on everything
    held: HeldOutFigures
    judged: tuple[tuple[Gathered, Ranker], ...]


def tune(gathered: Sequence[Gathered], aims: Aims, says: Says = lambda _step, _done, _whole: None) -> Tuned:
    """ValueError when there are fewer than two conversations, or nothing to learn from."""
    names = {one.conversation for one in gathered}
    if len(names) < 2:  # noqa: PLR2004 - one to fit on, another to judge by
        raise ValueError("cross-validation needs two conversations or more")
    held: list[tuple[Gathered, Ranker]] = []
    parts = folds(names)
    for at, part in enumerate(parts):
        says("held out", at, len(parts) + 1)
        fitted = make_ranker([one for one in gathered if part.isdisjoint(_conversations_of(one))], aims)
        held += [(one, fitted) for one in gathered if _asked_of(one) in part]
    says("held out", len(parts), len(parts) + 1)
    ranker = make_ranker(gathered, aims)
    says("held out", len(parts) + 1, len(parts) + 1)
    return Tuned(ranker, figures_of(held, aims), tuple(held))


def figures_of(judged: Sequence[tuple[Gathered, Ranker]], aims: Aims) -> HeldOutFigures:
    """How the questions fare, each with the ranker that stands beside it."""
    kept = [(one, ranker) for one, ranker in judged if one.question.counts and one.names is Names.KEPT]
    scored = [(one, _score(one, ranker.features).scores) for one, ranker in kept]
    chosen = [(one, passing(one, ranker, aims)) for one, ranker in kept]
    without = [one.recall(aims.limit, scores) for one, scores in scored]
    hits = [float(one.answers[at]) for one, places in chosen for at in places]
    silent: dict[bool, list[float]] = {True: [], False: []}
    for one, ranker in judged:
        if not one.question.relevant:
            silent[one.names is Names.SWAPPED].append(float(not len(passing(one, ranker, aims))))
    return HeldOutFigures(
        recall=judged_by(scored),
        abstention=mean(silent[False]),
        abstention_swapped=mean(silent[True]),
        loss=(mean(without) or 0.0) - (mean([_share_covered(one, places) for one, places in chosen]) or 0.0),
        precision=mean(hits),
    )


def passing(one: Gathered, ranker: Ranker, aims: Aims) -> npt.NDArray[np.int64]:
    """Which candidates would be injected, best first."""
    return _passing(_score(one, ranker.features), ranker.worth, ranker.relevance, aims)


def _passing(scored: _Scored, worth: Worth, relevance: Relevance, aims: Aims) -> npt.NDArray[np.int64]:
    relevant = relevances(relevance, worth_of(worth, scored.measured), scored.one.candidates, scored.scores)
    order = np.argsort(-scored.scores, kind="stable")[: aims.limit]
    found: npt.NDArray[np.int64] = order[relevant[order] >= aims.threshold]
    return found


def _share_covered(one: Gathered, places: Iterable[int]) -> float:
    found = {id_ for at in places for id_ in one.covers[at]}
    return len(found & one.question.relevant) / len(one.question.relevant)


def folds(names: Iterable[str]) -> list[frozenset[str]]:
    """Split conversations for cross-validation into at most FOLDS parts, deterministically."""
    ordered = sorted(names)
    return [frozenset(ordered[at::FOLDS]) for at in range(min(FOLDS, len(ordered)))]


def _asked_of(one: Gathered) -> str:
    """The conversation whose memories are asked."""
    memories = one.candidates.memories
    return memories[0].owner.user if memories else one.conversation


def _conversations_of(one: Gathered) -> set[str]:
    """Whose words it consists of."""
    return {one.conversation, _asked_of(one)}


def make_ranker(gathered: Sequence[Gathered], aims: Aims) -> Ranker:
    """A ranker fitted on all of *gathered*, with nothing held out."""
    scales = scales_of(gathered)
    kept = [one for one in gathered if one.question.counts and one.names is Names.KEPT]
    features = _fit_features(kept, scales, aims)
    stacked = _scored_held_out(gathered, kept, scales, features, aims)
    worth = _worth(stacked, aims)
    return Ranker(features, worth, _relevance(stacked, worth, aims))


def scales_of(gathered: Sequence[Gathered]) -> dict[str, Feature]:
    """The usual scale of each feature, without weights yet."""
    scales = {}
    names = gathered[0].candidates.names
    for at, name in enumerate(names):
        if name in _OF_QUESTION:
            continue
        centres = np.array([one.candidates.centre[at] for one in gathered])
        spreads = np.array([one.candidates.spread[at] for one in gathered])
        known = ~np.isnan(centres)
        usual = float(centres[known].mean()) if known.any() else 0.0
        variance = float((spreads[known] ** 2 + (centres[known] - usual) ** 2).mean()) if known.any() else 1.0
        spread = max(math.sqrt(variance), _LEAST_SPREAD)
        scales[name] = Feature(0.0, round(usual, 6), round(spread, 6), own_scale=name in OWN_SCALE)
    return scales


def _fit_features(kept: Sequence[Gathered], scales: Mapping[str, Feature], aims: Aims) -> dict[str, Feature]:
    fitted = fit_ranker(examples_of(kept, scales, aims), aims.ranker_l2)
    return {
        name: Feature(round(float(weight), 5), scale.usual, scale.usual_spread, scale.own_scale)
        for (name, scale), weight in zip(scales.items(), fitted, strict=True)
    }


def examples_of(kept: Sequence[Gathered], scales: Mapping[str, Feature], aims: Aims) -> list[Example]:
    """As the ranker is fitted on them."""
    counts = Counter(one.kind for one in kept)
    return [
        Example(
            one.conversation,
            np.column_stack(list(standardise(scales, one.candidates).values())),
            one.answers,
            weight=aims.ranked[one.kind] * len(kept) / counts[one.kind],
        )
        for one in kept
        if aims.ranked[one.kind] > 0
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Scored:
    one: Gathered
    scores: Floats
    measured: Mapping[str, float]


def _scored_held_out(
    gathered: Sequence[Gathered],
    kept: Sequence[Gathered],
    scales: Mapping[str, Feature],
    whole: Mapping[str, Feature],
    aims: Aims,
) -> list[_Scored]:
    """Scores by rankers that have not seen the memories, as in use; with a single conversation, by the ranker
    fitted on it."""
    parts = folds({one.conversation for one in kept})
    rankers: dict[str, Mapping[str, Feature]] = {}
    for part in parts if len(parts) > 1 else ():
        ranker = _fit_features([one for one in kept if one.conversation not in part], scales, aims)
        rankers.update(dict.fromkeys(part, ranker))
    return [_score(one, rankers.get(_asked_of(one), whole)) for one in gathered if one.candidates.memories]


def _score(one: Gathered, features: Mapping[str, Feature]) -> _Scored:
    standardised = standardise(features, one.candidates)
    scores = scores_of(features, one.candidates)
    return _Scored(one, scores, measures(one.candidates, standardised, scores))


def _worth(stacked: Sequence[_Scored], aims: Aims) -> Worth:
    counted = [(one, _counts(one.one, aims)) for one in stacked]
    counted = [(one, weight) for one, weight in counted if weight > 0]
    rows = np.array([[one.measured[name] for name in MEASURES] for one, _ in counted])
    truth = np.array([bool(one.one.question.relevant) for one, _ in counted])
    weight = _balance_kinds([one.one for one, _ in counted], np.array([weight for _, weight in counted]), aims)
    usual, spread = rows.mean(axis=0), np.maximum(rows.std(axis=0), _LEAST_SPREAD)
    fitted = fit_logistic((rows - usual) / spread, truth, aims.worth_l2, weight)
    weights = fitted.weights / spread
    bias = fitted.bias - float(weights @ usual)
    strangers = [one for one in stacked if not one.one.question.relevant and one.one.names is not Names.SWAPPED]
    moved, slopes = _shift(Logistic(weights, bias), strangers, aims)
    bias += moved
    for name, slope in slopes.items():
        weights[MEASURES.index(name)] += slope
    named = dict(zip(MEASURES, (round(float(value), 5) for value in weights), strict=True))
    return Worth(round(bias, 5), {name: value for name, value in named.items() if value})


def _balance_kinds(asked: Sequence[Gathered], weight: Floats, aims: Aims) -> Floats:
    """Rescale *weight* so that each kind of store counts as the aims say, half for answerable and half for
    unanswerable questions."""
    kinds = np.array([f"{one.kind}{bool(one.question.relevant)}" for one in asked])
    shares = np.array([aims.gated[one.kind] for one in asked])
    totals = {kind: weight[kinds == kind].sum() for kind in set(kinds.tolist())}
    found: Floats = weight * shares / np.array([totals[kind] for kind in kinds.tolist()])
    found *= len(found) / found.sum()
    return found


def _shift(fitted: Logistic, strangers: Sequence[_Scored], aims: Aims) -> tuple[float, dict[str, float]]:
    """The shift of the bias, and of the weights of store size and length, that moves the wanted share of
    *strangers* below the threshold in each kind of store (a quantile regression: Koenker and Bassett 1978).
    Similar stores teach nothing about other kinds."""
    rows = np.array([[one.measured[name] for name in MEASURES] for one in strangers])
    odds = rows @ fitted.weights + fitted.bias
    wanted = np.array([aims.target_abstention(one.one.kind) for one in strangers])
    counts = Counter(one.one.kind for one in strangers)
    weight = np.array([max(aims.gated[one.one.kind], _LEAST_SPREAD) / counts[one.one.kind] for one in strangers])
    by_store = [rows[:, MEASURES.index(name)] for name in (SIZE, LENGTH)]
    tried = [_SLOPES_BY_STORE if float(one.std()) > _LEAST_SIZES else (0.0,) for one in by_store]
    least, best = math.inf, (0.0, 0.0, 0.0)
    for of_size, of_length in product(*tried):
        rest = odds - of_size * by_store[0] - of_length * by_store[1]
        order = np.argsort(rest)
        reached = np.searchsorted(np.cumsum(weight[order]), float(weight @ wanted))
        quantile = float(rest[order[min(int(reached), len(order) - 1)]])
        above = rest - quantile
        loss = float(weight @ np.where(above > 0.0, wanted * above, (wanted - 1.0) * above))
        if loss < least:
            least, best = loss, (quantile, of_size, of_length)
    return math.log(aims.threshold / (1.0 - aims.threshold)) - best[0], {SIZE: -best[1], LENGTH: -best[2]}


def _counts(one: Gathered, aims: Aims) -> float:
    """How much a question counts in learning whether anything helps, beside others of its kind."""
    if aims.gated[one.kind] <= 0:
        return 0.0
    if one.names is Names.SWAPPED:
        return aims.swapped
    if one.names is Names.KEPT:
        return 1.0
    return aims.neutral if one.question.relevant else aims.foreign


def _relevance(stacked: Sequence[_Scored], worth: Worth, aims: Aims) -> Relevance:
    """The strictest judging of single memories that costs no more than the aims allow, of talk and of notes."""
    kept = [one for one in stacked if one.one.question.counts and one.one.names is Names.KEPT]
    kinds = [some for kind in StoreKind if (some := [one for one in kept if one.one.kind is kind])]
    best = Relevance(slope=0.0, enough=0.0, weights=_soundness(kept, aims))
    least: list[float] = []
    fewest = math.inf
    chosen = [_Chosen.of(some, worth, best.weights, aims) for some in kinds]
    for some, first in zip(kinds, chosen, strict=True):
        gate_alone, _ = first.kept_by(best, aims)
        whole = mean([one.one.recall(aims.limit, one.scores) for one in some]) or 0.0
        if some[0].one.kind is not StoreKind.NOTES:
            least.append(min(whole - aims.loss, gate_alone - aims.selection))
        else:
            least.append(gate_alone - aims.selection_notes)
    for enough in _ENOUGH:
        for slope in _SLOPES:
            tried = Relevance(slope, enough, best.weights)
            found = [first.kept_by(tried, aims) for first in chosen]
            memories = sum(count for _, count in found)
            if memories < fewest and all(recall >= most for (recall, _), most in zip(found, least, strict=True)):
                best, fewest = tried, memories
    return best


def _soundness(kept: Sequence[_Scored], aims: Aims) -> dict[str, float]:
    """The weights of a memory's own features in points of score, from the probability that one of the first
    candidates answers."""
    named = [name for name in _OF_MEMORY if name in kept[0].one.candidates.names]
    asked = Counter(one.one.kind for one in kept)
    rows, truth, counts = [], [], []
    for one in kept:
        first = np.argsort(-one.scores, kind="stable")[:_LOOKED_AT]
        found = one.one.candidates
        places = np.array([found.names.index(name) for name in named], dtype=np.int64)
        own = np.nan_to_num(found.features[first][:, places])
        rows.append(np.column_stack([one.scores[first] - one.scores.max(), own]))
        truth.append(one.one.answers[first])
        counts += [aims.gated[one.one.kind] * len(kept) / asked[one.one.kind]] * len(first)
    fitted = fit_logistic(np.concatenate(rows), np.concatenate(truth), aims.worth_l2, np.array(counts))
    point = max(float(fitted.weights[0]), _LEAST_SPREAD)
    return {
        name: round((min if name == ANOTHER else max)(0.0, float(weight)) / point, 4)
        for name, weight in zip(named, fitted.weights[1:], strict=True)
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Chosen:
    """The first candidates of each question, up to the limit, as arrays: the same for every relevance tried."""

    odds: Floats  # (questions, 1), of the question's worth
    sound: Floats  # (questions, limit); minus infinity where there is no candidate
    evidence: npt.NDArray[np.bool_]  # (questions, limit, pieces): which pieces a candidate holds
    pieces: Floats  # (questions,), of evidence there is

    @classmethod
    def of(cls, kept: Sequence[_Scored], worth: Worth, weights: Mapping[str, float], aims: Aims) -> _Chosen:
        most = max(len(one.one.question.relevant) for one in kept)
        odds, sound = np.empty((len(kept), 1)), np.full((len(kept), aims.limit), -np.inf)
        evidence = np.zeros((len(kept), aims.limit, most), dtype=bool)
        for row, one in enumerate(kept):
            odds[row] = odds_of(worth_of(worth, one.measured))
            order = np.argsort(-one.scores, kind="stable")[: aims.limit]
            sound[row, : len(order)] = soundness(weights, one.one.candidates, one.scores)[order]
            number = {id_: at for at, id_ in enumerate(sorted(one.one.question.relevant))}
            for place, at in enumerate(order.tolist()):
                evidence[row, place, [number[id_] for id_ in one.one.covers[at] if id_ in number]] = True
        pieces = np.array([float(len(one.one.question.relevant)) for one in kept])
        return cls(odds, sound, evidence, pieces)

    def kept_by(self, relevance: Relevance, aims: Aims) -> tuple[float, float]:
        """Evidence recall of the injected memories, and their number for each question."""
        there = np.isfinite(self.sound)
        lacks = np.maximum(0.0, relevance.enough - np.where(there, self.sound, 0.0)) * relevance.slope
        passes = there & (1.0 / (1.0 + np.exp(np.minimum(lacks - self.odds, 50.0))) >= aims.threshold)
        covered = (self.evidence & passes[:, :, None]).any(axis=1).sum(axis=1) / self.pieces
        return float(covered.mean()), float(passes.sum(axis=1).mean())


_FEWEST = 2  # conversations: one to fit on, another to judge by
_FEW = "_few"  # ends the names of rankers for stores of few memories
PROJECTED = "projected"  # the kind of rankers for questions under `recall.late_interaction.QuestionProjection`
AMONG_MANY = Aims()
# Notes teach the weights of small stores, and no loss in long talk or chats binds them.
_SMALL = {StoreKind.TALK: 0.05, StoreKind.CHAT: 0.05, StoreKind.NOTES: 1.0}
AMONG_FEW = Aims(abstention=0.93, loss=0.3, selection=0.2, ranker_l2=0.05, ranked=_SMALL, gated=_SMALL)


@dataclass(frozen=True, slots=True)
class Fitted:
    """*said*: the figures with their spread over the conversations. "after" is held out. "before" is the
    packaged weights: if these were fitted on the same conversations ("before_fitted_on"), the two rows do not
    compare."""

    weights: Weights
    said: dict[str, Any]


async def fitted_weights(
    dataset: Dataset,
    bench: Bench,
    *,
    features: bool,
    words: bool = True,
    says: Says = lambda _step, _done, _whole: None,
) -> Fitted:
    """PermanentError if *dataset* is too small. *features*: also leave each feature out in turn. *words*: fit
    the word rankers too; the packaged ones serve beside any model."""
    before = packaged_weights(bench.embedder.fingerprint)
    said: dict[str, Any] = {
        "dataset": dataset.name,
        "conversations": len(dataset.conversations),
        "before_fitted_on": before.fitted_on,
    }
    rankers: dict[str, Ranker] = {}
    gathered: Sequence[Gathered] = ()
    projection = packaged_projection(bench.embedder.fingerprint)
    closely = () if close_reader(bench) is None else ("close",) if projection is None else ("close", PROJECTED)
    kinds = (*(("lexical",) if words else ()), "hybrid", *closely)
    async with learn_all(dataset, bench, says) as stage:
        for kind in kinds:
            first = rankers["hybrid"] if kind in closely else None
            these = await gather(
                stage,
                bench,
                dense=kind != "lexical",
                closely=first,
                projection=projection if kind == PROJECTED else None,
                says=_prefix_steps(kind, says),
            )
            found, figures = fit_rankers(kind, these, before, says)
            if found and kind != PROJECTED:  # features are left out of a ranker for large stores
                gathered = these
            rankers |= found
            said |= figures
    if features:
        said["features"] = _features(gathered, AMONG_MANY, says)
    fitted_on = f"{dataset.name}: {len(dataset.conversations)} conversations, {dataset.questions} questions"
    known = bench.embedder.fingerprint in before.embedding_models
    # Rankers that could not be fitted stay as they were, if they belong to this model.
    stay = {name: getattr(before, name) if known else None for name in ("close", "close_few", f"{PROJECTED}{_FEW}")}
    stay |= {name: getattr(before, name) for name in ("lexical", "lexical_few")}
    kept: dict[str, Any] = {**stay, **rankers}
    weights = Weights(VERSION, (bench.embedder.fingerprint,), fitted_on, **kept)
    return Fitted(weights, said)


def fit_rankers(
    kind: str, gathered: Sequence[Gathered], before: Weights, says: Says = lambda _step, _done, _whole: None
) -> tuple[dict[str, Ranker], dict[str, Any]]:
    """The rankers of *kind* with their figures: for large and small stores, of projected questions for small ones
    alone. Empty where too few questions were read closely."""
    if kind in {"close", PROJECTED}:
        gathered = [one for one in gathered if CLOSELY in one.candidates.names]
        if kind == PROJECTED:
            gathered = [one for one in gathered if one.candidates.projected]
        if len({one.conversation for one in gathered}) < _FEWEST:
            return {}, {}
    sizes = [(f"{kind}{_FEW}", AMONG_FEW)]
    if kind != PROJECTED:
        sizes.insert(0, (kind, AMONG_MANY))
    rankers, said = {}, dict[str, Any]()
    for name, aims in sizes:
        tuned = _tune(gathered, aims, _prefix_steps(name, says))
        rankers[name] = tuned.ranker
        now = _of_before(before, name)
        said[name] = _compare(figures_of([(one, now) for one in gathered], aims), tuned.held)
        # For sets of different kinds, figures per kind say more than the mixture.
        said[name]["kinds"] = {
            of.value: _row(figures_of(some, aims))
            for of in StoreKind
            if (some := [(one, ranker) for one, ranker in tuned.judged if one.kind is of])
        }
    return rankers, said


def _of_before(before: Weights, name: str) -> Ranker:
    """The previous ranker for *name*."""
    found: Ranker | None = getattr(before, name) or getattr(before, name.removesuffix(_FEW), before.close_few)
    return found or before.hybrid


def write_weights(path: Path, weights: Weights) -> None:
    """PermanentError when that cannot be done."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(weights), indent=1) + b"\n")
    except OSError as error:
        raise PermanentError(f"{path}: cannot be written: {error.strerror}") from error


def _tune(gathered: Sequence[Gathered], aims: Aims, says: Says) -> Tuned:
    try:
        return tune(gathered, aims, says)
    except ValueError as error:
        raise PermanentError(f"nothing can be fitted on this data: {error}") from error


def _compare(before: HeldOutFigures, after: HeldOutFigures) -> dict[str, Any]:
    return {
        "before": _row(before),
        "after": _row(after),
        "spread": {f"recall@{k}": round(after.recall.spread(k), 4) for k in DEPTHS},
        "by_conversation": {
            name: {f"recall@{k}": round(found[k], 4) for k in DEPTHS}
            for name, found in after.recall.by_conversation.items()
        },
    }


def _row(held: HeldOutFigures) -> Mapping[str, float | None]:
    row = {f"recall@{k}": held.recall.recall[k] for k in DEPTHS}
    others = {
        "abstention": held.abstention,
        "abstention_swapped": held.abstention_swapped,
        "loss": held.loss,
        "precision": held.precision,
    }
    return {name: None if value is None else round(value, 4) for name, value in {**row, **others}.items()}


def _features(gathered: Sequence[Gathered], aims: Aims, says: Says) -> list[dict[str, str | float]]:
    kept = [one for one in gathered if one.question.counts and one.names is Names.KEPT]
    examples = examples_of(kept, scales_of(gathered), aims)
    return ablation(kept, examples, tuple(scales_of(gathered)), aims.ranker_l2, says=says)


def _prefix_steps(name: str, says: Says) -> Says:
    return lambda step, done, whole: says(f"{name}: {step}", done, whole)
