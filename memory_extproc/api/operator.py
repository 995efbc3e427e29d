"""The operator's calls: a list of users without their words, and the state of the server."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf.json_format import ParseDict, ParseError

from memory_extproc.api.call import Call, ErrorReason, Fields, Operation, RefusedError
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.model import Owner, OwnerKind
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import ConsentRegistry, Journal, Now, OwnerEntry, OwnerRegistry
from memory_extproc.retention.passes import PassReport
from memory_extproc.retention.scheduler import Round

log = logger(__name__)
_DEFAULT_LIMIT = 20
_LONGEST_TOKEN = 4096  # characters
_PLANNED, _PLANNED_OWNERS = 2_000, 100  # memories and owners of one dry run over everybody
_AUDIT_LINES = 50
_SAMPLES = 12  # in an hour
FINDINGS = "doctor.json"  # in the data directory
_KINDS: Mapping[OwnerKind, str] = {
    OwnerKind.OWN: "user", OwnerKind.PROJECT: "project", OwnerKind.GLOBAL: "everyone",
}  # fmt: skip


class RecentOutcomes:
    """Requests by outcome within the last hour: the counter's value less a sample of it. Takes samples while
    entered."""

    def __init__(self, metrics: Metrics, now: Now) -> None:
        self._metrics, self._now, self._every = metrics, now, timedelta(hours=1) / _SAMPLES
        self._samples: deque[tuple[datetime, Mapping[str, int]]] = deque(maxlen=_SAMPLES + 1)
        self._sampling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.sample()
        self._sampling = asyncio.create_task(self._keep_sampling(), name="outcomes")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)

    def sample(self) -> None:
        self._samples.append((self._now(), self._read_counts()))

    def counts(self) -> tuple[datetime, Mapping[str, int]]:
        """Since when, and how many."""
        since, before = self._samples[0]
        counted = self._read_counts()
        return since, {name: more for name, count in counted.items() if (more := count - before.get(name, 0)) > 0}

    def _read_counts(self) -> Mapping[str, int]:
        counted: Counter[str] = Counter()
        for metric in self._metrics.exchanges.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total"):
                    counted[sample.labels["outcome"]] += int(sample.value)
        return counted

    async def _keep_sampling(self) -> None:
        while True:
            await asyncio.sleep(self._every.total_seconds())
            self.sample()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Sources of the server's state."""

    journal: Journal
    owners: OwnerRegistry
    outcomes: RecentOutcomes
    store_failing_for: Callable[[], timedelta]
    canary: Callable[[], float | None]  # the share that was found when it was last asked
    consent: ConsentRegistry | None
    findings: Path  # of doctor's last run, if it left any
    audited: Callable[[int], Sequence[str]]  # so many lines of the audit log, the newest first


class OperatorCalls:
    def __init__(self, facts: ServerFacts) -> None:
        self._facts = facts

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {"ListUsers": self.users, "GetServerStatus": self.status}

    async def users(self, call: Call, request: pb.ListUsersRequest) -> pb.ListUsersResponse:
        fields = Fields()
        limit = fields.limit("limit", request.limit, _DEFAULT_LIMIT)
        tenant = fields.name("tenant_id", request.tenant_id)
        after = _read_token(fields, request.page_token) if request.page_token else None
        fields.check()
        found = await self._facts.owners.page(after, limit + 1, tenant=tenant, quarantined=request.quarantined)
        totals = await self._facts.owners.totals()
        call.count = len(found[:limit])
        return pb.ListUsersResponse(
            users=map(_encode_entry, found[:limit]),
            total=totals.owners,
            next_page_token=_write_token(found[limit - 1].owner) if len(found) > limit else "",
        )

    async def status(self, _: Call, __: pb.GetServerStatusRequest) -> pb.GetServerStatusResponse:
        facts = self._facts
        depth = await facts.journal.depth()
        totals = await facts.owners.totals()
        since, outcomes = facts.outcomes.counts()
        lines = await asyncio.to_thread(facts.audited, _AUDIT_LINES)
        consents = {} if facts.consent is None else await facts.consent.counts()
        findings, examined = await asyncio.to_thread(_read_findings, facts.findings)
        return pb.GetServerStatusResponse(
            waiting_turns=depth.turns,
            oldest_waiting_at=depth.oldest,
            dead_letters=depth.dead,
            outcomes=outcomes,
            outcomes_since=since,
            canary=facts.canary(),
            store_failing_s=facts.store_failing_for().total_seconds(),
            users=totals.owners,
            memories=totals.memories,
            quarantined=totals.quarantined,
            audit=map(json.loads, lines),
            consents={choice.value: count for choice, count in consents.items()},
            findings=findings,
            examined_at=examined,
        )


class RetentionCalls:
    def __init__(self, plans: Callable[[Owner], Awaitable[Round]], owners: OwnerRegistry) -> None:
        """*plans*: a dry run of retention for an owner."""
        self._plans, self._owners = plans, owners

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {"PlanRetention": self.plan, "PlanRetentionRound": self.plan_round}

    async def plan(self, call: Call, _: pb.PlanRetentionRequest) -> pb.PlanRetentionResponse:
        planned = await self._plans(call.owner)
        if planned.failed:
            raise RefusedError(
                grpc.StatusCode.UNAVAILABLE, ErrorReason.UNAVAILABLE, "the store cannot be read; try again"
            )
        call.count = planned.kept.memories
        return _encode_plan(planned.kept)

    async def plan_round(self, call: Call, request: pb.PlanRetentionRoundRequest) -> pb.PlanRetentionRoundResponse:
        """Plan for the next owners: as many as have `_PLANNED` memories together, and at least one."""
        fields = Fields()
        after = _read_token(fields, request.page_token) if request.page_token else None
        fields.check()
        found = await self._owners.page(after, _PLANNED_OWNERS + 1)
        total = Round()
        for entry in found[:_PLANNED_OWNERS]:
            planned = await self._plans(entry.owner)
            total.owners += 1
            total.failed += planned.failed
            total.kept += planned.kept
            if total.kept.memories >= _PLANNED:
                break
        call.count = total.owners
        return pb.PlanRetentionRoundResponse(
            plan=_encode_plan(total.kept),
            owners=total.owners,
            failed=total.failed,
            next_page_token=_write_token(found[total.owners - 1].owner) if total.owners < len(found) else "",
        )


def _encode_plan(kept: PassReport) -> pb.PlanRetentionResponse:
    return pb.PlanRetentionResponse(
        memories=kept.memories,
        retired={reason.value: count for reason, count in kept.retired.items()},
        merged=kept.merged,
        erased=kept.erased,
    )


def _read_findings(path: Path) -> tuple[Sequence[pb.Finding], datetime | None]:
    try:
        findings = [ParseDict(one, pb.Finding()) for one in json.loads(path.read_bytes())]
        return findings, datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except FileNotFoundError:
        return (), None
    except (OSError, ValueError, TypeError, ParseError) as error:
        log.warning("operator.findings_unreadable", kind=type(error).__name__)
        return (), None


def _encode_entry(entry: OwnerEntry) -> pb.UserEntry:
    owner = entry.owner
    return pb.UserEntry(
        tenant_id="" if owner == Owner.of_everyone() else owner.tenant,
        user_id=owner.user if owner.kind is OwnerKind.OWN else owner.project,
        kind=_KINDS.get(owner.kind, owner.kind.value),
        memories=entry.memories,
        updated_at=entry.updated_at,
        quarantined=entry.quarantined,
    )


# A page token is a place in an order that its reader may see whole, so it need not be hidden.
def _write_token(owner: Owner) -> str:
    return json.dumps([owner.tenant, owner.user], ensure_ascii=False).encode().hex()


def _read_token(fields: Fields, token: str) -> Owner | None:
    try:
        found: Any = json.loads(bytes.fromhex(token[:_LONGEST_TOKEN]))
        tenant, user = found
        return Owner(str(tenant), str(user))
    except (ValueError, TypeError):
        fields.fault("page_token", "next_page_token of the page before")
        return None


# --- configuration -----------------------------------------------------------------------------------

Configured = Callable[[], tuple[Mapping[str, Any], Sequence[str]]]  # (plain values, keys that wait for a restart)


class Configuration:
    def __init__(self, configured: Configured) -> None:
        """*configured* gives no secrets."""
        self._configured = configured

    @property
    def operations(self) -> dict[str, Operation]:
        return {"GetConfiguration": self.get}

    async def get(self, _: Call, __: pb.GetConfigurationRequest) -> pb.GetConfigurationResponse:
        effective, waiting = self._configured()
        answer = pb.GetConfigurationResponse(needs_restart=waiting)
        ParseDict(dict(effective), answer.configuration)
        return answer
