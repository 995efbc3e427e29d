from __future__ import annotations

import pytest

from memory_extproc.model import Switch
from memory_extproc.model.headers import Headers
from memory_extproc.request.policy import NO_RULE, RuleFacts, Rules
from memory_extproc.settings.traffic import RuleSection, RuleSignals, RuleThen, RuleWhen

FOUND = RuleThen(limit=1)


def matches(when: RuleWhen, facts: RuleFacts) -> bool:
    return Rules([RuleSection(when=when, then=FOUND)]).first(facts) is FOUND


def a_request(
    path: str = "/v1/chat/completions",
    model: str = "openai/gpt-4o",
    route: str = "chat",
    tenant: str = "acme",
    headers: Headers | None = None,
    asked: str = "What is my budget?",
) -> RuleFacts:
    return RuleFacts(path=path, model=model, route=route, tenant=tenant, headers=headers or Headers(), asked=asked)


def test_without_a_matching_rule_nothing_is_set() -> None:
    rules = Rules([RuleSection(when=RuleWhen(tenant="other"), then=FOUND)])
    assert rules.first(a_request()) == NO_RULE
    assert Rules([]).first(a_request()) == NO_RULE


def test_the_first_rule_that_matches_decides_alone() -> None:
    rules = Rules(
        [
            RuleSection(when=RuleWhen(tenant="other"), then=RuleThen(limit=1)),
            RuleSection(when=RuleWhen(model="*gpt*"), then=RuleThen(retrieve=Switch.SKIP)),
            RuleSection(when=RuleWhen(path="*"), then=RuleThen(limit=9, signals=RuleSignals(tool=True))),
        ]
    )
    assert rules.first(a_request()) == RuleThen(retrieve=Switch.SKIP)
    assert rules.first(a_request(model="qwen3")) == RuleThen(limit=9, signals=RuleSignals(tool=True))


@pytest.mark.parametrize(
    ("when", "facts", "holds"),
    [
        (RuleWhen(path="*"), a_request(), True),
        (RuleWhen(path="/v1/*"), a_request(path="/v1/chat/completions?api-version=1"), True),
        (RuleWhen(path="/v1/chat"), a_request(), False),
        (RuleWhen(path="*/completions"), a_request(path="/openai/V1/completions"), True),
        (RuleWhen(path="/v1/CHAT/*"), a_request(), False),
        (RuleWhen(model="OpenAI/GPT-*"), a_request(model="openai/gpt-4O"), True),
        (RuleWhen(model="gpt-*"), a_request(model="openai/gpt-4o"), False),
        (RuleWhen(model="gpt-[45]*"), a_request(model="gpt-5-mini"), True),
        (RuleWhen(route="chat?"), a_request(route="chat1"), True),
        (RuleWhen(route="chat"), a_request(route="chats"), False),
        (RuleWhen(tenant="ACME"), a_request(tenant="acme"), False),
        (RuleWhen(tenant="*"), a_request(tenant=""), True),
        (RuleWhen(tenant="acme\nx"), a_request(tenant="acme"), False),
    ],
)
def test_globs_compare_whole_values_and_models_without_regard_to_case(
    when: RuleWhen, facts: RuleFacts, *, holds: bool
) -> None:
    assert matches(when, facts) is holds


def test_all_that_a_rule_asks_must_hold() -> None:
    when = RuleWhen(tenant="acme", model="*gpt*", header={"X-App": "ide-*"}, keyword=("budget",))
    facts = a_request(headers=Headers([("x-app", "ide-code")]))
    assert matches(when, facts)
    assert not matches(when, a_request(headers=Headers([("x-app", "web")])))
    assert not matches(when, a_request(headers=Headers([("x-app", "ide-code")]), asked="Hello"))
    assert not matches(when, a_request(headers=Headers([("x-app", "ide-code")]), tenant="beta"))


def test_a_header_matches_by_any_of_its_values_and_never_when_it_is_absent() -> None:
    assert matches(RuleWhen(header={"x-app": "b*"}), a_request(headers=Headers([("x-app", "a"), ("X-App", "b1")])))
    assert matches(RuleWhen(header={"x-app": ""}), a_request(headers=Headers([("x-app", "")])))
    assert not matches(RuleWhen(header={"x-app": "*"}), a_request())


@pytest.mark.parametrize(
    ("keyword", "asked", "found"),
    [
        (("budget",), "What is my BUDGET?", True),
        (("budget",), "my budgets", False),
        (("Straße",), "in der STRASSE dort", True),
        (("c++",), "I write C++ daily", True),
        (("salary", "budget"), "the budget.", True),
        (("hawaii trip",), "my Hawaii\n trip", True),
        (("hawaii trip",), "hawaii, a trip", False),
        (("预算",), "我的预算是多少", True),
        (("예산",), "예산 얼마야", True),
        (("budget",), "", False),
        (("a.c",), "abc", False),
    ],
)
def test_keywords_are_whole_words_without_regard_to_case(
    keyword: tuple[str, ...], asked: str, *, found: bool
) -> None:
    assert matches(RuleWhen(keyword=keyword), a_request(asked=asked)) is found


def test_a_rule_with_empty_keywords_asks_for_none() -> None:
    assert matches(RuleWhen(keyword=(" ",)), a_request())


def test_the_callers_words_stay_out_of_print() -> None:
    assert "budget" not in repr(a_request())
