"""Callers who say one thing after the other through the gateway, and notice when an answer is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence

from aiohttp import web

from tests.support.envoy import a_chat
from tests.support.faults import USER, FaultStand
from tests.support.upstream import Answers, a_stream, sse_events
from tests.support.waiting import until

STREAM = b"".join(sse_events("Noted", "."))


def fact(number: int) -> str:
    """A statement that says what no other says."""
    return f"My locker in Hawaii has the number {10_000 + number}."


def streaming(*seconds: float) -> Answers:
    """Answers in pieces with pauses before them, of one of these lengths in turn: some are always under way."""
    pauses = itertools.cycle(seconds)

    async def answers(request: web.Request) -> web.StreamResponse:
        pause = next(pauses)
        return await a_stream(sse_events("Noted", "."), lambda _: asyncio.sleep(pause))(request)

    return answers


class Load:
    """Each thing is said once, by one of *users* in turn."""

    def __init__(self, faulty: FaultStand, users: Sequence[str] = (USER,)) -> None:
        self._faulty = faulty
        self._users = users
        self.through: list[str] = []  # said, answered to the end, and seen by a sidecar
        self.answered = 0
        self._said = 0

    @contextlib.asynccontextmanager
    async def running(self, callers: int = 4) -> AsyncIterator[None]:
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(self._keep_saying(over))
            yield
            over.set()

    async def more(self, count: int = 12) -> None:
        """Waits for so many more answers."""
        least = self.answered + count
        await until(lambda: self.answered >= least, "there is traffic", seconds=20)

    def user_of(self, words: str) -> str:
        return self._users[(int(words.rstrip(".").rpartition(" ")[2]) - 10_000) % len(self._users)]

    async def _keep_saying(self, over: asyncio.Event) -> None:
        while not over.is_set():
            self._said += 1
            words = fact(self._said)
            answer = await self._faulty.chat(a_chat(words, stream=True), user=self.user_of(words))
            assert (answer.status, answer.body) == (200, STREAM)
            self.answered += 1
            if answer.memory:
                self.through.append(words)
