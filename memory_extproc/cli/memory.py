"""`memory-extproc memory`: see, correct and forget memories, over the memory API; decisions, ratings,
users and the server's state."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from memory_extproc.cli import output as show
from memory_extproc.cli.api_client import Answer, ApiClient, UserOption, Yes, with_api
from memory_extproc.cli.config import AsJson
from memory_extproc.cli.files import export, import_, sync
from memory_extproc.cli.forget import (
    MemoryId,
    Project,
    RequestId,
    Session,
    Types,
    forget,
    moment,
    receipt,
    verify_receipt,
    words,
)
from memory_extproc.errors import ConfigurationError

app = typer.Typer(help="See, correct and forget what is remembered, over the memory API.", no_args_is_help=True)
_Kind = Literal["semantic", "procedural", "episodic", "reflective"]
_Limit = Annotated[int, typer.Option(min=0, max=100, help="maximum number of memories; 0: as configured for chats")]
_Threshold = Annotated[
    float | None, typer.Option(min=0, max=1, help="minimum relevance; by default as configured for chats")
]


def struct(text: str) -> dict[str, Any] | None:
    """The JSON object in *text*; None without text. typer.BadParameter for anything else."""
    if not text:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise typer.BadParameter("--metadata: expected a JSON object")
    return value


@with_api
def list_memories(
    api: ApiClient,
    *,
    types: Types = None,
    project: Project = "",
    session: Session = "",
    source: Annotated[
        list[str] | None, typer.Option(help="only memories from this source; may be repeated")
    ] = None,
    state: Annotated[
        list[str] | None, typer.Option(help="only memories in this state (default: active); any: all states")
    ] = None,
    after: Annotated[str, typer.Option(help="only memories created at this time or later")] = "",
    before: Annotated[str, typer.Option(help="only memories created before this time")] = "",
    text: Annotated[str, typer.Option(help="only memories that contain all of these words")] = "",
    limit: Annotated[int, typer.Option(min=1, help="maximum number of results")] = 50,
    user: UserOption = "",
    as_json: AsJson = False,
) -> None:
    """List memories, the newest first."""
    memories, total = api.list_pages(
        "ListMemories",
        "memories",
        limit,
        user_id=user,
        project_id=project,
        type=words(types),
        session_id=session,
        source=source,
        state=state,
        created_after=moment(after),
        created_before=moment(before),
        text=text,
    )
    if as_json:
        show.show_json({"memories": [show.plain(one) for one in memories], "total": total, "limit": limit})
        return
    if memories:
        show.show_memories(memories)
    show.console().print(f"{len(memories)} of {total}")


@with_api
def search(
    api: ApiClient,
    *,
    query: Annotated[str, typer.Argument(help="question, as a user would ask it")],
    types: Types = None,
    project: Project = "",
    limit: _Limit = 0,
    threshold: _Threshold = None,
    user: UserOption = "",
) -> Answer:
    """Search memories as a chat would."""
    found = api.call(
        "SearchMemories",
        user_id=user,
        query=query,
        project_id=project,
        type=words(types),
        limit=limit,
        threshold=threshold,
    )
    return found, show.show_results


@with_api
def get(
    api: ApiClient,
    *,
    id_: MemoryId,
    history: Annotated[bool, typer.Option("--history", help="include earlier versions")] = False,
    user: UserOption = "",
) -> Answer:
    """Show one memory."""
    return api.call("GetMemory", id=id_, user_id=user, history=history), show.show_memory


@with_api
def store(
    api: ApiClient,
    *,
    content: Annotated[str, typer.Argument(help="text to remember")],
    type_: Annotated[_Kind, typer.Option("--type")] = "semantic",
    project: Annotated[str, typer.Option(help="project of the memory")] = "",
    session: Annotated[str, typer.Option(help="session of the memory")] = "",
    importance: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    expires: Annotated[str, typer.Option(help="date or time at which the memory expires")] = "",
    metadata: Annotated[str, typer.Option(help="a JSON object")] = "",
    on_duplicate: Annotated[
        Literal["update", "keep_both", "reject"], typer.Option(help="treatment of a duplicate")
    ] = "update",
    extract: Annotated[bool, typer.Option("--extract", help="also extract facts from the text")] = False,
    request_id: RequestId = "",
    user: UserOption = "",
) -> Answer:
    """Remember a text."""
    stored = api.call(
        "StoreMemory",
        user_id=user,
        content=content,
        type=type_,
        project_id=project,
        session_id=session,
        importance=importance,
        expires_at=moment(expires),
        metadata=struct(metadata),
        on_duplicate=on_duplicate,
        request_id=request_id,
        extract=extract,
    )
    return stored, show.show_stored


@with_api
def update(
    api: ApiClient,
    *,
    id_: MemoryId,
    content: Annotated[str | None, typer.Option(help="corrected text")] = None,
    type_: Annotated[_Kind | None, typer.Option("--type")] = None,
    project: Annotated[str | None, typer.Option(help="project of the memory; empty: none")] = None,
    importance: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    expires: Annotated[
        str | None, typer.Option(help="date or time at which the memory expires; empty: never")
    ] = None,
    metadata: Annotated[str | None, typer.Option(help="a JSON object")] = None,
    request_id: RequestId = "",
    user: UserOption = "",
) -> Answer:
    """Correct a memory. The earlier text is kept as a version."""
    given: dict[str, Any] = {
        "content": content,
        "type": type_,
        "project_id": project,
        "importance": importance,
        "expires_at": expires,
        "metadata": metadata,
    }
    mask = [name for name, value in given.items() if value is not None]
    if not mask:
        raise ConfigurationError(["nothing to correct: give --content, --type, --project or another"])
    given["expires_at"] = moment(expires or "")
    given["metadata"] = struct(metadata or "")
    updated = api.call(
        "UpdateMemory",
        id=id_,
        memory={name: given[name] for name in mask},
        update_mask={"paths": mask},
        user_id=user,
        request_id=request_id,
    )
    return updated, show.show_memory


@with_api
def restore(api: ApiClient, *, id_: MemoryId, request_id: RequestId = "", user: UserOption = "") -> Answer:
    """Restore a softly deleted memory (deleted by a command in a chat, or by retention)."""
    restored = api.call("RestoreMemory", id=id_, user_id=user, request_id=request_id)
    return restored, show.show_memory


@with_api
def stats(api: ApiClient, *, user: UserOption = "") -> Answer:
    """Show statistics of the memories."""
    return api.call("GetStats", user_id=user), show.show_stats


@with_api
def explain(
    api: ApiClient,
    *,
    text: Annotated[str, typer.Argument(help="the user's last message")],
    earlier: Annotated[
        list[str] | None, typer.Option(help="earlier message of the conversation; may be repeated")
    ] = None,
    types: Types = None,
    project: Project = "",
    limit: _Limit = 0,
    threshold: _Threshold = None,
    force: Annotated[bool, typer.Option("--force", help="search even if the gate would skip recall")] = False,
    as_of: Annotated[str | None, typer.Option(help="recall as of this time, such as 2026-03-02T09:00:00Z")] = None,
    user: UserOption = "",
) -> Answer:
    """Explain the recall for a message."""
    explained = api.call(
        "ExplainRecall",
        user_id=user,
        text=text,
        earlier=earlier,
        project_id=project,
        type=words(types),
        limit=limit,
        threshold=threshold,
        force=force,
        as_of=moment(as_of or ""),
    )
    return explained, show.show_explanation


@with_api
def end_session(
    api: ApiClient,
    *,
    session: Annotated[str, typer.Argument(help="session id, as the client sent it")],
    user: UserOption = "",
) -> Answer:
    """End a session, so that it is learned now."""
    ended = api.call("EndSession", user_id=user, session_id=session)
    return ended, lambda _: show.console().print("the session's end is taken note of")


@with_api
def consent(
    api: ApiClient,
    *,
    state: Annotated[
        Literal["on", "recall_only", "off"] | None,
        typer.Argument(help="new choice; without it, the current choice is shown"),
    ] = None,
    forget: Annotated[bool, typer.Option("--forget", help="with off: also forget everything")] = False,
    user: UserOption = "",
    yes: Yes = False,
) -> Answer:
    """Show or set the user's consent to memory."""
    if forget and state != "off":
        raise ConfigurationError(["--forget goes with off alone"])
    if state is None:
        known = api.call("GetConsent", user_id=user)
    else:
        if forget and not yes and not typer.confirm("forget everything that is remembered, for good?", err=True):
            raise typer.Exit(1)
        known = api.call("SetConsent", user_id=user, state=state, forget=forget)

    def show_consent(known: Any) -> None:
        out: Console = show.console()
        by_default = state is None and known.by_default
        out.print(f"consent: {known.state}{', as nobody said otherwise' if by_default else ''}", markup=False)
        if state is None:
            for change in known.history:
                out.print(f"  {change.at.ToDatetime():%Y-%m-%d %H:%M} {change.state} by {change.by}", markup=False)
        elif known.HasField("receipt"):
            show.show_receipt(known.receipt)

    return known, show_consent


@with_api
def turn(
    api: ApiClient,
    *,
    turn_id: Annotated[
        str,
        typer.Argument(
            help="id of a turn (or its beginning) or of a request; without it, the newest turns are listed"
        ),
    ] = "",
    session: Session = "",
    limit: Annotated[int, typer.Option(min=1, max=100, help="maximum number of results")] = 20,
    user: UserOption = "",
) -> Answer:
    """Show the progress of accepted turns, or, with an id, the memories made from that turn."""
    if turn_id:
        return api.call("GetTurn", id=turn_id, user_id=user), lambda receipt: _show_turns([receipt])
    turns = api.call("ListTurns", user_id=user, session_id=session, limit=limit)
    return turns, lambda answer: _show_turns(answer.turns)


def _show_turns(receipts: Sequence[Any]) -> None:
    out: Console = show.console()
    for each in receipts:
        why = f" ({each.reason})" if each.reason else ""
        when = f"{each.accepted_at.ToDatetime():%Y-%m-%d %H:%M}" if each.HasField("accepted_at") else ""
        out.print("  ".join(filter(None, (each.id[:16], when, f"{each.state}{why}"))), markup=False)
        if each.learned:
            show.show_memories(each.learned)
    if not receipts:
        out.print("no turns are in the journal")


@with_api
def quarantine(
    api: ApiClient,
    *,
    ids: Annotated[
        list[str] | None, typer.Argument(help="ids or their beginnings; without ids, all are listed")
    ] = None,
    verdict: Annotated[Literal["release", "drop"] | None, typer.Option(help="verdict on the memories")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="maximum number of results")] = 50,
    user: UserOption = "",
) -> Answer:
    """List, release or drop quarantined memories while the sidecar runs."""
    if bool(ids) != bool(verdict):
        raise ConfigurationError(["--verdict and ids belong together"])
    if verdict is not None:
        done = "released" if verdict == "release" else "dropped"
        answer = api.call("ReviewQuarantine", user_id=user, memory_ids=ids, verdict=verdict)
        return answer, lambda answer: show.console().print(f"{answer.changed} {done}")

    def show_held(answer: Any) -> None:
        if answer.memories:
            show.show_memories(answer.memories)
        show.console().print(f"{len(answer.memories)} of {answer.total}")

    return api.call("ListQuarantine", user_id=user, limit=limit), show_held


@with_api
def dead_letters(
    api: ApiClient,
    *,
    retry: Annotated[list[str] | None, typer.Option(help="turn to retry; may be repeated")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="maximum number of results")] = 50,
    after: Annotated[
        str, typer.Option(help="go on behind this one: the place of a dead letter, as --json has it")
    ] = "",
) -> Answer:
    """List or retry dead letters; for admins of all tenants."""
    if retry:
        retried = api.call("RetryDeadLetters", turn_ids=retry)
        return retried, lambda answer: show.console().print(f"{answer.retried} turn(s) wait again")

    def show_letters(answer: Any) -> None:
        for each in answer.letters:
            when = f"{each.failed_at.ToDatetime():%Y-%m-%d %H:%M}"
            line = f"{each.turn_id}  {when}  {each.reason}  {each.attempts} tries"
            show.console().print(line, markup=False, soft_wrap=True)
        if not answer.letters:
            show.console().print("no dead letters")

    return api.call("ListDeadLetters", limit=limit, after=after), show_letters


@with_api
def configuration(api: ApiClient) -> Answer:
    """Show the configuration of the running server; for admins of all tenants."""
    return api.call("GetConfiguration"), show.show_configuration


# --- operation ---------------------------------------------------------------------------------------


_SHOWN = 300  # characters of a memory in a table


@with_api
def decision(
    api: ApiClient,
    *,
    request: Annotated[str, typer.Argument(metavar="[REQUEST]", help="its x-request-id; none: the latest")] = "",
    user: UserOption = "",
) -> Answer:
    """Show the decision of a request, or list the latest requests; needs trace.keep."""
    if not request:
        return api.call("ListDecisions", user_id=user), _show_decisions
    return api.call("GetDecision", request_id=request, user_id=user), _show_decision


def _show_decisions(latest: Any) -> None:
    table = Table("request", "at", "outcome", "memories")
    for one in latest.decisions:
        table.add_row(one.request_id, _time(one.at), one.outcome.replace("_", " "), str(one.memories))
    show.console().print(table if latest.decisions else "no request is kept")


def _show_decision(found: Any) -> None:
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
) -> Answer:
    """Rate a memory as helpful or wrong; recall leaves a wrong memory out until it is confirmed."""
    rated = api.call("RateMemory", id=id_, rating=rating, user_id=user, request_id=request_id)
    return rated, show.show_memory


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
def status(api: ApiClient) -> Answer:
    """Show the queue, the canary and the last hour's requests; for admins of no single tenant."""
    return api.call("GetServerStatus"), _show_status


def _show_status(found: Any) -> None:
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
    """The sum over all users, the number of users, and the number whose memories could not be read."""
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


app.command("list")(list_memories)
for command in (search, get, store, update, restore, forget, receipt, stats, explain, consent, configuration):
    app.command(command.__name__)(command)
app.command("retention-plan")(retention_plan)
app.command("verify-receipt")(verify_receipt)
app.command("turn")(turn)
for each in (decision, rate, users, status):
    app.command(each.__name__)(each)
app.command("quarantine")(quarantine)
app.command("dead-letters")(dead_letters)
for named, files in (("export", export), ("import", import_), ("sync", sync)):
    app.command(named)(with_api(files))
app.command("end-session")(end_session)
