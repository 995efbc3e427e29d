"""The last turns of a session that were learned from, shown with its next ones so that these can be understood."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from memory_extproc.model import Owner, Turn

_TURNS = 3
_CHARACTERS = 800  # of each side of a turn


@dataclass(frozen=True, slots=True)
class _Kept:
    epoch: int
    turns: tuple[Turn, ...]


class Earlier:
    """Held in process, for the sessions last learned from; nothing of an owner outlives their epoch."""

    def __init__(self, sessions: int = 1_000) -> None:
        self._most = sessions
        self._kept: OrderedDict[tuple[Owner, str], _Kept] = OrderedDict()

    def of(self, owner: Owner, session: str, epoch: int) -> Sequence[Turn]:
        """At most three turns, oldest first."""
        kept = self._kept.get((owner, session))
        return kept.turns if kept is not None and kept.epoch == epoch else ()

    def forget(self, owner: Owner) -> None:
        for key in [key for key in self._kept if key[0] == owner]:
            del self._kept[key]

    def note(self, owner: Owner, session: str, epoch: int, turns: Sequence[Turn]) -> None:
        """*turns* of *session*, oldest first, have been learned from."""
        short = [
            replace(turn, asked=turn.asked[:_CHARACTERS], answered=turn.answered[:_CHARACTERS])
            for turn in turns[-_TURNS:]
        ]
        together = (*self.of(owner, session, epoch), *short)
        self._kept[owner, session] = _Kept(epoch, together[-_TURNS:])
        self._kept.move_to_end((owner, session))
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
