"""`memory-extproc store`: check, re-embed, back up and restore the store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from memory_extproc.cli.config import AsJson, ConfigFile, Says, faults_to_exit, load_settings, progress
from memory_extproc.errors import ConfigurationError
from memory_extproc.settings import Settings

if TYPE_CHECKING:
    from memory_extproc.app.offline import OfflineContext
    from memory_extproc.ports import MemoryStore
    from memory_extproc.retention.reembed import Checked, Reembedding

app = typer.Typer(
    name="store",
    help="Check, re-embed, back up and restore the whole store.\n\n"
    "A Milvus Lite file lets one process in: stop the sidecar first; beside a Milvus server all of it "
    "can run at any time.",
    no_args_is_help=True,
)
_Source = Annotated[
    str, typer.Option("--from", help="copy all memories of this collection, whatever model embedded them")
]
_Folder = Annotated[Path, typer.Argument(file_okay=False, exists=True, help="folder written by `store backup`")]
_NewFolder = Annotated[Path, typer.Argument(file_okay=False, help="folder to write; created if missing")]


@app.command()
def check(config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Count memories without a vector, or with a vector of another model than the configured one.

    Exit 0: there are none; 1: there are, and `store reembed` embeds them."""

    async def run_check(reembedding: Reembedding, _: MemoryStore | None) -> Checked:
        return await reembedding.check()

    report, model = _with_store(config, run_check)
    wrong = report.memories - report.models[model]
    _tell(_report_as_json(report, model), as_json=as_json)
    if wrong or report.broken or report.failed:
        raise typer.Exit(1)


@app.command()
def reembed(config: ConfigFile = None, source: _Source = "", *, as_json: AsJson = False) -> None:
    """Embed the memories that `store check` counts or, with --from, those of another collection.

    It works beside running sidecars, can be stopped at any time, and continues when run again. Exit 1: failed
    for some callers; run it again."""

    async def run_reembedding(reembedding: Reembedding, other: MemoryStore | None) -> Checked:
        return await (reembedding.backfill() if other is None else reembedding.take_over(other))

    report, model = _with_store(config, run_reembedding, source=source)
    _tell({**_report_as_json(report, model), "embedded": report.embedded}, as_json=as_json)
    if report.failed:
        raise typer.Exit(1)


@app.command()
def compact(config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Remove the bytes of deleted rows from the store's files. A server does so by itself."""
    with faults_to_exit():
        settings = load_settings(config)
        done = asyncio.run(_compact_store(settings))
    _tell({"compacted": done}, as_json=as_json)


@app.command()
def backup(folder: _NewFolder, config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Write all memories, the journal, consent choices and the forget ledger to FOLDER.

    Encrypted texts stay encrypted, and their keys are not included. Back up Redis separately."""
    with faults_to_exit():
        settings = load_settings(config)
        _make(folder)
        with progress() as says:
            report = asyncio.run(_backed_up(settings, folder, says))
    _tell(report, as_json=as_json)


@app.command()
def restore(folder: _Folder, config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Restore a backup, without the memories that were forgotten since.

    Stop the sidecar of this data directory first. Existing memories are kept as newer, and existing files are
    kept (take over a journal with `learn adopt FOLDER`). It can be interrupted and run again."""
    with faults_to_exit():
        settings = load_settings(config)
        with progress() as says:
            report = asyncio.run(_restore_folder(settings, folder, says))
    _tell(report, as_json=as_json)


def _make(folder: Path) -> None:
    """For its owner alone. ConfigurationError where it cannot be made."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError([f"{folder}: cannot be made: {error.strerror}"]) from error


async def _backed_up(settings: Settings, folder: Path, says: Says) -> dict[str, Any]:
    from memory_extproc.app.offline import back_up_files, back_up_memories  # noqa: PLC0415 - quick `--help`

    async with AsyncExitStack() as stack:
        tended = await _open_store(settings, stack)
        # Files first: a turn that is learned meanwhile is then in both, and counts once.
        files = await asyncio.to_thread(back_up_files, settings, folder)
        return {"files": files, "memories": await back_up_memories(tended, folder, says)}


async def _restore_folder(settings: Settings, folder: Path, says: Says) -> dict[str, Any]:
    from memory_extproc.app import hold_data_directory  # noqa: PLC0415 - quick `--help`
    from memory_extproc.app.offline import (  # noqa: PLC0415
        open_offline,
        restore_files,
        restore_memories,
        restore_shared,
    )

    async with AsyncExitStack() as stack:
        hold_data_directory(settings, stack)
        files = await asyncio.to_thread(restore_files, settings, folder)
        shared = await restore_shared(settings, folder)
        tended = await stack.enter_async_context(open_offline(settings))
        counted = await restore_memories(tended, folder, says)
        into_redis = {"into_redis": shared} if settings.coordination.url else {}
        counts = {what: counted[what] for what in ("restored", "newer", "forgotten", "unreadable")}
        return {"files": files["restored"], "kept": files["kept"], **into_redis, **counts}


def _with_store(
    config: Path | None, use: Callable[[Reembedding, MemoryStore | None], Awaitable[Checked]], *, source: str = ""
) -> tuple[Checked, str]:
    """The report, and the fingerprint of the model in use."""
    with faults_to_exit():
        settings = load_settings(config)
        with progress() as says:
            return asyncio.run(_run_reembedding(settings, use, source, says))


async def _run_reembedding(
    settings: Settings,
    use: Callable[[Reembedding, MemoryStore | None], Awaitable[Checked]],
    source: str,
    says: Says,
) -> tuple[Checked, str]:
    from memory_extproc.app.offline import open_reembedding  # noqa: PLC0415 - quick `--help`

    async with AsyncExitStack() as stack:
        tended = await _open_store(settings, stack)
        made, other = await open_reembedding(tended, source=source, says=says)
        return await use(made, other), tended.embedder.fingerprint


async def _compact_store(settings: Settings) -> bool:
    async with AsyncExitStack() as stack:
        return await (await _open_store(settings, stack)).store.compact()


async def _open_store(settings: Settings, stack: AsyncExitStack) -> OfflineContext:
    from memory_extproc.app import hold_lite  # noqa: PLC0415 - quick `--help`
    from memory_extproc.app.offline import open_offline  # noqa: PLC0415

    hold_lite(settings, stack)
    return await stack.enter_async_context(open_offline(settings))


def _report_as_json(report: Checked, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "callers": report.owners,
        "memories": report.memories,
        "of_other_models": report.memories - report.models[model],
        "without_a_vector": report.broken,
        "failed": report.failed,
    }


def _tell(shown: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(shown, indent=2))
        return
    table = Table("what", "")
    for name, value in shown.items():
        table.add_row(name.replace("_", " "), ", ".join(value) if isinstance(value, list) else str(value))
    Console(highlight=False).print(table)
