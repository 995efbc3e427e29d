"""The door of the write path: whether anything of an exchange may be kept, and what. Before anything is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.learn.incognito import Incognito
from memory_extproc.learn.pieces import both_ends
from memory_extproc.learn.quota import Quota
from memory_extproc.model import Consent, Exchanged, Screened, Stored
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import KnowsConsent
from memory_extproc.safety.policy import Found, without_secrets

log = logger(__name__)
_AT_ONCE = 4_000  # characters read on the event loop, some milliseconds; what is more goes to a thread


class Screens(Protocol):
    """What the learner asks before it writes anything."""

    async def screened(self, exchanged: Exchanged) -> Screened | Stored:
        """What may be kept of *exchanged*, or why nothing may."""


class Unscreened:
    """Keeps everything of everybody: for data sets that are played through the write path."""

    async def screened(self, exchanged: Exchanged) -> Screened | Stored:
        return Screened(exchanged, exchanged)


class Screening:
    """Consent, incognito, the caller's quota, then the words themselves."""

    def __init__(
        self,
        consent: KnowsConsent,
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

    async def screened(self, exchanged: Exchanged) -> Screened | Stored:
        refused = await self._refused(exchanged)
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

    async def _refused(self, exchanged: Exchanged) -> Stored | None:
        owner = exchanged.caller.owner
        # Asked anew, though the wire asked too: an answer can take minutes, and a person change their mind in them.
        # Of what a member says in a project's name the member was asked, by the wire.
        if not exchanged.caller.speaker and await self._consent.allowed(owner) is not Consent.ON:
            return Stored.NO_CONSENT
        try:
            if await self._incognito.holds(exchanged):
                return Stored.INCOGNITO
        except MemoryExtprocError as error:
            # In doubt for the person: what may be incognito is not kept.
            log.warning("incognito.unknown", error=type(error).__name__)
            return Stored.INCOGNITO
        if self._quota is not None and not self._quota.take(owner):
            return Stored.OVER_QUOTA
        return None

    def _read(self, exchanged: Exchanged) -> tuple[Found, Found]:
        masked = without_secrets(exchanged)
        return masked, self._kept(self._written(masked.exchanged))

    def _written(self, exchanged: Exchanged) -> Exchanged:
        """Without what is left out in any case: a pasted book would be read for seconds, and for nothing."""
        most = self._most
        history = tuple(replace(one, text=both_ends(one.text, most)) for one in exchanged.history)
        asked, answered = both_ends(exchanged.asked, most), both_ends(exchanged.answered, most)
        return replace(exchanged, history=history, asked=asked, answered=answered)
