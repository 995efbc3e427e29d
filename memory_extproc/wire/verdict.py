"""Who may have memory for one request, and how much: the operator's no, then the client's, and the limits.

What a client says only narrows: fewer memories, a higher bar, fewer types, none at all. Only `force` opens
something, the gate, and only on the client's own memories.
"""

from __future__ import annotations

from dataclasses import dataclass

from memory_extproc.dialect.base import ChatRequest
from memory_extproc.model import Caller, MemoryType, Outcome, Owner, Signals, Switch, digest
from memory_extproc.wire.admission import Admitted
from memory_extproc.wire.options import WireOptions
from memory_extproc.wire.rules import Then

SHARES = 10_000  # steps of *percent*: a hundredth of a percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """All that a verdict is made from."""

    options: WireOptions
    admitted: Admitted
    request: ChatRequest
    then: Then
    caller: Caller | None
    auxiliary: bool  # a chat client's own call: nobody speaks


@dataclass(frozen=True, slots=True)
class Limits:
    """How one request is recalled for, when everybody who may say something has said it."""

    limit: int  # memories in the block at most
    threshold: float  # relevance, 0 to 1
    types: frozenset[MemoryType]
    signals: Signals
    force: bool


def refusal(of: Circumstances) -> Outcome | None:
    """Why there is no recall, in order of whose word counts most; None where there may be one."""
    controls = of.admitted.controls
    body = of.request.controls
    if not of.options.enabled or of.then.retrieve is Switch.SKIP or _nobodys(of):
        return Outcome.DISABLED
    if of.caller is None:
        return Outcome.NO_CALLER
    if controls.retrieve is Switch.SKIP or body.enabled is False or body.limit == 0:
        return Outcome.OPTED_OUT
    return None


def stores(of: Circumstances) -> bool:
    """Whether the exchange may be learned, when its answer turns out well."""
    controls = of.admitted.controls
    body = of.request.controls
    refused_by_operator = not of.options.enabled or of.then.store is Switch.SKIP
    if refused_by_operator or _nobodys(of):
        return False
    if controls.store is Switch.SKIP or body.enabled is False or body.store is False:
        return False
    forced = Switch.FORCE in (controls.store, of.then.store)
    return forced or body.store is True or of.options.auto_store


def _nobodys(of: Circumstances) -> bool:
    """Whether nobody speaks here for the first time."""
    return of.auxiliary or of.admitted.controls.internal or of.admitted.controls.redirected


def compresses(of: Circumstances) -> Switch:
    """Whether a long conversation goes on shortened: the operator's no, then the client's, then who asks for it."""
    said = (of.then.compress, of.admitted.controls.compress)
    if Switch.SKIP in said:
        return Switch.SKIP
    return Switch.FORCE if Switch.FORCE in said else Switch.DEFAULT


def limits_of(of: Circumstances) -> Limits:
    then, body = of.then, of.request.controls
    limit = of.options.limit if then.limit is None else then.limit
    threshold = of.options.threshold if then.threshold is None else then.threshold
    types = frozenset(MemoryType) if then.types is None else then.types
    told, heard = then.signals, of.admitted.signals
    return Limits(
        limit=limit if body.limit is None else max(0, min(limit, body.limit)),
        threshold=threshold if body.threshold is None else max(threshold, body.threshold),
        types=types if body.types is None else types & body.types,
        signals=Signals(
            fact=heard.fact if told.fact is None else told.fact,
            tool=heard.tool if told.tool is None else told.tool,
            greeting=heard.greeting if told.greeting is None else told.greeting,
        ),
        force=Switch.FORCE in (of.admitted.controls.retrieve, then.retrieve),
    )


def in_control_group(owner: Owner, percent: float) -> bool:
    """Whether *owner* is among those who get nothing at *percent*; the same answer for as long as percent
    stands, and nobody who had memories loses them when it rises."""
    place = int(digest("gradual", owner.key)[:8], 16) % SHARES
    return place >= percent / 100 * SHARES
