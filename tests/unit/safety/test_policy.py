"""The storable part of an exchange, as a whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memory_extproc.model import Caller, Exchanged, Message, Role
from memory_extproc.safety.policy import MOST_SEARCHED, without_secrets
from tests.support.builders import ANN, MONDAY
from tests.support.growth import superlinear

SECRET = "hunter2"


def an_exchange(asked: str, answered: str = "Noted.", *history: str) -> Exchanged:
    said = [Message(Role.USER if at % 2 == 0 else Role.ASSISTANT, text) for at, text in enumerate(history)]
    return Exchanged(caller=Caller(ANN), history=tuple(said), asked=asked, answered=answered, at=MONDAY)


def texts(exchanged: Exchanged) -> list[str]:
    said = [message.text for message in exchanged.history]
    return [*said, exchanged.asked, exchanged.answered, *exchanged.injected]


def test_an_exchange_without_secrets_is_the_same_value() -> None:
    exchanged = an_exchange("I like pizza.")
    assert without_secrets(exchanged).exchanged is exchanged


def test_a_secret_that_the_answer_repeats_is_masked_there_too() -> None:
    done = without_secrets(an_exchange(f"my password is {SECRET}", f"I will remember {SECRET}!"))
    assert not any(SECRET in text for text in texts(done.exchanged))
    assert done.kinds == ("password", "password")


def test_a_secret_told_earlier_in_the_conversation_is_masked_wherever_it_comes_again() -> None:
    done = without_secrets(
        an_exchange(f"why is {SECRET} weak?", "Too short.", f"my password is {SECRET}", "Noted.")
    )
    assert not any(SECRET in text for text in texts(done.exchanged))


def test_a_conversation_sent_again_and_longer_begins_with_the_same_words() -> None:
    first = without_secrets(an_exchange(f"I say {SECRET}.", "ok")).exchanged
    second = without_secrets(
        an_exchange(f"my password is {SECRET}", f"{SECRET} it is", f"I say {SECRET}.", "ok")
    ).exchanged
    third = without_secrets(
        an_exchange("thanks", "bye", f"I say {SECRET}.", "ok", f"my password is {SECRET}", f"{SECRET} it is")
    ).exchanged
    assert texts(second)[:2] == texts(first)
    assert texts(third)[:4] == texts(second)
    assert SECRET not in texts(third)[3]


def test_what_was_injected_is_masked_like_everything_else() -> None:
    exchanged = replace(an_exchange(f"my password is {SECRET}"), injected=(f"User's dog is {SECRET}",))
    assert SECRET not in without_secrets(exchanged).exchanged.injected[0]


def test_a_long_conversation_is_masked_up_to_a_bound_and_what_is_written_of_it_wherever_it_stands() -> None:
    book = Message(Role.USER, "a line of a book\n" * (MOST_SEARCHED // 17 + 1))
    asked = f"my password is {SECRET}"
    done = without_secrets(replace(an_exchange(asked, f"noted: {SECRET}"), history=(book,)))
    assert done.exchanged.asked == asked  # only to be hashed, as it will be in the next request
    assert done.behind is not None
    assert SECRET not in done.behind.mask(asked)
    assert SECRET not in done.behind.mask(f"noted: {SECRET}")


@pytest.mark.no_cover
def test_secrets_cost_in_proportion_to_their_number() -> None:
    def reads(text: str) -> object:
        said = "\n".join(f"my password is hunter{number}x! then" for number in range(len(text)))
        return without_secrets(an_exchange(said, said))

    assert not superlinear(reads, "", "x")
