"""Writes made-up people on whom the weights for small stores are fitted: what they say, and what they ask later.

    python scripts/make_people.py --out people.jsonl             # the people of the packaged weights
    python scripts/make_people.py --seed 8 --out others.jsonl    # others of the same kind

Each says three to twenty-eight things of themselves, in passing and between small talk, seven of twelve in
English, the others in German, Spanish, French, Chinese or Japanese. They ask for what they said, for what they
never said, and what no memory answers. Their words stand in scripts/people/. Nothing that somebody says in the sets
that recall is judged by is among them; the plainest questions ("Where do I live?") are those of everybody.
"""

from __future__ import annotations

import argparse
import json
import random
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

SEED = 7
PEOPLE = 120
BEGIN = datetime(2026, 1, 5, 9, 0)  # noqa: DTZ001 - written as UTC
WORDS = Path(__file__).resolve().parent / "people"
ENGLISH, OTHERS = "en", ("de", "es", "fr", "zh", "ja")
SPOKEN = (ENGLISH,) * 7 + OTHERS  # person by person
SIZES = (3, 6, 9, 12, 15, 20, 28)  # topics that a person speaks of, at most
ENGLISH_TOO = 10  # topics that somebody of another language may speak of in English
SMALL_TALK = (0.2, 0.6, 1.2, 2.0)  # exchanges of it before each thing said, on average
NEW_SESSION, TWO_AT_ONCE, WRAPPED, ANSWERED = 0.3, 0.22, 0.4, 0.75  # probabilities; WRAPPED includes TWO_AT_ONCE
ASKED = 2  # questions about each thing said, where there are as many
FEWEST_UNKNOWN = 6
NOT_OF_MEMORY = (("general", 5), ("task", 3), ("chat", 2))  # questions of each person that no memory answers

BEFORE = (
    "Ha, good one. ",
    "ok thanks. ",
    "Perfect, that helps a lot, I was going mad over it. ",
    "By the way, ",
    "Long day today, everything took twice as long as it should. ",
    "Right. ",
    "oh and ",
)
BEHIND = (
    "",
    "",
    ". Anyway, can you give me a hand with a mail?",
    ". But never mind, what was I going to ask?",
    ", which is a story for another day",
)
REPLIES = (
    "Noted.",
    "Thanks for telling me!",
    "That sounds good. What else can I do for you?",
    "I see. Would you like some tips on that?",
    "Interesting! How is it going otherwise?",
    "Okay, I will keep that in mind.",
)


@dataclass(frozen=True, slots=True)
class Topic:
    """One thing to say of oneself. *about*: the same for topics that tell the same in different languages;
    *touches*: what they are about that may answer each other's questions."""

    key: str
    language: str
    about: str
    touches: frozenset[str]
    says: tuple[str, ...]
    asks: tuple[str, ...]

    def may_answer(self, other: Topic) -> bool:
        return self.about == other.about or self.about in other.touches or other.about in self.touches


@dataclass(frozen=True, slots=True)
class Phrase:
    """Said by anybody or, where *by* names languages, by who speaks one of them. Only small talk has a *reply*."""

    text: str
    by: tuple[str, ...]
    reply: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """All there is to say; the order decides what a seed makes of it."""

    topics: dict[str, tuple[Topic, ...]]  # by language
    small_talk: tuple[Phrase, ...]
    asked: dict[str, tuple[Phrase, ...]]  # by kind, see NOT_OF_MEMORY


@dataclass(slots=True)
class Person:
    name: str
    language: str
    chance: random.Random
    lines: list[dict[str, Any]] = field(default_factory=list)
    session: int = 0
    begun: datetime = BEGIN  # the session
    minutes: int = 0  # into it

    def says(self, text: str, role: str = "user", key: str = "") -> None:
        at = self.begun + timedelta(minutes=self.minutes)
        self.lines.append({
            "memory": f"{self.name}-{key or f'm{len(self.lines) + 1}'}",
            "owner": self.name,
            "text": text,
            "at": f"{at.isoformat()}Z",
            "session": f"{self.name}-s{self.session}",
            "role": role,
        })  # fmt: skip
        self.minutes += 1

    def asks(self, text: str, category: str, relevant: Sequence[str] = ()) -> None:
        keys = [f"{self.name}-{key}" for key in relevant]
        self.lines.append({"query": text, "owner": self.name, "relevant": keys, "category": category})

    def comes_back(self) -> None:
        """Some days later, in a session of its own."""
        self.session += 1
        self.begun += timedelta(days=self.chance.randrange(1, 9))
        self.minutes = 0

    def would_say(self, phrases: Sequence[Phrase]) -> list[Phrase]:
        return [one for one in phrases if not one.by or self.language in one.by]


def words(folder: Path = WORDS, half: int | None = None) -> Words:
    """*half*: 0 or 1 of the topics alone, whatever the language; the other half shares no wording with it."""
    english = _topics(folder, ENGLISH, {})
    touches = {topic.about: topic.touches for topic in english}
    topics = {ENGLISH: english} | {language: _topics(folder, language, touches) for language in OTHERS}
    if half is not None:
        topics = {
            language: tuple(topic for topic in found if crc32(topic.about.encode()) % 2 == half)
            for language, found in topics.items()
        }
    phrases = _read(folder / "phrases.toml")
    small_talk = tuple(
        Phrase(said, tuple(group.get("by", ())), reply)
        for group in phrases["small_talk"]
        for said, reply in group["turns"]
    )
    asked = {
        kind: tuple(Phrase(text, tuple(group.get("by", ()))) for group in phrases[kind] for text in group["texts"])
        for kind, _ in NOT_OF_MEMORY
    }
    return Words(topics, small_talk, asked)


def _topics(folder: Path, language: str, touches: dict[str, frozenset[str]]) -> tuple[Topic, ...]:
    """*touches*: of the English topics, which hold for those that are about the same."""
    topics = []
    for name, said in _read(folder / f"{language}.toml").items():
        key = name if language == ENGLISH else f"{language}_{name}"
        about = said.get("about", key)
        near = frozenset(said.get("touches", ())) | touches.get(about, frozenset())
        topics.append(Topic(key, language, about, near, tuple(said["says"]), tuple(said["asks"])))
    return tuple(topics)


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def lines(seed: int = SEED, people: int = PEOPLE, half: int | None = None) -> Iterator[dict[str, Any]]:
    """Every memory and question, person by person."""
    chance = random.Random(seed)  # noqa: S311 - a seed is what it is for
    every = words(half=half)
    for number in range(people):
        person = Person(f"t{seed}-{number}", SPOKEN[number % len(SPOKEN)], chance)
        _live(person, every)
        yield from person.lines


def _live(person: Person, every: Words) -> None:
    chance, english = person.chance, every.topics[ENGLISH]
    most = chance.choice(SIZES)
    might = list(every.topics[person.language])
    if person.language != ENGLISH:
        might += chance.sample(english, ENGLISH_TOO)
    chance.shuffle(might)
    told: list[Topic] = []
    for topic in might:
        if len(told) < most and not any(topic.about == other.about for other in told):
            told.append(topic)
    said_with = _talk(person, told, every.small_talk)
    for topic in told:
        for ask in chance.sample(topic.asks, min(ASKED, len(topic.asks))):
            person.asks(ask, "said", [said_with[topic.key]])
    others = dict.fromkeys([*might, *(english if person.language != ENGLISH else ())])
    unknown = [topic for topic in others if not any(topic.may_answer(known) for known in told)]
    chance.shuffle(unknown)
    for topic in unknown[: max(FEWEST_UNKNOWN, most)]:
        person.asks(chance.choice(topic.asks), "unknown")
    for kind, count in NOT_OF_MEMORY:
        for phrase in chance.sample(person.would_say(every.asked[kind]), count):
            person.asks(phrase.text, kind)


def _talk(person: Person, told: Sequence[Topic], small_talk: Sequence[Phrase]) -> dict[str, str]:
    """*told*, in its order, with *small_talk* in between. Of each topic the key of the message that has it."""
    chance, would_say = person.chance, person.would_say(small_talk)
    lively = chance.choice(SMALL_TALK)
    said_with: dict[str, str] = {}
    left = list(told)
    while left:
        topic = left.pop(0)
        if said_with and chance.random() < NEW_SESSION:
            person.comes_back()
        while chance.random() < lively / (1 + lively):
            phrase = chance.choice(would_say)
            person.says(phrase.text)
            person.says(phrase.reply, "assistant")
        said_with[topic.key] = topic.key
        text, drawn = chance.choice(topic.says), chance.random()
        if drawn < TWO_AT_ONCE and left and left[0].language == topic.language:
            second = left.pop(0)
            said_with[second.key] = topic.key
            text = f"{text[0].upper()}{text[1:].rstrip('.')}. {chance.choice(second.says)}"
        elif drawn < WRAPPED and person.language == topic.language == ENGLISH:
            text = f"{chance.choice(BEFORE)}{text}{chance.choice(BEHIND)}"
        person.says(text, key=topic.key)
        if chance.random() < ANSWERED:
            person.says(chance.choice(REPLIES), "assistant")
    return said_with


def write(path: Path, seed: int, half: int | None = None) -> None:
    made = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines(seed, half=half))
    path.write_text(made, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--half", type=int, choices=(0, 1), help="of the topics, instead of all")
    parser.add_argument("--out", type=Path, required=True, help="the file of JSON lines to write")
    given = parser.parse_args()
    write(given.out, given.seed, given.half)


if __name__ == "__main__":
    main()
