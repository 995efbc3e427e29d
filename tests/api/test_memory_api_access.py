"""Permissions over the memory API: each method, each role, each way to come with the wrong credentials."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from memory_extproc.api.authentication import (
    ApiKey,
    ApiKeys,
    Credentials,
    JwtCredentials,
    Mtls,
    NoProof,
    TrustedProxy,
    key_hash,
)
from memory_extproc.api.call import Call, RefusedError
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.api.principal import METHODS, Access
from memory_extproc.cli.api_client import open_stub
from memory_extproc.concurrency import RateLimits
from memory_extproc.extproc.server import ServerTls
from memory_extproc.model import Owner
from memory_extproc.model.headers import Headers
from memory_extproc.request.jwt import Tokens
from memory_extproc.settings.api import ApiJwt, CertificateSection, PrincipalRole, TrustedProxySection
from memory_extproc.settings.identity import IdentitySection
from tests.support.authority import Authority
from tests.support.memory_api import ApiStand, reason_of

Code = grpc.StatusCode
ISSUER, AUDIENCE = "https://login.example.com", "memory-api"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
STRANGERS_KEY = ec.generate_private_key(ec.SECP256R1())
CLAIMS = ApiJwt(tenant_claim="org", roles_claim="roles")
SERVICE = pb.DESCRIPTOR.services_by_name["MemoryService"]
KEY = "mxk_0123456789abcdef"
DENIED = {Code.UNAUTHENTICATED, Code.PERMISSION_DENIED}


def keys() -> bytes:
    made = jwt.algorithms.RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True)
    return json.dumps({"keys": [{**made, "kid": "k1", "use": "sig"}]}).encode()


async def read_keys() -> bytes:
    return keys()


def token(user: str = "ann", tenant: str = "acme", roles: Any = "user", **claims: Any) -> str:
    body = {
        "sub": user, "org": tenant, "roles": roles, "iss": ISSUER, "aud": AUDIENCE,
        "exp": datetime.now(UTC) + timedelta(minutes=5), **claims,
    }  # fmt: skip
    body = {name: value for name, value in body.items() if value is not None}
    return jwt.encode(body, RSA_KEY, algorithm="RS256", headers={"kid": "k1"})


def forged(header: Mapping[str, Any], claims: Mapping[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


class Reached:
    """Stands for every method: writes down whose memories a call came to."""

    def __init__(self) -> None:
        self.owners: list[Owner] = []

    def operations(self) -> dict[str, Any]:
        return {method.name: self._operation(method) for method in SERVICE.methods}

    def _operation(self, method: Any) -> Any:
        answer = getattr(pb, method.output_type.name)

        async def unary(call: Call, _: Any, *__: Any) -> Any:
            self.owners.append(call.owner)
            return answer()

        async def stream(call: Call, _: Any) -> AsyncIterator[Any]:
            self.owners.append(call.owner)
            yield answer()

        return stream if method.server_streaming else unary


@pytest.fixture
async def reached(tmp_path: Path) -> AsyncIterator[tuple[ApiStand, Reached]]:
    stand, everything = ApiStand(tmp_path), Reached()
    file = tmp_path / "keys.yaml"
    file.write_text(
        f"keys:\n  - {{id: ops, sha256: {key_hash(KEY)}, tenant: acme, roles: [admin]}}\n"
        f"  - {{id: bob, sha256: {key_hash(KEY + 'b')}, tenant: acme, user: bob}}\n"
    )
    section = ApiJwt(algorithms=("RS256",), issuer=ISSUER, audience=AUDIENCE)
    async with AsyncExitStack() as stack:
        tokens = await stack.enter_async_context(Tokens(lambda: section, read_keys))
        api_keys = await stack.enter_async_context(ApiKeys(file))
        stand.ways = (JwtCredentials(tokens, CLAIMS), ApiKey(api_keys))
        stand.operations = everything.operations()
        yield await stack.enter_async_context(stand), everything


async def code_of(stand: ApiStand, method: str, user: str, *metadata: tuple[str, str]) -> grpc.StatusCode:
    """How a call of *method* for *user*'s memories ends."""
    descriptor = SERVICE.methods_by_name[method]
    call = getattr(stand.stub, method)
    request = getattr(pb, descriptor.input_type.name)
    try:
        if descriptor.client_streaming:
            start = request(start=pb.ImportStart(user_id=user))
            await call(iter([start]), metadata=metadata, timeout=10)
        elif descriptor.server_streaming:
            async for _ in call(request(user_id=user), metadata=metadata, timeout=10):
                pass
        else:
            named = {"user_id": user} if "user_id" in descriptor.input_type.fields_by_name else {}
            await call(request(**named), metadata=metadata, timeout=10)
    except grpc.aio.AioRpcError as error:
        return error.code() if reason_of(error) else Code.UNKNOWN
    return Code.OK


def bearing(value: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {value}")


def test_every_method_of_the_service_has_its_place_in_the_table() -> None:
    assert {method.name for method in SERVICE.methods} == set(METHODS)


@pytest.mark.parametrize("method", [name for name, access in METHODS.items() if access is Access.OPERATE])
async def test_the_server_itself_is_for_admins_of_no_single_tenant(
    reached: tuple[ApiStand, Reached], method: str
) -> None:
    stand, everything = reached
    for roles in ("user", "auditor", "admin"):
        for tenant in ("acme", ""):
            code = await code_of(stand, method, "", bearing(token(roles=roles, tenant=tenant)))
            assert code is (Code.OK if (roles, tenant) == ("admin", "") else Code.PERMISSION_DENIED)
    assert len(everything.owners) == 1


@pytest.mark.parametrize("method", [name for name, access in METHODS.items() if access is not Access.OPERATE])
async def test_what_each_role_may_do_to_whom(reached: tuple[ApiStand, Reached], method: str) -> None:
    stand, everything = reached
    reads = METHODS[method] is Access.READ
    expected = {
        ("user", ""): True, ("user", "ann"): True, ("user", "bob"): False,
        ("admin", ""): True, ("admin", "ann"): True, ("admin", "bob"): True,
        ("auditor", ""): reads, ("auditor", "ann"): reads, ("auditor", "bob"): reads,
        ("auditor user", "ann"): True, ("auditor user", "bob"): reads,
        ("root", "bob"): False, ("root", "ann"): True, (None, "ann"): True,
    }  # fmt: skip
    for (roles, user), allowed in expected.items():
        everything.owners.clear()
        code = await code_of(stand, method, user, bearing(token(roles=roles)))
        assert code is (Code.OK if allowed else Code.PERMISSION_DENIED), (roles, user)
        assert everything.owners == ([Owner("acme", user or "ann")] if allowed else [])


@pytest.mark.parametrize("method", METHODS)
async def test_no_role_reaches_into_another_tenant(reached: tuple[ApiStand, Reached], method: str) -> None:
    stand, everything = reached
    for roles in ("user", "admin", "auditor", ["admin", "auditor"]):
        for user in ("", "ann", "bob", "acme/ann", "ann\x1facme"):
            everything.owners.clear()
            await code_of(stand, method, user, bearing(token(tenant="globex", roles=roles)))
            assert all(owner.tenant == "globex" for owner in everything.owners)


def wrong_credentials() -> dict[str, list[tuple[str, str]]]:
    usual = {"sub": "ann", "org": "acme", "roles": "admin", "iss": ISSUER, "aud": AUDIENCE, "exp": 4_000_000_000}
    public = RSA_KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    header = {"alg": "HS256", "kid": "k1", "typ": "JWT"}
    unsigned = forged(header, usual).rstrip(".")
    confused = hmac.digest(public, unsigned.encode(), "sha256")
    strangers = jwt.encode(usual, STRANGERS_KEY, algorithm="ES256", headers={"kid": "k1"})
    own_key = jwt.encode(usual, STRANGERS_KEY, algorithm="ES256", headers={"jwk": {"kty": "EC"}, "kid": "k1"})
    good = token()
    return {
        "none at all": [],
        "expired": [bearing(token(exp=datetime.now(UTC) - timedelta(minutes=5)))],
        "not yet valid": [bearing(token(nbf=datetime.now(UTC) + timedelta(minutes=5)))],
        "never expires": [bearing(token(exp=None))],
        "for another audience": [bearing(token(aud="another"))],
        "of another issuer": [bearing(token(iss="https://evil.example.com"))],
        "alg none": [bearing(forged({"alg": "none", "kid": "k1"}, usual))],
        "alg None": [bearing(forged({"alg": "None", "kid": "k1"}, usual, b"x"))],
        "public key as secret": [bearing(forged(header, usual, confused))],
        "another's key": [bearing(strangers)],
        "own key in the header": [bearing(own_key)],
        "tampered": [bearing(good[:-6] + ("AAAAAA" if good[-6:] != "AAAAAA" else "BBBBBB"))],
        "cut off": [bearing(good.rpartition(".")[0] + ".")],
        "twice": [bearing(good), bearing(good)],
        "no user": [bearing(token(user=""))],
        "user is a list": [bearing(token(user=["ann"]))],  # type: ignore[arg-type]
        "user of an owner that is no person": [bearing(token(user="\x1fproject\x1fx"))],
        "tenant is a number": [bearing(token(tenant=7))],  # type: ignore[arg-type]
        "tenant with control characters": [bearing(token(tenant="acme\n"))],
        "no token": [("authorization", "Bearer ")],
        "basic": [("authorization", "Basic YW5uOmFubg==")],
        "nonsense": [bearing("a.b.c")],
        "unknown key": [("x-api-key", "mxk_unknown")],
        "key without prefix": [("x-api-key", "0123456789abcdef")],
        "the hash of a key": [("x-api-key", key_hash(KEY))],
        "two keys": [("x-api-key", KEY), ("x-api-key", KEY)],
        "a good token and a bad key": [("authorization", f"Bearer {KEY}x")],
        "headers of a gateway": [("x-authz-user-id", "ann"), ("x-authz-tenant-id", "acme")],
    }


@pytest.mark.parametrize("method", METHODS)
async def test_wrong_credentials_open_nothing(reached: tuple[ApiStand, Reached], method: str) -> None:
    stand, everything = reached
    for name, metadata in wrong_credentials().items():
        assert await code_of(stand, method, "", *metadata) is Code.UNAUTHENTICATED, name
    assert everything.owners == []
    assert stand.sample("api_denied_total", reason="NO_CREDENTIALS") == 2
    assert stand.sample("api_denied_total", reason="CREDENTIALS_REFUSED") == len(wrong_credentials()) - 2


async def test_a_key_is_its_holders_and_one_of_no_single_user_names_whom_it_is_about(
    reached: tuple[ApiStand, Reached],
) -> None:
    stand, everything = reached
    assert await code_of(stand, "GetStats", "", ("x-api-key", KEY)) is Code.INVALID_ARGUMENT
    assert await code_of(stand, "GetStats", "carol", ("x-api-key", KEY)) is Code.OK
    assert await code_of(stand, "GetStats", "dave", ("authorization", f"Bearer {KEY}")) is Code.OK
    assert await code_of(stand, "GetStats", "", ("x-api-key", KEY + "b")) is Code.OK
    assert await code_of(stand, "GetStats", "ann", ("x-api-key", KEY + "b")) is Code.PERMISSION_DENIED
    assert everything.owners == [Owner("acme", "carol"), Owner("acme", "dave"), Owner("acme", "bob")]


async def test_a_caller_who_calls_too_often_waits_and_nobody_else_does(tmp_path: Path) -> None:
    stand, everything = ApiStand(tmp_path), Reached()
    stand.ways = (TrustedProxy(IdentitySection(), TrustedProxySection()),)
    stand.rate = RateLimits(per_second=1.0, burst=2)
    stand.operations = everything.operations()

    def of(user: str) -> tuple[tuple[str, str], ...]:
        return (("x-authz-user-id", user), ("x-authz-tenant-id", "acme"))

    async with stand:
        codes = [await code_of(stand, "GetStats", "", *of("ann")) for _ in range(3)]
        assert codes == [Code.OK, Code.OK, Code.RESOURCE_EXHAUSTED]
        assert await code_of(stand, "GetStats", "", *of("bob")) is Code.OK
        stand.monotonic = 1.0
        assert await code_of(stand, "GetStats", "", *of("ann")) is Code.OK


async def test_with_hashed_ids_a_user_reaches_what_chats_have_filed_under_the_hash(tmp_path: Path) -> None:
    stand, everything = ApiStand(tmp_path), Reached()
    stand.hashes_users = True
    stand.operations = everything.operations()
    headers = (("x-authz-user-id", "ann"), ("x-authz-tenant-id", "acme"))
    async with stand:
        for user in ("", "ann", "acme#ann"):
            assert await code_of(stand, "GetStats", user, *headers) is Code.OK
        assert await code_of(stand, "GetStats", "acme#bob", *headers) is Code.PERMISSION_DENIED
    assert set(everything.owners) == {Owner("acme", "acme#ann")}


@pytest.mark.parametrize("user", ["\x1fglobal", "a\nb", "u" * 257, " ", "\x1fproject\x1fx"])
async def test_an_owner_that_is_no_person_cannot_be_named(reached: tuple[ApiStand, Reached], user: str) -> None:
    stand, everything = reached
    assert await code_of(stand, "GetStats", user, ("x-api-key", KEY)) is Code.INVALID_ARGUMENT
    assert everything.owners == []


async def test_a_method_that_no_table_knows_is_not_served(reached: tuple[ApiStand, Reached]) -> None:
    stand, _ = reached
    call = stand.channel.unary_unary("/memory.v1.MemoryService/DropEverything", None, None)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"", metadata=[bearing(token(roles="admin"))])
    assert caught.value.code() is Code.UNIMPLEMENTED


# --- certificates ----------------------------------------------------------------------------------
@pytest.fixture
async def encrypted(tmp_path: Path) -> AsyncIterator[tuple[ApiStand, Reached, Authority]]:
    """Behind TLS that asks for client certificates, from a listening address of this machine."""
    authority, stand, everything = Authority(), ApiStand(tmp_path), Reached()
    key, certificate = authority.issue("sidecar", "sidecar")
    for name, content in (("key", key), ("cert", certificate), ("ca", authority.pem)):
        (tmp_path / f"{name}.pem").write_bytes(content)
    tls = ServerTls(tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem")
    stand.server_options = replace(stand.server_options, address="localhost:0", tls=tls)
    stand.operations = everything.operations()
    stand.ways = (
        Mtls(
            [
                CertificateSection(name="ops.*", tenant="acme", user="ops", roles=(PrincipalRole.ADMIN,)),
                CertificateSection(name="*.people", tenant="acme"),
            ]
        ),
    )
    async with stand:
        yield stand, everything, authority


async def with_certificate(
    stand: ApiStand, authority: Authority, names: tuple[str, ...], user: str, *metadata: tuple[str, str]
) -> grpc.StatusCode:
    key, certificate = authority.issue(*names)
    credentials = grpc.ssl_channel_credentials(authority.pem, key, certificate)
    options = [("grpc.ssl_target_name_override", "sidecar")]
    async with grpc.aio.secure_channel(stand.server.address, credentials, options=options) as channel:
        stand.stub = open_stub(channel)
        return await code_of(stand, "GetStats", user, *metadata)


async def test_a_certificate_says_who_calls(encrypted: tuple[ApiStand, Reached, Authority]) -> None:
    stand, everything, authority = encrypted
    assert await with_certificate(stand, authority, ("x", "ann.people"), "") is Code.OK
    assert await with_certificate(stand, authority, ("x", "ann.people"), "bob") is Code.PERMISSION_DENIED
    assert await with_certificate(stand, authority, ("ops.acme",), "bob") is Code.OK
    # The common name does not count where there are alternative names (RFC 6125, 6.4.4).
    assert await with_certificate(stand, authority, ("ops.acme", "stranger"), "bob") is Code.UNAUTHENTICATED
    headers = (("x-authz-user-id", "ann"), ("x-authz-tenant-id", "acme"))
    assert await with_certificate(stand, authority, ("x", "stranger"), "", *headers) is Code.UNAUTHENTICATED
    assert everything.owners == [Owner("acme", "ann.people"), Owner("acme", "bob")]


def from_elsewhere(
    names: tuple[str, ...] = (), peer: str = "ipv4:192.0.2.7:4711", roles: str = "", user: str = "ann"
) -> Credentials:
    """A call from another machine, with a verified certificate of these names."""
    pairs = [("x-authz-user-id", user), ("x-authz-roles", roles)]
    certificate = {"x509_subject_alternative_name": [name.encode() for name in names]}
    return Credentials(peer, Headers(pairs), certificate)


def test_a_gateways_headers_count_from_this_machine_and_from_listed_names_alone() -> None:
    proxy = TrustedProxy(IdentitySection(), TrustedProxySection(names=("envoy.*",)))
    for presented in (
        from_elsewhere(peer="ipv4:127.0.0.1:4711"),
        from_elsewhere(peer="ipv6:%5B::1%5D:4711"),
        from_elsewhere(peer="ipv6:[::1]:4711"),
        from_elsewhere(peer="unix:"),
        from_elsewhere(peer="unix:/run/api.sock"),
        from_elsewhere(("envoy.mesh",)),
    ):
        principal = proxy.principal(presented)
        assert principal is not None
        assert principal.user == "ann"
        assert principal.roles == frozenset({PrincipalRole.USER})
    for presented in (
        from_elsewhere(),
        from_elsewhere(("stranger.mesh",)),
        from_elsewhere(peer="ipv4:128.0.0.1:1"),
        from_elsewhere(peer="ipv6:%5B::ffff:192.0.2.7%5D:1"),
        from_elsewhere(peer="ipv4:localhost:1"),
        from_elsewhere(peer="127.0.0.1:4711"),
        from_elsewhere(peer=""),
    ):
        assert proxy.principal(presented) is None


@pytest.mark.parametrize("user", ["", "ann,bob", "ann\u200b", "Zo\ufffd"])
def test_a_gateway_that_names_nobody_for_certain_is_refused(user: str) -> None:
    with pytest.raises(RefusedError):
        TrustedProxy(IdentitySection(), TrustedProxySection()).principal(from_elsewhere(peer="unix:", user=user))


def test_roles_come_from_a_gateway_only_where_a_header_for_them_is_configured() -> None:
    presented = from_elsewhere(peer="unix:", roles="admin, auditor")
    plain, told = (
        TrustedProxy(IdentitySection(), TrustedProxySection()),
        TrustedProxy(IdentitySection(), TrustedProxySection(roles_header="x-authz-roles")),
    )
    first, second = plain.principal(presented), told.principal(presented)
    assert first is not None
    assert second is not None
    assert first.roles == frozenset({PrincipalRole.USER})
    assert second.roles == frozenset({PrincipalRole.ADMIN, PrincipalRole.AUDITOR})


@pytest.mark.parametrize(
    ("sent", "members"),
    [
        (['["atlas", "a, b", "bor\u00e9al", 7, "", "z\\u0000"]'], ("atlas", "a, b", "bor\u00e9al")),
        (["atlas, borealis"], ("atlas", "borealis")),
        (["atlas"], ("atlas",)),
        (["[]"], ()),
        ([""], ()),
        (['["atlas"', "x\ufffd"], ()),
        (["x\ufffd, atlas"], ("atlas",)),
        (["atlas", "borealis"], ()),
        ([], ()),
    ],
)
def test_projects_come_from_a_gateway_only_where_a_header_for_them_is_configured(
    sent: list[str], members: tuple[str, ...]
) -> None:
    pairs = [("x-authz-user-id", "ann"), *(("x-projects", value) for value in sent)]
    presented = Credentials("unix:", Headers(pairs))
    plain, told = (
        TrustedProxy(IdentitySection(), TrustedProxySection()),
        TrustedProxy(IdentitySection(), TrustedProxySection(projects_header="x-projects")),
    )
    first, second = plain.principal(presented), told.principal(presented)
    assert first is not None
    assert second is not None
    assert (first.projects, second.projects) == ((), members)
    elsewhere = Credentials("ipv4:192.0.2.7:1", Headers(pairs))
    assert told.principal(elsewhere) is None


def test_a_gateways_user_or_tenant_that_is_not_one_name_is_refused() -> None:
    proxy = TrustedProxy(IdentitySection(), TrustedProxySection())
    for pairs in (
        [("x-authz-user-id", "ann"), ("x-authz-user-id", "bob")],
        [("x-authz-user-id", "ann,bob")],
        [("x-authz-user-id", "")],
        [("x-authz-user-id", "ann"), ("x-authz-tenant-id", "a"), ("x-authz-tenant-id", "b")],
        [("x-authz-user-id", "ann"), ("x-authz-tenant-id", "a\tb")],
    ):
        for way in (proxy, NoProof(IdentitySection())):
            if way is proxy or pairs[0][1]:
                with pytest.raises(RefusedError):
                    way.principal(Credentials("unix:", Headers(pairs)))


def test_without_any_proof_everybody_is_who_they_say_and_may_do_everything() -> None:
    principal = NoProof(IdentitySection()).principal(
        Credentials("ipv4:192.0.2.7:1", Headers([("x-authz-user-id", "ann")]))
    )
    assert principal is not None
    assert principal.user == "ann"
    assert principal.roles == frozenset({PrincipalRole.ADMIN})
