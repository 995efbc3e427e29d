"""The data directory is a link, and somebody has it lead elsewhere while the sidecar runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory_extproc import app
from memory_extproc.errors import ConfigurationError
from tests.fixtures.faults import ASKED, BUDGET, FaultStand
from tests.fixtures.waiting import until

pytestmark = pytest.mark.envoy


def lead(link: Path, to: Path) -> None:
    """In one step, as deployments do it."""
    to.mkdir(exist_ok=True)
    new = link.with_name("new-link")
    new.symlink_to(to)
    new.replace(link)


def _put_back(faulty: FaultStand) -> set[str]:
    return {entry["file"] for entry in faulty.logs.of("file.put_back")}


async def test_what_is_known_and_said_goes_along_to_where_a_link_is_made_to_lead(faulty: FaultStand) -> None:
    faulty.change(learn={"extractor": "off"})
    lead(faulty.data, faulty.scratch / "first")
    await faulty.start()
    await faulty.say(BUDGET)
    await until(lambda: faulty.kept == 1, "it is remembered")

    lead(faulty.data, faulty.scratch / "second")
    await until(lambda: _put_back(faulty) >= {"journal.db", "milvus.db", "lock"}, "files stand where it leads")
    with pytest.raises(ConfigurationError, match="another sidecar is using"):
        await app.sidecar(faulty.configured(faulty.scratch / "second.yaml", faulty.data)).__aenter__()
    assert (await faulty.say("My sister lives in Hawaii since March.")).status == 200
    await until(lambda: faulty.kept == 2, "what is said now is remembered")
    assert (await faulty.http("/readyz"))[0] == 200

    await faulty.restart()
    assert (await faulty.say(ASKED)).memory.startswith("used")
    assert "$10,000" in faulty.shown
    assert (await faulty.say("Where does my sister live?")).memory.startswith("used")
    assert faulty.sample("journal_dead_letters") == 0


async def test_where_a_link_is_made_to_lead_to_what_another_sidecar_uses_the_other_is_left_alone(
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
            return status == 503 and "another sidecar is using it" in text

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
