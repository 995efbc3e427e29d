"""From a YAML file and the environment to `Settings`, or to every fault at once; and the merge of a new
configuration into the running one, for the keys that may change."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import SecretStr, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from memory_extproc.errors import ConfigurationError
from memory_extproc.settings.root import Settings, find_broken_rules
from memory_extproc.settings.semantic_router import accept_router_keys
from memory_extproc.settings.traffic import most_received
from memory_extproc.settings.types import (
    Section,
    allows_none,
    alternatives,
    child,
    fields_of,
    has_parts,
    is_section,
)

DATA_DIR_LOCK = "lock"  # the file in a data directory that the process which uses it holds


def load(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """The configuration in the file at *path*, changed by `MEMORY_EXTPROC__SECTION__KEY` in *environ*.

    Without a path: the defaults and the environment. Lists and mappings in the environment are JSON; an entry
    of a list is reached by its number (`MEMORY_EXTPROC__EXTERNAL_MODELS__0__LLM_MODEL_NAME`). Raises
    ConfigurationError with every fault found, each with its path; no fault repeats the value of a secret."""
    tree, notices = accept_router_keys(read(path) if path is not None else {}, Settings.model_fields)
    faults, sources = lay_over(tree, environ)
    sections, more = _sections(tree, sources)
    faults += [*more, *find_broken_rules(sections)]
    if faults:
        raise ConfigurationError(faults)
    sections["data_dir"] = sections["data_dir"] or _usual_data_dir(environ)
    return Settings(**sections).with_router_notices(notices)


def find_faults(tree: Mapping[str, Any]) -> list[str]:
    """The faults that `load` would find in a file with *tree*."""
    sections, faults = _sections(tree, {})
    return [*faults, *find_broken_rules(sections)]


def _usual_data_dir(environ: Mapping[str, str]) -> str:
    """./data if a sidecar made it, else a directory by the XDG rule.

    Any project may have a directory named data, so the sidecar's lock file decides. XDG says to ignore relative
    paths."""
    former = Path("data")
    if (former / DATA_DIR_LOCK).is_file():
        return f"./{former}"
    named = environ.get("XDG_DATA_HOME", "")
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - Path.home() may raise
    return str((Path(named) if Path(named).is_absolute() else Path(home, ".local", "share")) / "memory-extproc")


def _sections(tree: Mapping[str, Any], sources: Mapping[Place, str]) -> tuple[dict[str, Any], list[str]]:
    """The valid sections, and the faults of the others."""
    sound: dict[str, Any] = {}
    faults: list[str] = []
    for name, section in Settings.model_fields.items():
        # A section whose keys are all commented out is there, and empty.
        if name not in tree or (tree[name] is None and is_section(section.annotation)):
            sound[name] = section.get_default(call_default_factory=True)
            continue
        try:
            sound[name] = _adapter(section).validate_python(tree[name])
        except ValidationError as error:
            faults += faults_of(error, (name,), Settings, sources)
    faults += [unknown_key((name,), Settings, sources) for name in tree if name not in Settings.model_fields]
    return sound, faults


def _adapter(field: FieldInfo) -> TypeAdapter[Any]:
    kind: Any = field.annotation
    for constraint in field.metadata:
        kind = Annotated[kind, constraint]
    return TypeAdapter(kind)


# Reading the configuration's file.

_BOOL = "tag:yaml.org,2002:bool"


class _Loader(yaml.SafeLoader):
    """A SafeLoader in which `off` and `no` are words, as YAML 1.2 has it, and no key is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen: set[str] = set()
        for key, _ in node.value:
            name = key.value
            if not isinstance(name, str) or name in seen:
                problem = f"{name} is given twice" if isinstance(name, str) else "a key must be a word"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def read(path: Path) -> dict[str, Any]:
    """The file's own tree; empty for an empty file. Raises ConfigurationError when there is no such file, it
    is no YAML, or it is no mapping of sections."""
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise ConfigurationError([f"{path}: cannot be read: {error.strerror}"]) from error
    except yaml.MarkedYAMLError as error:
        while_doing = f" ({error.context})" if error.context else ""
        raise ConfigurationError([f"{path}{_line(error)}: {error.problem}{while_doing}"]) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigurationError([f"{path}: is not readable as YAML"]) from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigurationError([f"{path}: expected sections with keys"])
    return {str(key): value for key, value in tree.items()}


def _line(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark
    return f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""


# The environment's changes to the configuration tree.

# Two underscores at the end: a Kubernetes Service of our name sets MEMORY_EXTPROC_PORT and its like.
PREFIX = "MEMORY_EXTPROC__"


def lay_over(tree: dict[str, Any], environ: Mapping[str, str]) -> tuple[list[str], dict[Place, str]]:
    """Puts the environment's values into *tree*. Returns the faults met, and which variable set which place."""
    faults: list[str] = []
    sources: dict[Place, str] = {}
    named = {name: _place(name) for name in environ if name.upper().startswith(PREFIX)}
    # In order of place, so that a whole list comes before its entries and entry 2 before entry 10.
    for name, place in sorted(named.items(), key=lambda item: [(isinstance(key, str), key) for key in item[1]]):
        try:
            _put_value(tree, place, _value(_kind_at(place), environ[name]))
        except ValueError as error:
            faults.append(f"{name}: {error}")
        else:
            sources[place] = name
    return faults, sources


def _place(name: str) -> Place:
    keys = name[len(PREFIX) :].lower().split("__")
    return tuple(int(key) if key.isascii() and key.isdecimal() else key for key in keys)


def _kind_at(place: Place) -> Any:
    kind: Any = Settings
    for key in place:
        kind = child(kind, key)
    return kind


def _value(kind: Any, text: str) -> Any:
    """A string for pydantic to parse, or parsed JSON for a composite type. Raises ValueError."""
    if kind is None:
        return text
    if allows_none(kind) and text == "null":
        return None
    if not has_parts(kind):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("expected JSON, as for every list and mapping") from error


def _put_value(tree: dict[str, Any], place: Place, value: Any) -> None:
    node: Any = tree
    for key, following in pairwise(place):
        empty: Any = [] if isinstance(following, int) else {}
        node = _enter_key(node, key, empty)
    last = place[-1]
    if isinstance(node, list):
        _enter_key(node, last, None)
        node[int(last)] = value
    else:
        node[last] = value


def _enter_key(node: Any, key: str | int, empty: Any) -> Any:
    """The value at *key*, created if missing. Raises ValueError if that is impossible."""
    if isinstance(node, list):
        if not isinstance(key, int) or key > len(node):
            raise ValueError(f"the list has {len(node)} entries, so {key} cannot be the next")
        if key == len(node):
            node.append(empty)
        return node[key]
    if node.get(key) is None:
        node[key] = empty
    held = node[key]
    if not isinstance(held, dict | list):
        raise ValueError(f"{key} has a value, so nothing can stand within it")  # noqa: TRY004 - a fault, not a bug
    return held


# Describe faults of a configuration: the path, the fault, and its source.

Place = tuple[str | int, ...]

# Kinds of fault whose value is a number or a fixed word, and therefore safe to print.
_SHOWN = ("greater_than", "less_than", "literal_error", "enum", "int_", "float_", "bool_", "finite_number")
_LONGEST_SHOWN = 40


def path(place: Place) -> str:
    """`external_models[0].llm_endpoint.port`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).removeprefix(".")


def faults_of(error: ValidationError, under: Place, root: Any, sources: Mapping[Place, str]) -> list[str]:
    """A line for each faulty place, in the order of the configuration."""
    found: dict[Place, list[str]] = {}
    for each in error.errors(include_url=False):
        place, kind = _locate_fault((*under, *each["loc"]), root)
        # Entries that are at fault do not count, so pydantic also finds their list too short.
        if each["type"] == "too_short" and any(known[: len(place)] == place for known in found):
            continue
        if each["type"] == "extra_forbidden":
            found.setdefault(place, []).append(_unknown(place, root))
        else:
            found.setdefault(place, []).append(_describe_fault(each, kind))
    return [
        f"{path(place)}: {' or '.join(dict.fromkeys(messages))}{_source(place, sources)}"
        for place, messages in found.items()
    ]


def unknown_key(place: Place, root: Any, sources: Mapping[Place, str]) -> str:
    return f"{path(place)}: {_unknown(place, root)}{_source(place, sources)}"


def _locate_fault(location: Place, root: Any) -> tuple[Place, Any]:
    """The part of pydantic's location that exists in the file, and its type; the rest names the tried member of
    a union."""
    kind: Any = root
    place: Place = ()
    for key in location:
        inner = child(kind, key)
        if inner is None:
            known = any(is_section(each) for each in alternatives(kind))
            return ((*place, key) if known else place), kind
        place, kind = (*place, key), inner
    return place, kind


def _unknown(place: Place, root: Any) -> str:
    kind: Any = root
    for key in place[:-1]:
        kind = child(kind, key)
    section = next((each for each in alternatives(kind) if is_section(each)), None)
    near = difflib.get_close_matches(str(place[-1]).lower(), fields_of(section), n=1) if section else []
    return f"unknown key; did you mean {near[0]}?" if near else "unknown key"


def _describe_fault(error: ErrorDetails, kind: Any) -> str:
    if error["type"] == "missing":
        return "is missing"
    message = error["msg"].removeprefix("Value error, ")
    message = message.removeprefix("Input ")
    message = message[:1].lower() + message[1:]
    given = error["input"]
    secret = any(each is SecretStr for each in alternatives(kind))
    shown = error["type"].startswith(_SHOWN) and isinstance(given, str | int | float) and not secret
    if shown and len(str(given)) <= _LONGEST_SHOWN:
        message += f", found {given!r}" if isinstance(given, str) else f", found {given}"
    return message


def _source(place: Place, sources: Mapping[Place, str]) -> str:
    """Name the variable if the environment set this place or its parent."""
    for end in range(len(place), 0, -1):
        if place[:end] in sources:
            return f" (from {sources[place[:end]]})"
    return ""


# --- reload ------------------------------------------------------------------------------------------


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
