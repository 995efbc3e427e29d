"""How well changes of subject are found: sessions with marked shifts, told by the measures alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from memory_extproc.errors import ConfigurationError
from memory_extproc.ports import Embeds
from memory_extproc.topics.shift import Heard, ShiftLimits, shifts


class MarkedTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    asked: str
    answered: str = ""
    shift: bool = False  # it begins another topic than the turn before


class MarkedSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str  # what stands before its number is the group it is counted in: "fit-03", "held-out-11"
    turns: tuple[MarkedTurn, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """Of a session: numbers of the turns that are marked, and of those that were found to begin another topic."""

    session: MarkedSession
    marked: frozenset[int]
    found: frozenset[int]


_DECODER = msgspec.json.Decoder(MarkedSession)


def read_sessions(path: Path) -> list[MarkedSession]:
    """ConfigurationError names the line that is none of ours."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError([f"{path}: cannot be read: {type(error).__name__}"]) from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(_DECODER.decode(line))
        except msgspec.DecodeError as error:
            raise ConfigurationError([f"{path}: line {number}: {error}"]) from error
    return found


async def told(sessions: Iterable[MarkedSession], embedder: Embeds, limits: ShiftLimits) -> list[Told]:
    """By the measures that serve where no model is asked."""
    all_of_it = []
    for session in sessions:
        asked = await embedder.embed([turn.asked for turn in session.turns])
        whole = await embedder.embed([f"{turn.asked}\n{turn.answered}" for turn in session.turns])
        heard = [Heard(turn.asked, *vectors) for turn, *vectors in zip(session.turns, asked, whole, strict=True)]
        marked = frozenset(number for number, turn in enumerate(session.turns) if turn.shift)
        all_of_it.append(Told(session, marked, frozenset(shifts(heard, limits))))
    return all_of_it


def boundary_figures(sessions: Sequence[Told]) -> Mapping[str, Any]:
    """Precision, recall and F1 of the exact turns at which topics begin; by group, too."""
    groups: dict[str, list[Told]] = {}
    for one in sessions:
        groups.setdefault(one.session.name.rpartition("-")[0], []).append(one)
    return {**_figures(sessions), "groups": {name: _figures(group) for name, group in groups.items()}}


def _figures(sessions: Sequence[Told]) -> dict[str, Any]:
    right = sum(len(one.marked & one.found) for one in sessions)
    marked, found = sum(len(one.marked) for one in sessions), sum(len(one.found) for one in sessions)
    return {
        "sessions": len(sessions),
        "turns": sum(len(one.session.turns) for one in sessions),
        "shifts": marked,
        "found": found,
        "precision": round(right / found, 3) if found else None,
        "recall": round(right / marked, 3) if marked else None,
        "f1": round(2 * right / (marked + found), 3) if marked + found else None,
    }
