"""`memory-extproc memory forget|receipt|verify-receipt` and `verify-forget`: forgetting, and its proof."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from memory_extproc.cli import output as show
from memory_extproc.cli.api_client import Answer, ApiClient, UserOption, Yes, with_api
from memory_extproc.cli.config import AsJson, ConfigFile, faults_to_exit, load_settings
from memory_extproc.errors import ConfigurationError, MemoryExtprocError
from memory_extproc.model import MemoryType, Owner
from memory_extproc.settings import Settings

if TYPE_CHECKING:
    from memory_extproc.erasure.receipts import Look, Proof


# Arguments shared by commands of the memory API, and their API values.

Types = Annotated[list[MemoryType] | None, typer.Option("--type", help="only of this type; may be repeated")]
Project = Annotated[str, typer.Option(help="only of this project")]
Session = Annotated[str, typer.Option(help="only of this session")]
MemoryId = Annotated[str, typer.Argument(help="a memory's id")]
RequestId = Annotated[
    str, typer.Option("--request-id", help="a call that is made again with it changes nothing the second time")
]


def moment(text: str) -> datetime | None:
    """The time that *text* names; None without text. typer.BadParameter for anything else."""
    try:
        return datetime.fromisoformat(text).astimezone() if text else None
    except ValueError:
        raise typer.BadParameter(
            f"{text}: expected a date or time like 2026-03-02 or 2026-03-02T09:00:00Z"
        ) from None


def words(types: list[MemoryType] | None) -> list[str]:
    return [one.value for one in types or []]


_SAY_WHAT = "say what to forget: ids, --query, --type, --project, --session, --before or --all"


@with_api
def forget(
    api: ApiClient,
    *,
    ids: Annotated[list[str] | None, typer.Argument(help="memories' ids")] = None,
    everything: Annotated[bool, typer.Option("--all", help="everything that is remembered")] = False,
    query: Annotated[str, typer.Option(help="what is known about this")] = "",
    types: Types = None,
    project: Project = "",
    session: Session = "",
    before: Annotated[str, typer.Option(help="only memories created before this time")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would go, and forget nothing")] = False,
    request_id: RequestId = "",
    user: UserOption = "",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Forget memories, and all that came from them. It cannot be undone."""
    request: dict[str, Any] = {
        "user_id": user,
        "memory_ids": ids,
        "query": query,
        "type": words(types),
        "project_id": project,
        "session_id": session,
        "before": moment(before),
    }
    narrowed = bool(ids or query or types or project or session or before)
    if narrowed == everything:
        raise ConfigurationError([_SAY_WHAT])
    if dry_run or query or not yes:  # a plan of many memories takes long, and a script does not read it
        plan = api.call("ForgetMemories", dry_run=True, **request)
        if dry_run:
            show.show_answer(plan, show.show_plan, as_json=as_json)
            return
        if not yes:
            _ask(plan, as_json=as_json)
        # Erase exactly the memories shown; all of a user or project may have grown since, and is erased whole.
        if query:
            request["confirmation_token"] = plan.confirmation_token
    done = api.call("ForgetMemories", request_id=request_id, **request)
    show.show_answer(done, show.show_forget, as_json=as_json)


@with_api
def receipt(
    api: ApiClient,
    *,
    id_: Annotated[str, typer.Argument(help="a receipt's id")],
    user: UserOption = "",
) -> Answer:
    """Show the progress of a forget. With --json: the input of `verify-forget`."""
    found = api.call("GetForgetReceipt", receipt_id=id_, user_id=user)
    return found, show.show_receipt


@with_api
def verify_receipt(
    api: ApiClient,
    *,
    file: Annotated[Path, typer.Argument(help="file with the receipt as JSON; - reads standard input")],
    user: UserOption = "",
    as_json: AsJson = False,
) -> None:
    """Have the running server check a receipt's signature and search again for what it covers.

    Exit 0: genuine, and nothing was found; 1: not genuine, or memories were found; 2: the check failed."""
    from google.protobuf.json_format import ParseDict, ParseError  # noqa: PLC0415

    from memory_extproc.api.gen import memory_pb2 as pb  # noqa: PLC0415

    try:
        given = json.loads(_read_receipt(file))
        receipt = ParseDict(given.get("receipt", given), pb.ForgetReceipt(), ignore_unknown_fields=True)
    except (ValueError, TypeError, AttributeError, RecursionError, ParseError):
        raise ConfigurationError([f"{file}: expected the JSON of a receipt, as downloaded"]) from None
    found = api.call("VerifyReceipt", receipt=receipt, user_id=user)
    if as_json:
        show.show_json(show.plain(found))
    else:
        whose = "" if found.subject_matches else "; of another user or server, so nothing was searched"
        show.console().print(f"signature: {found.signature.replace('_', ' ')}{whose}", markup=False)
        _show_looks(found.stores)
    verdicts = {look.verdict for look in found.stores}
    if found.signature == "altered" or "found" in verdicts:
        raise typer.Exit(1)
    if found.signature != "valid" or not found.subject_matches or "not_looked_at" in verdicts:
        raise typer.Exit(2)


def _ask(plan: Any, *, as_json: bool) -> None:
    """typer.Exit where the answer is no."""
    if as_json:
        raise ConfigurationError(["--json asks nobody: add --yes"])
    show.show_plan(plan)
    if not typer.confirm(f"forget {show.format_count(plan.total)} for good?", err=True):
        raise typer.Exit(1)


# `memory-extproc verify-forget`: checks the receipt of a forget, and looks once more.


def verify_forget(
    receipt: Annotated[Path, typer.Argument(help="file with the receipt as JSON; - reads standard input")],
    key: Annotated[
        Path | None, typer.Option(help="PEM file with the public key; by default that of forget.signing_key")
    ] = None,
    user: Annotated[
        str, typer.Option(help="whose memories were forgotten; with it the stores are looked through again")
    ] = "",
    tenant: Annotated[str, typer.Option(help="their tenant")] = "",
    config: ConfigFile = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Check the signature of a forget's receipt and, with --user, look again for anything it covers.

    Exit 0: genuine, and nothing was found; 1: not genuine, or something is there; 2: it could not be checked."""
    with faults_to_exit():
        settings = load_settings(config)
    text = _read_receipt(receipt)
    # cryptography is imported on use, for a quick `--help`.
    from memory_extproc.erasure.receipts import ReceiptFinding, check_signature, read_proof, read_public  # noqa: PLC0415

    path = key or (Path(settings.forget.signing_key) if settings.forget.signing_key else None)
    if path is None:
        typer.echo("name the public key with --key, or configure forget.signing_key", err=True)
        raise typer.Exit(2)
    looks: Sequence[Look] = ()
    try:
        proof = read_proof(text)
        check_signature(proof, read_public(path))
        if user:
            looks = asyncio.run(_look_again(settings, proof, Owner(tenant, user)))
    except MemoryExtprocError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    _show(proof, looks, as_json=as_json)
    if any(look.verdict is ReceiptFinding.FOUND for look in looks):
        raise typer.Exit(1)
    if any(look.verdict is ReceiptFinding.NOT_LOOKED_AT for look in looks):
        raise typer.Exit(2)


def _show(proof: Proof, looks: Sequence[Look], *, as_json: bool) -> None:
    if as_json:
        shown = {"genuine": True, "receipt": proof.body, "stores": [asdict(look) for look in looks]}
        typer.echo(json.dumps(shown, indent=2))
        return
    typer.echo(f"genuine: {proof.body['scope']} forgotten, {proof.body['state']}")
    _show_looks(looks)


def _show_looks(looks: Sequence[Any]) -> None:
    table = Table("store", "verdict", "found", "why")
    for look in looks:
        table.add_row(look.store, look.verdict, str(look.found), look.why)
    if looks:
        Console(highlight=False).print(table)


def _read_receipt(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        typer.echo(f"{file}: {error.strerror}", err=True)
        raise typer.Exit(2) from error


async def _look_again(settings: Settings, proof: Proof, owner: Owner) -> Sequence[Look]:
    from memory_extproc.app.offline import verify_gone  # noqa: PLC0415 - with it come the stores

    return await verify_gone(settings, proof, owner)
