from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from memory_extproc.extproc.response_capture import BodyMemoryBudget
from memory_extproc.observe.metrics import Metrics


def a_budget(limit: int) -> BodyMemoryBudget:
    return BodyMemoryBudget(lambda: limit, Metrics(CollectorRegistry(), "test"))


def test_learning_leaves_room_for_reads() -> None:
    held = a_budget(100)
    assert held.reserve_learn(75)
    assert not held.reserve_learn(1)
    assert held.reserve_read(25)
    assert not held.reserve_read(1)


def test_reads_may_take_all_and_learning_then_has_none() -> None:
    held = a_budget(100)
    assert held.reserve_read(100)
    assert not held.reserve_learn(1)
    held.release_read(100)
    assert held.reserve_learn(1)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 80)), max_size=20))
def test_never_more_than_the_limit_and_what_is_given_back_is_free_again(wishes: list[tuple[bool, int]]) -> None:
    held = a_budget(100)
    taken = []
    for to_read, count in wishes:
        if (held.reserve_read if to_read else held.reserve_learn)(count):
            taken.append((to_read, count))
        assert held.bytes_in_use <= 100
    for to_read, count in taken:
        (held.release_read if to_read else held.release_learn)(count)
    assert held.bytes_in_use == 0
