"""Reads our own format: one JSON object a line, for small sets written by hand or by a script.

    {"memory": "m1", "owner": "ann", "text": "User's budget for Hawaii is $10,000", "at": "2026-03-02T09:00:00Z"}
    {"memory": "m2", "owner": "ann", "text": "My dog is called Rex.", "at": …, "session": "s1", "role": "user"}
    {"memory": "m3", "owner": "ann", "text": "User's budget for Hawaii is $12,000", "at": …, "replaces": "m1"}
    {"query": "What's my budget?", "owner": "ann", "relevant": ["m3"], "category": "update"}

A memory with a *session* and a *role* is a message of a conversation, learned as one; without, it is a note, put
in as it is. A query whose *relevant* is empty is one that nothing must be injected for. Owners may come in any
order; messages of one session follow one another as the lines do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

import msgspec

from memory_extproc.evaluation.cases import Conversation, DatasetError, Noted, Question, Said
from memory_extproc.model import Role

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Words = Annotated[str, msgspec.Meta(min_length=1)]
_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT}


class _Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    memory: _Name
    owner: _Name
    text: _Words
    at: datetime
    session: str = ""
    role: str = ""
    replaces: str = ""


class _Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    query: str
    owner: _Name
    relevant: tuple[_Name, ...]
    category: str = ""
    earlier: tuple[str, ...] = ()


@dataclass(slots=True)
class _Gathered:
    said: list[Said] = field(default_factory=list)
    noted: list[Noted] = field(default_factory=list)
    questions: list[tuple[str, Question]] = field(default_factory=list)  # each with its place


def conversations(lines: Iterable[bytes], where: str) -> list[Conversation]:
    """One for each owner, in the order of their first lines. DatasetError names the line."""
    owners: dict[str, _Gathered] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            _take(line, f"{where}, line {number}", number, owners)
    return [_conversation(name, gathered) for name, gathered in owners.items()]


def _take(line: bytes, place: str, number: int, owners: dict[str, _Gathered]) -> None:
    parsed = _decoded(line, place)
    gathered = owners.setdefault(parsed.owner, _Gathered())
    if isinstance(parsed, _Query):
        question = Question(str(number), parsed.query, frozenset(parsed.relevant), parsed.category, parsed.earlier)
        gathered.questions.append((place, question))
        return
    at = parsed.at.astimezone(UTC) if parsed.at.tzinfo else parsed.at.replace(tzinfo=UTC)
    if bool(parsed.session) != bool(parsed.role):
        raise DatasetError(f"{place}: a message has both a session and a role, a note has neither")
    if not parsed.role:
        gathered.noted.append(Noted(parsed.memory, parsed.text, at, parsed.replaces))
        return
    if parsed.role not in _ROLES:
        raise DatasetError(f"{place}: role: expected user or assistant")
    if parsed.replaces:
        raise DatasetError(f"{place}: replaces: a message replaces nothing, only a note does")
    gathered.said.append(Said(parsed.memory, _ROLES[parsed.role], parsed.text, parsed.session, at))


def _decoded(line: bytes, place: str) -> _Memory | _Query:
    try:
        keys = msgspec.json.decode(line, type=dict[str, msgspec.Raw]).keys()
        if ("memory" in keys) == ("query" in keys):
            raise DatasetError(f'{place}: expected either "memory" or "query"')
        if "query" in keys:
            return msgspec.json.decode(line, type=_Query)
        return msgspec.json.decode(line, type=_Memory)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        # msgspec names path and kind, never the value.
        raise DatasetError(f"{place}: {error}") from error


def _conversation(name: str, gathered: _Gathered) -> Conversation:
    notes = {one.id for one in gathered.noted}
    known = notes | {one.id for one in gathered.said}
    for note in gathered.noted:
        if note.replaces and (note.replaces not in notes or note.replaces == note.id):
            raise DatasetError(
                f"{name}: {note.id!r} replaces {note.replaces!r}, which is no other note of this owner"
            )
    for place, question in gathered.questions:
        if unknown := sorted(question.relevant - known):
            raise DatasetError(f"{place}: relevant: there is no memory {unknown[0]!r} of {name!r}")
    ordered = sorted(gathered.said, key=lambda one: one.at)  # stable: lines of one moment keep their order
    return Conversation(
        name, tuple(ordered), tuple(question for _, question in gathered.questions), noted=tuple(gathered.noted)
    )
