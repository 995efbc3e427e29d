"""What speaks for each candidate of every question of a data set: the ground that weights are fitted on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import numpy.typing as npt

from memory_extproc.evaluation.cases import Conversation, Dataset, Question
from memory_extproc.evaluation.foreign import Names, foreign, reworded
from memory_extproc.evaluation.playing import Played
from memory_extproc.evaluation.running import FOREIGN_NAMES, Bench, Says, filled
from memory_extproc.evaluation.scoring import positions, recall_at
from memory_extproc.index.features import CLOSELY
from memory_extproc.model import Candidates, Scope, Sought
from memory_extproc.ports import ReadsWords
from memory_extproc.recall.breadth import broadened
from memory_extproc.recall.close_reading import CloseReader, CloseReadingLimits
from memory_extproc.recall.query import plain

READ_CLOSELY = 100  # as many as recall reads: what a word tells apart depends on them all
_UNHURRIED = timedelta(minutes=5)
CANDIDATES = 200  # of a question: more than recall asks for, so that the ranker also sees what it must leave behind


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """One question and its candidates. *covers* says for each of them what it stands for; *names*: what became of
    the speakers' names in the question; a question to others has no relevant ids. *talk*: of a conversation of
    named people; else of notes and short exchanges."""

    conversation: str  # whose question it is
    question: Question
    candidates: Candidates
    covers: tuple[tuple[str, ...], ...]
    names: Names = Names.KEPT
    talk: bool = True

    @property
    def answers(self) -> npt.NDArray[np.bool_]:
        """Which candidates hold a piece of the evidence."""
        return np.array([not self.question.relevant.isdisjoint(ids) for ids in self.covers], dtype=bool)

    def recall(self, k: int, scores: npt.NDArray[np.float64]) -> float:
        """Evidence recall within *k* when the candidates stand in the order that recall makes of *scores*."""
        order = np.argsort(-scores, kind="stable").tolist()
        if CLOSELY in self.candidates.names:
            order = broadened(order, scores, self.candidates.memories)
        return recall_at(k, positions(self.covers[at] for at in order), self.question.relevant)


async def gather(
    dataset: Dataset,
    bench: Bench,
    *,
    dense: bool = True,
    closely: bool = False,
    says: Says = lambda _step, _done, _whole: None,
) -> list[Gathered]:
    """Of every question that counts, to its own memories and to others'. Without *dense*, as it is while the
    embedding model is down; *closely*: with the candidates read word by word."""
    reader = close_reader(bench) if closely else None
    async with AsyncExitStack() as stack:
        stage: dict[str, Played] = {}
        for at, one in enumerate(dataset.conversations):
            says("learning", at, len(dataset.conversations))
            there = await stack.enter_async_context(bench.played(one, bench.partition))
            await filled(there, bench.embedder)
            stage[one.name] = there
        asked = _asked(dataset.conversations)
        found = []
        for at, (home, away, question, names) in enumerate(asked):
            says("gathering", at, len(asked))
            candidates = await _candidates(stage[away], question, bench, reader, dense=dense)
            covers = tuple(stage[away].covers(memory) for memory in candidates.memories)
            talk = bool(stage[away].conversation.speakers)
            found.append(Gathered(home, question, candidates, covers, names, talk))
        says("gathering", len(asked), len(asked))
        return found


def close_reader(bench: Bench) -> CloseReader | None:
    """None where the embedding model does not say what single words are."""
    embedder = bench.embedder
    if not isinstance(embedder, ReadsWords) or not embedder.reads_words:
        return None
    return CloseReader(embedder, CloseReadingLimits(waits=_UNHURRIED), bench.metrics)


async def _candidates(
    there: Played, question: Question, bench: Bench, reader: CloseReader | None, *, dense: bool
) -> Candidates:
    text = plain(question.text, question.earlier).text
    vector = await bench.embedder.embed_query(text) if dense else None
    most = CANDIDATES if reader is None else READ_CLOSELY
    found = await there.partitions.candidates(there.owner, Sought(text, vector), most, Scope())
    return found if reader is None else await reader.read(text, found)


def _asked(conversations: Sequence[Conversation]) -> list[tuple[str, str, Question, Names]]:
    """(whose question, whose memories, the question, what became of its names). Its own memories are asked under
    neutral names too: else names alone would tell who is asked about what is known."""
    asked: list[tuple[str, str, Question, Names]] = []
    for one in conversations:
        for question in one.questions:
            if question.counts or not one.speakers:
                asked.append((one.name, one.name, question, Names.KEPT))
            if question.counts and one.speakers:
                for names in (Names.FIRST_PERSON, Names.NEUTRAL):
                    other_words = replace(question, text=reworded(question.text, one.speakers, names))
                    asked.append((one.name, one.name, other_words, names))
    for names in FOREIGN_NAMES:
        for home, away, question in foreign(conversations):
            text = reworded(question.text, home.speakers, names, away.speakers)
            asked.append((home.name, away.name, replace(question, text=text, relevant=frozenset()), names))
    return asked
