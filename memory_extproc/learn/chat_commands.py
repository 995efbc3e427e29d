"""What people tell the assistant to keep or to forget, and what the assistant notes in a syntax of its own. Pure.

Rules of whole sentences, in the languages of the extractor: a sentence that only has such words within it tells
nobody to do anything. What is quoted, pasted, supposed or played is nobody's command.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import files

from memory_extproc.language.sentences import sentences
from memory_extproc.learn.own_words import meant

_MOST = 8  # commands taken from one message
_LONGEST = 400  # characters of a sentence; a longer one is a text
_LONGEST_OBJECT = 300  # characters of what is to be kept or forgotten


class Act(StrEnum):
    """Also the label of chat_commands_total, so a value is never renamed."""

    REMEMBER = "remember"
    FORGET = "forget"
    RETRACT = "retract"  # what holds no longer


class Obeyed(StrEnum):
    """What `chat_commands` may be set to."""

    OFF = "off"
    REMEMBER = "remember"
    REMEMBER_AND_FORGET = "remember_and_forget"

    @property
    def acts(self) -> frozenset[Act]:
        return _ACTS[self]


_ACTS = {
    Obeyed.OFF: frozenset[Act](),
    Obeyed.REMEMBER: frozenset({Act.REMEMBER}),
    Obeyed.REMEMBER_AND_FORGET: frozenset(Act),
}


@dataclass(frozen=True, slots=True)
class Command:
    """*what* is to be kept or forgotten, or holds no longer; empty for RETRACT: what was spoken of before."""

    act: Act
    what: str = field(default="", repr=False)
    noted: bool = False  # by the assistant


def _table() -> tuple[re.Pattern[str], list[tuple[Act, re.Pattern[str]]]]:
    parsed = tomllib.loads((files(__package__) / "chat_commands.toml").read_text(encoding="utf-8"))
    polite = parsed.pop("polite")
    patterns = [
        (act, re.compile(pattern, re.IGNORECASE | re.VERBOSE))
        for rules in parsed.values()
        for act in Act
        for pattern in rules[act.value]
    ]
    around = re.compile(rf"^(?:{polite}[\s,!:\uff0c]*)+|(?:[\s,\uff0c]*{polite})+$", re.IGNORECASE | re.VERBOSE)
    return around, patterns


_POLITE, _PATTERNS = _table()
_ENDS = " \t.!\u3002\uff01"
_ASKED = ("can you", "could you", "would you", "will you", "kannst du", "peux-tu", "puedes")
_MARKS = re.compile(r"^(?:[-*\u2022]\s+)?")
# Sets of ours that say "this" about nothing that could be found by it.
_POINTS = frozenset({"it", "that", "this", "them", "him", "her", "me", "das", "es", "ça", "cela", "eso", "esto"})


def commands_of(text: str) -> tuple[Command, ...]:
    """What *text*, a person's message, tells us to do, in its order."""
    found: list[Command] = []
    for sentence in sentences(meant(text)):
        if sentence.endswith("?") and not sentence.lower().startswith(_ASKED):
            continue
        command = _command(sentence.rstrip("?"))
        if command is not None:
            found.append(command)
    return tuple(found[:_MOST])


def _command(sentence: str) -> Command | None:
    if len(sentence) > _LONGEST:
        return None
    bare = " ".join(_MARKS.sub("", sentence).replace("\u2019", "'").split()).strip(_ENDS)
    bare = _POLITE.sub("", bare).strip(f"{_ENDS},\uff0c")
    for act, pattern in _PATTERNS:
        matched = pattern.fullmatch(bare)
        if matched is None:
            continue
        groups = matched.groupdict()
        if "still" in groups and groups["still"] is None and " not " in f" {bare.lower()} ":
            continue  # "that's not true" denies what was said and ends nothing
        what = (groups.get("what") or "").strip(f"{_ENDS},:;\"'")[:_LONGEST_OBJECT]
        if act is not Act.RETRACT and (not what or what.casefold() in _POINTS):
            continue
        return Command(act, what)
    return None


def forgets(text: str) -> bool:
    """Whether *text* asks for something to be forgotten: then it is not itself remembered."""
    return any(command.act is Act.FORGET for command in commands_of(text))


@dataclass(frozen=True, slots=True)
class Markers:
    """What the assistant may write to have something remembered or forgotten: texts with `{text}` for what; empty:
    nothing. Pure."""

    create: str = ""
    delete: str = ""

    def commands_of(self, answer: str) -> tuple[Command, ...]:
        found: list[tuple[int, Command]] = []
        for act, marker in ((Act.REMEMBER, self.create), (Act.FORGET, self.delete)):
            if not marker:
                continue
            before, _, behind = marker.partition("{text}")
            pattern = re.compile(rf"{re.escape(before)}([^\n]{{2,{_LONGEST_OBJECT}}}?){re.escape(behind)}")
            found += [
                (one.start(), Command(act, what, noted=True))
                for one in pattern.finditer(answer)
                if (what := one[1].strip())
            ]
        return tuple(command for _, command in sorted(found, key=lambda pair: pair[0]))[:_MOST]
