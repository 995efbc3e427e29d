"""The manifests that the documentation says to install are rendered, and stand in the order of filters that its
pictures show."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from scripts.filter_pictures import PICTURES
from tests.support.chart import CHART, ROOT, documents, helm, one, rendered

INSTALLS = [
    (page, shlex.split(match[1].replace("\\\n", " ")))
    for page in sorted(ROOT.glob("docs/**/*.md"))
    for match in re.finditer(
        r"^helm install memory helm/memory-extproc((?:.*\\\n)*.*)$", page.read_text(), re.MULTILINE
    )
]


@pytest.mark.parametrize(
    ("page", "chosen"), INSTALLS, ids=lambda given: given.stem if isinstance(given, Path) else ""
)
def test_what_a_page_says_to_install_is_accepted(page: Path, chosen: list[str]) -> None:
    result = helm("4", "template", "memory", str(CHART), "--kube-version", "1.33.0", *chosen)
    assert result.returncode == 0, result.stderr
    names = {document["metadata"]["name"] for document in documents(result.stdout)}
    # what the page then looks at with kubectl
    for name in re.findall(r"kubectl get (?:\w+) (\S+)", page.read_text()):
        assert name in names


def test_every_gateway_that_the_chart_serves_has_its_install() -> None:
    assert {page.stem for page, _ in INSTALLS} == PICTURES.keys() - {"envoy"}


def test_the_pictures_show_the_order_that_the_chart_writes() -> None:
    router = one(
        documents(rendered(CHART / "ci" / "semantic-router.yaml")), "ConfigMap", "test-memory-extproc-envoy"
    )
    blocks = {
        name: [one["name"] for one in yaml.safe_load(text)] for name, text in sorted(router["data"].items())[:3]
    }
    drawn = [box.name for box in PICTURES["semantic-router"][1]]
    assert blocks["1-at-the-edge.yaml"] == ["identity_strip"]
    assert blocks["2-before-the-router.yaml"] == ["memory_bypass_cache"]
    assert blocks["3-memory.yaml"][0] == "memory"
    assert drawn[1:6] == ["strip", "who asks", "bypass cache", "the router", "memory"]

    ai = documents(rendered(CHART / "ci" / "ai-gateway.yaml"))
    order = one(ai, "EnvoyProxy")["spec"]["filterOrder"]
    assert order == [{"name": "envoy.filters.http.ext_proc", "before": "envoy.filters.http.buffer"}]
    drawn = [box.name for box in PICTURES["envoy-ai-gateway"][1]]
    assert drawn.index("memory") < drawn.index("buffer") < drawn.index("AI gateway")

    istio = one(documents(rendered(CHART / "ci" / "istio-tls.yaml")), "EnvoyFilter")["spec"]["configPatches"]
    placed = {
        patch["patch"]["value"]["name"]: patch["patch"]["operation"]
        for patch in istio
        if patch["applyTo"] == "HTTP_FILTER"
    }
    assert placed["identity_strip"] == "INSERT_FIRST"
    inserted = [name for name, operation in placed.items() if operation == "INSERT_BEFORE"]
    # each of them stands right before the router when it is inserted, so in the order of the patches
    assert inserted.index("memory") < inserted.index("memory_headers_end_here")
    drawn = [box.name for box in PICTURES["istio"][1]]
    assert drawn.index("strip") < drawn.index("memory") < drawn.index("strip again")
