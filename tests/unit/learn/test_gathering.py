"""Turns are gathered until facts are extracted from them together."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from memory_extproc.learn.queue import SessionBatcher
from memory_extproc.model import Owner
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings import CurrentSettings
from tests.support.builders import ANN, BOB
from tests.support.learner import LearnSettings

Due = list[tuple[Owner, tuple[str, ...]]]


def gatherings(due: Due, current: CurrentSettings | None = None) -> SessionBatcher:
    return SessionBatcher(
        lambda owner, turn_ids: due.append((owner, turn_ids)),
        Metrics(CollectorRegistry(), "test"),
        current or CurrentSettings(LearnSettings(batch=3).settings()),
        batches=True,
    )


async def test_a_full_batch_is_due_at_once_each_turn_in_it_once() -> None:
    due: Due = []
    gathered = gatherings(due)
    for turn_id in ("1", "2", "1", "3"):
        gathered.add(ANN, "s", turn_id)
    assert due == [(ANN, ("1", "2", "3"))]
    assert gathered.sessions(ANN) == []


async def test_sessions_and_owners_are_gathered_apart() -> None:
    due: Due = []
    gathered = gatherings(due)
    for owner, session in ((ANN, "s"), (ANN, "t"), (BOB, "s")):
        gathered.add(owner, session, f"of {owner.user} in {session}")
    assert gathered.sessions(ANN) == ["s", "t"]
    gathered.flush(ANN, "s")
    assert due == [(ANN, ("of ann in s",))]
    gathered.flush_all()
    assert sorted(turn_ids for _, turn_ids in due) == [("of ann in s",), ("of ann in t",), ("of bob in s",)]


async def test_a_session_that_is_not_gathered_is_not_due() -> None:
    due: Due = []
    gathered = gatherings(due)
    gathered.flush(ANN, "s")
    gathered.flush_all()
    assert due == []


async def test_what_is_gathered_when_it_closes_is_given_to_nobody() -> None:
    due: Due = []
    gathered = gatherings(due)
    gathered.add(ANN, "s", "1")
    gathered.close()
    gathered.flush_all()
    assert due == []
    assert gathered.sessions(ANN) == []


async def test_another_batch_counts_for_what_is_added_from_then_on() -> None:
    due: Due = []
    current = CurrentSettings(LearnSettings(batch=3).settings())
    gathered = gatherings(due, current)
    gathered.add(ANN, "s", "1")
    current.settings = LearnSettings(batch=2).settings()
    assert due == []
    gathered.add(ANN, "s", "2")
    assert due == [(ANN, ("1", "2"))]
