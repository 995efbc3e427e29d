"""JWT verification with keys from a file or URL, cached in memory and refreshed in the background.

Configuration, never the token, fixes the algorithms (RFC 8725, 3.1), issuer, audience and keys. A token's own
`jku`, `jwk` and `x5u` headers are ignored."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import aiohttp
import jwt
from cachetools import LRUCache

from memory_extproc.concurrency import contain_faults, wait_for_event
from memory_extproc.errors import TransientError
from memory_extproc.observe.log import logger
from memory_extproc.settings.identity import Signed

log = logger(__name__)

MAX_TOKEN = 16 * 1024  # characters; longer tokens are rejected unread
MAX_KEYS_BYTES = 1024 * 1024  # of a JWKS document
_LONGEST_LIFE = 10 * 365 * 86_400  # seconds from now until the end of a token; ten years
MAX_BELIEVED = 4096  # tokens remembered as verified, by their hash
FETCH_TIMEOUT = timedelta(seconds=5)
# RFC 7518, 3.1 and RFC 8037: the kind of key that each family of signatures asks for.
_KEY_TYPE = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


ReadKeys = Callable[[], Awaitable[bytes]]  # a JWKS document; raises TransientError


def keys_in_file(path: Path) -> ReadKeys:
    async def read() -> bytes:
        try:
            return await asyncio.to_thread(path.read_bytes)
        except OSError as error:
            raise TransientError("the key file cannot be read") from error

    return read


def keys_at_url(url: str) -> ReadKeys:
    """Fetch keys from *url* without following redirects: the operator named this location and no other."""

    async def read() -> bytes:
        timeout = aiohttp.ClientTimeout(total=FETCH_TIMEOUT.total_seconds())
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(url, allow_redirects=False) as answer,
            ):
                if answer.status != 200:  # noqa: PLR2004
                    raise TransientError(f"the key server answered {answer.status}")
                document = await answer.content.read(MAX_KEYS_BYTES + 1)
                while document and not answer.content.at_eof() and len(document) <= MAX_KEYS_BYTES:
                    document += await answer.content.read(MAX_KEYS_BYTES + 1 - len(document))
                return document
        except (aiohttp.ClientError, TimeoutError) as error:
            raise TransientError("the key server cannot be reached") from error

    return read


class Tokens:
    """Implements identity.TokenVerifier.

    Entering reads the keys once and continues without them on failure: then no caller is identified until a later
    read succeeds. Keys stay valid until newer ones replace them, so an outage of the key server has no effect."""

    def __init__(
        self,
        section: Callable[[], Signed],
        read_keys: ReadKeys,
        clock: Callable[[], float] = time.time,
        hurry: timedelta = timedelta(seconds=10),
    ) -> None:
        """*section*: read for each token; the algorithms stay, because the keys are parsed for them. *hurry*: the
        soonest that a token of an unknown key makes us read the keys again."""
        self._section, self._algorithms, self._hurry = section, section().algorithms, hurry
        self._read_keys = read_keys
        self._keys: Mapping[tuple[str, str], jwt.PyJWK] = MappingProxyType({})  # by (key id, algorithm)
        # A client sends the same token many times: a verified token is cached until it expires, or the keys or the
        # requirements, which its entry names, change.
        self._believed: LRUCache[bytes, tuple[float, Signed, Mapping[str, Any]]] = LRUCache(MAX_BELIEVED)
        self._clock = clock  # seconds since 1970
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._refresh()
        self._task = asyncio.create_task(self._keep_fresh(), name="jwks")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def claims(self, token: str) -> Mapping[str, Any] | None:
        """The claims of a valid token; else None.

        Valid: signed by a known key with an allowed algorithm, for our audience, and within its times. A quarter of
        a millisecond the first time, microseconds after that."""
        if not token or len(token) > MAX_TOKEN or not token.isascii():  # RFC 7515, 3.1: base64url and dots
            return None
        name, section = hashlib.sha256(token.encode()).digest(), self._section()  # the token is a secret
        until, met, believed = self._believed.get(name, (0.0, None, None))
        if met is section and self._clock() < until:
            return believed
        self._believed.pop(name, None)
        claims = self._verify(token, section)
        if claims is not None:
            self._believed[name] = (claims["exp"] + section.leeway.total_seconds(), section, claims)
        return claims

    def _verify(self, token: str, section: Signed) -> Mapping[str, Any] | None:
        try:
            key = self._key(jwt.get_unverified_header(token))
            if key is None:
                return None
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key=key,
                algorithms=list(self._algorithms),
                issuer=section.issuer,
                audience=section.audience,
                # Times are checked here, against the injected clock.
                options={
                    "require": ["exp", "iss", "aud"], "verify_exp": False, "verify_nbf": False, "verify_iat": False,
                },
            )  # fmt: skip
        except (jwt.PyJWTError, RecursionError):
            return None
        now, leeway = self._clock(), section.leeway.total_seconds()
        ends, begins, issued = claims["exp"], claims.get("nbf", 0), claims.get("iat", 0)
        # RFC 7519, 2: a NumericDate is a number; in Python, JSON's true is an int too.
        if any(isinstance(time_, bool) or not isinstance(time_, int | float) for time_ in (ends, begins, issued)):
            return None
        # NaN compares as false; a token that never expires is an issuer's mistake or a forgery.
        holds = max(begins, issued) - leeway <= now < ends + leeway and ends <= now + _LONGEST_LIFE
        return claims if holds else None

    def _key(self, header: Mapping[str, Any]) -> jwt.PyJWK | None:
        algorithm, key_id = header.get("alg"), header.get("kid", "")
        # RFC 7515, 4.1.11: extensions listed in `crit` must be supported, and none is.
        if algorithm not in self._algorithms or not isinstance(key_id, str) or "crit" in header:
            return None
        found = self._keys.get((key_id, algorithm))
        if found is None and not key_id:
            # Without a key id, accept the token only if a single key fits.
            fitting = [key for (_, fits), key in self._keys.items() if fits == algorithm]
            return fitting[0] if len(fitting) == 1 else None
        if found is None:
            self._wanted.set()  # perhaps a key that was rotated in since we looked
        return found

    async def _keep_fresh(self) -> None:
        while True:
            # At most a single read per `hurry`, however many unknown key ids arrive.
            await asyncio.sleep(self._hurry.total_seconds())
            # Without keys no caller is identified, so retry at the shorter interval.
            rest = self._section().refresh - self._hurry if self._keys else timedelta(0)
            await wait_for_event(self._wanted, max(0.0, rest.total_seconds()))
            self._wanted.clear()
            await contain_faults(self._refresh)

    async def _refresh(self) -> None:
        try:
            keys = parse_keys(await self._read_keys(), self._algorithms)
        except TransientError as error:
            log.warning("identity.keys_unavailable", reason=str(error), held=len(self._keys))
            return
        if not keys:
            log.warning("identity.keys_unavailable", reason="no usable key in the document", held=len(self._keys))
            return
        self._keys = keys
        self._believed.clear()


def parse_keys(document: bytes, algorithms: Sequence[str]) -> Mapping[tuple[str, str], jwt.PyJWK]:
    """Parse a JWKS document into public signature keys, by key id and algorithm.

    Keys for other uses and unreadable keys are skipped. Raises TransientError if it is no JWKS document."""
    if len(document) > MAX_KEYS_BYTES:
        raise TransientError("the key document is too large")
    try:
        entries = json.loads(document)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TransientError("the key document is no JWKS") from error
    if not isinstance(entries, list):
        raise TransientError("the key document is no JWKS")
    found: dict[tuple[str, str], jwt.PyJWK] = {}
    for entry in entries:
        # A published private part ("d") makes the key useless: any reader could sign with it.
        if isinstance(entry, dict) and entry.get("use", "sig") == "sig" and "d" not in entry:
            for algorithm in _algorithms_of(entry, algorithms):
                with suppress(jwt.PyJWTError, ValueError, TypeError, KeyError):
                    found[str(entry.get("kid", "")), algorithm] = jwt.PyJWK(entry, algorithm=algorithm)
    return MappingProxyType(found)


def _algorithms_of(entry: Mapping[str, Any], algorithms: Sequence[str]) -> list[str]:
    """The allowed algorithms that this key may verify.

    None for a key of another kind: an RSA public key used as an HMAC secret is the classic forgery."""
    return [
        each
        for each in algorithms
        if entry.get("kty") == _KEY_TYPE[each[:2]] and entry.get("alg", each) == each and _curve_fits(entry, each)
    ]


def _curve_fits(entry: Mapping[str, Any], algorithm: str) -> bool:
    # RFC 7518, 3.4: each ECDSA algorithm requires its curve.
    curve = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}.get(algorithm)
    return curve is None or entry.get("crv") == curve
