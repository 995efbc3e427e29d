"""The read path, from top to bottom: gate, query, embed, search, rank, block, under a common deadline.

`Recaller.recall` calls the steps in this order. `QuestionSearch` finds the candidates; the stages that
`rank.ranking_stages` lists choose among them. Every failure is an outcome and a log line: the request goes on
unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import numpy as np

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.model import (
    Candidate,
    Candidates,
    Considered,
    Explanation,
    Memory,
    Outcome,
    Owner,
    Period,
    RecallRequest,
    RecallResult,
    RecallTrace,
    Scope,
    SearchQuery,
    TracedMemory,
    Vector,
    Verdict,
    reaching,
)
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import EmbeddingModel, MemorySearcher, Now, QueryGate, TurnLearner
from memory_extproc.recall.asked import Lookup
from memory_extproc.recall.fusion import Fused, Fusion, gained_by_rating, lost_to_age, most_lost
from memory_extproc.recall.hops import raise_for_caller
from memory_extproc.recall.intent import NOTHING_READ, Intent, QuestionKind, Reading
from memory_extproc.recall.late_interaction import FIRST_READ, LateInteractionScorer, QuestionTraits
from memory_extproc.recall.prompt_block import OPENING, OPENING_AGAIN, render, smallest
from memory_extproc.recall.query import (
    PendingEmbeddings,
    QueryTexts,
    QuestionGate,
    QuestionReader,
    RecallContext,
    Rewriter,
    StageTimer,
    merge_rankings,
    plain_query,
    read_instant,
    read_period,
    search_shared,
)
from memory_extproc.recall.rank import Ranking, RankingStage, with_threads
from memory_extproc.recall.rerank import Reranker
from memory_extproc.settings import CurrentSettings

log = logger(__name__)

CLASSIFY_SHARE = 0.3  # of the deadline, for a router's classifier
# Shares of the time that is left when the step begins.
REWRITE_SHARE = 0.7  # for a model that rewrites, so that the search keeps the rest
REWRITE_SHARE_BESIDE_RERANK = 0.5  # with a reranker, which may be a model too
EMBED_SHARE = 0.6  # for the embedding model, so that a search by words remains possible
SHARED_SHARE = 0.5  # after the caller's own memories, for shared memories
PARTS_SHARE = 0.5  # of the deadline, left for a further search where a message asks several questions
MOST_TRACED = 24  # candidates
SHORT_MESSAGE = 110  # characters of a message among many
AS_OF_UNREADABLE = "as_of is ignored: expected a time that is over, in RFC 3339, such as 2026-03-02T09:00:00Z"
_UNREACHABLE = 2.0  # a threshold that no relevance reaches
# Kinds whose block tells how many memories did not fit.
_COUNTED = frozenset(
    {QuestionKind.LIST, QuestionKind.MENTIONED, QuestionKind.DATED, QuestionKind.OVERVIEW, QuestionKind.SUBJECT}
)
_CHOSEN = frozenset({Verdict.INJECTED, Verdict.THREAD})


class Recaller:
    """Implements ports.MemoryRecaller."""

    def __init__(
        self,
        gate: QuestionGate,
        search: QuestionSearch,
        stages: Sequence[RankingStage],
        current: CurrentSettings,
        *,
        now: Now,
        metrics: Metrics,
        timer: StageTimer,
    ) -> None:
        self._gate, self._search, self._stages, self._current = gate, search, stages, current
        self._now, self._metrics, self._timer = now, metrics, timer
        self._running = 0

    async def recall(self, request: RecallRequest) -> RecallResult:
        """Recall for a request; never raises for a fault of store, model or time."""
        settings, clock = self._current.settings, self._timer.clock
        if self._running >= settings.recall.max_concurrent:
            return RecallResult(outcome=Outcome.OVERLOADED)
        started = clock() - request.spent.total_seconds()
        stages: dict[str, float] | None = {} if settings.trace.keep else None
        context = RecallContext(request, settings, self._now(), self._timer, started, stages)
        self._running += 1
        self._metrics.recalls_running.set(self._running)
        try:
            recalled = await self._within_deadline(context)
        finally:
            self._running -= 1
            self._metrics.recalls_running.set(self._running)
        took = clock() - started
        self._timer.observe("total", took)
        if recalled.path:
            self._metrics.recall_path.labels(recalled.path).inc()
        if recalled.outcome is Outcome.USED:
            self._metrics.recall_injected.observe(len(recalled.memories))
            self._metrics.injected_tokens.observe(recalled.tokens)
        trace = recalled.trace
        if stages is not None:
            stages["total"] = took
            trace = trace or RecallTrace(threshold=request.threshold, stages=stages)
        return replace(recalled, took=timedelta(seconds=took), trace=trace)

    async def _within_deadline(self, context: RecallContext) -> RecallResult:
        request, within = context.request, context.settings.deadline - context.request.spent
        with context.time_stage("gate"):
            skip, _ = await self._gate.check(request, context.settings.recall, within * CLASSIFY_SHARE)
        if skip is not None:
            return RecallResult(outcome=skip)
        if _token_budget(context) < smallest():
            return RecallResult(outcome=Outcome.NO_ROOM)
        try:
            async with asyncio.timeout(within.total_seconds()):
                return await self._search_and_rank(context)
        except TimeoutError:
            log.warning("recall.out_of_time", deadline_ms=context.settings.deadline / timedelta(milliseconds=1))
            return RecallResult(outcome=Outcome.OUT_OF_TIME)
        except (TransientError, PermanentError) as error:
            log.warning("recall.unavailable", kind=type(error).__name__, detail=str(error))
            return RecallResult(outcome=Outcome.UNAVAILABLE)

    async def _search_and_rank(self, context: RecallContext) -> RecallResult:
        found = await self._search.search(context)
        with context.time_stage("rank"):
            self._metrics.recall_candidates.observe(len(found.candidates))
            ranking = await self._rank(context, found, whole=False)
            recalled = _build_result(found, ranking)
            in_view = (one.memory.id for one in ranking.considered if one.verdict is Verdict.IN_VIEW)
            trace = None if context.stages is None else _build_trace(found, ranking, recalled, context.stages)
            return replace(recalled, in_view=frozenset(in_view), trace=trace)

    async def _rank(self, context: RecallContext, found: SearchOutcome, *, whole: bool) -> Ranking:
        ranking = Ranking(
            context=context,
            reading=found.reading,
            lookup=found.lookup,
            candidates=found.candidates,
            threshold=_UNREACHABLE if found.general else context.request.threshold,
            limit=context.request.limit,
            whole=whole,
        )
        for stage in self._stages:
            ranking = await stage(ranking)
        return ranking

    async def explain(self, request: RecallRequest) -> Explanation:
        """Explain the steps of `recall` for *request*. Not bounded by the deadline, counted in no metric but
        the stages', and it lets faults of the store out (TransientError, PermanentError)."""
        settings, timer = self._current.settings, self._timer
        skip, by = await self._gate.check(request, settings.recall, settings.deadline)
        if skip is not None:
            return Explanation(outcome=skip, gate=skip, notes=(by,) if by else ())
        context = RecallContext(request, settings, self._now(), timer, timer.clock(), hurried=False)
        found = await self._search.search(context)
        ranking = await self._rank(context, found, whole=True)
        recalled = _build_result(found, ranking)
        return Explanation(
            outcome=recalled.outcome,
            query=found.query.text,
            path=found.path,
            total=found.total,
            worth=found.worth,
            considered=tuple(_mark_without_room(with_threads(ranking.considered, ranking.chosen), recalled)),
            block=recalled.block,
            kind=found.kind,
            notes=(*((by,) if by else ()), *found.reading.notes),
        )


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The result of the search for a request; the candidates best first."""

    query: QueryTexts
    candidates: Sequence[Candidate]
    worth: float  # probability that anything is worth injecting
    total: int | None  # memories within reach; None: unknown
    path: str
    reading: Reading = NOTHING_READ
    lookup: Lookup | None = None  # None: plain search
    general: bool = False  # the message only thanks, or is about the world: no candidate passes

    @property
    def kind(self) -> str:
        """The kind of the question, if it decided the lookup."""
        return "" if self.lookup is None else self.lookup.intent.kind.value


@dataclass(frozen=True, slots=True)
class _QueryFeatures:
    """A text that is searched for, with features of its own."""

    text: str
    most_lost: float  # points of score, to age
    traits: QuestionTraits | None  # None: nothing is read closely


class QuestionSearch:
    """Finds the candidates for a request. Each model but the embedder is optional: a search without it, or without
    its answer in time, finds a little less."""

    def __init__(
        self,
        searcher: MemorySearcher,
        embedder: EmbeddingModel,
        fusion: Fusion,
        reader: QuestionReader,
        metrics: Metrics,
        *,
        learner: TurnLearner | None = None,
        rewriter: Rewriter | None = None,
        close_reader: LateInteractionScorer | None = None,
        reranker: Reranker | None = None,
    ) -> None:
        self._searcher, self._embedder, self._fusion = searcher, embedder, fusion
        self._query_gate = embedder if isinstance(embedder, QueryGate) else None
        self._reader, self._metrics, self._learner = reader, metrics, learner
        self._rewriter, self._close_reader, self._reranker = rewriter, close_reader, reranker

    async def search(self, context: RecallContext) -> SearchOutcome:
        """Search for each of the questions in a message, as long as half of the deadline is left, then rerank."""
        found = await self._rerank(context, await self._search_parts(context))
        return replace(found, general=self._is_general(context, found))

    async def _search_parts(self, context: RecallContext) -> SearchOutcome:
        found: list[tuple[RecallContext, SearchOutcome]] = []
        least = context.settings.deadline * PARTS_SHARE
        for text in self._reader.split(context.request):
            if found and context.time_left() < least:
                break
            part = replace(context, request=replace(context.request, asked=text))
            found.append((part, await self._search(part, settles=not found)))
        memories = {memory.id: memory for part, of_part in found for memory in self._answering(part, of_part)}
        if not memories and not (found and context.time_left() < least):
            return await self._search(context, settles=not found)
        if not memories:
            return found[0][1]
        intent = next((of.lookup.intent for _, of in found if of.lookup is not None), Intent(QuestionKind.INDIRECT))
        whole = any(of.lookup is not None and of.lookup.all_of_it for _, of in found)
        return replace(found[0][1], lookup=Lookup(intent, tuple(memories.values()), alone=True, all_of_it=whole))

    def _answering(self, context: RecallContext, found: SearchOutcome) -> Sequence[Memory]:
        """The memories that answer one of several questions."""
        if found.lookup is not None:
            return found.lookup.memories
        if self._is_general(context, found):
            return ()
        request, on_cosine = context.request, context.on_cosine
        passing = reaching(found.candidates, request.threshold, on_cosine=on_cosine)
        return [one.memory for one in passing[: request.limit]]

    def _is_general(self, context: RecallContext, found: SearchOutcome) -> bool:
        on_cosine = context.on_cosine
        return found.lookup is None and self._reader.is_general(
            context.request, found.reading, found.candidates, on_cosine=on_cosine
        )

    async def _search(self, context: RecallContext, *, settles: bool) -> SearchOutcome:
        """Read the question, then look its kind up or search. *settles*: wait for the caller's last turn."""
        request, now = context.request, context.now
        then = read_instant(request.as_of, now)
        as_of = then or read_period(request.question, now)
        request = replace(request, scope=replace(request.scope, as_of=as_of))
        context = replace(context, request=request)
        with context.time_stage("query"):
            reading = self._reader.read(context)
            if request.as_of and then is None:
                log.info("recall.as_of_ignored")
                reading = replace(reading, notes=(*reading.notes, AS_OF_UNREADABLE))
        if settles and context.hurried:
            await self._settle(context)
        lookup = await self._reader.look_up_unsearched(context, reading)
        if lookup is not None:
            return SearchOutcome(QueryTexts(request.question), (), 1.0, None, "lookup", reading, lookup)
        with context.time_stage("query"):
            query = await self._query(context)
        async with PendingEmbeddings(self._embed(context, query), context.timer.clock) as vectors:
            if self._query_gate is not None:
                await self._query_gate.wait_begun()
            # The words of the question are read while the vectors are made; only the search remains then.
            features = [self._read_features(context, text) for text in query.texts]
            with context.time_stage("search", lambda: vectors.there):
                searches = await self._search_owners(context, query.texts, vectors)
                searches = [await self._read_closely(features, found) for found in searches]
            with context.time_stage("rank"):
                kind = reading.intents[0].kind if reading.intents else None
                pairs = (pair for found in searches for pair in zip(features, found, strict=True))
                fused = [self._fuse(context, *pair, kind) for pair in pairs]
            candidates = _merge(fused, then)
            reading, lookup = await self._reader.look_up(context, reading, candidates, partial(vectors.at, 0))
        if lookup is None:
            searched = max(found[0].searched for found in searches)
            candidates = raise_for_caller(request.question, reading, candidates, searched)
        totals = [found[0].total for found in searches]
        return SearchOutcome(
            query=query,
            candidates=candidates,
            worth=max(one.worth for one in fused),
            total=None if None in totals else sum(total for total in totals if total is not None),
            path=searches[0][0].path,
            reading=reading,
            lookup=lookup,
        )

    async def _settle(self, context: RecallContext) -> None:
        """Wait until the caller's turn of a moment ago can be found, for as long as that stays cheap."""
        if self._learner is None:
            return
        try:
            async with asyncio.timeout(context.settings.recall.settle.total_seconds()):
                await self._learner.wait_visible(context.request.caller)
                if context.request.learned_as is not None:
                    await self._learner.wait_visible(context.request.learned_as)
        except TimeoutError:
            log.info("recall.not_settled")

    async def _query(self, context: RecallContext) -> QueryTexts:
        request = context.request
        if self._rewriter is None:
            return plain_query(
                request.question, request.earlier, take_apart=context.settings.recall.split_questions
            )
        share = REWRITE_SHARE if self._reranker is None else REWRITE_SHARE_BESIDE_RERANK
        within = max(context.time_left(share), timedelta())
        return await self._rewriter.query(request.question, request.earlier, within)

    async def _embed(self, context: RecallContext, query: QueryTexts) -> Sequence[Vector | None]:
        """Embed the query's texts. None for each text if the model fails or takes too long: the search by words
        alone is nearly as good, and in time."""
        within = context.time_left(EMBED_SHARE)
        others = (self._embedder.embed_query(text) for text in query.others)
        try:
            with context.time_stage("embed"):
                async with asyncio.timeout(within.total_seconds()):
                    if not query.others:
                        return [await self._embed_first(query)]
                    return await asyncio.gather(self._embed_first(query), *others)
        except TimeoutError:
            log.warning("recall.embedding_late", within_ms=round(within / timedelta(milliseconds=1)))
        except (TransientError, PermanentError) as error:
            log.warning("recall.embedding_failed", kind=type(error).__name__, detail=str(error))
        return [None] * len(query.texts)

    async def _embed_first(self, query: QueryTexts) -> Vector:
        if not query.supposed:
            return await self._embedder.embed_query(query.text)
        asked, supposed = await asyncio.gather(
            self._embedder.embed_query(query.text), self._embedder.embed_query(query.supposed)
        )
        mean = asked + supposed
        length = float(np.linalg.norm(mean))
        return asked if length == 0.0 else np.asarray(mean / length, dtype=np.float32)

    def _read_features(self, context: RecallContext, text: str) -> _QueryFeatures:
        traits = None if self._close_reader is None else QuestionTraits.of(text)
        return _QueryFeatures(text, most_lost(text, context.now.date()), traits)

    async def _search_owners(
        self, context: RecallContext, texts: Sequence[str], vectors: PendingEmbeddings
    ) -> Sequence[Sequence[Candidates]]:
        """The candidates for each of *texts*: the caller's first, then those of each owner who shares with the
        caller, as far as they are found in time."""
        request = context.request
        # A shared owner is a project itself: the restriction of the caller's own memories does not apply.
        shared = replace(request.scope, project="")
        own, others = await search_shared(
            self._search_owner(context, request.caller.owner, request.scope, texts, vectors),
            {owner: self._search_owner(context, owner, shared, texts, vectors) for owner in request.shared},
            partial(context.spare_time, SHARED_SHARE),
            self._metrics,
        )
        return [own, *others]

    async def _search_owner(
        self, context: RecallContext, owner: Owner, scope: Scope, texts: Sequence[str], vectors: PendingEmbeddings
    ) -> Sequence[Candidates]:
        most = max(context.settings.recall.candidates, context.request.limit)
        return [
            await self._searcher.candidates(owner, SearchQuery(text), most, scope, partial(vectors.at, place))
            for place, text in enumerate(texts)
        ]

    async def _read_closely(
        self, features: Sequence[_QueryFeatures], searches: Sequence[Candidates]
    ) -> Sequence[Candidates]:
        """*searches* as they are, or read closely as far as their words are at hand."""
        if (reader := self._close_reader) is None:
            return searches
        whole = []
        for one, found in zip(features, searches, strict=True):
            if not self._fusion.suits_reading(found):
                whole.append(found)
                continue
            first = self._fusion.likeliest(found, FIRST_READ)
            read = await reader.read(one.text, first, one.traits)
            whole.append(found if read is first else read)
        return whole

    def _fuse(
        self, context: RecallContext, features: _QueryFeatures, found: Candidates, kind: QuestionKind | None
    ) -> Fused:
        lost = lost_to_age(features.most_lost, found.memories, context.now, context.settings.recall.half_life)
        return self._fusion.fuse(found, lost - gained_by_rating(found.memories), kind)

    async def _rerank(self, context: RecallContext, found: SearchOutcome) -> SearchOutcome:
        """The candidates in the order of the reranker, if a reranker is configured and in time."""
        on_cosine, threshold = context.on_cosine, context.request.threshold
        relevant = any(one.standing(on_cosine=on_cosine) >= threshold for one in found.candidates)
        if self._reranker is None or not relevant:  # candidates that stay out need no order
            return found
        reranked = await self._reranker.rerank(found.query.text, found.candidates, context.spare_time())
        return found if reranked is None else replace(found, candidates=reranked, path="rerank")


def _merge(fused: Iterable[Fused], then: Period | None) -> Sequence[Candidate]:
    """One ranking out of the rankings of all queries and owners; *then*: without memories of a later time."""
    rankings = [one.candidates for one in fused if one.candidates]
    candidates: Sequence[Candidate] = rankings[0] if len(rankings) == 1 else merge_rankings(rankings)
    if then is None:
        return candidates
    return [one for one in candidates if (one.memory.valid_from or one.memory.created_at) < then.until]


# --- result ------------------------------------------------------------------------------------------


def _build_result(found: SearchOutcome, ranking: Ranking) -> RecallResult:
    context, lookup = ranking.context, found.lookup
    request = context.request
    if found.total == 0:
        return RecallResult(outcome=Outcome.EMPTY, path=found.path)
    opening = OPENING_AGAIN if request.continues else OPENING
    if lookup is None:
        block = render(ranking.chosen, _token_budget(context), opening)
    else:
        over_limit = sum(one.verdict is Verdict.OVER_LIMIT for one in ranking.considered)
        block = render(
            ranking.chosen,
            _token_budget(context, whole=lookup.all_of_it),
            opening,
            headings=lookup.headings,
            longest=SHORT_MESSAGE if lookup.all_of_it else None,
            statements=lookup.intent.kind is QuestionKind.OVERVIEW,
            counts_rest=lookup.all_of_it and lookup.intent.kind in _COUNTED,
            beyond=over_limit if request.limited else 0,
        )
    if not block.kept:
        outcome = Outcome.NO_ROOM if ranking.chosen else Outcome.NOTHING_RELEVANT
        return RecallResult(outcome=outcome, path=found.path)
    return RecallResult(
        outcome=Outcome.USED, block=block.text, memories=block.kept, path=found.path, tokens=block.tokens
    )


def _token_budget(context: RecallContext, *, whole: bool = False) -> int:
    """Tokens of the block at most; *whole*: it answers a question for everything on a subject."""
    request, section = context.request, context.settings.inject
    budget = section.token_budget if request.budget is None else request.budget
    overview = section.overview_budget if whole and request.budget is None else 0
    most = max(budget, overview)
    return most if request.room is None else min(most, request.room)


def _build_trace(
    found: SearchOutcome, ranking: Ranking, recalled: RecallResult, stages: dict[str, float]
) -> RecallTrace:
    """Build the trace from the considered candidates, then from the best others."""
    request, now = ranking.context.request, ranking.context.now
    considered = with_threads(ranking.considered, ranking.chosen)[:MOST_TRACED]
    shown = {one.memory.id: one for one in _mark_without_room(considered, recalled)}
    traced = [TracedMemory(one.memory, one.score, one.relevance, one.verdict) for one in shown.values()]
    for one in found.candidates[: MOST_TRACED + len(shown)]:
        if len(traced) == MOST_TRACED:
            break
        if one.memory.id not in shown:
            reaches = one.standing(on_cosine=ranking.on_cosine) >= request.threshold
            verdict = Verdict.OVER_LIMIT if reaches else Verdict.BELOW_THRESHOLD
            if not one.memory.recallable(now):
                verdict = Verdict.NOT_RECALLABLE
            traced.append(TracedMemory(one.memory, one.score, one.relevance, verdict))
    return RecallTrace(
        considered=tuple(traced),
        kind=found.kind,
        total=found.total,
        worth=found.worth,
        threshold=request.threshold,
        stages=stages,
    )


def _mark_without_room(considered: Iterable[Considered], recalled: RecallResult) -> Iterator[Considered]:
    """Mark chosen candidates that are not in the result as without room."""
    kept: AbstractSet[str] = {one.memory.id for one in recalled.memories}
    for one in considered:
        missed = one.verdict in _CHOSEN and one.memory.id not in kept
        yield replace(one, verdict=Verdict.NO_ROOM) if missed else one
