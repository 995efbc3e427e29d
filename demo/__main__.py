"""`python -m demo story` plays the story; `python -m demo stand` keeps Envoy and the sidecar up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from demo import stand as stand_command
from demo import story as story_command
from memory_extproc.observe import log

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def story() -> None:
    """Two chat sessions through a real Envoy; exit code 1 if what was said is not remembered."""
    log.configure("warning", "console")
    raise typer.Exit(story_command.main(Console()))


@app.command()
def stand(
    upstream: Annotated[str, typer.Option(help="http://host:port of an OpenAI-compatible LLM")] = "",
    model: Annotated[str, typer.Option(help="its model's name, for the curl line that is printed")] = "",
    config: Annotated[Path, typer.Option(help="the sidecar's configuration")] = Path("config.yaml"),
    port: Annotated[int, typer.Option(help="where Envoy listens")] = 8888,
) -> None:
    """Envoy and the sidecar until Ctrl-C, in front of *upstream* or of the demo LLM."""
    raise typer.Exit(stand_command.main(Console(), upstream, model, config, port))


app()
