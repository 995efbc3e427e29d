"""From data sets to a file of weights: both rankers, and how they fare beside those of before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from memory_extproc.errors import GiveUpError
from memory_extproc.evaluation.cases import Dataset
from memory_extproc.evaluation.foreign import Names
from memory_extproc.evaluation.gathering import Gathered, close_reader, gather
from memory_extproc.evaluation.running import Bench, Says
from memory_extproc.evaluation.tuning import Aims, Held, Tuned, examples_of, figures_of, scales_of, tune
from memory_extproc.evaluation.validating import DEPTHS, ablation
from memory_extproc.index.features import CLOSELY
from memory_extproc.recall.weights import VERSION, Ranker, Weights, packaged_weights

_FEWEST = 2  # conversations: one to fit on, one to judge by
_FEW = "_few"  # ends the names of rankers for stores of few memories
AMONG_MANY = Aims(notes=0.6, notes_ranked=0.05)  # of what is for long conversations, notes teach little
AMONG_FEW = Aims(selection_notes=0.05, notes_ranked=1.0)  # and much of what is for small stores


@dataclass(frozen=True, slots=True)
class Fitted:
    """*said*: the figures with their spread over the conversations. "after" is held out. "before" is what the
    packaged weights do: where they were fitted on the same conversations ("before_fitted_on"), they have seen
    them, and the two rows do not compare."""

    weights: Weights
    said: dict[str, Any]


async def fitted_weights(
    dataset: Dataset, bench: Bench, *, features: bool, says: Says = lambda _step, _done, _whole: None
) -> Fitted:
    """GiveUpError when *dataset* has too little to fit on. *features*: also leave each feature out in turn."""
    aims, before = Aims(), packaged_weights()
    said: dict[str, Any] = {
        "dataset": dataset.name,
        "conversations": len(dataset.conversations),
        "before_fitted_on": before.fitted_on,
    }
    rankers: dict[str, Ranker] = {}
    last: Sequence[Gathered] = ()
    kinds = ("lexical", "hybrid", "close") if close_reader(bench) is not None else ("lexical", "hybrid")
    for name in [ranker for kind in kinds for ranker in (kind, f"{kind}{_FEW}")]:
        dense, closely, few = not name.startswith("lexical"), name.startswith("close"), name.endswith(_FEW)
        if not few:  # those have the same to learn from, and take what notes teach for more
            gathered = await gather(dataset, bench, dense=dense, closely=closely, says=_named(name, says))
        if closely:
            # Where nothing was read closely there is nothing to teach these rankers.
            gathered = [one for one in gathered if CLOSELY in one.candidates.names]
            if len({one.conversation for one in gathered}) < _FEWEST:
                continue
        wanted = AMONG_MANY if not few else AMONG_FEW if closely else aims
        tuned = _tuned(gathered, wanted, _named(name, says))
        rankers[name] = tuned.ranker
        now = _of_before(before, name)
        said[name] = _compared(figures_of([(one, now) for one in gathered], aims), tuned.held)
        # Of sets of unlike kind taken together the figures are a mixture: each kind by itself says more.
        said[name]["kinds"] = {
            kind: _row(figures_of([(one, ranker) for one, ranker in tuned.judged if one.talk is talk], aims))
            for kind, talk in (("conversations", True), ("notes", False))
            if any(one.talk is talk for one in gathered)
        }
        last = gathered
    if features:
        said["features"] = _features(last, aims, says)
    fitted_on = f"{dataset.name}: {len(dataset.conversations)} conversations, {dataset.questions} questions"
    known = bench.embedder.fingerprint in before.embedding_models
    # What could not be fitted stays as it was, where it belongs to this model.
    stay = {name: getattr(before, name) if known else None for name in ("close", "close_few")}
    kept: dict[str, Any] = {**stay, **rankers}
    weights = Weights(VERSION, (bench.embedder.fingerprint,), fitted_on, **kept)
    return Fitted(weights, said)


def _of_before(before: Weights, name: str) -> Ranker:
    """What stood in the place of the ranker *name*."""
    found: Ranker | None = getattr(before, name) or getattr(before, name.removesuffix(_FEW))
    return found or before.hybrid


def write_weights(path: Path, weights: Weights) -> None:
    """GiveUpError when that cannot be done."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(weights), indent=1) + b"\n")
    except OSError as error:
        raise GiveUpError(f"{path}: cannot be written: {error.strerror}") from error


def _tuned(gathered: Sequence[Gathered], aims: Aims, says: Says) -> Tuned:
    try:
        return tune(gathered, aims, says)
    except ValueError as error:
        raise GiveUpError(f"nothing can be fitted on this data: {error}") from error


def _compared(before: Held, after: Held) -> dict[str, Any]:
    return {
        "before": _row(before),
        "after": _row(after),
        "spread": {f"recall@{k}": round(after.recall.spread(k), 4) for k in DEPTHS},
        "by_conversation": {
            name: {f"recall@{k}": round(found[k], 4) for k in DEPTHS}
            for name, found in after.recall.by_conversation.items()
        },
    }


def _row(held: Held) -> Mapping[str, float | None]:
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
    return ablation(kept, examples, gathered[0].candidates.names, aims.ranker_l2, says=says)


def _named(name: str, says: Says) -> Says:
    return lambda step, done, whole: says(f"{name}: {step}", done, whole)
