"""The keys that may change while the sidecar runs, and the merge of a new configuration into the running one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from memory_extproc.errors import ConfigurationError
from memory_extproc.settings.root import Settings, find_broken_rules
from memory_extproc.settings.traffic import most_received
from memory_extproc.settings.types import Section

# By their names in the file; a trailing `.*` stands for all keys below, `[]` for any entry of a list. All other
# keys decide what the process opens at its start (files, connections, models, ports), the name or key under which
# data is stored (user ids' hashes, collections), or a part of Envoy's own configuration.
RELOADABLE = frozenset({
    "memory.enabled",
    "memory.auto_store",
    "memory.client_may_enable",
    "memory.extraction_batch_size",
    "memory.default_retrieval_limit",
    "memory.default_similarity_threshold",
    "memory.embedding.access_key",
    "memory.embedding.access_key_file",
    "external_models[].llm_endpoint.access_key",
    "external_models[].llm_endpoint.access_key_file",
    "mode",
    "percent",
    "tls.allowed_names",
    "identity.user_header",
    "identity.tenant_header",
    "identity.project_header",
    "identity.session_header",
    "identity.metadata",
    "identity.metadata_tenant",
    "identity.metadata_projects",
    "identity.jwt.header",
    "identity.jwt.user_claim",
    "identity.jwt.tenant_claim",
    "identity.jwt.projects_claim",
    "identity.jwt.issuer",
    "identity.jwt.audience",
    "identity.jwt.leeway",
    "identity.trust_body",
    "identity.strip_headers",
    "identity.people_only",
    "scopes.*",
    "signals.*",
    "recall.deadline",
    "recall.settle",
    "recall.max_concurrent",
    "recall.candidates",
    "recall.threshold_on",
    "recall.about_caller",
    "recall.mmr_lambda",
    "recall.half_life",
    "recall.partition_bytes",
    "recall.rerank_candidates",
    "recall.rerank_weight",
    "recall.threads.*",
    "inject.*",
    "compress.*",
    "learn.journal.retention",
    "learn.journal.wait",
    "learn.session_idle",
    "learn.model_tokens.*",
    "learn.model_patience",
    "learn.concurrency",
    "learn.quota.*",
    "learn.markers.*",
    "learn.max_attempts",
    "chat_commands",
    "topics.same",
    "topics.apart",
    "topics.characters",
    "topics.idle",
    "coordination.password",
    "coordination.password_file",
    "limits.request_body",
    "limits.answer_capture",
    "limits.process_bytes",
    "auxiliary_calls",
    "rules.*",
    "retention.every",
    "retention.weight",
    "retention.half_life",
    "retention.refresh_on_access",
    "retention.max_memories",
    "retention.prune_share",
    "retention.protect",
    "retention.ttl.*",
    "retention.grace",
    "retention.history",
    "retention.access_interval",
    "retention.duplicates.*",
    "retention.consolidate.*",
    "retention.reflect.above",
    "api.trusted_proxy.*",
    "api.certificates.*",
    "api.jwt.issuer",
    "api.jwt.audience",
    "api.jwt.user_claim",
    "api.jwt.tenant_claim",
    "api.jwt.roles_claim",
    "api.jwt.leeway",
    "api.rate.*",
    "privacy.consent",
    "privacy.secrets",
    "privacy.never_store",
    "privacy.never_inject",
    "privacy.consent_of",
    "privacy.consent_fresh",
    "privacy.consent_grace",
    "privacy.identifiers",
    "privacy.sensitive",
    "privacy.quarantine",
    "telemetry.tenants",
    "telemetry.log_level",
    "telemetry.log_format",
})  # fmt: skip


def reloadable(key: str) -> bool:
    """Whether a change of *key*, written `section.key`, `list[].key` or `list[3].key`, needs no restart."""
    parts = [part.partition("[")[0] + ("[]" if "[" in part else "") for part in key.split(".")]
    named = ".".join(parts)
    above = (".".join(parts[:end]).removesuffix("[]") + ".*" for end in range(1, len(parts) + 1))
    return named in RELOADABLE or any(each in RELOADABLE for each in above)


@dataclass(frozen=True, slots=True)
class Change:
    """The result of a reload."""

    settings: Settings  # in effect from now on
    changed: tuple[str, ...]  # the keys with new values
    waiting: tuple[str, ...]  # keys whose new values need a restart

    def __bool__(self) -> bool:
        return bool(self.changed)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Values set at the start of the process, which no reload changes."""

    patience: timedelta  # Envoy's message_timeout
    message_bytes: int  # the largest message that gRPC receives

    @classmethod
    def from_settings(cls, settings: Settings) -> Fixed:
        return cls(settings.message_timeout, most_received(settings.limits.request_body))


def merge_reload(running: Settings, wanted: Settings, fixed: Fixed) -> Change:
    """*running* with the reloadable values of *wanted*. ConfigurationError if the result is invalid: a new value
    may depend on a value that waits for a restart, or exceed a *fixed* value."""
    merging = _Merging()
    settings = merging.section(running, wanted, "")
    faults = find_broken_rules({name: getattr(settings, name) for name in Settings.model_fields})
    faults += _find_beyond_limits(settings, fixed, merging.changed)
    if faults:
        waits = (
            f" (until a restart the old values of {', '.join(merging.waiting)} stand)" if merging.waiting else ""
        )
        raise ConfigurationError([fault + waits for fault in faults])
    return Change(settings, tuple(merging.changed), tuple(merging.waiting))


def _find_beyond_limits(settings: Settings, fixed: Fixed, changed: Sequence[str]) -> Iterator[str]:
    patience = fixed.patience.total_seconds()
    given = f"the message_timeout that Envoy was given for this process, {patience:g}s"
    anew = "write Envoy's configuration anew and restart"
    if "recall.deadline" in changed and settings.deadline.total_seconds() >= patience:
        yield f"recall.deadline: {settings.deadline.total_seconds():g}s is not below {given}: {anew}"
    wait = settings.learn.journal.wait.total_seconds()
    if "learn.journal.wait" in changed and 2 * wait >= patience:
        yield f"learn.journal.wait: {wait:g}s is not below half of {given}: {anew}"
    if settings.limits.request_body > fixed.message_bytes:
        yield (
            f"limits.request_body: is above {fixed.message_bytes} bytes, the most that this process receives in "
            "one message: restart"
        )


@dataclass(slots=True)
class _Merging:
    changed: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)

    def section(self, running: Any, wanted: Any, place: str) -> Any:
        kept: dict[str, Any] = {}
        fields, secrets = type(running).model_fields, _secrets(running)
        before = len(self.waiting)
        # Secrets last: a secret that arrived together with a new server must not be sent to the old server.
        for name in sorted(fields, key=lambda one: one in secrets):
            key = fields[name].alias or name
            at = f"{place}.{key}" if place else key
            old, new = getattr(running, name), getattr(wanted, name)
            if name in secrets and len(self.waiting) > before and old != new:
                self.waiting.append(at)
                kept[name] = old
            else:
                kept[name] = self._value(old, new, at)
        return running.model_copy(update=kept)

    def _value(self, running: Any, wanted: Any, place: str) -> Any:
        if running == wanted:
            return running
        if isinstance(running, Section):
            return self.section(running, wanted, place)
        if reloadable(place):
            self.changed.append(place)
            return wanted
        if _are_pairwise(running, wanted):
            pairs = enumerate(zip(running, wanted, strict=True))
            return tuple(self._value(old, new, f"{place}[{at}]") for at, (old, new) in pairs)
        self.waiting.append(place)
        return running


def _are_pairwise(running: Any, wanted: Any) -> bool:
    """Whether both are lists of equally many sections, which are then compared pairwise."""
    if not (isinstance(running, tuple) and isinstance(wanted, tuple) and len(running) == len(wanted)):
        return False
    return all(isinstance(each, Section) for each in running)


def secret_files(section: Section) -> Iterator[Path]:
    """The files from which secrets were read: a change of such a file changes the configuration."""
    secrets = _secrets(section)
    for name in type(section).model_fields:
        value = getattr(section, name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Section):
                yield from secret_files(each)
        if name in secrets and name.endswith("_file") and value:
            yield Path(value)


def _secrets(section: Section) -> frozenset[str]:
    """Fields that hold a secret or the path of a secret file."""
    fields = type(section).model_fields
    held = {name for name in fields if f"{name}_file" in fields}
    return frozenset(held | {f"{name}_file" for name in held})
