"""The harness itself: a plan is the same for everybody and is read from its log, and each violation is counted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.chaos.counts import Counts, Model, RunLog
from tests.chaos.schedule import ALONE, KINDS, draw_plan, read_plan
from tests.properties.front import Person
from tests.properties.known import Copy, Fate

ANN, BOB = Person("acme", "ann"), Person("globex", "ann")


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    log = RunLog(tmp_path / "log.jsonl")
    yield Model(Counts(log))
    log.close()


def keep(model: Model, person: Person) -> str:
    word = model.known.word()
    model.note(person, word, Copy(Fate.KEPT, datetime.now(UTC), "", {"s"}, {"-"}, 1))
    return word


def said(*words: str) -> list[dict[str, str]]:
    return [{"content": f"My dog is called {word}.", "source": "verbatim", "role": "user"} for word in words]


def test_a_plan_is_drawn_from_its_seed_alone_and_read_from_its_log(tmp_path: Path) -> None:
    plan = draw_plan(7, 600, 3)
    assert plan == draw_plan(7, 600, 3) != draw_plan(8, 600, 3)
    log = RunLog(tmp_path / "log.jsonl")
    log.plan(plan.to_json())
    log.note("said", word="Rex")
    log.close()
    assert read_plan(log.path) == plan


def test_a_long_plan_has_every_kind_of_fault_and_lets_none_beside_those_that_stand_alone() -> None:
    plan = draw_plan(1, 600, 3)
    assert {fault.kind for fault in plan.faults} == KINDS.keys()
    for alone in (fault for fault in plan.faults if fault.kind in ALONE):
        for other in plan.faults:
            assert other is alone or other.at > alone.at + alone.seconds or other.at + other.seconds < alone.at


def test_what_is_seen_as_it_should_be_counts_as_nothing(model: Model) -> None:
    word = keep(model, ANN)
    model.check(f"My dog is called {word}.", ANN, "recall", recalled=True)
    model.check_whole(said(word), ANN, "the end")
    assert not any(model.counts.table.values())


def test_a_word_that_is_missing_is_lost_once_however_often_it_is_looked_for(model: Model) -> None:
    keep(model, ANN)
    for replica in range(3):
        model.check_whole([], ANN, f"replica {replica}")
    assert model.counts.table["lost"] == 1


def test_a_message_that_is_there_twice_is_doubled(model: Model) -> None:
    word = keep(model, ANN)
    model.check_whole(said(word, word), ANN, "the end")
    assert model.counts.table["doubled"] == 1


def test_another_persons_word_is_foreign(model: Model) -> None:
    model.check(keep(model, ANN), BOB, "recall", recalled=True)
    assert model.counts.table["foreign"] == 1


@pytest.mark.parametrize("recalled", [True, False])
def test_a_forgotten_word_has_returned(model: Model, *, recalled: bool) -> None:
    word = keep(model, ANN)
    model.known.forget(ANN)
    model.check(word, ANN, "recall", recalled=recalled)
    assert model.counts.table["returned"] == 1


def test_a_word_said_incognito_is_unwanted(model: Model) -> None:
    word = model.known.word()
    model.unwanted[word] = ANN
    model.check(word, ANN, "list")
    assert model.counts.table["unwanted"] == 1


def test_a_wiped_journal_may_lose_what_no_store_had_and_nothing_else(model: Model) -> None:
    waiting, stored = keep(model, ANN), keep(model, ANN)
    model.check(f"{waiting} {stored}", ANN, "list of a journal and a store")
    model.check(stored, ANN, "list", stored=True)
    model.weaken_unstored(ANN)
    model.check_whole([], ANN, "the end")
    assert model.counts.table["lost"] == 1
    assert model.known.of(ANN)[waiting].fate is Fate.MAYBE
