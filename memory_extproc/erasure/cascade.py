"""What goes when something is forgotten: it, what came from it, and what carries its words. Pure.

- A message goes with its whole turn: both sides, their pieces, the facts that were taken from it. So does one whose
  words were corrected since: what was taken from it still says what it said first.
- A fact goes with its older versions and with the messages of the turns they came from; other facts of these turns
  stay, unless they say the same. Of a fact that was named (by id or by a query) also what carries its words goes,
  wherever it was said; of a message too, but for what people and assistants say at every turn.
- What was made out of something forgotten (its ids stand in `metadata.sources`) goes; what else it was made of
  stays, and speaks for itself again. What was drawn from several turns together goes with any of them, and takes
  none of the others along.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from memory_extproc.erasure.tombstones import (
    KeyedHasher,
    Kind,
    drawn_from,
    is_message,
    items_of_message,
    moment_of,
    sources_of,
    turn_of,
    was_message,
)
from memory_extproc.model import ForgetScope, Memory, Role
from memory_extproc.text.words import normal, stems, word_set

_LITTLE = 3  # characters; shorter words that are no numbers say too little to know a text by
_EMPTY = frozenset(
    {"user", "user's", "the", "and", "for", "with", "that", "this", "has", "have", "was", "are", "you"}
)


@dataclass(frozen=True, slots=True)
class Cascade:
    """*turns* go whole; of *quoted* ones the messages do."""

    memories: Mapping[str, Memory] = field(repr=False)
    turns: frozenset[str] = frozenset()
    quoted: frozenset[str] = frozenset()
    misdated: Mapping[str, float] = field(default_factory=dict)  # id → moment, of those dated behind the present
    named: frozenset[str] = frozenset()  # ids of those that the scope names itself

    def items(self, blind: KeyedHasher) -> set[bytes]:
        """By what all of it is known again."""
        found: set[bytes] = set()
        for memory in self.memories.values():
            owner = memory.owner
            found.add(blind.item(Kind.MEMORY, owner, memory.id))
            found |= items_of_message(blind, memory)
            turn = turn_of(memory)
            if turn in self.turns:
                found.add(blind.item(Kind.TURN, owner, turn))
            elif turn in self.quoted:
                found.add(blind.item(Kind.MESSAGES, owner, turn))
        return found


def within(scope: ForgetScope, memory: Memory, at: float, now: float = inf) -> bool:
    """Whether *scope*, as of *at*, names *memory* itself."""
    moment = _moment(memory, at, now)
    return (
        moment <= at
        and (not scope.ids or memory.id in scope.ids)
        and (not scope.project or memory.project == scope.project)
        and (not scope.types or memory.type in scope.types)
        and (not scope.session or memory.session == scope.session)
        and (scope.before is None or moment < scope.before.timestamp())
    )


def _moment(memory: Memory, at: float, now: float) -> float:
    """What is dated behind *now* was there before it all the same: a clock was set back, or a file told a wrong
    time."""
    moment = moment_of(memory)
    return at if moment > now else moment


def cascade(rows: Iterable[Memory], scope: ForgetScope, at: float, now: float = inf) -> Cascade:
    """Of *rows*, all that one owner has at *now*, what goes with *scope*."""
    known = {memory.id: memory for memory in rows}
    named = [memory for memory in known.values() if within(scope, memory, at, now)]
    growing = _Growing(known, frozenset(memory.id for memory in named))
    growing.take(named)
    if scope.ids:
        growing.take_what_carries_words()
    growing.take_alone(scope.listed)
    # As said below `within`: what was said after the forget is not in it, whatever it repeats.
    taken = {one: memory for one, memory in growing.taken.items() if _moment(memory, at, now) <= at}
    return Cascade(
        taken,
        frozenset(growing.whole),
        frozenset(growing.quoted - growing.whole),
        {one: moment_of(memory) for one, memory in taken.items() if moment_of(memory) > now},
        frozenset(memory.id for memory in named),
    )


class _Growing:
    def __init__(self, known: Mapping[str, Memory], named: frozenset[str]) -> None:
        self._known = known
        self._named = named
        self.taken: dict[str, Memory] = {}
        self._alone: set[str] = set()  # of those taken, what may yet be meant itself, and then takes more along
        self.whole: set[str] = set()
        self.quoted: set[str] = set()
        self._by_turn: defaultdict[str, list[Memory]] = defaultdict(list)
        self._older: defaultdict[str, list[Memory]] = defaultdict(list)
        self._made_of: defaultdict[str, list[Memory]] = defaultdict(list)
        self._drawn_from: defaultdict[str, list[Memory]] = defaultdict(list)
        for memory in known.values():
            if turn := turn_of(memory):
                self._by_turn[turn].append(memory)
            if memory.superseded_by:
                self._older[memory.superseded_by].append(memory)
            for source in sources_of(memory):
                self._made_of[source].append(memory)
            for turn in drawn_from(memory):
                self._drawn_from[turn].append(memory)

    def take(self, memories: Iterable[Memory]) -> None:
        """*memories* and what follows from each."""
        waiting = list(memories)
        while waiting:
            memory = waiting.pop()
            if memory.id in self.taken and memory.id not in self._alone:
                continue
            self._alone.discard(memory.id)
            self.taken[memory.id] = memory
            waiting += self._made_of[memory.id]
            if self._for_a_turn(memory):
                continue
            waiting += self._older_than(memory)
            turn = turn_of(memory)
            if not turn or drawn_from(memory):
                continue  # what was drawn from several turns is in the words of none
            if was_message(memory):
                self.whole.add(turn)
                waiting += self._by_turn[turn] + self._drawn_from[turn]
            else:
                self._quote(turn, waiting)

    def _older_than(self, memory: Memory) -> list[Memory]:
        """Its older versions. What was merged into it goes with it only where it is meant itself: where it goes for
        another of its sources, the rest of them was not named."""
        for_a_source = self._for_a_source(memory)
        return [
            one for one in self._older[memory.id] if not (for_a_source and one.metadata.get("merged") == memory.id)
        ]

    def _for_a_source(self, memory: Memory) -> bool:
        """Whether it was not named itself, and goes because of what it was made of."""
        of_taken = any(source in self.taken for source in sources_of(memory))
        return self._for_a_turn(memory) or (memory.id not in self._named and of_taken)

    def _for_a_turn(self, memory: Memory) -> bool:
        """Whether it was not named itself, and goes because of one of the turns that it was drawn from."""
        return memory.id not in self._named and not self.whole.union(self.quoted).isdisjoint(drawn_from(memory))

    def _quote(self, turn: str, waiting: list[Memory]) -> None:
        """The messages of *turn* carry the words of a fact that goes; its other facts stay."""
        self.quoted.add(turn)
        waiting += self._drawn_from[turn]
        for memory in self._by_turn[turn]:
            if is_message(memory):
                self.take_alone([memory.id])
                waiting += self._made_of[memory.id]

    def take_alone(self, ids: Iterable[str]) -> None:
        """Those of *ids* that are there, and nothing of what follows from them."""
        for one in ids:
            if one in self._known and one not in self.taken:
                self.taken[one] = self._known[one]
                self._alone.add(one)

    def take_what_carries_words(self) -> None:
        words = {one: word_set(memory.content) for one, memory in self._known.items()}
        holding: defaultdict[str, set[str]] = defaultdict(set)
        for one, found in words.items():
            for word in found:
                holding[word].add(one)
        for memory in [one for one in self.taken.values() if not self._for_a_source(one)]:
            again: list[Memory] = []
            for turn in () if drawn_from(memory) else said_again_in(memory):
                self._quote(turn, again)
            self.take(again)
            if is_message(memory):
                if not self._tells(memory):
                    continue
                same = normal(memory.content).casefold()
                carrying = {
                    one
                    for one in _all_of(telling(words[memory.id]), holding)
                    if same in normal(self._known[one].content).casefold()
                }
            else:
                carrying = _carrying(memory, holding)
            waiting: list[Memory] = []
            for one in carrying - self.taken.keys():
                found_one = self._known[one]
                if is_message(found_one):
                    self._quote(turn_of(found_one), waiting)
                    self.take_alone([one])
                else:
                    waiting.append(found_one)
            self.take(waiting)

    def _tells(self, message: Memory) -> bool:
        """Whether *message*, where it stands once more, says again what was forgotten. "Tell me more." says
        nothing, and an answer that went with its turn only says it where it takes up what the caller had told."""
        said = stems(message.content)
        if message.role is not Role.ASSISTANT:
            return bool(said)
        if message.id in self._named:
            return len(said) > 1
        told = (one for one in self._by_turn[turn_of(message)] if one.role is not Role.ASSISTANT)
        return any(said & stems(one.content) for one in told)


def _carrying(fact: Memory, holding: Mapping[str, set[str]]) -> set[str]:
    """Ids of what says what *fact* says: all words of its value, and one at least of what it is about. A fact that
    does not say what it is about is known by nearly all of its words."""
    value = telling(word_set(str(fact.metadata.get("value", ""))))
    about = telling(word_set(f"{fact.metadata.get('subject', '')} {fact.metadata.get('attribute', '')}"))
    if not value:
        return _all_of(telling(word_set(fact.content)), holding)
    with_value = _all_of(value, holding)
    if not about - value:
        return with_value
    return {one for one in with_value if any(one in holding.get(word, ()) for word in about - value)}


def _all_of(words: frozenset[str], holding: Mapping[str, set[str]]) -> set[str]:
    sets: Sequence[set[str]] = sorted((holding.get(word, set()) for word in words), key=len)
    return set.intersection(*sets) if sets else set()


def telling(words: frozenset[str]) -> frozenset[str]:
    """Those of *words* by which a text can be known."""
    return frozenset(
        word for word in words if word not in _EMPTY and (len(word) >= _LITTLE or any(map(str.isdigit, word)))
    )


def said_again_in(fact: Memory) -> Sequence[str]:
    """Ids of the later turns that said *fact* once more."""
    also = fact.metadata.get("also", {})
    return [turn for turn in also if isinstance(turn, str)] if isinstance(also, Mapping) else []
