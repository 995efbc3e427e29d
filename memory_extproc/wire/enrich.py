"""From a whole request body to what the upstream gets: read, decide, recall, place.

Whatever cannot be done here leaves the body as the client sent it, with one word for why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import timedelta

from memory_extproc.dialect.base import ChatRequest, Edit, Form, Placing, apply
from memory_extproc.dialect.controls import removals
from memory_extproc.dialect.profiles import choose_form, profile_for, room
from memory_extproc.dialect.responses import Responses
from memory_extproc.errors import BadBodyError, MemoryExtprocError
from memory_extproc.language.tokens import estimate_tokens
from memory_extproc.model import (
    Arm,
    Caller,
    Consent,
    Message,
    Origin,
    Outcome,
    Owner,
    Profile,
    Role,
    Scope,
    Stored,
    Switch,
    Wish,
    digest,
)
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.observe.tracing import NO_TRACES, Traces, exemplar
from memory_extproc.ports import Chain, KnowsChains, KnowsConsent, KnowsProfile, NotesIncognito, Recalls
from memory_extproc.recall.block import without_blocks
from memory_extproc.wire.admission import Admitted
from memory_extproc.wire.auxiliary import auxiliary
from memory_extproc.wire.coding import OversizeError, packed, unpack
from memory_extproc.wire.compression import Compression, is_state
from memory_extproc.wire.given import Blocks, Decision, contents_of, fitting, ids_of, placings, tokens_of
from memory_extproc.wire.identity import Identity, accepted
from memory_extproc.wire.large import off_loop
from memory_extproc.wire.options import Mode, WireOptions
from memory_extproc.wire.replays import InView, Replays, Thread
from memory_extproc.wire.rules import RuleFacts, Rules, Then
from memory_extproc.wire.verdict import Circumstances, compresses, in_control_group, limits_of, refusal, stores

log = logger(__name__)

# Of a model whose window is not known: what a conversation's blocks may take, in blocks of the largest size.
_BLOCKS_OF_UNKNOWN = 16
# Outcomes of recall beside which a caller may still be told of: it came to its end, or was not asked.
_NOTHING_ELSE = frozenset(
    {Outcome.NOTHING_RELEVANT, Outcome.SKIPPED_FACT, Outcome.SKIPPED_TOOL, Outcome.SKIPPED_GREETING}
)
REPLAYED = "replay"  # the path of a request whose memories were all given to the conversation before


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
    unkept: Stored = Stored.NOT_ASKED  # why, where it is not stored
    notes_response: bool = False  # incognito: what continues from its answer is to be known by the answer's id
    injected: tuple[str, ...] = field(default=(), repr=False)  # contents of the memories the model has seen
    in_view: InView | None = None  # what the provider will keep with its answer, if it keeps conversations
    seen: tuple[str, ...] = ()  # ids of those memories
    reach: tuple[Owner, ...] = ()  # whose these may be

    @property
    def size(self) -> int:
        """About how many bytes it holds."""
        said = sum(len(message.text) for message in self.history) + len(self.asked)
        return said + sum(map(len, self.injected))


@dataclass(frozen=True, slots=True, kw_only=True)
class Enriched:
    """What became of a request body. *body* None: it goes on as it came."""

    outcome: Outcome
    body: bytes | None = field(default=None, repr=False)
    unpacked: bool = False  # *body* no longer has the content-encoding it came with
    count: int = 0  # memories in the block that went in, or in those put back if there was none
    path: str = ""
    replayed: int = 0  # blocks put back
    tokens: int = 0  # estimated, of all that went in
    arm: Arm = Arm.NONE
    tenant: str | None = None  # the caller's; None: there is no caller
    heard: Heard | None = None  # None: nothing can be learned from this exchange

    @property
    def personal(self) -> bool:
        """Whether the upstream sees memories, so that its answer is this caller's alone."""
        return bool(self.count or self.replayed)

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
        replays: Replays,
        metrics: Metrics,
        chains: KnowsChains | None = None,
        consent: KnowsConsent | None = None,  # None: everybody allows everything
        incognito: NotesIncognito | None = None,
        traces: Traces = NO_TRACES,
        profiles: KnowsProfile | None = None,  # None: nobody is told who a caller is
        compression: Compression | None = None,  # None: every conversation goes on as long as it came
    ) -> None:
        self.compression, self._profiles = compression, profiles
        self._options, self._identity, self._rules = options, identity, rules
        self._recalls, self._replays, self._chains = recalls, replays, chains
        self._consent, self._incognito = consent, incognito
        self._metrics, self._traces = metrics, traces
        self._splice_seconds = metrics.recall_seconds.labels("splice")

    async def enrich(self, admitted: Admitted, body: bytes, *, watching: bool = False) -> Enriched:
        """*watching*: Envoy takes no answer from us, so nothing can be injected: as mode shadow."""
        limit = self._options.request_bytes
        if len(body) > limit:
            return Enriched(outcome=Outcome.TOO_LARGE)
        try:
            # What is packed is small until it is unpacked.
            size = limit if packed(admitted.encoding) else len(body)
            plain = await off_loop(size, unpack, admitted.encoding, body, limit)
        except OversizeError:
            return Enriched(outcome=Outcome.TOO_LARGE)
        except BadBodyError as error:
            return _unreadable(admitted, error)
        try:
            request = await off_loop(len(plain), _written, admitted, plain)
        except BadBodyError as error:
            return await off_loop(len(plain), _unreadable, admitted, error, plain)
        return await self._read(admitted, request, watching=watching)

    async def _read(self, admitted: Admitted, request: ChatRequest, *, watching: bool) -> Enriched:
        caller = self._caller(admitted, request)
        then = await off_loop(len(request.asked), self._then, admitted, request, caller)
        circumstances = Circumstances(
            options=self._options,
            admitted=admitted,
            request=request,
            then=then,
            caller=caller,
            auxiliary=self._options.skip_auxiliary and auxiliary(request.asked, request.system),
        )
        no, store = refusal(circumstances), stores(circumstances)
        allowed: Consent | None = Consent.ON
        if caller is not None and (no is None or store):
            allowed = await self._allowed(caller.owner)
        if no is None and allowed not in {Consent.ON, Consent.RECALL_ONLY}:
            # Where nobody can be asked it is an outage, for an operator to see; to the caller it is the same.
            no = Outcome.UNAVAILABLE if allowed is None else Outcome.NO_CONSENT
        shadowed = watching or self._options.mode is Mode.SHADOW
        short = request
        if caller is not None and store and allowed is Consent.ON and not shadowed:
            short = await self._shortened(circumstances, caller)
            circumstances = replace(circumstances, request=short)
        if no is not None or caller is None:
            turn = _Turn(Decision(no or Outcome.NO_CALLER))
        else:
            turn = await self._decided(circumstances, caller)
        enriched = await self._placed(admitted, short, turn, shadowed=shadowed, anew=short is not request)
        if caller is None:
            return enriched
        if enriched.personal and turn.thread is not None and not await self._replays.stands(turn.thread):
            # Forgotten while we worked: neither what was found nor what was given before may go out.
            turn = _Turn(Decision(Outcome.UNAVAILABLE))
            enriched = await self._placed(admitted, request, turn, shadowed=shadowed)
        learned_as = self._options.sharing.learned_as(caller)
        incognito = admitted.controls.incognito and self._incognito is not None
        if admitted.controls.incognito and self._incognito is not None:
            await self._incognito.mark(learned_as, request.history, request.asked, request.previous_response_id)
        heard = Heard(
            caller=learned_as,
            store=store and allowed is Consent.ON,
            unkept=_unkept(incognito=admitted.controls.incognito, refused=store),
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
            ends_session=admitted.controls.ends_session,
        )
        if turn.thread is not None and not shadowed:
            heard = self._with_view(heard, enriched, turn, turn.thread, admitted)
            heard = replace(heard, reach=(caller.owner, *self._options.sharing.owners(caller)))
        self._traces.show(asked=request.asked, block=turn.decision.block)
        arm = self._arm(caller.owner, shadowed=shadowed)
        return replace(enriched, heard=heard, arm=arm, tenant=caller.owner.tenant)

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
        return request if body is None else await off_loop(len(body), _written, admitted, body)

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

    async def _decided(self, circumstances: Circumstances, caller: Caller) -> _Turn:
        """What recall says, or said when this tool loop began, with what the conversation was given before."""
        request, then = circumstances.request, circumstances.then
        if self._options.mode is Mode.GRADUAL and in_control_group(caller.owner, self._options.percent):
            return _Turn(Decision(Outcome.CONTROL))
        started = time.perf_counter()
        shared = self._options.sharing.owners(caller) if then.shared else ()
        thread = await self._replays.find(caller, request, shared, then.origins)
        known = choose_form("auto", profile_for(request.model), request)
        inject = then.inject or self._options.inject_as
        form = known if inject == "auto" else Form(inject)
        offered, thread = await self._profile(caller, thread)
        profile, seen = offered, frozenset[str]()
        left = self._room(request, thread.blocks)
        turn = _Turn(decision=Decision(Outcome.OUT_OF_TIME), form=form, thread=replace(thread, blocks=left.blocks))
        if thread.decided is not None:
            decision = thread.decided
        elif not request.asked.strip():
            # Nobody's words are in reach: a tool's result with the conversation elsewhere, or only pictures.
            profile = None
            decision = Decision(Outcome.SKIPPED_TOOL if request.ends_in_tool_result else Outcome.NOTHING_RELEVANT)
        else:
            decision = turn.decision
            with_records = timedelta(seconds=time.perf_counter() - started)
            try:
                async with asyncio.timeout((self._options.give_up_after - with_records).total_seconds()):
                    profile = _due(profile, turn.in_view, left.tokens)
                    told, taken = ((), 0) if profile is None else (profile.contents, profile.tokens)
                    in_view = (*turn.in_view, *told)
                    wish = await self._wish(circumstances, caller, in_view, left.tokens - taken, with_records)
                    recalled = await self._recalls.recall(replace(wish, shared=shared))
                    decision, seen = Decision.of(recalled), recalled.in_view
            except TimeoutError:
                log.warning("recall.never_came")
        if profile is not None and thread.decided is None and self._tells(decision.outcome, profile, seen):
            decision = decision.with_profile(profile)
            self._metrics.profiles.labels("told").inc()
        elif offered is not None and thread.decided is None:
            self._metrics.profiles.labels("not_told").inc()
        return replace(turn, decision=decision, settled=thread.decided is not None and left.all_fit)

    async def _profile(self, caller: Caller, thread: Thread) -> tuple[Profile | None, Thread]:
        """Who the caller is, if that is to be told; and *thread* without blocks that tell what no longer holds."""
        if self._profiles is None or self._options.profile == "off" or thread.decided is not None:
            return None, thread
        try:
            async with asyncio.timeout(self._options.replay_wait.total_seconds()):
                profile = await self._profiles.profile(caller)
        except (MemoryExtprocError, TimeoutError) as error:
            log.warning("profile.unread", kind=type(error).__name__)
            self._metrics.profiles.labels("unread").inc()
            return None, thread
        blocks = tuple(one for one in thread.blocks if profile.eligible.issuperset(one.profile))
        if any(one.profile for one in blocks):
            return None, replace(thread, blocks=blocks)
        return profile, replace(thread, blocks=blocks)

    def _tells(self, outcome: Outcome, profile: Profile, seen: AbstractSet[str]) -> bool:
        """*seen*: what recall left out because the model sees it, or will in *profile*."""
        if outcome is Outcome.USED or self._options.profile == "when_relevant":
            return outcome is Outcome.USED or not seen.isdisjoint(profile.ids)
        return outcome in _NOTHING_ELSE

    def _room(self, request: ChatRequest, blocks: Blocks) -> _Room:
        """What the model's window has left for a new block, once *blocks*, or the newest of them, are back."""
        profile = profile_for(request.model)
        left = room(
            request,
            profile,
            configured_window=self._options.window,
            margin=self._options.margin,
            unknown_cap=self._options.unknown_cap,
        )
        unknown = self._options.window is None and profile.window is None
        most = _BLOCKS_OF_UNKNOWN * left if unknown else left // 2
        kept = fitting(blocks, min(most, self._options.replay_tokens))
        return _Room(kept, left if unknown else left - tokens_of(kept), all_fit=kept == blocks)

    async def _wish(
        self,
        circumstances: Circumstances,
        caller: Caller,
        given: Sequence[str],
        left: int,
        spent: timedelta,
    ) -> Wish:
        request = circumstances.request
        users = (message.text for message in request.history if message.role is Role.USER)
        said = [text for text in users if not is_state(text)]
        learned_as = self._options.sharing.learned_as(caller)
        chain = await self._chain(learned_as, request.previous_response_id)
        limits = limits_of(circumstances)
        return Wish(
            caller=caller,
            asked=request.asked,
            earlier=(*(chain.earlier if chain else ()), *said),
            signals=limits.signals,
            force=limits.force,
            limit=limits.limit,
            threshold=limits.threshold,
            scope=Scope(project=caller.project, types=limits.types, origins=circumstances.then.origins),
            learned_as=None if learned_as is caller else learned_as,
            room=left,
            in_view=frozenset((request.asked, *(message.text for message in request.history), *given)),
            # A session that the client names may be more than this conversation.
            behind=chain.session if chain is not None and not caller.session else "",
            continues=bool(given),
            spent=spent,
        )

    async def _chain(self, caller: Caller, previous_response_id: str) -> Chain | None:
        """What is known of what was said before, where the request does not repeat it."""
        if self._chains is None or not previous_response_id:
            return None
        try:
            return await self._chains.chain(caller.owner, previous_response_id)
        except MemoryExtprocError as error:
            log.warning("chain.unread", kind=type(error).__name__)
            return None

    async def _placed(
        self, admitted: Admitted, request: ChatRequest, turn: _Turn, *, shadowed: bool, anew: bool = False
    ) -> Enriched:
        """The body with the conversation's blocks where they stood and this turn's own; in shadow as it came.
        *anew*: the request's body is no longer the client's."""
        started = time.perf_counter()
        decision = turn.decision
        outcome = decision.outcome
        blocks = turn.thread.blocks if turn.thread is not None else ()
        places = placings(blocks, request, turn.form)
        if outcome is Outcome.USED:
            places.append(Placing(decision.block, turn.form))
        placed: Sequence[Sequence[Edit]] = ()
        if places:
            placed = await off_loop(len(request.body), admitted.dialect.place, request, places)
        if outcome is Outcome.USED and not placed[-1]:
            outcome = Outcome.NO_ROOM
        self._note(admitted, request, turn, placed=outcome is Outcome.USED)
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
        enriched = Enriched(outcome=outcome, body=body, unpacked=packed(admitted.encoding), path=decision.path)
        if outcome is Outcome.USED:
            count, tokens = len(decision.contents), estimate_tokens(decision.block)
            enriched = replace(enriched, count=count, tokens=tokens)
        return enriched if shadowed else self._replayed(enriched, blocks, placed)

    def _replayed(self, enriched: Enriched, blocks: Blocks, placed: Sequence[Sequence[Edit]]) -> Enriched:
        back = [one for one, edits in zip(blocks, placed, strict=False) if edits]
        if not back:
            return enriched
        self._metrics.replays.labels("put_back").inc()
        tokens = tokens_of(back)
        self._metrics.replayed_tokens.observe(tokens)
        enriched = replace(enriched, replayed=len(back), tokens=enriched.tokens + tokens)
        if enriched.outcome is not Outcome.NOTHING_RELEVANT:
            return enriched
        # Nothing new, because what matters is in view already: the request leaves with memories all the same.
        return replace(enriched, outcome=Outcome.USED, path=REPLAYED, count=len(contents_of(back)))

    def _note(self, admitted: Admitted, request: ChatRequest, turn: _Turn, *, placed: bool) -> None:
        """Keeps what this turn was given for the requests that will repeat it."""
        thread = turn.thread
        if thread is None or not thread.key or turn.settled or admitted.controls.unkept:
            return
        looping = request.tools or request.ends_in_tool_result
        if looping or (self._options.replay and (placed or turn.carries)):
            self._replays.keep(thread, request, turn.decision, turn.form if placed else None)

    def _with_view(
        self, heard: Heard, enriched: Enriched, turn: _Turn, thread: Thread, admitted: Admitted
    ) -> Heard:
        mine = turn.decision.contents if enriched.outcome is Outcome.USED else ()
        seen = tuple(dict.fromkeys((*turn.in_view, *mine)))
        ids = (*ids_of(thread.blocks), *(turn.decision.ids if mine else ()))
        heard = replace(heard, injected=seen, seen=tuple(dict.fromkeys(ids)))
        keeps = self._options.replay and not admitted.controls.unkept
        if not (seen and keeps and admitted.dialect.name == Responses.name):
            return heard
        return replace(heard, in_view=InView(thread.owner, thread.epoch, seen))


@dataclass(frozen=True, slots=True)
class _Room:
    blocks: Blocks  # those that go back
    tokens: int  # for a new one
    all_fit: bool


@dataclass(frozen=True, slots=True)
class _Turn:
    """What was made of one request, before it is placed."""

    decision: Decision
    form: Form = Form.USER_SUFFIX  # of a new block
    thread: Thread | None = None  # None: there is no memory for this request, old or new
    settled: bool = False  # it is all on record

    @property
    def in_view(self) -> tuple[str, ...]:
        """Contents of the memories that the conversation was given before."""
        return () if self.thread is None else (*contents_of(self.thread.blocks), *self.thread.behind)

    @property
    def carries(self) -> bool:
        return self.thread is not None and bool(self.thread.blocks)


def _due(profile: Profile | None, in_view: Sequence[str], room: int) -> Profile | None:
    """*profile*, where it says something, fits, and is not in view already: with a provider that keeps it."""
    if profile is None or not profile.text or profile.tokens > room or set(profile.contents) <= set(in_view):
        return None
    return profile


def _unkept(*, incognito: bool, refused: bool) -> Stored:
    """Why an exchange that is not stored is not; *refused*: all but the caller's consent spoke for it."""
    if incognito:
        return Stored.INCOGNITO
    return Stored.NO_CONSENT if refused else Stored.NOT_ASKED


def _written(admitted: Admitted, plain: bytes) -> ChatRequest:
    return as_written(admitted.dialect.read(plain))


def as_written(request: ChatRequest) -> ChatRequest:
    """*request* with what people said, and none of our blocks that came back in it."""
    asked = without_blocks(request.asked)
    history = tuple(
        message if (text := without_blocks(message.text)) is message.text else replace(message, text=text)
        for message in request.history
    )
    return replace(request, asked=asked, history=history)


def _unreadable(admitted: Admitted, error: BadBodyError, plain: bytes = b"") -> Enriched:
    """The body goes on as it came, but for fields of ours in it: no upstream knows those, read or not."""
    log.info("request.unreadable", dialect=admitted.dialect.name, detail=str(error))
    edits = removals(plain)
    if not edits:
        return Enriched(outcome=Outcome.BAD_BODY)
    return Enriched(outcome=Outcome.BAD_BODY, body=apply(plain, edits), unpacked=packed(admitted.encoding))
