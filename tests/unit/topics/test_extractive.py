"""Summaries without a model: the caller's words and decisions, in order, under a name that tells the subject."""

from __future__ import annotations

import re
import time
import tomllib
from importlib.resources import files

import pytest

from memory_extproc.text.words import LEXICONS
from memory_extproc.topics.extractive import ANSWER, ASKED, name_topic, summarize
from memory_extproc.topics.state import SaidTurn, TurnWords
from tests.unit.topics.following import Surroundings, turns_of

TRIP = (
    ("I plan a family trip to Hawaii in May.", "A trip to Hawaii sounds lovely! Would you like help with flights?"),
    (
        "Yes. There are four of us, and the budget is $10,000.",
        "Great! Direct flights from Seattle cost about $2,400.",
    ),
    ("We'll fly on 12 May with Alaska Airlines then.", "Sure, here is a plan for your trip: fly on 12 May."),
)
PROTEIN = (
    ("Do I need protein powder after training?", "It is convenient, not needed; pea protein is a good one."),
    ("I'm vegan and lactose intolerant, and I train four times a week.", "Then pea protein fits."),
    ("I'll take the pea protein from MyProtein.", "Good choice! Let me know if you need anything else."),
)


def said(*pairs: tuple[str, str]) -> list[TurnWords]:
    return [TurnWords(SaidTurn(bytes(32), 2 * at, 0.0), *pair, (str(at),)) for at, pair in enumerate(pairs)]


def test_a_session_on_two_subjects_names_both_and_keeps_names_numbers_and_dates() -> None:
    text = summarize([said(*TRIP), said(*PROTEIN)], 1)
    assert all(word in text for word in ("Hawaii", "$10,000", "12 May", "Alaska Airlines", "vegan", "pea protein"))
    assert "convenient" not in text
    assert text.index("Hawaii") < text.index("12 May") < text.index("vegan")


def test_the_assistants_pleasantries_offers_and_questions_are_in_no_summary() -> None:
    text = summarize([said(*TRIP), said(*PROTEIN)], 5)
    assert not re.search(r"\?|lovely|Would you|Good choice|Let me know|here is", text)


def test_a_change_of_subject_a_question_without_its_mark_and_advice_for_anything_are_in_no_summary() -> None:
    talk = said(
        ("Different thing: my protein powder is finished.", "I would start small and try it for a week."),
        ("how warm should I keep a damp room", "Ask early, be specific, and agree on a date with everybody."),
        (
            "Can you write to Mr Osei that I pay 19.90 on Friday?",
            "Of course: 'Dear Mr Osei, I shall pay on Friday.'",
        ),
        ("He wants it by the 15th.", "Noted."),
    )
    text = summarize([talk], 5, named=False)
    assert text == "My protein powder is finished. He wants it by the 15th."
    assert not {"different", "friday"} & set(re.findall(r"\w+", name_topic(talk).lower()))


def test_answers_to_the_callers_own_questions_serve_and_are_marked() -> None:
    asked = said(
        ("Where can I take my sister Ana on Sunday?", "Your sister may like the Albertina, which opens on Sunday."),
        ("And what suits our parents?", "Your parents may enjoy the Prater gardens in Vienna."),
    )
    text = summarize([asked], 3)
    assert f"{ANSWER}Your sister may like the Albertina" in text
    assert "Prater" in text


def test_of_general_questions_the_questions_are_told_and_no_general_knowledge() -> None:
    bread = (
        ("Can you explain sourdough bread to me?", "Sure! Sourdough bread rises by wild yeast."),
        ("How hot is an oven for bread?", "Sourdough bread is baked at 230 degrees."),
    )
    text = summarize([said(*bread)], 3)
    assert text.startswith(f"sourdough bread: {ASKED}Can you explain sourdough bread to me?")
    assert "yeast" not in text
    assert "230" not in text
    told = summarize([said(*bread, ("My own loaf comes out flat since March.", "Let it rest."))], 3, named=False)
    assert told == "My own loaf comes out flat since March."


async def test_questions_that_nobody_answered_become_no_topic_and_no_summary() -> None:
    around = Surroundings()
    questions = (
        ("What's my name? Do you remember what I am called?", "I don't have your name. Could you tell me? " * 3),
        ("Where do I work?", "I don't know where you work. Can you tell me more?"),
        ("Can you look it up in the archive for me?", "I can't look it up, I have no access to any archive."),
    )
    async with around.partitions, around.build() as topics:
        await around.say(topics, turns_of(*questions, last=True))
        assert await around.rows() == []
        assert len(await around.messages()) >= 3


def test_masked_text_is_in_no_summary_and_in_no_name() -> None:
    told = said(
        ("My bank password is [masked: password] and my card ends in 4242.", "Noted."),
        ("The landlord raised the rent of our flat in Gdansk to 3,400 from March.", "A steep rise."),
        ("My email is [EMAIL_ADDRESS_0]. We agreed to pay half of the deposit on 3 February.", "Noted!"),
    )
    text = f"{name_topic(told)}: {summarize([told], 5)}"
    assert not re.search(r"mask|password|card|EMAIL|email", text)
    assert "3,400" in text
    assert "3 February" in text


def test_code_tables_headings_and_markup_are_left_out() -> None:
    asked = (
        "# My service\n\n| a | b |\n|---|---|\n```python\nraise ValueError('no')\n```\n"
        "**My FastAPI service** leaks connections to Postgres 15.\n```\nunclosed traceback"
    )
    told = said((asked, "## Why\nThe pool is never closed by the *nightly* worker of yours."))
    text = summarize([told], 3)
    assert "My FastAPI service leaks connections to Postgres 15." in text
    assert not re.search(r"[|`#*]|ValueError|traceback|Why", text)


@pytest.mark.parametrize(
    ("pairs", "name", "kept"),
    [
        (
            (
                ("Ich ziehe im September nach Hamburg und suche eine Wohnung.", "Welche Stadtteile?"),
                ("Am liebsten Eimsbüttel, höchstens 1200 Euro warm.", "In Eimsbüttel sind es 16 Euro pro Meter."),
                ("Wir haben uns für die Wohnung in der Osterstraße entschieden, für 1150 Euro.", "Glückwunsch!"),
            ),
            "Wohnung",
            ("Hamburg", "Osterstraße", "1150"),
        ),
        (
            (
                ("Je voudrais organiser l'anniversaire de ma fille Léa.", "Bien sûr ! Quel âge aura-t-elle ?"),
                ("Elle aura huit ans le 14 juin et nous invitons douze enfants.", "Un budget de 200 euros suffit."),
                ("Nous avons choisi le parc de la Tête d'Or.", "Parfait."),
            ),
            "Léa",
            ("Léa", "14 juin", "Tête d'Or"),
        ),
        (
            (
                ("Estoy preparando el maratón de Valencia en diciembre.", "¡Qué bien! ¿Cuántos kilómetros corres?"),
                ("Corro 45 kilómetros por semana.", "Conviene llegar a 60 kilómetros."),
                ("He decidido entrenar los martes y domingos.", "Perfecto."),
            ),
            "Valencia",
            ("Valencia", "45", "martes"),
        ),
        (
            (
                ("Я готовлю ремонт кухни в квартире в Казани.", "Какой у вас бюджет?"),
                ("Бюджет 400 тысяч рублей.", "Этого хватит."),
                ("Мы выбрали белый гарнитур и решили начать 5 марта.", "Отлично."),
            ),
            "ремонт кухни",
            ("Казани", "400", "5 марта"),
        ),
        (
            (
                ("我计划五月带家人去夏威夷旅行。", "夏威夷五月天气很好。需要我推荐酒店吗?"),
                ("我们一共四个人,预算是一万美元。", "一万美元的预算足够。"),
                ("我们决定住在威基基海滩附近的酒店。", "好的,我记住了。"),
            ),
            "夏威夷",
            ("夏威夷", "一万美元", "威基基"),
        ),
        (
            (
                ("五月に家族でハワイ旅行に行く予定です。", "ハワイ旅行、いいですね。予算はどのくらいですか?"),
                ("四人で予算は百万円です。", "百万円あれば予約できます。"),
                ("ワイキキのホテルを予約しました。", "承知しました。"),
            ),
            "ハワイ",
            ("ハワイ旅行", "百万円", "ワイキキ"),
        ),
    ],
    ids=["de", "fr", "es", "ru", "zh", "ja"],
)
def test_other_languages_keep_the_same(
    pairs: tuple[tuple[str, str], ...], name: str, kept: tuple[str, ...]
) -> None:
    text = summarize([said(*pairs)], 3, named=False)
    assert name in name_topic(said(*pairs))
    assert [one for one in kept if one not in text] == []
    assert not re.search(r"[?\uff1f\u00bf]", text)


def test_a_sentence_that_points_back_comes_with_the_one_before_it_or_not_at_all() -> None:
    told = said(
        ("It was worth every cent of it, really. I visited the Alhambra in Granada on 3 March.", "Lovely!"),
        ("Tickets for the Alhambra cost 19 euros in Granada.", "That is right."),
    )
    assert summarize([told], 1, named=False).startswith(("I visited", "Tickets"))


def test_a_summary_of_summaries_takes_their_sentences_and_keeps_whose_they_are() -> None:
    below = [
        f"Hawaii trip: I plan a trip to Hawaii. {ANSWER}Direct flights cost $2,400.",
        "sourdough: My dough comes out flat.",
    ]
    text = summarize(below, 5)
    assert text == f"{below[0]} {below[1]}"


def test_every_language_of_the_lexicon_has_its_small_words() -> None:
    wording = tomllib.loads((files("memory_extproc.topics") / "wording.toml").read_text(encoding="utf-8"))
    assert wording.keys() == LEXICONS.keys()
    assert all(
        entry.keys() == {"determiners", "subjects", "leans", "unnamed", "decisions"} for entry in wording.values()
    )


@pytest.mark.parametrize(
    "text", ["```\n" * 999, "**a\n" * 999, "a: " * 1300, "| " * 1900, "Sure, " * 660, "ok" * 1900]
)
def test_hostile_text_costs_what_any_text_costs(text: str) -> None:
    def cost(turns: int) -> float:
        began = time.process_time()
        of = said(*((text, text),) * turns)
        summarize([of], 3)
        name_topic(of)
        return time.process_time() - began

    cost(1)
    assert cost(16) < 16 * max(cost(4), 0.01)


def test_nothing_said_is_summed_up_as_nothing() -> None:
    assert summarize([], 3) == ""
    assert summarize([said(("", ""))], 3) == ""
    assert name_topic(said(("", ""))) == ""
    assert summarize([said(("???", "\ud800 \x00")), ""], 3) == ""
