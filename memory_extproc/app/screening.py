"""What may be kept of whom, as configured."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from memory_extproc.app.erasing import Fleet
from memory_extproc.app.live import Live
from memory_extproc.app.passing import steady_now
from memory_extproc.coordination.consent import SqliteConsent
from memory_extproc.coordination.consents import ConsentLimits, Consents, ConsentTerms
from memory_extproc.errors import MemoryExtprocError
from memory_extproc.learn.extract import Extracts
from memory_extproc.learn.incognito import Incognito, IncognitoLimits
from memory_extproc.learn.intake_log import IntakeLog
from memory_extproc.learn.quarantine import Judging, PutAside, Trusting
from memory_extproc.learn.quota import Quota, QuotaLimits
from memory_extproc.learn.screening import Screening
from memory_extproc.learn.sessions import SessionLimits
from memory_extproc.model import Consent
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import ConsentRecords, Coordination, Now
from memory_extproc.safety.policy import Policy
from memory_extproc.settings import Settings

log = logger(__name__)

_DEFAULTS = {"opt_out": Consent.ON, "opt_in": Consent.OFF}

CONSENT = "consent.db"  # in the data directory


@dataclass(frozen=True, slots=True)
class Door:
    """What stands before the write path, and what the wire and the memory API share of it."""

    consent: Consents
    incognito: Incognito
    screening: Screening


async def open_door(
    settings: Settings,
    data: Path,
    fleet: Fleet | None,
    coordination: Coordination,
    metrics: Metrics,
    stack: AsyncExitStack,
    live: Live,
    *,
    now: Now,
    intake_log: IntakeLog,
) -> Door:
    """*fleet*: None where there is one replica."""
    consent = Consents(
        await _records(data, stack) if fleet is None else fleet.consent,
        consent_terms(settings),
        consent_limits(settings),
        now=now,
        steady=steady_now,
    )
    incognito = await stack.enter_async_context(Incognito(coordination, IncognitoLimits(), intake_log))
    if fleet is not None:
        fleet.recovery.hooks.restored.append(incognito.write_again)
    quota = Quota(quota_limits(settings), now=steady_now)
    screening = Screening(
        consent, incognito, quota, make_policy(settings).kept, metrics, most=SessionLimits().turn_characters
    )

    def use(new: Settings) -> None:
        consent.use(consent_terms(new), consent_limits(new))
        quota.use(quota_limits(new))
        screening.use(make_policy(new).kept)

    live.follow(use)
    return Door(consent, incognito, screening)


def consent_terms(settings: Settings) -> ConsentTerms:
    privacy = settings.privacy
    return ConsentTerms(
        default=_DEFAULTS[privacy.consent],
        tenants={tenant: _DEFAULTS[default] for tenant, default in privacy.consent_of.items()},
    )


def consent_limits(settings: Settings) -> ConsentLimits:
    """The patience of a request is a part of what recall has in all."""
    privacy = settings.privacy
    return ConsentLimits(fresh=privacy.consent_fresh, grace=privacy.consent_grace, patience=settings.deadline / 3)


def quota_limits(settings: Settings) -> QuotaLimits:
    quota = settings.learn.quota
    return QuotaLimits(turns_per_hour=quota.turns_per_hour, burst=quota.burst)


def trusting(live: Live, extractor: Extracts) -> Extracts:
    """*extractor* without what is to be put aside."""
    return Trusting(extractor, aside=lambda: live.settings.privacy.quarantine)


def putting_aside(live: Live, judges: Judging) -> Judging:
    return PutAside(judges, aside=lambda: live.settings.privacy.quarantine)


def make_policy(settings: Settings) -> Policy:
    return Policy(identifiers=settings.privacy.identifiers, sensitive=settings.privacy.sensitive)


async def _records(data: Path, stack: AsyncExitStack) -> ConsentRecords:
    records = await stack.enter_async_context(SqliteConsent(data / CONSENT))
    try:
        await records.open()
    except MemoryExtprocError as error:
        # Nothing is recalled or kept until it can be asked: who said no must not be overheard.
        log.warning("consent.not_open", detail=str(error))
    return records
