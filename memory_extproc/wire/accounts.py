"""What memory adds and what the provider's cache spares, by tenant and by side of the comparison."""

from __future__ import annotations

from collections.abc import Collection

from memory_extproc.dialect.base import Answer
from memory_extproc.model import Arm
from memory_extproc.observe.metrics import Metrics
from memory_extproc.wire.enriched import Enriched

OTHERS = "other"  # the label of every tenant that is not named


class Accounts:
    """Tenants are named in labels only where an operator lists them, so their number is the operator's choice and
    no client can raise it."""

    def __init__(self, metrics: Metrics, tenants: Collection[str] = ()) -> None:
        self._metrics, self._tenants = metrics, frozenset(tenants)

    def asked(self, enriched: Enriched) -> None:
        """A request with a caller left us."""
        if enriched.arm is Arm.NONE:
            return
        labels = self._labels(enriched)
        self._metrics.arm_exchanges.labels(*labels).inc()
        self._metrics.arm_added_tokens.labels(*labels).inc(enriched.tokens)

    def answered(self, enriched: Enriched, answer: Answer) -> None:
        """Its answer says what it was counted as. Only where the provider tells of its cache: the two are a share
        of one another."""
        if enriched.arm is Arm.NONE or answer.prompt_tokens is None or answer.cached_tokens is None:
            return
        labels = self._labels(enriched)
        self._metrics.arm_prompt_tokens.labels(*labels).inc(answer.prompt_tokens)
        self._metrics.arm_cached_tokens.labels(*labels).inc(answer.cached_tokens)

    def _labels(self, enriched: Enriched) -> tuple[str, str]:
        named = enriched.tenant is not None and enriched.tenant in self._tenants
        return (enriched.tenant or OTHERS) if named else OTHERS, enriched.arm.value
