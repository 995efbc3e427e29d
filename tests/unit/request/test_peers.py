from __future__ import annotations

import pytest

from memory_extproc.request.identity import AllowedPeers


@pytest.mark.parametrize(
    ("auth", "admitted"),
    [
        ({}, False),
        ({"x509_common_name": [b"envoy"]}, True),
        ({"x509_common_name": [b"Envoy"]}, False),
        ({"x509_subject_alternative_name": [b"spiffe://mesh/ns/gateway/sa/envoy"]}, True),
        ({"x509_subject_alternative_name": [b"spiffe://mesh/ns/other/sa/envoy"]}, False),
        ({"x509_subject_alternative_name": [b"other", b"envoy"]}, True),
        # The common name of a certificate with alternative names says nothing (RFC 6125, 6.4.4).
        ({"x509_subject_alternative_name": [b"other"], "x509_common_name": [b"envoy"]}, False),
        ({"x509_common_name": [b"\xff"]}, False),
        ({"transport_security_type": [b"ssl"]}, False),
    ],
)
def test_who_may_open_a_stream(auth: dict[str, list[bytes]], admitted: bool) -> None:
    assert AllowedPeers(["envoy", "spiffe://mesh/ns/gateway/*"]).admit(auth) is admitted


def test_with_nobody_allowed_nobody_comes_in() -> None:
    assert not AllowedPeers([]).admit({"x509_common_name": [b"envoy"]})
