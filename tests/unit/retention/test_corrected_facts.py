"""Nothing that a person corrected or had forgotten comes back by what was made of it, nor is lost with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import pytest

from memory_extproc.app.api import Understanding
from memory_extproc.curation.editor import Correction, MemoryEditor
from memory_extproc.learn.commands.parser import Act, Command
from memory_extproc.learn.commands.runner import Commands
from memory_extproc.learn.extract.rules import RulesExtractor
from memory_extproc.learn.learner import ForgetGuard
from memory_extproc.learn.reconcile import Reconciler
from memory_extproc.model import Caller, Embedded, Matrix, Memory, MemoryState, Provenance
from memory_extproc.recall.prompt_block import Profiles
from memory_extproc.settings import CurrentSettings, Settings
from memory_extproc.settings.traffic import Inject
from memory_extproc.testing.adapters import InMemoryJournal
from memory_extproc.testing.models import CannedEmbedder
from tests.support.builders import ANN, a_turn, later
from tests.unit.retention.keeping import Desk, three_budgets


@dataclass
class Told:
    """The one memory that was made of three budgets, $10,000, $11,000 and $12,000."""

    desk: Desk
    made: Memory

    async def corrects(self, content: str) -> Memory:
        partitions = self.desk.partitions
        understanding = Understanding(RulesExtractor(), self.desk.clock)
        curator = MemoryEditor(partitions, partitions, self.desk.embedder, understanding, now=self.desk.clock)
        self.desk.clock.now += timedelta(seconds=5)
        corrected = await curator.correct(ANN, self.made.id, Correction(values={"content": content}))
        assert corrected is not None
        return corrected

    async def says_forget(self, what: str) -> None:
        desk = self.desk
        self.desk.clock.now += timedelta(seconds=5)
        commands = Commands(
            CurrentSettings(Settings()),
            desk.partitions,
            desk.embedder,
            RulesExtractor(),
            Reconciler(desk.partitions, desk.embedder, desk.metrics),
            ForgetGuard(InMemoryJournal(now=desk.clock, max_turns=10), desk.coordination),
            desk.metrics,
            now=desk.clock,
        )
        await commands._forget(a_turn(f"Forget {what}.", at=desk.clock()), Command(Act.FORGET, what))

    async def told(self) -> list[str]:
        await self.desk.keeper().mend(ANN)
        return [memory.content for memory in await self.desk.active()]


@pytest.fixture
async def budget(desk: Desk) -> Told:
    await desk.put(*three_budgets())
    await desk.keeper().keep(ANN)
    (made,) = await desk.active()
    return Told(desk, made)


async def test_of_a_corrected_history_no_source_that_it_no_longer_tells_comes_back(budget: Told) -> None:
    corrected = await budget.corrects("Hawaii trip budget: $13,000 (first $10,000).")
    assert corrected.provenance.sources == ("budget-1",)
    await budget.desk.partitions.delete(ANN, ["budget-1"])
    assert await budget.told() == []


async def test_a_history_in_new_words_is_a_fact_like_any_other_and_is_made_anew(budget: Told) -> None:
    await budget.corrects("The budget of the Hawaii trip is $13,000")
    assert await budget.told() == [
        "The budget of the Hawaii trip is $13,000 (first $10,000, then $11,000, then $12,000)"
    ]


async def test_forgetting_an_earlier_value_in_a_chat_leaves_the_one_that_holds(budget: Told) -> None:
    await budget.says_forget("$10,000")
    assert await budget.told() == ["Hawaii trip budget: $12,000."]


@pytest.mark.parametrize("what", ["my Hawaii trip budget", "the Hawaii trip", "$10,000 and $12,000"])
async def test_forgetting_the_whole_in_a_chat_leaves_nothing_that_comes_back(budget: Told, what: str) -> None:
    await budget.says_forget(what)
    assert await budget.told() == []


async def test_what_is_brought_back_after_a_chat_stays_though_its_sources_are_gone(budget: Told) -> None:
    await budget.says_forget("$10,000")
    partitions = budget.desk.partitions
    understanding = Understanding(RulesExtractor(), budget.desk.clock)
    curator = MemoryEditor(partitions, partitions, budget.desk.embedder, understanding, now=budget.desk.clock)
    budget.desk.clock.now += timedelta(seconds=5)
    await curator.restore(ANN, budget.made.id)
    assert budget.made.content in await budget.told()


async def test_a_profile_tells_what_holds_after_a_correction(budget: Told) -> None:
    settings = Settings(inject=Inject(profile_importance=0.4))
    profiles = Profiles(budget.desk.partitions, lambda: settings, now=budget.desk.clock)
    assert "$12,000" in (await profiles.profile(Caller(ANN))).text
    await budget.corrects("Hawaii trip budget: $13,000.")
    text = (await profiles.profile(Caller(ANN))).text
    assert "$13,000" in text
    assert "budget: $12,000" not in text


async def test_a_correction_in_the_second_in_which_something_was_made_counts(desk: Desk) -> None:
    """Rows keep whole seconds; what was made a moment before does not tell the new words."""
    desk.clock.now = later(days=40, microseconds=300_000)
    await desk.put(*three_budgets())
    await desk.keeper().keep(ANN)
    (made,) = await desk.active()
    embedder = CannedEmbedder()
    insight = Memory(
        id="insight",
        owner=ANN,
        type=made.type,
        content="Plans to spend $12,000",
        source=made.source,
        created_at=made.created_at,
        updated_at=made.updated_at,
        provenance=Provenance(derived="reflection", sources=(made.id,), past=(), made=desk.clock().timestamp()),
    )
    await desk.partitions.put(ANN, [Embedded(insight, (await embedder.embed([insight.content]))[0])])
    desk.clock.now += timedelta(milliseconds=200)
    told = Told(desk, made)
    partitions = desk.partitions
    curator = MemoryEditor(
        partitions, partitions, embedder, Understanding(RulesExtractor(), desk.clock), now=desk.clock
    )
    await curator.correct(ANN, made.id, Correction(values={"content": "Hawaii trip budget: $9."}))
    await told.told()
    assert (await desk.rows())["insight"].state is MemoryState.DELETED


async def test_an_earlier_value_that_is_forgotten_while_a_history_is_made_is_not_in_it(desk: Desk) -> None:
    await desk.put(*three_budgets())
    told = Told(desk, three_budgets()[2])

    class Meanwhile(CannedEmbedder):
        async def embed(self, texts: Sequence[str]) -> Matrix:
            if any("then" in text for text in texts):
                await told.says_forget("$11,000")
            return await super().embed(texts)

    await desk.keeper(embedder=Meanwhile()).keep(ANN)
    assert all("$11,000" not in memory.content for memory in await desk.active())
