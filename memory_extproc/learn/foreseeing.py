"""What turns that wait to be learned will become, so that a forget reaches it before any store has it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from memory_extproc.learn.extract import Extracts
from memory_extproc.learn.messages import Judges
from memory_extproc.learn.reconcile import row_of
from memory_extproc.model import Memory, Turn
from memory_extproc.ports import Now

_AT_ONCE = 4_000  # characters read on the event loop, some milliseconds; what is more goes to a thread


class ComingMemories:
    """Implements erasure.eraser.ForeseesMemories. Their ids are those that they will have."""

    def __init__(self, judged: Judges, rules: Extracts, *, by_rules_alone: bool, now: Now) -> None:
        """*by_rules_alone*: nobody but *rules* finds facts here; what a model will find nobody can foresee."""
        self._judged, self._rules, self._now = judged, rules, now
        self.complete = by_rules_alone

    async def foresee_messages(self, turns: Sequence[Turn]) -> Sequence[Memory]:
        now = self._now()

        def judged() -> list[Memory]:
            found = [one.memory for turn in turns for one in self._judged(turn, now)]
            return [memory for memory in found if memory is not None]

        if sum(len(turn.asked) + len(turn.answered) for turn in turns) > _AT_ONCE:
            return await asyncio.to_thread(judged)
        return judged()

    async def foresee_facts(self, turns: Sequence[Turn]) -> Sequence[Memory]:
        by_id = {turn.id: turn for turn in turns}
        found = await self._rules.extract(sorted(turns, key=lambda turn: (turn.at, turn.seq)))
        return [row_of(fact, by_id[fact.turn_id], place, "") for place, fact in enumerate(found)]
