"""What the learner tells whoever gathers turns into topics, and what it is told in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from memory_extproc.errors import GiveUpError, MemoryExtprocError
from memory_extproc.learn.gathering import Gatherings, Trigger
from memory_extproc.model import Owner, Turn
from memory_extproc.observe.log import logger

log = logger(__name__)


class FollowsTopics(Protocol):
    """Gathers turns into topics; what comes of that comes later."""

    shifted: Callable[[Owner, str], object]  # told the session whose topic has changed

    async def note(self, owner: Owner, turns: Sequence[Turn], last: frozenset[str]) -> None:
        """Durable when it returns; *last* are the turns that end their session."""

    async def end(self, owner: Owner, session: str, *, but: frozenset[str]) -> None:
        """*session*, or with an empty name all of *owner*'s, has ended, *but* those of which more is to come."""


class Following:
    """A session's turns are due for extraction when its topic has changed. Without *topics* nothing happens."""

    def __init__(self, topics: FollowsTopics | None, gatherings: Gatherings) -> None:
        self._topics, self._gatherings = topics, gatherings
        if topics is not None:
            topics.shifted = self._shifted

    async def note(self, turns: Iterable[Turn], last: Iterable[str]) -> None:
        """Before the turns can be marked learned, so that a crash in between loses none of them. TryLaterError
        where they cannot be written down now."""
        if self._topics is None:
            return
        by_owner: dict[Owner, list[Turn]] = {}
        for turn in turns:
            by_owner.setdefault(turn.owner, []).append(turn)
        for owner, theirs in by_owner.items():
            try:
                await self._topics.note(owner, theirs, frozenset(last))
            except GiveUpError as error:  # facts are extracted all the same
                log.warning("topics.not_noted", error=type(error).__name__)

    async def end(self, owner: Owner, session: str, *, but: Iterable[str]) -> None:
        """*but*: sessions whose last turn is on its way, and ends them when it is noted."""
        if self._topics is None:
            return
        try:
            await self._topics.end(owner, session, but=frozenset(but))
        except MemoryExtprocError as error:  # it ends by itself when it has been silent for long enough
            log.warning("topics.not_ended", error=type(error).__name__)

    def _shifted(self, owner: Owner, session: str) -> None:
        self._gatherings.flush(owner, session, Trigger.TOPIC)
