"""The gRPC server alone, over real sockets: health, reflection, TLS, addresses, and what a stream is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog.testing
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from h2.events import ResponseReceived
from h2.settings import SettingCodes

from memory_extproc.errors import ConfigurationError
from memory_extproc.extproc.gen import ext_proc_pb2 as pb
from memory_extproc.extproc.processor import SERVICE
from memory_extproc.extproc.server import GrpcServer, ServerOptions, ServerTls
from memory_extproc.model import Outcome
from memory_extproc.request.identity import AllowedPeers
from tests.envoy.test_plaintext_server import Bare
from tests.support.authority import Authority
from tests.support.sidecar import BLOCK, Sidecar
from tests.support.waiting import until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
async def sidecar() -> AsyncIterator[Sidecar]:
    async with Sidecar() as started:
        yield started


@contextlib.asynccontextmanager
async def a_channel(sidecar: Sidecar, credentials: grpc.ChannelCredentials | None = None) -> AsyncIterator[Any]:
    address = sidecar.server.address
    opened = (
        grpc.aio.insecure_channel(address)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials, options=[("grpc.ssl_target_name_override", "sidecar")])
    )
    async with opened as channel:
        yield channel


def a_stream(channel: Any) -> Any:
    return channel.stream_stream(
        f"/{SERVICE}/Process",
        request_serializer=pb.ProcessingRequest.SerializeToString,
        response_deserializer=pb.ProcessingResponse.FromString,
    )()


async def ended(stream: Any) -> bool:
    """Whether the other side has ended the stream, rather than written to it."""
    return bool(await stream.read() is grpc.aio.EOF)  # type: ignore[attr-defined]  # the stubs lack it


def headers(**pairs: str) -> pb.HttpHeaders:
    named = ((key.replace("__", ":").replace("_", "-"), value) for key, value in pairs.items())
    sent = [pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in named]
    return pb.HttpHeaders(headers=pb.HeaderMap(headers=sent))


CHAT = pb.ProcessingRequest(
    request_headers=headers(
        __method="POST",
        __path="/v1/chat/completions",
        content_type="application/json",
        x_authz_user_id="ann",
    )
)
BODY = pb.ProcessingRequest(
    request_body=pb.HttpBody(body=b'{"model":"m","messages":[{"role":"user","content":"hi?"}]}')
)


async def health(channel: Any, service: str) -> Any:
    stub = health_pb2_grpc.HealthStub(channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status


async def test_health_knows_liveness_readiness_and_the_service(sidecar: Sidecar) -> None:
    async with a_channel(sidecar) as channel:
        for service in ("", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"):
            assert await health(channel, service) == SERVING
        await sidecar.server.set_ready(ready=False)
        assert await health(channel, "readiness") == NOT_SERVING
        assert await health(channel, "liveness") == SERVING


async def test_reflection_tells_envoys_own_name_of_the_service(sidecar: Sidecar) -> None:
    async with a_channel(sidecar) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        ]
        listed, described = [answer async for answer in stub.ServerReflectionInfo(iter(asked))]
    names = {service.name for service in listed.list_services_response.service}
    assert {"envoy.service.ext_proc.v3.ExternalProcessor", "grpc.health.v1.Health"} <= names
    assert described.file_descriptor_response.file_descriptor_proto


async def test_a_stream_is_answered_message_by_message(sidecar: Sidecar) -> None:
    async with a_channel(sidecar) as channel:
        stream = a_stream(channel)
        await stream.write(CHAT)
        assert (await stream.read()).WhichOneof("response") == "request_headers"
        await stream.write(BODY)
        assert BLOCK.encode()[:10] in (await stream.read()).request_body.response.body_mutation.body
        await stream.done_writing()
        assert await ended(stream)
        assert await stream.code() is grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (pb.ProcessingRequest.FromString(b"\x9a\x06\x02hi"), "unknown_message"),
        (pb.ProcessingRequest(response_body=pb.HttpBody()), "out_of_order"),
    ],
)
async def test_a_message_we_do_not_understand_ends_the_stream_cleanly(
    sidecar: Sidecar, message: pb.ProcessingRequest, kind: str
) -> None:
    async with a_channel(sidecar) as channel:
        stream = a_stream(channel)
        await stream.write(CHAT)
        await stream.read()
        await stream.write(message)
        assert await ended(stream)
        assert await stream.code() is grpc.StatusCode.OK
    assert sidecar.sample("stream_faults_total", kind=kind) == 1
    await until(lambda: sidecar.sample("streams_open") == 0, "no stream is open")


async def test_who_only_watches_is_never_answered(sidecar: Sidecar) -> None:
    """In observability mode Envoy takes an answer for a fault."""
    async with a_channel(sidecar) as channel:
        stream = a_stream(channel)
        for seen in (CHAT, BODY):
            watched = pb.ProcessingRequest()
            watched.CopyFrom(seen)
            watched.observability_mode = True
            if watched.HasField("request_body"):
                watched.request_body.end_of_stream = True
            await stream.write(watched)
        await stream.done_writing()
        assert await ended(stream)
    assert sidecar.exchanges(Outcome.SHADOWED) == 1


async def test_a_stream_without_a_message_counts_nothing(sidecar: Sidecar) -> None:
    async with a_channel(sidecar) as channel:
        stream = a_stream(channel)
        await stream.done_writing()
        assert await ended(stream)
        assert await stream.code() is grpc.StatusCode.OK


async def test_a_body_far_above_grpcs_own_limit_is_received(sidecar: Sidecar) -> None:
    async with a_channel(sidecar) as channel:
        stream = a_stream(channel)
        await stream.write(CHAT)
        await stream.read()
        await stream.write(pb.ProcessingRequest(request_body=pb.HttpBody(body=bytes(20 * 1024 * 1024))))
        assert (await stream.read()).WhichOneof("response") == "request_body"
    await until(lambda: sidecar.exchanges(Outcome.TOO_LARGE) == 1, "the exchange is counted")


async def test_a_unix_socket_serves_as_well(tmp_path: Path) -> None:
    sidecar = Sidecar()
    sidecar.server_options = replace(sidecar.server_options, address=f"unix:{tmp_path / 's'}")
    async with sidecar, a_channel(sidecar) as channel:
        assert await health(channel, "") == SERVING


async def test_a_unix_socket_serves_beside_a_port(tmp_path: Path) -> None:
    sidecar = Sidecar()
    sidecar.server_options = replace(sidecar.server_options, also=f"unix:{tmp_path / 's'}")
    async with sidecar:
        for address in (sidecar.server.address, f"unix:{tmp_path / 's'}"):
            async with grpc.aio.insecure_channel(address) as channel:
                assert await health(channel, "") == SERVING


async def test_an_address_in_use_is_a_fault_of_the_configuration(sidecar: Sidecar) -> None:
    options = ServerOptions(address=sidecar.server.address, channel=(("grpc.so_reuseport", 0),))
    with pytest.raises(ConfigurationError, match="cannot listen"):
        await GrpcServer(options, [], lambda _: None).__aenter__()


async def test_draining_says_so_keeps_open_streams_and_takes_no_new_ones() -> None:
    sidecar = Sidecar()
    sidecar.server_options = replace(sidecar.server_options, drain_wait=timedelta(milliseconds=100))
    async with sidecar, a_channel(sidecar) as channel:
        stream = a_stream(channel)
        await stream.write(CHAT)
        await stream.read()
        draining = asyncio.ensure_future(sidecar.server.drain())

        async def told() -> bool:
            return bool(await health(channel, "readiness") == NOT_SERVING)

        await until(told, "readiness says NOT_SERVING")
        await sidecar.server.set_ready(ready=True)  # without effect: what drains does not come back
        assert await told()
        assert await health(channel, "liveness") == SERVING

        async def refused() -> bool:
            try:
                await health(channel, "")
            except grpc.aio.AioRpcError:
                return True
            return False

        await until(refused, "new calls are refused")
        await stream.write(BODY)
        assert (await stream.read()).WhichOneof("response") == "request_body"
        await stream.done_writing()
        assert await ended(stream)
        await draining
        await sidecar.server.drain()  # a second time does nothing


async def test_who_watches_health_hears_of_every_change_and_delays_no_drain() -> None:
    """Neither does a client that reads nothing of what it asked for."""
    sidecar = Sidecar()
    async with sidecar, a_channel(sidecar) as channel:
        slow = Bare(*await asyncio.open_connection("127.0.0.1", sidecar.port))
        slow.h2.initiate_connection()
        slow.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        stream = slow.open(**{":path": "/grpc.health.v1.Health/Watch"})
        slow.h2.send_data(stream, bytes(5), end_stream=True)
        slow.send()
        await until(lambda: slow.has(ResponseReceived, stream), "it is watched")
        stub = health_pb2_grpc.HealthStub(channel)
        watched = stub.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        assert (await watched.read()).status == SERVING
        unknown = stub.Watch(health_pb2.HealthCheckRequest(service="nothing"))
        assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        async with asyncio.timeout(60):
            await sidecar.server.set_ready(ready=False)
            assert (await watched.read()).status == NOT_SERVING
            await sidecar.server.drain()
        assert await watched.read() is grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
        await slow.close()


@pytest.fixture
def authority() -> Authority:
    return Authority()


def with_tls(authority: Authority, folder: Path, *, mutual: bool) -> Sidecar:
    key, certificate = authority.issue("sidecar", "sidecar")
    (folder / "key.pem").write_bytes(key)
    (folder / "cert.pem").write_bytes(certificate)
    (folder / "ca.pem").write_bytes(authority.pem)
    sidecar = Sidecar()
    client_ca = folder / "ca.pem" if mutual else None
    tls = ServerTls(cert=folder / "cert.pem", key=folder / "key.pem", client_ca=client_ca)
    sidecar.server_options = replace(sidecar.server_options, address="localhost:0", tls=tls)
    return sidecar


@pytest.mark.parametrize(
    ("name", "alternatives", "code"),
    [
        ("envoy", ["envoy.mesh"], grpc.StatusCode.OK),
        ("envoy", ["stranger.mesh"], grpc.StatusCode.PERMISSION_DENIED),
        ("envoy.mesh", [], grpc.StatusCode.OK),
        ("envoy.mesh", ["stranger.mesh"], grpc.StatusCode.PERMISSION_DENIED),
    ],
)
async def test_only_a_certificate_with_an_allowed_name_opens_a_stream(
    authority: Authority, tmp_path: Path, name: str, alternatives: list[str], code: grpc.StatusCode
) -> None:
    sidecar = with_tls(authority, tmp_path, mutual=True)
    sidecar.peers = AllowedPeers(["envoy.*"])
    key, certificate = authority.issue(name, *alternatives)
    async with (
        sidecar,
        a_channel(sidecar, grpc.ssl_channel_credentials(authority.pem, key, certificate)) as channel,
    ):
        stream = a_stream(channel)
        await stream.done_writing()
        assert await stream.code() is code


async def test_without_a_certificate_nobody_comes_in(authority: Authority, tmp_path: Path) -> None:
    async with (
        with_tls(authority, tmp_path, mutual=True) as sidecar,
        a_channel(sidecar, grpc.ssl_channel_credentials(authority.pem)) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await health(channel, "")
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_new_certificate_is_served_without_a_restart(authority: Authority, tmp_path: Path) -> None:
    sidecar = with_tls(authority, tmp_path, mutual=False)
    async with sidecar:
        async with a_channel(sidecar, grpc.ssl_channel_credentials(authority.pem)) as channel:
            assert await health(channel, "") == SERVING
        successor = Authority()
        key, certificate = successor.issue("sidecar", "sidecar")
        (tmp_path / "key.pem").unlink()  # half done: the old one is served
        async with a_channel(sidecar, grpc.ssl_channel_credentials(authority.pem)) as channel:
            assert await health(channel, "") == SERVING
        (tmp_path / "cert.pem").write_bytes(certificate)
        (tmp_path / "key.pem").write_bytes(key)
        async with a_channel(sidecar, grpc.ssl_channel_credentials(successor.pem)) as channel:
            assert await health(channel, "") == SERVING


broken = pytest.mark.parametrize(
    ("file", "content"),
    [
        ("cert.pem", b""),
        ("cert.pem", b"-----BEGIN CERTIFICATE-----\nbm90IG9uZQ==\n-----END CERTIFICATE-----\n"),
        ("key.pem", Authority().issue("sidecar")[0]),
        ("ca.pem", b"none"),
    ],
    ids=["empty", "broken", "key of another", "broken authority"],
)


@broken
async def test_a_certificate_that_cannot_be_used_is_named_before_anything_is_served(
    authority: Authority, tmp_path: Path, file: str, content: bytes
) -> None:
    sidecar = with_tls(authority, tmp_path, mutual=True)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ConfigurationError, match="the certificate for localhost:0 cannot be used"):
        await sidecar.__aenter__()


@broken
async def test_a_certificate_that_cannot_be_used_is_named_and_the_former_one_served(
    authority: Authority, tmp_path: Path, file: str, content: bytes
) -> None:
    """Half of a rotation, mostly: the key before its certificate."""
    sidecar = with_tls(authority, tmp_path, mutual=True)
    ours = grpc.ssl_channel_credentials(authority.pem, *authority.issue("envoy"))
    with structlog.testing.capture_logs() as entries:
        async with sidecar:
            before = (tmp_path / file).read_bytes()
            (tmp_path / file).write_bytes(content)
            for _ in range(2):
                async with a_channel(sidecar, ours) as channel:
                    assert await health(channel, "") == SERVING
            assert [entry["event"] for entry in entries if entry["event"].startswith("tls.")] == ["tls.unreadable"]
            (tmp_path / file).write_bytes(before)
            async with a_channel(sidecar, ours) as channel:
                assert await health(channel, "") == SERVING
