"""Tokens without a tokenizer: an estimate that is cheap and, for prose, within a fifth or so above.

Byte-pair vocabularies spend about one token on four ASCII characters of English or code and about one on a
Chinese, Japanese or Korean character; a script of two bytes a character lies between. Both are met by one
token per four ASCII bytes and one per three other bytes of UTF-8.
"""

from __future__ import annotations

from typing import Any

_ASCII_BYTES = 4
_OTHER_BYTES = 3
PER_MESSAGE = 4  # role and delimiters of a chat template

# A picture, a file or a signature is not read as text; providers bill a picture at 85 to about 1,600 tokens.
_BLOB = 1_000
_BLOB_FIELDS = frozenset(
    {"data", "url", "image_url", "file_data", "b64_json", "signature", "encrypted_content", "result"}
)
_LONG = 4_000  # characters without a space: what is shorter or has one is a link or words and counts as it is


def estimate(text: str) -> int:
    """Tokens of *text*, at least 1 unless it is empty."""
    if text.isascii():
        return -(-len(text) // _ASCII_BYTES)
    ascii_bytes = len(text.encode("ascii", "ignore"))
    other_bytes = len(text.encode("utf-8", "surrogatepass")) - ascii_bytes
    return -(-ascii_bytes // _ASCII_BYTES) - (-other_bytes // _OTHER_BYTES)


def weigh(value: Any) -> int:
    """Tokens of a JSON value with its keys, for messages of parts, tool calls, tool schemas."""
    if isinstance(value, str):
        return estimate(value)
    if isinstance(value, dict):
        return sum(1 + _weigh_field(name, inner) for name, inner in value.items())
    if isinstance(value, list):
        return sum(map(weigh, value))
    return 1


def _weigh_field(name: str, value: Any) -> int:
    if name in _BLOB_FIELDS and isinstance(value, str) and len(value) > _LONG and " " not in value[:_LONG]:
        return _BLOB
    return estimate(name) + weigh(value)
