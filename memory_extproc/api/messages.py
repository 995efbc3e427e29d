"""Memories as the API's messages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.model import Memory, OwnerKind


def message_of(memory: Memory) -> pb.Memory:
    return pb.Memory(
        id=memory.id,
        user_id=memory.owner.user if memory.owner.kind is OwnerKind.OWN else "",
        tenant_id=memory.owner.tenant,
        project_id=memory.project,
        type=memory.type.value,
        content=memory.content,
        source=memory.source.value,
        importance=memory.importance,
        access_count=memory.access_count,
        created_at=time_of(memory.created_at),
        updated_at=time_of(memory.updated_at),
        last_accessed_at=time_of(_accessed(memory)),
        expires_at=time_of(memory.expires_at),
        superseded_by=memory.superseded_by,
        session_id=memory.session,
        origin=memory.origin,
        metadata=struct_of(memory.metadata) if memory.metadata else None,
        state=memory.state.value,
        role=memory.role.value,
        seq=memory.seq,
        valid_from=time_of(memory.valid_from),
        valid_to=time_of(memory.valid_to),
    )


def _accessed(memory: Memory) -> datetime | None:
    """When it was last put before a model, as far as that was counted."""
    at = memory.metadata.get("accessed")
    return datetime.fromtimestamp(at, UTC) if isinstance(at, int) else None


def time_of(time: datetime | None) -> Timestamp | None:
    if time is None:
        return None
    made = Timestamp()
    made.FromDatetime(time)
    return made


def struct_of(metadata: Mapping[str, Any]) -> Struct:
    made = Struct()
    made.update(dict(metadata))
    return made
