"""Turns a request body into the body for the upstream: parse, decide, recall, insert.

On any failure the body passes unchanged, with an outcome that states the reason."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import timedelta

from memory_extproc.concurrency import LARGE, off_loop
from memory_extproc.dialect.base import ChatRequest, Form, Placing
from memory_extproc.dialect.json_spans import Edit, apply
from memory_extproc.dialect.openai_responses import Responses
from memory_extproc.dialect.registry import choose_form, profile_for, room
from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import (
    Arm,
    Caller,
    Consent,
    Origin,
    Outcome,
    Owner,
    RecallRequest,
    RecallTrace,
    Role,
    Scope,
    Switch,
    TurnOutcome,
    UserProfile,
    digest,
)
from memory_extproc.model.owner import accept_name
from memory_extproc.observe.log import NO_TRACES, Traces, exemplar, logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Chain, ChainReader, ConsentRegistry, IncognitoMarker, MemoryRecaller, ProfileReader
from memory_extproc.request.admission import Admitted, learning_caller, shared_owners
from memory_extproc.request.body import CpuBudget, Enriched, PendingTurn, is_encoded, read_body, read_plain
from memory_extproc.request.compression import Compression, is_state
from memory_extproc.request.decisions import DecisionLog
from memory_extproc.request.identity import Identity
from memory_extproc.request.policy import (
    Circumstances,
    RuleFacts,
    Rules,
    auxiliary,
    is_control,
    limits_of,
    refusal,
    stores,
    wants_compression,
)
from memory_extproc.request.replay import (
    BlockReplay,
    Blocks,
    ConversationState,
    InView,
    RecallDecision,
    contents_of,
    fitting,
    ids_of,
    placings,
    replay_wait,
    tokens_of,
)
from memory_extproc.settings import Settings
from memory_extproc.settings.traffic import RuleThen
from memory_extproc.text.words import estimate_tokens


@dataclass(frozen=True, slots=True)
class _Permissions:
    """The permissions of a request: recall and storage."""

    refused: Outcome | None  # why recall is refused; None: allowed
    stores: bool  # storage is allowed, subject to the caller's consent
    consent: Consent | None  # None: the consent records are unreachable
    may_keep: bool  # whether the turn is passed on to learning, which waits while the consent is unknown

    @property
    def keeps(self) -> bool:
        return self.stores and self.consent is Consent.ON


class PermissionReader:
    """Reads who asks, and what the rules and the caller's consent allow for a request."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        rules: Rules,
        consent: ConsentRegistry | None = None,  # None: consent is assumed
    ) -> None:
        self._settings, self._identity, self._rules, self._consent = settings, identity, rules, consent

    async def read_circumstances(self, admitted: Admitted, request: ChatRequest) -> Circumstances:
        caller = self._caller(admitted, request)
        then = await off_loop(len(request.asked), self._match_rules, admitted, request, caller)
        if caller is not None and then.project:
            caller = replace(caller, project=then.project)
        return Circumstances(
            settings=self._settings,
            admitted=admitted,
            request=request,
            then=then,
            caller=caller,
            auxiliary=self._settings.auxiliary_calls == "skip" and auxiliary(request.asked, request.system),
        )

    async def read(self, circumstances: Circumstances) -> _Permissions:
        no, store = refusal(circumstances), stores(circumstances)
        caller = circumstances.caller
        allowed: Consent | None = Consent.ON
        may_keep = store
        if caller is not None and self._consent is not None and (no is None or store):
            allowed = await self._consent.read_consent(caller.owner)
            may_keep = store and not self._consent.refuses(caller.owner)
        if no is None and allowed not in {Consent.ON, Consent.RECALL_ONLY}:
            # Unreachable consent records are an outage for the operator; for the caller the effect is the same.
            no = Outcome.UNAVAILABLE if allowed is None else Outcome.NO_CONSENT
        return _Permissions(no, store, allowed, may_keep)

    def _caller(self, admitted: Admitted, request: ChatRequest) -> Caller | None:
        caller = admitted.caller
        controls = request.controls
        if caller is None and controls.user:
            caller = self._identity.caller_of_body(admitted.headers, admitted.metadata, controls.user)
        if caller is not None and controls.project and not caller.project:
            # The body may set the project only if no header did. An invalid project name must not become none,
            # which would mean all projects (see Identity).
            project = accept_name(controls.project) or digest("project", controls.project)
            caller = replace(caller, project=project)
        return caller

    def _match_rules(self, admitted: Admitted, request: ChatRequest, caller: Caller | None) -> RuleThen:
        facts = RuleFacts(
            path=admitted.path,
            model=request.model,
            route=admitted.route,
            tenant=caller.owner.tenant if caller else "",
            project=caller.project if caller else "",
            upstream=admitted.upstream,
            headers=admitted.headers,
            asked=request.asked,
        )
        return self._rules.first(facts)


class Enricher:
    def __init__(
        self,
        settings: Settings,
        permissions: PermissionReader,
        planner: InjectionPlanner,
        inserter: BlockInserter,
        replays: BlockReplay,
        *,
        incognito: IncognitoMarker | None = None,
        traces: Traces = NO_TRACES,
        compression: Compression | None = None,  # None: every conversation goes on as long as it came
        decisions: DecisionLog | None = None,  # None: decisions are not kept
    ) -> None:
        self.compression, self._decisions = compression, decisions
        self._settings, self._permissions, self._planner, self._inserter = settings, permissions, planner, inserter
        self._budget = CpuBudget(settings.limits.caller_cpu)
        self._replays, self._incognito, self._traces = replays, incognito, traces

    async def enrich(self, admitted: Admitted, body: bytes, *, watching: bool = False) -> Enriched:
        """*watching*:

        Envoy ignores our response (observability mode), so nothing is injected, as in shadow mode."""
        caller = "" if admitted.caller is None else admitted.caller.owner.key
        if (len(body) >= LARGE or admitted.encoding) and self._budget.is_spent(caller):
            return Enriched(outcome=Outcome.OVERLOADED)
        with self._budget.charge(caller):
            request = await read_body(admitted, body, self._settings.limits.request_body)
            if isinstance(request, Enriched):
                return request
            return await self._read(admitted, request, watching=watching)

    async def _read(self, admitted: Admitted, request: ChatRequest, *, watching: bool) -> Enriched:
        circumstances = await self._permissions.read_circumstances(admitted, request)
        caller, leave = circumstances.caller, await self._permissions.read(circumstances)
        shadowed = watching or self._settings.mode == "shadow"
        short = request
        if caller is not None and leave.keeps and not shadowed:
            short = await self._shorten(circumstances, caller)
            circumstances = replace(circumstances, request=short)
        if leave.refused is not None or caller is None:
            plan = InjectionPlan(RecallDecision(leave.refused or Outcome.NO_CALLER))
        else:
            plan = await self._planner.plan(circumstances, caller)
        enriched = await self._inserter.insert(admitted, short, plan, shadowed=shadowed, anew=short is not request)
        if caller is None:
            return enriched
        if enriched.personal and plan.thread is not None and not await self._replays.stands(plan.thread):
            # A forget during the work invalidates both the recalled and the replayed memories.
            plan = InjectionPlan(RecallDecision(Outcome.UNAVAILABLE))
            enriched = await self._inserter.insert(admitted, request, plan, shadowed=shadowed)
        heard = await self._pending_turn(admitted, request, caller, leave)
        if plan.thread is not None and not shadowed:
            heard = self._inserter.with_view(heard, enriched, plan, plan.thread, admitted)
            heard = replace(heard, reach=(caller.owner, *shared_owners(self._settings.scopes, caller)))
        self._traces.show(asked=request.asked, block=plan.decision.block)
        keeps = leave.consent is Consent.ON and not admitted.controls.unkept
        if keeps and self._decisions is not None and self._decisions.is_on:
            given = admitted.headers.get("x-request-id")
            found = self._decisions.record(caller.owner, given, enriched, plan.trace)
            enriched, heard = replace(enriched, trace=found), replace(heard, request_id=found)
        arm = self._arm(caller.owner, shadowed=shadowed)
        shown = enriched.given if self._may_explain(admitted, caller) else ()
        return replace(enriched, heard=heard, arm=arm, tenant=caller.owner.tenant, given=shown)

    def _may_explain(self, admitted: Admitted, caller: Caller) -> bool:
        return admitted.controls.explain and not {caller.owner.tenant, "*"}.isdisjoint(
            self._settings.inject.explain_tenants
        )

    async def _pending_turn(
        self, admitted: Admitted, request: ChatRequest, caller: Caller, leave: _Permissions
    ) -> PendingTurn:
        learned_as = _in_session(learning_caller(self._settings.scopes, caller), request)
        incognito = admitted.controls.incognito and self._incognito is not None
        if admitted.controls.incognito and self._incognito is not None:
            await self._incognito.mark(learned_as, request.history, request.asked, request.continues)
        return PendingTurn(
            caller=learned_as,
            store=leave.may_keep,
            unkept=_why_not_stored(incognito=admitted.controls.incognito, refused=leave.stores),
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
            tools=request.ends_in_tool_result,
        )

    async def _shorten(self, circumstances: Circumstances, caller: Caller) -> ChatRequest:
        """The request with its older messages condensed if compression is enabled and possible; else unchanged."""
        request, admitted, wish = circumstances.request, circumstances.admitted, wants_compression(circumstances)
        if self.compression is None or wish is Switch.SKIP or admitted.controls.unkept:
            return request
        if is_control(self._settings, caller.owner):
            return request
        if not self.compression.is_wanted(request, forced=wish is Switch.FORCE):
            return request
        body = await self.compression.shorten(admitted.dialect, caller, request)
        return request if body is None else await read_plain(admitted, body)

    def _arm(self, owner: Owner, *, shadowed: bool) -> Arm:
        if shadowed:
            return Arm.SHADOW
        return Arm.CONTROL if is_control(self._settings, owner) else Arm.MEMORY


def _in_session(caller: Caller, request: ChatRequest) -> Caller:
    """*caller* in the session named by the client, or else in the provider's stored conversation."""
    return caller if caller.session else replace(caller, session=accept_name(request.conversation))


def _why_not_stored(*, incognito: bool, refused: bool) -> TurnOutcome:
    """Why an exchange is not stored. *refused*: only the caller's consent was missing."""
    if incognito:
        return TurnOutcome.INCOGNITO
    return TurnOutcome.NO_CONSENT if refused else TurnOutcome.NOT_ASKED


# Planning: combines recall with the blocks that the conversation got before.

log = logger(__name__)

# For a model with an unknown window: the limit of a conversation's blocks, in blocks of the largest size.
_BLOCKS_OF_UNKNOWN = 4
# Outcomes of recall after which the profile may still be injected: recall completed, or was skipped.
_NOTHING_ELSE = frozenset(
    {Outcome.NOTHING_RELEVANT, Outcome.SKIPPED_FACT, Outcome.SKIPPED_TOOL, Outcome.SKIPPED_GREETING}
)


def give_up_after(settings: Settings) -> timedelta:
    """A guard above recall's own deadline and below Envoy's message_timeout."""
    return (settings.deadline + settings.message_timeout) / 2


@dataclass(frozen=True, slots=True)
class _Room:
    blocks: Blocks  # the blocks to replay
    tokens: int  # for a new block
    all_fit: bool


@dataclass(frozen=True, slots=True)
class InjectionPlan:
    """The decision for a request, before blocks are inserted."""

    decision: RecallDecision
    form: Form = Form.USER_SUFFIX  # of a new block
    thread: ConversationState | None = None  # None: there is no memory for this request, old or new
    settled: bool = False  # it is all on record
    trace: RecallTrace | None = None  # of the recall

    @property
    def in_view(self) -> tuple[str, ...]:
        """Contents of the memories injected earlier in the conversation."""
        return () if self.thread is None else (*contents_of(self.thread.blocks), *self.thread.behind)

    @property
    def carries(self) -> bool:
        return self.thread is not None and bool(self.thread.blocks)


class InjectionPlanner:
    def __init__(
        self,
        settings: Settings,
        recalls: MemoryRecaller,
        replays: BlockReplay,
        metrics: Metrics,
        *,
        chains: ChainReader | None = None,
        profiles: ProfileReader | None = None,  # None: no user profiles
    ) -> None:
        self._settings, self._recalls, self._replays = settings, recalls, replays
        self._metrics, self._chains, self._profiles = metrics, chains, profiles

    async def plan(self, circumstances: Circumstances, caller: Caller) -> InjectionPlan:
        """Plan from recall (or its result at the start of this tool loop) and the conversation's earlier blocks."""
        request, then = circumstances.request, circumstances.then
        if is_control(self._settings, caller.owner):
            return InjectionPlan(RecallDecision(Outcome.CONTROL))
        started = time.perf_counter()
        shared = shared_owners(self._settings.scopes, caller) if then.shared else ()
        thread = await self._replays.find(caller, request, shared, then.origins)
        known = choose_form("auto", profile_for(request.model), request)
        inject = then.inject or self._settings.inject.as_
        form = known if inject == "auto" else Form(inject)
        offered, thread = await self._profile(caller, thread)
        profile, seen = offered, frozenset[str]()
        trace: RecallTrace | None = None
        left = self._room(request, thread.blocks)
        plan = InjectionPlan(
            decision=RecallDecision(Outcome.OUT_OF_TIME), form=form, thread=replace(thread, blocks=left.blocks)
        )
        if thread.decided is not None:
            decision = thread.decided
        elif not request.asked.strip():
            # No user text to search with: a tool result whose conversation is stored elsewhere, or only images.
            profile = None
            decision = RecallDecision(
                Outcome.SKIPPED_TOOL if request.ends_in_tool_result else Outcome.NOTHING_RELEVANT
            )
        else:
            decision = plan.decision
            with_records = timedelta(seconds=time.perf_counter() - started)
            try:
                async with asyncio.timeout((give_up_after(self._settings) - with_records).total_seconds()):
                    profile = _profile_to_inject(profile, plan.in_view, left.tokens)
                    told, taken = ((), 0) if profile is None else (profile.contents, profile.tokens)
                    in_view = (*plan.in_view, *told)
                    wish = await self._recall_request(
                        circumstances, caller, in_view, left.tokens - taken, with_records
                    )
                    recalled = await self._recalls.recall(replace(wish, shared=shared))
                    decision, seen, trace = RecallDecision.of(recalled), recalled.in_view, recalled.trace
            except TimeoutError:
                log.warning("recall.never_came")
        if profile is not None and thread.decided is None and self._needs_profile(decision.outcome, profile, seen):
            decision = decision.with_profile(profile)
            self._metrics.profiles.labels("told").inc()
        elif offered is not None and thread.decided is None:
            self._metrics.profiles.labels("not_told").inc()
        settled = thread.decided is not None and left.all_fit
        return replace(plan, decision=decision, settled=settled, trace=trace)

    async def _profile(
        self, caller: Caller, thread: ConversationState
    ) -> tuple[UserProfile | None, ConversationState]:
        """The user profile, if enabled, and *thread* without outdated profile blocks."""
        if self._profiles is None or self._settings.inject.profile == "off" or thread.decided is not None:
            return None, thread
        try:
            async with asyncio.timeout(replay_wait(self._settings).total_seconds()):
                profile = await self._profiles.profile(caller)
        except (MemoryExtprocError, TimeoutError) as error:
            log.warning("profile.unread", kind=type(error).__name__)
            self._metrics.profiles.labels("unread").inc()
            return None, thread
        blocks = tuple(one for one in thread.blocks if profile.eligible.issuperset(one.profile))
        if any(one.profile for one in blocks):
            return None, replace(thread, blocks=blocks)
        return profile, replace(thread, blocks=blocks)

    def _needs_profile(self, outcome: Outcome, profile: UserProfile, seen: AbstractSet[str]) -> bool:
        """*seen*: memories that recall left out because they are in view or in *profile*."""
        if outcome is Outcome.USED or self._settings.inject.profile == "when_relevant":
            return outcome is Outcome.USED or not seen.isdisjoint(profile.ids)
        return outcome in _NOTHING_ELSE

    def _room(self, request: ChatRequest, blocks: Blocks) -> _Room:
        """The space left in the model's window after *blocks*, or the newest of them, are replayed."""
        profile, inject = profile_for(request.model), self._settings.inject
        window = None if inject.window == "auto" else inject.window
        left = room(
            request,
            profile,
            configured_window=window,
            margin=inject.margin,
            unknown_cap=inject.unknown_window_budget,
        )
        unknown = window is None and profile.window is None
        most = _BLOCKS_OF_UNKNOWN * left if unknown else left // 2
        kept = fitting(blocks, min(most, inject.replay_tokens))
        return _Room(kept, left if unknown else left - tokens_of(kept), all_fit=kept == blocks)

    async def _recall_request(
        self, circumstances: Circumstances, caller: Caller, given: Sequence[str], left: int, spent: timedelta
    ) -> RecallRequest:
        request = circumstances.request
        users = (message.text for message in request.history if message.role is Role.USER)
        said = [text for text in users if not is_state(text)]
        learned_as = learning_caller(self._settings.scopes, caller)
        chain = await self._chain(learned_as, request.continues)
        limits = limits_of(circumstances)
        return RecallRequest(
            caller=caller,
            asked=request.asked,
            earlier=(*(chain.earlier if chain else ()), *said),
            signals=limits.signals,
            force=limits.force,
            limit=limits.limit,
            limited=limits.limited,
            threshold=limits.threshold,
            scope=Scope(project=caller.project, types=limits.types, origins=circumstances.then.origins),
            learned_as=None if learned_as is caller else learned_as,
            room=left,
            budget=circumstances.then.token_budget,
            in_view=frozenset((request.asked, *(message.text for message in request.history), *given)),
            # A session named by the client may span several conversations.
            behind=chain.session if chain is not None and not caller.session else "",
            continues=bool(given),
            spent=spent,
            as_of=circumstances.admitted.controls.as_of,
        )

    async def _chain(self, caller: Caller, continues: str) -> Chain | None:
        """The earlier conversation, if the provider stores it and the request does not repeat it."""
        if self._chains is None or not continues:
            return None
        try:
            return await self._chains.chain(caller.owner, continues)
        except MemoryExtprocError as error:
            log.warning("chain.unread", kind=type(error).__name__)
            return None


def _profile_to_inject(profile: UserProfile | None, in_view: Sequence[str], room: int) -> UserProfile | None:
    """*profile* if it is not empty, fits, and is not in view already in a conversation stored by the provider."""
    if profile is None or not profile.text or profile.tokens > room or set(profile.contents) <= set(in_view):
        return None
    return profile


# Insertion: replays the conversation's blocks at their places and inserts this turn's block.

REPLAYED = "replay"  # the path of a request whose memories were all injected earlier


class BlockInserter:
    """Inserts blocks and records them for the conversation's next requests."""

    def __init__(
        self, settings: Settings, replays: BlockReplay, metrics: Metrics, traces: Traces = NO_TRACES
    ) -> None:
        self._settings, self._replays, self._metrics, self._traces = settings, replays, metrics, traces
        self._splice_seconds = metrics.recall_seconds.labels("splice")

    async def insert(
        self, admitted: Admitted, request: ChatRequest, plan: InjectionPlan, *, shadowed: bool, anew: bool = False
    ) -> Enriched:
        """Insert replayed and new blocks; in shadow mode return the body unchanged.

        *anew*: the body already differs from the client's."""
        started = time.perf_counter()
        decision = plan.decision
        outcome = decision.outcome
        blocks = plan.thread.blocks if plan.thread is not None else ()
        places = placings(blocks, request, plan.form)
        if outcome is Outcome.USED:
            places.append(Placing(decision.block, plan.form))
        placed: Sequence[Sequence[Edit]] = ()
        if places:
            placed = await off_loop(len(request.body), admitted.dialect.place, request, places)
        if outcome is Outcome.USED and not placed[-1]:
            outcome = Outcome.NO_ROOM
        self._note(admitted, request, plan, placed=outcome is Outcome.USED)
        edits: list[Edit] = list(request.removals)
        if shadowed:
            outcome = Outcome.SHADOWED if outcome is Outcome.USED else outcome
            placed = ()
        edits += (edit for place in placed for edit in place)
        if not edits and not anew:
            return Enriched(outcome=outcome)
        with self._traces.stage("splice"):
            body = apply(request.body, edits)
        self._splice_seconds.observe(time.perf_counter() - started, exemplar())
        enriched = Enriched(outcome=outcome, body=body, unpacked=is_encoded(admitted.encoding), path=decision.path)
        if outcome is Outcome.USED:
            count, tokens = len(decision.contents), estimate_tokens(decision.block)
            enriched = replace(enriched, count=count, tokens=tokens, given=decision.given)
        return enriched if shadowed else self._mark_replayed(enriched, blocks, placed)

    def _mark_replayed(self, enriched: Enriched, blocks: Blocks, placed: Sequence[Sequence[Edit]]) -> Enriched:
        back = [one for one, edits in zip(blocks, placed, strict=False) if edits]
        if not back:
            return enriched
        self._metrics.replays.labels("put_back").inc()
        tokens = tokens_of(back)
        self._metrics.replayed_tokens.observe(tokens)
        enriched = replace(enriched, replayed=len(back), tokens=enriched.tokens + tokens)
        if enriched.outcome is not Outcome.NOTHING_RELEVANT:
            return enriched
        # No new block, because the relevant memories are in view: the request still leaves with memories.
        given = tuple((id_, None) for id_ in ids_of(back))
        return replace(enriched, outcome=Outcome.USED, path=REPLAYED, count=len(contents_of(back)), given=given)

    def _note(self, admitted: Admitted, request: ChatRequest, plan: InjectionPlan, *, placed: bool) -> None:
        """Record this turn's blocks for the conversation's next requests."""
        thread = plan.thread
        if thread is None or not thread.key or plan.settled or admitted.controls.unkept:
            return
        looping = request.tools or request.ends_in_tool_result
        if looping or (self._settings.inject.replay and (placed or plan.carries)):
            self._replays.keep(thread, request, plan.decision, plan.form if placed else None)

    def with_view(
        self,
        heard: PendingTurn,
        enriched: Enriched,
        plan: InjectionPlan,
        thread: ConversationState,
        admitted: Admitted,
    ) -> PendingTurn:
        mine = plan.decision.contents if enriched.outcome is Outcome.USED else ()
        seen = tuple(dict.fromkeys((*plan.in_view, *mine)))
        ids = (*ids_of(thread.blocks), *(plan.decision.ids if mine else ()))
        heard = replace(heard, injected=seen, seen=tuple(dict.fromkeys(ids)))
        keeps = self._settings.inject.replay and not admitted.controls.unkept
        if not (seen and keeps and admitted.dialect.name == Responses.name):
            return heard
        return replace(heard, in_view=InView(thread.owner, thread.epoch, seen))
