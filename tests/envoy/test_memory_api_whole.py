"""The memory API of the whole sidecar, as its configuration says who may call."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from memory_extproc.api.audit import verify
from memory_extproc.api.authentication import key_hash
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.api.principal import derive_key
from memory_extproc.cli.api_client import open_stub
from tests.support.authority import Authority
from tests.support.whole import WholeStand

SECRET = "a secret of the API that replicas share"
KEY = "mxk_of_the_operators"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def token(user: str) -> str:
    claims = {"sub": user, "iss": "us", "aud": "memory", "exp": datetime.now(UTC) + timedelta(minutes=5)}
    return jwt.encode(claims, RSA_KEY, algorithm="RS256", headers={"kid": "k"})


@pytest.fixture
async def configured(whole: WholeStand, tmp_path: Path) -> tuple[WholeStand, grpc.ChannelCredentials]:
    """Certificates, tokens and keys at once, behind TLS."""
    authority = Authority()
    key, certificate = authority.issue("sidecar", "sidecar")
    made = jwt.algorithms.RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True)
    files = {
        "key.pem": key, "cert.pem": certificate, "ca.pem": authority.pem,
        "jwks.json": json.dumps({"keys": [{**made, "kid": "k"}]}).encode(),
        "keys.yaml": f"keys: [{{id: ops, sha256: {key_hash(KEY)}, roles: [admin]}}]".encode(),
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    whole.changes = {
        "listen": {"api": "localhost:0", **dict.fromkeys(("console", "ext_proc", "http"), "127.0.0.1:0")},
        "api": {
            "auth": ["jwt", "api_key", "mtls"],
            "secret": SECRET,
            "tls": {name: str(tmp_path / f"{file}.pem") for name, file in
                    (("cert", "cert"), ("key", "key"), ("client_ca", "ca"))},
            "jwt": {"jwks_file": str(tmp_path / "jwks.json"), "issuer": "us", "audience": "memory"},
            "keys_file": str(tmp_path / "keys.yaml"),
            "certificates": [{"name": "*.people"}],
        },
    }  # fmt: skip
    await whole.start_sidecar()
    private, public = authority.issue("x", "carol.people")
    return whole, grpc.ssl_channel_credentials(authority.pem, private, public)


async def test_token_key_and_certificate_each_open_their_own_door(
    configured: tuple[WholeStand, grpc.ChannelCredentials], tmp_path: Path
) -> None:
    whole, credentials = configured
    options = [("grpc.ssl_target_name_override", "sidecar")]
    try:
        async with grpc.aio.secure_channel(whole.whole.api, credentials, options=options) as channel:
            stub: Any = open_stub(channel)
            secret = "sk-proj-" + "a1B2c3D4" * 6
            request = pb.StoreMemoryRequest(content=f"The zebra is called Mr Quibble, key {secret}")
            bearing = (("authorization", f"Bearer {token('ann')}"),)
            stored = await stub.StoreMemory(request, metadata=bearing)
            assert stored.memory.user_id == "ann"
            assert secret not in stored.memory.content
            found = await stub.SearchMemories(
                pb.SearchMemoriesRequest(query="What is the zebra called?"), metadata=bearing
            )
            assert [one.memory.id for one in found.results] == [stored.memory.id]
            stats = await stub.GetStats(pb.GetStatsRequest(user_id="ann"), metadata=(("x-api-key", KEY),))
            assert stats.total == 1
            mine = await stub.StoreMemory(pb.StoreMemoryRequest(content="Carol likes tea"))
            assert mine.memory.user_id == "carol.people"
            for refused in ((("authorization", "Bearer a.b.c"),), (("x-api-key", "mxk_other"),)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.GetStats(pb.GetStatsRequest(), metadata=refused)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    finally:
        await whole.stop_sidecar()
    data = tmp_path / "data"
    assert verify(data / "audit", derive_key(SECRET.encode(), "audit")).lines == 4
    written = b"".join(path.read_bytes() for path in (data / "audit").iterdir())
    for word in (b"zebra", b"Quibble", b"ann", b"carol", KEY.encode()):
        assert word not in written
    everything = b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file())
    assert secret.encode() not in everything
