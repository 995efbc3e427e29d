"""A reading of a request with its memories: how every kind of question selects, orders and packs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from memory_extproc.index.facets import names_in, tells_of
from memory_extproc.model import AttributeReader, Memory, Owner, RecallRequest, Scope, Selection
from memory_extproc.ports import MemorySelector
from memory_extproc.recall.candidate import Candidate
from memory_extproc.recall.intent import Intent
from memory_extproc.recall.memory_traits import (
    FACTS,
    HERE,
    OWN_START,
    READ_FOR_STATEMENT,
    about_self,
    facts_first,
    mentions,
    valid_since,
)
from memory_extproc.text.attributes import ATTRIBUTES, plain_words
from memory_extproc.text.intents import content_stems
from memory_extproc.text.sentences import clauses, sentences
from memory_extproc.text.words import fold

RELEVANCE = 0.9  # of memories that a lookup found; a client may set its threshold above it
_WEIGHTY = frozenset({"identity", "work", "people", "health"})
_VALUES = 3  # of such an attribute in a round
_NAME_OR_PEOPLE = ATTRIBUTES.mask(["name"]) | ATTRIBUTES.in_groups({"people"})
_LAST = 1 << 62  # behind all attributes


@dataclass(frozen=True, slots=True)
class Lookup:
    """Memories found for *intent*, best first. *headings* by id put memories under a heading; *alone*: nothing else
    goes into the block; *all_of_it*: as many as fit go in, not only the best."""

    intent: Intent
    memories: tuple[Memory, ...] = field(repr=False)
    headings: Mapping[str, str] = field(default_factory=dict, repr=False)
    alone: bool = False
    all_of_it: bool = False
    opens: bool = False  # the words of a conversation follow its summary
    leads: bool = True  # False: it bears on the request without answering it, so the ranking goes first

    @property
    def candidates(self) -> list[Candidate]:
        count = len(self.memories)
        return [Candidate(memory, float(count - at), RELEVANCE) for at, memory in enumerate(self.memories)]


@dataclass(frozen=True, slots=True)
class Asked:
    """A reading of a request, with access to the memories that answer it."""

    selects: MemorySelector
    reads: AttributeReader | None
    wish: RecallRequest
    intent: Intent
    searched: Sequence[Candidate]
    now: datetime
    # Attributes of the selected memories by id: by words, and by vectors.
    masks: dict[str, tuple[int, int]] = field(default_factory=dict)

    def place(self) -> dict[str, int]:
        """The places of the candidates of the search, best first, by id."""
        return {one.memory.id: at for at, one in enumerate(self.searched)}

    async def select(self, wanted: Selection, **narrowed: object) -> list[Memory]:
        """Memories of the caller, then of each owner who shares with the caller; the newest first."""
        found: list[Memory] = []
        wanted = replace(wanted, reads=self.reads)
        for owner in (self.wish.caller.owner, *self.wish.shared):
            for memory, *masks in await self.selects.select(owner, wanted, self._scope(owner, narrowed)):
                self.masks[memory.id] = masks[0], masks[1]
                found.append(memory)
        return found

    def tells(self, memory: Memory) -> int:
        """The attributes that *memory* tells by its words or by its likeness to examples."""
        return self.tells_by_words(memory) | self.masks.get(memory.id, (0, 0))[1]

    def tells_by_words(self, memory: Memory) -> int:
        known = self.masks.get(memory.id)
        return tells_of(memory) if known is None else known[0]

    def _scope(self, owner: Owner, narrowed: Mapping[str, object]) -> Scope:
        scope = replace(self.wish.scope, **narrowed)  # type: ignore[arg-type] # fields of Scope
        return scope if owner == self.wish.caller.owner else replace(scope, project="")

    def lookup(self, memories: Iterable[Memory], **more: object) -> Lookup | None:
        kept = tuple(memories)
        return Lookup(self.intent, kept, **more) if kept else None  # type: ignore[arg-type] # fields of Lookup

    async def telling(self, attributes: int) -> list[Memory]:
        """Memories that tell *attributes* of the caller, or of the people in the question."""
        found = await self.select(Selection(attributes=attributes))
        others = ATTRIBUTES.of_others
        named = self.intent.people
        kept = [
            memory
            for memory in found
            if (
                mentions(memory, named) if named else self.tells(memory) & attributes & others or about_self(memory)
            )
        ]
        return self.once(facts_first(kept), attributes)

    def surely(self, found: Sequence[Memory], attributes: int) -> list[Memory]:
        """*found* without memories that tell *attributes* by their likeness alone, where the words of others do."""
        by_words = 0
        for one in found:
            by_words |= self.tells_by_words(one)
        return [one for one in found if self.tells(one) & attributes & (self.tells_by_words(one) | ~by_words)]

    def once(self, ordered: Sequence[Memory], attributes: int) -> list[Memory]:
        """*ordered*, facts first, without messages that add nothing about *attributes* to their own facts."""
        told: dict[tuple[str, int], int] = {}
        named: dict[tuple[str, int], frozenset[str]] = {}
        stems: dict[tuple[str, int], frozenset[str]] = {}
        kept = []
        for one in ordered:
            place, tells = (one.session, one.seq), self.tells(one) & attributes
            if one.source in FACTS and one.session:
                stems[place] = stems.get(place, frozenset()) | content_stems(one.content)
                told[place] = told.get(place, 0) | self.tells_by_words(one) & attributes
                named[place] = named.get(place, frozenset()) | names_in(one.content)
            elif (
                one.session
                and place in told
                and not tells & ~told[place]
                # "Jo and I have our anniversary on Friday" has a name; "User's anniversary is on Friday" has none.
                and (not tells & ATTRIBUTES.of_others or names_in(one.content) <= named[place])
                and not _says_more(one.content, attributes, stems[place])
            ):
                continue
            kept.append(one)
        return kept

    def tells_each(self, memory: Memory) -> bool:
        """Whether *memory* tells every attribute that a word of the question names: of "favourite books" likes and
        books."""
        masks = (ATTRIBUTES.named_in([word]) for word in self.intent.words)
        wanted = [mask for mask in masks if mask & self.intent.attributes and not mask & _NAME_OR_PEOPLE]
        return all(self.tells(memory) & mask for mask in wanted)

    def fitting(self, found: Iterable[Memory], attributes: int) -> list[Memory]:
        """*found* without memories of another thing of the same attribute: a cat, in a question about a dog."""
        named = ATTRIBUTES.things(self.intent.words, attributes)
        there = ((one, ATTRIBUTES.things(plain_words(one.content), attributes)) for one in found)
        return [
            one
            for one, things in there
            if self.tells_each(one) and (not named or not things or not named.isdisjoint(things))
        ]

    def spread(self, ordered: Sequence[Memory], attributes: int = -1, most: int = 1_000) -> list[Memory]:
        """*ordered* with the best memory of each attribute first, then the second of each, up to *most*."""
        seen: dict[int, int] = {}
        rounds: list[tuple[int, int, Memory]] = []
        weighty = ATTRIBUTES.in_groups(_WEIGHTY)
        for one in ordered:
            bit = self._main(one, attributes)
            seen[bit] = seen.get(bit, 0) + 1
            if seen[bit] <= most or not bit:
                # More values of an attribute of identity, work, people or health than of any other.
                turn = (seen[bit] - 1) // _VALUES if bit & weighty and attributes == ATTRIBUTES.every else seen[bit]
                rounds.append((turn, bit or _LAST, one))
        return [one for _, _, one in sorted(rounds, key=lambda placed: placed[:2])]

    def newest_of_single(self, ordered: Sequence[Memory]) -> list[Memory]:
        """*ordered* without former values of attributes with a single value at a time, such as a home."""
        newest: dict[int, float] = {}
        told = [(one, self.states_single(one)) for one in ordered]
        for one, bit in told:
            if not HERE.search(one.content):  # "we have lived here for years" names no home
                newest[bit] = max(newest.get(bit, 0.0), valid_since(one))
        return [one for one, bit in told if not bit or valid_since(one) >= newest.get(bit, 0.0)]

    def states_single(self, memory: Memory) -> int:
        """The single-valued attribute that *memory* states of its owner; 0: none."""
        bit = self._main(memory, ATTRIBUTES.single)
        if not bit & ATTRIBUTES.single or not about_self(memory):
            return 0
        content = memory.content[:READ_FOR_STATEMENT]
        said = (
            [content] if memory.source in FACTS else [part for one in sentences(content) for part in clauses(one)]
        )
        # "moved to Leeds last week" and "we moved to Leeds", not "the deadline was moved to May".
        own = (one for one in said if OWN_START.search(fold(one)) or memory.source in FACTS)
        return bit if any(ATTRIBUTES.told_by(one) & bit for one in own) else 0

    def _main(self, memory: Memory, attributes: int) -> int:
        """The first attribute that *memory* tells, by its field if there is a field."""
        by_words = ATTRIBUTES.of_field(memory.provenance.attribute) or self.tells_by_words(memory)
        mask = by_words & attributes or self.tells(memory) & attributes or self.tells(memory)
        return mask & -mask

    def tells_anybody(self, memory: Memory) -> int:
        """As `tells`, also of statements about other people."""
        return ATTRIBUTES.told_by(memory.content)


_COVERED = 0.5  # share of the stems of a sentence that stand in facts


def _says_more(text: str, attributes: int, stems: frozenset[str]) -> bool:
    """Whether a sentence of the message *text* tells of *attributes* in words other than the *stems* of its facts:
    "I run on Mondays. So no meetings before 9"."""
    return any(
        ATTRIBUTES.told_by(sentence) & attributes and len(words & stems) < _COVERED * len(words)
        for sentence in sentences(text)
        for words in (content_stems(sentence),)
    )
