"""The check of how code reads finds each class of fault that it names."""

from __future__ import annotations

import pytest

from scripts import check_style

PATH = "memory_extproc/a.py"
FREE_RELATIVES = "What is late is dropped. Who asks gets one. Those that wait are told. Nobody else is asked."


def test_docstrings_and_comments_full_of_free_relatives_are_found_with_their_sentences() -> None:
    source = f'"""{FREE_RELATIVES}"""\n# What comes later stays.\n'
    found = {finding.text for finding in check_style.check_prose(PATH, source)}
    assert {"What is late is dropped.", "Those that wait are told.", "What comes later stays."} <= found


def test_a_single_sentence_that_begins_with_a_free_relative_is_found() -> None:
    [finding] = check_style.check_prose(PATH, '"""Read the file. What comes later stays."""\n')
    assert finding.text == "What comes later stays."


def test_plain_sentences_and_questions_pass() -> None:
    source = '"""The breaker opens after three failures. What does it protect? One call may pass as a probe."""\n'
    assert check_style.check_prose(PATH, source) == []


@pytest.mark.parametrize("name", ["told", "_held", "settled", "kept"])
def test_a_function_called_by_a_bare_participle_is_found(name: str) -> None:
    [finding] = check_style.check_names(PATH, f"async def {name}(): ...\n")
    assert finding.text == f"def {name}"


@pytest.mark.parametrize("name", ["embed", "seed", "feed", "need", "search_shared", "deduplicate"])
def test_verbs_and_verbs_with_an_object_pass(name: str) -> None:
    assert check_style.check_names(PATH, f"def {name}(): ...\n") == []


def test_a_property_may_be_an_adjective() -> None:
    assert check_style.check_names(PATH, "class A:\n    @property\n    def closed(self): ...\n") == []


def test_a_module_that_a_comment_names_and_that_is_gone_is_found() -> None:
    source = "# See dialect/base.py, and settle/gone.py.\n"
    [finding] = check_style.check_files_named(PATH, source, frozenset({"base.py"}))
    assert finding.text == "settle/gone.py does not exist"


def test_a_constructor_with_ten_arguments_is_found() -> None:
    names = [f"a{n}" for n in range(check_style.MAX_ARGUMENTS)]
    assert (
        check_style.check_constructors(PATH, f"class A:\n    def __init__(self, {', '.join(names)}): ...\n") == []
    )
    [finding] = check_style.check_constructors(
        PATH, f"class A:\n    def __init__(self, {', '.join(names)}, *, b): ...\n"
    )
    assert finding.text == "A: 10 arguments"


def test_a_file_above_the_limit_is_found() -> None:
    assert check_style.check_size(PATH, "x = 1\n" * (check_style.MAX_LINES + 1))
    assert check_style.check_size(PATH, "x = 1\n" * check_style.MAX_LINES) == []


def test_the_package_is_looked_through() -> None:
    assert len(check_style.source_files()) > 100
