"""A request read with its memories: their traits, and how every kind of question selects, orders and packs them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise

from memory_extproc.index.entries import names_in, tells_of
from memory_extproc.model import (
    AttributeReader,
    Candidate,
    Memory,
    Owner,
    RecallRequest,
    Role,
    Scope,
    Selection,
    Source,
    Trust,
)
from memory_extproc.ports import MemorySelector, VectorReader
from memory_extproc.recall.intent import (
    INTENTS,
    LONGEST,
    SUPERLATIVE,
    Intent,
    QuestionKind,
    Reading,
    is_mere_noun,
)
from memory_extproc.text.attributes import ATTRIBUTES, compile_pattern, plain_words, word_set
from memory_extproc.text.intents import asks, content_stems, polite
from memory_extproc.text.persons import about_caller, relation_words, same_relation, subject
from memory_extproc.text.words import MOST_SETS, clauses, fold, memoize_by_hash, rarity, sentences

_READ_FOR_SUBJECT = 60  # characters
_SUBJECT_WITHIN = 4  # words
PETS = ATTRIBUTES.attributes["pets"].told
FACTS = frozenset({Source.RULES, Source.LLM, Source.API})
_NEAR = 4  # words
FIRST = 5  # candidates of the search that may answer, whatever their relevance
NAME = ATTRIBUTES.mask(["name"])
# The writer of a quoted message, and the person spoken to: "Ann: Hey Maria, my sister is here".
_ADDRESSED = re.compile(
    r"(?:\A\w{1,40}:\s)|\b(?i:hey|hi|hello|thanks|thank you|wow|yeah|yes|sure|hallo|salut|hola|danke),? [A-Z]\w+"
    r"|, [A-Z]\w+(?=[!.?])"
)
_SPEAKER = re.compile(
    r"\b(?:i|i'm|i've|my|mine|me|we|our|us|ich|mein\w*|mir|mich|wir|unser\w*|je|j'\w+|mon|ma|mes|nous|notre|nos|yo|mi|mis|soy|tengo|nuestr\w+)\b"
)
OWN_START = re.compile(
    r"\b(?:i|we|i'm|we're|i've|we've|my|our|ich|wir|je|j'\w+|on|nous|yo|nos)\b"
    r"|^(?:just |finally )?\w+ed (?:in )?to\b"
)
HERE = re.compile(r"\bhere\b")
_LISTENER = re.compile(r"\b(?:you|your|yours|you're|you've|du|dein\w*|tu|ton|ta|tes|vous|votre|vos|te)\b")
READ_FOR_STATEMENT = 600  # characters
LONGEST_STATEMENT = 240  # characters; a longer message tells of many things, or was pasted
_LEAST_STATED = 3  # content words
_NOBODY_ELSE = frozenset({"", "we", "they", "you"})  # "We got a dog" is about no other person
_LEADS = re.compile(r"\A(?:(?i:ok|okay|so|and|but|hey|oh|btw|also|anyway|well|yo)\b[,.!]? ?){1,4}")

# Names that their words show to be people's.
_ONE = r"[A-Z\u00c0-\u00de][\w-]{0,30}+(?<=[a-z\u00df-\u00ff])"
_SHOWN = re.compile(
    r"\b(?:(?:Mr|Mrs|Ms|Miss|Dr|Prof|Professor|Herr|Frau|Madame|Monsieur"
    r"|Do\u00f1a|Dona|Se\u00f1ora?|Aunt|Uncle)\.? "
    r"|(?:with|meet|met|ask|asked|visit|visited|invite|invited|thank|mit|avec|con) "
    r"|[Nn]ame's |(?P<role>[^\W\d_]{2,30}+),? (?P<called>(?:is |was |are )?(?:called|named) )?(?:is |are )?)"
    rf"(?P<name>{_ONE})(?P<others>(?: {_ONE})?(?:, {_ONE}){{0,6}}(?:,? (?:and|und|et|y) {_ONE})?)"
    rf"|\b(?P<acting>{_ONE})(?:'s (?P<whose>[^\W\d_]{{2,30}})\b| (?:{_ONE} )?(?:only |also |just |really |now )?"
    r"(?:wants?|says?|said|told|thinks|needs?|lives?|works?|loves?|hates?|likes?|gave|gets?|will|keeps?"
    r"|drives?|helps?|turned|signed|started|finished|handed|moved|broke|bought|plays?|eats?|mustn't|can't|joins?"
    r"|hilft|wohnt|arbeitet|travaille|habite|vive|trabaja"
    r"|(?:is|was) (?:\d{1,2}(?=\W*$|[.,;!]| years?| months?| and| now)"
    r"|an?|my|coming|leaving|moving|going|getting|doing|married|pregnant)"
    r"|has (?:an?|been|broken|become|got))\b)"
)
_ACTS = re.compile(r"\w{3,30}(?:er|or|ist|ian|man|woman)")


_LABEL = re.compile(rf"({_ONE}): ")


def speaker_of(text: str) -> str:
    """The name before a message of a talk among several ("Ann: see you"); empty: none."""
    label = _LABEL.match(text)
    return label[1] if label else ""


def is_of_family(memory: Memory) -> bool:
    who, sure = subject(memory.content)
    if who and sure < 1.0:  # "Priscilla has a daughter"
        return False
    first = plain_words(memory.content[:_READ_FOR_SUBJECT])[:_SUBJECT_WITHIN]
    return not INTENTS.words["family"].isdisjoint(first)


def about_self(memory: Memory) -> bool:
    """Whether *memory* is about its owner, and not about another person or an animal."""
    named = memory.provenance.subject
    if named and memory.source in FACTS:
        return named.casefold() == "user"
    if subject(memory.content)[0] not in _NOBODY_ELSE:
        return False
    first = plain_words(memory.content[:_READ_FOR_SUBJECT])[:_SUBJECT_WITHIN]
    return not first or first[0] not in INTENTS.words["possessive"] or PETS.isdisjoint(first[1:])


def is_of_caller(memory: Memory) -> bool:
    """True for "my sister", not for "Anna's sister"."""
    return memory.source in FACTS or about_caller(memory.content)


def asks_of_another(memory: Memory) -> bool:
    """True for a question behind a statement about another person ("Ann eats no eggs, so what can I bake?")."""
    if memory.source in FACTS:
        return False
    said = sentences(memory.content[:READ_FOR_STATEMENT])
    stated = (part for one in said for part in clauses(one)[:-1])
    return bool(said) and all(map(asks, said)) and not any(map(about_caller, stated))


def mentions(memory: Memory, people: frozenset[str]) -> bool:
    """Whether *memory* names any of *people*, also by a synonym."""
    there = {word.removesuffix("'s").removesuffix("'") for word in word_set(memory.content)}
    return any(not there.isdisjoint(same_relation(word)) for word in people)


def facts_first(memories: Iterable[Memory]) -> list[Memory]:
    """Facts before messages; each of them the weightiest, then the newest first."""
    return sorted(memories, key=lambda one: (one.source not in FACTS, -weight(one), -valid_since(one)))


def weight(memory: Memory) -> float:
    """How much *memory* matters to its owner: its importance, and a little for each time it was said or used."""
    said = min(memory.provenance.confirmations, 5)
    return memory.importance + 0.03 * said + 0.01 * min(memory.access_count, 5)


def valid_since(memory: Memory) -> float:
    return (memory.valid_from or memory.created_at).timestamp()


def is_of_household(memory: Memory) -> bool:
    return about_self(memory) or is_of_family(memory)


def names_near(memory: Memory, people: frozenset[str]) -> frozenset[str]:
    """Names of *people* in *memory*: they stand beside the relation ("Schwester Klara", "Jo, my boss")."""
    content = _ADDRESSED.sub(" ", memory.content)
    words, names = plain_words(content), names_in(content)
    alike = frozenset[str]().union(*map(same_relation, people))
    places = [at for at, word in enumerate(words) if word.removesuffix("'s") in alike]
    near = {word.removesuffix("'s") for at in places for word in words[max(0, at - _NEAR) : at + _NEAR + 1]}
    return names & near


def having_most(wanted: frozenset[str], memories: Iterable[Memory]) -> list[Memory]:
    """The memories with the larger part of *wanted*; rare words count more."""
    whole = sum(map(rarity, wanted))
    shared = ((one, wanted & content_stems(named_content(one))) for one in memories)
    return [one for one, words in shared if words and 2 * sum(map(rarity, words)) > whole]


def said_by_owner(memory: Memory) -> bool:
    return memory.source in FACTS or memory.role is Role.USER


def named_content(memory: Memory) -> str:
    name = memory.provenance.name
    return f"{name} {memory.content}" if name else memory.content


def states(memory: Memory, attributes: int, *, of_self: bool = False) -> bool:
    """True if *memory* states one of *attributes* of its owner: of a message, in a sentence that is not about the
    other side and asks nothing; *of_self*: nor about other people."""
    if memory.source in FACTS:
        return True
    for sentence in sentences(memory.content[:READ_FOR_STATEMENT]):
        folded = fold(sentence)
        if of_self and subject(sentence)[0]:
            continue
        addressed = _LISTENER.search(folded) is not None or sentence.rstrip().endswith("?")
        if (not addressed or _SPEAKER.search(folded)) and ATTRIBUTES.told_by(sentence) & attributes:
            return True
    return False


def states_something(memory: Memory) -> bool:
    """Whether *memory* has a sentence of its owner's that neither asks nor is mere politeness."""
    said = sentences(memory.content[:READ_FOR_STATEMENT])
    return memory.role is Role.USER and any(
        not asks(one)
        and not asks(_LEADS.sub("", " ".join(plain_words(one))))
        and not polite(one)
        and len(content_stems(one)) >= _LEAST_STATED
        for one in said
    )


def all_names(memories: Iterable[Memory]) -> frozenset[str]:
    return frozenset[str]().union(*(names_in(one.content) for one in memories))


def span_of(memory: Memory) -> range | None:
    """The places of the messages under a summary; None for other memories."""
    span = memory.provenance.span if memory.source is Source.SUMMARY else None
    return None if span is None else range(*span)


def stands_in(memory: Memory, owner: Owner, session: str, span: range) -> bool:
    return memory.owner == owner and memory.session == session and memory.seq in span


def last_said(summary: Memory) -> float:
    until = summary.provenance.until
    return summary.updated_at.timestamp() if until is None else until


def said_within(memory: Memory, days: tuple[int, int]) -> bool:
    return days[0] <= memory.created_at.date().toordinal() <= days[1]


@memoize_by_hash(MOST_SETS)
def people_in(text: str) -> frozenset[str]:
    """Names in *text*, folded, that its words show to be people's: "my apprentice Liam", "Mrs Pym", "Raj wants"."""
    known = names_in(text)
    found: set[str] = set()
    text, at = text[:READ_FOR_STATEMENT] if known else "", 0
    while one := _SHOWN.search(text, at):
        role, whose = (fold(one[group] or "") for group in ("role", "whose"))
        titled = one["called"] and role not in INTENTS.words["named_things"]
        shown = (not role or titled or is_role(role)) and (
            not whose or relation_words([whose]) or whose in INTENTS.words["events"]
        )
        if shown:
            found.update(plain_words(f"{one['name'] or one['acting']}{one['others'] or ''}"))
        at = one.end("acting") if one["acting"] else one.end() if shown else one.end("role")
    return known & {word.removesuffix("'s") for word in found}


def refers_to(question: str, texts: Sequence[str], beside: Sequence[str] = ()) -> bool:
    """Whether *question* refers to something of the caller's, and does not ask about the world at large: by a
    pronoun, by a person or an acting name in the owner's *texts* or *beside* them, by "the" before a word of the
    texts, as a mere noun ("salary?"), in the past tense (or with "again") with half of its words in one text, or
    with nearly all of them. "Why do knees crack" does not, though the owner has a bad knee."""
    words, heard = plain_words(question), [*texts, *beside]
    there = {word.removesuffix("'s") for word in words}
    if is_mere_noun(words) or any(
        not there.isdisjoint(INTENTS.words[name]) for name in ("own", "possessive", "anaphora")
    ):
        return True
    wanted, names = content_stems(question) - _MEASURES, names_in(question)
    if not any(map(asks, sentences(question))):  # a task or a statement
        return any(names & names_in(one) or 2 * len(wanted & content_stems(one)) >= len(wanted) for one in heard)
    acting = names & _acting(words)
    if any(there & people_in(text) or acting & names_in(text) for text in heard):
        return True
    if _is_definite(words, names, texts) or _tells_of_past(words, heard):
        return True
    whole = sum(map(rarity, wanted))
    return any(sum(map(rarity, wanted & content_stems(one))) >= _MOST_SHARED * whole > 0 for one in heard)


# "what percentage of deliveries are late?" asks as "how many deliveries are late?" does
_MEASURES = content_stems("percentage percent share proportion number amount level total")


def tells_price(question: str, text: str) -> bool:
    """Whether *question* asks for the price of a thing and *text* tells it, as "a check-up is 45" does."""
    if INTENTS.patterns["price"].search(" ".join(plain_words(question))) is None:
        return False
    wanted = content_stems(question) - content_stems(" ".join(INTENTS.words["of_price"]))
    if not wanted or not wanted <= content_stems(text):
        return False
    words = plain_words(text)
    things = (at for at, word in enumerate(words) if content_stems(word) & wanted)
    return any(
        word[0].isdigit() and INTENTS.words["beside_price"].issuperset(words[at + 1 : at + 1 + n])
        for at in things
        for n, word in enumerate(words[at + 1 : at + 2 + _MOST_BESIDE_PRICE])
    )


_MOST_BESIDE_PRICE = 4  # words between a thing and its price
_BEFORE = frozenset(["before", "vor", "bevor", "avant", "antes", "prior"])


def split_at_before(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The words in front of the last "before", and behind it; all and none where there is no such word."""
    behind = max((at for at, word in enumerate(words) if word in _BEFORE), default=len(words))
    return words[:behind], words[behind + 1 :]


def before_value(intent: Intent, found: Sequence[Memory]) -> list[Memory]:
    """The value in *found* that the one named behind "before" replaced: "where did I live before Lisbon?"."""
    wanted = content_stems(" ".join(split_at_before(intent.words)[1]))
    since = min((valid_since(one) for one in found if wanted & content_stems(one.content)), default=0.0)
    earlier = [one for one in found if valid_since(one) < since]
    earlier = [one for one in earlier if one.valid_to is not None] or earlier
    last = max(map(valid_since, earlier), default=0.0)
    return [one for one in earlier if valid_since(one) == last]


def _is_definite(words: Sequence[str], names: frozenset[str], texts: Sequence[str]) -> bool:
    """Whether an article stands before a word of *texts*."""
    helping, articles = INTENTS.words["auxiliaries"], INTENTS.words["articles"]
    said = frozenset(word.removesuffix("'s") for text in texts for word in plain_words(text))
    stems = frozenset[str]().union(*map(content_stems, texts))
    for at, word in enumerate(words):
        behind = words[at + 1 : at + 1 + _MOST_OF_NOUN]
        if word in articles and behind and not SUPERLATIVE.fullmatch(behind[0]):
            ends = next((n for n, one in enumerate(behind) if one in helping or one in _PREPOSITIONS), len(behind))
            # "the Netherlands" are everybody's; German writes every noun like a name.
            named = (one for one in behind[:ends] if content_stems(one) and not (word == "the" and one in names))
            if any(one in said or content_stems(one) & stems for one in named):
                return True
    return False


def _tells_of_past(words: Sequence[str], texts: Sequence[str]) -> bool:
    if INTENTS.words["again"].isdisjoint(words) and _PAST_TENSE.search(" ".join(words)) is None:
        return False
    untimed = [word for word in words if word not in INTENTS.words["timing"]]
    return any(
        2 * len(wanted & content_stems(text)) >= len(wanted) > 0
        for wanted in (content_stems(" ".join(words)), content_stems(" ".join(untimed)))
        for text in texts
    )


def asks_of_doer(question: str) -> bool:
    """True for "how did Ann calm the dog": a name follows an auxiliary."""
    helping, names = INTENTS.words["auxiliaries"], names_in(question)
    words = [word.removesuffix("'s") for word in plain_words(question[:LONGEST])] if names else []
    return any(before in helping and word in names for before, word in pairwise(words))


def _acting(words: Sequence[str]) -> frozenset[str]:
    """The words in *words* that may do, have or get something ("does Ingrid work", "Curt's truck"): not behind a
    preposition of place, and not the last word, by which strangers and places are asked for."""
    pairs = pairwise(["", *words[:-1]])
    acting = [word for before, word in pairs if before not in _OF_PLACE]
    owning = [word for word in words if word.endswith("'s")]
    return frozenset(word.removesuffix("'s") for word in (*acting, *owning))


_OF_PLACE = frozenset({"in", "of", "from", "at", "near", "von", "aus", "de", "en"})
_MOST_OF_NOUN = 3  # words
_MOST_SHARED = 0.8  # of the content words of a question, rare words counting more
_PREPOSITIONS = frozenset({"of", "in", "on", "at", "to", "for", "from", "with", "von", "mit", "zu", "de", "du"})
_PAST_TENSE = re.compile(r"\b(?:did|was|were|had|happened|passiert|war|waren|hatten?|etait|avait|era|fue|tenia)\b")


def each_once(memories: Iterable[Memory]) -> list[Memory]:
    return list({one.id: one for one in memories}.values())


def is_role(word: str) -> bool:
    """True for "sister" and "drummer"."""
    if relation_words([word]) or word in INTENTS.words["roles"]:
        return True
    return _ACTS.fullmatch(word) is not None and word not in INTENTS.words["no_roles"]


# Readings of a request with its memories.

RELEVANT = 0.6  # the threshold, where a request sets none
RELEVANCE = 0.9  # of memories that a lookup found; a client may set its threshold above it
_WEIGHTY = frozenset({"identity", "work", "people", "health"})
_VALUES = 3  # of such an attribute in a round
_OPINIONS = ATTRIBUTES.mask(["likes", "dislikes"])
_OF_PERSON = ATTRIBUTES.in_groups({"identity", "people", "health"})
_NAME_OR_PEOPLE = ATTRIBUTES.mask(["name", "things"]) | ATTRIBUTES.in_groups({"people"})
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
class QuestionReading:
    """A reading of a request, with access to the memories that answer it."""

    selects: MemorySelector
    reads: AttributeReader | None
    wish: RecallRequest
    intent: Intent
    searched: Sequence[Candidate]
    now: datetime
    vectors: VectorReader | None = None
    # Attributes of the selected memories by id: by words, and by vectors.
    masks: dict[str, tuple[int, int]] = field(default_factory=dict)

    def place(self) -> dict[str, int]:
        """The places of the candidates of the search, best first, by id."""
        return {one.memory.id: at for at, one in enumerate(self.searched)}

    def passing(self) -> list[Memory]:
        """The memories that the search is sure of, best first."""
        least = self.wish.threshold or RELEVANT
        return [one.memory for one in self.searched if one.relevance >= least]

    async def select(self, wanted: Selection, **narrowed: object) -> list[Memory]:
        """Memories of the caller, then of each owner who shares with the caller; the newest first."""
        found: list[Memory] = []
        wanted = replace(wanted, reads=self.reads)
        for owner in (self.wish.caller.owner, *self.wish.shared):
            for one in await self.selects.select(owner, wanted, self._scope(owner, narrowed)):
                self.masks[one.memory.id] = one.tells, one.alike
                found.append(one.memory)
        return found

    async def naming(self, names: frozenset[str]) -> list[Memory]:
        """Memories with one of *names*, however they are spelled; those with a capital letter first."""
        found = await self.select(Selection(names=names, spelled=names))
        return sorted(found, key=lambda one: names.isdisjoint(names_in(one.content)))

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
                mentions(memory, named)
                if named
                else self.tells(memory) & attributes & others or self._is_own(memory)
            )
        ]
        return self.once(facts_first(kept), attributes)

    def _is_own(self, memory: Memory) -> bool:
        """Whether *memory* is about its owner; where the question is for things, also by a statement in which
        another person or the thing acts ("a friend gave me her bike")."""
        if about_self(memory):
            return True
        things = self.intent.kind is QuestionKind.LIST and not self.intent.attributes & _OF_PERSON
        return things and is_of_caller(memory) and states_something(memory) and not asks_of_another(memory)

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

    def fitting(self, found: Iterable[Memory], attributes: int) -> list[Memory]:
        """The memories in *found* that tell the opinion and one of the other attributes that words of the question
        name: of "favourite books" likes and books, of "services I pay" either. Without memories of another thing
        of the same attribute: a cat, in a question about a dog."""
        named = ATTRIBUTES.named_in(self.intent.words) & self.intent.attributes & ~_NAME_OR_PEOPLE
        each = [mask for mask in (named & _OPINIONS, named & ~_OPINIONS) if mask]
        telling = [one for one in found if all(self.tells(one) & mask for mask in each)]
        asked = ATTRIBUTES.things(self.intent.words, attributes)
        if not asked:
            return telling
        there = ((one, ATTRIBUTES.things(word_set(one.content), attributes)) for one in telling)
        return [one for one, things in there if not things or not asked.isdisjoint(things)]

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


# --- trust -------------------------------------------------------------------------------------------
# Results of tools and documents may answer questions about the caller's own affairs and past conversations. For
# advice and questions about the world they may not: planted words would pay there, and a tool can be asked again.

_ABOUT_CONVERSATIONS = frozenset({QuestionKind.PAST, QuestionKind.DATED, QuestionKind.SUBJECT, QuestionKind.AS_OF})
_FOR_ADVISES = frozenset({QuestionKind.CONSTRAINT, QuestionKind.OVERVIEW})
_ADVISES = compile_pattern(
    r"\b(?:should (?:i|we|one)|recommend\w*|suggest\w*|advi[sc]e|(?:best|safest|most reliable|trusted)"
    r"|where (?:can|do) (?:i|we|one) (?:buy|get|find|order)|who can (?:help|fix|repair)"
    r"|soll(?:te|en)? (?:ich|wir|man)|empfiehl\w*|empfehl\w*|conseill\w*|recom(?:ie|e)nd\w*|consigli\w*)\b",
    "advice",
)


def least_trust(asked: str, reading: Reading) -> Trust:
    """How far a memory must be trusted, at least, to be recalled for *asked*."""
    kinds = {intent.kind for intent in reading.intents[:1]}
    if kinds & _FOR_ADVISES or _ADVISES.search(fold(asked[:LONGEST])):
        return Trust.ASSISTANT
    words = set(plain_words(asked[:LONGEST]))
    own = not words.isdisjoint(INTENTS.words["own"] | INTENTS.words["possessive"])
    # "What is on the page?" may mean a page in view, whose words are not the caller's.
    recalls = kinds & _ABOUT_CONVERSATIONS and INTENTS.names_speaker(words)
    return Trust.TOOL if own or recalls else Trust.ASSISTANT


# --- view --------------------------------------------------------------------------------------------
# The visible conversation, so that nothing is given twice. Pure.

_SPACED = 2  # a text is compared over so many times its length, because of white space
_MARGIN = 64  # further characters


class View:
    """The texts of a conversation: possibly megabytes, so only relevant texts are compared."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = sorted(texts, key=len)
        self._lengths = [len(text) for text in self._texts]
        self._normal: dict[str, str] = {}
        self._holding: dict[tuple[str, int], str] = {}  # by session and seq: the text that held another piece

    def shows(self, memory: Memory) -> bool:
        """Whether the model sees *memory* literally, but for case and white space: as a message of the
        conversation, or, for a piece of a long message, within a message."""
        words = normal(memory.content)
        first = bisect_left(self._lengths, len(words) // 2)  # folding case may lengthen a text
        last = bisect_left(self._lengths, _SPACED * len(words) + _MARGIN)
        if any(self._normal_of(text) == words for text in self._texts[first:last]):
            return True
        return memory.provenance.piece is not None and self._holds(memory)

    def _normal_of(self, text: str) -> str:
        known = self._normal.get(text)
        if known is None:
            known = self._normal[text] = normal(text)
        return known

    def _holds(self, piece: Memory) -> bool:
        message = (piece.session, piece.seq)
        if piece.content in self._holding.get(message, ""):
            return True
        for text in self._texts[bisect_left(self._lengths, len(piece.content)) :]:
            if piece.content in text:
                self._holding[message] = text
                return True
        return False


def normal(text: str) -> str:
    """*text* as it is compared."""
    return " ".join(text.casefold().split()).rstrip(".!?… ")
