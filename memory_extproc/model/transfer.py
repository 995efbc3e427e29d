"""What came of an import."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImportProblem:
    """Why one memory was not taken in, without its words."""

    index: int  # its place in the stream, from 0
    id: str  # as it was sent
    reason: str  # a stable word: conflict, forgotten, bad_field, too_large, no_consent, deleted
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What became of an import. *problems* are the first 1,000 of what is conflicting or refused."""

    added: int = 0
    same: int = 0
    replaced: int = 0
    conflicting: int = 0
    refused: int = 0
    problems: tuple[ImportProblem, ...] = ()
