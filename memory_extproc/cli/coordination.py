"""`memory-extproc coordination`: inspect the state that replicas share in Redis, and resolve a loss."""

from __future__ import annotations

import asyncio
import getpass
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from memory_extproc.cli.config import AsJson, ConfigFile, faults_to_exit, load_settings
from memory_extproc.settings import Settings

if TYPE_CHECKING:
    from memory_extproc.app.coordination import FleetAdmin

app = typer.Typer(
    name="coordination", help="Inspect and repair the state that replicas share in Redis.", no_args_is_help=True
)
T = TypeVar("T")
_Reason = Annotated[str, typer.Option("--reason", help="reason, for the audit log")]


@app.command()
def status(config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """List data directories that may hold accepted turns that are not in the shared journal.

    No forget of a caller whose turns may wait there is clean."""
    found = _with_fleet(config, lambda fleet: fleet.replicas.waiting())
    if as_json:
        rows = [{"name": one.name, "live": one.live, "since": one.since and one.since.isoformat()} for one in found]
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("directory", "replica", "turns wait since")
    for one in found:
        since = f"{one.since:%Y-%m-%d %H:%M:%S}" if one.since else "unknown"
        table.add_row(one.name, "serves" if one.live else "DEAD", since)
    Console(highlight=False).print(table if found else "no data directory holds turns of its own")


@app.command()
def strike(name: str, reason: _Reason, config: ConfigFile = None) -> None:
    """Remove the dead data directory NAME from the list; turns that only it holds are lost.

    Where its volume is still there, start a replica on it instead, or run `learn adopt`."""
    if not _with_fleet(config, lambda fleet: fleet.replicas.strike(name), "StrikeDirectory", reason, name):
        typer.echo(f"no dead data directory has the name {name}", err=True)
        raise typer.Exit(1)


@app.command("accept-loss")
def accept_loss(reason: _Reason, config: ConfigFile = None) -> None:
    """Let replicas serve again after Redis lost forgets that cannot be restored from Milvus.

    Forgotten memories may then be recalled again. The copies in data directories are restored all the same."""
    _with_fleet(config, lambda fleet: fleet.accept_loss(), "AcceptLoss", reason)
    typer.echo("replicas that wait for copies of forgets go on without them within seconds")


def _with_fleet(
    config: Path | None,
    use: Callable[[FleetAdmin], Awaitable[T]],
    method: str = "",
    reason: str = "",
    scope: str = "",
) -> T:
    """With a *method*, the action is first written to the audit log; if that fails, it is not done."""

    async def use_fleet(settings: Settings) -> T:
        from memory_extproc.app.coordination import open_fleet  # noqa: PLC0415 - quick `--help`

        async with AsyncExitStack() as stack:
            fleet = await open_fleet(settings, stack)
            if method:
                _audit(settings, method, reason, scope)
            return await use(fleet)

    with faults_to_exit():
        settings = load_settings(config)
        return asyncio.run(use_fleet(settings))


def _audit(settings: Settings, method: str, reason: str, scope: str) -> None:
    """In a directory of its own, because the sidecar's log has a single writer; `audit verify --directory`
    checks it."""
    from memory_extproc.api.audit import AuditRecord  # noqa: PLC0415 - quick `--help`
    from memory_extproc.api.principal import Means, Principal  # noqa: PLC0415
    from memory_extproc.app.api import operator_audit  # noqa: PLC0415
    from memory_extproc.settings.api import PrincipalRole  # noqa: PLC0415

    who = Principal("", getpass.getuser(), frozenset({PrincipalRole.ADMIN}), Means.NONE, "operator")
    audited = AuditRecord(principal=who, method=method, owner=None, outcome="OK", reason=reason, scope=scope)
    with operator_audit(settings, lambda: datetime.now(UTC)) as written:
        written.write(audited)
        written.check()
