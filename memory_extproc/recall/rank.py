"""Chooses the memories to inject among the candidates of a search, in stages: order, verdicts, topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

import msgspec
import numpy as np

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import (
    Candidate,
    Considered,
    Matrix,
    Memory,
    MemoryType,
    Ranked,
    RecallRequest,
    Source,
    Trust,
    Verdict,
    reaching,
    trust_of,
)
from memory_extproc.observe.log import logger
from memory_extproc.ports import MemoryReader, VectorReader
from memory_extproc.recall.asked import Lookup, View, least_trust, normal
from memory_extproc.recall.dedup import (
    deduplicate,
    names_of_things,
    tells_of_change,
    tells_value,
    visible_as_other_form,
    when,
    with_answers,
    with_changes,
    with_continuations,
    with_corrections,
    with_successors,
    without_former,
    without_former_words,
)
from memory_extproc.recall.examples import IntentExamples
from memory_extproc.recall.intent import INTENTS, QuestionKind, Reading
from memory_extproc.recall.query import RecallContext
from memory_extproc.recall.rerank import diversify_mmr
from memory_extproc.safety.policy import may_be_injected
from memory_extproc.settings import CurrentSettings
from memory_extproc.text.intents import only_asks
from memory_extproc.text.persons import may_correct
from memory_extproc.text.words import MOST_REMEMBERED, memoize_by_hash, negates, stems, terms

log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The candidates of a recall, best first, on their way through the ranking stages."""

    context: RecallContext
    reading: Reading
    lookup: Lookup | None  # None: plain search
    candidates: Sequence[Candidate]
    threshold: float
    limit: int  # memories
    whole: bool  # every candidate gets a verdict, however far behind it is
    visible: frozenset[str] = frozenset()  # ids of the summaries of the visible conversation
    outdated: Mapping[str, datetime] = field(default_factory=dict)  # by id: since when a value no longer holds
    rejected: tuple[Considered, ...] = ()
    considered: Sequence[Considered] = ()  # all candidates with their verdicts, best first, then *rejected*
    chosen: tuple[Ranked, ...] = ()

    @property
    def on_cosine(self) -> bool:
        return self.context.on_cosine

    def reject(self, candidates: Iterable[Candidate], verdict: Verdict) -> tuple[Considered, ...]:
        """*rejected* with *candidates* after it."""
        return (*self.rejected, *(Considered(one.memory, one.score, one.relevance, verdict) for one in candidates))


RankingStage = Callable[[Ranking], Awaitable[Ranking]]


def ranking_stages(reads: MemoryReader | None = None, current: CurrentSettings | None = None) -> list[RankingStage]:
    """The stages in their order. A new stage is a function from a ranking to a ranking, listed here.

    *reads*: for the messages of topics, as the settings of *current* say; without these they are not fetched."""
    in_view, topics = [], []
    if reads is not None:
        in_view.append(partial(mark_visible_summaries, Ongoing(reads)))
    if reads is not None and current is not None:
        topics.append(partial(add_topic_messages, ThreadFetcher(reads, current)))
    return [
        put_lookup_ahead,
        reject_blocked,
        *in_view,
        diversify,
        raise_answers,
        reject_former,
        give_verdicts,
        *topics,
        drop_former_words,
    ]


async def put_lookup_ahead(ranking: Ranking) -> Ranking:
    """Memories of a lookup go first, or among the best of the search where they do not answer by themselves."""
    if (lookup := ranking.lookup) is None:
        return ranking
    request = ranking.context.request
    limit = _limit_with_lookup(request, lookup)
    # The lookup read one sentence of a long message. The search read all of it.
    in_passing = not lookup.all_of_it and len(request.question.split()) > _LONG
    if in_passing:
        lookup = replace(lookup, alone=False, leads=False)
    looked, searched = lookup.candidates, [] if lookup.alone else ranking.candidates
    places = min(limit, _AHEAD)
    most = 0 if lookup.leads else places if in_passing else max(places - len(looked), places // 2)
    first = reaching(searched, ranking.threshold, on_cosine=ranking.on_cosine)[:most]
    candidates = {one.memory.id: one for one in [*searched, *looked, *first]}  # the first place counts
    order = dict.fromkeys(one.memory.id for one in [*first, *looked, *searched])
    return replace(ranking, candidates=[candidates[id_] for id_ in order], limit=limit)


def _limit_with_lookup(request: RecallRequest, lookup: Lookup) -> int:
    """Memories in the block. A limit that the request or a rule names holds for every kind of question."""
    if request.limited:
        return request.limit
    count = len(lookup.memories)
    if not lookup.leads:
        return request.limit + count
    return count if lookup.all_of_it else max(request.limit, count)


async def reject_blocked(ranking: Ranking) -> Ranking:
    """Memories that match a pattern of `privacy.never_inject` stay out."""
    patterns = ranking.context.settings.privacy.injection_patterns
    blocked = [one for one in ranking.candidates if not may_be_injected(one.memory.content, patterns)]
    if not blocked:
        return ranking
    left = [one for one in ranking.candidates if one not in blocked]
    return replace(ranking, candidates=left, rejected=ranking.reject(blocked, Verdict.BLOCKED))


async def mark_visible_summaries(ongoing: Ongoing, ranking: Ranking) -> Ranking:
    relevant = reaching(ranking.candidates, ranking.threshold, on_cosine=ranking.on_cosine)
    within = ranking.context.spare_time(ONGOING_SHARE)
    visible = await ongoing.find_in_view([one.memory for one in relevant], ranking.context.request, within)
    return replace(ranking, visible=visible)


async def diversify(ranking: Ranking) -> Ranking:
    if (balance := ranking.context.settings.recall.mmr_lambda) is None:
        return ranking
    candidates = diversify_mmr(
        ranking.candidates, balance, ranking.limit, ranking.threshold, on_cosine=ranking.on_cosine
    )
    return replace(ranking, candidates=candidates)


async def raise_answers(ranking: Ranking) -> Ranking:
    """Corrections and newer facts stand beside the corrected messages, answers beside their questions. No cosine
    connects them."""
    if ranking.on_cosine:
        return ranking
    question = ranking.context.request.question
    corrected = with_corrections(ranking.candidates, ranking.threshold)
    replaced = any(one.memory.provenance.corrects for one in corrected) and not ranking.context.request.scope.as_of
    if replaced and not INTENTS.asks_of_past(question, ranking.reading):
        corrected = with_successors(corrected, ranking.threshold, question)
    continued = with_continuations(corrected, ranking.threshold)
    if not (_asks_of_several(ranking) or _needs_former(ranking)):
        continued = with_changes(continued, ranking.threshold)
    return replace(ranking, candidates=with_answers(continued, ranking.threshold))


async def reject_former(ranking: Ranking) -> Ranking:
    """Former values stay out, unless the question is about the past."""
    if _needs_former(ranking):
        return ranking
    question = ranking.context.request.question
    left, former, outdated = without_former(ranking.candidates, ranking.threshold, question)
    rejected = ranking.reject(former, Verdict.NOT_RECALLABLE)
    return replace(ranking, candidates=left, rejected=rejected, outdated=outdated)


def _asks_of_several(ranking: Ranking) -> bool:
    kinds = {intent.kind for intent in ranking.reading.intents[:1]}
    if ranking.lookup is not None:
        kinds.add(ranking.lookup.intent.kind)
    return not _OF_SEVERAL.isdisjoint(kinds)


def _needs_former(ranking: Ranking) -> bool:
    request = ranking.context.request
    return bool(request.scope.as_of) or INTENTS.asks_of_past(request.question, ranking.reading)


async def give_verdicts(ranking: Ranking) -> Ranking:
    """Each candidate gets its verdict (`weigh`). A question for everything gets summaries beside the messages under
    them."""
    request, lookup, candidates = ranking.context.request, ranking.lookup, ranking.candidates
    apart = lookup is not None and lookup.all_of_it
    asked = "" if apart and lookup and lookup.intent.kind is QuestionKind.SUBJECT else request.question
    least = least_trust(request.question, ranking.reading)
    sorts = [
        [one for one in candidates if apart and one.memory.source is Source.SUMMARY],
        [one for one in candidates if not (apart and one.memory.source is Source.SUMMARY)],
    ]
    weighed = [
        considered
        for several in sorts
        for considered in weigh(
            several,
            now=ranking.context.now,
            threshold=ranking.threshold,
            limit=ranking.limit,
            on_cosine=ranking.on_cosine,
            asked=asked,
            in_view=request.in_view,
            seen=ranking.visible,
            whole=ranking.whole,
            least=least,
        )
    ]
    chosen = (replace(one, renewed=ranking.outdated.get(one.memory.id)) for one in choose_ranked(weighed))
    return replace(ranking, considered=(*weighed, *ranking.rejected), chosen=tuple(chosen))


async def add_topic_messages(threads: ThreadFetcher, ranking: Ranking) -> Ranking:
    """The messages of a chosen topic follow the chosen memories."""
    context, lookup = ranking.context, ranking.lookup
    opens = lookup is not None and lookup.opens
    if lookup is not None and lookup.alone and not opens:
        return ranking
    request, within = context.request, context.spare_time(THREAD_SHARE)
    extended = await threads.add_messages(
        ranking.chosen, request.question, request.in_view, context.now, within, whole=opens
    )
    least = least_trust(request.question, ranking.reading)
    chosen = tuple(
        one
        for one in extended
        if may_be_injected(one.memory.content, context.settings.privacy.injection_patterns)
        and trust_of(one.memory).covers(least)
    )
    return replace(ranking, chosen=chosen)


async def drop_former_words(ranking: Ranking) -> Ranking:
    """Former values stay out of the messages of topics and of summaries, too."""
    if not ranking.chosen or _needs_former(ranking):
        return ranking
    marked = [one for one in ranking.chosen if one.renewed is not None]
    others = [one.memory for one in ranking.chosen if one.renewed is None]
    kept = {one.id: one for one in (*without_former_words(others), *(one.memory for one in marked))}
    chosen = (replace(one, memory=kept[one.memory.id]) for one in ranking.chosen if one.memory.id in kept)
    return replace(ranking, chosen=tuple(chosen))


_LONG = 24  # words of a message
_AHEAD = 5  # places of the ranking before a lookup that does not lead, less the lookup's, at least half
ONGOING_SHARE = 0.3  # of the time left, for finding the summaries of this conversation
THREAD_SHARE = 0.5  # of the time left, for the words of topics


# --- verdicts ----------------------------------------------------------------------------------------


def choose_ranked(weighed: Iterable[Considered]) -> tuple[Ranked, ...]:
    return tuple(Ranked(one.memory, one.relevance) for one in weighed if one.verdict is Verdict.INJECTED)


def weigh(
    ordered: Sequence[Candidate],
    *,
    now: datetime,
    threshold: float,
    limit: int,
    on_cosine: bool = False,
    asked: str = "",
    in_view: Iterable[str] = (),
    seen: AbstractSet[str] = frozenset(),
    whole: bool = True,
    least: Trust = Trust.TOOL,
) -> list[Considered]:
    """All of *ordered*, best first, with verdicts: at most *limit* INJECTED, each at or above *threshold* (on
    relevance, or on the cosine itself). Not *whole*: candidates that are surely not injected may be missing.

    Equal statements, also in other forms or another order of words, are given once, the newest of them; of a
    message and an equal fact only the fact, because a fact is replaced when it no longer holds and a message is
    not. A memory and its sources give a single line, the line that serves *asked* best (see `dedup`), at the
    best place among them. Memories that are trusted less than *least* are left out first. Memories that the
    model sees already (*in_view*, and by id *seen*) are left out, and memories that are not recallable at *now*.
    Candidates far beyond the limit are not compared.
    """
    view = View(in_view)
    left_out: list[Considered] = []
    if least is not Trust.TOOL:  # which covers all
        left_out = [
            _to_considered(one, Verdict.UNTRUSTED) for one in ordered if not trust_of(one.memory).covers(least)
        ]
        ordered = [one for one in ordered if trust_of(one.memory).covers(least)]
    shown = partial(_is_in_view, view=view, seen=seen)
    passing = reaching(ordered, threshold, on_cosine=on_cosine)
    able = [one.memory for one in passing if one.memory.recallable(now)]
    # Where a cosine decides, nothing but its own lets a memory pass.
    behind = [] if on_cosine or not able else _behind(ordered, threshold, now)
    told_already = deduplicate(able, asked, behind=behind, shown=shown)
    ordered = _instead_of(ordered, told_already)
    passing = reaching(ordered, threshold, on_cosine=on_cosine)
    beside = _by_place(ordered if whole or passing else ())
    weighing = _Weighing(limit)
    for one in ordered if whole else passing:
        memory = one.memory
        if weighing.far_behind and not whole:
            break
        if not memory.recallable(now):
            weighing.leave_out(one, Verdict.NOT_RECALLABLE)
        elif one.standing(on_cosine=on_cosine) < threshold:
            weighing.leave_out(one, Verdict.BELOW_THRESHOLD)
        elif weighing.far_behind:
            weighing.leave_out(one, Verdict.OVER_LIMIT)
        elif memory.id in told_already:
            weighing.leave_out(one, Verdict.DUPLICATE)
        elif shown(memory) or _is_shown(memory, beside, view, asked):
            weighing.leave_out(one, Verdict.IN_VIEW)
        else:
            weighing.compare(one)
    return [*weighing.weighed, *(left_out if whole else ())]


def _is_in_view(memory: Memory, *, view: View, seen: AbstractSet[str]) -> bool:
    return memory.id in seen or view.shows(memory)


def _behind(ordered: Iterable[Candidate], threshold: float, now: datetime) -> list[Memory]:
    return [one.memory for one in ordered if one.relevance < threshold and one.memory.recallable(now)]


def _instead(weighed: list[Considered], at: int, considered: Considered) -> Considered:
    """Put the better of two equal statements at the place *at* and return the other candidate."""
    there = weighed[at]
    old, new = (one.memory for one in (there, considered))
    is_fact = new.source is not Source.VERBATIM
    better = is_fact if is_fact is not (old.source is not Source.VERBATIM) else new.updated_at > old.updated_at
    if not better:
        return replace(considered, verdict=Verdict.DUPLICATE)
    weighed[at] = replace(considered, score=there.score, relevance=there.relevance, verdict=there.verdict)
    return replace(there, verdict=Verdict.DUPLICATE)


def _instead_of(ordered: Sequence[Candidate], told: Mapping[str, str]) -> Sequence[Candidate]:
    """*ordered*, with replacements (*told*: ids to the replacing ids) at the best place of their sources."""
    if not any(told.values()):
        return ordered
    best = {one.memory.id: (at, one) for at, one in enumerate(ordered)}
    for at, one in enumerate(ordered):
        by = one.memory.id
        while by := told.get(by, ""):
            best[by] = min(best[by], (at, one), key=lambda placed: placed[0])
    # Just ahead of the replaced candidate, which has the same place.
    placed = sorted(
        ordered, key=lambda one: (best[one.memory.id][0], best[one.memory.id][1] is one and one.memory.id in told)
    )
    return [
        one
        if (there := best[one.memory.id][1]) is one
        else msgspec.structs.replace(one, score=there.score, relevance=max(one.relevance, there.relevance))
        for one in placed
    ]


class _Weighing:
    """Compared candidates, best first, with their verdicts; at most *limit* are injected."""

    def __init__(self, limit: int) -> None:
        self.weighed: list[Considered] = []
        self._limit = limit
        self._injected = self._compared_behind = 0
        self._told = _Statements()

    @property
    def far_behind(self) -> bool:
        """Whether enough candidates beyond the limit were compared."""
        return self._compared_behind == COMPARED_BEHIND

    def leave_out(self, one: Candidate, verdict: Verdict) -> None:
        self.weighed.append(_to_considered(one, verdict))

    def compare(self, one: Candidate) -> None:
        """Inject *one*, unless an earlier candidate says the same."""
        full = self._injected >= self._limit
        self._compared_behind += full
        considered = _to_considered(one, Verdict.OVER_LIMIT if full else Verdict.INJECTED)
        like = self._told.find_or_add(one.memory, len(self.weighed))
        if like is not None:
            considered = _instead(self.weighed, like, considered)
        elif not full:
            self._injected += 1
        self.weighed.append(considered)


def _to_considered(one: Candidate, verdict: Verdict) -> Considered:
    return Considered(one.memory, one.score, one.relevance, verdict, one.features)


class _Statements:
    """Statements with their places. Statements are equal that have the same terms, in any form and order, and deny
    them alike. "Flight on May 3" and "flight on May 8" differ in a term. Without terms, the words
    themselves."""

    def __init__(self) -> None:
        self._places: dict[_Saying, list[tuple[str, int]]] = {}

    def find_or_add(self, memory: Memory, at: int) -> int | None:
        """The place of the first statement equal to *memory*; None if it is the first, at *at*."""
        words = memory.content[:_COMPARED]
        there = self._places.setdefault(_saying(memory.content), [])
        # Negation is read only of the few texts with the same terms.
        place = next((place for other, place in there if negates(other) == negates(words)), None)
        if place is None:
            there.append((words, at))
        return place


_Saying = tuple[int, int, int]


@memoize_by_hash(MOST_REMEMBERED)
def _saying(words: str) -> _Saying:
    """Equal for equal statements: the count of terms, a hash of the terms and a hash of the remaining text."""
    found = frozenset(terms(words[:_COMPARED])[0]) - {_CALLER}
    return len(found), hash(found), hash(words[_COMPARED:] if found else normal(words))


COMPARED_BEHIND = 10  # candidates beyond the limit: a fact of an injected message may be among them
_COMPARED = 4_000  # characters; beyond them texts are equal only letter by letter
_CALLER = "user"  # the name of the caller in facts: "User likes tea"


Place = tuple[str, int]  # session and seq


def _by_place(ordered: Iterable[Candidate]) -> Mapping[Place, Sequence[Memory]]:
    """The messages and facts of one place in a conversation, for the few places that have several."""
    found: dict[Place, list[Memory]] = {}
    for one in ordered:
        memory = one.memory
        if memory.session:
            place = (memory.session, memory.seq)
            if place in found:
                found[place].append(memory)
            else:
                found[place] = [memory]
    return {place: several for place, several in found.items() if len(several) > 1}


def _is_shown(memory: Memory, beside: Mapping[Place, Sequence[Memory]], view: View, asked: str) -> bool:
    others = beside.get((memory.session, memory.seq), ())
    return bool(others) and visible_as_other_form(memory, others, view, asked)


# --- renewal -----------------------------------------------------------------------------------------
# Marks statements after which a later one perhaps tells a newer value, without a word of change ("hall deposit is
# 300", later "450 as a deposit for the hall"), by a logistic regression over the vectors of both. It is wrong too
# often to leave a statement out: the block says that it may be outdated, and since when.

LIKELY = 0.9  # of a mark: five of six are right (tests/quality/renewals.tsv)
_LIKELY_CHANGED = 0.5  # of a mark, with a word of change about what both name
_COMPARED = 40  # memories of a block
# Kinds of questions whose answers are several values.
_OF_SEVERAL = {
    QuestionKind.OVERVIEW,
    QuestionKind.SUBJECT,
    QuestionKind.HOPS,
    QuestionKind.LIST,
    QuestionKind.MENTIONED,
    QuestionKind.CONSTRAINT,
    QuestionKind.PROCEDURE,
}


class RenewalMarker:
    """The last stage of a ranking, for memories that are held in process."""

    def __init__(self, reads: VectorReader, examples: IntentExamples) -> None:
        self._reads, self._examples = reads, examples

    async def __call__(self, ranking: Ranking) -> Ranking:
        said = [one.memory for one in ranking.chosen if one.memory.source is not Source.SUMMARY][:_COMPARED]
        if len(said) <= 1 or _asks_of_several(ranking) or _needs_former(ranking):
            return ranking
        ids, owners = [one.id for one in said], {one.owner for one in said}
        vectors = {id_: vector for owner in owners for id_, vector in self._reads.vectors(owner, ids).items()}
        if not (known := [one for one in said if one.id in vectors]):
            return ranking
        found = find_renewed(known, self._examples.renewed_by(np.stack([vectors[one.id] for one in known])))
        chosen = tuple(replace(one, renewed=one.renewed or found.get(one.memory.id)) for one in ranking.chosen)
        return replace(ranking, chosen=chosen)


def find_renewed(memories: Sequence[Memory], likely: Matrix) -> dict[str, datetime]:
    """By id of a statement: when the first later one was said that likely tells a newer value. *likely*:
    probabilities, by place in *memories* of the older (row) and the later statement (column)."""
    telling = [at for at, one in enumerate(memories) if _tells(one)]
    found: dict[str, datetime] = {}
    for old in telling:
        likely_newer = (memories[at] for at in telling if _renews(memories[at], memories[old], likely[old, at]))
        if newer := [one.created_at for one in likely_newer if _follows(one, memories[old])]:
            found[memories[old].id] = min(newer)
    return found


def _renews(new: Memory, old: Memory, likely: float) -> bool:
    """Whether a probability suffices for a mark: less does, with a word of change about what both name."""
    if likely >= LIKELY or likely < _LIKELY_CHANGED or not tells_of_change(new.content):
        return likely >= LIKELY
    return not names_of_things(new.content).isdisjoint(names_of_things(old.content))


def _tells(memory: Memory) -> bool:
    return tells_value(memory) and memory.type is not MemoryType.PROCEDURAL and not only_asks(memory.content)


def _follows(new: Memory, old: Memory) -> bool:
    """Whether *new* may renew *old*: later, by the same owner, and with a word of change where *old* has one."""
    apart = (new.session, new.seq) != (old.session, old.seq)
    changes = may_correct(new.content) or not may_correct(old.content)
    return new.owner == old.owner and apart and when(new) > when(old) and changes


# --- topics ------------------------------------------------------------------------------------------
# The messages of a topic whose summary matches well, as far as they fit.


class ThreadFetcher:
    """Fetches the messages of a summary; they follow the found memories, so that they take no room from them. A
    failure here leaves the found memories unchanged."""

    def __init__(self, reads: MemoryReader, current: CurrentSettings) -> None:
        self._reads, self._current = reads, current

    async def add_messages(
        self,
        ranked: tuple[Ranked, ...],
        asked: str,
        in_view: frozenset[str],
        now: datetime,
        within: timedelta,
        *,
        whole: bool = False,
    ) -> tuple[Ranked, ...]:
        """*ranked*, then the messages, each once, ordered by the words they share with *asked*. *whole*: all
        messages, because the question asks for the conversation itself."""
        topics = [one for one in ranked if self._opens(one)]
        if not topics or not self._current.settings.recall.threads.max:
            return ranked
        try:
            async with asyncio.timeout(max(within.total_seconds(), 0.0)):
                fetched = [
                    (one, row) for one in topics for row in await _read_messages(self._reads, one.memory, _WORDS)
                ]
        except (TimeoutError, MemoryExtprocError) as error:
            log.info("recall.no_threads", error=type(error).__name__)
            return ranked
        there = {one.memory.id for one in ranked}
        said = {one.memory.content for one in ranked}
        view, wanted = View(in_view), stems(asked)
        fitting = {
            row.id: Ranked(row, topic.relevance)
            for topic, row in fetched
            if row.id not in there and row.content not in said and row.recallable(now) and not view.shows(row)
        }
        best = sorted(fitting.values(), key=lambda one: -len(wanted & stems(one.memory.content)))
        return (*ranked, *(best if whole else best[: self._current.settings.recall.threads.max]))

    def _opens(self, one: Ranked) -> bool:
        return (
            one.memory.source is Source.SUMMARY
            and one.relevance >= self._current.settings.recall.threads.min_relevance
        )


def with_threads(weighed: Sequence[Considered], ranked: Sequence[Ranked]) -> list[Considered]:
    """*weighed* with the fetched messages of *ranked*: at their own places where the search found them too,
    otherwise last and without a relevance of their own."""
    there = {one.memory.id: one for one in weighed}
    chosen = {one.memory.id for one in weighed if one.verdict is Verdict.INJECTED}
    fetched = {one.memory.id: one.memory for one in ranked if one.memory.id not in chosen}
    found = [replace(one, verdict=Verdict.THREAD) if one.memory.id in fetched else one for one in weighed]
    return [
        *found,
        *(Considered(memory, 0.0, 0.0, Verdict.THREAD) for id_, memory in fetched.items() if id_ not in there),
    ]


# Summaries of the visible conversation: the model does not need them beside the full text.

_MOST = 8  # summaries checked for a request, best first
_LEVELS = 5  # from the summary of a session down to its messages
_FETCHED = 400  # memories fetched for a summary and level
_SAID = frozenset({Source.VERBATIM, Source.QUESTION})
_WORDS = frozenset({Source.VERBATIM})


class Ongoing:
    """Recognises the visible conversation by its messages, with any session name of the client and in any process:
    a summary belongs to it when the model sees more than half of the summarised messages. Once a client, or the
    condensing of a long chat, has left them out, the summary serves again."""

    def __init__(self, reads: MemoryReader) -> None:
        self._reads = reads

    async def find_in_view(
        self, found: Sequence[Memory], request: RecallRequest, within: timedelta
    ) -> frozenset[str]:
        """Ids of the summaries in *found*, best first, of the visible conversation. None after a fault."""
        summaries = [memory for memory in found if memory.source is Source.SUMMARY][:_MOST]
        behind = {memory.id for memory in summaries if request.behind and memory.session == request.behind}
        seen = request.in_view - {request.asked}
        if not summaries or not seen:
            return frozenset(behind)
        view = View(seen)
        try:
            async with asyncio.timeout(max(within.total_seconds(), 0.0)):
                seen_here = {memory.id for memory in summaries if await self._seen(memory, view)}
        except (TimeoutError, MemoryExtprocError) as error:
            log.info("recall.ongoing_unknown", error=type(error).__name__)
            return frozenset(behind)
        return frozenset(behind | seen_here)

    async def _seen(self, summary: Memory, view: View) -> bool:
        messages = await _read_messages(self._reads, summary, _SAID)
        return 2 * sum(map(view.shows, messages)) > len(messages)


async def _read_messages(reads: MemoryReader, summary: Memory, sources: AbstractSet[Source]) -> Sequence[Memory]:
    """The messages under *summary*, through the summaries between, in the order of its session."""
    messages: list[Memory] = []
    below: Sequence[Memory] = [summary]
    for _ in range(_LEVELS):
        ids = [one for memory in below for one in memory.provenance.sources][:_FETCHED]
        rows = await reads.get(summary.owner, ids) if ids else ()
        messages += (row for row in rows if row.source in sources)
        below = [row for row in rows if row.source is Source.SUMMARY]
    return sorted(messages, key=lambda row: (row.seq, row.id))
