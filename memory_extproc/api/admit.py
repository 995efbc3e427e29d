"""The door of the memory API: who calls, how often, and whose memories they may reach."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from memory_extproc.api.authenticate import Authenticator, Presented
from memory_extproc.api.call import Call
from memory_extproc.api.principal import METHODS, Access, Principal, Whose, may
from memory_extproc.api.rate import Rates
from memory_extproc.api.refusal import Reason, RefusedError, bad_request
from memory_extproc.model import Owner
from memory_extproc.wire.identity import accepted

NamesUser = Callable[[str, str], str]  # (tenant, user) to the user as memories have it: hashed, perhaps


class Admits:
    def __init__(self, authenticator: Authenticator, rates: Rates, names_user: NamesUser) -> None:
        self._authenticator, self._rates, self._names_user = authenticator, rates, names_user

    def principal(self, presented: Presented) -> Principal:
        """RefusedError for callers nobody knows, and for those who call too often."""
        principal = self._authenticator.principal(presented)
        wait = self._rates.take(principal.name)
        if wait is not None:
            raise RefusedError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, Reason.TOO_MANY_CALLS, "too many calls", retry_after=wait
            )
        return principal

    def call(self, method: str, principal: Principal, user: str) -> Call:
        """*user*: whom the request names; empty: the caller's own. RefusedError where the caller may not. Nothing
        is looked up for it, so it is the same for a user who exists and one who does not."""
        if user and not accepted(user):
            raise bad_request(("user_id", "at most 256 bytes of printable characters"))
        if not user and not principal.user:
            raise bad_request(("user_id", "whose memories; these credentials are of no single user"))
        wanted = user or principal.user
        own = bool(principal.user) and wanted in {
            principal.user, self._names_user(principal.tenant, principal.user),
        }  # fmt: skip
        if not may(principal, METHODS[method], Whose.OWN if own else Whose.OTHERS):
            raise RefusedError(
                grpc.StatusCode.PERMISSION_DENIED,
                Reason.NOT_ALLOWED,
                "these credentials only look" if METHODS[method] is Access.WRITE and own else "not yours",
            )
        named = principal.user if own else wanted
        owner = Owner(principal.tenant, self._names_user(principal.tenant, named))
        return Call(method, principal, owner, own)
