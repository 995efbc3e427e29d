"""The cost of a memory's age."""

from __future__ import annotations

from datetime import timedelta

import pytest

from memory_extproc.recall.fusion import FRESH, USUAL, asks_for_new, lost_to_age, most_lost
from memory_extproc.settings.paths import HALF_LIFE
from tests.support.builders import MONDAY, a_memory, a_message, later

OLD = later(days=-60)


def lost(text: str, *ages_in_days: float) -> list[float]:
    said = [a_message("x", created_at=MONDAY - timedelta(days=age)) for age in ages_in_days]
    return list(lost_to_age(most_lost(text, MONDAY.date()), said, MONDAY, HALF_LIFE))


def test_a_message_loses_half_of_the_most_it_can_after_one_half_life_and_never_more_than_that() -> None:
    assert lost("my dog?", 0, 60, 100_000) == pytest.approx([0, USUAL / 2, USUAL])


def test_who_asks_for_what_is_new_gets_what_is_new() -> None:
    assert lost("what is my latest offer?", 60) == pytest.approx([FRESH / 2])


def test_where_the_question_names_a_day_age_costs_nothing() -> None:
    assert lost("what did I say in May 2020?", 60) == [0]


def test_a_fact_does_not_age_and_what_is_from_tomorrow_is_as_new_as_can_be() -> None:
    memories = [a_memory("User likes tea", created_at=OLD), a_message("x", created_at=later(days=1))]
    assert list(lost_to_age(most_lost("tea now?", MONDAY.date()), memories, MONDAY, HALF_LIFE)) == [0, 0]


def test_a_message_is_as_old_as_what_was_said_not_as_its_row() -> None:
    moved = a_message("x", created_at=MONDAY, valid_from=OLD)
    assert lost_to_age(USUAL, [moved], MONDAY, HALF_LIFE)[0] > 0


@pytest.mark.parametrize(
    "text", ["Where do I work now?", "the most RECENT one", "Wo wohne ich jetzt?", "où aujourd\u2019hui"]
)
def test_words_that_ask_for_what_is_new_are_known(text: str) -> None:
    assert asks_for_new(text)


@pytest.mark.parametrize("text", ["", "Do you know my dog?", "snow", "What is my budget?"])
def test_other_words_do_not_ask_for_what_is_new(text: str) -> None:
    assert not asks_for_new(text)
