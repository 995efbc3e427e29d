"""A correction made a moment later stands beside the first statement, and ahead of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from memory_extproc.model import Candidate, Memory, Ranked, Role, Source
from memory_extproc.recall.dedup import (
    with_answers,
    with_changes,
    with_continuations,
    with_corrections,
    with_successors,
    without_former,
    without_former_words,
    without_quoted,
)
from memory_extproc.recall.prompt_block import render
from tests.support.builders import BOB, a_memory, a_message, later

BUDGET = a_message("My budget for Hawaii is $10,000.", session="s", seq=0)
MEANT = a_message("no, I meant 12,000", session="s", seq=2, created_at=later(seconds=60))
HIKING = a_message("I also like hiking.", session="s", seq=4, created_at=later(seconds=120))


def ordered(*memories: Memory, relevant: Sequence[Memory] = (BUDGET,)) -> list[tuple[Memory, bool]]:
    """The order, and what is relevant enough in it, where *relevant* were before."""
    candidates = [Candidate(one, -float(at), 0.9 if one in relevant else 0.1) for at, one in enumerate(memories)]
    return [(one.memory, one.relevance >= 0.6) for one in with_corrections(candidates, 0.6)]


def test_a_correction_is_given_ahead_of_what_it_corrects_though_the_question_does_not_find_it() -> None:
    assert ordered(BUDGET, HIKING, MEANT) == [(MEANT, True), (BUDGET, True), (HIKING, False)]


def test_of_two_corrections_the_last_word_stands_first() -> None:
    again = a_message("sorry, 13,000", session="s", seq=4, created_at=later(seconds=120))
    assert ordered(BUDGET, MEANT, again) == [(again, True), (MEANT, True), (BUDGET, True)]


def test_a_correction_that_names_nothing_is_one_of_what_was_said_just_before() -> None:
    home = a_message("We moved to 12 Elm Street last month.", session="s", seq=0)
    dentist = a_message("dentist on Wednesday at 3", session="s", seq=4, created_at=later(seconds=60))
    thursday = a_message("scratch that, Thursday at 3", session="s", seq=6, created_at=later(seconds=120))
    assert ordered(home, dentist, thursday, relevant=(home,)) == [(home, True), (dentist, False), (thursday, False)]
    assert ordered(dentist, home, thursday, relevant=(dentist,))[:2] == [(thursday, True), (dentist, True)]


def test_what_was_chosen_is_given_with_what_was_to_be_chosen() -> None:
    paint = a_message("Thinking sage green or maybe a warm white for the living room?", session="s", seq=0)
    went = a_message("went with sage green in the end", session="t", seq=0, created_at=later(days=7))
    assert ordered(paint, HIKING, went, relevant=(paint,)) == [(went, True), (paint, True), (HIKING, False)]
    of_bob = a_message("went with sage green in the end", BOB, session="t", created_at=later(days=7))
    before = a_message("went with sage green in the end", session="r", created_at=later(days=-7))
    for other in (of_bob, before):
        assert ordered(paint, other, relevant=(paint,)) == [(paint, True), (other, False)]
    both = [Ranked(one, 0.9) for one in (went, paint)]
    assert "corrected" not in render(both, 1000).text, "to choose is not to correct"


RETAKE = a_message("When is the retake?", role=Role.ASSISTANT, session="s", seq=1, created_at=later(seconds=30))
JUNE = a_message("on June 9", session="s", seq=2, created_at=later(seconds=60))


def answered(*memories: Memory, relevant: Sequence[Memory]) -> list[tuple[Memory, bool]]:
    candidates = [Candidate(one, -float(at), 0.9 if one in relevant else 0.1) for at, one in enumerate(memories)]
    return [(one.memory, one.relevance >= 0.6) for one in with_answers(candidates, 0.6)]


def test_the_answer_to_a_relevant_question_of_the_assistant_stands_ahead_of_it() -> None:
    assert answered(RETAKE, HIKING, JUNE, relevant=[RETAKE]) == [(JUNE, True), (RETAKE, True), (HIKING, False)]
    assert answered(JUNE, RETAKE, relevant=[RETAKE, JUNE]) == [(JUNE, True), (RETAKE, True)]


def test_only_the_next_words_of_the_caller_answer_and_only_a_relevant_question() -> None:
    back = a_message("why do you ask?", session="s", seq=2, created_at=later(seconds=60))
    elsewhere = a_message("on June 9", session="other", seq=2, created_at=later(seconds=60))
    for other in (HIKING, back, elsewhere):
        assert answered(RETAKE, other, relevant=[RETAKE]) == [(RETAKE, True), (other, False)]
    assert answered(RETAKE, JUNE, relevant=[]) == [(RETAKE, False), (JUNE, False)]


def test_where_nothing_is_relevant_no_correction_is() -> None:
    assert ordered(BUDGET, MEANT, relevant=()) == [(BUDGET, False), (MEANT, False)]


def test_only_the_same_persons_own_later_words_correct_them() -> None:
    others = (
        a_message("no, I meant 12,000", role=Role.ASSISTANT, session="s", seq=1, created_at=later(seconds=30)),
        a_message("no, I meant 12,000", BOB, session="s", seq=2, created_at=later(seconds=60)),
        a_message("no, I meant 12,000", session="other", seq=2, created_at=later(days=1)),
        a_message("no, I meant 12,000", session="s", seq=40, created_at=later(seconds=900)),
        a_memory("no, I meant 12,000", created_at=later(seconds=60)),
    )
    for other in others:
        assert ordered(BUDGET, other) == [(BUDGET, True), (other, False)]
    assert ordered(MEANT, BUDGET, relevant=(MEANT,)) == [(MEANT, True), (BUDGET, False)]


def test_a_fact_is_corrected_like_the_message_it_was_taken_from() -> None:
    fact = a_memory("User's budget is $10,000", source=Source.RULES, session="s", seq=0)
    assert ordered(fact, MEANT, relevant=(fact,)) == [(MEANT, True), (fact, True)]


def test_the_block_says_which_of_two_is_the_correction() -> None:
    text = render([Ranked(MEANT, 0.9), Ranked(BUDGET, 0.9), Ranked(HIKING, 0.7)], 512).text
    assert text.split("\n")[-4:-1] == [
        '- [2026-03-02] the user said: "My budget for Hawaii is $10,000."',
        '- [2026-03-02] the user corrected this, saying: "no, I meant 12,000"',
        '- [2026-03-02] the user said: "I also like hiking."',
    ]


# --- former values -----------------------------------------------------------------------------------


def current(*memories: Memory, relevant: Sequence[Memory], question: str = "") -> list[Memory]:
    """The memories that stay, best first."""
    candidates = [Candidate(one, -float(at), 0.9 if one in relevant else 0.1) for at, one in enumerate(memories)]
    kept, former, outdated = without_former(candidates, 0.6, question)
    assert outdated.keys() <= {one.memory.id for one in kept}
    assert {one.memory.id for one in kept} | {one.memory.id for one in former} == {one.id for one in memories}
    return [one.memory for one in kept if one.relevance >= 0.6]


OLD_BUDGET = a_message("our budget for Hawaii is $4,000, could you split that?", session="a", seq=0)
NEW_BUDGET = a_message("the budget for Hawaii goes up to $5,500", session="b", seq=0, created_at=later(days=40))
DUE = a_message("Falcon has to be done by June 17", session="a", seq=2)
PUSHED = a_message("they pushed Falcon back, due October 15 now", session="b", seq=2, created_at=later(days=50))


def test_the_last_value_of_a_sum_stands_for_the_former_ones() -> None:
    assert current(OLD_BUDGET, NEW_BUDGET, relevant=(OLD_BUDGET, NEW_BUDGET)) == [NEW_BUDGET]


def test_a_day_that_was_moved_is_given_instead_of_the_day_before_though_the_question_does_not_find_it() -> None:
    assert current(DUE, HIKING, PUSHED, relevant=(DUE,)) == [PUSHED]


def test_a_former_value_whose_statement_alone_has_a_word_of_the_question_stays_behind_the_last() -> None:
    due = a_message("Falcon has to be done by June 17, says the auditor, Kubiak", session="a", seq=2)
    asked = "What is the name of the auditor?"
    assert current(due, PUSHED, relevant=(due,), question=asked) == [PUSHED, due]
    assert current(due, PUSHED, relevant=(due,), question="When is Falcon due?") == [PUSHED]
    candidates = [Candidate(one, 0.0, 0.9) for one in (due, PUSHED)]
    assert without_former(candidates, 0.6, asked)[2] == {due.id: PUSHED.created_at}


def test_a_day_beside_somebodys_name_moves_nothing_else_of_theirs() -> None:
    married = a_message("Pieter got married to Marijke in May", session="a", seq=4)
    moved = a_message("The party is moved to June 27, Pieter has a congress", session="b", created_at=later(days=9))
    assert current(married, moved, relevant=(married,)) == [married]


def test_former_values_stay_out_of_the_messages_of_topics_and_of_summaries() -> None:
    summed = a_memory(
        "Falcon has to be done by June 17. The venue is the old mill.",
        source=Source.SUMMARY,
        created_at=later(days=1),
    )
    kept = without_former_words([PUSHED, HIKING, DUE, summed])
    assert [one.content for one in kept] == [PUSHED.content, HIKING.content, "The venue is the old mill."]
    alone = replace(summed, content="Falcon has to be done by June 17.")
    assert without_former_words([PUSHED, alone]) == [PUSHED]


def test_words_without_a_newer_value_stay_as_they_are() -> None:
    summed = a_memory("Falcon has to be done by June 17.", source=Source.SUMMARY, created_at=later(days=1))
    assert without_former_words([DUE, HIKING, summed]) == [DUE, HIKING, summed]


def test_a_value_of_another_thing_replaces_nothing() -> None:
    others = (
        a_message("the budget for Iceland is $900", session="c", seq=0, created_at=later(days=60)),
        a_message("they pushed Heron back, due October 15 now", session="c", seq=2, created_at=later(days=60)),
        a_message("Hawaii in June will be hot", session="c", seq=4, created_at=later(days=60)),
    )
    for other in others:
        assert current(OLD_BUDGET, DUE, other, relevant=(OLD_BUDGET, DUE)) == [OLD_BUDGET, DUE]


def test_another_person_s_words_and_earlier_ones_replace_nothing() -> None:
    theirs = a_message("the budget for Hawaii is $1", BOB, session="c", seq=0, created_at=later(days=60))
    assistant = a_message(
        "the budget for Hawaii is $1", role=Role.ASSISTANT, session="c", seq=1, created_at=later(days=60)
    )
    for other in (theirs, assistant):
        assert current(OLD_BUDGET, other, relevant=(OLD_BUDGET,)) == [OLD_BUDGET]
    assert current(NEW_BUDGET, OLD_BUDGET, relevant=(NEW_BUDGET,)) == [NEW_BUDGET]


def test_the_fact_that_holds_now_stands_ahead_of_the_message_of_the_old_one_if_asked_for() -> None:
    told = a_message("Sam is my flatmate and our food budget is 90.", session="s", seq=0)
    told = replace(told, provenance=told.provenance.replace(turn="t1"))
    now = a_memory("User's budget is 75", source=Source.RULES)
    now = replace(now, provenance=now.provenance.replace(turn="t2", corrects=("t1",)))
    candidates = [Candidate(told, 2.0, 0.9), Candidate(HIKING, 1.0, 0.1), Candidate(now, 0.0, 0.1)]

    asked = with_successors(candidates, 0.6, "What is our food budget?")
    assert [(one.memory, one.relevance >= 0.6) for one in asked] == [(now, True), (told, True), (HIKING, False)]
    assert with_successors(candidates, 0.6, "Who is my flatmate?") == candidates


def test_the_summary_of_a_topic_is_left_out_behind_that_of_its_session_which_has_it_whole() -> None:
    def summary(content: str, **known: Any) -> Memory:
        one = a_memory(content, source=Source.SUMMARY, session="s")
        return replace(one, provenance=one.provenance.replace(**known))

    session = summary("Kyoto: I fly on May 3. I booked a ryokan.", kind="session", levels=1)
    topic = summary("Kyoto: I fly on May 3.", kind="topic", name="Kyoto")
    other = summary("Work: I start on Monday.", kind="topic", name="Work")
    assert without_quoted([session, topic, other]) == [session, other]
    assert without_quoted([topic, session]) == [topic, session]  # the topic is more to the point


OFFER = a_message("We put in an offer on the house, 465,000.", session="s", seq=0)
RAISED = a_message("They rejected it, so we went up to 479,000.", session="s", seq=2, created_at=later(seconds=60))
BOUGHT = a_message("We got it! We move in on 1 March.", session="s", seq=4, created_at=later(seconds=120))


def continued(*memories: Memory) -> list[tuple[Memory, bool]]:
    """The order, and what is relevant enough, where the first memory was before."""
    candidates = [Candidate(one, -float(at), 0.1 if at else 0.9) for at, one in enumerate(memories)]
    return [(one.memory, one.relevance >= 0.6) for one in with_continuations(candidates, 0.6)]


def test_what_the_caller_went_on_to_say_of_a_thing_is_given_with_it() -> None:
    assert continued(OFFER, HIKING, BOUGHT, RAISED) == [
        (BOUGHT, True), (RAISED, True), (OFFER, True), (HIKING, False),
    ]  # fmt: skip
    seen = a_message("I found a studio in Luthagen.", session="s", seq=0)
    took = a_message("I took the studio, from June 1.", session="s", seq=2, created_at=later(seconds=60))
    assert continued(seen, took) == [(took, True), (seen, True)]


def test_another_thing_a_question_or_another_conversation_is_no_continuation() -> None:
    swims = a_message("Milo starts swimming lessons next week.", session="s", seq=2, created_at=later(seconds=60))
    asking = a_message("Is it too much?", session="s", seq=2, created_at=later(seconds=60))
    elsewhere = replace(RAISED, session="t")
    of_bob = replace(RAISED, owner=BOB)
    for other in (swims, asking, elsewhere, of_bob):
        assert continued(OFFER, other) == [(OFFER, True), (other, False)]
    assert continued(OFFER, BOUGHT) == [(OFFER, True), (BOUGHT, False)], "a message between them is missing"


HALL = a_message("We hold the golden wedding in the hall at Godøy.", session="a", seq=0)
GISKE = a_message(
    "The hall at Godøy is taken, so we have it in Giske instead.", session="b", seq=0, created_at=later(days=9)
)


def changed(*memories: Memory) -> list[tuple[Memory, bool]]:
    """The order, and what is relevant enough, where the first memory was before."""
    candidates = [Candidate(one, -float(at), 0.1 if at else 0.9) for at, one in enumerate(memories)]
    return [(one.memory, one.relevance >= 0.6) for one in with_changes(candidates, 0.6)]


def test_a_change_of_what_a_statement_names_is_given_with_it_though_the_question_does_not_find_it() -> None:
    assert changed(HALL, HIKING, GISKE) == [(GISKE, True), (HALL, True), (HIKING, False)]


def test_a_change_of_something_else_by_another_or_before_is_not() -> None:
    again = a_message("I go hiking on Sundays now", session="b", created_at=later(days=9))
    asks = a_message("Is the hall at Godøy taken now?", session="b", created_at=later(days=9))
    for other in (again, asks, replace(GISKE, owner=BOB), replace(GISKE, created_at=later(days=-9))):
        assert changed(HALL, other) == [(HALL, True), (other, False)]
    often = [a_message(f"Godøy again, day {at}", session=f"c{at}") for at in range(5)]
    bus = a_message("The bus to Godøy has moved.", session="b", created_at=later(days=9))
    assert changed(HALL, *often, bus)[0] == (HALL, True), "many statements name Godøy"
