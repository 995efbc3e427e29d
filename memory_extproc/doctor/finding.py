"""What a check says: a verdict, what was seen, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Also the word in the output for programs, so a value is never renamed."""

    OK = "ok"
    WARN = "warn"  # works, and will hurt
    FAIL = "fail"  # people lose memory, or see somebody else's
    UNKNOWN = "unknown"  # could not be looked at; `seen` says why


@dataclass(frozen=True, slots=True)
class Finding:
    """*seen* and *mend* are sentences for an operator; *mend* is empty where nothing is to be done."""

    check: str
    verdict: Verdict
    seen: str
    mend: str = ""


def ok(check: str, seen: str) -> Finding:
    return Finding(check, Verdict.OK, seen)


def warn(check: str, seen: str, mend: str) -> Finding:
    return Finding(check, Verdict.WARN, seen, mend)


def fail(check: str, seen: str, mend: str) -> Finding:
    return Finding(check, Verdict.FAIL, seen, mend)


def unknown(check: str, seen: str, mend: str = "") -> Finding:
    return Finding(check, Verdict.UNKNOWN, seen, mend)
