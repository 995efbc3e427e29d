"""Writes helm/memory-extproc/values.schema.json: closed, from the program's own settings where the two overlap.

`python scripts/make_chart_schema.py` writes it; with `--check` it says whether it is up to date and exits 1 if not.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from memory_extproc.settings import Settings

CHART = Path(__file__).parents[1] / "helm" / "memory-extproc"
TARGET = CHART / "values.schema.json"
Schema = dict[str, Any]

# The chart says these itself, from its own values.
_CHARTS_OWN = ("listen", "tls", "data_dir", "shutdown")
# Settings that name a file though their names do not say so.
_FILES = frozenset({r"forget\.signing_key"})
_NAME = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"  # as of an object of Kubernetes; the templates cut what is too long
_DURATION = {"type": "string", "pattern": r"^[0-9]+(ms|s|m|h)$"}
_LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_COUNT = {"type": "integer", "minimum": 0}
_FREE_LIST = {"type": "array", "items": {"type": "object"}}


def _one_of(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


_SCALING: dict[str, Schema] = {
    "minReplicas": {"type": "integer", "minimum": 1},
    "maxReplicas": {"type": "integer", "minimum": 1},
    "cpu": {"type": "integer", "minimum": 0, "maximum": 100},
    "recallSaturation": {"type": "integer", "minimum": 0, "maximum": 100},
    "journalDepth": _COUNT,
    "keda.prometheus": {"type": "string", "pattern": "^(https?://.+)?$"},
    "keda.journalAge": {"type": "integer", "minimum": 1},
    "behavior": {"type": "object"},
}

# Details that the values do not show: words to choose from, ranges, and objects that Kubernetes checks.
_SAID: dict[str, Schema] = {
    "mode": _one_of("deployment", "sidecar", "daemonset"),
    "replicas": {"type": "integer", "minimum": 0},
    "nameOverride": {"type": "string", "pattern": _NAME},
    "fullnameOverride": {"type": "string", "pattern": _NAME},
    "image.digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    "image.repository": {"type": "string", "minLength": 1},
    "image.pullPolicy": _one_of("Always", "IfNotPresent", "Never"),
    "imagePullSecrets": {"type": "array", "items": {"type": "string"}},
    "commonLabels": _LABELS,
    "annotations": _LABELS,
    "ports.extProc": _PORT,
    "ports.api": _PORT,
    "ports.console": _PORT,
    "ports.http": _PORT,
    "api.route.hostnames": {"type": "array", "items": {"type": "string", "minLength": 1}},
    "service.annotations": _LABELS,
    "service.labels": _LABELS,
    "tls.allowedNames": {"type": "array", "items": {"type": "string", "minLength": 1}},
    "tls.certManager.issuerRef.kind": _one_of("Issuer", "ClusterIssuer"),
    "tls.certManager.duration": _DURATION,
    "tls.certManager.renewBefore": _DURATION,
    "gateway.type": _one_of("none", "raw", "envoy-gateway", "envoy-ai-gateway", "istio", "vllm-semantic-router"),
    "gateway.name": {"type": "string", "minLength": 1},
    "gateway.targetRefs": {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["kind", "name"],
            "additionalProperties": False,
            "properties": {
                "group": {"type": "string"},
                "kind": _one_of("Gateway", "HTTPRoute", "GRPCRoute"),
                "name": {"type": "string", "minLength": 1},
                "sectionName": {"type": "string", "minLength": 1},
            },
        },
    },
    "gateway.istio.selector": _LABELS,
    "gateway.istio.mesh": _one_of("none", "sidecar", "ambient"),
    "gateway.mergeType": _one_of("", "StrategicMerge", "JSONMerge"),
    "gateway.messageTimeout": {"type": "string", "pattern": "^([0-9]+s)?$"},
    "gateway.bodies": _one_of("buffered", "full-duplex"),
    "gateway.bufferLimit": {"type": "integer", "minimum": 65536},
    "gateway.maxStreams": {"type": "integer", "minimum": 1},
    "gateway.streamIdleTimeout": _DURATION,
    "gateway.requestTimeout": _DURATION,
    "gateway.identity.mode": _one_of("strip", "jwt", "trust"),
    "persistence.size": {"type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?(Mi|Gi|Ti|M|G|T)$"},
    "persistence.accessModes": {
        "type": "array",
        "minItems": 1,
        "items": _one_of("ReadWriteOnce", "ReadWriteOncePod"),
    },
    "persistence.annotations": _LABELS,
    "backup.keep": {"type": "integer", "minimum": 1},
    "restore.folder": {"type": "string", "pattern": r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$"},
    "drain.longestStream": _COUNT,
    "drain.announce": {"type": "integer", "minimum": 1},
    "drain.flush": _COUNT,
    "drain.preStop": {"type": "integer", "minimum": 1},
    "resources": {
        "type": "object",
        "properties": {
            each: {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
            for each in ("requests", "limits")
        },
        "additionalProperties": False,
    },
    "strategy": {"type": "object"},
    "dnsConfig": {"type": "object"},
    "dnsPolicy": _one_of("", "ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    "hostAliases": _FREE_LIST,
    "lifecycle": {"type": "object"},
    "podAnnotations": _LABELS,
    "podLabels": _LABELS,
    "nodeSelector": _LABELS,
    "tolerations": _FREE_LIST,
    "affinity": {"type": "object"},
    "topologySpreadConstraints": _FREE_LIST,
    "podSecurityContext": {"type": "object"},
    "securityContext": {"type": "object"},
    "serviceAccount.annotations": _LABELS,
    "podDisruptionBudget.maxUnavailable": {"type": "integer", "minimum": 1},
    **{f"autoscaling.{name}": schema for name, schema in _SCALING.items()},
    **{f"learner.autoscaling.{name}": schema for name, schema in _SCALING.items() if name != "recallSaturation"},
    "learner.replicas": _COUNT,
    "learner.resources": {"type": "object"},
    "networkPolicy.from": _FREE_LIST,
    "networkPolicy.metricsFrom": _FREE_LIST,
    "networkPolicy.apiFrom": _FREE_LIST,
    "networkPolicy.dns": _FREE_LIST,
    "networkPolicy.to": _FREE_LIST,
    "metrics.serviceMonitor.interval": _DURATION,
    "metrics.serviceMonitor.labels": _LABELS,
    "metrics.serviceMonitor.metricRelabelings": _FREE_LIST,
    "metrics.podMonitor.interval": _DURATION,
    "metrics.podMonitor.labels": _LABELS,
    "metrics.rules.labels": _LABELS,
    "metrics.rules.runbookUrl": {"type": "string", "pattern": "^https?://"},
    "metrics.dashboards.labels": _LABELS,
    "metrics.dashboards.annotations": _LABELS,
    "socketPath": {"type": "string", "pattern": "^/"},
    "extraArgs": {"type": "array", "items": {"type": "string"}},
    **dict.fromkeys(
        (
            *("extraEnv", "extraEnvFrom", "extraVolumes", "extraVolumeMounts"),
            *("extraContainers", "initContainers", "extraObjects"),
        ),
        _FREE_LIST,
    ),
}


def schema() -> Schema:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    program = Settings.model_json_schema(by_alias=True)
    definitions = program.pop("$defs")
    settings = {name: one for name, one in program["properties"].items() if name not in _CHARTS_OWN}
    unused = set(_SAID)
    shape = _shape(values, "", unused)
    if unused:
        raise SystemExit(f"no such value: {', '.join(sorted(unused))}")
    shape["properties"]["config"] = {
        "type": "object",
        "description": "config.yaml of the sidecar",
        "properties": {
            **settings,
            # refused in the templates, with a sentence that says what to use
            **{name: {"type": "object"} for name in _CHARTS_OWN if name != "data_dir"},
            "data_dir": {"type": "string"},
        },
        "additionalProperties": False,
    }
    shape["properties"]["secrets"] = _secrets(settings, definitions)
    shape["properties"]["global"] = {"type": "object"}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart memory-extproc",
        **shape,
        "$defs": _helm_reads(definitions),
    }


def _shape(value: Any, path: str, unused: set[str]) -> Schema:
    if path in _SAID:
        unused.discard(path)
        return _SAID[path]
    match value:
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case str():
            return {"type": "string"}
        case list():
            return {"type": "array"}
        case dict():
            below = {key: _shape(each, f"{path}.{key}" if path else key, unused) for key, each in value.items()}
            return {"type": "object", "properties": below, "additionalProperties": False}
    raise SystemExit(f"{path}: nothing is known of {value!r}")


def _secrets(settings: Schema, definitions: Schema) -> Schema:
    return {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["setting", "secretName", "key"],
            "additionalProperties": False,
            "properties": {
                "setting": {"type": "string", "pattern": f"^({'|'.join(_files(settings, definitions))})$"},
                "secretName": {"type": "string", "minLength": 1},
                "key": {"type": "string", "minLength": 1},
            },
        },
    }


def _files(properties: Schema, definitions: Schema, above: str = "") -> list[str]:
    """Patterns of the settings that name a file: keys, tokens, passwords."""
    found: list[str] = []
    for name, one in properties.items():
        of_list = one.get("type") == "array"
        reference = (one.get("items", {}) if of_list else one).get("$ref") or next(
            (each["$ref"] for each in one.get("anyOf", []) if "$ref" in each), None
        )
        path = f"{above}{name}"
        if name.endswith("_file") or path in _FILES:
            found.append(path)
        elif reference:
            below = definitions[reference.rsplit("/", 1)[1]].get("properties", {})
            found.extend(_files(below, definitions, f"{path}\\.[0-9]+\\." if of_list else f"{path}\\."))
    return sorted(found)


def _helm_reads(definitions: Schema) -> Schema:
    """Go's regular expressions know no look-around; what the program checks with it, it checks at its start."""

    def reads(one: Any) -> Any:
        if isinstance(one, dict):
            return {key: reads(each) for key, each in one.items() if not (key == "pattern" and "(?" in str(each))}
        return [reads(each) for each in one] if isinstance(one, list) else one

    read: Schema = reads(definitions)
    return read


def main() -> None:
    text = json.dumps(schema(), indent=2) + "\n"
    if sys.argv[1:] == ["--check"]:
        if TARGET.read_text() != text:
            raise SystemExit(f"{TARGET.name} is not what the settings say: python scripts/make_chart_schema.py")
        return
    TARGET.write_text(text)


if __name__ == "__main__":
    main()
