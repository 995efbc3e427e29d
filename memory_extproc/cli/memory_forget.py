"""`memory-extproc memory forget|receipt`: what goes for good, and how far it has come."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from memory_extproc.cli import memory_show as show
from memory_extproc.cli.api_options import Api, AsJson, UserOption, Yes, with_api
from memory_extproc.cli.memory_arguments import Project, RequestId, Session, Types, moment, words
from memory_extproc.errors import ConfigurationError

# The API's messages are imported where they are used, for a quick `--help`.
_SAY_WHAT = "say what to forget: ids, --query, --type, --project, --session, --before or --all"


@with_api
def forget(
    api: Api,
    *,
    ids: Annotated[list[str] | None, typer.Argument(help="memories' ids")] = None,
    everything: Annotated[bool, typer.Option("--all", help="everything that is remembered")] = False,
    query: Annotated[str, typer.Option(help="what is known about this")] = "",
    types: Types = None,
    project: Project = "",
    session: Session = "",
    before: Annotated[str, typer.Option(help="only what came to be before")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would go, and forget nothing")] = False,
    request_id: RequestId = "",
    user: UserOption = "",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Forget memories, and all that came from them. It cannot be undone."""
    from memory_extproc.api.gen import memory_pb2 as pb  # noqa: PLC0415

    request = pb.ForgetMemoriesRequest(
        user_id=user,
        memory_ids=ids or [],
        query=query,
        type=words(types),
        project_id=project,
        session_id=session,
        before=moment(before) if before else None,
    )
    narrowed = bool(ids or query or types or project or session or before)
    if narrowed == everything:
        raise ConfigurationError([_SAY_WHAT])
    if dry_run or query or not yes:  # of many memories a plan takes long, and nobody would look at it
        request.dry_run = True
        plan = api.call("ForgetMemories", request)
        if dry_run:
            show.show_plan(plan, as_json=as_json)
            return
        if not yes:
            _ask(plan, as_json=as_json)
        request.dry_run = False
        # What was shown is what goes; a user's or project's all may have grown since, and is meant whole.
        if query:
            request.confirmation_token = plan.confirmation_token
    request.request_id = request_id
    done = api.call("ForgetMemories", request)
    if as_json:
        show.show_json(show.plain(done))
    else:
        show.console().print(done.message, markup=False)
        show.show_receipt(done.receipt)


@with_api
def receipt(
    api: Api,
    *,
    id_: Annotated[str, typer.Argument(help="a receipt's id")],
    user: UserOption = "",
    as_json: AsJson = False,
) -> None:
    """Show how far a forget has come. With --json: what `verify-forget` takes."""
    from memory_extproc.api.gen import memory_pb2 as pb  # noqa: PLC0415

    found = api.call("GetForgetReceipt", pb.GetForgetReceiptRequest(receipt_id=id_, user_id=user))
    if as_json:
        show.show_json(show.plain(found))
    else:
        show.show_receipt(found)


def _ask(plan: Any, *, as_json: bool) -> None:
    """typer.Exit where the answer is no."""
    if as_json:
        raise ConfigurationError(["--json asks nobody: add --yes"])
    show.show_plan(plan, as_json=False)
    if not typer.confirm(f"forget {show.counted(plan.total)} for good?", err=True):
        raise typer.Exit(1)
