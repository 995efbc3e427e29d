"""From a whole request body to what the upstream gets: read, decide, recall, place.

Whatever cannot be done here leaves the body as the client sent it, with one word for why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from memory_extproc.dialect.base import ChatRequest, Edit, Form, Placing, apply
from memory_extproc.dialect.controls import removals
from memory_extproc.dialect.profiles import choose_form, profile_for, room
from memory_extproc.errors import BadBodyError, MemoryExtprocError
from memory_extproc.model import Caller, Message, Origin, Outcome, Recalled, Role, Scope, Wish, digest
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import KnowsChains, Recalls
from memory_extproc.wire.admission import Admitted
from memory_extproc.wire.auxiliary import auxiliary
from memory_extproc.wire.background import Background
from memory_extproc.wire.coding import OversizeError, packed, unpack
from memory_extproc.wire.decisions import Decision, Decisions
from memory_extproc.wire.identity import Identity, accepted
from memory_extproc.wire.options import Mode, WireOptions
from memory_extproc.wire.rules import RuleFacts, Rules, Then
from memory_extproc.wire.verdict import Circumstances, in_control_group, limits_of, refusal, stores

log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What a request leaves behind for learning, once its answer is known."""

    caller: Caller
    store: bool
    history: tuple[Message, ...] = field(repr=False)
    asked: str = field(repr=False)
    origin: Origin
    previous_response_id: str
    ends_session: bool
    injected: tuple[str, ...] = field(default=(), repr=False)

    @property
    def size(self) -> int:
        """About how many bytes it holds."""
        return sum(len(message.text) for message in self.history) + len(self.asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enriched:
    """What became of a request body. *body* None: it goes on as it came."""

    outcome: Outcome
    body: bytes | None = field(default=None, repr=False)
    unpacked: bool = False  # *body* no longer has the content-encoding it came with
    count: int = 0  # memories in the block that went in
    path: str = ""
    heard: Heard | None = None  # None: nothing can be learned from this exchange

    @property
    def status(self) -> str:
        """The value of x-memory-status."""
        if self.outcome is not Outcome.USED:
            return self.outcome.value
        return f"{self.outcome.value};n={self.count};path={self.path}"


class Enricher:
    def __init__(
        self,
        options: WireOptions,
        *,
        identity: Identity,
        rules: Rules,
        recalls: Recalls,
        decisions: Decisions,
        background: Background,
        metrics: Metrics,
        chains: KnowsChains | None = None,
    ) -> None:
        self._options, self._identity, self._rules = options, identity, rules
        self._recalls, self._decisions, self._chains = recalls, decisions, chains
        self._background = background
        self._splice_seconds = metrics.recall_seconds.labels("splice")

    async def enrich(self, admitted: Admitted, body: bytes, *, watching: bool = False) -> Enriched:
        """*watching*: Envoy takes no answer from us, so nothing can be injected: as mode shadow."""
        limit = self._options.request_bytes
        if len(body) > limit:
            return Enriched(outcome=Outcome.TOO_LARGE)
        try:
            plain = unpack(admitted.encoding, body, limit)
        except OversizeError:
            return Enriched(outcome=Outcome.TOO_LARGE)
        except BadBodyError as error:
            return _unreadable(admitted, error)
        try:
            request = admitted.dialect.read(plain)
        except BadBodyError as error:
            return _unreadable(admitted, error, plain)
        return await self._read(admitted, request, watching=watching)

    async def _read(self, admitted: Admitted, request: ChatRequest, *, watching: bool) -> Enriched:
        caller = self._caller(admitted, request)
        then = self._then(admitted, request, caller)
        circumstances = Circumstances(
            options=self._options,
            admitted=admitted,
            request=request,
            then=then,
            caller=caller,
            auxiliary=self._options.skip_auxiliary and auxiliary(request.asked, request.system),
        )
        no = refusal(circumstances)
        if no is not None or caller is None:
            decision = Decision(no or Outcome.NO_CALLER)
        else:
            decision = await self._decided(circumstances, caller)
        if decision.outcome is Outcome.USED and (watching or self._options.mode is Mode.SHADOW):
            decision = Decision(Outcome.SHADOWED)
        enriched = self._placed(admitted, request, then, decision)
        if caller is None:
            return enriched
        heard = Heard(
            caller=caller,
            store=stores(circumstances),
            history=request.history,
            asked=request.asked,
            origin=Origin(
                dialect=admitted.dialect.name,
                model=request.model,
                route=admitted.route,
                app=admitted.headers.get("x-memory-app"),
            ),
            previous_response_id=request.previous_response_id,
            ends_session=admitted.controls.ends_session,
            injected=decision.injected if enriched.outcome is Outcome.USED else (),
        )
        return replace(enriched, heard=heard)

    def _caller(self, admitted: Admitted, request: ChatRequest) -> Caller | None:
        caller = admitted.caller
        controls = request.controls
        if caller is None and controls.user:
            caller = self._identity.caller_of_body(admitted.headers, admitted.metadata, controls.user)
        if caller is not None and controls.project and not caller.project:
            # Only where no header named one: the gateway's word on the project is not the body's to change.
            # A project that cannot be one must not become none, which would be all of them (see Identity).
            project = accepted(controls.project) or digest("project", controls.project)
            caller = replace(caller, project=project)
        return caller

    def _then(self, admitted: Admitted, request: ChatRequest, caller: Caller | None) -> Then:
        facts = RuleFacts(
            path=admitted.path,
            model=request.model,
            route=admitted.route,
            tenant=caller.owner.tenant if caller else "",
            headers=admitted.headers,
            asked=request.asked,
        )
        return self._rules.first(facts)

    async def _decided(self, circumstances: Circumstances, caller: Caller) -> Decision:
        """What recall says, or said when this tool loop began."""
        request = circumstances.request
        if self._options.mode is Mode.GRADUAL and in_control_group(caller.owner, self._options.percent):
            return Decision(Outcome.CONTROL)
        if not request.asked.strip():
            # Nobody's words are in reach: a tool's result with the conversation elsewhere, or only pictures.
            outcome = Outcome.SKIPPED_TOOL if request.ends_in_tool_result else Outcome.NOTHING_RELEVANT
            return Decision(outcome)
        try:
            async with asyncio.timeout(self._options.give_up_after.total_seconds()):
                if request.ends_in_tool_result and (kept := await self._decisions.find(caller.owner, request)):
                    return kept
                recalled = await self._recalls.recall(await self._wish(circumstances, caller))
        except TimeoutError:
            log.warning("recall.never_came")
            return Decision(Outcome.OUT_OF_TIME)
        decision = _decision(recalled)
        if request.tools or request.ends_in_tool_result:
            self._decisions.keep(caller.owner, request, decision)
            self._background.start(self._decisions.share(caller.owner, request, decision))
        return decision

    async def _wish(self, circumstances: Circumstances, caller: Caller) -> Wish:
        request = circumstances.request
        said = [message.text for message in request.history if message.role is Role.USER]
        chained = await self._chained(caller, request.previous_response_id)
        limits = limits_of(circumstances)
        return Wish(
            caller=caller,
            asked=request.asked,
            earlier=(*chained, *said),
            signals=limits.signals,
            force=limits.force,
            limit=limits.limit,
            threshold=limits.threshold,
            scope=Scope(project=caller.project, types=limits.types),
            room=room(
                request,
                profile_for(request.model),
                configured_window=self._options.window,
                margin=self._options.margin,
                unknown_cap=self._options.unknown_cap,
            ),
            in_view=frozenset((request.asked, *(message.text for message in request.history))),
        )

    async def _chained(self, caller: Caller, previous_response_id: str) -> Sequence[str]:
        """What the caller said before, where the request does not repeat it."""
        if self._chains is None or not previous_response_id:
            return ()
        try:
            chain = await self._chains.chain(caller.owner, previous_response_id)
        except MemoryExtprocError as error:
            log.warning("chain.unread", kind=type(error).__name__)
            return ()
        return () if chain is None else chain.earlier

    def _placed(self, admitted: Admitted, request: ChatRequest, then: Then, decision: Decision) -> Enriched:
        started = time.perf_counter()
        outcome, block = decision.outcome, decision.block
        edits: list[Edit] = list(request.removals)
        if outcome is Outcome.USED:
            inject = then.inject or self._options.inject_as
            known = choose_form("auto", profile_for(request.model), request)
            form = known if inject == "auto" else Form(inject)
            (places,) = admitted.dialect.place(request, [Placing(block, form)])
            if not places:
                outcome = Outcome.NO_ROOM
            edits += places
        if not edits:
            return Enriched(outcome=outcome)
        body = apply(request.body, edits)
        self._splice_seconds.observe(time.perf_counter() - started)
        return Enriched(
            outcome=outcome,
            body=body,
            unpacked=packed(admitted.encoding),
            count=decision.count if outcome is Outcome.USED else 0,
            path=decision.path,
        )


def _unreadable(admitted: Admitted, error: BadBodyError, plain: bytes = b"") -> Enriched:
    """The body goes on as it came, but for fields of ours in it: no upstream knows those, read or not."""
    log.info("request.unreadable", dialect=admitted.dialect.name, detail=str(error))
    edits = removals(plain)
    if not edits:
        return Enriched(outcome=Outcome.BAD_BODY)
    return Enriched(outcome=Outcome.BAD_BODY, body=apply(plain, edits), unpacked=packed(admitted.encoding))


def _decision(recalled: Recalled) -> Decision:
    return Decision(
        outcome=recalled.outcome,
        block=recalled.block,
        count=len(recalled.memories),
        path=recalled.path,
        injected=tuple(ranked.memory.content for ranked in recalled.memories),
    )
