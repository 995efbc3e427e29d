"""Translate the vLLM semantic router's memory configuration into ours.

It reads configuration version v0.3 (`global.stores.memory`, and the `memory` plugins of the decisions under
`routing` and under `recipes`), also in the values of its chart, and the older `memory:` block at the top level.
Every key about memory gets one row. No row holds a secret."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from memory_extproc.errors import ConfigurationError

_VERSION = "v0.3"
DECISION_HEADER = "x-memory-decision"  # tells rules here which decision was taken


class Fate(StrEnum):
    """The fate of a key of the router's file."""

    CARRIED = "carried over"
    RENAMED = "another name"
    RULE = "a rule"
    ABSENT = "absent"  # the router's default holds
    BUILT_IN = "built in"  # always on
    DROPPED = "no counterpart"
    LOST = "lost"  # no counterpart, although an operator relies on it


@dataclass(frozen=True, slots=True)
class Row:
    """A key of the router's file with its path, its fate, and our key or the reason."""

    key: str
    fate: Fate
    note: str


@dataclass(slots=True)
class Imported:
    """Our configuration as a tree for YAML, and a row for each of the router's keys."""

    settings: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    @property
    def lost(self) -> bool:
        return any(row.fate is Fate.LOST for row in self.rows)


# The router's keys below `memory` → ours, where the value goes over as it is.
_SAME = {
    "enabled": "memory.enabled",
    "auto_store": "memory.auto_store",
    "extraction_batch_size": "memory.extraction_batch_size",
    "default_retrieval_limit": "memory.default_retrieval_limit",
    "default_similarity_threshold": "memory.default_similarity_threshold",
    "milvus.address": "memory.milvus.address",
    "milvus.collection": "memory.milvus.collection",
    "reflection.max_inject_tokens": "inject.token_budget",
    "reflection.block_patterns": "privacy.never_inject",
}
_NOTES = {
    "default_similarity_threshold": "a calibrated relevance here, not a cosine: measure before you rely on it",
    "milvus.collection": "the collection behind it has another schema: take memories over with `memory import`",
}
_BUILT_IN = {
    "hybrid_search": "recall always searches by words and by meaning",
    "hybrid_mode": "the searches are combined by fitted weights (recall.weights)",
    "adaptive_threshold": "a gate decides for each question whether anything is relevant",
    "reflection.enabled": "ranking, ageing and deduplication are always on",
    "reflection.algorithm": "ranking, ageing and deduplication are always on",
    "reflection.dedup_threshold": "repetitions are left out by their words",
    "quality_scoring.initial_strength_days": "see retention",
    "quality_scoring.prune_threshold": "see retention",
    "persistence": "accepted turns are journalled and learned in the background, within their own limits (journal)",
}
_DROPPED = {
    "milvus.num_partitions": "Milvus gets a partition key; see memory.milvus.layout",
    "embedding_model": "a model of the router's own; memory.embedding names ours, and memories are embedded anew",
    "embedding": "a model of the router's own; memory.embedding names ours, and memories are embedded anew",
    "milvus.dimension": "of the router's model; memory.embedding.dimension is ours",
    "redis_cache": "active callers' memories are held in process (recall.partition_bytes)",
    "valkey": "Milvus is the only store",
    "qdrant": "Milvus is the only store",
    "hierarchical_search": "all of an owner's memories are searched at once",
    "max_depth": "all of an owner's memories are searched at once",
}
_UNKNOWN = "a key that this version does not know"
_LOST = {"quality_scoring.max_memories_per_user": "no bound per user; retention ages memories instead"}
# The router reads 0 in these as absent, and then uses a default of its own.
_ZERO_IS_ABSENT = frozenset({
    "default_retrieval_limit", "default_similarity_threshold", "extraction_batch_size", "similarity_threshold",
    "reflection.max_inject_tokens", "reflection.recency_decay_days",
})  # fmt: skip


_IN_VALUES = frozenset({"config", "configOverride"})
# Sections that only the router's file has; the last four of versions before v0.3.
_SECTIONS = frozenset({
    *_IN_VALUES, "global", "routing", "recipes", "providers", "kind", "plugin", "decisions",
    "vllm_endpoints", "model_config", "semantic_cache",
})  # fmt: skip
_SHARED_SECTIONS = frozenset({"memory", "external_models", "api", "signals"})  # in both files


def accept_router_keys(tree: Mapping[str, Any], sections: Container[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Translate *tree* if it is the router's file, or the router's keys in the `memory` section of ours.

    *sections*: the names of ours. Returns our tree and a notice for each key that was not carried over unchanged.
    Raises ConfigurationError for a key that has no counterpart although an operator relies on it."""
    if not _SECTIONS.isdisjoint(tree):
        ignored = [key for key in tree if key in sections and key not in _SHARED_SECTIONS]
        is_values = not _IN_VALUES.isdisjoint(tree)  # a chart's values have names of their own beside the file
        if ignored and not is_values:
            advice = "not read in the semantic router's file; translate that by `config import`, then add this"
            raise ConfigurationError([f"{key}: {advice}" for key in ignored])
        found, ours = import_configuration(tree), dict[str, Any]()
    else:
        found, ours = _translate_strange_keys(tree)
    lost = [f"{row.key}: {row.note}" for row in found.rows if row.fate is Fate.LOST]
    if lost:
        raise ConfigurationError(lost)
    _merge(ours, found.settings)
    told = [row for row in found.rows if row.fate is not Fate.CARRIED]
    return ours, tuple(f"{row.key}: the semantic router's key; {row.fate}: {row.note}" for row in told)


# Without the keys that our own `memory` section has under the same name.
_TRANSLATED = frozenset({*_BUILT_IN, *_DROPPED, *_LOST, *_SAME}) - {"embedding", "milvus.dimension"}


def _translate_strange_keys(tree: Mapping[str, Any]) -> tuple[Imported, dict[str, Any]]:
    """Takes keys that only the router has out of the `memory` section. Unknown keys stay, and are faults later."""
    found, ours = Imported(), copy.deepcopy(dict(tree))
    models = ours.get("external_models")
    if isinstance(models, list) and any(isinstance(one, dict) and "llm_provider" in one for one in models):
        _translate_models(found, ours.pop("external_models"), "external_models")
    memory = ours.get("memory")
    if not isinstance(memory, dict):
        return found, ours
    for key, value in list(_flatten(memory)):
        strange = (key in _TRANSLATED and not _SAME.get(key, "").startswith("memory.")) or key in _SPECIAL
        if strange:
            _translate(found, "memory", key, value)
            section, _, inner = key.rpartition(".")
            holder = memory[section] if section else memory
            del holder[inner]
    for section in ("reflection", "quality_scoring"):
        if memory.get(section) == {}:
            del memory[section]
    return found, ours


def _merge(ours: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Adds the values of *more* that *ours* does not have. Rules are appended."""
    for key, value in more.items():
        if isinstance(value, Mapping):
            held = ours.setdefault(key, {})
            if isinstance(held, dict):
                _merge(held, value)
        elif isinstance(value, list) and isinstance(ours.get(key), list):
            ours[key].extend(value)
        else:
            ours.setdefault(key, value)


def import_configuration(tree: Mapping[str, Any]) -> Imported:
    """Translate *tree*, the router's file. Raises ConfigurationError if it holds no memory configuration, or if a
    part of it does not have the router's form."""
    found = Imported()
    tree = router_file(tree)
    if str(tree.get("version", _VERSION)) != _VERSION:
        found.rows.append(Row("version", Fate.DROPPED, f"read as {_VERSION}, the version that was checked"))
    place, memory = _memory_block(tree)
    if "memory" in tree and place != "memory":
        found.rows.append(Row("memory", Fate.DROPPED, f"{place} counts"))
    decisions, external = _decisions(tree), tuple(_external_models(tree))
    if memory is None and not decisions and not external:
        raise ConfigurationError(
            ["no memory configuration found: expected global.stores.memory, memory, or a decision's memory plugin"]
        )
    common = dict(_flatten(memory or {}))
    for key, value in common.items():
        _translate(found, place, key, value)
    for key in ("enabled", "auto_store"):
        if key not in common:
            _put(found.settings, _SAME[key], value=False)
            found.rows.append(Row(f"{place}.{key}", Fate.ABSENT, f"{_SAME[key]}: false, the router's default"))
    settings = found.settings["memory"]
    only = settings.get("enabled") is False and any(_is_on(plugin) for _, plugin in decisions)
    for decision, plugin in decisions:
        _translate_decision(found, decision, plugin, common, otherwise=settings if only else {})
    if only:
        settings["enabled"] = True
        _add_rule(found, f"{place}.enabled, for all but these decisions", {"path": "*"}, _OFF)
    for at, models in external:
        _translate_models(found, models, at)
    return found


def _external_models(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The lists of language models, each with its path: of version v0.3, and of older files."""
    catalog = as_mapping(as_mapping(tree.get("global"), "global").get("model_catalog"), "global.model_catalog")
    if "external" in catalog:
        yield "global.model_catalog.external", catalog["external"]
    if "external_models" in tree:
        yield "external_models", tree["external_models"]
    at = "providers.external_models"
    listed = as_list(as_mapping(tree.get("providers"), "providers").get("external_models"), at)
    if listed:
        yield at, [_as_of_v03(each, f"{at}[{number}]") for number, each in enumerate(listed)]


# Keys of a language model in version v0.1 → since v0.3.
_OF_V01 = {
    "provider": "llm_provider", "role": "model_role", "model_name": "llm_model_name",
    "timeout_seconds": "llm_timeout_seconds",
}  # fmt: skip


def _as_of_v03(listed: Any, at: str) -> dict[str, Any]:
    """A model of version v0.1, whose endpoint is `host:port` or a URL, in the form of v0.3."""
    model = {_OF_V01.get(key, key): value for key, value in as_mapping(listed, at).items()}
    endpoint = model.pop("endpoint", None)
    protocol, _, address = endpoint.rpartition("://") if isinstance(endpoint, str) else ("", "", "")
    host, _, port = address.partition("/")[0].rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigurationError([f"{at}.endpoint: expected host:port"])
    model["llm_endpoint"] = {"address": host, "port": int(port), **({"protocol": protocol} if protocol else {})}
    return model


def _memory_block(tree: Mapping[str, Any]) -> tuple[str, Mapping[str, Any] | None]:
    stores = as_mapping(as_mapping(tree.get("global"), "global").get("stores"), "global.stores")
    if "memory" in stores:
        return "global.stores.memory", as_mapping(stores["memory"], "global.stores.memory")
    if "memory" in tree:
        return "memory", as_mapping(tree["memory"], "memory")
    return "global.stores.memory", None


def _decisions(tree: Mapping[str, Any]) -> list[tuple[RouterDecision, Mapping[str, Any]]]:
    """The decisions that have a memory plugin, each with the plugin's configuration."""
    return [(each, plugin) for each in decisions_of(tree) if (plugin := _memory_plugin(each)) is not None]


def _memory_plugin(decision: RouterDecision) -> Mapping[str, Any] | None:
    for number, plugin in enumerate(as_list(decision.body.get("plugins"), f"{decision.at}.plugins")):
        place = f"{decision.at}.plugins[{number}]"
        if as_mapping(plugin, place).get("type") == "memory":
            return as_mapping(plugin.get("configuration"), f"{place}.configuration")
    return None


def _is_on(plugin: Mapping[str, Any]) -> bool:
    """Whether a memory plugin switches memory on. The router reads a missing `enabled` as false."""
    return plugin.get("enabled") is True


def _flatten(block: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys of *block* with their values, nulls left out; sections that are translated key by key are flattened."""
    for key, value in block.items():
        if key in {"milvus", "reflection", "quality_scoring"} and isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", each) for inner, each in value.items() if each is not None)
        elif value is not None:
            yield key, value


def _translate(found: Imported, place: str, key: str, value: Any) -> None:
    at = f"{place}.{key}"
    if _is_absent(key, value):
        found.rows.append(Row(at, Fate.DROPPED, "0 stands for the router's default; ours holds"))
    elif key in _SAME:
        ours = _SAME[key]
        _put(found.settings, ours, value)
        fate = Fate.CARRIED if ours.endswith(key) else Fate.RENAMED
        found.rows.append(Row(at, fate, f"{ours}; {_NOTES[key]}" if key in _NOTES else ours))
    elif key in _SPECIAL:
        _SPECIAL[key](found, at, value)
    elif key in _BUILT_IN:
        found.rows.append(Row(at, Fate.BUILT_IN, _BUILT_IN[key]))
    elif key in _DROPPED:
        found.rows.append(Row(at, Fate.DROPPED, _DROPPED[key]))
    elif key in _LOST:
        found.rows.append(Row(at, Fate.LOST, _LOST[key]))
    else:
        found.rows.append(Row(at, Fate.LOST, _UNKNOWN))


def _is_absent(key: str, value: Any) -> bool:
    return key in _ZERO_IS_ABSENT and type(value) in {int, float} and value == 0


def _backend(found: Imported, at: str, value: Any) -> None:
    if value == "milvus":
        found.rows.append(Row(at, Fate.BUILT_IN, "Milvus is the only store"))
    else:
        found.rows.append(Row(at, Fate.LOST, "Milvus is the only store; without an address a local file serves"))


def _half_life(found: Imported, at: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ConfigurationError([f"{at}: expected a number of days above 0"])
    _put(found.settings, "recall.half_life", f"{value:g}d")
    found.rows.append(Row(at, Fate.RENAMED, "recall.half_life"))


def _disabled_routes(found: Imported, at: str, value: Any) -> None:
    for number, path in enumerate(as_list(value, at)):
        _add_rule(found, f"{at}[{number}]", {"path": _literal(path, f"{at}[{number}]")}, _OFF, _PATH_NOTE)


def _disabled_models(found: Imported, at: str, value: Any) -> None:
    for number, model in enumerate(as_list(value, at)):
        _add_rule(found, f"{at}[{number}]", {"model": _literal(model, f"{at}[{number}]")}, _OFF)


_OFF = {"retrieve": "skip", "store": "skip"}
_PATH_NOTE = "; the path that memory sees: behind the router that is the one it sends on (/v1/chat/completions)"
_SPECIAL: Mapping[str, Callable[[Imported, str, Any], None]] = {
    "backend": _backend,
    "reflection.recency_decay_days": _half_life,
    "disabled_routes": _disabled_routes,
    "disabled_models": _disabled_models,
}
# Keys of a language model that only other roles, or only the router's client, have a use for.
_OF_OTHER_MODELS = frozenset({
    "llm_provider", "parser_type", "threshold", "name", "use_chat_template", "prompt_template", "max_request_bytes",
    "max_response_bytes",
})  # fmt: skip
_OF_A_MODEL = ("llm_timeout_seconds", "max_tokens", "temperature")  # 0 is absent, too
# Keys of a decision's plugin → keys of a rule.
_OF_DECISION = {
    "retrieval_limit": "limit", "similarity_threshold": "threshold", "reflection.max_inject_tokens": "token_budget",
}  # fmt: skip


def _translate_decision(
    found: Imported,
    decision: RouterDecision,
    plugin: Mapping[str, Any],
    common: Mapping[str, Any],
    *,
    otherwise: Mapping[str, Any],
) -> None:
    """A decision shows itself to us by a header that its `header_mutation` plugin sets. *common*: the keys that
    hold for all requests. *otherwise*: the settings of memory if it is on for decisions alone; then each of them
    needs a rule."""
    at, then = decision.at, dict[str, Any]()
    for key, value in _flatten(plugin):
        if _is_absent(key, value):
            continue
        if key in _OF_DECISION:
            then[_OF_DECISION[key]] = value
        elif key not in {"enabled", "auto_store"}:
            fate, note = _fate_in_decision(key, value, common)
            found.rows.append(Row(f"{at}: memory.{key}", fate, note))
    stores = plugin.get("auto_store")
    if stores is None and otherwise:
        stores = otherwise.get("auto_store") is True
    if not _is_on(plugin):
        then |= _OFF
    elif stores is not None:
        then["store"] = "force" if stores is True else "skip"
    if then:
        _add_rule(
            found, f"{at} ({decision.name})", {"header": {DECISION_HEADER: _literal(decision.header, at)}}, then
        )
        found.rows.append(
            Row(
                f"{at}.plugins",
                Fate.RULE,
                "add to this decision in the router: {type: header_mutation, configuration: {update: [{name: "
                f"{DECISION_HEADER}, value: {json.dumps(decision.header, ensure_ascii=False)}}}]}}}}",
            )
        )


def _fate_in_decision(key: str, value: Any, common: Mapping[str, Any]) -> tuple[Fate, str]:
    """The fate of a plugin's key that no rule can hold: one value for all requests is the most there can be."""
    if key in _BUILT_IN:
        return Fate.BUILT_IN, _BUILT_IN[key]
    if key in _DROPPED:
        return Fate.DROPPED, _DROPPED[key]
    if key not in _SAME and key not in _SPECIAL:
        return Fate.LOST, _UNKNOWN
    ours = _SAME.get(key, "recall.half_life")
    if key in common and common[key] == value:
        return Fate.BUILT_IN, f"{ours}: as for all requests"
    return Fate.LOST, f"{ours}: one for all requests here"


def _translate_models(found: Imported, models: Any, place: str) -> None:
    """Memory models have the same names in both; models of other roles do not concern memory."""
    ours = []
    for number, listed in enumerate(as_list(models, place)):
        at = f"{place}[{number}]"
        model = dict(as_mapping(listed, at))
        role = str(model.get("model_role", ""))
        if not role.startswith("memory_"):
            found.rows.append(Row(at, Fate.DROPPED, "not a model for memory"))
            continue
        endpoint = dict(as_mapping(model.get("llm_endpoint"), f"{at}.llm_endpoint"))
        if "access_key" in model:
            endpoint["access_key"] = model.pop("access_key")
            found.rows.append(Row(f"{at}.access_key", Fate.RENAMED, "llm_endpoint.access_key"))
        model["llm_endpoint"] = endpoint
        if "reasoning" in model:
            effort = as_mapping(model.pop("reasoning"), f"{at}.reasoning").get("reasoning_effort")
            model |= {"reasoning_effort": effort} if effort else {}
            found.rows.append(
                Row(f"{at}.reasoning", Fate.RENAMED, "reasoning_effort; see extra_body for other fields")
            )
        for key in _OF_A_MODEL:
            if key in model and model[key] in {0, None}:
                del model[key]
        for holder, inner in ((model, ""), (endpoint, ".llm_endpoint")):
            for key in _OF_OTHER_MODELS.intersection(holder):
                del holder[key]
                found.rows.append(
                    Row(f"{at}{inner}.{key}", Fate.DROPPED, "memory reads any OpenAI-compatible answer")
                )
        ours.append(model)
        found.rows.append(Row(at, Fate.CARRIED, f"external_models, role {role}"))
    if ours:
        found.settings["external_models"] = ours


def without_secrets(settings: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """*settings* to be written out, without access keys, and whether there were any."""
    written = copy.deepcopy(dict(settings))
    keys = [model["llm_endpoint"].pop("access_key", "") for model in written.get("external_models", ())]
    return written, any(keys)


def _add_rule(found: Imported, at: str, when: Mapping[str, Any], then: Mapping[str, Any], note: str = "") -> None:
    found.settings.setdefault("rules", []).append({"when": dict(when), "then": dict(then)})
    found.rows.append(Row(at, Fate.RULE, f"rules[{len(found.settings['rules']) - 1}]{note}"))


def _literal(name: Any, at: str) -> str:
    """A glob that matches *name* alone."""
    if not isinstance(name, str) or not name:
        raise ConfigurationError([f"{at}: expected a name"])
    return re.sub(r"[*?\[]", r"[\g<0>]", name)


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[last] = value


# The decisions of the router's file.


@dataclass(frozen=True, slots=True)
class RouterDecision:
    """A decision of the router's file, with its path and the recipe that it belongs to."""

    at: str
    recipe: str  # its name; empty: the file's own routing
    name: str
    header: str  # value of DECISION_HEADER: the name, after the recipe's where two recipes share it
    body: Mapping[str, Any]


def router_file(tree: Any) -> Mapping[str, Any]:
    """The router's own file in *tree*, which may be the values of its chart. ConfigurationError for other forms."""
    tree = as_mapping(tree, "the file")
    if "kind" in tree and "apiVersion" in tree:
        inside = "in a ConfigMap the text under `data`, otherwise `spec.config`"
        kind = tree["kind"] if str(tree["kind"]).isalnum() else "kind"
        raise ConfigurationError([f"{kind}: a Kubernetes object; give the router's own file ({inside})"])
    if "plugin" in tree:
        raise ConfigurationError(["plugin: a part of a decision; give the router's whole file"])
    # The chart's `global` is Helm's, with an image registry.
    inner = tree.get("configOverride") or tree.get("config")
    return inner if isinstance(inner, Mapping) and not tree.keys() & {"routing", "recipes", "version"} else tree


def decisions_of(tree: Mapping[str, Any]) -> list[RouterDecision]:
    """The decisions of the router's file: of its own routing (older versions: at the top) and of each recipe."""
    routing = as_mapping(tree.get("routing"), "routing")
    where = "routing.decisions" if "decisions" in routing else "decisions"
    found = [("", where, as_list(routing.get("decisions", tree.get("decisions")), where))]
    for number, each in enumerate(as_list(tree.get("recipes"), "recipes")):
        at = f"recipes[{number}]"
        recipe = as_mapping(each, at)
        listed = as_mapping(recipe.get("routing"), f"{at}.routing").get("decisions")
        found.append((_name(recipe, at), f"{at}.routing.decisions", as_list(listed, f"{at}.routing.decisions")))
    named = [
        (f"{where}[{number}]", recipe, as_mapping(each, f"{where}[{number}]"))
        for recipe, where, listed in found
        for number, each in enumerate(listed)
    ]
    count = Counter(_name(body, at) for at, _, body in named)
    return [
        RouterDecision(at, recipe, name, (f"{recipe}/{name}" if recipe and count[name] > 1 else name).strip(), body)
        for at, recipe, body in named
        for name in (_name(body, at),)
    ]


def _name(of: Mapping[str, Any], at: str) -> str:
    name = of.get("name")
    if not isinstance(name, str) or not name.isprintable() or not name:
        raise ConfigurationError([f"{at}.name: expected a printable name"])
    return name


def as_mapping(value: Any, at: str) -> Mapping[str, Any]:
    """*value*, empty for null. ConfigurationError with the path *at* if it is no mapping."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigurationError([f"{at}: expected a mapping"])
    return value


def as_list(value: Any, at: str) -> Sequence[Any]:
    """As `as_mapping`, for a list."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ConfigurationError([f"{at}: expected a list"])
    return value
