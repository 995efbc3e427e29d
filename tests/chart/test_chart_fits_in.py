"""The chart beside what a platform has already: its policies, its routes, its Envoy pods, its autoscaler."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.fixtures.chart import CHART, TOOLS, Tree, documents, one, rendered, templated

SHARED = ("config.memory.milvus.address=milvus:19530", "config.coordination.url=redis://redis:6379/0")
GATEWAY = "gateway.type=envoy-gateway"
ROUTE = ("gateway.targetRefs[0].kind=HTTPRoute", "gateway.targetRefs[0].name=chat")
LOSS = "persistence.acceptLoss=true"


def policies(*settings: str) -> dict[str, Tree]:
    trees = documents(rendered(settings=(GATEWAY, *settings)))
    return {each["kind"]: each for each in trees if each["apiVersion"].startswith("gateway.envoyproxy.io/")}


def test_policies_apply_to_the_routes_that_are_named_and_what_only_gateways_take_to_the_gateway() -> None:
    found = policies(*ROUTE, "gateway.mergeType=StrategicMerge")
    route = [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "chat"}]
    for kind in ("EnvoyExtensionPolicy", "BackendTrafficPolicy"):
        assert found[kind]["spec"]["targetRefs"] == route
    assert found["BackendTrafficPolicy"]["spec"]["mergeType"] == "StrategicMerge"
    [gateway] = found["ClientTrafficPolicy"]["spec"]["targetRefs"]
    assert (gateway["kind"], gateway["name"]) == ("Gateway", "llm")


@pytest.mark.parametrize(
    ("left_out", "kind"),
    [
        (["extension.create=false"], "EnvoyExtensionPolicy"),
        (["clientTraffic.create=false", "clientTraffic.existing=edge"], "ClientTrafficPolicy"),
        (["backendTraffic.create=false"], "BackendTrafficPolicy"),
    ],
)
def test_each_policy_can_be_somebody_elses(left_out: list[str], kind: str) -> None:
    made = policies(*(f"gateway.policies.{each}" for each in left_out))
    assert made.keys() == {"EnvoyExtensionPolicy", "ClientTrafficPolicy", "BackendTrafficPolicy"} - {kind}


def claims(*settings: str) -> tuple[str, list[str]]:
    """Kind of the workload, and the names of what holds its data."""
    trees = documents(rendered(settings=settings))
    [workload] = [each for each in trees if each["kind"] in {"Deployment", "StatefulSet", "DaemonSet"}]
    volumes = workload["spec"]["template"]["spec"]["volumes"]
    templates = [each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", [])]
    return workload["kind"], [*templates, *(each["name"] for each in volumes if each["name"] == "data")]


def test_each_pod_has_a_claim_of_its_own_also_before_servers_and_when_it_is_scaled() -> None:
    assert claims() == ("StatefulSet", ["data"])
    assert claims("replicas=3", *SHARED) == ("StatefulSet", ["data"])
    assert claims("autoscaling.enabled=true", *SHARED) == ("StatefulSet", ["data"])
    assert claims("replicas=3", "persistence.enabled=false", LOSS, *SHARED) == ("Deployment", ["data"])


@pytest.mark.parametrize("given", [[], ["persistence.enabled=false", LOSS]])
@pytest.mark.parametrize(
    "keda", [[], ["autoscaling.keda.enabled=true", "autoscaling.keda.prometheus=http://p:9090"]]
)
def test_what_scales_names_the_workload_that_is_there(given: list[str], keda: list[str]) -> None:
    trees = documents(rendered(settings=("autoscaling.enabled=true", *given, *keda, *SHARED)))
    [scaler] = [each for each in trees if each["kind"] in {"HorizontalPodAutoscaler", "ScaledObject"}]
    assert (scaler["kind"] == "ScaledObject") == bool(keda)
    target = scaler["spec"]["scaleTargetRef"]
    workload = one(trees, target["kind"], target["name"])
    assert "replicas" not in workload["spec"]


def patch(kubernetes: str, *settings: str) -> Tree:
    text = rendered(settings=("mode=sidecar", "gateway.type=raw", LOSS, *SHARED, *settings), kubernetes=kubernetes)
    injected: Tree = yaml.safe_load(
        one(documents(text), "ConfigMap", "test-memory-extproc-injection")["data"]["patch.yaml"]
    )
    return injected


@pytest.mark.parametrize(
    ("kubernetes", "settings", "native"),
    [("1.33.0", [], True), ("1.29.0", [], True), ("1.28.0", [], False), ("1.33.0", ["nativeSidecar=false"], False)],
)
def test_a_sidecar_is_a_native_one_where_kubernetes_knows_them(
    kubernetes: str, settings: list[str], native: bool, tmp_path: Path
) -> None:
    pod = patch(kubernetes, *settings)["spec"]["template"]["spec"]
    ours = [each for each in pod.get("initContainers", []) if each["name"] == "memory-extproc"]
    beside = [each for each in pod["containers"] if each["name"] == "memory-extproc"]
    assert (len(ours), len(beside)) == ((1, 0) if native else (0, 1))
    for each in ours:
        assert each["restartPolicy"] == "Always"
        assert each["startupProbe"]["httpGet"]["path"] == "/healthz", "Envoy waits for a process, not for a store"
    pod["containers"][0]["image"] = "envoyproxy/envoy:v1"
    labels = {"app": "envoy"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "envoy"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }
    manifest = tmp_path / "deployment.yaml"
    manifest.write_text(yaml.safe_dump(deployment))
    validate = [str(TOOLS / "validate" / "bin" / "kubernetes-validate"), "--strict", "-k", "1.35", str(manifest)]
    checked = subprocess.run(validate, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("values", sorted(CHART.glob("values-*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("version", ["3", "4"])
def test_values_to_start_from_are_taken_as_they_are(values: Path, version: str) -> None:
    taken = templated(values, version=version)
    assert taken.returncode == 0, taken.stderr


def test_there_are_values_to_start_from() -> None:
    assert {path.stem for path in CHART.glob("values-*.yaml")} == {"values-dev", "values-production"}
