"""Turns of a session gathered until facts are extracted from them together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from memory_extproc.model import Owner


class Trigger(StrEnum):
    """Why a session's turns are due: the label of extraction_triggers_total, so never renamed."""

    BATCH = "batch"  # enough of them have come together
    IDLE = "idle"  # the session fell silent
    ENDED = "ended"  # the client ended it
    TOPIC = "topic"  # its topic has changed: who watches topics says so
    COMMAND = "command"  # it may tell us to keep or to forget something, and a model is to say
    DRAIN = "drain"  # we leave


@dataclass(slots=True)
class _Gathering:
    turn_ids: dict[str, None] = field(default_factory=dict)  # in order, each once
    timer: asyncio.TimerHandle | None = None


class Gatherings:
    """Gives each session's turn ids to *due* when *batch* of them have come together, when the session was
    *idle* for so long, or when it is told to."""

    def __init__(
        self,
        due: Callable[[Owner, tuple[str, ...]], object],
        *,
        batch: int,
        idle: timedelta,
        told: Callable[[Trigger], object] = lambda _: None,
    ) -> None:
        """*told*: why, each time something is due."""
        self._due = due
        self._told = told
        self._batch = batch
        self._idle = idle.total_seconds()
        self._open: dict[Owner, dict[str, _Gathering]] = {}

    def use(self, *, batch: int, idle: timedelta) -> None:
        """For what is added from now on: a clock that runs is not set anew."""
        self._batch, self._idle = batch, idle.total_seconds()

    def add(self, owner: Owner, session: str, turn_id: str, *, last: bool = False) -> None:
        """*last*: the session ends with this turn."""
        gathering = self._open.setdefault(owner, {}).setdefault(session, _Gathering())
        gathering.turn_ids[turn_id] = None
        if last or len(gathering.turn_ids) >= self._batch:
            self.flush(owner, session, Trigger.ENDED if last else Trigger.BATCH)
            return
        if gathering.timer is not None:
            gathering.timer.cancel()
        gathering.timer = asyncio.get_running_loop().call_later(
            self._idle, self.flush, owner, session, Trigger.IDLE
        )

    def sessions(self, owner: Owner) -> list[str]:
        """Those of which something is gathered."""
        return list(self._open.get(owner, ()))

    def flush(self, owner: Owner, session: str, trigger: Trigger = Trigger.ENDED) -> None:
        """What is gathered of *session* is due now."""
        sessions = self._open.get(owner, {})
        gathering = sessions.pop(session, None)
        if not sessions:
            self._open.pop(owner, None)
        if gathering is None:
            return
        if gathering.timer is not None:
            gathering.timer.cancel()
        self._told(trigger)
        self._due(owner, tuple(gathering.turn_ids))

    def flush_all(self) -> None:
        for owner in list(self._open):
            for session in self.sessions(owner):
                self.flush(owner, session, Trigger.DRAIN)

    def close(self) -> None:
        """Stops all timers; what is gathered is not given to anybody."""
        for sessions in self._open.values():
            for gathering in sessions.values():
                if gathering.timer is not None:
                    gathering.timer.cancel()
        self._open.clear()
