"""`memory-extproc config`: is it right, what is in effect, what can it say."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from memory_extproc.cli.faults import faults_to_exit
from memory_extproc.errors import ConfigurationError
from memory_extproc.inference.model_directory import ModelDirectoryError, Precision, directory_of, read_manifest
from memory_extproc.settings import Settings, load
from memory_extproc.settings.example import example as written_out
from memory_extproc.settings.example import shown
from memory_extproc.settings.memory import Provider

app = typer.Typer(name="config", help="Check, show and describe the configuration.", no_args_is_help=True)

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="YAML file; by default ./config.yaml if it is there, else what is built in"
    ),
]
USUAL = Path("config.yaml")
AsJson = Annotated[bool, typer.Option("--json", help="for programs")]


def file_of(config: Path | None) -> Path | None:
    """The file that `serve` would take too: the one named, else the usual one. None where there is none."""
    return config or (USUAL if USUAL.is_file() else None)


@app.command()
def check(config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Name every fault of the configuration at once; exit 2 if there is one."""
    with faults_to_exit():
        try:
            settings = load(file_of(config), os.environ)
            notices = (*settings.notices(), *_not_here(settings))
        except ConfigurationError as error:
            if not as_json:
                raise
            _print_json({"ok": False, "faults": list(error.faults), "notices": []})
            raise typer.Exit(2) from error
    if as_json:
        _print_json({"ok": True, "faults": [], "notices": list(notices)})
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print("the configuration is sound", style="bold green")
    for notice in notices:
        console.print(f"  note: {notice}", markup=False)


def _not_here(settings: Settings) -> list[str]:
    """What `serve` would need on the machine it runs on, which may be another than this."""
    embedding = settings.memory.embedding
    if embedding.provider is not Provider.ONNX:
        return []
    try:
        read_manifest(directory_of(Path(embedding.models_dir), embedding.model, Precision(embedding.precision)))
    except ModelDirectoryError as error:
        return [str(error)]
    return []


@app.command()
def show(config: ConfigFile = None, *, as_json: AsJson = False) -> None:
    """Print what is in effect: file, environment and defaults together; secrets are stars."""
    with faults_to_exit():
        effective = shown(load(file_of(config), os.environ))
    if as_json:
        _print_json(effective)
    else:
        typer.echo(yaml.safe_dump(effective, sort_keys=False, allow_unicode=True), nl=False)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors and charts."""
    _print_json(Settings.model_json_schema(by_alias=True))


@app.command()
def example() -> None:
    """Print a whole config.yaml: every key with its meaning and default."""
    typer.echo(written_out(), nl=False)


@app.command()
def reference() -> None:
    """Print the reference of every key, in Markdown."""
    from memory_extproc.settings.reference import reference as page  # noqa: PLC0415 - read by this command alone

    typer.echo(page(), nl=False)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
