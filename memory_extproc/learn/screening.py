"""The door of the write path: whether anything of an exchange may be kept, and what. Before anything is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.learn.incognito import Incognito
from memory_extproc.learn.pieces import both_ends
from memory_extproc.learn.quota import Quota
from memory_extproc.model import Exchanged, Owner, Screened, Stored
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.safety.policy import Found, without_secrets

log = logger(__name__)
_AT_ONCE = 4_000  # characters read on the event loop, some milliseconds; what is more goes to a thread


class LearningConsent(Protocol):
    """What people allow, as learning asks for it."""

    def refuses(self, owner: Owner) -> bool:
        """Whether it is known in this process that *owner* allows no learning."""

    async def allows_learning(self, owner: Owner, since: datetime | None = None) -> bool | None:
        """Whether what *owner* says may be learned; with *since*, whether they allowed it at that time and ever
        since. None: it cannot be found out. An earlier yes counts no longer than `ConsentLimits.fresh`."""

    async def answers(self) -> bool:
        """Whether choices can be asked for."""


class Screens(Protocol):
    """What the learner asks before it writes anything."""

    async def screened(self, exchanged: Exchanged, *, waited: bool = False) -> Screened | Stored:
        """What may be kept of *exchanged*, or why nothing may; UNDECIDED: that cannot be known now. *waited*:
        it was undecided or interrupted before."""

    def refuses(self, exchanged: Exchanged) -> bool:
        """Whether it is known already, in this process, that nothing of *exchanged* may be kept."""

    def has_room(self, owner: Owner) -> bool:
        """Whether *owner*'s quota has room for one exchange more; if so it is counted."""

    async def can_tell(self) -> bool:
        """Whether an undecided exchange could be decided now."""


class Unscreened:
    """Keeps everything of everybody: for data sets that are played through the write path."""

    async def screened(self, exchanged: Exchanged, *, waited: bool = False) -> Screened | Stored:  # noqa: ARG002
        return Screened(exchanged, exchanged)

    def refuses(self, exchanged: Exchanged) -> bool:  # noqa: ARG002
        return False

    def has_room(self, owner: Owner) -> bool:  # noqa: ARG002
        return True

    async def can_tell(self) -> bool:
        return True


class Screening:
    """Consent, incognito, the caller's quota, then the words themselves."""

    def __init__(
        self,
        consent: LearningConsent,
        incognito: Incognito,
        quota: Quota | None,  # None: without bound
        kept: Callable[[Exchanged], Found],
        metrics: Metrics,
        *,
        most: int,
    ) -> None:
        """*kept*: what of an exchange without secrets may be kept; pure. *most*: characters of a message that are
        written at all, from both its ends."""
        self._consent, self._incognito, self._quota = consent, incognito, quota
        self._kept, self._metrics, self._most = kept, metrics, most

    def use(self, kept: Callable[[Exchanged], Found]) -> None:
        self._kept = kept

    def refuses(self, exchanged: Exchanged) -> bool:
        person = _person(exchanged)
        return (person is not None and self._consent.refuses(person)) or self._incognito.is_marked(exchanged)

    def has_room(self, owner: Owner) -> bool:
        return self._quota is None or self._quota.take(owner)

    async def can_tell(self) -> bool:
        return await self._incognito.is_shared() and await self._consent.answers()

    async def screened(self, exchanged: Exchanged, *, waited: bool = False) -> Screened | Stored:
        refused = await self._refused(exchanged, waited=waited)
        if refused is not None:
            return refused
        said = sum(len(message.text) for message in exchanged.history)
        if said + len(exchanged.asked) + len(exchanged.answered) > _AT_ONCE:
            masked, kept = await asyncio.to_thread(self._read, exchanged)
        else:
            masked, kept = self._read(exchanged)
        for kind in (*masked.kinds, *kept.kinds):
            self._metrics.withheld.labels(kind).inc()
        return Screened(masked.exchanged, kept.exchanged)

    async def _refused(self, exchanged: Exchanged, *, waited: bool) -> Stored | None:
        # Asked anew, though the wire asked too: an answer can take minutes, and a person change their mind in them.
        # What was undecided may be kept only if they allowed it when they asked, not if they did so since.
        undecided = False
        try:
            if await self._incognito.holds(exchanged):
                return Stored.INCOGNITO
        except MemoryExtprocError as error:
            # In doubt for the person: what may be incognito is not kept before that is known.
            log.warning("incognito.unknown", error=type(error).__name__)
            undecided = True
        person = _person(exchanged)
        if person is not None:
            allowed = await self._consent.allows_learning(person, exchanged.at if waited else None)
            if allowed is False:
                return Stored.NO_CONSENT
            undecided = undecided or allowed is None
        return Stored.UNDECIDED if undecided else None

    def _read(self, exchanged: Exchanged) -> tuple[Found, Found]:
        masked = without_secrets(exchanged)
        return masked, self._kept(self._written(masked.exchanged))

    def _written(self, exchanged: Exchanged) -> Exchanged:
        """Without what is left out in any case: a pasted book would be read for seconds, and for nothing."""
        most = self._most
        history = tuple(replace(one, text=both_ends(one.text, most)) for one in exchanged.history)
        asked, answered = both_ends(exchanged.asked, most), both_ends(exchanged.answered, most)
        return replace(exchanged, history=history, asked=asked, answered=answered)


def _person(exchanged: Exchanged) -> Owner | None:
    """Whose consent counts: of what a member says in a project's name, the member's. None: nobody's is known."""
    caller = exchanged.caller
    if not caller.speaker:
        return caller.owner
    return None if caller.spoken_by is None else caller.spoken_by.owner
