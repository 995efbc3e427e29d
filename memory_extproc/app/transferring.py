"""Exports and imports as configured."""

from __future__ import annotations

from memory_extproc.api.transfers import Transfers
from memory_extproc.portability.exporter import Exporter
from memory_extproc.portability.importer import Importer, ImportLimits
from memory_extproc.ports import (
    Coordination,
    Embeds,
    Journal,
    KeepsMemories,
    KnowsConsent,
    KnowsForgotten,
    MemoryStore,
    Now,
)
from memory_extproc.settings import Settings


def make_transfers(
    settings: Settings,
    store: MemoryStore,
    journal: Journal,
    keeps: KeepsMemories,
    embeds: Embeds,
    coordination: Coordination,
    *,
    now: Now,
    consent: KnowsConsent | None = None,
    forgotten: KnowsForgotten | None = None,
) -> Transfers:
    limits = ImportLimits(content_bytes=settings.limits.content_bytes)
    importer = Importer(keeps, embeds, coordination, limits, now=now, consent=consent, forgotten=forgotten)
    return Transfers(Exporter(store, journal, consent=consent), importer, now=now)
