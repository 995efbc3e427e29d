"""What a router in front says of a request, and rules about requests."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from memory_extproc.model import MemoryType, Signals, Switch
from memory_extproc.settings.prompt import InjectAs
from memory_extproc.settings.values import (
    Header,
    Section,
    Share,
)
from memory_extproc.wire.rules import Rule, Then, When


class SignalsSection(Section):
    fact_headers: tuple[Header, ...] = Field(
        ("x-memory-signal-fact", "x-vsr-matched-fact-check"), description="say: a question of general fact"
    )
    tool_headers: tuple[Header, ...] = Field(("x-memory-signal-tool",), description="say: a call of tools")
    greeting_headers: tuple[Header, ...] = Field(("x-memory-signal-greeting",), description="say: a greeting")
    metadata_namespace: str = Field(
        "", description="Envoy dynamic metadata with the keys fact, tool, greeting; empty: none"
    )


ORIGINS = ("app", "dialect", "model", "route")


def _origin(value: str) -> str:
    name, _, pattern = value.partition("=")
    if name not in ORIGINS or not pattern or len(value.split()) != 1:
        named = ", ".join(f"{each}=" for each in ORIGINS)
        raise ValueError(f"expected one of {named} and a glob without white space, such as route=support-*")
    return value


class RuleSignals(Section):
    fact: bool | None = Field(None, description="as if the router had said so")
    tool: bool | None = Field(None, description="as if the router had said so")
    greeting: bool | None = Field(None, description="as if the router had said so")


class RuleWhen(Section):
    path: str = Field("", description="glob over the path without its query")
    model: str = Field("", description="glob over the request's model, whatever the case")
    route: str = Field("", description="glob over the name of Envoy's route")
    tenant: str = Field("", description="glob over the tenant")
    upstream: str = Field("", description="glob over the name of Envoy's cluster that the request goes to")
    header: dict[Header, str] = Field(default_factory=dict, description="name: glob over one of its values")
    keyword: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (),
        examples=[["salary"]],
        description="any of these whole words or phrases in the caller's last words, whatever the case",
    )

    @model_validator(mode="after")
    def asks_something(self) -> Self:
        if self == RuleWhen.model_construct():
            raise ValueError("asks nothing, so it would match every request: write path: '*' if that is meant")
        return self


class RuleThen(Section):
    retrieve: Switch = Field(Switch.DEFAULT, description="skip: outcome `disabled`, no client can override it")
    store: Switch = Field(Switch.DEFAULT, examples=["skip"], description="skip: nothing is learned")
    compress: Switch = Field(
        Switch.DEFAULT,
        examples=["force"],
        description="skip: never; force: whatever its length; default: as compress",
    )
    threshold: Share | None = Field(None, description="relevance, 0 to 1")
    limit: int | None = Field(None, ge=0, le=100, description="memories in a block at most")
    types: frozenset[MemoryType] | None = Field(None, min_length=1, description="only memories of these types")
    origins: tuple[Annotated[str, AfterValidator(_origin)], ...] = Field(
        (),
        examples=[["route=support-*"]],
        description="only memories that came from one of these: app=, dialect=, model= or route= and a glob",
    )
    shared: bool = Field(default=True, description="false: the caller's own memories alone, nothing shared")
    signals: RuleSignals = Field(RuleSignals(), description="what to take as said by the router")
    inject: InjectAs | None = Field(None, description="as inject.as, for these requests")

    @model_validator(mode="after")
    def sets_something(self) -> Self:
        if self == RuleThen.model_construct():
            raise ValueError("sets nothing")
        return self


class RuleSection(Section):
    when: RuleWhen = Field(description="all that is given must hold")
    then: RuleThen = Field(description="what is set; the first rule that matches decides alone")

    def rule(self) -> Rule:
        """As wire/rules.py takes it."""
        # Field by field under the same names: one that only one side has is an error at the first rule, not lost.
        signals = Signals(**dict(self.then.signals))
        return Rule(When(**dict(self.when)), Then(**{**dict(self.then), "signals": signals}))
