"""A model's endpoint over TLS: what its certificate and its connection may be like, and how long we bear it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.errors import TransientError
from memory_extproc.inference.openai_client import EndpointLimits, ModelEndpoint
from memory_extproc.inference.openai_models import OpenAICompletions
from memory_extproc.observe.metrics import Metrics
from tests.support.authority import Authority
from tests.support.endpoint import a_model
from tests.support.endpoint_tls import serving_tls
from tests.support.waiting import until

HOUR = timedelta(hours=1)
_BAD_RECORD = b"\x17\x03\x03\x00\x20" + bytes(32)  # application data that no key of the connection made
_HALF_RECORD = b"\x17\x03\x03\x40\x00" + bytes(100)  # 100 bytes of 16 KiB


class Bench:
    def __init__(self, base_url: str, patience: timedelta) -> None:
        self.metrics = Metrics(CollectorRegistry(), "test")
        limits = EndpointLimits(base_url=base_url, timeout=patience, backoff=timedelta(), attempts=2)
        self.endpoint = ModelEndpoint(
            limits,
            role="memory_extraction",
            marker="",
            metrics=self.metrics,
            rng=lambda: 0.5,
            clock=lambda: 0.0,
        )
        self.completions = OpenAICompletions(self.endpoint, a_model())

    def counted(self, outcome: str) -> float:
        labels = {"role": "memory_extraction", "outcome": outcome}
        return self.metrics.registry.get_sample_value("memory_extproc_llm_requests_total", labels) or 0.0


@asynccontextmanager
async def asking(base_url: str, patience: timedelta = timedelta(seconds=10)) -> AsyncIterator[Bench]:
    bench = Bench(base_url, patience)
    try:
        yield bench
    finally:
        await bench.completions.close()


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """The one that the process trusts."""
    trusted = Authority()
    (tmp_path / "authority.pem").write_bytes(trusted.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    return trusted


async def test_an_endpoint_whose_certificate_is_trusted_answers(tmp_path: Path, authority: Authority) -> None:
    async with serving_tls(tmp_path, authority) as server, asking(server.base_url) as bench:
        assert await bench.completions.complete("", "capital?") == "Paris"


@pytest.mark.parametrize("fault", ["expired", "unknown", "another name"])
async def test_no_word_goes_to_an_endpoint_whose_certificate_is_not_to_be_believed(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    of = authority
    if fault == "unknown":
        of = Authority()
    elif fault == "expired":
        of = Authority(-timedelta(minutes=1))
        (tmp_path / "authority.pem").write_bytes(of.pem)
    name = "elsewhere.example" if fault == "another name" else "localhost"
    async with serving_tls(tmp_path, of, name) as server, asking(server.base_url) as bench:
        with pytest.raises(TransientError, match="untrusted"):
            await bench.completions.complete("", "capital?")
        assert server.asked == 0
    assert bench.counted("untrusted") == 1


@pytest.mark.parametrize("raw", [_BAD_RECORD, _HALF_RECORD], ids=["a record of nobody's", "half a record"])
async def test_a_connection_that_breaks_within_the_encryption_is_tried_again_and_then_put_off(
    tmp_path: Path, authority: Authority, raw: bytes
) -> None:
    async with serving_tls(tmp_path, authority) as server, asking(server.base_url) as bench:
        server.raw = raw
        with pytest.raises(TransientError, match="unreachable"):
            await bench.completions.complete("", "capital?")
        assert server.asked == 2
        server.raw = b""
        assert await bench.completions.complete("", "capital?") == "Paris"


async def test_an_answer_that_trickles_costs_the_timeout_and_no_more(tmp_path: Path, authority: Authority) -> None:
    async with (
        serving_tls(tmp_path, authority) as server,
        asking(server.base_url, timedelta(milliseconds=300)) as bench,
    ):
        server.trickles = True
        with pytest.raises(TransientError, match="timeout"):
            await bench.completions.complete("", "capital?")
    assert bench.counted("timeout") == 1


async def test_who_hears_no_end_of_an_answer_can_leave_at_once(tmp_path: Path, authority: Authority) -> None:
    async with serving_tls(tmp_path, authority) as server, asking(server.base_url, HOUR) as bench:
        server.trickles = True
        waiting = asyncio.create_task(bench.completions.complete("", "capital?"))
        await until(lambda: server.asked, "it answers")
        waiting.cancel()
        await until(waiting.done, "the call has ended")
    assert waiting.cancelled()
