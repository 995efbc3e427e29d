"""The chart beside what a platform has already: its policies, its routes, its Envoy pods, its autoscaler."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from memory_extproc.app.offline import open_offline
from memory_extproc.model import Embedded, Owner
from memory_extproc.settings import load
from tests.support.builders import a_memory
from tests.support.chart import CHART, ROOT, TOOLS, Tree, documents, one, rendered, templated

SHARED = ("config.memory.milvus.address=milvus:19530", "config.coordination.url=redis://redis:6379/0")
GATEWAY = "gateway.type=envoy-gateway"
ROUTE = ("gateway.targetRefs[0].kind=HTTPRoute", "gateway.targetRefs[0].name=chat")
TEA = a_memory("Ann likes tea.", Owner("acme", "ann"))
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


@pytest.mark.parametrize("mode", [[], ["mode=daemonset", LOSS], ["mode=sidecar", "gateway.type=raw", LOSS]])
def test_learning_pods_stand_apart_from_those_that_serve(mode: list[str]) -> None:
    """A role each; requests reach the serving pods only; each is scaled by its own measure."""
    scaled = () if mode else ("autoscaling.enabled=true", "autoscaling.recallSaturation=70")
    by_age = (
        "autoscaling.enabled=true",
        "autoscaling.keda.enabled=true",
        "autoscaling.keda.prometheus=http://p:9090",
    )
    settings = [*SHARED, *mode, *scaled, "learner.enabled=true", *(f"learner.{each}" for each in by_age)]
    trees = documents(rendered(settings=settings))
    config = one(trees, "ConfigMap", "test-memory-extproc")["data"]["config.yaml"]
    learners = one(trees, "ConfigMap", "test-memory-extproc-learner")["data"]["config.yaml"]
    assert (yaml.safe_load(config)["role"], yaml.safe_load(learners)["role"]) == ("serve", "learn")
    assert yaml.safe_load(learners)["coordination"] == yaml.safe_load(config)["coordination"]
    workload = one(trees, "StatefulSet", "test-memory-extproc-learner")
    labels = workload["spec"]["template"]["metadata"]["labels"]
    volumes = workload["spec"]["template"]["spec"]["volumes"]
    assert {"name": "config", "configMap": {"name": "test-memory-extproc-learner"}} in volumes
    for each in trees:
        if each["kind"] == "Service" and each["metadata"]["name"] == "test-memory-extproc":
            assert not each["spec"]["selector"].items() <= labels.items()
    network = one(trees, "NetworkPolicy", "test-memory-extproc-learner")["spec"]
    assert network["podSelector"]["matchLabels"].items() <= labels.items()
    assert [port["port"] for rule in network["ingress"] for port in rule["ports"]] == ["http"]
    scaler = one(trees, "ScaledObject", "test-memory-extproc-learner")["spec"]
    assert scaler["scaleTargetRef"]["name"] == workload["metadata"]["name"]
    [age, _cpu] = scaler["triggers"]
    assert "journal_oldest_seconds" in age["metadata"]["query"]
    if scaled:
        own = one(trees, "HorizontalPodAutoscaler", "test-memory-extproc")["spec"]
        assert own["scaleTargetRef"]["name"] == "test-memory-extproc"


def test_serving_pods_are_not_scaled_by_what_learners_have_to_do() -> None:
    keda = (
        "autoscaling.enabled=true",
        "autoscaling.keda.enabled=true",
        "autoscaling.keda.prometheus=http://p:9090",
    )
    trees = documents(rendered(settings=[*SHARED, *keda, "learner.enabled=true"]))
    [trigger] = one(trees, "ScaledObject")["spec"]["triggers"]
    assert trigger["type"] == "cpu"


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


CLASSIC = CHART / "ci" / "istio-classic.yaml"


def test_a_classic_ingress_gateway_is_found_by_its_labels_everywhere() -> None:
    trees = documents(rendered(CLASSIC))
    pods = {"istio": "ingressgateway"}
    assert one(trees, "EnvoyFilter")["spec"]["workloadSelector"] == {"labels": pods}
    assert one(trees, "RequestAuthentication")["spec"]["selector"] == {"matchLabels": pods}
    [peer] = one(trees, "NetworkPolicy")["spec"]["ingress"][0]["from"]
    assert peer["podSelector"] == {"matchLabels": pods}


def test_istios_policies_can_name_their_gateway_instead() -> None:
    trees = documents(
        rendered(CHART / "ci" / "istio-tls.yaml", settings=[each.replace("HTTPRoute", "Gateway") for each in ROUTE])
    )
    named = [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "chat"}]
    for kind, selector in (("EnvoyFilter", "workloadSelector"), ("RequestAuthentication", "selector")):
        spec = one(trees, kind)["spec"]
        assert spec["targetRefs"] == named
        assert selector not in spec


@pytest.mark.parametrize(
    ("mesh", "mode", "labels"),
    [
        ("none", {"mode": "DISABLE"}, ("false", "none")),
        ("sidecar", {"mode": "ISTIO_MUTUAL"}, ("true", "none")),
        ("ambient", None, ("false", "ambient")),
    ],
)
def test_the_gateway_speaks_as_the_pods_place_in_the_mesh_demands(
    mesh: str, mode: Tree | None, labels: tuple[str, str]
) -> None:
    """Plaintext into a pod for which a STRICT policy holds would pass every request by without memory."""
    trees = documents(rendered(settings=["gateway.type=istio", f"gateway.istio.mesh={mesh}"]))
    pod = one(trees, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert (pod["sidecar.istio.io/inject"], pod["istio.io/dataplane-mode"]) == labels
    assert one(trees, "DestinationRule")["spec"]["trafficPolicy"].get("tls") == mode
    policy = one(trees, "NetworkPolicy")["spec"]
    entrances = {port["port"] for rule in policy["ingress"][:1] for port in rule["ports"]}
    assert entrances == {"grpc", 15008} if mesh == "ambient" else {"grpc"}
    exits = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert (15012 in exits) == (mesh == "sidecar")


def test_labels_of_the_operators_stand_above_those_of_the_mesh() -> None:
    settings = ["gateway.type=istio", "podLabels.sidecar\\.istio\\.io/inject=mine"]
    text = rendered(settings=settings)
    assert text.count("sidecar.istio.io/inject") == 1
    assert (
        one(documents(text), "StatefulSet")["spec"]["template"]["metadata"]["labels"]["sidecar.istio.io/inject"]
        == "mine"
    )


@pytest.mark.parametrize("values", ["api-route.yaml", "istio-classic.yaml"])
def test_the_page_is_led_to_under_the_name_that_the_browser_asked_for(values: str) -> None:
    trees = documents(rendered(CHART / "ci" / values))
    config = yaml.safe_load(
        next(each["data"]["config.yaml"] for each in trees if "config.yaml" in each.get("data", {}))
    )
    assert config["console"] == {"page": True, "hosts": ["llm.example.com"]}
    if values == "api-route.yaml":
        api, page = one(trees, "HTTPRoute")["spec"]["rules"]
        assert (page["matches"][0]["path"]["value"], "filters" in page) == ("/console", False)
        assert api["filters"][0]["urlRewrite"] == {"hostname": "localhost"}
    else:
        spec = one(trees, "VirtualService")["spec"]
        api, page = spec["http"]
        assert (spec["gateways"], spec["hosts"]) == (["istio-system/public"], ["llm.example.com"])
        assert api["rewrite"] == {"authority": "localhost"}
        assert "rewrite" not in page


def test_nothing_leads_to_the_page_unless_it_is_asked_for() -> None:
    routed = ("api.enabled=true", "api.route.enabled=true", "config.api.insecure=true", "config.api.auth={jwt}")
    for gateway in ("envoy-gateway", "envoy-ai-gateway", "istio", "raw", "vllm-semantic-router"):
        text = rendered(settings=(f"gateway.type={gateway}", *routed))
        assert "/v1/memory" in text
        assert "/console" not in text


def script_of(name: str, *settings: str) -> str:
    trees = documents(
        rendered(settings=("replicas=0", f"{name}.enabled=true", f"{name}.claimName=copies", *settings))
    )
    [container] = one(trees, "Job", f"test-memory-extproc-{name}")["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["/bin/sh", "-ec"]
    return str(container["args"][0])


def test_backup_jobs_keep_the_newest_copies_and_what_they_wrote_can_be_restored(tmp_path: Path) -> None:
    """The Jobs' own scripts, with the real command, over folders in the place of claims."""
    config = tmp_path / "config.yaml"
    models = os.environ.get("MEMORY_EXTPROC_TEST_MODELS", str(ROOT / "models"))
    config.write_text(
        yaml.safe_dump({"data_dir": str(tmp_path / "data"), "memory": {"embedding": {"models_dir": models}}})
    )
    (tmp_path / "data").mkdir()

    async def remember() -> None:
        async with open_offline(load(config, {})) as tended:
            [vector] = await tended.embedder.embed([TEA.content])
            await tended.unsealed.put(TEA.owner, [Embedded(TEA, vector)])

    asyncio.run(remember())
    copies = tmp_path / "copies"
    for old in ("20200101-000000", "20200102-000000", "20200103-000000.part"):
        (copies / old).mkdir(parents=True)
    places = {"/backup": str(copies), "/etc/memory-extproc/config/config.yaml": str(config)}
    path = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(script: str) -> Tree:
        for place, here in places.items():
            script = script.replace(place, here)
        done = subprocess.run(["/bin/sh", "-ec", script], env=path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        told: Tree = json.loads(done.stdout)
        return told

    assert run(script_of("backup", "backup.schedule=", "backup.keep=2"))["memories"] == 1
    kept = sorted(each.name for each in copies.iterdir())
    assert kept[0] == "20200102-000000"
    assert len(kept) == 2
    assert (copies / kept[1] / "memories.jsonl.gz").exists()
    (tmp_path / "data").rename(tmp_path / "lost")
    assert run(script_of("restore", f"restore.folder={kept[1]}"))["restored"] == 1
