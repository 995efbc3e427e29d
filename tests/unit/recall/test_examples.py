"""A question that no pattern matches is read by its likeness to examples."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pytest

from memory_extproc.inference.batching import EmbedderLimits
from memory_extproc.inference.onnx import OnnxModel, open_onnx_embedder
from memory_extproc.recall import examples
from memory_extproc.recall.examples import EXAMPLES, VECTORS, IntentExamples
from memory_extproc.recall.intent import INTENTS, Kind

FITTED = Path(examples.__file__).parent / "fitted"
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
        known = IntentExamples()

        async def kind(text: str) -> Kind | None:
            like = known.read(text, await embedder.embed_query(text))
            return None if like is None else like.kind

        assert {text: await kind(text) for text in OTHER_WORDS} == OTHER_WORDS
        assert [await kind(text) for text in NO_QUESTIONS] == [None] * len(NO_QUESTIONS)


def test_without_a_vector_nothing_is_read() -> None:
    assert IntentExamples().read("Sum me up.", None) is None


def test_the_packaged_vectors_are_those_of_the_examples(int8_model_dir: Path) -> None:
    model = OnnxModel(int8_model_dir)
    made = np.vstack([model.run([text], 2048) for _, text in EXAMPLES])
    with np.load(FITTED / VECTORS) as packaged:
        vectors = packaged["vectors"].astype(np.float32)
    assert vectors.shape == made.shape
    assert float((vectors * made).sum(axis=1).min()) > 0.99


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
