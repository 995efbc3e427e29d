"""The names that others rely on: operators in dashboards, alerts, configuration and commands; clients in headers
and calls; later versions in what an earlier one stored.

`python -m tests.support.frozen_names tests/frozen/VERSION` writes the names that the present version has, before
the next one begins. A name may be added later; one that is gone or changed breaks somebody. Python's own names
(modules, classes, functions) are free, so nothing here depends on them: a stored record is known by the names of
its fields, an enum by its values.
"""

from __future__ import annotations

import ast
import json
import re
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import typer.main
from google.protobuf.descriptor import Descriptor, FileDescriptor
from prometheus_client import CollectorRegistry
from pydantic_core import PydanticUndefined, to_jsonable_python

from memory_extproc.api.gen import memory_pb2
from memory_extproc.cli.root import app
from memory_extproc.extproc.gen import ext_proc_pb2
from memory_extproc.model import Provenance
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings import Settings
from memory_extproc.settings.docs import keys_of
from memory_extproc.settings.loading import PREFIX
from memory_extproc.store.milvus.rows import SCALARS, VECTOR, WORDS
from scripts.log_events import events
from tests.support.frozen import FILES, in_files

PACKAGE = Path(__file__).parents[2] / "memory_extproc"
SHOWN = "names.json"
# Values that are written somewhere whole: record kinds, keys of metadata, names in Redis, of collections, of files.
_WORD = re.compile(r"[a-z][a-z0-9_:.-]{1,60}")
_HEADER = re.compile(r"(x-[a-z0-9-]+|traceparent)")
_VARIABLE = re.compile(r"MEMORY_EXTPROC_[A-Z_]+")
_PATH = re.compile(r"/(v1|metrics|healthz|readyz|openapi)[a-z/._]*")
# What Coordination keeps, by kind of record (a name and the key of an owner follow).
RECORD_KINDS = (
    "api", "compressed", "forget_plan", "given", "given_response", "head", "incognito", "opening", "response",
    "retention", "slot", "tail", "topics",
)  # fmt: skip
# What a memory's metadata can say beside what people write there.
METADATA_KEYS = tuple(sorted(set(Provenance.__struct_fields__) - {"extra"}))
# What a line of the audit log says.
AUDIT_KEYS = (
    "seq", "time", "who", "means", "roles", "method", "whose", "scope", "count", "outcome", "reason",
    "request_id", "mac",
)  # fmt: skip


def sources() -> Iterator[ast.Module]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent.name != "gen":
            yield ast.parse(path.read_text(encoding="utf-8"))


def metrics() -> dict[str, list[str]]:
    """Labels by name, the kind of metric first."""
    made = Metrics(CollectorRegistry(), "0")
    found = {}
    for one in vars(made).values():
        if hasattr(one, "_labelnames"):
            found[one._name] = [one._type, *one._labelnames]
    found["memory_extproc_build"] = ["info", "version"]
    return found


def settings() -> dict[str, Any]:
    """Defaults by key."""
    found: dict[str, Any] = {}
    for key, field in keys_of(Settings):
        default = field.get_default(call_default_factory=True)
        found[key] = "(none)" if default is PydanticUndefined else to_jsonable_python(default, fallback=str)
    return found


def literals() -> set[str]:
    """Every short text of the sources; pieces of f-strings too."""
    return {
        node.value
        for tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def words() -> set[str]:
    """Texts and names of fields: as what the sources can call what they store."""
    found = {text for text in literals() if _WORD.fullmatch(text)}
    for tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
    return found


def enums() -> list[list[Any]]:
    """The values of each enum that has any of its own."""
    found = []
    for tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Enum") for base in node.bases):
                values: list[Any] = [
                    one.value.value
                    for one in node.body
                    if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant)
                ]
                if values:
                    found.append(sorted(values, key=str))
    return sorted(found, key=str)


def records() -> dict[str, dict[str, Any]]:
    """Fields by class, and whether they are known by their places: of all that could be stored or sent."""
    found: dict[str, dict[str, Any]] = {}
    for tree in sources():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            fields = [
                one.target.id
                for one in node.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            ]
            if fields and (_is_struct(node) or _is_dataclass(node)):
                name = node.name
                while name in found:
                    name += "'"
                places = any(word.arg == "array_like" for word in node.keywords)
                found[name] = {"fields": fields, "by_place": places}
    return found


def _is_struct(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base) == "msgspec.Struct" for base in node.bases)


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any(ast.unparse(one).startswith("dataclass") for one in node.decorator_list)


STORED = frozenset(
    {
        # the journal, the ledger, consent, records, receipts
        "Turn", "Origin", "Owner", "Caller", "ConsentChange", "Step", "Job", "ScopeTombstone", "_Kept", "_Kept'",
        "_Written",
        "_Spot", "_Head", "_Slot", "_Opening", "_Counted", "_Tail", "_Response",
        "SaidTurn", "Thread", "Finished", "OpenSessions",
        # what replicas, filters and versions hand each other
        "HandoverMetadata", "MemoryRecord", "CondensedState", "ReplayedTurn", "_Behind", "RecallDecision",
        "InjectedBlock", "Notes",
        # files
        "Head", "_Foot", "FileRecord", "Manifest", "KeyEntry", "_File",
        "Feature", "Worth", "Relevance", "Ranker", "Weights",
        "MarkedTurn", "MarkedSession", "_Memory", "_Query",
    }
)  # fmt: skip


def messages(file: FileDescriptor) -> dict[str, Any]:
    """Numbers by names: of fields, of enums' values; and the calls of services."""
    found: dict[str, Any] = {}

    def take(message: Descriptor) -> None:
        found[message.full_name] = {field.name: field.number for field in message.fields}
        for enum in message.enum_types:
            found[enum.full_name] = {value.name: value.number for value in enum.values}
        for inner in message.nested_types:
            take(inner)

    for message in file.message_types_by_name.values():
        take(message)
    for enum in file.enum_types_by_name.values():
        found[enum.full_name] = {value.name: value.number for value in enum.values}
    for service in file.services_by_name.values():
        found[service.full_name] = {
            method.name: f"{method.input_type.full_name} -> {method.output_type.full_name}"
            for method in service.methods
        }
    return found


def messages_of_all() -> dict[str, Any]:
    return {**messages(ext_proc_pb2.DESCRIPTOR), **messages(memory_pb2.DESCRIPTOR)}


def row_fields() -> list[str]:
    return [*SCALARS, VECTOR, WORDS]


async def tables() -> dict[str, list[str]]:
    """Columns by file and table."""
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        async with in_files(Path(scratch)) as kept:
            await kept.fill()
        for name in FILES:
            with closing(sqlite3.connect(Path(scratch, name))) as file:
                for (table,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                    columns = file.execute(f"PRAGMA table_info({table})").fetchall()
                    found[f"{name}:{table}"] = [column for _, column, *_ in columns]
    return found


def commands() -> dict[str, list[str]]:
    """Options and arguments by command."""
    found: dict[str, list[str]] = {}

    def take(command: Any, name: str) -> None:
        found[name] = sorted(
            each
            for parameter in command.params
            for each in (parameter.opts + parameter.secondary_opts if parameter.opts else [parameter.name])
        )
        for inner, one in getattr(command, "commands", {}).items():
            take(one, f"{name} {inner}")

    take(typer.main.get_command(app), "memory-extproc")
    return found


async def names() -> Mapping[str, Any]:
    """Everything that is frozen, as the present sources have it."""
    every = literals()
    return {
        "metrics": metrics(),
        "log_events": {each.name: list(each.fields) for each in events()},
        "settings": settings(),
        "environment": sorted({PREFIX, *(text for text in every if _VARIABLE.fullmatch(text))}),
        "headers": sorted(text for text in every if _HEADER.fullmatch(text)),
        "paths": sorted(text for text in every if _PATH.fullmatch(text)),
        "commands": commands(),
        "enums": enums(),
        "messages": messages_of_all(),
        "row_fields": row_fields(),
        "tables": await tables(),
        "records": {name: fields for name, fields in records().items() if name in STORED},
        "record_kinds": list(RECORD_KINDS),
        "metadata_keys": list(METADATA_KEYS),
        "audit_keys": list(AUDIT_KEYS),
    }


async def _write(directory: Path) -> None:
    path = directory / SHOWN
    if path.exists():
        raise SystemExit(f"{path} is frozen: it is never written again")
    path.write_text(json.dumps(await names(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    import asyncio

    asyncio.run(_write(Path(sys.argv[1])))
