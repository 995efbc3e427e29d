"""Browser sessions: a token, or a one-time link, is exchanged for a signed cookie that is good for eight hours.

Behind a gateway no session is needed: its headers are on every request, and they count before a cookie.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
from dataclasses import dataclass, replace
from datetime import timedelta
from http.cookies import CookieError, SimpleCookie
from typing import Any

from memory_extproc.api.authentication import Credentials, unauthenticated_error
from memory_extproc.api.principal import Means, Principal, derive_key
from memory_extproc.model import Owner
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
