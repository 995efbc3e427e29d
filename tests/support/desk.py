"""An enricher with everything around it in plain sight, over the real dialects and rules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from prometheus_client import CollectorRegistry

from memory_extproc.concurrency import Background
from memory_extproc.model import RecallResult
from memory_extproc.model.headers import Headers, RequestHeaders
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import ChainReader, Coordination, ProfileReader
from memory_extproc.request.admission import Admission, Admitted
from memory_extproc.request.body import Enriched
from memory_extproc.request.enricher import BlockInserter, Enricher, InjectionPlanner, PermissionReader
from memory_extproc.request.identity import Identity
from memory_extproc.request.policy import Rules
from memory_extproc.request.replay import MOST_UNSHARED, BlockReplay
from memory_extproc.settings import CurrentSettings
from memory_extproc.settings.identity import IdentitySection
from memory_extproc.settings.traffic import RuleSection, RuleThen, RuleWhen
from tests.support.canned import CannedRecalls
from tests.support.sidecar import NOON, request_settings, used

ALL = RuleWhen(path="*")


def a_rule(when: RuleWhen = ALL, **then: Any) -> RuleSection:
    return RuleSection(when=when, then=RuleThen(**then))


class Desk:
    """An enricher with everything around it in plain sight."""

    def __init__(
        self,
        recalled: RecallResult | None = None,
        *,
        rules: Sequence[RuleSection] = (),
        identity: IdentitySection | None = None,
        chains: ChainReader | None = None,
        shared: Coordination | None = None,
        recalls: CannedRecalls | None = None,
        profiles: ProfileReader | None = None,
        most_unshared: int = MOST_UNSHARED,
        **options: Any,
    ) -> None:
        self.metrics = Metrics(CollectorRegistry(), "test")
        self.time = NOON
        self.recalls = recalls or CannedRecalls(used() if recalled is None else recalled)
        self.background = Background(self.metrics, grace=timedelta(seconds=1))
        self.current = CurrentSettings(request_settings(**options))
        wire = self.current.settings
        who = Identity(identity or IdentitySection())
        self.admission = Admission(wire, who)
        self.replays = BlockReplay(
            self.current,
            shared,
            background=self.background,
            metrics=self.metrics,
            now=lambda: self.time,
            most_unshared=most_unshared,
        )
        planner = InjectionPlanner(wire, self.recalls, self.replays, self.metrics, chains=chains, profiles=profiles)
        inserter = BlockInserter(wire, self.replays, self.metrics)
        permissions = PermissionReader(wire, who, Rules(rules))
        self.enricher = Enricher(wire, permissions, planner, inserter, self.replays)

    def admit(
        self,
        path: str = "/v1/chat/completions",
        user: str = "ann",
        metadata: Mapping[str, Any] | None = None,
        attributes: Mapping[str, Any] | None = None,
        **headers: str,
    ) -> Admitted:
        """*metadata* and *attributes* are Envoy's own word; the rest are headers."""
        pairs = {":method": "POST", ":path": path, "content-type": "application/json", "x-authz-user-id": user}
        pairs |= {name.replace("_", "-"): value for name, value in headers.items()}
        sent = Headers((name, value) for name, value in pairs.items() if value)
        admitted = self.admission.admit(RequestHeaders(sent, False, metadata or {}, attributes or {}))
        assert isinstance(admitted, Admitted)
        return admitted

    async def enrich(self, body: Any, *, watching: bool = False, **request: Any) -> Enriched:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        enriched = await self.enricher.enrich(self.admit(**request), raw, watching=watching)
        await self.background.__aexit__()
        return enriched


def a_chat(*said: str, **changes: Any) -> dict[str, Any]:
    """User and assistant in turn, the user last."""
    messages = [
        {"role": "user" if (len(said) - number) % 2 else "assistant", "content": text}
        for number, text in enumerate(said)
    ]
    return {"model": "demo", "messages": messages, **changes}


def in_a_tool_loop(*said: str) -> dict[str, Any]:
    chat = a_chat(*said, tools=[{"type": "function", "function": {"name": "look_up"}}])
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    chat["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    return chat
