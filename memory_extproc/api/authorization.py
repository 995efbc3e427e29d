"""Admission to the memory API: the caller, the rate limit, and the memories that the caller may reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import unquote

import grpc

from memory_extproc.api.authentication import Authenticator, Credentials
from memory_extproc.api.call import Call, Reason, RefusedError, bad_request
from memory_extproc.api.principal import METHODS, Access, Principal, Whose, may
from memory_extproc.concurrency import TokenBuckets
from memory_extproc.model import Owner
from memory_extproc.request.identity import accept_name

# A header or gRPC metadata key that names shared memories, for callers that may reach other users' memories:
# `project:NAME`, percent-encoded beyond ASCII; `tenant` for the caller's tenant; `all` for all tenants.
SHARED_HEADER = "x-memory-shared"
_OPERATORS = "this is for operators: admins whose credentials are of no single tenant"
NamesUser = Callable[[str, str], str]  # (tenant, user) to the stored name of the user, which may be hashed


class CallAdmission:
    def __init__(self, authenticator: Authenticator, rates: TokenBuckets, names_user: NamesUser) -> None:
        self._authenticator, self._rates, self._names_user = authenticator, rates, names_user

    def identify(self, presented: Credentials) -> Principal:
        """The caller. Counts no call."""
        return self._authenticator.principal(presented)

    def principal(self, presented: Credentials) -> Principal:
        """The caller. RefusedError for unknown callers and above the rate limit."""
        principal = self._authenticator.principal(presented)
        wait = self._rates.take(principal.name)
        if wait is not None:
            raise RefusedError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, Reason.TOO_MANY_CALLS, "too many calls", retry_after=wait
            )
        return principal

    def call(self, method: str, principal: Principal, user: str, shared: Sequence[str] = ()) -> Call:
        """Admit a call for *user* (empty: the caller) or for *shared* memories (values of SHARED_HEADER).

        RefusedError without permission. Nothing is looked up, so the answer does not reveal which users exist."""
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
        """Members of a project list the memories that recall gives them, and no more. Callers that may reach other
        users' memories manage shared ones, and with credentials of no tenant those of all tenants."""
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
        manages = may(principal, METHODS[method], Whose.OTHERS)
        member = not manages and method == "ListMemories" and owner.project in principal.projects
        if not (manages or member) or (named == "all" and principal.tenant):
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, Reason.NOT_ALLOWED, "not yours")
        return Call(method, principal, owner, own=False, member=member)


def _operating(method: str, principal: Principal) -> Call:
    """Admit an operator's call. The server belongs to all tenants, so a tenant's credentials do not suffice."""
    if principal.tenant or not may(principal, METHODS[method], Whose.OWN):
        raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, Reason.NOT_ALLOWED, _OPERATORS)
    return Call(method, principal, Owner(principal.tenant, principal.user), own=True)
