"""Says where the fixed cosines of the product would stand for an adapted model.

    python -m scripts.train.scales --model models/all-MiniLM-L6-v2-int8 --adapted models/memory-minilm-int8 \
        --chats chats.jsonl --facts facts.jsonl

For each constant it embeds pairs of the kind that the constant judges, in both models, and prints the cosine of the
adapted model that as many pairs exceed. The pairs are of the half that the adapter was not trained on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from memory_extproc.inference.onnx import OnnxModel
from memory_extproc.recall.examples import ASKED, EXAMPLES
from scripts.train.data import read_lines

Floats = npt.NDArray[np.float32]
INTENTS = Path("tests/quality/intents/dev.jsonl")
MOST = 1500  # texts of a kind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name in ("model", "adapted", "chats", "facts"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = parser.parse_args()
    rows, intents = read_lines(given.chats), read_lines(INTENTS)
    owners = {row["owner"] for row in rows}
    facts = _thin([row["fact"] for row in read_lines(given.facts) if row["owner"] in owners])
    turns = _thin([row["text"][:600] for row in rows if row.get("role") == "user"])
    asked = _thin([row["query"] for row in intents if "query" in row])
    said = _thin([row["text"] for row in intents if row.get("role") == "user"])
    examples = [text for _, text in (*EXAMPLES, *ASKED)]
    pairs = {
        "facts and facts: learn/conflicts.py, memory clusters": (facts, facts, (0.7, 0.9, 0.92)),
        "facts and facts: retention/reflection.py": (facts, facts, (0.45,)),
        "turns and turns: topics/state.py": (turns, turns, (0.45,)),
        "questions and examples: recall/examples.py": (asked, examples, (0.4, 0.42, 0.5)),
        "questions and statements: recall/lookup.py": (asked, said, (0.45,)),
    }
    models = OnnxModel(given.model), OnnxModel(given.adapted)
    for name, (left, right, bounds) in pairs.items():
        base, adapted = (_cosines(model, left, right) for model in models)
        found = {}
        for bound in bounds:
            share = float((base > bound).mean())
            found[bound] = round(float(np.quantile(adapted, 1 - share)), 3)
        means = [round(float(one.mean()), 3) for one in (base, adapted)]
        spreads = [round(float(one.std()), 3) for one in (base, adapted)]
        print(json.dumps({"pairs": name, "bounds": found, "means": means, "spreads": spreads}))


def _thin(texts: Sequence[str]) -> list[str]:
    return list(texts[:: max(1, len(texts) // MOST)])


def _cosines(model: OnnxModel, left: Sequence[str], right: Sequence[str]) -> Floats:
    rows = _embed(model, left)
    if left is right:
        found: Floats = (rows @ rows.T)[np.triu_indices(len(rows), 1)]
        return found
    return (rows @ _embed(model, right).T).ravel()


def _embed(model: OnnxModel, texts: Sequence[str]) -> Floats:
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
    rows = np.vstack([model.run([texts[n] for n in order[at : at + 32]], 2048) for at in range(0, len(order), 32)])
    found: Floats = rows[np.argsort(order)]
    return found


if __name__ == "__main__":
    main()
