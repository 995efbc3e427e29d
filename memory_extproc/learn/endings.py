"""What stopped being so: "I no longer live in Paris" as the ending of "I live in Paris". Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

_WHO = r"(?P<who>i|we|(?:my|our)\s+[\w' -]{2,40}?)"
_NO_LONGER = re.compile(
    rf"{_WHO}(?P<be>'m|'re|'s|\s+am|\s+are|\s+is)?\s+(?:now\s+)?(?:no\s+longer|not\s+any\s*more)\s+(?P<rest>.+)",
    re.IGNORECASE,
)
_NOT_ANY_MORE = re.compile(
    rf"{_WHO}(?:(?P<be>'m|\s+am|\s+is|\s+are)\s+not|\s+(?P<isnt>isn't|aren't)|\s+(?:do\s+not|don't|does\s+not|doesn't"
    r"|can(?:'t|not|\s+not)))\s+(?P<rest>.+?),?\s+(?:any\s*more|any\s+longer)",
    re.IGNORECASE,
)
_STOPPED = re.compile(
    rf"{_WHO}(?:'ve|'s|\s+have|\s+has)?(?:\s+(?:just|recently|now|finally|completely))?\s+(?:stopped|quit|given\s+up|gave\s+up)"
    r"\s+(?P<doing>[a-z]+ing)\b\s*(?P<rest>.*)",
    re.IGNORECASE,
)
_MARKS = re.compile(r"\b(?:no\s+longer|any\s*more|any\s+longer|stopped|quit|gave\s+up|given\s+up)\b", re.IGNORECASE)
_DOUBLED = re.compile(r"([bdgmnprt])\1$")
_COPULA = re.compile(r"\b(is|are)\b")


def ends(clause: str) -> bool:
    """Whether *clause* may say that something stopped; what it says is then never taken as being so."""
    return _MARKS.search(clause) is not None


def ended(clause: str) -> Iterator[str]:
    """*clause* as it was said while it held, in the ways it may have been; none if it does not end anything."""
    for pattern in (_NO_LONGER, _NOT_ANY_MORE):
        if (found := pattern.fullmatch(clause)) is not None:
            groups = found.groupdict()
            be = groups["be"] or ({"isn't": " is", "aren't": " are"}.get((groups.get("isnt") or "").lower(), ""))
            yield f"{found['who']}{be} {found['rest']}"
            return
    if (found := _STOPPED.fullmatch(clause)) is not None:
        who, doing, rest = found["who"], found["doing"], found["rest"]
        be = "'m" if who.lower() == "i" else (" are" if who.lower() == "we" else " is")
        yield f"{who}{be} {doing} {rest}".strip()
        bare = doing[: -len("ing")]
        for verb in (bare, f"{bare}e", _DOUBLED.sub(r"\1", bare)):
            yield f"{who} {verb} {rest}".strip()


def no_longer(content: str, who: str) -> str:
    """The fact *content* about *who*, as it is once it has ended: "User no longer lives in Paris"."""
    own = f"{who} "
    if content.startswith(f"{own}is "):
        return f"{own}is no longer {content.removeprefix(f'{own}is ')}"
    if content.startswith(own):
        return f"{own}no longer {content.removeprefix(own)}"
    return _COPULA.sub(r"\1 no longer", content, count=1)
