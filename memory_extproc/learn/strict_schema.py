"""JSON Schemas in the form that structured output takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

# What several endpoints refuse in a strict schema; our own parser holds answers to it all the same.
_BOUNDS = frozenset({"default", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "title"})


def strict_schema(answer: type[msgspec.Struct]) -> Mapping[str, Any]:
    """The schema of *answer* as OpenAI's strict mode wants it: an object at the root, every property required, no
    other properties, no bounds (platform.openai.com, "Structured Outputs", supported schemas)."""
    (root,), components = msgspec.json.schema_components([answer], ref_template="#/$defs/{name}")
    name = str(root["$ref"]).rpartition("/")[2]
    definitions = {key: _strict(schema) for key, schema in components.items()}
    return {**definitions.pop(name), "$defs": definitions} if definitions else definitions[name]


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: {name: _strict(one) for name, one in value.items()} if key == "properties" else _strict(value)
        for key, value in schema.items()
        if key not in _BOUNDS
    }
    if found.get("type") == "object":
        found |= {"required": list(found.get("properties", {})), "additionalProperties": False}
    return found
