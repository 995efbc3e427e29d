"""Writes training sets out of chats with assistants and the facts drawn from them.

    python -m scripts.make_assistant_sets --chats dev.jsonl --facts facts.jsonl --owners p1,p2,p3,p4 \
        --out chats.jsonl --talk talk.json

`--chats` has messages and queries as JSON lines, as RealMem's conversion to the format of `eval recall` has
them, and `--facts` a `{"fact", "owner", "message"}` a line. `--out` is the same chats with short questions
beside the queries that they come with: one for each fact, which its message answers; those that join two things
of one fact; and, with nothing that answers them, other people's, and those that join a thing of one's own with
one of somebody else. `--talk`, in LoCoMo's format, is the same said shortly by two named people, which is what
small talk looks like. There is no random state but the hash of a fact.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from memory_extproc.text.words import rarity, sentences, stems

Rows = Sequence[Mapping[str, Any]]
LABEL = re.compile(r"^【([^】]*)】\s*")
NAMED = re.compile(
    r"^(?:User's |The |A |An )?([A-Za-z][^.:;()\d]{3,60}?)(?:: | (?:is|are|was|were|will be) )(?=\S)"
)
PEOPLE = ("Anna", "Ben", "Carla", "David", "Elena", "Frank", "Grace", "Henry", "Irene", "Jonas", "Karin", "Leo",
          "Maria", "Nils", "Olga", "Paul", "Rosa", "Simon", "Tina", "Victor", "Wanda", "Xaver", "Yara",
          "Zeno")  # fmt: skip
SESSIONS = 45  # of one conversation of talk
SHORT = 45  # words of a message of talk, about
LONGEST_PHRASE = 4  # words
WORD = re.compile(r"[^\W\d_][\w'/-]+")
BETWEEN = re.compile(
    r"[^\w\s'/-]+|\b(?:users?'?s?|ai|assistant|is|are|was|were|will|be|been|has|have|had|the|a|an|to|of|for|in|on|at|by|"
    r"with|and|or|from|that|this|their|his|her|its|as|into|including|currently|needs?|wants?|plans?|intends?|prefers?|"
    r"confirmed|requested|proposed|provided|identified|stated|mentioned|decided|agreed)\b",
    re.IGNORECASE,
)
OF_CALLER = ("What did I say about {keys}?", "What did I decide about {keys}?", "Remind me about my {keys}.",
             "How about {keys}, what was it again?", "When did I mention {keys}?", "What's my {keys}?")  # fmt: skip
OF_ASSISTANT = ("What did you suggest about {keys}?", "What did you tell me about {keys}?",
                "Which {keys} did you recommend?", "What was the plan for {keys}?", "What is {keys}?",
                "Show me the {keys} again.")  # fmt: skip


JOINING = ("What did I say about {a} for the {b}?", "What's the {a} of my {b}?",
           "Which {a} did we settle on for the {b}?", "When did I decide on {a} for {b}?",
           "How does the {a} fit with my {b}?", "What did you suggest about {a} for {b}?")  # fmt: skip


def read(path: Path, owners: Sequence[str]) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [row for row in rows if row["owner"] in owners]


def number_of(fact: str) -> int:
    return int.from_bytes(hashlib.blake2b(fact.encode(), digest_size=6).digest(), "big")


def question_of(fact: str, *, by_assistant: bool) -> str:
    """A short question that *fact* answers, without its value where one can be told; empty where none comes out."""
    number, words = number_of(fact), LABEL.sub("", fact)
    named = NAMED.match(words)
    if named and number % 3 and not re.search(r"\b[Uu]sers?\b", named[1]) and len(named[1].split()) > 1:
        mine = "my" if words.startswith("User's") else "the"
        return f"What {'are' if named[1].endswith('s') else 'is'} {mine} {named[1]}?"
    keys = keys_of(words, number)
    if not keys:
        return ""
    forms = OF_ASSISTANT if by_assistant else OF_CALLER
    return forms[number // 3 % len(forms)].format(keys=keys[0])


def keys_of(words: str, number: int) -> list[str]:
    """One or two phrases of *words*; of the first half, for what is asked for usually stands behind."""
    chosen = phrases(words[: max(80, len(words) // 2)])[: 1 + (number % 4 == 0)]
    return [" and ".join(chosen)] if chosen else []


def phrases(words: str) -> list[str]:
    """Those of *words* between small words and marks, the ones with the rarest words first."""
    parts = [part.split() for part in BETWEEN.split(words.rpartition(" ")[0] or words)]
    parts = [[word for word in part if WORD.fullmatch(word)][-LONGEST_PHRASE:] for part in parts]
    told = [part for part in parts if part and stems(" ".join(part))]
    told.sort(key=lambda part: -max(rarity(word.lower()) for word in part) - 0.1 * min(3, len(part)))
    return [" ".join(part) for part in told]


def joined(facts: Rows, owners: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Of every other fact with two phrases a question that joins them; of the rest one that joins a phrase of it
    with one of somebody else's fact, which nothing answers."""
    by_owner: dict[str, list[tuple[Mapping[str, Any], list[str]]]] = {owner: [] for owner in owners}
    for fact in facts:
        found = phrases(LABEL.sub("", fact["fact"]))
        if len(found) > 1:
            by_owner[fact["owner"]].append((fact, found))
    for place, owner in enumerate(owners):
        for at, (fact, found) in enumerate(by_owner[owner]):
            number = number_of(fact["fact"])
            pair, relevant = (found[0], found[1]), [fact["message"]]
            if at % 2 == 0:
                others = by_owner[owners[(place + 1 + number // 7 % max(1, len(owners) - 1)) % len(owners)]]
                strange = others[number // 11 % len(others)][1][0]
                own = found[number % 2]
                pair, relevant = ((strange, own) if number // 5 % 3 else (own, strange)), []
            text = JOINING[number % len(JOINING)].format(a=pair[0], b=pair[1])
            yield {"query": text, "owner": owner, "relevant": relevant, "category": "joined"}


def of_others(asked: Rows, owners: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Every other question, put to somebody else, who cannot answer it."""
    for at, one in enumerate(asked):
        if at % 2 == 0:
            home = owners.index(one["owner"])
            away = owners[(home + 1 + at // 2 % max(1, len(owners) - 1)) % len(owners)]
            if away != one["owner"]:
                yield {"query": one["query"], "owner": away, "relevant": [], "category": "of others"}


def questions(facts: Rows, messages: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    asked: dict[tuple[str, str], dict[str, Any]] = {}
    for fact in facts:
        message = messages.get((fact["owner"], fact["message"]))
        if message is None:
            continue
        text = question_of(fact["fact"], by_assistant=message["role"] == "assistant")
        if text:
            row = asked.setdefault(
                (fact["owner"], text),
                {"query": text, "owner": fact["owner"], "relevant": [], "category": "fact", "fact": fact["fact"]},
            )
            if fact["message"] not in row["relevant"]:
                row["relevant"].append(fact["message"])
    yield from asked.values()


def talks(rows: Rows, asked: Rows) -> Iterator[dict[str, Any]]:
    """Each owner's sessions, some at a time, as the talk of two people."""
    by_owner: dict[str, dict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if "memory" in row:
            by_owner[row["owner"]][row["session"]].append(row)
    for owner, sessions in by_owner.items():
        names = list(sessions)
        about: dict[str, list[str]] = defaultdict(list)
        for one in asked:
            if one["owner"] == owner:
                for id_ in one["relevant"]:
                    about[id_].append(one["fact"])
        for first in range(0, len(names), SESSIONS):
            number = number_of(f"{owner}{first}")
            people = (PEOPLE[number % len(PEOPLE)], PEOPLE[(number // 7 + 1) % len(PEOPLE)])
            people = people if people[0] != people[1] else (people[0], PEOPLE[(number + 1) % len(PEOPLE)])
            chosen = {name: sessions[name] for name in names[first : first + SESSIONS]}
            own = [one for one in asked if one["owner"] == owner]
            yield talk(f"{owner}-{first}", people, chosen, own, about)


def talk(
    name: str,
    people: tuple[str, str],
    sessions: Mapping[str, Rows],
    asked: Rows,
    about: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    said: dict[str, Any] = {"speaker_a": people[0], "speaker_b": people[1]}
    ids: dict[str, str] = {}
    days: dict[str, datetime] = {}
    for number, rows in enumerate(sessions.values(), start=1):
        at = datetime.fromisoformat(rows[0]["at"])
        said[f"session_{number}_date_time"] = at.strftime("%I:%M %p on %d %B, %Y")
        turns = []
        for place, row in enumerate(rows, start=1):
            ids[row["memory"]] = f"D{number}:{place}"
            days[row["memory"]] = at
            speaker, text = people[row["role"] == "assistant"], shortened(row["text"], about[row["memory"]])
            turns.append({"speaker": speaker, "dia_id": ids[row["memory"]], "text": text})
        said[f"session_{number}"] = turns
    qa = [
        {
            "question": dated(of_third(one["query"], people), days[one["relevant"][0]]),
            "evidence": [ids[id_] for id_ in one["relevant"]],
            "category": 4,
        }
        for one in asked
        if all(id_ in ids for id_ in one["relevant"])
    ]
    return {"sample_id": name, "conversation": said, "qa": qa}


def shortened(text: str, facts: Sequence[str]) -> str:
    """A few sentences of *text*: those around the one that most of a fact stands in, or the first."""
    every = [" ".join(one.split()) for one in sentences(re.sub(r"[*#`|>]+", " ", text)) if one.strip()] or [text]
    wanted = stems(facts[0]) if facts else frozenset()
    at = max(range(len(every)), key=lambda place: (len(wanted & stems(every[place])), -place))
    chosen = every[at]
    for one in every[at + 1 :]:
        if len(chosen.split()) + len(one.split()) > SHORT:
            break
        chosen += f" {one}"
    return " ".join(chosen.split()[: 2 * SHORT])


def dated(question: str, at: datetime) -> str:
    """Every third *question* names the day or the month in which its answer was said."""
    forms = (f" on {at.day} {at:%B}", f" in {at:%B} {at.year}", f" on {at:%B} {at.day}, {at.year}")
    number = number_of(question)
    return question.rstrip("?.") + forms[number % len(forms)] + "?" if number // 3 % 3 == 0 else question


def of_third(query: str, people: tuple[str, str]) -> str:
    first, second = people
    for pattern, instead in (
        (r"\bdid I\b", f"did {first}"), (r"\bmy\b", f"{first}'s"), (r"\bI\b", first), (r"\bme\b", first),
        (r"\bdid you\b", f"did {second}"), (r"\byou\b", second),
    ):  # fmt: skip
        query = re.sub(pattern, instead, query)
    return query


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", type=Path, required=True)
    parser.add_argument("--facts", type=Path, required=True)
    parser.add_argument("--owners", required=True, help="comma-separated; of all others nothing is written")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--talk", type=Path, required=True)
    wanted = parser.parse_args()
    owners = wanted.owners.split(",")
    rows, facts = read(wanted.chats, owners), read(wanted.facts, owners)
    messages = {(row["owner"], row["memory"]): row for row in rows if "memory" in row}
    asked = list(questions(facts, messages))
    short = ({key: value for key, value in one.items() if key != "fact"} for one in asked)
    lines = [*rows, *short, *joined(facts, owners), *of_others(asked, owners)]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    wanted.out.write_text(text, encoding="utf-8")
    wanted.talk.write_text(json.dumps(list(talks(rows, asked)), ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
