"""The learner's part in what people tell the assistant to keep or to forget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from memory_extproc.learn.extract import Fact
from memory_extproc.model import Turn
from memory_extproc.ports import Journal, JournalEntry


class Obeys(Protocol):
    """Does what people tell the assistant to keep or to forget."""

    def of(self, turn: Turn) -> Sequence[object]:
        """What *turn* tells us to do; cheap."""

    async def obey(self, turns: Sequence[Turn]) -> None:
        """Repeating it changes nothing more."""

    def doubted(self, turn: Turn) -> bool:
        """Whether *turn* may tell us more, which is found out by `decide`; cheap."""

    async def decide(self, turns: Sequence[Turn]) -> frozenset[str]:
        """Does what turns in doubt turn out to tell us. Ids of those that asked for something to be forgotten.
        TryLaterError while that cannot be found out; repeating it changes nothing more."""


class Obeying:
    """Without *commands* nobody tells us anything."""

    def __init__(self, commands: Obeys | None, journal: Journal) -> None:
        self._commands, self._journal = commands, journal

    def commanding(self, entries: Iterable[JournalEntry]) -> list[Turn]:
        """Those of *entries* that tell us to do something."""
        commands = self._commands
        return [entry.turn for entry in entries if commands and commands.of(entry.turn)]

    async def obey(self, turns: Sequence[Turn]) -> None:
        if self._commands and turns:
            await self._commands.obey(turns)

    def doubted(self, turn: Turn) -> bool:
        """Whether its session is not to be waited for: what is to be forgotten is not recalled for long."""
        return self._commands is not None and self._commands.doubted(turn)

    async def decide(self, turns: Sequence[Turn]) -> frozenset[str]:
        """As Obeys.decide."""
        doubted = [turn for turn in turns if self.doubted(turn)]
        return await self._commands.decide(doubted) if self._commands and doubted else frozenset()

    async def left(self, facts: Sequence[Fact], turn_ids: Sequence[str]) -> Sequence[Fact]:
        """Those of *facts* whose turns were not forgotten in a chat while they were extracted."""
        if self._commands is None or not facts:
            return facts
        there = {entry.turn.id for entry in await self._journal.get(turn_ids)}
        return [fact for fact in facts if fact.turn_id in there]
