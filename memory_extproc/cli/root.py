"""The command line's root: what `memory-extproc --help` lists."""

from __future__ import annotations

from typing import Annotated

import typer

from memory_extproc import __version__
from memory_extproc.cli import admin, config, coordination, envoy_config, learn, memory, store
from memory_extproc.cli import eval as evaluate
from memory_extproc.cli.doctor import doctor
from memory_extproc.cli.explain import explain
from memory_extproc.cli.forget import verify_forget
from memory_extproc.cli.serve import serve

app = typer.Typer(
    name="memory-extproc",
    help="Long-term memory for any LLM behind Envoy: an external-processing sidecar.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # In plain lines: boxes cut the names of long options in a terminal of 80 columns.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve)
app.add_typer(config.app, name="config")
app.add_typer(admin.audit_app, name="audit")
app.add_typer(admin.api_key_app, name="api-key")
app.add_typer(admin.console_app, name="console")
app.add_typer(admin.models_app, name="models")
app.add_typer(memory.app, name="memory")
app.add_typer(evaluate.app, name="eval")
app.add_typer(learn.app, name="learn")
app.add_typer(admin.keys_app, name="keys")
app.add_typer(admin.app, name="retention")
app.add_typer(store.app, name="store")
app.add_typer(coordination.app, name="coordination")
app.command("explain")(explain)
app.command("doctor")(doctor)
app.command("verify-forget")(verify_forget)
app.command("envoy-config")(envoy_config.envoy_config)


def _whole_in_lists(group: typer.Typer) -> None:
    """Lists show the first paragraph of each command's help whole, over as many lines as it takes."""
    for command in group.registered_commands:
        command.short_help = _paragraph(command.help or (command.callback and command.callback.__doc__) or "")
    for sub in group.registered_groups:
        if sub.typer_instance is not None:
            sub.short_help = _paragraph(str(sub.typer_instance.info.help))
            _whole_in_lists(sub.typer_instance)


def _paragraph(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())


_whole_in_lists(app)


def _print_version(wanted: bool) -> None:  # noqa: FBT001
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Long-term memory for any LLM behind Envoy."""
