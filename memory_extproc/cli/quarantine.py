"""`memory-extproc learn quarantine`: what was put aside of one person as suspicious, and what becomes of it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from memory_extproc.cli.config import AsJson, ConfigFile, file_of
from memory_extproc.cli.explain import owner_of
from memory_extproc.cli.faults import faults_to_exit
from memory_extproc.model import Memory, Owner
from memory_extproc.observe import log
from memory_extproc.settings import Settings, load

if TYPE_CHECKING:
    from memory_extproc.learn.quarantine import Quarantine

app = typer.Typer(
    name="quarantine",
    help="What was put aside of one person as suspicious.\n\n"
    "A Milvus Lite file lets one process in: stop the sidecar first; beside a Milvus server it can run "
    "at any time.",
    no_args_is_help=True,
)
T = TypeVar("T")
User = Annotated[str, typer.Option(help="whose memories, as the identity names the caller")]
Tenant = Annotated[str, typer.Option(help="the caller's tenant, if there is one")]
Ids = Annotated[list[str], typer.Argument(help="ids of `quarantine list`, or how they begin")]
_SHOWN = 10  # digits of an id in a table; --json has all of them
_WORDS = 100  # characters of a memory in a table


@app.command("list")
def listed(user: User, tenant: Tenant = "", config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """List what was put aside and why. It prints what people said."""
    held = _with_quarantine(config, tenant, user, _held)
    if as_json:
        typer.echo(json.dumps([_as_json(memory) for memory in held], indent=2, ensure_ascii=False))
        return
    _show(held)


@app.command()
def release(
    ids: Ids, user: User, tenant: Tenant = "", config: ConfigFile = None, *, as_json: AsJson = False
) -> None:
    """Make them memories as any other: recalled from the next request on."""

    async def released(quarantine: Quarantine, owner: Owner) -> int:
        return await quarantine.release(owner, await _named(quarantine, owner, ids), datetime.now(UTC))

    _tell(_with_quarantine(config, tenant, user, released), "released", as_json=as_json)


@app.command()
def drop(
    ids: Ids,
    user: User,
    tenant: Tenant = "",
    config: ConfigFile = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete them. There is no way back."""
    if not yes:
        typer.confirm(f"delete what begins with {', '.join(ids)}?", abort=True, err=True)

    async def dropped(quarantine: Quarantine, owner: Owner) -> int:
        return await quarantine.drop(owner, await _named(quarantine, owner, ids))

    _tell(_with_quarantine(config, tenant, user, dropped), "dropped", as_json=as_json)


def _tell(count: int, what: str, *, as_json: bool) -> None:
    typer.echo(json.dumps({what: count}) if as_json else f"{count} {what}")
    if not count:
        raise typer.Exit(1)


def _with_quarantine(
    config: Path | None, tenant: str, user: str, use: Callable[[Quarantine, Owner], Awaitable[T]]
) -> T:
    with faults_to_exit():
        settings = load(file_of(config), os.environ)
        log.configure("error", "console")
        return asyncio.run(
            _used(settings, Path(settings.data_dir).absolute(), owner_of(settings, tenant, user), use)
        )


async def _used(
    settings: Settings, data: Path, owner: Owner, use: Callable[[Quarantine, Owner], Awaitable[T]]
) -> T:
    from memory_extproc.app import utc_now  # noqa: PLC0415 - it loads store and inference
    from memory_extproc.app.tending import reviewing  # noqa: PLC0415

    async with reviewing(settings, data, now=utc_now) as quarantine:
        return await use(quarantine, owner)


async def _held(quarantine: Quarantine, owner: Owner) -> list[Memory]:
    return sorted([memory async for memory in quarantine.held(owner)], key=lambda memory: memory.created_at)


async def _named(quarantine: Quarantine, owner: Owner, beginnings: list[str]) -> list[str]:
    return [memory.id for memory in await _held(quarantine, owner) if memory.id.startswith(tuple(beginnings))]


def _as_json(memory: Memory) -> dict[str, Any]:
    return {
        "id": memory.id,
        "suspicion": memory.metadata.get("suspicion", ""),
        "content": memory.content,
        "role": memory.role,
        "source": memory.source,
        "session": memory.session,
        "created_at": memory.created_at.isoformat(),
    }


def _show(held: list[Memory]) -> None:
    from memory_extproc.recall.block import harmless  # noqa: PLC0415 - quick `--help`

    console = Console(highlight=False)
    if not held:
        console.print("nothing is in quarantine")
        return
    table = Table()
    for name in ("id", "why", "said", "memory"):
        table.add_column(name, no_wrap=name in {"id", "said"})
    for memory in held:
        words = harmless(memory.content)
        shown = words if len(words) <= _WORDS else f"{words[:_WORDS]}…"
        why = str(memory.metadata.get("suspicion", ""))
        table.add_row(memory.id[:_SHOWN], why, f"{memory.created_at:%Y-%m-%d}", Text(shown))
    console.print(table)
