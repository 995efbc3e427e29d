"""Sessions of several topics with their shifts marked, made of written segments; the same for the same seed.

`python -m scripts.make_topic_sessions` writes tests/quality/topics.jsonl. Sessions named fit-… and held-out-… share
no segment, so that what is calibrated on the ones can be judged by the others.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

QUALITY = Path(__file__).resolve().parent.parent / "tests" / "quality"
SEED = 7
SESSIONS = 48
LONGEST = 4  # segments of a session
SHORTEST = 3  # turns of a segment
# How people change the subject; mostly they do not say so.
BRIDGES = ("", "", "", "", "By the way: ", "Something else. ", "Thanks! Next question: ", "Okay, thank you. ")

Segment = list[tuple[str, str]]


def segments(text: str) -> list[Segment]:
    paragraphs = [paragraph.splitlines() for paragraph in text.split("\n\n") if paragraph.startswith(">")]
    return [
        [(lines[at].removeprefix("> "), lines[at + 1]) for at in range(0, len(lines), 2)] for lines in paragraphs
    ]


def sessions(written: list[Segment], chance: random.Random, name: str, count: int) -> list[dict[str, object]]:
    made: list[dict[str, object]] = []
    for number in range(count):
        turns: list[dict[str, object]] = []
        for segment in chance.sample(written, chance.randint(1, LONGEST)):
            length = chance.randint(SHORTEST, len(segment))
            for at, (asked, answered) in enumerate(segment[:length]):
                shift = at == 0 and bool(turns)
                bridge = chance.choice(BRIDGES) if shift else ""
                turns.append({"asked": bridge + asked, "answered": answered, **({"shift": True} if shift else {})})
        made.append({"name": f"{name}-{number:02d}", "turns": turns})
    return made


def main() -> None:
    written = segments((QUALITY / "topic_segments.txt").read_text())
    chance = random.Random(SEED)  # noqa: S311 - nothing here is secret
    half = SESSIONS // 2
    made = [
        *sessions(written[0::2], chance, "fit", half),
        *sessions(written[1::2], chance, "held-out", half),
    ]
    lines = [json.dumps(session, ensure_ascii=False) for session in made]
    (QUALITY / "topics.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
