"""The memories that each person may see, worked out beside the sidecar from the words said and asked alone.

Every thing said carries a word of its own that nothing else does. Whatever shows that word to somebody shows them
what was said; a word that must be there and is not was lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto

from tests.properties.front import Person

WORD = re.compile(r"qz[0-9]{5}x")


@dataclass(frozen=True)
class Project:
    """As the holder of what its members share."""

    tenant: str
    name: str


Holder = Person | Project


class Fate(Enum):
    KEPT = auto()  # it was accepted: it must be there
    MAYBE = auto()  # it may be there: whether it was accepted is not known, or something near it went
    SOFT = auto()  # forgotten in a chat, or past its time: nothing may recall it
    GONE = auto()  # nothing may show it, ever


@dataclass
class Copy:
    """One word as one holder has it."""

    fate: Fate
    said: datetime
    slot: str = ""  # what the sentence is about: a later one of the same slot takes its place
    sessions: set[str] = field(default_factory=set)
    projects: set[str] = field(default_factory=set)
    turns: int = 0  # in which it stands; 0: it came over the API

    def weaken(self) -> None:
        if self.fate is Fate.KEPT:
            self.fate = Fate.MAYBE


class BrokenError(AssertionError):
    """A promise was."""


class Known:
    def __init__(self) -> None:
        self._words = 0
        self.resent: set[str] = set()  # by their client, in the name of another holder
        self.copies: dict[Holder, dict[str, Copy]] = {}

    def word(self) -> str:
        self._words += 1
        return f"qz{self._words:05}x"

    def of(self, holder: Holder) -> dict[str, Copy]:
        return self.copies.setdefault(holder, {})

    def note(self, holder: Holder, word: str, copy: Copy) -> None:
        """A word that was said once more stands in one more place."""
        there = self.of(holder).get(word)
        if there is None:
            self.of(holder)[word] = copy
            return
        if there.fate is Fate.GONE:
            raise BrokenError(f"{word} was forgotten and is said again: the story must not do that")
        there.sessions |= copy.sessions
        there.projects |= copy.projects
        there.turns += copy.turns

    def gone(self) -> Iterable[str]:
        """Words that nobody holds any more."""
        fates: dict[str, set[Fate]] = {}
        for copies in self.copies.values():
            for word, copy in copies.items():
                fates.setdefault(word, set()).add(copy.fate)
        return [word for word, found in fates.items() if found == {Fate.GONE}]

    def words(self) -> list[str]:
        return sorted({word for copies in self.copies.values() for word in copies})

    # --- what a forget takes ---------------------------------------------------------------------------
    def forget(self, holder: Holder, *, session: str = "", project: str = "", sure: bool = True) -> None:
        """*sure*: it was promised; else it may have been accepted."""
        for copy in self.of(holder).values():
            inside = (not session or session in copy.sessions) and (not project or project in copy.projects)
            only = (not session or copy.sessions == {session}) and (not project or copy.projects == {project})
            if only and sure:
                copy.fate = Fate.GONE
            elif inside or only:
                copy.weaken()
        if session or project:
            self._weaken_slots(holder)

    def forget_words(self, holder: Holder, words: Iterable[str], *, whole: bool) -> None:
        """*whole*: every turn that says one of them goes with it, if there is but one."""
        for word in words:
            copy = self.of(holder).get(word)
            if copy is not None and whole and copy.turns <= 1:
                copy.fate = Fate.GONE
            elif copy is not None:
                copy.weaken()
        self._weaken_slots(holder)

    def _weaken_slots(self, holder: Holder) -> None:
        """Older versions of what went go with it, and the messages that they came from."""
        slots = {copy.slot for copy in self.of(holder).values() if copy.slot and copy.fate is Fate.GONE}
        for copy in self.of(holder).values():
            if copy.slot in slots:
                copy.weaken()

    def weaken(self, holder: Holder) -> None:
        for copy in self.of(holder).values():
            copy.weaken()

    # --- what is held against it -------------------------------------------------------------------------
    def check_shown(self, text: str, holders: Iterable[Holder], where: str, *, recalled: bool) -> None:
        """*holders*: all whose memories may stand there."""
        hidden = {Fate.GONE, Fate.SOFT} if recalled else {Fate.GONE}
        mine = [self.of(holder) for holder in holders]
        for word in set(WORD.findall(text)):
            fates = [copies[word].fate for copies in mine if word in copies]
            if not fates:
                others = [str(holder) for holder, copies in self.copies.items() if word in copies]
                raise BrokenError(
                    f"{where} shows {word} to who never had it; it is of {others or 'nobody: not kept'}"
                )
            if all(fate in hidden for fate in fates):
                at = text.find(word)
                around = text[max(0, at - 700) : at + 700]
                raise BrokenError(f"{where} shows {word}, which is {[fate.name for fate in fates]}:\n{around}")

    def missing(self, holder: Holder, text: str) -> list[str]:
        shown = set(WORD.findall(text))
        return [word for word, copy in self.of(holder).items() if copy.fate is Fate.KEPT and word not in shown]
