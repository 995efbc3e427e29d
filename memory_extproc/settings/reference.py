"""The configuration's reference: every key with its type, unit, default and effect, made from the fields."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, PlainSerializer, SecretStr
from pydantic.fields import FieldInfo

from memory_extproc.settings.example import default_of, range_of, written
from memory_extproc.settings.reloading import reloadable
from memory_extproc.settings.root import Settings
from memory_extproc.settings.shape import alternatives, fields_of, is_section

_HEAD = """\
# Configuration reference

Every key of `config.yaml`, made from the program by `memory-extproc config reference`; the suite holds this page
to it. [Configuration](../configuration.md) explains what belongs together.

Durations are written `150ms`, `60s`, `5m`, `2h`, `60d`, sizes `512B`, `8KiB`, `4MiB`. A key may be left out. The
environment overrides a file: `MEMORY_EXTPROC__RECALL__DEADLINE=200ms`.

*Reload* says whether a change takes effect while the sidecar runs (**yes**, for what begins from then on) or with
the next start (restart).
"""
_UNITS = {"_seconds": "seconds", "_tokens": "tokens", "_budget": "tokens", "_bytes": "bytes"}
_COUNTED = {
    "inject.window": "tokens",
    "inject.margin": "tokens",
    "percent": "percent",
    "api.rate.per_second": "calls per second",
}


def reference() -> str:
    """The page in Markdown."""
    return "\n".join([_HEAD, *_tables(Settings), ""])


def keys_of(section: type[BaseModel], place: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key that holds a value, by its whole name; `[]` stands for any entry of a list."""
    for key, field in fields_of(section).items():
        at = f"{place}.{key}" if place else key
        inner, listed = _inner(field.annotation)
        if inner is None or listed:
            yield at, field
        if inner is not None:
            yield from keys_of(inner, f"{at}[]" if listed else at)


def _tables(section: type[BaseModel]) -> Iterator[str]:
    alone = [(key, field) for key, field in keys_of(section) if _top(key) == key and not _is_list(field)]
    yield from _table("Top level", "keys that stand in no section", alone)
    for name, field in fields_of(section).items():
        inner, _ = _inner(field.annotation)
        if inner is not None:
            rows = [(key, each) for key, each in keys_of(section) if _top(key) == name]
            yield from _table(f"`{name}`", field.description or "", rows)


def _table(title: str, about: str, rows: list[tuple[str, FieldInfo]]) -> Iterator[str]:
    yield f"\n## {title}\n"
    yield f"{about[:1].upper()}{about[1:]}.\n"
    yield "| key | type | unit | default | effect | reload |"
    yield "|---|---|---|---|---|---|"
    for key, field in rows:
        cells = (
            f"`{key}`",
            _type(field),
            _unit(key, field),
            _default(field),
            _cell(_effect(field)),
            "**yes**" if reloadable(key) else "restart",
        )
        yield f"| {' | '.join(cells)} |"


def _top(key: str) -> str:
    return key.partition(".")[0].removesuffix("[]")


def _inner(kind: Any) -> tuple[type[BaseModel] | None, bool]:
    """The section that stands at a key, and whether it is the entry of a list."""
    for each in alternatives(kind):
        if is_section(each):
            return each, False
        if get_origin(each) is tuple and is_section(get_args(each)[0]):
            return get_args(each)[0], True
    return None, False


def _is_list(field: FieldInfo) -> bool:
    return _inner(field.annotation)[1]


def _type(field: FieldInfo) -> str:
    if _serialised(field) is not None:
        return "duration" if _holds(field, timedelta) else "size"
    inner, listed = _inner(field.annotation)
    if inner is not None and listed:
        return "list of entries"
    names = dict.fromkeys(_named(each) for each in alternatives(field.annotation))
    return " or ".join(names)


_NAMES: Mapping[Any, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    SecretStr: "secret",
    timedelta: "duration",
    type(None): "null",
}


def _named(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal or (isinstance(kind, type) and issubclass(kind, StrEnum)):
        words = get_args(kind) or tuple(kind)
        return " or ".join(
            f"`{str(word).lower() if isinstance(word, bool) else word or '(empty)'}`" for word in words
        )
    if origin in (tuple, frozenset, list):
        return f"list of {_plural(get_args(kind)[0])}"
    if origin is dict:
        return "mapping"
    return _NAMES[kind]


def _plural(kind: Any) -> str:
    if get_origin(kind) in (Annotated, Union, types.UnionType):
        kind = next(alternatives(kind))
    return _named(kind)


def _holds(field: FieldInfo, kind: type) -> bool:
    return any(each is kind for each in alternatives(field.annotation))


def _serialised(field: FieldInfo) -> PlainSerializer | None:
    return next((each for each in field.metadata if isinstance(each, PlainSerializer)), None)


def _unit(key: str, field: FieldInfo) -> str:
    if _serialised(field) is not None or _holds(field, timedelta):
        return "written with it"
    if key in _COUNTED:
        return _COUNTED[key]
    numbers = any(each in (int, float) for each in alternatives(field.annotation))
    name = key.rpartition(".")[2]
    named = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "") if numbers else ""
    return named or ("tokens" if "model_tokens." in key else "")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = default_of(field)
    return f"`{_cell(written(value))}`" if value != "" else "empty"


def _effect(field: FieldInfo) -> str:
    bounds = range_of(field)
    return f"{field.description} ({bounds})" if bounds else f"{field.description}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
