"""Facts by rule, with no model: statements that people make about themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from operator import ge
from typing import Any

from cachetools import LRUCache

from memory_extproc.learn.extract.asides import AN
from memory_extproc.learn.extract.clauses import (
    BY_NAME,
    LISTS,
    Begins,
    People,
    begins,
    begins_with_person,
    fill_in,
    is_of_somebody_known,
)
from memory_extproc.learn.extract.extractor import LONGEST_FACT, NAME, Fact, is_well_formed, put_name_right
from memory_extproc.learn.extract.statements import (
    AS_SAID,
    drop_any_more,
    ends,
    find_denial,
    find_endings,
    first_person_statements,
    keep_meant_text,
    may_tell,
    no_longer,
    procedures,
    read_renaming,
    resolve_event_time,
    split_time,
    stated_in_answer,
)
from memory_extproc.learn.extract.verbs import agree_in_number, conjugate, refuse, tell_of_them, third_person
from memory_extproc.model import MemoryType, Owner, Source, Turn
from memory_extproc.text import lazy_re as re
from memory_extproc.text.persons import ValueKind, kinds
from memory_extproc.text.words import MONTHS, content_words, fold, lexicon_of, sentences, tokens

_TRAILING = re.compile(
    r"(?:[\s,]+(?:now|right now|at the moment|currently|these days|nowadays|too|as well|btw|by the way|though"
    r"|actually|instead"
    r"|originally|lately|please|by now|already|again|anyway|so yeah|last (?:week|month|year|summer)|recently"
    r"|(?:just )?me|for everything|a lot|so much|very much|a ton|the most)|,\s+so\s.*"
    r"|[\s,]+so\s+(?:no|nothing|please|avoid|keep|something|anything|it|that|this|not|maybe|ideally)\b.*)+$",
    re.IGNORECASE,
)
_DANGLES = re.compile(r"\b(?:since|from|until|till|for|in|on|at|by|of|with|to)$", re.IGNORECASE)
_LEADING = re.compile(r"^(?:called|named|now|currently|about|around|roughly|exactly)\s+", re.IGNORECASE)
_NOT_THAT = re.compile(r",? not [^,]{1,30}$", re.IGNORECASE)  # "Hannah, not Anna"
_MINE = re.compile(r"^(?:my|our)\s+", re.IGNORECASE)
_BLANKS = re.compile(r"\s+")
_BEGINNINGS = (
    ("{who}", Begins.I | Begins.MY),
    ("(?:i|we)", Begins.I),
    ("(?:i'm|i am", Begins.I | Begins.OTHER),
    ("(?:my|our) ", Begins.MY),
    ("my ", Begins.MY),
    ("answered ", Begins.OTHER),
)


@dataclass(frozen=True, slots=True)
class FactRule:
    """A pattern of first-person statements and the fact it makes."""

    pattern: re.Pattern[str]
    content: str
    attribute: str
    checks: tuple[Callable[[Captured], bool], ...]
    type: MemoryType
    importance: float
    value: str  # of the attribute; empty: the words that were caught
    exclusive: bool
    ends: bool  # says that something stopped being so
    known_only: bool
    lost: str  # a thing or person no longer there
    swaps: bool  # the value takes the place of the lost thing
    update: bool  # says that something changed, so that a bare "my budget" means the one spoken of before
    words: Mapping[str, str]  # translations of the group "word" into the group "thing"
    begins: Begins
    of_person: bool  # of the speaker or their people
    needs: tuple[bool, bool]  # a word of endings, a word of changes, see may_tell()
    spoken_of: bool  # names no thing: it is the last that was spoken of and can have such a value


_EARLIER = 256  # turns whose facts are held for the turns that follow them


class RulesExtractor:
    """Needs nothing but the words. Never raises: a clause that no rule understands gives no fact."""

    name = "rules"

    def __init__(self) -> None:
        self._version: str = LISTS["version"]
        self._checks, self._rules = _compile_rules()
        self._earlier: LRUCache[tuple[Owner, str, str], list[Fact]] = LRUCache(_EARLIER)
        self._of_things = {
            may: tuple(rule for rule in self._rules[Begins.MY, *may] if not rule.of_person)
            for may in product((True, False), repeat=2)
        }

    async def extract(self, turns: Sequence[Turn], *, earlier: Sequence[Turn] = ()) -> list[Fact]:
        """As Extracts.extract; about 0.3 ms a turn. Only the caller's own words are read, and of the answers only
        the question that the caller answered."""
        known = [fact for turn in earlier for fact in self._of_earlier(turn)]
        facts: list[Fact] = []
        shown = [*earlier, *turns]
        for at, turn in enumerate(turns, len(earlier)):
            facts.extend(self._of_turn(turn, [*known, *facts], shown[max(0, at - _REACH) : at]))
        return facts

    def _of_earlier(self, turn: Turn) -> list[Fact]:
        """The facts of *turn* by itself, read once for the three turns that it is shown with."""
        key = (turn.owner, turn.id, turn.asked)
        if (found := self._earlier.get(key)) is None:
            found = self._earlier[key] = self._of_turn(turn, (), ())
        return found

    def _of_turn(self, turn: Turn, known: Sequence[Fact], before: Sequence[Turn]) -> list[Fact]:
        name, former = read_renaming(turn.asked)
        if renamed := put_name_right(turn.id, name, former, known) if name else []:
            return renamed
        found = [self._make_procedure(turn, *made) for made in procedures(turn.asked)]
        taken, people = " ".join(fold(fact.value) for fact in found), _people(known, before)
        stated = stated_in_answer(before[-1].answered if before else "", turn.asked, people)
        people.note_each(stated)
        stated += first_person_statements(turn.asked, people)
        for clause in stated:
            if (taken and fold(clause) in taken) or (clause.startswith(AS_SAID) and _says_again(clause, found)):
                continue
            fact = self._match_statement(turn, clause, [*known, *found])
            found += [fact] if fact is not None else []
        unique = {
            (fact.subject, fact.attribute, fact.value): fact
            for fact in found
            if len(fact.content) <= LONGEST_FACT and is_well_formed(fact)
        }
        moved = {fact.content.casefold(): fact for fact in unique.values() if fact.moved}
        return list(({fact.content.casefold(): fact for fact in unique.values()} | moved).values())

    def _match_statement(self, turn: Turn, clause: str, known: Sequence[Fact]) -> Fact | None:
        text = _BLANKS.sub(" ", clause).strip()
        ending = may_tell(text)[0]
        bare, when = split_time(text) if ending else (text, "")
        matched = self._match(bare, known)
        if matched is not None and (matched[0].ends or matched[0].lost):
            return _since(self._fact(turn, matched, known, text), when)
        matched = self._match(text, known) if when else matched
        if matched is not None and not ends(text):
            return self._fact(turn, matched, known, text)
        if ending and (ended := self._match_ending(bare, known)) is not None:
            fact = self._fact(turn, ended, known, text)
            return _since(fact if ended[0].ends else _end_fact(fact, ended[1]), when)
        as_denied, denies = find_denial(text)
        if as_denied and (matched := self._match(as_denied, known)) is not None:
            fact = self._fact(turn, matched, known, text)
            who = _who(matched[1].groups.get("rel", "").strip())
            return replace(fact, content=tell_of_them(f"{who} {denies}"), exclusive=False, ends=True)
        if (now := drop_any_more(text)) and (matched := self._match(now, known)) is not None:
            return self._fact(turn, matched, known, now)
        return None

    def _match_ending(self, clause: str, known: Sequence[Fact]) -> tuple[FactRule, Captured] | None:
        """The rule for the state that *clause* ends, else a rule for the ending itself."""
        for as_it_was in find_endings(clause):
            if (matched := self._match(as_it_was, known)) is not None and not matched[0].update:
                return matched
        matched = self._match(f"{AS_SAID}{clause}", known)
        return matched if matched is not None and matched[0].ends else None

    def _match(self, clause: str, known: Sequence[Fact]) -> tuple[FactRule, Captured] | None:
        start = begins(clause)
        of_thing = start is Begins.MY and not begins_with_person(clause)
        may = (True, True) if start is Begins.FOREIGN else may_tell(clause)
        found: tuple[FactRule, Captured] | None = None
        for rule in self._of_things[may] if of_thing else self._rules[start, *may]:
            matched = rule.pattern.fullmatch(clause)
            if matched is None:
                continue
            caught = _capture(rule, matched)
            if rule.spoken_of:
                caught.groups["thing"] = _last_spoken_of(caught.value, known)
            if "{does_value}" in rule.content and (_NO_VERB.match(caught.value) or caught.value[:1].isupper()):
                continue  # "my cousin on Saturdays" has no verb, and in "my son Max is" a name stands in its place
            if all(check(caught) for check in rule.checks):
                if found is not None and not (rule.known_only and rule.update):  # another rule reads it too
                    return (rule, caught) if rule.ends else (replace(found[0], known_only=False), found[1])
                if not rule.known_only:
                    return rule, caught
                found = found or (rule, caught)
        return found

    def _fact(self, turn: Turn, matched: tuple[FactRule, Captured], known: Sequence[Fact], clause: str) -> Fact:
        rule, caught = matched
        groups = dict(caught.groups)
        if rule.update and not groups.get("object"):
            groups["thing"] = _spoken_of(groups.get("thing") or groups.pop("done", ""), known, turn.injected)
        words = _words(groups, caught.value, self._checks)
        said = _ARTICLE.sub("as an ", _BLANKS.sub(" ", rule.content.format_map(words)).strip())
        content = agree_in_number(said, words.get("rel") or words.get("thing", ""))
        attribute = rule.attribute.format_map(words)
        event = self._checks.is_event(groups.get("thing", ""))
        dated = kind_of(caught.value.replace("days", "day")) is ValueKind.DAY
        update = rule.update or ((event or dated) and _NOW.search(clause) is not None)
        several = event and not update
        return Fact(
            content=content,
            type=rule.type,
            subject=_ONLY_ONE.sub(r"\1", words["Who"].lower()),
            attribute=_BLANKS.sub(" ", f"{attribute} {caught.value}" if several else attribute).strip().lower(),
            value=rule.value.format_map(words) or caught.value or words.get("state") or words.get("deed", ""),
            turn_id=turn.id,
            source=Source.RULES,
            version=self._version,
            exclusive=rule.exclusive and not several,
            ends=rule.ends,
            moved=update and (rule.known_only or event or dated),
            formerly=groups.get("formerly", "") if rule.update else "",
            known_only=rule.known_only or is_of_somebody_known(clause),
            lost=_BLANKS.sub(" ", rule.lost.format_map(words)).strip(),
            swaps=rule.swaps,
            importance=rule.importance,
            confidence=0.8,
            happens=resolve_event_time(caught.value if rule.update else clause, turn.at.date()),
        )

    def _make_procedure(self, turn: Turn, aim: str, steps: str) -> Fact:
        return Fact(
            content=f"To {aim}: {steps}",
            type=MemoryType.PROCEDURAL,
            subject="user",
            attribute=f"how to {aim}".lower(),
            value=steps,
            turn_id=turn.id,
            source=Source.RULES,
            version=self._version,
            exclusive=True,
            importance=0.7,
            confidence=0.8,
        )


_NOW = re.compile(LISTS["grammar"]["anew"], re.IGNORECASE)


def _says_again(clause: str, found: Sequence[Fact]) -> bool:
    """Whether *clause* has the value of a fact that a rule *found* before."""
    return any(fact.value and clause.endswith(f" {fact.value}") for fact in found)


def _since(fact: Fact, when: str) -> Fact:
    """*fact* of an ending, with the time or the reason of it."""
    if not when:
        return fact
    told = tell_of_them(when)
    if "no longer" in fact.content:
        told = f"({told})" if told.startswith("since") else f"(ended {told})"
    return replace(fact, content=f"{fact.content} {told}")


def _end_fact(fact: Fact, caught: Captured) -> Fact:
    """*fact*, which no longer holds."""
    who = _who(caught.groups.get("rel", "").strip())
    return replace(fact, content=no_longer(fact.content, who), exclusive=False, ends=True)


@cache  # shared by the extractors of a process
def _compile_rules() -> tuple[Checks, Mapping[tuple[Begins | bool, ...], Sequence[FactRule]]]:
    """The rules by the beginning of a clause, as most clauses begin like no rule, and by the words in it."""
    checks = Checks(LISTS)
    rules = [compile_rule(entry, LISTS, checks) for entry in LISTS["rule"]]
    return checks, {
        (start, *may): tuple(one for one in rules if one.begins & start and all(map(ge, may, one.needs)))
        for start in (Begins.I, Begins.MY, Begins.FOREIGN, Begins.OTHER)
        for may in product((True, False), repeat=2)
    }


_AUX = r"(?P<aux>'m|'re|'s|'ve| am| are| is| have been| has been|'ve been| have| has| will be| will|'ll be|'ll)?"


def compile_rule(entry: Mapping[str, Any], lists: Mapping[str, Any], checks: Checks) -> FactRule:
    # "my daughter", "my older brother", "my daughter Mia"
    relations = lists["relations"]
    one = r"(?-i:[A-Z](?:[\w-]|'(?!s\b))*\w)"
    person = (
        rf"(?:(?:(?:{relations})'s )?(?:(?:{lists['which']}) )?(?:{relations})(?: (?-i:[A-Z]\w+))?"
        rf"|{BY_NAME}{one}(?: {one})?)"
    )
    named = {f"{{{name}}}": f"(?:{words})" for name, words in lists["words"].items()} | {
        "{who}": rf"(?:i|we|(?:my|our) (?P<rel>{person}))",
        "{person}": person,
        "{aux}": _AUX,
        "{be}": r"(?:'m|'re|'s| am| are| is)",
        "{rel}": rf"(?:\w+ (?!(?-i:Professor|Doctor|Coach)\b))?(?:{relations})",  # not "boss Professor"
        "{relations}": relations,
        "{which}": f"(?:{lists['which']})",
        "{adverbs}": f"(?:{lists['grammar']['adverbs']})",
        "{value}": "(?P<value>.+?)",
    }
    pattern = entry["pattern"]
    for name, meaning in named.items():
        pattern = pattern.replace(name, meaning)
    return FactRule(
        pattern=re.compile(pattern, re.IGNORECASE),
        content=entry["content"],
        attribute=entry.get("attribute", entry["content"].removeprefix("{Who} ")),
        checks=tuple(checks.by_name[name] for name in entry.get("check", ("plain",))),
        type=MemoryType(entry.get("type", MemoryType.SEMANTIC)),
        importance=entry.get("importance", 0.6),
        value=entry.get("value", ""),
        exclusive=entry.get("exclusive", False),
        ends=entry.get("ends", False),
        known_only=entry.get("known_only", False),
        lost=entry.get("lost", ""),
        swaps=entry.get("swaps", False),
        update=entry.get("update", False),
        words=lists["provided"] if entry.get("words") == "provided" else entry.get("words", {}),
        begins=Begins.FOREIGN
        if "language" in entry
        else next(
            (start for words, start in _BEGINNINGS if entry["pattern"].startswith(words)),
            Begins.I | Begins.MY | Begins.OTHER,
        ),
        of_person=entry["pattern"].startswith("{who}"),
        needs=(
            "language" not in entry and bool(entry.get("ends") or entry.get("lost")),
            "language" not in entry and entry.get("update", False),
        ),
        spoken_of=entry.get("spoken_of", False),
    )


def _capture(rule: FactRule, matched: re.Match[str]) -> Captured:
    groups = {name: text or "" for name, text in matched.groupdict().items()}
    whole = groups.get("value", "")
    bare = whole if _DANGLES.search(cut := _TRAILING.sub("", whole)) else cut
    bare = _NOT_THAT.sub("", bare) if rule.exclusive else bare
    value = tell_of_them(_LEADING.sub("", bare.strip(" ,.!;:\"'")))
    if "thing" in groups and matched.start("thing") == 0 and groups["thing"].partition(" ")[0][1:].islower():
        groups["thing"] = groups["thing"][0].lower() + groups["thing"][1:]  # the sentence begins with it
    if "word" in groups:
        groups["thing"] = rule.words.get(fold(groups["word"]), groups["word"])
    return Captured(value, groups)


# "User's wife Anna" is "User's wife": there is one
_ONLY_ONE = re.compile(r"^(user's (?:wife|husband|partner|spouse|girlfriend|boyfriend|mother|father|mum|dad)) \w.*")


def _who(person: str) -> str:
    return (person.removeprefix(BY_NAME) if BY_NAME in person else f"User's {person}") if person else "User"


def _words(groups: Mapping[str, str], value: str, checks: Checks) -> dict[str, str]:
    """Everything a rule's content and attribute may name."""
    words = {name: tell_of_them(text.strip()) for name, text in groups.items()}
    aim = _MINE.sub("the ", groups.get("aim") or groups.get("trip") or "")
    rest, given = groups.get("rest", ""), groups.get("object", "")
    return words | {
        "value": value,
        "Who": _who(words.get("rel", "")),
        "rest": rest,
        "aim": f" for {aim if aim.startswith(('the ', 'a ')) or not groups.get('trip') else 'the ' + aim}"
        if aim
        else "",
        "copula": words.get("copula") or "is",
        "object": f" {given.strip()}" if given else "",
        "to": f" to {value}" if value else "",
        "head": checks.head(value),
        "sort": "date" if any(character.isdigit() for character in value) else "place",
        "does": third_person(words.get("deed", "")),
        "does_value": third_person(value),
        "verb": conjugate(words.get("aux", ""), words.get("deed", "")),
        "without": refuse(fold(words.get("verb", "")), words.get("deed", "")),
    }


_NO_VERB = re.compile(
    r"(?:on|in|at|to|of|for|from|with|without|by|about|after|before|until|since|during|over|under|near|every|each|and|or"
    r"|but|the|an?|not|no|all|both|too|also|there|here|this|that)\b",
    re.IGNORECASE,
)
_ARTICLE = re.compile(rf"\bas a (?={AN})")


_OF_PERSON = re.compile(
    rf"User's (?P<relation>{LISTS['relations']})(?: is (?P<name>[A-Z][a-z\u00df-\u00ff]+)$)?", re.IGNORECASE
)
_YOUR_PEOPLE = re.compile(rf"\byour ((?:{LISTS['relations']})(?: [A-Z][a-z\u00df-\u00ff]+)?)\b")
_LAST_WORDS = 200  # characters of the assistant's words that a pronoun may refer to
_REACH = 3  # turns over which a pronoun may reach
_OWN = re.compile(r"^User's (?P<thing>.{2,60}?) (?:is|leaves|arrives|departs) ")


def _spoken_of(thing: str, before: Sequence[Fact], injected: Sequence[str]) -> str:
    """The full name of a bare *thing* after a change, if exactly one thing with that head was mentioned."""
    if " " in thing.strip():
        return thing
    named = [
        found["thing"] for text in [*(fact.content for fact in before), *injected] if (found := _OWN.match(text))
    ]
    fuller = {one for one in named if f" {head_of(one)}".endswith(f" {fold(thing)}")}
    return fuller.pop() if len(fuller) == 1 else thing


def _people(known: Sequence[Fact], before: Sequence[Turn]) -> People:
    """The people named in *known* facts; a pronoun means the last person in the turns *before*."""
    named: dict[str, str] = {}
    people: list[str] = []
    known_names: set[str] = set()
    for fact in known:
        relation = _OF_PERSON.match(fact.content)
        if relation is not None:
            if before and fact.turn_id == before[-1].id:
                people.append(f"my {relation['relation']}")
            if relation["name"]:
                named[relation["name"]] = relation["relation"]
            known_names.update(NAME.findall(fact.value))
    found = People(named, known_names)
    for turn in before:
        found.note_each(sentences(keep_meant_text(turn.asked)))
    found.note_each(people)
    if before and (asked := _YOUR_PEOPLE.findall(before[-1].answered[-_LAST_WORDS:])):
        found.note(f"my {asked[-1]}")
    return found


def _last_spoken_of(value: str, before: Sequence[Fact]) -> str:
    """The thing of the caller's that was spoken of last and has a value of the kind of *value*; empty: none."""
    for fact in reversed(before):
        own = _OWN.match(fact.content)
        if own is not None and _is_like(fact.value, value) and not fact.ends:
            return own["thing"]
    return ""


def _is_like(old: str, new: str) -> bool:
    """Whether *new* can take the place of *old*: a short value of the same kind, counted in the same things."""
    if kind_of(old) is not kind_of(new) or len(tokens(old)) > _LONGEST_CHANGED:
        return False
    units = " ".join(word for word in new.split() if not any(map(str.isdigit, word)))
    return kind_of(new) is not ValueKind.NUMBER or set(content_words(units)) <= set(content_words(old))


# --- rule checks -------------------------------------------------------------------------------------
# Conditions on the captured words, by the names that rules.toml gives them. Pure.

_LONGEST_CHANGED = 6  # words of a value that "make it ..." changes
_LONGEST_VALUE = 16  # words
_LONGEST_NAME = 3
_IDLE = re.compile(
    r"(?:it|for|this|that|these|those|them|him|her|you|your|yours|here|there|something|anything|nothing|everything"
    r"|how|what|when|why|where|whether|who|being|having|to\s+(?:know|see|hear|say|think|ask|thank|be)|not|so|such|one|ones|all|both|some|any|around"
    r"|with|along|too|each|the\s+(?:idea|way|fact|option|one"
    r"|first|second|third|last|latter|former|other|answer|suggestion|result|sound|look|feel|part|new|plan|above"
    r"|following|same|code|design))\b"
)
_ABOUT_OTHERS = re.compile(r"\b(?:you|your|yours|u|ur)\b")
_NO_THING = re.compile(  # no name of a thing, but a clause
    r"\b(?:i|i'm|i've|me|my|mine|myself|you|your|yours|is|are|was|were|am|be|been|got|gets|has|have|had|will|would|can|could|do|does|did"
    r"|says|said|that|who|which|if)\b"
)
_A_CLAUSE = re.compile(r"\b(?:is|are|was|were|has|have|had|just|will|would|can't|can|got)\b")
_FIRST_OF_SEVERAL = re.compile(r",|\s(?:and|but)\s")
_DATE = re.compile(
    rf"\b(?:{MONTHS})\b|\b(?:mon|tues|wednes|thurs|fri|satur|sun)days?\b"
    r"|\b(?:montag|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag|lundi|mardi|mercredi|jeudi|vendredi|samedi"
    r"|dimanche|lunes|martes|mi\u00e9rcoles|jueves|viernes|s\u00e1bado|domingo)\b|\b(?:tomorrow|tonight|next|noon|midnight|christmas|easter|summer|winter|spring|autumn|fall)\b|\d"
)
_SPELLED_NUMBER = re.compile(LISTS["grammar"]["spelled_numbers"])
_NOT_FOR_LONG = re.compile(
    r"\b(?:today|tonight|tomorrow|now|yet|right\s+now|this\s+(?:morning|evening|week|time|one))\b"
)
_AGE = re.compile(r"\d{1,3}(?:\s+(?:years?|yrs?|months?)(?:\s+old)?|\s*yo)?$")
_AGENT = re.compile(LISTS["grammar"]["agents"])
_OCCUPATION_ENDINGS = ("er", "or", "ist", "ian", "ant", "ect", "smith", "wright", "man", "woman", "nurse", "eer")
_NOUN_PHRASE = re.compile(
    r"^(.*?)(?:(?:\s+(?:at|for|in|with|from|on|by|who|working|based|specializing|of|and|turned)\b|,).*)?$"
)
_PREPOSITION = re.compile(
    r"\s+(?:for|of|to|in|at|on|with|from|für|nach|beim?|mit|zu[mr]|pour|chez|avec|à|en|para|con)\s+"
)
_NOT_NAMES = frozenset(tokens(LISTS["grammar"]["not_names"]))


@dataclass(frozen=True, slots=True)
class Captured:
    """The words a rule caught, as written."""

    value: str
    groups: dict[str, str]

    @property
    def folded(self) -> str:
        return fold(self.value)


def kind_of(value: str) -> ValueKind | None:
    """A date, even where it has a number in it; a number; a name; or nothing of the kind."""
    found = kinds(value)
    return next((kind for kind in ValueKind if kind in found), None)


class Checks:
    """The checks that rules name, over the word lists of the rules file."""

    def __init__(self, lists: Mapping[str, Any]) -> None:
        self._lists = lists
        words = lists["words"]
        self._traits = _whole(words["traits"])
        self._trait = _whole(rf"(?:{words['traits']})s?(?: (?:in|on) (?:my|his|her|their|one|both|the) .+)?")
        self._nationalities = _whole(words["nationalities"])
        self._occupations = frozenset(words["occupations"].split("|"))
        self._not_occupations = frozenset(words["not_occupations"].split("|"))
        self._possession = re.compile(
            rf"(?:(?:an?|the|one|two|three|four|five|six|seven|\d+|twin|several|many"
            rf"|type\s+[12])\s+)?(?:[\w'-]+\s+){{0,3}}?(?P<head>{words['possessions']})"
            r"(?:\s+(?:and|from|in|at|on|with|of|who|that)\b.*|,.*)?"
        )
        self._undertaking = re.compile(
            rf"(?P<named>(?:(?!(?:in|on|for|of|the|an?|to|with|from|at)\b)[\w-]+\s+){{0,4}}?)(?:{words['undertakings']})"
            r"(?P<told>,?\s+(?:that|which|about|called|named|set|for|with|to|on|in|of|using|where)\b.*)?"
        )
        self._habits = re.compile(rf"(?:{words['habits']})s?\b")
        self._lasting = _whole(lists["lasting"])
        self._things = _whole(lists["things"])
        self._passing = _whole(lists["passing"])
        self._occasions = _whole(words["occasions"])
        self._events = frozenset(lists["events"].split("|"))
        self._secret = re.compile(rf"\b(?:{lists['secret']})\b")
        self._relation = _whole(rf"(?:\w+\s+)?(?:{lists['relations']})")

    @cached_property
    def by_name(self) -> Mapping[str, Callable[[Captured], bool]]:
        return {
            "plain": self.plain,
            "not idle": lambda caught: not _IDLE.match(caught.folded),
            "not technical": self._not_technical,
            "name": self._name,
            "titled": self._has_title,
            "titled all": self._titled_all,
            "titled place": self._titled_place,
            "trait": lambda caught: self._trait.fullmatch(_FIRST_OF_SEVERAL.split(caught.folded)[0]) is not None,
            "trade": self._trade,
            "state": lambda caught: not caught.value or self._has_title(caught),
            "age": lambda caught: _AGE.match(caught.folded) is not None,
            "counted sum": lambda caught: self.plain(caught) and _hard(caught.value),
            "dated": lambda caught: self.plain(caught) and _DATE.search(caught.folded) is not None,
            "deed": lambda caught: self.plain(caught) and len(content_words(caught.value)) > 0,
            "occupation": self._occupation,
            "undertaking": self._of_some_size,
            "nationality": lambda caught: self._nationalities.fullmatch(caught.folded) is not None,
            "possession": lambda caught: self._possession.fullmatch(caught.folded) is not None,
            "habit": lambda caught: self.plain(caught) and self._habits.match(caught.folded) is not None,
            "without": self._without,
            "own thing": self._own_thing,
            "asked thing": self._asked_thing,
            **{name: self._by_patterns(entry) for name, entry in self._lists["checks"].items()},
        }

    def _by_patterns(self, entry: Mapping[str, Any]) -> Callable[[Captured], bool]:
        """Make a check that looks for patterns: every pattern it *needs*, *any* of some, and none it *lacks*."""
        parts = {**self._lists["words"], **{name: self._lists[name] for name in ("events", "passing")}}
        needs, any_of, lacks = (
            [re.compile(fill_in(self._lists["patterns"][name], parts)) for name in entry.get(kind, ())]
            for kind in ("needs", "any", "lacks")
        )
        of, plain, hard = entry.get("of", "{value}"), entry.get("plain", True), entry.get("hard", False)

        def holds(caught: Captured) -> bool:
            text = fold(of.format_map({"done": "", **caught.groups, "value": caught.value})).strip()
            return (
                (not plain or self.plain(Captured(text, {})))
                and (not hard or _hard(caught.value))
                and all(pattern.search(text) for pattern in needs)
                and (not any_of or any(pattern.search(text) for pattern in any_of))
                and not any(pattern.search(text) for pattern in lacks)
            )

        return holds

    def is_event(self, thing: str) -> bool:
        """Whether people have several of *thing* at a time, each with its own date."""
        *_, last = ["", *head_of(thing).split()]
        return last in self._events

    def head(self, value: str) -> str:
        """The noun that "two big cats" is about; the value itself where none is known."""
        matched = self._possession.fullmatch(fold(value))
        return matched["head"] if matched is not None else value

    def plain(self, caught: Captured) -> bool:
        """Whether the value is a few words and does not address the assistant."""
        words = tokens(caught.value)
        return 0 < len(words) <= _LONGEST_VALUE and _ABOUT_OTHERS.search(caught.folded) is None

    def _not_technical(self, caught: Captured) -> bool:
        *_, last = ["", *_NOUN_PHRASE.sub(r"\1", caught.folded).split()]
        return not self._passing.fullmatch(last) and last not in {"command", "script", "job", "program", "new"}

    def _name(self, caught: Captured) -> bool:
        words = caught.value.split()
        folded = {fold(word) for word in words}
        if not 0 < len(words) <= _LONGEST_NAME or re.match(r".*[\d/]", caught.value):
            return False
        small = lexicon_of(caught.value).stop - {"may", "will", "mark"}
        titled = all(word[0].isupper() for word in words)
        return not folded & _NOT_NAMES and (titled or not folded & small) and self.plain(caught)

    def _has_title(self, caught: Captured) -> bool:
        words = caught.value.split()
        written = all(
            word[:1].isupper() and (word[1:].islower() or (len(word) > 1 and "'" in word) or word.endswith("."))
            for word in words
        )
        return written and self._nationalities.fullmatch(caught.folded) is None and self._name(caught)

    def _titled_all(self, caught: Captured) -> bool:
        """Several names: "Ida and Max"."""
        names = re.sub(r", and | and ", ", ", caught.value).split(", ")
        return all(self._has_title(Captured(name, {})) for name in names)

    def _titled_place(self, caught: Captured) -> bool:
        named = any(word[:1].isupper() for word in caught.value.split())
        return named and self.plain(caught)

    def _occupation(self, caught: Captured) -> bool:
        phrase = _NOUN_PHRASE.sub(r"\1", caught.folded).strip()
        *_, last = ["", *phrase.split()]
        if last in self._not_occupations or self._traits.fullmatch(last) or not self.plain(caught):
            return False
        return phrase in self._occupations or last in self._occupations or last.endswith(_OCCUPATION_ENDINGS)

    def _trade(self, caught: Captured) -> bool:
        """An occupation said without its article, as in "I am teacher of maths"."""
        *_, last = ["", *_NOUN_PHRASE.sub(r"\1", caught.folded).split()]
        return self.plain(caught) and (last in self._occupations or _AGENT.fullmatch(last) is not None)

    def _of_some_size(self, caught: Captured) -> bool:
        """Whether the undertaking is described: "a project" alone tells nothing."""
        matched = self._undertaking.fullmatch(caught.folded)
        return matched is not None and bool(matched["named"] or matched["told"]) and self.plain(caught)

    def _without(self, caught: Captured) -> bool:
        if _NOT_FOR_LONG.search(caught.folded):
            return False
        avoids = fold(caught.groups.get("verb", "")).startswith("avoid")
        return (avoids or bool(caught.groups.get("deed"))) and self.plain(caught) and not _IDLE.match(caught.folded)

    def _asked_thing(self, caught: Captured) -> bool:
        """Whether the assistant asked for a lasting thing that is no secret."""
        thing = fold(caught.groups.get("thing", ""))
        *_, last = ["", *thing.split()]
        asked = not self._secret.search(thing) and not self._passing.fullmatch(last) and not _NO_THING.search(thing)
        return asked and self.plain(caught) and not _IDLE.match(caught.folded)

    def _own_thing(self, caught: Captured) -> bool:
        """Whether "my *thing* is *value*" will still be worth knowing tomorrow."""
        thing = fold(caught.groups.get("thing", ""))
        bare = head_of(thing).removeprefix("new ").removeprefix("current ")
        *_, last = ["", *bare.split()]
        if not thing or self._secret.search(thing) or not self.plain(caught) or _NO_THING.search(thing):
            return False
        dated = (last in self._events or self._occasions.fullmatch(bare)) and kind_of(caught.value) is ValueKind.DAY
        if self._relation.fullmatch(bare) or (not dated and any(map(self._passing.fullmatch, (bare, last)))):
            return False
        if bare.startswith(("favourite ", "favorite ", "preferred ")) or self._lasting.fullmatch(bare):
            return not _IDLE.match(caught.folded)
        if self._things.fullmatch(last):
            return re.match(r"(?:an?|the)\s+\w|\d", caught.folded) is not None
        return _hard(caught.value) and not _IDLE.match(caught.folded) and not _A_CLAUSE.search(caught.folded)


def head_of(thing: str) -> str:
    """Such as "flight" of "flight to Rome", "hawaii budget" of "Hawaii budget for May"; folded."""
    return _PREPOSITION.split(fold(thing), maxsplit=1)[0]


def _whole(alternatives: str) -> re.Pattern[str]:
    return re.compile(f"(?:{alternatives})")


_CALLED = re.compile(r"(?:called|named)\s+\w")


def _hard(value: str) -> bool:
    """Whether *value* is a number, date, address or name rather than a passing state."""
    folded = fold(value)
    if "@" in value or any(found(folded) for found in (_DATE.search, _SPELLED_NUMBER.search, _CALLED.match)):
        return True
    words = value.split()
    return len(words) <= _LONGEST_NAME + 1 and any(word[:1].isupper() for word in words)
