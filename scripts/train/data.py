"""Training pairs for the embedding adapter: questions and the texts that answer them, in batches of four kinds.

| kind | questions | texts |
|---|---|---|
| attributes | about an attribute of the caller's life | statements that tell it, and near misses |
| people | of made-up people (six languages) | their messages |
| talk | small talk's own, and sentences turned into questions | messages of two people, with and without names |
| chats | RealMem's queries, facts and questions for facts | chunks of messages to and from assistants |

Nothing of the sets by which recall is judged is among them: not LoCoMo, not RealMem's personas 5 and 6, nothing of
tests/quality. Weights that go with the adapter are fitted on other halves of the same sources (docs/evaluation.md):
on the texts that an adapter was trained on its cosines are better than elsewhere.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from memory_extproc.learn.messages import ChunkLimits, pieces
from scripts.make_small_talk import read
from scripts.train.wording import drop_words, name_question, to_named, to_question

Rows = list[dict[str, Any]]
Embed = Callable[[Sequence[str]], npt.NDArray[np.float32]]
NAMES = """
Anna Ben Clara David Eva Frank Greta Hannah Ivan Julia Karl Laura Martin Nora Oscar Paula Robert Sofia Thomas Ursula
Victor Wendy Xavier Yara Zoe Alice Brian Carmen Derek Elena Felix Gloria Harold Irene Jack Kira Leon Marta Nils Olga
Peter Rosa Simon Tara Vera Walter Yusuf Amir Bianca Chen Dalia Emre Fatima Goran Hiro Imani Joel Katya Lars Mina Noel
Priya Rafael Sana Tomas
""".split()
TOLD, ASKED = (Path(__file__).parent / name for name in ("told.tsv", "asked.tsv"))
CHUNK = ChunkLimits(tokens=110)
SAME = 0.9  # cosine above which a text is no negative of another's question


@dataclass(frozen=True, slots=True)
class Batch:
    """*texts*: the answers of *questions* in order, then others. *ignored*: which text is no negative of which
    question. *longest*: tokens of a question and of a text."""

    questions: list[str]
    texts: list[str]
    ignored: npt.NDArray[np.bool_]
    longest: tuple[int, int]


@dataclass(slots=True)
class Owner:
    """The texts of a person. *asked*: questions with the numbers of the texts that answer them."""

    texts: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)  # ids, by text
    speakers: list[str] = field(default_factory=list)  # by text: a role or a name
    asked: list[tuple[str, list[int]]] = field(default_factory=list)
    near: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))  # base vectors

    def add(self, message: str, speaker: str, text: str) -> None:
        self.texts.append(text)
        self.messages.append(message)
        self.speakers.append(speaker)

    def ask(self, question: str, messages: Sequence[str]) -> None:
        if found := [number for number, one in enumerate(self.messages) if one in messages]:
            self.asked.append((question, found))


def read_lines(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@dataclass(frozen=True, slots=True)
class Files:
    """Sets as scripts/make_*.py write them. *talk*: files of scripts/small_talk."""

    people: Sequence[Path]
    talk: Sequence[Path]
    chats: Path
    facts: Path


class Sources:
    """All training data, ready to be drawn from. *embed*: the base model's vectors."""

    def __init__(self, files: Files, embed: Embed, rng: random.Random) -> None:
        self._rng = rng
        self._read_attributes(TOLD, ASKED)
        self._people = [one for path in files.people for one in _owners(read_lines(path)).values() if one.asked]
        self._talk = [_talk_of(read(path)) for path in files.talk]
        rows = read_lines(files.chats)
        self._chats = list(_owners(rows, CHUNK).values())
        for owner, one in zip(_owners(rows, CHUNK), self._chats, strict=True):
            for fact in read_lines(files.facts):
                if fact["owner"] == owner:
                    one.ask(re.sub(r"【.*?】|\*", "", fact["fact"]).strip()[:400], [fact["message"]])
        for one in (*self._talk, *self._chats):
            one.near = embed(one.texts)
        for one in self._chats:
            _choose_chunks(one, embed)
        self._told_near = embed([text for _, text in self._told])

    def _read_attributes(self, told: Path, asked: Path) -> None:
        self._told = [(frozenset(labels.split(",")), text) for labels, text in _pairs(told)]
        self._asks: dict[str, list[str]] = defaultdict(list)
        for label, text in _pairs(asked):
            self._asks[label].append(text)
        self._none_asked = self._asks.pop("none")
        self._tells: dict[str, list[int]] = defaultdict(list)
        for number, (labels, _) in enumerate(self._told):
            for label in labels:
                self._tells[label].append(number)

    def draw(self) -> Batch:
        kind = self._rng.choices((self._attributes, self._of_people, self._of_talk, self._of_chats), SHARES)[0]
        return kind()

    def _attributes(self) -> Batch:
        rng = self._rng
        labels = rng.choices(sorted(self._asks), k=44)
        chosen = [rng.choice(self._tells[label]) for label in labels]
        none = self._tells["none"]
        like = self._told_near[chosen] @ self._told_near[none].T
        chosen += _fill({none[rng.choice(np.argsort(-row)[:8])] for row in like[:20]}, none, 20, rng)
        ignored = np.array([[label in self._told[number][0] for number in chosen] for label in labels])
        name = rng.choice(NAMES) if rng.random() < 0.35 else ""
        form = "name" if name else "user" if rng.random() < 0.3 else ""
        questions = [rng.choice(self._asks[label]) for label in labels]
        texts = [self._told[number][1] for number in chosen]
        if form == "name":
            questions, texts = [name_question(q, name) for q in questions], [f"{name}: {t}" for t in texts]
        elif form == "user":
            texts = [to_named(text, "User") for text in texts]
        questions += rng.sample(self._none_asked, 12)  # negatives of what tells something
        return _batch(questions, texts, ignored, (24, 32))

    def _of_people(self) -> Batch:
        rng, asked = self._rng, []
        while len(asked) < 44:
            one = rng.choice(self._people)
            asked += [(one, *rng.choice(one.asked)) for _ in range(min(8, len(one.asked)))]
        asked = asked[:44]
        chosen = [(one, rng.choice(answers)) for one, _, answers in asked]
        owners = [one for one, _, _ in asked]
        chosen += [(one, rng.randrange(len(one.texts))) for one in rng.sample(owners, 20)]
        questions = [question for _, question, _ in asked]
        keys = [_key(one.messages[number]) for one, number in chosen]
        ignored = np.array([
            [key == keys[row] or (other is one and number in answers) or questions[row] in _asks_for(other, number)
             for key, (other, number) in zip(keys, chosen, strict=True)]
            for row, (one, _, answers) in enumerate(asked)
        ])  # fmt: skip
        return _batch(questions, [one.texts[number] for one, number in chosen], ignored, (24, 32))

    def _of_talk(self) -> Batch:
        rng = self._rng
        one = rng.choice(self._talk if rng.random() < 0.4 else self._chats)
        small = one in self._talk
        named = small or rng.random() < 0.6
        speakers = sorted(set(one.speakers))
        names = dict(zip(speakers, speakers if small else rng.sample(NAMES, len(speakers)), strict=True))
        wanted: list[tuple[str, int]] = []
        if small:
            labelled = rng.sample(one.asked, min(20, len(one.asked)))
            wanted = [(question, rng.choice(answers)) for question, answers in labelled]
        seeds = [n for n, who in enumerate(one.speakers) if (small or who == "user") and len(one.texts[n]) > 25]
        for number in self._neighbours(one, seeds, 160):
            if len(wanted) == 40:
                break
            subject = names[one.speakers[number]] if named else ""
            if question := to_question(one.texts[number], subject, rng):
                wanted.append((question, number))
        if len(wanted) < 40:
            return self._of_talk()
        chosen = [number for _, number in wanted] + rng.sample(range(len(one.texts)), 16)
        texts = [one.texts[n] for n in chosen]
        if named:
            texts = [f"{names[one.speakers[n]]}: {text}" for n, text in zip(chosen, texts, strict=True)]
        return _batch([question for question, _ in wanted], texts, self._alike(one, chosen, len(wanted)), (24, 32))

    def _of_chats(self) -> Batch:
        rng = self._rng
        one = rng.choice(self._chats)
        seed = rng.choice(one.asked)[1][0]
        order = np.argsort(-(one.near[[numbers[0] for _, numbers in one.asked]] @ one.near[seed]))
        wanted = rng.sample([int(place) for place in order[:120]], 9) + rng.sample(range(len(one.asked)), 9)
        picked = [one.asked[place] for place in wanted]
        chosen = [rng.choice(numbers) for _, numbers in picked]
        like = one.near[chosen] @ one.near.T
        others = {int(rng.choice(np.argsort(-row)[1:30])) for row in like}
        chosen += _fill(others, range(len(one.texts)), 12, rng)
        questions = [q if rng.random() < 0.75 else drop_words(q, rng) for q, _ in picked]
        ignored = self._alike(one, chosen, len(picked))
        for row, (_, numbers) in enumerate(picked):
            of = {one.messages[number] for number in numbers}
            ignored[row] |= np.array([one.messages[number] in of for number in chosen])
        return _batch(questions, [one.texts[number] for number in chosen], ignored, (48, 128))

    def _neighbours(self, one: Owner, seeds: Sequence[int], most: int) -> list[int]:
        """Half of them near a text that is drawn, so that the batch is about the same."""
        like = one.near[list(seeds)] @ one.near[self._rng.choice(seeds)]
        near = [seeds[place] for place in np.argsort(-like)[:most]]
        mixed = [number for pair in zip(self._rng.sample(near, len(near)),
                 self._rng.sample(list(seeds), len(near)), strict=True) for number in pair]  # fmt: skip
        return list(dict.fromkeys(mixed))

    def _alike(self, one: Owner, chosen: Sequence[int], rows: int) -> npt.NDArray[np.bool_]:
        ids = np.array([one.messages[number] for number in chosen])
        same: npt.NDArray[np.bool_] = one.near[chosen[:rows]] @ one.near[chosen].T > SAME
        return same | (ids[:rows, None] == ids)


SHARES = (0.26, 0.16, 0.32, 0.26)


def _batch(
    questions: list[str], texts: list[str], ignored: npt.NDArray[np.bool_], longest: tuple[int, int]
) -> Batch:
    rows = np.arange(len(ignored))
    ignored[rows, rows] = False
    return Batch(questions, texts, ignored, longest)


def _fill(found: set[int], others: Sequence[int], wanted: int, rng: random.Random) -> list[int]:
    return [*sorted(found), *rng.sample(others, wanted)][:wanted]


def _pairs(path: Path) -> list[tuple[str, str]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(label, text) for label, _, text in (line.partition("\t") for line in lines)]


def _owners(rows: Rows, limits: ChunkLimits | None = None) -> dict[str, Owner]:
    found: dict[str, Owner] = defaultdict(Owner)
    for row in rows:
        if "memory" in row:
            for text in pieces(row["text"], limits).texts if limits else (row["text"],):
                found[row["owner"]].add(row["memory"], row.get("role", "user"), text)
    for row in rows:
        if row.get("relevant"):
            found[row["owner"]].ask(row["query"], row["relevant"])
    return found


def _talk_of(conversation: dict[str, Any]) -> Owner:
    one, said = Owner(), conversation["conversation"]
    for number in range(1, len(said)):
        for message in said.get(f"session_{number}", ()):
            one.add(message["dia_id"], message["speaker"], message["text"])
    for asked in conversation["qa"]:
        if asked["category"] != 5:  # under the wrong name
            one.ask(asked["question"], asked["evidence"])
    return one


def _choose_chunks(one: Owner, embed: Embed) -> None:
    """Keep, of a question's chunks, the nearest of each message: the evidence stands in one of them."""
    vectors = embed([question for question, _ in one.asked])
    for place, (question, numbers) in enumerate(one.asked):
        best: dict[str, int] = {}
        for number in sorted(numbers, key=lambda n: float(one.near[n] @ vectors[place])):
            best[one.messages[number]] = number
        one.asked[place] = question, list(best.values())


def _key(message: str) -> str:
    """The topic of a made-up person's message: the end of its id."""
    return message.rsplit("-", 1)[-1]


def _asks_for(one: Owner, number: int) -> list[str]:
    return [question for question, answers in one.asked if number in answers]
