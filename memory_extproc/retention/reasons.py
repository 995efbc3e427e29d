"""Why a memory leaves recall, and what stands in its metadata."""

from __future__ import annotations

from enum import StrEnum

from memory_extproc.model import Memory, seconds_said

# Keys of a memory's metadata.
PINNED = "pinned"  # true: it is kept whatever its score; whoever writes memories over the API may set it
ACCESSED = "accessed"  # seconds since 1970: when it was last given to a model
RETIRED = "retired"  # why it was deleted softly
RETIRED_AT = "retired_at"  # seconds since 1970
UNRETIRED = "unretired"  # seconds since 1970: when its owner brought it back
BY_CHAT = "chat"  # a value of RETIRED beside those below: its owner said so in a conversation


class Reason(StrEnum):
    """Why a memory leaves recall. Also the metric label and what stands in its row, so a value is never renamed."""

    EXPIRED = "expired"  # its own time is over
    TTL = "ttl"  # its type is kept for so long
    CAP = "cap"  # its owner has more than may be kept, and it is worth least
    SOURCES = "sources"  # it was made of memories that are no longer there, or that say something else now


def moment(memory: Memory, name: str) -> float:
    """Seconds since 1970; 0 where the metadata does not say."""
    return seconds_said(memory.metadata.get(name)) or 0.0
