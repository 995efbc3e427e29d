"""Our own fields in the request body: parsing, and the edits that remove them."""

from __future__ import annotations

from memory_extproc.dialect import json_spans
from memory_extproc.dialect.base import BodyControls, Edit
from memory_extproc.dialect.json_spans import Fields
from memory_extproc.errors import BadBodyError
from memory_extproc.model import MemoryType

NAMES = frozenset({"memory_config", "memory_context", "auto_store"})


def read(body: Fields) -> BodyControls:
    """Parse the client's controls. BadBodyError names the path of an invalid value."""
    if NAMES.isdisjoint(body):
        return BodyControls()
    config = json_spans.section(body, "memory_config")
    context = json_spans.section(body, "memory_context")
    return BodyControls(
        enabled=json_spans.flag(config, "enabled", "memory_config."),
        types=_types(config),
        limit=_limit(config),
        threshold=_threshold(config),
        store=_store(json_spans.flag(config, "auto_store", "memory_config."), json_spans.flag(body, "auto_store")),
        project=json_spans.string(context, "project_id", "memory_context."),
        user=json_spans.string(context, "user_id", "memory_context."),
    )


def removals(body: bytes) -> tuple[Edit, ...]:
    """The edits that remove our fields, duplicates included; none if there are none or the body is no JSON object.

    Also for a body with invalid controls: no upstream knows them."""
    try:
        parsed = json_spans.parse(body)
    except BadBodyError:
        return ()
    return removals_from(body, parsed)


def removals_from(body: bytes, parsed: Fields) -> tuple[Edit, ...]:
    """As `removals`, for a parsed body; free if none of our fields is present."""
    if NAMES.isdisjoint(parsed):
        return ()
    return json_spans.removal(json_spans.members(body, json_spans.root(body)), NAMES)


def _types(config: Fields) -> frozenset[MemoryType] | None:
    if config.get("memory_types") is None:
        return None
    known = {str(kind): kind for kind in MemoryType}
    types = set[MemoryType]()
    for index, name in enumerate(json_spans.items(config, "memory_types", "memory_config.")):
        path = f"memory_config.memory_types[{index}]"
        if not isinstance(name, str):
            raise json_spans.wrong(path, "string", name)
        if name not in known:
            raise BadBodyError(f"{path}: expected one of {', '.join(known)}")
        types.add(known[name])
    return frozenset(types)


def _limit(config: Fields) -> int | None:
    limit = json_spans.whole(config, "retrieval_limit", "memory_config.")
    if limit is not None and limit < 0:
        raise BadBodyError("memory_config.retrieval_limit: expected 0 or more")
    return limit


def _threshold(config: Fields) -> float | None:
    threshold = json_spans.number(config, "similarity_threshold", "memory_config.")
    if threshold is None:
        return None
    if not 0 <= threshold <= 1:
        raise BadBodyError("memory_config.similarity_threshold: expected 0 to 1")
    return float(threshold)


def _store(*said: bool | None) -> bool | None:
    """Combine settings: any "no" wins, because clients can only narrow."""
    if False in said:
        return False
    return True if True in said else None
