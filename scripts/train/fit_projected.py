"""Fits the packaged ranker for questions whose words were projected, after `scripts/train/projection.py`.

    python -m scripts.train.chats scripts/train/conversations/weights.txt --out plain.jsonl
    python -m scripts.train.fit_projected --notes pieces.jsonl --notes everyday-101.jsonl --notes everyday-202.jsonl \
        --plain plain.jsonl --out memory_extproc/recall/fitted/all-MiniLM-L6-v2.json

docs/evaluation.md says how the sets are made. Everything else in the file stays as packaged.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from memory_extproc.evaluation.bench import bench
from memory_extproc.evaluation.datasets import Dataset, read_dataset
from memory_extproc.evaluation.fitting import AMONG_FEW, make_ranker, write_weights
from memory_extproc.evaluation.training import Gathered, gather, learn_all
from memory_extproc.recall.fusion import SIZE, Ranker, Worth, packaged_weights
from memory_extproc.recall.late_interaction import packaged_projection
from memory_extproc.settings import Settings

AIMS = replace(AMONG_FEW, abstention=0.955)
# Moves of the gate by hand, as of `close_few`: laxer below twenty memories, stricter above.
BIAS, STORE_SIZE = 0.6, -0.2
PLAIN = 4  # of so many questions of plain chats one counts, because the precision of notes fell with more


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--models-dir", type=Path, default=Path("models"))
    for name in ("notes", "plain"):
        parser.add_argument(f"--{name}", type=Path, action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    asyncio.run(fit(parser.parse_args(arguments)))


async def fit(given: argparse.Namespace) -> None:
    settings = Settings.model_validate(
        {"memory": {"embedding": {"model": given.model, "models_dir": str(given.models_dir)}}}
    )
    async with bench(settings) as made:
        before = packaged_weights(made.embedder.fingerprint)
        projection = packaged_projection(made.embedder.fingerprint)
        if projection is None or before.close_few is None:
            sys.exit(f"{given.model}: there is no projection for this model; scripts/train/projection.py makes one")
        found: dict[str, list[Gathered]] = {}
        for name in ("notes", "plain"):
            found[name] = []
            for path in getattr(given, name):
                dataset = read_dataset(path)
                # Named after the file: the same people may stand in another one.
                named = tuple(replace(one, name=f"{path.stem}:{one.name}") for one in dataset.conversations)
                async with learn_all(Dataset(path.stem, named), made) as stage:
                    read = await gather(stage, made, closely=before.hybrid, projection=projection)
                found[name] += [one for one in read if one.candidates.projected]
        gathered = found["notes"] + found["plain"][::PLAIN]
        ranker = make_ranker(gathered, AIMS)
    weights = {**ranker.worth.weights, SIZE: ranker.worth.weights.get(SIZE, 0.0) + STORE_SIZE}
    # How lines are chosen was measured on what people are given, so it stays.
    ranker = Ranker(ranker.features, Worth(ranker.worth.bias + BIAS, weights), before.close_few.relevance)
    write_weights(given.out, msgspec.structs.replace(before, projected_few=ranker))
    print(f"{len(gathered)} questions")


if __name__ == "__main__":
    main()
