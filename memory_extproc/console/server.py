"""The HTTP server behind `listen.console`: address, TLS, and which requests are let through at all; and
`/openapi.json` with `/docs` to read it.

A browser exchanges a token, or a one-time link, for a session: a signed cookie that is good for eight hours. Behind
a gateway no session is needed: its headers are on every request, and they count before a cookie.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import json
import os
import secrets
import ssl
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from html import escape
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import urlsplit

from aiohttp import http_exceptions, web

from memory_extproc.api.authentication import Credentials, unauthenticated_error
from memory_extproc.api.principal import Means, Principal, derive_key
from memory_extproc.api.rest import NO_STORE, read_names
from memory_extproc.errors import ConfigurationError
from memory_extproc.extproc.server import ServerTls
from memory_extproc.model import Owner
from memory_extproc.model.headers import Headers
from memory_extproc.observe.log import logger
from memory_extproc.ports import Coordination, Now
from memory_extproc.settings.api import PrincipalRole

COOKIE = "memory_extproc_session"
PATH = "/console"
LIFE = timedelta(hours=8)
LINK_LIFE = timedelta(minutes=30)
_USED = "console_link"  # the kind of the records of links that were followed
_NOBODY = Owner("", "\0console")  # no caller has this name, so no forget makes a link good again
_LONGEST = 4096  # characters of a signed text
_COOKIE = 3800  # of a session, so that name, attributes and value stay below the 4096 bytes of browsers
_MAC_DIGITS = 64


@dataclass(frozen=True, slots=True)
class TextSigner:
    """Texts that only this deployment can have written, each for one purpose and for a time."""

    key: bytes
    now: Now

    def sign(self, purpose: str, content: Any, life: timedelta) -> str:
        expires = int((self.now() + life).timestamp())
        body = json.dumps([expires, content], separators=(",", ":")).encode()
        return f"{base64.urlsafe_b64encode(body).decode().rstrip('=')}.{self._mac(purpose, body)}"

    def read(self, purpose: str, text: str) -> Any:
        """The content; None for a text of another key or purpose, and for an expired text."""
        encoded, _, mac = text.rpartition(".")
        if len(text) > _LONGEST or len(mac) != _MAC_DIGITS:
            return None
        try:
            body = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        if not hmac.compare_digest(self._mac(purpose, body).encode(), mac.encode("utf-8", "replace")):
            return None
        expires, content = json.loads(body)
        return content if self.now().timestamp() < expires else None

    def _mac(self, purpose: str, body: bytes) -> str:
        return hmac.digest(self.key, purpose.encode() + b"\0" + body, "sha256").hex()


def make_signer(secret: bytes, now: Now) -> TextSigner:
    """*secret*: api.secret, or the secret of the data directory."""
    return TextSigner(derive_key(secret, "console"), now)


class SessionVerifier:
    """Reads the session cookie; implements CredentialVerifier."""

    def __init__(self, signer: TextSigner, *, shares: bool = True) -> None:
        """*shares*: whether projects share memories with their members."""
        self._signer, self._shares = signer, shares

    def principal(self, presented: Credentials) -> Principal | None:
        values = [morsel for header in presented.headers.all("cookie") if (morsel := _cookie(header)) is not None]
        if not values:
            return None
        content = self._signer.read("session", values[0]) if len(values) == 1 else None
        if content is None:
            raise unauthenticated_error()
        principal = _decode(content)
        return principal if self._shares else replace(principal, projects=())


def _cookie(header: str) -> str | None:
    try:
        morsel = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return None
    return None if morsel is None else morsel.value


def begin_session(signer: TextSigner, principal: Principal) -> str:
    """The cookie's value, with as many of the caller's projects as a cookie has room for."""
    for count in range(len(principal.projects), -1, -1):
        text = signer.sign("session", _encode(replace(principal, projects=principal.projects[:count])), LIFE)
        if len(text) <= _COOKIE:
            break
    return text


def csrf_token(signer: TextSigner, principal: Principal) -> str:
    """Goes with every form of this caller; no page of another site can know it."""
    return hmac.digest(signer.key, b"csrf\0" + principal.name.encode("utf-8", "surrogatepass"), "sha256").hex()


def make_link(signer: TextSigner, base: str, tenant: str, user: str, roles: frozenset[PrincipalRole]) -> str:
    """A link that signs *user* in, once. It needs `api.secret` or the data directory."""
    content = [tenant, user, sorted(roles), secrets.token_hex(8)]
    return f"{base}{PATH}/enter?link={signer.sign('link', content, LINK_LIFE)}"


async def follow_link(signer: TextSigner, coordination: Coordination, text: str) -> Principal:
    """The caller of a link that was not followed before. RefusedError otherwise."""
    content = signer.read("link", text)
    if content is None:
        raise unauthenticated_error()
    tenant, user, roles, nonce = content
    if not await coordination.replace_record(_USED, _NOBODY, nonce, None, b"used", LINK_LIFE):
        raise unauthenticated_error()
    return Principal(
        tenant, user, frozenset(map(PrincipalRole, roles)), Means.SESSION, f"console link\0{tenant}\0{user}"
    )


def _encode(principal: Principal) -> list[Any]:
    roles = sorted(principal.roles)
    return [
        principal.tenant, principal.user, roles, principal.means.value, principal.name, *principal.projects,
    ]  # fmt: skip


def _decode(content: list[Any]) -> Principal:
    tenant, user, roles, means, name, *projects = content
    return Principal(tenant, user, frozenset(map(PrincipalRole, roles)), Means(means), name, tuple(projects))


log = logger(__name__)

HEADER_BYTES = 16 * 1024  # of a request's line and header fields together (RFC 6585, 5: 431 beyond)
_PARSED_BYTES = 2 * HEADER_BYTES  # of a line, for the parser; the limit above is checked when all are there
_CONNECTIONS = 512  # open at the same time; the oldest gives way
_GRACE = 2.0  # seconds for open requests when the server is closed
_UNSAFE = frozenset({"POST", "PUT", "PATCH", "DELETE"})
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Register = Callable[[web.Application], None]


class ConsoleServer(AbstractAsyncContextManager["ConsoleServer"]):
    """Serves while entered. Entering it raises ConfigurationError where the address cannot be had."""

    def __init__(
        self,
        address: str,
        registers: Sequence[Register],
        *,
        tls: ServerTls | None = None,
        hosts: Iterable[str] = (),
    ) -> None:
        """*address*: host:port, port 0 for a free one, or unix:/path. *hosts*: names that requests may be addressed
        to, and pages of browsers may come from, beside addresses and localhost; "*" allows every name."""
        self._address, self._tls = address, tls
        self._hosts = frozenset(name.lower() for name in hosts)
        self.port = 0
        application = web.Application(middlewares=[self._guard])
        application.on_response_prepare.append(_without_product)
        for register in registers:
            register(application)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=_GRACE,
        )
        self._listening: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """Where it listens, with the port in use."""
        if self._address.startswith("unix:"):
            return self._address
        return f"{self._address.rpartition(':')[0]}:{self.port}"

    @property
    def url(self) -> str:
        """How a browser on this machine reaches it."""
        return f"{'http' if self._tls is None else 'https'}://{self.address}"

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        try:
            self._listening = await self._listen()
        except OSError as error:
            await self._runner.cleanup()
            reason = (os.strerror(error.errno) if error.errno else str(error)).lower()
            raise ConfigurationError([f"listen.console: cannot listen on {self._address}: {reason}"]) from error
        name = self._listening.sockets[0].getsockname()
        self.port = name[1] if isinstance(name, tuple) else 0
        log.info("console.listening", address=self.address)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()

    async def _listen(self) -> asyncio.Server:
        loop, tls = asyncio.get_running_loop(), self._tls
        context = None if tls is None else _tls_context(tls)
        scheme, _, path = self._address.partition(":")
        if scheme == "unix":
            with suppress(FileNotFoundError):
                if stat.S_ISSOCK(Path(path).stat().st_mode):  # noqa: ASYNC240 - once, at the start
                    Path(path).unlink()  # noqa: ASYNC240
            return await loop.create_unix_server(self._accept, path, ssl=context)
        host, _, port = self._address.rpartition(":")
        return await loop.create_server(self._accept, host.strip("[]"), int(port), ssl=context)

    def _accept(self) -> asyncio.Protocol:
        server = cast("web.Server", self._runner.server)  # it is there from setup to cleanup
        connected = [each for each in server.connections if each.transport is not None]
        for oldest in connected[: max(0, len(connected) - _CONNECTIONS + 1)]:
            oldest.force_close()
        return _Connection(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # None is its word for none: paths hold people's words
            max_line_size=_PARSED_BYTES,
            max_field_size=_PARSED_BYTES,
        )

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._check(request)
            return await handler(request)
        except web.HTTPException as refused:
            refused.headers.update(NO_STORE)
            raise
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - this is where every handler ends
            # aiohttp would log the exception's text and trace, which may be private.
            log.error("console.failed", kind=type(error).__name__)  # noqa: TRY400 - without the text
            raise web.HTTPInternalServerError(text="a fault of the server; it is in its log\n") from None

    def _check(self, request: web.Request) -> None:
        """Whether the request was meant for this server.

        A page of another site can make a browser on this machine send requests to loopback, and a name of its own
        can come to mean 127.0.0.1 (DNS rebinding): where a gateway's headers are believed, either could act for
        any user. The Host header shows the second, the Origin header the first.
        """
        if sum(len(name) + len(value) + 4 for name, value in request.raw_headers) > HEADER_BYTES:
            raise _too_large()
        if not self._is_known(request.headers.get("host", "")):
            raise web.HTTPMisdirectedRequest(
                text="this name is not among console.hosts: call the server by its address, or have the gateway "
                "rewrite the host to localhost\n"
            )
        if request.method in _UNSAFE and not self._same_site(request):
            raise web.HTTPForbidden(text="the request comes from a page of another site; see console.hosts\n")

    def _is_known(self, host: str) -> bool:
        name = _host_name(host)
        return "*" in self._hosts or name in self._hosts or name == "localhost" or _is_address(name)

    def _same_site(self, request: web.Request) -> bool:
        origin = request.headers.get("origin")
        if origin is None:
            return request.headers.get("sec-fetch-site", "none") in {"none", "same-origin"}
        place = urlsplit(origin).netloc
        ours = {request.headers.get("host", ""), request.headers.get("x-forwarded-host", "")}
        return bool(place) and (place in ours or _host_name(place) in self._hosts)


async def _without_product(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.popall("server", None)


def present_credentials(request: web.Request) -> Credentials:
    """The credentials of a request: its connection, its header fields, its client certificate."""
    transport = request.transport
    peer = transport.get_extra_info("peername") if transport is not None else None
    certificate = transport.get_extra_info("peercert") if transport is not None else None
    return Credentials(_peer_name(peer), Headers(read_names(request.raw_headers)), _names_of(certificate or {}))


def _peer_name(peer: object) -> str:
    """As gRPC writes it."""
    if not isinstance(peer, tuple):
        return "unix:"
    host, port = str(peer[0]), peer[1]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _names_of(certificate: Mapping[str, Any]) -> dict[str, list[bytes]]:
    """The names of a verified client certificate, under gRPC's keys."""
    alternative = [value.encode() for _, value in certificate.get("subjectAltName", ())]
    common = [
        value.encode() for part in certificate.get("subject", ()) for key, value in part if key == "commonName"
    ]
    return {"x509_subject_alternative_name": alternative, "x509_common_name": common}


def _host_name(host: str) -> str:
    """Without the port and the brackets of an address, in lower case; empty if it is no name."""
    if set(host) & set("@/?#\\"):
        return ""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    """An address needs no resolver, so no resolver can be made to lie about it."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _too_large() -> web.HTTPException:
    return web.HTTPRequestHeaderFieldsTooLarge(text=f"at most {HEADER_BYTES} bytes of header fields\n")


class _Connection(web.RequestHandler):
    """Says of requests that cannot be parsed that too long a line is 431 and all else 400, without their bytes."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status != web.HTTPBadRequest.status_code:
            return super().handle_error(request, status, exc, message)
        long = isinstance(exc, http_exceptions.LineTooLong)
        text = f"at most {HEADER_BYTES} bytes of header fields\n" if long else "this is no HTTP request\n"
        response = web.Response(status=431 if long else status, text=text, headers=NO_STORE)
        response.force_close()
        return response


def _tls_context(tls: ServerTls) -> ssl.SSLContext:
    """Reads the certificate again when its file has changed, at the next handshake."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tls.cert, tls.key)
    if tls.client_ca is not None:
        context.load_verify_locations(tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    seen = _stamps((tls.cert, tls.key))

    def reload(_socket: object, _name: object, current: ssl.SSLContext) -> None:
        nonlocal seen
        with suppress(OSError):  # while a file is being replaced, the certificate before goes on
            now = _stamps((tls.cert, tls.key))
            if now != seen:
                current.load_cert_chain(tls.cert, tls.key)
                seen = now

    context.sni_callback = reload
    return context


def _stamps(files: Iterable[Path]) -> list[tuple[int, int]]:
    return [(found.st_mtime_ns, found.st_ino) for found in (file.stat() for file in files)]


# --- documents ---------------------------------------------------------------------------------------


# No script, nothing from elsewhere; the one style is in the document.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .25rem; } h2 code { font-weight: 600; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td { border-top: 1px solid #8884; padding: .3rem .6rem .3rem 0; vertical-align: top; }
td:first-child { width: 13rem; }
"""


@cache
def openapi() -> bytes:
    return files("memory_extproc.api.gen").joinpath("openapi.json").read_bytes()


def register_documents(application: web.Application) -> None:
    async def document(_: web.Request) -> web.Response:
        return web.Response(body=openapi(), content_type="application/json", headers=NO_STORE)

    async def page(_: web.Request) -> web.Response:
        headers = {**NO_STORE, "content-security-policy": _POLICY, "referrer-policy": "no-referrer"}
        return web.Response(text=reading_page(json.loads(openapi())), content_type="text/html", headers=headers)

    application.router.add_get("/openapi.json", document)
    application.router.add_get("/docs", page)


def reading_page(document: dict[str, Any]) -> str:
    """The OpenAPI document as a page: operations first, then what their objects hold."""
    operations = "".join(
        _operation(verb, path, operation)
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    )
    schemas = "".join(_schema(name, schema) for name, schema in document["components"]["schemas"].items())
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>memory API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<main><h1>The memory API</h1><p>{escape(document['info']['description'])} "
        f'As a document for programs: <a href="/openapi.json">openapi.json</a>.</p>{operations}'
        f"<h1>Objects</h1>{schemas}"
        "</main></html>"
    )


def _operation(verb: str, path: str, operation: dict[str, Any]) -> str:
    rows = [(one["name"], one["in"], one.get("description", "")) for one in operation.get("parameters", ())]
    body = operation.get("requestBody")
    if body is not None:
        rows.append(("body", _type_of(body["content"]["application/json"]["schema"]), ""))
    answer = operation["responses"]["200"]["content"]["application/json"].get("schema")
    rows.append(("answer", _type_of(answer) if answer else "JSON Lines", ""))
    return (
        f'<section><h2 id="{escape(operation["operationId"])}"><code>{verb.upper()} {escape(path)}</code></h2>'
        f"<p>{escape(operation['description'])}</p>{_table(rows)}</section>"
    )


def _schema(name: str, schema: dict[str, Any]) -> str:
    rows = [
        (field, _type_of(one), one.get("description", "")) for field, one in schema.get("properties", {}).items()
    ]
    return (
        f'<section><h2 id="{escape(name)}"><code>{escape(name)}</code></h2>'
        f"<p>{escape(schema.get('description', ''))}</p>{_table(rows)}</section>"
    )


def _table(rows: list[tuple[str, str, str]]) -> str:
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code><br>{kind if kind.startswith('<') else escape(kind)}</td>"
        f"<td>{escape(text)}</td></tr>"
        for name, kind, text in rows
    )
    return f"<table>{cells}</table>" if cells else ""


def _type_of(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if schema.get("type") == "array":
        return f"<span>list of {_type_of(schema['items'])}</span>"
    return str(schema.get("format") or schema.get("type", ""))
