"""The options that every command of the memory API has: where it is, and who asks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from memory_extproc.cli.api_client import USUAL, Api, ApiError, Connection, connected
from memory_extproc.cli.faults import faults_to_exit

_option = functools.partial(typer.Option, rich_help_panel="Connection")


def _connection(
    *,
    address: Annotated[
        str, _option(envvar="MEMORY_EXTPROC_API", help="of the memory API: host:port or unix:/path")
    ] = USUAL,
    tls: Annotated[bool, _option("--tls", help="speak TLS to it")] = False,
    tls_ca: Annotated[
        Path | None, _option(envvar="MEMORY_EXTPROC_API_CA", help="authorities of its certificate, PEM")
    ] = None,
    tls_cert: Annotated[
        Path | None, _option(envvar="MEMORY_EXTPROC_API_CERT", help="your certificate, PEM")
    ] = None,
    tls_key: Annotated[Path | None, _option(envvar="MEMORY_EXTPROC_API_KEY_FILE", help="its key, PEM")] = None,
    token: Annotated[str, _option(envvar="MEMORY_EXTPROC_TOKEN", help="a JWT that says who you are")] = "",
    api_key: Annotated[str, _option(envvar="MEMORY_EXTPROC_API_KEY", help="an API key")] = "",
    as_user: Annotated[
        str,
        _option(
            "--as",
            envvar="MEMORY_EXTPROC_AS",
            help="who you are, where the memory API takes your word: on its own machine",
        ),
    ] = "",
    as_tenant: Annotated[
        str, _option("--tenant", envvar="MEMORY_EXTPROC_TENANT", help="with --as: of which tenant")
    ] = "",
    timeout: Annotated[float, _option(min=0.1, help="seconds for a call; streams take what they take")] = 30.0,
) -> Connection:
    return Connection(
        address=address,
        tls=tls,
        ca=tls_ca,
        cert=tls_cert,
        key=tls_key,
        token=token,
        api_key=api_key,
        as_user=as_user,
        as_tenant=as_tenant,
        timeout=timeout,
    )


def with_api(command: Callable[..., None]) -> Callable[..., None]:
    """*command* takes an `Api` first; what typer sees takes the connection's options last instead. What fails is
    told and ends it: exit 2 where other arguments would help, else 1."""
    hints = get_type_hints(command, include_extras=True)
    own = list(inspect.signature(command).parameters.values())[1:]
    shared = list(inspect.signature(_connection).parameters.values())
    shared_hints = get_type_hints(_connection, include_extras=True)
    names = {parameter.name for parameter in shared}

    @functools.wraps(command)
    def run(**given: Any) -> None:
        connection = _connection(**{name: given.pop(name) for name in names})
        with faults_to_exit():
            try:
                with connected(connection) as api:
                    command(api, **given)
            except ApiError as error:
                if error.wrong_use:
                    typer.echo(str(error), err=True)
                    raise typer.Exit(2) from error
                raise

    typed = [one.replace(annotation=hints[one.name]) for one in own]
    typed += [one.replace(annotation=shared_hints[one.name]) for one in shared]
    # Keyword-only throughout: an argument may then follow one with a default.
    keyword = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in typed]
    run.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in keyword}
    del run.__wrapped__  # typer would look through it
    return run


UserOption = Annotated[
    str, typer.Option("--user", help="whose memories, for an admin or auditor; by default your own")
]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON object on stdout, for programs")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]


__all__ = ["Api", "AsJson", "UserOption", "Yes", "with_api"]
