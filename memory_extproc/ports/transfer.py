"""In and out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from memory_extproc.model import (
    ConsentChange,
    ImportReport,
    Memory,
    Owner,
)
from memory_extproc.ports.coordination import JournalEntry


@dataclass(frozen=True, slots=True)
class Exported:
    """A piece of an export. An export that is asked to go on after *place* begins with the next piece; after the
    memories, that is the first of what follows them."""

    what: Memory | JournalEntry | ConsentChange
    place: str


class Exports(Protocol):
    """Everything that is known of an owner, for the owner to take along."""

    async def count(self, owner: Owner) -> int:
        """About how many memories an export has, in any state and project."""

    def export(self, owner: Owner, *, project: str = "", after: str = "") -> AsyncIterator[Exported]:
        """Memories in any state by created_at and id, the oldest first; then the turns that are not learned yet,
        dead letters too; then, without a project, the choices of consent. What is remembered meanwhile may be in
        it or not. GiveUpError for an *after* that is no place of an export."""


class Importing(Protocol):
    """One import under way."""

    async def take(self, fields: Mapping[str, Any]) -> None:
        """The next memory, by the memory API's names for its fields, as it was sent: it is checked here, and what
        is wrong with it becomes a problem of the report. May keep a few back until more have come."""

    async def finish(self) -> ImportReport:
        """Everything taken is in the store, or has been refused."""


class Imports(Protocol):
    """Brings memories in."""

    def begin(self, owner: Owner, *, replace: bool = False, dry_run: bool = False) -> Importing:
        """They become *owner*'s whatever they say. *replace*: the imported memory takes the place of one that is
        there with another content, and that one is kept as a version; else it is left out as a conflict."""
