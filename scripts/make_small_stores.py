"""Cuts talk of two named people, in LoCoMo's format, into small stores, on which the weights for such are fitted.

    python -m scripts.make_small_stores --dataset locomo10.json --out pieces.jsonl

Each speaker in turn is the caller of stores of one to five sessions. Questions about the caller alone are put in
the first person: to the store that has all of their evidence, and, as things never said, to other people's.
The licence of the talk is that of what comes out: the packaged weights use `scripts/small_talk` alone.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memory_extproc.evaluation.datasets import (
    DatasetError,
    EvaluationCase,
    Names,
    Question,
    SaidMessage,
    read_dataset,
    reword,
)
from memory_extproc.model import Role

SEED = 3
SESSIONS = (1, 1, 2, 2, 3, 5)  # of a store
STRANGERS = 3  # conversations whose questions each store is asked; its own, where drawn, is passed over
OF_EACH = 2  # questions of each of their speakers

Line = dict[str, Any]
Asked = Mapping[tuple[str, str], Sequence[Question]]  # by conversation and speaker


def lines(conversations: Sequence[EvaluationCase], seed: int = SEED) -> Iterator[Line]:
    """Every memory and question, store by store. DatasetError where a conversation has no two named speakers."""
    for one in conversations:
        if len(one.speakers) != 2:
            raise DatasetError(f"{one.name}: its speakers have no names, as those of LoCoMo have")
    chance = random.Random(seed)  # noqa: S311 - a seed is what it is for
    asked = {(one.name, speaker): _about(one, speaker) for one in conversations for speaker in one.speakers}
    for conversation in conversations:
        for number, caller in enumerate(conversation.speakers):
            for at, said in enumerate(_pieces(conversation, chance)):
                owner = f"L{conversation.name.removeprefix('conv-')}-{number}-{at}"
                yield from _memories(owner, said, conversation.speakers, caller)
                yield from _own(owner, said, asked[conversation.name, caller], caller)
                yield from _foreign(owner, conversation, conversations, asked, chance)


def _about(conversation: EvaluationCase, speaker: str) -> list[Question]:
    """The questions that have evidence and name *speaker* and nobody else of the two."""
    others = [other for other in conversation.speakers if other != speaker]
    return [
        question
        for question in conversation.questions
        if question.counts and _named(question, speaker) and not any(_named(question, other) for other in others)
    ]


def _named(question: Question, speaker: str) -> bool:
    return _first_person(question, speaker) != question.text


def _first_person(question: Question, speaker: str) -> str:
    return reword(question.text, (speaker,), Names.FIRST_PERSON)


def _pieces(conversation: EvaluationCase, chance: random.Random) -> Iterator[list[SaidMessage]]:
    """All that was said, cut between sessions."""
    sessions: dict[str, list[SaidMessage]] = {}
    for one in conversation.said:
        sessions.setdefault(one.session, []).append(one)
    left = list(sessions.values())
    while left:
        size = chance.choice(SESSIONS)
        yield [one for session in left[:size] for one in session]
        left = left[size:]


def _memories(owner: str, said: Sequence[SaidMessage], speakers: Sequence[str], caller: str) -> Iterator[Line]:
    """Without the names that stand before the words, which in a store of one caller's nobody writes."""
    for one in said:
        speaker = speakers[0] if one.role is Role.USER else speakers[1]
        yield {
            "memory": f"{owner}-{one.id}",
            "owner": owner,
            "text": one.text.removeprefix(f"{speaker}: "),
            "at": one.at.isoformat(),
            "session": f"{owner}-{one.session}",
            "role": "user" if speaker == caller else "assistant",
        }


def _own(owner: str, said: Sequence[SaidMessage], questions: Sequence[Question], caller: str) -> Iterator[Line]:
    here = {one.id for one in said}
    for question in questions:
        if question.relevant <= here:
            relevant = [f"{owner}-{id_}" for id_ in sorted(question.relevant)]
            text = _first_person(question, caller)
            yield {"query": text, "owner": owner, "relevant": relevant, "category": "said"}


def _foreign(
    owner: str, home: EvaluationCase, conversations: Sequence[EvaluationCase], asked: Asked, chance: random.Random
) -> Iterator[Line]:
    for other in chance.sample(conversations, min(STRANGERS, len(conversations))):
        if other is home:
            continue
        for speaker in other.speakers:
            questions = asked[other.name, speaker]
            for question in chance.sample(questions, min(OF_EACH, len(questions))):
                text = _first_person(question, speaker)
                yield {"query": text, "owner": owner, "relevant": [], "category": "unknown"}


def write(path: Path, dataset: Path, seed: int) -> None:
    cut = lines(read_dataset(dataset).conversations, seed)
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in cut), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, required=True, help="LoCoMo's JSON, such as locomo10.json")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, required=True, help="the file of JSON lines to write")
    given = parser.parse_args()
    write(given.out, given.dataset, given.seed)


if __name__ == "__main__":
    main()
