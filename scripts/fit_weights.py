"""Fits the packaged weights of an embedding model in one run: what belongs to its vectors, and nothing else.

    python -m scripts.fit_weights --model memory-minilm --talk talk-0.json --talk small-0.json \
        --pieces pieces-0.jsonl --notes people-0.jsonl --notes everyday-101.jsonl --chats chats-0.jsonl \
        --intents tests/quality/intents --out memory_extproc/recall/fitted/memory-minilm.json

docs/evaluation.md says how the sets are made. Weights for words alone are those of the usual model.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from memory_extproc.evaluation.bench import bench
from memory_extproc.evaluation.by_intent import fit_kinds, read_intent_set
from memory_extproc.evaluation.datasets import Dataset, read_dataset
from memory_extproc.evaluation.fitting import AMONG_FEW, AMONG_MANY, make_ranker, write_weights
from memory_extproc.evaluation.runner import Bounds
from memory_extproc.evaluation.training import Gathered, gather, learn_all
from memory_extproc.index.features import CLOSELY
from memory_extproc.recall.fusion import Weights, packaged_weights
from memory_extproc.settings import Settings

OF_CHATS = replace(AMONG_MANY, abstention=0.905)
# Of small stores the vectors of memory-minilm let pass more for unseen people than in the fit.
OF_FEW = replace(AMONG_FEW, abstention=0.965)
FACTS, PEOPLE = 3, 4  # of so many questions about a fact, and of made-up people, one counts beside chats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", required=True)
    parser.add_argument("--models-dir", type=Path, default=Path("models"))
    for name in ("talk", "pieces", "notes", "chats"):
        parser.add_argument(f"--{name}", type=Path, action="append", required=True)
    parser.add_argument("--intents", type=Path, help="set of questions by kind, for the gate of each kind")
    parser.add_argument("--fitted-on", default="", help="what stands in the file")
    parser.add_argument("--out", type=Path, required=True)
    asyncio.run(fit(parser.parse_args()))


async def fit(given: argparse.Namespace) -> None:
    embedding = {"model": given.model, "models_dir": str(given.models_dir)}
    settings = Settings.model_validate({"memory": {"embedding": embedding}})
    sets = {name: _join(name, getattr(given, name)) for name in ("talk", "pieces", "notes", "chats")}
    names = {name: {one.name for one in dataset.conversations} for name, dataset in sets.items()}
    whole = Dataset("all", tuple(one for dataset in sets.values() for one in dataset.conversations))
    usual = packaged_weights()
    async with bench(settings) as made, learn_all(whole, made) as stage:
        fingerprint = made.embedder.fingerprint
        _say("learned")
        small_talk = {name for name in names["talk"] if not name.startswith("talk")}
        found = await gather(stage, made)
        _say(f"{len(found)} questions gathered")
        beside = _within(found, names["talk"] | names["pieces"] | names["notes"])
        first = make_ranker(beside, AMONG_MANY)
        rankers = {"hybrid_few": make_ranker(beside, OF_FEW)}
        rankers["hybrid"] = make_ranker(
            _thin(_within(found, (names["talk"] - small_talk) | names["notes"] | names["chats"])), OF_CHATS
        )
        _say("hybrid fitted")
        left = {name: one for name, one in stage.items() if name not in names["chats"]}
        read = [one for one in await gather(left, made, closely=first) if CLOSELY in one.candidates.names]
        _say(f"{len(read)} questions read word by word")
        rankers["close_few"] = make_ranker(read, OF_FEW)
        rankers["close"] = make_ranker(_within(read, names["talk"] | names["notes"]), AMONG_MANY)
    weights = msgspec.structs.replace(
        usual, embedding_models=(fingerprint,), fitted_on=given.fitted_on, kinds={}, **rankers
    )
    write_weights(given.out, weights)
    _say("close fitted")
    if given.intents:
        write_weights(given.out, await _with_kinds(weights, given.intents, settings))


async def _with_kinds(weights: Weights, intents: Path, settings: Settings) -> Weights:
    memory = settings.memory
    bounds = Bounds(memory.default_similarity_threshold, memory.default_retrieval_limit)
    async with bench(settings, topics=True, unbounded=True) as made:
        kinds = await fit_kinds(read_intent_set(intents), weights, made, bounds)
    return msgspec.structs.replace(weights, kinds={one.kind: one.chosen for one in kinds if one.chosen})


def _join(name: str, paths: Sequence[Path]) -> Dataset:
    """The conversations of *paths*, each named after its file."""
    found = [(path, one) for path in paths for one in read_dataset(path).conversations]
    return Dataset(name, tuple(replace(one, name=f"{path.stem}:{one.name}") for path, one in found))


def _within(gathered: Sequence[Gathered], names: Collection[str]) -> list[Gathered]:
    """Questions of these conversations to the memories of these."""
    return [
        one
        for one in gathered
        if one.conversation in names and all(memory.owner.user in names for memory in one.candidates.memories[:1])
    ]


def _thin(gathered: Sequence[Gathered]) -> list[Gathered]:
    counts = {"fact": 0, "people": 0}
    kept = []
    for one in gathered:
        kind = (
            "fact" if one.question.category == "fact" else "people" if one.conversation.startswith("people") else ""
        )
        if kind:
            counts[kind] += 1
            if counts[kind] % (FACTS if kind == "fact" else PEOPLE):
                continue
        kept.append(one)
    return kept


def _say(step: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {step}\n")


if __name__ == "__main__":
    main()
