"""Every row of an owner, for the memory API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from memory_extproc.errors import PermanentError
from memory_extproc.model import Embedded, MemoryState, Owner
from memory_extproc.store.partition import Partitions
from tests.support.builders import ANN, BOB, MONDAY
from tests.unit.store.partitions import AT_ONCE, a_row, a_setting


async def every(partitions: Partitions, owner: Owner = ANN) -> list[str]:
    return sorted([memory.content async for page in partitions.rows(owner) for memory in page])


@pytest.mark.parametrize("patience", [AT_ONCE, timedelta(seconds=5)])
@pytest.mark.parametrize("lags", [False, True])
async def test_every_row_is_listed_once_in_any_state_with_our_own_writes(patience: timedelta, lags: bool) -> None:
    setting = a_setting(lags=lags)
    old = a_row("an old one", state=MemoryState.SUPERSEDED)
    deleted = a_row("deleted")
    await setting.store.put(ANN, [old, deleted, a_row("a stored one")])
    await setting.store.put(BOB, [a_row("Bob's", BOB)])
    async with setting.process(patience=patience) as partitions:
        await partitions.put(ANN, [a_row("just written"), a_row("a stored one", updated_at=MONDAY)])
        await partitions.delete(ANN, [deleted.memory.id])
        assert await every(partitions) == ["a stored one", "an old one", "just written"]


async def test_a_row_written_while_the_store_is_read_is_listed_once() -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row(f"stored {number}") for number in range(5)])
    seen: list[str] = []
    async with setting.process(patience=AT_ONCE, page=2) as partitions:
        async for page in partitions.rows(ANN):
            if not seen:
                await partitions.put(ANN, [a_row("stored 4", importance=0.9), a_row("new")])
            seen.extend(memory.content for memory in page)
    assert sorted(seen) == ["new", *(f"stored {number}" for number in range(5))]


@pytest.mark.parametrize("patience", [AT_ONCE, timedelta(seconds=5)])
async def test_what_is_forgotten_while_it_is_listed_is_not_shown_any_more(patience: timedelta) -> None:
    setting = a_setting()
    await setting.store.put(ANN, [a_row(f"stored {number}") for number in range(1200)])
    async with setting.process(patience=patience, page=100) as partitions:
        shown = 0
        async for page in partitions.rows(ANN):
            if not shown:
                await partitions.delete_owner(ANN)
            shown += len(page)
        assert shown < 1000


async def test_a_row_is_changed_in_one_step_or_not_at_all() -> None:
    setting = a_setting()
    row = a_row("before")
    async with setting.process() as partitions:
        await partitions.put(ANN, [row])

        def corrected(there: Embedded) -> Sequence[Embedded]:
            return [Embedded(replace(there.memory, content="after"), there.vector)]

        def refused(_: Embedded) -> Sequence[Embedded]:
            raise PermanentError("it has changed since")

        assert await partitions.change(ANN, row.memory.id, corrected)
        assert not await partitions.change(BOB, row.memory.id, corrected), "another's row is no row"
        with pytest.raises(PermanentError):
            await partitions.change(ANN, row.memory.id, refused)
        assert await every(partitions) == ["after"]
