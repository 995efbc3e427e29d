"""Of what conversations were given, nothing that its owner has forgotten in a chat goes back."""

from __future__ import annotations

import asyncio
import json

from memory_extproc.learn.commands.parser import Act, Command
from memory_extproc.learn.commands.runner import Commands
from memory_extproc.learn.extract.rules import RulesExtractor
from memory_extproc.learn.learner import ForgetGuard
from memory_extproc.learn.reconcile import Reconciler
from memory_extproc.model import RecallRequest, RecallResult
from memory_extproc.recall.prompt_block import CLOSING
from memory_extproc.settings import CurrentSettings, Settings
from tests.support.builders import a_turn
from tests.support.desk import Desk
from tests.unit.extproc.talking import ANN, BUDGET, SEAT, Talk, a_desk, now_known
from tests.unit.learn.learning import Surroundings


async def forgotten(desk: Desk, around: Surroundings) -> None:
    commands = Commands(
        CurrentSettings(Settings()),
        around.partitions,
        around.embedder,
        RulesExtractor(),
        Reconciler(around.partitions, around.embedder, around.metrics),
        ForgetGuard(around.journal, around.coordination),
        around.metrics,
        now=lambda: around.now,
    )
    now_known(desk, seat=SEAT)
    await commands._forget(a_turn("Forget my budget.", owner=ANN, at=around.now), Command(Act.FORGET, "budget"))


async def written(desk: Desk) -> None:
    await asyncio.gather(*desk.background._tasks)


async def test_a_record_that_was_on_its_way_when_its_owner_forgot_is_not_read() -> None:
    around = Surroundings()
    desk = a_desk(shared=around.coordination)
    talk = Talk(desk)
    talk.user("my budget?")
    body = json.dumps({"model": "demo", "max_tokens": 64, "messages": talk.items}).encode()
    enriched = await desk.enricher.enrich(desk.admit(), body, watching=False)
    assert BUDGET in (enriched.body or b"").decode()
    await forgotten(desk, around)
    await written(desk)
    talk.assistant("Yes.")
    assert BUDGET not in await talk.ask("and then?")
    assert SEAT in await talk.ask("my seat?")


async def test_a_request_under_way_while_its_owner_forgets_gives_the_block_back_to_nobody() -> None:
    around = Surroundings()
    desk = a_desk(shared=around.coordination)
    talk = Talk(desk)
    await talk.ask("my budget?")
    recall = desk.recalls.recall

    async def meanwhile(wish: RecallRequest) -> RecallResult:
        desk.recalls.recall = recall  # type: ignore[method-assign]  # this once
        await forgotten(desk, around)
        return await recall(wish)

    desk.recalls.recall = meanwhile  # type: ignore[method-assign]
    assert CLOSING not in await talk.ask("and what else?")
    assert BUDGET not in await talk.ask("and then?")
