"""Of a conversation that its provider keeps, the client sends the newest words only."""

from __future__ import annotations

from memory_extproc.request.replay import InView
from tests.unit.extproc.talking import ANN, BOB, BUDGET, HOTEL, RESPONSES, Talk, a_desk


async def test_what_the_provider_keeps_is_neither_put_back_nor_given_again() -> None:
    desk = a_desk()
    talk = Talk(desk, RESPONSES)
    await talk.ask("my budget?")
    for number, words in enumerate(("my budget again?", "which hotel and budget?", "thanks for the hotel")):
        view = talk.last.heard.in_view if talk.last.heard else None
        assert view is not None
        desk.replays.record_view(view, f"resp_{number}")
        talk.items.clear()
        talk.changes["previous_response_id"] = f"resp_{number}"
        body = await talk.ask(words)
        assert BUDGET not in body
        assert body.count(HOTEL) == (number == 1)
    talk.items.clear()
    talk.changes["previous_response_id"] = "of somebody else"
    assert BUDGET in await talk.ask("my budget again?")


async def test_what_the_provider_keeps_of_a_conversation_is_not_given_again_either() -> None:
    desk = a_desk()
    talk = Talk(desk, RESPONSES, conversation={"id": "conv_1"})
    await talk.ask("my budget?")
    heard = talk.last.heard
    assert heard is not None
    assert heard.in_view is not None
    assert heard.caller.session == "conv_1"
    desk.replays.record_view(heard.in_view, heard.conversation)
    talk.items.clear()
    assert BUDGET not in await talk.ask("my budget again?")
    talk.items.clear()
    talk.changes["conversation"] = "conv_2"
    assert BUDGET in await talk.ask("my budget again?")


async def test_another_callers_response_id_tells_nothing() -> None:
    desk = a_desk()
    desk.replays.record_view(InView(BOB, 0, (BUDGET,)), "resp_1")
    talk = Talk(desk, RESPONSES, previous_response_id="resp_1")
    await talk.ask("my budget?")
    assert BUDGET not in desk.recalls.wishes[-1].in_view


async def test_of_what_a_provider_keeps_only_so_much_is_noted() -> None:
    desk = a_desk(replay_tokens=20)
    desk.replays.record_view(InView(ANN, 0, ("x" * 60, BUDGET)), "resp_1")
    await Talk(desk, RESPONSES, previous_response_id="resp_1").ask("my budget?")
    (wish,) = desk.recalls.wishes
    assert BUDGET in wish.in_view
    assert "x" * 60 not in wish.in_view
