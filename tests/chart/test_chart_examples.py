"""Examples that a cluster takes as they are: every kind and field is known, and all that they refer to is there.

`MEMORY_EXTPROC_WRITE_GOLDEN=1` writes the Envoy configurations among them anew, from the chart's own blocks.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.errors import MemoryExtprocError
from tests.chart.test_chart_envoy import checked
from tests.chart.test_chart_renders import _BUILT_IN, complaints, needs_schemas
from tests.support.chart import CHART, KUBERNETES, ROOT, TOOLS, Tree, documents, helm, one, rendered
from tests.support.ports import free_port
from tests.support.waiting import until

EXAMPLES = ROOT / "deploy" / "examples"
SERVERS = EXAMPLES / "servers"
NAMES = sorted(each.parent.name for each in EXAMPLES.glob("*/values.yaml"))
_PAGE = " with its page"
PAGES = sorted(each.parent.name + _PAGE for each in EXAMPLES.glob("*/page-values.yaml"))
_FILTERS = "type.googleapis.com/envoy.extensions.filters"
# The kinds of the AI gateway that the examples use, closed: each field with what may stand in it. From its CRDs
# (github.com/envoyproxy/ai-gateway, manifests/charts/ai-gateway-crds-helm), which no registry has as a package.
_REF = {"group": str, "kind": str, "name": str, "namespace": str, "port": int}
_AI: dict[str, Any] = {
    "AIGatewayRoute": {
        "parentRefs": [{**_REF, "sectionName": str}],
        "rules": [
            {
                "matches": [{"headers": [{"type": str, "name": str, "value": str}]}],
                "backendRefs": [{"name": str, "modelNameOverride": str, "weight": int, "priority": int}],
            }
        ],
    },
    "AIServiceBackend": {"schema": {"name": str, "version": str, "prefix": str}, "backendRef": _REF},
}


@cache
def trees(name: str) -> tuple[Tree, ...]:
    """What is applied and what the chart adds with the values beside it."""
    folder = EXAMPLES / name.removesuffix(_PAGE)
    manifests, values = ["gateway.yaml"], ["values.yaml"]
    if name.endswith(_PAGE):
        manifests, values = [*manifests, "page.yaml"], [*values, "page-values.yaml"]
    chosen = [word for file in values for word in ("--values", str(folder / file))]
    place = ("--namespace", "memory", "--kube-version", KUBERNETES)
    run = helm("4", "template", "memory", str(CHART), *place, *chosen)
    assert run.returncode == 0, run.stderr
    applied = [each for file in manifests for each in documents((folder / file).read_text())]
    return (*applied, *documents(run.stdout))


def test_every_gateway_of_the_chart_has_an_example_with_its_values() -> None:
    kinds = {yaml.safe_load((EXAMPLES / name / "values.yaml").read_text())["gateway"]["type"] for name in NAMES}
    assert kinds == {"raw", "envoy-gateway", "envoy-ai-gateway", "istio", "vllm-semantic-router"}


def outside(value: Any, shape: Any, place: str) -> Iterator[str]:
    """Places of *value* that *shape* does not have, or has otherwise."""
    if isinstance(shape, dict) and isinstance(value, dict):
        for key, inner in value.items():
            if key in shape:
                yield from outside(inner, shape[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}"
    elif isinstance(shape, list) and isinstance(value, list):
        for inner in value:
            yield from outside(inner, shape[0], place)
    elif not isinstance(shape, type) or not isinstance(value, shape):
        yield place


@needs_schemas
def test_no_kind_and_no_field_of_the_examples_is_unknown(tmp_path: Path) -> None:
    everything = [each for name in (*NAMES, *PAGES) for each in trees(name)]
    routed = [each for each in everything if each["apiVersion"].startswith("aigateway.")]
    assert [place for each in routed for place in outside(each["spec"], _AI[each["kind"]], each["kind"])] == []
    assert len(routed) == 2
    assert complaints(each for each in everything if each not in routed) == []
    everything += documents((SERVERS / "redis.yaml").read_text())
    manifests = tmp_path / "manifests.yaml"
    manifests.write_text(yaml.safe_dump_all([each for each in everything if each["apiVersion"] in _BUILT_IN]))
    validate = [str(TOOLS / "validate" / "bin" / "kubernetes-validate"), "--strict", "-k", "1.35", str(manifests)]
    run = subprocess.run(validate, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def references(tree: Any) -> Iterator[Tree]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key in {"backendRefs", "targetRefs", "parentRefs"}:
                yield from value
            elif key in {"backendRef", "parametersRef"}:
                yield value
            yield from references(value)
    elif isinstance(tree, list):
        for each in tree:
            yield from references(each)


_BACKEND = {"AIGatewayRoute": "AIServiceBackend"}  # what a reference without a kind means


@pytest.mark.parametrize("name", [*NAMES, *PAGES])
def test_all_that_an_example_refers_to_is_in_it(name: str) -> None:
    there = {(each["kind"], each["metadata"]["name"]): each for each in trees(name)}
    referred = 0
    for tree in trees(name):
        for ref in references(tree.get("spec", {})):
            referred += 1
            kinds = [ref["kind"]] if "kind" in ref else [_BACKEND.get(tree["kind"], "Service"), "Gateway"]
            found = next((there[kind, ref["name"]] for kind in kinds if (kind, ref["name"]) in there), None)
            assert found, f"{tree['kind']} {tree['metadata']['name']} names {ref}, which is not there"
            if found["kind"] == "Service":
                assert ref["port"] in [each["port"] for each in found["spec"]["ports"]]
    assert referred >= (0 if name in {"envoy", "semantic-router"} else 2)
    for tree in trees(name):
        if tree["kind"] == "Service" and tree["spec"].get("selector", {}).get("app"):
            labels = [
                each["spec"]["template"]["metadata"]["labels"]
                for each in there.values()
                if each["kind"] == "Deployment"
            ]
            assert any(tree["spec"]["selector"].items() <= each.items() for each in labels)


def address(cluster: str, host: str, port: int, **more: Any) -> Tree:
    where = {"socket_address": {"address": host, "port_value": port}}
    return {
        "name": cluster,
        "type": "STRICT_DNS",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": cluster,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": where}}]}],
        },
        **more,
    }


def http2() -> Tree:
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    spoken = {"@type": f"type.googleapis.com/{options}", "explicit_http_config": {"http2_protocol_options": {}}}
    return {"typed_extension_protocol_options": {options: spoken}}


def verifying() -> Tree:
    """Says who asks: a token's claim, in the header that memory reads."""
    keys = {"uri": "https://login.example.com/jwks.json", "cluster": "login", "timeout": "2s"}
    provider = {
        "issuer": "https://login.example.com",
        "audiences": ["chat"],
        "remote_jwks": {"http_uri": keys, "cache_duration": "600s"},
        "claim_to_headers": [{"header_name": "x-authz-user-id", "claim_name": "sub"}],
    }
    needed = {"requires_any": {"requirements": [{"provider_name": "caller"}, {"allow_missing": {}}]}}
    return {
        "name": "jwt_authn",
        "typed_config": {
            "@type": f"{_FILTERS}.http.jwt_authn.v3.JwtAuthentication",
            "providers": {"caller": provider},
            "rules": [{"match": {"prefix": "/"}, "requires": needed}],
        },
    }


def routing() -> Tree:
    """The semantic router, as its own chart installs it."""
    modes = {"request_header_mode": "SEND", "response_header_mode": "SEND", "request_body_mode": "BUFFERED"}
    return {
        "name": "semantic_router",
        "typed_config": {
            "@type": f"{_FILTERS}.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "semantic_router"}},
            "processing_mode": {**modes, "response_body_mode": "BUFFERED"},
            "failure_mode_allow": True,
            "message_timeout": "300s",
            "allow_mode_override": True,
        },
    }


def envoys(name: str) -> Tree:
    """A whole Envoy around the blocks that the chart writes for the example's values."""
    [data] = [each["data"] for each in trees(name) if each["metadata"]["name"] == "memory-memory-extproc-envoy"]
    parts = {key: yaml.safe_load(text) for key, text in data.items()}
    router = name == "semantic-router"
    filters = [
        *parts["1-at-the-edge.yaml"],
        verifying(),
        *parts.get("2-before-the-router.yaml", []),
        *([routing()] if router else []),
        *parts["3-memory.yaml"],
        {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{_FILTERS}.http.router.v3.Router"}},
    ]
    route = {"match": {"prefix": "/"}, "route": {"cluster": "model", "timeout": "0s", "idle_timeout": "600s"}}
    manager = {
        "@type": f"{_FILTERS}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "llm",
        "route_config": {"virtual_hosts": [{"name": "llm", "domains": ["*"], "routes": [route]}]},
        "http_filters": filters,
    }
    listener = {
        "name": "llm",
        "address": {"socket_address": {"address": "0.0.0.0", "port_value": 8080}},  # of a pod
        **parts["5-listener.yaml"],
        "filter_chains": [{"filters": [{"name": "http_connection_manager", "typed_config": manager}]}],
    }
    tls = {
        "name": "tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "sni": "login.example.com",
            "common_tls_context": {
                "validation_context": {
                    "trusted_ca": {"filename": "/etc/ssl/certs/ca-certificates.crt"},
                    "match_typed_subject_alt_names": [
                        {"san_type": "DNS", "matcher": {"exact": "login.example.com"}}
                    ],
                }
            },
        },
    }
    clusters = [
        address("model", "model.llm.svc.cluster.local", 8000),
        address("login", "login.example.com", 443, transport_socket=tls),
        *parts["4-cluster.yaml"],
    ]
    if router:
        place = "semantic-router.vllm-semantic-router-system.svc.cluster.local"
        clusters.append(address("semantic_router", place, 50051, **http2()))
    return {"static_resources": {"listeners": [listener], "clusters": clusters}}


@pytest.mark.parametrize("name", ["envoy", "semantic-router"])
def test_the_examples_envoys_have_the_charts_blocks_and_are_taken_by_envoy(name: str, tmp_path: Path) -> None:
    path = EXAMPLES / name / "envoy.yaml"
    head = "# The chart's blocks for values.yaml, in their places; `make chart` writes it.\n"
    text = head + yaml.safe_dump(json.loads(json.dumps(envoys(name))), sort_keys=False, width=140)
    if os.environ.get("MEMORY_EXTPROC_WRITE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text, "make chart"
    checked(yaml.safe_load(text), tmp_path)
    applied = yaml.safe_load((EXAMPLES / name / "kustomization.yaml").read_text())
    assert applied["configMapGenerator"][0]["files"] == [path.name]
    assert all((EXAMPLES / name / each).exists() for each in applied["resources"])


async def test_the_redis_of_the_examples_keeps_what_it_is_given(tmp_path: Path) -> None:
    """The real server with the manifest's arguments, asked as the sidecar asks at its start."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    redis = one(documents((SERVERS / "redis.yaml").read_text()), "StatefulSet")
    arguments = [
        each.replace("/data", str(tmp_path)) for each in redis["spec"]["template"]["spec"]["containers"][0]["args"]
    ]
    port = free_port()
    command = [binary, *arguments, "--port", str(port), "--bind", "127.0.0.1"]
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        async with RedisLink(f"redis://127.0.0.1:{port}/0", timedelta(seconds=1)) as link:
            await until(partial(answers, link), "redis answers", seconds=20)
            keeping = await link.keeping()
    finally:
        server.terminate()
        await server.wait()
    assert not keeping.loses
    assert keeping.faults == ()


async def answers(link: RedisLink) -> bool:
    with suppress(MemoryExtprocError):
        return bool(await link.limit_time(link.client.ping()))
    return False


def test_the_adapters_rule_names_the_metrics_that_the_autoscaler_asks_for() -> None:
    values = yaml.safe_load((SERVERS / "prometheus-adapter-values.yaml").read_text())
    rules = values["rules"]["custom"]
    given = {rule.get("name", {}).get("as") or rule["seriesQuery"].partition("{")[0] for rule in rules}
    servers = ("config.memory.milvus.address=milvus:19530", "config.coordination.url=redis://redis:6379/0")
    asked = ("autoscaling.recallSaturation=70", "autoscaling.journalDepth=100")
    scaler = one(
        documents(rendered(settings=("autoscaling.enabled=true", *asked, *servers))), "HorizontalPodAutoscaler"
    )
    pods = {each["pods"]["metric"]["name"]: each["pods"] for each in scaler["spec"]["metrics"] if "pods" in each}
    assert pods.keys() == given
    assert pods["memory_extproc_recall_saturation"]["target"]["averageValue"] == "700m"
