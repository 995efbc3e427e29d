"""Blocks go back into no other owner's request, and into none that is to have no memory."""

from __future__ import annotations

import pytest

from memory_extproc.model import Outcome, Switch
from memory_extproc.recall.prompt_block import CLOSING
from memory_extproc.settings.traffic import RuleWhen
from memory_extproc.testing.adapters import InMemoryCoordination
from tests.support.desk import a_rule
from tests.support.sidecar import NOON
from tests.unit.extproc.talking import BUDGET, Talk, a_desk


@pytest.mark.parametrize(
    "other",
    [{"user": "bob"}, {"x_authz_tenant_id": "globex"}, {"x_memory_project": "p"}, {"user": ""}],
    ids=["another user", "another tenant", "another project", "nobody"],
)
async def test_what_one_owner_was_given_goes_into_no_others_request(other: dict[str, str]) -> None:
    talk = Talk(a_desk())
    await talk.ask("my budget?")
    body = await talk.ask("and what else?", **other)
    assert BUDGET not in body
    assert CLOSING not in body


@pytest.mark.parametrize(
    "header", [{"x_memory_retrieve": "skip"}, {"x_disable_router_memory": "true"}], ids=["skip", "disabled"]
)
async def test_a_request_without_memory_gets_none_back_and_the_next_one_does(header: dict[str, str]) -> None:
    talk = Talk(a_desk())
    await talk.ask("my budget?")
    assert BUDGET not in await talk.ask("in private?", **header)
    body = await talk.ask("and what else?")
    assert body.startswith(talk.sent[0].removesuffix(b"]}").decode())


async def test_nothing_is_kept_of_an_incognito_turn() -> None:
    shared = InMemoryCoordination(now=lambda: NOON)
    talk = Talk(a_desk(shared=shared))
    assert BUDGET in await talk.ask("my budget?", x_memory_incognito="true")
    assert shared.records == {}
    assert CLOSING not in await talk.ask("and what else?")


@pytest.mark.parametrize("watching", [True, False])
async def test_in_shadow_nothing_goes_back_either(watching: bool) -> None:
    desk = a_desk(mode="active" if watching else "shadow")
    talk = Talk(desk)
    chat = {"model": "demo", "messages": [{"role": "user", "content": "my budget?"}]}
    assert (await desk.enrich(chat, watching=watching)).outcome is Outcome.SHADOWED
    talk.items = [*chat["messages"], {"role": "assistant", "content": "Yes."}, chat["messages"][0]]  # type: ignore[list-item]
    enriched = await desk.enrich({"model": "demo", "messages": talk.items}, watching=watching)
    assert enriched.body is None
    assert not enriched.personal


async def test_a_rule_that_takes_memory_away_takes_the_old_blocks_too() -> None:
    desk = a_desk(rules=[a_rule(RuleWhen(keyword=("salary",)), retrieve=Switch.SKIP)])
    talk = Talk(desk)
    await talk.ask("my budget?")
    assert BUDGET not in await talk.ask("my salary?")
