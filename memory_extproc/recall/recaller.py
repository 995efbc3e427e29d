"""The read path: gate, query, embed, search, rank, block, under a common deadline.

Every failure here is an outcome and a log line: the request goes on unchanged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import numpy as np

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.model import (
    Candidates,
    Memory,
    Outcome,
    Owner,
    Ranked,
    RecallRequest,
    RecallResult,
    RecallTrace,
    Scope,
    SearchQuery,
    Signals,
    Source,
    TracedMemory,
    Vector,
    trust_of,
)
from memory_extproc.observe.log import NO_TRACES, Traces, exemplar, logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import (
    EmbeddingModel,
    MemorySearcher,
    MemorySelector,
    Now,
    QueryGate,
    SignalClassifier,
    TurnLearner,
)
from memory_extproc.recall.asked import Lookup, least_trust, refers_to, said_by_owner
from memory_extproc.recall.candidate import Candidate, Considered, Explanation, Verdict
from memory_extproc.recall.dedup import with_answers, with_corrections, without_former
from memory_extproc.recall.examples import IntentExamples
from memory_extproc.recall.fusion import Fused, Fusion
from memory_extproc.recall.intent import (
    INTENTS,
    NOTHING_READ,
    Intent,
    IntentLexicon,
    QuestionKind,
    Reading,
)
from memory_extproc.recall.late_interaction import FIRST_READ, LateInteractionScorer, QuestionTraits
from memory_extproc.recall.lookup import Lookups
from memory_extproc.recall.prompt_block import OPENING, OPENING_AGAIN, render, smallest
from memory_extproc.recall.query import (
    AboutCaller,
    PendingEmbeddings,
    QueryTexts,
    Rewriter,
    gate,
    merge_rankings,
    plain_query,
    read_instant,
    read_period,
    search_shared,
)
from memory_extproc.recall.rank import (
    HALF_LIFE,
    choose_ranked,
    diversify_mmr,
    gained_by_rating,
    lost_to_age,
    most_lost,
    raise_for_caller,
    reaching,
    weigh,
)
from memory_extproc.recall.rerank import Reranker
from memory_extproc.recall.topic_context import Ongoing, ThreadFetcher, with_threads
from memory_extproc.safety.operator_rules import NO_PATTERNS, BlockPatterns, may_be_injected
from memory_extproc.text.intents import polite, split_questions, vague
from memory_extproc.text.persons import about_caller

log = logger(__name__)

Clock = Callable[[], float]  # seconds, monotonic


@dataclass(frozen=True, slots=True)
class RecallLimits:
    """Bounds of a recall."""

    deadline: timedelta = timedelta(milliseconds=150)  # the whole read path; below Envoy's message_timeout
    settle: timedelta = timedelta(milliseconds=50)  # most to wait until the caller's last turn can be found
    max_concurrent: int = 64
    candidates: int = 100  # memories asked of the search, before ranking
    token_budget: int = 512  # estimated tokens of a block
    overview_budget: int = 1024  # estimated tokens of a block with everything there is on a subject
    threshold_on_cosine: bool = False
    half_life: timedelta = HALF_LIFE  # after which a message has lost half of the largest loss by age
    take_apart: bool = False  # search for the parts of a question for several things, too
    never_inject: BlockPatterns = NO_PATTERNS  # matching memories stay out of every block
    traced: bool = False  # each result carries its trace
    mmr_lambda: float | None = None  # in [0, 1]: how much relevance counts beside variety; None: alone


@dataclass(frozen=True, slots=True)
class _Found:
    """The result of the search for a request; the candidates best first."""

    query: QueryTexts
    candidates: Sequence[Candidate]
    worth: float
    total: int | None
    path: str
    reading: Reading = NOTHING_READ
    lookup: Lookup | None = None  # None: plain search


@dataclass(frozen=True, slots=True)
class _Question:
    """A query text with its own features."""

    text: str
    most_lost: float  # points of score, to age
    asks: QuestionTraits | None  # None: nothing is read closely


class Recaller:
    """Implements ports.MemoryRecaller."""

    def __init__(
        self,
        finds: MemorySearcher,
        embedder: EmbeddingModel,
        limits: RecallLimits,
        *,
        fusion: Fusion,
        now: Now,
        metrics: Metrics,
        about_caller: AboutCaller,
        learns: TurnLearner | None = None,
        rewriter: Rewriter | None = None,
        reranker: Reranker | None = None,
        close_reader: LateInteractionScorer | None = None,
        threads: ThreadFetcher | None = None,
        ongoing: Ongoing | None = None,
        selects: MemorySelector | None = None,
        classifier: SignalClassifier | None = None,
        intents: IntentLexicon = INTENTS,
        examples: IntentExamples | None = None,
        traces: Traces = NO_TRACES,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._finds, self._embedder, self._limits = finds, embedder, limits
        self._begins = embedder if isinstance(embedder, QueryGate) else None
        self._learns, self._about_caller = learns, about_caller
        self._rewriter, self._reranker, self._close_reader = rewriter, reranker, close_reader
        self._threads, self._ongoing, self._classifier = threads, ongoing, classifier
        reads = None if examples is None else examples.told_by
        self._lookups = None if selects is None else Lookups(selects, reads)
        self._intents, self._examples = intents, None if selects is None else examples
        self._now, self._clock, self._metrics = now, clock, metrics
        self._fusion, self._traces = fusion, traces
        self._running = 0
        self._stages = {
            stage: metrics.recall_seconds.labels(stage)
            for stage in ("gate", "query", "embed", "search", "rank", "total")
        }

    def reconfigure(self, limits: RecallLimits, about_caller: AboutCaller) -> None:
        """Apply to recalls from now on. A recall under way may end under the new limits."""
        self._limits, self._about_caller = limits, about_caller

    async def recall(self, wish: RecallRequest) -> RecallResult:
        """Recall for a request; never raises for a fault of store, model or time."""
        if self._running >= self._limits.max_concurrent:
            return RecallResult(outcome=Outcome.OVERLOADED)
        started = self._clock() - wish.spent.total_seconds()
        self._running += 1
        self._metrics.recalls_running.set(self._running)
        stages: dict[str, float] | None = {} if self._limits.traced else None
        token = _STAGES.set(stages)
        try:
            recalled = await self._within_deadline(wish, started)
        finally:
            _STAGES.reset(token)
            self._running -= 1
            self._metrics.recalls_running.set(self._running)
        took = self._clock() - started
        self._stages["total"].observe(took, exemplar())
        if recalled.path:
            self._metrics.recall_path.labels(recalled.path).inc()
        if recalled.outcome is Outcome.USED:
            self._metrics.recall_injected.observe(len(recalled.memories))
            self._metrics.injected_tokens.observe(recalled.tokens)
        trace = recalled.trace
        if stages is not None:
            stages["total"] = took
            trace = trace or RecallTrace(threshold=wish.threshold, stages=stages)
        return replace(recalled, took=timedelta(seconds=took), trace=trace)

    async def _within_deadline(self, wish: RecallRequest, started: float) -> RecallResult:
        with self._time_stage("gate"):
            skip, _ = await self._check_gate(wish, (self._limits.deadline - wish.spent) * CLASSIFY_SHARE)
        if skip is not None:
            return RecallResult(outcome=skip)
        budget = self._budget(wish)
        if budget < smallest():
            return RecallResult(outcome=Outcome.NO_ROOM)
        try:
            async with asyncio.timeout((self._limits.deadline - wish.spent).total_seconds()):
                return await self._search_and_select(wish, started)
        except TimeoutError:
            log.warning("recall.out_of_time", deadline_ms=self._limits.deadline / timedelta(milliseconds=1))
            return RecallResult(outcome=Outcome.OUT_OF_TIME)
        except (TransientError, PermanentError) as error:
            log.warning("recall.unavailable", kind=type(error).__name__, detail=str(error))
            return RecallResult(outcome=Outcome.UNAVAILABLE)

    async def explain(self, wish: RecallRequest) -> Explanation:
        """Explain the steps of `recall` for *wish*. Not bounded by the deadline, counted in no metric but
        the stages', and it lets faults of the store out (TransientError, PermanentError)."""
        skip, by = await self._check_gate(wish, self._limits.deadline)
        if skip is not None:
            return Explanation(outcome=skip, gate=skip, notes=(by,) if by else ())
        started = self._clock()
        found = await self._search_all(wish, started, lambda: UNHURRIED)
        found = await self._rerank(wish, found, UNHURRIED)
        weighed = await self._weigh_candidates(wish, found, UNHURRIED, whole=True)
        ranked = await self._add_topic_messages(wish, found, choose_ranked(weighed), UNHURRIED)
        recalled = self._build_result(wish, found, ranked, weighed)
        kept = {one.memory.id for one in recalled.memories}
        return Explanation(
            outcome=recalled.outcome,
            query=found.query.text,
            path=found.path,
            total=found.total,
            worth=found.worth,
            considered=tuple(_with_room(with_threads(weighed, ranked), kept)),
            block=recalled.block,
            kind="" if found.lookup is None else found.lookup.intent.kind.value,
            notes=(*((by,) if by else ()), *found.reading.notes),
        )

    async def _check_gate(self, wish: RecallRequest, within: timedelta) -> tuple[Outcome | None, str]:
        """The reason for skipping the search, or None, and the source of the decision: the request's signals, the
        router's classifier, or our own rules. The classifier is asked where signals and rules leave it open."""
        if wish.force:
            return None, ""
        skip = gate(wish.question, wish.signals, self._about_caller)
        said = wish.signals != Signals()
        if skip is not None or wish.signals.fact is not None or self._classifier is None:
            source, note = ("request", "signals: from the request") if said else ("rules", "")
        else:
            fact, outcome = await self._classifier.is_fact(wish.question, within)
            skip = gate(wish.question, replace(wish.signals, fact=fact), self._about_caller)
            source = "rules" if fact is None else "classifier"
            found = {None: "says nothing", True: "a question of fact", False: "no question of fact"}[fact]
            note = f"signals: the classifier {found} ({outcome})" if outcome else ""
        self._metrics.signals.labels(source).inc()
        return skip, note

    async def _search_and_select(self, wish: RecallRequest, started: float) -> RecallResult:
        found = await self._search_all(wish, started, lambda: self._time_left(started) * SHARED_SHARE, settles=True)
        found = await self._rerank(wish, found, self._time_left(started))
        with self._time_stage("rank"):
            self._metrics.recall_candidates.observe(len(found.candidates))
            within = self._time_left(started) * ONGOING_SHARE
            weighed = await self._weigh_candidates(wish, found, within, whole=False)
            ranked = await self._add_topic_messages(
                wish, found, choose_ranked(weighed), self._time_left(started) * THREAD_SHARE
            )
            seen = frozenset(one.memory.id for one in weighed if one.verdict is Verdict.IN_VIEW)
            recalled = self._build_result(wish, found, ranked, weighed)
            stages = _STAGES.get()
            trace = None if stages is None else self._trace(wish, found, recalled, weighed, ranked, stages)
            return replace(recalled, in_view=seen, trace=trace)

    async def _add_topic_messages(
        self, wish: RecallRequest, found: _Found, ranked: tuple[Ranked, ...], within: timedelta
    ) -> tuple[Ranked, ...]:
        lookup = found.lookup
        if self._threads is None or (lookup is not None and lookup.alone and not lookup.opens):
            return ranked
        whole = lookup is not None and lookup.opens
        extended = await self._threads.add_messages(
            ranked, wish.question, wish.in_view, self._now(), within, whole=whole
        )
        least = least_trust(wish.question, found.reading)
        return tuple(one for one in extended if self._may_inject(one.memory) and trust_of(one.memory).covers(least))

    async def _search_all(
        self, wish: RecallRequest, started: float, patience: Callable[[], timedelta], *, settles: bool = False
    ) -> _Found:
        """As `_search`; of two questions, what each finds by itself, as long as half of the deadline is left."""
        parts = () if self._lookups is None else split_questions(wish.question)
        found: list[tuple[RecallRequest, _Found]] = []
        for one in (replace(wish, asked=part) for part in parts):
            if found and self._time_left(started) < self._limits.deadline * PARTS_SHARE:
                break
            found.append((one, await self._search(one, started, patience, settles=settles and not found)))
        memories = {memory.id: memory for one, of_part in found for memory in self._answering(one, of_part)}
        if not memories and not (found and self._time_left(started) < self._limits.deadline * PARTS_SHARE):
            return await self._search(wish, started, patience, settles=settles and not found)
        if not memories:
            return found[0][1]
        intent = next((of.lookup.intent for _, of in found if of.lookup is not None), Intent(QuestionKind.INDIRECT))
        whole = any(of.lookup is not None and of.lookup.all_of_it for _, of in found)
        return replace(found[0][1], lookup=Lookup(intent, tuple(memories.values()), alone=True, all_of_it=whole))

    def _answering(self, wish: RecallRequest, found: _Found) -> Sequence[Memory]:
        """The memories that answer one of several questions."""
        if found.lookup is not None:
            return found.lookup.memories
        if self._is_general(wish, found):
            return ()
        passing = reaching(found.candidates, wish.threshold, on_cosine=self._limits.threshold_on_cosine)
        return [one.memory for one in passing[: wish.limit]]

    async def _search(
        self, wish: RecallRequest, started: float, patience: Callable[[], timedelta], *, settles: bool = False
    ) -> _Found:
        """*patience*: for the memories of others, once the caller's own are found. *settles*: wait for the caller's
        last turn."""
        then = read_instant(wish.as_of, self._now())
        asked_for = then or read_period(wish.question, self._now())
        wish = replace(wish, scope=replace(wish.scope, as_of=asked_for))
        with self._time_stage("query"):
            reading = self._read_intents(wish)
            if wish.as_of and then is None:
                log.info("recall.as_of_ignored")
                reading = replace(reading, notes=(*reading.notes, AS_OF_UNREADABLE))
        if settles:
            await self._settle(wish)
        if self._lookups is not None and reading.intents:
            with self._time_stage("search"):
                lookup = await self._lookups.before_search(wish, reading, self._now())
            if lookup is not None:
                return _Found(QueryTexts(wish.question), (), 1.0, None, "lookup", reading, lookup)
        with self._time_stage("query"):
            query = await self._query(wish, started)
        texts = query.texts
        async with PendingEmbeddings(
            self._vectors(query, self._time_left(started) * EMBED_SHARE), self._clock
        ) as coming:
            if self._begins is not None:
                await self._begins.wait_begun()
            # The words of the question are read while the vectors are made; only the search remains then.
            questions = [self._question(text) for text in texts]
            with self._time_stage("search", lambda: coming.there):
                own = self._searched_for(wish.caller.owner, wish, texts, coming, wish.scope)
                # A shared owner is a project itself: the restriction of the caller's own memories does not apply.
                scope = replace(wish.scope, project="")
                others = {owner: self._searched_for(owner, wish, texts, coming, scope) for owner in wish.shared}
                searches, shared = await search_shared(own, others, patience, self._metrics)
                whose = [await self._read(questions, found) for found in (searches, *shared)]
        with self._time_stage("rank"):
            kind = reading.intents[0].kind if reading.intents else None
            fused = [self._fuse(*pair, kind) for found in whose for pair in zip(questions, found, strict=True)]
        totals = [found[0].total for found in whose]
        rankings = [one.candidates for one in fused if one.candidates]
        candidates: Sequence[Candidate] = rankings[0] if len(rankings) == 1 else merge_rankings(rankings)
        if then is not None:
            candidates = [
                one for one in candidates if (one.memory.valid_from or one.memory.created_at) < then.until
            ]
        reading, lookup = await self._look_up(wish, reading, candidates, coming)
        if lookup is None:
            searched = max(found[0].searched for found in whose)
            candidates = raise_for_caller(wish.question, reading, candidates, searched)
        return _Found(
            query=query,
            candidates=candidates,
            worth=max(one.worth for one in fused),
            total=None if None in totals else sum(total for total in totals if total is not None),
            path=searches[0].path,
            reading=reading,
            lookup=lookup,
        )

    async def _look_up(
        self, wish: RecallRequest, reading: Reading, candidates: Sequence[Candidate], coming: PendingEmbeddings
    ) -> tuple[Reading, Lookup | None]:
        """The lookup of *reading*, or, where no pattern matched, of the reading by examples."""
        if self._lookups is None:
            return reading, None
        with self._time_stage("search"):
            looked_up = reading
            if self._examples is not None and self._examples.may_read(reading):
                vector, today = await coming.at(0), self._now().date()
                reading = self._examples.reread(reading, wish.question, vector, self._intents, today)
            again = reading is looked_up
            lookup = await self._lookups.after_search(wish, reading, candidates, self._now(), again=again)
            lookup = lookup or await self._lookups.without_kind(wish, candidates, self._now())
        if not reading.intents:
            return reading, lookup
        if reading.intents[0].kind is QuestionKind.SUBJECT and not (lookup and lookup.memories):
            reading = replace(reading, notes=(*reading.notes, SUBJECT_UNKNOWN))
        return reading, lookup

    def _read_intents(self, wish: RecallRequest) -> Reading:
        if self._lookups is None:
            return NOTHING_READ
        return self._intents.read(wish.question, wish.earlier, self._now().date())

    async def _searched_for(
        self, owner: Owner, wish: RecallRequest, texts: Sequence[str], coming: PendingEmbeddings, scope: Scope
    ) -> Sequence[Candidates]:
        most = max(self._limits.candidates, wish.limit)
        return [
            await self._finds.candidates(owner, SearchQuery(text), most, scope, partial(coming.at, place))
            for place, text in enumerate(texts)
        ]

    def _question(self, text: str) -> _Question:
        asks = None if self._close_reader is None else QuestionTraits.of(text)
        return _Question(text, most_lost(text, self._now().date()), asks)

    async def _read(self, questions: Sequence[_Question], searches: Sequence[Candidates]) -> Sequence[Candidates]:
        """*searches* as they are, or read closely as far as their words are at hand."""
        if (reader := self._close_reader) is None:
            return searches
        whose = []
        for asked, found in zip(questions, searches, strict=True):
            if not self._fusion.suits_reading(found):
                whose.append(found)
                continue
            first = self._fusion.likeliest(found, FIRST_READ)
            read = await reader.read(asked.text, first, asked.asks)
            whose.append(found if read is first else read)
        return whose

    def _fuse(self, question: _Question, found: Candidates, kind: QuestionKind | None) -> Fused:
        lost = lost_to_age(question.most_lost, found.memories, self._now(), self._limits.half_life)
        lost = lost - gained_by_rating(found.memories)
        return self._fusion.fuse(found, lost, kind)

    async def _settle(self, wish: RecallRequest) -> None:
        """Lets the caller's turn of a moment ago be findable first, for as long as that stays cheap."""
        if self._learns is None:
            return
        try:
            async with asyncio.timeout(self._limits.settle.total_seconds()):
                await self._learns.wait_visible(wish.caller)
                if wish.learned_as is not None:
                    await self._learns.wait_visible(wish.learned_as)
        except TimeoutError:
            log.info("recall.not_settled")

    async def _query(self, wish: RecallRequest, started: float) -> QueryTexts:
        if self._rewriter is None:
            return plain_query(wish.question, wish.earlier, take_apart=self._limits.take_apart)
        share = REWRITE_SHARE if self._reranker is None else REWRITE_SHARE_BESIDE_RERANK
        within = max(self._time_left(started) * share, timedelta())
        return await self._rewriter.query(wish.question, wish.earlier, within)

    async def _vectors(self, query: QueryTexts, within: timedelta) -> Sequence[Vector | None]:
        """Embed the query's texts. None for each text if the model fails or takes too long: the search by words
        alone is nearly as good, and in time."""
        others = (self._embedder.embed_query(text) for text in query.others)
        try:
            with self._time_stage("embed"):
                async with asyncio.timeout(within.total_seconds()):
                    if not query.others:
                        return [await self._vector(query)]
                    return await asyncio.gather(self._vector(query), *others)
        except TimeoutError:
            log.warning("recall.embedding_late", within_ms=round(within / timedelta(milliseconds=1)))
        except (TransientError, PermanentError) as error:
            log.warning("recall.embedding_failed", kind=type(error).__name__, detail=str(error))
        return [None] * len(query.texts)

    async def _vector(self, query: QueryTexts) -> Vector:
        if not query.supposed:
            return await self._embedder.embed_query(query.text)
        asked, supposed = await asyncio.gather(
            self._embedder.embed_query(query.text), self._embedder.embed_query(query.supposed)
        )
        mean = asked + supposed
        length = float(np.linalg.norm(mean))
        return asked if length == 0.0 else np.asarray(mean / length, dtype=np.float32)

    async def _rerank(self, wish: RecallRequest, found: _Found, left: timedelta) -> _Found:
        """The candidates in the order of the reranker, if a reranker is configured and in time."""
        on_cosine = self._limits.threshold_on_cosine
        relevant = any(one.standing(on_cosine=on_cosine) >= wish.threshold for one in found.candidates)
        if self._reranker is None or not relevant:  # candidates that stay out need no order
            return found
        reranked = await self._reranker.rerank(found.query.text, found.candidates, left)
        return found if reranked is None else replace(found, candidates=reranked, path="rerank")

    async def _weigh_candidates(
        self, wish: RecallRequest, found: _Found, within: timedelta, *, whole: bool
    ) -> list[Considered]:
        on_cosine, candidates, limit = self._limits.threshold_on_cosine, found.candidates, wish.limit
        threshold = _UNREACHABLE if self._is_general(wish, found) else wish.threshold
        if (lookup := found.lookup) is not None:
            looked = lookup.candidates
            there = {one.memory.id for one in looked}
            limit = self._limit(wish, lookup)
            beside = [] if lookup.alone else [one for one in candidates if one.memory.id not in there]
            first = reaching(beside, threshold, on_cosine=on_cosine)[
                : 0 if lookup.leads else max(min(limit, _AHEAD) - len(looked), min(limit, _AHEAD) // 2)
            ]
            ahead = {one.memory.id for one in first}
            candidates = [*first, *looked, *(one for one in beside if one.memory.id not in ahead)]
        barred = [one for one in candidates if not self._may_inject(one.memory)]
        candidates = [one for one in candidates if one not in barred]
        told = frozenset[str]()
        if self._ongoing is not None:
            relevant = [one.memory for one in reaching(candidates, threshold, on_cosine=on_cosine)]
            told = await self._ongoing.find_in_view(relevant, wish, within)
        if (balance := self._limits.mmr_lambda) is not None:
            candidates = diversify_mmr(candidates, balance, limit, threshold, on_cosine=on_cosine)
        if not on_cosine:  # no cosine connects a correction with the corrected message
            candidates = with_answers(with_corrections(candidates, threshold), threshold)
        former: Sequence[Candidate] = ()
        if not (wish.scope.as_of or self._intents.asks_of_past(wish.question, found.reading)):
            candidates, former = without_former(candidates, threshold)
        # A question for everything gets a summary beside the messages under it.
        apart = lookup is not None and lookup.all_of_it
        asked = "" if apart and lookup and lookup.intent.kind is QuestionKind.SUBJECT else wish.question
        least = least_trust(wish.question, found.reading)
        sorts = [
            [one for one in candidates if apart and one.memory.source is Source.SUMMARY],
            [one for one in candidates if not (apart and one.memory.source is Source.SUMMARY)],
        ]
        weighed = [
            considered
            for several in sorts
            for considered in weigh(
                several,
                now=self._now(),
                threshold=threshold,
                limit=limit,
                on_cosine=on_cosine,
                asked=asked,
                in_view=wish.in_view,
                seen=told,
                whole=whole,
                least=least,
            )
        ]
        left_out = [(one, Verdict.BLOCKED) for one in barred] + [(one, Verdict.NOT_RECALLABLE) for one in former]
        return [*weighed, *(Considered(one.memory, one.score, one.relevance, verdict) for one, verdict in left_out)]

    def _may_inject(self, memory: Memory) -> bool:
        return may_be_injected(memory.content, self._limits.never_inject)

    def _trace(
        self,
        wish: RecallRequest,
        found: _Found,
        recalled: RecallResult,
        weighed: Sequence[Considered],
        ranked: tuple[Ranked, ...],
        stages: Mapping[str, float],
    ) -> RecallTrace:
        """Build the trace from *weighed*, then from the best candidates that *weighed* leaves out."""
        kept = {one.memory.id for one in recalled.memories}
        weighed = with_threads(weighed, ranked)[:MOST_TRACED]
        shown = {one.memory.id: one for one in _with_room(weighed, kept)}
        traced = [TracedMemory(one.memory, one.score, one.relevance, one.verdict) for one in shown.values()]
        now = self._now()
        for one in found.candidates[: MOST_TRACED + len(shown)]:
            if len(traced) == MOST_TRACED:
                break
            if one.memory.id not in shown:
                reaches = one.standing(on_cosine=self._limits.threshold_on_cosine) >= wish.threshold
                verdict = Verdict.OVER_LIMIT if reaches else Verdict.BELOW_THRESHOLD
                if not one.memory.recallable(now):
                    verdict = Verdict.NOT_RECALLABLE
                traced.append(TracedMemory(one.memory, one.score, one.relevance, verdict))
        return RecallTrace(
            considered=tuple(traced),
            kind="" if found.lookup is None else found.lookup.intent.kind.value,
            total=found.total,
            worth=found.worth,
            threshold=wish.threshold,
            stages=stages,
        )

    def _is_general(self, wish: RecallRequest, found: _Found) -> bool:
        """Whether the message only thanks, or is about the world: by its form, or because it is not about the
        caller, of no kind, and refers to nothing in the candidates that pass the threshold."""
        if found.lookup or not wish.threshold or self._lookups is None:
            return False
        passing = reaching(found.candidates, wish.threshold, on_cosine=self._limits.threshold_on_cosine)
        said = [one.memory.content for one in passing if said_by_owner(one.memory)]
        if polite(wish.question) or self._intents.asks_of_world(wish.question, said):
            return True
        if found.reading.intents or about_caller(wish.question) or (wish.earlier and vague(wish.question)):
            return False
        return not refers_to(wish.question, said, [one.memory.content for one in passing])

    def _time_left(self, started: float) -> timedelta:
        """Time until the deadline."""
        return self._limits.deadline - timedelta(seconds=self._clock() - started)

    def _limit(self, wish: RecallRequest, lookup: Lookup) -> int:
        """Memories in the block. A limit that the request or a rule names holds for every kind of question."""
        if wish.limited:
            return wish.limit
        count = len(lookup.memories)
        if not lookup.leads:
            return wish.limit + count
        return count if lookup.all_of_it else max(wish.limit, count)

    def _build_result(
        self, wish: RecallRequest, found: _Found, ranked: tuple[Ranked, ...], weighed: Sequence[Considered]
    ) -> RecallResult:
        if found.total == 0:
            return RecallResult(outcome=Outcome.EMPTY, path=found.path)
        opening, lookup = OPENING_AGAIN if wish.continues else OPENING, found.lookup
        if lookup is None:
            block = render(ranked, self._budget(wish), opening)
        else:
            block = render(
                ranked,
                self._budget(wish, whole=lookup.all_of_it),
                opening,
                headings=lookup.headings,
                longest=SHORT_MESSAGE if lookup.all_of_it else None,
                statements=lookup.intent.kind is QuestionKind.OVERVIEW,
                counts_rest=lookup.all_of_it and lookup.intent.kind in _COUNTED,
                beyond=sum(one.verdict is Verdict.OVER_LIMIT for one in weighed) if wish.limited else 0,
            )
        if not block.kept:
            outcome = Outcome.NO_ROOM if ranked else Outcome.NOTHING_RELEVANT
            return RecallResult(outcome=outcome, path=found.path)
        return RecallResult(
            outcome=Outcome.USED, block=block.text, memories=block.kept, path=found.path, tokens=block.tokens
        )

    def _budget(self, wish: RecallRequest, *, whole: bool = False) -> int:
        """Tokens of the block at most; *whole*: it answers a question for everything on a subject."""
        budget = self._limits.token_budget if wish.budget is None else wish.budget
        overview = self._limits.overview_budget if whole and wish.budget is None else 0
        most = max(budget, overview)
        return most if wish.room is None else min(most, wish.room)

    @contextmanager
    def _time_stage(self, stage: str, since: Callable[[], float] = lambda: 0.0) -> Iterator[None]:
        """*since*: returns a later start of the stage, known only at its end."""
        started = self._clock()
        try:
            with self._traces.stage(stage):
                yield
        finally:
            took = self._clock() - max(started, since())
            self._stages[stage].observe(took, exemplar())
            if (stages := _STAGES.get()) is not None:
                stages[stage] = stages.get(stage, 0.0) + took


def _with_room(weighed: Iterable[Considered], kept: AbstractSet[str]) -> Iterator[Considered]:
    """Mark chosen candidates that are not among *kept* as without room."""
    for one in weighed:
        missed = one.verdict in _CHOSEN and one.memory.id not in kept
        yield replace(one, verdict=Verdict.NO_ROOM) if missed else one


# Seconds by stage of the current recall, if its trace is kept.
_STAGES: ContextVar[dict[str, float] | None] = ContextVar("stages", default=None)
MOST_TRACED = 24  # candidates
UNHURRIED = timedelta(minutes=1)  # for a reranker without a waiting request
SHARED_SHARE = 0.5  # of the time left after the caller's own memories, for shared memories
_AHEAD = 5  # places of the ranking before a lookup that does not lead, less the lookup's, at least half
_UNREACHABLE = 2.0  # a threshold that no relevance reaches
AS_OF_UNREADABLE = "as_of is ignored: expected a time that is over, in RFC 3339, such as 2026-03-02T09:00:00Z"
SUBJECT_UNKNOWN = "no memory mentions the subject of the question"
SHORT_MESSAGE = 110  # characters of a message among many
# Kinds whose block tells how many memories did not fit.
_COUNTED = frozenset(
    {QuestionKind.LIST, QuestionKind.MENTIONED, QuestionKind.DATED, QuestionKind.OVERVIEW, QuestionKind.SUBJECT}
)
_CHOSEN = frozenset({Verdict.INJECTED, Verdict.THREAD})
ONGOING_SHARE = 0.3  # of the time left, for finding the summaries of this conversation
THREAD_SHARE = 0.5  # of the time left, for the words of topics
CLASSIFY_SHARE = 0.3  # of the deadline, for a router's classifier
PARTS_SHARE = 0.5  # of the deadline, left for a further search where a message asks several questions
EMBED_SHARE = 0.6  # of the time left, for the embedding model, so that a search by words remains possible
REWRITE_SHARE = 0.7  # of the time left, for a model that rewrites, so that the search keeps the rest
REWRITE_SHARE_BESIDE_RERANK = 0.5  # with a reranker, which may be a model too
