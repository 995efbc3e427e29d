"""The cascade of a forget: versions, turns, memories drawn from them; and its limits."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any

import pytest

from memory_extproc.curation.editor import Correction, Meaning, MemoryEditor, Standing
from memory_extproc.erasure.forgetter import Forgetter
from memory_extproc.erasure.steps import cascade
from memory_extproc.erasure.tombstones import KeyedHasher, TombstoneKind
from memory_extproc.model import ForgetScope, Hit, Memory, MemoryState, MemoryType, Owner, Role, Source, digest
from tests.support.builders import ANN, a_memory, a_message
from tests.unit.erasure.forgetting import World, complete


class NothingUnderstood:
    async def meaning(self, owner: Owner, content: str) -> Meaning:
        return Meaning()

    def standing(self, content: str, meaning: Meaning, found: Hit) -> Standing:
        return Standing.OTHER


def world_ends() -> float:
    """Later than anything was said, in seconds since 1970."""
    return datetime(2100, 1, 1, tzinfo=UTC).timestamp()


async def test_a_fact_goes_with_its_older_versions_and_the_words_it_came_from(
    world: World, forgetter: Forgetter
) -> None:
    said = a_message("My budget is $12,000, and I am vegetarian.", metadata={"turn": "t2"})
    newer = a_memory(
        "User's budget is $12,000",
        metadata={"subject": "user", "attribute": "budget", "value": "$12,000", "turn": "t2"},
    )
    older = a_memory(
        "User's budget is $10,000",
        superseded_by=newer.id,
        state=MemoryState.SUPERSEDED,
        metadata={"subject": "user", "attribute": "budget", "value": "$10,000", "turn": "t1"},
    )
    again = a_message("As I said, 12000 is the budget.", metadata={"turn": "t7"})
    sibling = a_memory(
        "User is vegetarian", metadata={"subject": "user", "attribute": "diet", "value": "vegetarian", "turn": "t2"}
    )
    old_words = a_message("I have $10,000.", metadata={"turn": "t1"})
    other = a_message("The flight costs 12000 points.", metadata={"turn": "t9"})
    made_of_it = a_memory("User plans an expensive trip", metadata={"sources": [newer.id]})
    await world.put(said, newer, older, again, sibling, old_words, other, made_of_it)
    receipt = await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(newer.id,))))
    assert await world.contents() == {sibling.content, other.content}
    assert receipt.memories == 6


async def test_a_message_goes_with_its_turn_and_what_was_taken_from_it(world: World, forgetter: Forgetter) -> None:
    asked = a_message("I moved to Lisbon.", metadata={"turn": "t1"})
    answer = a_message("Lisbon is lovely.", role=Role.ASSISTANT, metadata={"turn": "t1"})
    fact = a_memory("User lives in Lisbon", metadata={"turn": "t1"})
    unrelated = a_message("I like tea.", metadata={"turn": "t2"})
    await world.put(asked, answer, fact, unrelated)
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(answer.id,))))
    assert await world.contents() == {"I like tea."}


async def test_a_corrected_message_goes_with_all_that_was_made_of_what_it_said_first(
    world: World, forgetter: Forgetter
) -> None:
    asked = a_message("I moved to Lisbon last week.", metadata={"turn": "t1"})
    lives = a_memory(
        "User lives in Lisbon", metadata={"subject": "user", "attribute": "home", "value": "Lisbon", "turn": "t1"}
    )
    other = a_memory("User has a dog named Rex")
    retired = a_memory(
        "Often speaks of Lisbon and of Rex",
        state=MemoryState.DELETED,
        metadata={"derived": "reflection", "sources": [lives.id, other.id], "retired": "sources"},
    )
    await world.put(asked, lives, other, retired)
    curator = MemoryEditor(
        world.partitions, world.partitions, world.embedder, NothingUnderstood(), now=lambda: world.now
    )
    await curator.correct(ANN, asked.id, Correction(values={"content": "I moved to Porto last week."}))
    world.now += timedelta(seconds=1)
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(asked.id,))))
    assert await world.contents() == {other.content}


@pytest.mark.parametrize("version_kept", [True, False])
def test_what_a_corrected_message_takes_along_does_not_hang_on_the_order_of_the_rows(version_kept: bool) -> None:
    asked = a_message("I moved to Lisbon.", metadata={"turn": "t1", "heard": "h1"})
    version = replace(asked, id=digest("v"), state=MemoryState.SUPERSEDED, superseded_by=asked.id)
    corrected = replace(asked, content="I moved to Porto.", source=Source.API)
    lives = a_memory("User lives in Lisbon", metadata={"turn": "t1"})
    made_of_it = a_memory("Often speaks of Lisbon", metadata={"sources": [lives.id]})
    # The version that a correction left is history, and is erased in the end.
    rows = [corrected, lives, made_of_it, *([version] if version_kept else [])]
    blind = KeyedHasher(b"key")
    for order in permutations(rows):
        for listed in range(1, len(order) + 1):
            named = {corrected.id, *(memory.id for memory in order[:listed])}
            taken = cascade(order, ForgetScope(ids=tuple(named)), world_ends())
            assert taken.memories.keys() == {memory.id for memory in rows}
            assert blind.item(TombstoneKind.HEARD, ANN, "h1") in taken.items(blind)  # the client may send it again


async def test_what_was_drawn_from_several_turns_goes_with_each_of_them(world: World, forgetter: Forgetter) -> None:
    asked = [a_message(f"I like city {n}.", metadata={"turn": f"t{n}"}) for n in range(3)]
    drawn = {"turn": "t2", "drawn_from": ["t0", "t1", "t2"]}
    note = a_memory("Cares about cities.", type=MemoryType.REFLECTIVE, metadata=drawn)
    made_of_it = a_memory("Cares about towns (first cities).", metadata={"sources": [note.id]})
    await world.put(*asked, note, made_of_it)
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(asked[0].id,))))
    assert await world.contents() == {"I like city 1.", "I like city 2."}
    await world.put(replace(note, id=digest("again")))  # out of a round that had begun before
    assert {one.content async for page in world.partitions.rows(ANN) for one in page} == {
        "I like city 1.", "I like city 2.",
    }  # fmt: skip


async def test_what_was_drawn_from_several_turns_takes_none_of_them_with_it(
    world: World, forgetter: Forgetter
) -> None:
    elsewhere = [a_message(f"I like city {n}.", session="s1", metadata={"turn": f"t{n}"}) for n in range(2)]
    here = a_message("I like tea.", session="s2", metadata={"turn": "t2"})
    newer = a_memory("Cares about tea.", session="s2", metadata={"turn": "t2", "drawn_from": ["t2"]})
    older = a_memory(
        "Cares about cities.",
        session="s1",
        state=MemoryState.SUPERSEDED,
        superseded_by=newer.id,
        metadata={"turn": "t1", "drawn_from": ["t0", "t1"]},
    )
    again = a_memory("Cares about chess.", metadata={"turn": "t0", "drawn_from": ["t0"], "also": {"t1": []}})
    await world.put(*elsewhere, here, newer, older, again)
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(session="s2")))
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(again.id,))))
    assert await world.contents() == {one.content for one in elsewhere}


def a_moved_wedding() -> tuple[list[Memory], dict[str, Memory]]:
    """A wedding whose day was moved twice, and whose place only the first turn told, beside a dress."""
    said = [
        a_message(text, session=f"s{at}", metadata={"turn": f"t{at}"})
        for at, text in enumerate(
            ("My wedding is on June 6 in Kinsale. My dress is red.", "It moved to June 27.", "Now it is on July 4.")
        )
    ]
    last = a_memory(
        "User's wedding is on July 4 in Kinsale",
        session="s2",
        metadata={
            "turn": "t2",
            "value": "on July 4 in Kinsale",
            "drawn_from": ["t0", "t1"],
            "replaces": [digest("b")],
        },
    )
    middle = a_memory(
        "User's wedding is on June 27 in Kinsale",
        session="s1",
        id=digest("b"),
        state=MemoryState.SUPERSEDED,
        superseded_by=last.id,
        metadata={
            "turn": "t1", "value": "on June 27 in Kinsale", "drawn_from": ["t0"], "replaces": [digest("a")],
        },
    )  # fmt: skip
    first = a_memory(
        "User's wedding is on June 6 in Kinsale",
        session="s0",
        id=digest("a"),
        state=MemoryState.SUPERSEDED,
        superseded_by=middle.id,
        metadata={"turn": "t0", "value": "on June 6 in Kinsale"},
    )
    dress = a_memory("User's dress is red", session="s0", metadata={"turn": "t0", "value": "red"})
    return said, {"first": first, "middle": middle, "last": last, "dress": dress}


@pytest.mark.parametrize(
    ("forget", "messages", "facts"),
    [
        (["first"], {1, 2}, {"dress"}),  # the place goes from all that was drawn from it; newer words stay
        (["said 0"], {1, 2}, set()),
        (["dress"], {1, 2}, {"first", "middle", "last"}),  # its message goes, the facts of others stay
        (["last"], set(), {"dress"}),
        (["said 1"], {2}, {"dress"}),
    ],
)
async def test_a_kept_detail_goes_with_the_fact_that_told_it_and_with_no_other(
    forget: list[str], messages: set[int], facts: set[str], world: World, forgetter: Forgetter
) -> None:
    said, known = a_moved_wedding()
    await world.put(*said, *known.values())
    ids = tuple(said[int(one[-1])].id if one[:4] == "said" else known[one].id for one in forget)
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=ids)))
    assert await world.contents() == {said[at].content for at in messages} | {known[one].content for one in facts}
    await world.put(replace(known["last"], id=digest("again")))  # out of a round that had begun before
    there = {one.content async for page in world.partitions.rows(ANN) for one in page}
    assert (known["last"].content in there) is ("last" in facts)


async def test_what_is_said_at_every_turn_takes_no_other_turn_with_it(world: World, forgetter: Forgetter) -> None:
    def turn(name: str, asked: str, answered: str) -> tuple[Memory, Memory]:
        def answer(**more: Any) -> Memory:
            return a_message(answered, role=Role.ASSISTANT, id=digest("answer", name), **more)

        metadata = {"turn": name}
        return a_message(asked, id=digest("asked", name), metadata=metadata), answer(metadata=metadata)

    forgotten = turn("t1", "I moved to Lisbon.", "I see, tell me more about that.")
    kept = turn("t2", "I met Rex at the harbour.", "I see, tell me more about that.")
    agreed = turn("t3", "Yes please.", "Lisbon has a harbour, too.")
    agrees = turn("t4", "Yes please.", "The boat sails at noon.")
    said_again = turn("t5", "Where am I?", "Lisbon is where you moved, I see.")
    repeats = turn("t6", "And now?", "Lisbon is where you moved, I see.")
    await world.put(*forgotten, *kept, *agreed, *agrees, *said_again, *repeats)
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(forgotten[0].id, agreed[0].id))))
    assert {row.id for row in await world.rows(ANN)} == {row.id for row in (*kept, *agrees, *said_again, *repeats)}
    await complete(forgetter, await forgetter.forget(ANN, ForgetScope(ids=(said_again[1].id,))))
    assert {row.id for row in await world.rows(ANN)} == {row.id for row in (*kept, *agrees)}
