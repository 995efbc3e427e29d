"""Trains the projection of a question's words that late interaction uses (`memory_extproc.recall.late_interaction`).

    python -m scripts.train.projection --model models/all-MiniLM-L6-v2-int8 --chats scripts/train/conversations/vectors.txt \
        --notes people.jsonl --notes pieces.jsonl --out memory_extproc/recall/fitted/all-MiniLM-L6-v2.projection.npz

The words of questions and messages are those that a sidecar keeps. A message's score is the best match of each word of
the question, as recall has it, with each word moved by a matrix and weighted by a direction. Both are learned by a
softmax over the person's messages and a bar that belongs to no message. Small talk and the questions of another person
are to stay below the bar, so the best match also tells whether a message answers.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from memory_extproc.index.entries import unpack
from memory_extproc.inference.batching import WordVectors
from memory_extproc.inference.onnx import OnnxModel
from memory_extproc.recall.late_interaction import SAME
from scripts.train.adapter import scale_rate
from scripts.train.chats import FILES, TRAINED_ON, read_chats

EPOCHS, RATE, DROPPED, DECAY = 8, 2e-3, 0.3, 0.01
PEOPLE_A_STEP, WARM, LAST = 4, 20, 0.02  # steps until the highest rate is reached, and its last share
TEMPERATURE, BAR = 20.0, 0.5  # at the beginning
IMPORTANCE = 8.0  # scale of the direction, so that it learns as fast as the matrix
KEPT_BYTES = 1 << 34
ABSENT = -1e9


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """The words of several texts in one array, and the text of each word."""

    words: torch.Tensor  # (words, dimension)
    text: torch.Tensor  # (words,)
    count: int

    @property
    def has_words(self) -> torch.Tensor:
        """(texts,): whether the text has words. Long messages are not read word by word."""
        found = torch.zeros(self.count, dtype=torch.bool)
        found[self.text] = True
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """One person. *right* and *ignored*: (questions, messages); small talk has nothing right."""

    messages: Texts
    questions: Texts
    right: torch.Tensor
    ignored: torch.Tensor


class Reader:
    """The words of texts by the embedding model in *directory*."""

    def __init__(self, directory: Path) -> None:
        self._words = WordVectors(KEPT_BYTES)
        self._model = OnnxModel(directory, self._words)

    def read(self, texts: Sequence[str]) -> Texts:
        found, numbers = [], []
        for number, text in enumerate(texts):
            if self._words.find(text) is None:
                self._model.run([text], batch_tokens=1)
            if (pieces := self._words.find(text)) is not None:
                found.append(unpack(pieces))
                numbers += [number] * len(found[-1])
        return Texts(torch.from_numpy(np.concatenate(found)), torch.tensor(numbers), len(texts))

    def read_person(self, texts: Sequence[str], asked: Sequence[tuple[str, Iterable[int], Iterable[int]]]) -> Asked:
        """*asked*: each question with the numbers of the messages that answer it, and of those left out."""
        messages = self.read(texts)
        right, ignored = (torch.zeros(len(asked), len(texts), dtype=torch.bool) for _ in range(2))
        for row, (_, answers, others) in enumerate(asked):
            right[row, list(answers)] = True
            ignored[row, list(others)] = True
        there = messages.has_words
        return Asked(messages, self.read([one[0] for one in asked]), right & there, ignored | ~there)


def read_plain_chats(path: Path, reader: Reader) -> list[Asked]:
    return [
        reader.read_person(
            [message.text for message in person.messages],
            [(one.question, one.right, one.ignored) for one in person.list_examples()],
        )
        for person in read_chats([path])
    ]


def read_notes(path: Path, reader: Reader) -> list[Asked]:
    """The people of a data set of notes and short exchanges."""
    texts: dict[str, dict[str, str]] = {}
    asked: dict[str, list[tuple[str, list[str]]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "memory" in row:
            texts.setdefault(row["owner"], {})[row["memory"]] = row["text"]
        else:
            asked.setdefault(row["owner"], []).append((row["query"], row["relevant"]))
    people = []
    for owner, questions in asked.items():
        number = {id_: at for at, id_ in enumerate(texts[owner])}
        people.append(
            reader.read_person(
                list(texts[owner].values()), [(text, map(number.__getitem__, ids), ()) for text, ids in questions]
            )
        )
    return people


class Projection(nn.Module):
    """What is learned: the matrix, the direction of importance, and the temperature and bar of the softmax."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(dimension))
        self.importance = nn.Parameter(torch.zeros(dimension))
        self.log_temperature = nn.Parameter(torch.tensor(TEMPERATURE).log())
        self.bar = nn.Parameter(torch.tensor(BAR))

    def score(self, questions: Texts, messages: Texts) -> torch.Tensor:
        """(questions, messages), as recall scores them, over the temperature."""
        words = functional.dropout(questions.words, DROPPED, self.training) @ self.matrix
        each = functional.normalize(words, dim=-1) @ messages.words.T
        best = torch.full((len(each), messages.count), -1.0)
        best = best.scatter_reduce(1, messages.text.expand(len(each), -1), each, "amax", include_self=True)
        read = best[:, messages.has_words]
        rare = torch.log((read.shape[1] + 1.0) / ((read > SAME).sum(1) + 0.5)).clamp(min=1e-6)
        weight = rare * torch.exp(IMPORTANCE * questions.words @ self.importance)
        total = torch.zeros(questions.count).index_add(0, questions.text, weight).clamp(min=1e-9)
        score = torch.zeros(questions.count, messages.count).index_add(0, questions.text, best * weight[:, None])
        return score / total[:, None] * self.log_temperature.exp()

    def loss(self, person: Asked, other: Asked) -> torch.Tensor:
        """The mean loss for an answerable question of *person*. Their small talk, and all their questions when asked
        of *other*'s messages, count as unanswerable."""
        score, bar = self.score(person.questions, person.messages), self.bar * self.log_temperature.exp()
        right, answered = person.right, person.right.any(1)
        wrong = torch.logsumexp(score.masked_fill(right | person.ignored, ABSENT), 1)
        rows, columns = right.nonzero(as_tuple=True)
        found = score[rows, columns]
        missed = torch.logaddexp(torch.logaddexp(wrong, bar)[rows], found) - found
        loss = (missed / right.sum(1)[rows]).sum()
        foreign = self.score(person.questions, other.messages)[:, other.messages.has_words]
        for above in (wrong[~answered], torch.logsumexp(foreign, 1)):
            loss = loss + (torch.logaddexp(above, bar) - bar).sum()
        return loss / answered.sum().clamp(min=1)


def train(people: Sequence[Asked], seed: int) -> Projection:
    torch.manual_seed(seed)
    chance = random.Random(seed)
    projection = Projection(people[0].messages.words.shape[1])
    optimizer = torch.optim.AdamW(projection.parameters(), lr=RATE, weight_decay=DECAY, betas=(0.9, 0.98))
    steps = EPOCHS * (len(people) // PEOPLE_A_STEP)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: scale_rate(step, steps, WARM, LAST))
    for epoch in range(EPOCHS):
        order = list(people)
        chance.shuffle(order)
        losses = []
        for at in range(0, len(order) - PEOPLE_A_STEP + 1, PEOPLE_A_STEP):
            ones = order[at : at + PEOPLE_A_STEP]
            loss = torch.stack([projection.loss(one, chance.choice(people)) for one in ones]).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(projection.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}", flush=True)
    return projection.eval()


def average_runs(runs: Sequence[Projection]) -> Projection:
    found = Projection(len(runs[0].importance)).eval()
    found.load_state_dict(
        {name: torch.stack([one.state_dict()[name] for one in runs]).mean(0) for name in found.state_dict()}
    )
    return found


def measure_share_found(projection: Projection, people: Sequence[Asked], count: int) -> float:
    """The mean share of a question's answers among its first *count* messages."""
    found = []
    with torch.no_grad():
        for one in people:
            score = projection.score(one.questions, one.messages).masked_fill(one.ignored & ~one.right, ABSENT)
            first = score.topk(min(count, score.shape[1]), dim=1).indices
            hits = one.right.gather(1, first).sum(1) / one.right.sum(1).clamp(min=1)
            found += hits[one.right.any(1)].tolist()
    return float(np.mean(found))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", type=Path, required=True, help="prepared directory")
    parser.add_argument("--chats", type=Path, default=FILES / TRAINED_ON)
    parser.add_argument(
        "--notes", type=Path, action="append", default=[], help="data sets of notes and short exchanges"
    )
    parser.add_argument("--judge", type=Path, help="chats to judge by, of other people")
    parser.add_argument("--runs", type=int, default=3, help="whose mean is kept, because single runs differ")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    reader = Reader(given.model)
    people = read_plain_chats(given.chats, reader)
    people += [one for path in given.notes for one in read_notes(path, reader)]
    print(f"{len(people)} people", flush=True)
    projection = average_runs([train(people, seed) for seed in range(given.runs)])
    if given.judge:
        others = read_plain_chats(given.judge, reader)
        print(" ".join(f"@{count} {measure_share_found(projection, others, count):.3f}" for count in (1, 3, 5)))
    matrix, importance = projection.matrix.detach().numpy(), IMPORTANCE * projection.importance.detach().numpy()
    np.savez_compressed(given.out, matrix=matrix.astype(np.float16), importance=importance.astype(np.float16))


if __name__ == "__main__":
    main()
