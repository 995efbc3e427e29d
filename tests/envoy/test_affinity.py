"""One caller's exchanges reach one pod, by the blocks that the chart writes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.support.chart import documents, one, rendered
from tests.support.envoy import PATH_CHAT, Envoy, Wiring, a_chat, bootstrap
from tests.support.ports import free_port
from tests.support.sidecar import Sidecar
from tests.support.upstream import Upstream

USERS = [f"user-{number}" for number in range(11)]  # odd: taking turns would split each of them


def blocks(*settings: str) -> dict[str, Any]:
    trees = documents(rendered(settings=["gateway.type=raw", *settings]))
    data = one(trees, "ConfigMap", "test-memory-extproc-envoy")["data"]
    return {key: yaml.safe_load(text) for key, text in data.items()}


def joined(config: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    """*config* with the chart's filters and balancing instead of the test's own; addresses stay."""
    chain = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    filters = json.loads(json.dumps(parts["3-memory.yaml"]).replace("memory_extproc", "sidecar"))
    chain["http_filters"] = [*filters, chain["http_filters"][-1]]
    [ours] = [each for each in config["static_resources"]["clusters"] if each["name"] == "sidecar"]
    if policy := parts["4-cluster.yaml"][0].get("load_balancing_policy"):
        ours["load_balancing_policy"] = policy
    return config


@contextlib.asynccontextmanager
async def two_pods(
    binary: Path, scratch: Path, parts: dict[str, Any]
) -> AsyncIterator[tuple[str, Sidecar, Sidecar]]:
    async with Upstream() as upstream, Sidecar() as first, Sidecar() as second:
        envoy = Envoy(binary, scratch)
        envoy.front, envoy.admin = free_port(), free_port()
        config = bootstrap(
            Wiring(others=(second.port,)),
            front=envoy.front,
            admin=envoy.admin,
            sidecar=first.port,
            upstream=upstream.port,
        )
        await envoy.launch(json.dumps(joined(config, parts)))
        try:
            yield f"http://127.0.0.1:{envoy.front}{PATH_CHAT}", first, second
        finally:
            await envoy.stop()


async def served(url: str, first: Sidecar, second: Sidecar) -> tuple[set[str], set[str]]:
    """Who came to which of the two, when everybody asks four times."""
    async with aiohttp.ClientSession() as session:
        for user in USERS * 4:
            async with session.post(url, json=a_chat(), headers={"x-authz-user-id": user}) as got:
                assert got.status == 200
                await got.read()
    return tuple({wish.caller.owner.user for wish in each.recalls.wishes} for each in (first, second))  # type: ignore[return-value]  # two of them


async def test_a_caller_comes_to_the_same_pod_each_time(envoy_binary: Path, tmp_path: Path) -> None:
    parts = blocks("gateway.affinity.enabled=true")
    async with two_pods(envoy_binary, tmp_path, parts) as (url, first, second):
        ours, theirs = await served(url, first, second)
    assert ours | theirs == set(USERS)
    assert not ours & theirs
    assert ours
    assert theirs, "both pods have work"


async def test_without_affinity_callers_come_to_any_pod(envoy_binary: Path, tmp_path: Path) -> None:
    """What affinity is for: without it the test above would not hold."""
    async with two_pods(envoy_binary, tmp_path, blocks()) as (url, first, second):
        ours, theirs = await served(url, first, second)
    assert ours & theirs


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_the_ring_is_there_only_when_asked_for(enabled: str) -> None:
    parts = blocks(f"gateway.affinity.enabled={enabled}")
    assert ("load_balancing_policy" in parts["4-cluster.yaml"][0]) is (enabled == "true")
