"""The environment's changes to the configuration tree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from memory_extproc.settings.faults import Place
from memory_extproc.settings.root import Settings
from memory_extproc.settings.shape import allows_none, child, has_parts

# Two underscores at the end: a Kubernetes Service of our name sets MEMORY_EXTPROC_PORT and its like.
PREFIX = "MEMORY_EXTPROC__"


def lay_over(tree: dict[str, Any], environ: Mapping[str, str]) -> tuple[list[str], dict[Place, str]]:
    """Puts the environment's values into *tree*. Returns the faults met, and which variable set which place."""
    faults: list[str] = []
    sources: dict[Place, str] = {}
    named = {name: _place(name) for name in environ if name.upper().startswith(PREFIX)}
    # In order of place, so that a whole list comes before its entries and entry 2 before entry 10.
    for name, place in sorted(named.items(), key=lambda item: [(isinstance(key, str), key) for key in item[1]]):
        try:
            _put(tree, place, _value(_kind_at(place), environ[name]))
        except ValueError as error:
            faults.append(f"{name}: {error}")
        else:
            sources[place] = name
    return faults, sources


def _place(name: str) -> Place:
    keys = name[len(PREFIX) :].lower().split("__")
    return tuple(int(key) if key.isascii() and key.isdecimal() else key for key in keys)


def _kind_at(place: Place) -> Any:
    kind: Any = Settings
    for key in place:
        kind = child(kind, key)
    return kind


def _value(kind: Any, text: str) -> Any:
    """A string for pydantic to parse, or the JSON of what has parts. Raises ValueError."""
    if kind is None:
        return text
    if allows_none(kind) and text == "null":
        return None
    if not has_parts(kind):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("expected JSON, as for every list and mapping") from error


def _put(tree: dict[str, Any], place: Place, value: Any) -> None:
    node: Any = tree
    for key, following in pairwise(place):
        empty: Any = [] if isinstance(following, int) else {}
        node = _entered(node, key, empty)
    last = place[-1]
    if isinstance(node, list):
        _entered(node, last, None)
        node[int(last)] = value
    else:
        node[last] = value


def _entered(node: Any, key: str | int, empty: Any) -> Any:
    """What stands at *key*, made if it is not there. Raises ValueError where it cannot be."""
    if isinstance(node, list):
        if not isinstance(key, int) or key > len(node):
            raise ValueError(f"the list has {len(node)} entries, so {key} cannot be the next")
        if key == len(node):
            node.append(empty)
        return node[key]
    if node.get(key) is None:
        node[key] = empty
    held = node[key]
    if not isinstance(held, dict | list):
        raise ValueError(f"{key} has a value, so nothing can stand within it")  # noqa: TRY004 - a fault, not a bug
    return held
