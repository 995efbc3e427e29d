"""`memory-extproc envoy-config`: the Envoy configuration that works with this sidecar's own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar
from urllib.parse import urlsplit

import typer
import yaml

from memory_extproc.cli.config import ConfigFile, faults_to_exit, file_of, needs_extra
from memory_extproc.envoyconfig.options import (
    Bodies,
    ClientTls,
    EnvoyOptions,
    IdentityMode,
    RestRoute,
    TokenRequirements,
    Upstream,
)
from memory_extproc.errors import ConfigurationError
from memory_extproc.settings import Settings, load
from memory_extproc.settings.loading import read
from memory_extproc.settings.types import on_loopback, split_address

ShapeName = Literal["bootstrap", "filter", "envoy-gateway", "istio", "semantic-router"]
ShapeOption = Annotated[
    ShapeName, typer.Option(help="a complete Envoy, the filter alone, or a gateway's resources")
]
UpstreamOption = Annotated[str, typer.Option(help="URL of the LLM: http(s)://host:port")]
ListenOption = Annotated[str, typer.Option(help="address on which Envoy listens")]
AdminPort = Annotated[int, typer.Option(help="port of Envoy's admin interface, on loopback")]
Identity = Annotated[
    IdentityMode,
    typer.Option(help="strip: remove identity headers of clients; trust: accept them; jwt: Envoy verifies a token"),
]
Sidecar = Annotated[
    str,
    typer.Option(
        help="address of the sidecar for Envoy, if not listen.ext_proc; name.namespace:port in Kubernetes"
    ),
]
Socket = Annotated[bool, typer.Option("--socket", help="Envoy reaches the sidecar at listen.ext_proc_unix")]
ApiAddress = Annotated[
    str,
    typer.Option(
        help="address of the memory API over HTTP for Envoy, if not the sidecar's host with listen.console's port"
    ),
]
ClientCert = Annotated[str, typer.Option(help="with tls: PEM file of Envoy's certificate")]
ClientKey = Annotated[str, typer.Option(help="with tls: PEM file of its private key")]
SidecarCa = Annotated[
    str, typer.Option(help="with tls: PEM file of the authorities that sign the sidecar's certificate")
]
JwtOption = Annotated[str, typer.Option(help="for --identity jwt; by default from identity.jwt")]
Rest = Annotated[
    bool | None,
    typer.Option(
        "--rest/--no-rest", help="route the memory API over HTTP at /v1/memory; by default where Envoy can reach it"
    ),
]
TwoFilters = Annotated[
    bool | None,
    typer.Option(
        "--two-filters/--one-filter",
        help="observe answers in a second filter for which Envoy does not wait; by default as envoy.two_filters",
    ),
]
BodiesOption = Annotated[
    Bodies,
    typer.Option(help="full-duplex: stream bodies without a copy in Envoy, for gateways that offer nothing else"),
]
Gateway = Annotated[str, typer.Option(help="Kubernetes shapes: name of the Gateway")]
Router = Annotated[str, typer.Option(help="semantic-router: host:port of the router's ext_proc")]
RouterFile = Annotated[
    Path | None,
    typer.Option(help="semantic-router: the router's configuration file, for --plugins-out", exists=True),
]
PluginsOut = Annotated[
    Path | None, typer.Option(help="semantic-router: file to write the decisions' header_mutation plugins to")
]
Namespace = Annotated[str, typer.Option(help="Kubernetes shapes: namespace of the Gateway")]


def envoy_config(
    *,
    config: ConfigFile = None,
    upstream: UpstreamOption = "http://127.0.0.1:8000",
    shape: ShapeOption = "bootstrap",
    listen: ListenOption = "0.0.0.0:8888",
    admin_port: AdminPort = 9901,
    identity: Identity = IdentityMode.STRIP,
    sidecar: Sidecar = "",
    socket: Socket = False,
    api: ApiAddress = "",
    sidecar_client_cert: ClientCert = "",
    sidecar_client_key: ClientKey = "",
    sidecar_ca: SidecarCa = "",
    jwt_issuer: JwtOption = "",
    jwt_audience: JwtOption = "",
    jwks_url: JwtOption = "",
    jwks_file: JwtOption = "",
    rest: Rest = None,
    two_filters: TwoFilters = None,
    bodies: BodiesOption = Bodies.BUFFERED,
    gateway: Gateway = "llm",
    namespace: Namespace = "default",
    router: Router = "",
    router_file: RouterFile = None,
    plugins_out: PluginsOut = None,
) -> None:
    """Write the Envoy configuration that matches the sidecar's, as YAML."""
    asked = EnvoyConfigArguments(
        upstream=upstream,
        listen=listen,
        admin_port=admin_port,
        identity=identity,
        sidecar=sidecar,
        socket=socket,
        api=api,
        client_tls=(sidecar_client_cert, sidecar_client_key, sidecar_ca),
        jwt=(jwt_issuer, jwt_audience, jwks_url, jwks_file),
        rest=rest,
        two_filters=two_filters,
        bodies=bodies,
        router=router,
    )
    with faults_to_exit():
        options = envoy_options(load(file_of(config), os.environ), asked)
        with needs_extra("envoy-config"):
            from memory_extproc.envoyconfig.manifests import Shape, render  # noqa: PLC0415 - a third of a second

        if router_file is not None or plugins_out is not None:
            _write_plugins(router_file, plugins_out)
        typer.echo(render(options, Shape(shape), gateway=gateway, namespace=namespace), nl=False)
    if identity is IdentityMode.TRUST:
        typer.echo("WARNING: with --identity trust whoever reaches Envoy can name any caller", err=True)


def _write_plugins(router_file: Path | None, plugins_out: Path | None) -> None:
    from memory_extproc.envoyconfig.semantic_router import signal_plugins  # noqa: PLC0415 - rarely asked for

    if router_file is None or plugins_out is None:
        raise ConfigurationError(["--router-file and --plugins-out belong together"])
    plugins = signal_plugins(read(router_file))
    try:
        plugins_out.write_text(yaml.safe_dump(plugins, sort_keys=False, allow_unicode=True), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError([f"--plugins-out: {plugins_out} cannot be written: {error.strerror}"]) from error


# Options of Envoy's configuration, from the sidecar's configuration and the command line.

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyConfigArguments:
    """The command line. Empty options and None are taken from the configuration."""

    upstream: str
    listen: str
    admin_port: int
    identity: IdentityMode
    sidecar: str
    socket: bool
    api: str
    client_tls: tuple[str, str, str]  # files: Envoy's certificate, its key, the sidecar's issuer
    jwt: tuple[str, str, str, str]  # issuer, audience, where the keys are: a URL, or a file
    rest: bool | None
    two_filters: bool | None
    bodies: Bodies
    router: str = ""


def envoy_options(settings: Settings, asked: EnvoyConfigArguments) -> EnvoyOptions:
    """Raises ConfigurationError with every faulty argument."""
    faults: list[str] = []
    address = asked.sidecar or reachable(settings.listen.ext_proc)
    if asked.socket:
        address = settings.listen.ext_proc_unix or address
        if asked.sidecar or not settings.listen.ext_proc_unix:
            why = "--sidecar is given too" if asked.sidecar else "listen.ext_proc_unix is not set"
            faults.append(f"--socket: {why}; the sidecar listens on the socket that its configuration names")
    if not address.startswith("unix:"):
        _parse_option(faults, "--sidecar", split_address, address)
    if asked.two_filters and not settings.envoy.two_filters:
        faults.append("--two-filters: the sidecar has to know: write envoy.two_filters: true in its configuration")
    options = EnvoyOptions(
        sidecar=address,
        upstream=_parse_option(faults, "--upstream", parse_upstream, asked.upstream) or Upstream("", 0, tls=False),
        listen=_parse_option(faults, "--listen", split_address, asked.listen) or ("", 0),
        admin_port=asked.admin_port,
        identity=asked.identity,
        settings=settings,
        metadata_namespaces=namespaces(settings),
        verified=_jwt_verification(faults, settings, asked),
        client_tls=_client_tls(faults, settings, asked.sidecar, asked.client_tls),
        bodies=asked.bodies,
        two_filters=settings.envoy.two_filters if asked.two_filters is None else asked.two_filters,
        router=_parse_option(faults, "--router", split_address, asked.router) if asked.router else None,
        rest=_rest(faults, settings, asked) if _wants_rest(settings, asked) else None,
    )
    if asked.router and asked.router == address:
        faults.append("--router: is the sidecar's own address; one of the two needs another port")
    if faults:
        raise ConfigurationError(faults)
    return options


def _parse_option(faults: list[str], option: str, parse: Callable[[str], T], text: str) -> T | None:
    """The result of *parse* for *text*; None, with a fault added, if it fails."""
    try:
        return parse(text)
    except ValueError as error:
        faults.append(f"{option}: {error}")
        return None


def parse_upstream(text: str) -> Upstream:
    """`http://host`, `https://host:port`; a path would be lost, so it is refused. Raises ValueError."""
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("expected http://host:port or https://host:port")
    if parts.path.strip("/") or parts.query or parts.username:
        raise ValueError(f"expected {parts.scheme}://host:port alone: clients' paths go on as they are")
    secure = parts.scheme == "https"
    return Upstream(parts.hostname, parts.port or (443 if secure else 80), tls=secure)


def reachable(listening: str) -> str:
    """The address for an Envoy on the same machine."""
    if listening.startswith("unix:"):
        return listening
    host, port = split_address(listening)
    return f"127.0.0.1:{port}" if host in {"0.0.0.0", "::"} else listening  # noqa: S104


def namespaces(settings: Settings) -> tuple[str, ...]:
    """The dynamic metadata namespaces that the sidecar reads; Envoy forwards only configured namespaces."""
    identity = settings.identity
    places = (identity.metadata, identity.metadata_tenant, identity.metadata_projects)
    named = (*(place.partition(":")[0] for place in places), settings.signals.metadata_namespace)
    return tuple(dict.fromkeys(name for name in named if name))


def _wants_rest(settings: Settings, asked: EnvoyConfigArguments) -> bool:
    """An API that listens on loopback is not reached from elsewhere: routes to it would lead nowhere."""
    if asked.rest is not None:
        return asked.rest
    try:
        elsewhere = bool(asked.sidecar) and not on_loopback(asked.sidecar)
    except ValueError:
        return False  # no address; that is said where it is asked for
    return bool(asked.api) or not (elsewhere and on_loopback(settings.listen.console))


def _rest(faults: list[str], settings: Settings, asked: EnvoyConfigArguments) -> RestRoute:
    """The memory API stands beside the sidecar, wherever that is: only the port is another."""
    sidecar, listening = asked.sidecar, settings.listen.console
    address = asked.api or reachable(listening)
    if sidecar and not asked.api and not sidecar.startswith("unix:"):
        if listening.startswith("unix:"):
            faults.append("--api: listen.console is a Unix socket: say where Envoy reaches it")
        else:
            address = f"{sidecar.rpartition(':')[0]}:{split_address(listening)[1]}"
    if not address.startswith("unix:"):
        _parse_option(faults, "--api", split_address, address)
    return RestRoute(address, page=settings.console.page)


def _jwt_verification(
    faults: list[str], settings: Settings, asked: EnvoyConfigArguments
) -> TokenRequirements | None:
    if asked.identity is not IdentityMode.JWT:
        return None
    ours = settings.identity.jwt
    issuer, audience, url, file = asked.jwt
    issuer, audience = issuer or ours.issuer, audience or ours.audience
    if not (url or file):
        url, file = ours.jwks_url, ours.jwks_file
    for option, value in (("--jwt-issuer", issuer), ("--jwt-audience", audience), ("--jwks-url", url or file)):
        if not value:
            faults.append(f"{option}: --identity jwt needs it, here or in identity.jwt")
    if url and file:
        faults.append("--jwks-url: --jwks-file is given too: keep one")
    return TokenRequirements(
        issuer=issuer,
        audience=audience,
        jwks_url=url,
        jwks_file=file,
        user_claim=ours.user_claim,
        tenant_claim=ours.tenant_claim,
    )


def _client_tls(
    faults: list[str], settings: Settings, sidecar: str, given: tuple[str, str, str]
) -> ClientTls | None:
    cert, key, authorities = given
    address = sidecar or reachable(settings.listen.ext_proc)
    if not settings.tls.is_set:
        return None
    named = zip(("--sidecar-client-cert", "--sidecar-client-key", "--sidecar-ca"), given, strict=True)
    faults += [f"{option}: the sidecar asks for mutual TLS" for option, value in named if not value]
    return ClientTls(cert, key, authorities, server_name=address.rpartition(":")[0].strip("[]"))
