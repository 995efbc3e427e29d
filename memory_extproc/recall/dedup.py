"""Deduplication: a message and the memories drawn from it give a single line each, the line that serves best.

A drawn memory names its sources: a fact its turns, a summary its span, a merged fact the ids of its facts.

- The facts of a message take its place where they cover the question: they have every word of the question that the
  message has, and their sentence says no more; where the message has other sentences, they have all words of the
  question. They also stand ahead of the message, or hold the expected kind of value.
- Otherwise the message goes in, beside those of its facts that say more than the message.
- A later correction takes the place of the message where it has every word of the question.
- A merged fact stands for its facts where several are found, and gives way where a single fact is found.
- A summary gives way to any of its sources; one is told of a session on one topic. Pure.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

import msgspec

from memory_extproc.index.entries import names_in
from memory_extproc.model import Candidate, Memory, Owner, Role, Source
from memory_extproc.recall.asked import View, speaker_of
from memory_extproc.recall.intent import INTENTS
from memory_extproc.text.attributes import ATTRIBUTES, plain_words
from memory_extproc.text.intents import asks, content_stems, only_asks, polite, statements_in
from memory_extproc.text.persons import (
    ValueKind,
    chooses,
    corrects,
    expected_answer_type,
    kinds,
    may_choose,
    may_correct,
    subject,
)
from memory_extproc.text.words import (
    MONTHS,
    MOST_REMEMBERED,
    clauses,
    content_words,
    fold,
    memoize_by_hash,
    negates,
    rarity,
    sentences,
    stem,
)

_SELF = "user"
_DRAWN = frozenset({Source.RULES, Source.LLM})
_SEVERAL = 2
_LOOKED_AT = 40  # passing candidates, best first; later candidates are never injected
_LEFT = 1  # words that may be missing in an equivalent statement: "moved to" for "lives in"

Words = AbstractSet[str]


def deduplicate(
    passing: Sequence[Memory],
    question: str,
    *,
    behind: Sequence[Memory] = (),
    shown: Callable[[Memory], bool] = lambda _: False,
) -> Mapping[str, str]:
    """Map ids of *passing*, best first, to the id of the memory that takes their place. Replacements may chain,
    never in a cycle. A summary maps to an empty id: nothing takes its place.

    *behind*: memories below the threshold; a fact among them may take the place of its relevant message. All are
    recallable. A message that the model sees (*shown*) neither takes a place nor gives its own away.
    """
    asked, kind = content_stems(question), expected_answer_type(question)
    found: dict[str, str] = {one.id: "" for one in passing if _sums_up(one, passing)}
    summaries = [one for one in passing if one.source is Source.SUMMARY]
    told = {one.id for one in without_quoted(once_for_session(summaries))}
    found |= {one.id: "" for one in summaries if one.id not in told}
    found |= _of_several(passing)
    found |= _in_other_words([one for one in passing if one.id not in found])
    best = [one for one in passing[:_LOOKED_AT] if one.source is not Source.SUMMARY]
    drawn = _Drawn([*best, *behind])
    for place, message in enumerate(best):
        if not said_by_caller(message) or not drawn.any_of(message) or shown(message):
            continue
        ahead = frozenset(one.id for one in best[:place])
        if (fact := _serving(message, drawn, ahead, asked, kind)) is not None:
            found[message.id] = fact.id
            continue
        for fact in drawn.of(message):
            # An earlier turn tells neither the later choice nor the changed value.
            earlier = message.provenance.turn in {*fact.provenance.drawn_from} - {fact.provenance.turn}
            if fact.id not in found and not earlier and _says_all_of(message, fact, asked):
                found[fact.id] = message.id
    return found


def visible_as_other_form(memory: Memory, others: Sequence[Memory], view: View, question: str) -> bool:
    """Whether the model sees the same statement: the fact taken from this message, or the message itself.
    *others* stand at the same place of a session of some owner."""
    asked = content_stems(question)
    for other in others:
        if other.owner != memory.owner or not view.shows(other):
            continue
        if said_by_caller(other) and memory.source in _DRAWN and _says_all_of(other, memory, asked):
            return True
        if said_by_caller(memory) and other.source in _DRAWN and _says_it_all(memory, other):
            return True
    return False


class _Drawn:
    """Relations between the memories found and their sources."""

    def __init__(self, found: Sequence[Memory]) -> None:
        self._facts: defaultdict[Hashable, list[Memory]] = defaultdict(list)
        self._since: defaultdict[Hashable, list[Memory]] = defaultdict(list)
        for fact in found:
            if fact.source not in _DRAWN and not (fact.source is Source.API and fact.provenance.turn):
                continue
            for key in _places_of(fact):
                (self._since if fact.provenance.revision else self._facts)[key].append(fact)
            for turn in fact.provenance.corrects:
                self._since[fact.owner, turn].append(fact)

    def any_of(self, message: Memory) -> bool:
        return bool(self._facts or self._since) and any(
            key in self._facts or key in self._since for key in _places_of(message)
        )

    def of(self, message: Memory) -> Sequence[Memory]:
        """Uncorrected facts taken from *message*, best first."""
        return _each(self._facts, message)

    def since(self, message: Memory) -> Sequence[Memory]:
        """Facts that hold instead of such as were taken from it, best first."""
        return _each(self._since, message)


def _each(facts: Mapping[Hashable, Sequence[Memory]], message: Memory) -> Sequence[Memory]:
    return list({one.id: one for key in _places_of(message) for one in facts.get(key, ())}.values())


def _places_of(memory: Memory) -> Iterator[Hashable]:
    """The turns and the place in a session that *memory* belongs to. Session names of owners may coincide."""
    known = memory.provenance
    for turn in (known.turn, *known.also, *known.drawn_from):
        if turn:
            yield memory.owner, turn
    if memory.session and memory.source is not Source.API:
        yield memory.owner, memory.session, memory.seq


def _serving(
    message: Memory, drawn: _Drawn, ahead: AbstractSet[str], asked: Words, kind: ValueKind | None
) -> Memory | None:
    """The best memory drawn from *message* that serves better than the message; None: the message serves best."""
    for fact in drawn.since(message):
        if _covers([fact], asked):
            return fact
    before: list[Memory] = []
    for fact in drawn.of(message):
        before += [fact] if fact.id in ahead else []
        answers = fact.id in ahead or (kind is not None and kind in kinds(fact.content))
        if _says_it_all(message, fact) or (answers and _cover(message, [fact], asked)):
            return fact
    return before[0] if before and _cover(message, before, asked) else None


def _says_it_all(message: Memory, fact: Memory) -> bool:
    """Whether *fact* says everything in *message*."""
    words = content_stems(message.content)
    words = words - _CHANGES or words
    return (
        bool(words) and words <= _content_of(fact) and _is_negative(message.content) == _is_negative(fact.content)
    )


def _cover(message: Memory, facts: Sequence[Memory], asked: Words) -> bool:
    """Whether *facts*, taken from *message*, say all of it that is asked for."""
    told = frozenset[str]().union(*map(_content_of, facts))
    if not asked & content_stems(message.content) <= told:
        return False
    denied, covers = any(_is_negative(fact.content) for fact in facts), _covers(facts, asked)
    for sentence in sentences(message.content):
        words = content_stems(sentence)
        if asks(sentence) or (words <= told and _is_negative(sentence) == denied):
            continue
        if any(_value(fact) <= words for fact in facts):
            if _is_negative(sentence) != denied or not _little(sentence, words - told):
                return False
        elif not covers and not polite(sentence):
            return False
    return True


def _covers(facts: Sequence[Memory], asked: Words) -> bool:
    """Whether *facts* have all *asked* words, and more than their subject."""
    told, about = (frozenset[str]().union(*map(each, facts)) for each in (_content_of, _about))
    return asked <= told and not asked <= about


def _little(sentence: str, left: Words) -> bool:
    """Whether *left* of *sentence* is next to nothing but greetings: a word at most, and no name, number or day."""
    rest = " ".join(one for one in clauses(sentence) if not polite(one))
    words = [word for word in content_words(rest) if stem(word) in left]
    plain = all(word.isalpha() and word.islower() and not kinds(word) for word in words)
    return plain and len(words) <= _LEFT


def _says_all_of(message: Memory, fact: Memory, asked: Words) -> bool:
    """Whether *message* itself says everything in *fact*, which was taken from it."""
    words, told, value = content_stems(message.content), _content_of(fact), _value(fact)
    missing = told - words
    if not value or not value | _about(fact) <= words or len(missing) > _LEFT or missing & asked:
        return False
    where = [
        part for one in sentences(message.content) for part in (one, *clauses(one)) if value <= content_stems(part)
    ]
    nearest = min(where, key=len, default=message.content)
    return _is_negative(nearest) == _is_negative(fact.content)


def _content_of(fact: Memory) -> Words:
    return content_stems(fact.content)


# "I can't stand noise" denies as "User dislikes noise" does.
_AVERSE = re.compile(r"\b(?:dislikes?|hates?|detests?|loathes?|despises?|avoids?|no longer)\b")
# Words by which two facts of the same differ in nothing but force.
_FORCE = content_stems("a lot very much really so truly absolutely always quite still especially")
# Words of a message that tell of a change, and its fact of the new value.
_CHANGES = content_stems(
    "moved pushed changed postponed rescheduled shifted switched slight change update now instead"
)
_OPINIONS = content_stems("likes loves enjoys adores dislikes hates detests loathes stand")
_VERDICTS = content_stems("user likes dislikes hates loves enjoys no yes eats drinks avoids never")


@memoize_by_hash(MOST_REMEMBERED)
def _is_negative(text: str) -> bool:
    return negates(text) or _AVERSE.search(fold(text)) is not None


def _value(fact: Memory) -> Words:
    """The words of its value; of a verdict ("likes") the words of the thing that is judged."""
    value = content_stems(fact.provenance.value)
    if value and value <= _VERDICTS:
        return (_content_of(fact) - _VERDICTS) or _content_of(fact)
    return value or _content_of(fact)


def _in_other_words(passing: Sequence[Memory]) -> Mapping[str, str]:
    """Facts that differ from a better fact in force alone: "likes pizza a lot" from "likes pizza"."""
    best: dict[Hashable, str] = {}
    found: dict[str, str] = {}
    for one in passing[:_LOOKED_AT]:
        if one.source not in _DRAWN and one.source is not Source.API:
            continue
        words, denies = _content_of(one) - _FORCE, _is_negative(one.content)
        judges = denies or bool(words & _OPINIONS)
        key = one.owner, one.project, one.type, one.state, words - _OPINIONS, denies, judges
        if key in best:
            found[one.id] = best[key]
        else:
            best[key] = one.id
    return found


def _about(fact: Memory) -> Words:
    """The subject of *fact*; empty for the caller."""
    named = fact.provenance.subject
    return content_stems(named) if named.casefold() != _SELF else frozenset()


def _of_several(passing: Sequence[Memory]) -> Mapping[str, str]:
    """Map the facts of a merged fact to it, where several of them are found; a single fact stands for itself."""
    found = {one.id for one in passing}
    told: dict[str, str] = {}
    for whole in passing:
        if whole.provenance.derived == "subject":
            there = [one for one in whole.provenance.sources if one in found]
            if len(there) >= _SEVERAL:
                told |= dict.fromkeys(there, whole.id)  # merged facts do not overlap: a fact has a single subject
            elif there:
                told[whole.id] = there[0]
    return told


def once_for_session(summaries: Iterable[Memory]) -> list[Memory]:
    """Leave the longer of the two summaries of a session with a single topic: its topic's and its own. Parts of
    a long session stay."""
    longest: dict[Hashable, Memory] = {}
    for one in summaries:
        known = one.provenance
        whole = known.kind == "topic" or (known.kind == "session" and known.levels == 1)
        key = (one.owner, one.session, known.span) if whole and known.span and one.session else one.id
        if key not in longest or len(longest[key].content) < len(one.content):
            longest[key] = one
    return list(longest.values())


def without_quoted(summaries: Iterable[Memory]) -> list[Memory]:
    """*summaries*, best first, without each summary of a topic whose sentences all stand in the summary of its
    session ahead of it."""
    whole: dict[Hashable, str] = {}
    left: list[Memory] = []
    for one in summaries:
        told = sentences(one.content.removeprefix(f"{one.provenance.name}: "))
        ahead = whole.get((one.owner, one.session), "")
        if not ahead or one.provenance.kind != "topic" or not all(sentence in ahead for sentence in told):
            left.append(one)
        if one.provenance.levels == 1:
            whole[one.owner, one.session] = one.content
    return left


def _sums_up(memory: Memory, passing: Sequence[Memory]) -> bool:
    """Whether *memory* is a summary, and something that it sums up is among *passing*: that is to the point, and
    the rest of the summary is about other things."""
    span = memory.provenance.span if memory.source is Source.SUMMARY else None
    if span is None:
        return False
    # A span of a file may be of any length.
    within, where = range(*span), (memory.owner, memory.session)
    return any(_is_message_of(one, where) and one.seq in within for one in passing)


def _is_message_of(memory: Memory, where: tuple[Owner, str]) -> bool:
    return bool(memory.session) and (memory.owner, memory.session) == where and memory.source is not Source.SUMMARY


# --- corrections -------------------------------------------------------------------------------------
# A correction stands beside the corrected message: "My budget is $10,000", "no, I meant 12,000".
#
# A correction often shares no word with the question, so the search does not find it, and without it the corrected
# message would be given as if it still held. Facts are replaced when they are extracted; until then, and where
# they never are, this is done with the messages themselves.

_FOLLOWING_LOOKED_AT = 10  # passing candidates, best first; later candidates are not injected


def with_corrections(ordered: Sequence[Candidate], threshold: float) -> Sequence[Candidate]:
    """*ordered*, best first, with each correction just ahead of its relevant message and as relevant."""
    passing = [one for one in ordered if one.relevance >= threshold][:_FOLLOWING_LOOKED_AT]
    if not passing:
        return ordered
    later = [one for one in ordered if said_by_caller(one.memory) and _may_follow(one.memory.content)]
    if not later:
        return ordered
    ahead = {one.memory.id: [_raise_to(one, new) for new in _chain(one, later)] for one in passing}
    return _put_ahead(ordered, ahead)


def _chain(corrected: Candidate, later: Sequence[Candidate]) -> Sequence[Candidate]:
    """The corrections of *corrected*, latest first, back to the first correction."""
    found: list[Candidate] = []
    last = corrected
    while (newest := _newest(last, later)) is not None:  # ends, for each is later than its predecessor
        found.append(newest)
        last = newest
    return found[::-1]


def _newest(corrected: Candidate, later: Sequence[Candidate]) -> Candidate | None:
    """The latest correction of *corrected*; None without corrections."""
    found = [one for one in later if _follows(one.memory, corrected.memory)]
    return max(found, key=lambda one: when(one.memory), default=None)


def _may_follow(text: str) -> bool:
    return may_correct(text) or may_choose(text)


def _follows(new: Memory, old: Memory) -> bool:
    """Whether *new* corrects *old*, or settles a choice that *old* leaves open."""
    settles = may_choose(new.content) and said_by_caller(old) and new.owner == old.owner and when(new) > when(old)
    return is_correction(new, old) or (settles and chooses(new.content, old.content))


def with_successors(ordered: Sequence[Candidate], threshold: float, question: str) -> Sequence[Candidate]:
    """*ordered*, best first. A fact that replaced a fact of a relevant message moves just ahead of this message and
    becomes as relevant, if it has a word of the *question*: beside "our rent is 800, and Sam is my flatmate" stands
    the rent of today."""
    passing = [one for one in ordered if one.relevance >= threshold][:_FOLLOWING_LOOKED_AT]
    messages = {one.memory.provenance.turn: one for one in passing if said_by_caller(one.memory)}
    asked, newer = content_stems(question), dict[str, list[Candidate]]()
    for one in ordered:
        fact = one.memory
        old = next((messages[turn] for turn in fact.provenance.corrects if turn in messages), None)
        if old is not None and fact.owner == old.memory.owner and asked & _content_of(fact):
            newer.setdefault(old.memory.id, []).append(_raise_to(old, one))
    return _put_ahead(ordered, newer) if newer else ordered


def _raise_to(old: Candidate, new: Candidate) -> Candidate:
    """*new*, at least as relevant as *old*."""
    score, relevance = max(new.score, old.score), max(new.relevance, old.relevance)
    return msgspec.structs.replace(new, score=score, relevance=relevance)


def _put_ahead(ordered: Sequence[Candidate], ahead: Mapping[str, Sequence[Candidate]]) -> Sequence[Candidate]:
    """*ordered* with those of *ahead* in front of the candidate with the id, each candidate once."""
    found: dict[str, Candidate] = {}
    for one in ordered:
        for each in (*ahead.get(one.memory.id, ()), one):
            found.setdefault(each.memory.id, each)
    return list(found.values())


def with_answers(ordered: Sequence[Candidate], threshold: float) -> Sequence[Candidate]:
    """*ordered*, best first, with the caller's answer to each relevant question of the assistant just ahead of it
    and as relevant: "When is the retake?", "On June 9"."""
    asking = [
        one for one in ordered[:_FOLLOWING_LOOKED_AT] if one.relevance >= threshold and _asks_caller(one.memory)
    ]
    if not asking:
        return ordered
    places = {(one.memory.owner, one.memory.session, one.memory.seq + 1): one for one in asking}
    answers: dict[str, Sequence[Candidate]] = {}
    for one in ordered:
        memory = one.memory
        question = places.get((memory.owner, memory.session, memory.seq))
        if question is not None and said_by_caller(memory) and not only_asks(memory.content):
            answers[question.memory.id] = [_raise_to(question, one)]
    return _put_ahead(ordered, answers)


def with_continuations(ordered: Sequence[Candidate], threshold: float) -> Sequence[Candidate]:
    """*ordered*, best first, with the caller's further statements about the same just ahead of each relevant
    statement, and as relevant: "We offered 465,000.", "They rejected it, so we went up to 479,000"."""
    passing = [one for one in ordered if one.relevance >= threshold and _is_said_in_session(one.memory)]
    if not passing:
        return ordered
    said = {
        (one.memory.owner, one.memory.session, one.memory.seq): one for one in ordered if said_by_caller(one.memory)
    }
    following: dict[str, Sequence[Candidate]] = {}
    for one in passing[:_FOLLOWING_LOOKED_AT]:
        before, found = one.memory, list[Candidate]()
        while len(found) < _MOST_CONTINUING:
            after = said.get((before.owner, before.session, before.seq + _NEXT_TURN))
            if after is None or not _continues(after.memory.content, before.content):
                break
            found.insert(0, _raise_to(one, after))
            before = after.memory
        if found:
            following[one.memory.id] = found
    return _put_ahead(ordered, following) if following else ordered


def _is_said_in_session(memory: Memory) -> bool:
    return bool(memory.session) and memory.role is not Role.ASSISTANT and memory.source is not Source.SUMMARY


def _continues(text: str, before: str) -> bool:
    """Whether *text* tells a value of a thing of the message *before*: it begins with "it" or "they", or calls the
    thing "the studio"."""
    if only_asks(text) or len(text) > _LONGEST_CONTINUING or not kinds(text):
        return False
    words = plain_words(text)
    if not INTENTS.words["anaphora"].isdisjoint(words[:_BEGINNING]):
        return True
    called = {word for article, word in pairwise(words) if article == "the"}
    return bool(content_stems(" ".join(called)) & content_stems(before))


_MOST_CONTINUING = 3
_NEXT_TURN = 2  # places in a conversation, from a message of the caller to the next
_LONGEST_CONTINUING = 240  # characters
_BEGINNING = 4  # words


def with_changes(ordered: Sequence[Candidate], threshold: float) -> Sequence[Candidate]:
    """*ordered*, best first, with the caller's last word of a change just ahead of each relevant statement about
    the same, and as relevant: "the party is in the hall at Godøy", "The hall at Godøy is taken, we have it in
    Giske". They have a rare word in common, which few statements have."""
    passing = [one for one in ordered if one.relevance >= threshold and tells_value(one.memory)]
    if not passing:
        return ordered
    # In a talk of several people, the words may tell of anybody's changes.
    said = [one for one in ordered if said_by_caller(one.memory) and not speaker_of(one.memory.content)]
    later = [one for one in said if tells_of_change(one.memory.content)]
    if not later:
        return ordered
    count = Counter(name for one in said for name in names_of_things(one.memory.content))
    ahead = dict[str, Sequence[Candidate]]()
    for one in passing[:_FOLLOWING_LOOKED_AT]:
        named = {name for name in names_of_things(one.memory.content) if count[name] <= _FEW}
        alike = [new for new in later if named & names_of_things(new.memory.content)]
        if newer := [new for new in alike if _is_later(new.memory, one.memory)]:
            ahead[one.memory.id] = [_raise_to(one, max(newer, key=lambda new: when(new.memory)))]
    return _put_ahead(ordered, ahead)


def _is_later(new: Memory, old: Memory) -> bool:
    return new.owner == old.owner and when(new) > when(old)


@memoize_by_hash(MOST_REMEMBERED)
def tells_of_change(text: str) -> bool:
    return _TELLS_OF_CHANGE.search(fold(statements_in(text))) is not None


@memoize_by_hash(MOST_REMEMBERED)
def names_of_things(text: str) -> Words:
    """Stems of rare words in the statements of *text*, without days and numbers."""
    stems = content_stems(_DAYS.sub(" ", statements_in(text)))
    return frozenset(one for one in stems if rarity(one) >= _RARE and not one[0].isdigit())


_TELLS_OF_CHANGE = re.compile(
    r"\b(?:now|instead|moved|changed|switched|swapped|replaced|postponed|pushed|cancell?ed|i quit|retires?|taken"
    r"|sold|fell through|falls away|no longer|any ?more|in the end|after all|won't|will not|turned down|rejected"
    r"|lowered|raised)\b"
)
_DAYS = re.compile(rf"(?i)\b(?:{MONTHS}|(?:mon|tues|wednes|thurs|fri|satur|sun)days?)\b")
_RARE = 0.9  # of 1
_FEW = 4  # statements


def _asks_caller(memory: Memory) -> bool:
    asked = memory.role is Role.ASSISTANT and memory.source is Source.VERBATIM and bool(memory.session)
    return asked and memory.content.rstrip(" )\"'").endswith("?")


def without_former(
    ordered: Sequence[Candidate], threshold: float, question: str
) -> tuple[Sequence[Candidate], Sequence[Candidate], Mapping[str, datetime]]:
    """Put the last value of each thing in the place of its former values. A former value stays behind the last if
    its statement has words of the *question* that the last one lacks.

    Returns the candidates that stay, the former values that are left out, and by id of the former values that stay
    the time of the newer."""
    passing = _values_in(one for one in ordered if one.relevance >= threshold)[:_LOOKED_AT]
    values = _values_in(ordered) if passing else []
    last_of: dict[str, Candidate] = {}
    for one, was in passing:
        newer = [new for new, now in values if _replaces(now, was) and replaces_value(new.memory, one.memory)]
        if newer:
            last_of[one.memory.id] = max(newer, key=lambda new: when(new.memory))
    if not last_of:
        return ordered, (), {}
    asked, found, outdated = content_stems(question), dict[str, Candidate](), dict[str, datetime]()
    for one in ordered:
        last = one
        while last.memory.id in last_of:  # ends: each step leads to a later memory
            last = last_of[last.memory.id]
        if last is not one:
            last = msgspec.structs.replace(last, score=one.score, relevance=max(last.relevance, one.relevance))
        found.setdefault(last.memory.id, last)
        if last is not one and asked & content_stems(one.memory.content) - content_stems(last.memory.content):
            outdated[one.memory.id] = last.memory.created_at
            found.setdefault(one.memory.id, one)
    former = [one for one, _ in passing if one.memory.id in last_of and one.memory.id not in outdated]
    return list(found.values()), former, outdated


def _values_in(ordered: Iterable[Candidate]) -> list[tuple[Candidate, _Value]]:
    return [
        (one, value)
        for one in ordered
        if tells_value(one.memory) and (value := _value_of(one.memory.content)).kinds
    ]


def tells_value(memory: Memory) -> bool:
    return said_by_caller(memory) or memory.source in _LEARNED


def without_former_words(chosen: Sequence[Memory]) -> list[Memory]:
    """The *chosen* memories without those whose value another of them replaces, and their summaries without the
    sentences that tell such a value."""
    newer = [one for one in chosen if tells_value(one) and _value_of(one.content).kinds][:_LOOKED_AT]
    kept = []
    for one in chosen if newer else ():
        if one.source is Source.SUMMARY:
            said = [replace(one, content=sentence) for sentence in sentences(one.content)]
            left = [part.content for part in said if not _is_former(part, newer)]
            if left:
                kept.append(one if len(left) == len(said) else replace(one, content=" ".join(left)))
        elif not (tells_value(one) and _is_former(one, newer)):
            kept.append(one)
    return kept if newer else list(chosen)


def _is_former(memory: Memory, newer: Iterable[Memory]) -> bool:
    return bool(_value_of(memory.content).kinds) and any(replaces_value(one, memory) for one in newer)


# --- correcting --------------------------------------------------------------------------------------
# Tests whether a message corrects another message. Pure.

_LEARNED = frozenset({Source.RULES, Source.LLM})  # facts
AT_ONCE = 2  # messages: within this distance a correction need not name its subject


def is_correction(new: Memory, old: Memory) -> bool:
    """Whether *new*, in the caller's own words, corrects *old*, a message of the caller or a fact."""
    told = said_by_caller(old) or old.source in _LEARNED
    if not said_by_caller(new) or not told or new.owner != old.owner or when(new) <= when(old):
        return False
    at_once = bool(new.session) and new.session == old.session and new.seq - old.seq <= AT_ONCE
    return corrects(new.content, old.content, at_once=at_once)


def replaces_value(new: Memory, old: Memory) -> bool:
    """Whether *new* replaces a value in *old*: a sum with a single value at a time ("my rent", "the budget for
    Hawaii"), or the day or number of a named thing ("they moved Falcon to May 3"). In doubt not."""
    if new.owner != old.owner or when(new) <= when(old) or (new.session, new.seq) == (old.session, old.seq):
        return False
    return _replaces(_value_of(new.content), _value_of(old.content))


def _replaces(now: _Value, was: _Value) -> bool:
    alike, shared = now.kinds & was.kinds, now.names & was.names
    if ValueKind.NUMBER in alike and now.sums & was.sums:
        return bool(shared) or not (now.names or was.names or now.subject != was.subject)
    if not alike or not shared or not now.changes:
        return False
    return (ValueKind.DAY in alike and bool(now.dated & was.dated)) or len(now.stems & was.stems) >= _SEVERAL


class _Value(NamedTuple):
    """The values in a text without its questions, and the names and words for these values."""

    kinds: AbstractSet[ValueKind]
    names: Words
    sums: Words
    stems: Words
    subject: str
    changes: bool
    dated: Words  # names beside a day


@memoize_by_hash(MOST_REMEMBERED)
def _value_of(text: str) -> _Value:
    beginning = text[:_READ_FOR_VALUE]
    told = " ".join(one for one in sentences(beginning) if not only_asks(one))
    changing = kinds(told) & _CHANGING
    if not changing:
        return _NO_VALUE
    return _Value(
        changing,
        names_in(told),
        _SUMS.intersection(plain_words(told)),
        content_stems(told),
        subject(told)[0],
        may_correct(told),
        frozenset().union(*map(_names_beside_day, sentences(told))),
    )


_NO_VALUE = _Value(frozenset(), frozenset(), frozenset(), frozenset(), "", False, frozenset())  # noqa: FBT003


def _names_beside_day(sentence: str) -> Words:
    """Names in parts of *sentence* with a day and in the parts before them: "they pushed Falcon, due in May"."""
    parts = _PARTS.split(sentence)
    dated = [at for at, part in enumerate(parts) if ValueKind.DAY in kinds(part)]
    return names_in(", ".join(", ".join(parts[max(0, at - 1) : at + 1]) for at in dated))


_PARTS = re.compile(r"[,;:]\s+")
_CHANGING = frozenset({ValueKind.DAY, ValueKind.NUMBER})
_SUMS = ATTRIBUTES.attributes["budget"].told  # "rent", "salary", "budget"
_READ_FOR_VALUE = 400  # characters


def said_by_caller(memory: Memory) -> bool:
    """Whether *memory* has the caller's own words rather than a fact's."""
    return memory.role is Role.USER and memory.source is Source.VERBATIM


def when(memory: Memory) -> tuple[float, int]:
    """For putting messages in the order in which they were said."""
    return memory.created_at.timestamp(), memory.seq
