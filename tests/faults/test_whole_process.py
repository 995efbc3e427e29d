"""The sidecar as a process: killed, told to end, without room on its disk. Clients notice none of it."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from memory_extproc import app
from tests.support.envoy import Wiring
from tests.support.faults import ASKED, BUDGET, FaultStand, Link
from tests.support.faults_process import Child, a_child
from tests.support.load import Load, streaming
from tests.support.waiting import until

pytestmark = pytest.mark.envoy


def journalled(data: Path) -> set[str]:
    """What stands in a journal that nobody has open."""
    with contextlib.closing(sqlite3.connect(data / "journal.db")) as file:
        return {json.loads(row[0])["asked"] for row in file.execute("SELECT turn FROM turns")}


async def remembered(faulty: FaultStand, child: Child) -> Counter[str]:
    """What the child left in its store, by a sidecar that takes it over."""
    settings = faulty.configured(faulty.scratch / "heir.yaml", child.data)
    async with app.sidecar(settings) as heir:
        return Counter(one for one in await faulty.memories(sidecar=heir) if "locker" in one and "User" not in one)


async def test_a_kill_in_mid_traffic_costs_no_answer_loses_no_journalled_turn_and_doubles_none(
    faulty: FaultStand,
) -> None:
    async with a_child(faulty, learn={"journal": {"wait": "500ms"}, "extractor": "off"}) as child:
        faulty.upstream.answers = streaming(0.02)
        await faulty.start_around(child.ext_proc, wiring=Wiring(failure_mode_allow=True))
        await child.serving()
        load = Load(faulty)
        async with load.running():
            await load.more()
            sure = list(load.through)
            await child.kill()
            in_journal = journalled(child.data)
            await load.more()  # Envoy goes on without us
            await child.serving()
            before = len(load.through)
            await until(lambda: len(load.through) > before + 12, "memory is back", seconds=20)
        child.signal(signal.SIGTERM)
        assert await child.ended() == 0
        known = await remembered(faulty, child)
    assert len(sure) >= 12
    assert set(sure) <= in_journal
    assert in_journal <= set(known), "a journalled turn was lost"
    assert set(load.through[before:]) <= set(known)
    assert set(known.values()) == {1}, "a turn is there twice"


async def test_sigterm_under_load_fails_no_request_and_leaves_nothing_unlearned(faulty: FaultStand) -> None:
    async with a_child(faulty, learn={"extractor": "off"}, shutdown={"announce": "1s"}) as child:
        faulty.upstream.answers = streaming(0.02)
        await child.serving()
        async with faulty.another("stays") as stays:
            ports = (child.ext_proc, int(stays.ext_proc.rpartition(":")[2]))
            await faulty.start_around(*ports, wiring=Wiring(health_check=True))  # which forgives nothing
            await until(lambda: faulty.envoy.healthy("sidecar"), "both are healthy")
            load = Load(faulty)
            async with load.running():
                await load.more(24)
                child.signal(signal.SIGTERM)
                assert await child.ended() == 0
                await load.more()  # by the one that stays
            assert len(load.through) == load.answered
            left = await remembered(faulty, child)

            async def all_known() -> bool:
                return set(load.through) <= {*left, *await faulty.memories(sidecar=stays)}

            await until(all_known, "the one that stays knows all that the other does not")
        assert {entry["event"] for entry in child.logged} >= {"server.draining", "server.stopped"}
        with contextlib.closing(sqlite3.connect(child.data / "journal.db")) as file:
            assert file.execute("SELECT count(*) FROM turns WHERE stage <> 2").fetchone() == (0,)
    assert len(left) >= 12


async def test_a_disk_that_takes_no_more_makes_the_sidecar_unready_and_fails_no_request(
    faulty: FaultStand, link: Link
) -> None:
    faulty.change(memory={"milvus": {"address": f"127.0.0.1:{link.port}", "collection": "disk"}})
    async with a_child(faulty) as child:
        await faulty.start_around(child.ext_proc)
        await child.serving()
        await faulty.say("My sister lives in Hawaii since March.")

        async def recalled() -> bool:
            return (await faulty.say("Where does my sister live?")).memory.startswith("used")

        await until(recalled, "it is learned")
        child.limit_files(1024)
        assert (await faulty.say(BUDGET)).status == 200
        assert faulty.shown.startswith(BUDGET)
        failed = 'turns_total{outcome="journal_failed"}'
        await until(lambda: _at_least(child, failed, 1), "the turn is counted")
        await until(lambda: _unready(child), "not ready")
        assert "journal.refuses" in {entry["event"] for entry in child.logged}
        assert await recalled()
        child.limit_files(1 << 40)
        await until(child.ready, "ready again")
        await faulty.say(BUDGET)
        assert (await faulty.say(ASKED)).memory.startswith("used")
        assert "$10,000" in faulty.shown


async def test_a_process_that_can_open_nothing_more_fails_no_request_and_learns_later(faulty: FaultStand) -> None:
    async with a_child(faulty, learn={"extractor": "off"}) as child:
        await faulty.start_around(child.ext_proc)  # which forgives nothing
        await child.serving()
        await faulty.say("My sister lives in Hawaii since March.")
        with child.without_handles():
            for number in range(4):
                assert (await faulty.say(f"My locker number {number} is in Hawaii.")).status == 200
            assert (await faulty.say("Where does my sister live?")).memory.startswith("used")

        async def learned() -> bool:
            return await child.sample("journal_depth") == 0 and await _journalled(child) >= 6

        await until(learned, "all that was said is learned", seconds=20)
        assert await child.sample("journal_dead_letters") == 0
        assert "Traceback" not in child.errors


async def _journalled(child: Child) -> float:
    outcomes = ("journalled", "journal_late")
    return sum([await child.sample(f'turns_total{{outcome="{one}"}}') for one in outcomes])


async def _at_least(child: Child, metric: str, count: float) -> bool:
    return await child.sample(metric) >= count


async def _unready(child: Child) -> bool:
    status, text = await child.ask("/readyz")
    return status == 503 and text.startswith("journal.db is ")


async def test_a_second_process_on_the_same_data_ends_with_exit_code_2_and_the_reason(faulty: FaultStand) -> None:
    await faulty.start()
    async with a_child(faulty) as second:
        text = second.config.read_text().replace(str(second.data), str(faulty.data))
        second.config.write_text(text)
        await second.start()
        assert await second.ended() == 2
        assert "data_dir: another sidecar is using" in second.errors
        assert "Traceback" not in second.errors


async def test_sighup_makes_a_process_read_its_configuration_again_and_never_ends_it(faulty: FaultStand) -> None:
    async with a_child(faulty) as child:
        await child.serving()

        def told(event: str) -> list[Mapping[str, Any]]:
            return [entry for entry in child.logged if entry["event"] == event]

        before = child.config.read_text()
        child.config.write_text(f"{before}\nmode: shadow\ntelemetry: {{log_level: debug}}\n")
        child.signal(signal.SIGHUP)
        await until(lambda: told("configuration.reloaded"), "the new configuration holds")
        assert set(told("configuration.reloaded")[0]["keys"]) == {"mode", "telemetry.log_level"}
        child.config.write_text(f"{before}\nmode: sometimes\n")
        child.signal(signal.SIGHUP)
        await until(lambda: told("configuration.refused"), "the bad configuration is refused")
        assert told("configuration.refused")[0]["fault"].startswith("mode: ")
        assert await child.sample("configuration_reload_failed") == 1
        assert (await child.ask("/readyz"))[0] == 200
        child.signal(signal.SIGTERM)
        assert await child.ended() == 0
