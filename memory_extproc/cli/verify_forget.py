"""`memory-extproc verify-forget`: checks the receipt of a forget, and looks once more."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from memory_extproc.cli.config import AsJson, ConfigFile, file_of
from memory_extproc.cli.faults import faults_to_exit
from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import Owner
from memory_extproc.observe import log
from memory_extproc.settings import Settings, load

if TYPE_CHECKING:
    from memory_extproc.erasure.verifying import Look, Proof


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

    Exit 0: genuine, and nothing was found; 1: not genuine, or something is there; 2: it could not be checked.
    """
    with faults_to_exit():
        settings = load(file_of(config), os.environ)
    log.configure("error", "console")
    try:
        text = sys.stdin.buffer.read() if str(receipt) == "-" else receipt.read_bytes()
    except OSError as error:
        typer.echo(f"{receipt}: {error.strerror}", err=True)
        raise typer.Exit(2) from error
    # cryptography is imported by who asks for it alone.
    from memory_extproc.erasure.receipts import read_public  # noqa: PLC0415
    from memory_extproc.erasure.verifying import Verdict, check_signature, read_proof  # noqa: PLC0415

    path = key or (Path(settings.forget.signing_key) if settings.forget.signing_key else None)
    if path is None:
        typer.echo("name the public key with --key, or configure forget.signing_key", err=True)
        raise typer.Exit(2)
    looks: Sequence[Look] = ()
    try:
        proof = read_proof(text)
        check_signature(proof, read_public(path))
        if user:
            looks = asyncio.run(_looked(settings, proof, Owner(tenant, user)))
    except MemoryExtprocError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    _show(proof, looks, as_json=as_json)
    if any(look.verdict is Verdict.FOUND for look in looks):
        raise typer.Exit(1)
    if any(look.verdict is Verdict.NOT_LOOKED_AT for look in looks):
        raise typer.Exit(2)


def _show(proof: Proof, looks: Sequence[Look], *, as_json: bool) -> None:
    if as_json:
        shown = {"genuine": True, "receipt": proof.body, "stores": [asdict(look) for look in looks]}
        typer.echo(json.dumps(shown, indent=2))
        return
    typer.echo(f"genuine: {proof.body['scope']} forgotten, {proof.body['state']}")
    if looks:
        table = Table("store", "verdict", "found", "why")
        for look in looks:
            table.add_row(look.store, look.verdict, str(look.found), look.why)
        Console(highlight=False).print(table)


async def _looked(settings: Settings, proof: Proof, owner: Owner) -> Sequence[Look]:
    from memory_extproc.app.verifying import looked_again  # noqa: PLC0415 - with it come the stores

    async with AsyncExitStack() as stack:
        return await looked_again(settings, proof, owner, stack)
