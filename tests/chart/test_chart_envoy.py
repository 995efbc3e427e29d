"""The Envoy configuration that the chart writes: taken by the real Envoy, and no other than envoy-config's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.chart import CHART, ROOT, documents, one, rendered

ENVOY = Path(os.environ.get("MEMORY_EXTPROC_ENVOY", ROOT / ".tools/envoy/envoy/_bin/envoy"))
Tree = dict[str, Any]
SHARING = [
    "api.enabled=true",
    "config.api.auth={trusted_proxy}",
    "config.api.insecure=true",
    "config.api.audit.directory=/audit",
    "api.route.enabled=true",
    "api.route.hostnames={memory.example.com}",
    "api.route.page=true",
    "config.identity.metadata_projects=envoy.filters.http.ext_authz:groups.projects",
    "config.api.trusted_proxy.projects_header=X-Authz-Projects",
]


def blocks(*settings: str, values: str = "raw-tls.yaml") -> dict[str, Any]:
    """The ConfigMap's parts by their keys, read as YAML."""
    trees = documents(rendered(CHART / "ci" / values, settings=settings))
    name = one(trees, "Service")["metadata"]["name"] if any(each["kind"] == "Service" for each in trees) else ""
    data = one(trees, "ConfigMap", f"{name or 'test-memory-extproc'}-envoy")["data"]
    return {key: yaml.safe_load(text) for key, text in data.items()}


def bootstrap(parts: dict[str, Any]) -> Tree:
    """The parts where their comments say that they belong."""
    filters = [
        *(parts["1-at-the-edge.yaml"] or []),
        *parts.get("2-before-the-router.yaml", []),
        *parts["3-memory.yaml"],
        {
            "name": "envoy.filters.http.router",
            "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
        },
    ]
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
        ".HttpConnectionManager",
        "stat_prefix": "test",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [
                        *parts.get("6-routes.yaml", []),
                        {"match": {"prefix": "/"}, "direct_response": {"status": 200}},
                    ],
                }
            ]
        },
        "http_filters": filters,
    }
    listener = {
        "name": "test",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
        **parts["5-listener.yaml"],
    }
    return {"static_resources": {"listeners": [listener], "clusters": parts["4-cluster.yaml"]}}


def checked(tree: Tree, tmp_path: Path) -> None:
    path = tmp_path / "envoy.json"
    path.write_text(json.dumps(tree))
    run = subprocess.run(
        [str(ENVOY), "--mode", "validate", "-l", "error", "-c", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("values", "settings"),
    [
        ("sidecar-raw.yaml", []),
        ("default.yaml", ["gateway.type=raw"]),
        ("default.yaml", ["gateway.type=raw", "gateway.affinity.enabled=true"]),
        ("default.yaml", ["gateway.type=raw", "gateway.bodies=full-duplex"]),
        ("default.yaml", ["gateway.type=raw", "gateway.bodies=full-duplex", "gateway.observe.enabled=true"]),
        ("semantic-router.yaml", []),
        ("default.yaml", ["gateway.type=raw", "gateway.observe.enabled=true"]),
        ("sidecar-raw.yaml", ["gateway.observe.enabled=true"]),
        ("semantic-router.yaml", ["gateway.observe.enabled=true", "gateway.stripControlHeaders=true"]),
        ("sidecar-raw.yaml", SHARING),
    ],
)
def test_envoy_takes_the_blocks(values: str, settings: list[str], tmp_path: Path) -> None:
    checked(bootstrap(blocks(*settings, values=values)), tmp_path)


def test_projects_are_named_to_the_api_as_envoy_config_does_and_by_no_client(tmp_path: Path) -> None:
    parts = blocks(*SHARING, values="sidecar-raw.yaml")
    strips = parts["1-at-the-edge.yaml"][0]["typed_config"]["mutations"]["request_mutations"]
    assert {"remove": "x-authz-projects"} in strips
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({
        "identity": {"metadata_projects": "envoy.filters.http.ext_authz:groups.projects"},
        "api": {"trusted_proxy": {"projects_header": "x-authz-projects"}}, "console": {"page": True},
    }))  # fmt: skip
    [ours] = written("--rest", "--config", str(path), "--shape", "filter", "--identity", "strip")
    added = [route["request_headers_to_add"] for route in ours["routes"]]
    assert len(added) == len(parts["6-routes.yaml"]) == 3
    for route, same in zip(parts["6-routes.yaml"], added, strict=True):
        assert route["request_headers_to_add"] == same


def patched(values: str, *settings: str) -> list[Tree]:
    trees = documents(rendered(CHART / "ci" / values, settings=settings))
    patches: list[Tree] = one(trees, "EnvoyFilter")["spec"]["configPatches"]
    return patches


@pytest.mark.parametrize("settings", [[], ["gateway.observe.enabled=true"]], ids=["one filter", "two filters"])
@pytest.mark.parametrize("values", ["istio-tls.yaml", "daemonset.yaml"])
def test_envoy_takes_what_istio_is_told_to_patch(values: str, settings: list[str], tmp_path: Path) -> None:
    """The filters as they stand; the cluster's part beside what Istio itself says of it."""
    patches = patched(values, *settings)
    filters = [each["patch"]["value"] for each in patches if each["applyTo"] == "HTTP_FILTER"]
    cluster = next(each["patch"]["value"] for each in patches if each["applyTo"] == "CLUSTER")
    listener = next(each["patch"]["value"] for each in patches if each["applyTo"] == "LISTENER")
    [memory] = [each for each in filters if each["name"] == "memory"]
    name = memory["typed_config"]["grpc_service"]["envoy_grpc"]["cluster_name"]
    istios = {
        "name": name,
        "type": "STRICT_DNS",
        "load_assignment": {"cluster_name": name},
        **blocks("gateway.type=raw", values="default.yaml")["4-cluster.yaml"][0],
    }
    parts = {
        "1-at-the-edge.yaml": filters[:1],
        "3-memory.yaml": filters[1:],
        "4-cluster.yaml": [{**istios, "name": name, **cluster}],
        "5-listener.yaml": listener,
    }
    checked(bootstrap(parts), tmp_path)


def written(*arguments: str) -> list[Tree]:
    command = [sys.executable, "-m", "memory_extproc", "envoy-config", *arguments]
    command += [] if "--rest" in arguments else ["--no-rest"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return documents(run.stdout)


def test_the_memory_filter_is_the_one_that_envoy_config_writes() -> None:
    [ours] = [
        each
        for each in blocks("gateway.type=raw", values="default.yaml")["3-memory.yaml"]
        if each["name"] == "memory"
    ]
    [theirs] = [each for each in written("--shape", "filter")[0]["http_filters"] if each["name"] == "memory"]
    assert ours == theirs


def test_the_memory_filter_for_full_duplex_is_the_one_that_envoy_config_writes() -> None:
    parts = blocks("gateway.type=raw", "gateway.bodies=full-duplex", values="default.yaml")["3-memory.yaml"]
    [ours] = [each for each in parts if each["name"] == "memory"]
    filters = written("--shape", "filter", "--bodies", "full-duplex")[0]["http_filters"]
    assert ours["typed_config"]["processing_mode"]["request_body_mode"] == "FULL_DUPLEX_STREAMED"
    assert [ours] == [each for each in filters if each["name"] == "memory"]


def test_the_cluster_is_the_one_that_envoy_config_writes() -> None:
    [ours] = blocks("gateway.type=raw", values="default.yaml")["4-cluster.yaml"]
    [theirs] = written("--shape", "filter")[0]["clusters"]
    for tree in (ours, theirs):
        del tree["load_assignment"]
        del tree["type"]
    assert ours == theirs


def policy(trees: list[Tree], kind: str) -> Tree:
    spec: Tree = one(trees, kind)["spec"]
    spec.pop("targetRefs")
    return spec


@pytest.mark.parametrize("kind", ["EnvoyExtensionPolicy", "ClientTrafficPolicy", "BackendTrafficPolicy"])
def test_envoy_gateways_policies_are_those_that_envoy_config_writes(kind: str) -> None:
    ours = documents(rendered(settings=["gateway.type=envoy-gateway"]))
    theirs = written("--shape", "envoy-gateway", "--sidecar", "test-memory-extproc.memory:50051")
    assert policy(ours, kind) == policy(theirs, kind)


def test_istios_patches_are_those_that_envoy_config_writes_and_one_more() -> None:
    ours = patched("daemonset.yaml")
    theirs = written("--shape", "istio", "--sidecar", "test-memory-extproc.memory:50051")
    expected = one(theirs, "EnvoyFilter")["spec"]["configPatches"]
    ended = [each for each in ours if each["patch"]["value"].get("name") == "memory_headers_end_here"]
    assert [each for each in ours if each not in ended] == expected
    assert len(ended) == 1


@pytest.fixture
def two_filters(monkeypatch: pytest.MonkeyPatch) -> str:
    """The program's own configuration for it; the chart's value."""
    monkeypatch.setenv("MEMORY_EXTPROC__ENVOY__TWO_FILTERS", "true")
    return "gateway.observe.enabled=true"


def test_with_two_filters_the_chart_writes_what_envoy_config_does_for_a_bare_envoy(two_filters: str) -> None:
    parts = blocks("gateway.type=raw", two_filters, values="default.yaml")
    theirs = {each["name"]: each for each in written("--shape", "filter")[0]["http_filters"]}
    edge = [each for part in ("1-at-the-edge.yaml", "3-memory.yaml") for each in parts[part]]
    ours = {each["name"]: each for each in edge}
    assert edge[0]["name"] == "memory_observer"
    for name in ("memory_observer", "memory"):
        assert ours[name] == theirs[name]


def test_with_two_filters_the_chart_writes_what_envoy_config_does_for_envoy_gateway(two_filters: str) -> None:
    ours = documents(rendered(settings=["gateway.type=envoy-gateway", two_filters]))
    theirs = written("--shape", "envoy-gateway", "--sidecar", "test-memory-extproc.memory:50051")
    kind = "EnvoyExtensionPolicy"
    assert policy(ours, kind) == policy(theirs, kind)


def test_with_two_filters_the_chart_writes_what_envoy_config_does_for_istio(two_filters: str) -> None:
    ours = documents(rendered(settings=["gateway.type=istio", two_filters]))
    theirs = written("--shape", "istio", "--sidecar", "test-memory-extproc.memory:50051")

    def firsts(trees: list[Tree]) -> list[Tree]:
        patches = one(trees, "EnvoyFilter")["spec"]["configPatches"]
        named = {"memory_observer", "identity_strip", "memory"}
        return [each for each in patches if each["patch"]["value"].get("name") in named]

    assert firsts(ours) == firsts(theirs)
    assert len(firsts(ours)) == 3


def test_with_two_filters_the_sidecar_is_told(two_filters: str) -> None:
    trees = documents(rendered(settings=["gateway.type=raw", two_filters]))
    [configured] = [each["data"]["config.yaml"] for each in trees if "config.yaml" in each.get("data", {})]
    assert yaml.safe_load(configured)["envoy"]["two_filters"] is True


def configured(trees: list[Tree]) -> Tree:
    [text] = [each["data"]["config.yaml"] for each in trees if "config.yaml" in each.get("data", {})]
    return dict(yaml.safe_load(text))


@pytest.mark.parametrize("gateway", ["raw", "istio", "envoy-gateway", "envoy-ai-gateway", "vllm-semantic-router"])
def test_the_sidecar_believes_the_headers_that_envoy_strips_and_no_others(gateway: str) -> None:
    named = ("gateway.identity.userHeader=X-Person", "gateway.identity.tenantHeader=")
    trees = documents(rendered(settings=(f"gateway.type={gateway}", *named)))
    identity = configured(trees)["identity"]
    assert (identity["user_header"], identity["tenant_header"]) == ("x-person", "")
    text = yaml.safe_dump_all(trees)
    assert "X-Person" in text
    assert "x-authz-user-id" not in text
    assert "x-authz-tenant-id" not in text


@pytest.mark.parametrize(
    ("settings", "patience"),
    [
        ((), "1s"),
        (("config.recall.deadline=400ms",), "2s"),
        (("config.recall.rerank=llm",), "6s"),
        (("config.recall.hyde=true",), "6s"),
        (("config.recall.query_rewrite=vague", "config.recall.deadline=2s"), "8s"),
        (("gateway.messageTimeout=3s",), "3s"),
        (("config.envoy.message_timeout=4s",), "4s"),
    ],
)
@pytest.mark.parametrize("gateway", ["raw", "istio", "envoy-gateway"])
def test_envoy_waits_longer_than_the_sidecar_may_take_and_the_sidecar_knows_how_long(
    gateway: str, settings: tuple[str, ...], patience: str
) -> None:
    trees = documents(rendered(settings=(f"gateway.type={gateway}", *settings)))
    assert configured(trees)["envoy"]["message_timeout"] == patience
    envoys = [each for each in trees if "config.yaml" not in each.get("data", {})]
    name = "messageTimeout" if gateway == "envoy-gateway" else "message_timeout"
    assert f"{name}: {patience}" in "\n".join(flat(envoys))


def flat(tree: Any) -> Iterator[str]:
    """Every value with its key, and texts as they are."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield f"{key}: {value}"
            yield from flat(value)
    elif isinstance(tree, list):
        for each in tree:
            yield from flat(each)
