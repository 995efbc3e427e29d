"""Two versions read each other's records while both run during a rolling update.

The texts below were written by 0.1.0. They stay as they are: what reads them no more breaks an update.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memory_extproc.journal.sqlite import SqliteJournal
from memory_extproc.model import Origin, Outcome, Owner, Turn, TurnOutcome
from memory_extproc.request.replay import ReplayedTurn

NOW = datetime(2026, 11, 1, tzinfo=UTC)
TURN: Mapping[str, Any] = {
    "id": "ab" * 32,
    "owner": {"tenant": "acme", "user": "ann"},
    "project": "",
    "session": "s1",
    "seq": 0,
    "asked": "My budget for Hawaii is $10,000.",
    "answered": "Noted.",
    "at": "2026-11-01T00:00:00Z",
    "injected": ["Ann likes the sea."],
    "origin": {"dialect": "chat_completions", "model": "demo", "route": "", "app": ""},
    "last": False,
}
RECORD = (
    b'[3,1793491200.0,0,["used","<memory>\\nAnn likes the sea.\\n</memory>","hybrid",["m1"],'
    b'["Ann likes the sea."]],"user_suffix",[]]'
)


async def journalled(path: Path, body: Mapping[str, Any]) -> Turn:
    """What a journal gives whose file holds *body*."""
    async with SqliteJournal(path, now=lambda: NOW) as journal:
        ann = Owner("acme", "ann")
        written = Turn(id=TURN["id"], owner=ann, project="", session="s1", seq=0, asked="", answered="", at=NOW)
        assert await journal.append(written) is TurnOutcome.JOURNALLED
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE turns SET turn = ?", (json.dumps(body).encode(),))
    async with SqliteJournal(path, now=lambda: NOW) as journal:
        (entry,) = await journal.pending(10)
        return entry.turn


@pytest.mark.parametrize(
    "body",
    [
        TURN,
        {
            **TURN,
            "mood": "sunny",
            "origin": {**TURN["origin"], "region": "eu"},
            "owner": {**TURN["owner"], "kind": 1},
        },
        {key: value for key, value in TURN.items() if key not in {"injected", "origin", "last"}},
    ],
    ids=["as written", "by a newer version", "by an older one"],
)
async def test_a_turn_in_the_journal_is_read_whichever_version_wrote_it(
    tmp_path: Path, body: Mapping[str, Any]
) -> None:
    turn = await journalled(tmp_path / "journal.db", body)
    assert (turn.owner, turn.asked, turn.answered) == (Owner("acme", "ann"), TURN["asked"], "Noted.")
    assert turn.origin in {Origin(dialect="chat_completions", model="demo"), Origin()}
    assert (turn.heard, turn.resumes, turn.speaker) == ("", False, "")


@pytest.mark.parametrize("more", [b"", b',"sunny",{"of":1}'], ids=["as written", "by a newer version"])
def test_what_a_conversation_was_given_is_read_whichever_version_wrote_it(more: bytes) -> None:
    record = msgspec.json.decode(RECORD[:-1] + more + b"]", type=ReplayedTurn)
    assert record.epoch == 3
    assert record.decision.outcome is Outcome.USED
    assert record.decision.ids == ("m1",)
