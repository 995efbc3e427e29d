"""A data set is read as it is meant, or refused with the place where it is not what it says."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_extproc.evaluation.datasets import DatasetError, read_dataset
from memory_extproc.model import Role
from tests.unit.evaluation.sets import a_note, a_query, a_sample, write_json, write_lines

Sample = dict[str, Any]


def test_locomo_is_read_with_names_before_the_words_and_captions_behind(tmp_path: Path) -> None:
    (conversation,) = read_dataset(write_json(tmp_path / "set.json", [a_sample()])).conversations
    first, second, third = conversation.said[:3]
    assert (first.id, first.role, first.session) == ("D1:1", Role.USER, "session_1")
    assert first.text == "Anna: I adopted a cat called Miso from the shelter."
    assert first.at == datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
    assert second.role is Role.ASSISTANT
    assert second.at > first.at
    assert third.text == "Anna: Look at this one. [picture: a photo of beehives on a roof]"


def test_questions_keep_the_evidence_that_exists_and_count_what_does_not(tmp_path: Path) -> None:
    (conversation,) = read_dataset(write_json(tmp_path / "set.json", [a_sample()])).conversations
    cat, sister, adversarial = conversation.questions
    assert cat.relevant == {"D1:1"}
    assert sister.relevant == {"D2:1"}
    assert conversation.skipped == 1
    assert (cat.counts, sister.counts, adversarial.counts) == (True, True, False)


@pytest.mark.parametrize(
    ("written", "read", "skipped"),
    [
        (["D1:1 D1:2"], {"D1:1", "D1:2"}, 0),
        (["D:1:1"], {"D1:1"}, 0),
        (["D1:01"], {"D1:1"}, 0),
        (["D"], set(), 1),
        ([""], set(), 1),
        ([], set(), 0),
    ],
)
def test_evidence_is_read_however_it_was_written_down(
    tmp_path: Path, written: list[str], read: set[str], skipped: int
) -> None:
    sample = a_sample(qa=[{"question": "Which?", "evidence": written, "category": 1}])
    (conversation,) = read_dataset(write_json(tmp_path / "set.json", [sample])).conversations
    assert conversation.questions[0].relevant == read
    assert conversation.skipped == skipped


def test_sessions_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    sample = a_sample()
    talk = sample["conversation"]
    talk["session_10"] = [{"speaker": "Anna", "dia_id": "D10:1", "text": "At last it rained."}]
    talk["session_10_date_time"] = "1:00 pm on 1 July, 2023"
    (conversation,) = read_dataset(write_json(tmp_path / "set.json", [sample])).conversations
    assert [one.id for one in conversation.said][-1] == "D10:1"


def damaged(change: Callable[[Sample], object]) -> list[Sample]:
    sample = copy.deepcopy(a_sample())
    change(sample)
    return [sample]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.pop("conversation"), "[0].conversation: expected an object, found nothing"),
        (lambda s: s.update(conversation=[]), "[0].conversation: expected an object, found a list"),
        (lambda s: s.pop("qa"), "[0].qa: expected a list, found nothing"),
        (lambda s: s.update(sample_id=3), "[0].sample_id: expected a text, found a number"),
        (lambda s: s["conversation"].pop("speaker_a"), "conversation.speaker_a: expected a text, found nothing"),
        (lambda s: s["conversation"].update(speaker_b="Anna"), "speaker_a and speaker_b have one name"),
        (
            lambda s: s["conversation"].pop("session_1_date_time"),
            "session_1_date_time: expected a time, found nothing",
        ),
        (lambda s: s["conversation"].update(session_1_date_time="May"), 'expected a time such as "1:56 pm on'),
        (lambda s: s["conversation"].update(session_1={}), "session_1: expected a list, found an object"),
        (lambda s: s["conversation"]["session_1"].append("hi"), "session_1[3]: expected an object, found a text"),
        (lambda s: s["conversation"]["session_1"][1].pop("dia_id"), "session_1[1].dia_id: expected a text"),
        (
            lambda s: s["conversation"]["session_1"][1].update(dia_id=""),
            "dia_id: expected a text, found an empty one",
        ),
        (
            lambda s: s["conversation"]["session_1"][1].update(text=7),
            "session_1[1].text: expected a text, found a num",
        ),
        (lambda s: s["conversation"]["session_1"][1].update(blip_caption=[]), "blip_caption: expected a text"),
        (lambda s: s["conversation"]["session_1"][1].update(speaker="Carl"), "is neither speaker_a nor speaker_b"),
        (
            lambda s: s["conversation"]["session_1"][1].update(dia_id="D1:1"),
            "the id 'D1:1' stands for two memories",
        ),
        (lambda s: (s["conversation"].pop("session_1"), s["conversation"].pop("session_2")), "has no session_1"),
        (lambda s: s["qa"][0].pop("question"), "qa[0].question: expected a text, found nothing"),
        (lambda s: s["qa"][0].update(category=6), "qa[0].category: expected 1 to 5, found 6"),
        (lambda s: s["qa"][0].update(category="4"), "qa[0].category: expected 1 to 5, found a text"),
        (lambda s: s["qa"][0].update(category=True), "qa[0].category: expected 1 to 5"),
        (lambda s: s["qa"][0].update(evidence="D1:1"), "qa[0].evidence: expected a list, found a text"),
        (lambda s: s["qa"][0].update(evidence=[1]), "qa[0].evidence[0]: expected a text, found a number"),
        (lambda s: s.update(qa=[]), "asks no question"),
    ],
)
def test_a_damaged_sample_is_refused_with_its_place(
    tmp_path: Path, change: Callable[[Sample], object], said: str
) -> None:
    path = write_json(tmp_path / "set.json", damaged(change))
    with pytest.raises(DatasetError) as refused:
        read_dataset(path)
    assert str(refused.value).startswith("set.json")
    assert said in str(refused.value)


def test_two_samples_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="two conversations named 'conv-1'"):
        read_dataset(write_json(tmp_path / "set.json", [a_sample(), a_sample()]))


def test_our_own_lines_are_read_by_owner(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "set.jsonl",
        a_note("m1"),
        a_note("b1", owner="bob"),
        a_note("m2", "Yes, two.", session="s", role="user", at="2026-03-02T10:00:00+01:00"),
        a_note("m3", "User keeps goats", replaces="m1"),
        "",
        a_query("What do I keep?", "m3", category="update", earlier=["Hello"]),
        a_query("What is my name?"),
    )
    ann, bob = read_dataset(path).conversations
    assert [one.id for one in ann.noted] == ["m1", "m3"]
    assert ann.noted[1].replaces == "m1"
    assert [one.id for one in ann.said] == ["m2"]
    assert ann.said[0].at == datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
    assert [one.counts for one in ann.questions] == [True, False]
    assert ann.questions[0].earlier == ("Hello",)
    assert [one.id for one in bob.noted] == ["b1"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: Input data was truncated"),
        ('{"memory": "m", "owner"', "line 2: Input data was truncated"),
        ("[]", "line 2: Expected `object`, got `array`"),
        ({"owner": "ann"}, 'line 2: expected either "memory" or "query"'),
        ({**a_note("m9"), "query": "x"}, 'line 2: expected either "memory" or "query"'),
        (
            {"memory": "m9", "owner": "ann", "at": "2026-03-02T09:00:00Z"},
            "line 2: Object missing required field `text`",
        ),
        (a_note("m9", at="yesterday"), "line 2: Invalid RFC3339 encoded datetime - at `$.at`"),
        (a_note("m9", text=""), "line 2: Expected `str` of length >= 1 - at `$.text`"),
        (a_note("m9", owner=""), "line 2: Expected `str` of length >= 1 - at `$.owner`"),
        (a_note("m9", colour="red"), "line 2: Object contains unknown field `colour`"),
        (a_note("m9", session="s"), "line 2: a message has both a session and a role"),
        (a_note("m9", role="user"), "line 2: a message has both a session and a role"),
        (a_note("m9", role="system", session="s"), "line 2: role: expected user or assistant"),
        (a_note("m9", role="user", session="s", replaces="m1"), "line 2: replaces: a message replaces nothing"),
        (a_note("m9", replaces="m8"), "'m9' replaces 'm8', which is no other note of this owner"),
        (a_note("m9", replaces="m9"), "'m9' replaces 'm9', which is no other note of this owner"),
        (a_note("m1"), "the id 'm1' stands for two memories"),
        (a_query("What?", "nobody"), "line 2: relevant: there is no memory 'nobody' of 'ann'"),
        (
            {"query": "What?", "owner": "ann", "relevant": "m1"},
            "line 2: Expected `array`, got `str` - at `$.relevant`",
        ),
        (a_query("What?", owner="bob"), "bob: holds nothing to remember"),
    ],
)
def test_a_damaged_line_is_refused_with_its_number(tmp_path: Path, line: Any, said: str) -> None:
    path = write_lines(tmp_path / "set.jsonl", a_note("m1"), line, a_query("What do I keep?", "m1"))
    with pytest.raises(DatasetError) as refused:
        read_dataset(path)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"question,answer\n", "is neither a JSON list"),
        (b"\x89PNG\r\n\x1a\n", "is neither a JSON list"),
        (b"[{]", "is not JSON"),
        (b'[{"a": "\xff"}]', "is not JSON"),
        (b"[]", "holds no conversation"),
        (b'{"memory": "m", "text": "\xff"}', "line 1: "),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, raw: bytes, said: str) -> None:
    path = tmp_path / "set"
    path.write_bytes(raw)
    with pytest.raises(DatasetError) as refused:
        read_dataset(path)
    assert said in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"nowhere\.json: cannot be read: No such file"):
        read_dataset(tmp_path / "nowhere.json")
    with pytest.raises(DatasetError, match="holds no conversation"):
        read_dataset(tmp_path)


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps([a_sample()]).encode())
    assert read_dataset(path).questions == 3


def test_no_refusal_repeats_what_people_said(tmp_path: Path) -> None:
    sample = a_sample()
    sample["conversation"]["session_1"][1].update(speaker="Secret Person", text="My secret")
    with pytest.raises(DatasetError) as refused:
        read_dataset(write_json(tmp_path / "set.json", [sample]))
    assert "secret" not in str(refused.value).lower()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["sample_id", "conversation", "qa", "session_1", "evidence"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(value=st.lists(JSON, max_size=3))
@settings(max_examples=60, deadline=None)
def test_whatever_json_it_is_the_answer_is_a_data_set_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, value: list[Any]
) -> None:
    path = write_json(tmp_path_factory.mktemp("any") / "set.json", value)
    with pytest.raises(DatasetError):
        read_dataset(path)


def a_haystack(**changes: Any) -> dict[str, Any]:
    """A question of LongMemEval with a history of two sessions."""
    return {
        "question_id": "q1",
        "question_type": "knowledge-update",
        "question": "How many bikes do I have?",
        "question_date": "2023/06/01 (Thu) 10:00",
        "answer": "4",
        "haystack_session_ids": ["a", "b"],
        "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 12:00"],
        "haystack_sessions": [
            [{"role": "user", "content": "I have three bikes."}, {"role": "assistant", "content": "Nice."}],
            [
                {"role": "user", "content": "I bought a fourth bike.", "has_answer": True},
                {"role": "assistant", "content": " "},
            ],
        ],
        "answer_session_ids": ["b", "gone"],
        **changes,
    }


def test_longmemeval_is_read_with_the_turns_that_are_marked(tmp_path: Path) -> None:
    path = write_json(tmp_path / "set.json", [a_haystack(), a_haystack(question_id="q2_abs")])
    answered, unanswerable = read_dataset(path).conversations
    assert [one.text for one in answered.said] == ["I have three bikes.", "Nice.", "I bought a fourth bike."]
    assert answered.asked_at == datetime(2023, 6, 1, 10, tzinfo=UTC)
    assert answered.skipped == 1
    (question,) = answered.questions
    assert question.relevant == {"1:b:0"}
    assert question.category == "knowledge-update"
    assert not unanswerable.questions[0].relevant


def test_without_marked_turns_the_users_words_in_the_sessions_named_are_the_evidence(tmp_path: Path) -> None:
    path = write_json(
        tmp_path / "set.json", [a_haystack(answer_session_ids=["a"], haystack_dates=["2023/05/20"] * 2)]
    )
    sessions = a_haystack()["haystack_sessions"]
    del sessions[1][0]["has_answer"]
    path = write_json(tmp_path / "set.json", [a_haystack(answer_session_ids=["a"], haystack_sessions=sessions)])
    assert read_dataset(path).conversations[0].questions[0].relevant == {"0:a:0"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"haystack_dates": ["2023/05/20"]}, "[0].haystack_dates: expected 2, one a session, found 1"),
        ({"haystack_dates": ["May", "June"]}, "[0].haystack_dates[0]: expected a time such as"),
        (
            {"haystack_sessions": [[{"role": "tool", "content": "x"}], []]},
            "[0][0].role: expected user or assistant",
        ),
        ({"haystack_sessions": [[{"role": "user", "content": 1}], []]}, "[0][0].content: expected a text"),
        ({"question": ""}, "[0].question: expected a text"),
    ],
)
def test_a_damaged_haystack_is_refused_with_its_place(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = write_json(tmp_path / "set.json", [a_haystack(**changes)])
    with pytest.raises(DatasetError, match=re.escape(said)):
        read_dataset(path)


def test_a_directory_of_cases_says_what_must_and_must_not_be_injected(tmp_path: Path) -> None:
    case = {
        "query": "What's my dog called?",
        "memories": {"a": "Rex", "b": "A cat"},
        "must": ["a"],
        "must_not": ["b"],
    }
    write_json(tmp_path / "one.json", case)
    (conversation,) = read_dataset(tmp_path).conversations
    (question,) = conversation.questions
    assert conversation.name == "one.json"
    assert question.relevant == {"a"}
    assert question.unwanted == {"b"}
    write_json(tmp_path / "two.json", {**case, "must": ["c"]})
    with pytest.raises(DatasetError, match=r"two\.json: must: there is no memory 'c'"):
        read_dataset(tmp_path)
