"""From a YAML file and the environment to `Settings`, or to every fault at once."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import SecretStr, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from memory_extproc.errors import ConfigurationError
from memory_extproc.settings.root import Settings, find_broken_rules
from memory_extproc.settings.semantic_router import accept_router_keys
from memory_extproc.settings.types import allows_none, alternatives, child, fields_of, has_parts, is_section

DATA_DIR_LOCK = "lock"  # the file in a data directory that the process which uses it holds


def load(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """The configuration in the file at *path*, changed by `MEMORY_EXTPROC__SECTION__KEY` in *environ*.

    Without a path: the defaults and the environment. Lists and mappings in the environment are JSON; an entry
    of a list is reached by its number (`MEMORY_EXTPROC__EXTERNAL_MODELS__0__LLM_MODEL_NAME`). Raises
    ConfigurationError with every fault found, each with its path; no fault repeats the value of a secret."""
    tree, notices = accept_router_keys(read(path) if path is not None else {}, Settings.model_fields)
    faults, sources = lay_over(tree, environ)
    sections, more = _sections(tree, sources)
    faults += [*more, *find_broken_rules(sections)]
    if faults:
        raise ConfigurationError(faults)
    sections["data_dir"] = sections["data_dir"] or _usual_data_dir(environ)
    return Settings(**sections).with_router_notices(notices)


def find_faults(tree: Mapping[str, Any]) -> list[str]:
    """The faults that `load` would find in a file with *tree*."""
    sections, faults = _sections(tree, {})
    return [*faults, *find_broken_rules(sections)]


def _usual_data_dir(environ: Mapping[str, str]) -> str:
    """./data if a sidecar made it, else a directory by the XDG rule.

    Any project may have a directory named data, so the sidecar's lock file decides. XDG says to ignore relative
    paths."""
    former = Path("data")
    if (former / DATA_DIR_LOCK).is_file():
        return f"./{former}"
    named = environ.get("XDG_DATA_HOME", "")
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - Path.home() may raise
    return str((Path(named) if Path(named).is_absolute() else Path(home, ".local", "share")) / "memory-extproc")


def _sections(tree: Mapping[str, Any], sources: Mapping[Place, str]) -> tuple[dict[str, Any], list[str]]:
    """The valid sections, and the faults of the others."""
    sound: dict[str, Any] = {}
    faults: list[str] = []
    for name, field in Settings.model_fields.items():
        # A section whose keys are all commented out is there, and empty.
        if name not in tree or (tree[name] is None and is_section(field.annotation)):
            sound[name] = field.get_default(call_default_factory=True)
            continue
        try:
            sound[name] = _adapter(field).validate_python(tree[name])
        except ValidationError as error:
            faults += faults_of(error, (name,), Settings, sources)
    faults += [unknown_key((name,), Settings, sources) for name in tree if name not in Settings.model_fields]
    return sound, faults


def _adapter(field: FieldInfo) -> TypeAdapter[Any]:
    kind: Any = field.annotation
    for constraint in field.metadata:
        kind = Annotated[kind, constraint]
    return TypeAdapter(kind)


# Reading the configuration's file.

_BOOL = "tag:yaml.org,2002:bool"


class _Loader(yaml.SafeLoader):
    """A SafeLoader in which `off` and `no` are words, as YAML 1.2 has it, and no key is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen: set[str] = set()
        for key, _ in node.value:
            name = key.value
            if not isinstance(name, str) or name in seen:
                problem = f"{name} is given twice" if isinstance(name, str) else "a key must be a word"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def read(path: Path) -> dict[str, Any]:
    """The file's own tree; empty for an empty file. Raises ConfigurationError when there is no such file, it
    is no YAML, or it is no mapping of sections."""
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise ConfigurationError([f"{path}: cannot be read: {error.strerror}"]) from error
    except yaml.MarkedYAMLError as error:
        while_doing = f" ({error.context})" if error.context else ""
        raise ConfigurationError([f"{path}{_line(error)}: {error.problem}{while_doing}"]) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigurationError([f"{path}: is not readable as YAML"]) from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigurationError([f"{path}: expected sections with keys"])
    return {str(key): value for key, value in tree.items()}


def _line(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark
    return f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""


# The environment's changes to the configuration tree.

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
            _put_value(tree, place, _value(_kind_at(place), environ[name]))
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
    """A string for pydantic to parse, or parsed JSON for a composite type. Raises ValueError."""
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


def _put_value(tree: dict[str, Any], place: Place, value: Any) -> None:
    node: Any = tree
    for key, following in pairwise(place):
        empty: Any = [] if isinstance(following, int) else {}
        node = _enter_key(node, key, empty)
    last = place[-1]
    if isinstance(node, list):
        _enter_key(node, last, None)
        node[int(last)] = value
    else:
        node[last] = value


def _enter_key(node: Any, key: str | int, empty: Any) -> Any:
    """The value at *key*, created if missing. Raises ValueError if that is impossible."""
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


# Describe faults of a configuration: the path, the fault, and its source.

Place = tuple[str | int, ...]

# Kinds of fault whose value is a number or a fixed word, and therefore safe to print.
_SHOWN = ("greater_than", "less_than", "literal_error", "enum", "int_", "float_", "bool_", "finite_number")
_LONGEST_SHOWN = 40


def path(place: Place) -> str:
    """`external_models[0].llm_endpoint.port`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).removeprefix(".")


def faults_of(error: ValidationError, under: Place, root: Any, sources: Mapping[Place, str]) -> list[str]:
    """A line for each faulty place, in the order of the configuration."""
    found: dict[Place, list[str]] = {}
    for each in error.errors(include_url=False):
        place, kind = _locate_fault((*under, *each["loc"]), root)
        # Entries that are at fault do not count, so pydantic also finds their list too short.
        if each["type"] == "too_short" and any(known[: len(place)] == place for known in found):
            continue
        if each["type"] == "extra_forbidden":
            found.setdefault(place, []).append(_unknown(place, root))
        else:
            found.setdefault(place, []).append(_describe_fault(each, kind))
    return [
        f"{path(place)}: {' or '.join(dict.fromkeys(messages))}{_source(place, sources)}"
        for place, messages in found.items()
    ]


def unknown_key(place: Place, root: Any, sources: Mapping[Place, str]) -> str:
    return f"{path(place)}: {_unknown(place, root)}{_source(place, sources)}"


def _locate_fault(location: Place, root: Any) -> tuple[Place, Any]:
    """The part of pydantic's location that exists in the file, and its type; the rest names the tried member of
    a union."""
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


def _describe_fault(error: ErrorDetails, kind: Any) -> str:
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
    """Name the variable if the environment set this place or its parent."""
    for end in range(len(place), 0, -1):
        if place[:end] in sources:
            return f" (from {sources[place[:end]]})"
    return ""
