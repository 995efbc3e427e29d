"""Plain chats of people with an assistant, over months, and questions about them: to train on, and to fit weights on.

    python -m scripts.train.chats scripts/train/conversations/*.txt --out set.jsonl

writes the chats as a data set for scripts/fit_weights.py. A file has several people, by line:

    @ daniel                     a person: a name in lower case that no other person of any file has
    # 2026-03-02 09:30           a session begins, later than the last message before it
    > how do I descale a kettle  a message of the person, on one line
    < With vinegar and water.    what the assistant answers; may be absent
    ? KIND :: question :: wanted :: !forbidden
    ? small :: How do magnets work? :: -

Questions stand behind the sessions of their person. `wanted` names the pieces of an answer, separated by ` ;; `. A
piece has alternatives, separated by ` / `; words that stand in one message together are joined by ` + `. The words are
taken from messages literally: each alternative matches the messages that have its words, from the beginning of a word
and in any case. `-` is wanted by small talk, questions about the world and questions about things that were never
told, all of the kind `small`. `forbidden` (may be absent) has words that are outdated or of another thing, separated
by ` / `: a message with them answers only if no other does, and else it is neither right nor wrong.

Empty lines mean nothing. The kinds are those of KINDS.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

FILES = Path(__file__).parent / "conversations"
TRAINED_ON = "vectors.txt"  # weights.txt has other people: on texts that vectors were trained on cosines are better
KINDS = frozenset("fact change overview subject past date list advice hops small".split())
SMALL = "small"
UNTRAINED = frozenset({"overview"})  # no message is nearer to "what do you know about me" than others
# For these kinds recall has lookups beside its ranking, so weights are not fitted on them.
UNFITTED = frozenset({"overview", "subject", "past", "date"})
PAUSE = timedelta(seconds=50)  # between two messages of a session
MATCHED, TRAINED, FITTED = 6, 2, 3  # most messages of a piece: that have its words, to train on, to fit on


class ChatError(ValueError):
    """A fault in a file of chats. The message begins with the file, and the line if there is one."""


@dataclass(frozen=True, slots=True)
class Message:
    id: str
    session: str
    at: datetime
    role: str  # user or assistant
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """*pieces*: for each piece that is wanted, the numbers of the messages that have its words. *forbidden*: words in
    lower case."""

    kind: str
    text: str
    pieces: tuple[tuple[int, ...], ...]
    forbidden: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """A question to train on, with numbers of messages. *right*: they answer it (none of small talk). *ignored*: they
    are neither right nor wrong."""

    question: str
    kind: str
    right: tuple[int, ...]
    ignored: frozenset[int]


@dataclass(slots=True)
class Person:
    name: str
    messages: list[Message] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)

    def find_answers(self, question: Question, most: int) -> tuple[int, ...]:
        """Numbers of the messages that answer *question*, up to *most* of each piece: without forbidden words, and the
        person's own, where there are such."""
        found: set[int] = set()
        for numbers in question.pieces:
            valid = [number for number in numbers if not self._is_forbidden(number, question)] or numbers
            own = [number for number in valid if self.messages[number].role == "user"] or valid
            found.update(own[:most])
        return tuple(sorted(found))

    def list_examples(self) -> list[Example]:
        """The questions to train on."""
        made = []
        for one in self.questions:
            if one.kind in UNTRAINED:
                continue
            right = self.find_answers(one, TRAINED)
            alike = {number for numbers in one.pieces for number in numbers}
            alike |= {number for number in range(len(self.messages)) if self._is_forbidden(number, one)}
            made.append(Example(one.text, one.kind, right, frozenset(alike.difference(right))))
        return made

    def list_rows(self) -> list[dict[str, Any]]:
        """The person as lines of a data set: memories, and the questions that weights are fitted on."""
        rows: list[dict[str, Any]] = [
            {
                "memory": one.id,
                "owner": self.name,
                "text": one.text,
                "at": one.at.isoformat().replace("+00:00", "Z"),
                "session": one.session,
                "role": one.role,
            }
            for one in self.messages
        ]
        for one in self.questions:
            if one.kind not in UNFITTED:
                # Sorted as text, so that a set stays the same line by line.
                relevant = sorted(self.messages[number].id for number in self.find_answers(one, FITTED))
                rows.append({"query": one.text, "owner": self.name, "relevant": relevant, "category": one.kind})
        return rows

    def _is_forbidden(self, number: int, question: Question) -> bool:
        text = self.messages[number].text.lower()
        return any(words in text for words in question.forbidden)


class _Reader:
    """Takes the lines of one file in order."""

    def __init__(self) -> None:
        self.people: list[Person] = []
        self._sessions = 0  # of the last person
        self._at = datetime.min.replace(tzinfo=UTC)  # of the next message
        self._said = 0  # messages of the session

    def take(self, line: str) -> None:
        """Read *line*. ValueError says what is wrong with it."""
        mark, rest = line[0], line[1:].strip()
        if mark == "@":
            self._add_person(rest)
            return
        if mark not in "#><?":
            raise ValueError("a line begins with @, #, >, < or ?")
        if not self.people:
            raise ValueError("no person before it")
        person = self.people[-1]
        if mark == "?":
            self._add_question(person, rest)
        elif person.questions:
            raise ValueError("questions stand behind the last session")
        elif mark == "#":
            self._begin_session(person, rest)
        else:
            self._add_message(person, "user" if mark == ">" else "assistant", rest)

    def _add_person(self, name: str) -> None:
        if len(name.split()) != 1 or name != name.lower():
            raise ValueError("a person's name is one word in lower case")
        self.people.append(Person(name))
        self._sessions, self._at = 0, datetime.min.replace(tzinfo=UTC)

    def _begin_session(self, person: Person, time: str) -> None:
        try:
            at = datetime.strptime(time, "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
        except ValueError:
            raise ValueError("a session begins with a time like 2026-03-02 09:30") from None
        if person.messages and at <= person.messages[-1].at:
            raise ValueError("the session is not later than the last message")
        self._sessions, self._at, self._said = self._sessions + 1, at, 0

    def _add_message(self, person: Person, role: str, text: str) -> None:
        if not self._sessions:
            raise ValueError("no session before the message")
        if not text:
            raise ValueError("the message is empty")
        session = f"{person.name}-{self._sessions - 1}"
        person.messages.append(Message(f"{session}-{self._said}", session, self._at, role, text))
        self._at, self._said = self._at + PAUSE, self._said + 1

    def _add_question(self, person: Person, rest: str) -> None:
        parts = [part.strip() for part in rest.split("::")]
        if len(parts) not in {3, 4} or not all(parts):
            raise ValueError("a question is KIND :: question :: wanted, and may have :: !forbidden")
        kind, text, wanted, *others = parts
        if kind not in KINDS:
            raise ValueError(f"no such kind of question: {kind}")
        if (wanted == "-") != (kind == SMALL):
            raise ValueError("small questions want nothing (-), and only they")
        pieces = [] if kind == SMALL else [_find_piece(person, piece) for piece in wanted.split(" ;; ")]
        forbidden = [words.strip().lower() for words in "".join(others).lstrip("!").split(" / ")]
        person.questions.append(Question(kind, text, tuple(pieces), tuple(filter(None, forbidden))))


def _find_piece(person: Person, piece: str) -> tuple[int, ...]:
    """Numbers of the messages that have the words of *piece*."""
    alternatives = [
        [re.compile(rf"(?<!\w){re.escape(words.strip().lower())}") for words in one.split(" + ")]
        for one in piece.split(" / ")
    ]
    found = []
    for number, message in enumerate(person.messages):
        text = message.text.lower()
        if any(all(words.search(text) for words in together) for together in alternatives):
            found.append(number)
    if not found:
        raise ValueError(f"words of no message: {piece.strip()}")
    return tuple(found[:MATCHED])


def read_chats(paths: Iterable[Path]) -> list[Person]:
    """The people of all *paths*. ChatError at the first fault."""
    people: dict[str, Person] = {}
    for path in paths:
        reader = _Reader()
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ChatError(f"{path}: cannot be read: {error}") from error
        # Not splitlines: it would cut a message at the rarer separators of Unicode.
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            try:
                reader.take(line)
                if line[0] == "@":
                    _add_new(people, reader.people[-1])
            except ValueError as error:
                raise ChatError(f"{path}:{number}: {error}") from error
    return list(people.values())


def _add_new(people: dict[str, Person], person: Person) -> None:
    if person.name in people:
        raise ValueError(f"the person {person.name} is there already")
    people[person.name] = person


def write_set(people: Sequence[Person], path: Path) -> None:
    """Write *people* as a data set, one JSON object a line."""
    rows = [json.dumps(row, ensure_ascii=False) + "\n" for person in people for row in person.list_rows()]
    path.write_text("".join(rows), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    try:
        people = read_chats(given.files)
    except ChatError as error:
        sys.exit(str(error))
    write_set(people, given.out)
    messages, questions = (sum(len(getattr(one, name)) for one in people) for name in ("messages", "questions"))
    print(f"{len(people)} people, {messages} messages, {questions} questions")


if __name__ == "__main__":
    main()
