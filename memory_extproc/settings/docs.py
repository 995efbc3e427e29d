"""The configuration's reference: every key with its type, unit, default and effect, made from the fields."""

from __future__ import annotations

import json
import textwrap
import types
from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, PlainSerializer, SecretStr, TypeAdapter
from pydantic.fields import FieldInfo

from memory_extproc.settings.loading import reloadable
from memory_extproc.settings.root import Settings
from memory_extproc.settings.types import alternatives, fields_of, is_section, write_size

_HEAD = """\
# Configuration reference

Every key of `config.yaml`, made from the program by `memory-extproc config reference`; the suite holds this page
to it. [Configuration](../configuration.md) explains what belongs together.

Durations are written `150ms`, `60s`, `5m`, `2h`, `60d`, sizes `512B`, `8KiB`, `4MiB`. A key may be left out. The
environment overrides a file: `MEMORY_EXTPROC__RECALL__DEADLINE=200ms`.

The default stands below each key. *Reload* says whether a change takes effect while the sidecar runs (yes, for
requests that begin after it) or with the next start (restart).
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
    yield "| key and default | type | reload | effect |"
    yield "|---|---|---|---|"
    for key, field in rows:
        unit = _unit(key, field)
        cells = (
            f"`{key}`<br>{_default(field)}",
            f"{_type(field)}, {unit}" if unit else _type(field),
            "yes" if reloadable(key) else "restart",
            _cell(_effect(field)),
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
    if _find_serializer(field) is not None:
        return "duration" if _holds(field, timedelta) else "size"
    inner, listed = _inner(field.annotation)
    if inner is not None and listed:
        return "list of entries"
    names = dict.fromkeys(_name_type(each) for each in alternatives(field.annotation))
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


def _name_type(kind: Any) -> str:
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
    return _name_type(kind)


def _holds(field: FieldInfo, kind: type) -> bool:
    return any(each is kind for each in alternatives(field.annotation))


def _find_serializer(field: FieldInfo) -> PlainSerializer | None:
    return next((each for each in field.metadata if isinstance(each, PlainSerializer)), None)


def _unit(key: str, field: FieldInfo) -> str:
    if _find_serializer(field) is not None or _holds(field, timedelta):
        return ""
    if key in _COUNTED:
        return _COUNTED[key]
    numbers = any(each in (int, float) for each in alternatives(field.annotation))
    name = key.rpartition(".")[2]
    named = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "") if numbers else ""
    return named or ("tokens" if "model_tokens." in key else "")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = default_of(field)
    return f"default `{_cell(to_yaml(value))}`" if value != "" else "empty by default"


def _effect(field: FieldInfo) -> str:
    bounds = range_of(field)
    return f"{field.description} ({bounds})" if bounds else f"{field.description}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# Write the configuration: config.yaml with every key, its meaning and its default; and the effective settings.

_WIDTH = 116
_EXAMPLE = """\
# The whole configuration of memory-extproc: every key with its meaning and its default.
#
# Durations are written 150ms, 60s, 5m, 2h, 60d; sizes 512B, 8KiB, 4MiB. A key may be left out.
# The environment overrides: MEMORY_EXTPROC__RECALL__DEADLINE=200ms; lists and mappings there are JSON, and an
# entry of a list goes by its number: MEMORY_EXTPROC__EXTERNAL_MODELS__0__LLM_ENDPOINT__ACCESS_KEY=...
# `memory-extproc config check` names every fault at once; `config show` prints what is in effect.
# This file is written by `memory-extproc config example`.
"""


def example() -> str:
    """config.yaml: it loads, and gives exactly the defaults. Entries of lists stand in it as comments."""
    return "\n".join([_EXAMPLE, *_section(Settings, Settings().model_dump(mode="json", by_alias=True), ""), ""])


def dump_effective(settings: Settings) -> dict[str, Any]:
    """The effective settings as plain values; secrets are masked by stars."""
    effective: dict[str, Any] = settings.model_dump(mode="json", by_alias=True)
    return effective


def _section(section: type[BaseModel], values: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, field in fields_of(section).items():
        if not indent:
            yield ""
        yield from _field(key, field, values.get(key), indent)


def _field(key: str, field: FieldInfo, value: Any, indent: str) -> Iterator[str]:
    yield from _comment(_meaning(field), indent)
    inner = next((each for each in alternatives(field.annotation) if is_section(each)), None)
    if inner is not None:
        yield f"{indent}{key}:"
        yield from _section(inner, value if isinstance(value, Mapping) else {}, indent + "  ")
        return
    yield f"{indent}{key}: {to_yaml(value)}"
    entry = _entry(field)
    if entry is not None:
        yield f"{indent}# one entry:"
        for line in _entry_lines(entry):
            yield f"{indent}#   {line}"


def _entry(field: FieldInfo) -> type[BaseModel] | None:
    """The section class of this list's entries, if any."""
    for each in alternatives(field.annotation):
        if get_origin(each) is tuple and is_section(get_args(each)[0]):
            kind: type[BaseModel] = get_args(each)[0]
            return kind
    return None


def _entry_lines(entry: type[BaseModel]) -> Iterator[str]:
    values = {key: _default_value(field) for key, field in fields_of(entry).items()}
    for number, line in enumerate(_section(entry, values, "  ")):
        yield f"- {line[2:]}" if number == 0 else line


def _default_value(field: FieldInfo) -> Any:
    inner = next((each for each in alternatives(field.annotation) if is_section(each)), None)
    if inner is not None:
        return {key: _default_value(each) for key, each in fields_of(inner).items()}
    if field.examples:
        return field.examples[0]
    return None if field.is_required() else _plain(field.get_default(call_default_factory=True))


def _plain(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, StrEnum):
        return value.value
    return list(value) if isinstance(value, tuple | frozenset) else value


def _meaning(field: FieldInfo) -> str:
    """The description of a key, its allowed words and its bounds."""
    words = [str(word) for each in alternatives(field.annotation) for word in _words(each)]
    bounds = [f"{sign} {bound}" for sign, bound in _bounds(field)]
    offered = " | ".join(words) if len(words) > 1 else ""
    range_ = ", ".join(bounds)
    needed = "needed" if field.is_required() else ""
    extra = "; ".join(part for part in (offered, range_, needed) if part)
    return f"{field.description} ({extra})" if extra else f"{field.description}"


def _words(kind: Any) -> tuple[Any, ...]:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return tuple(kind)
    return tuple(arg for arg in get_args(kind) if isinstance(arg, str))


def range_of(field: FieldInfo) -> str:
    """The bounds of a number; empty if there are none."""
    return ", ".join(f"{sign} {bound}" for sign, bound in _bounds(field))


def default_of(field: FieldInfo) -> Any:
    """As it is written in YAML."""
    value = field.get_default(call_default_factory=True)
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    kind: Any = field.annotation
    for constraint in field.metadata:
        kind = Annotated[kind, constraint]
    return TypeAdapter(kind).dump_python(value, mode="json")


def _bounds(field: FieldInfo) -> Iterator[tuple[str, str]]:
    if not any(each in (int, float) for each in alternatives(field.annotation)):
        return
    size = any(isinstance(each, PlainSerializer) for each in field.metadata)
    for constraint in field.metadata:
        for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
            bound = getattr(constraint, name, None)
            if bound is not None:
                yield sign, write_size(bound) if size else str(bound)


def _comment(text: str, indent: str) -> Iterator[str]:
    for line in textwrap.wrap(text, _WIDTH - len(indent) - 2, break_long_words=False, break_on_hyphens=False):
        yield f"{indent}# {line}"


def to_yaml(value: Any) -> str:
    """*value* as a line of YAML."""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    if value is None:
        return "null"
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("\n...\n").strip()
