"""A question that no pattern matches is read by its likeness to examples."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pytest

from memory_extproc.errors import TransientError
from memory_extproc.inference.batching import EmbedderLimits
from memory_extproc.inference.onnx import open_onnx_embedder
from memory_extproc.recall.examples import IntentExamples
from memory_extproc.recall.intent import INTENTS, Kind
from memory_extproc.testing.models import CannedEmbedder

TODAY = date(2026, 3, 2)
OTHER_WORDS = {
    "Put together a character sketch of me.": Kind.OVERVIEW,
    "What would you tell a new colleague about the person I am?": Kind.OVERVIEW,
    "What do you reckon I could make for supper?": Kind.CONSTRAINT,
    "Remember our conversation on compost? What was your verdict?": Kind.PAST,
}
NO_QUESTIONS = ("Who painted the Mona Lisa?", "Write me a limerick.", "What's my sister's name?", "Cheers!")


async def test_other_words_for_a_kind_are_read_and_other_questions_are_not(int8_model_dir: Path) -> None:
    async with open_onnx_embedder(int8_model_dir, EmbedderLimits()) as embedder:
        examples = IntentExamples(embedder, waits=True)

        async def kind(text: str) -> Kind | None:
            like = await examples.read(text, await embedder.embed_query(text))
            return None if like is None else like.kind

        assert {text: await kind(text) for text in OTHER_WORDS} == OTHER_WORDS
        assert [await kind(text) for text in NO_QUESTIONS] == [None] * len(NO_QUESTIONS)


async def test_without_a_model_or_a_vector_nothing_is_read() -> None:
    embedder = CannedEmbedder()
    embedder.failing = TransientError("away")
    examples = IntentExamples(embedder, waits=True)
    assert await examples.read("Sum me up.", np.ones(384, dtype=np.float32)) is None
    assert await examples.read("Sum me up.", None) is None


@pytest.mark.parametrize(
    ("asked", "kind", "subject"),
    [
        ("Catch me up on the kitchen renovation", Kind.SUBJECT, "kitchen renovation"),
        ("what was your verdict on compost?", Kind.PAST, "verdict compost"),
    ],
)
def test_the_words_that_no_example_has_are_the_subject(asked: str, kind: Kind, subject: str) -> None:
    [intent] = INTENTS.read_as(asked, kind, "", TODAY).intents
    assert (intent.kind, intent.subject) == (kind, subject)


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ("what do you know about yourself?", Kind.OVERVIEW),
        ("describe my sister", Kind.OVERVIEW),
        ("write a story about dinner", Kind.CONSTRAINT),
        ("what did Churchill say?", Kind.PAST),
    ],
)
def test_a_question_whose_words_show_another_kind_is_not_read(asked: str, kind: Kind) -> None:
    assert not INTENTS.read_as(asked, kind, "food", TODAY).intents
