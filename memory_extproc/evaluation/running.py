"""A data set through one system: every conversation learned, every question asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace

from memory_extproc.errors import GiveUpError
from memory_extproc.evaluation.asking import Answer, Asks, AsksDense, AsksRecall, Bounds, System, Unreachable
from memory_extproc.evaluation.cases import Conversation, Dataset, Question
from memory_extproc.evaluation.foreign import Names, foreign, reworded
from memory_extproc.evaluation.playing import Judges, MakesTopics, Played, played
from memory_extproc.learn.extract import Extracts
from memory_extproc.model import Caller, Wish
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Embeds, Now
from memory_extproc.recall.recaller import Recaller
from memory_extproc.store.partition import PartitionLimits, Partitions

MakesRecaller = Callable[[Partitions, Embeds, Now], Recaller]
Says = Callable[[str, int, int], None]  # step, done, of how many
FOREIGN_NAMES = (Names.FIRST_PERSON, Names.NEUTRAL, Names.SWAPPED)
NOT_HELD = PartitionLimits(bytes=1)  # every owner is too large for it


@dataclass(frozen=True, slots=True)
class Asked:
    """A question put to the memories of *played*. *names*: what became of the names in a foreign question;
    None for one that these memories are about."""

    question: Question
    played: Played
    answer: Answer
    names: Names | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Everything a system answered, and what it had to go by."""

    dataset: str
    system: System
    bounds: Bounds
    embed_model: str
    asked: tuple[Asked, ...]
    played: tuple[Played, ...]


@dataclass(frozen=True, slots=True)
class Bench:
    """What a run needs from outside; the tools' composition makes it from the settings."""

    embedder: Embeds
    extractor: Extracts | None
    judged: Judges
    metrics: Metrics
    recaller: MakesRecaller
    partition: PartitionLimits
    topics: MakesTopics | None = None  # None: sessions are not summed up

    def played(
        self, conversation: Conversation, partition: PartitionLimits, topics: MakesTopics | None = None
    ) -> AbstractAsyncContextManager[Played]:
        """As the function of that name, with what this bench learns with."""
        return played(
            conversation, self.embedder, self.metrics,
            extractor=self.extractor, judged=self.judged, partition=partition, topics=topics,
        )  # fmt: skip


async def run(
    dataset: Dataset,
    system: System,
    bench: Bench,
    bounds: Bounds,
    *,
    limit_questions: int | None = None,
    says: Says = lambda _step, _done, _whole: None,
) -> Run:
    """*limit_questions*: at most so many, spread evenly over the data set; then as many foreign ones."""
    if not 0.0 <= bounds.threshold <= 1.0:
        raise GiveUpError(f"the threshold must be within 0 and 1, not {bounds.threshold}")
    async with AsyncExitStack() as stack:
        partition = NOT_HELD if system is System.STORE else bench.partition
        stage: dict[str, tuple[Played, Asks]] = {}
        for at, conversation in enumerate(dataset.conversations):
            says("learning", at, len(dataset.conversations))
            one = await stack.enter_async_context(bench.played(conversation, partition, bench.topics))
            await filled(one, bench.embedder)
            stage[conversation.name] = (one, _asks(system, bench, one, bounds))
        asked = await _ask_all(_home(dataset.conversations), stage, limit_questions, "asking", says)
        for names in FOREIGN_NAMES:
            step = f"asking others ({names})"
            asked += await _ask_all(_foreign(dataset.conversations, names), stage, limit_questions, step, says)
        return Run(
            dataset.name,
            system,
            bounds,
            bench.embedder.fingerprint,
            tuple(asked),
            tuple(one for one, _ in stage.values()),
        )


@dataclass(frozen=True, slots=True)
class _ToAsk:
    question: Question
    of: str  # the conversation whose memories are asked
    names: Names | None


def _home(conversations: Sequence[Conversation]) -> list[_ToAsk]:
    return [_ToAsk(question, one.name, None) for one in conversations for question in one.questions]


def _foreign(conversations: Sequence[Conversation], names: Names) -> list[_ToAsk]:
    found = []
    for home, away, question in foreign(conversations):
        text = reworded(question.text, home.speakers, names, away.speakers)
        found.append(_ToAsk(replace(question, text=text, relevant=frozenset()), away.name, names))
    return found


async def _ask_all(
    wanted: list[_ToAsk], stage: dict[str, tuple[Played, Asks]], most: int | None, step: str, says: Says
) -> list[Asked]:
    if most is not None and most < len(wanted):
        wanted = [wanted[at * len(wanted) // most] for at in range(most)]
    asked, seen = [], set[str]()
    for done, one in enumerate(wanted):
        says(step, done, len(wanted))
        there, asks = stage[one.of]
        # Words asked before have their vector in the cache: their time would say nothing.
        answer = await asks.ask(one.question, timed=one.names is None and one.question.text not in seen)
        seen.add(one.question.text)
        asked.append(Asked(one.question, there, answer, one.names))
    says(step, len(wanted), len(wanted))
    return asked


def _asks(system: System, bench: Bench, there: Played, bounds: Bounds) -> Asks:
    if system is System.DENSE:
        return AsksDense(there.partitions, bench.embedder, there.owner, bounds)
    embedder: Embeds = Unreachable(bench.embedder) if system is System.LEXICAL else bench.embedder
    recaller = bench.recaller(there.partitions, embedder, there.clock)
    return AsksRecall(recaller, there.owner, bounds, bench.metrics)


async def filled(there: Played, embedder: Embeds) -> None:
    """Lets the partition be filled, as it is for an owner who has been talking."""
    wish = Wish(caller=Caller(there.owner), asked="")
    vector = await embedder.embed_query("what is known")
    await there.partitions.nearest(there.owner, vector, 1, wish.scope)
    while there.partitions.filling:  # noqa: ASYNC110 - a fill tells nobody but those who ask of its owner
        await asyncio.sleep(0)
