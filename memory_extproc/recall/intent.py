"""Intents: the kind of question that a caller asks of memory, by rules and a lexicon, before any search.

The kind decides the lookup, its gate and the look of the block (see `lookup`). Small talk, tasks and questions
about the world have no kind: they get a plain search with its own gate. Pure; linear in the text.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import date
from enum import StrEnum
from functools import cached_property, reduce
from importlib.resources import files
from itertools import pairwise
from operator import or_
from typing import Any

from memory_extproc.index.entries import names_in
from memory_extproc.text import lazy_re
from memory_extproc.text.attributes import ATTRIBUTES, Compiles, LexiconError, any_of, compile_pattern, plain_words
from memory_extproc.text.dates import Span, asked_of, impossible_day, period_asked_for
from memory_extproc.text.intents import asks, content_stems
from memory_extproc.text.persons import about_caller, relation_words
from memory_extproc.text.words import UNSPACED, fold, rarity, sentences

LONGEST = 600  # characters; a longer message gives a task, or tells a story
_MOST_SENTENCES = 6
_LONGEST_SENTENCE = 300  # characters
_UNSPACED = re.compile(UNSPACED)


class QuestionKind(StrEnum):
    """Also the word in `explain` and in the metric label, so a value is never renamed."""

    OVERVIEW = "overview"
    SUBJECT = "subject"
    PAST = "past_conversation"
    DATED = "by_date"
    LIST = "list"
    MENTIONED = "mentioned"  # a list of people
    INDIRECT = "indirect"
    HOPS = "several_hops"
    CONSTRAINT = "constraint"
    AS_OF = "as_of"
    PROCEDURE = "procedure"


@dataclass(frozen=True, slots=True)
class Intent:
    """A reading of a question. Masks of attributes are as in `text.attributes`."""

    kind: QuestionKind
    subject: str = field(default="", repr=False)  # in plain words
    words: tuple[str, ...] = field(default=(), repr=False)  # all plain words of the question
    attributes: int = 0
    likings: int = 0  # attributes that count only beside an attribute in *of*
    of: int = 0
    people: frozenset[str] = field(default=frozenset(), repr=False)  # relations it names: "sister", "manager"
    days: Span | None = None
    rest: frozenset[str] = field(default=frozenset(), repr=False)  # stems beside time, attributes and reporting
    latest: bool = False  # only the last conversation
    earliest: bool = False  # only the first
    mine: bool = False  # the subject is called the caller's own
    alike: bool = False  # read by likeness to examples


@dataclass(frozen=True, slots=True)
class Reading:
    """All readings of a question, the likeliest first; *notes* name parts that could not be read."""

    intents: tuple[Intent, ...] = ()
    notes: tuple[str, ...] = ()


NOTHING_READ = Reading()


@dataclass(frozen=True, slots=True)
class _Language:
    speaks: frozenset[str]
    mine: frozenset[str]
    patterns: Mapping[str, re.Pattern[str] | None]

    def find(self, name: str, joined: str) -> re.Match[str] | None:
        pattern = self.patterns[name]
        return None if pattern is None else pattern.search(joined)


@dataclass(frozen=True, slots=True)
class _Domain:
    name: str
    words: frozenset[str]
    attributes: int
    likings: int
    of: int
    tasks: re.Pattern[str] | None  # of requests that it bears on; None: the requests of each language
    alone: re.Pattern[str] | None  # of requests that need none of *words*

    def bears_on(self, words: set[str], joined: str, *, requested: bool) -> bool:
        if self.tasks is not None:
            requested = self.tasks.search(joined) is not None
        alone = self.alone is not None and self.alone.search(joined) is not None
        return alone or (requested and not self.words.isdisjoint(words))


_PATTERNS = ("overview", "past", "last", "first", "dated", "mentioned", "request", "never")
_SEVERAL = ("whole", "about", "past", "listed", "steps")  # each with a group of its own


class IntentLexicon:
    """The patterns of all languages. LexiconError for an attribute that the lexicon of attributes does not have."""

    def __init__(self, parsed: Mapping[str, Any], compiles: Compiles = re.compile) -> None:
        languages = dict(parsed)
        self.words = {key: frozenset(value.split()) for key, value in languages.pop("words", {}).items()}
        self.patterns = {
            key: compile_pattern(one, key, compiles) for key, one in languages.pop("patterns", {}).items()
        }
        self._world = {
            key: any_of(value, f"world.{key}", compiles) for key, value in languages.pop("world", {}).items()
        }
        self._domains = [_domain(one, compiles) for one in languages.pop("domain", ())]
        self._unspaced = _language("unspaced", languages.pop("unspaced", {}), compiles)
        self._languages = [_language(name, section, compiles) for name, section in languages.items()]
        self._several = {
            id(language): {key: _each(name, key, section, compiles) for key in _SEVERAL}
            for (name, section), language in zip(languages.items(), self._languages, strict=True)
        }

    @cached_property
    def of_all(self) -> frozenset[str]:
        """Stems of words that ask for all of something and name nothing."""
        return content_stems(" ".join(self.words["all"] | self.words["framing"]))

    def read(self, asked: str, earlier: Sequence[str], today: date) -> Reading:
        """How *asked*, the caller's last words, may be meant on the day *today*. A follow-up ("and last week?") is
        read with the message before it."""
        if len(asked) > LONGEST:
            return Reading()
        found = [one for sentence in _last_first(asked) for one in self._of_sentence(sentence, today)]
        if not found and earlier and len(earlier[-1]) <= LONGEST:
            found = self._follow_up(asked, earlier[-1], today)
        unknown = impossible_day(asked, today)
        notes = (f"no calendar has a {unknown}",) if unknown else ()
        return Reading(tuple(found), notes)

    def read_as(self, asked: str, kind: QuestionKind, domain: str, today: date, attributes: int = 0) -> Reading:
        """Read *asked* as a question of *kind*, as its likeness to examples says; *domain* of a request for advice,
        *attributes* of a question for facts or for a list. A question whose words show another kind is not read."""
        words = plain_words(sentence := next(iter(_last_first(asked)), ""))
        joined = " ".join(words)
        language = next((one for one in self._languages if not one.speaks.isdisjoint(words)), self._languages[0])
        question = _Question(self, language, sentence, words, joined, today)
        if language.find("never", joined) or 2 * len(words) < len(asked.split()):
            return Reading()  # a message that tells more than it asks is like no example
        of_facts = kind in {QuestionKind.INDIRECT, QuestionKind.LIST}
        found = question.fact_as(kind, attributes) if of_facts else question.intent_as(kind, domain)
        return Reading() if found is None else Reading((found,))

    def _of_sentence(self, sentence: str, today: date) -> list[Intent]:
        words = plain_words(sentence)
        if any(map(_UNSPACED.match, words)):
            return self._of_unspaced(fold(sentence), words)
        joined, there = " ".join(words), {part for word in words for part in (word, *word.split("-"))}
        # "me" is English and Spanish: the language with most of the words goes first.
        ordered = sorted(self._languages, key=lambda one: -len(there & (one.speaks | one.mine)))
        spoken = [one for one in ordered if not one.speaks.isdisjoint(there)]
        for language in spoken or ordered[:1]:
            found = list(_Question(self, language, sentence, words, joined, today).intents())
            if not spoken:  # "how is it going with the launch": without a speaker it asks for no advice
                found = [one for one in found if one.kind in _OF_THINGS]
            if found:
                return found
        return []

    def _of_unspaced(self, folded: str, words: list[str]) -> list[Intent]:
        language, found = self._unspaced, []
        if language.find("overview", folded):
            found.append(Intent(QuestionKind.OVERVIEW))
        elif language.find("past", folded):
            found.append(Intent(QuestionKind.PAST, latest=language.find("last", folded) is not None))
        elif attributes := ATTRIBUTES.named_in(words):
            found.append(Intent(QuestionKind.INDIRECT, attributes=attributes, words=tuple(words)))
        return found

    def _follow_up(self, asked: str, before: str, today: date) -> list[Intent]:
        words = plain_words(asked)
        if not words or words[0] not in self.words["follows"] or len(words) > _LONGEST_FOLLOW_UP:
            return []
        first = next((one for sentence in _last_first(before) for one in self._of_sentence(sentence, today)), None)
        if first is None:
            return []
        rest = tuple(word for word in words if word not in self.words["follows"])
        if (days := period_asked_for(asked, today)) is not None:
            return [replace(first, days=days)] if first.kind in {QuestionKind.DATED, QuestionKind.PAST} else []
        if first.kind in {QuestionKind.LIST, QuestionKind.INDIRECT} and (named := ATTRIBUTES.named_in(rest)):
            return [replace(first, attributes=named, subject=" ".join(rest), words=rest, people=frozenset())]
        if first.kind in {QuestionKind.SUBJECT, QuestionKind.PAST} and rest:
            return [replace(first, subject=" ".join(rest), words=rest, latest=False)]
        return []

    def names_speaker(self, words: AbstractSet[str]) -> bool:
        """Whether the plain *words* of a question have a word for one of the two who talk."""
        return any(not words.isdisjoint(one.speaks) for one in self._languages)

    def asks_of_world(self, asked: str, known: Sequence[str], people: AbstractSet[str] = frozenset()) -> bool:
        """Whether the question or task is about the world ("what is a mortgage?"). *known*: texts of the owner that
        the search has for it: one with its names and most of its words makes it a question about these, as the name
        of one of *people*, named there, does."""
        joined = _FOR_WHOM.sub(r"\1 ", " ".join(plain_words(asked[:LONGEST])))
        words = joined.split()
        if self._of_world("how_to", joined):
            return not any(_has_most(asked, one, _ENOUGH_OF_STEPS) for one in known)
        own = (self.words["own"] | self.words["possessive"] | self.words["again"]).intersection(words)
        if own and not (own == {"soy"} and words[0] in {"how", "what"}):  # the bean, not the Spanish for "I am"
            return False
        if self._of_world("always", joined):
            return True
        names, there = names_in(asked), frozenset(words)
        known_names = ((one, names_in(one)) for one in known)
        return self._of_world("unless_known", joined) and not (
            names & people or any(names <= of and of & there and _has_most(asked, one) for one, of in known_names)
        )

    def _of_world(self, name: str, joined: str) -> bool:
        pattern = self._world.get(name)
        return pattern is not None and pattern.search(joined) is not None

    def asks_of_past(self, asked: str, reading: Reading) -> bool:
        """Whether former values are part of the answer."""
        kinds = {intent.kind for intent in reading.intents}
        words = " ".join(plain_words(asked[:LONGEST]))
        return bool(kinds & _OF_PAST) or self.patterns["of_past"].search(words) is not None

    def several(self, language: _Language, name: str) -> Sequence[re.Pattern[str]]:
        return self._several[id(language)][name]

    def domains_of(self, words: set[str], joined: str, *, requested: bool) -> list[_Domain]:
        return [one for one in self._domains if one.bears_on(words, joined, requested=requested)]

    def domain(self, name: str) -> _Domain | None:
        return next((one for one in self._domains if one.name == name), None)


_FOR_WHOM = re.compile(r"^(\w+) (?:me|us|mir|uns|moi|nous) ")  # "write me a poem"
# Shares of the content words of a question, rare words counting more.
_MOST_OF_IT = 0.7
_ENOUGH_OF_STEPS = 0.5


def _has_most(asked: str, text: str, least: float = _MOST_OF_IT) -> bool:
    wanted = content_stems(asked[:LONGEST])
    return sum(map(rarity, wanted & content_stems(text))) >= least * sum(map(rarity, wanted))


_NO_ADVICE = ("about_the_world", "known_thing")  # patterns
_OF_THINGS = frozenset({QuestionKind.SUBJECT, QuestionKind.DATED, QuestionKind.PAST, QuestionKind.AS_OF})
_OF_PAST = frozenset({QuestionKind.PAST, QuestionKind.DATED, QuestionKind.AS_OF})
_PLANS = ATTRIBUTES.mask(name for name, one in ATTRIBUTES.attributes.items() if one.group == "plans")
_NAME = ATTRIBUTES.mask(["name"])  # "my sister's name" is no chain
_HOME, _PLACED = ATTRIBUTES.mask(["home"]), ATTRIBUTES.mask(["job", "education"])
_RESTRICTIONS = ATTRIBUTES.mask(["diet", "allergies"])
_COMPANY = ATTRIBUTES.mask(["children"])  # "a trip with the kids"
_PLURALS = frozenset({"children", "people", "kids", "haustiere", "hobbies"})
_YOUR = frozenset({"your", "yours", "deine", "deinen", "dein", "tes", "tus", "vos"})
_CLAUSES = re.compile(r"[,;:] | [-\u2013\u2014] ")
_LONGEST_FOLLOW_UP, _LONGEST_TASK = 8, 24  # words; a task asks for a recommendation or for steps
_SHORTEST_CHAIN = 2  # steps
_MOST_BESIDE = 2  # content words of a question for an attribute beside the words that name it
_SEEKS_TIME = re.compile(
    r"^(?:when|since when|wann|quand|cuando|how (?:long|often|many times)|seit wann|depuis quand)\b"
)
_SEEKS_PLACE = re.compile(
    r"^(?:(?:to|at|in|on) )?(?:where|wo|wohin|ou|donde|adonde|which (?:street|address|place))\b"
)
_OF_SEVERAL = frozenset({"are", "which", "my", "sind", "welche", "quels", "quelles"})
_SHORTEST_PLURAL = 3  # letters
_CHANGING = content_stems("change changed new different happened")
_NOUN_PHRASE = 4  # words: "my allergies", "all my flights"


@dataclass(frozen=True)
class _Question:
    """A sentence, read in the rules of a language."""

    lexicon: IntentLexicon
    language: _Language
    sentence: str
    words: list[str]
    joined: str
    today: date

    @cached_property
    def clauses(self) -> list[str]:
        parts = _CLAUSES.split(self.sentence)
        return [" ".join(plain_words(one)) for one in parts] if len(parts) > 1 else []

    def intents(self) -> Iterator[Intent]:
        find, joined = self.language.find, self.joined
        if find("never", joined):
            return
        if any(find("overview", one) for one in (joined, *self.clauses)):
            yield Intent(QuestionKind.OVERVIEW)
            return
        asking = asks(self.sentence) or asks(joined) or len(self.words) <= _NOUN_PHRASE
        days = period_asked_for(self.sentence, self.today)
        if find("mentioned", joined):
            yield Intent(QuestionKind.MENTIONED, days=days)
        asking = asking or any(word in self._words_for("requesting") for word in self.words[:_NOUN_PHRASE])
        if days is None:
            yield from self._of_subjects("whole")
        if asking and find("past", joined):
            yield from self._of_past(days)
        found = [*self._of_tasks(), *(self._of_days(days) if asking and days is not None else ())]
        found += self._of_subjects("about")
        if asking and not find("past", joined) and (talked := self._of_talk(days)):
            found.append(talked)
        if asking:
            found += self._of_facts(days)
        yield from found
        about_own = not set(self.words).isdisjoint(self._words_for("own"))
        if not found and asking and about_own and days is not None and _SEEKS_TIME.search(joined) is None:
            rest = self._rest(_PLANS, verbs=False)
            yield Intent(QuestionKind.DATED, words=tuple(self.words), days=days, rest=rest)

    def _of_past(self, days: Span | None) -> Iterator[Intent]:
        latest, earliest = (self.language.find(name, self.joined) is not None for name in ("last", "first"))
        subject = "" if earliest else self._bare(self._group("past", "subject"))
        if not (subject or latest or earliest or days) and self._pattern("advised").search(self.joined):
            subject = " ".join(sorted(self._rest(0)))  # "which phone did you recommend?"
        words, unspecified = tuple(self.words), not (subject or latest or earliest)
        # The ranking finds a single decision: "sync or async, did we decide?"
        if not (unspecified and self._pattern("decided").search(self.joined) and self._rest(0)):
            yield Intent(QuestionKind.PAST, subject, words, days=days, latest=latest, earliest=earliest)

    def _of_talk(self, days: Span | None) -> Intent | None:
        """A question about a conversation, by its words in any order."""
        there = set(self.words)
        named = not there.isdisjoint(self._words_for("conversation"))
        both = self._pattern("both_spoke").search(self.joined) is not None or not there.isdisjoint(_YOUR)
        resumes = self._pattern("latest").search(self.joined) is not None
        told = named or not there.isdisjoint(self._words_for("conversing"))
        if not (both and self._pattern("ended").search(self.joined) and (told or resumes)):
            return None
        if resumes and not told and len(self._rest_words(0)) > 1:
            return None
        talk = self._words_for("conversation") | self._words_for("conversing") | self._words_for("framing")
        first, last = (self.language.find(name, self.joined) for name in ("first", "last"))
        ends = ("" if (end := first or last) is None else end[0]).split()
        rest = [word for word in self._rest_words(0) if word not in talk and word not in ends]
        latest, subject = (last is not None or resumes) and not rest and days is None, " ".join(rest)
        words, earliest = tuple(self.words), first is not None and not rest
        return Intent(QuestionKind.PAST, subject, words, days=days, latest=latest, earliest=earliest)

    def intent_as(self, kind: QuestionKind, domain: str) -> Intent | None:
        people, words = relation_words(self.words), tuple(self.words)
        rest = [word for word in self._rest_words(0) if word not in self._words_for("framing")]
        if kind is QuestionKind.OVERVIEW:
            of_caller = about_caller(self.sentence) and not people and not self._attributes()
            own = {thing for word, thing in pairwise(self.words) if word in self._words_for("possessive")}
            of_caller = of_caller and own <= self._words_for("oneself")  # "my life", but not "my talk"
            return Intent(kind) if of_caller and not names_in(self.sentence[1:]) else None
        if kind is QuestionKind.CONSTRAINT:
            bearing = self.lexicon.domain(domain)
            if bearing is None or not self._is_task():
                return None
            return Intent(kind, attributes=bearing.attributes, likings=bearing.likings, of=bearing.of, words=words)
        subject = " ".join(rest)
        if kind is QuestionKind.PAST:
            if not (self._words_for("together") & set(words)):
                return None
            days = period_asked_for(self.sentence, self.today)
            latest = self.language.find("last", self.joined) is not None
            return Intent(kind, subject=subject, words=words, days=days, latest=latest and not rest)
        return Intent(kind, subject=subject, words=words, people=people, mine=self._is_mine()) if rest else None

    def _is_task(self) -> bool:
        return not any(self._pattern(one).search(self.joined) for one in (*_NO_ADVICE, "no_task"))

    def fact_as(self, kind: QuestionKind, attributes: int) -> Intent | None:
        if not self._is_mine():
            return None
        words, people = tuple(self.words), relation_words(self.words)
        if kind is QuestionKind.LIST:
            named = self._attributes() & ~(_NAME if self.words[0] == "name" else 0) or attributes
            rest = self._rest(named, verbs=False) - self.lexicon.of_all
            subject = "" if named else " ".join(one for one in self._rest_words(0) if content_stems(one) & rest)
            return Intent(kind, attributes=named, subject=subject, rest=rest, words=words, people=people)
        kind = QuestionKind.LIST if self._wants_several() else kind
        kind = QuestionKind.AS_OF if self._pattern("formerly").search(self.joined) else kind
        return Intent(kind, attributes=attributes, words=words, people=people, alike=True)

    def _of_days(self, days: Span) -> Iterator[Intent]:
        named = self._attributes()
        if named and not named & _PLANS and self._wants_all(named) and len(self._rest(named)) <= 1:
            return  # "which books did I read this year"
        past = asked_of(self.sentence, self.today) is not None
        how_it_was = named or self._pattern("state").search(self.joined)
        if past and how_it_was and not self._pattern("saying").search(self.joined):
            return
        if _SEEKS_TIME.search(self.joined) is not None:  # "when did I go camping in June?"
            return
        words, rest = tuple(self.words), self._rest(_PLANS, verbs=False) - _CHANGING
        asking = self.words[0] in self._words_for("which") | self._words_for("requesting")
        bare = asking and not rest and not ATTRIBUTES.named_in(self.words)  # it asks for nothing but a time
        if (bare or self.language.find("dated", self.joined)) and not self._asks_for_advice():
            yield Intent(QuestionKind.DATED, days=days, words=words, attributes=named, rest=rest)

    def _rest(self, named: int, *, verbs: bool = True) -> frozenset[str]:
        """Stems of the question's words that name no time, none of the attributes *named*, and report nothing;
        without *verbs*, nor words that stand where the verb stands."""
        rest = self._rest_words(named)
        return content_stems(" ".join(rest if verbs else (word for word in rest if word not in self._verbs)))

    @cached_property
    def _verbs(self) -> frozenset[str]:
        """Words behind a speaker ("did we chat about") or an interrogative ("was liegt an"), but not before an
        auxiliary ("which workshop did I attend")."""
        speakers = (self._words_for("own") | self._words_for("together")) - self._words_for("possessive")
        helping, asking = self._words_for("auxiliaries"), self._words_for("which")
        found = set[str]()
        for before, word, after in zip(["", *self.words], self.words, [*self.words[1:], ""], strict=False):
            if before in speakers or word in helping or (before in asking and after not in helping):
                found.add(word)
        return frozenset(found)

    @cached_property
    def _not_asking(self) -> list[str]:
        return ATTRIBUTES.without_asking(self.joined).split()

    def _rest_words(self, named: int) -> list[str]:
        timing, reporting = self._words_for("timing"), self._words_for("reporting")
        return [
            word
            for word in self._not_asking
            if word.isalpha()
            and word.removesuffix("s") not in timing
            and word not in timing
            and word not in reporting
            and not ATTRIBUTES.named_in([word]) & (named | _HOME if named & _PLACED else named)
            and content_stems(word)
        ]

    def _asks_for_advice(self) -> bool:
        """Whether the caller asks for advice ("where should I eat tonight?"), not for memories of a day."""
        advising, own = self._words_for("advising"), self._words_for("own")
        return any(word in advising and after in own for word, after in pairwise(self.words))

    def _of_tasks(self) -> Iterator[Intent]:
        # A long message is a task by itself; a question in the past tense asks about events.
        if len(self.words) > _LONGEST_TASK or self._pattern("no_task").search(self.joined):
            return
        if subject := self._group("steps", "subject"):
            yield Intent(QuestionKind.PROCEDURE, subject=subject, words=tuple(self.words))
        requests = self.language.find("request", self.joined) is not None
        requests = requests and not any(self._pattern(one).search(self.joined) for one in _NO_ADVICE)
        days = period_asked_for(self.sentence, self.today) if is_mere_noun(self.words) else None
        requests = requests or (days is not None and days[1] >= self.today.toordinal())  # "dinner for tomorrow"
        domains = self.lexicon.domains_of(set(self.words), self.joined, requested=requests)
        with_them = self._attributes() & _COMPANY if requests else 0
        if not domains and self._asks_for_advice():  # "the drive is full of snow, how should I clear it?"
            yield Intent(QuestionKind.CONSTRAINT, words=tuple(self.words))
        if domains or with_them:
            masks = (
                [with_them, *(one.attributes for one in domains)],
                [one.likings for one in domains],
                [one.of for one in domains],
            )
            attributes, likings, of = (reduce(or_, several, 0) for several in masks)
            yield Intent(
                QuestionKind.CONSTRAINT, attributes=attributes, likings=likings, of=of, words=tuple(self.words)
            )

    def _of_facts(self, days: Span | None) -> Iterator[Intent]:
        joined, words = self.joined, tuple(self.words)
        named, people = self._attributes(), relation_words(self.words)
        past = asked_of(self.sentence, self.today) is not None
        rest = self._rest(named)
        if past and not (named and self._wants_all(named)):
            states = self._pattern("state").search(joined)
            if states or (named and len(rest) <= _MOST_BESIDE and not self._pattern("saying").search(joined)):
                yield Intent(QuestionKind.AS_OF, "", words, named, people=people, days=days, rest=rest, mine=True)
            return
        if self._is_mine() and self._describes():
            yield Intent(QuestionKind.HOPS, attributes=named, words=words)
        if not past and self._asks_of_before():
            mine = self._is_mine()
            told = named if mine else 0
            yield Intent(QuestionKind.AS_OF, "", words, told, people=people, days=days, rest=rest, mine=mine)
            return
        yield from self._of_now(days)

    def _asks_of_before(self) -> bool:
        return all(
            (self._pattern(name).search(self.joined) is not None) == wanted
            for name, wanted in (("formerly", True), ("saying", False))
        )

    def _of_now(self, days: Span | None) -> Iterator[Intent]:
        joined, words = self.joined, tuple(self.words)
        named, people = self._attributes(), relation_words(self.words)
        rest = self._rest(named)
        if self._group("steps", "subject") and not ATTRIBUTES.asked_by(joined):
            return  # "how do I book a table" asks for no book
        restricts = ATTRIBUTES.asked_by(joined) & _RESTRICTIONS  # "which foods do I have to avoid" lists no foods
        thing = "" if restricts else self._group("listed", "thing")
        if thing and self._is_plural(thing) and not people - set(thing.split()):
            yield Intent(
                QuestionKind.LIST, subject=thing, attributes=ATTRIBUTES.named_in(thing.split()), words=words
            )
        if not self._is_mine():
            return
        things = self._rest(named, verbs=False) - self.lexicon.of_all
        several = self._wants_all(named) or (days is None and self._names_several(named))
        if not thing and named and not people and several and len(things) <= _MOST_BESIDE:
            yield Intent(QuestionKind.LIST, attributes=named, words=words, rest=things)
        anchor = _anchor(self.words, self._words_for("possessive"), self._words_for("own"))
        chained = people and len(self._pattern("linking").findall(joined)) + len(people) >= _SHORTEST_CHAIN
        several_steps = anchor and self._is_chain(people)
        hops = Intent(QuestionKind.HOPS, subject=anchor, attributes=named, words=words, people=people)
        plainly = len(people) == 1 and not chained
        plainly = plainly and not any(self._pattern(one).search(joined) for one in ("owned", "anchored"))
        if several_steps and not plainly:
            yield hops
        if named and days is None and len(rest) <= _MOST_BESIDE and not (chained and len(people) > 1):
            yield Intent(QuestionKind.INDIRECT, attributes=named, words=words, people=people, rest=rest)
        if several_steps and plainly:
            yield hops

    def _describes(self) -> bool:
        """Whether a relative clause describes a person or a thing: "the man who feeds my dog"."""
        determined = self._words_for("articles") | self._words_for("possessive")
        clauses = self._words_for("relative") | (self._words_for("own") - self._words_for("possessive"))
        pairs = zip(self.words, self.words[2:], strict=False)
        return any(before in determined and behind in clauses for before, behind in pairs)

    def _is_chain(self, people: frozenset[str]) -> bool:
        """Whether the question goes over the caller's person or thing to another memory, and not to the caller."""
        speaking = self._words_for("own") - self._words_for("possessive")
        linked = not self._attributes() & _NAME and self._pattern("owned").search(self.joined) is not None
        if not linked and not speaking.isdisjoint(self.words) and not self._pattern("where_i").search(self.joined):
            return False
        return linked or bool(people) or self._pattern("anchored").search(self.joined) is not None

    def _wants_all(self, named: int) -> bool:
        """Whether the question asks for all values of an attribute: "which allergies", "everything I planted"."""
        if not self._words_for("all").isdisjoint(self.words) or ATTRIBUTES.asked_by(self.joined) & _RESTRICTIONS:
            return True  # "what must I not eat"
        return self._names_several(named) and not self._words_for("which").isdisjoint(self.words[:_NOUN_PHRASE])

    def _names_several(self, named: int) -> bool:
        """Whether a plural names an attribute with several values: "meine Allergien"."""
        naming = [word for word in self.words if ATTRIBUTES.named_in([word]) & named]
        seeks_one = _SEEKS_TIME.search(self.joined) or _SEEKS_PLACE.search(self.joined)
        return seeks_one is None and any(ATTRIBUTES.is_plural(word) for word in naming)

    def _wants_several(self) -> bool:
        """Whether the question asks for things in the plural: "list my health issues", "who are my flatmates"."""
        first = set(self.words[:2])
        plural = any(word.endswith("s") and len(word) > _SHORTEST_PLURAL for word in self.words)
        return not first.isdisjoint(self._words_for("all")) or (plural and not first.isdisjoint(_OF_SEVERAL))

    def _is_plural(self, thing: str) -> bool:
        last = thing.rsplit(maxsplit=1)[-1]
        return (
            "mein" in self.joined
            or (last.endswith("s") and not last.endswith("'s"))
            or last in _PLURALS
            or ATTRIBUTES.is_plural(last)
        )

    def _of_subjects(self, name: str) -> Iterator[Intent]:
        """A question for a subject, in its own clause: "give me all about the pump, I have to explain it"."""
        read = (self._group(name, "subject", text) for text in (*self.clauses, self.joined))
        if not (subject := next(filter(None, read), "")):
            return
        words = subject.split()
        mine = words[0] in self.language.mine and words[0] not in self._words_for("articles")
        words = words[words[0] in self.language.mine and len(words) > 1 :]
        while len(words) > 1 and words[-1] in self._words_for("closing"):
            words.pop()
        if words[0] not in self._words_for("no_subjects"):
            bare, people = " ".join(words), relation_words(words)
            yield Intent(QuestionKind.SUBJECT, bare, words=tuple(self.words), mine=mine, people=people)

    def _attributes(self) -> int:
        named = ATTRIBUTES.named_in(self.words) | ATTRIBUTES.asked_by(self.joined)
        return named & ~_HOME if named & _PLACED else named  # "in which city do I work"

    def _words_for(self, name: str) -> frozenset[str]:
        return self.lexicon.words[name]

    def _pattern(self, name: str) -> re.Pattern[str]:
        return self.lexicon.patterns[name]

    def _is_mine(self) -> bool:
        return not self._words_for("own").isdisjoint(self.words)

    def _group(self, name: str, group: str, text: str = "") -> str:
        for pattern in self.lexicon.several(self.language, name):
            matched = pattern.search(text or self.joined)
            if matched is not None and pattern.groupindex and matched[group]:
                return str(matched[group])
        return ""

    def _bare(self, subject: str) -> str:
        words = [word for word in subject.split() if word not in self.language.mine]
        talk = next((at for at, word in enumerate(words) if word in self._words_for("conversation")), 0)
        if talk and words[0] in self._words_for("no_subjects"):  # "in our last conversation about sailing"
            words = words[talk + 2 :]
        while words and words[-1] in self._words_for("trailing"):
            words.pop()
        if period_asked_for(rest := " ".join(words), self.today):  # "about buying, back in February"
            rest = " ".join(filter(self._rest_words(0).__contains__, words))
        return "" if rest in self._words_for("no_subjects") else rest


def is_mere_noun(words: Sequence[str]) -> bool:
    """Whether a question is a mere noun phrase: "salary?", "dinner ideas for tomorrow"."""
    lists = INTENTS.words
    leading = lists["which"] | lists["requesting"] | lists["articles"]
    return (
        0 < len(words) <= _MERE_NOUN
        and words[0] not in leading
        and lists["auxiliaries"].isdisjoint(words)
        and lists["indefinite"].isdisjoint(words)
        and not any(map(SUPERLATIVE.fullmatch, words))
    )


_MERE_NOUN = 5  # words
SUPERLATIVE = re.compile(
    r"(?<!\w)(?:\w{2,40}(?:est|sten?)|best\w*|most|first|last|world\w*|meilleur\w*|mejor\w*|erste[nrs]?)"
)


def _anchor(words: Sequence[str], possessive: frozenset[str], own: frozenset[str]) -> str:
    """The word behind "my" in a chain: of "my best friend's daughter", the friend."""
    for at, word in enumerate(words):
        if word in possessive:
            behind = words[at + 1 : at + 4]
            related = [relation for one in behind for relation in relation_words([one])]
            return (
                (related or [one for one in behind if one not in own] or [""])[0]
                .removesuffix("'s")
                .removesuffix("'")
            )
    return ""


def _last_first(text: str) -> list[str]:
    return [one for one in sentences(text) if len(one) <= _LONGEST_SENTENCE][: -_MOST_SENTENCES - 1 : -1]


def _language(name: str, section: Mapping[str, Any], compiles: Compiles) -> _Language:
    return _Language(
        frozenset(plain_words(section.get("speaks", ""))),
        frozenset(plain_words(section.get("mine", ""))),
        {
            key: any_of([_drop_groups(one) for one in section.get(key, ())], f"{name}.{key}", compiles)
            for key in _PATTERNS
        },
    )


def _each(name: str, key: str, section: Mapping[str, Any], compiles: Compiles) -> list[re.Pattern[str]]:
    found = [any_of([one], f"{name}.{key}", compiles) for one in section.get(key, ())]
    return [one for one in found if one is not None]


def _drop_groups(pattern: str) -> str:
    return re.sub(r"\(\?P<\w+>", "(?:", pattern)


def _domain(section: Mapping[str, Any], compiles: Compiles) -> _Domain:
    where = f"domain {section.get('name', '')!r}"
    attributes, likings, of = (
        ATTRIBUTES.mask(section.get(key, ()), f"{where}, {key}") for key in ("attributes", "likings", "of")
    )
    tasks = compile_pattern(section["tasks"], where, compiles) if "tasks" in section else None
    words = frozenset(plain_words(section.get("words", "")))
    words |= frozenset().union(*(ATTRIBUTES.attributes[name].told for name in section.get("told", ())))
    alone = compile_pattern(section["alone"], where, compiles) if "alone" in section else None
    return _Domain(str(section.get("name", "")), words, attributes, likings, of, tasks, alone)


def read_intents(text: str, where: str, compiles: Compiles = re.compile) -> IntentLexicon:
    """Parse the lexicon in TOML. LexiconError names the fault and its place; *compiles* may put off a pattern's."""
    try:
        return IntentLexicon(tomllib.loads(text), compiles)
    except (tomllib.TOMLDecodeError, LexiconError) as error:
        raise LexiconError(f"{where}: {error}") from error


_PACKAGED = (files(__package__) / "intents.toml").read_text(encoding="utf-8")
INTENTS = read_intents(_PACKAGED, "intents.toml", lazy_re.compile)
