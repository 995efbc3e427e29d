"""Facts by rule, with no model: statements that people make about themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from operator import ge
from typing import Any

from cachetools import LRUCache

from memory_extproc.learn.extract.answers import Choice, read_choice, read_renaming, stated_in_answer
from memory_extproc.learn.extract.asides import AN
from memory_extproc.learn.extract.clauses import (
    BY_NAME,
    LISTS,
    Begins,
    People,
    begins,
    begins_with_person,
    is_of_somebody_known,
)
from memory_extproc.learn.extract.extractor import (
    LONGEST_FACT,
    NAME,
    Fact,
    is_well_formed,
    put_name_right,
    resolve_event_time,
)
from memory_extproc.learn.extract.rule_checks import Captured, Checks, head_of, kind_of
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
    split_time,
)
from memory_extproc.learn.extract.verbs import agree_in_number, conjugate, refuse, tell_of_them, third_person
from memory_extproc.model import MemoryType, Owner, Source, Turn
from memory_extproc.text import lazy_re as re
from memory_extproc.text.persons import ValueKind
from memory_extproc.text.words import content_words, fold, sentences, tokens

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


_LONGEST_CHANGED = 6  # words of a value that "make it ..." changes
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
        found = [
            self._note(turn, f"To {aim}: {steps}", f"how to {aim}", steps, type=MemoryType.PROCEDURAL)
            for aim, steps in procedures(turn.asked)
        ]
        taken, people = " ".join(fold(fact.value) for fact in found), _people(known, before)
        stated = stated_in_answer(before[-1].answered if before else "", turn.asked, people)
        people.note_each(stated)
        stated += first_person_statements(turn.asked, people)
        if (choice := read_choice(before, turn.asked)) is not None:
            found.append(self._note_choice(turn, choice))
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

    def _note_choice(self, turn: Turn, choice: Choice) -> Fact:
        content = f'User chose {choice.chosen} ("{choice.request}")'
        fact = self._note(turn, content, f"choice ({choice.request})", choice.chosen, type=MemoryType.SEMANTIC)
        return replace(fact, drawn_from=(choice.turn_id, turn.id))

    def _note(self, turn: Turn, content: str, attribute: str, value: str, *, type: MemoryType) -> Fact:  # noqa: A002 - as Fact names it
        """A fact that no rule of a clause makes."""
        return Fact(
            content=content,
            type=type,
            subject="user",
            attribute=attribute.lower(),
            value=value,
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
