"""Partitions whose machine's clock is set: what they wait for takes as long as it takes, and no longer."""

from __future__ import annotations

from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.errors import TransientError
from memory_extproc.observe.metrics import Metrics
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from tests.support.builders import ANN, Clock
from tests.unit.store.partitions import Setting, a_row, a_setting, search

SET = [timedelta(hours=-2), timedelta(hours=2)]


def a_process(setting: Setting, passing: Clock) -> Partitions:
    limits = PartitionLimits(patience=timedelta(seconds=5))
    metrics = Metrics(CollectorRegistry(), "test")
    return Partitions(
        setting.store, setting.coordination, limits, metrics, now=setting.clock, monotonic_now=passing
    )


@pytest.mark.parametrize("jump", SET)
async def test_an_owner_who_could_not_be_read_is_read_again_in_seconds(jump: timedelta) -> None:
    setting, passing = a_setting(), Clock()
    setting.store.weather.down = True
    async with a_process(setting, passing) as partitions:
        with pytest.raises(TransientError):
            await search(partitions)
        setting.clock.now += jump
        setting.store.weather.down = False
        assert (await search(partitions)).path == "store"
        passing.now += timedelta(seconds=2)
        assert (await search(partitions)).path == "hybrid"


@pytest.mark.parametrize("jump", SET)
async def test_what_was_forgotten_is_hidden_from_a_lagging_store_until_it_has_settled(jump: timedelta) -> None:
    setting, passing = a_setting(lags=True), Clock()
    async with a_process(setting, passing) as partitions:
        await partitions.put(ANN, [a_row("likes tea")])
        async with partitions.alone(ANN) as alone:
            await alone.delete_all()
        partitions.reconfigure(PartitionLimits(bytes=0))  # nothing is held: all is asked of the store
        setting.clock.now += jump
        await setting.store.put(ANN, [a_row("as a lagging read would show it")])
        assert not (await search(partitions)).found
        passing.now += PartitionLimits().settle
        assert (await search(partitions)).found
