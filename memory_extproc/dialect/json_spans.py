"""Byte offsets of members and elements in a JSON body, and edits at these offsets.

All functions expect a body accepted by `parse`. Because it is valid JSON, possessive patterns find the ends of
values, mostly without decoding them. Offsets count bytes of the body."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from memory_extproc.errors import BadBodyError


class Edit(NamedTuple):
    """Replace body[start:end] by *new*; offsets in bytes of the client's body, half open."""

    start: int
    end: int
    new: bytes


def apply(body: bytes, edits: Sequence[Edit]) -> bytes:
    """Apply *edits*, in any order and without overlap; edits at the same empty span apply in the given order."""
    kept = bytearray()
    at = 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        if edit.start < at or edit.end > len(body):
            raise ValueError(f"edit {edit.start}:{edit.end} overlaps the one before or leaves the body")
        kept += body[at : edit.start]
        kept += edit.new
        at = edit.end
    kept += body[at:]
    return bytes(kept)


BOM = b"\xef\xbb\xbf"

_SPACE = rb"[ \t\r\n]*+"
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SPACES = re.compile(_SPACE)
_KEY = re.compile(rb"(" + _STRING + rb")" + _SPACE + rb":" + _SPACE, re.DOTALL)
_COMMA = re.compile(_SPACE + rb"," + _SPACE)
# A string, number or literal, up to a delimiter.
_SCALAR = re.compile(_STRING + rb'|[^\s,\[\]{}":]++', re.DOTALL)
# Everything up to and including the next bracket outside strings and flat objects, such as most messages of a long
# conversation: a single match instead of thousands.
_FLAT = rb'[^\[\]{}"]++|' + _STRING
_BRACKET = re.compile(rb"(?:" + _FLAT + rb"|\{(?:" + _FLAT + rb")*+\})*+([\[\]{}])", re.DOTALL)
_OPENING = frozenset((b"[", b"{"))
# Matches every escape, so that the second half of an escaped backslash never starts another. Pairs come first; the
# rest are lone surrogates.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_MANY = 512  # brackets; beyond it, decoding the value is faster than stepping through them
_WINDOW = 64 * 1024  # bytes of such a value that are decoded first
# By byte: whether it matters for the depth, and by how much the depth changes behind it.
_QUOTE = ord('"')
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_IS_MARK = _STEPS != 0
_IS_MARK[_QUOTE] = True
_VALUE = json.JSONDecoder(parse_int=len, parse_float=len, strict=False)  # numbers may be of any length
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])


class ByteSpan(NamedTuple):
    """body[start:end]."""

    start: int
    end: int


class Member(NamedTuple):
    """A member of an object, from the opening quote of its name to the end of its value."""

    name: str
    start: int
    value: int
    end: int


def root(body: bytes) -> int:
    """The offset of the top-level value, after a byte order mark and white space."""
    return _skip(body, len(BOM) if body.startswith(BOM) else 0)


def value_end(body: bytes, at: int) -> int:
    """The end of the value that begins at *at*."""
    if body[at : at + 1] not in _OPENING:
        return _SCALAR.match(body, at).end()  # type: ignore[union-attr]  # valid JSON has a value here
    level = 1
    for count, (end, step) in enumerate(_brackets(_BRACKET, body, at + 1)):
        level += step
        if level == 0:
            return end
        if count == _MANY:
            return _decoded_end(body, at)
    raise ValueError("the value has no end: the body was not checked to be JSON")


def _decoded_end(body: bytes, at: int) -> int:
    """The end of the list or object at *at*. Decodes no more than four times its length."""
    size = _WINDOW
    while True:
        try:
            # A character per byte, so that its count is in bytes.
            return at + int(_VALUE.raw_decode(body[at : at + size].decode("latin-1"))[1])
        except json.JSONDecodeError:
            if at + size >= len(body):
                raise
            size *= 2


def measure_nesting(body: bytes) -> tuple[int, int]:
    """How deep lists and objects nest, and how many there are; exact for valid JSON.

    In C throughout, because a body can have millions."""
    signs = np.frombuffer(body.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    signs = signs[_IS_MARK[signs]]
    steps = _STEPS[signs] * ~np.logical_xor.accumulate(signs == _QUOTE)
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0)), int((steps > 0).sum())


def members(body: bytes, at: int) -> list[Member]:
    """The members of the object that begins at *at*, in order, duplicates included."""
    found: list[Member] = []
    at = _skip(body, at + 1)
    while key := _KEY.match(body, at):
        end = value_end(body, key.end())
        found.append(Member(_unquote_name(key[1]), key.start(), key.end(), end))
        comma = _COMMA.match(body, end)
        if comma is None:
            break
        at = comma.end()
    return found


def effective(of: Sequence[Member], name: str) -> Member | None:
    """The effective member: among duplicates, servers use the last."""
    return next((member for member in reversed(of) if member.name == name), None)


def elements(body: bytes, array: ByteSpan, indexes: Collection[int]) -> dict[int, ByteSpan]:
    """The spans of the elements *indexes*, in a single pass from the end, where conversations grow."""
    section = body[array.start : array.end]
    try:
        raws = _RAWS.decode(section)
    except msgspec.DecodeError:
        raws = _RAWS.decode(without_lone_surrogates(section))
    found: dict[int, ByteSpan] = {}
    at = array.end - 1
    for index in range(len(raws) - 1, min(indexes, default=len(raws)) - 1, -1):
        end = _skip_space_back(body, at)
        start = end - len(raws[index])
        if index in indexes:
            found[index] = ByteSpan(start, end)
        at = _skip_space_back(body, start) - 1
    return found


def append_element(body: bytes, array: ByteSpan, new: bytes) -> Edit:
    """The edit that makes *new* the last element of a list."""
    at = _skip_space_back(body, array.end - 1)
    empty = at == array.start + 1
    return Edit(at, at, new if empty else b"," + new)


def append_text(string: ByteSpan, text: str) -> Edit:
    """The edit that appends *text* to a JSON string, inside its closing quote."""
    return Edit(string.end - 1, string.end - 1, quote_json(text)[1:-1])


def removal(of: Sequence[Member], names: Collection[str]) -> tuple[Edit, ...]:
    """The edits that remove all members named in *names*, each with a comma."""
    edits: list[Edit] = []
    kept = False  # a kept member precedes: remove the comma before this member
    for index, member in enumerate(of):
        if member.name not in names:
            kept = True
        elif kept:
            edits.append(Edit(of[index - 1].end, member.end, b""))
        else:
            follows = of[index + 1].start if index + 1 < len(of) else member.end
            edits.append(Edit(member.start, follows, b""))
    return tuple(edits)


def quote_json(text: str) -> bytes:
    """*text* as a JSON string in UTF-8. A lone surrogate, not valid in UTF-8, becomes "?"."""
    return msgspec.json.encode(text.encode("utf-8", "replace").decode())


def without_lone_surrogates(body: bytes) -> bytes:
    r"""The body with each lone surrogate escape as \ufffd, of the same length: all offsets stay.

    JSON allows them (RFC 8259, section 8.2) and clients that cut text in the middle of an emoji send them;
    UTF-8 and our decoder do not."""
    return _ESCAPE.sub(lambda escape: rb"\ufffd" if escape[1] else escape[0], body)


def _brackets(pattern: re.Pattern[bytes], body: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield the end of each bracket that *pattern* finds from *at*, with 1 for opening and -1 for closing brackets.

    Matches are chained, never searched: after the last bracket a search would restart at every byte, and a client
    could make it quadratic with spaces."""
    match = pattern.match
    while bracket := match(body, at):
        at = bracket.end()
        yield at, 1 if bracket[1] in _OPENING else -1


def _unquote_name(name: bytes) -> str:
    if b"\\" in name:
        return str(json.loads(name))
    return name[1:-1].decode()


def _skip(body: bytes, at: int) -> int:
    return _SPACES.match(body, at).end()  # type: ignore[union-attr]  # the pattern matches nothing, too


def _skip_space_back(body: bytes, at: int) -> int:
    """*at*, moved back over whitespace."""
    while body[at - 1] in b" \t\r\n":
        at -= 1
    return at


# A JSON body as validated Python values. Type errors name the path.

Fields = Mapping[str, Any]

# Far beyond the needs of tool schemas, far below the recursion limit.
MAX_DEPTH = 200
# A conversation of 20,000 messages in parts has 60,000 lists and objects. A million takes a second to decode: the
# garbage collector walks through them again and again.
MAX_CONTAINERS = 100_000

_NAMES = {dict: "object", list: "list", str: "string", bool: "boolean", int: "number", float: "number"}


def parse(body: bytes) -> dict[str, Any]:
    """Parse the body's object; the last of duplicate keys counts. BadBodyError if it is invalid."""
    start = len(BOM) if body.startswith(BOM) else 0
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        depth, containers = measure_nesting(body)
        if depth > MAX_DEPTH:
            raise BadBodyError(f"nested deeper than {MAX_DEPTH} levels")
        if containers > MAX_CONTAINERS:
            raise BadBodyError(f"more than {MAX_CONTAINERS:,} lists and objects")
    value = _decode_value(body[start:] if start else body, start)
    if not isinstance(value, dict):
        raise type_error("body", "object", value)
    return value


def _decode_value(body: bytes, offset: int) -> Any:
    try:
        return msgspec.json.decode(body)
    except UnicodeDecodeError:
        raise _not_utf8(body, offset) from None
    except RecursionError:
        raise BadBodyError("nested too deeply") from None
    except msgspec.ValidationError:
        raise BadBodyError("a number beyond any range") from None
    except msgspec.DecodeError as error:
        repaired = without_lone_surrogates(body)
        if repaired == body:
            raise BadBodyError(f"not JSON: {error}") from None
    return _decode_value(repaired, offset)


def _not_utf8(body: bytes, offset: int) -> BadBodyError:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return BadBodyError(f"not UTF-8 at byte {error.start + offset}")
    return BadBodyError("not UTF-8")


def type_error(path: str, expected: str, found: object) -> BadBodyError:
    """The error for a value of the wrong type; it names types and never the value."""
    return BadBodyError(f"{path}: expected {expected}, found {_NAMES.get(type(found), 'null')}")


def string(fields: Fields, name: str, path: str = "") -> str:
    """The string at *name*; "" when it is absent or null."""
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise type_error(path + name, "string", value)
    return value


def flag(fields: Fields, name: str, path: str = "") -> bool | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise type_error(path + name, "boolean", value)
    return value


def number(fields: Fields, name: str, path: str = "") -> float | int | None:
    value = fields.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise type_error(path + name, "number", value)
    return value


def whole(fields: Fields, name: str, path: str = "") -> int | None:
    """A whole number, written as 5 or 5.0."""
    value = number(fields, name, path)
    if isinstance(value, float):
        if not value.is_integer():
            raise BadBodyError(f"{path}{name}: expected whole number, found fraction")
        return int(value)
    return value


def items(fields: Fields, name: str, path: str = "") -> list[Any]:
    """The list at *name*; empty when it is absent or null."""
    value = fields.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise type_error(path + name, "list", value)
    return value


def section(fields: Fields, name: str, path: str = "") -> dict[str, Any]:
    """The object at *name*; empty when it is absent or null."""
    value = fields.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise type_error(path + name, "object", value)
    return value
