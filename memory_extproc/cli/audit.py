"""`memory-extproc audit verify`, and `memory-extproc api-key new`."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.table import Table

from memory_extproc.api.principal import Role
from memory_extproc.cli.config import AsJson, ConfigFile, file_of
from memory_extproc.cli.faults import faults_to_exit
from memory_extproc.errors import ConfigurationError, GiveUpError
from memory_extproc.settings import Settings, load

app = typer.Typer(help="The memory API's audit log.", no_args_is_help=True)
keys = typer.Typer(help="API keys for the memory API.", no_args_is_help=True)


@app.command("verify")
def verify_log(
    config: ConfigFile = None,
    directory: Annotated[
        Path | None, typer.Option(help="where the log lies, if not where the configuration says")
    ] = None,
    since: Annotated[
        int, typer.Option(min=1, help="the first line that should be there, where older files were put away")
    ] = 1,
    *,
    as_json: AsJson = False,
) -> None:
    """Say whether lines of the audit log were removed, changed or cut off: exit 0 if none was, else 1."""
    from memory_extproc.api.audit_verify import verify  # noqa: PLC0415 - quick `--help`

    with faults_to_exit():
        settings = load(file_of(config), os.environ)
        where, key = _log_of(settings)
        try:
            verified = verify(directory or where, key, since=since)
        except OSError as error:
            raise GiveUpError(f"{directory or where} cannot be read: {error.strerror}") from error
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
    from memory_extproc.api.secrets import derived, read_secret  # noqa: PLC0415

    data = Path(settings.data_dir).absolute()
    given = settings.api.secret.get_secret_value()
    section = settings.api.audit
    directory = Path(section.directory).absolute() if section.directory else data / "audit"
    return directory, derived(given.encode() if given else read_secret(data), "audit")


def _show(lines: int, faults: list[dict[str, str | int]]) -> None:
    console = Console(highlight=False)
    if not faults:
        console.print(f"{lines} lines, none removed, changed or cut off")
        return
    table = Table("what", "file", "line", "number")
    for fault in faults:
        table.add_row(str(fault["kind"]), str(fault["file"]), str(fault["line"] or ""), str(fault["seq"] or ""))
    console.print(table)


@keys.command("new")
def new_key(
    name: Annotated[str, typer.Option("--id", help="what the key is called, in the file and nowhere else")],
    tenant: Annotated[str, typer.Option(help="the tenant of whoever has it")] = "",
    user: Annotated[str, typer.Option(help="the user it is of; empty: of none, for admins and auditors")] = "",
    role: Annotated[list[Role] | None, typer.Option(help="what it may do; several at once")] = None,
) -> None:
    """Make an API key, and its entry for api.keys_file.

    The key itself stands on the first line; nobody can show it again.
    """
    from memory_extproc.api.api_keys import parse_keys  # noqa: PLC0415 - quick `--help`
    from memory_extproc.api.authenticate import KEY_PREFIX, key_hash  # noqa: PLC0415

    key = KEY_PREFIX + secrets.token_urlsafe(32)
    roles = [each.value for each in role or [Role.USER]]
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
