"""A language model that repeats every word it is shown: whatever it should not have been shown comes out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.properties.known import WORD
from tests.support.endpoint import Reply, a_completion

ROLES = ("memory_extraction", "memory_topics", "memory_summary")


class Gossip:
    """*shown*: the words of each prompt, but for those of clients' own histories, which are shortened."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, frozenset[str]]] = []

    def __call__(self, request: Mapping[str, Any]) -> Reply:
        system, shown = (str(message["content"]) for message in request["messages"][:2])
        words = sorted(set(WORD.findall(shown)))
        for beginning, answers in _ANSWERS.items():
            if system.startswith(beginning):
                self.shown.append((beginning, frozenset(words)))
                return a_completion(json.dumps(answers(shown, words)))
        return a_completion(json.dumps(_condensed(shown, words)))


def _facts(shown: str, _: list[str]) -> dict[str, Any]:
    facts = []
    for line in map(json.loads, shown.splitlines()):
        if "turn" not in line:
            continue
        facts += [
            {
                "fact": f"User spoke of {word}",
                "type": "semantic",
                "subject": "user",
                "attribute": f"talk of {word}",
                "value": word,
                "turn": line["turn"],
            }
            for word in WORD.findall(line["user"])[:1]
        ]
    return {"facts": facts}


def _told(words: list[str]) -> str:
    return f"The user told of {', '.join(words) or 'this and that'}."


def _consolidated(shown: str, _: list[str]) -> dict[str, Any]:
    return {"says": " ".join(json.loads(line)["says"] for line in shown.splitlines())[:1000]}


def _insights(shown: str, words: list[str]) -> dict[str, Any]:
    if len(shown.splitlines()) < 2:
        return {"insights": []}
    return {"insights": [{"says": f"Often speaks of {' and of '.join(words[:5])}.", "notes": [1, 2]}]}


def _verdicts(shown: str, _: list[str]) -> dict[str, Any]:
    notes = [json.loads(line)["note"] for line in shown.splitlines() if '"note":' in line]
    return {"verdicts": [{"note": note, "verdict": "ADD"} for note in notes]}


def _condensed(_: str, words: list[str]) -> dict[str, Any]:
    values = [{"name": "word", "value": word} for word in words[:20]]
    return {"topic": _told(words[:10]), "decisions": [], "values": values, "questions": []}


_ANSWERS: Mapping[str, Callable[[str, list[str]], Any]] = {
    "You read turns": _facts,
    "You are shown a part of a chat": lambda _, words: {"name": "All of it", "summary": _told(words)},
    "You are shown parts of a chat": lambda _, words: {"summary": _told(words)},
    "You are shown the last turns": lambda _, words: {"same": len(words) % 3 != 0},
    "You keep notes about one person's world": _consolidated,
    "You keep notes about one person. Read": _insights,
    "You keep notes about one person. A new fact": _verdicts,
    "You keep a notepad": lambda _, words: {"notes": [f"Cares about {word}" for word in words[:3]]},
    "You are given one message": lambda *_: {"commands": []},
}
