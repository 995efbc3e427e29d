"""Who asks, as configured: identities from requests, and which gateways may speak for them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memory_extproc.app.live import Live
from memory_extproc.settings import Settings
from memory_extproc.settings.api import ApiJwt
from memory_extproc.settings.identity import Jwt
from memory_extproc.wire.identity import Identity
from memory_extproc.wire.peers import AllowedPeers

if TYPE_CHECKING:
    from memory_extproc.wire.identity_tokens import TokenOptions, Tokens


@dataclass(frozen=True, slots=True)
class Identifies:
    """What outlasts a change of the configuration: the keys of tokens."""

    tokens: Tokens | None

    def identity(self, settings: Settings) -> Identity:
        return Identity(settings.identity.options(settings.privacy.key), self.tokens)


async def open_identities(live: Live, stack: AsyncExitStack) -> Identifies:
    settings = live.settings
    if not settings.identity.jwt.given:
        return Identifies(None)
    tokens = await open_tokens(settings.identity.jwt, stack)
    live.follow(lambda new: tokens.use(token_options(new.identity.jwt)))
    return Identifies(tokens)


async def open_tokens(jwt: Jwt | ApiJwt, stack: AsyncExitStack) -> Tokens:
    # PyJWT and the algorithms behind it are imported where tokens are configured.
    from memory_extproc.wire.identity_tokens import Tokens, keys_at_url, keys_in_file  # noqa: PLC0415

    keys = keys_in_file(Path(jwt.jwks_file)) if jwt.jwks_file else keys_at_url(jwt.jwks_url)
    return await stack.enter_async_context(Tokens(token_options(jwt), keys))


def token_options(jwt: Jwt | ApiJwt) -> TokenOptions:
    from memory_extproc.wire.identity_tokens import TokenOptions  # noqa: PLC0415

    return TokenOptions(
        algorithms=tuple(jwt.algorithms),
        issuer=jwt.issuer,
        audience=jwt.audience,
        leeway=jwt.leeway,
        refresh=jwt.refresh,
    )


def peers_of(settings: Settings) -> AllowedPeers | None:
    return AllowedPeers(settings.tls.allowed_names) if settings.tls.given else None
