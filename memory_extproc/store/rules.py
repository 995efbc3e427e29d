"""Checks that all memory stores share, so that the fake rejects the same rows as Milvus."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from memory_extproc.errors import PermanentError
from memory_extproc.model import Embedded, Memory, Owner, Vector

# Milvus clients put keys into expressions unescaped, so an id is from an alphabet that needs no escaping.
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}", re.ASCII)
_UNIT_TOLERANCE = 1e-2
_WORD = re.compile(r"\w+")
_MOST_ASKED = 2_000  # characters
CONTENT_BYTES = 8 * 1024  # of UTF-8, where nothing else is configured
# Milvus' limits are bytes of UTF-8 on a server and characters in Lite; ours are bytes, for both.
NAME_BYTES = 512
METADATA_BYTES = 16 * 1024


def is_id(text: str) -> bool:
    """Whether *text* can be a memory's id: 1 to 64 of A-Z a-z 0-9 _ . : -"""
    return _ID.fullmatch(text) is not None


def check_vector(vector: Vector, dimension: int) -> None:
    """PermanentError unless *vector* has *dimension* finite numbers and length 1. Milvus Lite would store a
    NaN, and a server stores a zero vector and never returns it."""
    if vector.shape != (dimension,):
        raise PermanentError(f"a vector of shape {vector.shape} where the collection holds {dimension} numbers")
    with np.errstate(all="ignore"):
        length = float(np.sqrt(np.square(vector, dtype=np.float64).sum()))
    # A NaN or infinity makes the length NaN or infinite, and the comparison false.
    if not abs(length - 1.0) <= _UNIT_TOLERANCE:
        raise PermanentError("a vector that is not of unit length")


def check_rows(owner: Owner, rows: Sequence[Embedded], dimension: int) -> None:
    """PermanentError unless all of *rows* are *owner*'s, with storable ids and vectors."""
    check_owner(owner)
    for row in rows:
        if row.memory.owner != owner:
            raise PermanentError("a memory of another owner")
        if not is_id(row.memory.id):
            raise PermanentError("a memory id outside the safe alphabet")
        for what in ("project", "session", "origin", "embed_model", "superseded_by"):
            check_name(what, getattr(row.memory, what))
        check_vector(row.vector, dimension)
        if len(metadata_text(row.memory)) > METADATA_BYTES:
            raise PermanentError(f"metadata of more than {METADATA_BYTES} bytes")


def metadata_text(memory: Memory) -> str:
    """The metadata as JSON in ASCII, so that its characters are bytes. PermanentError if it is not JSON."""
    try:
        return json.dumps(memory.provenance.encode(), separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        raise PermanentError("metadata that is not JSON") from None


def fit(row: Embedded, content_bytes: int) -> Embedded:
    """*row* with its content cut to *content_bytes* of UTF-8 at a character's boundary. A lone surrogate,
    which JSON can carry and UTF-8 cannot, becomes a question mark."""
    content = row.memory.content
    kept = content.encode("utf-8", "replace")[:content_bytes].decode("utf-8", "ignore")
    return row if kept == content else Embedded(replace(row.memory, content=kept), row.vector)


def searchable(text: str) -> str:
    """The distinct words of *text* for a full-text query; empty if there are none. Only the first words of a long
    question count."""
    words = _WORD.findall(text[:_MOST_ASKED].casefold())
    return " ".join(dict.fromkeys(words))


def check_owner(owner: Owner) -> None:
    """PermanentError unless both names can be stored and asked for in a filter."""
    check_name("tenant", owner.tenant)
    check_name("user", owner.user)
    if not owner.user:
        raise PermanentError("an owner without a user")


def check_name(what: str, text: str) -> None:
    """PermanentError if *text* is longer than NAME_BYTES of UTF-8 or has control characters or lone surrogates."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise PermanentError(f"a {what} that is not Unicode text") from None
    if size > NAME_BYTES:
        raise PermanentError(f"a {what} of more than {NAME_BYTES} bytes")
    if "\0" in text:
        raise PermanentError(f"a {what} with a NUL")
