"""Which path speaks which dialect."""

from __future__ import annotations

import re

from memory_extproc.dialect.anthropic import Anthropic
from memory_extproc.dialect.base import Dialect
from memory_extproc.dialect.chat_completions import ChatCompletions
from memory_extproc.dialect.responses import Responses

# The API's own path, alone or behind a gateway's prefix (/openai/v1/..., /anthropic/v1/..., Azure's
# /openai/deployments/{name}/chat/completions and /openai/responses). What follows it is another resource:
# /v1/responses/{id}, /v1/messages/batches, /v1/messages/count_tokens.
_ROUTES: tuple[tuple[re.Pattern[str], Dialect], ...] = (
    (re.compile(r"(?:/.*)?/chat/completions/?"), ChatCompletions()),
    (re.compile(r"(?:/.*)?/(?:v1|openai)/responses/?"), Responses()),
    (re.compile(r"(?:/.*)?/v1/messages/?"), Anthropic()),
)


def dialect_for(path: str) -> Dialect | None:
    """The dialect of a request path, query included or not; None when it is no chat request's."""
    resource = path.partition("?")[0].partition("#")[0]
    return next((dialect for pattern, dialect in _ROUTES if pattern.fullmatch(resource)), None)
