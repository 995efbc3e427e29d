"""`memory-extproc envoy-config`: the Envoy configuration that works with this sidecar's own."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from memory_extproc.cli.config import ConfigFile, file_of
from memory_extproc.cli.envoy_options import Asked, envoy_options
from memory_extproc.cli.faults import faults_to_exit, needs_extra
from memory_extproc.settings import load
from memory_extproc.wire.envoy_config_options import Bodies, IdentityMode

ShapeName = Literal["bootstrap", "filter", "envoy-gateway", "istio"]
ShapeOption = Annotated[ShapeName, typer.Option(help="a whole Envoy, the filter alone, or for a gateway")]
UpstreamOption = Annotated[str, typer.Option(help="the LLM: http(s)://host:port")]
ListenOption = Annotated[str, typer.Option(help="where Envoy listens")]
AdminPort = Annotated[int, typer.Option(help="of Envoy's admin page, on loopback")]
Identity = Annotated[
    IdentityMode,
    typer.Option(help="strip: clients cannot name themselves; trust: they do; jwt: Envoy verifies a token"),
]
Sidecar = Annotated[
    str, typer.Option(help="as Envoy reaches it, if not at listen.ext_proc; name.namespace:port in Kubernetes")
]
ApiAddress = Annotated[
    str, typer.Option(help="the memory API as Envoy reaches it, if not beside the sidecar at listen.api's port")
]
ClientCert = Annotated[str, typer.Option(help="with tls: Envoy's certificate, PEM")]
ClientKey = Annotated[str, typer.Option(help="with tls: its key, PEM")]
SidecarCa = Annotated[str, typer.Option(help="with tls: authorities of the sidecar's certificate, PEM")]
JwtOption = Annotated[str, typer.Option(help="with --identity jwt; else identity.jwt's")]
Rest = Annotated[
    bool | None,
    typer.Option(
        "--rest/--no-rest",
        help="the memory API over HTTP, at /v1/memory beside the chats; by default where Envoy can reach it",
    ),
]
TwoFilters = Annotated[
    bool | None,
    typer.Option(
        "--two-filters/--one-filter",
        help="a second filter, which nobody waits for, watches answers; by default as envoy.two_filters",
    ),
]
BodiesOption = Annotated[
    Bodies,
    typer.Option(help="full-duplex: in pieces that Envoy keeps no copy of, where a gateway offers nothing else"),
]
Gateway = Annotated[str, typer.Option(help="Kubernetes shapes: the Gateway's name")]
Namespace = Annotated[str, typer.Option(help="Kubernetes shapes: the Gateway's namespace")]


def envoy_config(
    *,
    config: ConfigFile = None,
    upstream: UpstreamOption = "http://127.0.0.1:8000",
    shape: ShapeOption = "bootstrap",
    listen: ListenOption = "0.0.0.0:8888",
    admin_port: AdminPort = 9901,
    identity: Identity = IdentityMode.STRIP,
    sidecar: Sidecar = "",
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
) -> None:
    """Write Envoy configuration that works with the sidecar's own, as YAML."""
    asked = Asked(
        upstream=upstream,
        listen=listen,
        admin_port=admin_port,
        identity=identity,
        sidecar=sidecar,
        api=api,
        client_tls=(sidecar_client_cert, sidecar_client_key, sidecar_ca),
        jwt=(jwt_issuer, jwt_audience, jwks_url, jwks_file),
        rest=rest,
        two_filters=two_filters,
        bodies=bodies,
    )
    with faults_to_exit():
        options = envoy_options(load(file_of(config), os.environ), asked)
        with needs_extra("envoy-config"):
            from memory_extproc.wire.envoy_config_shapes import Shape, render  # noqa: PLC0415 - a third of a second

        typer.echo(render(options, Shape(shape), gateway=gateway, namespace=namespace), nl=False)
    if identity is IdentityMode.TRUST:
        typer.echo("WARNING: with --identity trust whoever reaches Envoy can name any caller", err=True)
