"""Owners of memories, callers, and consent."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any


class Consent(StrEnum):
    """A user's consent. Stored, so values are never renamed."""

    OFF = "off"  # no recall and no storage
    RECALL_ONLY = "recall_only"  # existing memories are recalled, none are added
    ON = "on"


class OwnerKind(StrEnum):
    """The kind of an owner. Also shown in `explain` and used as metric label."""

    OWN = "own"  # a person's
    PROJECT = "project"  # shared by the members of a project
    GLOBAL = "global"  # an operator's, for every caller of a tenant, or of all tenants
    CANARY = "canary"  # the owner of the canary memory, for probing recall


# Prefix of all owners that are no persons. Names never contain control characters, so no user can have it; kind and
# name are part of the partition key, of every id and of every cache key.
SHARED = "\x1f"
_PROJECT, _GLOBAL, _CANARY = f"{SHARED}project{SHARED}", f"{SHARED}global", f"{SHARED}canary"


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of memories: a person, a project or an operator.

    A missing tenant is a separate tenant, never all tenants."""

    tenant: str
    user: str = field(repr=False)

    @classmethod
    def of_project(cls, tenant: str, project: str) -> Owner:
        """The owner of the memories shared by the members of *project*. ValueError without a name."""
        if not project:
            raise ValueError("a project without a name shares nothing")
        return cls(tenant, _PROJECT + project)

    @classmethod
    def of_everyone(cls, tenant: str | None = None) -> Owner:
        """The owner of an operator's memories for all callers of *tenant*; None: of all tenants."""
        return cls(SHARED if tenant is None else tenant, _GLOBAL)

    @classmethod
    def of_canary(cls) -> Owner:
        """The owner of the canary memory, which probes whether recall works."""
        return cls(SHARED, _CANARY)

    @property
    def kind(self) -> OwnerKind:
        if not self.user.startswith(SHARED):
            return OwnerKind.OWN
        if self.user == _CANARY:
            return OwnerKind.CANARY
        return OwnerKind.PROJECT if self.user.startswith(_PROJECT) else OwnerKind.GLOBAL

    @property
    def project(self) -> str:
        """The project's name; empty for other kinds of owners."""
        return self.user.removeprefix(_PROJECT) if self.kind is OwnerKind.PROJECT else ""

    @property
    def key(self) -> str:
        """64 hex digits, unique per owner: lengths are part of the hash."""
        return _owner_key(self.tenant, self.user)


@lru_cache(maxsize=4096)
def _owner_key(tenant: str, user: str) -> str:
    return digest("owner", tenant, user)  # computed a dozen times per request


def digest(*parts: str) -> str:
    """SHA-256 over *parts*, length-prefixed so that ("ab", "c") and ("a", "bc") differ; 64 hex digits."""
    hashed = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        hashed.update(len(encoded).to_bytes(8, "big"))
        hashed.update(encoded)
    return hashed.hexdigest()


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller: the owner of the memories, the requested project, and the session if named."""

    owner: Owner
    project: str = ""
    session: str = ""  # as named by the client; empty: derived from the conversation
    projects: tuple[str, ...] = ()  # verified memberships, by a claim or Envoy's metadata
    speaker: str = ""  # the member who speaks, if *owner* is a project
    spoken_by: Caller | None = None  # and the member's own caller

    @property
    def person(self) -> Caller:
        """The person who speaks: a conversation's choices are theirs, even if a project owns the memories."""
        return self.spoken_by or self


@dataclass(frozen=True, slots=True)
class ConsentChange:
    """An entry of a consent history: the choice, its time, and its author."""

    consent: Consent
    at: datetime
    by: str = field(default="", repr=False)  # the principal that set it; may be a person's name


@dataclass(frozen=True, slots=True)
class DataKey:
    """The key that seals an owner's texts.

    *id* is random and stored with sealed data, to distinguish a destroyed key from damage."""

    id: bytes  # 8 bytes
    secret: bytes = field(repr=False)  # 32 bytes


# Names that requests and operators give: of users, tenants, projects, sessions.

MAX_NAME_BYTES = 256  # in UTF-8; the size of the store's key fields


def accept_name(value: Any) -> str:
    """*value* if it is a valid name: printable, 1 to 256 bytes in UTF-8; else ""."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        return ""
    # isprintable rejects control and format characters, lone surrogates, and separators other than the space.
    return value if len(value.encode()) <= MAX_NAME_BYTES else ""


def accept_optional_name(value: Any) -> str | None:
    """As `accept_name`, but an absent or empty value gives "", and an invalid value gives None."""
    if value is None or value == "":
        return ""
    return accept_name(value) or None
