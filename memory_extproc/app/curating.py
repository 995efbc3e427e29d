"""What people write themselves, understood as the write path understands what they say."""

from __future__ import annotations

from datetime import datetime

from memory_extproc.curate.curator import Meaning, Standing
from memory_extproc.learn.extract import Extracts, Fact
from memory_extproc.learn.verdicts import Likeness, likeness
from memory_extproc.model import Found, MemoryType, Owner, Source, Turn, digest
from memory_extproc.ports import Now

_STANDING = {
    Likeness.OTHER: Standing.OTHER,
    Likeness.SAME: Standing.SAME,
    Likeness.CHANGED: Standing.CHANGED,
}


class Understanding:
    """Implements curate.Understands with an extractor and the rules of reconciling."""

    def __init__(self, extractor: Extracts, now: Now) -> None:
        self._extractor = extractor
        self._now = now

    async def meaning(self, owner: Owner, content: str) -> Meaning:
        """Of a text that states one fact that holds; what states several, or an end, is kept as it stands."""
        facts = await self._extractor.extract([_as_said(owner, content, self._now())])
        if len(facts) != 1 or facts[0].ends:
            return Meaning()
        fact = facts[0]
        return Meaning(fact.subject, fact.attribute, fact.value, fact.exclusive)

    def standing(self, content: str, meaning: Meaning, found: Found) -> Standing:
        return _STANDING[likeness(_fact(content, meaning), found)]


def _as_said(owner: Owner, content: str, now: datetime) -> Turn:
    return Turn(
        id=digest("told", content), owner=owner, project="", session="", seq=0, asked=content, answered="", at=now
    )


def _fact(content: str, meaning: Meaning) -> Fact:
    return Fact(
        content=content,
        type=MemoryType.SEMANTIC,
        subject=meaning.subject,
        attribute=meaning.attribute,
        value=meaning.value,
        turn_id="",
        source=Source.API,
        version="",
        exclusive=meaning.exclusive,
    )
