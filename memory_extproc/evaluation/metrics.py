"""Compute the figures of the table, the sweep and the report from a system's answers. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from memory_extproc.errors import ConfigurationError
from memory_extproc.evaluation.datasets import Names, QuestionCategory
from memory_extproc.evaluation.runner import Bounds, EvaluatedAnswer, EvaluatedQuestion, Run, System
from memory_extproc.model import Memory
from memory_extproc.ports import EmbeddingModel
from memory_extproc.settings.memory import Topics
from memory_extproc.topics.state import embed_turns, shifts

DEPTHS = (5, 10, 20)
THRESHOLDS = tuple(at / 20 for at in range(21))
NEUTRALISED = frozenset({Names.FIRST_PERSON, Names.NEUTRAL})  # the questions of the abstention figure
_DIGITS = 4
_DRAWS, _SEED, _BOUNDS = 1_000, 7, (0.025, 0.975)  # of the bootstrap

Figures = dict[str, Any]


def figures(run: Run) -> Figures:
    """As `--json` prints them: recall of the answerable questions at the top, the rest below. Shares are 0 to 1,
    times are milliseconds; null: there was nothing to measure it by."""
    home = [one for one in run.asked if one.names is None]
    counted = [one for one in home if one.question.counts]
    groups: dict[str, list[EvaluatedQuestion]] = defaultdict(list)
    for one in home:
        if one.question.relevant:
            groups[one.question.category or QuestionCategory.SINGLE_HOP].append(one)
    found: Figures = {
        **_retrieval(counted),
        "dataset": run.dataset,
        "system": run.system.value,
        "embedding_model": run.embed_model,
        "questions": len(counted),
        "by_category": {name: _retrieval(groups[name]) for name in sorted(groups)},
        "paths": _paths(run.asked),
        "abstention": _abstention(run.asked, run.bounds),
        "injection": {**_injection(counted, run.bounds), "unwanted": _forbidden_share(home)},
        "learned": _count_learned(run),
        "latency_ms": _latency(home, lexical=run.system is System.LEXICAL),
        "sweep": sweep(run),
    }
    return {key: _round_values(value) for key, value in found.items()}


def sweep(run: Run) -> list[Figures]:
    """The figures at each threshold from 0 to 1, at the limit of *run*, from the same answers."""
    counted = [one for one in run.asked if one.names is None and one.question.counts]
    strangers = [one for one in run.asked if unanswerable(one)]
    return [_measure_at(counted, strangers, Bounds(threshold, run.bounds.limit)) for threshold in THRESHOLDS]


def unanswerable(one: EvaluatedQuestion) -> bool:
    """Whether no memory answers: a foreign question under neutral names, or a question marked as unanswerable. A
    question of LoCoMo without evidence has an answer all the same."""
    if one.names is not None:
        return one.names in NEUTRALISED
    return not one.question.relevant and not one.played.conversation.speakers


def passing(answer: EvaluatedAnswer, bounds: Bounds) -> list[Memory]:
    """The memories injected within *bounds*, in order, ignoring the block's tokens."""
    relevant = (one.memory for one in answer.ranked if one.relevance >= bounds.threshold)
    return [memory for memory, _ in zip(relevant, range(bounds.limit), strict=False)]


def _paths(asked: Sequence[EvaluatedQuestion]) -> Figures:
    """The share of all questions that was answered on each path, or why there was no answer."""
    counts = Counter(one.answer.path or one.answer.outcome.value for one in asked)
    return {path: count / len(asked) for path, count in sorted(counts.items())}


def _retrieval(asked: Sequence[EvaluatedQuestion]) -> Figures:
    found = [
        (positions(one.played.covers(c.memory) for c in one.answer.ranked), one.question.relevant) for one in asked
    ]
    figures: Figures = {f"recall@{k}": mean([recall_at(k, at, of) for at, of in found]) for k in DEPTHS}
    figures |= {f"ndcg@{k}": mean([ndcg_at(k, at, of) for at, of in found]) for k in DEPTHS}
    figures["mrr"] = mean([reciprocal_rank(at, of) for at, of in found])
    intervals = {f"recall@{k}": interval([recall_at(k, at, of) for at, of in found]) for k in DEPTHS}
    return {**figures, "intervals": intervals, "questions": len(asked)}


def _abstention(asked: Sequence[EvaluatedQuestion], bounds: Bounds) -> Figures:
    """The share of unanswerable questions without injection, by treatment of names."""
    by_names: dict[str, list[float]] = defaultdict(list)
    abstained = []
    for one in asked:
        silent = float(not one.answer.injected)
        if one.names is not None:
            by_names[one.names].append(silent)
        if unanswerable(one):
            abstained.append(silent)
    return {
        "share": mean(abstained),
        "questions": len(abstained),
        "threshold": bounds.threshold,
        "by_names": {names: mean(values) for names, values in sorted(by_names.items())},
    }


def _injection(asked: Sequence[EvaluatedQuestion], bounds: Bounds) -> Figures:
    """The content of the blocks, as the recaller made them."""
    chosen = [(one, one.answer.injected) for one in asked]
    with_limit = [covered_share(one, passing(one.answer, Bounds(0.0, bounds.limit))) for one in asked]
    at_threshold = [covered_share(one, memories) for one, memories in chosen]
    hits = [float(_helps(one, memory)) for one, memories in chosen for memory in memories]
    without, with_ = mean(with_limit), mean(at_threshold)
    return {
        "threshold": bounds.threshold,
        "limit": bounds.limit,
        "recall": with_,
        "recall_without_threshold": without,
        "loss": without - with_ if without is not None and with_ is not None else None,
        "precision": mean(hits),
        "memories": mean([float(len(memories)) for _, memories in chosen]),
        "questions_with_any": mean([float(bool(memories)) for _, memories in chosen]),
    }


def _forbidden_share(asked: Sequence[EvaluatedQuestion]) -> float | None:
    """The share of questions with forbidden memories for which such a memory was injected."""
    named = [one for one in asked if one.question.unwanted]
    got = [{id_ for memory in one.answer.injected for id_ in one.played.covers(memory)} for one in named]
    return mean([float(not ids.isdisjoint(one.question.unwanted)) for ids, one in zip(got, named, strict=True)])


def _measure_at(
    counted: Sequence[EvaluatedQuestion], strangers: Sequence[EvaluatedQuestion], bounds: Bounds
) -> Figures:
    chosen = [(one, passing(one.answer, bounds)) for one in counted]
    return {
        "threshold": bounds.threshold,
        "recall": mean([covered_share(one, memories) for one, memories in chosen]),
        "precision": mean([float(_helps(one, memory)) for one, memories in chosen for memory in memories]),
        "abstention": mean([float(not passing(one.answer, bounds)) for one in strangers]),
        "memories": mean([float(len(memories)) for _, memories in chosen]),
    }


def covered_share(one: EvaluatedQuestion, memories: Iterable[Memory]) -> float:
    """The share of the question's evidence within *memories*."""
    found = {id_ for memory in memories for id_ in one.played.covers(memory)}
    return len(found & one.question.relevant) / len(one.question.relevant)


def _helps(one: EvaluatedQuestion, memory: Memory) -> bool:
    return not one.question.relevant.isdisjoint(one.played.covers(memory))


def _count_learned(run: Run) -> Figures:
    """Figures of the write path: no ranking finds evidence that was not stored."""
    evidence = unreachable = 0
    for there in run.played:
        covered = there.list_covered()
        for question in there.conversation.questions:
            if question.counts:
                evidence += len(question.relevant)
                unreachable += len(question.relevant - covered)
    return {
        "conversations": len(run.played),
        "messages": sum(len(one.conversation.said) for one in run.played),
        "notes": sum(len(one.conversation.noted) for one in run.played),
        "memories": sum(len(one.memories) for one in run.played),
        "evidence": evidence,
        "evidence_left_out": unreachable,
        "evidence_that_names_nothing": sum(one.conversation.skipped for one in run.played),
    }


def _latency(home: Sequence[EvaluatedQuestion], *, lexical: bool) -> Figures:
    """Seconds by stage, and the total as a multiple of embedding the query in the same run; *lexical* runs have
    no such multiple."""
    stages: dict[str, list[float]] = defaultdict(list)
    for one in home:
        for stage, seconds in one.answer.seconds.items():
            stages[stage].append(1000.0 * seconds)
    found: Figures = {
        stage: {"p50": quantile(values, 0.5), "p95": quantile(values, 0.95)}
        for stage, values in sorted(stages.items())
    }
    if not lexical and stages.get("embed") and stages.get("total"):
        embed, total = quantile(stages["embed"], 0.5), quantile(stages["total"], 0.5)
        found["total_over_embed_p50"] = total / embed if embed and total else None
    return found


def _round_values(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, Mapping):
        return {key: _round_values(inner) for key, inner in value.items()}
    return [_round_values(inner) for inner in value] if isinstance(value, list) else value


# Figures of a ranking. Pure. Positions count the data set's units (LoCoMo: turns), not memories: a memory that
# covers n of them takes n positions, also if an earlier memory covered them. It counts at its last position, so a
# memory that does not fit whole into the first k counts for nothing there.


def positions(covers: Iterable[Sequence[str]]) -> dict[str, int]:
    """Id → its first position, from 1. A memory that covers nothing takes one position."""
    found: dict[str, int] = {}
    used = 0
    for ids in covers:
        used += max(1, len(ids))
        for one in ids:
            found.setdefault(one, used)
    return found


def recall_at(k: int, found: dict[str, int], relevant: frozenset[str]) -> float:
    """The share of *relevant* within the first *k* positions, 0 to 1. *relevant* is not empty."""
    return sum(found.get(one, k + 1) <= k for one in relevant) / len(relevant)


def ndcg_at(k: int, found: dict[str, int], relevant: frozenset[str]) -> float:
    """Normalised discounted cumulative gain with gain 1 for relevant ids (Järvelin and Kekäläinen 2002): sum of
    1 / log2(1 + position) over the best possible such sum; 0 to 1."""
    gained = sum(1.0 / math.log2(1 + found[one]) for one in relevant if found.get(one, k + 1) <= k)
    best = sum(1.0 / math.log2(1 + at) for at in range(1, min(k, len(relevant)) + 1))
    return gained / best


def reciprocal_rank(found: dict[str, int], relevant: frozenset[str]) -> float:
    """1 / the position of the first that is relevant; 0 when none was found."""
    return max((1.0 / found[one] for one in relevant if one in found), default=0.0)


def mean(values: Sequence[float]) -> float | None:
    """None for an empty group, to keep it apart from a bad score."""
    return math.fsum(values) / len(values) if values else None


def interval(values: Sequence[float]) -> list[float] | None:
    """95 % of the means of *values* drawn anew with replacement (bootstrap: Efron 1979); None without values."""
    if not values:
        return None
    drawn = np.random.default_rng(_SEED).integers(0, len(values), (_DRAWS, len(values)))
    low, high = np.quantile(np.asarray(values, dtype=np.float64)[drawn].mean(axis=1), _BOUNDS)
    return [float(low), float(high)]


def sign_test(differences: Sequence[float]) -> float:
    """The probability of signs as uneven as these by chance, two-sided; 1 without a difference."""
    up, down = (sum(one * sign > 0 for one in differences) for sign in (1, -1))
    fewer, count = min(up, down), up + down
    return min(1.0, 2.0 * sum(math.comb(count, at) for at in range(fewer + 1)) / 2**count) if count else 1.0


def compare_runs(first: Run, second: Run) -> Figures:
    """The difference of *second* from *first*, question by question, by category too."""
    groups: dict[str, list[tuple[EvaluatedQuestion, EvaluatedQuestion]]] = {"all": []}
    for pair in zip(first.asked, second.asked, strict=True):
        if pair[0].names is None and pair[0].question.counts:
            groups["all"].append(pair)
            groups.setdefault(pair[0].question.category or QuestionCategory.SINGLE_HOP, []).append(pair)
    silent = [[float(not one.answer.injected) for one in run.asked if unanswerable(one)] for run in (first, second)]
    found: Figures = {name: _pairwise(pairs) for name, pairs in groups.items()}
    if silent[0]:
        found["abstention"] = {"questions": len(silent[0]), "abstention": _difference(*silent)}
    return {name: _round_values(value) for name, value in found.items()}


def _pairwise(pairs: Sequence[tuple[EvaluatedQuestion, EvaluatedQuestion]]) -> Figures:
    found: Figures = {"questions": len(pairs)}
    for k in DEPTHS:
        found[f"recall@{k}"] = _difference(
            *([_recall(k, one) for one in side] for side in zip(*pairs, strict=True))
        )
    found["injected"] = _difference(
        *([covered_share(one, one.answer.injected) for one in side] for side in zip(*pairs, strict=True))
    )
    return found


def _difference(first: Sequence[float], second: Sequence[float]) -> Figures:
    apart = [after - before for before, after in zip(first, second, strict=True)]
    return {
        "first": mean(first),
        "second": mean(second),
        "difference": mean(apart),
        "interval": interval(apart),
        "better": sum(one > 0 for one in apart),
        "worse": sum(one < 0 for one in apart),
        "p": sign_test(apart),
    }


def _recall(k: int, one: EvaluatedQuestion) -> float:
    return recall_at(k, positions(one.played.covers(c.memory) for c in one.answer.ranked), one.question.relevant)


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that *share* of *values* do not exceed (nearest rank); None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


# Accuracy of topic boundaries on sessions with marked shifts, by the measures alone.


class MarkedTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    asked: str
    answered: str = ""
    shift: bool = False  # it begins another topic than the turn before


class MarkedSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str  # the prefix before its number is its group: "fit-03", "held-out-11"
    turns: tuple[MarkedTurn, ...]


@dataclass(frozen=True, slots=True)
class SessionBoundaries:
    """Turn numbers in a session that are marked as boundaries, and that were detected."""

    session: MarkedSession
    marked: frozenset[int]
    found: frozenset[int]


_DECODER = msgspec.json.Decoder(MarkedSession)


def read_sessions(path: Path) -> list[MarkedSession]:
    """ConfigurationError names the line that is none of ours."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError([f"{path}: cannot be read: {type(error).__name__}"]) from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(_DECODER.decode(line))
        except msgspec.DecodeError as error:
            raise ConfigurationError([f"{path}: line {number}: {error}"]) from error
    return found


async def detect_boundaries(
    sessions: Iterable[MarkedSession], embedder: EmbeddingModel, section: Topics
) -> list[SessionBoundaries]:
    """By the measures that serve where no model is asked."""
    all_of_it = []
    for session in sessions:
        heard = await embed_turns(embedder, [(turn.asked, turn.answered) for turn in session.turns])
        marked = frozenset(number for number, turn in enumerate(session.turns) if turn.shift)
        all_of_it.append(SessionBoundaries(session, marked, frozenset(shifts(heard, section))))
    return all_of_it


def boundary_figures(sessions: Sequence[SessionBoundaries]) -> Mapping[str, Any]:
    """Precision, recall and F1 of the exact turns at which topics begin; by group, too."""
    groups: dict[str, list[SessionBoundaries]] = {}
    for one in sessions:
        groups.setdefault(one.session.name.rpartition("-")[0], []).append(one)
    return {**_figures(sessions), "groups": {name: _figures(group) for name, group in groups.items()}}


def _figures(sessions: Sequence[SessionBoundaries]) -> dict[str, Any]:
    right = sum(len(one.marked & one.found) for one in sessions)
    marked, found = sum(len(one.marked) for one in sessions), sum(len(one.found) for one in sessions)
    return {
        "sessions": len(sessions),
        "turns": sum(len(one.session.turns) for one in sessions),
        "shifts": marked,
        "found": found,
        "precision": round(right / found, 3) if found else None,
        "recall": round(right / marked, 3) if marked else None,
        "f1": round(2 * right / (marked + found), 3) if marked + found else None,
    }
