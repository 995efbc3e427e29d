"""The canary against the real model and store, and what it leaves alone."""

from __future__ import annotations

from memory_extproc.model import Owner
from tests.support.whole import WholeStand


async def test_the_canary_finds_all_it_knows_and_is_no_traffic(whole: WholeStand) -> None:
    await whole.start()
    canary = whole.whole.canary
    assert canary is not None
    assert await canary.probe() == 1.0
    assert whole.sample("canary_recall") == 1.0
    assert whole.sample("recall_injected_count") == 0
    assert whole.sample("recall_seconds_count", stage="total") == 0
    assert whole.sample("journal_depth") == 0
    assert whole.whole.metrics.registry.get_sample_value("memory_extproc_exchanges_total") is None
    assert (await whole.say("Which instrument does my sister play?")).memory == "empty"


async def test_switched_off_nobody_is_asked(whole: WholeStand) -> None:
    whole.changes["telemetry"] = {"canary": "off"}
    await whole.start()
    assert whole.whole.canary is None
    assert [page async for page in whole.whole.partitions.rows(Owner.of_canary())] in ([], [[]])
