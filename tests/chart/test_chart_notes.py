"""Helm's notes after an installation: three commands that name what is there, and what must be known at once."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.chart import CHART, documents, helm, rendered

SERVERS = (
    "config.memory.milvus.address=milvus:19530",
    "config.coordination.url=redis://redis:6379/0",
    "persistence.acceptLoss=true",
)


def notes(*settings: str) -> str:
    chosen = [argument for each in settings for argument in ("--set", each)]
    # Helm 3 asks the cluster for its version even where nothing is installed.
    done = helm("4", "install", "test", str(CHART), "--dry-run=client", "--namespace", "memory", *chosen)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("\nNOTES:\n")[2]


@pytest.mark.parametrize("mode", ["deployment", "sidecar"])
@pytest.mark.parametrize(
    "gateway", ["none", "raw", "envoy-gateway", "envoy-ai-gateway", "istio", "vllm-semantic-router"]
)
def test_the_next_three_commands_name_what_was_installed(gateway: str, mode: str) -> None:
    settings = (f"gateway.type={gateway}", "gateway.namespace=edge", f"mode={mode}", *SERVERS)
    said = notes(*settings)
    assert re.findall(r"^  (\d)\. ", said, re.MULTILINE) == ["1", "2", "3"]
    assert "memory-extproc doctor --through" in said
    there = {
        (tree["kind"].lower(), tree["metadata"]["namespace"], tree["metadata"]["name"])
        for tree in documents(rendered(settings=settings))
    }
    named = re.findall(r"kubectl -n (\S+) get (\S+) (\S+)", said)
    assert {(kind, namespace, name) for namespace, kind, name in named} <= there
    assert bool(named) == (mode == "sidecar" or gateway not in {"none", "istio"})
    assert ("helm test test" in said) == (mode == "deployment")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("persistence.enabled=false", "persistence.acceptLoss=true"), "these files are lost with the pod"),
        (("networkPolicy.enabled=false", "tls.acceptPlaintext=true"), "reads and writes everybody's memories"),
        (("gateway.identity.mode=trust", "gateway.type=raw"), "is given that person's memories"),
        (
            (
                "gateway.type=istio",
                "tls.enabled=true",
                "tls.secretName=t",
                "tls.allowedNames={envoy.corp,edge.corp}",
            ),
            "one of the names envoy.corp, edge.corp, mounted at /etc/envoy/memory-extproc",
        ),
        ((), "Milvus Lite, a file of the pod"),
        (SERVERS, "the Milvus server at milvus:19530"),
        ((*SERVERS, "autoscaling.enabled=true"), "2 to 10 pod(s)"),
    ],
)
def test_what_must_be_known_at_once_is_said(settings: tuple[str, ...], said: str) -> None:
    assert said in notes(*settings)


@pytest.mark.parametrize(
    ("gateway", "mode", "patched"),
    [
        ("envoy-gateway", "deployment", False),
        ("envoy-gateway", "sidecar", True),
        ("envoy-ai-gateway", "deployment", True),
        ("envoy-ai-gateway", "sidecar", True),
        ("raw", "sidecar", False),
    ],
)
def test_an_envoyproxy_that_nobody_names_does_nothing_so_it_is_said_how_to_name_it(
    gateway: str, mode: str, *, patched: bool
) -> None:
    settings = (f"gateway.type={gateway}", "gateway.name=edge", f"mode={mode}", *SERVERS)
    proxies = [tree for tree in documents(rendered(settings=settings)) if tree["kind"] == "EnvoyProxy"]
    assert bool(proxies) == patched
    said = notes(*settings)
    match = re.search(r"kubectl -n (\S+) patch gateway (\S+) --type merge -p '(.*?)'", said)
    assert bool(match) == patched
    if match:
        [proxy] = proxies
        assert (match[1], match[2]) == (proxy["metadata"]["namespace"], "edge")
        named = json.loads(match[3])["spec"]["infrastructure"]["parametersRef"]
        assert named == {"group": "gateway.envoyproxy.io", "kind": "EnvoyProxy", "name": proxy["metadata"]["name"]}
    assert ("must run in the namespace memory" in said) == (mode == "sidecar")
