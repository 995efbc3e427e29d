"""The configuration written out: config.yaml with every key, its meaning and its default; and what is in effect."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, get_args, get_origin

import yaml
from pydantic import BaseModel, PlainSerializer, SecretStr, TypeAdapter
from pydantic.fields import FieldInfo

from memory_extproc.settings.root import Settings
from memory_extproc.settings.shape import alternatives, fields_of, is_section
from memory_extproc.settings.values import write_size

_WIDTH = 116
_HEAD = """\
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
    return "\n".join([_HEAD, *_section(Settings, Settings().model_dump(mode="json", by_alias=True), ""), ""])


def shown(settings: Settings) -> dict[str, Any]:
    """What is in effect, as plain values; secrets are stars."""
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
    yield f"{indent}{key}: {written(value)}"
    entry = _entry(field)
    if entry is not None:
        yield f"{indent}# one entry:"
        for line in _entry_lines(entry):
            yield f"{indent}#   {line}"


def _entry(field: FieldInfo) -> type[BaseModel] | None:
    """The section that an entry of this list is, if it is one."""
    for each in alternatives(field.annotation):
        if get_origin(each) is tuple and is_section(get_args(each)[0]):
            kind: type[BaseModel] = get_args(each)[0]
            return kind
    return None


def _entry_lines(entry: type[BaseModel]) -> Iterator[str]:
    values = {key: _default(field) for key, field in fields_of(entry).items()}
    for number, line in enumerate(_section(entry, values, "  ")):
        yield f"- {line[2:]}" if number == 0 else line


def _default(field: FieldInfo) -> Any:
    inner = next((each for each in alternatives(field.annotation) if is_section(each)), None)
    if inner is not None:
        return {key: _default(each) for key, each in fields_of(inner).items()}
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
    """What the key means, then the words it may hold and its bounds."""
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
    """The bounds of what a number may be; empty where there are none."""
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


def written(value: Any) -> str:
    """*value* on one line of YAML."""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    if value is None:
        return "null"
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("\n...\n").strip()
