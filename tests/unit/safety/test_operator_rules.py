"""The operator's patterns and policies for what is stored and injected."""

from __future__ import annotations

import pytest

from memory_extproc.errors import ConfigurationError
from memory_extproc.model import Caller, Exchanged, Message, Role
from memory_extproc.safety.policy import (
    BlockPatterns,
    Policy,
    SecretClass,
    SecretPolicy,
    StorageRules,
    may_be_injected,
    says_more_than_masks,
    without_secrets,
)
from tests.support.builders import ANN, MONDAY

PIN = "My PIN is 4711. I live in Bonn."


def exchanged(asked: str, answered: str = "Fine.", *history: str) -> Exchanged:
    said = tuple(Message(Role.USER, text) for text in history)
    return Exchanged(caller=Caller(ANN), history=said, asked=asked, answered=answered, at=MONDAY)


def kept(rules: StorageRules, one: Exchanged) -> Exchanged:
    return Policy(rules=rules).filter_exchange(without_secrets(one, rules).exchanged).exchanged


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        (SecretPolicy.MASK, "My PIN is [masked: code]. I live in Bonn."),
        (SecretPolicy.DROP, "I live in Bonn."),
        (SecretPolicy.KEEP, PIN),
    ],
)
def test_a_class_of_secrets_is_masked_dropped_or_kept(policy: SecretPolicy, left: str) -> None:
    rules = StorageRules({SecretClass.CODE: policy})
    assert rules.apply(PIN).strip() == left
    found = kept(rules, exchanged(PIN, PIN, PIN))
    assert {found.asked.strip(), found.answered.strip(), found.history[0].text.strip()} == {left}


def test_other_classes_stay_masked_where_one_is_kept() -> None:
    rules = StorageRules({SecretClass.CODE: SecretPolicy.KEEP})
    assert "hunter2xyz" not in rules.apply("My PIN is 4711 and my password is hunter2xyz.")


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("[masked: code]", False),
        ("[masked: password], [masked: code].", False),
        ("[EMAIL_ADDRESS_0]", False),
        ("<PERSON_1> [PHONE_NUMBER_12]!", False),
        ("My PIN is [masked: code]", True),
        ("👍", True),
        ("", True),
    ],
)
def test_a_text_of_masks_alone_says_nothing(text: str, more: bool) -> None:
    assert says_more_than_masks(text) is more
    assert (StorageRules().refusal(text) == "") is more


def test_placeholders_of_a_router_are_not_written() -> None:
    found = kept(StorageRules(), exchanged("My mail is [EMAIL_ADDRESS_0], I am <PERSON_1>.", "Hello [PERSON_3]"))
    assert "_" not in found.asked + found.answered
    assert "[masked: email address]" in found.asked


@pytest.mark.parametrize("text", ["my_list[INDEX]", "snake_case", "see [1]", "[TODO]", "2_000"])
def test_what_is_no_placeholder_stays(text: str) -> None:
    assert kept(StorageRules(), exchanged(text)).asked == text


def test_a_memory_with_anothers_placeholder_is_not_injected() -> None:
    assert not may_be_injected("Writes to [EMAIL_ADDRESS_0]", BlockPatterns())
    assert may_be_injected("Writes to jo@example.org", BlockPatterns())


def test_a_pattern_keeps_a_message_from_being_written_and_others_stay() -> None:
    pytest.importorskip("re2", reason="google-re2 is not installed")
    rules = StorageRules(never_store=BlockPatterns(["(?i)nightfall", r"\bACME-\d+\b"]))
    found = Policy(rules=rules).filter_exchange(
        exchanged("Project Nightfall starts.", "Noted ACME-17.", "I like tea.")
    )
    assert (found.exchanged.asked, found.exchanged.answered) == ("", "")
    assert found.exchanged.history[0].text == "I like tea."
    assert "blocked" in found.kinds
    assert rules.refusal("about nightFALL")
    assert not rules.refusal("about dusk")
    assert rules.refusal("\ud800 nightfall"), "text that is no Unicode hides nothing"


@pytest.mark.parametrize("pattern", ["(", r"(?<=a)b", r"(a)\1", "[z-a]"])
def test_a_pattern_that_is_none_is_refused_with_the_reason(pattern: str) -> None:
    pytest.importorskip("re2", reason="google-re2 is not installed")
    with pytest.raises(ConfigurationError, match="no pattern of RE2"):
        BlockPatterns([pattern])


def test_hostile_patterns_and_texts_take_linear_time() -> None:
    pytest.importorskip("re2", reason="google-re2 is not installed")
    patterns = BlockPatterns(["(a+)+$", "(a|aa)*b", "(x*)*y"])
    assert not patterns.match("a" * 200_000 + "!")
