"""Topics and summaries of sessions as memories. Pure; the same turns give the same ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from memory_extproc.model import Memory, MemoryType, Owner, Role, Source, digest, seconds_said
from memory_extproc.topics.sayings import Said
from memory_extproc.topics.state import Group, Thread
from memory_extproc.topics.summing import Summary

MADE = "made"  # in metadata: when its sources were read, in seconds since 1970
MOST_SOURCES = 100  # ids in one memory's metadata, which the memory API takes 8 KiB of


class Kind(StrEnum):
    """What a summary is of; in its metadata, so never renamed."""

    TOPIC = "topic"
    PART = "part"  # of a session too long for one summary
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class Written:
    """What is the same for all memories of one writing."""

    owner: Owner
    read: float  # when what is summed up was read, or before; in seconds since 1970
    embed_model: str
    bytes: int  # of a memory's content at most


def topic_id(owner: Owner, session: str, group: Group) -> str:
    return digest("topic", owner.key, session, group[0].id.hex())


def summary_id(owner: Owner, session: str, first: Group, level: int, place: int) -> str:
    return digest("summary", owner.key, session, first[0].id.hex(), str(level), str(place))


def topic_row(written: Written, thread: Thread, group: Group, said: Sequence[Said], summary: Summary) -> Memory:
    """*said* is what is left of *group*; at least one turn of it."""
    text = f"{summary.name}: {summary.text}" if summary.name else summary.text
    return _row(
        written,
        thread,
        [one.turn.seq for one in said],
        [one.moment for one in said],
        topic_id(written.owner, thread.session, group),
        text,
        kind=Kind.TOPIC,
        name=summary.name,
        turns=len(said),
        sources=[source for one in said for source in one.sources],
        version=summary.by,
    )


def summary_row(
    written: Written, thread: Thread, memory_id: str, text: str, moments: Sequence[float], **metadata: Any
) -> Memory:
    seqs = [turn.seq for group in thread.closed for turn in group]
    return _row(written, thread, seqs, moments, memory_id, text, **metadata)


def _row(
    written: Written,
    thread: Thread,
    seqs: Sequence[int],
    moments: Sequence[float],
    memory_id: str,
    text: str,
    **metadata: Any,
) -> Memory:
    # The moment of its first words: whatever takes in these when something is forgotten takes in the summary.
    first, last = min(moments), max(moments)
    at = datetime.fromtimestamp(int(first), UTC)
    return Memory(
        id=memory_id,
        owner=written.owner,
        type=MemoryType.EPISODIC,
        content=cut(text, written.bytes),
        source=Source.SUMMARY,
        created_at=at,
        updated_at=max(at, datetime.fromtimestamp(int(last), UTC)),
        valid_from=at,
        project=thread.project,
        session=thread.session,
        seq=min(seqs),
        role=Role.NONE,
        origin=thread.origin,
        embed_model=written.embed_model,
        metadata={
            "said": round(first, 3),
            "until": round(last, 3),
            "span": span_of(seqs),
            MADE: max(written.read, last),
            **metadata,
        },
    )


def made_at(memory: Memory) -> float:
    """When what it was made of was read, in seconds since 1970; 0 for what was made of nothing."""
    return seconds_said(memory.metadata.get(MADE)) or 0.0


def sources_of(memory: Memory) -> list[str]:
    """Ids of what *memory* was made of; what came from a file may say anything of itself."""
    named = memory.metadata.get("sources")
    return [one for one in named if isinstance(one, str)] if isinstance(named, list | tuple) else []


def span_of(seqs: Sequence[int]) -> list[int]:
    """The places, half open, of the messages of turns that begin at *seqs*: each has its own and its answer's."""
    return [min(seqs), max(seqs) + 2]


def cut(text: str, most: int) -> str:
    """The beginning of *text* that fits into *most* bytes of UTF-8."""
    return text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")
