"""Reconcile facts with the owner's stored memories: store, confirm or replace."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Final, Protocol

import msgspec
from msgspec import Meta

from memory_extproc.concurrency import HELPER_THREAD, HelperThread
from memory_extproc.errors import MemoryExtprocError, PermanentError
from memory_extproc.learn.conflicts import (
    FACTS,
    Add,
    Change,
    Confirm,
    ConflictVerdict,
    Discard,
    Outdate,
    Replace,
    apply_verdicts,
    reconcile_fact,
    unclear,
    with_detail,
    with_swap,
)
from memory_extproc.learn.extract.clauses import LISTS
from memory_extproc.learn.extract.extractor import Fact, FactExtractor
from memory_extproc.learn.extract.llm_client import Budget, LlmPrompt, strict_schema
from memory_extproc.learn.extract.statements import first_person_statements
from memory_extproc.learn.messages import Judges as MessagesJudges
from memory_extproc.learn.messages import judge_turns
from memory_extproc.learn.wording import about, saying
from memory_extproc.model import (
    Embedded,
    Hit,
    Memory,
    MemoryState,
    Owner,
    Provenance,
    Role,
    Scope,
    Source,
    Trust,
    Turn,
    Vector,
    digest,
    format_origin,
    message_id_of,
)
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import CompletionModel, EmbeddingModel, MemoryWriter, Now
from memory_extproc.text.words import content_words, sentence_ends, stem, stems, words_hash

log = logger(__name__)
_NEIGHBOURS = 32  # facts requested from the store for one fact
_ANSWERS = Scope(sources=frozenset({Source.VERBATIM}))
_MOST_BESIDE = 32  # facts of one message that list each other
_MOST_CORRECTED = 16  # turns that a fact names whose words it takes the place of


class ConflictJudge(Protocol):
    """Judges how a fact stands to memories near it, where no rule does."""

    @property
    def version(self) -> str:
        """Version of the prompt, kept with the facts that it judged."""

    async def judge(self, owner: Owner, fact: Fact, memories: Sequence[Memory]) -> Sequence[ConflictVerdict]:
        """The verdicts on *memories*, in their order."""


class ReconcileDecision(StrEnum):
    """The label of reconcile_total, so a value is never renamed."""

    ADDED = "added"
    CONFIRMED = "confirmed"
    REPLACED = "replaced"
    OUTDATED = "outdated"
    QUARANTINED = "quarantined"  # put aside for review
    DISCARDED = "discarded"  # it means something beside a known fact alone, and none was known
    KNOWN = "known"  # stored by an earlier attempt at the same turn


_DECISIONS: Mapping[type[Change], ReconcileDecision] = {
    Add: ReconcileDecision.ADDED,
    Confirm: ReconcileDecision.CONFIRMED,
    Replace: ReconcileDecision.REPLACED,
    Outdate: ReconcileDecision.OUTDATED,
    Discard: ReconcileDecision.DISCARDED,
}


@dataclass(frozen=True, slots=True)
class _Proposed:
    """A fact with the row it would be, and the ids that the other facts of its turn would have."""

    fact: Fact
    row: Memory
    vector: Vector
    beside: tuple[str, ...]
    injected: tuple[str, ...]


def row_of(fact: Fact, turn: Turn, ordinal: int, embed_model: str) -> Memory:
    """The memory of *fact*, the *ordinal*-th of *turn*. The same fact of the same turn has the same id."""
    said = turn.at.replace(microsecond=0)
    keys = [*sorted(about(fact.subject)), "", *sorted(about(fact.attribute)), "", *saying(fact.value)]
    if fact.ends:
        keys.append("ends")
    return Memory(
        id=digest("fact", turn.owner.key, turn.id, *keys),
        owner=turn.owner,
        type=fact.type,
        content=fact.content,
        source=fact.source,
        created_at=said,
        # not the time of writing: a confirmation by a later turn must be newer
        updated_at=said,
        valid_from=said,
        project=turn.project,
        session=turn.session,
        seq=turn.seq,
        role=Role.NONE,
        origin=format_origin(turn.origin),
        importance=fact.importance,
        embed_model=embed_model,
        provenance=Provenance(
            subject=fact.subject,
            attribute=fact.attribute,
            value=fact.value,
            version=fact.version,
            confidence=round(fact.confidence, 3),
            turn=turn.id,
            ordinal=ordinal,
            said=round((fact.began or turn.at).timestamp(), 3),
            drawn_from=fact.drawn_from,
            ends=fact.ends,
            context=fact.context,
            event_date=fact.happens,
            trust=None if fact.trust is Trust.CALLER else fact.trust,
            sensitivity=fact.sensitivity,
            suspicion=fact.suspicion,
            speaker=turn.speaker,
        ),
        state=MemoryState.QUARANTINED if fact.suspicion else MemoryState.ACTIVE,
    )


class Reconciler:
    """Applies facts to an owner's memories in order. A repetition after a crash at any point gives the same
    memories, because a fact's row lists the memories that it replaces."""

    def __init__(
        self,
        keeps: MemoryWriter,
        embedder: EmbeddingModel,
        metrics: Metrics,
        *,
        judges: ConflictJudge | None = None,
    ) -> None:
        self._keeps = keeps
        self._embedder = embedder
        self._metrics = metrics
        self._judges = judges

    async def apply(self, owner: Owner, facts: Sequence[Fact], turns: Sequence[Turn]) -> Counter[ReconcileDecision]:
        """Apply *facts* of *owner*'s *turns*, oldest first, and count the changes. PermanentError for a fact of
        another turn. Errors of store and embedder pass; the whole call can be repeated."""
        return Counter([decision for decision, _ in await self.apply_each(owner, facts, turns)])

    async def apply_each(
        self, owner: Owner, facts: Sequence[Fact], turns: Sequence[Turn]
    ) -> list[tuple[ReconcileDecision, str]]:
        """As `apply`, fact by fact: with the id of the memory that says it. A discarded fact has none."""
        applied: list[tuple[ReconcileDecision, str]] = []
        for proposed in await self._propose_rows(owner, facts, turns):
            decision, memory_id = await self._apply(proposed)
            if decision is not ReconcileDecision.DISCARDED:
                applied.append((decision, memory_id))
            self._metrics.reconcile.labels(decision).inc()
        return applied

    async def _propose_rows(self, owner: Owner, facts: Sequence[Fact], turns: Sequence[Turn]) -> list[_Proposed]:
        if not facts:
            return []
        by_id = {turn.id: turn for turn in turns if turn.owner == owner}
        of_turn: dict[str, list[str]] = {}
        rows: list[Memory] = []
        for fact in facts:
            if fact.turn_id not in by_id:
                raise PermanentError("a fact of a turn that was not given")
            ids = of_turn.setdefault(fact.turn_id, [])
            rows.append(row_of(fact, by_id[fact.turn_id], len(ids), self._embedder.fingerprint))
            ids.append(rows[-1].id)
        vectors = await self._embedder.embed([fact.content for fact in facts])
        return [
            _Proposed(
                fact,
                row,
                vector,
                tuple(id_ for id_ in of_turn[fact.turn_id] if id_ != row.id)[:_MOST_BESIDE],
                by_id[fact.turn_id].injected,
            )
            for fact, row, vector in zip(facts, rows, vectors, strict=True)
        ]

    async def _apply(self, proposed: _Proposed) -> tuple[ReconcileDecision, str]:
        row, owner = proposed.row, proposed.row.owner
        there = next(iter(await self._keeps.get(owner, [row.id])), None)
        if there is not None and there.state is not MemoryState.ACTIVE:
            if there.state is MemoryState.SUPERSEDED:
                await self._retire_words(there, there.superseded_by, there.valid_to or row.created_at, proposed)
            return ReconcileDecision.KNOWN, row.id  # superseded, deleted or put aside since: never brought back
        if row.state is MemoryState.QUARANTINED:
            # A quarantined fact changes nothing: its release is a person's decision.
            await self._keeps.put(owner, [Embedded(row, proposed.vector)])
            return ReconcileDecision.QUARANTINED, row.id
        found = (await self._keeps.nearest(owner, proposed.vector, _NEIGHBOURS, FACTS)).found
        change, judge = await self._change(proposed, found, known=there is not None)
        match change:
            case Confirm(id=confirmed):
                return await self._confirm(proposed, confirmed, found), confirmed
            case Outdate(by=newer, since=since):
                await self._outdate(proposed, newer, since, stored=there is not None)
            case Add() | Replace():
                await self._settle(proposed, change, there, judge)
            case Discard():
                pass
        again = there is not None and isinstance(change, Add | Discard)
        return ReconcileDecision.KNOWN if again else _DECISIONS[type(change)], row.id

    async def _change(self, proposed: _Proposed, found: Sequence[Hit], *, known: bool) -> tuple[Change, str]:
        """The change, with the version of the judge; empty for a rule."""
        change = reconcile_fact(proposed.fact, proposed.row, found, proposed.injected)
        # A stored row holds its verdict; the model might give another verdict this time.
        near = unclear(proposed.row, found) if isinstance(change, Add) and not known else []
        if self._judges is None or not near:
            return change, ""
        try:
            verdicts = await self._judges.judge(proposed.row.owner, proposed.fact, near)
        except MemoryExtprocError as error:
            # The rule's word holds: both stay, which loses nothing.
            log.warning("reconcile.by_rule", error=type(error).__name__)
            return change, ""
        return apply_verdicts(proposed.fact, near, verdicts), self._judges.version

    async def _settle(self, proposed: _Proposed, change: Add | Replace, there: Memory | None, judge: str) -> None:
        row, owner = proposed.row, proposed.row.owner
        replaced = change.ids if isinstance(change, Replace) else ()
        if there is not None:
            replaced = tuple(dict.fromkeys((*there.provenance.replaces, *replaced)))
        before = await self._keeps.get(owner, replaced) if replaced else ()
        if there is None:
            noted = row.provenance.replace(
                beside=proposed.beside, replaces=replaced, corrects=_turns_of(before), judge=judge
            )
            await self._put_with_details(replace(row, provenance=noted), proposed, before)
        # After the put: a crash between the two leaves both, and the next attempt ends here.
        for old in before:
            if old.state is MemoryState.ACTIVE:
                await self._keeps.supersede(owner, old.id, row.id, row.created_at)
            await self._retire_words(old, row.id, row.created_at, proposed)

    async def _put_with_details(self, row: Memory, proposed: _Proposed, before: Sequence[Memory]) -> None:
        """Store *row* with the details of the memories *before* it that still hold."""
        fact, vector, detailed = proposed.fact, proposed.vector, row
        newest_first = sorted(before, key=lambda one: one.valid_from or one.created_at, reverse=True)
        if fact.swaps:
            detailed = with_swap(row, newest_first, fact.lost)
        for old in () if fact.lost else newest_first:
            detailed = with_detail(detailed, old, moved=fact.moved)
        if detailed.content != row.content:
            (vector,) = await self._embedder.embed([detailed.content])
        await self._keeps.put(row.owner, [Embedded(detailed, vector)])

    async def _outdate(self, proposed: _Proposed, newer: str, since: datetime, *, stored: bool) -> None:
        row, owner = proposed.row, proposed.row.owner
        old = replace(row, provenance=row.provenance.replace(beside=proposed.beside))
        for there in await self._keeps.get(owner, [newer]):
            detailed = with_detail(there, old)
            if detailed.content != there.content and there.state is MemoryState.ACTIVE and not proposed.fact.lost:
                noted = detailed.provenance.replace(replaces=(*there.provenance.replaces, row.id))
                (vector,) = await self._embedder.embed([detailed.content])
                await self._keeps.put(owner, [Embedded(replace(detailed, provenance=noted), vector)])
        if stored:
            await self._keeps.supersede(owner, row.id, newer, since)
        else:
            superseded = replace(old, state=MemoryState.SUPERSEDED, superseded_by=newer, valid_to=since)
            await self._keeps.put(owner, [Embedded(superseded, proposed.vector)])
        await self._retire_words(old, newer, since, proposed)

    async def _confirm(self, proposed: _Proposed, confirmed: str, found: Iterable[Hit]) -> ReconcileDecision:
        row = proposed.row
        already = any(one.memory.id == confirmed and one.memory.updated_at >= row.created_at for one in found)
        if already:
            return ReconcileDecision.KNOWN
        turn = proposed.fact.turn_id
        trusted = proposed.fact.trust.covers(Trust.CONFIRMED)
        await self._keeps.confirm(
            row.owner, confirmed, row.created_at, turn=turn, beside=proposed.beside, trusted=trusted
        )
        return ReconcileDecision.CONFIRMED

    async def _retire_words(self, old: Memory, by: str, at: datetime, proposed: _Proposed) -> None:
        """Take the words of *old*, replaced by the fact *by*, out of recall: the caller's and the assistant's."""
        await self._retire_messages(old.owner, old, by, at)
        if proposed.row.id != by or not _contradicts(proposed.fact, old):
            return
        near = (await self._keeps.nearest(old.owner, proposed.vector, _NEIGHBOURS, _ANSWERS)).found
        of_turn = await self._keeps.get(old.owner, [message_id_of(old.owner, turn, 1) for turn in _said_in(old)])
        answers = {memory.id: memory for memory in (*of_turn, *(hit.memory for hit in near))}
        for answer in answers.values():
            if not _may_mention(answer, old, at):
                continue
            rest = without_value(answer.content, old, proposed.fact.value)
            if rest != answer.content:
                await self._retire_sentences(answer, rest, at, by)

    async def _retire_sentences(self, answer: Memory, rest: str, at: datetime, by: str) -> None:
        """Leave *rest* of *answer*, as it holds from now on. The old words stay as history."""
        if not rest:
            await self._keeps.supersede(answer.owner, answer.id, by, at)
            return
        before, after = await self._embedder.embed([answer.content, rest])
        history = replace(
            answer,
            id=digest("version", answer.owner.key, answer.id, by),
            state=MemoryState.SUPERSEDED,
            superseded_by=answer.id,
            valid_to=at,
        )
        whole = answer.provenance.replace(whole=answer.provenance.whole or words_hash(answer.content))
        changed = replace(answer, content=rest, updated_at=max(at, answer.updated_at), provenance=whole)
        await self._keeps.put(answer.owner, [Embedded(history, before), Embedded(changed, after)])

    async def _retire_messages(self, owner: Owner, fact: Memory, by: str, at: datetime) -> None:
        """Takes the messages that said *fact*, which was replaced, out of recall too, where nothing else that was
        learned of them still holds."""
        for turn, beside in _said_in(fact).items():
            message_id = message_id_of(owner, turn, 0)
            rows = {memory.id: memory for memory in await self._keeps.get(owner, [message_id, *beside])}
            message = rows.pop(message_id, None)
            # A fact without a row only confirmed another, which may still hold.
            all_gone = len(rows) == len(beside) and all(
                memory.state is not MemoryState.ACTIVE for memory in rows.values()
            )
            if message is not None and all_gone and _says_no_more(message, [fact, *rows.values()], 1 + len(beside)):
                await self._keeps.supersede(owner, message.id, by, at)


def _said_in(fact: Memory) -> dict[str, tuple[str, ...]]:
    """The turns that said *fact*, each with the facts that it said beside."""
    known = fact.provenance
    return {turn: beside for turn, beside in {known.turn: known.beside, **known.also}.items() if turn}


def _contradicts(fact: Fact, old: Memory) -> bool:
    """Whether the value of *old* holds no longer; more detail of the same takes nothing back."""
    return not set(saying(old.provenance.value)) <= set(saying(fact.value)) or fact.ends


def _may_mention(answer: Memory, old: Memory, until: datetime) -> bool:
    since = old.valid_from or old.created_at
    active = answer.state is MemoryState.ACTIVE and answer.source is Source.VERBATIM
    return (
        active
        and answer.role is Role.ASSISTANT
        and answer.project == old.project
        and since <= answer.created_at <= until
    )


# An answer that relies on a value addresses the caller or announces an action.
_GOES_BY = re.compile(
    r"\b(?:you|your|you're|yours|i'll|i\s+will|i'd|i've|let's|let\s+us|we|we'll|our|noted|based\s+on|given|since|remember\w*|plan\w*"
    r"|du|dein\w*|ihr\w*|sie|ich|tu|vous|votre|ton|ta|je|tus?|su|tienes|voy)\b",
    re.IGNORECASE,
)


def without_value(text: str, old: Memory, new: str) -> str:
    """*text* without the sentences that go by the value of *old*: they name it, and speak to the caller or name the
    thing itself. A sentence that names the *new* value too tells of the change, and stays."""
    value = set(saying(old.provenance.value))
    day = _DAY.search(old.provenance.value)  # an answer may leave the hour and the place out
    telling = (set(saying(day[0])) if day else value) - _VERDICT_WORDS
    if not telling:
        return text
    thing = stems(old.provenance.attribute) - stems(old.provenance.value)
    newer = set(saying(new)) - value
    ends = [0, *sentence_ends(text), len(text)]
    kept = [
        sentence
        for start, end in pairwise(ends)
        if not _goes_by(sentence := text[start:end], telling, thing, newer)
    ]
    return "".join(kept).strip() if len(kept) < len(ends) - 1 else text


_DAY = re.compile(
    r"\b(?:{months}) \d{{1,2}}\b|\b\d{{1,2}}(?:st|nd|rd|th|\.)?(?: of)? (?:{months})\b|\b(?:{days})s?\b".format_map(
        LISTS["words"]
    ),
    re.IGNORECASE,
)


def _goes_by(sentence: str, value: set[str], thing: AbstractSet[str], newer: set[str]) -> bool:
    words = set(saying(sentence))
    if not value <= words or (newer and newer <= words):
        return False
    return _GOES_BY.search(sentence) is not None or bool(thing & stems(sentence))


_VERDICT_WORDS = frozenset(saying("likes dislikes no yes died"))  # values that rules give by themselves
_UNTOLD_WORDS = 3  # by which a message may go beyond its facts: "last month", "moved" for "lives"


def _says_no_more(message: Memory, told: Sequence[Memory], facts: int) -> bool:
    """Whether *message* is complete and says nothing beyond its *facts*, the first of *told*. A model omits
    trifles; rules omit everything they do not understand, so for rules each clause must have produced a fact, with
    no name, no number and at most three words left over."""
    whole = message.source is Source.VERBATIM and message.provenance.piece is None
    if message.state is not MemoryState.ACTIVE or not whole:
        return False
    if told[0].source is Source.LLM:
        return True
    if len(first_person_statements(message.content)) > facts:
        return False
    known = frozenset[str]().union(*(stems(fact.content) for fact in told))
    left = [
        word
        for word in content_words(message.content)
        if stem(word) not in known and not _is_known_number(word, told)
    ]
    names = [
        word
        for word in left
        if any(sign.isdigit() for sign in word)
        or (word[:1].isupper() and not message.content.lstrip().startswith(word))
    ]
    return not names and len(left) <= _UNTOLD_WORDS


def _is_known_number(word: str, told: Sequence[Memory]) -> bool:
    keys = set(saying(word))
    return any(keys <= set(saying(fact.content)) for fact in told)


def _turns_of(facts: Iterable[Memory]) -> tuple[str, ...]:
    """The turns behind *facts*, and behind the facts that these replaced: their words are outdated."""
    turns: dict[str, None] = {}
    for fact in facts:
        known = fact.provenance
        turns |= dict.fromkeys(one for one in (known.turn, *known.corrects, *known.also) if one)
    return tuple(turns)[:_MOST_CORRECTED]


# A language model judges whether a fact changes existing memories. Its answer is checked number by number.

PROMPT: Final = "reconcile-1"


class OfNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    note: Annotated[int, Meta(ge=1)]  # its number in the list we showed: models invent ids
    verdict: ConflictVerdict


class Verdicts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    verdicts: tuple[OfNote, ...]


_DECODER = msgspec.json.Decoder(Verdicts)


class LlmJudge:
    """Implements ConflictJudge."""

    version = PROMPT

    def __init__(self, completes: CompletionModel, budget: Budget) -> None:
        self._asks = LlmPrompt(completes, PROMPT, strict_schema(Verdicts), budget)

    async def judge(self, owner: Owner, fact: Fact, memories: Sequence[Memory]) -> Sequence[ConflictVerdict]:
        """As ConflictJudge.judge. PermanentError if two answers did not judge every note once, OverBudgetError if
        the owner's tokens are spent; errors of the model's port pass."""
        lines: list[dict[str, object]] = [{"fact": fact.content}]
        lines += [
            {"note": at, "date": f"{memory.created_at:%Y-%m-%d}", "says": memory.content}
            for at, memory in enumerate(memories, start=1)
        ]
        shown = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
        return await self._asks.answer(owner, shown, _parser(len(memories)))


def _parser(notes: int) -> Callable[[bytes], Sequence[ConflictVerdict]]:
    def parse(answer: bytes) -> Sequence[ConflictVerdict]:
        found = _DECODER.decode(answer).verdicts
        by_note = {one.note: one.verdict for one in found}
        if len(found) != notes or set(by_note) != set(range(1, notes + 1)):
            raise msgspec.ValidationError(f"each of the notes 1 to {notes} needs one verdict - at `$.verdicts`")
        return [by_note[note] for note in range(1, notes + 1)]

    return parse


# Predict the memories of waiting turns, so that a forget reaches them before they are stored.


class ComingMemories:
    """Implements erasure.eraser.ForeseesMemories, with the ids that the memories will have."""

    def __init__(
        self,
        judged: MessagesJudges,
        rules: FactExtractor,
        *,
        by_rules_alone: bool,
        now: Now,
        helper: HelperThread = HELPER_THREAD,
    ) -> None:
        """*by_rules_alone*: no model extracts facts; facts of a model cannot be predicted."""
        self._judged, self._rules, self._now, self._helper = judged, rules, now, helper
        self.complete = by_rules_alone

    async def foresee_messages(self, turns: Sequence[Turn]) -> Sequence[Memory]:
        judged = await judge_turns(self._judged, turns, self._now(), self._helper)
        return [one.memory for all_of_it in judged for one in all_of_it if one.memory is not None]

    async def foresee_facts(self, turns: Sequence[Turn]) -> Sequence[Memory]:
        by_id = {turn.id: turn for turn in turns}
        found = await self._rules.extract(sorted(turns, key=lambda turn: (turn.at, turn.seq)))
        return [row_of(fact, by_id[fact.turn_id], place, "") for place, fact in enumerate(found)]
