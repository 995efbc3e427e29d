"""Callers of the memory API and their permissions."""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from memory_extproc.errors import ConfigurationError
from memory_extproc.settings.api import SECRET_BYTES, PrincipalRole


class Means(StrEnum):
    """The means of authentication. Also the metric label, so values are never renamed."""

    MTLS = "mtls"
    JWT = "jwt"
    API_KEY = "api_key"
    TRUSTED_PROXY = "trusted_proxy"
    SESSION = "session"  # from a single-use link to the page
    NONE = "none"


class Access(StrEnum):
    READ = "read"
    WRITE = "write"
    OPERATE = "operate"  # the server itself, no memories


class Whose(StrEnum):
    OWN = "own"
    OTHERS = "others"  # another user's of the caller's tenant; other tenants cannot be named


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. *user* is empty for a key or certificate without a single user."""

    tenant: str
    user: str = field(repr=False)
    roles: frozenset[PrincipalRole]
    means: Means
    name: str = field(repr=False)  # identifies the caller for rate limits and the audit log
    projects: tuple[str, ...] = field(default=(), repr=False)  # of which the caller is a verified member


GRANTS: Mapping[tuple[PrincipalRole, Access], frozenset[Whose]] = {
    (PrincipalRole.USER, Access.READ): frozenset({Whose.OWN}),
    (PrincipalRole.USER, Access.WRITE): frozenset({Whose.OWN}),
    (PrincipalRole.ADMIN, Access.READ): frozenset(Whose),
    (PrincipalRole.ADMIN, Access.WRITE): frozenset(Whose),
    (PrincipalRole.AUDITOR, Access.READ): frozenset(Whose),
    (PrincipalRole.AUDITOR, Access.WRITE): frozenset(),
    (PrincipalRole.USER, Access.OPERATE): frozenset(),
    (PrincipalRole.ADMIN, Access.OPERATE): frozenset({Whose.OWN}),
    (PrincipalRole.AUDITOR, Access.OPERATE): frozenset(),
}

# The access that each method needs. Methods that are not listed are not served.
METHODS: Mapping[str, Access] = {
    "StoreMemory": Access.WRITE,
    "GetMemory": Access.READ,
    "ListMemories": Access.READ,
    "SearchMemories": Access.READ,
    "UpdateMemory": Access.WRITE,
    "RestoreMemory": Access.WRITE,
    "ForgetMemory": Access.WRITE,
    "ForgetMemories": Access.WRITE,
    "GetForgetReceipt": Access.READ,
    "VerifyReceipt": Access.READ,
    "ExportMemories": Access.READ,
    "ImportMemories": Access.WRITE,
    "GetStats": Access.READ,
    "ExplainRecall": Access.READ,
    "GetDecision": Access.READ,
    "ListDecisions": Access.READ,
    "RateMemory": Access.WRITE,
    "EndSession": Access.WRITE,
    "GetConsent": Access.READ,
    "SetConsent": Access.WRITE,
    "GetTurn": Access.READ,
    "ListTurns": Access.READ,
    "ListQuarantine": Access.READ,
    "ReviewQuarantine": Access.WRITE,
    "PlanRetention": Access.READ,
    "PlanRetentionRound": Access.OPERATE,
    "ListDeadLetters": Access.OPERATE,
    "RetryDeadLetters": Access.OPERATE,
    "ListUsers": Access.OPERATE,
    "GetServerStatus": Access.OPERATE,
    "GetConfiguration": Access.OPERATE,
}


def may(principal: Principal, access: Access, whose: Whose) -> bool:
    return any(whose in GRANTS[role, access] for role in principal.roles)


def roles_of(words: Iterable[str]) -> frozenset[PrincipalRole]:
    """The roles among *words*, else the user role: roles of other products grant nothing."""
    known = frozenset(PrincipalRole(word) for word in words if word in set(PrincipalRole))
    return known or frozenset({PrincipalRole.USER})


# One secret of the memory API, and the keys that are made of it: each purpose has its own.

_FILE = "api.key"


def derive_key(secret: bytes, purpose: str) -> bytes:
    """32 bytes that tell nothing of *secret* or of the keys for other purposes."""
    return hmac.digest(secret, b"memory-extproc\0" + purpose.encode(), "sha256")


def secret_in(directory: Path) -> bytes:
    """The secret of this data directory, made when it is first asked for; only its owner can read it."""
    path = directory / _FILE
    if not path.exists():
        try:
            _make(path)
        except OSError as error:
            raise ConfigurationError([f"data_dir: {path} cannot be written: {error.strerror}"]) from error
    return read_secret(directory)


def read_secret(directory: Path) -> bytes:
    """As secret_in, where it must be there already."""
    path = directory / _FILE
    try:
        secret = path.read_bytes()
    except OSError as error:
        raise ConfigurationError([f"data_dir: {path} cannot be read: {error.strerror}"]) from error
    if len(secret) < SECRET_BYTES:
        raise ConfigurationError(
            [f"data_dir: {path} is damaged: it holds no secret of {SECRET_BYTES} bytes or more"]
        )
    return secret


def _make(path: Path) -> None:
    """The file is there whole or not at all, whenever we are interrupted."""
    made = path.with_suffix(".new")
    made.unlink(missing_ok=True)
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(32))
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)
