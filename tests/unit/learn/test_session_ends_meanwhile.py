"""A session that its client ends while its last turn is still on its way ends with that turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from memory_extproc.learn.extract.extractor import FactExtractor
from memory_extproc.model import Caller, Owner, Turn
from tests.support.builders import ANN
from tests.unit.learn.learning import ListingExtractor, Surroundings, until


class Topics:
    """Sessions that ended, by whatever way; *gate*: what noting waits for."""

    def __init__(self) -> None:
        self.shifted: Callable[[Owner, str], object] = lambda *_: None
        self.gate, self.noting = asyncio.Event(), asyncio.Event()
        self.ended: set[str] = set()

    async def note(self, owner: Owner, turns: Sequence[Turn], last: frozenset[str]) -> None:
        assert owner == ANN
        self.noting.set()
        await self.gate.wait()
        self.ended |= {turn.session for turn in turns if turn.id in last}

    async def end(self, owner: Owner, session: str, *, but: frozenset[str]) -> None:
        assert owner == ANN
        self.ended |= {session} - but


@pytest.mark.parametrize("extractor", [ListingExtractor(), None], ids=["with facts", "without"])
async def test_an_end_that_comes_while_the_last_turn_is_noted_is_noted_too(extractor: FactExtractor | None) -> None:
    topics = Topics()
    around = Surroundings(topics=topics, extractor=extractor)
    async with around.learner() as learner:
        await learner.accept(around.exchange("I live in Oslo."))
        await topics.noting.wait()
        await learner.end_session(Caller(ANN, session="s"))
        topics.gate.set()
        await until(lambda: topics.ended == {"s"}, "the session has ended")
