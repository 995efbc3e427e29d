"""What of the exchanges and turns is not learned because its owner had it forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memory_extproc.errors import TryLaterError
from memory_extproc.learn.sessions import Placed
from memory_extproc.model import Owner, Turn
from memory_extproc.observe.log import logger
from memory_extproc.ports import Journal, JournalEntry, KnowsForgotten

log = logger(__name__)


class Sifting:
    """Asked before a turn goes into the journal, once it is there, and whenever it is read from it. Without
    *forgotten* everything may be learned."""

    def __init__(self, forgotten: KnowsForgotten | None, journal: Journal) -> None:
        self._forgotten = forgotten
        self._journal = journal

    async def placed(self, placed: Placed) -> Placed | None:
        """As it may be kept; None where it may not. While that cannot be told it is kept: in the journal nobody
        recalls it, and it is sifted again before it is learned."""
        if self._forgotten is None:
            return placed
        try:
            kept = await self._forgotten.learnable(placed.exchanged, placed.turn)
        except TryLaterError as error:
            log.warning("learn.not_sifted", error=type(error).__name__)
            return placed
        return None if kept is None else replace(placed, exchanged=kept[0], turn=kept[1])

    async def withdrawn(self, turn: Turn) -> bool:
        """Whether *turn*, in the journal by now, was forgotten while it went there; then it is out again."""
        if self._forgotten is None:
            return False
        try:
            gone = not await self._forgotten.left([turn])
        except TryLaterError:
            return False  # the forget that is under way will look into the journal
        if gone:
            await self._journal.erase(turn.owner, [turn.id])
        return gone

    async def entries(self, owner: Owner, entries: Sequence[JournalEntry]) -> Sequence[JournalEntry]:
        """Those of *entries* that may be learned; the others leave the journal."""
        if self._forgotten is None or not entries:
            return entries
        left = {turn.id for turn in await self._forgotten.left([entry.turn for entry in entries])}
        if gone := [entry.turn.id for entry in entries if entry.turn.id not in left]:
            await self._journal.erase(owner, gone)
        return [entry for entry in entries if entry.turn.id in left]
