"""Maps request paths to dialects, and models to profiles."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Literal

from memory_extproc.dialect.anthropic_messages import Anthropic
from memory_extproc.dialect.base import ChatRequest, Dialect, Form
from memory_extproc.dialect.openai_chat import ChatCompletions
from memory_extproc.dialect.openai_responses import Responses

# The API's own path, alone or behind a gateway's prefix (/openai/v1/..., /anthropic/v1/..., Azure's
# /openai/deployments/{name}/chat/completions and /openai/responses). Longer paths are other resources:
# /v1/responses/{id}, /v1/messages/batches, /v1/messages/count_tokens.
_ROUTES: tuple[tuple[re.Pattern[str], Dialect], ...] = (
    (re.compile(r"(?:/.*)?/chat/completions/?"), ChatCompletions()),
    (re.compile(r"(?:/.*)?/(?:v1|openai)/responses/?"), Responses()),
    (re.compile(r"(?:/.*)?/v1/messages/?"), Anthropic()),
)


def dialect_for(path: str) -> Dialect | None:
    """The dialect of a request path, with or without query; None if it is no chat path."""
    resource = path.partition("?")[0].partition("#")[0]
    return next((dialect for pattern, dialect in _ROUTES if pattern.fullmatch(resource)), None)


# Model profiles: the block's form and the context window.

InjectAs = Literal["auto", "system_message", "user_suffix"]


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """A model family. *window*: tokens of prompt and response; None if not documented."""

    form: Form
    window: int | None = None
    source: str = ""  # URL of the documentation
    needs_system: bool = False  # *form* requires a system message of the client


UNKNOWN = ModelFamily(Form.USER_SUFFIX)
_LONGEST_NAME = 256  # characters; names come from clients and are kept to find their profile again

# "us.anthropic.claude-...": vendor prefixes of Amazon Bedrock.
_VENDOR = re.compile(
    r"(?:(?:us|us-gov|eu|apac|au|jp|global)\.)?"
    r"(?:ai21|amazon|anthropic|cohere|deepseek|google|meta|mistral|openai|qwen)\.(?=[a-z])"
)


def profile_for(model: str) -> ModelFamily:
    """The profile for the client's model name; UNKNOWN if none matches."""
    return _find_profile(model) if len(model) <= _LONGEST_NAME else UNKNOWN


@lru_cache(maxsize=1024)
def _find_profile(model: str) -> ModelFamily:
    name = _bare(model)
    return next((profile for pattern, profile in _profiles() if pattern.match(name)), UNKNOWN)


def choose_form(inject_as: InjectAs, profile: ModelFamily, request: ChatRequest) -> Form:
    """The block's form for a request: the operator's setting, or with "auto" the model's form."""
    if inject_as != "auto":
        return Form(inject_as)
    if profile.needs_system and not request.has_system:
        return Form.USER_SUFFIX
    return profile.form


def room(
    request: ChatRequest, profile: ModelFamily, *, configured_window: int | None, margin: int, unknown_cap: int
) -> int:
    """Tokens left for a block, at least 0: the window minus prompt, longest response and *margin*.

    The configured window precedes the profile's; a model with an unknown window gets *unknown_cap*."""
    window = configured_window if configured_window is not None else profile.window
    if window is None:
        return unknown_cap
    return max(0, window - request.prompt_tokens - (request.max_tokens or 0) - margin)


def _bare(model: str) -> str:
    """The model's own name: "accounts/x/models/Llama-v3p1-8B" is "llama-v3p1-8b", "ft:gpt-4o:org::id" is
    "gpt-4o", "qwen2.5:7b" is "qwen2.5"."""
    name = model.strip().lower().removeprefix("ft:").rpartition("/")[2]
    name = name.partition(":")[0].partition("@")[0]
    return _VENDOR.sub("", name, count=1)


@cache
def _profiles() -> tuple[tuple[re.Pattern[str], ModelFamily], ...]:
    text = resources.files("memory_extproc.dialect").joinpath("profiles.toml").read_text("utf-8")
    return tuple(
        (
            re.compile(entry["name"]),
            ModelFamily(
                form=Form(entry["form"]),
                window=entry.get("window"),
                source=entry["source"],
                needs_system=entry.get("needs_system", False),
            ),
        )
        for entry in tomllib.loads(text)["profile"]
    )
