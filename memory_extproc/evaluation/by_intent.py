"""Recall by kind of question: sets whose questions name the pieces that an answer must hold, and the figures.

A set is our JSON lines with other questions. Messages are learned as the sidecar learns them, topics and sessions
are summed up, and each question is asked at its own time:

    {"query": "Where did I live?", "owner": "ida", "id": "ida-q52", "kind": "as of", "asked_at": …,
     "wanted": [{"any": [["Leeds"]], "ids": ["ida-3-4"]}], "serves": ["ida-22-0"], "forbidden": ["Antwerp"]}

A *wanted* piece is there when one line of the block holds every word of one of its alternatives. An empty list
means that the block must be empty. The block is judged as the model reads it, line by line."""

from __future__ import annotations

import re
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from memory_extproc.evaluation.datasets import DatasetError, EvaluationCase, Question, check, conversations_of_lines
from memory_extproc.evaluation.metrics import mean
from memory_extproc.evaluation.runner import Bench, Bounds, Played, Says, wait_filled
from memory_extproc.model import Caller, RecallRequest, RecallResult
from memory_extproc.recall.fusion import Weights
from memory_extproc.recall.intent import INTENTS, QuestionKind
from memory_extproc.recall.recaller import Recaller
from memory_extproc.safety.prompt_injection import neutralize

SINGLE_FACT = "single fact"  # the kind that latency is compared with
HALVES = ("dev.jsonl", "held.jsonl")  # of a folder: the half for fitting, the half that nothing is fitted on
_SHOWN = 60  # characters of a memory by which its line is found
_DATED = re.compile(r"^- (?:\[[^\]]*\] ?)?")  # the date before a line holds numbers that answer nothing
_QUESTION = re.compile(rb'^\s*\{\s*"query"')

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Words = Annotated[str, msgspec.Meta(min_length=1, max_length=400)]
_Alternative = Annotated[tuple[_Words, ...], msgspec.Meta(min_length=1)]


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of an answer. *ids*: the messages that say it. *strict*: its words are common, so that a line of
    another message does not count."""

    any: Annotated[tuple[_Alternative, ...], msgspec.Meta(min_length=1)]
    ids: tuple[_Name, ...] = ()
    strict: bool = False


class IntentQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """*serves*, *helps*: messages and words that are to the point beside the wanted pieces. *forbidden*: words that
    must not stand in a line without a wanted one: outdated values, facts of other people."""

    query: str
    owner: _Name
    id: _Name
    kind: _Name
    asked_at: datetime
    wanted: tuple[Piece, ...]
    serves: tuple[_Name, ...] = ()
    helps: tuple[_Words, ...] = ()
    forbidden: tuple[_Words, ...] = ()


@dataclass(frozen=True, slots=True)
class IntentSet:
    name: str
    people: tuple[tuple[EvaluationCase, tuple[IntentQuestion, ...]], ...]


@dataclass(frozen=True, slots=True)
class JudgedQuestion:
    """A question and its block. *lines*: how many; *serving*: how many of them are to the point; *milliseconds*:
    CPU time of the recall with its embedding, None where it was not taken."""

    question: IntentQuestion
    block: str = field(repr=False)
    answered: bool
    forbidden: bool
    lines: int
    serving: int
    tokens: int
    milliseconds: float | None


def read_intent_set(path: Path, *, held: bool = False) -> IntentSet:
    """The set in *path*; of a folder, the half for fitting or the half *held* back. DatasetError names the line."""
    file = path / HALVES[held] if path.is_dir() else path
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise DatasetError(f"{file}: cannot be read: {error.strerror}") from error
    asks = [_QUESTION.match(line) is not None for line in lines]
    # Blank lines keep the numbers of the others.
    said = conversations_of_lines([b"" if ask else line for line, ask in zip(lines, asks, strict=True)], file.name)
    people: dict[str, list[IntentQuestion]] = {one.name: [] for one in said}
    known = {one.name: set(one.ids) for one in said}
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        if asks[number - 1]:
            question = _question(line, f"{file.name}, line {number}", known, seen)
            people[question.owner].append(question)
    asking = [
        replace(one, questions=tuple(Question(q.id, q.query, frozenset(), q.kind) for q in people[one.name]))
        for one in said
    ]
    check(asking, file.name)
    return IntentSet(file.name, tuple((one, tuple(people[one.name])) for one in asking))


def _question(line: bytes, place: str, known: Mapping[str, set[str]], seen: set[str]) -> IntentQuestion:
    try:
        question = msgspec.json.decode(line, type=IntentQuestion)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DatasetError(f"{place}: {error}") from error  # msgspec names path and kind, never the value
    if question.owner not in known:
        raise DatasetError(f"{place}: owner: no message belongs to {question.owner!r}")
    if question.id in seen:
        raise DatasetError(f"{place}: id: {question.id!r} stands for two questions")
    if question.asked_at.tzinfo is None:
        raise DatasetError(f"{place}: asked_at: expected a time with its zone, such as 2026-03-02T09:00:00Z")
    named = {id_ for piece in question.wanted for id_ in piece.ids} | set(question.serves)
    if unknown := sorted(named - known[question.owner]):
        raise DatasetError(f"{place}: there is no message {unknown[0]!r} of {question.owner!r}")
    seen.add(question.id)
    return question


def sample_set(intents: IntentSet, people: int, per_kind: int) -> IntentSet:
    """The first *people* with at most *per_kind* questions of each kind and as many counterexamples."""
    kept = intents.people[:people]
    kinds: defaultdict[tuple[str, bool], list[str]] = defaultdict(list)
    for _, questions in kept:
        for one in questions:
            kinds[one.kind, bool(one.wanted)].append(one.id)
    chosen = {
        ids[at * len(ids) // count]
        for ids in kinds.values()
        for count in [min(per_kind, len(ids))]
        for at in range(count)
    }
    return IntentSet(
        intents.name, tuple((talk, tuple(one for one in asked if one.id in chosen)) for talk, asked in kept)
    )


async def ask_by_intent(
    intents: IntentSet,
    bench: Bench,
    bounds: Bounds,
    says: Says = lambda _step, _done, _whole: None,
    *,
    timed: bool = True,
) -> list[JudgedQuestion]:
    """Every question, put to the memories of its owner at its time; *timed*: twice, to take the CPU time."""
    judged: list[JudgedQuestion] = []
    embedding: dict[str, float] = {}
    for done, (conversation, questions) in enumerate(intents.people):
        says("learning and asking", done, len(intents.people))
        async with AsyncExitStack() as stack:
            there = await stack.enter_async_context(bench.play(conversation, bench.partition, bench.topics))
            await wait_filled(there, bench.embedder)
            recaller = bench.recaller(there.partitions, bench.embedder, there.clock)
            for question in questions:
                if question.query not in embedding:
                    embedding[question.query] = await _cpu_ms(bench.embedder.embed_query(question.query))
                one = await _ask(question, there, recaller, bounds, embedding[question.query] if timed else None)
                judged.append(one)
    says("learning and asking", len(intents.people), len(intents.people))
    return judged


async def _ask(
    question: IntentQuestion, there: Played, recaller: Recaller, bounds: Bounds, embedding: float | None
) -> JudgedQuestion:
    there.clock.now = question.asked_at.astimezone(UTC)
    request = RecallRequest(
        caller=Caller(there.owner), asked=question.query, limit=bounds.limit, threshold=bounds.threshold
    )
    # The first recall fills caches that a sidecar fills in the background; the second has the query's vector.
    found = await recaller.recall(request)
    took = None if embedding is None else embedding + await _cpu_ms(recaller.recall(request))
    return judge_block(question, found, there, took)


@dataclass(frozen=True, slots=True)
class Shifted:
    """Figures of the questions of a kind that recall reads, by the shift of its gate in log-odds."""

    kind: QuestionKind
    questions: int
    answered: Mapping[float, float]
    precision: Mapping[float, float]
    abstention: Mapping[float, float]

    @property
    def chosen(self) -> float:
        return max(
            SHIFTS,
            key=lambda by: (
                self.answered[by] + self.abstention[by] + _PRECISION * self.precision[by] - _SHIFTING * abs(by)
            ),
        )


SHIFTS = tuple(at / 2 for at in range(-4, 4))
_PRECISION = 0.5  # of a block beside its answers and its silence
_SHIFTING = 0.01  # for each point: equal figures leave the gate as it is
_IMAGINED = 2.0  # questions of either outcome beside those asked, so that five questions do not decide


async def fit_kinds(
    intents: IntentSet,
    weights: Weights,
    bench: Bench,
    bounds: Bounds,
    says: Says = lambda _step, _done, _whole: None,
) -> list[Shifted]:
    """Ask every question under every shift of the gate, and choose a shift for each kind that recall reads."""
    asked: defaultdict[QuestionKind, defaultdict[float, list[JudgedQuestion]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for done, (conversation, questions) in enumerate(intents.people):
        says("gate by kind", done, len(intents.people))
        read = {q.id: INTENTS.read(q.query, (), q.asked_at.date()).intents[:1] for q in questions}
        async with bench.play(conversation, bench.partition, bench.topics) as there:
            await wait_filled(there, bench.embedder)
            for by in SHIFTS:
                shifted = msgspec.structs.replace(weights, kinds=dict.fromkeys(QuestionKind, by))
                recaller = bench.recaller(there.partitions, bench.embedder, there.clock, weights=shifted)
                for question in questions:
                    for intent in read[question.id]:
                        asked[intent.kind][by].append(await _ask(question, there, recaller, bounds, None))
    says("gate by kind", len(intents.people), len(intents.people))
    return [_compare_shifts(kind, by_shift) for kind, by_shift in sorted(asked.items())]


def _compare_shifts(kind: QuestionKind, judged: Mapping[float, Sequence[JudgedQuestion]]) -> Shifted:
    answered, precision, abstention = {}, {}, {}
    for by, ones in judged.items():
        found = _figures_of_kind(ones, None)
        lines = round((found["lines"] or 0.0) * found["questions"])
        answered[by] = _smooth(found["answered"], found["questions"])
        precision[by] = _smooth(found["precision"], lines)
        abstention[by] = _smooth(found["abstention"], found["counterexamples"])
    return Shifted(kind, len(next(iter(judged.values()))), answered, precision, abstention)


def _smooth(share: float | None, count: int) -> float:
    return ((share or 0.0) * count + _IMAGINED) / (count + 2 * _IMAGINED)


async def _cpu_ms(work: Awaitable[object]) -> float:
    """CPU time of the process: other work on the machine does not show in it."""
    started = time.process_time()
    await work
    return (time.process_time() - started) * 1000


def judge_block(
    question: IntentQuestion, found: RecallResult, there: Played, milliseconds: float | None = None
) -> JudgedQuestion:
    """Judge the block in *found* as an answer to *question*."""
    lines = [_Line(line, found, there) for line in found.block.splitlines() if line.startswith("- ")]
    past = question.kind in _OF_THE_PAST
    wanted = [[line.holds(piece) and (past or line.current) for line in lines] for piece in question.wanted]
    to_the_point = {id_ for piece in question.wanted for id_ in piece.ids} | set(question.serves)
    helping = [Piece(any=((word,),)) for word in question.helps]
    holding = [any(row[at] for row in wanted) for at in range(len(lines))]
    serving = sum(
        has or not to_the_point.isdisjoint(line.ids) or any(line.holds(word) for word in helping)
        for has, line in zip(holding, lines, strict=True)
    )
    wrong = [Piece(any=((word,),)) for word in question.forbidden]
    suspect = [line for has, line in zip(holding, lines, strict=True) if not has and line.current]
    forbidden = any(line.holds(word) for line in suspect for word in wrong)
    return JudgedQuestion(
        question=question,
        block=found.block,
        answered=all(map(any, wanted)) and not forbidden if question.wanted else not found.block,
        forbidden=forbidden,
        lines=len(lines),
        serving=serving,
        tokens=found.tokens,
        milliseconds=milliseconds,
    )


_OF_THE_PAST = frozenset({"as of", "by date", "past conversation"})  # answered by what no longer holds, too


class _Line:
    """A line of a block. *ids*: the messages that its memory stands for, where it shows one memory alone."""

    def __init__(self, line: str, found: RecallResult, there: Played) -> None:
        self._text = _DATED.sub("", line).casefold()
        self.current = "no longer" not in line  # says of itself whether it still holds
        shown = [one.memory for one in found.memories if neutralize(one.memory.content)[:_SHOWN] in line]
        self.ids = frozenset(id_ for memory in shown for id_ in there.covers(memory))

    def holds(self, piece: Piece) -> bool:
        if piece.strict and self.ids and self.ids.isdisjoint(piece.ids):
            return False
        return any(all(self._has(word) for word in way) for way in piece.any)

    def _has(self, word: str) -> bool:
        """As whole words: "34" is not in "1,340"."""
        sought = re.escape(neutralize(word).casefold())
        return re.search(rf"(?<!\w)(?<!\d[.,]){sought}(?!\w|[.,]\d)", self._text) is not None


def intent_figures(intents: IntentSet, judged: Sequence[JudgedQuestion]) -> dict[str, Any]:
    """By kind: *answered* (every wanted piece in the block, nothing forbidden), *precision* (of all lines injected
    for them, the share to the point), *abstention* (of counterexamples, the share with no block), *forbidden*,
    *tokens* (of a block) and *latency* (CPU at p50, as a multiple of a single fact's)."""
    kinds: defaultdict[str, list[JudgedQuestion]] = defaultdict(list)
    for one in judged:
        kinds[one.question.kind].append(one)
    plain = _p50(kinds.get(SINGLE_FACT, ()))
    return {
        "dataset": intents.name,
        "people": len(intents.people),
        "questions": len(judged),
        "kinds": {kind: _figures_of_kind(ones, plain) for kind, ones in kinds.items()},
    }


def _figures_of_kind(judged: Sequence[JudgedQuestion], plain: float | None) -> dict[str, Any]:
    asked = [one for one in judged if one.question.wanted]
    empty = [one for one in judged if not one.question.wanted]
    lines = sum(one.lines for one in asked)
    took = _p50(judged)
    return {
        "questions": len(asked),
        "answered": mean([float(one.answered) for one in asked]),
        "precision": sum(one.serving for one in asked) / lines if lines else None,
        "forbidden": mean([float(one.forbidden) for one in asked]),
        "lines": mean([float(one.lines) for one in asked]),
        "tokens": mean([float(one.tokens) for one in asked if one.block]),
        "counterexamples": len(empty),
        "abstention": mean([float(not one.block) for one in empty]),
        "cpu_ms": took,
        "latency": took / plain if took is not None and plain else None,
    }


def _p50(judged: Sequence[JudgedQuestion]) -> float | None:
    times = [one.milliseconds for one in judged if one.milliseconds is not None]
    return statistics.median(times) if times else None
