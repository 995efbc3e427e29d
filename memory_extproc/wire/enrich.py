"""From a whole request body to what the upstream gets: read, decide, recall, place.

Whatever cannot be done here leaves the body as the client sent it, with one word for why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from memory_extproc.dialect.base import ChatRequest
from memory_extproc.dialect.responses import Responses
from memory_extproc.model import (
    Arm,
    Caller,
    Consent,
    Origin,
    Outcome,
    Owner,
    Stored,
    Switch,
    digest,
)
from memory_extproc.observe.metrics import Metrics
from memory_extproc.observe.tracing import NO_TRACES, Traces
from memory_extproc.ports import KnowsChains, KnowsConsent, KnowsProfile, NotesIncognito, Recalls
from memory_extproc.wire.admission import Admitted
from memory_extproc.wire.auxiliary import auxiliary
from memory_extproc.wire.compression import Compression
from memory_extproc.wire.deciding import Decider, Plan
from memory_extproc.wire.enriched import Enriched, Heard
from memory_extproc.wire.given import Decision
from memory_extproc.wire.identity import Identity, accepted
from memory_extproc.wire.large import off_loop
from memory_extproc.wire.options import Mode, WireOptions
from memory_extproc.wire.placing import Placer
from memory_extproc.wire.reading import read_body, read_plain
from memory_extproc.wire.replays import Replays
from memory_extproc.wire.rules import RuleFacts, Rules, Then
from memory_extproc.wire.verdict import Circumstances, compresses, in_control_group, refusal, stores


@dataclass(frozen=True, slots=True)
class _Leave:
    """What one request may have of memory."""

    refused: Outcome | None  # why nothing is recalled; None: it may be
    stores: bool  # all but the caller's consent speaks for keeping it
    consent: Consent | None  # None: nobody could be asked

    @property
    def keeps(self) -> bool:
        return self.stores and self.consent is Consent.ON

    @property
    def may_keep(self) -> bool:
        """Whether learning is to decide, which asks for consent again: when nobody can be asked it waits."""
        return self.stores and self.consent in {Consent.ON, None}


class Enricher:
    def __init__(
        self,
        options: WireOptions,
        *,
        identity: Identity,
        rules: Rules,
        recalls: Recalls,
        replays: Replays,
        metrics: Metrics,
        chains: KnowsChains | None = None,
        consent: KnowsConsent | None = None,  # None: everybody allows everything
        incognito: NotesIncognito | None = None,
        traces: Traces = NO_TRACES,
        profiles: KnowsProfile | None = None,  # None: nobody is told who a caller is
        compression: Compression | None = None,  # None: every conversation goes on as long as it came
    ) -> None:
        self.compression = compression
        self._options, self._identity, self._rules = options, identity, rules
        self._replays, self._consent, self._incognito, self._traces = replays, consent, incognito, traces
        self._decider = Decider(
            options, recalls=recalls, replays=replays, metrics=metrics, chains=chains, profiles=profiles
        )
        self._placer = Placer(options, replays=replays, metrics=metrics, traces=traces)

    async def enrich(self, admitted: Admitted, body: bytes, *, watching: bool = False) -> Enriched:
        """*watching*: Envoy takes no answer from us, so nothing can be injected: as mode shadow."""
        request = await read_body(admitted, body, self._options.request_bytes)
        if isinstance(request, Enriched):
            return request
        return await self._read(admitted, request, watching=watching)

    async def _read(self, admitted: Admitted, request: ChatRequest, *, watching: bool) -> Enriched:
        circumstances = await self._circumstances(admitted, request)
        caller, leave = circumstances.caller, await self._leave(circumstances)
        shadowed = watching or self._options.mode is Mode.SHADOW
        short = request
        if caller is not None and leave.keeps and not shadowed:
            short = await self._shortened(circumstances, caller)
            circumstances = replace(circumstances, request=short)
        if leave.refused is not None or caller is None:
            plan = Plan(Decision(leave.refused or Outcome.NO_CALLER))
        else:
            plan = await self._decider.decided(circumstances, caller)
        enriched = await self._placer.placed(admitted, short, plan, shadowed=shadowed, anew=short is not request)
        if caller is None:
            return enriched
        if enriched.personal and plan.thread is not None and not await self._replays.stands(plan.thread):
            # Forgotten while we worked: neither what was found nor what was given before may go out.
            plan = Plan(Decision(Outcome.UNAVAILABLE))
            enriched = await self._placer.placed(admitted, request, plan, shadowed=shadowed)
        heard = await self._heard(admitted, request, caller, leave)
        if plan.thread is not None and not shadowed:
            heard = self._placer.with_view(heard, enriched, plan, plan.thread, admitted)
            heard = replace(heard, reach=(caller.owner, *self._options.sharing.owners(caller)))
        self._traces.show(asked=request.asked, block=plan.decision.block)
        arm = self._arm(caller.owner, shadowed=shadowed)
        return replace(enriched, heard=heard, arm=arm, tenant=caller.owner.tenant)

    async def _circumstances(self, admitted: Admitted, request: ChatRequest) -> Circumstances:
        caller = self._caller(admitted, request)
        then = await off_loop(len(request.asked), self._then, admitted, request, caller)
        return Circumstances(
            options=self._options,
            admitted=admitted,
            request=request,
            then=then,
            caller=caller,
            auxiliary=self._options.skip_auxiliary and auxiliary(request.asked, request.system),
        )

    async def _leave(self, circumstances: Circumstances) -> _Leave:
        no, store = refusal(circumstances), stores(circumstances)
        caller = circumstances.caller
        allowed: Consent | None = Consent.ON
        if caller is not None and (no is None or store):
            allowed = await self._allowed(caller.owner)
        if no is None and allowed not in {Consent.ON, Consent.RECALL_ONLY}:
            # Where nobody can be asked it is an outage, for an operator to see; to the caller it is the same.
            no = Outcome.UNAVAILABLE if allowed is None else Outcome.NO_CONSENT
        return _Leave(no, store, allowed)

    async def _heard(self, admitted: Admitted, request: ChatRequest, caller: Caller, leave: _Leave) -> Heard:
        learned_as = _in_session(self._options.sharing.learned_as(caller), request)
        incognito = admitted.controls.incognito and self._incognito is not None
        if admitted.controls.incognito and self._incognito is not None:
            await self._incognito.mark(learned_as, request.history, request.asked, request.continues)
        return Heard(
            caller=learned_as,
            store=leave.may_keep,
            unkept=_unkept(incognito=admitted.controls.incognito, refused=leave.stores),
            notes_response=incognito and admitted.dialect.name == Responses.name,
            history=request.history,
            asked=request.asked,
            origin=Origin(
                dialect=admitted.dialect.name,
                model=request.model,
                route=admitted.route,
                app=admitted.headers.get("x-memory-app"),
            ),
            previous_response_id=request.previous_response_id,
            conversation=request.kept_conversation,
            ends_session=admitted.controls.ends_session,
        )

    async def _shortened(self, circumstances: Circumstances, caller: Caller) -> ChatRequest:
        """The request with its older messages condensed, where that is wanted and can be; else as it came."""
        request, admitted, wish = circumstances.request, circumstances.admitted, compresses(circumstances)
        if self.compression is None or wish is Switch.SKIP or admitted.controls.unkept:
            return request
        if self._options.mode is Mode.GRADUAL and in_control_group(caller.owner, self._options.percent):
            return request
        if not self.compression.wanted(request, forced=wish is Switch.FORCE):
            return request
        body = await self.compression.shortened(admitted.dialect, caller, request)
        return request if body is None else await read_plain(admitted, body)

    def _arm(self, owner: Owner, *, shadowed: bool) -> Arm:
        if shadowed:
            return Arm.SHADOW
        gradual = self._options.mode is Mode.GRADUAL
        return Arm.CONTROL if gradual and in_control_group(owner, self._options.percent) else Arm.MEMORY

    async def _allowed(self, owner: Owner) -> Consent | None:
        return Consent.ON if self._consent is None else await self._consent.allowed(owner)

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
            upstream=admitted.upstream,
            headers=admitted.headers,
            asked=request.asked,
        )
        return self._rules.first(facts)


def _in_session(caller: Caller, request: ChatRequest) -> Caller:
    """*caller* in the session that the client names; a conversation that the provider keeps names one too."""
    return caller if caller.session else replace(caller, session=accepted(request.conversation))


def _unkept(*, incognito: bool, refused: bool) -> Stored:
    """Why an exchange that is not stored is not; *refused*: all but the caller's consent spoke for it."""
    if incognito:
        return Stored.INCOGNITO
    return Stored.NO_CONSENT if refused else Stored.NOT_ASKED
