"""`memory-extproc eval from-feedback`: judgements of memories become labels of requests that were given them."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from memory_extproc.cli.root import app
from memory_extproc.evaluation.datasets import DatasetError, read_dataset
from memory_extproc.model import Caller, Memory, Outcome, RecallTrace, Role, Source, TracedMemory, Turn, TurnOutcome
from memory_extproc.request.body import Enriched
from memory_extproc.settings.traffic import Trace
from tests.support.builders import ANN, BOB, a_memory, a_turn, memories_of
from tests.support.console import ConsoleStand
from tests.support.waiting import until


class Feedback(ConsoleStand):
    """Ann told things, asked things, was given memories, and judged some of them."""

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self.out = scratch / "labels.jsonl"

    async def say(self, asked: str, session: str = "s1", seq: int = 0) -> tuple[Turn, list[Memory]]:
        turn = a_turn(asked, owner=ANN, session=session, seq=seq)
        messages = memories_of(turn, self.now())
        await self.remember(*messages)
        return turn, messages

    async def ask(self, request: str, question: str, given: Sequence[Memory], seq: int = 0) -> None:
        """Ask, with the turn learned where *question* has words."""
        traced = tuple(TracedMemory(memory, 1.0, 0.9, "injected") for memory in given)
        enriched = Enriched(outcome=Outcome.USED, count=len(given), path="hybrid")
        self.decisions.record(ANN, request, enriched, RecallTrace(considered=traced, kind="list"))
        if question:
            turn, _ = await self.say(question, session="s2", seq=seq)
            self.decisions.note(Caller(ANN), request, TurnOutcome.JOURNALLED, turn.id)

        async def is_kept() -> bool:
            turned = not question or await self.decisions.find_turn(ANN, request) is not None
            return turned and await self.decisions.find(ANN, request) is not None

        await until(is_kept, "the decision is kept")

    async def judge(self, *arguments: str) -> None:
        done = await self.run("memory", *arguments)
        assert done.exit_code == 0, done.output

    async def label(self, *arguments: str, user: str = "ann") -> list[dict[str, Any]]:
        done = await self.run("eval", "from-feedback", "--out", str(self.out), *arguments, user=user)
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    async def run(self, *arguments: str, user: str = "ann") -> Result:
        environment = {
            "MEMORY_EXTPROC_API": self.server.address,
            "MEMORY_EXTPROC_AS": user,
            "MEMORY_EXTPROC_TENANT": ANN.tenant,
        }
        return await asyncio.to_thread(CliRunner(env=environment).invoke, app, list(arguments))


@pytest.fixture
async def ann(tmp_path: Path) -> AsyncIterator[Feedback]:
    async with Feedback(tmp_path) as made:
        yield made


async def test_judged_memories_label_the_requests_that_were_given_them(ann: Feedback) -> None:
    helpful, wrong, corrected, plain = facts = [
        a_memory(words, ANN) for words in ("likes figs", "likes kale", "likes tea", "likes jazz")
    ]
    await ann.remember(*facts)
    await ann.ask("r-1", "", facts)
    await ann.ask("r-2", "", [plain])
    await ann.ask("r-3", "", [wrong, plain])
    assert await ann.label() == [], "nobody judged anything"
    await ann.judge("rate", helpful.id, "helpful")
    await ann.judge("rate", wrong.id, "wrong")
    await ann.judge("update", corrected.id, "--content", "likes green tea")
    labels = {one["request"]: one for one in await ann.label()}
    assert labels.keys() == {"r-1", "r-3"}
    assert (labels["r-3"]["relevant"], labels["r-3"]["unwanted"]) == ([], [wrong.id])
    found = labels["r-1"]
    assert (found["request"], found["owner"], found["kind"]) == ("r-1", "u1", "list")
    assert set(found["relevant"]) == {helpful.id, corrected.id}
    assert found["unwanted"] == [wrong.id]
    assert stat.S_IMODE(ann.out.stat().st_mode) == 0o600
    for word in ("figs", "kale", "tea", "ann"):
        assert word not in ann.out.read_text(), "ids only, unless told"
    with pytest.raises(DatasetError, match="line 1"):
        read_dataset(ann.out)
    assert await ann.label("--user", "bob", user="bob") == [], "of another there is nothing"


async def test_a_correction_from_before_the_request_judges_nothing(ann: Feedback) -> None:
    fact = a_memory("likes tea", ANN)
    await ann.remember(fact)
    await ann.judge("update", fact.id, "--content", "likes green tea")
    (corrected,) = await ann.partitions.get(ANN, [fact.id])
    await ann.ask("r-1", "", [corrected])
    assert await ann.label() == []


async def test_with_its_text_it_is_a_data_set_that_the_other_commands_read(ann: Feedback) -> None:
    told, (message, *_) = await ann.say("My daughter started at the Waldorf school. We walk there.")
    fact = a_memory("User's daughter goes to the Waldorf school", ANN, metadata={"turn": told.id})
    noted = a_memory("User votes in Lyon", ANN, source=Source.API)
    summary = a_memory("Waldorf school", ANN, source=Source.SUMMARY, role=Role.NONE)
    await ann.remember(fact, noted, summary)
    await ann.ask("r-1", "Which school does my daughter go to?", [fact, summary])
    await ann.ask("r-2", "Where do I vote?", [noted], seq=2)
    await ann.ask("r-3", "", [noted])
    await ann.ask("r-4", "Which school was it?", [summary], seq=4)
    for memory in (fact, noted, summary):
        await ann.judge("rate", memory.id, "helpful")
    await ann.label("--text")
    (read,) = read_dataset(ann.out).conversations
    questions = {question.text: question.relevant for question in read.questions}
    assert questions == {
        "Which school does my daughter go to?": {message.id},  # a fact is learned again, from its message
        "Where do I vote?": {noted.id},
    }
    assert {one.text for one in read.noted} == {noted.content}
    said = {one.text for one in read.said}
    assert told.asked in said
    assert not said & set(questions), "what is asked is not learned"
    counted = json.loads((await ann.run("eval", "from-feedback", "--out", str(ann.out), "--text", "--json")).stdout)
    assert (counted["requests"], counted["labelled"], counted["left out"]) == (4, 4, 2)


async def test_it_says_why_there_can_be_no_labels(tmp_path: Path) -> None:
    stand = Feedback(tmp_path)
    stand.kept = Trace(keep=timedelta())
    async with stand:
        off = await stand.run("eval", "from-feedback", "--out", str(stand.out))
        assert off.exit_code == 1
        assert "trace.keep is not set" in off.output
    stand = Feedback(tmp_path / "second")
    async with stand:
        nowhere = await stand.run("eval", "from-feedback", "--out", str(tmp_path / "none" / "labels.jsonl"))
        assert nowhere.exit_code == 1
        assert "cannot be written: No such file or directory" in nowhere.output
        others = await stand.run("eval", "from-feedback", "--out", str(stand.out), "--user", BOB.user)
        assert others.exit_code == 1
        assert not stand.out.exists()
