"""`memory-extproc keys`: the master key, and what it wrapped."""

from __future__ import annotations

import asyncio
import json
import os

import typer

from memory_extproc.cli.config import AsJson, ConfigFile, file_of
from memory_extproc.cli.faults import faults_to_exit
from memory_extproc.settings import Settings, load

app = typer.Typer(help="Keys of texts at rest (privacy.encrypt_content).", no_args_is_help=True)


@app.command()
def new() -> None:
    """Print a new master key, for a line of privacy.master_key_file.

    The first line wraps, all lines unwrap: to rotate, put the new key before the others, run `keys rotate`, and
    take the old line out once `keys status` says that it wraps nothing any more.
    """
    from memory_extproc.sealing.master import new_master_key  # noqa: PLC0415 - quick `--help`

    typer.echo(new_master_key())


@app.command()
def rotate(config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Wrap every caller's key anew with the first master key of the file.

    Texts stay as they are, and a sidecar that runs takes no notice.
    """
    with faults_to_exit():
        anew, before = asyncio.run(_rotated(load(file_of(config), os.environ)))
    if as_json:
        typer.echo(json.dumps({"wrapped_anew": anew, "wrapped_before": before}))
    else:
        typer.echo(f"{anew} keys wrapped anew, {before} were already")


@app.command()
def status(config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Say how many keys each master key wraps, by its name."""
    with faults_to_exit():
        current, masters = asyncio.run(_masters(load(file_of(config), os.environ)))
    if as_json:
        typer.echo(json.dumps({"current": current[0], "at_hand": current, "wrapped_by": masters}))
        return
    for name in dict.fromkeys((*current, *masters)):
        note = "current" if name == current[0] else "at hand" if name in current else "NOT AT HAND"
        typer.echo(f"{name}  {masters.get(name, 0):>8} keys  {note}")


async def _rotated(settings: Settings) -> tuple[int, int]:
    from memory_extproc.app import keys_alone  # noqa: PLC0415 - quick `--help`

    async with keys_alone(settings) as (keys, _):
        return await keys.rotate()


async def _masters(settings: Settings) -> tuple[tuple[str, ...], dict[str, int]]:
    from memory_extproc.app import keys_alone  # noqa: PLC0415 - quick `--help`

    async with keys_alone(settings) as (keys, master):
        return master.names, await keys.masters()
