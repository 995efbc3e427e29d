"""A row of the store, made without chatting."""

from __future__ import annotations

from datetime import datetime

from memory_extproc.model import Memory, MemoryType, Owner, Role, Source, digest


def a_memory(owner: Owner, number: int, text: str, now: datetime, fingerprint: str) -> Memory:
    return Memory(
        id=digest("benchmark", owner.key, str(number)),
        owner=owner,
        type=MemoryType.EPISODIC,
        content=text,
        source=Source.VERBATIM,
        created_at=now,
        updated_at=now,
        session=f"session-{number // 20}",
        seq=number % 20,
        role=Role.USER,
        embed_model=fingerprint,
    )
