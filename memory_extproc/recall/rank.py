"""Chooses the memories to inject: calibrated relevance, threshold, order."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from memory_extproc.index.facets import names_in, tells_of
from memory_extproc.model import Matrix, Memory, Ranked, Rating, Role, Source, Trust, trust_of
from memory_extproc.recall.candidate import Candidate, Considered, Verdict
from memory_extproc.recall.dedup import deduplicate, visible_as_other_form
from memory_extproc.recall.fusion import FEW
from memory_extproc.recall.intent import LONGEST, QuestionKind, Reading
from memory_extproc.recall.topic_context import View, normal
from memory_extproc.text.attributes import ATTRIBUTES, plain_words
from memory_extproc.text.dates import days_asked_for
from memory_extproc.text.intents import asks, content_stems
from memory_extproc.text.persons import about_caller, relation_words, same_relation
from memory_extproc.text.words import (
    MOST_REMEMBERED,
    fold,
    memoize_by_hash,
    negates,
    rarity,
    sentences,
    stems,
    terms,
)


def reaching(ordered: Sequence[Candidate], threshold: float, *, on_cosine: bool) -> list[Candidate]:
    """The candidates of *ordered* whose standing is at least *threshold*."""
    if on_cosine:
        return [one for one in ordered if one.standing(on_cosine=True) >= threshold]
    return [one for one in ordered if one.relevance >= threshold]


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


# --- support -----------------------------------------------------------------------------------------
# Evidence beside the likeness of words, for questions about the caller: among hundreds of memories the score of a
# message that answers in passing ("got a parcel from Marta, my little sister") hardly stands out.

SUPPORTED = 2.0  # log-odds; chosen on the dev half of tests/quality/intents
_SUPPORTED_FIRST = 5  # candidates
_SURE = 1e-6


def raise_for_caller(
    question: str, reading: Reading, ordered: Sequence[Candidate], searched: int
) -> Sequence[Candidate]:
    """Raise candidates of a question about the caller in a store of many memories, whose gate was fitted on other
    talk. An answer over several steps needs several memories."""
    if searched < FEW or len(question) > LONGEST or not about_caller(question):
        return ordered
    if QuestionKind.HOPS in {intent.kind for intent in reading.intents} or not any(map(asks, sentences(question))):
        return ordered
    return raise_supported(ordered, question)


def raise_supported(ordered: Sequence[Candidate], question: str) -> Sequence[Candidate]:
    """Raise the relevance of the first few candidates that tell the attribute, the person or the name in the
    *question*, or have half of its words."""
    support = _Support(question)
    first = [
        msgspec.structs.replace(one, relevance=_raise_odds(one.relevance)) if support.of(one.memory) else one
        for one in ordered[:_SUPPORTED_FIRST]
    ]
    return [*first, *ordered[_SUPPORTED_FIRST:]]


def _raise_odds(relevance: float) -> float:
    odds = math.log(max(relevance, _SURE) / max(1.0 - relevance, _SURE)) + SUPPORTED
    return max(relevance, 1.0 / (1.0 + math.exp(-odds)))


class _Support:
    def __init__(self, question: str) -> None:
        words = plain_words(question)
        self._people = relation_words(words)
        attributes = ATTRIBUTES.named_in(words) | ATTRIBUTES.asked_by(" ".join(words))
        self._attributes = attributes & ~ATTRIBUTES.mask(["name"])
        self._names, self._stems = names_in(question), content_stems(question)

    def of(self, memory: Memory) -> bool:
        if memory.source is Source.SUMMARY or memory.role is Role.ASSISTANT:
            return False
        text = memory.content
        if self._names & names_in(text) or tells_of(memory) & self._attributes:
            return True
        there = {word.removesuffix("'s") for word in plain_words(text)} if self._people else set()
        if self._people and not any(there.isdisjoint(same_relation(one)) for one in self._people):
            return True
        shared = sum(map(rarity, self._stems & content_stems(text)))
        return bool(self._stems) and 2 * shared >= sum(map(rarity, self._stems))


# --- mmr ---------------------------------------------------------------------------------------------
# Optional variety among the chosen memories.
#
# Carbonell and Goldstein 1998, "The Use of MMR, Diversity-Based Reranking for Reordering Documents and Producing
# Summaries". Likeness is that of words, which tells a repetition from a second piece of evidence better than
# vectors do: with vectors λ 0.7 is known to cost more than half of the questions whose evidence is several
# messages. Off by default, for it gives next to nothing: measured on half of LoCoMo over the cosine and BM25
# added up, evidence recall among the first five goes from 0.551 to 0.557 at λ 0.7 and 0.5, and to 0.529 at 0.3.


def diversify_mmr(
    candidates: Sequence[Candidate], balance: float, limit: int, threshold: float, *, on_cosine: bool
) -> list[Candidate]:
    """*candidates* (best first) with the choice of MMR ahead: at most *limit* candidates at or above *threshold*;
    all other candidates follow in their order."""
    able = [at for at, one in enumerate(candidates) if one.standing(on_cosine=on_cosine) >= threshold]
    texts = [candidates[at].memory.content for at in able]
    relevances = [candidates[at].relevance for at in able]
    ahead = [able[place] for place in mmr(relevances, alike_in_words(texts), balance, limit)]
    return [candidates[at] for at in dict.fromkeys([*ahead, *range(len(candidates))])]


def mmr(relevances: Sequence[float], alike: Matrix, balance: float, limit: int) -> tuple[int, ...]:
    """At most *limit* places, each with the highest ``balance * relevance - (1 - balance) * alike``: the likeness
    to the nearest place chosen before.

    *relevances* in [0, 1]; *alike* in [0, 1], a row and a column for each; *balance* (λ) in [0, 1]: at 1 the
    relevance alone decides. Ties: the earlier place. Costs limit · n.
    """
    wanted = np.asarray(relevances, dtype=np.float64)
    nearest = np.zeros(len(wanted))
    free = np.ones(len(wanted), dtype=bool)
    chosen: list[int] = []
    while len(chosen) < min(limit, len(wanted)):
        worth = np.where(free, balance * wanted - (1.0 - balance) * nearest, -np.inf)
        at = int(worth.argmax())
        chosen.append(at)
        free[at] = False
        nearest = np.maximum(nearest, alike[at])
    return tuple(chosen)


def alike_in_words(texts: Sequence[str]) -> Matrix:
    """How alike *texts* are, in [0, 1], a row and a column for each: the cosine of their sets of stems. Texts
    without a content word are like nothing but themselves."""
    sets = [stems(text) for text in texts]
    places = {word: at for at, word in enumerate(sorted(set().union(*sets)))}
    held: Matrix = np.zeros((len(texts), max(1, len(places))), dtype=np.float32)
    for row, words in zip(held, sets, strict=True):
        row[[places[word] for word in words]] = 1.0
    lengths = np.sqrt(held.sum(axis=1, keepdims=True))
    unit = held / np.maximum(lengths, 1.0)
    alike: Matrix = np.clip(unit @ unit.T, 0.0, 1.0)
    np.fill_diagonal(alike, 1.0)
    return alike


# --- recency -----------------------------------------------------------------------------------------
# The loss of score by age. A fact does not age: it holds until another replaces it.

HALF_LIFE = timedelta(days=60)
# Points of score that the oldest message loses, at most: little beside the other features, unless the question
# asks for news.
USUAL = 0.2
FRESH = 2.0
_READ = 2_000  # characters

_ASKS_FOR_NEW = re.compile(
    r"\b(?:latest|newest|current|currently|now|nowadays|today|recent|recently|lately|these days|at the moment"
    r"|neueste[nrs]?|aktuell\w*|derzeit|jetzt|heute|zuletzt|actuel\w*|maintenant|aujourd'hui|r\u00e9cemment"
    r"|actual\w*|ahora|hoy|\u00faltimamente|recientemente|attual\w*|adesso|oggi|atual\w*|agora|hoje|huidige|nu"
    r"|vandaag)\b"
)


def asks_for_new(text: str) -> bool:
    """Whether *text* asks for how things are by now ("my latest offer", "where do I work now?")."""
    return _ASKS_FOR_NEW.search(fold(text[:_READ])) is not None


def most_lost(text: str, today: date) -> float:
    """Points of score that the oldest memory loses for the question *text*, asked on the day *today*: zero
    where the question names a day of its own."""
    return FRESH if asks_for_new(text) else 0.0 if days_asked_for(text, today) else USUAL


HELPFUL = 0.4  # points of score that a memory gains which its owner called helpful


def gained_by_rating(memories: Sequence[Memory]) -> npt.NDArray[np.float64]:
    """Points of score, 0 or more, that each memory gains."""
    helpful = [memory.provenance.rating is Rating.HELPFUL for memory in memories]
    return HELPFUL * np.array(helpful, dtype=np.float64)


def lost_to_age(
    most: float, memories: Sequence[Memory], now: datetime, half_life: timedelta
) -> npt.NDArray[np.float64]:
    """Points of score, 0 or more, that each memory loses: half of *most* after a *half_life*."""
    if most == 0.0:
        return np.zeros(len(memories))
    ages = np.array(
        [
            (now - (memory.valid_from or memory.created_at)) / half_life
            if memory.source is Source.VERBATIM
            else 0.0
            for memory in memories
        ],
        dtype=np.float64,
    )
    lost: npt.NDArray[np.float64] = most * (1.0 - np.exp2(-np.maximum(ages, 0.0)))
    return lost
