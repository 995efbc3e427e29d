"""The stand-ins say what they promise, so that tests may lean on them."""

from __future__ import annotations

import pytest

from memory_extproc.errors import ConfigurationError, PermanentError, TransientError
from memory_extproc.inference.sentence_transformers import load_installed, open_sentence_transformers_embedder
from memory_extproc.settings.memory import Embedding
from memory_extproc.testing.models import CannedCompletions, CannedEmbedder


class SentenceTransformer:
    """Stands for the library's class of that name."""


async def test_texts_that_share_words_are_near_and_others_are_not() -> None:
    budget, question, hiking = await CannedEmbedder().embed(
        ["My budget for the Hawaii trip is $10,000", "What is my budget for the Hawaii trips?", "I like hiking"]
    )

    assert budget @ question > 0.7
    assert abs(budget @ hiking) < 0.3


async def test_a_failing_embedder_fails() -> None:
    embedder = CannedEmbedder()
    embedder.failing = TransientError("down")

    with pytest.raises(TransientError):
        await embedder.embed_query("x")


async def test_what_was_asked_is_kept_and_the_answers_are_used_up() -> None:
    completions = CannedCompletions(["one"])

    assert await completions.complete("s", "u", schema={}) == "one"
    assert completions.asked == [("s", "u", {})]
    with pytest.raises(PermanentError, match="no answer is left"):
        await completions.complete("s", "u")


async def test_answers_may_be_worked_out() -> None:
    assert await CannedCompletions(lambda system, user: f"{system}-{user}").complete("s", "u") == "s-u"


async def test_a_library_that_is_not_installed_is_named_with_the_remedy() -> None:
    opening = open_sentence_transformers_embedder("m", "", Embedding(), load=lambda: load_installed("not_there"))
    with pytest.raises(ConfigurationError, match=r"install memory-extproc\[sentence-transformers\]"):
        async with opening:
            pytest.fail("opened")


def test_the_class_of_an_installed_library_is_found() -> None:
    assert load_installed("tests.unit.inference.test_canned") is SentenceTransformer


async def test_a_model_the_library_does_not_know_is_given_up() -> None:
    def load(name: str, device: str | None) -> object:
        raise OSError(name)

    with pytest.raises(PermanentError, match="cannot load 'm'"):
        async with open_sentence_transformers_embedder("m", "", Embedding(), load=lambda: load):
            pytest.fail("opened")
