from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.model import Caller, Owner
from memory_extproc.model.headers import Headers
from memory_extproc.request.identity import Identity, hashed_user
from memory_extproc.settings.identity import IdentitySection, Jwt

USER, TENANT, PROJECT, SESSION = "x-authz-user-id", "x-authz-tenant-id", "x-memory-project", "x-session-id"
NO_METADATA: Mapping[str, Any] = {}


class Accepting:
    """Takes one token and gives its claims."""

    def __init__(self, token: str, claims: Mapping[str, Any]) -> None:
        self._token, self._claims = token, claims

    def claims(self, token: str) -> Mapping[str, Any] | None:
        return self._claims if token == self._token else None


def caller(
    *headers: tuple[str, str], section: IdentitySection | None = None, hash_key: bytes | None = None
) -> Caller | None:
    return Identity(section or IdentitySection(), hash_key=hash_key).caller(Headers(headers), NO_METADATA)


def by_token(
    *headers: tuple[str, str], claims: Mapping[str, Any], names: Mapping[str, str] | None = None
) -> Caller | None:
    section = IdentitySection(jwt=Jwt(jwks_file="keys.json", **(names or {})))
    identity = Identity(section, Accepting("a.b.c", claims))
    return identity.caller(Headers(headers), NO_METADATA)


def test_the_trusted_header_names_the_caller() -> None:
    found = caller((USER, "ann"), (TENANT, "acme"), (PROJECT, "hawaii"), (SESSION, "s1"))
    assert found == Caller(Owner("acme", "ann"), project="hawaii", session="s1")


def test_a_missing_tenant_is_a_tenant_of_its_own() -> None:
    assert caller((USER, "ann")) == Caller(Owner("", "ann"))
    assert caller((USER, "ann"), (TENANT, "")) == Caller(Owner("", "ann"))


@pytest.mark.parametrize(
    "value",
    ["", " ", "\t", "ann,bob", "ann, bob", ",", "a\nb", "a\x00b", "a\x7fb", "a\u200bb", "a\u2028b", "a\u00a0b",
     "\ud800", "Zo\ufffd", "x" * 257, "é" * 129],
)  # fmt: skip
def test_a_header_that_is_not_one_printable_name_of_256_bytes_is_no_identity(value: str) -> None:
    assert caller((USER, value)) is None


@pytest.mark.parametrize("value", ["a", "x" * 256, "é" * 128, "auth0|123", "ann@example.com", "Ann Lee", "安"])
def test_ordinary_ids_are_taken_as_they_are(value: str) -> None:
    assert caller((USER, value)) == Caller(Owner("", value))


def test_white_space_around_a_header_is_not_part_of_it() -> None:
    assert caller((USER, " ann\t")) == Caller(Owner("", "ann"))


def test_a_repeated_identity_header_is_no_identity() -> None:
    assert caller((USER, "ann"), (USER, "bob")) is None
    assert caller((USER, "ann"), ("X-Authz-User-Id", "ann")) is None


@pytest.mark.parametrize("tenants", [["a", "b"], ["a,b"], ["a\nb"], ["x" * 257], ["a", ""], ["caf\ufffd"]])
def test_a_bad_tenant_is_no_identity(tenants: list[str]) -> None:
    assert caller((USER, "ann"), *((TENANT, each) for each in tenants)) is None


def test_nobody_is_named_by_nothing() -> None:
    assert caller() is None
    assert caller((TENANT, "acme")) is None


@pytest.mark.parametrize("projects", [["a", "b"], ["a,b"], ["a\x01"], ["x" * 300]])
def test_a_bad_project_never_widens_to_all_projects(projects: list[str]) -> None:
    found = caller((USER, "ann"), *((PROJECT, each) for each in projects))
    again = caller((USER, "ann"), *((PROJECT, each) for each in projects))
    assert found is not None
    assert len(found.project) == 64
    assert found == again


def test_two_bad_projects_are_two_projects() -> None:
    one, two = caller((USER, "ann"), (PROJECT, "a,b")), caller((USER, "ann"), (PROJECT, "a,c"))
    assert one is not None
    assert two is not None
    assert one.project != two.project


def test_a_bad_session_is_no_session() -> None:
    assert caller((USER, "ann"), (SESSION, "a,b")) == Caller(Owner("", "ann"))
    assert caller((USER, "ann"), (SESSION, "a"), (SESSION, "b")) == Caller(Owner("", "ann"))


def test_a_header_that_is_not_configured_is_not_read() -> None:
    section = IdentitySection(tenant_header="", project_header="", session_header="")
    found = caller((USER, "ann"), (TENANT, "acme"), ("", "x"), (PROJECT, "p"), section=section)
    assert found == Caller(Owner("", "ann"))
    assert Identity(section).headers == (USER,)


JWT_AUTHN = "envoy.filters.http.jwt_authn"


def by_metadata(metadata: Mapping[str, Any], *headers: tuple[str, str]) -> Caller | None:
    section = IdentitySection(
        metadata=f"{JWT_AUTHN}:jwt.sub",
        metadata_tenant=f"{JWT_AUTHN}:jwt.https://example.com/tenant",
    )
    return Identity(section).caller(Headers(headers), metadata)


def test_envoys_metadata_names_the_caller_and_no_header_can() -> None:
    verified = {JWT_AUTHN: {"jwt": {"sub": "ann", "https://example.com/tenant": "acme"}}}
    assert by_metadata(verified, (USER, "bob"), (TENANT, "other")) == Caller(Owner("acme", "ann"))
    assert by_metadata({}, (USER, "bob")) is None


@pytest.mark.parametrize(
    "tree", [None, "ann", {"jwt": "ann"}, {"jwt": {"sub": 7.0}}, {"jwt": {"sub": ["ann"]}}, {"jwt": {"sub": ""}},
             {"jwt": {"sub": "ann", "https://example.com/tenant": 3}}, {"sub": "ann"}],
)  # fmt: skip
def test_metadata_of_another_shape_names_nobody(tree: Any) -> None:
    assert by_metadata({JWT_AUTHN: tree}) is None


def test_a_claim_may_hold_a_comma_for_it_was_not_joined_from_headers() -> None:
    assert by_metadata({JWT_AUTHN: {"jwt": {"sub": "cn=ann,ou=x"}}}) == Caller(Owner("", "cn=ann,ou=x"))


@pytest.mark.parametrize("text", ["namespace", "namespace:", ":key"])
def test_a_metadata_place_without_both_sides_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="namespace:key"):
        IdentitySection(metadata=text)


def test_a_verified_token_names_the_caller_and_no_header_can() -> None:
    claims = {"sub": "ann", "org": {"id": "acme"}}
    names = {"tenant_claim": "org.id"}
    bearer = ("authorization", "Bearer a.b.c")
    assert by_token(bearer, (USER, "bob"), (TENANT, "x"), claims=claims, names=names) == Caller(
        Owner("acme", "ann")
    )
    assert by_token((USER, "bob"), claims=claims) is None


@pytest.mark.parametrize(
    "headers",
    [
        [("authorization", "Bearer other")],
        [("authorization", "Basic a.b.c")],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer a.b.c"), ("authorization", "Bearer a.b.c")],
        [("authorization", "Bearer a.b.c, Bearer d.e.f")],
    ],
)
def test_anything_but_one_good_token_is_no_identity(headers: list[tuple[str, str]]) -> None:
    assert by_token(*headers, claims={"sub": "ann"}) is None


def test_a_header_of_its_own_may_hold_the_token_alone() -> None:
    names = {"header": "x-jwt"}
    assert by_token(("x-jwt", "a.b.c"), claims={"sub": "ann"}, names=names) == Caller(Owner("", "ann"))
    assert by_token(("x-jwt", "bearer a.b.c"), claims={"sub": "ann"}, names=names) == Caller(Owner("", "ann"))


@pytest.mark.parametrize("claims", [{}, {"sub": 5}, {"sub": ""}, {"sub": "ann", "tid": ["a"]}])
def test_a_token_without_a_usable_claim_is_no_identity(claims: Mapping[str, Any]) -> None:
    assert by_token(("authorization", "Bearer a.b.c"), claims=claims, names={"tenant_claim": "tid"}) is None


def test_only_people_have_memory_where_it_is_so_configured() -> None:
    section = IdentitySection(people_only="*@example.com")
    assert caller((USER, "ann@example.com"), section=section) == Caller(Owner("", "ann@example.com"))
    assert caller((USER, "system:serviceaccount:ci"), section=section) is None
    assert caller((USER, "ann@EXAMPLE.com"), section=section) is None


KEY = b"0123456789abcdef"


def test_hashed_user_ids_differ_by_tenant_and_key_and_hide_the_id() -> None:
    found = caller((USER, "ann"), (TENANT, "acme"), hash_key=KEY)
    assert found == Caller(Owner("acme", hashed_user(KEY, "acme", "ann")))
    assert found is not None
    assert len(found.owner.user) == 64
    assert "ann" not in found.owner.user
    other_tenant = hashed_user(KEY, "beta", "ann")
    other_key = hashed_user(b"fedcba9876543210", "acme", "ann")
    assert len({found.owner.user, other_tenant, other_key}) == 3


def test_people_are_told_by_their_id_before_it_is_hashed() -> None:
    section = IdentitySection(people_only="*@example.com")
    assert caller((USER, "ann@example.com"), section=section, hash_key=KEY) is not None


def test_a_short_hash_key_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        Identity(IdentitySection(), hash_key=b"short")


def test_claims_without_a_verifier_are_refused() -> None:
    with pytest.raises(ValueError, match="verifies tokens"):
        Identity(IdentitySection(jwt=Jwt(jwks_file="keys.json")))


def of_body(user: str, *headers: tuple[str, str], section: IdentitySection) -> Caller | None:
    return Identity(section).caller_of_body(Headers(headers), NO_METADATA, user)


def test_a_body_names_the_caller_only_where_it_is_trusted_and_no_header_came() -> None:
    trusting = IdentitySection(trust_body=True)
    assert of_body("ann", section=IdentitySection()) is None
    assert of_body("ann", (TENANT, "acme"), section=trusting) == Caller(Owner("acme", "ann"))
    assert of_body("ann", (USER, "bob"), section=trusting) == Caller(Owner("", "bob"))
    assert of_body("ann", (USER, "bob,eve"), section=trusting) is None
    assert of_body("a\nb", section=trusting) is None
    assert of_body("ann \ufffd", section=trusting) is None  # what half a surrogate pair is read as
    assert of_body("ann", (TENANT, "a,b"), section=trusting) is None


def test_a_body_never_stands_in_for_a_verified_identity() -> None:
    section = IdentitySection(trust_body=True, metadata="ns:sub")
    assert of_body("ann", section=section) is None


@given(st.lists(st.tuples(st.sampled_from([USER, TENANT, PROJECT, SESSION]), st.text(max_size=300)), max_size=6))
def test_whatever_the_headers_a_caller_is_printable_bounded_and_named_by_one_header(
    headers: list[tuple[str, str]],
) -> None:
    found = caller(*headers)
    if found is not None:
        (named,) = [value for name, value in headers if name == USER]
        assert found.owner.user == named.strip(" \t")
        for part in (found.owner.user, found.owner.tenant, found.project, found.session):
            assert len(part.encode()) <= 256
            assert part.isprintable()
            assert "," not in part


@given(st.text(), st.text(), st.text(), st.text())
def test_two_owners_never_share_a_hash(tenant: str, user: str, other_tenant: str, other_user: str) -> None:
    same = (tenant, user) == (other_tenant, other_user)
    assert (hashed_user(KEY, tenant, user) == hashed_user(KEY, other_tenant, other_user)) is same
