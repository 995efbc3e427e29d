"""Memories shared by a project's members, through the real Envoy: two users, two tenants, two projects, and who
forges."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from memory_extproc import app
from memory_extproc.app.context import make_context
from memory_extproc.model import Embedded, Owner
from memory_extproc.settings.api import Api, TrustedProxySection
from memory_extproc.settings.identity import IdentitySection
from tests.support.builders import a_memory
from tests.support.envoy import Wiring
from tests.support.rest import RestStand
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy

NAMESPACE = "envoy.filters.http.header_to_metadata"
MEMBER = "x-verified-projects"
ASKED = "When is the deadline of the Atlas release?"
SHARED = "The deadline of the Atlas release is May 8"
# Stands for the filter that verified a membership (jwt_authn, ext_authz): what it found out is Envoy's metadata.
VERIFIES: dict[str, Any] = {
    "name": NAMESPACE,
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
        "request_rules": [
            {
                "header": MEMBER,
                "on_header_present": {"metadata_namespace": NAMESPACE, "key": "projects", "type": "STRING"},
                "remove": True,
            }
        ],
    },
}
WIRING = Wiring(
    before_us=[VERIFIES],
    metadata_namespaces=(NAMESPACE,),
    attributes=("xds.route_name", "xds.cluster_name"),
)


async def begin(whole: WholeStand, **scopes: Any) -> None:
    whole.changes["identity"] = {"metadata_projects": f"{NAMESPACE}:projects"}
    whole.changes["scopes"] = {"project": {"recall": True}, "global": {"recall": True}, **scopes}
    await whole.start(WIRING)


async def share(whole: WholeStand, words: str, owner: Owner) -> None:
    async with AsyncExitStack() as stack:
        embedder = await app.open_embedder(make_context(whole.settings(), stack))
        vector = (await embedder.embed([words]))[0]
    await whole.whole.partitions.put(owner, [Embedded(a_memory(words, owner), vector)])


def member(*, project: str = "", user: str = "ann", tenant: str = "acme", **headers: str) -> dict[str, str]:
    verified = {"x_verified_projects": project} if project else {}
    return {"user": user, "x_authz_tenant_id": tenant, **verified, **headers}


async def test_a_projects_memories_reach_its_members_and_nobody_else(whole: WholeStand) -> None:
    await begin(whole)
    await share(whole, SHARED, Owner.of_project("acme", "atlas"))
    for user in ("ann", "bob"):
        answer = await whole.say(ASKED, **member(project="atlas", user=user))
        assert answer.memory.startswith("used;n=1")
        assert f"(shared in the project atlas) {SHARED}" in whole.shown
        assert MEMBER not in whole.upstream.got[-1].headers
    strangers = [
        member(),
        member(x_memory_project="atlas"),
        member(x_memory_project="atlas", x_memory_projects="atlas", x_projects="atlas"),
        member(project="borealis"),
        member(project="borealis", x_memory_project="atlas"),
        member(project="atlas", tenant="globex"),
        member(project="atlas", x_memory_project="borealis"),
        member(user="projectatlas"),
        member(user="%1Fproject%1Fatlas"),
    ]
    for stranger in strangers:
        answer = await whole.say(ASKED, **stranger)
        assert SHARED not in whole.shown
        assert not answer.memory.startswith("used")


async def test_members_see_what_a_project_shares_on_the_page_by_envoys_metadata(rest: RestStand) -> None:
    rest.changes["identity"] = {"metadata_projects": f"{NAMESPACE}:projects"}
    rest.changes["scopes"] = {"project": {"recall": True}}
    rest.changes["api"] = {"trusted_proxy": {"projects_header": "x-authz-projects"}}
    rest.changes["console"] = {"page": True}
    sections = {
        "identity": IdentitySection(metadata_projects=f"{NAMESPACE}:projects"),
        "api": Api(trusted_proxy=TrustedProxySection(projects_header="x-authz-projects")),
    }
    settings = rest.options.settings.model_copy(update=sections)
    rest.options = replace(rest.options, settings=settings, metadata_namespaces=(NAMESPACE,))
    await rest.start(WIRING)
    await share(rest, SHARED, Owner.of_project("acme", "atlas"))
    who, named, path = {"x_authz_tenant_id": "acme"}, {"x_memory_shared": "project:atlas"}, "/v1/memory?limit=5"
    for projects in ("atlas", '["borealis", "atlas"]'):
        assert SHARED in (await rest.rest("GET", "/console", **who, x_verified_projects=projects)).text
        listed = (await rest.rest("GET", path, **who, **named, x_verified_projects=projects)).json["memories"]
        assert [one["content"] for one in listed] == [SHARED]
    for forged in ({"x_authz_projects": "atlas"}, {"x_authz_projects": "atlas", "x_verified_projects": "borealis"}):
        assert SHARED not in (await rest.rest("GET", "/console", **who, **forged)).text
        assert (await rest.rest("GET", path, **who, **named, **forged)).status == 403


async def test_an_operators_memories_reach_everybody_of_the_tenant(whole: WholeStand) -> None:
    await begin(whole)
    await share(whole, SHARED, Owner.of_everyone("acme"))
    for user in ("ann", "bob"):
        answer = await whole.say(ASKED, **member(user=user))
        assert answer.memory.startswith("used;n=1")
        assert f"(shared with everyone) {SHARED}" in whole.shown
    assert (await whole.say(ASKED, **member(tenant="globex"))).memory == "empty"


async def test_members_words_stay_their_own_unless_the_operator_says_otherwise(whole: WholeStand) -> None:
    await begin(whole)
    named = member(project="atlas", x_memory_project="atlas")
    await whole.say("The deadline of the Atlas release is June 9.", **named)
    assert (await whole.say(ASKED, **named)).memory.startswith("used;n=1")
    answer = await whole.say(ASKED, **member(project="atlas", user="bob"))
    assert answer.memory == "empty"


async def test_what_is_said_in_a_projects_name_can_be_made_the_projects(whole: WholeStand) -> None:
    await begin(whole, project={"recall": True, "learn": True})
    named = member(project="atlas", x_memory_project="atlas")
    await whole.say("The deadline of the Atlas release is June 9.", **named)
    # A request waits for what its own caller said a moment ago, not for what a project was told.
    project = Owner.of_project("acme", "atlas")

    async def is_known() -> bool:
        pages = [page async for page in whole.whole.partitions.rows(project)]
        return any("June 9" in memory.content for page in pages for memory in page)

    await until(is_known, "the project knows it", seconds=10)
    for user in ("ann", "bob"):
        answer = await whole.say(ASKED, **member(project="atlas", user=user))
        assert answer.memory.startswith("used;n=1")
        assert "June 9" in whole.shown
    await until(lambda: whole.sample("journal_depth") == 0, "all is learned", seconds=10)
    forged = await whole.say("The deadline of the Atlas release is July 1.", **member(x_memory_project="atlas"))
    assert not forged.memory.startswith("used")
    await whole.say(ASKED, **member(project="atlas", user="bob"))
    assert "July 1" not in whole.shown


async def test_a_rule_tells_an_upstream_only_what_came_from_elsewhere(whole: WholeStand) -> None:
    whole.changes["rules"] = [
        {"when": {"upstream": "model", "header": {"x-partner": "yes"}}, "then": {"origins": ["app=desk-*"]}},
        {"when": {"upstream": "mod*"}, "then": {"shared": False}},
    ]
    await begin(whole)
    await share(whole, SHARED, Owner.of_project("acme", "atlas"))
    assert (await whole.say(ASKED, **member(project="atlas"))).memory == "empty"
    await whole.say("My budget for the Hawaii trip is $10,000.", **member(x_memory_app="desk 1 route=x"))
    await whole.say("My dog Rex is six years old.", **member(x_memory_app="phone app=desk-1"))
    await whole.say("What's my budget for the Hawaii trip?", **member(x_partner="yes"))
    assert "$10,000" not in whole.shown
    await whole.say("My budget for the Maui hotel is $900.", **member(x_memory_app="desk-1"))
    answer = await whole.say("What's my budget for the Maui hotel?", **member(x_partner="yes"))
    assert answer.memory.startswith("used;n=1")
    assert "$900" in whole.shown
    assert "$10,000" not in whole.shown
    answer = await whole.say("How old is my dog Rex?", **member(x_partner="yes"))
    assert "six years" not in whole.shown
