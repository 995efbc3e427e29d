"""The collection's schema and properties, and the check of an existing collection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memory_extproc.errors import PermanentError
from memory_extproc.store.milvus.client import AsyncMilvusClient, CollectionSchema, DataType, Function, FunctionType
from memory_extproc.store.milvus.options import MilvusOptions
from memory_extproc.store.milvus.rows import METADATA_BYTES, NAME_BYTES, SCALARS, VECTOR, WORDS

VERSION = 1
READABLE_FROM = 1  # programs that know this version read and write collections of VERSION without loss
PARTITIONS = 64  # of a server's collection; cannot be changed later
_PREFIX = "memory_extproc."
_ID_BYTES = 64
_WORD_BYTES = 32
_INTEGERS = ("seq", "access_count", "created_at", "updated_at", "valid_from", "valid_to", "expires_at")
_WORDS = ("role", "memory_type", "source", "state")


def physical_name(options: MilvusOptions) -> str:
    return f"{options.section.collection}_v{VERSION}_{options.section.dimension}"


def schema(options: MilvusOptions, *, words: bool) -> CollectionSchema:
    """The schema: no nullable or dynamic field and no time type, because servers drop the first two silently and an
    old server crashes on the third. *words*: with a full-text index, which cannot be added later."""
    made = AsyncMilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    for name in SCALARS:
        if name in _INTEGERS:
            made.add_field(name, DataType.INT64)
        elif name == "importance":
            made.add_field(name, DataType.DOUBLE)
        else:
            made.add_field(
                name,
                DataType.VARCHAR,
                max_length=_length(name, options),
                is_primary=name == "id",
                is_partition_key=name == "user_id",
                **({"enable_analyzer": True} if words and name == "content" else {}),
            )
    made.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=options.section.dimension)
    if words:
        made.add_field(WORDS, DataType.SPARSE_FLOAT_VECTOR)
        made.add_function(
            Function(
                name="bm25",
                function_type=FunctionType.BM25,
                input_field_names=["content"],
                output_field_names=[WORDS],
            )
        )
    return made


def _length(name: str, options: MilvusOptions) -> int:
    if name in {"id", "superseded_by"}:
        return _ID_BYTES
    if name in _WORDS:
        return _WORD_BYTES
    return {"content": options.content_bytes, "metadata": METADATA_BYTES}.get(name, NAME_BYTES)


def properties(options: MilvusOptions, shards: int) -> dict[str, str]:
    """The properties of a collection. Lite drops descriptions and keeps properties."""
    return {
        f"{_PREFIX}schema": str(VERSION),
        f"{_PREFIX}readable_from": str(READABLE_FROM),
        f"{_PREFIX}fingerprint": options.fingerprint,
        f"{_PREFIX}layout": options.chosen_layout.value,
        f"{_PREFIX}shards": str(shards),
    }


def properties_of(described: Mapping[str, Any]) -> dict[str, str]:
    """The properties of a collection, for a copy of its rows."""
    return {name: value for name, value in described["properties"].items() if name.startswith(_PREFIX)}


def _number(described: Mapping[str, Any], name: str) -> int:
    """1 by default: the first collections have no number."""
    written = described.get("properties", {}).get(f"{_PREFIX}{name}", "")
    return int(written) if written.isdecimal() else 1


def shards_of(described: Mapping[str, Any]) -> int:
    """With how many shards the collection was made; PermanentError if it does not say."""
    written = described.get("properties", {}).get(f"{_PREFIX}shards", "")
    if not written.isdecimal() or not int(written):
        raise PermanentError(f"the collection {described.get('collection_name')!r} was not made by memory-extproc")
    return int(written)


def has_words(described: Mapping[str, Any]) -> bool:
    """Whether the collection has a full-text index and fills it. A collection of an older server or version has
    none, and without its function the index stays empty."""
    fields = {one["name"] for one in described["fields"]}
    return WORDS in fields and any(WORDS in one["output_field_names"] for one in described.get("functions") or ())


def check(described: Mapping[str, Any], options: MilvusOptions) -> None:
    """PermanentError, naming both sides, unless the collection matches *options*."""
    name = described.get("collection_name", "")
    shards_of(described)
    version, readable_from = _number(described, "schema"), _number(described, "readable_from")
    if version > VERSION and readable_from > VERSION:
        raise PermanentError(
            f"the collection {name!r} has the schema {version} of a newer memory-extproc; this one knows schemas up"
            f" to {VERSION}, and {readable_from} would be needed: run the newer program"
        )
    said = described["properties"]
    fields = {one["name"]: one for one in described["fields"]}
    vector = fields.get(VECTOR, {}).get("params", {})
    model = [
        ("embedding dimension", vector.get("dim"), options.section.dimension),
        ("embedding model", said.get(f"{_PREFIX}fingerprint"), options.fingerprint),
    ]
    sides = [
        *(() if options.as_it_is else model),
        ("layout", said.get(f"{_PREFIX}layout"), options.chosen_layout.value),
        ("fields", ", ".join(sorted(_seen(fields, version))), ", ".join(sorted((*SCALARS, VECTOR)))),
        ("content bytes", fields.get("content", {}).get("params", {}).get("max_length"), options.content_bytes),
        ("partition key", [key for key, one in fields.items() if one.get("is_partition_key")], ["user_id"]),
    ]
    for what, there, wanted in sides:
        if there != wanted:
            raise PermanentError(f"the collection {name!r} has the {what} {there!r}, the configuration {wanted!r}")


def _seen(fields: Mapping[str, Any], version: int) -> set[str]:
    """Fields of a newer version have defaults: its version stamp says that we can read and write it."""
    ours = {*SCALARS, VECTOR}
    return fields.keys() & ours if version > VERSION else fields.keys() - {WORDS}
