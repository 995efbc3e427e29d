"""Commands of `memory-extproc memory` for decisions, ratings, users and the server's state."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from memory_extproc.cli import output as show
from memory_extproc.cli.api_client import ApiClient, AsJson, UserOption, with_api
from memory_extproc.cli.forget import MemoryId, RequestId

_SHOWN = 300  # characters of a memory in a table


@with_api
def decision(
    api: ApiClient,
    *,
    request: Annotated[str, typer.Argument(metavar="[REQUEST]", help="its x-request-id; none: the latest")] = "",
    user: UserOption = "",
    as_json: AsJson = False,
) -> None:
    """Show the decision of a request, or list the latest requests; needs trace.keep."""
    if not request:
        latest = api.call("ListDecisions", user_id=user)
        if as_json:
            show.show_json(show.plain(latest))
            return
        table = Table("request", "at", "outcome", "memories")
        for one in latest.decisions:
            table.add_row(one.request_id, _time(one.at), one.outcome.replace("_", " "), str(one.memories))
        show.console().print(table if latest.decisions else "no request is kept")
        return
    found = api.call("GetDecision", request_id=request, user_id=user)
    if as_json:
        show.show_json(show.plain(found))
        return
    took = ", ".join(f"{name} {value:.1f} ms" for name, value in sorted(found.stages_ms.items()))
    show.console().print(f"{_time(found.at)}: {found.outcome.replace('_', ' ')}", markup=False)
    if took:
        show.console().print(took, markup=False)
    table = Table("verdict", "relevance", "memory", "since", show_lines=True)
    for one in found.considered:
        words = Text(show.strip_controls(one.memory.content)[:_SHOWN] or one.memory.id)
        table.add_row(one.verdict.replace("_", " "), f"{one.relevance:.3f}", words, one.since)
    if found.considered:
        show.console().print(table)


@with_api
def rate(
    api: ApiClient,
    *,
    id_: MemoryId,
    rating: Annotated[Literal["helpful", "wrong", "none"], typer.Argument(help="none takes it back")],
    request_id: RequestId = "",
    user: UserOption = "",
    as_json: AsJson = False,
) -> None:
    """Rate a memory as helpful or wrong; recall leaves a wrong memory out until it is confirmed."""
    rated = api.call("RateMemory", id=id_, rating=rating, user_id=user, request_id=request_id)
    show.show_answer(rated, show.show_memory, as_json=as_json)


@with_api
def users(
    api: ApiClient,
    *,
    of_tenant: Annotated[str, typer.Option(help="only of this tenant")] = "",
    quarantined: Annotated[bool, typer.Option(help="only users with memories in quarantine")] = False,
    limit: Annotated[int, typer.Option(min=1, help="maximum number of results")] = 50,
    as_json: AsJson = False,
) -> None:
    """List users with the number of their memories; for admins of no single tenant."""
    found, total = api.list_pages("ListUsers", "users", limit, tenant_id=of_tenant, quarantined=quarantined)
    if as_json:
        show.show_json({"users": [show.plain(one) for one in found], "total": str(total)})  # as REST has it
        return
    table = Table("user", "tenant", "kind", "memories", "in quarantine", "last written")
    for one in found:
        name, whose = (Text(show.strip_controls(words)) for words in (one.user_id, one.tenant_id))
        table.add_row(name, whose, one.kind, str(one.memories), str(one.quarantined), _time(one.updated_at))
    show.console().print(table if found else "nobody")
    show.console().print(f"{total} in all")


@with_api
def retention_plan(
    api: ApiClient,
    *,
    user: UserOption = "",
    everybody: Annotated[bool, typer.Option(help="for all users; for admins of no single tenant")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what retention would do with a user's memories now, without changing anything."""
    owners, failed = 1, 0
    if everybody:
        plan, owners, failed = _plan_round(api)
    else:
        plan = api.call("PlanRetention", user_id=user)
    if as_json:
        show.show_json(
            {**show.plain(plan), **({"owners": str(owners), "failed": str(failed)} if everybody else {})}
        )
        return
    out = show.console()
    out.print(f"of {plan.memories} memories{f' of {owners} users and projects' if everybody else ''}:")
    if failed:
        out.print(f"  not read: {failed} users, try again")
    for reason, count in sorted(plan.retired.items()):
        out.print(f"  deleted softly ({reason}) {count}")
    out.print(f"  merged with another {plan.merged}")
    out.print(f"  erased {plan.erased}")


@with_api
def status(api: ApiClient, *, as_json: AsJson = False) -> None:
    """Show the queue, the canary and the last hour's requests; for admins of no single tenant."""
    found = api.call("GetServerStatus")
    if as_json:
        show.show_json(show.plain(found))
        return
    out = show.console()
    out.print(f"{found.memories} memories of {found.users} users, {found.quarantined} in quarantine")
    out.print(f"{found.waiting_turns} turns wait, {found.dead_letters} dead letters")
    if found.HasField("canary"):
        out.print(f"canary found {found.canary:.0%}")
    if found.store_failing_s:
        out.print(f"the store has been failing for {found.store_failing_s:.0f} s")
    if found.consents:
        out.print("consent: " + ", ".join(f"{choice} {count}" for choice, count in sorted(found.consents.items())))
    for finding in found.findings:
        if finding.verdict != "ok":
            out.print(f"doctor: {finding.verdict} {finding.check}: {finding.seen} {finding.mend}", markup=False)
    out.print(f"requests since {_time(found.outcomes_since)}:")
    for outcome, count in sorted(found.outcomes.items(), key=lambda one: -one[1]):
        out.print(f"  {outcome.replace('_', ' ')} {count}")


def _plan_round(api: ApiClient) -> tuple[Any, int, int]:
    """The sum over everybody, how many were looked at, and how many of them could not be read."""
    found = api.call("PlanRetentionRound")
    plan, owners, failed = found.plan, found.owners, found.failed
    while found.next_page_token:
        found = api.call("PlanRetentionRound", page_token=found.next_page_token)
        for reason, count in found.plan.retired.items():
            plan.retired[reason] += count
        for name in ("memories", "merged", "erased"):
            setattr(plan, name, getattr(plan, name) + getattr(found.plan, name))
        owners, failed = owners + found.owners, failed + found.failed
    return plan, owners, failed


def _time(stamp: Any) -> str:
    return str(stamp.ToJsonString())[:16].replace("T", " ")
