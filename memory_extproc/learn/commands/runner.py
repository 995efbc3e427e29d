"""Apply the remember and forget commands of a chat at once, without waiting for the session's extraction.

A forget in chat is soft: the matching memories get the state deleted. Recall ignores them, and the memory API can
restore them until they are erased for good."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from memory_extproc.errors import TransientError
from memory_extproc.learn.commands.parser import ACTS, Act, Command, commands_of, doubtful, forgets, marked_commands
from memory_extproc.learn.conflicts import FACTS
from memory_extproc.learn.extract.extractor import Fact, FactExtractor
from memory_extproc.learn.extract.statements import no_longer
from memory_extproc.learn.learner import ForgetGuard
from memory_extproc.learn.messages import BY_CHAT, JudgedMessage
from memory_extproc.learn.screening import Judging
from memory_extproc.model import (
    Embedded,
    Memory,
    MemoryState,
    MemoryType,
    Owner,
    OwnerKind,
    Role,
    Scope,
    SearchResult,
    Source,
    Turn,
    Vector,
)
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Change, EmbeddingModel, Now
from memory_extproc.safety.policy import sensitivity
from memory_extproc.safety.prompt_injection import suspicion
from memory_extproc.settings import CurrentSettings
from memory_extproc.text.words import sentences, terms, terms_in

log = logger(__name__)
VERSION = "said-1"  # kept with facts that were asked to be kept
MADE_OF = "sources"  # retention decides about memories whose sources were forgotten
_ACTIVE = frozenset({MemoryState.ACTIVE})
# Superseded memories too: a question about the past recalls them.
_RETIRABLE = frozenset({MemoryState.ACTIVE, MemoryState.SUPERSEDED})
_IMPORTANCE = 0.9  # of a memory that the user asked to keep
_NEIGHBOURS = 64
# Cosine of the default model above which a memory counts as a paraphrase of the text to forget. 3 in 1,000
# pairs of facts about different things are above it.
_SPEAKS_OF = 0.7
_WHO = "User"


class CommandedMemories(Protocol):
    """Reads and changes of the owner's partition that commands need."""

    def rows(self, owner: Owner) -> AsyncIterator[Sequence[Memory]]:
        """As ports.MemoryLister has it."""

    async def change(self, owner: Owner, id: str, change: Change) -> bool:  # noqa: A002
        """As ports.MemoryLister has it."""

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> SearchResult:
        """As ports.MemoryWriter has it."""


class FactApplier(Protocol):
    async def apply(self, owner: Owner, facts: Sequence[Fact], turns: Sequence[Turn]) -> object:
        """Repeating it changes nothing more."""


class CommandClassifier(Protocol):
    """Classifies turns that no rule understands."""

    async def commands(self, turn: Turn) -> Sequence[Command]:
        """Commands in *turn*. TransientError while the classifier is unavailable."""


class Commands:
    """Obeys the commands of turns whose messages are stored."""

    def __init__(
        self,
        current: CurrentSettings,
        holds: CommandedMemories,
        embedder: EmbeddingModel,
        extractor: FactExtractor,
        reconciler: FactApplier,
        guard: ForgetGuard,
        metrics: Metrics,
        *,
        now: Now,
        doubts: CommandClassifier | None = None,
    ) -> None:
        """*extractor* turns the text to remember into facts where it can. Without *doubts*, ambiguous turns are
        ignored."""
        self._doubts = doubts
        self._current = current
        self._holds, self._embedder = holds, embedder
        self._extractor, self._reconciler = extractor, reconciler
        self._guard, self._metrics, self._now = guard, metrics, now

    def of(self, turn: Turn) -> Sequence[Command]:
        """Permitted commands of *turn*. A member of a project cannot forget shared memories through the chat."""
        settings = self._current.settings
        if settings.chat_commands == "off":
            return ()
        found = (*commands_of(turn.asked), *marked_commands(turn.answered, settings.learn.markers))
        # Few turns hold a command, so the permissions are read only for these.
        acts = self._acts(turn) if found else frozenset[Act]()
        return [command for command in found if command.act in acts]

    def _acts(self, turn: Turn) -> frozenset[Act]:
        acts = ACTS[self._current.settings.chat_commands]
        if not acts or suspicion(turn.asked) is not None:
            return frozenset()
        return acts if turn.owner.kind is OwnerKind.OWN else acts & {Act.REMEMBER}

    def is_doubtful(self, turn: Turn) -> bool:
        """Whether *turn* may hold a command that the rules miss, and a classifier is configured."""
        return self._doubts is not None and doubtful(turn.asked) and bool(self._acts(turn))

    async def decide(self, turns: Sequence[Turn]) -> frozenset[str]:
        """Classify and apply ambiguous turns after everything else was learned from *turns*. Returns the ids of the
        turns that ask for a forget: facts learned from them are removed too. TransientError while the classifier is
        unavailable."""
        forgetting: set[str] = set()
        for turn in turns:
            known = set(commands_of(turn.asked))
            found = [one for one in await self._classify(turn) if one.act in self._acts(turn) and one not in known]
            for command in found:
                match command.act:
                    case Act.REMEMBER:
                        await self._stress(turn, command)
                    case Act.FORGET:
                        await self._forget(turn, command, itself=True)
                        forgetting.add(turn.id)
                    case Act.RETRACT:
                        await self._retract(turn, command)
                self._metrics.chat_commands.labels(command.act.value).inc()
        return frozenset(forgetting)

    async def _classify(self, turn: Turn) -> Sequence[Command]:
        if self._doubts is None:
            return ()
        try:
            return await self._doubts.commands(turn)
        except TransientError as error:
            if abs(self._now() - turn.at) <= self._current.settings.learn.model_patience:
                raise
            log.warning("chat_command.undecided", error=type(error).__name__)
            return ()

    async def apply(self, turns: Sequence[Turn]) -> None:
        """Repeating it changes nothing more."""
        done: Counter[Act] = Counter()
        for turn in sorted(turns, key=lambda turn: (turn.at, turn.seq)):
            for command in self.of(turn):
                match command.act:
                    case Act.REMEMBER:
                        await self._keep(turn, command)
                    case Act.FORGET:
                        await self._forget(turn, command)
                    case Act.RETRACT:
                        await self._retract(turn, command)
                done[command.act] += 1
        for act, count in done.items():
            self._metrics.chat_commands.labels(act.value).inc(count)

    async def _keep(self, turn: Turn, command: Command) -> None:
        facts = await self._extractor.extract([replace(turn, asked=command.what, answered="")])
        wanted = [
            replace(fact, importance=max(fact.importance, _IMPORTANCE), confidence=1.0)
            for fact in facts or [_as_told(turn, command)]
        ]
        await self._reconciler.apply(turn.owner, wanted, [turn])

    async def _stress(self, turn: Turn, command: Command) -> None:
        """Raise the importance of the facts learned from *turn*; without such facts, store the user's words."""
        theirs = [
            memory
            async for memory in self._recallable(turn, itself=True)
            if memory.provenance.turn == turn.id and memory.source in FACTS.sources
        ]
        for memory in theirs:
            await self._holds.change(turn.owner, memory.id, _raise_importance)
        if not theirs:
            await self._keep(turn, command)

    async def _forget(self, turn: Turn, command: Command, *, itself: bool = False) -> None:
        rows = [memory async for memory in self._recallable(turn, _RETIRABLE, itself=itself)]
        matched = speaking_of(command.what, rows, await self._near(turn, command.what))
        matched |= {memory.id for memory in rows if memory.provenance.turn == turn.id}
        # Retention may derive a memory again from its remaining sources.
        made = made_of(matched, rows) - matched
        for memory_id in sorted((matched | made) & {memory.id for memory in rows}):
            why = MADE_OF if memory_id in made else BY_CHAT
            await self._holds.change(turn.owner, memory_id, _retiring(turn.at, self._now(), why))
        await self._guard.withdraw_earlier(turn, partial(holds_words, command.what))

    async def _recallable(
        self, turn: Turn, states: frozenset[MemoryState] = _ACTIVE, *, itself: bool = False
    ) -> AsyncIterator[Memory]:
        """Memories from before *turn*, and with *itself* from it, that it may forget."""
        async for page in self._holds.rows(turn.owner):
            for memory in page:
                narrow_enough = not turn.project or memory.project == turn.project
                earlier = memory.created_at <= turn.at and (itself or memory.provenance.turn != turn.id)
                if memory.state in states and narrow_enough and earlier:
                    yield memory

    async def _near(self, turn: Turn, what: str) -> set[str]:
        vector = (await self._embedder.embed([what]))[0]
        searched = await self._holds.nearest(turn.owner, vector, _NEIGHBOURS, Scope(project=turn.project))
        return {one.memory.id for one in searched.found if one.cosine >= _SPEAKS_OF}

    async def _retract(self, turn: Turn, command: Command) -> None:
        rows = [memory async for memory in self._recallable(turn)]
        facts = [memory for memory in rows if memory.source in FACTS.sources and not memory.provenance.ends]
        if command.what:
            meant = [memory for memory in facts if holds_words(command.what, describe_memory(memory))]
        else:
            meant = _spoken_of(turn, rows, facts)
        if len(meant) != 1:
            log.info("chat_command.unclear", matching=len(meant))
            return
        await self._reconciler.apply(turn.owner, [_end_fact(turn, meant[0])], [turn])


def _as_told(turn: Turn, command: Command) -> Fact:
    """A fact in the user's own words, for text that no rule understands."""
    category, poison = sensitivity(command.what), suspicion(command.what)
    teller = "The assistant noted" if command.noted else "The user asked to remember"
    return Fact(
        content=f"{teller}: {command.what}",
        type=MemoryType.SEMANTIC,
        subject="user",
        attribute="asked to remember",
        value=command.what,
        turn_id=turn.id,
        source=Source.RULES,
        version=VERSION,
        sensitivity=category.value if category else "",
        suspicion=poison.value if poison else "",
    )


def _end_fact(turn: Turn, memory: Memory) -> Fact:
    named = memory.provenance
    return Fact(
        content=no_longer(memory.content, _WHO),
        type=memory.type,
        subject=named.subject or "user",
        attribute=named.attribute or memory.content,
        value=named.value or memory.content,
        turn_id=turn.id,
        source=Source.RULES,
        version=VERSION,
        ends=True,
        importance=memory.importance,
    )


def _raise_importance(row: Embedded) -> Sequence[Embedded]:
    memory = row.memory
    if memory.state is not MemoryState.ACTIVE or memory.importance >= _IMPORTANCE:
        return ()
    return [Embedded(replace(memory, importance=_IMPORTANCE), row.vector)]


def _retiring(asked: datetime, now: datetime, why: str) -> Change:
    def change(row: Embedded) -> Sequence[Embedded]:
        memory = row.memory
        if memory.state not in _RETIRABLE or (memory.provenance.unretired or 0) >= asked.timestamp():
            return ()  # forgotten already, or brought back since
        at = now.replace(microsecond=0)
        noted = memory.provenance.replace(
            retired=why, retired_at=int(at.timestamp()), retired_from=memory.state.value
        )
        gone = replace(memory, state=MemoryState.DELETED, updated_at=max(at, memory.updated_at), provenance=noted)
        return [Embedded(gone, row.vector)]

    return change


def _spoken_of(turn: Turn, rows: Iterable[Memory], facts: Iterable[Memory]) -> list[Memory]:
    """Facts whose value was said in the exchange before *turn*."""
    said = [memory.content for memory in rows if memory.session == turn.session and _just_before(memory, turn)]
    return [
        memory
        for memory in facts
        if (value := memory.provenance.value) and any(holds_words(value, one) for one in said)
    ]


def _just_before(memory: Memory, turn: Turn) -> bool:
    return memory.role in {Role.USER, Role.ASSISTANT} and turn.seq - 2 <= memory.seq < turn.seq


class ForgetFilteringJudge:
    """A judge of messages around another: a turn that asks for something to be forgotten leaves none."""

    def __init__(self, judges: Judging, *, obeys: Callable[[], bool] = lambda: True) -> None:
        """*obeys*: asked for each turn; False takes its words like any others, here and below."""
        self._judges, self._obeys = judges, obeys

    def __call__(self, turn: Turn, now: datetime) -> Sequence[JudgedMessage]:
        return () if self._obeys() and forgets(turn.asked) else self._judges(turn, now)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled judge keeps today's setting."""
        return ForgetFilteringJudge, (self._judges,), {"_obeys": partial(bool, self._obeys())}


class ForgetFilteringExtractor:
    """An extractor around another, which does not read turns that ask for something to be forgotten."""

    def __init__(self, extractor: FactExtractor, *, obeys: Callable[[], bool] = lambda: True) -> None:
        self._extractor, self._obeys = extractor, obeys

    @property
    def name(self) -> str:
        return self._extractor.name

    async def extract(self, turns: Sequence[Turn], *, earlier: Sequence[Turn] = ()) -> list[Fact]:
        if not self._obeys():
            return list(await self._extractor.extract(turns, earlier=earlier))
        left = [turn for turn in turns if not forgets(turn.asked)]
        before = [turn for turn in earlier if not forgets(turn.asked)]
        return await self._extractor.extract(left, earlier=before) if left else []


# Select the memories that a forget means. Pure. People name a thing in few words, in any language, and the stored
# facts may use others. A memory is selected if it holds the words, holds the name that the words give to the thing,
# or was extracted from the same sentence.

# Facts begin with their subject, which identifies nothing: "User's budget ...".
_CALLER = re.compile(r"^(?:the\s+)?user(?:'s|\u2019s)?\s+", re.IGNORECASE)
_SELF = "user"


def holds_words(what: str, text: str) -> bool:
    """Whether *text* holds all content words of *what*, in any inflection."""
    found, language = terms(text)
    present = set(found)
    return any(wanted and wanted <= present for wanted in (set(terms(what)[0]), set(terms_in(what, language))))


def speaking_of(what: str, rows: Sequence[Memory], near: AbstractSet[str] = frozenset()) -> set[str]:
    """Ids of those of *rows* that mention *what*. The ids in *near* are paraphrases of it."""
    found = {
        memory.id: memory for memory in rows if memory.id in near or holds_words(what, describe_memory(memory))
    }
    names = [
        memory.provenance.value
        for memory in found.values()
        if memory.source in FACTS.sources and "name" in memory.provenance.attribute.split()
    ]
    found |= {
        memory.id: memory
        for memory in rows
        if any(name and holds_words(name, describe_memory(memory)) for name in names)
    }
    said = _sentences_about(what, found.values())
    found |= {
        memory.id: memory
        for memory in rows
        if memory.source in FACTS.sources and _taken_from(memory, said.get(memory.provenance.turn, ()))
    }
    return found.keys() | _beneath(found.keys(), near, rows)


def _beneath(spoken: AbstractSet[str], near: AbstractSet[str], rows: Iterable[Memory]) -> set[str]:
    """Ids of the memories merged into memories that are forgotten, because they would become visible again. If some
    sources match by their own words, the other sources are kept."""
    whole = {
        memory.id
        for memory in rows
        if memory.id in near or (memory.id in spoken and spoken.isdisjoint(memory.provenance.sources))
    }
    return {
        memory.id
        for memory in rows
        if memory.superseded_by in whole and memory.provenance.merged == memory.superseded_by
    }


def made_of(ids: Iterable[str], rows: Sequence[Memory]) -> set[str]:
    """*ids*, and the ids of all *rows* derived from any of them, directly or not."""
    gone = set(ids)
    made = {memory.id: sources for memory in rows if (sources := memory.provenance.sources)}
    while more := {one for one, sources in made.items() if one not in gone and not gone.isdisjoint(sources)}:
        gone |= more
    return gone


def describe_memory(memory: Memory) -> str:
    """The text of *memory* with its subject, unless the subject is the caller."""
    if memory.source not in FACTS.sources:
        return memory.content
    subject = memory.provenance.subject
    return f"{'' if subject == _SELF else subject} {_CALLER.sub('', memory.content)}"


def _sentences_about(what: str, found: Iterable[Memory]) -> Mapping[str, Sequence[str]]:
    """For each turn, the sentences that mention *what*; for a paraphrase, all sentences of the message."""
    said: dict[str, list[str]] = {}
    for memory in found:
        if memory.source is Source.VERBATIM:
            each = sentences(memory.content)
            meant = [sentence for sentence in each if holds_words(what, sentence)]
            said.setdefault(memory.provenance.turn, []).extend(meant or each)
    return said


def _taken_from(fact: Memory, said: Iterable[str]) -> bool:
    value = fact.provenance.value
    return bool(value) and any(holds_words(value, sentence) for sentence in said)
