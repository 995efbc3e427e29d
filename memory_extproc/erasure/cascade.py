"""The cascade of a forget: the named memories, their derivatives, and messages that repeat them. Pure functions.

- A message goes with its whole turn: both sides, their pieces, and the extracted facts. The same holds for a
  message that was corrected since, because the facts still state its original words.
- A fact goes with its older versions and the messages of their turns; other facts of these turns stay, unless they
  state the same. For a fact named by id or query, all memories that repeat its words go too. So do repetitions of a
  named message, except phrases that people and assistants use at every turn.
- A memory derived from a forgotten memory (listed in `provenance.sources`) goes; its other sources stay and become
  active again. A memory drawn from several turns goes with any of them, and takes none of the others along."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from memory_extproc.erasure.tombstones import (
    KeyedHasher,
    TombstoneKind,
    is_message,
    items_of_message,
    moment_of,
    was_message,
)
from memory_extproc.model import ForgetScope, Memory, Role
from memory_extproc.text.words import normal, stems, word_set

_LITTLE = 3  # characters; shorter words, except numbers, do not identify a text
_EMPTY = frozenset(
    {"user", "user's", "the", "and", "for", "with", "that", "this", "has", "have", "was", "are", "you"}
)


@dataclass(frozen=True, slots=True)
class Cascade:
    """The memories and turns of a forget. *turns* go whole; of *quoted* turns only the messages go."""

    memories: Mapping[str, Memory] = field(repr=False)
    turns: frozenset[str] = frozenset()
    quoted: frozenset[str] = frozenset()
    misdated: Mapping[str, float] = field(default_factory=dict)  # id to moment, of memories dated in the future
    named: frozenset[str] = frozenset()  # ids named by the scope itself

    def items(self, blind: KeyedHasher) -> set[bytes]:
        """The tombstone items of all of it."""
        found: set[bytes] = set()
        for memory in self.memories.values():
            owner = memory.owner
            found.add(blind.item(TombstoneKind.MEMORY, owner, memory.id))
            found |= items_of_message(blind, memory)
            turn = memory.provenance.turn
            if turn in self.turns:
                found.add(blind.item(TombstoneKind.TURN, owner, turn))
            elif turn in self.quoted:
                found.add(blind.item(TombstoneKind.MESSAGES, owner, turn))
        return found


def is_in_scope(scope: ForgetScope, memory: Memory, at: float, now: float = inf) -> bool:
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
    """The time of *memory*. A time after *now* counts as *at*: a clock was set back, or a file had a wrong time."""
    moment = moment_of(memory)
    return at if moment > now else moment


def cascade(rows: Iterable[Memory], scope: ForgetScope, at: float, now: float = inf) -> Cascade:
    """Compute the memories among all *rows* of an owner that go with *scope*."""
    known = {memory.id: memory for memory in rows}
    named = [memory for memory in known.values() if is_in_scope(scope, memory, at, now)]
    return _follow(known, named, scope, at, now)


def cascade_of(rows: Iterable[Memory], named: Sequence[Memory], at: float) -> Cascade:
    """Compute the memories among all *rows* of an owner that go with those *named* by scopes up to *at*."""
    return _follow({memory.id: memory for memory in rows}, named, ForgetScope(), at, inf)


def _follow(
    known: Mapping[str, Memory], named: Sequence[Memory], scope: ForgetScope, at: float, now: float
) -> Cascade:
    growing = _Growing(known, frozenset(memory.id for memory in named))
    growing.take(named)
    if scope.ids:
        growing.take_what_carries_words()
    growing.take_alone(scope.listed)
    # As in `within`: statements made after the forget stay, even if they repeat it. Memories derived from forgotten
    # ones go, whenever they were derived.
    taken = {one: memory for one, memory in growing.taken.items() if _moment(memory, at, now) <= at}
    taken |= derived_from(taken, growing.taken.values())
    return Cascade(
        taken,
        frozenset(growing.whole),
        frozenset(growing.quoted - growing.whole),
        {one: moment_of(memory) for one, memory in taken.items() if moment_of(memory) > now},
        frozenset(memory.id for memory in named),
    )


def derived_from(sources: Collection[str], rows: Iterable[Memory]) -> dict[str, Memory]:
    """The *rows* that were derived from *sources*, directly or through each other; without the sources."""
    made_of: defaultdict[str, list[Memory]] = defaultdict(list)
    for memory in rows:
        for source in memory.provenance.sources:
            made_of[source].append(memory)
    found: dict[str, Memory] = {}
    waiting = list(sources)
    while waiting:
        for memory in made_of.get(waiting.pop(), ()):
            if memory.id not in found and memory.id not in sources:
                found[memory.id] = memory
                waiting.append(memory.id)
    return found


class _Growing:
    def __init__(self, known: Mapping[str, Memory], named: frozenset[str]) -> None:
        self._known = known
        self._named = named
        self.taken: dict[str, Memory] = {}
        self._alone: set[str] = set()  # taken alone; if named later, their derivatives are taken too
        self.whole: set[str] = set()
        self.quoted: set[str] = set()
        self._by_turn: defaultdict[str, list[Memory]] = defaultdict(list)
        self._older: defaultdict[str, list[Memory]] = defaultdict(list)
        self._made_of: defaultdict[str, list[Memory]] = defaultdict(list)
        self._drawn_from: defaultdict[str, list[Memory]] = defaultdict(list)
        for memory in known.values():
            if turn := memory.provenance.turn:
                self._by_turn[turn].append(memory)
            if memory.superseded_by:
                self._older[memory.superseded_by].append(memory)
            for source in memory.provenance.sources:
                self._made_of[source].append(memory)
            for turn in memory.provenance.drawn_from:
                self._drawn_from[turn].append(memory)

    def take(self, memories: Iterable[Memory]) -> None:
        """Take *memories* and everything that follows from them."""
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
            turn = memory.provenance.turn
            if not turn or memory.provenance.drawn_from:
                continue  # drawn from several turns: quotes none of them
            if was_message(memory):
                self.whole.add(turn)
                waiting += self._by_turn[turn] + self._drawn_from[turn]
            else:
                self._quote(turn, waiting)

    def _older_than(self, memory: Memory) -> list[Memory]:
        """Its older versions.

        Memories merged into it go only if it was named itself; if it goes because of another source, they stay."""
        for_a_source = self._for_a_source(memory)
        return [one for one in self._older[memory.id] if not (for_a_source and one.provenance.merged == memory.id)]

    def _for_a_source(self, memory: Memory) -> bool:
        """Whether it was not named, and goes because of a source."""
        of_taken = any(source in self.taken for source in memory.provenance.sources)
        return self._for_a_turn(memory) or (memory.id not in self._named and of_taken)

    def _for_a_turn(self, memory: Memory) -> bool:
        """Whether it was not named, and goes because of a turn that it was drawn from."""
        return memory.id not in self._named and not self.whole.union(self.quoted).isdisjoint(
            memory.provenance.drawn_from
        )

    def _quote(self, turn: str, waiting: list[Memory]) -> None:
        """Take the messages of *turn*, which contain the words of a forgotten fact; its other facts stay."""
        self.quoted.add(turn)
        waiting += self._drawn_from[turn]
        for memory in self._by_turn[turn]:
            if is_message(memory):
                self.take_alone([memory.id])
                waiting += self._made_of[memory.id]

    def take_alone(self, ids: Iterable[str]) -> None:
        """Take the existing memories of *ids* without their derivatives."""
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
            for turn in () if memory.provenance.drawn_from else memory.provenance.also:
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
                    self._quote(found_one.provenance.turn, waiting)
                    self.take_alone([one])
                else:
                    waiting.append(found_one)
            self.take(waiting)

    def _tells(self, message: Memory) -> bool:
        """Whether a repetition of *message* repeats forgotten content.

        "Tell me more." has none. An answer taken only with its turn counts if it repeats the caller's words."""
        said = stems(message.content)
        if message.role is not Role.ASSISTANT:
            return bool(said)
        if message.id in self._named:
            return len(said) > 1
        told = (one for one in self._by_turn[message.provenance.turn] if one.role is not Role.ASSISTANT)
        return any(said & stems(one.content) for one in told)


def _carrying(fact: Memory, holding: Mapping[str, set[str]]) -> set[str]:
    """Ids of memories that repeat *fact*: all words of its value, and at least a word of its subject or attribute.

    A fact without a subject is matched by nearly all of its words."""
    value = telling(word_set(fact.provenance.value))
    about = telling(word_set(f"{fact.provenance.subject} {fact.provenance.attribute}"))
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
    """The words that identify a text."""
    return frozenset(
        word for word in words if word not in _EMPTY and (len(word) >= _LITTLE or any(map(str.isdigit, word)))
    )
