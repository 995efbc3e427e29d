"""A JSON body as checked Python values. What is not of the type it must be is named with its path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from memory_extproc.dialect import spans
from memory_extproc.errors import BadBodyError

Fields = Mapping[str, Any]

# Far beyond what JSON Schemas of tools need, far below where a recursive reader fails.
MAX_DEPTH = 200

_NAMES = {dict: "object", list: "list", str: "string", bool: "boolean", int: "number", float: "number"}


def parse(body: bytes) -> dict[str, Any]:
    """The body's object; of duplicate keys the last counts. BadBodyError says what it is instead."""
    start = len(spans.BOM) if body.startswith(spans.BOM) else 0
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and spans.deeper_than(body, MAX_DEPTH):
        raise BadBodyError(f"nested deeper than {MAX_DEPTH} levels")
    value = _decoded(body[start:] if start else body, start)
    if not isinstance(value, dict):
        raise wrong("body", "object", value)
    return value


def _decoded(body: bytes, offset: int) -> Any:
    try:
        return msgspec.json.decode(body)
    except UnicodeDecodeError:
        raise _not_utf8(body, offset) from None
    except RecursionError:
        raise BadBodyError("nested too deeply") from None
    except msgspec.ValidationError:
        raise BadBodyError("a number beyond any range") from None
    except msgspec.DecodeError as error:
        repaired = spans.without_lone_surrogates(body)
        if repaired == body:
            raise BadBodyError(f"not JSON: {error}") from None
    return _decoded(repaired, offset)


def _not_utf8(body: bytes, offset: int) -> BadBodyError:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return BadBodyError(f"not UTF-8 at byte {error.start + offset}")
    return BadBodyError("not UTF-8")


def wrong(path: str, expected: str, found: object) -> BadBodyError:
    """The error for a value of the wrong type; it names types and never the value."""
    return BadBodyError(f"{path}: expected {expected}, found {_NAMES.get(type(found), 'null')}")


def string(fields: Fields, name: str, path: str = "") -> str:
    """The string at *name*; "" when it is absent or null."""
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise wrong(path + name, "string", value)
    return value


def flag(fields: Fields, name: str, path: str = "") -> bool | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong(path + name, "boolean", value)
    return value


def number(fields: Fields, name: str, path: str = "") -> float | int | None:
    value = fields.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise wrong(path + name, "number", value)
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
        raise wrong(path + name, "list", value)
    return value


def section(fields: Fields, name: str, path: str = "") -> dict[str, Any]:
    """The object at *name*; empty when it is absent or null."""
    value = fields.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong(path + name, "object", value)
    return value
