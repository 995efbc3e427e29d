"""What is wrong with a configuration, in words: the path, the fault, and where it came from."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from memory_extproc.settings.shape import alternatives, child, fields_of, is_section

Place = tuple[str | int, ...]

# Kinds of fault whose value helps to see what is meant and is a number or one of a few words.
_SHOWN = ("greater_than", "less_than", "literal_error", "enum", "int_", "float_", "bool_", "finite_number")
_LONGEST_SHOWN = 40


def path(place: Place) -> str:
    """`external_models[0].llm_endpoint.port`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).removeprefix(".")


def faults_of(error: ValidationError, under: Place, root: Any, sources: Mapping[Place, str]) -> list[str]:
    """One line for each place that is at fault, in the order of the configuration."""
    found: dict[Place, list[str]] = {}
    for each in error.errors(include_url=False):
        place, kind = _located((*under, *each["loc"]), root)
        # Entries that are at fault do not count, so pydantic also finds their list too short.
        if each["type"] == "too_short" and any(known[: len(place)] == place for known in found):
            continue
        if each["type"] == "extra_forbidden":
            found.setdefault(place, []).append(_unknown(place, root))
        else:
            found.setdefault(place, []).append(_worded(each, kind))
    return [
        f"{path(place)}: {' or '.join(dict.fromkeys(messages))}{_source(place, sources)}"
        for place, messages in found.items()
    ]


def unknown_key(place: Place, root: Any, sources: Mapping[Place, str]) -> str:
    return f"{path(place)}: {_unknown(place, root)}{_source(place, sources)}"


def _located(location: Place, root: Any) -> tuple[Place, Any]:
    """The part of pydantic's location that stands in the file, and the type there: what follows names the
    member of a union that was tried."""
    kind: Any = root
    place: Place = ()
    for key in location:
        inner = child(kind, key)
        if inner is None:
            known = any(is_section(each) for each in alternatives(kind))
            return ((*place, key) if known else place), kind
        place, kind = (*place, key), inner
    return place, kind


def _unknown(place: Place, root: Any) -> str:
    kind: Any = root
    for key in place[:-1]:
        kind = child(kind, key)
    section = next((each for each in alternatives(kind) if is_section(each)), None)
    near = difflib.get_close_matches(str(place[-1]).lower(), fields_of(section), n=1) if section else []
    return f"unknown key; did you mean {near[0]}?" if near else "unknown key"


def _worded(error: ErrorDetails, kind: Any) -> str:
    if error["type"] == "missing":
        return "is missing"
    message = error["msg"].removeprefix("Value error, ")
    message = message.removeprefix("Input ")
    message = message[:1].lower() + message[1:]
    given = error["input"]
    secret = any(each is SecretStr for each in alternatives(kind))
    shown = error["type"].startswith(_SHOWN) and isinstance(given, str | int | float) and not secret
    if shown and len(str(given)) <= _LONGEST_SHOWN:
        message += f", found {given!r}" if isinstance(given, str) else f", found {given}"
    return message


def _source(place: Place, sources: Mapping[Place, str]) -> str:
    """Names the variable when the environment set this place or what holds it."""
    for end in range(len(place), 0, -1):
        if place[:end] in sources:
            return f" (from {sources[place[:end]]})"
    return ""
