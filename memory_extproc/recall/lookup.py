"""Lookups for kinds of questions: by attributes, days, names and conversations, not by likeness.

The first reading of a question that finds memories is used. They go ahead of the candidates of the search and have
a gate of their own; verdicts on duplicates, on memories in view and on expired memories are as for any candidate.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import takewhile

from memory_extproc.index.entries import names_in
from memory_extproc.model import (
    AttributeReader,
    Memory,
    MemoryType,
    Owner,
    RecallRequest,
    Role,
    Selection,
    Source,
)
from memory_extproc.model.recall import Candidate
from memory_extproc.ports import MemorySelector, VectorReader
from memory_extproc.recall.asked import (
    FACTS,
    FIRST,
    LONGEST_STATEMENT,
    NAME,
    RELEVANT,
    Lookup,
    QuestionReading,
    View,
    about_self,
    asks_of_another,
    asks_of_doer,
    before_value,
    each_once,
    facts_first,
    having_most,
    is_of_caller,
    is_of_family,
    is_of_household,
    last_said,
    named_content,
    people_in,
    refers_to,
    said_by_owner,
    said_within,
    span_of,
    speaker_of,
    split_at_before,
    stands_in,
    states,
    states_something,
    valid_since,
)
from memory_extproc.recall.dedup import once_for_session, without_quoted
from memory_extproc.recall.hops import MOST_CHAIN, find_named, walk_to_answer
from memory_extproc.recall.intent import INTENTS, LONGEST, Intent, QuestionKind, Reading
from memory_extproc.recall.prompt_block import GROUPS
from memory_extproc.recall.subject import continuing, find_subject
from memory_extproc.text.attributes import ATTRIBUTES, plain_words
from memory_extproc.text.intents import asks, content_stems
from memory_extproc.text.persons import relation_words, subject
from memory_extproc.text.words import negates, rarity

_SAID = frozenset({Source.VERBATIM})
_PEOPLE = ATTRIBUTES.in_groups({"people"}) & ~ATTRIBUTES.mask(["pets"])
_NOT_UNLIKELY = 0.3  # relevance of a candidate, where likeness shows an attribute
_LIKELY = 0.35  # the same, for questions about a past conversation
_MOST_TOPICS = 12  # summaries of all conversations
_ENOUGH, _SOME = 0.6, 0.4  # share of the question's words in a procedure, and in one that the search has, too
_MOST_OF_OVERVIEW = 120  # memories that compete for the budget of an overview
_FULL = 40  # memories of an overview beside which no statement without an attribute is needed
_RESTRICTIONS, _DISLIKES = ATTRIBUTES.mask(["diet", "allergies"]), ATTRIBUTES.mask(["dislikes"])
_FOOD = ATTRIBUTES.mask(["food"])
_PARTNER = ATTRIBUTES.mask(["partner"])
_CURRENT = frozenset(
    {QuestionKind.OVERVIEW, QuestionKind.LIST, QuestionKind.MENTIONED, QuestionKind.DATED, QuestionKind.PAST}
)  # that need no search beside them
_UNSEARCHED = frozenset({QuestionKind.OVERVIEW, QuestionKind.MENTIONED, QuestionKind.DATED})  # read no candidates


def _needs_no_search(intent: Intent) -> bool:
    if intent.kind is QuestionKind.LIST:
        return intent.attributes != 0
    return intent.kind in _CURRENT and not (intent.kind is QuestionKind.PAST and intent.subject)


class Lookups:
    """Runs the lookup for a kind of question, over all owners within reach of the request."""

    def __init__(
        self, selects: MemorySelector, reads: AttributeReader | None = None, vectors: VectorReader | None = None
    ) -> None:
        self._selects, self._reads, self._vectors = selects, reads, vectors

    async def before_search(self, wish: RecallRequest, reading: Reading, now: datetime) -> Lookup | None:
        """For readings that need no search; None if they find nothing, or a reading with a search comes first."""
        for intent in takewhile(_needs_no_search, reading.intents):
            if (found := await self._of(wish, intent, (), now)) is not None:
                return found
        return None

    async def after_search(
        self, wish: RecallRequest, reading: Reading, searched: Sequence[Candidate], now: datetime, *, again: bool
    ) -> Lookup | None:
        """*again*: `before_search` found nothing for *reading*."""
        interrogative = INTENTS.words["interrogative"]
        tried = len(list(takewhile(_needs_no_search, reading.intents))) if again else 0
        for at, intent in enumerate(reading.intents):
            if at < tried and intent.kind in _UNSEARCHED:
                continue
            if (
                intent.kind is QuestionKind.CONSTRAINT
                and not interrogative.isdisjoint(intent.words[:1])
                and (found := await self.of_people(wish, searched, now)) is not None
            ):
                return found  # "Where can I find my brother-in-law's shop?" asks for a fact
            if (found := await self._of(wish, intent, searched, now)) is not None:
                return found
        return None

    async def without_kind(
        self, wish: RecallRequest, searched: Sequence[Candidate], now: datetime, *, is_general: Callable[[], bool]
    ) -> Lookup | None:
        """For a question without a lookup: about a person, then for the steps of something. *is_general*: whether
        the search has nothing to say to it."""
        found = await self.of_people(wish, searched, now)
        return found or await self.of_steps(wish, searched, now, is_general=is_general)

    async def of_people(self, wish: RecallRequest, searched: Sequence[Candidate], now: datetime) -> Lookup | None:
        """For a question about a person whom the caller named, where the search is sure of no memory."""
        words = tuple(word.removesuffix("'s") for word in plain_words(wish.question[:LONGEST]))
        return await find_named(
            QuestionReading(self._selects, None, wish, Intent(QuestionKind.HOPS, words=words), searched, now)
        )

    async def of_steps(
        self, wish: RecallRequest, searched: Sequence[Candidate], now: datetime, *, is_general: Callable[[], bool]
    ) -> Lookup | None:
        """For a question for the steps of something in words of its own, where the search is sure of no memory."""
        words = plain_words(wish.question[:LONGEST])
        subject = " ".join(word for word in words if word not in INTENTS.words["reporting"])
        asking = asks(wish.question) or INTENTS.words["requesting"].intersection(words[:1])
        if not asking or not INTENTS.words["no_steps"].isdisjoint(words[:1]) or asks_of_doer(wish.question):
            return None
        passing = any(one.relevance >= (wish.threshold or RELEVANT) for one in searched)
        if passing and not is_general():
            return None
        return await self._of(wish, Intent(QuestionKind.PROCEDURE, subject=subject), searched, now)

    async def _of(
        self, wish: RecallRequest, intent: Intent, searched: Sequence[Candidate], now: datetime
    ) -> Lookup | None:
        # Constraints are stated in plain words; likeness finds some where there are none, and much beside subjects.
        reads = (
            None
            if intent.kind in {QuestionKind.CONSTRAINT, QuestionKind.OVERVIEW, QuestionKind.SUBJECT}
            else self._reads
        )
        asked = QuestionReading(self._selects, reads, wish, intent, searched, now, self._vectors)
        return await _FINDERS[intent.kind](asked)


# --- kinds -------------------------------------------------------------------------------------------


async def _overview(asked: QuestionReading) -> Lookup | None:
    """Facts and statements of weight, of each attribute the best first, so that no attribute crowds out another; of
    an attribute with a single value the newest alone."""
    told = await asked.select(Selection(everything=True), sources=FACTS & asked.wish.scope.sources)
    facts = [one for one in told if one.type is not MemoryType.REFLECTIVE and is_of_household(one)]
    said = await asked.select(Selection(attributes=ATTRIBUTES.every), sources=_SAID & asked.wish.scope.sources)
    said = [
        one
        for one in said
        if ((is_of_caller(one) and not asks_of_another(one)) or is_of_family(one) or asked.states_single(one))
        and is_of_household(one)
    ]
    once = asked.once(facts_first([*facts, *said]), ATTRIBUTES.every)
    ordered = asked.spread(asked.newest_of_single(once), ATTRIBUTES.every)[:_MOST_OF_OVERVIEW]
    if len(ordered) < _FULL:  # of little, everything that was stated
        rows = await asked.select(Selection(everything=True), sources=_SAID & asked.wish.scope.sources)
        known = {one.id for one in (*facts, *said)}
        beside = [one for one in rows if one.id not in known and is_of_household(one) and states_something(one)]
        beside = [one for one in asked.newest_of_single([*once, *beside]) if one.id not in known]
        ordered += beside[: _FULL - len(ordered)]
    headings = {one.id: group_of(one, asked.tells(one)) for one in ordered}
    return asked.lookup(ordered, headings=headings, alone=True, all_of_it=True)


_OTHER = "more"


def group_of(memory: Memory, tells: int) -> str:
    """The heading that an overview puts *memory* under."""
    if memory.type is MemoryType.PROCEDURAL:
        return "procedures"
    groups = ATTRIBUTES.groups(ATTRIBUTES.of_field(memory.provenance.attribute) or tells)
    return next((group for group in GROUPS if group in groups), _OTHER)


async def _list_people(asked: QuestionReading) -> Lookup | None:
    """List a memory per person in the caller's words, then a memory per relation without a name."""
    sources = (FACTS | {Source.VERBATIM}) & asked.wish.scope.sources
    rows = await asked.select(Selection(everything=True), sources=sources)
    if asked.intent.days is not None:
        first, last = asked.intent.days
        rows = [one for one in rows if first <= one.created_at.date().toordinal() <= last]
    told = facts_first(one for one in rows if said_by_owner(one))
    related = (one for one in told if asked.tells_by_words(one) & _PEOPLE)
    seen: set[str] = set()
    found: dict[str, Memory] = {}
    for memory, people in (
        *((one, people_in(one.content)) for one in told),
        *((one, relation_words(plain_words(one.content))) for one in related),
    ):
        if people - seen:
            seen |= people | relation_words(plain_words(memory.content))
            found.setdefault(memory.id, memory)
    return asked.lookup(found.values(), alone=True, all_of_it=True)


async def _past(asked: QuestionReading) -> Lookup | None:
    """Summaries of conversations; their words before there is a summary."""
    intent = asked.intent
    rows = await asked.select(Selection(everything=True), sources=_SUMMARIES & asked.wish.scope.sources)
    summaries = everything = once_for_session(rows)
    if intent.days is not None:
        summaries = [one for one in summaries if said_within(one, intent.days)]
    if intent.subject:
        of_subject = _past_subject(asked, summaries) or _past_subject(asked, everything)
        advised = INTENTS.patterns["advised"].search(" ".join(intent.words))
        advice = await _advice(asked, rows) if advised or of_subject is None else []
        if not advice:
            return of_subject
        advice = [*asked.passing()[:FIRST], *advice]
        behind, opens = (of_subject.memories, of_subject.opens) if of_subject else ((), False)
        there = {(one.owner, one.session) for one in advice}
        beside = [one for one in behind if (one.owner, one.session) in there] or behind
        return asked.lookup(each_once([*advice, *beside]), all_of_it=True, opens=opens)
    by_time = sorted(summaries, key=lambda one: (last_said(one), len(one.content)), reverse=True)
    if by_time and not (intent.latest or intent.earliest) and intent.days is None:
        return asked.lookup(without_quoted(by_time)[:_MOST_TOPICS], alone=True, all_of_it=True)
    wanted = Selection(everything=intent.days is None, days=intent.days)
    messages = await asked.select(wanted, sources=_SAID & asked.wish.scope.sources)
    sessions = group_other_sessions(messages, View(asked.wish.in_view))
    if intent.latest or intent.earliest:
        by_end = sorted(sessions, key=lambda said: max(map(valid_since, said)))
        sessions = by_end[-1:] if intent.latest else by_end[:1]
    names = {(one.owner, one.session) for said in sessions for one in said}
    same = [one for one in by_time if (one.owner, one.session) in names]
    if same:
        return asked.lookup(same, alone=True, all_of_it=True, opens=True)
    said = [one for session in sessions for one in session]
    return asked.lookup(sorted(said, key=lambda one: (-valid_since(one), -one.seq)), alone=True, all_of_it=True)


async def _advice(asked: QuestionReading, summaries: Sequence[Memory]) -> list[Memory]:
    """The assistant's answers on the subject, by their words and those of the message before, and the answers of
    the same topic; then the answer that the search has first."""
    told, place = asked.intent.subject, asked.place()
    deed, _, thing = told.partition(" ")  # of "avoiding crowds" the crowds were spoken of
    wanted = content_stems(thing if deed.endswith("ing") and content_stems(thing) else told)
    rows = await asked.select(Selection(everything=True), sources=_SAID & asked.wish.scope.sources)
    before = {(one.owner, one.session, one.seq + 1): one for one in rows if one.role is Role.USER}
    sure = bool(asked.passing())
    least = sum(map(rarity, wanted)) * (_HALF if sure else _NEARLY_ALL)
    weighed = []
    for one in rows:
        if one.role is Role.ASSISTANT:
            request = before.get((one.owner, one.session, one.seq), one)
            worth = sum(map(rarity, wanted & (content_stems(one.content) | content_stems(request.content))))
            near = min(place.get(each.id, len(place)) for each in (one, request))
            if worth >= least > 0:
                weighed.append((worth, -near, one))
    weighed.sort(key=lambda each: each[:2], reverse=True)
    probable = (one.memory for one in asked.searched if one.relevance >= _NOT_UNLIKELY)
    answers = [one for one in probable if one.role is Role.ASSISTANT and one.source is not Source.SUMMARY]
    best = [one for _, _, one in weighed[:_MOST_ADVICE]] or (answers[:1] if sure else [])
    if not best:
        return []
    # A later question on the subject has other words: the answers of one topic belong together.
    spans = [
        span_of(one) or range(0)
        for one in summaries
        if (one.owner, one.session) == (best[0].owner, best[0].session)
    ]
    around = range(best[0].seq - _AROUND, best[0].seq + _AROUND + 1)
    topic = min((span for span in spans if best[0].seq in span), key=len, default=around)
    beside = [
        one for one in rows if one.role is Role.ASSISTANT and stands_in(one, best[0].owner, best[0].session, topic)
    ]
    beside.sort(key=lambda one: (abs(one.seq - best[0].seq), one.seq))
    return each_once([*best, *beside[:_MOST_OF_TOPIC], *answers[:1]])


_MOST_ADVICE = 3  # answers
_HALF, _NEARLY_ALL = 0.5, 0.75  # of the words of a subject, rare words counting more
_MOST_OF_TOPIC = 6  # answers beside the best one
_AROUND = 6  # places of a conversation without topics


def _past_subject(asked: QuestionReading, summaries: Sequence[Memory]) -> Lookup | None:
    found = _to_the_point(asked, summaries)
    if not found:  # the question uses other words: trust the best candidates of the search
        likely = [one.memory for one in asked.searched if one.relevance >= _LIKELY][:MOST_CHAIN]
        found = [
            one
            for one in summaries
            if (span := span_of(one)) and any(stands_in(said, one.owner, one.session, span) for said in likely)
        ] or [one for one in summaries if one in likely]
    if not found:
        wanted = content_stems(asked.intent.subject)
        probable = (one.memory for one in asked.searched if one.relevance >= _NOT_UNLIKELY)
        answers = [one for one in probable if one.role is Role.ASSISTANT]
        advice = [one for one in having_most(wanted, answers) if one.source is not Source.SUMMARY]
        return asked.lookup(advice[:MOST_CHAIN])
    # Without a summary the ranking of the messages is better than any choice among them.
    return asked.lookup(found, alone=True, all_of_it=True, opens=True)


_SUMMARIES = frozenset({Source.SUMMARY})


def _to_the_point(asked: QuestionReading, memories: Sequence[Memory]) -> list[Memory]:
    """The *memories* with most words of the subject, best first."""
    wanted = content_stems(asked.intent.subject)
    place = asked.place()
    shared = {one.id: len(wanted & content_stems(named_content(one))) for one in memories}
    most = max(shared.values(), default=0)
    having = {one.id for one in having_most(wanted, memories)}
    kept = [one for one in memories if shared[one.id] == most and one.id in having]
    return sorted(kept, key=lambda one: (-shared[one.id], place.get(one.id, len(place))))


async def _days(asked: QuestionReading) -> Lookup | None:
    days = asked.intent.days
    if days is None:
        return None
    rows = await asked.select(Selection(days=days))
    # A summary repeats its messages; it stands for days of which nothing else is left.
    said = [one for one in rows if one.source is not Source.SUMMARY] or rows
    wanted = asked.intent.attributes
    narrow = [one for one in said if asked.tells_by_words(one) & wanted] if wanted else []
    if asked.intent.rest:  # "the workshop last week" asks for that alone
        having = [one for one in having_most(asked.intent.rest, narrow or said) if said_by_owner(one)]
        if not having:
            return None
        narrow = having
    said = narrow or said
    own = asked.once(facts_first(one for one in said if one.role is not Role.ASSISTANT), ATTRIBUTES.every)
    answers = [one for one in said if one.role is Role.ASSISTANT]
    if not INTENTS.patterns["both_spoke"].search(" ".join(asked.intent.words)):
        # A statement tells itself; a question is not stored, so that its answer tells of it.
        stated = {(one.owner, one.session, one.seq + 1) for one in own}
        answers = [one for one in answers if (one.owner, one.session, one.seq) not in stated]
    # Where the caller only asked, a summary tells of it.
    about = [] if asked.intent.rest else once_for_session([one for one in rows if one.source is Source.SUMMARY])
    return asked.lookup([*own, *about, *answers], alone=True, all_of_it=True)


async def _list(asked: QuestionReading) -> Lookup | None:
    intent = asked.intent
    found = asked.fitting(await asked.telling(intent.attributes), intent.attributes) if intent.attributes else []
    if intent.rest:  # "the books I read for school"; a word that no item has ("all monthly fees") may be a remark
        fitting = having_most(intent.rest, found)
        found = fitting if len(fitting) > 1 or names_in(asked.wish.question) else found
    if intent.attributes & _RESTRICTIONS:  # what a person dislikes to eat is no diet, and is avoided, too
        disliked = await asked.telling(_DISLIKES)
        found += [
            one for one in disliked if asked.tells_by_words(one) & _FOOD and asked.tells_by_words(one) & _DISLIKES
        ]
    wanted = content_stems(intent.subject)
    said = [one.memory for one in asked.searched if said_by_owner(one.memory)]
    said = [one for one in said if one.source is not Source.SUMMARY]
    found += [one for one in said if wanted and wanted <= content_stems(one.content)]
    # The items by their words come first; the ranking orders the rest.
    passing = [one for one in asked.passing() if one in said]
    if intent.attributes and not intent.attributes & ATTRIBUTES.of_others:
        passing = [one for one in passing if about_self(one)]
    found += await continuing(asked, each_once([*found, *passing]), INTENTS.words["additive"])
    ordered = each_once([*facts_first(each_once(found)), *passing])
    return asked.lookup(asked.once(ordered, intent.attributes), alone=True, all_of_it=True)


async def _indirect(asked: QuestionReading) -> Lookup | None:
    """The attribute in the question, where the search does not find it by itself."""
    asked_for = _without_people(asked.intent)
    passing = asked.passing()
    found = [one for one in await asked.telling(asked_for) if asked.tells(one) & asked_for]
    if not found and asked.intent.people and asked_for & ATTRIBUTES.of_others:
        # "broke up with Ellie" tells of a girlfriend without the word, "my brother Tom" of no sister; a fiancée may
        # have been a girlfriend.
        told = await asked.select(Selection(attributes=asked_for))
        named = ((one, relation_words(plain_words(one.content))) for one in told)
        found = [
            one for one, people in named if not people or ATTRIBUTES.named_in([*people]) == asked_for == _PARTNER
        ]
    found = asked.fitting(found, asked_for)
    if rest := asked.intent.rest:
        found = [one for one in found if rest <= content_stems(one.content)]
    of_self = not asked.intent.people and not asked_for & ATTRIBUTES.of_others
    found = [
        one for one in found if states(one, asked_for, of_self=of_self) or not asked.tells_by_words(one) & asked_for
    ]
    found = asked.surely(found, asked_for)
    likely = {one.memory.id for one in asked.searched if one.relevance >= _NOT_UNLIKELY}
    by_words = [] if asked.intent.alike else [one for one in found if asked.tells_by_words(one) & asked_for]
    found = by_words or [one for one in found if one.id in likely]
    ids = {one.id for one in found}
    facts = {one.id for one in found if one.source in FACTS}
    # A message that the search has may tell the attribute only in passing; a fact tells it.
    there = facts or ids
    if not found or any(one.id in there or (asked.intent.alike and _answers(asked, one)) for one in passing):
        return None
    return asked.lookup(_narrow(asked, found)[:_MOST_INDIRECT], alone=True)


def _answers(asked: QuestionReading, memory: Memory) -> bool:
    """Whether *memory* of the owner shares more with the question than a word."""
    shared = content_stems(" ".join(asked.intent.words)) & content_stems(memory.content)
    return said_by_owner(memory) and len(shared) > 1


def _narrow(asked: QuestionReading, found: Sequence[Memory]) -> list[Memory]:
    """The memories in *found* with most words of the question, in the order of the search."""
    place = asked.place()
    naming = asked.intent.attributes
    words = (word for word in asked.intent.words if not ATTRIBUTES.named_in([word]) & naming)
    wanted = content_stems(" ".join(words))
    shared = {one.id: len(wanted & content_stems(one.content)) for one in found}
    most = max(shared.values(), default=0)
    kept = [one for one in found if shared[one.id] == most]
    return sorted(kept, key=lambda one: (one.source not in FACTS, place.get(one.id, len(place))))


_MOST_INDIRECT = 3
_ALIKE = 0.45  # cosine of a statement about the subject in other words


def _without_people(intent: Intent) -> int:
    """The attributes asked for: of "my sister's job" the job, of "my sister" and "my sister's name" the sister."""
    named = ATTRIBUTES.named_in(list(intent.people))
    return intent.attributes & ~named & ~NAME or intent.attributes & ~NAME or intent.attributes


async def _constraint(asked: QuestionReading) -> Lookup | None:
    intent = asked.intent
    if not intent.attributes:  # of no domain: the caller's limits about the same thing
        wanted = content_stems(" ".join(intent.words))
        likely = (one.memory for one in asked.searched[:FIRST] if said_by_owner(one.memory))
        limits = [one for one in likely if negates(one.content) and wanted & content_stems(one.content)]
        return asked.lookup(limits[:_OF_AN_ATTRIBUTE], leads=False)
    limiting = intent.attributes | intent.likings
    rows = await asked.select(Selection(attributes=limiting))
    rows = [one for one in rows if len(one.content) <= LONGEST_STATEMENT and states(one, limiting)]
    strict = [one for one in rows if asked.tells(one) & intent.attributes and _holds_back(one, asked)]
    strict = [one for one in strict if asked.tells_by_words(one) & intent.attributes] or strict
    ids = {one.id for one in strict}
    loose = [
        one
        for one in rows
        if one.id not in ids
        and asked.tells_by_words(one) & intent.likings
        and asked.tells_by_words(one) & intent.of
        and about_self(one)
    ]
    found = [*asked.once(facts_first(strict), limiting), *asked.once(facts_first(loose), limiting)]
    found = asked.spread(found, intent.attributes, _OF_AN_ATTRIBUTE)[:_MOST_CONSTRAINTS]
    return asked.lookup(await _with_sources(asked, found), leads=False)


async def _with_sources(asked: QuestionReading, found: Sequence[Memory]) -> list[Memory]:
    """*found* with the caller's message behind each fact that has less than half of its words: "User takes
    metoprolol" of "they put me on metoprolol, so no grapefruit"."""
    facts = {(one.owner, one.session, one.seq): one for one in found if one.source in FACTS and one.session}
    rows = await asked.select(Selection(everything=True), sources=_SAID & asked.wish.scope.sources) if facts else []
    sources = {place: one for one in rows if (place := (one.owner, one.session, one.seq)) in facts}
    whole = []
    for one in found:
        whole.append(one)
        source = sources.get((one.owner, one.session, one.seq)) if one.source in FACTS else None
        if source is not None and one is facts[source.owner, source.session, source.seq]:
            said = content_stems(source.content)
            if 2 * len(said & content_stems(one.content)) < len(said) <= _SHORT:
                whole.append(source)
    return each_once(whole)


_SHORT = 20  # content words of a message
_OF_AN_ATTRIBUTE = 2  # constraints of an attribute
_MOST_CONSTRAINTS = 6


def _holds_back(memory: Memory, asked: QuestionReading) -> bool:
    """Whether *memory* constrains the caller, or the family that comes along."""
    if about_self(memory) or asked.tells(memory) & asked.intent.attributes & ATTRIBUTES.of_others:
        return True
    family = relation_words(plain_words(subject(memory.content)[0]))
    return bool(family & INTENTS.words["family"])


async def _as_of(asked: QuestionReading) -> Lookup | None:
    """Values that held then and were replaced since; without such, values that still hold, and older statements."""
    intent, period = asked.intent, asked.wish.scope.as_of
    likely = [one.memory for one in asked.searched[:FIRST] if said_by_owner(one.memory)]
    if not intent.mine and not refers_to(asked.wish.question, [one.content for one in likely]):
        return None
    if intent.attributes:
        told = _without_people(intent)
        probable = {one.memory.id for one in asked.searched if one.relevance >= _NOT_UNLIKELY}
        # Many memories are like a former value; the search must have such a memory, too.
        found = [one for one in await asked.telling(told) if asked.tells_by_words(one) & told or one.id in probable]
    else:
        wanted = content_stems(" ".join(split_at_before(intent.words)[0]))
        found = having_most(wanted, (one.memory for one in asked.searched if said_by_owner(one.memory)))
    if before := before_value(intent, found):
        return asked.lookup(before, alone=intent.mine)
    found = _having_words(asked, found)
    found = sorted(found, key=valid_since, reverse=True)
    was = [one for one in found if one.valid_to is not None]
    if was:
        # The rent and the budget are one attribute: the word for it tells which was meant.
        shared = [len(content_stems(" ".join(intent.words)) & content_stems(one.content)) for one in was]
        meant = [one for one, words in zip(was, shared, strict=True) if words == max(shared)]
        return asked.lookup(meant[: asked.wish.limit], alone=intent.mine)
    if period is not None and intent.days is not None:
        before = [one for one in found if (one.valid_from or one.created_at) < period.until]
        # "moving out of Leeds", said later, names the home of then.
        return asked.lookup(before[:_MOST_INDIRECT] or found[-1:], leads=False)
    if not found:
        words = content_stems(" ".join(intent.words))
        alike = {one.memory.id for one in asked.searched[:FIRST] if one.features.get("dense", 0.0) >= _ALIKE}
        said = (one for one in likely if one.source is not Source.SUMMARY)
        found = [one for one in said if one.id in alike or words & content_stems(one.content)]
        # All values that may be meant, with their days: the words do not tell which of them came first.
        return asked.lookup(sorted(found, key=valid_since)[:_MOST_INDIRECT], leads=False)
    return asked.lookup(found[1 : _MOST_INDIRECT + 1] or found, leads=False)


def _having_words(asked: QuestionReading, found: Sequence[Memory]) -> list[Memory]:
    """The memories in *found* with most of the question's words beside its attribute."""
    named = asked.intent.attributes
    words = [word for word in asked.intent.words if not ATTRIBUTES.named_in([word]) & named]
    wanted = content_stems(" ".join(words))
    most = max((len(wanted & content_stems(one.content)) for one in found), default=0)
    kept = [one for one in found if len(wanted & content_stems(one.content)) == most]
    return kept if len(kept) > 1 else list(found)  # a single value is as a rule the one of today


# "to reset the boiler: hold the knob, wait, bleed the radiator"
_STEPS = re.compile(r"\w: \w[^.?!]{0,200}?(?:,| and | then | und | et | y )|\bthen\b|\bdann\b|\bpuis\b|\bluego\b")


async def _procedure(asked: QuestionReading) -> Lookup | None:
    wanted = content_stems(asked.intent.subject)
    if not wanted:
        return None
    rows = await asked.select(Selection(everything=True), types=asked.wish.scope.types & {MemoryType.PROCEDURAL})
    # Rules do not read every set of steps; the words of such a message are steps, too.
    said = [
        one.memory for one in asked.searched if one.memory.source is Source.VERBATIM and said_by_owner(one.memory)
    ]
    rows += [one for one in said if _STEPS.search(one.content, _label_end(one, said)) and states_something(one)]
    whole = sum(map(rarity, wanted))
    fitting = {one.id: sum(map(rarity, wanted & content_stems(one.content))) / whole for one in rows}
    # In other words than the question's, by the search.
    likely = {one.memory.id for one in asked.searched[:FIRST] if one.relevance >= _NOT_UNLIKELY}
    found = [one for one in rows if fitting[one.id] >= (_SOME if one.id in likely else _ENOUGH)]
    found.sort(key=lambda one: (-fitting[one.id], -valid_since(one)))
    return asked.lookup(found[: asked.wish.limit], alone=True)


def _label_end(memory: Memory, said: Sequence[Memory]) -> int:
    """Where the text begins behind the name of a speaker under which several in *said* stand."""
    label = speaker_of(memory.content)
    several = label and sum(one.content.startswith(f"{label}: ") for one in said) > 1
    return len(label) + 2 if several else 0


_FINDERS: Mapping[QuestionKind, Callable[[QuestionReading], Awaitable[Lookup | None]]] = {
    QuestionKind.OVERVIEW: _overview,
    QuestionKind.SUBJECT: find_subject,
    QuestionKind.PAST: _past,
    QuestionKind.DATED: _days,
    QuestionKind.LIST: _list,
    QuestionKind.MENTIONED: _list_people,
    QuestionKind.INDIRECT: _indirect,
    QuestionKind.HOPS: walk_to_answer,
    QuestionKind.CONSTRAINT: _constraint,
    QuestionKind.AS_OF: _as_of,
    QuestionKind.PROCEDURE: _procedure,
}


def group_other_sessions(rows: Iterable[Memory], view: View) -> list[list[Memory]]:
    """Conversations by their messages, without the one in *view* and, if there are others, without those of which
    nothing of substance is left."""
    by_session: defaultdict[tuple[Owner, str], list[Memory]] = defaultdict(list)
    for one in rows:
        if one.session:
            by_session[one.owner, one.session].append(one)
    others = [said for said in by_session.values() if 2 * sum(map(view.shows, said)) <= len(said)]
    return list(filter(_has_substance, others)) or others


def _has_substance(said: Sequence[Memory]) -> bool:
    """False for a mere "Sure, happy to help.", the rest of a conversation whose questions are not kept."""
    stems = frozenset[str]().union(*(content_stems(one.content) for one in said))
    return any(one.role is Role.USER for one in said) or len(stems) >= _SUBSTANCE


_SUBSTANCE = 8  # content words
