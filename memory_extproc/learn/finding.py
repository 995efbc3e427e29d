"""Finding the facts of turns: by the extractor, with the turns before them, or by a stand-in while it is away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta

from memory_extproc.errors import TryLaterError
from memory_extproc.learn.earlier import Earlier
from memory_extproc.learn.extract import Extracts, Fact
from memory_extproc.model import Owner, Turn
from memory_extproc.observe.log import logger
from memory_extproc.ports import Now

log = logger(__name__)


class Finding:
    """While *extractor* cannot be reached, *stand_in* gives facts at once and the turns wait: for *patience* after
    they were said, and *most* of them at a time. What waits longer is the stand-in's for good."""

    def __init__(
        self, extractor: Extracts, stand_in: Extracts | None, *, patience: timedelta, most: int, now: Now
    ) -> None:
        self._extractor = extractor
        self._stand_in = stand_in
        self._patience = patience
        self._most = most
        self._now = now
        self._served: set[str] = set()  # turns that the stand-in gave facts of, and that wait for the extractor
        self._earlier = Earlier()

    def use(self, patience: timedelta) -> None:
        self._patience = patience

    async def facts(self, owner: Owner, turns: Sequence[Turn], epoch: int) -> tuple[Sequence[Fact], bool]:
        """The facts of *turns*, which are of one session, oldest first; and whether that is for good. TryLaterError
        when there is nothing new to say of them yet."""
        earlier = self._earlier.of(owner, turns[0].session, epoch)
        try:
            return await self._extractor.extract(turns, earlier=earlier), True
        except TryLaterError:
            if self._stand_in is None:
                raise
            waited = abs(self._now() - turns[-1].at) > self._patience
            if not waited and self._served.issuperset(turn.id for turn in turns):
                raise
            final = waited or len(self._served) >= self._most
            log.warning("extract.stand_in", extractor=self._stand_in.name, turns=len(turns), final=final)
        return await self._stand_in.extract(turns, earlier=earlier), final

    def waits(self, turns: Sequence[Turn]) -> None:
        """The stand-in's facts of *turns* are stored; the extractor is to be asked again."""
        self._served.update(turn.id for turn in turns)

    def forget(self, owner: Owner) -> None:
        """Nothing that *owner* said so far is shown with what they say next."""
        self._earlier.forget(owner)

    def done(
        self, owner: Owner, turns: Sequence[Turn], epoch: int, *, unshown: AbstractSet[str] = frozenset()
    ) -> None:
        """*turns* are learned. Those of which an id is *unshown* are not shown with the session's next ones."""
        self.gone([turn.id for turn in turns])
        self._earlier.note(owner, turns[-1].session, epoch, [turn for turn in turns if turn.id not in unshown])

    def gone(self, turn_ids: Iterable[str]) -> None:
        """These turns wait no longer, for whatever reason."""
        self._served.difference_update(turn_ids)
