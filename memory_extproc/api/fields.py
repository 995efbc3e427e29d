"""Reading a request: every field that is not as it must be is told of at once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from memory_extproc.api.refusal import bad_request
from memory_extproc.curate.curator import RESERVED
from memory_extproc.wire.identity import MAX_BYTES, accepted

E = TypeVar("E", bound=StrEnum)

QUERY_BYTES = 8192
METADATA_BYTES = 8192
METADATA_KEYS = 64
METADATA_DEPTH = 8
PAGE = 100
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
_EXACT = 2**53  # above it a double does not hold every whole number
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class Fields:
    """Collects the faults of one request; `check` raises them."""

    def __init__(self) -> None:
        self._faults: list[tuple[str, str]] = []

    def fault(self, field: str, description: str) -> None:
        self._faults.append((field, description))

    def check(self) -> None:
        if self._faults:
            raise bad_request(*self._faults)

    def name(self, field: str, value: str, *, needed: bool = False) -> str:
        """A project, session or user: printable, at most 256 bytes."""
        if (value or needed) and not accepted(value):
            least = "1 to " if needed else "at most "
            self.fault(field, f"{least}{MAX_BYTES} bytes of printable characters")
            return ""
        return value

    def text(self, field: str, value: str, most: int = QUERY_BYTES) -> str:
        """Somebody's words: not only blanks, no NUL, at most *most* bytes."""
        if not value.strip() or "\0" in value or len(value.encode("utf-8", "surrogatepass")) > most:
            self.fault(field, f"1 to {most} bytes of UTF-8, not only white space, without NUL")
        return value

    def words(self, field: str, given: Iterable[str], known: type[E]) -> frozenset[E]:
        """Words of *known*, several of them perhaps in one string between commas; none: all."""
        named = {word.strip() for one in given for word in one.split(",")} - {""}
        if named - set(known):
            self.fault(field, f"one of {', '.join(known)}")
        return frozenset(one for one in known if one in named) or frozenset(known)

    def word(self, field: str, given: str, known: type[E], default: E) -> E:
        if given and given not in set(known):
            self.fault(field, f"one of {', '.join(known)}")
            return default
        return known(given) if given else default

    def share(self, field: str, value: float) -> float:
        if not 0.0 <= value <= 1.0:  # NaN is not either
            self.fault(field, "a number from 0 to 1")
            return 0.0
        return value

    def limit(self, field: str, value: int, default: int) -> int:
        if not 0 <= value <= PAGE:
            self.fault(field, f"1 to {PAGE}; 0 or absent: {default}")
            return default
        return value or default

    def time(self, field: str, given: Timestamp) -> datetime | None:
        """Whole seconds; None where the message does not say."""
        try:
            found = given.ToDatetime(tzinfo=UTC)
        except (ValueError, OverflowError):
            found = None
        if found is None or not datetime(1970, 1, 2, tzinfo=UTC) <= found < _LATEST:
            self.fault(field, "a time from 1970 to 9998, such as 2026-03-02T09:00:00Z")
            return None
        return found.replace(microsecond=0)

    def request_id(self, value: str) -> str:
        if value and not _REQUEST_ID.fullmatch(value):
            self.fault("request_id", "1 to 128 of A-Z a-z 0-9 . _ : / -")
        return value

    def metadata(self, field: str, given: Struct) -> Mapping[str, Any]:
        if _depth(given) > METADATA_DEPTH:
            self.fault(field, f"at most {METADATA_DEPTH} levels deep")
            return {}
        try:
            found: dict[str, Any] = _whole_numbers(MessageToDict(given))
            size = len(json.dumps(found, ensure_ascii=False, allow_nan=False).encode())
        except (ValueError, UnicodeError):
            self.fault(field, "JSON without NaN, infinities and lone surrogates")
            return {}
        if size > METADATA_BYTES or len(found) > METADATA_KEYS:
            self.fault(field, f"at most {METADATA_BYTES} bytes as JSON and {METADATA_KEYS} keys")
        for name in sorted(RESERVED & found.keys()):
            self.fault(f"{field}.{name}", "another name: this one is the server's")
        return found


def is_id(text: str) -> bool:
    """Whether it can be a memory's id at all; what cannot be is nobody's."""
    return _ID.fullmatch(text) is not None


def _depth(given: Struct) -> int:
    """Levels of objects and lists, counted without recursion: a request may nest a hundred."""
    deepest = 0
    waiting: list[tuple[Iterable[Value], int]] = [(given.fields.values(), 1)]
    while waiting:
        values, depth = waiting.pop()
        deepest = max(deepest, depth)
        for value in values:
            if value.HasField("struct_value"):
                waiting.append((value.struct_value.fields.values(), depth + 1))
            elif value.HasField("list_value"):
                waiting.append((value.list_value.values, depth + 1))
    return deepest


def _whole_numbers(value: Any) -> Any:
    """A Struct has only doubles; whole ones were most likely written as whole numbers."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, Mapping):
        return {key: _whole_numbers(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_whole_numbers(one) for one in value]
    return value
