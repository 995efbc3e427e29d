"""Whether somebody takes back what they said before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.text.persons import ValueKind, chooses, corrects, kinds, may_choose, may_correct

BUDGET = "My budget for Hawaii is $10,000"


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("no, I meant 12,000", BUDGET),
        ("sorry, 12k", BUDGET),
        ("Actually it's 12,000", BUDGET),
        ("nein, ich meinte 12.000 Euro", "Mein Budget sind 10.000 Euro"),
        ("non, je voulais dire 900 euros", "Mon budget est de 700 euros"),
        ("perd\u00f3n, quise decir 900", "Mi presupuesto son 700 euros"),
        ("\u6211\u8bf4\u9519\u4e86\uff0c\u662f\u4e00\u4e07\u5757", "\u9884\u7b97\u662f\u516b\u5343\u5757"),
        ("actually we moved it to June", "We fly to Rome in May"),
        ("scratch that, it's Thursday", "the dentist is on Wednesday"),
        ("make that 14 kids", "12 kids are coming"),
        ("wait, it's Anna not Anne", "My wife's name is Anne"),
        ("I meant Lyon", "I live in Paris"),
    ],
)
def test_what_is_said_anew_a_moment_later_takes_back_what_was_said(new: str, old: str) -> None:
    assert corrects(new, old, at_once=True)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("Correction on the migration: we cut over on February 20", "The migration is on February 13"),
        ("final count for the party: 14 kids not 12", "planning the party: the 21st, 12 kids"),
        ("The Skye trip is now in July actually", "Our Skye trip is in the first week of June"),
        ("garage rang, it's 410 now", "the garage said the brakes need doing, quoted me \u00a3340"),
        ("the caterer wrote: it's now 52 a head with the wine", "our caterer wants 45 per person"),
        ("change of plan, orkney is now 5-14 june because of rain, and Naveen moves out then, some Pete comes",
         "could you help with a list for fieldwork in Orkney? we're going 1-10 June, six people, I fly a drone"),
    ],
)  # fmt: skip
def test_what_is_said_anew_another_day_has_to_name_what_it_is_about(new: str, old: str) -> None:
    assert corrects(new, old, at_once=False)


@pytest.mark.parametrize(
    ("new", "at_once"),
    [
        ("no, I meant 12,000", False),
        ("Actually, that's great", True),
        ("no worries, thanks", True),
        ("No idea, maybe 5", True),
        ("no thanks, write me 3 poems", True),
        ("Actually I also have 3 dogs", True),
        ("The hotel costs 300", True),
        ("my rent was raised to 900", True),
        ("", True),
        ("no, " + "I meant 12,000 and then some " * 20, True),
    ],
)
def test_nothing_else_takes_back_a_budget(new: str, at_once: bool) -> None:
    assert not corrects(new, BUDGET, at_once=at_once)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("went with sage green in the end, it looks lovely", "Thinking sage green or maybe a warm white?"),
        ("we booked Lisbon!", "I can't decide between Lisbon and Porto for the weekend"),
        ("decided on the Fairphone", "I'm considering a Pixel, or the Fairphone if it's any good"),
        ("Am Ende ist es doch der Golf geworden", "Soll ich den Golf oder den Polo nehmen?"),
        ("finalement j'ai pris le vert", "J'h\u00e9site entre le bleu et le vert pour la cuisine"),
        ("al final me qued\u00e9 con la bici roja", "Dudo entre la bici roja y la azul"),
    ],
)
def test_a_later_word_settles_a_choice_that_was_open(new: str, old: str) -> None:
    assert chooses(new, old)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("went with my sister to the cinema", "Thinking sage green or maybe a warm white?"),
        ("we booked Lisbon!", "Lisbon was lovely last year"),
        ("should I have picked the sage green?", "Thinking sage green or maybe a warm white?"),
        ("I like sage green", "Thinking sage green or maybe a warm white?"),
    ],
)
def test_other_words_settle_nothing(new: str, old: str) -> None:
    assert not chooses(new, old)


@given(st.text(max_size=500), st.text(max_size=500))
def test_nothing_settles_a_choice_that_has_not_the_words_of_it(new: str, old: str) -> None:
    assert may_choose(new) or not chooses(new, old)


def test_news_about_somebody_take_back_nothing_that_was_said_of_others() -> None:
    assert not corrects("my sister Kim just moved to Toronto", "we have a corgi called Waffles", at_once=True)


def test_a_word_in_common_alone_takes_back_nothing_said_just_before() -> None:
    deposit = "the council raised it: 450 as a deposit for the hall and by bank transfer only. adapt that receipt"
    exam = "Notice on Moodle, stats exam moved to 14:00, lecture hall 3. how do I plan that morning"
    assert not corrects(exam, deposit, at_once=True)
    assert corrects("Oh, they now say 480 for the deposit, instead of 450", deposit, at_once=True)


def test_days_sums_and_names_are_told_apart() -> None:
    assert kinds("We meet on Friday") == {ValueKind.DAY}
    assert kinds("it costs 300") == {ValueKind.NUMBER}
    assert kinds("my dentist is called Rosa") == {ValueKind.NAME}
    assert kinds("nothing of the kind") == frozenset()


@given(st.text(max_size=500), st.text(max_size=500), st.booleans())
def test_nothing_corrects_that_has_not_the_words_of_it(new: str, old: str, at_once: bool) -> None:
    assert may_correct(new) or not corrects(new, old, at_once=at_once)


def test_two_that_share_one_word_of_many_take_nothing_of_each_other_back() -> None:
    new = "Actually the pottery class painted three bowls with my friends from work, and my kids loved the colors"
    old = "We went camping in two tents with the kids and saw the Perseid meteor shower by the lake"
    assert not corrects(new, old, at_once=False)
