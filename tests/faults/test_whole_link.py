"""The data directory is a link, and somebody has it lead elsewhere while the sidecar runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faults import ASKED, BUDGET, FaultStand
from tests.support.waiting import until

pytestmark = pytest.mark.envoy


def lead(link: Path, to: Path) -> None:
    """In one step, as deployments do it."""
    to.mkdir(exist_ok=True)
    new = link.with_name("new-link")
    new.symlink_to(to)
    new.replace(link)


async def test_where_a_link_is_made_to_lead_elsewhere_both_directories_are_left_alone_and_it_says_so(
    faulty: FaultStand,
) -> None:
    faulty.change(learn={"extractor": "off"})
    first, others = faulty.scratch / "first", faulty.scratch / "other"
    lead(faulty.data, first)
    await faulty.start()
    await faulty.say(BUDGET)
    await until(lambda: faulty.kept == 1, "it is remembered")
    async with faulty.another("other") as other:
        lead(faulty.data, others)

        async def unready() -> bool:
            status, text = await faulty.http("/readyz")
            return status == 503 and "taken away while in use" in text

        await until(unready, "not ready, and it says why")
        assert (await faulty.say("My sister lives in Hawaii since March.")).status == 200
        assert await faulty.memories(sidecar=other) == []
        lead(faulty.data, first)

        async def ready() -> bool:
            return (await faulty.http("/readyz"))[0] == 200

        await until(ready, "ready again")
        assert await faulty.memories(sidecar=other) == []
    assert (await faulty.say(ASKED)).memory.startswith("used")
    await faulty.restart()
    assert (await faulty.say(ASKED)).memory.startswith("used")
