"""What of an exchange may be written, as a whole."""

from __future__ import annotations

from dataclasses import replace

from memory_extproc.model import Caller, Exchanged, Message, Role
from memory_extproc.safety.policy import without_secrets
from tests.builders import ANN, MONDAY

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
