"""Facts by rule, with no model: what a person says of themselves in the first person."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from memory_extproc.language.words import fold, tokens
from memory_extproc.learn.endings import ended, ends, no_longer
from memory_extproc.learn.event_date import resolved
from memory_extproc.learn.extract import LONGEST_FACT, Fact
from memory_extproc.learn.own_words import confirmed, confirms, meant, statements
from memory_extproc.learn.rule_checks import Captured, Checks
from memory_extproc.model import MemoryType, Source, Turn

_TRAILING = re.compile(
    r"(?:[\s,]+(?:now|right now|at the moment|currently|these days|nowadays|too|as well|btw|by the way|though"
    r"|actually"
    r"|originally|please|by now|already|again|anyway|so yeah|last (?:week|month|year|summer)|recently"
    r"|for everything))+$",
    re.IGNORECASE,
)
_LEADING = re.compile(r"^(?:called|named|now|currently|about|around|roughly|exactly)\s+", re.IGNORECASE)
_MINE = re.compile(r"^(?:my|our)\s+", re.IGNORECASE)
_BLANKS = re.compile(r"\s+")
_IRREGULAR = {"have": "has", "go": "goes", "do": "does", "am": "is", "are": "is", "'m": "is", "teach": "teaches",
              "coach": "coaches", "watch": "watches", "founded": "founded", "started": "started"}  # fmt: skip
_PROCEDURE = re.compile(
    r"""(?imx)^[ \t]*(?:(?:remember|note|fyi|btw|by\ the\ way|here)[:,\s]+(?:that\s+)?)?(?:
        (?:how\ )?to\ (?P<verb>[a-z]+(?:\ up|\ down|\ back)?)\ (?P<object>(?!know\b)[^\n:,.!?]{2,80}?)\s*(?::|,
          |\ -|\ \u2013)\s*
          (?P<steps>(?:(?:we|i|you|first|just|always|simply|please|you\ (?:need|have)\ to|we\ (?:need
            |have)\ to)\s*,?\s+)*
            (?:run|use|execute|push|build|install|merge|open|click|start|stop|restart|type|call|go|log|ssh|set
              |create|copy|tag|unplug|press|hold|pull
            |check|wait|turn|fill|send|update|clone|edit|delete|select|mix|add|preheat|heat|put|take|bump|write
            |submit|export|apply|docker|kubectl|make|npm|git|`|1[.)])
            .*(?:\n[ \t]*(?:[-*\u2022]|\d+[.)]).*)*)
      | (?:the\ |our\ |my\ )?(?:steps?|procedure|process|way|recipe|instructions?)\ (?:to
      |for)\ (?P<goal>[^\n:]{2,80}?)\s*(?:is|are)?\s*(?::|\bis\b|\bare\b)\s*(?::\s*)?
          (?P<list>.{8,}(?:\n[ \t]*(?:[-*\u2022]|\d+[.)]).*)*)
    )"""
)
_NO_DEEDS = """
be me my sum summarize summarise answer clarify recap begin start conclude repeat explain put give
say make confirm
"""
_IDLE_AIMS = frozenset(tokens(_NO_DEEDS))
_LONGEST_STEPS = 300  # characters


@dataclass(frozen=True, slots=True)
class Rule:
    """One way of saying something of oneself."""

    pattern: re.Pattern[str]
    content: str
    attribute: str
    checks: tuple[Callable[[Captured], bool], ...]
    type: MemoryType
    importance: float
    value: str  # what the fact says of its attribute; empty: the words that were caught
    exclusive: bool
    ends: bool  # says that something stopped being so
    update: bool  # says that something changed, so that a bare "my budget" means the one spoken of before
    words: Mapping[str, str]  # translations of the group "word" into the group "thing"


class RulesExtractor:
    """Needs nothing but the words. Never raises: what no rule understands is no fact."""

    name = "rules"

    def __init__(self) -> None:
        parsed = tomllib.loads((files(__package__) / "rules.toml").read_text(encoding="utf-8"))
        self._version: str = parsed["version"]
        self._checks = Checks(parsed)
        self._rules = tuple(_rule(entry, parsed["relations"], self._checks) for entry in parsed["rule"])

    async def extract(self, turns: Sequence[Turn], *, earlier: Sequence[Turn] = ()) -> list[Fact]:
        """As Extracts.extract; about 0.3 ms a turn. Only the caller's own words are read, and of the answers only
        the question that the caller said yes to."""
        known: list[Fact] = []
        for turn in earlier:
            known.extend(self._of_turn(turn, known, None))
        facts: list[Fact] = []
        before = earlier[-1] if earlier else None
        for turn in turns:
            facts.extend(self._of_turn(turn, [*known, *facts], before))
            before = turn
        return facts

    def _of_turn(self, turn: Turn, known: Sequence[Fact], before: Turn | None) -> list[Fact]:
        found = [self._made(turn, *made) for made in _procedures(turn.asked)]
        taken = " ".join(fold(fact.value) for fact in found)
        stated = statements(turn.asked)
        if before is not None and confirms(turn.asked):
            stated = [*confirmed(before.answered), *stated]
        for clause in stated:
            if taken and fold(clause) in taken:
                continue
            if (fact := self._stated(turn, clause, [*known, *found])) is not None:
                found.append(fact)
        unique = {
            (fact.subject, fact.attribute, fact.value): fact for fact in found if len(fact.content) <= LONGEST_FACT
        }
        return list(unique.values())

    def _stated(self, turn: Turn, clause: str, known: Sequence[Fact]) -> Fact | None:
        text = _BLANKS.sub(" ", clause).strip()
        if (matched := self._match(text)) is not None and (matched[0].ends or not ends(text)):
            return self._fact(turn, matched, known, text)
        for as_it_was in ended(text):
            if (matched := self._match(as_it_was)) is not None and not matched[0].update:
                return _ended(self._fact(turn, matched, known, text), matched[1])
        return None

    def _match(self, clause: str) -> tuple[Rule, Captured] | None:
        for rule in self._rules:
            matched = rule.pattern.fullmatch(clause)
            if matched is None:
                continue
            caught = _captured(rule, matched)
            if all(check(caught) for check in rule.checks):
                return rule, caught
        return None

    def _fact(self, turn: Turn, matched: tuple[Rule, Captured], known: Sequence[Fact], clause: str) -> Fact:
        rule, caught = matched
        groups = dict(caught.groups)
        if rule.update:
            groups["thing"] = _spoken_of(groups["thing"], known, turn.injected)
        words = _words(groups, caught.value, self._checks)
        content = _BLANKS.sub(" ", rule.content.format_map(words)).strip()
        attribute = rule.attribute.format_map(words)
        event = self._checks.is_event(groups.get("thing", ""))
        several = event and not rule.update
        return Fact(
            content=content,
            type=rule.type,
            subject=words["Who"].lower(),
            attribute=_BLANKS.sub(" ", f"{attribute} {caught.value}" if several else attribute).strip().lower(),
            value=rule.value or caught.value or words.get("state", ""),
            turn_id=turn.id,
            source=Source.RULES,
            version=self._version,
            exclusive=rule.exclusive and not several,
            ends=rule.ends,
            moved=event and rule.update,
            formerly=groups.get("formerly", "") if rule.update else "",
            importance=rule.importance,
            confidence=0.8,
            happens=resolved(caught.value if rule.update else clause, turn.at.date()),
        )

    def _made(self, turn: Turn, aim: str, steps: str) -> Fact:
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


def _ended(fact: Fact, caught: Captured) -> Fact:
    """*fact*, which no longer holds."""
    who = f"User's {caught.groups['rel'].strip()}" if caught.groups.get("rel") else "User"
    return replace(
        fact,
        content=no_longer(fact.content, who),
        exclusive=False,
        ends=True,
    )


def _rule(entry: Mapping[str, Any], relations: str, checks: Checks) -> Rule:
    # "my daughter", "my older brother", "my daughter Mia"
    which = "older|younger|eldest|oldest|youngest|big|little|best|twin|step|late"
    person = rf"(?:(?:{which}) )?(?:{relations})(?: (?-i:[A-Z]\w+))?"
    who = rf"(?:i|we|(?:my|our) (?P<rel>{person}))"
    pattern = entry["pattern"].replace("{who}", who).replace("{rel}", rf"(?:\w+ )?(?:{relations})")
    pattern = pattern.replace("{value}", "(?P<value>.+?)")
    return Rule(
        pattern=re.compile(pattern, re.IGNORECASE),
        content=entry["content"],
        attribute=entry["attribute"],
        checks=tuple(checks.by_name[name] for name in entry["check"]),
        type=MemoryType(entry.get("type", MemoryType.SEMANTIC)),
        importance=entry["importance"],
        value=entry.get("value", ""),
        exclusive=entry.get("exclusive", False),
        ends=entry.get("ends", False),
        update=entry.get("update", False),
        words=entry.get("words", {}),
    )


def _captured(rule: Rule, matched: re.Match[str]) -> Captured:
    groups = {name: text or "" for name, text in matched.groupdict().items()}
    value = _LEADING.sub("", _TRAILING.sub("", groups.get("value", "")).strip(" ,.!;:\"'"))
    if "word" in groups:
        groups["thing"] = rule.words[fold(groups["word"])]
    return Captured(value, groups)


def _words(groups: Mapping[str, str], value: str, checks: Checks) -> dict[str, str]:
    """Everything a rule's content and attribute may name."""
    words = {name: text.strip() for name, text in groups.items()}
    aim = _MINE.sub("the ", groups.get("aim") or groups.get("trip") or "")
    rest, given = groups.get("rest", ""), groups.get("object", "")
    return words | {
        "value": value,
        "Who": f"User's {words['rel']}" if words.get("rel") else "User",
        "rest": rest,
        "aim": f" for {aim if aim.startswith(('the ', 'a ')) or not groups.get('trip') else 'the ' + aim}"
        if aim
        else "",
        "copula": words.get("copula") or "is",
        "object": f" {given.strip()}" if given else "",
        "to": f" to {value}" if value else "",
        "head": checks.head(value),
        "sort": "date" if any(character.isdigit() for character in value) else "place",
        "does": _does(words.get("deed", "")),
        "does_value": _does(value),
        "without": _without(words),
    }


def _does(phrase: str) -> str:
    """*phrase* with its first verb in the third person: "wake up at 5" is "wakes up at 5"."""
    verb, space, rest = phrase.partition(" ")
    lower = verb.lower()
    if lower in _IRREGULAR:
        verb = _IRREGULAR[lower]
    elif lower and not lower.endswith("s"):
        verb = f"{verb[:-1]}ies" if lower.endswith("y") and lower[-2:-1] not in "aeiou" else f"{verb}s"
    return verb + space + rest


def _without(words: Mapping[str, str]) -> str:
    verb, deed = fold(words.get("verb", "")), words.get("deed", "")
    if verb.startswith("avoid"):
        return f"avoids {deed}".strip()
    if verb == "never":
        return f"never {_does(deed)}"
    return f"can't {deed}" if verb.startswith("can") else f"doesn't {deed}"


_OWN = re.compile(r"^User's (?P<thing>.{2,60}?) is ")


def _spoken_of(thing: str, before: Sequence[Fact], injected: Sequence[str]) -> str:
    """The fuller name of a bare *thing* that has changed, if exactly one thing of that head was spoken of."""
    if " " in thing.strip():
        return thing
    named = [
        found["thing"] for text in [*(fact.content for fact in before), *injected] if (found := _OWN.match(text))
    ]
    fuller = {
        one for one in named if fold(one).startswith(f"{fold(thing)} ") or fold(one).endswith(f" {fold(thing)}")
    }
    return fuller.pop() if len(fuller) == 1 else thing


def _procedures(text: str) -> Iterator[tuple[str, str]]:
    """What is done and how, from "To deploy X: run ..." and "The steps to ... are: ..."."""
    for matched in _PROCEDURE.finditer(meant(text)):
        aim = matched["goal"] or f"{matched['verb']} {matched['object']}"
        steps = _BLANKS.sub(" ", matched["list"] or matched["steps"]).strip(" .")
        verb = fold(matched["verb"] or "")
        if verb not in _IDLE_AIMS and not steps.endswith("?") and len(steps) <= _LONGEST_STEPS:
            yield aim.strip(), steps
