"""What was said in a turn, as the store holds it: without what was forgotten, put aside or replaced since."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from memory_extproc.model import Memory, MemoryState, Owner, Role
from memory_extproc.ports import KeepsMemories
from memory_extproc.topics.state import SaidTurn

# (owner, turn id, 0 for the caller's message or 1 for the answer, piece) to the id of its memory
NamesMessages = Callable[[Owner, str, int, int], str]
_PIECES = 64  # of a message


@dataclass(frozen=True, slots=True)
class Said:
    """A turn's words; *sources* are the ids of the memories they stand in. Nothing is left of some turns."""

    turn: SaidTurn
    asked: str = field(default="", repr=False)
    answered: str = field(default="", repr=False)
    sources: tuple[str, ...] = ()
    moment: float = 0.0  # in seconds since 1970
    rows: tuple[Memory, ...] = field(default=(), repr=False)  # the same memories, in the order of its words

    def beginning(self, most: int) -> Said:
        """As much of it as stands in *most* memories, two at least: of each side its first pieces."""
        if len(self.rows) <= most:
            return self
        asked = [row for row in self.rows if row.role is Role.USER]
        answered = [row for row in self.rows if row.role is not Role.USER]
        first = min(len(asked), max(most - len(answered), most // 2))
        return said_in(self.turn, [*asked[:first], *answered[: most - first]])

    @property
    def text(self) -> str:
        return "\n".join(part for part in (self.asked, self.answered) if part)

    @property
    def messages(self) -> int:
        return bool(self.asked) + bool(self.answered)


class Sayings:
    """Reads turns from the owner's memories."""

    def __init__(self, keeps: KeepsMemories, names: NamesMessages) -> None:
        self._keeps, self._names = keeps, names

    async def of(self, owner: Owner, turns: Sequence[SaidTurn]) -> list[Said]:
        """One for each of *turns*, in order."""
        ids = {turn.id: [self._names(owner, turn.id.hex(), side, 0) for side in (0, 1)] for turn in turns}
        rows = await self._rows(owner, [one for pair in ids.values() for one in pair])
        # The first piece of a message tells that there are more.
        long = [
            self._names(owner, turn.hex(), side, piece)
            for turn, pair in ids.items()
            for side, first in enumerate(pair)
            if any("piece" in row.metadata for row in rows if row.id == first)
            for piece in range(1, _PIECES)
        ]
        if long:
            rows += await self._rows(owner, long)
        by_turn: defaultdict[str, list[Memory]] = defaultdict(list)
        for row in rows:
            by_turn[str(row.metadata.get("turn", ""))].append(row)
        return [said_in(turn, by_turn[turn.id.hex()]) for turn in turns]

    async def _rows(self, owner: Owner, ids: Sequence[str]) -> list[Memory]:
        found = await self._keeps.get(owner, ids) if ids else ()
        return [row for row in found if row.state is MemoryState.ACTIVE]


def said_in(turn: SaidTurn, rows: Iterable[Memory]) -> Said:
    """*turn* by the memories of its messages, in any order."""
    rows = sorted(rows, key=lambda row: (row.seq, _piece(row)))
    sides = {
        role: " ".join(row.content for row in rows if row.role is role) for role in (Role.USER, Role.ASSISTANT)
    }
    return Said(turn, sides[Role.USER], sides[Role.ASSISTANT], tuple(row.id for row in rows), turn.at, tuple(rows))


def _piece(row: Memory) -> int:
    number = row.metadata.get("piece", 0)
    return number if isinstance(number, int) else 0
