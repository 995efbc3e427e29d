"""Small data sets for tests, whole and in the formats that are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ANNS = ["My cat is called Miso.", "What a lovely name!", "I keep bees on the roof.", "How many hives do you have?"]


def a_sample(name: str = "conv-1", **changes: Any) -> dict[str, Any]:
    """A LoCoMo sample of two sessions, six messages and three questions."""
    sample = {
        "sample_id": name,
        "conversation": {
            "speaker_a": "Anna",
            "speaker_b": "Boris",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                {"speaker": "Anna", "dia_id": "D1:1", "text": "I adopted a cat called Miso from the shelter."},
                {"speaker": "Boris", "dia_id": "D1:2", "text": "I bought a red canoe for the lake."},
                {
                    "speaker": "Anna",
                    "dia_id": "D1:3",
                    "text": "Look at this one.",
                    "blip_caption": "a photo of beehives on a roof",
                },
            ],
            "session_2_date_time": "10:05 am on 1 June, 2023",
            "session_2": [
                {"speaker": "Boris", "dia_id": "D2:1", "text": "My sister moved to Lisbon in spring."},
                {"speaker": "Anna", "dia_id": "D2:2", "text": "I started playing the cello on Sundays."},
                {"speaker": "Boris", "dia_id": "D2:3", "text": "The orchestra in my town looks for new members."},
            ],
        },
        "qa": [
            {"question": "What is Anna's cat called?", "answer": "Miso", "evidence": ["D1:1"], "category": 4},
            {
                "question": "When did the sister of Boris move?",
                "answer": 1,
                "evidence": ["D2:1; D9:9"],
                "category": 2,
            },
            {"question": "Which instrument does Boris play?", "evidence": ["D2:2"], "category": 5},
        ],
    }
    return {**sample, **changes}


def write_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def write_lines(path: Path, *lines: Any) -> Path:
    """Each a line of JSON, or as it stands when it is a text."""
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines), encoding="utf-8")
    return path


def a_note(name: str, text: str = "User keeps bees", owner: str = "ann", **changes: Any) -> dict[str, Any]:
    return {"memory": name, "owner": owner, "text": text, "at": "2026-03-02T09:00:00Z", **changes}


def a_query(text: str = "What do I keep?", *relevant: str, owner: str = "ann", **changes: Any) -> dict[str, Any]:
    return {"query": text, "owner": owner, "relevant": list(relevant), **changes}
