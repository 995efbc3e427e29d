"""`memory-extproc learn`: waiting turns, dead letters, and journals of other sidecars."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from memory_extproc.cli.config import AsJson, ConfigFile, Says, faults_to_exit, file_of, load_settings, progress
from memory_extproc.cli.explain import owner_of
from memory_extproc.errors import PermanentError
from memory_extproc.model import DeadLetter, Memory, Owner
from memory_extproc.settings import Settings, load

if TYPE_CHECKING:
    from memory_extproc.app.coordination import Journals
    from memory_extproc.learn.screening import Quarantine


# `memory-extproc learn quarantine`: list, release or drop a person's quarantined memories.

quarantine_app = typer.Typer(
    name="quarantine",
    help="Review the quarantined memories of one user.\n\n"
    "A Milvus Lite file lets one process in: stop the sidecar first; beside a Milvus server it can run "
    "at any time.",
    no_args_is_help=True,
)
User = Annotated[str, typer.Option(help="user id whose memories are meant")]
Tenant = Annotated[str, typer.Option(help="tenant of the user")]
Ids = Annotated[list[str], typer.Argument(help="ids from `quarantine list`, or their beginnings")]
_WORDS = 100  # characters of a memory in a table


@quarantine_app.command("list")
def list_quarantined(
    user: User, tenant: Tenant = "", config: ConfigFile = None, *, as_json: AsJson = False
) -> None:
    """List the quarantined memories with the reasons. The output contains texts of users."""
    held = _with_quarantine(config, tenant, user, _list_held)
    if as_json:
        typer.echo(json.dumps([_quarantine_as_json(memory) for memory in held], indent=2, ensure_ascii=False))
        return
    _show(held)


@quarantine_app.command()
def release(
    ids: Ids, user: User, tenant: Tenant = "", config: ConfigFile = None, *, as_json: AsJson = False
) -> None:
    """Release quarantined memories; they can be recalled from the next request on."""

    async def release_named(quarantine: Quarantine, owner: Owner) -> int:
        return await quarantine.release(owner, await _ids_named(quarantine, owner, ids), datetime.now(UTC))

    _tell(_with_quarantine(config, tenant, user, release_named), "released", as_json=as_json)


@quarantine_app.command()
def drop(
    ids: Ids,
    user: User,
    tenant: Tenant = "",
    config: ConfigFile = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete quarantined memories for good."""
    if not yes:
        typer.confirm(f"delete what begins with {', '.join(ids)}?", abort=True, err=True)

    async def drop_named(quarantine: Quarantine, owner: Owner) -> int:
        return await quarantine.drop(owner, await _ids_named(quarantine, owner, ids))

    _tell(_with_quarantine(config, tenant, user, drop_named), "dropped", as_json=as_json)


def _tell(count: int, what: str, *, as_json: bool) -> None:
    typer.echo(json.dumps({what: count}) if as_json else f"{count} {what}")
    if not count:
        raise typer.Exit(1)


def _with_quarantine(
    config: Path | None, tenant: str, user: str, use: Callable[[Quarantine, Owner], Awaitable[T]]
) -> T:
    with faults_to_exit():
        settings = load_settings(config)
        return asyncio.run(_use_quarantine(settings, owner_of(settings, tenant, user), use))


async def _use_quarantine(settings: Settings, owner: Owner, use: Callable[[Quarantine, Owner], Awaitable[T]]) -> T:
    from memory_extproc.app.offline import open_quarantine  # noqa: PLC0415 - quick `--help`

    async with open_quarantine(settings) as quarantine:
        return await use(quarantine, owner)


async def _list_held(quarantine: Quarantine, owner: Owner) -> list[Memory]:
    return sorted(
        [memory async for memory in quarantine.list_quarantined(owner)], key=lambda memory: memory.created_at
    )


async def _ids_named(quarantine: Quarantine, owner: Owner, beginnings: list[str]) -> list[str]:
    return [memory.id for memory in await _list_held(quarantine, owner) if memory.id.startswith(tuple(beginnings))]


def _quarantine_as_json(memory: Memory) -> dict[str, Any]:
    return {
        "id": memory.id,
        "suspicion": memory.provenance.suspicion,
        "content": memory.content,
        "role": memory.role,
        "source": memory.source,
        "session": memory.session,
        "created_at": memory.created_at.isoformat(),
    }


def _show(held: list[Memory]) -> None:
    from memory_extproc.safety.prompt_injection import neutralize  # noqa: PLC0415 - quick `--help`

    console = Console(highlight=False)
    if not held:
        console.print("nothing is in quarantine")
        return
    table = Table()
    for name in ("id", "why", "said", "memory"):
        table.add_column(name, no_wrap=name in {"id", "said"})
    for memory in held:
        words = neutralize(memory.content)
        shown = words if len(words) <= _WORDS else f"{words[:_WORDS]}…"
        table.add_row(memory.id[:_SHOWN], memory.provenance.suspicion, f"{memory.created_at:%Y-%m-%d}", Text(shown))
    console.print(table)


app = typer.Typer(
    name="learn",
    help="Inspect and repair the learning queue, with or without a running sidecar.",
    no_args_is_help=True,
)
app.add_typer(quarantine_app, name="quarantine")
T = TypeVar("T")
_PAGE = 500
_SHOWN = 10  # digits of an id in a table; --json has all of them
_EVERY = 1_000_000  # dead letters: more than a journal keeps


@app.command()
def status(config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Show how many accepted turns wait to be learned, since when, and which replicas learn."""
    found = _with_journals(config, _status)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    table = Table(show_header=False)
    for name, value in found.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        table.add_row(name.replace("_", " "), "-" if shown is None else str(shown))
    Console(highlight=False).print(table)


@app.command("dead-letters")
def dead_letters(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="maximum number of letters")] = 100,
    config: ConfigFile = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List the dead letters: turns that failed too often, with reason, time and attempts, without their texts."""
    letters = _with_journals(config, lambda journals: _letters(journals, limit))
    if as_json:
        typer.echo(json.dumps([_as_json(letter) for letter in letters], indent=2))
        return
    table = Table()
    for name in ("turn", "owner", "reason", "tries", "asked", "given up"):
        table.add_column(name, no_wrap=name in {"turn", "reason"})
    for letter in letters:
        when = [f"{at:%Y-%m-%d %H:%M:%S}" for at in (letter.asked_at, letter.failed_at)]
        table.add_row(letter.turn_id[:_SHOWN], letter.owner[:_SHOWN], letter.reason, str(letter.attempts), *when)
    Console(highlight=False).print(table if letters else "no dead letters")


@app.command()
def retry(
    turns: Annotated[list[str] | None, typer.Argument(help="ids of dead letters, or their beginnings")] = None,
    config: ConfigFile = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="all dead letters")] = False,
    as_json: AsJson = False,
) -> None:
    """Retry dead letters from the start; a running sidecar picks them up by itself."""
    if bool(turns) == everything:
        raise typer.BadParameter("name the turns, or say --all")
    count = _with_journals(config, lambda journals: _retry_turns(journals, turns or None))
    typer.echo(json.dumps({"retried": count}) if as_json else f"{count} turn(s) wait again")
    if turns and count < len(set(turns)):
        raise typer.Exit(1)


@app.command()
def adopt(
    directory: Annotated[Path, typer.Argument(help="data directory of a sidecar that no longer exists")],
    config: ConfigFile = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Take over the journal and intake log that another sidecar left behind, as after scaling down; dead letters
    are tried again.

    A turn leaves it once it stands in ours, so the command can be broken off and run again."""
    source = directory.absolute()
    with faults_to_exit(), _left_behind(source), progress() as says:
        settings = load(file_of(config), os.environ)
        moved = _with_journals(
            config, lambda journals: _adopt_journals(settings, journals, source, says), making=True
        )
    if as_json:
        typer.echo(json.dumps(moved))
    else:
        typer.echo(
            f"{moved['adopted']} turn(s) adopted, {moved['known']} known already, {moved['unreadable']} unreadable,"
            f" {moved['undecided']} still to be decided"
        )
    if moved["left"]:
        typer.echo(f"our journal is full: {moved['left']} turn(s) are left; run it again later", err=True)
        raise typer.Exit(1)


@app.command()
def spread(config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Spread the journal of a Redis Cluster, kept by an older version on one master, over all masters.

    Once, while no sidecar runs. Older versions then refuse this Redis."""
    moved = _run_with_settings(config, _spread)
    typer.echo(json.dumps({"moved": moved}) if as_json else f"{moved} waiting turn(s) moved")


def _with_journals(config: Path | None, use: Callable[[Journals], Awaitable[T]], *, making: bool = False) -> T:
    return _run_with_settings(config, lambda settings: _use_journals(settings, use, making=making))


def _run_with_settings(config: Path | None, use: Callable[[Settings], Coroutine[Any, Any, T]]) -> T:
    with faults_to_exit():
        return asyncio.run(use(load_settings(config)))


async def _use_journals(settings: Settings, use: Callable[[Journals], Awaitable[T]], *, making: bool) -> T:
    from memory_extproc.app.context import make_context  # noqa: PLC0415 - quick `--help`
    from memory_extproc.app.coordination import find_journals  # noqa: PLC0415

    async with AsyncExitStack() as stack:
        return await use(await find_journals(make_context(settings, stack), making=making))


async def _spread(settings: Settings) -> int:
    from memory_extproc.app.context import make_context  # noqa: PLC0415 - quick `--help`
    from memory_extproc.app.coordination import find_journals, open_fleet  # noqa: PLC0415
    from memory_extproc.journal.redis import ShardedJournal  # noqa: PLC0415

    async with AsyncExitStack() as stack:
        fleet = await open_fleet(settings, stack)
        journal = (await find_journals(make_context(settings, stack))).shared
        if not isinstance(journal, ShardedJournal):
            raise PermanentError("coordination.url is no cluster: a journal on one master has nothing to spread to")
        await fleet.replicas.waiting()
        if running := sum(lives for _, _, lives in fleet.replicas.register.values()):
            raise PermanentError(f"{running} sidecar(s) run: stop them first, and wait for coordination.lease")
        return await journal.spread()


async def _status(journals: Journals) -> dict[str, Any]:
    from memory_extproc.concurrency import utc_now  # noqa: PLC0415 - quick `--help`
    from memory_extproc.learn.intake_log import INTAKE, count_waiting  # noqa: PLC0415 - quick `--help`

    now = utc_now()
    depth = await journals.main.depth() if journals.main else None
    oldest = max(timedelta(), now - depth.oldest) if depth and depth.oldest else None
    undecided = await asyncio.to_thread(count_waiting, journals.path.with_name(INTAKE))
    found: dict[str, Any] = {
        "journal": "redis" if journals.shared else "file",
        "waiting": depth.turns if depth else 0,
        "oldest_seconds": None if oldest is None else round(oldest.total_seconds(), 1),
        "dead_letters": depth.dead if depth else 0,
        "undecided": undecided,  # of this machine's own
    }
    if journals.shared:
        # The journal file of this machine: turns accepted while Redis was unreachable.
        found["put_aside"] = (await journals.file.depth()).turns if journals.file else 0
        found["parts_of_each_replica"] = list(await journals.shared.shares())
    return found


async def _letters(journals: Journals, limit: int) -> Sequence[DeadLetter]:
    return await journals.main.dead(limit) if journals.main else []


async def _retry_turns(journals: Journals, turns: list[str] | None) -> int:
    if journals.main is None:
        return 0
    ids = [letter.turn_id for letter in await journals.main.dead(_EVERY)]
    return await journals.main.retry([id_ for id_ in ids if turns is None or id_.startswith(tuple(turns))])


async def _adopt_journals(settings: Settings, journals: Journals, directory: Path, says: Says) -> dict[str, int]:
    from memory_extproc.app.storage import journals_to_join  # noqa: PLC0415
    from memory_extproc.concurrency import utc_now  # noqa: PLC0415 - quick `--help`
    from memory_extproc.journal.failover import move  # noqa: PLC0415
    from memory_extproc.journal.sqlite import SqliteJournal  # noqa: PLC0415
    from memory_extproc.learn import intake_log  # noqa: PLC0415
    from memory_extproc.learn.intake_log import INTAKE  # noqa: PLC0415

    target = journals.main
    if target is None or directory == journals.path.parent:
        raise PermanentError(f"{directory} is the data directory of this configuration")
    async with SqliteJournal(directory / journals.path.name, now=utc_now) as left, AsyncExitStack() as stack:
        source, ours = await journals_to_join(settings, left, directory, target, stack)
        undecided = await asyncio.to_thread(intake_log.adopt, directory / INTAKE, journals.path.with_name(INTAKE))
        await source.retry([letter.turn_id for letter in await source.dead(_EVERY)])
        whole = (await source.depth()).turns
        adopted = known = 0
        while entries := await source.pending(_PAGE):
            moved = await move(entries, source, ours)
            adopted, known = adopted + len(moved.turns), known + moved.known
            says("adopting", adopted + known, whole)
            if moved.full:
                break
        depth = await source.depth()
    moved_all = {"adopted": adopted, "known": known, "unreadable": depth.dead, "left": depth.turns}
    return {**moved_all, "undecided": undecided}


@contextmanager
def _left_behind(directory: Path) -> Iterator[None]:
    """Held as a sidecar holds it: none can start on it meanwhile, and none may be running."""
    from memory_extproc.app import LOCK  # noqa: PLC0415
    from memory_extproc.app.coordination import JOURNAL  # noqa: PLC0415
    from memory_extproc.learn.intake_log import INTAKE  # noqa: PLC0415

    if not ((directory / JOURNAL).is_file() or (directory / INTAKE).is_dir()):
        raise PermanentError(f"{directory} holds no journal ({JOURNAL})")
    with (directory / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PermanentError(f"a sidecar is using {directory}; stop it first") from error
        yield


def _as_json(letter: DeadLetter) -> dict[str, Any]:
    return {
        "turn": letter.turn_id,
        "owner": letter.owner,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "asked_at": letter.asked_at.isoformat(),
        "failed_at": letter.failed_at.isoformat(),
    }
