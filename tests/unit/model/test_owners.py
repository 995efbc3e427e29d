"""Owners that are no person: a project's members together, everybody. Nobody can be called as they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.model import Owner, OwnerKind
from memory_extproc.model.owner import accept_name, accept_optional_name

ATLAS = Owner.of_project("acme", "atlas")


def test_each_kind_of_owner_is_told_from_the_others() -> None:
    assert Owner("acme", "ann").kind is OwnerKind.OWN
    assert ATLAS.kind is OwnerKind.PROJECT
    assert ATLAS.project == "atlas"
    assert Owner.of_everyone("acme").kind is Owner.of_everyone().kind is OwnerKind.GLOBAL
    assert Owner.of_everyone("acme").project == Owner("acme", "ann").project == ""


@given(st.text())
def test_no_name_that_a_door_lets_in_is_a_shared_owners(name: str) -> None:
    assert Owner("acme", accept_name(name)).kind is OwnerKind.OWN
    assert accept_optional_name(ATLAS.user) is None
    assert accept_optional_name(Owner.of_everyone().tenant) is None


@given(st.text(min_size=1), st.text(min_size=1))
def test_no_two_owners_share_a_key(tenant: str, name: str) -> None:
    owners = [
        Owner(tenant, name),
        Owner(tenant, "global"),
        Owner.of_project(tenant, name),
        Owner.of_everyone(tenant),
        Owner.of_everyone(),
        Owner.of_project("", tenant + name),
        Owner("", tenant + name),
    ]
    assert len({owner.key for owner in owners}) == len(set(owners))


def test_a_project_of_one_tenant_is_none_of_anothers() -> None:
    assert ATLAS.key != Owner.of_project("globex", "atlas").key
    assert Owner.of_everyone("acme") != Owner.of_everyone()


def test_a_project_without_a_name_is_none() -> None:
    with pytest.raises(ValueError, match="without a name"):
        Owner.of_project("acme", "")


def test_no_name_of_a_person_or_of_a_project_is_printed() -> None:
    assert "atlas" not in repr(ATLAS)
