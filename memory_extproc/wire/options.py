"""What the wire is told about its work: frozen values that the composition root fills from the settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from memory_extproc.wire.sharing import Sharing


def most_received(request_bytes: int) -> int:
    """Bytes of one message that gRPC receives, where request bodies of up to *request_bytes* are read. Far above
    what we read: a larger message ends the stream with an error before we could let it pass."""
    return max(64 * 1024 * 1024, 4 * request_bytes)


class Mode(StrEnum):
    ACTIVE = "active"
    SHADOW = "shadow"  # everything runs and is learned, nothing is injected
    GRADUAL = "gradual"  # *percent* of the owners get memories, always the same ones; the others are control


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSources:
    """Where the router in front says what it found out: headers (lower case) and one namespace of Envoy's
    dynamic metadata with the keys `fact`, `tool` and `greeting`. The empty namespace is none."""

    fact_headers: tuple[str, ...] = ("x-memory-signal-fact", "x-vsr-matched-fact-check")
    tool_headers: tuple[str, ...] = ("x-memory-signal-tool",)
    greeting_headers: tuple[str, ...] = ("x-memory-signal-greeting",)
    metadata_namespace: str = ""

    @property
    def headers(self) -> frozenset[str]:
        return frozenset((*self.fact_headers, *self.tool_headers, *self.greeting_headers))


@dataclass(frozen=True, slots=True, kw_only=True)
class WireOptions:
    """Everything the wire needs to know. Header names are lower case."""

    enabled: bool  # the operator's switch: False is `disabled` for every request
    auto_store: bool  # learn from an exchange unless its client or a rule says otherwise
    mode: Mode
    percent: float  # 0 to 100, of owners; read in GRADUAL only
    limit: int  # memories in a block; a client may lower it
    threshold: float  # relevance, 0 to 1; a client may raise it
    request_bytes: int  # largest request body looked at, packed or unpacked
    answer_bytes: int  # largest answer kept for learning, packed or unpacked
    inject_as: str  # auto, system_message or user_suffix
    window: int | None  # tokens; None: from the model's profile
    margin: int  # tokens of the window left free
    unknown_cap: int  # tokens of a block for a model of unknown window
    signals: SignalSources = SignalSources()
    strip_headers: tuple[str, ...] = ()  # identity headers to keep from the upstream
    skip_auxiliary: bool = True  # leave title, tag and summary calls of chat clients alone
    # A guard behind recall's own deadline; above it and below Envoy's message_timeout.
    give_up_after: timedelta = timedelta(seconds=5)
    # A guard behind the journal's own bound: how long the last chunk of an answer may ever wait for us.
    last_reply_waits: timedelta = timedelta(milliseconds=200)
    profile: str = "off"  # off, always, or when_relevant: beside memories of use alone
    replay: bool = True  # a conversation keeps its blocks: they go back to where they stood
    replay_tokens: int = 8192  # estimated, of one conversation's blocks; beyond it the oldest go
    replay_keep: timedelta = timedelta(days=1)  # from a conversation's last turn on
    replay_wait: timedelta = timedelta(milliseconds=50)  # for the records of one, within the deadline of recall
    replay_bytes: int = 16 << 20  # of records that could not be written yet
    sharing: Sharing = field(default_factory=Sharing)
