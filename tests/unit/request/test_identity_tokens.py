from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import hashes, hmac, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from memory_extproc.errors import TransientError
from memory_extproc.request.jwt import MAX_KEYS_BYTES, Tokens, parse_keys
from memory_extproc.settings.identity import Signed
from tests.support.waiting import until

ISSUER, AUDIENCE = "https://login.example.com", "memory"
EC_KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_EC_KEY = ec.generate_private_key(ec.SECP256R1())
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SECTION = Signed(algorithms=("ES256", "RS256"), issuer=ISSUER, audience=AUDIENCE)
AT_ONCE = timedelta(milliseconds=1)


def jwk(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, **more: str) -> dict[str, Any]:
    public = key.public_key()
    if isinstance(public, ec.EllipticCurvePublicKey):
        made = jwt.algorithms.ECAlgorithm.to_jwk(public, as_dict=True)
    else:
        made = jwt.algorithms.RSAAlgorithm.to_jwk(public, as_dict=True)
    return {**made, **more}


def document(*keys: Mapping[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


class Served:
    """A JWKS source whose content a test may change; None is a server that is down."""

    def __init__(self, content: bytes | None) -> None:
        self.content = content
        self.reads = 0

    async def __call__(self) -> bytes:
        self.reads += 1
        if self.content is None:
            raise TransientError("down")
        return self.content


def signed(
    claims: Mapping[str, Any] | None = None,
    key: Any = EC_KEY,
    algorithm: str = "ES256",
    headers: Mapping[str, Any] | None = None,
) -> str:
    usual = {"sub": "ann", "iss": ISSUER, "aud": AUDIENCE, "exp": datetime.now(UTC) + timedelta(minutes=5)}
    body = {name: value for name, value in {**usual, **(claims or {})}.items() if value is not None}
    return jwt.encode(body, key, algorithm=algorithm, headers=dict(headers or {"kid": "k1"}))


async def subject(token: str, *keys: Mapping[str, Any], section: Signed = SECTION) -> Any:
    async with Tokens(lambda: section, Served(document(*(keys or (jwk(EC_KEY, kid="k1"),))))) as tokens:
        claims = tokens.claims(token)
    return claims and claims["sub"]


async def test_a_token_signed_by_a_known_key_for_us_is_believed() -> None:
    assert await subject(signed()) == "ann"
    rsa_token = signed(key=RSA_KEY, algorithm="RS256", headers={"kid": "r"})
    assert await subject(rsa_token, jwk(EC_KEY, kid="k1"), jwk(RSA_KEY, kid="r", alg="RS256", use="sig")) == "ann"


LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example.com"},
        {"iss": None},
        {"aud": "other"},
        {"aud": None},
        {"exp": LONG_AGO},
        {"exp": None},
        {"exp": "soon"},
        {"exp": True},
        {"exp": "9999999999"},
        {"nbf": "now"},
        {"nbf": datetime.now(UTC) + timedelta(hours=1)},
        {"iat": datetime.now(UTC) + timedelta(hours=1)},
        {"iat": True},
        {"exp": datetime.now(UTC) + timedelta(days=36_500)},
        {"exp": 1e300},
        {"exp": float("inf")},
        {"exp": float("nan")},
    ],
)
async def test_a_token_that_is_not_for_us_or_not_valid_now_is_not_believed(claims: Mapping[str, Any]) -> None:
    assert await subject(signed(claims)) is None


async def test_clocks_may_differ_by_the_leeway_and_no_more() -> None:
    assert await subject(signed({"exp": datetime.now(UTC) - timedelta(seconds=20)})) == "ann"
    assert await subject(signed({"exp": datetime.now(UTC) - timedelta(seconds=40)})) is None


async def test_a_token_signed_by_a_stranger_is_not_believed() -> None:
    assert await subject(signed(key=OTHER_EC_KEY)) is None


def forged_with_public_key_as_secret() -> str:
    secret = RSA_KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    good = signed(key=RSA_KEY, algorithm="RS256", headers={"kid": "r"})
    head = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "kid": "r"}).encode()).rstrip(b"=").decode()
    signing = f"{head}.{good.split('.')[1]}"
    mac = hmac.HMAC(secret, hashes.SHA256())
    mac.update(signing.encode())
    return f"{signing}.{base64.urlsafe_b64encode(mac.finalize()).rstrip(b'=').decode()}"


async def test_a_public_key_used_as_a_shared_secret_is_not_believed() -> None:
    assert await subject(forged_with_public_key_as_secret(), jwk(RSA_KEY, kid="r")) is None


async def test_a_token_without_a_signature_is_not_believed() -> None:
    assert await subject(signed(key=None, algorithm="none")) is None
    head, body, _ = signed().split(".")
    assert await subject(f"{head}.{body}.") is None


async def test_a_token_signed_with_an_algorithm_that_is_not_allowed_is_not_believed() -> None:
    only_rsa = Signed(algorithms=("RS256",), issuer=ISSUER, audience=AUDIENCE)
    assert await subject(signed(), section=only_rsa) is None
    stronger = signed(key=RSA_KEY, algorithm="PS256", headers={"kid": "r"})
    assert await subject(stronger, jwk(RSA_KEY, kid="r")) is None


async def test_a_key_in_the_token_itself_is_not_looked_at() -> None:
    headers = {"jwk": jwk(OTHER_EC_KEY), "kid": "k1"}
    assert await subject(signed(key=OTHER_EC_KEY, headers=headers)) is None


async def test_a_token_with_a_critical_extension_is_not_believed() -> None:
    assert await subject(signed(headers={"kid": "k1", "crit": ["exp"]})) is None


@pytest.mark.parametrize(
    "token", ["", "a", "a.b", "a.b.c", "é.b.c", "a.b.\udcff", "." * 20_000, "a" * 20_000, "{}.{}.{}"]
)
async def test_what_is_no_token_is_not_believed(token: str) -> None:
    assert await subject(token) is None


async def test_a_token_without_key_id_is_believed_only_when_one_key_fits() -> None:
    unnamed = signed(headers={"kid": ""})
    assert await subject(unnamed, jwk(EC_KEY, kid="a")) == "ann"
    assert await subject(unnamed, jwk(EC_KEY, kid="a"), jwk(OTHER_EC_KEY, kid="b")) is None


@pytest.mark.parametrize("more", [{"use": "enc"}, {"alg": "ES384"}, {"crv": "P-384"}, {"d": "secret"}, {"x": "!"}])
async def test_a_key_that_is_for_something_else_or_unusable_verifies_nothing(more: dict[str, str]) -> None:
    assert await subject(signed(), {**jwk(EC_KEY, kid="k1"), **more}) is None


async def test_a_rotated_key_is_fetched_when_a_token_asks_for_it() -> None:
    served = Served(document(jwk(OTHER_EC_KEY, kid="old")))
    async with Tokens(lambda: SECTION, served, hurry=AT_ONCE) as tokens:
        assert tokens.claims(signed()) is None
        served.content = document(jwk(EC_KEY, kid="k1"))
        await until(lambda: tokens.claims(signed()) is not None, "the keys are read")


async def test_a_token_believed_before_is_not_believed_after_it_expired() -> None:
    seconds = 1000.0
    served = Served(document(jwk(EC_KEY, kid="k1")))
    async with Tokens(lambda: SECTION, served, hurry=AT_ONCE, clock=lambda: seconds) as tokens:
        token = signed({"exp": 1010, "nbf": 1020})
        assert tokens.claims(token) is not None
        seconds = 1039.0
        assert tokens.claims(token) is not None
        seconds = 1041.0
        assert tokens.claims(token) is None
        seconds = 989.0
        assert tokens.claims(token) is None


async def test_a_token_believed_before_is_not_believed_after_its_key_was_withdrawn() -> None:
    served = Served(document(jwk(EC_KEY, kid="k1")))
    async with Tokens(lambda: SECTION, served, hurry=AT_ONCE) as tokens:
        assert tokens.claims(signed()) is not None
        token = signed()
        assert tokens.claims(token) is not None
        served.content = document(jwk(OTHER_EC_KEY, kid="k2"))
        tokens.claims(signed(headers={"kid": "k2"}, key=OTHER_EC_KEY))
        await until(lambda: tokens.claims(token) is None, "the key is no longer taken")


async def test_many_callers_tokens_are_believed_each_for_itself() -> None:
    async with Tokens(lambda: SECTION, Served(document(jwk(EC_KEY, kid="k1")))) as tokens:
        made = {user: signed({"sub": user}) for user in ("ann", "bob")}
        for user in ("ann", "bob", "ann", "bob"):
            claims = tokens.claims(made[user])
            assert claims is not None
            assert claims["sub"] == user


async def test_keys_once_read_outlive_their_server() -> None:
    served = Served(document(jwk(EC_KEY, kid="k1")))
    async with Tokens(lambda: SECTION, served, hurry=AT_ONCE) as tokens:
        served.content = None
        before = served.reads
        tokens.claims(signed(headers={"kid": "unknown"}))
        await until(lambda: served.reads > before, "they are read again")
        assert tokens.claims(signed()) is not None
        served.content = b'{"keys": []}'
        tokens.claims(signed(headers={"kid": "unknown"}))
        await until(lambda: served.reads > before + 1, "they are read once more")
        assert tokens.claims(signed()) is not None


async def test_without_keys_at_the_start_nobody_is_identified_until_they_come() -> None:
    served = Served(None)
    async with Tokens(lambda: SECTION, served, hurry=AT_ONCE) as tokens:
        assert tokens.claims(signed()) is None
        served.content = document(jwk(EC_KEY, kid="k1"))
        await until(lambda: tokens.claims(signed(headers={"kid": ""})) is not None, "the only key serves")


async def test_keys_are_read_anew_after_the_refresh_time_unasked() -> None:
    often = Signed(algorithms=("ES256",), issuer=ISSUER, audience=AUDIENCE, refresh=timedelta(milliseconds=2))
    served = Served(document(jwk(EC_KEY, kid="k1")))
    async with Tokens(lambda: often, served, hurry=AT_ONCE):
        await until(lambda: served.reads > 2, "it is tried again")


NO_DOCUMENTS = [b"", b"[]", b"{}", b'{"keys": 1}', b"\xff", b"[" * 100_000, b" " * (MAX_KEYS_BYTES + 1)]


@pytest.mark.parametrize("content", NO_DOCUMENTS, ids=range(len(NO_DOCUMENTS)))
def test_what_is_no_key_document_is_a_fault_that_may_pass(content: bytes) -> None:
    with pytest.raises(TransientError):
        parse_keys(content, ("ES256",))


def test_unusable_keys_are_left_out_and_the_rest_serve() -> None:
    keys = parse_keys(document({"kty": "EC"}, {}, jwk(EC_KEY, kid="k1")), ("ES256", "RS256"))
    assert list(keys) == [("k1", "ES256")]
    assert parse_keys(b'{"keys": [1, null, "x"]}', ("ES256",)) == {}


@pytest.mark.parametrize("algorithm", ["HS256", "none"])
def test_shared_secrets_and_no_signature_cannot_be_configured(algorithm: str) -> None:
    with pytest.raises(ValueError, match="Input should be 'RS256'"):
        Signed.model_validate({"algorithms": [algorithm]})


async def test_other_demands_hold_for_tokens_that_were_believed_too_and_for_the_same_keys() -> None:
    section = SECTION
    async with Tokens(lambda: section, Served(document(jwk(EC_KEY, kid="k1")))) as tokens:
        token = signed()
        assert tokens.claims(token)
        section = SECTION.model_copy(update={"audience": "another", "algorithms": ("RS256",)})
        assert tokens.claims(token) is None
        assert tokens.claims(signed({"aud": "another"})), "the algorithms are those that keys were read for"
