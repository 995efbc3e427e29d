"""Which memories of others a request reaches, and whose its words become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from memory_extproc.model import Caller, Outcome, Owner
from memory_extproc.model.headers import Headers
from memory_extproc.request.admission import Everyone, ProjectSharing, circle_of
from memory_extproc.request.identity import ClaimNames, Identity, IdentityOptions, MetadataPath
from memory_extproc.request.policy import Rule, Then, When
from memory_extproc.testing.adapters import InMemoryCoordination
from tests.support.builders import MONDAY
from tests.support.desk import Desk, a_chat

ANN = Caller(Owner("acme", "ann"), projects=("atlas", "borealis"))
ATLAS, BOREALIS = Owner.of_project("acme", "atlas"), Owner.of_project("acme", "borealis")
PLACE = "authz:member.projects"
HEADERS = Headers([("x-authz-user-id", "ann"), ("x-memory-project", "atlas")])
OPEN = ProjectSharing(projects=True, everyone=Everyone.TENANT)


def members_by_metadata(value: Any, headers: Headers = HEADERS) -> Caller | None:
    identity = Identity(IdentityOptions(metadata_projects=MetadataPath.parse(PLACE)))
    return identity.caller(headers, {"authz": {"member": {"projects": value}}})


class Believing:
    def __init__(self, claims: Mapping[str, Any] | None) -> None:
        self._claims = claims

    def claims(self, token: str) -> Mapping[str, Any] | None:
        return self._claims


def test_envoys_metadata_says_whose_member_the_caller_is() -> None:
    found = members_by_metadata(["atlas", "borealis", "atlas"])
    assert found is not None
    assert found.projects == ("atlas", "borealis")
    assert found.project == "atlas"


@pytest.mark.parametrize(
    ("value", "projects"),
    [
        ("atlas", ("atlas",)),
        ([], ()),
        (None, ()),
        ({"atlas": True}, ()),
        (["", " ", 7, None, ["atlas"], "a\x1fb", "x" * 257, "borealis"], ("borealis",)),
        ("atlas,borealis", ("atlas,borealis",)),
        (True, ()),
    ],
)
def test_what_is_no_name_makes_nobody_a_member(value: Any, projects: tuple[str, ...]) -> None:
    found = members_by_metadata(value)
    assert found is not None
    assert found.projects == projects


def test_a_list_of_projects_without_end_is_read_to_a_bound() -> None:
    found = members_by_metadata([f"p{n}" for n in range(100_000)])
    assert found is not None
    assert len(found.projects) == 256


def test_a_claim_of_a_verified_token_says_it_too() -> None:
    options = IdentityOptions(claims=ClaimNames(projects="teams"))
    headers = Headers([("authorization", "Bearer a.b.c"), ("x-memory-project", "atlas")])
    found = Identity(options, Believing({"sub": "ann", "teams": ["atlas"]})).caller(headers, {})
    assert found is not None
    assert found.projects == ("atlas",)
    without = Identity(options, Believing({"sub": "ann"})).caller(headers, {})
    assert without is not None
    assert without.projects == ()


@pytest.mark.parametrize(
    "options",
    [IdentityOptions(), IdentityOptions(metadata_projects=MetadataPath.parse(PLACE))],
    ids=["no source", "not there"],
)
def test_no_header_makes_anybody_a_member(options: IdentityOptions) -> None:
    forged = Headers([*HEADERS, ("x-memory-projects", "atlas"), ("x-authz-projects", "atlas"), (PLACE, "atlas")])
    found = Identity(options).caller(forged, {"other": {"member": {"projects": ["atlas"]}}})
    assert found is not None
    assert found.projects == ()
    assert OPEN.owners(found) == (Owner.of_everyone(""),)


def test_a_request_that_names_no_project_reaches_all_of_the_callers_to_a_bound() -> None:
    assert ProjectSharing(projects=True).owners(ANN) == (ATLAS, BOREALIS)
    assert ProjectSharing(projects=True, most_projects=1).owners(ANN) == (ATLAS,)


def test_a_request_that_names_a_project_reaches_that_one_alone_and_only_as_its_member() -> None:
    assert ProjectSharing(projects=True).owners(replace(ANN, project="borealis")) == (BOREALIS,)
    assert ProjectSharing(projects=True).owners(replace(ANN, project="zephyr")) == ()


def test_nothing_is_shared_unless_it_is_switched_on() -> None:
    assert ProjectSharing().owners(ANN) == ()
    assert ProjectSharing().learned_as(replace(ANN, project="atlas")) == replace(ANN, project="atlas")


def test_an_operators_memories_are_a_tenants_or_everybodys() -> None:
    assert ProjectSharing(everyone=Everyone.TENANT).owners(ANN) == (Owner.of_everyone("acme"),)
    assert ProjectSharing(everyone=Everyone.ALL).owners(ANN) == (Owner.of_everyone(),)


def test_a_members_words_become_the_projects_only_where_it_is_named() -> None:
    sharing = ProjectSharing(projects=True, learns=True)
    named = sharing.learned_as(replace(ANN, project="atlas", session="s1"))
    assert named.owner == ATLAS
    assert sharing.learned_as(ANN) is ANN
    stranger = replace(ANN, project="zephyr")
    assert sharing.learned_as(stranger) is stranger


def test_members_of_a_project_are_never_taken_for_one_another() -> None:
    sharing = ProjectSharing(projects=True, learns=True)
    ann, bob = (replace(ANN, owner=Owner("acme", name), project="atlas", session="s1") for name in ("ann", "bob"))
    mine, theirs = sharing.learned_as(ann), sharing.learned_as(bob)
    assert mine.owner == theirs.owner
    assert mine.session != theirs.session
    assert mine.speaker != theirs.speaker


def test_a_circle_changes_with_whose_memories_it_holds_and_with_what_was_forgotten() -> None:
    circles = [
        circle_of((ATLAS,), (), (0,)),
        circle_of((ATLAS,), (), (1,)),
        circle_of((BOREALIS,), (), (0,)),
        circle_of((ATLAS, BOREALIS), (), (0, 0)),
        circle_of((), ("route=a",), ()),
        circle_of((ATLAS,), ("route=a",), (0,)),
    ]
    assert len({"", *circles}) == 7
    assert circle_of((), (), ()) == ""


# --- through the enricher ----------------------------------------------------------------------------
def a_desk(**changes: Any) -> Desk:
    identity = IdentityOptions(metadata_projects=MetadataPath.parse(PLACE))
    return Desk(identity=identity, sharing=OPEN, **changes)


def member(*projects: str) -> dict[str, Any]:
    return {"authz": {"member": {"projects": list(projects)}}}


async def test_recall_is_asked_for_what_the_caller_shares() -> None:
    desk = a_desk()
    await desk.enrich(a_chat("my budget?"), metadata=member("atlas"))
    assert desk.recalls.wishes[0].shared == (Owner.of_project("", "atlas"), Owner.of_everyone(""))
    await desk.enrich(a_chat("my budget?"), x_memory_project="atlas")
    assert desk.recalls.wishes[1].shared == (Owner.of_everyone(""),)


async def test_a_rule_keeps_what_is_shared_from_an_upstream_and_lets_only_some_origins_in() -> None:
    desk = a_desk(rules=[Rule(When(upstream="partner-*"), Then(shared=False, origins=("route=public",)))])
    for upstream, shared, origins in (("partner-1", 0, ("route=public",)), ("ours", 2, ())):
        attributes = {"xds.cluster_name": upstream}
        await desk.enrich(a_chat("my budget?"), metadata=member("atlas"), attributes=attributes)
        assert len(desk.recalls.wishes[-1].shared) == shared
        assert desk.recalls.wishes[-1].scope.origins == origins


async def test_who_leaves_a_project_gets_none_of_its_blocks_back() -> None:
    desk = a_desk(shared=InMemoryCoordination(lambda: MONDAY))
    await desk.enrich(a_chat("my budget?"), metadata=member("atlas"))
    follow = a_chat("my budget?", "It is $10,000.", "thanks, and the hotel?")
    stays = await desk.enrich(follow, metadata=member("atlas"))
    assert stays.replayed == 1
    left = await desk.enrich(follow, metadata=member())
    assert left.replayed == 0


async def test_a_conversation_begins_anew_when_something_shared_was_forgotten() -> None:
    coordination = InMemoryCoordination(lambda: MONDAY)
    desk = a_desk(shared=coordination)
    await desk.enrich(a_chat("my budget?"), metadata=member("atlas"))
    await coordination.advance_epoch(Owner.of_project("", "atlas"))
    follow = a_chat("my budget?", "It is $10,000.", "thanks, and the hotel?")
    assert (await desk.enrich(follow, metadata=member("atlas"))).replayed == 0


async def test_a_block_is_not_put_back_on_its_way_to_an_upstream_that_is_told_less() -> None:
    desk = a_desk(
        rules=[Rule(When(upstream="partner"), Then(shared=False))], shared=InMemoryCoordination(lambda: MONDAY)
    )
    await desk.enrich(a_chat("my budget?"), metadata=member("atlas"), attributes={"xds.cluster_name": "ours"})
    follow = a_chat("my budget?", "It is $10,000.", "thanks, and the hotel?")
    for upstream, replayed in (("partner", 0), ("ours", 1)):
        enriched = await desk.enrich(follow, metadata=member("atlas"), attributes={"xds.cluster_name": upstream})
        assert enriched.replayed == replayed


async def test_what_is_said_in_a_projects_name_is_learned_as_the_projects() -> None:
    desk = Desk(
        identity=IdentityOptions(metadata_projects=MetadataPath.parse(PLACE)),
        sharing=ProjectSharing(projects=True, learns=True),
    )
    enriched = await desk.enrich(a_chat("we ship in May"), metadata=member("atlas"), x_memory_project="atlas")
    assert enriched.outcome is Outcome.USED
    assert enriched.heard is not None
    assert enriched.heard.caller.owner == Owner.of_project("", "atlas")
    assert desk.recalls.wishes[0].caller.owner == Owner("", "ann")
    assert desk.recalls.wishes[0].learned_as == enriched.heard.caller
    enriched = await desk.enrich(a_chat("we ship in May"), x_memory_project="atlas")
    assert enriched.heard is not None
    assert enriched.heard.caller.owner == Owner("", "ann")
