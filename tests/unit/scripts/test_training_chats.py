"""Plain chats are read as their format says, faults have file and line, and sets for the fit come out of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memory_extproc.evaluation.datasets import read_dataset
from scripts.train import chats
from scripts.train.chats import ChatError, Example, Person, read_chats

DANIEL = """\
@ daniel
# 2026-03-02 09:30
> I moved to Luthagen, the rent is 6,900 a month
< Luthagen is a nice part of town.
> my sister Iris has a boat

# 2026-04-10 18:00
> rent went up, it's 7,200 from May
< Noted, 7,200 for the flat in Luthagen.
> Iris sold the boat and bought a caravan
? fact :: where do I live? :: Luthagen
? change :: What is my rent? :: 7,200 :: !6,900 / 6.900
? list :: what has Iris owned :: boat ;; caravan
? fact :: Where did my flat go up? :: rent + 7,200 / nowhere
? overview :: what do you know about me :: Luthagen ;; Iris
? small :: How do magnets work? :: -
"""
SAID = "@ ann\n# 2026-03-02 09:30\n> I moved to Luthagen\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.txt"


def read(path: Path, text: str) -> list[Person]:
    path.write_text(text, encoding="utf-8")
    return read_chats([path])


@pytest.fixture
def daniel(path: Path) -> Person:
    [person] = read(path, DANIEL)
    return person


def find_example(person: Person, question: str) -> Example:
    [example] = [one for one in person.list_examples() if one.question == question]
    return example


def test_messages_have_their_session_role_and_time(daniel: Person) -> None:
    first, second, *_, last = daniel.messages
    assert (first.id, first.session, first.role) == ("daniel-0-0", "daniel-0", "user")
    assert (second.role, second.text) == ("assistant", "Luthagen is a nice part of town.")
    assert (second.at - first.at).total_seconds() == 50
    assert (last.id, last.at.isoformat()) == ("daniel-1-2", "2026-04-10T18:01:40+00:00")


def test_the_persons_own_messages_answer_before_those_of_the_assistant(daniel: Person) -> None:
    example = find_example(daniel, "where do I live?")
    assert example.right == (0,)
    assert example.ignored == {1, 4}


def test_a_change_question_ignores_the_former_value_and_the_assistants_words(daniel: Person) -> None:
    example = find_example(daniel, "What is my rent?")
    assert example.right == (3,)
    assert example.ignored == {0, 4}


def test_a_message_without_forbidden_words_answers_before_one_with_them(path: Path) -> None:
    told = "> it was 6,900, now 7,200\n> so 7,200 it is\n"
    [person] = read(path, f"{SAID}{told}? change :: my rent? :: 7,200 :: 6,900\n")
    [example] = person.list_examples()
    assert example.right == (2,)
    assert example.ignored == {1}


def test_a_message_with_forbidden_words_answers_where_no_other_does(path: Path) -> None:
    told = "> it was 6,900, now 7,200\n> 6,900 was fine\n"
    [person] = read(path, f"{SAID}{told}? change :: my rent? :: 7,200 :: 6,900\n")
    [example] = person.list_examples()
    assert example.right == (1,)
    assert example.ignored == {2}


def test_every_piece_is_answered_and_words_match_from_their_beginning(daniel: Person) -> None:
    assert find_example(daniel, "what has Iris owned").right == (2, 5)
    assert find_example(daniel, "Where did my flat go up?").right == (3,)


def test_a_piece_has_two_messages_to_train_on(path: Path) -> None:
    [person] = read(path, SAID + "> Luthagen is quiet\n> back in Luthagen\n? fact :: my home? :: luthagen\n")
    [example] = person.list_examples()
    assert example.right == (0, 1)
    assert example.ignored == {2}


def test_small_talk_has_no_answer_and_overviews_are_not_trained_on(daniel: Person) -> None:
    example = find_example(daniel, "How do magnets work?")
    assert not example.right
    assert not example.ignored
    assert "overview" not in {one.kind for one in daniel.list_examples()}


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        ("> hello\n", 1, "no person before it"),
        ("@ Ann\n", 1, "one word in lower case"),
        ("@\n", 1, "one word in lower case"),
        ("@ ann\n\n> hello\n", 3, "no session"),
        ("@ ann\n# 2 March\n", 2, "a time like"),
        (SAID + ">\n", 4, "empty"),
        (SAID + "# 2026-03-01 09:30\n", 4, "not later"),
        (SAID + "hello\n", 4, "begins with"),
        (SAID + "? fact :: where?\n", 4, "a question is"),
        (SAID + "? guess :: where? :: Luthagen\n", 4, "no such kind of question: guess"),
        (SAID + "? fact :: where? :: Sweden / Lutheran\n", 4, "words of no message: Sweden / Lutheran"),
        (SAID + "? fact :: where? :: hagen\n", 4, "words of no message: hagen"),
        (SAID + "? fact :: where? :: -\n", 4, "small questions"),
        (SAID + "? small :: where? :: Luthagen\n", 4, "small questions"),
        (SAID + "? fact :: where? :: Luthagen\n> bye\n", 5, "behind the last session"),
        (SAID + SAID, 4, "the person ann is there already"),
    ],
)
def test_a_fault_is_named_by_file_and_line(path: Path, text: str, line: int, fault: str) -> None:
    with pytest.raises(ChatError) as caught:
        read(path, text)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert fault in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    for name in ("missing.txt", "binary.txt"):
        with pytest.raises(ChatError, match=rf"{name}: cannot be read: "):
            read_chats([tmp_path / name])


def test_a_person_of_another_file_is_not_there_twice(tmp_path: Path) -> None:
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for one in paths:
        one.write_text(SAID, encoding="utf-8")
    with pytest.raises(ChatError, match=r"b\.txt:1: "):
        read_chats(paths)


def test_a_set_for_the_fit_has_the_messages_and_the_answers(path: Path) -> None:
    path.write_text(DANIEL, encoding="utf-8")
    out = path.with_name("set.jsonl")
    chats.main([f"{path}", f"--out={out}"])
    [case] = read_dataset(out).conversations
    assert [one.id for one in case.said] == [f"daniel-{n}" for n in ("0-0", "0-1", "0-2", "1-0", "1-1", "1-2")]
    assert {(one.category, *sorted(one.relevant)) for one in case.questions} == {
        ("fact", "daniel-0-0"),
        ("change", "daniel-1-0"),
        ("list", "daniel-0-2", "daniel-1-2"),
        ("fact", "daniel-1-0"),
        ("small",),
    }
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert rows[0]["at"] == "2026-03-02T09:30:00Z"


def test_a_faulty_file_writes_no_set(path: Path) -> None:
    path.write_text("hello\n", encoding="utf-8")
    out = path.with_name("set.jsonl")
    with pytest.raises(SystemExit, match=r"chats\.txt:1: "):
        chats.main([f"{path}", f"--out={out}"])
    assert not out.exists()
