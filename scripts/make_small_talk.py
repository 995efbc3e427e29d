"""Writes the conversations in scripts/small_talk as a data set in LoCoMo's format, on which weights are fitted.

    python -m scripts.make_small_talk --out small_talk.json

They were written for this project (Apache-2.0): two people who know each other, over a year, with questions about
what they said. A file begins with the speakers' names. `= DATE TIME` begins a session, `N: words` is a message of
the speaker whose name begins with N, `N{label}: words` one that a question can name, and
`? CATEGORY | question | labels` a question with its evidence. LoCoMo's categories: 1 several pieces, 2 dates,
3 inference, 4 one piece, 5 a question under the wrong name, whose labels are what it distorts.
"""

from __future__ import annotations

import argparse
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent / "small_talk"
_MESSAGE = re.compile(r"(?P<speaker>[A-Z])(?:\{(?P<label>\w+)\})?: (?P<text>.+)")
_QUESTION = re.compile(r"\? (?P<category>[1-5]) \| (?P<question>[^|]+) \| (?P<labels>\w+(?:, \w+)*)")


def read(path: Path) -> dict[str, Any]:
    """One conversation in LoCoMo's format. ValueError names the file and line of a fault."""
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    speakers = {name[0]: name for name in first.removeprefix("speakers: ").split(", ")}
    conversation: dict[str, Any] = dict(zip(("speaker_a", "speaker_b"), speakers.values(), strict=True))
    sessions: list[list[dict[str, str]]] = []
    questions: list[dict[str, Any]] = []
    places: dict[str, str] = {}
    for number, line in enumerate(lines, 2):
        where = f"{path.name}:{number}"
        if line.startswith("= "):
            sessions.append([])
            began = datetime.strptime(line[2:], "%Y-%m-%d %H:%M")  # noqa: DTZ007 - LoCoMo's times have no zone
            said_at = began.strftime("%I:%M %p on %d %B, %Y").lstrip("0")
            conversation[f"session_{len(sessions)}_date_time"] = said_at
            conversation[f"session_{len(sessions)}"] = sessions[-1]
        elif message := _MESSAGE.fullmatch(line):
            place = f"D{len(sessions)}:{len(sessions[-1]) + 1}"
            sessions[-1].append({"speaker": speakers[message["speaker"]], "dia_id": place, "text": message["text"]})
            if label := message["label"]:
                if label in places:
                    raise ValueError(f"{where}: the label {label} is used twice")
                places[label] = place
        elif asked := _QUESTION.fullmatch(line):
            labels = asked["labels"].split(", ")
            if unknown := [label for label in labels if label not in places]:
                raise ValueError(f"{where}: no message has the label {unknown[0]}")
            evidence = [places[label] for label in labels]
            questions.append(
                {
                    "question": asked["question"],
                    "answer": "",
                    "evidence": evidence,
                    "category": int(asked["category"]),
                }
            )
        else:
            raise ValueError(f"{where}: expected a session, a message or a question")
    return {"sample_id": path.stem, "conversation": conversation, "qa": questions}


def find_sources(half: int | None = None) -> list[Path]:
    """The files, in order; *half*: every other one, 0 from the first, 1 from the second."""
    return sorted(SOURCES.glob("*.txt"))[half :: 1 if half is None else 2]


def write(out: Path, half: int | None = None) -> None:
    conversations = [read(path) for path in find_sources(half)]
    out.write_text(json.dumps(conversations, ensure_ascii=False, indent=1), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--half", type=int, choices=(0, 1), help="every other conversation, instead of all")
    given = parser.parse_args()
    write(given.out, given.half)


if __name__ == "__main__":
    main()
