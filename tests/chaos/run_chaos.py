"""A run: users, faults by a plan, and at the end what everybody can see. `make chaos`; docs/reliability.md."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from memory_extproc.api.gen import memory_pb2 as api
from tests.chaos.counts import Counts, Model, RunLog
from tests.chaos.fleet import Fleet
from tests.chaos.schedule import ALONE, KINDS, UNCOPIED, Plan, draw_plan, read_plan
from tests.chaos.users import PEOPLE, User
from tests.properties.front import Person
from tests.properties.known import WORD
from tests.support.faults import FaultStand
from tests.support.milvus_server import Process
from tests.support.waiting import until

ASKED = os.environ.get
GAP = 1.0  # seconds between a fault that stands alone and the next
SETTLE = 180.0  # seconds after the last fault until nothing waits to be learned any more

pytestmark = [pytest.mark.envoy, pytest.mark.redis, pytest.mark.timeout(0)]


def asked_plan() -> Plan:
    if replay := ASKED("MEMORY_EXTPROC_CHAOS_REPLAY"):
        return read_plan(Path(replay))
    kinds = ASKED("MEMORY_EXTPROC_CHAOS_KINDS", "").split(",")
    return draw_plan(
        int(ASKED("MEMORY_EXTPROC_CHAOS_SEED", "1")),
        float(ASKED("MEMORY_EXTPROC_CHAOS_SECONDS", "60")),
        int(ASKED("MEMORY_EXTPROC_CHAOS_REPLICAS", "3")),
        [kind for kind in kinds if kind] or KINDS,
    )


async def test_no_fault_fails_a_request_or_breaks_a_promise(faulty: FaultStand, milvus_lite: Process) -> None:
    plan = asked_plan()
    log = RunLog(Path(ASKED("MEMORY_EXTPROC_CHAOS_LOG", ".cache/chaos")) / f"seed-{plan.seed}.jsonl")
    log.plan(plan.to_json())
    counts = Counts(log)
    faulty.expected_5xx = set(range(500, 600))  # counted as failed instead
    release = Path(given) if (given := ASKED("MEMORY_EXTPROC_CHAOS_RELEASE")) else None
    async with Fleet(faulty, milvus_lite, log, plan.replicas, release=release) as fleet:
        model = Model(counts)
        try:
            log.restart_clock()
            await _act(plan, fleet, model)
            await _settle(fleet, model)
        finally:
            fleet.keep_logs(log.path)
            log.note("end", counts=counts.table, seen=counts.seen)
            log.close()
            sys.stderr.write(_report(plan, counts, log.path))
    assert counts.seen["kept"], "nothing was ever kept"
    assert counts.seen["memory: used"], "nothing was ever recalled"
    assert not any(counts.table.values()), f"seed {plan.seed}: {counts.table}; {log.path}"


async def _act(plan: Plan, fleet: Fleet, model: Model) -> None:
    over = asyncio.Event()
    if UNCOPIED & {fault.kind for fault in plan.faults}:
        fleet.on_wipe = lambda: model.weaken_unstored(*PEOPLE)
    users = [User(plan.seed, number, fleet, model) for number in range(len(PEOPLE))]
    async with asyncio.TaskGroup() as traffic:
        for user in users:
            traffic.create_task(user.keep_acting(over))
        async with asyncio.TaskGroup() as faults:
            under_way: list[asyncio.Task[None]] = []
            for fault in plan.faults:
                await asyncio.sleep(max(0.0, fault.at - fleet.log.now))
                if fault.kind in ALONE:
                    await asyncio.gather(*under_way)
                under_way.append(faults.create_task(fleet.befall(fault)))
                if fault.kind in ALONE:
                    await under_way[-1]
                    await asyncio.sleep(GAP)  # a plan that is late has its gaps behind it
            await asyncio.sleep(max(0.0, plan.seconds - fleet.log.now))
        over.set()


async def _settle(fleet: Fleet, model: Model) -> None:
    """Waits until all is learned, and looks at everybody through every replica."""
    fleet.log.note("settles")
    for person in PEOPLE:
        await until(partial(_learned, fleet, person), f"all of {person}'s turns are learned", seconds=SETTLE)
    for person in PEOPLE:
        for replica in range(fleet.count):
            await _look(fleet, model, person, replica)
        model.counts.seen["kept"] += len(model.known.of(person).keys() & model.stored)
    for number, one in enumerate(fleet.replicas):
        for word in set(WORD.findall(one.child.errors)):
            model.counts.violation("logged", PEOPLE[0], word, f"the log of replica {number}")


async def _learned(fleet: Fleet, person: Person) -> bool:
    for number, replica in enumerate(fleet.replicas):
        stats = await fleet.call("GetStats", api.GetStatsRequest(), person, number)
        undecided = await replica.child.sample("turns_undecided")
        if stats.backlog or undecided:
            fleet.log.note("waits", person=str(person), replica=number, backlog=stats.backlog, undecided=undecided)
            return False
    return True


async def _look(fleet: Fleet, model: Model, person: Person, replica: int) -> None:
    where = f"replica {replica} at the end"
    rows = [_row(one) for one in await fleet.everything(person, replica)]
    fleet.log.note("held", person=str(person), replica=replica, rows=rows)
    model.check_whole(rows, person, where)
    search = api.SearchMemoriesRequest(query="What is everything called?", threshold=0.0, limit=50)
    found = await fleet.call("SearchMemories", search, person, replica)
    model.check(str(found), person, f"search, {where}", recalled=True)


def _row(memory: Any) -> dict[str, str]:
    names = ("id", "session_id", "content", "source", "role", "state", "superseded_by", "created_at", "metadata")
    return {name: str(getattr(memory, name)) for name in names}


def _report(plan: Plan, counts: Counts, log: Path) -> str:
    kinds = [fault.kind for fault in plan.faults]
    faults = ", ".join(f"{kind} {kinds.count(kind)}" for kind in sorted(set(kinds)))
    seen = ", ".join(f"{what} {times}" for what, times in sorted(counts.seen.items()))
    table = "  ".join(f"{name} {number}" for name, number in counts.table.items())
    return f"\nseed {plan.seed}, {plan.seconds:g} s, {plan.replicas} replicas; {log}\n{faults}\n{seen}\n{table}\n"
