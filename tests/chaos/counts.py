"""The model of what each user may see, and the counts of what was seen that may not be."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.properties.front import Person
from tests.properties.known import WORD, Copy, Fate, Known

COUNTS = ("failed", "lost", "doubled", "foreign", "returned", "unwanted", "logged")


class RunLog:
    """The log of a run: JSON lines, the plan first."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", buffering=1)
        self._began = time.monotonic()
        self.path = path

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def restart_clock(self) -> None:
        self._began = time.monotonic()

    def plan(self, line: str) -> None:
        self._file.write(f"{line}\n")

    def note(self, what: str, **more: Any) -> None:
        self._file.write(json.dumps({"at": round(self.now, 3), "what": what, **more}, default=str) + "\n")

    def close(self) -> None:
        self._file.close()


@dataclass
class Counts:
    """Each violation once per word and person, with a line in the log."""

    log: RunLog
    found: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(
        default_factory=Counter
    )  # what happened at all: without traffic a run proves nothing
    _noted: set[tuple[str, Person, str]] = field(default_factory=set)

    def violation(self, count: str, person: Person, what: str, where: str) -> None:
        self.log.note("VIOLATION", count=count, person=str(person), word=what, where=where)
        if (count, person, what) not in self._noted:
            self._noted.add((count, person, what))
            self.found[count] += 1

    @property
    def table(self) -> dict[str, int]:
        return {name: self.found[name] for name in COUNTS}


class Model:
    """Built from what users said and asked alone. A user does one thing at a time."""

    def __init__(self, counts: Counts) -> None:
        self.known = Known()
        self.counts = counts
        self.stored: set[str] = set()  # words that a listing has shown while no turn waited to be learned
        self.unwanted: dict[str, Person] = {}  # words said incognito or without consent

    def check(self, text: str, person: Person, where: str, *, recalled: bool = False, stored: bool = False) -> None:
        """*text* was shown to *person*; *recalled*: as a memory that is in force; *stored*: from the store alone,
        since none of their turns waited to be learned."""
        mine = self.known.of(person)
        for word in sorted(set(WORD.findall(text))):
            copy = mine.get(word)
            if copy is None:
                kind = "unwanted" if self.unwanted.get(word) == person else "foreign"
                self.counts.violation(kind, person, word, where)
            elif copy.fate is Fate.GONE or (recalled and copy.fate is Fate.SOFT):
                self.counts.violation("returned", person, word, where)
            elif stored:
                self.stored.add(word)

    def check_whole(self, rows: Iterable[Mapping[str, str]], person: Person, where: str) -> None:
        """*rows*: every memory of *person*, when nothing waits to be learned any more."""
        rows = list(rows)
        shown = " ".join(row["content"] for row in rows)
        self.check(shown, person, where, stored=True)
        for word in self.known.missing(person, shown):
            self.counts.violation("lost", person, word, where)
        said = Counter(row["content"] for row in rows if (row["source"], row["role"]) == ("verbatim", "user"))
        for content, times in said.items():
            if times > 1:
                for word in WORD.findall(content):
                    self.counts.violation("doubled", person, word, f"{where}: {times} times")

    def weaken_unstored(self, *people: Person) -> None:
        """What is not known to be stored may be lost: Redis was wiped, and the journal with it, or consent ended
        before it was learned."""
        for person in people:
            for word, copy in self.known.of(person).items():
                if word not in self.stored:
                    copy.weaken()

    def note(self, person: Person, word: str, copy: Copy) -> None:
        self.known.note(person, word, copy)
