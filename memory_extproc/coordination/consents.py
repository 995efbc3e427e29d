"""Who allows what: people's choices, tenants' defaults, and a short memory of both in this process.

An `off` is never overridden. What was last known to be off stays so while the records cannot be asked; what was
known to be allowed counts for a short grace only, and then nothing is allowed until they can be asked again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import SHARED, Consent, ConsentChange, Owner
from memory_extproc.observe.log import logger
from memory_extproc.ports import ConsentRecords, Now, Steady

log = logger(__name__)
_NOBODY = Owner("", f"{SHARED}nobody")  # whose choice is asked for to see whether choices can be


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsentTerms:
    """*default* holds for who never chose, *tenants* has exceptions by the tenant's name."""

    default: Consent = Consent.ON
    tenants: Mapping[str, Consent] = field(default_factory=dict)

    def of(self, owner: Owner) -> Consent:
        return self.tenants.get(owner.tenant, self.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsentLimits:
    fresh: timedelta = timedelta(seconds=5)  # how long a change made elsewhere may go unnoticed here
    grace: timedelta = timedelta(seconds=60)  # how long a yes counts while the records cannot be asked
    patience: timedelta = timedelta(milliseconds=50)  # for the records, of a request that waits
    pause: timedelta = timedelta(seconds=1)  # after a failure, in which nobody asks again
    owners: int = 100_000  # whose consent is held in process; the least recently asked go first


@dataclass(frozen=True, slots=True)
class _Known:
    consent: Consent
    at: datetime  # when the records said so, by the steady time
    chosen: datetime | None = None  # by the owner, and when; None: it is the terms' word


class Consents:
    """Implements ports.KnowsConsent over *records*. One event loop owns it."""

    def __init__(
        self,
        records: ConsentRecords,
        terms: ConsentTerms,
        limits: ConsentLimits,
        *,
        now: Now,
        steady: Steady | None = None,
    ) -> None:
        """*steady*: by what it is told how long ago something was; *now* unless it is given."""
        self._records, self._terms, self._limits, self._now = records, terms, limits, now
        self._steady = steady or now
        self._known: OrderedDict[Owner, _Known] = OrderedDict()
        self._not_before: datetime | None = None  # after a failure: when the records are asked again
        self._changes = 0  # made through us, so that no answer from before one is kept after it

    def use(self, terms: ConsentTerms, limits: ConsentLimits) -> None:
        """Other terms hold at once for everybody who never chose; what somebody chose is known as before."""
        if terms != self._terms:
            self._changes += 1  # no answer from before is kept after it
            self._known = OrderedDict((owner, known) for owner, known in self._known.items() if known.chosen)
        self._terms, self._limits = terms, limits

    async def allowed(self, owner: Owner) -> Consent | None:
        now = self._steady()
        known = self._known.get(owner)
        if known is not None and self._is_fresh(known):
            self._known.move_to_end(owner)
            return known.consent
        if self._not_before is None or now >= self._not_before:
            try:
                async with asyncio.timeout(self._limits.patience.total_seconds()):
                    return await self.get(owner)
            except (MemoryExtprocError, TimeoutError) as error:
                if self._not_before is None:
                    log.warning("consent.unknown", error=type(error).__name__)
                self._not_before = now + self._limits.pause
                known = self._known.get(owner)
        return self._last_known(known)

    def refuses(self, owner: Owner) -> bool:
        known = self._known.get(owner)
        return known is not None and known.consent is not Consent.ON and self._is_fresh(known)

    async def answers(self) -> bool:
        try:
            await self._records.latest(_NOBODY)
        except MemoryExtprocError:
            return False
        return True

    async def allows_learning(self, owner: Owner, since: datetime | None = None) -> bool | None:
        known = self._known.get(owner)
        try:
            if known is None or not self._is_fresh(known):
                await self.get(owner)
                known = self._known[owner]
            if known.consent is Consent.ON and since is not None and known.chosen and known.chosen > since:
                changes = await self._records.history(owner)
                before = [change.consent for change in changes if change.at <= since]
                then = (before or [self._terms.of(owner)])[-1:]
                after = [change.consent for change in changes if change.at > since]
                return {*then, *after} == {Consent.ON}
        except MemoryExtprocError:
            # Who is known to have said no is not asked again; a yes has no grace here.
            return False if known is not None and known.consent is not Consent.ON else None
        return known.consent is Consent.ON

    def _is_fresh(self, known: _Known) -> bool:
        return self._steady() - known.at < self._limits.fresh

    def _last_known(self, known: _Known | None) -> Consent | None:
        if known is None:
            return None
        if known.consent is Consent.OFF or self._steady() - known.at < self._limits.grace:
            return known.consent
        return None

    async def get(self, owner: Owner) -> Consent:
        while True:
            changes, asked = self._changes, self._steady()
            latest = await self._records.latest(owner)
            if self._not_before is not None:
                self._not_before = None
                log.info("consent.known_again")
            if changes == self._changes:
                consent = self._terms.of(owner) if latest is None else latest.consent
                self._hold(owner, _Known(consent, asked, chosen=None if latest is None else latest.at))
                return consent

    async def set(self, owner: Owner, consent: Consent, *, by: str) -> ConsentChange:
        change = ConsentChange(consent, self._now(), by)
        if consent is Consent.OFF:
            # Before the records have it: whatever becomes of the write, who said no is not asked again here.
            self._changes += 1
            self._hold(owner, _Known(consent, self._steady(), chosen=change.at))
        await self._records.add(owner, change)
        self._changes += 1
        self._hold(owner, _Known(consent, self._steady(), chosen=change.at))
        return change

    async def history(self, owner: Owner) -> tuple[ConsentChange, ...]:
        return tuple(await self._records.history(owner))

    def _hold(self, owner: Owner, known: _Known) -> None:
        self._known[owner] = known
        self._known.move_to_end(owner)
        if len(self._known) > self._limits.owners:
            self._known.popitem(last=False)
