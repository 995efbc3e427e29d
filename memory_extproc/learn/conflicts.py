"""Relate a new fact to existing facts: new, repeated, newer or older. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from memory_extproc.learn.extract.clauses import LISTS
from memory_extproc.learn.extract.extractor import LONGEST_FACT, Fact, resolve_event_time
from memory_extproc.learn.wording import (
    DEEDS,
    HAVING,
    TELLS_NOTHING,
    USER,
    PeopleNamed,
    about,
    agree,
    currencies,
    denies,
    repeats,
    saying,
)
from memory_extproc.model import Hit, Memory, Provenance, Scope, Source, least_trusted, trust_of, with_trust
from memory_extproc.text.dates import in_month_of
from memory_extproc.text.persons import ValueKind, kinds
from memory_extproc.text.words import fold, negates, stem, tokens

# Cosines of the default embedding model, all-MiniLM-L6-v2: of facts about different things, 3 pairs in 1,000 are
# above the first and none above the second. Values of the same thing are as often below as above it, so subject and
# attribute are compared first (docs/memory-model.md has the figures).
FAR = 0.7
ALIKE = 0.9
MOST_UNCLEAR = 8  # memories in one question to a model
FACTS = Scope(sources=frozenset({Source.RULES, Source.LLM, Source.API}))


@dataclass(frozen=True, slots=True)
class Add:
    """It is new."""


@dataclass(frozen=True, slots=True)
class Confirm:
    """*id* says the same already."""

    id: str


@dataclass(frozen=True, slots=True)
class Replace:
    """The newer value of the facts *ids*, which stay stored and are no longer recalled."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outdate:
    """*by* has a newer value already: it is kept as history, as superseded."""

    by: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Discard:
    """The fact means something beside a known fact alone, and none is known."""


Change = Add | Confirm | Replace | Outdate | Discard


class FactRelation(StrEnum):
    """Relation of an existing fact to the new fact."""

    OTHER = "other"  # it speaks of something else
    SAME = "same"  # it says the same
    CHANGED = "changed"  # it says something else of the same
    WIDER = "wider"  # it says the same with more detail
    NARROWER = "narrower"  # it says the same with less detail


# (relation to the newest fact on the same topic, whether the new fact was said later)
VERDICTS: Mapping[tuple[FactRelation, bool], type[Add | Confirm | Replace | Outdate]] = {
    (FactRelation.OTHER, True): Add,
    (FactRelation.OTHER, False): Add,
    (FactRelation.SAME, True): Confirm,
    (FactRelation.SAME, False): Confirm,
    (FactRelation.CHANGED, True): Replace,
    (FactRelation.CHANGED, False): Outdate,
    (FactRelation.WIDER, True): Confirm,
    (FactRelation.WIDER, False): Confirm,
    # Uncontradicted detail holds, whenever it was said: an earlier narrower fact replaces a later broader fact too.
    (FactRelation.NARROWER, True): Replace,
    (FactRelation.NARROWER, False): Replace,
}


class ConflictVerdict(StrEnum):
    """A model's verdict on an existing memory beside a new fact."""

    ADD = "ADD"  # they are unrelated
    UPDATE = "UPDATE"  # the fact is the newer value of it
    DELETE = "DELETE"  # the fact says that it no longer holds
    NONE = "NONE"  # it repeats the fact


def likeness(fact: Fact, found: Hit, people: PeopleNamed | None = None) -> FactRelation:
    """The relation by rules; *people* has the names of the caller's people. A high cosine proves nothing:
    a flight on May 3 and a flight on May 8 are 0.96 alike. Below it, only exclusive facts and literal repetitions
    are related."""
    there = found.memory
    named = there.provenance
    if saying(fact.content) == saying(there.content) and _currencies_agree(fact.content, there.content):
        return FactRelation.SAME
    named_whole = bool(named.subject and named.attribute and named.value)
    if named_whole and (longer := _added_detail(fact, there)) is not None:
        return longer
    key = about if people is None else people.key
    if not named_whole or key(fact.subject) != key(named.subject):
        return FactRelation.OTHER
    if fact.ends or named.ends:
        return _likeness_of_endings(fact, there)
    if denies(fact.content, there.content):
        return FactRelation.CHANGED
    return _likeness_of_values(fact, found)


def _likeness_of_values(fact: Fact, found: Hit) -> FactRelation:
    there, named = found.memory, found.memory.provenance
    if about(fact.attribute) != about(named.attribute):
        elsewhere = FactRelation.CHANGED if _works_elsewhere(fact, there) else FactRelation.OTHER
        return FactRelation.SAME if _same_said(fact, there) else elsewhere
    if agree(fact.value, named.value):
        return FactRelation.SAME
    if (detailed := _detail(fact, there)) is not None:
        return detailed
    if _counts_anew(fact.value, named.value) or _sum_anew(fact.value, named.value):
        return FactRelation.CHANGED
    if _tell_apart(fact.value, named.value):
        return FactRelation.OTHER
    return FactRelation.CHANGED if fact.exclusive or found.cosine >= ALIKE else FactRelation.OTHER


_WORK = re.compile(r".{2,60} (?:at|for) (?:the )?(?P<where>[A-Z].*)")


def _works_elsewhere(fact: Fact, there: Memory) -> bool:
    """Whether the facts, of two turns, name two employers: one by itself and one behind an occupation."""
    named = there.provenance
    jobs = {about(one.attribute): one.value for one in (fact, named)}
    employer, job = jobs.get(about("employer")), _WORK.match(jobs.get(about("occupation"), ""))
    if employer is None or job is None or fact.turn_id == named.turn:
        return False
    new, old = set(saying(employer)), set(saying(job["where"]))
    return not (new <= old or old <= new)


def _counts_anew(one: str, other: str) -> bool:
    """Whether the values are other numbers of the same: "two cats" and "three cats"."""
    here, there = fold(one).split(), fold(other).split()
    return (
        len(here) > 1 and here[0] != there[0] and here[1:] == there[1:] and _COUNTS.issuperset((here[0], there[0]))
    )


def _sum_anew(one: str, other: str) -> bool:
    """Compare sums of money: "900 euros a month" is new after "800 euros a month at Bosch"."""
    (kind, here), *details = _parts(one)
    (_, there), *known = _parts(other)
    words = (frozenset(word for word in tokens(text) if not word[:1].isdigit()) for text in (here, there))
    return kind == "amount" and bool(currencies(one)) and len(set(words)) == 1 and set(details) <= set(known)


_COUNTS = frozenset(["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]) | set(
    map(str, range(2, 100))
)


def _detail(fact: Fact, there: Memory) -> FactRelation | None:
    """Compare the detail of *fact* and *there* where either value contains the other. Where both have detail of
    their own beside the value, they are two facts and both stay. None: neither value contains the other."""
    value = there.provenance.value
    mine, theirs = set(saying(fact.value)), set(saying(value))
    if (
        not mine
        or not theirs
        or negates(fact.content) != negates(there.content)
        or not _currencies_agree(fact.value, value)
    ):
        return None
    said, known = _details(fact.content), _details(there.content)
    renamed = fact.attribute != there.provenance.attribute  # the job and its employer: neither is in the other
    if mine < theirs or (renamed and said <= known):
        return FactRelation.WIDER if said <= known else FactRelation.OTHER
    if theirs < mine or (renamed and known <= said):
        return FactRelation.NARROWER if known <= said else FactRelation.OTHER
    return None


# Continues a whole statement, as "twice a day" continues "takes metformin". "a dog sitter" continues no "a dog".
_GOES_ON = re.compile(
    r",? (?:at|in|on|with|for|from|as|since|by|near|every|twice|once|during|named|called|\d)[\w:.]*(?: |$)"
    r"|, (?!and )"
)
_NAMED = re.compile(r"^(User's [a-z-]+) [A-Z][\w'-]+(?= [a-z])")


def _added_detail(fact: Fact, there: Memory) -> FactRelation | None:
    """Compare a statement with the same statement continued, or with the person's name in it."""
    if fact.ends or there.provenance.ends:
        return None
    for short, long, relation in (
        (fact.content, there.content, FactRelation.WIDER),
        (there.content, fact.content, FactRelation.NARROWER),
    ):
        for told in (long, _NAMED.sub(r"\1", long)):
            rest = told.removeprefix(short)
            if (not rest and told != long) or (rest != told and _GOES_ON.match(rest)):
                return relation
    return None


def _details(content: str) -> set[str]:
    """The words of *content* that tell something: "works as" and "is" tell the same."""
    return set(saying(content)) - TELLS_NOTHING


def _currencies_agree(one: str, other: str) -> bool:
    here, there = currencies(one), currencies(other)
    return not here or not there or here == there


def _same_said(fact: Fact, there: Memory) -> bool:
    """Compare the turn and a distinctive value: an extractor that reads a turn twice may name the attribute
    differently. "likes" alone is not distinctive."""
    telling = any(char.isdigit() for char in fact.value) or len(saying(fact.value)) > 1
    return telling and there.provenance.turn == fact.turn_id and agree(fact.value, there.provenance.value)


def _likeness_of_endings(fact: Fact, there: Memory) -> FactRelation:
    """An ending changes the fact that it ends, and a new beginning changes the ending; related facts stay:
    after Paris one may live in Tokyo."""
    attribute, value = there.provenance.attribute, there.provenance.value
    rest = attribute.removeprefix(fact.attribute)  # "play tennis on sundays" ends with "play tennis"
    if _having(fact.attribute) != _having(attribute) and (rest == attribute or _GOES_ON.match(rest) is None):
        return FactRelation.OTHER
    if fact.ends and there.provenance.ends:
        return FactRelation.SAME if agree(fact.value, value) else FactRelation.OTHER
    if not fact.ends:
        begins_again = fact.exclusive or agree(fact.value, value)
        return FactRelation.CHANGED if begins_again else FactRelation.OTHER
    words = {*saying(there.content), *saying(attribute), *saying(value)}
    return FactRelation.CHANGED if set(saying(fact.value)) <= words else FactRelation.OTHER


def _having(attribute: str) -> frozenset[str]:
    """The dog of "has dog" and of "dog's name"."""
    key = about(attribute)
    return key - HAVING or key


def reconcile_fact(fact: Fact, row: Memory, existing: Iterable[Hit], injected: Sequence[str] = ()) -> Change:
    """The change for *fact*, stored as *row*, given *existing* hits in any order. Messages, other projects and
    *row* itself are ignored. A repetition of an *injected* memory is never new."""
    others = [one for one in existing if _comparable(one.memory, row)]
    people = PeopleNamed(fact, others)
    alike = {one.memory.id: likeness(fact, one, people) for one in others}
    moved = _find_moved(fact, others)
    if fact.known_only and fact.moved:
        others = [one for one in others if one.memory is moved]
    if moved is not None and alike[moved.id] is FactRelation.OTHER:
        alike[moved.id] = FactRelation.CHANGED
    for one in others:
        if one.memory.content == fact.corrects:
            alike[one.memory.id] = FactRelation.CHANGED
    if fact.lost:
        before = [one.memory for one in others if _age(one.memory) <= _age(row)]
        alike |= dict.fromkeys((memory.id for memory in find_ended(fact, before, people)), FactRelation.CHANGED)
    same_thing = [one.memory for one in others if alike[one.memory.id] is not FactRelation.OTHER]
    newest = max(same_thing, key=_age, default=None)
    if newest is None:
        if fact.known_only and (fact.lost or fact.moved or not people.has(fact.subject)):
            return Discard()
        known = [
            one for one in others if one.memory.content in injected and repeats(fact.content, one.memory.content)
        ]
        best = max(known, key=lambda one: (one.cosine, one.memory.id), default=None)
        return Add() if best is None else Confirm(best.memory.id)
    verdict = VERDICTS[alike[newest.id], _age(row) >= _age(newest)]
    if verdict is Confirm:
        return Confirm(newest.id)
    if verdict is Outdate:
        return Outdate(by=newest.id, since=newest.valid_from or newest.created_at)
    kept = FactRelation.WIDER  # has detail that the fact in hand lacks
    return Replace(tuple(sorted(memory.id for memory in same_thing if alike[memory.id] is not kept)))


# --- details -----------------------------------------------------------------------------------------
# A value in parts, each of a kind: "June 6 at 9am in Kinsale" has a day, an hour and a place. Pure.

_LEADS = "with|for|from|by|including|without|mit|f\u00fcr|avec|pour|con|para"
_PLACES = "at|in|inside|on|near|bei|beim|im|am|auf|zum|zur|\u00e0|au|aux|chez|dans|en"
_PART = re.compile(rf",? (?=(?:{_LEADS}|{_PLACES}|um|a las) \S)", re.IGNORECASE)
_EVENTS = frozenset(map(stem, LISTS["events"].split("|")))
_HOUR = re.compile(
    r"\b\d{1,2}[:h]\d\d\b|\b\d{1,2} ?(?:[ap]\.?m\b|uhr\b|h\b|o'clock)|\b(?:noon|midnight|midi|minuit|mediod\u00eda)"
    r"\b|^(?:at|um|\u00e0|a las) \d{1,2}(?:[.:]\d\d)?$",
    re.IGNORECASE,
)
_RATE = re.compile(r"\b(?:an?|per|each|every|pro|im|par|al|por) (?:\w+ )?\w+$", re.IGNORECASE)
_YEAR_OR_FEAST = re.compile(r"\b(?:(?:19|20)\d\d|easter|christmas|date)\b", re.IGNORECASE)
_AMOUNT = re.compile(r"(?:(?:about|around|roughly) )?[$\u20ac\u00a3]?\d|\w{1,12}, amount", re.IGNORECASE)


def _kind_of(part: str) -> str:
    lead, told = fold(part.partition(" ")[0]), _RATE.sub("", part)
    dated = ValueKind.DAY in kinds(_HOUR.sub(" ", told).replace("days", "day")) or _YEAR_OR_FEAST.search(told)
    if dated and lead != "for":
        return "day"
    if _HOUR.search(told):
        return "hour"
    if lead in _PLACES.split("|"):
        return "place"
    if lead in _LEADS.split("|"):
        return lead
    return "amount" if _AMOUNT.match(part) else "thing"


def _parts(value: str) -> list[tuple[str, str]]:
    """The parts of *value* in order, each after its kind."""
    return [(_kind_of(part), part) for part in _PART.split(value)]


def _tell_apart(one: str, other: str) -> bool:
    """Whether the values have no kind of part in common, such as a day and a place: then both hold."""
    here, there = ({kind for kind, _ in _parts(value)} for value in (one, other))
    return here.isdisjoint(there) and not (here | there) & {"thing", "amount"}


def _update_parts(old: str, new: str, told: str, *, booked: bool) -> str:
    """The value *old* after its change to *new*. A new part replaces the old part of its kind; a new day replaces
    the hour too, and a bare name the place. Other parts stay, unless *told* has them already."""
    before, after = _parts(old), {kind for kind, _ in _parts(new)}
    new = next((in_month_of(new, part) for kind, part in before if kind == "day"), new)
    if before[0][0] == "thing" and "thing" in after and not booked:
        return new  # another thing, without the details of the first
    if "amount" in after:  # "900 euros from May" tells when that sum began
        before = [(kind, part) for kind, part in before if kind != "day" or not part.lower().startswith("from ")]
    gone = after | ({"hour"} if "day" in after else set()) | ({"place"} if "thing" in after else set())
    left = ["" if kind in gone or set(saying(part)) <= set(saying(told)) else part for kind, part in before]
    if not any(left):
        return new
    place = left.index("") if "" in left else 0
    lead = before[place][1].partition(" ")[0] if _PART.match(f" {before[place][1]}") and "" in left else ""
    if _PART.match(f" {new}") or not (new[:1].isupper() or new[:1].isdigit() or before[place][0] == "place"):
        lead = ""
    return " ".join(filter(None, [*left[:place], lead, new, *left[place:]]))


_UNKNOWN = "not known"  # the end of the value after a change without a new value


def with_detail(row: Memory, old: Memory, *, moved: bool = False) -> Memory:
    """*row*, which changes *old*, with the details of *old* that still hold. It is then drawn from both turns.
    *moved*: it may name the thing by a part of its name."""
    return _drawn_from_both(row, _with_parts(_with_relation(row, old), old, moved=moved), old)


def with_swap(row: Memory, before: Iterable[Memory], lost: str) -> Memory:
    """*row*, which puts its value in the place of *lost*, as the first of the facts *before* that can be said
    with this value: "User takes ramipril for their blood pressure". A version behind the name goes with it."""
    value = row.provenance.value
    whole = (
        r"(?:\b(?:an?|the) )?(?:(?-i:[A-Z])[\w-]+ )?" if _ARTICLE.match(value) else ""
    )  # "a Skoda" for "a Ford Fiesta"
    gone = re.compile(rf"{whole}\b{re.escape(lost)}\b(?: v?\d[\w.]*)?", re.IGNORECASE)
    for old in before:
        if old.provenance.ends or negates(old.content) or not gone.search(old.content):
            continue
        subject, attribute, told = (
            gone.sub(lambda _: value, one)
            for one in (old.provenance.subject, old.provenance.attribute, old.provenance.value)
        )
        swapped = row.provenance.replace(subject=subject, attribute=attribute.lower(), value=told)
        content = gone.sub(lambda _: value, old.content)
        return _drawn_from_both(row, replace(row, content=content, provenance=swapped), old)
    return row


_ARTICLE = re.compile(r"(?:an?|the|two|three) ")


def _drawn_from_both(row: Memory, detailed: Memory, old: Memory) -> Memory:
    """*detailed*, with the marks of *row* and *old*; *row* where it is nothing else, or too long."""
    if detailed.content == row.content or len(detailed.content) > LONGEST_FACT:
        return row
    here, there = detailed.provenance, old.provenance
    date_changed = "day" in dict(_parts(row.provenance.value))
    told = resolve_event_time(here.value, row.created_at.date()) if date_changed else there.event_date
    noted = here.replace(
        event_date=told or here.event_date,
        sensitivity=here.sensitivity or there.sensitivity,
        drawn_from=tuple(
            dict.fromkeys(one for one in (*there.drawn_from, there.turn) if one not in {"", here.turn})
        ),
    )
    return with_trust(replace(detailed, provenance=noted), least_trusted((trust_of(row), trust_of(old))))


def _with_relation(row: Memory, old: Memory) -> Memory:
    """*row* about "User's sister Mara", as in *old*, where it says "Mara"."""
    here = row.provenance
    name = row.content[: len(here.subject)]
    whose, found, _ = old.content.partition(f" {name} ")
    if not found or name.casefold() != here.subject or not whose.startswith("User's ") or name.startswith("User"):
        return row
    content = f"{whose} {row.content}"
    return replace(row, content=content, provenance=here.replace(subject=old.provenance.subject))


def _with_parts(row: Memory, old: Memory, *, moved: bool) -> Memory:
    here, there = row.provenance, old.provenance
    wanted, known = (_thing(one.attribute, one.value) for one in (here, there))
    denied = negates(row.content.removesuffix(_UNKNOWN)) != negates(old.content)
    if here.ends or there.ends or denied or not there.value or not here.value or not wanted <= known:
        return row
    value = _update_parts(there.value, here.value, row.content, booked=bool(_EVENTS & known))
    if moved and wanted < known - DEEDS and there.value in old.content:  # "flight to Rome", called "flight"
        attribute = there.attribute.removesuffix(there.value.lower()).strip()
        content = old.content.replace(there.value, value)
        return replace(row, content=content, provenance=here.replace(value=value, attribute=attribute))
    if row.content.endswith(here.value):
        content = f"{row.content.removesuffix(here.value)}{value}"
    elif here.value.endswith(_UNKNOWN) and value != here.value:
        content = f"{row.content} ({value.replace(here.value, '').strip()})"
    else:
        return row
    return replace(row, content=content, provenance=here.replace(value=value))


def _find_moved(fact: Fact, others: Iterable[Hit]) -> Memory | None:
    """The appointment that *fact* moves; None if there are several candidates."""
    if not fact.moved:
        return None
    wanted = _thing(fact.attribute, fact.value)
    found: list[tuple[Memory, bool]] = []
    for other in others:
        named = other.memory.provenance
        if about(named.subject) != about(fact.subject) or named.ends:
            continue
        kind = _thing(named.attribute, named.value)
        if fact.known_only and _measures(fact.value).isdisjoint(_measures(named.value)):
            continue
        named_by_rule = other.memory.source is Source.RULES
        if wanted and (wanted == kind or (wanted < kind and (not named_by_rule or _same_head(fact, named)))):
            found.append((other.memory, wanted == kind))
    if formerly := set(saying(fact.formerly)):
        fits = [len(formerly & set(saying(memory.provenance.value))) for memory, _ in found]
        found = [one for one, fit in zip(found, fits, strict=True) if fit and fit == max(fits)]
    exact = [one for one in found if one[1]]
    chosen = exact or found
    return chosen[0][0] if len(chosen) == 1 else None


def _thing(attribute: str, value: str) -> frozenset[str]:
    """The key of the thing in *attribute*, which may end with the *value*."""
    bare = attribute.removesuffix(value.lower())
    return about(attribute) - set(saying(value)) if bare == attribute else about(bare)


def _measures(value: str) -> frozenset[str]:
    """The sorts of a value's parts by which it can be moved: a time, a sum, or none."""
    return frozenset(sort for kind, _ in _parts(value) if (sort := _MEASURES.get(kind)))


_MEASURES = {"day": "time", "hour": "time", "amount": "sum"}


def _same_head(fact: Fact, named: Provenance) -> bool:
    """Whether "appointment" or "dentist" may mean *named*: a "dentist appointment at noon", and no "appointment
    book"."""
    mine, theirs = (
        tokens(_DEED.sub("", _DETAIL.split(one.attribute.removesuffix(one.value.lower()).strip())[0]))
        for one in (fact, named)
    )
    whole = theirs[: len(mine)] == mine and _OCCASIONS.issuperset(theirs[len(mine) :])
    return whole or theirs[-len(mine) :] == mine


_DEED = re.compile(
    r"^user's | (?:leaves|departs|arrives|starts|begins|ends|expires|takes place|meets|costs|(?:is )?due)$"
)
_DETAIL = re.compile(rf"{_PART.pattern}| (?=(?:to|nach|of|by|a) \S)")
# "the dentist moved me to the 14th" is of an appointment there, "the gym is 42 now" of a membership
_OCCASIONS = frozenset(tokens(LISTS["occasions"]))


def unclear(row: Memory, existing: Iterable[Hit]) -> list[Memory]:
    """*existing* memories close to *row* that rules cannot call unrelated, nearest first."""
    near = [one for one in existing if one.cosine >= FAR and _comparable(one.memory, row)]
    near.sort(key=lambda one: (-one.cosine, one.memory.id))
    return [one.memory for one in near[:MOST_UNCLEAR] if _age(row) >= _age(one.memory)]


def apply_verdicts(fact: Fact, shown: Sequence[Memory], verdicts: Sequence[ConflictVerdict]) -> Change:
    """The change by a model's *verdicts* on *shown*. In any case, the fact is stored or a memory already says it:
    NONE counts only for such a memory, and REPLACE only for a memory about the same subject."""
    pairs = list(zip(shown, verdicts, strict=True))
    same = [memory for memory, verdict in pairs if verdict is ConflictVerdict.NONE and says(memory, fact)]
    if same:
        return Confirm(max(same, key=_age).id)
    gone = [
        memory.id
        for memory, verdict in pairs
        if verdict in {ConflictVerdict.UPDATE, ConflictVerdict.DELETE} and _one_subject(fact, memory)
    ]
    return Replace(tuple(sorted(gone))) if gone else Add()


def says(memory: Memory, fact: Fact) -> bool:
    """Whether *memory* holds every word of *fact*, with equal negation and currency."""
    return (
        set(saying(fact.content)) <= set(saying(memory.content))
        and negates(fact.content) == negates(memory.content)
        and memory.provenance.ends == fact.ends
        and _currencies_agree(fact.content, memory.content)
    )


def _one_subject(fact: Fact, memory: Memory) -> bool:
    subject = memory.provenance.subject
    return not subject or about(subject) == about(fact.subject)


def _comparable(there: Memory, row: Memory) -> bool:
    return (
        there.id != row.id
        and there.source in FACTS.sources
        and there.project == row.project
        and there.owner == row.owner
        and (there.provenance.speaker == row.provenance.speaker or not _of_speakers(there, row))
    )


def _of_speakers(*memories: Memory) -> bool:
    """Whether a memory is about its speaker. In shared memories, "my editor" differs between speakers."""
    return any(memory.provenance.subject.casefold().startswith("user") for memory in memories)


def _age(memory: Memory) -> tuple[float, int, int, str]:
    """Sort key: time said, place in the session, place in the message. Two chats can contradict one
    another within a second; the provenance has the exact time."""
    known = memory.provenance
    whole = (memory.valid_from or memory.created_at).timestamp()
    return whole if known.said is None else known.said, memory.seq, known.ordinal or 0, memory.id


# --- endings -----------------------------------------------------------------------------------------
# Facts ended by a new one: a thing or person is lost or replaced, or an abstention is over. Pure.

# Statements that hold only while a thing or person is there: "drives a Toyota", "is married to Paul".
_HOLDS = re.compile(
    r"(?:User(?:'s [a-z][\w' -]{1,40}?)?|[A-Z]\w{1,30})(?: currently)? (?:has|owns|drives|rides|rents|uses|keeps"
    r"|leases|shares|sails|wears|lives with|takes|drinks|eats|smokes|vapes|plays|sings|learns|studies|teaches|does"
    r"|attends|practi[cs]es|runs|swims|cycles|goes to|works (?:for|at)|volunteers|coaches|belongs to|trains|rows"
    r"|dances|writes for|is (?:married to|engaged to|dating|learning|studying|training for|preparing for|in|on"
    r"|eating|drinking|taking|playing|a member of))\b"
)
_DRIVEN = re.compile(r"User (?:drives|rides|sails) ")
_VEHICLES = frozenset(map(stem, tokens("car van truck bike motorbike motorcycle scooter boat horse camper")))
_PARTNERS = frozenset(map(stem, tokens("wife husband partner spouse fiance fiancee girlfriend boyfriend gf bf")))
_IS_NAMED = re.compile(
    rf"User's (?P<who>(?:(?:{LISTS['which']}) )?(?:{LISTS['relations']}))(?: is)? (?P<name>[A-Z][\w'-]+)\b"
)
_PAST = re.compile(r"\b(?:was|were|died|born|had|used to|(?!named|called|married|retired)[a-z]+ed)\b")


def find_ended(fact: Fact, known: Sequence[Memory], people: PeopleNamed) -> list[Memory]:
    """The *known* memories of the thing or person that the caller has lost. The name and the past of somebody
    dead stay. Empty where several may be meant."""
    if (lead := fact.lost.partition(" "))[0] in {"no", "other"}:
        same = [one for one in known if people.key(one.provenance.subject) == people.key(fact.subject)]
        return _find_over(lead[2], same) if lead[0] == "no" else _find_of_kind(fact, same)
    named = [_IS_NAMED.match(memory.content) for memory in known]
    names = {stem(one["name"]): about(one["who"]) for one in named if one is not None}
    words = about(fact.lost) - about("going doing") or about(fact.lost)
    lost = {one for word in words for one in names.get(word, {word})}  # "Lisa" is "the girlfriend"
    if fact.known_only:
        lost = set(words)
    if "partner" in lost:
        related = [*names.values(), *(about(memory.provenance.subject) for memory in known)]
        lost = {one for who in related for one in who & _PARTNERS} or lost
    others = {name for name, who in names.items() if lost <= who and name not in words}
    by_name = bool(words & names.keys())
    if not lost or (len(others) > 1 and not by_name):
        return []
    known = [memory for memory in known if not (by_name and others & set(saying(memory.content)))]
    gone = [memory for memory in known if _is_about_lost(memory, lost, fact, people)]
    if not gone and lost & _VEHICLES:
        driven = [memory for memory in known if _DRIVEN.match(memory.content)]
        gone = driven if len(driven) == 1 else []
    died = fact.value == "died"
    return [one for one in gone if not one.provenance.ends and not (died and _outlives(one))]


def _is_about_lost(memory: Memory, lost: AbstractSet[str], fact: Fact, people: PeopleNamed) -> bool:
    known = memory.provenance
    same, holds = people.key(known.subject) == people.key(fact.subject), _HOLDS.match(memory.content) is not None
    if fact.known_only:
        held = holds or (not fact.ends and memory.content.startswith("User's "))
        return same and held and lost <= set(saying(memory.content))
    if lost <= about(known.subject) or (same and lost <= about(known.attribute) - HAVING - USER - {stem("name")}):
        return holds or memory.content.startswith("User's ")
    if same and lost & _PARTNERS and known.attribute == "marital state":
        return True
    return same and holds and lost <= set(saying(memory.content))


_DIET = re.compile(rf"\bis (?:an? )?(?:\w+ )?({'|'.join(LISTS['abstains'])})\b")
_ABSTAINED = {diet: frozenset(map(stem, tokens(foods))) for diet, foods in LISTS["abstains"].items()}
_TAKING = about("eat drink have take use do wear play run drive")
_KINDS = [re.compile(rf"\b(?:{things})\b", re.IGNORECASE) for things in LISTS["kinds"].values()]


def _find_over(again: str, known: Sequence[Memory]) -> list[Memory]:
    """The endings, refusals and diets among *known* against doing *again*."""
    words = about(again) - _TAKING or about(again)

    def is_over(memory: Memory) -> bool:
        diet = _DIET.search(memory.content)
        abstains = memory.provenance.ends or negates(memory.content)
        return words <= set(saying(memory.content)) if abstains else bool(diet and words & _ABSTAINED[diet[1]])

    return [memory for memory in known if is_over(memory)]


def _find_of_kind(fact: Fact, known: Sequence[Memory]) -> list[Memory]:
    """The only other thing among *known* of the kind of the new one in *fact*."""
    kind = next((one for one in _KINDS if one.search(fact.value)), None)
    held = [one for one in known if _HOLDS.match(one.content) or one.content.startswith("User's ")]
    found = [one for one in held if kind is not None and kind.search(one.provenance.value)]
    return found if len(found) == 1 else []


def _outlives(memory: Memory) -> bool:
    """Whether *memory* tells a name or the past."""
    named = _IS_NAMED.match(memory.content)
    whole = named is not None and memory.content == named[0]
    return whole or _PAST.search(memory.content) is not None or "birth" in memory.provenance.attribute
