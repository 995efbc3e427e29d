"""The memories that are kept as time goes by, and those that go first."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.erasure.tombstones import moment_of
from memory_extproc.model import Memory, MemoryState, MemoryType, Owner
from memory_extproc.retention.rules import (
    RetentionReason,
    leaving,
    merge_memory,
    retire_memory,
    score,
)
from memory_extproc.settings.memory import Retention, TimeToLive
from tests.support.builders import ANN, MONDAY, a_memory, later

RULES = Retention(max_memories=10, prune_share=0.2)
NOW = later(days=100)


def superseded(content: str, by: str = "other", **changes: Any) -> Memory:
    return a_memory(content, state=MemoryState.SUPERSEDED, superseded_by=by, valid_to=MONDAY, **changes)


def test_the_score_is_the_weighted_sum_of_importance_and_freshness() -> None:
    fresh = a_memory("now", importance=0.8, created_at=NOW, updated_at=NOW)
    assert score(fresh, RULES, NOW) == pytest.approx(0.5 * 0.8 + 0.5 * 1.0)
    half = a_memory("then", importance=0.8, created_at=later(days=40), updated_at=later(days=40))
    assert score(half, RULES, NOW) == pytest.approx(0.5 * 0.8 + 0.5 * 0.5)
    weighted = Retention(weight=1.0)
    assert score(half, weighted, NOW) == pytest.approx(0.8)


@given(importance=st.floats(-3, 3), days=st.floats(-10, 10_000), weight=st.floats(0, 1))
def test_a_score_lies_between_nothing_and_one(importance: float, days: float, weight: float) -> None:
    at = NOW - timedelta(days=days)
    memory = a_memory("x", importance=importance, created_at=at, updated_at=at)
    assert 0.0 <= score(memory, Retention(weight=weight), NOW) <= 1.0


@pytest.mark.parametrize("moment", [10**400, -(10**400), float("inf"), float("nan"), 1e300, True, "soon", [1]])
def test_a_time_that_cannot_be_is_no_time(moment: object) -> None:
    """It may have come from a file, which may hold an integer of any length."""
    odd = a_memory("x", metadata={"accessed": moment, "unretired": moment, "said": moment, "retired_at": moment})
    assert score(odd, RULES, NOW) == score(a_memory("x"), RULES, NOW)
    assert leaving([replace(odd, state=MemoryState.DELETED)], RULES, NOW) == leaving(
        [replace(a_memory("x"), state=MemoryState.DELETED)], RULES, NOW
    )
    assert moment_of(odd) == MONDAY.timestamp()


def test_a_memory_that_was_given_to_a_model_is_as_young_as_then_unless_that_is_switched_off() -> None:
    used = a_memory("x", metadata={"accessed": int(NOW.timestamp())})
    assert score(used, RULES, NOW) > score(a_memory("x"), RULES, NOW)
    off = Retention(refresh_on_access=False)
    assert score(used, off, NOW) == score(a_memory("x"), off, NOW)


def test_beyond_the_cap_the_lowest_scores_go_and_a_share_of_room_is_made() -> None:
    rows = [a_memory(f"fact {number}", importance=number / 20) for number in range(12)]
    gone = leaving(rows, RULES, NOW).retire
    assert gone == {row.id: RetentionReason.CAP for row in rows[:4]}  # 12 are there, 10 may be, 8 are left


def test_up_to_the_cap_nothing_goes() -> None:
    assert not leaving([a_memory(f"fact {number}") for number in range(10)], RULES, NOW).retire


def test_what_is_pinned_or_young_stays_whatever_the_cap() -> None:
    pinned = [a_memory(f"pin {n}", importance=0.0, metadata={"pinned": True}) for n in range(8)]
    young = [a_memory(f"new {n}", importance=0.0, created_at=NOW, updated_at=NOW) for n in range(8)]
    old = [a_memory(f"old {n}", importance=1.0) for n in range(3)]
    assert leaving([*pinned, *young, *old], RULES, NOW).retire == {one.id: RetentionReason.CAP for one in old}


def test_the_cap_of_one_is_no_cap_of_none() -> None:
    rules = Retention(max_memories=1, prune_share=0.99)
    rows = [a_memory("a", importance=0.1), a_memory("b", importance=0.9)]
    assert leaving(rows, rules, NOW).retire == {rows[0].id: RetentionReason.CAP}


def test_what_operators_wrote_for_everyone_has_no_cap() -> None:
    everyone = Owner.of_everyone("acme")
    assert not leaving([a_memory(f"fact {n}", everyone) for n in range(50)], RULES, NOW).retire


def test_each_type_is_kept_for_its_own_time() -> None:
    rules = Retention(ttl=TimeToLive(episodic=timedelta(days=90)))
    said, known = a_memory("said", type=MemoryType.EPISODIC), a_memory("known")
    kept = a_memory("kept", type=MemoryType.EPISODIC, metadata={"pinned": True})
    assert leaving([said, known, kept], rules, NOW).retire == {said.id: RetentionReason.TTL}
    assert not leaving([said], rules, later(days=90)).retire


def test_what_its_owner_brought_back_is_left_alone_for_a_while() -> None:
    rules = Retention(ttl=TimeToLive(semantic=timedelta(days=7)))
    back = a_memory("back", metadata={"unretired": later(days=50).timestamp()})
    assert not leaving([back], rules, later(days=50, hours=23)).retire
    assert leaving([back], rules, later(days=51, hours=1)).retire == {back.id: RetentionReason.TTL}


def test_what_has_expired_goes_even_when_it_is_pinned() -> None:
    over = a_memory("over", expires_at=later(days=1), metadata={"pinned": True})
    assert leaving([over], RULES, NOW).retire == {over.id: RetentionReason.EXPIRED}


def test_what_was_deleted_softly_is_erased_when_its_grace_is_over_and_not_before() -> None:
    gone = retire_memory(a_memory("gone"), RetentionReason.CAP, MONDAY)
    assert gone.state is MemoryState.DELETED
    assert gone.provenance.retired == "cap"
    assert not leaving([gone], RULES, later(days=29)).erase
    assert leaving([gone], RULES, later(days=30)).erase == {gone.id}


def test_what_was_superseded_is_history_for_a_year_or_for_good() -> None:
    old = superseded("old")
    assert not leaving([old], RULES, later(days=364)).erase
    assert leaving([old], RULES, later(days=365)).erase == {old.id}
    assert not leaving([old], Retention(history=None), later(days=3650)).erase


def test_what_is_put_aside_for_review_waits_for_it() -> None:
    aside = a_memory("aside", state=MemoryState.QUARANTINED)
    due = leaving([aside], RULES, later(days=3650))
    assert not due.erase
    assert not due.retire


def test_sources_of_a_memory_that_holds_are_not_erased() -> None:
    old = superseded("budget 10,000")
    made = a_memory("budget 12,000 (first 10,000)", metadata={"sources": [old.id]})
    assert not leaving([old, made], RULES, later(days=400)).erase
    assert leaving([old, retire_memory(made, RetentionReason.CAP, MONDAY)], RULES, later(days=400)).erase == {
        old.id,
        made.id,
    }


def test_what_was_made_of_a_forgotten_memory_goes_and_the_rest_of_its_sources_speaks_again() -> None:
    made = a_memory("budget 12,000 (first 10,000)", metadata={"sources": ["forgotten", "current"]})
    current = merge_memory(a_memory("budget 12,000", id="current"), made.id, MONDAY)
    due = leaving([made, current], RULES, NOW)
    assert due.retire == {made.id: RetentionReason.SOURCES}
    assert due.revive == {"current"}
    assert not due.erase


def test_after_a_crash_between_the_two_the_source_still_speaks_again() -> None:
    made = retire_memory(a_memory("made", metadata={"sources": ["forgotten"]}), RetentionReason.SOURCES, MONDAY)
    current = merge_memory(a_memory("current"), made.id, MONDAY)
    assert leaving([made, current], RULES, NOW).revive == {current.id}
    assert leaving([current], RULES, NOW).revive == {current.id}


def test_what_was_merged_into_a_memory_that_was_pruned_goes_with_it_and_never_comes_back() -> None:
    made = a_memory("made", importance=0.1)
    under = merge_memory(a_memory("under"), made.id, MONDAY)
    pruned = retire_memory(made, RetentionReason.CAP, MONDAY)
    assert not leaving([pruned, under], RULES, later(days=10)).revive
    due = leaving([pruned, under], RULES, later(days=31))
    assert due.erase == {pruned.id, under.id}
    assert not due.revive


def test_a_conclusion_goes_when_what_it_was_drawn_from_was_corrected() -> None:
    source = a_memory("uses port 80", valid_from=MONDAY)
    drawn = a_memory("has trouble with ports", created_at=later(hours=1), metadata={"sources": [source.id]})
    assert not leaving([source, drawn], RULES, NOW).retire
    corrected = a_memory("uses port 80", valid_from=later(hours=2))
    assert leaving([corrected, drawn], RULES, NOW).retire == {drawn.id: RetentionReason.SOURCES}


@given(data=st.data())
def test_nobody_is_left_with_more_than_the_cap_nor_loses_what_is_protected(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 40))
    rows = [
        a_memory(
            f"fact {number}",
            importance=data.draw(st.floats(0, 1)),
            created_at=NOW - timedelta(hours=data.draw(st.integers(0, 48))),
            metadata={"pinned": True} if data.draw(st.booleans()) else {},
        )
        for number in range(count)
    ]
    gone = leaving(rows, RULES, NOW).retire
    held = {row.id for row in rows if row.provenance.pinned or NOW - row.created_at < RULES.protect}
    assert not held & gone.keys()
    left = [row for row in rows if row.id not in gone]
    assert len(left) <= 10 or all(row.id in held for row in left)
    assert all(row.owner == ANN for row in left)
