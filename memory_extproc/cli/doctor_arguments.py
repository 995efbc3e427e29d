"""What `memory-extproc doctor` is told: the gateway, two people to be, and what is configured behind it."""

from __future__ import annotations

from typing import Annotated

import typer

Through = Annotated[str, typer.Option(help="the gateway as clients reach it: http(s)://host:port")]
Model = Annotated[str, typer.Option(help="a model it serves; by default the first that /v1/models lists")]
Path = Annotated[str, typer.Option(help="of OpenAI chat completions")]
Tokens = Annotated[
    list[str] | None,
    typer.Option(
        help="bearer token of a test account without memories; twice, for two people",
        envvar="MEMORY_EXTPROC_DOCTOR_TOKENS",
    ),
]
Headers = Annotated[list[str] | None, typer.Option(help="'name: value', sent with every request")]
UserHeader = Annotated[str, typer.Option(help="as identity.user_header")]
TenantHeader = Annotated[str, typer.Option(help="as identity.tenant_header")]
SessionHeader = Annotated[str, typer.Option(help="as identity.session_header")]
RolesHeader = Annotated[str, typer.Option(help="as api.trusted_proxy.roles_header, if it is set")]
TrustedEdge = Annotated[
    bool, typer.Option("--trusted-edge", help="only an edge of your own reaches this URL, and it may name users")
]
Admin = Annotated[str, typer.Option(help="Envoy's admin page, if it can be reached: http://host:port")]
FilterName = Annotated[str, typer.Option("--filter", help="with --admin: what memory's filter is called")]
BodyLimit = Annotated[str, typer.Option(help="as limits.request_body")]
Patience = Annotated[float, typer.Option(help="seconds for one answer", min=1)]
ServeEcho = Annotated[
    str,
    typer.Option(metavar="HOST:PORT", help="be a model that shows what reaches it, to stand behind the gateway"),
]
