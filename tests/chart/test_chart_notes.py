"""What Helm says after an installation: three commands that name what is there, and what must be known at once."""

from __future__ import annotations

import re

import pytest

from tests.fixtures.chart import CHART, documents, helm, rendered

SERVERS = ("config.memory.milvus.address=milvus:19530", "config.coordination.url=redis://redis:6379/0")


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
        ((), "Milvus Lite, a file of the pod"),
        (SERVERS, "the Milvus server at milvus:19530"),
        ((*SERVERS, "autoscaling.enabled=true"), "2 to 10 pod(s)"),
    ],
)
def test_what_must_be_known_at_once_is_said(settings: tuple[str, ...], said: str) -> None:
    assert said in notes(*settings)
