"""Parse remember and forget commands in messages, and the markers of an assistant. Pure.

Rules match whole sentences in the extractor's languages: command words inside a longer sentence are no command.
Quoted, pasted, hypothetical and role-played text is ignored. A sentence that may be a command but matches no rule
is doubtful: rules do nothing, and a model may decide."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import files
from typing import Annotated, Any, Final

import msgspec
from cachetools import LRUCache
from msgspec import Meta

from memory_extproc.errors import PermanentError
from memory_extproc.learn.extract.llm_client import Budget, LlmPrompt, strict_schema
from memory_extproc.learn.extract.statements import keep_meant_text
from memory_extproc.model import Turn
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import CompletionModel
from memory_extproc.settings.paths import MarkersSection
from memory_extproc.text import lazy_re as re
from memory_extproc.text.words import MOST_REMEMBERED, memoize_by_hash, sentences, terms

_MOST = 8  # commands per message
_LONGEST = 400  # characters; a longer sentence is pasted text
_LONGEST_OBJECT = 300  # characters of the text to keep or forget


class Act(StrEnum):
    """Also the label of chat_commands_total, so a value is never renamed."""

    REMEMBER = "remember"
    FORGET = "forget"
    RETRACT = "retract"  # a statement that is no longer true


# By the values of the setting `chat_commands`.
ACTS = {"off": frozenset[Act](), "remember": frozenset({Act.REMEMBER}), "remember_and_forget": frozenset(Act)}


@dataclass(frozen=True, slots=True)
class Command:
    """*what* is the text to keep, forget or retract; empty for RETRACT: the previous statement."""

    act: Act
    what: str = field(default="", repr=False)
    noted: bool = False  # by the assistant


def _any_of(patterns: list[str]) -> re.Pattern[str]:
    return _pattern("|".join(f"(?:{pattern})" for pattern in patterns))


def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.VERBOSE)


class _Table:
    def __init__(self) -> None:
        parsed: dict[str, Any] = tomllib.loads(
            (files(__package__) / "chat_commands.toml").read_text(encoding="utf-8")
        )
        polite = parsed.pop("polite")
        languages = list(parsed.values())
        self.polite = _pattern(rf"^(?:(?:{polite})[\s,!:\uff0c]*)+|(?:[\s,\uff0c]*(?:{polite}))+$")
        self.patterns = [
            (act, _pattern(pattern)) for rules in languages for act in Act for pattern in rules[act.value]
        ]
        self.held = _any_of([pattern for rules in languages for pattern in rules["held"]])
        self.cue = _any_of([rules["cue"] for rules in languages])
        self.never = _any_of([rules["never"] for rules in languages])


_TABLE = _Table()
_ENDS = " \t.!\u3002\uff01"
_ASKED = (
    *("can you", "could you", "would you", "will you", "kannst du", "k\u00f6nntest du", "w\u00fcrdest du"),
    *("peux-tu", "pourrais-tu", "puedes", "podr\u00edas", "\u00bfpuedes", "\u00bfpodr\u00edas"),
)
_MARKS = re.compile(r"^(?:[-*\u2022]\s+|\u00bf|\u00a1)?")
# A further clause after the text to forget is about something else: "my budget, just show me hotels". A name may
# follow: "my ex, Sarah".
_CLAUSE = re.compile(r"[,;\uff0c\uff1b](?!\s*[A-Z\u00c4\u00d6\u00dc]\w*(?:\s[A-Z]\w*)?$)")
_OPENING, _CLOSING = "\u201c\u201e\u00ab\u300c", "\u201d\u00bb\u300d"
# Sets of ours that say "this" about nothing that could be found by it.
_POINTS = frozenset({"it", "that", "this", "them", "him", "her", "me", "das", "es", "ça", "cela", "eso", "esto"})


def commands_of(text: str) -> tuple[Command, ...]:
    """The commands in *text*, a user's message, in order."""
    return () if _is_plain(text) else _read(text)[0]


def doubtful(text: str) -> bool:
    """Whether *text* may tell us to do more than `commands_of` found."""
    return not _is_plain(text) and _read(text)[1]


def forgets(text: str) -> bool:
    """Whether *text* asks for something to be forgotten: then it is not itself remembered."""
    return any(command.act is Act.FORGET for command in commands_of(text))


@memoize_by_hash(MOST_REMEMBERED)
def _is_plain(text: str) -> bool:
    """Whether *text* tells us nothing, not even in doubt. Only this is kept of a text: a command has its words."""
    return _read(text) == ((), False)


def _read(text: str) -> tuple[tuple[Command, ...], bool]:
    found: list[Command] = []
    doubt = False
    for sentence in _strip_quotes(keep_meant_text(text)):
        bare = _bare(sentence)
        command = _command(sentence, bare)
        if command is not None:
            found.append(command)
        elif len(sentence) <= _LONGEST and _TABLE.cue.search(bare):
            doubt = doubt or not _TABLE.never.search(bare if not sentence.endswith("?") else f"{bare}?")
    return tuple(found[:_MOST]), doubt


def _strip_quotes(text: str) -> Iterator[str]:
    """The sentences of *text* that neither touch nor stand in a quotation of several sentences."""
    quoting = False
    for sentence in sentences(text):
        opened = sum(sentence.count(mark) for mark in _OPENING) - sum(sentence.count(mark) for mark in _CLOSING)
        turns = sentence.count('"') % 2 == 1 or opened != 0
        if not quoting and not turns:
            yield sentence
        quoting = quoting is not turns


def _bare(sentence: str) -> str:
    bare = " ".join(_MARKS.sub("", sentence.rstrip("?\uff1f")).replace("\u2019", "'").split()).strip(_ENDS)
    return _TABLE.polite.sub("", bare).strip(f"{_ENDS},\uff0c")


def _command(sentence: str, bare: str) -> Command | None:
    asks = sentence.endswith(("?", "\uff1f")) and not sentence.lower().startswith(_ASKED)
    if asks or len(sentence) > _LONGEST:
        return None
    for act, pattern in _TABLE.patterns:
        matched = pattern.fullmatch(bare)
        if matched is None:
            continue
        groups = matched.groupdict()
        if "still" in groups and groups["still"] is None and " not " in f" {bare.lower()} ":
            continue  # "that's not true" denies a statement and ends nothing
        what = (groups.get("what") or "").strip(f"{_ENDS},:;\"'")[:_LONGEST_OBJECT]
        if act is not Act.RETRACT and (not what or what.casefold() in _POINTS or _is_ambiguous(act, what)):
            continue
        return Command(act, what)
    return None


def _is_ambiguous(act: Act, what: str) -> bool:
    """Whether something else may be meant by it."""
    return _TABLE.held.search(what) is not None or (act is Act.FORGET and _CLAUSE.search(what) is not None)


def marked_commands(answer: str, markers: MarkersSection) -> tuple[Command, ...]:
    """The commands that an assistant itself gives in *answer*. Pure."""
    found: list[tuple[int, Command]] = []
    for act, marker in ((Act.REMEMBER, markers.create), (Act.FORGET, markers.delete)):
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


# A language model classifies doubtful messages. Its answer may only name text of the message.

log = logger(__name__)
PROMPT: Final = "commands-1"
_MOST_ASKED = 4
_SHOWN = 4_000  # characters of a message
_KNOWN = 1_000  # turns of which the answer is kept, should they come again: ids and acts in process


class CommandKind(StrEnum):
    REMEMBER = "remember"
    FORGET = "forget"
    NO_LONGER_TRUE = "no_longer_true"


class OfMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    act: CommandKind
    what: Annotated[str, Meta(max_length=300)]


class Answered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    commands: Annotated[tuple[OfMessage, ...], Meta(max_length=_MOST_ASKED)]


_DECODER = msgspec.json.Decoder(Answered)
_ACTS_OF_ANSWER = {
    CommandKind.REMEMBER: Act.REMEMBER,
    CommandKind.FORGET: Act.FORGET,
    CommandKind.NO_LONGER_TRUE: Act.RETRACT,
}


class LlmCommands:
    """Implements commanded.Doubts."""

    def __init__(self, completes: CompletionModel, budget: Budget, metrics: Metrics) -> None:
        self._asks = LlmPrompt(completes, PROMPT, strict_schema(Answered), budget)
        self._metrics = metrics
        self._nothing: LRUCache[str, None] = LRUCache(_KNOWN)  # ids of turns known to tell us nothing

    async def commands(self, turn: Turn) -> Sequence[Command]:
        """The commands in *turn*; none if the answer is unusable or the token budget is spent. TransientError while
        the model is unavailable."""
        if turn.id in self._nothing:
            return ()
        shown = json.dumps({"user": turn.asked[:_SHOWN]}, ensure_ascii=False)
        try:
            found = await self._asks.answer(turn.owner, shown, _parser(turn.asked))
        except PermanentError as error:
            log.warning("chat_command.undecided", error=type(error).__name__)
            self._metrics.command_doubts.labels("undecided").inc()
            return ()
        self._metrics.command_doubts.labels("command" if found else "none").inc()
        if not found:
            self._nothing[turn.id] = None
        return [Command(_ACTS_OF_ANSWER[one.act], one.what.strip()) for one in found]


def _parser(asked: str) -> Callable[[bytes], Sequence[OfMessage]]:
    said = set(terms(asked)[0])

    def parse_answer(answer: bytes) -> Sequence[OfMessage]:
        found = _DECODER.decode(answer).commands
        for one in found:
            named = set(terms(one.what)[0])
            if not named <= said or not (named or one.act is CommandKind.NO_LONGER_TRUE):
                raise msgspec.ValidationError("in the words of the message - at `$.commands[...].what`")
        return found

    return parse_answer
