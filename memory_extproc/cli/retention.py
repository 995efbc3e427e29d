"""`memory-extproc retention`: what becomes of memories with time, by command."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from memory_extproc.cli.config import AsJson, ConfigFile, file_of
from memory_extproc.cli.explain import owner_of
from memory_extproc.cli.faults import faults_to_exit
from memory_extproc.model import Owner
from memory_extproc.observe import log
from memory_extproc.settings import Settings, load

if TYPE_CHECKING:
    from memory_extproc.retention.job import Round

app = typer.Typer(
    name="retention",
    help="What becomes of memories with time.\n\n"
    "A Milvus Lite file lets one process in: there the sidecar keeps its memories itself "
    "(retention.every), and the command is for when it is stopped; beside a Milvus server it can run at any time.",
    no_args_is_help=True,
)


@app.callback()
def retention() -> None:
    """What becomes of memories with time."""


_User = Annotated[str, typer.Option(help="this caller alone; empty: everybody")]
_Tenant = Annotated[str, typer.Option(help="the caller's tenant, if there is one")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="change nothing, say what would happen")]


@app.command()
def run(
    config: ConfigFile = None,
    user: _User = "",
    tenant: _Tenant = "",
    *,
    dry_run: _DryRun = False,
    as_json: AsJson = False,
) -> None:
    """See to everybody's memories once: delete, erase, and make what says the same one.

    Deleted softly is what is over or too many, erased what was deleted for long enough. It can be stopped at any
    time and run again.

    Exit 0: done; 1: not for every caller, whose number is told.
    """
    _do("keep", config, user, tenant, dry_run=dry_run, as_json=as_json)


@app.command()
def reflect(
    config: ConfigFile = None,
    user: _User = "",
    tenant: _Tenant = "",
    *,
    dry_run: _DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Have the extraction model say what several facts of a theme show.

    Also where retention.reflect is not switched on. A theme is thought over once, and again when it has grown;
    `--dry-run` counts those that are due, and asks no model.

    Exit 0: done; 1: not for every caller, whose number is told.
    """
    _do("reflect", config, user, tenant, dry_run=dry_run, as_json=as_json)


def _do(work: str, config: Path | None, user: str, tenant: str, *, dry_run: bool, as_json: bool) -> None:
    with faults_to_exit():
        settings = load(file_of(config), os.environ)
        log.configure("error", "console")
        owner = owner_of(settings, tenant, user) if user else None
        data = Path(settings.data_dir).absolute()
        report = asyncio.run(_done(work, settings, data, owner, dry_run=dry_run))
    shown = _shown(report, dry_run=dry_run)
    if as_json:
        typer.echo(json.dumps(shown, indent=2))
    else:
        _tell(shown)
    if report.failed:
        raise typer.Exit(1)


async def _done(work: str, settings: Settings, data: Path, owner: Owner | None, *, dry_run: bool) -> Round:
    from contextlib import AsyncExitStack  # noqa: PLC0415 - quick `--help`, and all below

    from memory_extproc.app import hold_lite, utc_now  # noqa: PLC0415
    from memory_extproc.app.tending import job_of, tending  # noqa: PLC0415
    from memory_extproc.retention.job import Work  # noqa: PLC0415

    doing = Work(work)
    async with AsyncExitStack() as stack:
        hold_lite(settings, data, stack)
        tended = await stack.enter_async_context(
            tending(settings, data, now=utc_now, reflecting=doing is Work.REFLECT)
        )
        job = job_of(settings, tended, now=utc_now)
        if owner is not None:
            return await job.one(owner, doing, dry_run=dry_run)
        return await job.round(doing, dry_run=dry_run, anew=True)


def _shown(report: Round, *, dry_run: bool) -> dict[str, Any]:
    kept = report.kept
    return {
        "dry_run": dry_run,
        "callers": report.owners,
        "passed_over": report.passed_over,
        "failed": report.failed,
        "memories": kept.memories,
        "retired": {reason.value: count for reason, count in sorted(kept.retired.items())},
        "merged": kept.merged,
        "themes": kept.themes,
        "derived": kept.derived,
        "revived": kept.revived,
        "rebuilt": kept.rebuilt,
        "erased": kept.erased,
    }


def _tell(shown: dict[str, Any]) -> None:
    table = Table("what", "how many", title="what would happen" if shown["dry_run"] else None)
    for name, value in shown.items():
        if name == "dry_run":
            continue
        if isinstance(value, dict):
            for reason, count in value.items():
                table.add_row(f"retired: {reason}", str(count))
        else:
            table.add_row(name.replace("_", " "), str(value))
    Console(highlight=False).print(table)
