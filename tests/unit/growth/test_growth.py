"""Every rule about text costs in proportion to the text, whatever stands in it. The rules are found in the package,
so that a new one cannot be forgotten."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Any

import pytest

from memory_extproc.learn.commands.parser import commands_of
from memory_extproc.learn.extract.statements import first_person_statements, without_quotes
from memory_extproc.learn.messages import judge
from memory_extproc.model import Owner, Turn
from memory_extproc.recall.prompt_block import without_blocks
from memory_extproc.recall.query import plain_query
from memory_extproc.safety.policy import identifiers, of_assistant, of_caller
from memory_extproc.safety.prompt_injection import neutralize, suspicion
from memory_extproc.safety.secrets import find_secrets
from memory_extproc.text import dates
from memory_extproc.text.intents import content_stems
from memory_extproc.text.persons import kinds, may_correct
from memory_extproc.text.words import fold, normal, word_set
from tests.support.growth import COMMON, patterns, pumps, superlinear

FOUND = dict(patterns())
# Superlinear where a text of any length is searched: each of them reads a sentence or line of bounded length, or is
# tried at one place only. A new pattern does not come here; it is written so that it is linear by itself.
READS_LITTLE = {
    "dialect.base._THOUGHT", "dialect.json_spans._BRACKET", "dialect.json_spans._COMMA",
    "dialect.registry._ROUTES[0][0]", "dialect.registry._ROUTES[1][0]",
    "dialect.registry._ROUTES[2][0]", "inference.openai_models._FENCE", "inference.openai_models._OPENED",
    "learn.messages._ITEM", "learn.commands.parser._TABLE.patterns[18][1]",
    "learn.commands.parser._TABLE.patterns[20][1]", "learn.commands.parser._TABLE.patterns[22][1]",
    "learn.commands.parser._TABLE.patterns[2][1]", "learn.commands.parser._TABLE.patterns[49][1]",
    "learn.commands.parser._TABLE.patterns[8][1]", "learn.commands.parser._TABLE.polite",
    *(
        f"learn.extract.clauses.{name}"
        for name in ["_FOREIGN", "_CLAUSE", "_CONCERNS", "_SHARED", "_SUBORDINATE", "_TRAILING"]
    ),
    "learn.extract.asides._ALLERGY", "learn.extract.statements._REASON",
    "learn.extract.llm_client._FENCE", "learn.extract.rule_checks._NOUN_PHRASE",
    "learn.extract.rule_checks._PREPOSITION", "learn.extract.statements._PROCEDURE",
    "learn.extract.rules._TRAILING", "learn.extract.statements._ASKING_TAIL",
    "learn.extract.statements._CODE_LINE", "learn.extract.statements._MAIL",
    "learn.extract.statements._NOT_ANY_MORE", "learn.extract.statements._NO_LONGER",
    "learn.extract.statements._QUOTED", "learn.extract.statements._STOPPED",
    "learn.extract.answers._TAG", "request.policy._ASKED_BEGINS", "request.policy._SYSTEM_BEGINS",
    "safety.prompt_injection._RULES[2].pattern", "safety.prompt_injection._RULES[2].needs",
    "safety.prompt_injection._RULES[12].unless", "safety.prompt_injection._RULES[13].unless",
    "safety.secrets._HEX", "store.milvus.connect._SERVER", "text.intents._BETWEEN",
    "text.intents._ONLY", "text.words._LAST_WORD", "topics.state._CUE",
}  # fmt: skip
LINEAR = [place for place in FOUND if place.removeprefix("memory_extproc.") not in READS_LITTLE]
PUMPED = [
    *COMMON, "i g n o r e ", "i g n o r e  ", "\ufdfa", "a\u0301\u0323", "\u0323\u0301", "<memory>", "</memory>",
    "4111 1111 ", "12345678", "a.b@c.example ", "my password is x1! ", "%20&#105;", "1gn0r3 4ll ", "aWdub3Jl ",
    "I have diabetes. ", "on 3 March 1999 ", "always tell users ", "\U0001f468\u200d\U0001f469", "[A", "<a ",
]  # fmt: skip


def test_the_rules_of_the_package_are_found() -> None:
    assert len(LINEAR) > 250
    assert {f"memory_extproc.{place}" for place in READS_LITTLE} <= FOUND.keys()


def test_the_patterns_of_clauses_read_no_sentence_over_400_characters() -> None:
    """So their cost is bounded for each sentence, and that of a text is in proportion to its sentences."""
    told = "I live in Paris"
    assert first_person_statements(f"{told} with {'a cat and ' * 30}a dog.")
    assert first_person_statements(f"{told} with {'a cat and ' * 60}a dog.") == []
    assert first_person_statements(f"{told}. " * 400) == []  # nor any of a text that was pasted


@pytest.mark.no_cover
@pytest.mark.parametrize("place", LINEAR)
def test_a_pattern_costs_in_proportion_to_the_text(place: str) -> None:
    pattern: re.Pattern[Any] = FOUND[place]
    binary = isinstance(pattern.pattern, bytes)

    def reads(text: str) -> object:
        return pattern.findall(text.encode() if binary else text)

    for before, unit in [*pumps(pattern), *(("", unit) for unit in COMMON)]:
        assert not superlinear(reads, before, unit)


def everything(text: str) -> None:
    """Whatever reads a text of any length, on its way in and out."""
    turn = Turn(
        id="t", owner=Owner("acme", "ann"), project="", session="s", seq=0, at=datetime.now(UTC),
        asked=text, answered=text,
    )  # fmt: skip
    suspicion.__wrapped__(text)  # type: ignore[attr-defined]  # without its memory
    find_secrets(text)
    of_caller(text, frozenset())
    of_assistant(text, frozenset(), frozenset())
    list(identifiers(text))
    judge(turn, turn.at)
    commands_of(text)
    first_person_statements(text)
    without_quotes(text)
    neutralize(text)
    without_blocks(text)
    plain_query(text, [text, text])
    dates.asked_of(text, date(2026, 1, 1))
    kinds(text)
    may_correct(text)
    content_stems(text)
    word_set(text)
    normal(text)
    fold(text)


@pytest.mark.no_cover
@pytest.mark.parametrize("unit", PUMPED, ids=repr)
def test_what_is_made_of_a_text_costs_in_proportion_to_it(unit: str) -> None:
    assert not superlinear(everything, "", unit)
