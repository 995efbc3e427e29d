"""The index of one owner: found by words, by what stands around, by who said it and when."""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_extproc.index.features import DENSE, FADES, FEATURES, STANDS_IN, Table, select_candidates
from memory_extproc.index.owner_index import OwnerIndex, Seen
from memory_extproc.model import Memory, MemoryState, Role, Source
from tests.support.builders import MONDAY, a_memory, a_message, later

TODAY = date(2026, 3, 10)


def an_index(*memories: Memory) -> OwnerIndex:
    index = OwnerIndex()
    for memory in memories:
        index.add(memory)
    return index


def a_talk(*words: str, session: str = "s") -> list[Memory]:
    """User and assistant in turns."""
    return [
        a_message(text, role=Role.USER if at % 2 == 0 else Role.ASSISTANT, session=session, seq=at)
        for at, text in enumerate(words)
    ]


def by_place(seen: Seen, name: str) -> dict[int, float]:
    return dict(zip(seen.places.tolist(), seen.by_name[name].tolist(), strict=True))


def best(index: OwnerIndex, question: str, name: str) -> int:
    found = by_place(index.rate(question, None, TODAY), name)
    return max(found, key=lambda place: found[place])


def test_words_are_found_in_any_of_their_forms_and_numbers_however_written() -> None:
    index = an_index(a_memory("User hiked up a mountain"), a_memory("User's budget is 10k"), a_memory("likes tea"))
    assert best(index, "Where did I go hiking?", "bm25") == 0
    assert best(index, "what costs $10,000?", "bm25") == 1


def test_a_short_answer_is_found_by_the_question_it_answers() -> None:
    talk = a_talk("I went to the market.", "Do you have any pets?", "Yes, Bella and Tom!", "How nice.")
    index = an_index(*talk, *a_talk("The weather is fine.", "It is.", "Indeed it is!", session="t"))
    assert best(index, "what pets do I have?", "bm25_question") == 2
    around = by_place(index.rate("what pets do I have?", None, TODAY), "covered_around")
    assert around[2] > 0 == around[4]


def test_what_is_said_leans_on_what_was_said_before_it_the_less_the_longer_ago() -> None:
    talk = a_talk("My trip to Lisbon begins on Sunday.", "How nice.", "It will be warm there.", "Enjoy it.")
    index = an_index(*talk, *a_talk("It will be warm here.", "Indeed.", session="t"))
    found = by_place(index.rate("the Lisbon trip", None, TODAY), "covered_before")
    assert [found[place] for place in range(6)] == [1, 1 - FADES, 1 - 2 * FADES, 1 - 3 * FADES, 0, 0]


def test_words_close_in_meaning_count_a_little() -> None:
    index = an_index(a_memory("User has two dogs"), a_memory("User has two cars"))
    near = by_place(index.rate("which pets?", None, TODAY), "near")
    assert 0 < near[0] < 1
    assert near[0] > near[1]


def test_whom_a_question_names_counts_for_what_they_said_and_against_the_other() -> None:
    said = [
        a_message("Caroline: I paint.", session="s", seq=0),
        a_message("Mel: So do I.", role=Role.ASSISTANT, session="s", seq=1),
        a_message("Caroline: With oil.", session="s", seq=2),
        a_message("Mel: I use chalk.", role=Role.ASSISTANT, session="s", seq=3),
    ]
    index = an_index(*said)
    assert list(by_place(index.rate("What does Caroline paint with?", None, TODAY), "subject").values()) == [
        1,
        -1,
        1,
        -1,
    ]
    assert "carolin" not in {
        key for term in index.read_question("What does Caroline paint?", TODAY).terms for key in term.keys
    }


def test_a_question_in_the_first_person_is_about_the_caller_and_facts_about_the_caller() -> None:
    index = an_index(
        a_message("I paint.", session="s"),
        a_message("Great.", role=Role.ASSISTANT, session="s", seq=1),
        a_memory("User paints"),
        a_memory("Note of the operator", source=Source.API),
    )
    assert by_place(index.rate("What do I paint?", None, TODAY), "subject") == {0: 1, 1: -1, 2: 1, 3: 0}
    assert set(by_place(index.rate("What did you tell me?", None, TODAY), "only_subject").values()) == {0}


def test_a_day_in_the_question_agrees_with_when_a_memory_was_said_or_with_what_it_tells_of() -> None:
    index = an_index(
        a_message("We met.", created_at=later(days=-300), valid_from=later(days=-300)),
        a_message("The wedding was on 3 March 2024."),
        a_message("Nothing."),
    )
    said = (MONDAY - timedelta(days=300)).date()
    assert by_place(index.rate(f"what was on {said.isoformat()}?", None, TODAY), "days_agree") == {0: 1, 1: 0, 2: 0}
    assert by_place(index.rate("what was on 3 March 2024?", None, TODAY), "days_agree") == {0: 0, 1: 1, 2: 0}


def test_who_names_a_day_gets_what_was_said_on_it_and_who_names_a_year_nothing_of_the_kind() -> None:
    said = MONDAY.date()
    index = an_index(
        a_message("We met."), a_message("We met again.", created_at=later(days=30), valid_from=later(days=30))
    )
    assert by_place(index.rate(f"what was on {said.isoformat()}?", None, TODAY), "days_same") == {0: 1, 1: 0}
    assert set(by_place(index.rate(f"what was in {said.year}?", None, TODAY), "days_same").values()) == {0}


def test_a_fact_has_the_surroundings_of_the_message_it_was_taken_from() -> None:
    talk = a_talk("Tell me about your trip to Lisbon.", "I will.", "My budget is tight.", session="s")
    fact = a_memory("User's budget is tight", session="s", seq=2)
    index = an_index(*talk, fact)
    around = by_place(index.rate("the Lisbon trip", None, TODAY), "covered_around")
    assert around[3] == around[2] > 0


def test_what_stands_alone_has_no_surroundings_and_says_so() -> None:
    seen = an_index(a_memory("User likes tea")).rate("tea", np.array([0.5]), TODAY)
    assert all(np.isnan(seen.by_name[name]).all() for name in STANDS_IN if name in FEATURES)
    assert seen.by_name["bm25"][0] > 0


def test_what_was_replaced_or_held_back_is_nobodys_context() -> None:
    talk = a_talk("secret word marmalade", "I see.")
    index = an_index(a_message("x", session="s", seq=0, state=MemoryState.QUARANTINED), *talk[1:])
    index.add(a_message("secret marmalade", session="s", seq=2, state=MemoryState.SUPERSEDED))
    assert set(by_place(index.rate("marmalade", None, TODAY), "covered").values()) == {0}


def test_without_vectors_every_feature_of_words_is_there_and_none_of_vectors() -> None:
    index = an_index(a_memory("User likes tea"))
    assert set(index.rate("tea", None, TODAY).by_name) == set(FEATURES) - set(DENSE)
    assert set(index.rate("tea", np.array([0.1]), TODAY).by_name) == set(FEATURES)


@pytest.mark.parametrize("question", ["", "?!", "the of and", "\U0001f600", "东京", "а" * 5000, "\x00\ud800"])
def test_any_question_is_answered_with_finite_numbers(question: str) -> None:
    index = an_index(*a_talk("I like tea.", "Noted."))
    seen = index.rate(question, np.array([0.2, 0.1]), TODAY)
    assert all(np.isfinite(values).all() for values in seen.by_name.values())


def test_an_empty_index_has_nothing_and_says_so() -> None:
    seen = OwnerIndex().rate("tea", np.zeros(0), TODAY)
    assert len(seen.places) == 0
    table = Table.of(seen.by_name, seen.places)
    assert select_candidates(table, seen.places.__getitem__, 5, lambda _: (0.0, "")).searched == 0


WORDS = "tea coffee dog cat budget trip Lisbon 10k work paint".split()  # noqa: SIM905 - plainer so
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["put", "drop"]),
        st.integers(0, 11),
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=4),
        st.sampled_from(["", "s", "t"]),
        st.booleans(),
    ),
    max_size=30,
)


def a_row(number: int, words: list[str], session: str, fact: bool) -> Memory:
    changes: dict[str, Any] = {"id": f"{number:02}", "session": session, "seq": number}
    text = " ".join(words) + ("?" if number % 3 == 0 else ".")
    return (
        a_memory(text, **changes)
        if fact
        else a_message(text, role=Role.USER if number % 2 else Role.ASSISTANT, **changes)
    )


@settings(max_examples=60)
@given(CHANGES, st.randoms(use_true_random=False))
def test_after_any_changes_it_answers_as_one_filled_afresh_in_another_order(
    changes: list[tuple[str, int, list[str], str, bool]], chance: random.Random
) -> None:
    grown, places, rows = OwnerIndex(), dict[str, int](), dict[str, Memory]()
    for what, number, words, session, fact in changes:
        row = a_row(number, words, session, fact)
        if row.id in places:
            grown.drop(places.pop(row.id))
            del rows[row.id]
        if what == "put":
            places[row.id], rows[row.id] = grown.add(row), row
        grown.rate("tea for the dog", None, TODAY)
    shuffled = list(rows.values())
    chance.shuffle(shuffled)
    fresh = an_index(*shuffled)
    assert by_id(grown, {place: id_ for id_, place in places.items()}) == by_id(
        fresh, {place: row.id for place, row in enumerate(shuffled)}
    )
    assert len(grown) == len(fresh)
    kept = list(places.values())
    grown.keep(kept)
    assert by_id(grown, dict(enumerate(places))) == by_id(fresh, {at: row.id for at, row in enumerate(shuffled)})


def by_id(index: OwnerIndex, ids: dict[int, str]) -> dict[str, dict[str, float]]:
    seen = index.rate("my trip to Lisbon with the dog", np.full(len(ids) + 40, 0.25), TODAY)
    return {
        ids[place]: {
            name: round(float(np.nan_to_num(values[at], nan=-9.0)), 6) for name, values in seen.by_name.items()
        }
        for at, place in enumerate(seen.places.tolist())
    }


def test_the_likeliest_are_the_same_whatever_their_places_and_only_those_allowed() -> None:
    rows = [a_memory(f"User likes tea number {number}") for number in range(40)]
    found = []
    for order in (rows, rows[::-1]):
        seen = an_index(*order).rate("tea", None, TODAY)
        allowed = np.array(["number 7" not in row.content for row in order])
        within = np.flatnonzero(allowed[seen.places])
        table, places = Table.of(seen.by_name, within), seen.places[within]
        likely = select_candidates(table, places.__getitem__, 5, lambda at, order=order: (0.0, order[at].id))  # type: ignore[misc]
        found.append({order[at].id for at in likely.places.tolist()})
        assert likely.searched == 39
    assert found[0] == found[1]
    assert a_memory("User likes tea number 7").id not in found[0]


def test_its_size_grows_with_what_it_holds_and_falls_again() -> None:
    index = OwnerIndex()
    place = index.add(a_memory("User likes tea and a great many other things besides"))
    full = index.size
    index.drop(place)
    index.drop(place)
    assert 0 <= index.size < full
    assert len(index) == 0


def pieces(*words: str, session: str = "s", seq: int = 0, role: Role = Role.ASSISTANT) -> list[Memory]:
    """One long message, in as many memories."""
    return [
        a_message(text, role=role, session=session, seq=seq, metadata={"piece": number})
        for number, text in enumerate(words)
    ]


def test_a_long_message_is_one_message_found_by_its_best_piece() -> None:
    long = pieces("Here is the plan for your garden.", "Dig a pond near the oak.", "Plant ferns around it.")
    index = an_index(*long, *a_talk("My budget is small.", session="t"))
    seen = index.rate("a pond near the oak?", None, TODAY)
    assert sorted(seen.places.tolist()) == [1, 3]
    assert by_place(seen, "bm25")[1] > 0.0
    vectors = np.array([0.1, 0.2, 0.9, 0.0])
    assert sorted(index.rate("what grows there?", vectors, TODAY).places.tolist()) == [2, 3]


def test_pieces_of_a_long_answer_do_not_stand_between_the_messages_around_it() -> None:
    talk = a_talk("I keep bees.", "", "They swarm in May.")
    long = pieces(*(f"Advice number {number}." for number in range(20)), seq=1)
    seen = an_index(talk[0], *long, talk[2]).rate("do bees swarm?", None, TODAY)
    around = by_place(seen, "covered_around")
    assert around[0] == around[21] == pytest.approx(1.0)


def test_what_an_assistant_said_is_told_from_what_a_person_with_a_name_said() -> None:
    talk = a_talk("I need a plan.", "Try swimming.")
    named = a_message("Boris: Try swimming.", role=Role.ASSISTANT, session="n", seq=1)
    seen = an_index(*talk, named).rate("What did you suggest?", None, TODAY)
    assert by_place(seen, "assistant") == {0: 0.0, 1: 1.0, 2: 0.0}
    assert by_place(seen, "assistant_asked")[1] == 1.0
    assert not any(an_index(*talk).rate("What do I need?", None, TODAY).by_name["assistant_asked"])
