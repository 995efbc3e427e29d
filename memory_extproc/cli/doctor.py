"""`memory-extproc doctor`: test a live gateway for faults of memory, and explain how to fix them."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.text import Text

from memory_extproc.cli.config import AsJson, faults_to_exit
from memory_extproc.cli.output import strip_controls
from memory_extproc.errors import ConfigurationError, MemoryExtprocError
from memory_extproc.settings.types import parse_size, split_address

if TYPE_CHECKING:
    from memory_extproc.doctor.gateway import Finding, VisitOptions


_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "unknown": "dim"}
_PEOPLE = 2
_LEARNED_WITHIN = 15.0  # seconds until a message must be found
_NO_MODEL = "default"  # requested where no list of models is served


def doctor(
    *,
    through: ThroughOption = "",
    model: Model = "",
    path: ChatPath = "/v1/chat/completions",
    token: Tokens = None,
    header: Headers = None,
    user_header: UserHeader = "x-authz-user-id",
    tenant_header: TenantHeader = "x-authz-tenant-id",
    session_header: SessionHeader = "x-session-id",
    roles_header: RolesHeader = "",
    trusted_edge: TrustedEdge = False,
    admin: Admin = "",
    filter_name: FilterName = "",
    body_limit: BodyLimit = "4MiB",
    patience: Patience = 60.0,
    serve_echo: ServeEcho = "",
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Test a live gateway for the most common faults and print how to fix them.

    It works with any OpenAI-compatible model, and forgets its test messages. Exit 0: no fault; 1: faults found."""
    with faults_to_exit():
        if serve_echo:
            if through:
                raise ConfigurationError(["--serve-echo stands behind a gateway: run it apart from --through"])
            asyncio.run(_echo(serve_echo))
            return
        options = options_from(
            urls={"--through": through, "--admin": admin},
            tokens=token or [],
            headers=header or [],
            body_limit=body_limit,
            names=(user_header, tenant_header, session_header, roles_header),
            trusted_edge=trusted_edge,
            patience=patience,
        )
        console = Console(highlight=False, soft_wrap=True)
        gateway = Through(through, path, model, patience, admin, filter_name)
        findings = asyncio.run(examine_through(options, gateway, None if as_json else console))
    found = json.dumps([asdict(finding) for finding in findings], indent=2)
    if save is not None:
        _save(save, found)
    if as_json:
        typer.echo(found)
    else:
        console.print(summed_up(findings))
    if any(finding.verdict == "fail" for finding in findings):
        raise typer.Exit(1)


def _save(directory: Path, findings: str) -> None:
    from memory_extproc.api.operator import FINDINGS  # noqa: PLC0415 - it brings gRPC

    made = directory / f"{FINDINGS}.new"
    try:
        made.write_text(findings)
        made.replace(directory / FINDINGS)
    except OSError as error:
        typer.echo(f"--save {directory}: {error.strerror}", err=True)
        raise typer.Exit(2) from error


@dataclass(frozen=True, slots=True)
class Through:
    """The gateway, as it was named."""

    url: str
    path: str
    model: str
    patience: float
    admin: str
    filter_name: str


def options_from(
    *,
    urls: Mapping[str, str],
    tokens: Sequence[str],
    headers: Sequence[str],
    body_limit: str,
    names: tuple[str, str, str, str],
    trusted_edge: bool,
    patience: float,
) -> VisitOptions:
    """Raises ConfigurationError with every faulty argument."""
    from memory_extproc.doctor.gateway import Person, VisitOptions  # noqa: PLC0415 - it brings an HTTP client

    faults = [
        f"{option}: expected http(s)://host:port"
        for option, url in urls.items()
        if not _is_url(url) and (url or option == "--through")
    ]
    if tokens and len(tokens) != _PEOPLE:
        faults.append("--token: give two, of two test accounts")
    # An unreadable header may hold a secret, so it is not shown.
    pairs = [pair for one in headers if (pair := _pair(one))]
    if len(pairs) < len(headers):
        faults.append("--header: expected 'name: value'")
    most = 0
    try:
        most = parse_size(body_limit)
    except ValueError as error:
        faults.append(f"--body-limit: {error}")
    if faults:
        raise ConfigurationError(faults)
    everybody = dict(pairs)
    user, tenant, session, roles = names
    proofs = _proofs(tokens, user)
    ann, bob = (Person({**everybody, **proof}) for proof in proofs)
    return VisitOptions(
        ann=ann,
        bob=bob,
        proven=bool(tokens),
        everybody=everybody,
        trusted_edge=trusted_edge,
        user_header=user,
        tenant_header=tenant,
        session_header=session,
        roles_header=roles,
        body_bytes=most,
        learned_within=min(patience, _LEARNED_WITHIN),
    )


def _proofs(tokens: Sequence[str], user_header: str) -> list[dict[str, str]]:
    """The headers by which each of two people is known."""
    if tokens:
        return [{"authorization": f"Bearer {token}"} for token in tokens]
    name = f"doctor-{random.SystemRandom().getrandbits(32):08x}"
    return [{user_header: f"{name}-ann"}, {user_header: f"{name}-bob"}]


async def examine_through(options: VisitOptions, through: Through, console: Console | None) -> list[Finding]:
    import aiohttp  # noqa: PLC0415 - quick `--help`

    from memory_extproc.doctor.checks import Admin, examine  # noqa: PLC0415
    from memory_extproc.doctor.gateway import Gateway, GatewayVisit  # noqa: PLC0415

    async with aiohttp.ClientSession(auto_decompress=False) as session, aiohttp.ClientSession() as plain:
        gateway = Gateway(
            session, url=through.url, path=through.path, model=through.model, patience=through.patience
        )
        if not gateway.model:
            gateway.model = await gateway.first_model(options.ann) or _NO_MODEL
        admin = Admin(plain, through.admin, through.filter_name) if through.admin else None
        visit = GatewayVisit(gateway, options, random.SystemRandom())

        def report(finding: Finding) -> None:
            if console is not None:
                show(console, finding)

        try:
            return await examine(visit, admin, report)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            # Checks of the gateway itself raise nothing: this is the admin page.
            raise MemoryExtprocError(f"--admin {through.admin}: {type(error).__name__}: {error}") from error


async def _echo(listening: str) -> None:
    from aiohttp import web  # noqa: PLC0415 - quick `--help`

    from memory_extproc.doctor.gateway import echo_app  # noqa: PLC0415

    try:
        host, port = split_address(listening)
    except ValueError as error:
        raise ConfigurationError([f"--serve-echo: {error}"]) from error
    runner = web.AppRunner(echo_app())
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        typer.echo(f"the echo model listens at {host}:{runner.addresses[0][1]}; Ctrl-C stops it")
        await asyncio.Event().wait()
    except OSError as error:
        raise MemoryExtprocError(f"--serve-echo {listening}: {error.strerror}") from error
    finally:
        await runner.cleanup()


def summed_up(findings: Sequence[Finding]) -> str:
    """The last line: the faults, or that there are none, and the number of checks."""
    counts = Counter(finding.verdict.value for finding in findings)
    counted = ", ".join(f"{counts[verdict]} {verdict}" for verdict in _STYLES if counts[verdict])
    broken = [finding.check for finding in findings if finding.verdict.value == "fail"]
    return f"{'broken: ' + ', '.join(broken) if broken else 'nothing was found broken'} ({counted})"


def show(console: Console, finding: Finding) -> None:
    line = Text.assemble((f"{finding.verdict.value:<8}", _STYLES[finding.verdict.value]), f"{finding.check}: ")
    console.print(line + Text(strip_controls(finding.seen)))
    if finding.mend:
        console.print(Text(f"{'':8}  to do: {strip_controls(finding.mend)}"))


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and not parts.username


def _pair(text: str) -> tuple[str, str] | None:
    name, colon, value = text.partition(":")
    return (name.strip().lower(), value.strip()) if colon and name.strip() else None


# The options of `memory-extproc doctor`: the gateway, two test users, and the configuration behind it.

ThroughOption = Annotated[str, typer.Option(help="URL of the gateway, as clients reach it: http(s)://host:port")]
Model = Annotated[str, typer.Option(help="model to ask; by default the first that /v1/models lists")]
ChatPath = Annotated[str, typer.Option(help="path of OpenAI chat completions")]
Tokens = Annotated[
    list[str] | None,
    typer.Option(
        help="bearer token of a test account without memories; give it twice, for two accounts",
        envvar="MEMORY_EXTPROC_DOCTOR_TOKENS",
    ),
]
Headers = Annotated[list[str] | None, typer.Option(help="'name: value', sent with every request")]
UserHeader = Annotated[str, typer.Option(help="as identity.user_header")]
TenantHeader = Annotated[str, typer.Option(help="as identity.tenant_header")]
SessionHeader = Annotated[str, typer.Option(help="as identity.session_header")]
RolesHeader = Annotated[str, typer.Option(help="as api.trusted_proxy.roles_header, if it is set")]
TrustedEdge = Annotated[
    bool, typer.Option("--trusted-edge", help="this URL is reachable only for your own edge, which may name users")
]
Admin = Annotated[str, typer.Option(help="URL of Envoy's admin interface, if reachable: http://host:port")]
FilterName = Annotated[str, typer.Option("--filter", help="with --admin: name of the memory filter")]
BodyLimit = Annotated[str, typer.Option(help="as limits.request_body")]
Patience = Annotated[float, typer.Option(help="timeout of one answer in seconds", min=1)]
Save = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="also leave the findings in this data_dir, for the operator's page"),
]
ServeEcho = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT", help="act as a model behind the gateway that returns the requests it receives"
    ),
]
