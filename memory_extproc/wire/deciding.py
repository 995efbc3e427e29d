"""What a request is to be given: what recall says, and what its conversation was given before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import timedelta

from memory_extproc.dialect.base import ChatRequest, Form
from memory_extproc.dialect.profiles import choose_form, profile_for, room
from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import Caller, Outcome, Profile, Role, Scope, Wish
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Chain, KnowsChains, KnowsProfile, Recalls
from memory_extproc.wire.compression import is_state
from memory_extproc.wire.given import Blocks, Decision, contents_of, fitting, tokens_of
from memory_extproc.wire.options import Mode, WireOptions
from memory_extproc.wire.replays import Replays, Thread
from memory_extproc.wire.verdict import Circumstances, in_control_group, limits_of

log = logger(__name__)

# Of a model whose window is not known: what a conversation's blocks may take, in blocks of the largest size.
_BLOCKS_OF_UNKNOWN = 16
# Outcomes of recall beside which a caller may still be told of: it came to its end, or was not asked.
_NOTHING_ELSE = frozenset(
    {Outcome.NOTHING_RELEVANT, Outcome.SKIPPED_FACT, Outcome.SKIPPED_TOOL, Outcome.SKIPPED_GREETING}
)


@dataclass(frozen=True, slots=True)
class _Room:
    blocks: Blocks  # those that go back
    tokens: int  # for a new one
    all_fit: bool


@dataclass(frozen=True, slots=True)
class Plan:
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


class Decider:
    def __init__(
        self,
        options: WireOptions,
        *,
        recalls: Recalls,
        replays: Replays,
        metrics: Metrics,
        chains: KnowsChains | None,
        profiles: KnowsProfile | None,
    ) -> None:
        self._options, self._recalls, self._replays = options, recalls, replays
        self._metrics, self._chains, self._profiles = metrics, chains, profiles

    async def decided(self, circumstances: Circumstances, caller: Caller) -> Plan:
        """What recall says, or said when this tool loop began, with what the conversation was given before."""
        request, then = circumstances.request, circumstances.then
        if self._options.mode is Mode.GRADUAL and in_control_group(caller.owner, self._options.percent):
            return Plan(Decision(Outcome.CONTROL))
        started = time.perf_counter()
        shared = self._options.sharing.owners(caller) if then.shared else ()
        thread = await self._replays.find(caller, request, shared, then.origins)
        known = choose_form("auto", profile_for(request.model), request)
        inject = then.inject or self._options.inject_as
        form = known if inject == "auto" else Form(inject)
        offered, thread = await self._profile(caller, thread)
        profile, seen = offered, frozenset[str]()
        left = self._room(request, thread.blocks)
        plan = Plan(decision=Decision(Outcome.OUT_OF_TIME), form=form, thread=replace(thread, blocks=left.blocks))
        if thread.decided is not None:
            decision = thread.decided
        elif not request.asked.strip():
            # Nobody's words are in reach: a tool's result with the conversation elsewhere, or only pictures.
            profile = None
            decision = Decision(Outcome.SKIPPED_TOOL if request.ends_in_tool_result else Outcome.NOTHING_RELEVANT)
        else:
            decision = plan.decision
            with_records = timedelta(seconds=time.perf_counter() - started)
            try:
                async with asyncio.timeout((self._options.give_up_after - with_records).total_seconds()):
                    profile = _due(profile, plan.in_view, left.tokens)
                    told, taken = ((), 0) if profile is None else (profile.contents, profile.tokens)
                    in_view = (*plan.in_view, *told)
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
        return replace(plan, decision=decision, settled=thread.decided is not None and left.all_fit)

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
        chain = await self._chain(learned_as, request.continues)
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

    async def _chain(self, caller: Caller, continues: str) -> Chain | None:
        """What is known of what was said before, where the request does not repeat it."""
        if self._chains is None or not continues:
            return None
        try:
            return await self._chains.chain(caller.owner, continues)
        except MemoryExtprocError as error:
            log.warning("chain.unread", kind=type(error).__name__)
            return None


def _due(profile: Profile | None, in_view: Sequence[str], room: int) -> Profile | None:
    """*profile*, where it says something, fits, and is not in view already: with a provider that keeps it."""
    if profile is None or not profile.text or profile.tokens > room or set(profile.contents) <= set(in_view):
        return None
    return profile
