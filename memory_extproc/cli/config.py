"""`memory-extproc config`: check, show, describe and import a configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from memory_extproc.cli.output import show_json
from memory_extproc.errors import ConfigurationError, MemoryExtprocError, PermanentError
from memory_extproc.inference.model_files import ModelDirectoryError, Precision, find_directory, read_manifest
from memory_extproc.observe import log
from memory_extproc.settings import Settings, load
from memory_extproc.settings.docs import dump_effective
from memory_extproc.settings.docs import example as written_out
from memory_extproc.settings.loading import find_faults, read
from memory_extproc.settings.memory import Provider
from memory_extproc.settings.semantic_router import Fate, import_configuration, without_secrets

app = typer.Typer(name="config", help="Check, show, describe and import a configuration.", no_args_is_help=True)

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="YAML file; by default ./config.yaml if it exists, else the built-in defaults"
    ),
]
USUAL = Path("config.yaml")
ROUTER = "semantic-router"
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]


def file_of(config: Path | None) -> Path | None:
    """The configuration file that `serve` would use: the given file, else the default file. None if it is
    missing."""
    return config or (USUAL if USUAL.is_file() else None)


def load_settings(config: Path | None) -> Settings:
    """Load the configuration that `serve` would use, for a command that logs errors alone."""
    settings = load(file_of(config), os.environ)
    log.configure("error", "console")
    return settings


@app.command()
def check(config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Report every error of the configuration at once; exit 2 if there is an error."""
    with faults_to_exit():
        try:
            settings = load(file_of(config), os.environ)
            notices = (*settings.notices(), *_not_here(settings))
        except ConfigurationError as error:
            if not as_json:
                raise
            show_json({"ok": False, "faults": list(error.faults), "notices": []})
            raise typer.Exit(2) from error
    if as_json:
        show_json({"ok": True, "faults": [], "notices": list(notices)})
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print("the configuration is sound", style="bold green")
    for notice in notices:
        console.print(f"  note: {notice}", markup=False)


def _not_here(settings: Settings) -> list[str]:
    """Files that `serve` needs and this machine lacks. It may be meant to run on another machine."""
    embedding = settings.memory.embedding
    if embedding.provider is not Provider.ONNX:
        return [_calibration(settings, "")]
    try:
        directory = find_directory(Path(embedding.models_dir), embedding.model, Precision(embedding.precision))
        manifest = read_manifest(directory)
    except ModelDirectoryError as error:
        return [str(error)]
    return [_calibration(settings, manifest.fingerprint)]


def _calibration(settings: Settings, fingerprint: str) -> str:
    """The origin of recall's weights. *fingerprint* of the embedding model; "": known only after a start."""
    from memory_extproc.recall.fusion import WeightsError, packaged_weights, parse_weights  # noqa: PLC0415 - NumPy

    path = settings.recall.weights
    if path:
        try:
            weights = parse_weights(Path(path).read_bytes(), path)
        except (OSError, WeightsError) as error:
            raise ConfigurationError([f"recall.weights: {error}"]) from error
        return f"recall.weights: calibrated by {path} for {', '.join(weights.embedding_models)}"
    if fingerprint in packaged_weights(fingerprint).embedding_models:
        return f"recall.weights: calibrated for {fingerprint}, by the packaged weights"
    return (
        "recall.weights: the embedding model is measured at the start: calibrated if its vectors are those of the "
        "packaged one, else aligned to it; `memory-extproc models calibrate` fits weights of its own (/readyz and "
        "the metric calibration tell which is in force)"
    )


@app.command()
def show(config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Print the effective configuration (file, environment and defaults) with secrets masked."""
    with faults_to_exit():
        effective = dump_effective(load(file_of(config), os.environ))
    if as_json:
        show_json(effective)
    else:
        typer.echo(yaml.safe_dump(effective, sort_keys=False, allow_unicode=True), nl=False)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors and charts."""
    show_json(Settings.model_json_schema(by_alias=True))


@app.command()
def example() -> None:
    """Print a complete config.yaml: every key with its description and default."""
    typer.echo(written_out(), nl=False)


@app.command()
def reference() -> None:
    """Print the reference of every key, in Markdown."""
    from memory_extproc.settings.docs import reference as page  # noqa: PLC0415 - read by this command alone

    typer.echo(page(), nl=False)


@app.command(name="import")
def import_(
    file: Annotated[Path, typer.Argument(help="configuration file to translate")],
    source: Annotated[
        str, typer.Option("--from", metavar="semantic-router", help="program that the file belongs to")
    ] = ROUTER,
) -> None:
    """Translate the vLLM semantic router's memory configuration; a table of its keys goes to stderr.

    Exits with 1 if something was lost that matters, or if a value is not valid here."""
    if source != ROUTER:
        raise typer.BadParameter(f"expected {ROUTER}", param_hint="--from")
    with faults_to_exit():
        imported = import_configuration(read(file))
    table = Table("key", "becomes", "", title=f"{file.name} as a configuration of memory-extproc")
    for row in imported.rows:
        style = "bold red" if row.fate is Fate.LOST else ""
        table.add_row(Text(row.key), str(row.fate), Text(row.note), style=style)
    Console(stderr=True, width=None if sys.stderr.isatty() else 200).print(table)
    written, secret = without_secrets(imported.settings)
    if secret:
        note = "access keys are not written out: give each by environment or as llm_endpoint.access_key_file"
        Console(stderr=True).print(note, style="yellow")
    typer.echo(yaml.safe_dump(written, sort_keys=False, allow_unicode=True), nl=False)
    faults = find_faults(imported.settings)
    for fault in faults:
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(fault, style="bold red"))
    if imported.lost or faults:
        raise typer.Exit(1)


# Errors that end a command: exit 2 for wrong use and configuration, 1 for failures; no traceback for errors that
# the operator can fix.


@contextmanager
def faults_to_exit() -> Iterator[None]:
    """Prints an error of ours to stderr and ends with its exit code."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        yield
    except ConfigurationError as error:
        count = len(error.faults)
        console.print(f"the configuration has {'a fault' if count == 1 else f'{count} faults'}:", style="bold red")
        for fault in error.faults:
            console.print(f"  {fault}", markup=False)
        raise typer.Exit(2) from error
    except MemoryExtprocError as error:
        console.print(str(error), style="bold red", markup=False)
        raise typer.Exit(1) from error


@contextmanager
def needs_extra(name: str) -> Iterator[None]:
    """For imports that only the optional dependencies *name* bring; PermanentError names the missing packages."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        raise PermanentError(f"{package} is not installed: pip install 'memory-extproc[{name}]'") from error


# Progress on a terminal; nothing at all without a terminal.

Says = Callable[[str, int, int], None]  # step, done, of how many


@contextmanager
def progress(*, plain: bool = False) -> Iterator[Says]:
    """A progress bar on stderr for each step, removed at the end. *plain*: without a terminal, a line for each."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks = {}

        def says(step: str, done: int, whole: int) -> None:
            if step not in tasks:
                if plain and not console.is_terminal:
                    typer.echo(f"{step}: {whole}", err=True)
                tasks[step] = bars.add_task(step, total=whole)
            bars.update(tasks[step], completed=done, total=whole)

        yield says
