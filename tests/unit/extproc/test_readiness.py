from __future__ import annotations

import asyncio
from datetime import timedelta

from memory_extproc.errors import TransientError
from memory_extproc.extproc.server import Readiness


class Journal:
    """Answers, or does not; says when it was asked."""

    def __init__(self) -> None:
        self.fault = ""
        self.asked = asyncio.Condition()

    async def depth(self) -> int:
        async with self.asked:
            self.asked.notify_all()
        if self.fault:
            raise TransientError(self.fault)
        return 0

    async def asked_twice(self) -> None:
        """After the second question begins, the first has been answered and told."""
        async with self.asked:
            await self.asked.wait()
            await self.asked.wait()


async def test_envoy_is_told_of_every_change_and_only_of_changes() -> None:
    told: list[bool] = []
    journal = Journal()

    async def tell(ready: bool) -> None:
        told.append(ready)

    readiness = Readiness(journal.depth, tell, timedelta(milliseconds=1))
    assert readiness.reason == "starting"
    async with readiness:
        assert readiness.reason == ""
        await journal.asked_twice()
        journal.fault = "the journal's disk is full"
        await journal.asked_twice()
        assert readiness.reason == "the journal's disk is full"
        journal.fault = ""
        await journal.asked_twice()
        assert readiness.reason == ""
    assert told == [True, False, True]
    assert readiness.reason == "stopping"


async def test_a_sidecar_whose_journal_cannot_be_opened_starts_and_is_not_ready() -> None:
    told: list[bool] = []
    journal = Journal()
    journal.fault = "the journal is locked"

    async def tell(ready: bool) -> None:
        told.append(ready)

    async with Readiness(journal.depth, tell, timedelta(milliseconds=1)) as readiness:
        assert readiness.reason == "the journal is locked"
        journal.fault = ""
        await journal.asked_twice()
        assert readiness.reason == ""
    assert told == [True]
