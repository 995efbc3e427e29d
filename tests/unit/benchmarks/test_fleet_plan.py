"""The plan of a fleet grows with its users, and says what one cluster cannot hold."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from benchmarks.fleet import Inputs, Prices, Use, busiest, make_plan, waiting_p99

INPUTS = Inputs(
    request={"serving": 6.0, "learning": 0.0, "envoy": 1.0, "milvus": 0.5, "redis": 0.2},
    turn={"serving": 4.0, "learning": 20.0, "envoy": 0.0, "milvus": 1.0, "redis": 0.3},
    unloaded_p50=8.0,
    unloaded_p99=15.0,
    redis_turn=8_000 * 86_400.0,
    checks=[],
)


def test_a_queue_waits_longer_the_more_of_its_server_is_in_use() -> None:
    # M/M/1 with a service of 10 ms, half in use: P(wait > t) = 0.5 exp(-t / 20 ms), so 1 of 100 waits 78.2 ms.
    assert waiting_p99(0.5, 10.0) == pytest.approx(78.24, abs=0.01)
    assert waiting_p99(0.0, 10.0) == waiting_p99(0.01, 10.0) == 0.0
    assert waiting_p99(0.8, 10.0) > waiting_p99(0.5, 10.0) > waiting_p99(0.2, 10.0)


def test_a_core_is_used_as_far_as_the_latency_wanted_allows() -> None:
    share = busiest(INPUTS)
    assert waiting_p99(share, 6.0) <= 30.0 < waiting_p99(share + 0.01, 6.0)
    assert busiest(INPUTS, times=5.0) > share


def test_a_small_fleet_has_two_serving_replicas_and_one_that_learns() -> None:
    plan = make_plan(INPUTS, Use(1_000), Prices())
    assert (plan.serving, plan.learning, plan.first) == (2, 1, "nothing")


def test_ten_times_the_users_need_ten_times_as_much() -> None:
    some, more = (make_plan(INPUTS, Use(users), Prices()) for users in (10**7, 10**8))
    assert more.serving == pytest.approx(10 * some.serving, rel=0.1)
    assert more.milvus_gib == pytest.approx(10 * some.milvus_gib)
    assert more.redis_gib == pytest.approx(10 * some.redis_gib)
    assert more.cost == pytest.approx(10 * some.cost, rel=0.1)


def test_redis_holds_a_turns_records_as_long_as_they_last() -> None:
    use = Use(10**6)  # 23.1 turns a second, each 8,000 bytes for a day
    assert make_plan(INPUTS, use, Prices()).redis_gib == pytest.approx(23.148 * 8_000 * 86_400 / 2**30, rel=0.001)


def test_the_plan_says_what_one_cluster_cannot_hold() -> None:
    assert make_plan(INPUTS, Use(10**8), Prices()).first == "Milvus, rows of one cluster: 146 needed"
    quickly_forgotten = make_plan(replace(INPUTS, redis_turn=0.0), Use(10**8, days=0.1), Prices())
    assert quickly_forgotten.first == "Redis, commands of one primary: 6 needed"
    long_remembered = make_plan(replace(INPUTS, redis_turn=8_000 * 30 * 86_400.0), Use(10**8), Prices())
    assert long_remembered.first == "Redis, memory of one primary: 699 needed"
