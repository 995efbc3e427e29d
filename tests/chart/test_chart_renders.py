"""Kubernetes, the gateways and the sidecar itself take the chart's manifests."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from tests.support.chart import CHART, ROOT, TOOLS, VALUES, Tree, documents, helm, one, rendered

NO_NODE = shutil.which("node") is None or not (TOOLS / "npm" / ".installed").exists()
KEDA = TOOLS / "npm" / "node_modules" / "@kubernetes-models" / "keda"  # not in tools fetched by an earlier version
GOLDEN = Path(__file__).parent / "golden"
_BUILT_IN = {"v1", "apps/v1", "batch/v1", "autoscaling/v2", "policy/v1", "networking.k8s.io/v1"}


def by_name(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("version", ["3", "4"])
def test_both_helms_find_nothing_to_complain_of(version: str) -> None:
    linted = helm(version, "lint", "--strict", str(CHART))
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.parametrize("values", VALUES, ids=by_name)
def test_what_is_rendered_is_what_was_reviewed(values: Path) -> None:
    """`make chart` writes the reviewed files anew; their difference is then to be looked at."""
    text = rendered(values)
    golden = GOLDEN / values.name
    if os.environ.get("MEMORY_EXTPROC_WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
    assert text == rendered(values, version="3"), "Helm 3 renders otherwise"


@pytest.mark.parametrize("kubernetes", ["1.27", "1.35"])
@pytest.mark.parametrize("values", VALUES, ids=by_name)
def test_kubernetes_knows_every_field(values: Path, kubernetes: str, tmp_path: Path) -> None:
    built_in = [
        each
        for each in documents(rendered(values, kubernetes=f"{kubernetes}.0"))
        if each["apiVersion"] in _BUILT_IN
    ]
    assert built_in
    manifests = tmp_path / "manifests.yaml"
    manifests.write_text(yaml.safe_dump_all(built_in))
    validate = TOOLS / "validate" / "bin" / "kubernetes-validate"
    checked = subprocess.run(
        [str(validate), "--strict", "-k", kubernetes, str(manifests)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


# Fields that the published schemas do not have, each with its reason.
_NEWER = {
    "BackendTrafficPolicy.spec.timeout.http.streamIdleTimeout": "of newer Envoy Gateways than the schemas' package;"
    " an older one leaves it out, and the ClientTrafficPolicy's own bound holds",
    "EnvoyExtensionPolicy.spec.extProc.0.shadowMode": "of newer Envoy Gateways too; docs/gateways/envoy-gateway.md"
    " says how to see whether one has it, and only two filters need it",
    "EnvoyFilter.spec.targetRefs": "of newer Istios than the schemas' package; values.yaml says how to see it, and"
    " without it pods are selected",
    **{f"EnvoyFilter.spec.targetRefs.0.{field}": "part of the same" for field in ("group", "kind", "name")},
    "ScaledObject.spec.fallback.behavior": "of KEDA 2.17 and newer; an older one leaves it out and falls back to"
    " the number of replicas beside it",
}
_SHARED = (
    "config.memory.milvus.address=milvus:19530",
    "config.coordination.url=redis://redis:6379/0",
    "persistence.acceptLoss=true",
)
_JWT = tuple(
    f"gateway.identity.jwt.{name}=https://issuer.example.com/" for name in ("issuer", "audience", "jwksUri")
)
_GATEWAYS = ("envoy-gateway", "envoy-ai-gateway", "istio", "vllm-semantic-router", "raw")


def every_gateway() -> list[Tree]:
    """Rendered in each mode, with each source of identity, with one filter and with a second that watches."""
    found = []
    for gateway, mode in itertools.product(_GATEWAYS, ("deployment", "daemonset", "sidecar")):
        for identity, observe in (("strip", "false"), ("jwt", "true"), ("trust", "true")):
            chosen = (f"gateway.type={gateway}", f"mode={mode}", f"gateway.identity.mode={identity}")
            watching = f"gateway.observe.enabled={observe}"
            found += documents(rendered(settings=(*chosen, watching, "gateway.namespace=edge", *_SHARED, *_JWT)))
    return found


def complaints(trees: Iterable[Tree]) -> list[str]:
    """Of the published schemas, about those of *trees* that Kubernetes itself does not know."""
    unread = (
        set() if (TOOLS / "npm" / "node_modules" / "@kubernetes-models" / "keda").is_dir() else {"keda.sh/v1alpha1"}
    )
    kinds = [each for each in trees if each["apiVersion"] not in _BUILT_IN | unread]
    program = TOOLS / "npm" / "kinds.mjs"
    program.write_text((Path(__file__).parent / "kinds.mjs").read_text())
    lines = "".join(json.dumps(each) + "\n" for each in kinds)
    checked = subprocess.run(["node", str(program)], input=lines, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    said = checked.stdout.splitlines()
    assert checked.stderr.count(": checked\n") + sum("no field" not in each for each in said) == len(kinds) > 0
    return [each for each in said if each.rpartition(" ")[2] not in _NEWER]


needs_schemas = pytest.mark.skipif(NO_NODE, reason="the published schemas come as programs for Node, by npm")


@needs_schemas
def test_gateways_and_operators_know_every_kind_and_every_field_of_it() -> None:
    assert complaints(each for values in VALUES for each in documents(rendered(values))) == []
    assert complaints(every_gateway()) == []


@needs_schemas
@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("EnvoyExtensionPolicy", {"extProc": [{"failopen": True, "backendRefs": []}]}, "no field"),
        ("EnvoyExtensionPolicy", {"extProc": [{"failOpen": "true"}]}, "failOpen must be boolean"),
        ("EnvoyFilter", {"configPatches": [{"applyTo": "HTTP_FILTERS"}]}, "must be equal to one of"),
        ("EnvoyFilter", {"workloadSelectors": {}}, "no field EnvoyFilter.spec.workloadSelectors"),
        ("DestinationRule", {"trafficPolicy": {"tls": {"mode": "MUTUAL", "cert": "x"}}}, "no field"),
    ],
)
def test_a_field_that_a_gateway_would_leave_out_without_a_word_is_found(kind: str, change: Tree, said: str) -> None:
    values = "istio-tls.yaml" if kind != "EnvoyExtensionPolicy" else "ai-gateway.yaml"
    tree = one(documents(rendered(CHART / "ci" / values)), kind)
    found = complaints([{**tree, "spec": {**tree["spec"], **change}}])
    assert any(said in each for each in found), found


@pytest.mark.parametrize("values", VALUES, ids=by_name)
def test_the_sidecar_takes_the_configuration_that_the_chart_writes(values: Path, tmp_path: Path) -> None:
    trees = documents(rendered(values))
    configurations = [
        each["data"]["config.yaml"]
        for each in trees
        if each["kind"] == "ConfigMap" and "config.yaml" in each["data"]
    ]
    assert len(configurations) == 1 + (values.stem == "learner")
    secret = tmp_path / "secret"
    secret.write_text("a secret of some length")
    given = yaml.safe_load(values.read_text()) or {}
    names = [f"MEMORY_EXTPROC__{each['setting'].upper().replace('.', '__')}" for each in given.get("secrets", [])]
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (tmp_path / name).write_text("")
    environment = {**os.environ, **dict.fromkeys(names, str(secret))}
    path = tmp_path / "config.yaml"
    for config in configurations:
        path.write_text(config)
        checked = subprocess.run(
            [sys.executable, "-m", "memory_extproc", "config", "check", "--config", str(path)],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_schema_of_the_values_is_what_the_settings_say() -> None:
    script = ROOT / "scripts" / "make_chart_schema.py"
    checked = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.skipif(NO_NODE, reason="the table is written by a program for Node, by npm")
def test_the_table_of_values_in_the_readme_is_up_to_date(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text((CHART / "README.md").read_text())
    generator = TOOLS / "npm" / "node_modules" / ".bin" / "readme-generator"
    command = [str(generator), "--values", str(CHART / "values.yaml"), "--readme", str(readme)]
    written = subprocess.run(command, capture_output=True, text=True, check=False)
    assert written.returncode == 0, written.stdout + written.stderr
    assert readme.read_text() == (CHART / "README.md").read_text(), "make chart"


# What a linter of security asks and we do not do, each with its reason.
_WAIVED = {
    "CKV_K8S_11": "a CPU limit only throttles: it would add latency to requests and protect nobody",
    "CKV_K8S_43": "the digest is known when an image is released; image.digest takes it",
    "CKV_K8S_15": "the tag of a release never moves, and a registry that is down must not keep pods from starting",
    "CKV_K8S_8": "the pod of `helm test` ends by itself",
    "CKV_K8S_9": "the pod of `helm test` ends by itself",
    "CKV2_K8S_6": "the pods of `helm test` and of the job have no port",
}


def test_a_linter_of_security_finds_only_what_is_waived_with_a_reason(tmp_path: Path) -> None:
    manifests = tmp_path / "manifests.yaml"
    adopting = ["adoptJournal.enabled=true", "adoptJournal.claimName=data-1", _SHARED[1]]
    texts = [rendered(CHART / "ci" / name) for name in ("production.yaml", "istio-tls.yaml", "daemonset.yaml")]
    trees = [each for text in (*texts, rendered(settings=adopting)) for each in documents(text)]
    manifests.write_text(yaml.safe_dump_all([each for each in trees if each["apiVersion"] in _BUILT_IN]))
    checkov = TOOLS / "checkov" / "bin" / "checkov"
    command = [str(checkov), "-f", str(manifests), "--framework", "kubernetes", "-o", "json", "--skip-download"]
    found = subprocess.run(
        command, env={**os.environ, "LOG_LEVEL": "CRITICAL"}, capture_output=True, text=True, check=False
    )
    results = json.loads(found.stdout)["results"]
    assert len(results["passed_checks"]) > 300
    failed = {each["check_id"]: each["resource"] for each in results["failed_checks"]}
    assert {name: where for name, where in failed.items() if name not in _WAIVED} == {}


def test_pods_that_come_and_go_are_not_taken_for_the_server() -> None:
    trees = documents(rendered(CHART / "ci" / "everything-else.yaml"))
    selector = one(trees, "Service")["spec"]["selector"]
    job = one(trees, "Job")["spec"]["template"]["metadata"]["labels"]
    test = one(trees, "Pod")["metadata"]["labels"]
    server = one(trees, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= server.items()
    assert not selector.items() <= job.items()
    assert not selector.items() <= test.items()


@pytest.mark.parametrize("values", VALUES, ids=by_name)
def test_a_pod_has_longer_to_leave_than_the_longest_answer_streams(values: Path) -> None:
    for tree in documents(rendered(values)):
        if tree["kind"] in {"Deployment", "StatefulSet", "DaemonSet"}:
            pod = tree["spec"]["template"]["spec"]
            assert pod["terminationGracePeriodSeconds"] > 5 + 5 + 300 + 10
            assert pod["containers"][0]["lifecycle"]["preStop"]


def test_secrets_are_never_in_the_rendered_text_but_by_reference() -> None:
    trees = documents(rendered(CHART / "ci" / "production.yaml"))
    assert not [each for each in trees if each["kind"] == "Secret"]
    pod = one(trees, "StatefulSet")["spec"]["template"]["spec"]
    sources = next(each for each in pod["volumes"] if each["name"] == "secrets")["projected"]["sources"]
    assert [each["secret"]["name"] for each in sources] == ["milvus", "redis", "qwen"]
    variables = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
    name = "MEMORY_EXTPROC__EXTERNAL_MODELS__0__LLM_ENDPOINT__ACCESS_KEY_FILE"
    assert variables[name] == "/etc/memory-extproc/secrets/external_models.0.llm_endpoint.access_key_file"


def test_a_job_has_all_that_the_servers_configuration_may_name() -> None:
    """Keys, authorities and secrets that came by a volume or a variable of the operator's; and its place to run."""
    retaining = ["retentionJob.enabled=true", "config.memory.milvus.address=milvus:19530"]
    trees = documents(rendered(CHART / "ci" / "everything-else.yaml", settings=retaining))
    server = one(trees, "StatefulSet")["spec"]["template"]["spec"]
    jobs = [
        one(trees, "Job")["spec"]["template"]["spec"],
        one(trees, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"],
    ]
    for pod in jobs:
        container, served = pod["containers"][0], server["containers"][0]
        assert container["envFrom"] == served["envFrom"]
        for name in ("env", "volumeMounts"):
            kept = [each for each in served[name] if each["name"] not in {"MALLOC_ARENA_MAX", "data"}]
            assert [each for each in kept if each not in container[name]] == []
        mounted = {each["name"] for each in container["volumeMounts"]}
        assert mounted <= {each["name"] for each in pod["volumes"]}
        for name in ("imagePullSecrets", "runtimeClassName", "securityContext"):
            assert pod[name] == server[name]
    test = one(trees, "Pod")["spec"]
    assert test["imagePullSecrets"] == server["imagePullSecrets"]
