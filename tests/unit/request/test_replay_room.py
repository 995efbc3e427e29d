"""The blocks of a conversation have bounds: the owner's, and the model's window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from memory_extproc.dialect.base import Form
from memory_extproc.model import Outcome
from memory_extproc.recall.prompt_block import CLOSING
from memory_extproc.request.replay import InjectedBlock, InView, RecallDecision, ReplayedTurn, fitting, tokens_of
from tests.unit.extproc.talking import ANN, BUDGET, Remembers, Talk, a_desk


async def test_a_conversations_blocks_are_bounded_and_the_oldest_go_seldom() -> None:
    known = {f"word{number:02}": f"Memory number {number:02} of the caller" for number in range(24)}
    talk = Talk(a_desk(recalls=Remembers(**known), replay_tokens=600))
    for word in known:
        body = await talk.ask(f"tell me {word}?")
        assert tokens_of_blocks(body) <= 600 + 100
    kept = [
        after.startswith(before.removesuffix(b"]}"))
        for before, after in zip(talk.sent, talk.sent[1:], strict=False)
    ]
    assert kept.count(False) <= 6
    assert "Memory number 23" in body
    assert "Memory number 00" not in body


def tokens_of_blocks(body: str) -> int:
    return len(body.encode()) and sum(len(part.partition(CLOSING)[0]) for part in body.split("<memory>")[1:]) // 4


async def test_what_went_for_want_of_room_may_be_given_again() -> None:
    talk = Talk(a_desk(replay_tokens=100))
    await talk.ask("my budget?")
    await talk.ask("which hotel?")
    await talk.ask("my seat?")
    body = await talk.ask("my budget, once more?")
    assert body.count(BUDGET) == 1
    assert body.index(BUDGET) > body.index("once more")


async def test_blocks_that_would_not_fit_the_window_stay_out() -> None:
    talk = Talk(a_desk(window=1000, margin=0))
    await talk.ask("my budget?")
    await talk.ask("which hotel?")
    body = await talk.ask("my seat? " * 400)
    assert talk.last.outcome is Outcome.NO_ROOM
    assert CLOSING not in body


async def test_the_room_for_a_new_block_is_what_the_old_ones_leave() -> None:
    talk = Talk(a_desk(window=1000, margin=0))
    await talk.ask("my budget?")
    await talk.ask("which hotel?")
    first, second = (wish.room for wish in talk.desk.recalls.wishes)
    assert first is not None
    assert second is not None
    assert first - second > 80  # the block and what was said


def blocks_of(*sizes: int) -> tuple[InjectedBlock, ...]:
    return tuple(InjectedBlock(at, Form.USER_SUFFIX, "word" * size, (), ()) for at, size in enumerate(sizes))


@pytest.mark.parametrize(
    ("sizes", "most", "left"),
    [
        ((), 0, ()),
        ((3, 3), 6, (0, 1)),
        ((3, 3), 5, ()),
        ((3, 2, 1), 5, (2,)),
        ((9, 1), 5, (1,)),
        ((1, 1, 9), 5, ()),
    ],
)
def test_the_newest_stay_and_half_of_the_room_is_free_again(sizes: Sequence[int], most: int, left: Any) -> None:
    kept = fitting(blocks_of(*sizes), most)
    assert tuple(one.at for one in kept) == left
    assert tokens_of(kept) <= most


def test_records_print_no_memories() -> None:
    given = blocks_of(2)[0]
    assert "word" not in repr(given)
    assert "secret" not in repr(InView(ANN, 0, ("secret",)))
    decision = RecallDecision(Outcome.USED, block="secret", contents=("secret",))
    assert "secret" not in repr(ReplayedTurn(0, 0.0, 0, decision, Form.USER_SUFFIX, ()))
