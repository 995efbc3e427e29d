"""A memory as a row of Milvus: the checks that rows pass, their fields, their collection, and the filters that find
them. The store in memory runs the same checks, so it rejects the same rows."""

from __future__ import annotations

import hashlib
import json
import math
import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol, TypeVar

import numpy as np

from memory_extproc.errors import PermanentError
from memory_extproc.model import (
    Conditions,
    Embedded,
    Memory,
    MemoryState,
    MemoryType,
    Owner,
    Provenance,
    Rating,
    Role,
    Scope,
    Source,
    Vector,
)
from memory_extproc.observe.log import logger
from memory_extproc.store.milvus.options import Layout

# Milvus clients put keys into expressions unescaped, so an id is from an alphabet that needs no escaping.
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}", re.ASCII)
_UNIT_TOLERANCE = 1e-2
_WORD = re.compile(r"\w+")
_MOST_ASKED = 2_000  # characters
# Milvus' limits are bytes of UTF-8 on a server and characters in Lite; ours are bytes, for both.
NAME_BYTES = 512
METADATA_BYTES = 16 * 1024


def is_id(text: str) -> bool:
    """Whether *text* can be a memory's id: 1 to 64 of A-Z a-z 0-9 _ . : -"""
    return _ID.fullmatch(text) is not None


def check_vector(vector: Vector, dimension: int) -> None:
    """PermanentError unless *vector* has *dimension* finite numbers and length 1. Milvus Lite would store a
    NaN, and a server stores a zero vector and never returns it."""
    if vector.shape != (dimension,):
        raise PermanentError(f"a vector of shape {vector.shape} where the collection holds {dimension} numbers")
    with np.errstate(all="ignore"):
        length = float(np.sqrt(np.square(vector, dtype=np.float64).sum()))
    # A NaN or infinity makes the length NaN or infinite, and the comparison false.
    if not abs(length - 1.0) <= _UNIT_TOLERANCE:
        raise PermanentError("a vector that is not of unit length")


def check_rows(owner: Owner, rows: Sequence[Embedded], dimension: int) -> None:
    """PermanentError unless all of *rows* are *owner*'s, with storable ids and vectors."""
    check_owner(owner)
    for row in rows:
        if row.memory.owner != owner:
            raise PermanentError("a memory of another owner")
        if not is_id(row.memory.id):
            raise PermanentError("a memory id outside the safe alphabet")
        for what in ("project", "session", "origin", "embed_model", "superseded_by"):
            check_name(what, getattr(row.memory, what))
        check_vector(row.vector, dimension)
        if len(metadata_text(row.memory)) > METADATA_BYTES:
            raise PermanentError(f"metadata of more than {METADATA_BYTES} bytes")


def metadata_text(memory: Memory) -> str:
    """The metadata as JSON in ASCII, so that its characters are bytes. PermanentError if it is not JSON."""
    try:
        return json.dumps(memory.provenance.encode(), separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        raise PermanentError("metadata that is not JSON") from None


def fit(row: Embedded, content_bytes: int) -> Embedded:
    """*row* with its content cut to *content_bytes* of UTF-8 at a character's boundary. A lone surrogate,
    which JSON can carry and UTF-8 cannot, becomes a question mark."""
    content = row.memory.content
    kept = content.encode("utf-8", "replace")[:content_bytes].decode("utf-8", "ignore")
    return row if kept == content else Embedded(replace(row.memory, content=kept), row.vector)


def searchable(text: str) -> str:
    """The distinct words of *text* for a full-text query; empty if there are none. Only the first words of a long
    question count."""
    words = _WORD.findall(text[:_MOST_ASKED].casefold())
    return " ".join(dict.fromkeys(words))


def check_owner(owner: Owner) -> None:
    """PermanentError unless both names can be stored and asked for in a filter."""
    check_name("tenant", owner.tenant)
    check_name("user", owner.user)
    if not owner.user:
        raise PermanentError("an owner without a user")


def check_name(what: str, text: str) -> None:
    """PermanentError if *text* is longer than NAME_BYTES of UTF-8 or has control characters or lone surrogates."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise PermanentError(f"a {what} that is not Unicode text") from None
    if size > NAME_BYTES:
        raise PermanentError(f"a {what} of more than {NAME_BYTES} bytes")
    if "\0" in text:
        raise PermanentError(f"a {what} with a NUL")


log = logger(__name__)
T = TypeVar("T")
VECTOR = "embedding"
HEAD = ("id", "memory_type", "created_at", "state", "source", "expires_at")  # in the order of MemoryHead
WORDS = "words"  # filled by the server from the content, where it knows how; never read
# All fields but the vector, in the order of the schema.
SCALARS = (
    "id", "user_id", "tenant_id", "project_id", "session_id", "seq", "role", "memory_type", "content", "source",
    "origin", "state", "importance", "access_count", "created_at", "updated_at", "valid_from", "valid_to",
    "expires_at", "superseded_by", "embed_model", "metadata",
)  # fmt: skip


def to_row(row: Embedded) -> dict[str, Any]:
    """The row of a memory that passed check_rows. Every field is set, because an old server has no nullable
    fields; 0 means no time."""
    memory = row.memory
    return {
        "id": memory.id,
        "user_id": memory.owner.user,
        "tenant_id": memory.owner.tenant,
        "project_id": memory.project,
        "session_id": memory.session,
        "seq": memory.seq,
        "role": memory.role.value,
        "memory_type": memory.type.value,
        "content": memory.content,
        "source": memory.source.value,
        "origin": memory.origin,
        "state": memory.state.value,
        "importance": float(memory.importance),
        "access_count": memory.access_count,
        "created_at": _seconds(memory.created_at),
        "updated_at": _seconds(memory.updated_at),
        "valid_from": _seconds(memory.valid_from),
        "valid_to": _seconds(memory.valid_to),
        "expires_at": _seconds(memory.expires_at),
        "superseded_by": memory.superseded_by,
        "embed_model": memory.embed_model,
        "metadata": metadata_text(memory),
        VECTOR: row.vector,
    }


def to_memory(row: Mapping[str, Any]) -> Memory:
    """PermanentError if the row was not written by us or by a newer version with other words."""
    try:
        return Memory(
            id=row["id"],
            owner=Owner(row["tenant_id"], row["user_id"]),
            project=row["project_id"],
            session=row["session_id"],
            seq=row["seq"],
            role=Role(row["role"]),
            type=MemoryType(row["memory_type"]),
            content=row["content"],
            source=Source(row["source"]),
            origin=row["origin"],
            state=MemoryState(row["state"]),
            importance=row["importance"],
            access_count=row["access_count"],
            created_at=_time(row["created_at"]),
            updated_at=_time(row["updated_at"]),
            valid_from=_time_or_none(row["valid_from"]),
            valid_to=_time_or_none(row["valid_to"]),
            expires_at=_time_or_none(row["expires_at"]),
            superseded_by=row["superseded_by"],
            embed_model=row["embed_model"],
            provenance=Provenance.decode(json.loads(row["metadata"])),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise PermanentError(f"a row that is no memory: {type(error).__name__}") from None


def to_embedded(row: Mapping[str, Any]) -> Embedded:
    return Embedded(to_memory(row), np.asarray(row[VECTOR], dtype=np.float32))


def readable(
    found: Iterable[Mapping[str, Any]], read: Callable[[Mapping[str, Any]], T], tells: Callable[[str], object]
) -> list[T]:
    """The rows decoded by *read*. An unreadable row (of a newer version, or damaged) is skipped, logged and
    reported to *tells* (as Metrics.unreadable has it), because it must not hide the others."""
    made: list[T] = []
    for row in found:
        try:
            made.append(read(row))
        except PermanentError:
            report_unreadable(tells)
    return made


def report_unreadable(tells: Callable[[str], object]) -> None:
    log.warning("store.row_unreadable")
    tells("no_memory")


def _seconds(time: datetime | None) -> int:
    return 0 if time is None else int(time.timestamp())


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _time_or_none(seconds: int) -> datetime | None:
    return _time(seconds) if seconds else None


# --- filters ---------------------------------------------------------------------------------------
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def quote(text: str) -> str:
    """*text* as a string literal for servers and Lite alike: Lite knows no numeric escapes, so only the characters
    that would end the literal are escaped."""
    return f'"{text.translate(_ESCAPES)}"'


def owner_filter(owner: Owner) -> str:
    """The tenant is always part of it; the user alone is the partition key."""
    return f"user_id == {quote(owner.user)} and tenant_id == {quote(owner.tenant)}"


def ids_filter(ids: Iterable[str]) -> str:
    """The ids are of the safe alphabet (`is_id`)."""
    return "id in [" + ", ".join(f'"{one}"' for one in ids) + "]"


def recallable_filter(owner: Owner, scope: Scope, now: datetime) -> str:
    """Memory.recallable and Scope.holds as a Milvus filter, except for the globs of origins, which Milvus lacks."""
    parts = [
        owner_filter(owner),
        f"state == {quote(MemoryState.ACTIVE.value)}",
        f"source != {quote(Source.QUESTION.value)}",
        f"(expires_at == 0 or expires_at > {int(now.timestamp())})",
    ]
    if scope.project:
        parts.append(f"project_id == {quote(scope.project)}")
    if len(scope.types) < len(MemoryType):
        parts.append("memory_type in [" + ", ".join(quote(kind.value) for kind in sorted(scope.types)) + "]")
    if len(scope.sources) < len(Source):
        parts.append("source in [" + ", ".join(quote(source.value) for source in sorted(scope.sources)) + "]")
    return " and ".join(parts)


def rating_text(rating: Rating) -> str:
    """Stands in the metadata with *rating*, and perhaps in others, whose extra fields have it."""
    return f'"rating":"{rating.value}"'


def conditions_filter(owner: Owner, chosen: Conditions) -> str:
    """The filter for rows that Conditions.holds, but for their rating."""
    parts = [owner_filter(owner)]
    for name, value in (("project_id", chosen.project), ("session_id", chosen.session)):
        if value:
            parts.append(f"{name} == {quote(value)}")
    choices: tuple[tuple[str, frozenset[Any], type[StrEnum]], ...] = (
        ("memory_type", chosen.types, MemoryType),
        ("source", chosen.sources, Source),
        ("state", chosen.states, MemoryState),
    )
    for name, values, every in choices:
        if len(values) < len(every):
            parts.append(f"{name} in [" + ", ".join(quote(value.value) for value in sorted(values)) + "]")
    for sign, time in ((">=", chosen.after), ("<", chosen.before)):
        if time is not None:
            parts.append(f"created_at {sign} {math.ceil(time.timestamp())}")
    return " and ".join(parts)


# --- listing -----------------------------------------------------------------------------------------
# List a whole store in parts that fit into one answer.

Row = Mapping[str, Any]

_BEHIND = "~"  # stands behind all that ids are made of (`is_id`), as a store compares them
_MOST = 2_000  # rows per answer: Lite needs some 20 ms for them, half of it in this process
_PARTS = 8  # that rows are taken apart into when an answer does not hold them
_NAMES = ("tenant_id", "user_id")


class RowQuery(Protocol):
    async def __call__(self, place: OwnerPlace, filter_: str, fields: Sequence[str], limit: int) -> Sequence[Row]:
        """At most *limit* rows with these *fields* that match, in any order."""


async def owners_in(
    collections: Sequence[str], query: RowQuery, *, most: int = _MOST
) -> AsyncIterator[Sequence[Owner]]:
    """Each once."""
    known: set[Owner] = set()
    for collection in collections:
        async for _, rows in shares(OwnerPlace(collection, None), query, _NAMES, most=most):
            found = {Owner(row["tenant_id"], row["user_id"]) for row in rows} - known
            known |= found
            if found:
                yield sorted(found, key=lambda owner: owner.key)


async def shares(
    place: OwnerPlace, query: RowQuery, fields: Sequence[str], *, most: int = _MOST
) -> AsyncIterator[tuple[str, Sequence[Row]]]:
    """Filters that share all rows of *place* out among them, and the rows of each, with their ids: *most* at a
    time. Rows are asked for by ranges of ids: a server's pages are cut by offset, which is bounded, or by an
    iterator, for which the client drops the consistency level."""
    asked = ("id", *(field for field in fields if field != "id"))
    waiting = [("", _BEHIND)]
    while waiting:
        least, below = waiting.pop()
        filter_ = f"id >= {quote(least)} and id < {quote(below)}"
        rows = await query(place, filter_, asked, most + 1)
        ids = {row["id"] for row in rows}
        if len(ids) > max(1, most):
            waiting += _parts(least, below, ids)
        else:
            yield filter_, rows


def _parts(least: str, below: str, some: set[str]) -> list[tuple[str, str]]:
    """Split the id range from *least* to *below* by the prefixes *some*, two or more of which were found in it.
    Each part excludes a prefix, so the recursion ends in any case."""
    found = sorted(some)
    step = max(1, len(found) // _PARTS)
    starts = [least, *found[step::step]]
    return list(zip(starts, [*starts[1:], below], strict=True))


# Which collection an owner's rows are in, and how to narrow a read to them.

_BUCKETS = 16  # partitions that Lite makes for a partition key, regardless of the option


def bucket(user: str) -> str:
    """The partition that Lite 3.2 puts a partition key's value into (milvus_lite/engine/collection.py)."""
    hashed = hashlib.md5(user.encode(), usedforsecurity=False)
    return f"_pk_{int(hashed.hexdigest(), 16) % _BUCKETS}"


@dataclass(frozen=True, slots=True)
class OwnerPlace:
    collection: str  # an alias
    partitions: list[str] | None  # to read; None leaves it to the server


@dataclass(frozen=True, slots=True)
class Placement:
    alias: str
    physical: str
    layout: Layout
    shards: int
    pruning: bool  # whether reads name the bucket; verified at opening
    words: bool = False  # whether every collection has an index of words

    def collections(self) -> list[tuple[str, str]]:
        """(alias, physical name) of each."""
        if self.layout is Layout.SINGLE:
            return [(self.alias, self.physical)]
        return [(f"{self.alias}_s{n:02}", f"{self.physical}_s{n:02}") for n in range(self.shards)]

    @property
    def aliases(self) -> list[str]:
        return [alias for alias, _ in self.collections()]

    def of(self, owner: Owner) -> OwnerPlace:
        partitions = [bucket(owner.user)] if self.pruning else None
        if self.layout is Layout.SINGLE:
            return OwnerPlace(self.alias, partitions)
        shard = zlib.crc32(owner.key.encode()) % self.shards
        return OwnerPlace(f"{self.alias}_s{shard:02}", partitions)
