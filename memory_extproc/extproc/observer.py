"""The exchange in a second, observing filter, which stands first, changes nothing and delays nothing.

It sees the client's own request and the final answer to the client. The filter that changes the request hands over
its caller and outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from memory_extproc.concurrency import off_loop
from memory_extproc.errors import BadBodyError, MemoryExtprocError
from memory_extproc.extproc.exchange import PASS, Exchange, ExchangeDeps, Phase, Reply, ResponseHeaders, StreamMode
from memory_extproc.extproc.response_capture import Capture
from memory_extproc.model import Arm, Caller, Memory, Message, Origin, Outcome, Owner, TurnOutcome
from memory_extproc.model.headers import RequestHeaders
from memory_extproc.observe.log import Trail, logger
from memory_extproc.request.admission import Admitted, Declined
from memory_extproc.request.body import Enriched, PendingTurn, is_encoded, read_plain, unpack
from memory_extproc.request.replay import BlockReplay, InView
from memory_extproc.settings import CurrentSettings


class ObservedExchange(Exchange):
    """Learns. Counts no outcome, because the other filter does."""

    def __init__(self, deps: ExchangeDeps, overhears: RequestObserver, trail: Trail | None = None) -> None:
        super().__init__(deps, StreamMode(watching=True), trail)
        self._overhears = overhears
        self._overheard: ObservedRequest | None = None

    def _open_request(self, event: RequestHeaders) -> Reply:
        found = self._deps.admits.admit(event, recalls=False)
        if isinstance(found, Declined):
            return Reply(ends=True)
        self._admitted = found
        return PASS

    async def _answer_request(self, admitted: Admitted, data: bytes) -> Reply:
        if self._overheard is not None or self._skip_reason is not None:
            return PASS
        if not self._deps.held.reserve_read(len(data)):
            self._body.clear()
            self._give_back_read()
            self._skip_reason = TurnOutcome.PROCESS_LIMIT
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
        if self._deps.held.reserve_learn(len(body)):
            self._held_to_learn = len(body)  # while the model answers
        else:
            self._overheard, self._skip_reason = None, TurnOutcome.PROCESS_LIMIT
        return PASS

    def _answering(self, event: ResponseHeaders) -> Reply:
        handed = decode_handover(event.metadata)
        if self._admitted is None or handed is None:
            return Reply(ends=self.phase is not Phase.CLOSED)
        self._trail.caller = self._deps.tag(handed.caller.owner)
        self._enriched = Enriched(outcome=handed.outcome, arm=handed.arm, tenant=handed.tenant)
        why = self._skip_reason or (TurnOutcome.UNREADABLE if self._overheard is None else None)
        self._give_back_learn()
        self._hear((self._overheard or ObservedRequest()).to_pending_turn(handed))
        self._overheard = None
        self._skip_reason = why or self._skip_reason
        return Reply(ends=not self._captures(self._admitted, event))

    async def _store_turn(self, heard: PendingTurn, captured: Capture | None) -> TurnOutcome:
        if self._skip_reason is None and captured is not None:
            heard = await self._overhears.fill_contents(heard)
        return await super()._store_turn(heard, captured)

    def _count(self, outcome: Outcome, dialect: str | None = None) -> None:
        """Does nothing: the other filter counts the exchange."""


# The handover from the filter that changes a request to the observing filter, in Envoy's dynamic metadata.
#
# The two may reach different replicas, so they share nothing else. It contains a caller and ids of memories, but no
# texts of users; do not print its namespace in access logs.

log = logger(__name__)

HANDED, TURN = "memory_learning", "turn"  # namespace and key of that metadata


class HandoverMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """The handover of a request. Older readers ignore unknown fields, and missing fields have defaults, so two
    versions may run side by side."""

    caller: Caller
    store: bool
    outcome: Outcome
    arm: Arm = Arm.NONE
    tenant: str | None = None
    unkept: TurnOutcome = TurnOutcome.NOT_ASKED
    notes_response: bool = False
    ends_session: bool = False
    origin: Origin = Origin()
    seen: tuple[str, ...] = ()  # ids of the memories in the model's input
    reach: tuple[Owner, ...] = ()  # their possible owners
    viewer: Owner | None = None  # the owner of the conversation that the provider stores, if any
    epoch: int = 0
    tools: bool = False  # as Exchanged.tools

    @classmethod
    def of(cls, heard: PendingTurn, enriched: Enriched) -> HandoverMetadata:
        view = heard.in_view
        return cls(
            caller=heard.caller,
            store=heard.store,
            outcome=enriched.outcome,
            arm=enriched.arm,
            tenant=enriched.tenant,
            unkept=heard.unkept,
            notes_response=heard.notes_response,
            ends_session=heard.ends_session,
            origin=heard.origin,
            seen=heard.seen,
            reach=heard.reach,
            viewer=None if view is None else view.owner,
            epoch=0 if view is None else view.epoch,
            tools=heard.tools,
        )

    def __repr__(self) -> str:
        return f"<handed: {self.outcome.value}>"


def encode_handover(heard: PendingTurn, enriched: Enriched) -> str:
    return msgspec.json.encode(HandoverMetadata.of(heard, enriched)).decode()


def decode_handover(metadata: Mapping[str, Any]) -> HandoverMetadata | None:
    """The handover; None if the other filter was bypassed or does not exist."""
    told = metadata.get(HANDED)
    text = told.get(TURN) if isinstance(told, Mapping) else None
    if not isinstance(text, str):
        return None
    try:
        return msgspec.json.decode(text, type=HandoverMetadata)
    except msgspec.MsgspecError:
        log.warning("handover.unreadable")
        return None


@dataclass(frozen=True, slots=True)
class ObservedRequest:
    """The parts of the client's request that learning needs."""

    history: tuple[Message, ...] = field(default=(), repr=False)
    asked: str = field(default="", repr=False)
    previous_response_id: str = ""
    conversation: str = ""  # as Exchanged.conversation

    def to_pending_turn(self, handed: HandoverMetadata) -> PendingTurn:
        """The turn without the contents of injected memories, which `RequestObserver.fill_contents` adds."""
        view = None if handed.viewer is None else InView(handed.viewer, handed.epoch, ())
        return PendingTurn(
            caller=handed.caller,
            store=handed.store,
            history=self.history,
            asked=self.asked,
            origin=handed.origin,
            previous_response_id=self.previous_response_id,
            conversation=self.conversation,
            ends_session=handed.ends_session,
            unkept=handed.unkept,
            notes_response=handed.notes_response,
            in_view=view,
            seen=handed.seen,
            reach=handed.reach,
            tools=handed.tools,
        )


class MemoryGetter(Protocol):
    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]: ...


class RequestObserver:
    """Reads requests for the observing filter."""

    def __init__(self, gets: MemoryGetter, replays: BlockReplay, current: CurrentSettings) -> None:
        self._gets, self._replays, self._current = gets, replays, current

    async def read(self, admitted: Admitted, body: bytes) -> ObservedRequest | None:
        """Parse a body. None if it is unreadable, for the other filter too."""
        limit = self._current.settings.limits.request_body
        if len(body) > limit:
            return None
        try:
            plain = await off_loop(
                limit if is_encoded(admitted.encoding) else len(body), unpack, admitted.encoding, body, limit
            )
            request = await read_plain(admitted, plain)
        except BadBodyError:
            return None
        return ObservedRequest(
            request.history, request.asked, request.previous_response_id, request.kept_conversation
        )

    async def fill_contents(self, heard: PendingTurn) -> PendingTurn:
        """Add the contents of injected memories, as far as they are available: they keep us from learning our own
        text as a statement."""
        contents = await self._contents(heard)
        view = heard.in_view
        if view is not None:
            behind = await self._replays.provider_context(
                view.owner, heard.previous_response_id or heard.conversation
            )
            view = replace(view, contents=tuple(dict.fromkeys((*behind, *contents))))
            contents = view.contents
        return replace(heard, injected=contents, in_view=view if contents else None)

    async def _contents(self, heard: PendingTurn) -> tuple[str, ...]:
        missing, found = list(heard.seen), dict[str, str]()
        for owner in heard.reach:
            if not missing:
                break
            try:
                memories = await self._gets.get(owner, missing)
            except MemoryExtprocError as error:
                log.warning("handover.memories_unread", kind=type(error).__name__)
                continue
            found |= {memory.id: memory.content for memory in memories}
            missing = [one for one in missing if one not in found]
        return tuple(found[one] for one in heard.seen if one in found)
