"""The output of `envoy-config`, taken by the real Envoy and driven with traffic."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from memory_extproc.envoyconfig.manifests import Shape, render
from memory_extproc.envoyconfig.options import (
    JWT_AUTHN,
    Bodies,
    ClientTls,
    EnvoyOptions,
    IdentityMode,
    RestRoute,
    TokenRequirements,
    Upstream,
)
from memory_extproc.errors import ConfigurationError
from memory_extproc.model import Outcome
from memory_extproc.settings import Settings
from memory_extproc.settings.identity import IdentitySection
from memory_extproc.settings.traffic import EnvoySection
from tests.support.envoy import PATH_CHAT, Envoy, Stand, Wiring, a_chat
from tests.support.ports import free_port
from tests.support.sidecar import BLOCK
from tests.support.upstream import ANSWER, RawUpstream
from tests.support.waiting import until

pytestmark = pytest.mark.envoy

MIB = 1024 * 1024
SIGNER = ec.generate_private_key(ec.SECP256R1())
USER = "x-authz-user-id"

NAMELESS = IdentitySection(
    user_header="", tenant_header="", metadata=f"{JWT_AUTHN}:jwt.sub", metadata_tenant=f"{JWT_AUTHN}:jwt.tid"
)
REST = RestRoute("127.0.0.1:50053")
OVER_SOCKET = replace(REST, address="unix:/run/memory-api.sock")


def an_envoy(**changes: Any) -> EnvoyOptions:
    options = EnvoyOptions(
        sidecar="127.0.0.1:50051",
        upstream=Upstream("127.0.0.1", 8000, tls=False),
        listen=("127.0.0.1", 8888),
        admin_port=9901,
        identity=IdentityMode.STRIP,
        settings=Settings(envoy=EnvoySection(health_interval=timedelta(milliseconds=200))),
    )
    return replace(options, **changes)


@pytest.fixture
def keys(tmp_path: Path) -> TokenRequirements:
    """A key file, and what Envoy is to demand of tokens signed with it."""
    public = jwt.algorithms.ECAlgorithm.to_jwk(SIGNER.public_key(), as_dict=True)
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [{**public, "kid": "k1", "alg": "ES256"}]}))
    return TokenRequirements(issuer="login", audience="memory", jwks_file=str(file))


def a_token(user: str, **claims: Any) -> str:
    usual = {"sub": user, "iss": "login", "aud": "memory", "exp": datetime.now(UTC) + timedelta(minutes=5)}
    return jwt.encode({**usual, **claims}, SIGNER, algorithm="ES256", headers={"kid": "k1"})


# --- Envoy's own check -----------------------------------------------------------------------------
async def validate(binary: Path, scratch: Path, text: str) -> None:
    path = scratch / "checked.yaml"
    path.write_text(text)
    process = await asyncio.create_subprocess_exec(
        str(binary), "--mode", "validate", "-l", "warning", "-c", str(path),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    assert b"deprecated" not in said.lower(), said.decode()


def certificate(directory: Path) -> tuple[str, str]:
    """A certificate of its own authority, good for being read."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "envoy")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(SIGNER.public_key())
        .serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
        .sign(SIGNER, hashes.SHA256())
    )  # fmt: skip
    cert, key = directory / "tls.crt", directory / "tls.key"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        SIGNER.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return str(cert), str(key)


async def test_envoy_accepts_every_bootstrap_we_write(
    envoy_binary: Path, tmp_path: Path, keys: TokenRequirements
) -> None:
    cert, key = certificate(tmp_path)
    remote = replace(keys, jwks_file="", jwks_url="https://login.example.com/keys", tenant_claim="tid")
    for options in (
        an_envoy(),
        an_envoy(rest=REST),
        an_envoy(bodies=Bodies.FULL_DUPLEX),
        an_envoy(bodies=Bodies.FULL_DUPLEX, two_filters=True),
        an_envoy(identity=IdentityMode.TRUST, sidecar="unix:/run/memory.sock", rest=OVER_SOCKET),
        an_envoy(identity=IdentityMode.JWT, verified=remote, metadata_namespaces=(JWT_AUTHN, "router.signals")),
        an_envoy(
            sidecar="memory.example.com:50051",
            upstream=Upstream("api.example.com", 443, tls=True),
            listen=("::1", 8888),
            client_tls=ClientTls(cert, key, cert, server_name="memory.example.com"),
            settings=Settings(identity=NAMELESS),
        ),
    ):
        await validate(envoy_binary, tmp_path, render(options, Shape.BOOTSTRAP))


def with_filters(filters: list[Any], clusters: list[Any], routes: Sequence[Any] = ()) -> str:
    """A bootstrap of somebody else's, with our parts put in."""
    tree = yaml.safe_load(render(an_envoy(), Shape.BOOTSTRAP))
    manager = tree["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"] = [*filters, manager["http_filters"][-1]]
    host = manager["route_config"]["virtual_hosts"][0]
    host["routes"] = [*routes, *host["routes"]]
    tree["static_resources"]["clusters"] = [tree["static_resources"]["clusters"][1], *clusters]
    return yaml.safe_dump(tree)


@pytest.mark.parametrize("rest", [None, REST])
async def test_envoy_accepts_the_filters_the_routes_and_the_clusters_alone(
    envoy_binary: Path, tmp_path: Path, rest: RestRoute | None
) -> None:
    parts = yaml.safe_load(render(an_envoy(rest=rest), Shape.FILTER))
    assert [each["name"] for each in parts["http_filters"]] == ["identity_strip", "memory"]
    text = with_filters(parts["http_filters"], parts["clusters"], parts.get("routes", ()))
    await validate(envoy_binary, tmp_path, text)


@pytest.mark.parametrize("two_filters", [False, True])
@pytest.mark.parametrize("rest", [None, replace(REST, address="memory.ai:50053")])
async def test_envoy_accepts_what_istio_would_merge(
    envoy_binary: Path, tmp_path: Path, rest: RestRoute | None, *, two_filters: bool
) -> None:
    options = an_envoy(sidecar="memory.ai:50051", rest=rest, two_filters=two_filters)
    (document,) = yaml.safe_load_all(render(options, Shape.ISTIO, gateway="edge", namespace="infra"))
    patches = document["spec"]["configPatches"]
    filters = {
        each["patch"]["value"]["name"]: each["patch"]["value"]
        for each in patches
        if each["applyTo"] == "HTTP_FILTER"
    }
    routes = [each["patch"]["value"] for each in patches if each["applyTo"] == "HTTP_ROUTE"]
    (merged,) = (each["patch"]["value"] for each in patches if each["applyTo"] == "CLUSTER")
    name = filters["memory"]["typed_config"]["grpc_service"]["envoy_grpc"]["cluster_name"]
    assert name == "outbound|50051||memory.ai.svc.cluster.local"
    ours = yaml.safe_load(render(an_envoy(rest=rest), Shape.FILTER))["clusters"]
    clusters = [{**ours[0], **merged, "name": name}]
    if rest is not None:
        (to,) = {route["route"]["cluster"] for route in routes}
        clusters.append({**ours[1], "name": to})
        assert to == "outbound|50053||memory.ai.svc.cluster.local"
    await validate(envoy_binary, tmp_path, with_filters(list(filters.values()), clusters, routes))


def test_for_envoy_gateway_bodies_in_pieces_are_refused_because_they_could_not_fail_open() -> None:
    with pytest.raises(ConfigurationError, match=r"--bodies: .*leave this at buffered"):
        render(an_envoy(sidecar="memory.ai:50051", bodies=Bodies.FULL_DUPLEX), Shape.ENVOY_GATEWAY)


# --- with traffic ----------------------------------------------------------------------------------
class WrittenEnvoy(Envoy):
    """An Envoy that runs what `envoy-config` writes."""

    def __init__(self, binary: Path, scratch: Path) -> None:
        super().__init__(binary, scratch)
        self.options = an_envoy(identity=IdentityMode.TRUST)
        self.sidecar_address = ""

    async def start(self, wiring: Wiring, *, sidecar: int, upstream: int, others: Sequence[int] = ()) -> None:
        self.front, self.admin = free_port(), free_port()
        options = replace(
            self.options,
            sidecar=self.sidecar_address or f"127.0.0.1:{sidecar}",
            upstream=Upstream("127.0.0.1", upstream, tls=False),
            listen=("127.0.0.1", self.front),
            admin_port=self.admin,
        )
        await self.launch(render(options, Shape.BOOTSTRAP))
        await until(self.sidecar_healthy, "the sidecar is healthy")

    async def sidecar_healthy(self) -> bool:
        return await self.healthy("memory_extproc")


@pytest.fixture
def written(envoy_binary: Path, tmp_path: Path) -> WrittenEnvoy:
    return WrittenEnvoy(envoy_binary, tmp_path)


@pytest.fixture
async def gateway(written: WrittenEnvoy) -> AsyncIterator[Stand]:
    async with Stand(written) as made:
        yield made


async def test_a_trusted_client_gets_its_memories_and_is_learned_from(gateway: Stand) -> None:
    await gateway.start()
    answer = await gateway.chat()
    assert answer.memory.startswith("used")
    assert BLOCK.splitlines()[1] in json.loads(gateway.upstream.got[0].body)["messages"][-1]["content"]
    assert len(gateway.sidecar.learns.exchanged) == 1


async def test_bodies_in_pieces_as_written_do_all_that_whole_ones_do(gateway: Stand, written: WrittenEnvoy) -> None:
    written.options = an_envoy(identity=IdentityMode.TRUST, bodies=Bodies.FULL_DUPLEX)
    await gateway.start()
    answer = await gateway.chat()
    assert answer.memory.startswith("used")
    assert json.loads(answer.body) == ANSWER
    assert BLOCK.splitlines()[1] in json.loads(gateway.upstream.got[0].body)["messages"][-1]["content"]
    assert len(gateway.sidecar.learns.exchanged) == 1
    mode = "full_duplex_streamed"
    assert gateway.sidecar.sample("streams_total", request_body=mode, response_body=mode) == 1
    await gateway.sidecar.server.drain()
    await until(lambda: not_healthy(written), "Envoy has noticed")
    assert (await gateway.chat()).status == 200
    await gateway.envoy.stop()
    told = json.loads(written.access_log.splitlines()[0])["memory"]
    assert (told["outcome"], told["n"]) == ("used", 1)


async def test_a_client_cannot_name_itself_where_identity_is_stripped(
    gateway: Stand, written: WrittenEnvoy
) -> None:
    written.options = an_envoy(identity=IdentityMode.STRIP)
    await gateway.start()
    answer = await gateway.chat(user="ann", x_authz_tenant_id="acme")
    assert answer.status == 200
    assert USER not in gateway.upstream.got[0].headers
    assert gateway.sidecar.exchanges(Outcome.NO_CALLER) == 1
    assert not gateway.sidecar.learns.exchanged


async def test_envoy_names_the_caller_from_a_verified_token_alone(
    gateway: Stand, written: WrittenEnvoy, keys: TokenRequirements
) -> None:
    written.options = an_envoy(identity=IdentityMode.JWT, verified=keys)
    await gateway.start()
    refused = await gateway.chat(user="bob")
    assert refused.status == 401
    forged = await gateway.chat(user="bob", authorization=f"Bearer {a_token('ann', aud='other')}")
    assert forged.status in {401, 403}
    answer = await gateway.chat(user="bob", authorization=f"Bearer {a_token('ann')}")
    assert answer.memory.startswith("used")
    assert gateway.upstream.got[0].headers[USER] == "ann"
    assert [each.caller.owner.user for each in gateway.sidecar.learns.exchanged] == ["ann"]


async def test_the_verified_claims_reach_us_as_metadata_too(
    gateway: Stand, written: WrittenEnvoy, keys: TokenRequirements
) -> None:
    written.options = an_envoy(identity=IdentityMode.JWT, verified=keys, settings=Settings(identity=NAMELESS))
    gateway.sidecar.identity = IdentitySection(
        metadata=f"{JWT_AUTHN}:jwt.sub", metadata_tenant=f"{JWT_AUTHN}:jwt.tid"
    )
    await gateway.start()
    answer = await gateway.chat(user="bob", authorization=f"Bearer {a_token('ann', tid='acme')}")
    assert answer.memory.startswith("used")
    (learned,) = gateway.sidecar.learns.exchanged
    assert (learned.caller.owner.tenant, learned.caller.owner.user) == ("acme", "ann")


async def test_the_sidecar_is_reached_through_a_unix_socket(
    gateway: Stand, written: WrittenEnvoy, tmp_path: Path
) -> None:
    written.sidecar_address = f"unix:{tmp_path}/memory.sock"
    options = gateway.sidecar.server_options
    gateway.sidecar.server_options = replace(options, address=written.sidecar_address)
    await gateway.start()
    assert (await gateway.chat()).memory.startswith("used")


async def test_a_body_above_what_we_look_at_passes_untouched_even_without_a_length(gateway: Stand) -> None:
    await gateway.start()
    whole = json.dumps(a_chat("x" * 6 * MIB)).encode()

    async def in_pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(whole), MIB):
            yield whole[at : at + MIB]

    headers = {USER: "ann", "content-type": "application/json"}
    answer = await gateway.send("POST", PATH_CHAT, data=in_pieces(), headers=headers)
    assert answer.status == 200
    assert gateway.upstream.got[0].body == whole
    assert gateway.sidecar.exchanges(Outcome.TOO_LARGE) == 1


async def test_an_answer_that_ends_in_trailers_is_learned(gateway: Stand) -> None:
    body = json.dumps(ANSWER).encode()
    gateway.upstream = RawUpstream(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n"
        + f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\nx-sum: 1\r\n\r\n"
    )  # fmt: skip
    await gateway.start()
    answer = await gateway.chat()
    assert answer.body == body
    await until(lambda: len(gateway.sidecar.learns.exchanged) == 1, "the answer is learned")


async def test_a_websocket_runs_through_what_we_write(gateway: Stand) -> None:
    await gateway.start()
    async with gateway.session.ws_connect(gateway.url + "/v1/realtime") as socket:
        await socket.send_str("hello")
        assert (await socket.receive_str(timeout=5)) == "echo hello"


async def test_without_the_sidecar_requests_pass_at_once_as_they_came(
    gateway: Stand, written: WrittenEnvoy
) -> None:
    await gateway.start()
    await gateway.sidecar.server.drain()
    await until(lambda: not_healthy(written), "Envoy has noticed")
    answer = await gateway.chat()
    assert answer.status == 200
    assert json.loads(gateway.upstream.got[0].body) == a_chat()


async def not_healthy(envoy: WrittenEnvoy) -> bool:
    return not await envoy.sidecar_healthy()


async def test_the_access_log_shows_how_memory_left_each_exchange_and_no_caller(
    gateway: Stand, written: WrittenEnvoy
) -> None:
    await gateway.start()
    await gateway.chat(path=PATH_CHAT + "?key=secret")
    await gateway.envoy.stop()
    (line,) = written.access_log.splitlines()
    logged = json.loads(line)
    ms = logged["memory"].pop("ms")
    assert 0 <= ms < 10_000
    assert logged["memory"] == {
        "outcome": "used", "n": 1, "tokens": logged["memory"]["tokens"], "arm": "memory", "passed": True,
    }  # fmt: skip
    assert logged["memory"]["tokens"] > 0
    assert logged["memory_status"].startswith("used")
    assert logged["path"] == PATH_CHAT
    assert "rh:" in logged["memory_cost"]
    assert "ann" not in line
    assert "secret" not in line


async def test_envoy_accepts_the_semantic_router_in_front_of_memory(envoy_binary: Path, tmp_path: Path) -> None:
    text = render(an_envoy(router=("127.0.0.1", 50055)), Shape.SEMANTIC_ROUTER)
    manager = yaml.safe_load(text)["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    names = [each["name"] for each in manager["typed_config"]["http_filters"]]
    order = ["identity_strip", "memory_bypass_cache", "semantic_router", "memory"]
    assert [each for each in names if each in order] == order
    await validate(envoy_binary, tmp_path, text)
