"""Which paths are chat requests, and which content types are answers we can read."""

from __future__ import annotations

import pytest

from memory_extproc.dialect.registry import dialect_for


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "chat_completions"),
        ("/v1/chat/completions?x=/v1/messages", "chat_completions"),
        ("/openai/v1/chat/completions", "chat_completions"),
        ("/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21", "chat_completions"),
        ("/v1beta/openai/chat/completions", "chat_completions"),
        ("/chat/completions", "chat_completions"),
        ("/v1/chat/completions/", "chat_completions"),
        ("/v1/responses", "responses"),
        ("/openai/v1/responses", "responses"),
        ("/openai/responses?api-version=2025-04-01-preview", "responses"),
        ("/v1/messages", "messages"),
        ("/anthropic/v1/messages?beta=true", "messages"),
    ],
)
def test_a_chat_path_speaks_its_dialect_behind_any_prefix(path: str, name: str) -> None:
    dialect = dialect_for(path)
    assert dialect is not None
    assert dialect.name == name


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "*",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/chat/completions/chatcmpl-1",
        "/v1/mychat/completions2",
        "/xchat/completions",
        "/v1/responses/resp_1",
        "/v1/responses/resp_1/input_items",
        "/v1/responses/compact",
        "/v1/messages/count_tokens",
        "/v1/messages/batches",
        "/v1/threads/thread_1/messages",
        "/search?q=/v1/messages",
        "/page#/v1/messages",
        "v1/messages",
    ],
)
def test_other_paths_are_not_chat(path: str) -> None:
    assert dialect_for(path) is None


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_answers_are_json_or_event_streams(path: str) -> None:
    dialect = dialect_for(path)
    assert dialect is not None
    for readable in (
        "application/json",
        "Application/JSON; charset=utf-8",
        "text/event-stream",
        "application/problem+json",
    ):
        assert dialect.reader(readable) is not None
    for other in ("", "text/html", "application/octet-stream", "audio/mpeg", "application/vnd.amazon.eventstream"):
        assert dialect.reader(other) is None
