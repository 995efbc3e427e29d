"""Records of injected blocks: other replicas, faults, its time, and forgets."""

from __future__ import annotations

from datetime import timedelta

import pytest

from memory_extproc.recall.prompt_block import CLOSING
from memory_extproc.testing.adapters import InMemoryCoordination
from tests.support.sidecar import NOON, request_settings
from tests.unit.extproc.talking import ANN, BUDGET, HOTEL, SEAT, WORDS, Faulty, Remembers, Talk, a_desk, now_known


async def test_a_conversation_goes_on_at_another_replica() -> None:
    shared = InMemoryCoordination(now=lambda: NOON)
    talk = Talk(a_desk(shared=shared))
    for words in WORDS:
        talk.desk = a_desk(shared=shared)
        await talk.ask(words)
    assert talk.keeps_its_beginning


@pytest.mark.parametrize("what", ["get", "epoch", "slow"])
async def test_records_out_of_reach_cost_a_cache_miss_and_nothing_else(what: str) -> None:
    shared = Faulty()
    talk = Talk(a_desk(shared=shared))
    await talk.ask("my budget?")
    shared.down, shared.slow = {what}, what == "slow"
    if shared.slow:
        talk.desk.current.settings = request_settings(deadline=timedelta(milliseconds=30))
    body = await talk.ask("which hotel?")
    assert talk.last.status == "used;n=1;path=hybrid"
    assert BUDGET not in body
    outcome = "out_of_time" if what == "slow" else "unavailable"
    assert talk.desk.metrics.registry.get_sample_value("memory_extproc_replays_total", {"outcome": outcome}) == 1
    shared.down, shared.slow = set(), False
    talk.desk.current.settings = request_settings()
    await talk.ask("thanks")
    assert talk.sent[2].startswith(talk.sent[0].removesuffix(b"]}"))


async def test_what_cannot_be_written_is_found_in_this_process() -> None:
    shared = Faulty()
    shared.down = {"put"}
    talk = Talk(a_desk(shared=shared))
    for words in WORDS:
        await talk.ask(words)
    assert talk.keeps_its_beginning


async def test_a_conversation_is_known_for_so_long_after_its_last_turn() -> None:
    clock = [NOON]
    talk = Talk(a_desk(shared=InMemoryCoordination(now=lambda: clock[0]), replay_keep=timedelta(hours=2)))
    await talk.ask("my budget?")
    for _ in range(3):
        clock[0] += timedelta(hours=1.5)
        assert BUDGET in await talk.ask("and what else?")
    clock[0] += timedelta(hours=2)
    assert BUDGET not in await talk.ask("and what else?")


async def test_half_an_emoji_in_a_memory_keeps_nothing_from_its_record() -> None:
    talk = Talk(a_desk(recalls=Remembers(budget="The budget is \ud83d $10,000")))
    await talk.ask("my budget?")
    await talk.ask("and what else?")
    assert talk.keeps_its_beginning
    assert "$10,000" in talk.sent[-1].decode()


async def test_after_turns_without_memory_the_blocks_before_them_are_found() -> None:
    talk = Talk(a_desk())
    first = await talk.ask("my budget?")
    for number in range(4):
        await talk.ask(f"in private {number}?", x_memory_retrieve="skip")
    assert (await talk.ask("and what else?")).startswith(first.removesuffix("]}"))


async def test_what_waits_to_be_written_is_bounded() -> None:
    shared = Faulty()
    shared.down = {"put"}
    desk = a_desk(shared=shared, most_unshared=2000)
    for number in range(20):
        await Talk(desk).ask(f"my budget {number}?")
    held = sum(map(len, desk.replays._unshared.values()))
    assert 0 < held <= 2000
    assert held == desk.replays._unshared_bytes


async def test_a_lost_record_is_made_up_for_by_the_one_before() -> None:
    shared = Faulty()
    talk = Talk(a_desk(shared=shared))
    await talk.ask("my budget?")
    kept = dict(shared.records)
    await talk.ask("which hotel?")
    shared.records = kept
    body = await talk.ask("thanks")
    assert body.count(BUDGET) == 1
    assert HOTEL not in body
    await talk.ask("bye")
    assert talk.sent[-1].startswith(talk.sent[-2].removesuffix(b"]}"))


async def test_a_record_that_cannot_be_read_is_as_good_as_lost() -> None:
    shared = Faulty()
    talk = Talk(a_desk(shared=shared))
    await talk.ask("my budget?")
    shared.records = {key: (b'{"of": "another version"}', until) for key, (_, until) in shared.records.items()}
    assert BUDGET in await talk.ask("my budget, again?")
    assert talk.last.status == "used;n=1;path=hybrid"


@pytest.mark.parametrize("written", [True, False])
async def test_after_a_forget_nothing_of_before_goes_back(written: bool) -> None:
    shared = Faulty()
    talk = Talk(a_desk(shared=shared))
    shared.down = set() if written else {"put"}
    await talk.ask("my budget?")
    await talk.ask("which hotel?")
    other = Talk(talk.desk)
    await other.ask("my seat?", user="bob")
    now_known(talk.desk)
    await shared.advance_epoch(ANN)
    if written:
        await shared.delete_records(ANN)
    talk.desk.replays.forget(ANN)
    assert CLOSING not in await talk.ask("and what else?")
    assert SEAT in await other.ask("thanks", user="bob")


async def test_a_block_recalled_before_a_forget_and_written_after_it_does_not_go_back() -> None:
    shared = Faulty()
    talk = Talk(a_desk(shared=shared))
    await talk.ask("my budget?")
    await shared.advance_epoch(ANN)
    assert shared.records  # as if it had come in behind the deletion
    assert BUDGET not in await talk.ask("and what else?")
