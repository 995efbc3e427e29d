"""The model that extracts facts is asked over TLS, and that goes wrong: the rules serve, and nobody hangs on it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.authority import Authority
from tests.support.endpoint_tls import TlsStandIn, serving_tls
from tests.support.faults import ASKED, BUDGET, FaultStand
from tests.support.waiting import until

pytestmark = pytest.mark.envoy

Trusts = Callable[[Authority], object]


@pytest.fixture
def trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trusts:
    """Has the process trust an authority."""
    place = tmp_path / "authorities.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(place))
    return lambda authority: place.write_bytes(authority.pem)


def a_model_at(server: TlsStandIn, seconds: float) -> dict[str, Any]:
    port = int(server.base_url.removesuffix("/v1").rpartition(":")[2])
    endpoint = {"address": "localhost", "port": port, "protocol": "https"}
    return {
        "model_role": "memory_extraction",
        "llm_endpoint": endpoint,
        "llm_model_name": "m",
        "llm_timeout_seconds": seconds,
    }


async def test_while_the_certificate_of_a_model_is_not_to_be_believed_the_rules_serve_and_the_log_says_so(
    faulty: FaultStand, tmp_path: Path, trusts: Trusts
) -> None:
    authority = Authority(-timedelta(minutes=1))
    trusts(authority)
    async with serving_tls(tmp_path, authority) as server:
        faulty.change(external_models=[a_model_at(server, 5)])
        await faulty.start()
        assert (await faulty.say(BUDGET, x_memory_session="end")).status == 200
        await until(lambda: faulty.sample("reconcile_total", decision="added") == 1, "the fact is there")
        assert faulty.sample("llm_requests_total", role="memory_extraction", outcome="untrusted") >= 1
        assert faulty.logs.of("llm.failed")[0]["outcome"] == "untrusted"
        assert (await faulty.say(ASKED)).memory.startswith("used")
        assert faulty.sample("journal_dead_letters") == 0
        assert server.asked == 0


async def test_a_sidecar_leaves_in_its_time_while_a_model_lets_its_answer_trickle(
    faulty: FaultStand, tmp_path: Path, trusts: Trusts
) -> None:
    authority = Authority()
    trusts(authority)
    async with serving_tls(tmp_path, authority) as server:
        server.trickles = True
        faulty.change(external_models=[a_model_at(server, 3600)], shutdown={"flush": "100ms"})
        await faulty.start()
        await faulty.say(BUDGET, x_memory_session="end")
        await until(lambda: server.asked == 1, "the extraction waits")
        assert (await faulty.say(ASKED, x_memory_store="skip")).memory.startswith("used")
        await faulty.stop_sidecar()
        assert faulty.logs.said("learn.drain_cut_short")
        faulty.change(learn={"extractor": "rules", "session_idle": "10ms"})
        await faulty.start_sidecar()
        await until(lambda: faulty.sample("reconcile_total", decision="added") == 1, "the fact is there")
