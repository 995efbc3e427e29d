"""Identifiers of people are kept, masked or dropped, as the policy says, and numbers that are none stay."""

from __future__ import annotations

import pytest

from memory_extproc.safety.policy import Identifiers, without_identifiers

NAMED = {
    "Mail me at ann.smith+x@mail.example.com please.": "ann.smith+x@mail.example.com",
    "My number is +49 151 23456789.": "+49 151 23456789",
    "Call me at (415) 555-2671 tonight.": "(415) 555-2671",
    "Meine Handynummer: 0151 2345 6789": "0151 2345 6789",
    "My SSN is 536-90-4399.": "536-90-4399",
    "DNI 54362315K": "54362315K",
    "CPF 390.533.447-05": "390.533.447-05",
    "Meine Steuer-ID ist 36 574 261 809.": "36 574 261 809",
    "I live at 12 Rose Street in Leeds.": "12 Rose Street",
    "Ich wohne in der Goethestra\u00dfe 12.": "Goethestra\u00dfe 12",
    "J'habite 5 rue de la Paix.": "5 rue de la Paix",
}


@pytest.mark.parametrize("text", NAMED)
def test_an_identifier_is_kept_masked_or_dropped_with_its_sentence(text: str) -> None:
    whole = f"I like tea. {text} I like cake."
    assert without_identifiers(whole, Identifiers.KEEP).text == whole
    hidden = without_identifiers(whole, Identifiers.MASK)
    assert NAMED[text] not in hidden.text
    assert hidden.text.startswith("I like tea. ")
    assert hidden.kinds
    dropped = without_identifiers(f"{text}\nI like cake.", Identifiers.DROP)
    assert dropped.text.strip() == "I like cake."


@pytest.mark.parametrize(
    "text",
    [
        "Order 4455667788 arrives on 2026-05-03.",
        "The server is 192.168.0.1, port 50051.",
        "My budget is $10,000.00 for 12 days.",
        "550e8400-e29b-41d4-a716-446655440000",
        "I walked 10 streets and 3 avenues.",
        "@property and @dataclass",
        "In 1984 I was 12 years old.",
        "Call me at 10 15 today.",
        "Call case 12345 67890 12345 closed.",
    ],
)
def test_other_numbers_and_signs_stay(text: str) -> None:
    assert without_identifiers(text, Identifiers.MASK).text == text
    assert without_identifiers(text, Identifiers.DROP).text == text
