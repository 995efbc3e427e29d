"""One memory as a page of Markdown: what is known about it as YAML front matter, its words below.

The front matter is written by ourselves, each value as JSON, which is YAML too: a YAML library's choice of quotes
and line breaks is not the same everywhere, and the same memory must be the same bytes.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

import msgspec
import yaml

from memory_extproc.model import MemoryType
from memory_extproc.portability.record import COUNTED, Record, RefusedError, is_id, read_record

FOLDERS = {
    MemoryType.SEMANTIC: "facts",
    MemoryType.PROCEDURAL: "facts",
    MemoryType.EPISODIC: "turns",
    MemoryType.REFLECTIVE: "summaries",
}
SUFFIX = ".md"
PAGE_BYTES = 1024 * 1024
_FENCE = b"---\n"
# Counting what was recalled would change every page with every question.
_NOT_WRITTEN = frozenset({"content", "access_count"})
# What JSON may hold and YAML may not, or would take for the end of a line.
_ESCAPED = re.compile("[\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
# The one in C where it is there: ten thousand pages take seconds less.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """Reads what JSON writes: YAML 1.1 takes 1e+16 for a word."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"-?[0-9]+(?:\.[0-9]+)?[eE][-+]?[0-9]+"), list("-0123456789")
)


def place_of(record: Record) -> PurePosixPath:
    """Where its page stands, relative to the export's folder. It depends on id and type alone, so that a memory
    that changes is a changed file. A colon, which some file systems refuse, is written as %3A."""
    return PurePosixPath(FOLDERS[record.type]) / (record.id.replace(":", "%3A") + SUFFIX)


def id_at(place: PurePosixPath) -> str:
    """The id of the memory whose page stands at *place*; empty for a page that is none of ours."""
    name = place.name.removesuffix(SUFFIX).replace("%3A", ":")
    ours = len(place.parts) == 2 and place.parts[0] in FOLDERS.values() and place.suffix == SUFFIX  # noqa: PLR2004
    return name if ours and is_id(name) else ""


def page_of(record: Record) -> bytes:
    shown = []
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name == "metadata":
            value = {key: one for key, one in value.items() if key != COUNTED}
        if name not in _NOT_WRITTEN and (name in _ALWAYS or value != _DEFAULTS.get(name)):
            shown.append(f"{name}: {_scalar(value)}\n")
    text = f"---\n{''.join(shown)}---\n{record.content}\n"
    return text.encode("utf-8", "replace")


def read_page(page: bytes) -> Record:
    """The memory on *page*. RefusedError says what is wrong with it, for whoever wrote it."""
    if len(page) > PAGE_BYTES:
        raise RefusedError(f"longer than {PAGE_BYTES} bytes")
    front, content = _parted(page.removeprefix(b"\xef\xbb\xbf"))
    try:
        plain = yaml.load(front, Loader=_Loader)  # noqa: S506 - a safe loader, in C or not
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RefusedError(f"front matter: {_where(error)}") from None
    if not isinstance(plain, dict) or not all(isinstance(key, str) for key in plain):
        raise RefusedError("front matter: expected `name: value` lines")
    if not _a_tree(plain, set()):
        raise RefusedError("front matter: a value may stand in one place only")
    if "content" in plain:
        raise RefusedError("content: the words stand below the front matter")
    return read_record({**plain, "content": content})


def _parted(page: bytes) -> tuple[str, str]:
    try:
        text = page.decode()
    except UnicodeDecodeError:
        raise RefusedError("no UTF-8") from None
    # Only between the fences: the content keeps the line ends it has.
    opening = re.match(r"---[ \t]*\r?\n", text)
    closing = re.compile(r"^---[ \t]*(?:\r?\n|\Z)", re.MULTILINE).search(text, opening.end()) if opening else None
    if opening is None or closing is None:
        raise RefusedError("front matter: expected a line of --- before and after it")
    # The last line end is the page's, not the memory's; which one, the fence says.
    line_end = "\r\n" if opening[0].endswith("\r\n") else "\n"
    return text[opening.end() : closing.start()], text[closing.end() :].removesuffix(line_end)


def _a_tree(value: Any, seen: set[int]) -> bool:
    """Whether no list or mapping is used twice: with YAML's aliases a short page can stand for endless ones."""
    if not isinstance(value, dict | list):
        return True
    if id(value) in seen:
        return False
    seen.add(id(value))
    return all(_a_tree(each, seen) for each in (value.values() if isinstance(value, dict) else value))


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"no YAML, at line {mark.line + 2}" if mark is not None else "no YAML"


def _scalar(value: Any) -> str:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, datetime):
        return msgspec.to_builtins(value)  # type: ignore[no-any-return]
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(", ", ": "))
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_ALWAYS = frozenset({"id", "type", "state"})
_DEFAULTS = {
    field.name: field.default if field.default is not msgspec.NODEFAULT else {}
    for field in msgspec.structs.fields(Record)
}
