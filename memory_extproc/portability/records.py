"""A memory in an export: all fields except its vector and its owner.

The importing user becomes the owner, so a file can be shared without a name in it, and cannot write into another
user's memories."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from memory_extproc.errors import PermanentError
from memory_extproc.model import Memory, MemoryState, MemoryType, Owner, Provenance, Role, Source, Trust
from memory_extproc.safety.policy import MASK_SECRETS, StorageRules

# The alphabet of store ids. A leading dot would hide a file, and two dots are a directory.
ID = r"[A-Za-z0-9_:-][A-Za-z0-9_.:-]{0,63}"
_DIGITS = 6  # of importance; the store keeps 32 bits, which would print as 0.8999999761581421

Id = Annotated[str, Meta(pattern=f"^({ID})?$")]
Time = Annotated[datetime, Meta(tz=True)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0, le=2**62)]


COUNTED = "accessed"  # of metadata: when the memory was last put before a model, counted like access_count


class MemoryRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of a memory, in file order. Times are UTC in whole seconds; defaults are omitted."""

    id: Id = ""  # empty: a new memory, whose id is derived from its owner and text
    type: MemoryType
    state: MemoryState = MemoryState.ACTIVE
    superseded_by: Id = ""
    source: Source = Source.API
    role: Role = Role.NONE
    importance: Share = 0.5
    created_at: Time | None = None  # None: when it is imported; so are the next
    updated_at: Time | None = None
    valid_from: Time | None = None
    valid_to: Time | None = None
    expires_at: Time | None = None
    project_id: str = ""
    session_id: str = ""
    seq: Count = 0
    origin: str = ""
    access_count: Count = 0
    trust: Trust | None = None  # None: by role, source and metadata
    metadata: dict[str, Any] = {}
    content: Annotated[str, Meta(min_length=1)]

    def __repr__(self) -> str:
        """Content and metadata are private."""
        return f"Record(id={self.id!r}, type={self.type.value})"


class RefusedError(PermanentError):
    """The input is no valid memory. The text gives place and reason, for the file's author only.

    It may quote the file, so it must not be logged."""


def record_of(memory: Memory) -> MemoryRecord:
    return MemoryRecord(
        id=memory.id,
        type=memory.type,
        state=memory.state,
        superseded_by=memory.superseded_by,
        source=memory.source,
        role=memory.role,
        importance=round(memory.importance, _DIGITS),
        created_at=memory.created_at,
        updated_at=memory.updated_at,
        valid_from=memory.valid_from,
        valid_to=memory.valid_to,
        expires_at=memory.expires_at,
        project_id=memory.project,
        session_id=memory.session,
        seq=memory.seq,
        origin=memory.origin,
        access_count=memory.access_count,
        metadata=memory.provenance.encode(),
        content=memory.content,
    )


def memory_of(
    record: MemoryRecord,
    owner: Owner,
    id: str,  # noqa: A002 - the word of the model
    now: datetime,
    rules: StorageRules = MASK_SECRETS,
) -> Memory:
    """*record* as *owner*'s memory *id*; times it does not give are *now*, and so is what it dates behind that:
    forgetting goes by when things were said."""
    created = _whole(min(record.created_at or now, now))
    return Memory(
        id=id,
        owner=owner,
        type=record.type,
        content=rules.apply(record.content),  # what others kept of secrets is not to be
        source=record.source,
        created_at=created,
        updated_at=max(created, _whole(min(record.updated_at or now, now))),
        project=record.project_id,
        session=record.session_id,
        seq=record.seq,
        role=record.role,
        origin=record.origin,
        state=record.state,
        importance=record.importance,
        access_count=record.access_count,
        valid_from=_whole_or_none(record.valid_from),
        valid_to=_whole_or_none(record.valid_to),
        expires_at=_whole_or_none(record.expires_at),
        superseded_by=record.superseded_by,
        provenance=_limit_dates(Provenance.decode(record.metadata), now),
    )


def _limit_dates(stated: Provenance, now: datetime) -> Provenance:
    said = stated.extra.get("said", stated.said)
    late = isinstance(said, int | float) and not said <= now.timestamp()  # not a number is late, too
    return stated.replace(said=round(now.timestamp(), 3)) if late else stated


def read_record(plain: Mapping[str, Any]) -> MemoryRecord:
    """Validate a record. RefusedError names the field and the expected value."""
    named = {key: _moment(value) if key in _TIMES else value for key, value in plain.items()}
    try:
        record = msgspec.convert(named, MemoryRecord)
        # YAML has values without a JSON equivalent (a date, a set), which would not survive a round trip.
        msgspec.json.encode(record)
    except (msgspec.ValidationError, TypeError, UnicodeEncodeError) as error:
        raise RefusedError(str(error).replace("`$.", "`")) from None
    return record


def is_id(text: str) -> bool:
    return re.fullmatch(ID, text) is not None


_TIMES = frozenset({"created_at", "updated_at", "valid_from", "valid_to", "expires_at"})


def _moment(value: Any) -> Any:
    """Parse a time. A date means its midnight, and a time without a zone is UTC, as people write them."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return value
    if isinstance(value, datetime):
        return value.replace(tzinfo=value.tzinfo or UTC)
    return datetime.combine(value, time(), UTC) if isinstance(value, date) else value


def _whole(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(microsecond=0)


def _whole_or_none(moment: datetime | None) -> datetime | None:
    return None if moment is None else _whole(moment)


# JSON Lines: a header with the format, then a memory per line. Equal memories give equal bytes.

FORMAT = "memory-extproc"
VERSION = 1
TURN = "waiting_turn"  # accepted and not learned yet
CONSENT = "consent"
LINE_BYTES = 1024 * 1024  # a longer line is no memory of ours

_encoder = msgspec.json.Encoder(order="deterministic")


@dataclass(frozen=True, slots=True)
class Refused:
    """A rejected entry: its place in the file, and the reason."""

    place: str
    reason: str


Read = MemoryRecord | Refused


def head() -> bytes:
    return _encoder.encode({"format": FORMAT, "version": VERSION}) + b"\n"


def line_of(record: MemoryRecord) -> bytes:
    return _encoder.encode(record) + b"\n"


def record_line(kind: str, fields: dict[str, Any]) -> bytes:
    """A line with other user data, which an import skips."""
    return _encoder.encode({kind: fields}) + b"\n"


def read_lines(lines: Iterable[bytes]) -> Iterator[Read]:
    """Yield each memory, or the place and reason of its rejection; empty lines, headers and other data are skipped.

    RefusedError for a file of a newer version, which could not be read completely."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            plain = _object(line)
            if "format" in plain:
                _check_head(plain)
                continue
        except RefusedError as error:
            if "format" in str(error):
                raise
            yield Refused(f"line {number}", str(error))
            continue
        if plain.keys() in ({TURN}, {CONSENT}):
            continue
        try:
            yield read_record(plain)
        except RefusedError as error:
            yield Refused(f"line {number}", str(error))


def _object(line: bytes) -> dict[str, Any]:
    if len(line) > LINE_BYTES:
        raise RefusedError(f"longer than {LINE_BYTES} bytes")
    try:
        plain = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RefusedError("no JSON") from None
    if not isinstance(plain, dict):
        raise RefusedError("expected a JSON object")
    return plain


def _check_head(plain: dict[str, Any]) -> None:
    if plain.get("format") != FORMAT or plain.get("version") != VERSION:
        raise RefusedError(f"format: expected {FORMAT} version {VERSION}")
