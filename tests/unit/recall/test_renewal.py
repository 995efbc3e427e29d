"""Which statements are marked as perhaps outdated by a later one."""

from __future__ import annotations

import numpy as np

from memory_extproc.model import Memory, Ranked, Role
from memory_extproc.recall.prompt_block import render
from memory_extproc.recall.rank import LIKELY, find_renewed
from tests.support.builders import BOB, a_message, later

OLD = a_message("got an iPhone 8, it dies at noon", session="a", seq=0)
NEW = a_message("Treated myself to a Galaxy S23.", session="b", seq=0, created_at=later(days=20))
NEXT = a_message("A Pixel 9 it is, after all.", session="c", seq=0, created_at=later(days=40))


def renewed(*memories: Memory, likely: float = LIKELY) -> dict[str, str]:
    found = find_renewed(memories, np.full((len(memories),) * 2, likely, np.float32))
    return {one.content: f"{found[one.id]:%Y-%m-%d}" for one in memories if one.id in found}


def test_an_earlier_statement_is_marked_from_the_first_newer_value_on() -> None:
    assert renewed(NEXT, OLD, NEW) == {
        OLD.content: f"{NEW.created_at:%Y-%m-%d}",
        NEW.content: f"{NEXT.created_at:%Y-%m-%d}",
    }


def test_less_likely_pairs_are_left_alone() -> None:
    assert renewed(OLD, NEW, likely=LIKELY - 0.01) == {}


def test_a_word_of_change_about_what_both_name_needs_less() -> None:
    lunch = a_message("a little lunch for Ximena's communion, 25 people", session="a", seq=0)
    now = a_message("we are 32 for the communion now", session="b", seq=0, created_at=later(days=20))
    plain = a_message("the communion cake is for 32", session="b", seq=0, created_at=later(days=20))
    other = a_message("we are 32 in the orchestra now", session="b", seq=0, created_at=later(days=20))
    assert renewed(lunch, now, likely=0.5) == {lunch.content: f"{now.created_at:%Y-%m-%d}"}
    assert renewed(lunch, now, likely=0.49) == renewed(lunch, plain, likely=0.5) == {}
    assert renewed(lunch, other, likely=0.5) == {}


def test_questions_answers_of_the_assistant_other_owners_and_the_same_message_renew_nothing() -> None:
    asking = a_message("Which phone has the best camera?", session="b", seq=0, created_at=later(days=20))
    answer = a_message("A Galaxy is fine.", session="b", seq=1, role=Role.ASSISTANT, created_at=later(days=20))
    of_bob = a_message(NEW.content, BOB, session="b", seq=0, created_at=later(days=20))
    fact_beside = a_message("dies at noon", session="a", seq=0, created_at=later(seconds=1))
    for other in (asking, answer, of_bob, fact_beside):
        assert renewed(OLD, other) == {}


def test_a_change_is_not_renewed_by_a_statement_without_a_word_of_change() -> None:
    pushed = a_message("they pushed Quartz back, due October 20 now", session="a", seq=0)
    agreed = a_message("we agreed on a test week for Quartz", session="b", seq=0, created_at=later(days=9))
    again = a_message("Quartz was moved to November 3", session="b", seq=2, created_at=later(days=10))
    assert renewed(pushed, agreed) == {}
    assert renewed(pushed, again) == {pushed.content: f"{again.created_at:%Y-%m-%d}"}


def test_the_block_says_since_when_a_line_is_perhaps_no_longer_so() -> None:
    block = render([Ranked(OLD, 0.9, NEW.created_at), Ranked(NEW, 0.9)], 500).text
    assert f'perhaps no longer so since {NEW.created_at:%Y-%m-%d}] the user said: "got an iPhone 8' in block
    assert f'- [{NEW.created_at:%Y-%m-%d}] the user said: "Treated' in block
