"""A question that no pattern matches is read by its likeness to examples."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pytest

from memory_extproc.inference.onnx import OnnxModel, open_onnx_embedder
from memory_extproc.recall import examples
from memory_extproc.recall.examples import ASKED, EXAMPLES, TOLD, VECTORS, IntentExamples, Likeness
from memory_extproc.recall.fusion import PACKAGED
from memory_extproc.recall.intent import INTENTS, QuestionKind
from memory_extproc.settings.memory import Embedding
from memory_extproc.text.attributes import ATTRIBUTES

FITTED = Path(examples.__file__).parent / "fitted"
TODAY = date(2026, 3, 2)
OTHER_WORDS = {
    "Put together a character sketch of me.": QuestionKind.OVERVIEW,
    "What would you tell a new colleague about the person I am?": QuestionKind.OVERVIEW,
    "What do you reckon I could make for supper?": QuestionKind.CONSTRAINT,
    "Remember our conversation on compost? What was your verdict?": QuestionKind.PAST,
}
NO_QUESTIONS = ("Who painted the Mona Lisa?", "Write me a limerick.", "What's my sister's name?", "Cheers!")


async def test_other_words_for_a_kind_are_read_and_other_questions_are_not(int8_model_dir: Path) -> None:
    async with open_onnx_embedder(int8_model_dir, Embedding()) as embedder:
        known = IntentExamples()

        async def kind(text: str) -> QuestionKind | None:
            like = known.read(text, await embedder.embed_query(text))
            return None if like is None else like.kind

        assert {text: await kind(text) for text in OTHER_WORDS} == OTHER_WORDS
        assert [await kind(text) for text in NO_QUESTIONS] == [None] * len(NO_QUESTIONS)


def test_without_a_vector_nothing_is_read() -> None:
    assert IntentExamples().read("Sum me up.", None) is None


def test_with_the_vectors_of_another_model_nothing_is_read_by_examples() -> None:
    vectors = np.load(FITTED / VECTORS.format(PACKAGED[0]))["vectors"].astype(np.float32)
    of_kind = next(at for at, (label, _) in enumerate(EXAMPLES) if label is not None)
    known = {True: IntentExamples(), False: IntentExamples(lambda: False)}
    assert known[True].read("Sum me up.", vectors[of_kind]) is not None
    assert known[False].read("Sum me up.", vectors[of_kind]) is None
    assert known[False].read("Sum me up.", np.ones(8, dtype=np.float32)) is None
    assert not known[False].told_by(vectors).any()


def test_the_packaged_vectors_are_those_of_the_examples(int8_model_dir: Path) -> None:
    model = OnnxModel(int8_model_dir)
    with np.load(FITTED / VECTORS.format(PACKAGED[0])) as packaged:
        for name, examples in {"vectors": EXAMPLES, "asked": ASKED}.items():
            made = np.vstack([model.run([text], 2048) for _, text in examples])
            vectors = packaged[name].astype(np.float32)
            assert vectors.shape == made.shape
            assert float((vectors * made).sum(axis=1).min()) > 0.98
    made = np.vstack([model.run([text], 2048) for _, text in TOLD])
    told = IntentExamples().told_by(made).tolist()
    assert sum(mask == found for (mask, _), found in zip(TOLD, told, strict=True)) > 0.9 * len(TOLD)


@pytest.mark.parametrize(
    ("asked", "kind", "subject"),
    [
        ("Catch me up on the kitchen renovation", QuestionKind.SUBJECT, "kitchen renovation"),
        ("what was your verdict on compost?", QuestionKind.PAST, "verdict compost"),
    ],
)
def test_the_words_that_no_example_has_are_the_subject(asked: str, kind: QuestionKind, subject: str) -> None:
    [intent] = INTENTS.read_as(asked, kind, "", TODAY).intents
    assert (intent.kind, intent.subject) == (kind, subject)


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ("what do you know about yourself?", QuestionKind.OVERVIEW),
        ("describe my sister", QuestionKind.OVERVIEW),
        ("write a story about dinner", QuestionKind.CONSTRAINT),
        ("what did Churchill say?", QuestionKind.PAST),
    ],
)
def test_a_question_whose_words_show_another_kind_is_not_read(asked: str, kind: QuestionKind) -> None:
    assert not INTENTS.read_as(asked, kind, "food", TODAY).intents


STATEMENTS = {
    "prawns and me don't mix, my whole face swells": "allergies",
    "we finally got the keys, the new flat is right by the harbour": "home",
    "broke up with Ellie last night": "partner",
    "the kitten keeps attacking my feet": "pets",
}
QUESTIONS = {
    "whereabouts do we live?": "home",
    "list my health issues": "health",
    "what do I do for a living?": "job",
    "do I have a girlfriend?": "partner",
}


async def test_statements_and_questions_have_the_attribute_of_examples_in_other_words(int8_model_dir: Path) -> None:
    async with open_onnx_embedder(int8_model_dir, Embedding()) as embedder:
        known = IntentExamples()
        vectors = np.asarray(await embedder.embed([*STATEMENTS, "could you make that shorter?"]))
        told = known.told_by(vectors).tolist()
        assert told == [ATTRIBUTES.mask([name]) for name in STATEMENTS.values()] + [0]
        for text, name in QUESTIONS.items():
            kind = QuestionKind.LIST if text.startswith("list") else QuestionKind.INDIRECT
            like = Likeness(kind, attributes=ATTRIBUTES.mask([name]))
            assert known.read(text, await embedder.embed_query(text)) == like


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ("Name all the allergies that I have mentioned to you.", QuestionKind.LIST),
        ("all the birds I've spotted so far", QuestionKind.LIST),
        ("Tell me evrything about my son Liam.", QuestionKind.SUBJECT),
    ],
)
async def test_a_list_and_a_subject_are_read_where_a_pattern_read_a_single_fact(
    int8_model_dir: Path, asked: str, kind: QuestionKind
) -> None:
    async with open_onnx_embedder(int8_model_dir, Embedding()) as embedder:
        reading = INTENTS.read(asked, (), TODAY)
        assert IntentExamples().may_read(reading)
        reading = IntentExamples().reread(reading, asked, await embedder.embed_query(asked), INTENTS, TODAY)
        assert reading.intents[0].kind is kind


@pytest.mark.parametrize(
    ("asked", "likely", "attributes", "subject"),
    [
        ("Name all the allergies that I have mentioned to you.", [], ["allergies"], ""),  # not "name"
        ("List everything I'm not allowed to eat", ["diet"], ["diet"], ""),
        ("List my allergies, please", ["health"], ["allergies"], ""),  # words before likeness
        ("Which nurses have I told you about?", [], [], "nurses"),
    ],
)
def test_a_list_asks_for_the_attribute_in_its_words_then_the_likely_one_then_the_thing_itself(
    asked: str, likely: list[str], attributes: list[str], subject: str
) -> None:
    [intent] = INTENTS.read_as(asked, QuestionKind.LIST, "", TODAY, ATTRIBUTES.mask(likely)).intents
    assert (intent.kind, ATTRIBUTES.names(intent.attributes)) == (QuestionKind.LIST, attributes)
    assert intent.subject == subject


@pytest.mark.parametrize("model", PACKAGED)
def test_each_packaged_model_has_the_vectors_of_every_example(model: str) -> None:
    with np.load(FITTED / VECTORS.format(model)) as packaged:
        assert len(packaged["vectors"]) == len(EXAMPLES)
        assert len(packaged["asked"]) == len(ASKED)
        vectors = packaged["vectors"].astype(np.float32)
    known = IntentExamples(model=model)
    read = [known.read(text, vector) for (_, text), vector in zip(EXAMPLES, vectors, strict=True)]
    right = sum(like == label for (label, _), like in zip(EXAMPLES, read, strict=True))
    assert right > 0.6 * len(EXAMPLES)


def test_vectors_of_another_model_have_no_attribute() -> None:
    made = IntentExamples().told_by(np.ones((2, 8), dtype=np.float32))
    assert made.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ("am I seeing anybody?", QuestionKind.INDIRECT),
        ("list my health issues", QuestionKind.LIST),
        ("what did we use to drive?", QuestionKind.AS_OF),
    ],
)
def test_a_question_read_for_its_attribute_wants_one_all_or_the_former_value(
    asked: str, kind: QuestionKind
) -> None:
    [intent] = INTENTS.read_as(asked, QuestionKind.INDIRECT, "", TODAY, ATTRIBUTES.every).intents
    assert (intent.kind, intent.alike) == (kind, True)
    assert not INTENTS.read_as("who wrote Dracula?", QuestionKind.INDIRECT, "", TODAY, ATTRIBUTES.every).intents


async def test_an_overview_in_other_words_is_told_from_the_kind_that_a_pattern_takes_it_for(
    int8_model_dir: Path,
) -> None:
    asked = {
        "summarise who I am, where I live, what I do, the lot": True,
        "recommend a restaurant for tonight": False,
    }
    async with open_onnx_embedder(int8_model_dir, Embedding()) as embedder:
        for text, overview in asked.items():
            reading = INTENTS.read(text, (), TODAY)
            vector = await embedder.embed_query(text)
            read = IntentExamples().reread(reading, text, vector, INTENTS, TODAY)
            assert reading.intents[0].kind is not QuestionKind.OVERVIEW
            assert (read.intents[0].kind is QuestionKind.OVERVIEW) is overview
