"""What was decided, in the request's body: the conversation's blocks where they stood, and this turn's own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from memory_extproc.dialect.base import ChatRequest, Edit, Placing, apply
from memory_extproc.dialect.responses import Responses
from memory_extproc.language.tokens import estimate_tokens
from memory_extproc.model import Outcome
from memory_extproc.observe.metrics import Metrics
from memory_extproc.observe.tracing import Traces, exemplar
from memory_extproc.wire.admission import Admitted
from memory_extproc.wire.coding import packed
from memory_extproc.wire.deciding import Plan
from memory_extproc.wire.enriched import Enriched, Heard
from memory_extproc.wire.given import Blocks, contents_of, ids_of, placings, tokens_of
from memory_extproc.wire.large import off_loop
from memory_extproc.wire.options import WireOptions
from memory_extproc.wire.replays import InView, Replays, Thread

REPLAYED = "replay"  # the path of a request whose memories were all given to the conversation before


class Placer:
    """Keeps what it places for the requests that will repeat it."""

    def __init__(self, options: WireOptions, *, replays: Replays, metrics: Metrics, traces: Traces) -> None:
        self._options, self._replays, self._metrics, self._traces = options, replays, metrics, traces
        self._splice_seconds = metrics.recall_seconds.labels("splice")

    async def placed(
        self, admitted: Admitted, request: ChatRequest, plan: Plan, *, shadowed: bool, anew: bool = False
    ) -> Enriched:
        """The body with the conversation's blocks where they stood and this turn's own; in shadow as it came.
        *anew*: the request's body is no longer the client's."""
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

    def _note(self, admitted: Admitted, request: ChatRequest, plan: Plan, *, placed: bool) -> None:
        """Keeps what this turn was given for the requests that will repeat it."""
        thread = plan.thread
        if thread is None or not thread.key or plan.settled or admitted.controls.unkept:
            return
        looping = request.tools or request.ends_in_tool_result
        if looping or (self._options.replay and (placed or plan.carries)):
            self._replays.keep(thread, request, plan.decision, plan.form if placed else None)

    def with_view(self, heard: Heard, enriched: Enriched, plan: Plan, thread: Thread, admitted: Admitted) -> Heard:
        mine = plan.decision.contents if enriched.outcome is Outcome.USED else ()
        seen = tuple(dict.fromkeys((*plan.in_view, *mine)))
        ids = (*ids_of(thread.blocks), *(plan.decision.ids if mine else ()))
        heard = replace(heard, injected=seen, seen=tuple(dict.fromkeys(ids)))
        keeps = self._options.replay and not admitted.controls.unkept
        if not (seen and keeps and admitted.dialect.name == Responses.name):
            return heard
        return replace(heard, in_view=InView(thread.owner, thread.epoch, seen))
