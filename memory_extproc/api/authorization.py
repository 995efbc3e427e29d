"""The door of the memory API: who calls, how often, and whose memories they may reach."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import unquote

import grpc

from memory_extproc.api.authentication import Authenticator, Credentials
from memory_extproc.api.call import Call, Reason, RefusedError, bad_request
from memory_extproc.api.principal import METHODS, Access, Principal, Whose, may
from memory_extproc.model import Owner
from memory_extproc.request.identity import accept_name

# Names, in gRPC's metadata, memories that callers share, for who may reach those of others: `project:NAME`, in
# percent encoding beyond ASCII; `tenant` for everybody's in the caller's tenant; `all` for those of all tenants.
SHARED_HEADER = "x-memory-shared"
NamesUser = Callable[[str, str], str]  # (tenant, user) to the user as memories have it: hashed, perhaps


class CallAdmission:
    def __init__(self, authenticator: Authenticator, rates: Rates, names_user: NamesUser) -> None:
        self._authenticator, self._rates, self._names_user = authenticator, rates, names_user

    def identify(self, presented: Credentials) -> Principal:
        """The caller, without a call being counted."""
        return self._authenticator.principal(presented)

    def principal(self, presented: Credentials) -> Principal:
        """RefusedError for callers nobody knows, and for those who call too often."""
        principal = self._authenticator.principal(presented)
        wait = self._rates.take(principal.name)
        if wait is not None:
            raise RefusedError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, Reason.TOO_MANY_CALLS, "too many calls", retry_after=wait
            )
        return principal

    def call(self, method: str, principal: Principal, user: str, shared: Sequence[str] = ()) -> Call:
        """*user*: whom the request names; empty: the caller's own. *shared*: values of SHARED_HEADER. RefusedError
        where the caller may not. Nothing is looked up for it, so it is the same for a user who exists and one who
        does not."""
        if METHODS[method] is Access.OPERATE:
            return _operating(method, principal)
        if shared:
            return self._admit_shared(method, principal, user, shared)
        if user and not accept_name(user):
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

    def _admit_shared(self, method: str, principal: Principal, user: str, shared: Sequence[str]) -> Call:
        """Being a member opens a project's memories to recall and not to this API: they are kept by who may reach
        those of others. What all tenants share is for such credentials of the unnamed tenant."""
        named = shared[0].strip() if len(shared) == 1 else ""
        kind, _, encoded = named.partition(":")
        project = unquote(encoded)
        if user:
            raise bad_request(("user_id", f"stands instead of {SHARED_HEADER}, not beside it"))
        if named == "tenant":
            owner = Owner.of_everyone(principal.tenant)
        elif named == "all":
            owner = Owner.of_everyone()
        elif kind == "project" and accept_name(project):
            owner = Owner.of_project(principal.tenant, project)
        else:
            raise bad_request((SHARED_HEADER, "project:NAME, tenant or all"))
        if not may(principal, METHODS[method], Whose.OTHERS) or (named == "all" and principal.tenant):
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, Reason.NOT_ALLOWED, "not yours")
        return Call(method, principal, owner, own=False)


def _operating(method: str, principal: Principal) -> Call:
    """The server is all tenants': as with memories that all of them share, credentials of one are not enough."""
    if principal.tenant or not may(principal, METHODS[method], Whose.OWN):
        raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, Reason.NOT_ALLOWED, "for admins of no single tenant")
    return Call(method, principal, Owner(principal.tenant, principal.user), own=True)


# How often one caller may call: a bucket of calls for each, refilled at a steady rate.

_MOST = 10_000  # callers remembered; one that is let go begins with a full bucket again


@dataclass(frozen=True, slots=True)
class RateLimits:
    per_second: float = 50.0  # calls, on average
    burst: int = 200  # calls at once


class Rates:
    def __init__(self, limits: RateLimits, clock: Callable[[], float]) -> None:
        """*clock*: seconds, monotonic."""
        self._limits = limits
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # (calls left, as of)

    def reconfigure(self, limits: RateLimits) -> None:
        self._limits = limits

    def take(self, name: str) -> timedelta | None:
        """Counts a call of *name*; else how long to wait until the next is due."""
        now = self._clock()
        left, then = self._left.pop(name, (float(self._limits.burst), now))
        left = min(float(self._limits.burst), left + (now - then) * self._limits.per_second)
        allowed = left >= 1.0
        self._left[name] = (left - 1.0 if allowed else left, now)
        if len(self._left) > _MOST:
            self._left.popitem(last=False)
        return None if allowed else timedelta(seconds=(1.0 - left) / self._limits.per_second)
