"""A model's answer without its reasoning and fences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.inference.openai_models import without_fence, without_reasoning


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("plain", "plain"),
        ("<think>hm</think>yes", "yes"),
        ("\n<think>\nhm\n</think>\n\nyes\n", "yes"),
        ("<THINK>hm</Think>yes", "yes"),
        ("<thinking>a</thinking><think>b</think> yes", "yes"),
        ("the template opened it</think>yes", "yes"),
        ("<think>never ends", ""),
        ("<think></think>", ""),
        ('{"fact": "he wrote </think> on the wall"}', '{"fact": "he wrote </think> on the wall"}'),
        ("he says <think> is a tag", "he says <think> is a tag"),
    ],
)
def test_reasoning_is_taken_off_and_nothing_else(said: str, left: str) -> None:
    assert without_reasoning(said) == left


@given(st.text(), st.text(alphabet=st.characters(exclude_characters="<")))
def test_whatever_was_thought_the_answer_stays(thought: str, answer: str) -> None:
    thought = thought.replace("<", "")

    assert without_reasoning(f"<think>{thought}</think>{answer}") == answer.strip()


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("{}", "{}"),
        ("```json\n{}\n```", "{}"),
        ("```\n{}\n```\n", "{}"),
        ("see ```json\n{}\n``` above", "see ```json\n{}\n``` above"),
    ],
)
def test_a_fence_around_the_whole_answer_is_taken_off(said: str, left: str) -> None:
    assert without_fence(said) == left
