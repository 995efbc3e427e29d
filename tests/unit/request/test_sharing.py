"""Which memories of others a request reaches, and whose its words become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from memory_extproc.model import Caller, Outcome, Owner
from memory_extproc.model.headers import Headers
from memory_extproc.request.admission import circle_of, learning_caller, shared_owners
from memory_extproc.request.identity import Identity
from memory_extproc.settings.identity import IdentitySection, Jwt, ProjectScope, Scopes
from memory_extproc.settings.traffic import RuleWhen
from memory_extproc.testing.adapters import InMemoryCoordination
from tests.support.builders import MONDAY
from tests.support.desk import Desk, a_chat, a_rule

ANN = Caller(Owner("acme", "ann"), projects=("atlas", "borealis"))
ATLAS, BOREALIS = Owner.of_project("acme", "atlas"), Owner.of_project("acme", "borealis")
PLACE = "authz:member.projects"
HEADERS = Headers([("x-authz-user-id", "ann"), ("x-memory-project", "atlas")])
PROJECTS = Scopes(project=ProjectScope(recall=True))
LEARNING = Scopes(project=ProjectScope(recall=True, learn=True))
OPEN = Scopes.model_validate({"project": {"recall": True}, "global": {"recall": True}})


def members_by_metadata(value: Any, headers: Headers = HEADERS) -> Caller | None:
    identity = Identity(IdentitySection(metadata_projects=PLACE))
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
    options = IdentitySection(jwt=Jwt(jwks_file="keys.json", projects_claim="teams"))
    headers = Headers([("authorization", "Bearer a.b.c"), ("x-memory-project", "atlas")])
    found = Identity(options, Believing({"sub": "ann", "teams": ["atlas"]})).caller(headers, {})
    assert found is not None
    assert found.projects == ("atlas",)
    without = Identity(options, Believing({"sub": "ann"})).caller(headers, {})
    assert without is not None
    assert without.projects == ()


@pytest.mark.parametrize(
    "options",
    [IdentitySection(), IdentitySection(metadata_projects=PLACE)],
    ids=["no source", "not there"],
)
def test_no_header_makes_anybody_a_member(options: IdentitySection) -> None:
    forged = Headers([*HEADERS, ("x-memory-projects", "atlas"), ("x-authz-projects", "atlas"), (PLACE, "atlas")])
    found = Identity(options).caller(forged, {"other": {"member": {"projects": ["atlas"]}}})
    assert found is not None
    assert found.projects == ()
    assert shared_owners(OPEN, found) == (Owner.of_everyone(""),)


def test_a_request_that_names_no_project_reaches_all_of_the_callers_to_a_bound() -> None:
    assert shared_owners(PROJECTS, ANN) == (ATLAS, BOREALIS)
    assert shared_owners(Scopes(project=ProjectScope(recall=True, most=1)), ANN) == (ATLAS,)


def test_a_request_that_names_a_project_reaches_that_one_alone_and_only_as_its_member() -> None:
    assert shared_owners(PROJECTS, replace(ANN, project="borealis")) == (BOREALIS,)
    assert shared_owners(PROJECTS, replace(ANN, project="zephyr")) == ()


def test_nothing_is_shared_unless_it_is_switched_on() -> None:
    assert shared_owners(Scopes(), ANN) == ()
    assert learning_caller(Scopes(), replace(ANN, project="atlas")) == replace(ANN, project="atlas")


def test_an_operators_memories_are_a_tenants_or_everybodys() -> None:
    assert shared_owners(Scopes.model_validate({"global": {"recall": True}}), ANN) == (Owner.of_everyone("acme"),)
    assert shared_owners(Scopes.model_validate({"global": {"recall": True, "reach": "all"}}), ANN) == (
        Owner.of_everyone(),
    )


def test_a_members_words_become_the_projects_only_where_it_is_named() -> None:
    named = learning_caller(LEARNING, replace(ANN, project="atlas", session="s1"))
    assert named.owner == ATLAS
    assert learning_caller(LEARNING, ANN) is ANN
    stranger = replace(ANN, project="zephyr")
    assert learning_caller(LEARNING, stranger) is stranger


def test_members_of_a_project_are_never_taken_for_one_another() -> None:
    ann, bob = (replace(ANN, owner=Owner("acme", name), project="atlas", session="s1") for name in ("ann", "bob"))
    mine, theirs = learning_caller(LEARNING, ann), learning_caller(LEARNING, bob)
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
    identity = IdentitySection(metadata_projects=PLACE)
    return Desk(identity=identity, scopes=OPEN, **changes)


def member(*projects: str) -> dict[str, Any]:
    return {"authz": {"member": {"projects": list(projects)}}}


async def test_recall_is_asked_for_what_the_caller_shares() -> None:
    desk = a_desk()
    await desk.enrich(a_chat("my budget?"), metadata=member("atlas"))
    assert desk.recalls.wishes[0].shared == (Owner.of_project("", "atlas"), Owner.of_everyone(""))
    await desk.enrich(a_chat("my budget?"), x_memory_project="atlas")
    assert desk.recalls.wishes[1].shared == (Owner.of_everyone(""),)


async def test_a_rule_keeps_what_is_shared_from_an_upstream_and_lets_only_some_origins_in() -> None:
    desk = a_desk(rules=[a_rule(RuleWhen(upstream="partner-*"), shared=False, origins=("route=public",))])
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
        rules=[a_rule(RuleWhen(upstream="partner"), shared=False)],
        shared=InMemoryCoordination(lambda: MONDAY),
    )
    await desk.enrich(a_chat("my budget?"), metadata=member("atlas"), attributes={"xds.cluster_name": "ours"})
    follow = a_chat("my budget?", "It is $10,000.", "thanks, and the hotel?")
    for upstream, replayed in (("partner", 0), ("ours", 1)):
        enriched = await desk.enrich(follow, metadata=member("atlas"), attributes={"xds.cluster_name": upstream})
        assert enriched.replayed == replayed


async def test_what_is_said_in_a_projects_name_is_learned_as_the_projects() -> None:
    desk = Desk(
        identity=IdentitySection(metadata_projects=PLACE),
        scopes=LEARNING,
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
