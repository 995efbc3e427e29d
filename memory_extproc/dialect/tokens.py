"""What a JSON value of a request weighs in tokens, text and all else, by the estimate of language.tokens."""

from __future__ import annotations

from typing import Any

from memory_extproc.language.tokens import estimate_tokens

PER_MESSAGE = 4  # role and delimiters of a chat template

# A picture, a file or a signature is not read as text; providers bill a picture at 85 to about 1,600 tokens.
_BLOB = 1_000
_BLOB_FIELDS = frozenset(
    {"data", "url", "image_url", "file_data", "b64_json", "signature", "encrypted_content", "result"}
)
_LONG = 4_000  # characters without a space: what is shorter or has one is a link or words and counts as it is


def weigh(value: Any) -> int:
    """Tokens of a JSON value with its keys, for messages of parts, tool calls, tool schemas."""
    if isinstance(value, str):
        return estimate_tokens(value)
    if isinstance(value, dict):
        return sum(1 + _weigh_field(name, inner) for name, inner in value.items())
    if isinstance(value, list):
        return sum(map(weigh, value))
    return 1


def _weigh_field(name: str, value: Any) -> int:
    if name in _BLOB_FIELDS and isinstance(value, str) and len(value) > _LONG and " " not in value[:_LONG]:
        return _BLOB
    return estimate_tokens(name) + weigh(value)
