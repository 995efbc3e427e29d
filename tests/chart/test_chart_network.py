"""Network policies: peers that reach the pods and that they reach; a policy that shuts Envoy out shows nowhere,
for requests pass all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chart import CHART, Tree, documents, one, rendered

# Labels of the pods in which each gateway runs its Envoys, and the namespace that they are in.
ENVOYS = {
    "envoy-gateway": (
        "envoy-gateway-system",
        {
            "app.kubernetes.io/name": "envoy",
            "app.kubernetes.io/component": "proxy",
            "app.kubernetes.io/managed-by": "envoy-gateway",
            "gateway.envoyproxy.io/owning-gateway-name": "llm",
        },
    ),
    "istio": ("edge", {"gateway.networking.k8s.io/gateway-name": "llm", "istio": "ingressgateway"}),
    "raw": ("edge", {"app": "envoy"}),
    "vllm-semantic-router": ("edge", {"app": "envoy"}),
}
ENVOYS["envoy-ai-gateway"] = ENVOYS["envoy-gateway"]


def matches(selector: Tree, labels: Tree) -> bool:
    """As Kubernetes has it, for what the chart writes."""
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    return wanted and all(
        each["operator"] == "In" and labels.get(each["key"]) in each["values"]
        for each in selector.get("matchExpressions", [])
    )


def lets_in(policy: Tree, port: str, namespace: str, labels: Tree) -> bool:
    own = policy["metadata"]["namespace"]
    return any(
        (
            matches(peer["namespaceSelector"], {"kubernetes.io/metadata.name": namespace})
            if "namespaceSelector" in peer
            else namespace == own
        )
        and matches(peer.get("podSelector", {}), labels)
        for rule in policy["spec"]["ingress"]
        if port in [each["port"] for each in rule["ports"]]
        for peer in rule["from"]
    )


def policy_of(*settings: str, values: str = "default.yaml") -> Tree:
    return one(documents(rendered(CHART / "ci" / values, settings=settings)), "NetworkPolicy")


@pytest.mark.parametrize("gateway", ENVOYS)
def test_each_gateways_envoys_are_let_in_and_their_neighbours_are_not(gateway: str) -> None:
    namespace, labels = ENVOYS[gateway]
    policy = policy_of(f"gateway.type={gateway}", "gateway.namespace=edge")
    assert lets_in(policy, "grpc", namespace, labels)
    assert not lets_in(policy, "grpc", "elsewhere", labels)
    if gateway not in {"raw", "vllm-semantic-router"}:
        assert not lets_in(policy, "grpc", namespace, {"app": "somebody"})


def test_an_envoy_in_the_namespace_of_its_gateway_is_let_in_too() -> None:
    policy = policy_of("gateway.type=envoy-gateway", "gateway.namespace=edge")
    assert lets_in(policy, "grpc", "edge", ENVOYS["envoy-gateway"][1])


def test_peers_that_are_named_stand_instead_and_the_helm_test_is_never_shut_out() -> None:
    named = "networkPolicy.from[0].podSelector.matchLabels.app=mine"
    watching = "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name=watch"
    trees = documents(rendered(settings=("gateway.type=envoy-gateway", named, watching)))
    policy = one(trees, "NetworkPolicy")
    assert lets_in(policy, "grpc", "memory", {"app": "mine"})
    assert not lets_in(policy, "grpc", *ENVOYS["envoy-gateway"])
    assert lets_in(policy, "http", "watch", {})
    test = one(trees, "Pod")["metadata"]
    assert lets_in(policy, "http", test["namespace"], test["labels"])
    assert not lets_in(policy, "http", "memory", {"app": "mine"})


ELSEWHERE = """
config:
  memory:
    milvus: {address: "http://milvus.data:19531/"}
    embedding: {provider: openai, endpoint: "http://embedder/v1"}
  coordination: {url: "rediss://redis.data:6380/0"}
  external_models:
    - {model_role: memory_extraction, llm_model_name: q, llm_endpoint: {address: qwen, port: 8001}}
  identity: {jwt: {jwks_url: "https://login.example.com/keys", issuer: a, audience: b}}
  api: {auth: [jwt], jwt: {jwks_url: "https://other.example.com:8443/keys", issuer: a, audience: b}}
  telemetry: {otlp_endpoint: "http://collector.watch:4317"}
"""


def test_whatever_the_configuration_names_can_be_reached(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(ELSEWHERE)
    policy = one(documents(rendered(values)), "NetworkPolicy")
    ports = {each["port"] for rule in policy["spec"]["egress"] for each in rule["ports"]}
    assert ports == {53, 19531, 80, 6380, 8001, 443, 8443, 4317}


def test_only_the_pods_of_the_server_are_meant() -> None:
    trees = documents(rendered(CHART / "ci" / "everything-else.yaml"))
    selector = one(trees, "NetworkPolicy")["spec"]["podSelector"]
    assert matches(selector, one(trees, "StatefulSet")["spec"]["template"]["metadata"]["labels"])
    assert not matches(selector, one(trees, "Pod")["metadata"]["labels"])
