"""Which session and turn a completed exchange is, told in conversations as clients send them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_extproc.errors import TransientError
from memory_extproc.learn.sessions import Sessions
from memory_extproc.model import Caller, Exchanged, Message, Origin, Owner, Role, Turn
from memory_extproc.ports import Chain
from memory_extproc.testing.adapters import InMemoryCoordination
from tests.support.builders import ANN, MONDAY, OTHER_ANN

Said = Sequence[str]  # what user and assistant said in turn, the user first


def history_of(said: Said) -> tuple[Message, ...]:
    return tuple(Message(role, text) for role, text in zip(itertools.cycle([Role.USER, Role.ASSISTANT]), said))


@dataclass
class World:
    """Sessions over records of its own, and a clock that moves when told."""

    now: datetime = MONDAY
    records: InMemoryCoordination = field(init=False)
    sessions: Sessions = field(init=False)

    def __post_init__(self) -> None:
        names = (f"s{n}" for n in itertools.count(1))
        self.records = InMemoryCoordination(lambda: self.now)
        self.sessions = Sessions(self.records, new_session=lambda: next(names))

    def exchange(self, history: Said, asked: str, answered: str, owner: Owner = ANN, **changes: Any) -> Exchanged:
        caller = Caller(owner, session=changes.pop("session", ""), project=changes.pop("project", ""))
        made = Exchanged(caller=caller, history=history_of(history), asked=asked, answered=answered, at=self.now)
        return replace(made, **changes)

    async def learn(self, exchanged: Exchanged) -> Turn:
        placed = await self.sessions.place(exchanged)
        await self.sessions.note(placed)
        return placed.turn

    async def say(self, history: Said, asked: str, answered: str, **changes: Any) -> Turn:
        """One exchange, learned to its end; every exchange takes ten seconds."""
        self.now += timedelta(seconds=10)
        return await self.learn(self.exchange(history, asked, answered, **changes))


def place(turn: Turn) -> tuple[str, int]:
    return turn.session, turn.seq


@pytest.fixture
def world() -> World:
    return World()


async def test_a_client_that_resends_its_history_goes_on_in_one_session(world: World) -> None:
    said: list[str] = []
    places = []
    for n in range(5):
        turn = await world.say(said, f"question {n}", f"answer {n}")
        places.append(place(turn))
        said += [f"question {n}", f"answer {n}"]
    assert places == [("s1", 0), ("s1", 2), ("s1", 4), ("s1", 6), ("s1", 8)]


async def test_two_chats_that_begin_with_hi_are_two_sessions(world: World) -> None:
    await world.say([], "hi", "Hello!")
    first = await world.say(["hi", "Hello!"], "my budget is $10", "Noted.")
    again = await world.say([], "hi", "Hello!")
    second = await world.say(["hi", "Hello!"], "I have a dog", "Nice.")
    assert first.session != again.session
    assert place(second) == (again.session, 2)


async def test_two_chats_that_begin_with_hi_at_the_same_time_part_at_their_second_words(world: World) -> None:
    await asyncio.gather(*(world.say([], "hi", "Hello!") for _ in range(2)))
    first = await world.say(["hi", "Hello!"], "my budget is $10", "Noted.")
    second = await world.say(["hi", "Hello!"], "I have a dog", "Nice.")
    third = await world.say(["hi", "Hello!", "I have a dog", "Nice."], "He is called Rex", "Nice.")
    assert first.session != second.session
    assert third.session == second.session


async def test_an_opening_that_was_left_alone_is_a_new_session_after_a_while(world: World) -> None:
    first = await world.say([], "hi", "Hello!")
    world.now += timedelta(minutes=3)
    second = await world.say([], "hi", "Hello!")
    assert first.session != second.session
    # The next words go to the chat that was begun last; the older one is still open to others.
    assert (await world.say(["hi", "Hello!"], "a", "b")).session == second.session
    assert (await world.say(["hi", "Hello!"], "c", "d")).session == first.session


async def test_a_regenerated_opening_is_the_same_turn(world: World) -> None:
    first = await world.say([], "Tell me a joke", "One.")
    second = await world.say([], "Tell me a joke", "Another.")
    assert (second.id, place(second)) == (first.id, place(first))
    follow = await world.say(["Tell me a joke", "Another."], "Again", "A third.")
    assert place(follow) == (first.session, 2)


async def test_the_steps_of_a_tool_loop_are_one_turn_however_long_it_takes(world: World) -> None:
    ids = set()
    for answered in ("", "Let me look.", "", "It is sunny."):
        ids.add((await world.say([], "What is the weather?", answered)).id)
        world.now += timedelta(seconds=100)
    assert len(ids) == 1


async def test_a_retried_or_regenerated_later_turn_is_the_same_turn_at_any_time(world: World) -> None:
    await world.say([], "a", "A")
    first = await world.say(["a", "A"], "b", "B")
    later = await world.say(["a", "A", "b", "B"], "c", "C")
    world.now += timedelta(days=2)
    again = await world.say(["a", "A"], "b", "B, said otherwise")
    assert again.id == first.id
    follow = await world.say(["a", "A", "b", "B, said otherwise"], "d", "D")
    assert follow.session != later.session, "another message already took that place: a branch"


async def test_an_edited_turn_begins_a_branch_that_goes_on_by_itself(world: World) -> None:
    await world.say([], "a", "A")
    old = await world.say(["a", "A"], "b", "B")
    edited = await world.say(["a", "A"], "b, but better", "B2")
    assert (edited.session != old.session, edited.seq) == (True, 0)
    repeated = await world.say(["a", "A"], "b, but better", "B3")
    assert repeated.id == edited.id
    branch = await world.say(["a", "A", "b, but better", "B3"], "c", "C")
    trunk = await world.say(["a", "A", "b", "B"], "c", "C")
    assert (place(branch), place(trunk)) == ((edited.session, 2), (old.session, 4))


@pytest.mark.parametrize("session", ["", "named"])
async def test_parallel_duplicates_are_one_turn(world: World, session: str) -> None:
    for history, asked in [([], "a"), (["a", "A"], "b"), (["a", "A"], "b, edited")]:
        exchanged = world.exchange(history, asked, "A", session=session)
        turns = await asyncio.gather(*(world.learn(exchanged) for _ in range(8)))
        assert len({turn.id for turn in turns}) == 1


async def test_whitespace_and_unicode_form_make_no_difference(world: World) -> None:
    first = await world.say([], "Où est le café ?\n", "  Au coin.\n\nDe rien! ")
    second = await world.say(["Où est le cafe\u0301 ?", "Au coin. De rien!"], "Merci", "De rien")
    assert place(second) == (first.session, 2)


async def test_a_client_that_alters_our_answers_still_joins(world: World) -> None:
    """Reasoning cut out of the answers it sends back, at every turn."""
    first = await world.say([], "a", "<think>hm</think> A")
    second = await world.say(["a", "A"], "b", "<think>hm</think> B")
    third = await world.say(["a", "A", "b", "B"], "c", "<think>hm</think> C")
    fourth = await world.say(["a", "A", "b", "B", "c", "C"], "d", "D")
    assert [place(turn) for turn in (first, second, third, fourth)] == [("s1", seq) for seq in (0, 2, 4, 6)]


async def test_a_turn_whose_answer_was_cut_off_is_passed_over(world: World) -> None:
    first = await world.say([], "a", "A")
    third = await world.say(["a", "A", "never learned", "half an ans"], "c", "C")
    fourth = await world.say(["a", "A", "never learned", "half an ans", "c", "C"], "d", "D")
    assert [place(turn) for turn in (third, fourth)] == [(first.session, 2), (first.session, 4)]


@pytest.mark.parametrize("window", [2, 4, 6])
async def test_a_client_that_trims_its_history_still_joins(world: World, window: int) -> None:
    said: list[str] = []
    places = []
    for n in range(8):
        places.append(place(await world.say(said[-window:], f"question {n}", f"answer {n}")))
        said += [f"question {n}", f"answer {n}"]
    assert places == [("s1", 2 * n) for n in range(8)]


async def test_a_conversation_that_we_see_in_the_middle_becomes_one_session(world: World) -> None:
    first = await world.say(["x", "X", "y", "Y"], "z", "Z")
    again = await world.say(["x", "X", "y", "Y"], "z", "Z!")
    second = await world.say(["x", "X", "y", "Y", "z", "Z!"], "w", "W")
    assert again.id == first.id
    assert [place(first), place(second)] == [("s1", 0), ("s1", 2)]


async def test_a_greeting_of_the_assistant_is_no_history(world: World) -> None:
    greeted = replace(world.exchange([], "hi", "Hello!"), history=(Message(Role.ASSISTANT, "How can I help?"),))
    first = await world.learn(greeted)
    second = await world.learn(replace(greeted, at=MONDAY + timedelta(minutes=3)))
    assert first.session != second.session


async def test_the_same_words_of_two_owners_or_projects_never_meet(world: World) -> None:
    turns = [
        await world.say([], "hi", "Hello!"),
        await world.say([], "hi", "Hello!", owner=OTHER_ANN),
        await world.say([], "hi", "Hello!", project="hawaii"),
    ]
    assert len({turn.session for turn in turns}) == 3
    followed = [
        await world.say(["hi", "Hello!"], "b", "B"),
        await world.say(["hi", "Hello!"], "b", "B", owner=OTHER_ANN),
        await world.say(["hi", "Hello!"], "b", "B", project="hawaii"),
    ]
    assert [turn.session for turn in followed] == [turn.session for turn in turns]
    assert len({turn.id for turn in [*turns, *followed]}) == 6


# --- sessions that the client names ----------------------------------------------------------------
async def test_a_named_session_counts_its_turns_with_or_without_history(world: World) -> None:
    first = await world.say([], "a", "A", session="mine")
    with_history = await world.say(["a", "A"], "b", "B", session="mine")
    without = await world.say([], "c", "C", session="mine")
    other = await world.say([], "a", "A", session="another")
    places = [place(turn) for turn in (first, with_history, without, other)]
    assert places == [("mine", 0), ("mine", 2), ("mine", 4), ("another", 0)]


async def test_a_resent_turn_of_a_named_session_is_known_by_its_history(world: World) -> None:
    await world.say([], "a", "A", session="mine")
    turn = await world.say(["a", "A"], "b", "B", session="mine")
    for n in range(30):
        await world.say(["a", "A", "b", "B"], f"more {n}", "M", session="mine")
    world.now += timedelta(days=1)
    again = await world.say(["a", "A"], "b", "B anew", session="mine")
    assert again.id == turn.id


async def test_without_history_the_same_words_shortly_after_are_a_retry(world: World) -> None:
    first = await world.say([], "yes", "OK", session="mine")
    retry = await world.say([], "yes", "OK", session="mine")
    await world.say([], "and this", "OK", session="mine")
    later = await world.say([], "yes", "OK", session="mine")
    world.now += timedelta(minutes=3)
    latest = await world.say([], "yes", "OK", session="mine")
    assert retry.id == first.id
    assert [later.seq, latest.seq] == [4, 6]


async def test_many_turns_at_once_in_a_named_session_get_places_of_their_own(world: World) -> None:
    turns = await asyncio.gather(
        *(world.learn(world.exchange([], f"q{n}", "A", session="mine")) for n in range(10))
    )
    assert sorted(turn.seq for turn in turns) == list(range(0, 20, 2))


# --- chains of responses -----------------------------------------------------------------------------
async def test_a_previous_response_id_leads_to_its_session(world: World) -> None:
    first = await world.say([], "a", "A", response_id="r1")
    second = await world.say([], "b", "B", previous_response_id="r1", response_id="r2")
    retried = await world.say([], "b", "B", previous_response_id="r1", response_id="r2b")
    third = await world.say([], "c", "C", previous_response_id="r2", response_id="r3")
    branch = await world.say([], "other", "O", previous_response_id="r1", response_id="r4")
    assert [place(turn) for turn in (first, second, third)] == [("s1", 0), ("s1", 2), ("s1", 4)]
    assert retried.id == second.id
    assert place(branch) == ("s2", 0)
    again = await world.say([], "other", "O", previous_response_id="r1", response_id="r5")
    assert again.id == branch.id


async def test_the_read_path_learns_the_session_and_the_last_words_of_a_chain(world: World) -> None:
    await world.say(["z", "Z"], "a" * 600, "A", response_id="r1")
    await world.say([], "b", "B", previous_response_id="r1", response_id="r2")
    await world.say([], "c", "C", previous_response_id="r2", response_id="r3")
    assert await world.sessions.chain(ANN, "r1") == Chain("s1", ("z", "a" * 500))
    assert await world.sessions.chain(ANN, "r3") == Chain("s1", ("a" * 500, "b", "c"))
    assert await world.sessions.chain(OTHER_ANN, "r3") is None
    assert await world.sessions.chain(ANN, "unknown") is None


async def test_the_turns_of_a_conversation_that_the_provider_keeps_are_one_session(world: World) -> None:
    kept = {"session": "conv_1", "conversation": "conversation conv_1"}
    first = await world.say([], "a", "A", response_id="r1", **kept)
    second = await world.say([], "b", "B", response_id="r2", **kept)
    retried = await world.say([], "b", "B again", response_id="r3", **kept)
    third = await world.say([], "c", "C", response_id="", **kept)
    assert [place(turn) for turn in (first, second, third)] == [("conv_1", 0), ("conv_1", 2), ("conv_1", 4)]
    assert retried.id == second.id
    assert await world.sessions.chain(ANN, "conversation conv_1") == Chain("conv_1", ("b", "b", "c"))
    assert await world.sessions.chain(ANN, "r1") == Chain("conv_1", ("a",))


async def test_an_unknown_previous_response_begins_a_session(world: World) -> None:
    first = await world.say([], "a", "A", previous_response_id="unknown", response_id="r1")
    second = await world.say([], "b", "B", previous_response_id="r1")
    assert [place(first), place(second)] == [("s1", 0), ("s1", 2)]


# --- faults and bounds -------------------------------------------------------------------------------
class DownCoordination(InMemoryCoordination):
    async def get_record(self, kind: str, owner: Owner, key: str) -> bytes | None:
        raise TransientError("down")


@pytest.mark.parametrize("session", ["", "named"])
async def test_while_coordination_is_down_no_turn_is_lost_and_a_retry_is_the_same_turn(session: str) -> None:
    world = World()
    world.sessions = Sessions(DownCoordination(lambda: MONDAY), new_session=lambda: "new")
    first = await world.say(["a", "A"], "b", "B", session=session)
    again = await world.say(["a", "A"], "b", "B", session=session)
    other = await world.say(["a", "A"], "c", "C", session=session)
    assert first.id == again.id != other.id
    assert first.session == (session or first.session)


async def test_records_that_cannot_be_read_are_as_good_as_none(world: World) -> None:
    await world.say([], "a", "A", response_id="r1")
    for key, (_, expires) in list(world.records.records.items()):
        world.records.records[key] = (b"\xff not ours", expires)
    assert (await world.say(["a", "A"], "b", "B")).session == "s2"
    assert (await world.say([], "a", "A")).session == "s3"
    assert await world.sessions.chain(ANN, "r1") is None


async def test_a_conversation_is_forgotten_with_its_owner(world: World) -> None:
    await world.say([], "a", "A")
    await world.records.delete_records(ANN)
    assert (await world.say(["a", "A"], "b", "B")).session == "s2"


async def test_texts_are_bounded_and_hold_no_half_characters(world: World) -> None:
    turn = await world.say([], "a\ud800" + "b" * 100_000, "\udfff", response_id="r")
    assert len(turn.asked) == 65_536
    assert turn.asked.startswith("a?b")
    assert turn.answered == "?"


async def test_a_very_long_conversation_goes_on(world: World) -> None:
    said = [f"message {n}" for n in range(10_000)]
    first = await world.say(said, "a", "A")
    second = await world.say([*said, "a", "A"], "b", "B")
    assert place(second) == (first.session, 2)


words = st.sampled_from(["hi", "yes", "my budget is $10", "and now?"])


@given(st.lists(st.tuples(words, words), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
async def test_any_conversation_sent_whole_at_each_turn_is_one_session_without_gaps(
    talk: list[tuple[str, str]],
) -> None:
    world = World()
    said: list[str] = []
    places = []
    for asked, answered in talk:
        places.append(place(await world.say(said, asked, answered)))
        said += [asked, answered]
    assert places == [("s1", 2 * n) for n in range(len(talk))]


async def test_names_of_any_length_and_bytes_are_no_reason_for_a_journal_to_refuse_a_turn() -> None:
    world = World()
    odd = Origin(dialect="messages", model="m" * 300_000, route="r\udcff", app="\ud83d chat")
    turn = await world.say([], "My budget is $10,000.", "Noted.", origin=odd)
    assert len(turn.origin.model) == 512
    assert (turn.origin.dialect, turn.origin.route, turn.origin.app) == ("messages", "r?", "? chat")
