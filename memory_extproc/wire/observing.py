"""The exchange as a second filter sees it, that stands first, changes nothing and is waited for by nobody.

It sees the client's own request and the answer that the client gets, after whatever other filters made of both.
What became of the request, and whose it is, the filter that changed it says (handover.py).
"""

from __future__ import annotations

from memory_extproc.model import Outcome, Stored
from memory_extproc.observe.tracing import Trail
from memory_extproc.wire.admission import Admitted, Declined
from memory_extproc.wire.capture import Capture
from memory_extproc.wire.enriched import Enriched, Heard
from memory_extproc.wire.events import PASS, Reply, RequestHeaders, ResponseHeaders
from memory_extproc.wire.exchange import Exchange, Phase, Terms, Workshop
from memory_extproc.wire.handover import Overheard, Overhears, handed_in


class ObservedExchange(Exchange):
    """Learns; counts no outcome, because the other filter does."""

    def __init__(self, shop: Workshop, overhears: Overhears, trail: Trail | None = None) -> None:
        super().__init__(shop, Terms(watching=True), trail)
        self._overhears = overhears
        self._overheard: Overheard | None = None

    def _opened(self, event: RequestHeaders) -> Reply:
        found = self._shop.admits.admit(event)
        if isinstance(found, Declined):
            return Reply(ends=True)
        self._admitted = found
        return PASS

    async def _asked(self, admitted: Admitted, data: bytes) -> Reply:
        if self._overheard is not None or self._fate is not None:
            return PASS
        if not self._shop.held.take_to_read(len(data)):
            self._body.clear()
            self._give_back_read()
            self._fate = Stored.PROCESS_LIMIT
            return PASS
        self._held_to_read += len(data)
        self._body += data
        if self.phase is Phase.REQUEST:
            return PASS
        body = bytes(self._body)
        self._body.clear()
        try:
            self._overheard = await self._overhears.read(admitted, body)
        finally:
            self._give_back_read()
        return PASS

    def _answering(self, event: ResponseHeaders) -> Reply:
        handed = handed_in(event.metadata)
        if self._admitted is None or handed is None:
            return Reply(ends=self.phase is not Phase.CLOSED)
        self._trail.caller = self._shop.tag(handed.caller.owner)
        self._enriched = Enriched(outcome=handed.outcome, arm=handed.arm, tenant=handed.tenant)
        why = self._fate or (Stored.UNREADABLE if self._overheard is None else None)
        self._hear((self._overheard or Overheard()).heard(handed))
        self._overheard = None
        self._fate = why or self._fate
        return Reply(ends=not self._captures(self._admitted, event))

    async def _stored(self, heard: Heard, captured: Capture | None) -> Stored:
        if self._fate is None and captured is not None:
            heard = await self._overhears.completed(heard)
        return await super()._stored(heard, captured)

    def _count(self, outcome: Outcome, dialect: str | None = None) -> None:
        """Nothing: the exchange is one, however many filters see it."""
