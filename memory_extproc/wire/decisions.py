"""What was decided for a caller's last words, kept for the tool loop that may follow.

In a tool loop the same words come back with every tool result. The block, or its absence, stays as it was for
the first of these requests: the provider's prompt cache holds, and the model is not told two things.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from memory_extproc.dialect.base import ChatRequest
from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import Outcome, Owner, digest
from memory_extproc.observe.log import logger
from memory_extproc.ports import Coordination
from memory_extproc.wire.options import WireOptions

log = logger(__name__)

KIND = "decision"  # of the record in Coordination


class Decision(msgspec.Struct, frozen=True):
    """What recall came to for one caller's words. Holds memories: its print is its outcome."""

    outcome: Outcome
    block: str = ""
    count: int = 0
    path: str = ""
    injected: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<decision: {self.outcome.value}>"


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Decision)


class Decisions:
    """The latest in this process, and through *shared* those of other replicas. A miss costs one recall."""

    def __init__(self, options: WireOptions, shared: Coordination | None = None) -> None:
        self._most = options.decisions
        self._ttl = options.decision_ttl
        self._shared = shared
        self._kept: OrderedDict[str, Decision] = OrderedDict()

    async def find(self, owner: Owner, request: ChatRequest) -> Decision | None:
        key = _key(owner, request)
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return kept
        if self._shared is None:
            return None
        try:
            record = await self._shared.get_record(KIND, owner, key)
            return None if record is None else _decoder.decode(record)
        except (MemoryExtprocError, msgspec.MsgspecError) as error:
            log.warning("decision.unread", kind=type(error).__name__)
            return None

    def keep(self, owner: Owner, request: ChatRequest, decision: Decision) -> None:
        key = _key(owner, request)
        self._kept[key] = decision
        self._kept.move_to_end(key)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    async def share(self, owner: Owner, request: ChatRequest, decision: Decision) -> None:
        """Lets other replicas find it; without any it does nothing. Off the read path."""
        if self._shared is None:
            return
        try:
            await self._shared.put_record(KIND, owner, _key(owner, request), _encode(decision), self._ttl)
        except MemoryExtprocError as error:
            log.warning("decision.not_shared", kind=type(error).__name__)


def _key(owner: Owner, request: ChatRequest) -> str:
    said = [part for message in request.history for part in (message.role.value, message.text)]
    return digest("decision", owner.key, *said, request.asked)
