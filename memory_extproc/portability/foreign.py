"""Importers for the formats of other memory layers.

*mem0*: responses of `get_all`, `/v1/memories/` and `/v2/memories/`, and points of its collection: a text under
`memory` (in a collection `data`), `user_id`, `run_id`, `metadata`, `categories`, times as ISO 8601.

*vLLM Semantic Router*: responses of its `GET /v1/memory`, and rows of its Milvus collection: `content`, `type` (in
the collection `memory_type`), times as RFC 3339 or seconds since 1970, `metadata` (in the collection as a JSON
string).

Both as a single JSON document (a list, or an object that contains the list) or as JSON Lines."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import IO, Any, Final

import msgspec

from memory_extproc.model import MemoryType, Source, digest
from memory_extproc.portability.records import Read, Refused, RefusedError, is_id, read_record

_PIECE: Final = 64 * 1024
MEMORY_BYTES: Final = 1024 * 1024  # per memory, as JSON
_LISTS: Final = ("results", "memories", "data", "points")  # names under which the list stands


class Foreign(StrEnum):
    MEM0 = "mem0"
    VLLM = "vllm-semantic-router"


def read_foreign(file: IO[bytes], kind: Foreign, *, user: str = "") -> Iterator[Read]:
    """Yield each memory, or the place and reason of its rejection.

    Memories of other users than *user* (empty: the first user in the file) are rejected: a file may contain several
    users' memories, and an import assigns all of them to the same owner."""
    translate = _TRANSLATED[kind]
    for number, plain in enumerate(_objects(file), 1):
        place = f"memory {number}"
        if not isinstance(plain, dict):
            yield Refused(place, "expected a JSON object")
            continue
        fields = {**plain, **inner} if isinstance(inner := plain.get("payload"), dict) else plain
        named = str(fields.get("user_id") or "")
        user = user or named
        if named != user and named:
            yield Refused(place, "user_id: another user's; import each user's memories by themselves")
            continue
        try:
            yield read_record({name: value for name, value in translate(fields).items() if value not in (None, "")})
        except RefusedError as error:
            yield Refused(place, str(error))


def _of_mem0(fields: Mapping[str, Any]) -> dict[str, Any]:
    extra = fields.get("metadata")
    metadata = dict(extra) if isinstance(extra, dict) else {}
    for name in ("agent_id", "app_id", "categories"):
        if fields.get(name):
            metadata[name] = fields[name]
    return {
        "id": _id(Foreign.MEM0, fields.get("id")),
        "type": MemoryType.SEMANTIC.value,
        "source": Source.LLM.value,
        "content": fields.get("memory") or fields.get("data") or fields.get("text"),
        "session_id": fields.get("run_id"),
        "created_at": fields.get("created_at"),
        "updated_at": fields.get("updated_at"),
        "expires_at": fields.get("expiration_date"),
        "metadata": metadata,
    }


def _of_vllm(fields: Mapping[str, Any]) -> dict[str, Any]:
    extra = fields.get("metadata")
    if isinstance(extra, str):
        try:
            extra = msgspec.json.decode(extra or "{}")
        except (msgspec.DecodeError, RecursionError):  # RecursionError: nested too deeply
            raise RefusedError("`metadata` is no JSON") from None
    return {
        "id": _id(Foreign.VLLM, fields.get("id")),
        "type": fields.get("type") or fields.get("memory_type"),
        # Its sources are free text ("conversation"), ours are an enumeration.
        "source": Source.LLM.value,
        "origin": f"source={fields['source']}" if fields.get("source") else "",
        "content": fields.get("content"),
        "project_id": fields.get("project_id"),
        "session_id": fields.get("conversation_id"),
        "importance": _share(fields.get("importance")),
        "access_count": fields.get("access_count"),
        "created_at": _time(fields.get("created_at")),
        "updated_at": _time(fields.get("updated_at")),
        "metadata": extra if isinstance(extra, dict) else {},
    }


_TRANSLATED: Mapping[Foreign, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    Foreign.MEM0: _of_mem0,
    Foreign.VLLM: _of_vllm,
}


def _id(kind: Foreign, given: Any) -> str:
    """A stable id that never collides with the ids of another format."""
    if not given:
        return ""
    name = f"{kind.value}:{given}"
    return name if is_id(name) else digest(kind.value, str(given))


def _time(value: Any) -> Any:
    """Convert seconds since 1970; Go's zero time, the year 1, means none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return datetime.fromtimestamp(value, UTC) if value > 0 else None
        except (OverflowError, ValueError, OSError):
            raise RefusedError("`created_at` is no time") from None
    return None if isinstance(value, str) and value.startswith("0001-01-01") else value


def _share(value: Any) -> Any:
    """Clamp and round importance, which may exceed 1 there and prints 32-bit digits."""
    return round(min(max(value, 0.0), 1.0), 6) if isinstance(value, float | int) else value


def _objects(file: IO[bytes]) -> Iterator[Any]:
    """Yield the elements of the list in *file*, or its lines, incrementally: a file may exceed the available
    memory."""
    reader = _Reader(file)
    opening = reader.peek()
    if opening == "{" and reader.enter_list():
        opening = "["
    if opening == "[":
        yield from reader.elements()
    else:
        yield from reader.values()


class _Reader:
    """Incremental JSON reader that holds at most a single value."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._text, self._ended = file, "", False
        self._decoder = json.JSONDecoder()
        self._characters = codecs.getincrementaldecoder("utf-8")()

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            self._text = self._text.lstrip(" \t\r\n\ufeff")
            if self._text or not self._more():
                return self._text[:1]

    def enter_list(self) -> bool:
        """Enter the list of memories in an object, by its known names. False, without progress, for any other
        object."""
        while len(self._text) < _PIECE and self._more():
            pass
        places = [(self._text.find(f'"{name}"'), name) for name in _LISTS]
        for at, name in sorted(place for place in places if place[0] >= 0):
            behind = self._text[at + len(name) + 2 :].lstrip(" \t\r\n:")
            before = self._text[:at]
            if behind.startswith("[") and before.count("{") - before.count("}") == 1:
                self._text = behind
                return True
        return False

    def elements(self) -> Iterator[Any]:
        self._text = self._text.removeprefix("[")
        while (next_ := self.peek()) not in {"]", ""}:
            if next_ == ",":
                self._text = self._text[1:]
            else:
                yield self._value()

    def values(self) -> Iterator[Any]:
        while self.peek():
            yield self._value()

    def _value(self) -> Any:
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text)
            except (json.JSONDecodeError, RecursionError):
                if len(self._text) > MEMORY_BYTES or not self._more():
                    raise RefusedError("the file is no JSON, or a memory in it is too large") from None
                continue
            self._text = self._text[end:]
            return value

    def _more(self) -> bool:
        if self._ended:
            return False
        piece = self._file.read(_PIECE)
        self._ended = not piece
        try:
            self._text += self._characters.decode(piece, final=self._ended)
        except UnicodeDecodeError:
            raise RefusedError("the file is no UTF-8") from None
        return not self._ended
