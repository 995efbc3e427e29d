"""What a provider counted: the tokens of the request, and how many of them came from its prompt cache."""

from __future__ import annotations

from typing import Any

from memory_extproc.dialect.answers import Account

# Tokens of one request. What is above it is no count, and added to a counter would spoil it for good.
_MOST = 10**9


def note(account: Account, usage: Any) -> None:
    """Takes in a usage object of /v1/chat/completions or /v1/responses. Streams may repeat it; the last counts."""
    if not isinstance(usage, dict):
        return
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = _count(details, "cached_tokens")
    if cached is None:
        cached = _count(usage, "prompt_cache_hit_tokens")  # as DeepSeek calls them
    prompt = _count(usage, "prompt_tokens")
    _take(account, _count(usage, "input_tokens") if prompt is None else prompt, cached)


def note_parted(account: Account, usage: Any) -> None:
    """As `note`, for /v1/messages, whose `input_tokens` leave out what was read from the cache or written to it."""
    read, written = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
    fresh = _count(usage, "input_tokens")
    _take(account, None if fresh is None else fresh + (read or 0) + (written or 0), read)


def _take(account: Account, prompt: int | None, cached: int | None) -> None:
    if prompt is not None:
        account.prompt_tokens = prompt
    if cached is not None:
        account.cached_tokens = cached


def _count(of: Any, name: str) -> int | None:
    value = of.get(name) if isinstance(of, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else None
