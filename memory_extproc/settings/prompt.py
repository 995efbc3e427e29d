"""What becomes of a prompt: the blocks that are put into it, and long chats made shorter."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from memory_extproc.settings.values import (
    Auto,
    Positive,
    Section,
    Share,
)

InjectAs = Literal["auto", "system_message", "user_suffix"]


class Inject(Section):
    as_: InjectAs = Field(
        "auto",
        alias="as",
        description="auto: by the model's profile; a message of its own; or appended to the user's",
    )
    token_budget: int = Field(512, ge=32, le=100_000, description="estimated tokens of a block at most")
    window: Annotated[int, Field(ge=256)] | Auto = Field(
        "auto", description="tokens of the models' context window; auto: by the model's profile"
    )
    margin: int = Field(
        256, ge=0, le=100_000, description="tokens of the window left free, for what estimates miss"
    )
    unknown_window_budget: int = Field(
        256, ge=0, le=100_000, description="tokens of a block where the model's window is not known"
    )
    replay: bool = Field(
        default=True, description="put a conversation's earlier blocks back where they stood, for prompt caches"
    )
    replay_tokens: int = Field(
        8192, ge=0, le=1_000_000, description="estimated tokens of those at most; beyond it the oldest go"
    )
    replay_keep: Positive = Field(timedelta(days=1), description="how long after its last turn one is known again")
    profile: Literal["off", "always", "when_relevant"] = Field(
        "off",
        description="who the caller is, in a block of its own, once in a conversation; when_relevant: where "
        "memories are injected too",
    )
    profile_tokens: int = Field(256, ge=32, le=10_000, description="estimated tokens of it at most")
    profile_importance: Share = Field(0.7, description="importance, 0 to 1, that a fact needs to be in it")


class Compress(Section):
    enabled: bool = Field(
        default=False,
        description="send long chats with a condensed state in place of their older messages; false: only where a "
        "rule or x-memory-compress: force asks for it",
    )
    above_tokens: int = Field(
        16_000, ge=256, le=10_000_000, description="estimated tokens that a long chat exceeds"
    )
    keep_turns: int = Field(5, ge=1, le=1000, description="last turns that stay as they were said")
    keep: Positive = Field(timedelta(days=7), description="how long a state is kept, from its making on")
