"""Which of the memories found are worth injecting: calibrated relevance, threshold, order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime
from functools import lru_cache

import msgspec

from memory_extproc.language.answers import echoes
from memory_extproc.language.stemming import terms
from memory_extproc.language.words import negates
from memory_extproc.model import Memory, Owner, Ranked, Source
from memory_extproc.recall.explanation import Considered, Verdict
from memory_extproc.recall.together import together
from memory_extproc.recall.view import View, normal


class Candidate(msgspec.Struct, frozen=True):  # no dataclass: of these there are a hundred for each question
    """A memory that a search came upon. *score* orders the candidates of one question and means nothing beyond
    it; *relevance* in [0, 1] is calibrated; *features* by name are what both were made of."""

    memory: Memory
    score: float
    relevance: float
    features: Mapping[str, float] = msgspec.field(default_factory=dict)

    def standing(self, *, on_cosine: bool) -> float:
        """What a threshold is held against: the relevance, or the raw cosine where one is known. Where only words
        were searched there is none, and a number that is none would pass every threshold."""
        if not on_cosine:
            return self.relevance
        cosine = self.features.get("dense", math.nan)
        return self.relevance if math.isnan(cosine) else cosine


def chosen(weighed: Iterable[Considered]) -> tuple[Ranked, ...]:
    return tuple(Ranked(one.memory, one.relevance) for one in weighed if one.verdict is Verdict.INJECTED)


def weigh(
    ordered: Sequence[Candidate],
    *,
    now: datetime,
    threshold: float,
    limit: int,
    on_cosine: bool = False,
    in_view: Iterable[str] = (),
    seen: AbstractSet[str] = frozenset(),
    whole: bool = True,
) -> list[Considered]:
    """Every one of *ordered*, best first, with its verdict: at most *limit* INJECTED, each at or above *threshold*
    (on relevance, or on the cosine itself). Not *whole*: nobody asks about the others, and none of those that are
    surely not injected need be there.

    What says the same, also in other forms or another order of its words, is given once, and the newest of it; of a
    message and a fact that say the same only the fact, because a fact is replaced when it no longer holds and a
    message is not. A summary is left out where something that it was made of is found itself: that is to the point,
    and the rest of the summary is about other things. What the model sees already (*in_view*, and by id
    *seen*) is left out, as is what cannot be recalled at *now*. Far behind the limit nothing is compared any more.
    """
    view = View(in_view)
    passing = [one for one in ordered if one.standing(on_cosine=on_cosine) >= threshold]
    ordered, told_together = together(ordered, passing)
    passing = [one for one in ordered if one.standing(on_cosine=on_cosine) >= threshold]
    beside = _by_place(ordered if whole or passing else ())
    spoken = _spoken([one.memory for one in passing])
    compared_behind = 0
    told = _Told()
    weighed: list[Considered] = []
    taken: list[int] = []  # where in *weighed* those to be injected stand
    for one in ordered if whole else passing:
        if compared_behind == COMPARED_BEHIND and not whole:
            break
        memory = one.memory
        like: int | None = None  # where what says the same stands
        if not memory.recallable(now):
            verdict = Verdict.NOT_RECALLABLE
        elif one.standing(on_cosine=on_cosine) < threshold:
            verdict = Verdict.BELOW_THRESHOLD
        elif compared_behind == COMPARED_BEHIND:
            verdict = Verdict.OVER_LIMIT
        elif memory.id in told_together or _told_itself(memory, spoken):
            verdict = Verdict.DUPLICATE
        elif memory.id in seen or view.shows(memory) or _shown_otherwise(memory, beside, view):
            verdict = Verdict.IN_VIEW
        else:
            compared_behind += len(taken) >= limit
            like = _twin(memory, [(at, weighed[at].memory) for at in taken])
            same = told.heard(memory, len(weighed))
            like = same if like is None else like
            verdict = Verdict.INJECTED if len(taken) < limit else Verdict.OVER_LIMIT
        considered = Considered(memory, one.score, one.relevance, verdict, one.features)
        if like is not None:
            considered = _instead(weighed, like, considered)
        elif verdict is Verdict.INJECTED:
            taken.append(len(weighed))
        weighed.append(considered)
    return weighed


def _instead(weighed: list[Considered], at: int, considered: Considered) -> Considered:
    """Lets the better of two that say the same have the place *at*; returns the other one."""
    there = weighed[at]
    old, new = (one.memory for one in (there, considered))
    is_fact = new.source is not Source.VERBATIM
    better = is_fact if is_fact is not (old.source is not Source.VERBATIM) else new.updated_at > old.updated_at
    if not better:
        return replace(considered, verdict=Verdict.DUPLICATE)
    weighed[at] = replace(considered, score=there.score, relevance=there.relevance, verdict=there.verdict)
    return replace(there, verdict=Verdict.DUPLICATE)


class _Told:
    """What was said, and where: the same for what says the same, with its terms in whatever forms and order, and
    denying them or not. "Flight on May 3" and "flight on May 8" differ in a term. Without terms, the words
    themselves."""

    def __init__(self) -> None:
        self._places: dict[tuple[frozenset[str], str], list[tuple[str, int]]] = {}

    def heard(self, memory: Memory, at: int) -> int | None:
        """Where what *memory* says was said first; None where that is here, at *at*."""
        words = memory.content[:_COMPARED]
        there = self._places.setdefault(_saying(memory.content), [])
        # Whether a text denies is read only of the few that have the same terms.
        place = next((place for other, place in there if negates(other) == negates(words)), None)
        if place is None:
            there.append((words, at))
        return place


@lru_cache(maxsize=512)
def _saying(words: str) -> tuple[frozenset[str], str]:
    found = frozenset(terms(words[:_COMPARED])[0]) - {_CALLER}
    return found, words[_COMPARED:] if found else normal(words)


COMPARED_BEHIND = 10  # of those that are behind the limit: one of them may be the fact of a message before it
_ENDS = 2  # of a span: its first place and the one behind its last
_COMPARED = 4_000  # characters; behind them two texts are only the same letter by letter
_CALLER = "user"  # as facts name who they are about: "User likes tea"


def _twin(memory: Memory, taken: Iterable[tuple[int, Memory]]) -> int | None:
    """Where of *taken* the message stands that *memory* was taken from, or the other way round, and that says the
    same."""
    return next(
        (at for at, other in taken if _one_origin(memory, other) and echoes(memory.content, [other.content], "")),
        None,
    )


def _spoken(passing: Sequence[Memory]) -> frozenset[tuple[Owner, str, int]]:
    """Where those of *passing* stand that a summary gives way to; nobody asks where there is no summary."""
    if not any(memory.source is Source.SUMMARY for memory in passing):
        return frozenset()
    return frozenset(_whose_place(each) for each in passing if each.session and each.source is not Source.SUMMARY)


def _whose_place(memory: Memory) -> tuple[Owner, str, int]:
    return memory.owner, memory.session, memory.seq


def _told_itself(memory: Memory, spoken: AbstractSet[tuple[Owner, str, int]]) -> bool:
    """Whether *memory* is a summary, and one of the places of its span is among *spoken*."""
    span = memory.metadata.get("span") if memory.source is Source.SUMMARY else None
    if not isinstance(span, list | tuple) or len(span) != _ENDS or not all(isinstance(end, int) for end in span):
        return False
    # A span of a file may be of any length.
    within, where = range(*span), (memory.owner, memory.session)
    return any((owner, session) == where and seq in within for owner, session, seq in spoken)


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
    return found


def _shown_otherwise(memory: Memory, beside: Mapping[Place, Sequence[Memory]], view: View) -> bool:
    """Whether the model sees what says the same: the fact taken from this message, or the message itself."""
    return any(
        _one_origin(memory, other) and view.shows(other) and echoes(memory.content, [other.content], "")
        for other in beside.get((memory.session, memory.seq), ())
    )


def _one_origin(one: Memory, other: Memory) -> bool:
    # Sessions of two owners may have one name.
    if not one.session or (one.owner, one.session, one.seq) != (other.owner, other.session, other.seq):
        return False
    if Source.SUMMARY in {one.source, other.source}:
        return False  # it begins where the message stands, and speaks of much else
    return (one.source is Source.VERBATIM) != (other.source is Source.VERBATIM)
