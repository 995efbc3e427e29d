"""Whose memories they are, and what they allow."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import lru_cache


class Consent(StrEnum):
    """What a person allows. Also what is stored, so a value is never renamed."""

    OFF = "off"  # nothing is recalled and nothing kept
    RECALL_ONLY = "recall_only"  # what is there is recalled, nothing is added
    ON = "on"


class OwnerKind(StrEnum):
    """Whose an owner's memories are. Also the word in `explain` and in the metric label."""

    OWN = "own"  # one person's
    PROJECT = "project"  # shared by the members of a project
    GLOBAL = "global"  # an operator's, for every caller of a tenant, or of all tenants
    CANARY = "canary"  # nobody's: what is asked for to see whether recall works


# Begins the user of every owner that is no person. No door takes a control character in a name, so nobody can be
# called so; the kind and the name behind it are part of the partition key, of every id and of every cache key.
SHARED = "\x1f"
_PROJECT, _GLOBAL, _CANARY = f"{SHARED}project{SHARED}", f"{SHARED}global", f"{SHARED}canary"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose memory it is: a person's, a project's or an operator's. A missing tenant is a tenant of its own, never
    a wider view."""

    tenant: str
    user: str = field(repr=False)

    @classmethod
    def of_project(cls, tenant: str, project: str) -> Owner:
        """The owner of what the members of *project* share. ValueError without a name."""
        if not project:
            raise ValueError("a project without a name shares nothing")
        return cls(tenant, _PROJECT + project)

    @classmethod
    def of_everyone(cls, tenant: str | None = None) -> Owner:
        """The owner of an operator's memories for every caller of *tenant*; None: of all tenants."""
        return cls(SHARED if tenant is None else tenant, _GLOBAL)

    @classmethod
    def of_canary(cls) -> Owner:
        """The owner of what is known to be remembered, for trying whether it is found."""
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
        """The name of the project whose memories these are; empty for every other kind of owner."""
        return self.user.removeprefix(_PROJECT) if self.kind is OwnerKind.PROJECT else ""

    @property
    def key(self) -> str:
        """64 hex digits, one per owner; lengths are part of the hash so that no two owners share one."""
        return _owner_key(self.tenant, self.user)


@lru_cache(maxsize=4096)
def _owner_key(tenant: str, user: str) -> str:
    return digest("owner", tenant, user)  # asked for a dozen times with each request


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
    """Who asks: the owner of the memories, the project that narrows them, the session if it was named."""

    owner: Owner
    project: str = ""
    session: str = ""  # as the client named it; empty: found from the conversation
    projects: tuple[str, ...] = ()  # whose member the caller verifiably is, by a claim or Envoy's metadata
    speaker: str = ""  # which of several, where *owner* is a project that its members' words become part of
    spoken_by: Caller | None = None  # and who that is

    @property
    def person(self) -> Caller:
        """Who speaks, whosever their words become: what they choose for a conversation holds for all of it."""
        return self.spoken_by or self


@dataclass(frozen=True, slots=True)
class ConsentChange:
    """One entry of a caller's history of consent: what they chose, when, and who wrote it down."""

    consent: Consent
    at: datetime
    by: str = field(default="", repr=False)  # the principal that set it; may name a person


@dataclass(frozen=True, slots=True)
class DataKey:
    """The key that seals one owner's texts. *id* is random and stands in all that it sealed, so that what was
    sealed with a key that is gone is told from what is damaged."""

    id: bytes  # 8 bytes
    secret: bytes = field(repr=False)  # 32 bytes
