"""How long sessions have been silent, whatever becomes of the wall clock meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from memory_extproc.model import Owner
from memory_extproc.ports import Now, Steady
from memory_extproc.topics.state import Thread


class Silences:
    """Of the sessions that go on here. Records tell by the wall clock when a session was heard of last: that is
    believed once, when it is first seen, and what passes from then on is counted here."""

    def __init__(self, now: Now, steady: Steady) -> None:
        self._now, self._steady = now, steady
        # By session: what its record says, and when that was by the steady time.
        self._heard: dict[Owner, dict[str, tuple[float, datetime]]] = {}

    @property
    def owners(self) -> Sequence[Owner]:
        """Those with sessions that go on."""
        return list(self._heard)

    def heard(self, owner: Owner, session: str, at: float) -> None:
        """*at*, in seconds since 1970, is what its record says."""
        sessions = self._heard.setdefault(owner, {})
        if session not in sessions or sessions[session][0] != at:
            ago = timedelta(seconds=max(0.0, self._now().timestamp() - at))
            sessions[session] = at, self._steady() - ago

    def go_on(self, owner: Owner, threads: Iterable[Thread]) -> None:
        """These and no others do."""
        left = {thread.session: thread.seen_at for thread in threads}
        for session, at in left.items():
            self.heard(owner, session, at)
        sessions = self._heard.pop(owner, {})
        if left:
            self._heard[owner] = {session: sessions[session] for session in left}

    def of(self, owner: Owner, thread: Thread) -> timedelta:
        self.heard(owner, thread.session, thread.seen_at)
        return self._steady() - self._heard[owner][thread.session][1]

    def longer_than(self, idle: timedelta) -> Sequence[Owner]:
        """Whose sessions, one of them at least, have been silent for *idle*."""
        before = self._steady() - idle
        return [
            owner for owner, sessions in self._heard.items() if any(at <= before for _, at in sessions.values())
        ]

    def drop(self, owner: Owner) -> None:
        self._heard.pop(owner, None)
