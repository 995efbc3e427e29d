"""The end of a certificate as a metric."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from prometheus_client import CollectorRegistry

from memory_extproc.observe.http import watch_certificate
from memory_extproc.observe.metrics import Metrics
from tests.support.authority import Authority


def ends(pem: bytes) -> float:
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


def write(path: Path, content: bytes) -> None:
    """As a rotation does it: another file in its place."""
    other = path.with_suffix(".new")
    other.write_bytes(content)
    other.replace(path)


def test_the_end_of_a_ports_certificate_is_shown_and_follows_a_rotation(tmp_path: Path) -> None:
    metrics = Metrics(CollectorRegistry(), "test")
    cert = tmp_path / "tls.crt"

    def shown() -> float:
        value = metrics.registry.get_sample_value(
            "memory_extproc_certificate_expiry_timestamp_seconds", {"port": "ext_proc"}
        )
        assert value is not None
        return value

    watch_certificate(metrics, "ext_proc", cert)
    assert math.isnan(shown())
    first, second = (Authority(timedelta(hours=hours)).pem for hours in (1, 2))
    write(cert, first)
    assert shown() == ends(first)
    write(cert, second)
    assert shown() == ends(second)
    write(cert, b"half a")
    assert shown() == ends(second)  # as the server goes on with it
    write(cert, second + first)
    assert shown() == ends(first)  # what signed it ends first, and it with that
