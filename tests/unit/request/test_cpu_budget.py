"""A caller whose long requests take more than their share of a core passes without memory, and nobody else does."""

from __future__ import annotations

import gzip
import json
import time
from dataclasses import replace

from memory_extproc.concurrency import LARGE, off_loop
from memory_extproc.model import Outcome
from memory_extproc.request.body import CpuBudget
from tests.support.desk import Desk

LONG = json.dumps({"messages": [{"role": "user", "content": "my budget? " * 10_000}]}).encode()
SHORT = json.dumps({"messages": [{"role": "user", "content": "my budget?"}]}).encode()


def spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def spend(budget: CpuBudget, caller: str, seconds: float) -> None:
    with budget.charge(caller):
        await off_loop(LARGE, spin, seconds)


async def test_a_budget_is_spent_by_work_in_threads_and_fills_up_again() -> None:
    now = 100.0
    budget = CpuBudget(0.001, lambda: now)
    await spend(budget, "ann", 0.03)
    assert not budget.is_spent("ann")
    await spend(budget, "ann", 0.04)
    assert budget.is_spent("ann")
    assert not budget.is_spent("bob")
    now += 30
    assert not budget.is_spent("ann")


async def test_work_on_the_event_loop_is_not_charged() -> None:
    budget = CpuBudget(0.001)
    with budget.charge("ann"):
        await off_loop(LARGE - 1, spin, 0.1)
    assert not budget.is_spent("ann")


async def test_without_a_limit_nobody_runs_out() -> None:
    budget = CpuBudget(0.0)
    await spend(budget, "ann", 0.05)
    assert not budget.is_spent("ann")


async def test_long_requests_beyond_the_budget_pass_and_short_ones_are_served() -> None:
    desk = Desk(caller_cpu=1e-6)
    admitted = desk.admit()
    assert (await desk.enricher.enrich(admitted, LONG)).outcome is Outcome.USED
    for admitted_as, body in ((admitted, LONG), (replace(admitted, encoding="gzip"), gzip.compress(LONG))):
        passed = await desk.enricher.enrich(admitted_as, body)
        assert (passed.outcome, passed.body) == (Outcome.OVERLOADED, None)
    assert (await desk.enricher.enrich(admitted, SHORT)).outcome is Outcome.USED
