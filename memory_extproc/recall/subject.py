"""Collects the memories on a subject: those that name it, and those that belong to it in other words.

A plan or a thing is named once and then goes on in other words: the builder, his price, the new date. Relevance
spreads from the memories that name the subject: to the answers and next messages of the same conversation, and to
memories that share names and rare words with these (pseudo-relevance feedback, as in RM3). Linear in the words of
the owner's memories.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from memory_extproc.index.entries import names_in
from memory_extproc.model import Matrix, Memory, Owner, Role, Selection, Source, Vector
from memory_extproc.ports import VectorReader
from memory_extproc.recall.asked import (
    FACTS,
    FIRST,
    Lookup,
    QuestionReading,
    each_once,
    having_most,
    mentions,
    names_near,
    said_by_owner,
    states_something,
    valid_since,
)
from memory_extproc.recall.intent import INTENTS
from memory_extproc.text.attributes import ATTRIBUTES, plain_words, word_set
from memory_extproc.text.intents import asks, content_stems, statements_in
from memory_extproc.text.words import MOST_REMEMBERED, memoize_by_hash, rarity, sentences, stem

Doubles = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

_MOST_OF_SUBJECT = 3  # content words
_MOST_READ = 1_000  # memories beside those on the subject: search results, then the newest
_PERSON = 2  # words that name a person: "sister", "sister Anna"
_OFTEN = 2  # statements by which a subject is known
_OWNED_WITHIN = 4  # words, from "my" to the thing
_MOST_BESIDE = 6  # memories that may be about the subject
_ALIKE = 0.45  # cosine of a statement about the subject in other words
_MOST_CONTINUING = 3
_MARKS = frozenset[str]().union(*(INTENTS.words[name] for name in ("anaphora", "additive", "shared")))
_TURN = 2  # places of a conversation from a message of the caller to the next


async def find_subject(asked: QuestionReading) -> Lookup | None:
    """Everything on the subject of the question, the surest first."""
    intent = asked.intent
    words = [word.removesuffix("'s") for word in plain_words(intent.subject)]
    rows = await asked.select(Selection(everything=True), sources=_TOLD & asked.wish.scope.sources)
    place = asked.place()
    rows.sort(key=lambda one: (place.get(one.id, len(place)), -valid_since(one)))
    del rows[_MOST_READ:]
    if intent.people and len(words) <= _PERSON:
        told = await asked.telling(ATTRIBUTES.named_in(words))
        told = told or [one for one in rows if said_by_owner(one) and mentions(one, intent.people)]
        named = frozenset[str]().union(*(names_near(one, intent.people) for one in told))
        about = await asked.naming(named) if named else []
        behind = await continuing(asked, [*told, *about], INTENTS.words["anaphora"])
        found = each_once([*told, *about, *behind])
        return _collect(asked, [*rows, *found], {one.id: 1.0 for one in found}, least=_LEAST_NAMED)
    wanted = _naming_words(words, asked.wish.question)
    if not wanted or len(wanted) > _MOST_OF_SUBJECT:  # more words name a single memory, which the ranking finds
        return None
    names = frozenset(words) & names_in(asked.wish.question[1:])
    called = [one for one in rows if names and names <= word_set(one.content)]
    named_so = await asked.select(Selection(names=frozenset(words)))
    found = having_most(wanted, each_once([*named_so, *(one.memory for one in asked.searched)]))
    having = [one for one in each_once([*called, *found]) if one.source is not Source.SUMMARY]
    if not _is_known(asked, words, wanted, having):
        # "Ada Lovelace" is no name of the caller's, though there is an Ada.
        asks_who = not INTENTS.words["who"].isdisjoint(intent.words[:2])
        return Lookup(intent, (), alone=True) if asks_who and len(words) > 1 else None
    seeds = {one.id: _coverage(one, wanted, names) for one in having}
    stated = [one for one in having if seeds[one.id] == 1.0]
    beside = await asked.telling(ATTRIBUTES.named_in(words)) if intent.mine else []
    if not stated:  # a single word out of several is too weak a sign to spread relevance from
        alike = (one for one in asked.searched[:FIRST] if one.features.get("dense", 0.0) >= _ALIKE)
        beside += [*(one.memory for one in alike), *asked.passing()]
        return asked.lookup(each_once(beside)[:_MOST_BESIDE], alone=True, all_of_it=True)
    for one in beside:
        seeds.setdefault(one.id, _TELLING)
    made = _answers_to(stated, rows) if words[-1] in INTENTS.words["made"] else []
    behind = await continuing(asked, filter(said_by_owner, stated), _MARKS)
    seeds |= {one.id: 1.0 for one in behind}
    has_name = any(not names_in(one.content).isdisjoint(words) for one in having)
    rows += [*having, *beside, *behind]
    return _collect(asked, rows, seeds, least=_LEAST_NAMED if has_name else _LEAST, made=made)


def _answers_to(requests: Iterable[Memory], rows: Iterable[Memory]) -> list[Memory]:
    """The assistant's answers to *requests*, which need not repeat their words: "help me with a packing list"."""
    answers = {_place(one): one for one in rows if one.role is Role.ASSISTANT and one.session}
    asking = [one for one in requests if one.role is Role.USER and any(map(asks, sentences(one.content)))]
    behind = (answers.get((one.owner, one.session, one.seq + 1)) for one in asking)
    return [one for one in behind if one is not None]


def _naming_words(words: Sequence[str], question: str) -> frozenset[str]:
    """The stems that name the subject: "car" for "the new car plan", because few messages repeat "plan"."""
    bare = [word for word in words if word not in INTENTS.words["epithets"]]
    # Two words do not show their language: "car" is English in the whole question, and no content in French.
    named = content_stems(" ".join(bare)) | (content_stems(question) & frozenset(map(stem, bare)))
    return named - content_stems(" ".join(INTENTS.words["undertakings"])) or named


def _coverage(memory: Memory, wanted: frozenset[str], names: frozenset[str]) -> float:
    """How surely *memory* is about the subject, in [0, 1]: by its name, or by the share of its words."""
    if names and names <= word_set(memory.content):
        return 1.0
    share = sum(map(rarity, wanted & content_stems(memory.content))) / sum(map(rarity, wanted))
    return share * share


def _is_known(
    asked: QuestionReading, words: Sequence[str], wanted: frozenset[str], having: Sequence[Memory]
) -> bool:
    """Whether the caller spoke of the subject. Without "my", a name that the caller used must show it ("Luna", "the
    Lisbon trip", not "black holes"), or several statements ("the wedding")."""
    names = {word for word in words if content_stems(word) and not ATTRIBUTES.named_in([word])}
    own = [one for one in having if said_by_owner(one)]
    stated = [one for one in own if wanted <= content_stems(one.content)]
    # For a bare word a single statement suffices: "all you have on Osaka".
    bare = INTENTS.words["articles"].isdisjoint(asked.intent.words) and not words[-1].endswith("s")
    definite = bare or len(wanted) > 1
    said_once = definite and any(one.source in FACTS or states_something(one) for one in stated)
    known = said_once or len(own) >= _OFTEN or any(_calls_own(one, wanted) for one in stated)
    return asked.intent.mine or known or any(names and names <= names_in(one.content) for one in own)


def _calls_own(memory: Memory, wanted: frozenset[str]) -> bool:
    """Whether *memory* calls the subject the caller's own ("my first paper", "we think of buying a flat")."""
    words = plain_words(memory.content)
    own, indefinite = INTENTS.words["own"] | INTENTS.words["possessive"], INTENTS.words["indefinite"]
    for at, word in enumerate(words):
        reach = _OWNED_WITHIN << (not indefinite.isdisjoint(words[max(0, at - 2) : at]))
        if content_stems(word) & wanted and not own.isdisjoint(words[max(0, at - reach) : at]):
            return True
    return False


# --- collecting --------------------------------------------------------------------------------------

_TOLD = FACTS | {Source.VERBATIM}
_TELLING = 0.6  # relevance of a memory that tells an attribute named by the subject
_ROUNDS = 3  # of spreading
_LEAST, _LEAST_NAMED = 0.25, 0.8  # relevance; a subject with a name of its own is called by it
_MOST = 12  # memories
_BY_WORD = 0.45  # of the relevance of a word
_BY_LIKENESS = 0.5
_LIKENESS = (0.35, 0.7)  # cosines with the mean of the relevant memories: unlike, surely of the same
_REPLY, _GOES_ON = 0.5, 0.6  # of the relevance of the message before
_ANSWERS = 0.3  # of an answer's relevance, against the caller's own words
_RARE = 0.75  # rarity of a word that relevance spreads over
_SHORT = 4  # content words of a message that says little by itself


def _collect(
    asked: QuestionReading,
    rows: Sequence[Memory],
    seeds: Mapping[str, float],
    *,
    least: float,
    made: Sequence[Memory] = (),
) -> Lookup | None:
    if not seeds:
        return None
    told = [one for one in each_once(rows) if one.source in _TOLD]
    found = most_relevant(told, seeds, asked.vectors, least)
    return asked.lookup(each_once([*made, *found]), alone=True, all_of_it=True)


def most_relevant(
    rows: Sequence[Memory], seeds: Mapping[str, float], reads: VectorReader | None, least: float
) -> list[Memory]:
    """The most relevant of *rows*, from few places of conversations; of equal relevance, the first go first."""
    relevance = _Spreading(rows, seeds, reads).relevance()
    worth = {one.id: relevance[one.id] * (1.0 if said_by_owner(one) else _ANSWERS) for one in rows}
    best = sorted(rows, key=lambda one: -worth[one.id])
    places: dict[object, list[Memory]] = {}
    for one in best:
        if worth[one.id] >= least and (len(places) < _MOST or _place(one) in places):
            places.setdefault(_place(one) if one.session else one.id, []).append(one)
    return [one for there in places.values() for one in there]


class _Spreading:
    """Relevance that spreads from *seeds* over the words and turns of *rows*. Arrays are by row, or by pair of a
    row and a rare word of it."""

    def __init__(self, rows: Sequence[Memory], seeds: Mapping[str, float], reads: VectorReader | None) -> None:
        self._rows = sorted(rows, key=valid_since)
        self._vectors = _matrix(self._rows, reads)
        self._unsure = 1.0 - np.array([seeds.get(one.id, 0.0) for one in self._rows])
        terms = [_terms_of(one.content) for one in self._rows]
        number: dict[str, int] = {}
        pairs = [(row, number.setdefault(term, len(number))) for row, found in enumerate(terms) for term in found]
        self._row, self._term = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        having = np.bincount(self._term, minlength=len(number))
        self._weight = (_BY_WORD * np.array([rarity(term) for term in number]) / np.maximum(having, 1))[self._term]
        self._before = self._find_before(terms)

    def relevance(self) -> dict[str, float]:
        """In [0, 1], by id."""
        relevance: Doubles = 1.0 - self._unsure
        for _ in range(_ROUNDS):
            relevance = self._spread(relevance)
        return dict(zip((one.id for one in self._rows), relevance.tolist(), strict=True))

    def _spread(self, relevance: Doubles) -> Doubles:
        shared = np.bincount(self._term, weights=relevance[self._row])
        others = shared[self._term] - relevance[self._row] if len(self._term) else shared
        by_words = np.bincount(self._row, np.log1p(-self._weight * others), minlength=len(self._rows))
        missing = self._unsure * np.exp(by_words) * (1.0 - _BY_LIKENESS * self._alike(relevance))
        from_before = np.zeros(len(self._rows))
        row, before, share = self._before
        np.maximum.at(from_before, row, share * relevance[before])
        return np.asarray(1.0 - missing * (1.0 - from_before))

    def _alike(self, relevance: Doubles) -> Doubles:
        """Compare each row with the mean of the relevant rows; in [0, 1]."""
        mean = relevance.astype(np.float32) ** 2 @ self._vectors
        length = float(np.linalg.norm(mean)) or 1.0
        least, sure = _LIKENESS
        return np.clip((self._vectors @ mean / length - least) / (sure - least), 0.0, 1.0)

    def _find_before(self, terms: Sequence[frozenset[str]]) -> tuple[Places, Places, Doubles]:
        """Rows, the rows before them in their conversation, and the share of relevance that goes over."""
        messages = [at for at, one in enumerate(self._rows) if one.session and one.source not in FACTS]
        places = {_place(self._rows[at]): at for at in messages}
        rows, befores, shares = list[int](), list[int](), list[float]()
        for at in messages:
            one = self._rows[at]
            answers = one.role is Role.ASSISTANT
            for step in (1,) if answers else (1, _TURN):
                before = places.get((one.owner, one.session, one.seq - step))
                if before is not None and (answers or _goes_on(one, terms[at], terms[before])):
                    rows.append(at)
                    befores.append(before)
                    shares.append(_REPLY if answers else _GOES_ON)
        return np.array(rows, np.int64), np.array(befores, np.int64), np.array(shares)


def _goes_on(memory: Memory, terms: frozenset[str], before: frozenset[str]) -> bool:
    """Whether *memory* goes on about the message before it: by a word of it, by a pronoun, or for want of words of
    its own."""
    return bool(terms & before) or _refers_back(memory.content)


@memoize_by_hash(MOST_REMEMBERED)
def _refers_back(text: str) -> bool:
    pronouns = INTENTS.words["anaphora"]
    return not pronouns.isdisjoint(plain_words(text)) or len(content_stems(text)) <= _SHORT


@memoize_by_hash(MOST_REMEMBERED)
def _terms_of(text: str) -> frozenset[str]:
    """The rare words of *text*, without its questions, which may be about anything."""
    return frozenset(filter(_is_rare, content_stems(statements_in(text))))


def _place(memory: Memory) -> tuple[Owner, str, int]:
    return memory.owner, memory.session, memory.seq


def _is_rare(stem: str) -> bool:
    return rarity(stem) >= _RARE and stem not in _TIMING


def _matrix(rows: Sequence[Memory], reads: VectorReader | None) -> Matrix:
    """The vectors of *rows*, row by row; zeros where there is none at hand."""
    known: dict[str, Vector] = {}
    if reads is not None:
        for owner in {one.owner for one in rows}:
            known |= reads.vectors(owner, [one.id for one in rows if one.owner == owner])
    nothing = np.zeros(len(next(iter(known.values()), ())) or 1, dtype=np.float32)
    return np.stack([known.get(one.id, nothing) for one in rows])


_TIMING = content_stems(" ".join(INTENTS.words["timing"]))


async def continuing(asked: QuestionReading, found: Iterable[Memory], marks: frozenset[str]) -> list[Memory]:
    """Find the caller's next messages behind those in *found* that continue them, shown by one of the words
    *marks*: "she likes poetry", "maybe also Ghent", "my mum comes with us"."""
    rows = await asked.select(
        Selection(everything=True), sources=frozenset({Source.VERBATIM}) & asked.wish.scope.sources
    )
    own = {(one.owner, one.session, one.seq): one for one in rows if one.role is Role.USER and one.session}
    behind: dict[str, Memory] = {}
    for one in found:
        for step in range(1, _MOST_CONTINUING + 1):
            after = own.get((one.owner, one.session, one.seq + _TURN * step))
            if after is None or marks.isdisjoint(plain_words(after.content)):
                break
            behind.setdefault(after.id, after)
    return list(behind.values())
