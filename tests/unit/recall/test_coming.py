"""Vectors on their way: begun at once, shared, and ended with the question."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from memory_extproc.model import Vector
from memory_extproc.recall.query import PendingEmbeddings, Vectors

EAST: Vector = np.array([1.0, 0.0], dtype=np.float32)


class Embedding:
    def __init__(self) -> None:
        self.begun, self.done, self.ended = asyncio.Event(), asyncio.Event(), False

    async def __call__(self) -> Vectors:
        self.begun.set()
        try:
            await self.done.wait()
            return [EAST, None]
        finally:
            self.ended = True


async def test_it_has_begun_before_anything_else_is_done() -> None:
    embedding = Embedding()
    async with PendingEmbeddings(embedding(), lambda: 7.0) as coming:
        assert embedding.begun.is_set()
        assert not coming.there
        embedding.done.set()
        assert await coming.at(0) is EAST
        assert await coming.at(1) is None
        assert coming.there == 7.0


async def test_who_gives_up_waiting_takes_it_from_nobody_else() -> None:
    embedding = Embedding()
    async with PendingEmbeddings(embedding(), lambda: 0.0) as coming:
        impatient = asyncio.create_task(coming.at(0))
        other = asyncio.create_task(coming.at(0))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait({impatient})
        embedding.done.set()
        assert await other is EAST


async def test_it_ends_with_the_question() -> None:
    embedding = Embedding()
    with pytest.raises(ZeroDivisionError):
        async with PendingEmbeddings(embedding(), lambda: 0.0):
            raise ZeroDivisionError
    assert embedding.ended
