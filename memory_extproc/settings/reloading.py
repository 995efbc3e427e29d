"""Which keys may change while the sidecar runs, and what two configurations come to together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from memory_extproc.errors import ConfigurationError
from memory_extproc.settings.root import Settings, broken
from memory_extproc.settings.values import Section

# By the names they are written with; what ends in `.*` stands for all below it, `[]` for any entry of a list.
# Whatever is not here decides what is opened when the process starts, or whose memories are reached: that is not
# to change between two requests of one conversation.
RELOADABLE = frozenset({
    "memory.enabled",
    "memory.auto_store",
    "memory.default_retrieval_limit",
    "memory.default_similarity_threshold",
    "memory.embedding.access_key",
    "memory.embedding.access_key_file",
    "external_models[].llm_endpoint.access_key",
    "external_models[].llm_endpoint.access_key_file",
    "mode",
    "percent",
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
    "inject.*",
    "compress.*",
    "learn.model_tokens.*",
    "limits.answer_capture",
    "limits.process_bytes",
    "auxiliary_calls",
    "rules.*",
    "api.rate.*",
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
    """What a new configuration comes to while the old one runs."""

    settings: Settings  # what is in effect from now on
    changed: tuple[str, ...]  # the keys in it that are new
    waiting: tuple[str, ...]  # keys whose new values need a restart

    def __bool__(self) -> bool:
        return bool(self.changed)


def merged(running: Settings, wanted: Settings, *, patience: timedelta) -> Change:
    """*running* with what may change taken from *wanted*. ConfigurationError when the two do not go together:
    a new value may need another that waits for a restart. *patience*: Envoy's, as it was when the process
    started; a reload reaches us and not Envoy."""
    merging = _Merging()
    settings = merging.section(running, wanted, "")
    faults = broken({name: getattr(settings, name) for name in Settings.model_fields})
    if "recall.deadline" in merging.changed and settings.deadline >= patience:
        faults.append(
            f"recall.deadline: {settings.deadline.total_seconds():g}s is not below the message_timeout that Envoy "
            f"was given for this process, {patience.total_seconds():g}s: write Envoy's configuration anew and "
            "restart"
        )
    if faults:
        waits = (
            f" (until a restart the old values of {', '.join(merging.waiting)} stand)" if merging.waiting else ""
        )
        raise ConfigurationError([fault + waits for fault in faults])
    return Change(settings, tuple(merging.changed), tuple(merging.waiting))


@dataclass(slots=True)
class _Merging:
    changed: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)

    def section(self, running: Any, wanted: Any, place: str) -> Any:
        kept: dict[str, Any] = {}
        for name, about in type(running).model_fields.items():
            key = about.alias or name
            at = f"{place}.{key}" if place else key
            kept[name] = self._value(getattr(running, name), getattr(wanted, name), at)
        return running.model_copy(update=kept)

    def _value(self, running: Any, wanted: Any, place: str) -> Any:
        if running == wanted:
            return running
        if isinstance(running, Section):
            return self.section(running, wanted, place)
        if reloadable(place):
            self.changed.append(place)
            return wanted
        if _alike(running, wanted):
            pairs = enumerate(zip(running, wanted, strict=True))
            return tuple(self._value(old, new, f"{place}[{at}]") for at, (old, new) in pairs)
        self.waiting.append(place)
        return running


def _alike(running: Any, wanted: Any) -> bool:
    """Lists of as many sections, which are compared one by one."""
    if not (isinstance(running, tuple) and isinstance(wanted, tuple) and len(running) == len(wanted)):
        return False
    return all(isinstance(each, Section) for each in running)


def secret_files(section: Section) -> Iterator[Path]:
    """The files that secrets were read from: a change of one is a change of the configuration."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Section):
                yield from secret_files(each)
        secret = name.removesuffix("_file")
        if value and isinstance(value, str) and secret != name and secret in type(section).model_fields:
            yield Path(value)
