"""People introduce themselves in lists without verbs, and put several things into one phrase."""

from __future__ import annotations

import pytest

from memory_extproc.learn.extract.asides import read_introduction
from memory_extproc.learn.extract.rules import RulesExtractor
from tests.support.builders import a_turn

EXTRACTOR = RulesExtractor()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            "hey, i'm Noor, 41, radiographer at Leeds General. what's a quick lunch?",
            ["name is Noor", "is 41", "is a radiographer at Leeds General"],
        ),
        ("Hi there, Marcus here, software engineer at Zalando, based in Berlin.",
         ["name is Marcus", "is a software engineer at Zalando", "lives in Berlin"]),
        ("Im jess, 23, nursing student in Dublin", ["name is Jess", "is 23", "is a nursing student in Dublin"]),
        ("I'm Sam (they/them), 27, barista in Portland", ["name is Sam", "is 27", "is a barista in Portland"]),
        ("I am Dr. Lena Fischer, cardiologist at Charité.",
         ["name is Dr. Lena Fischer", "is a cardiologist at Charité"]),
        ("I'm a 34 year old teacher living in Bristol with two cats.",
         ["is 34", "is a teacher", "lives in Bristol"]),
        ("i'm a 19yo student from Perth, any tips?", ["is 19", "is a student", "is from Perth"]),
        ("I'm Dana, a single mum of two from Ohio.", ["name is Dana", "is a single mum of two", "is from Ohio"]),
        ("Some background: 38, divorced, project manager at Siemens, living in Munich.",
         ["is 38", "is divorced", "is a project manager at Siemens", "lives in Munich"]),
        ("My name is Priya, born in Pune, raised in Leicester, working as a paralegal",
         ["name is Priya", "was born in Pune", "grew up in Leicester", "works as a paralegal"]),
        ("Hi, this is Noor, 41, radiographer at Leeds General.",
         ["name is Noor", "is 41", "is a radiographer at Leeds General"]),
        ("Hey! This is Jo, 52, retired teacher", ["name is Jo", "is 52", "is a retired teacher"]),
        ("I'm Lena, 30, UX designer", ["name is Lena", "is 30", "is a UX designer"]),
        ("I'm Tom, 44, union organiser", ["name is Tom", "is 44", "is a union organiser"]),
        ("I'm Ida, 27, HR manager", ["name is Ida", "is 27", "is an HR manager"]),
        ("Ich bin Jonas, 35, Lehrer aus Köln.", ["name is Jonas", "is 35", "works as a Lehrer", "is from Köln"]),
        ("Bonjour, je suis Claire, 36 ans, infirmière, j'habite à Nantes.",
         ["name is Claire", "is 36", "works as an infirmière", "lives in Nantes"]),
        ("Me llamo Lucía, tengo 28 años y soy enfermera en Sevilla.",
         ["name is Lucía", "is 28", "works as an enfermera en Sevilla"]),
    ],
)  # fmt: skip
async def test_each_thing_of_an_introduction_is_a_fact(asked: str, expected: list[str]) -> None:
    contents = [fact.content for fact in await EXTRACTOR.extract([a_turn(asked)])]
    assert contents == [f"User's {one}" if one.startswith("name") else f"User {one}" for one in expected]


@pytest.mark.parametrize(
    "asked",
    [
        "This is Rui, 44, plumber from Braga.",
        "And this is Tom, 19, student in Bath",
        "Hi, this is Rui, I met him in Braga, 44, plumber",
        "Hi, this is Rui, 44, plumber from Braga. He needs a website.",
        "Hi! This is Rui, 44, plumber. Write his bio.",
        "Hi, this is Rui, 44, plumber, my brother.",
        "Hi, is this Noor, 41, radiographer?",
        "Customer: Hi, this is Noor, 41, radiographer",
        "our new hire: 30, developer",
        "This is Rui. He's 44 and a plumber.",
        "A customer profile: 38, married, two kids",
        "My colleague: 41, from Leeds, radiographer",
        "Patient: 67, retired, diabetic.",
        "Her profile: 29, single, nurse, from Cork",
        "Target audience: 25, student, living in Paris",
        "About my boss: 50, divorced, from Texas, chef",
        "Background on my client: 38, divorced, project manager at Siemens.",
        "He's my uncle: 60, retired teacher, living in Kent",
        "persona 2: 38, single, teacher",
        "Write a short bio of my boss: grew up in Tabriz, works at Siemens",
        "Her bio: grew up in Tabriz, works at Siemens",
        "Dating profile of my friend: 38, single, from Oslo",
        "customer profile: I'm 34, I live in Rome",
        "My sister: I'm allergic to nuts",
        "Max: I'm a welder",
        "Anna Weber: I work at Siemens",
        "My friend needs a meal plan. 34, vegan, two kids.",
        "What gift for a customer? 38, married, two kids.",
        "Meet Ana. 52, baker, from Faro.",
        "Name is decided, Margot!",
        'the game has a title at last. name is "Softer Cycle"',
        "I'm 231 right now so 211 is the goal",
    ],
)
async def test_nothing_of_somebody_else_becomes_the_callers(asked: str) -> None:
    assert await EXTRACTOR.extract([a_turn(asked)]) == []


async def test_a_neighbour_who_is_introduced_stays_a_neighbour() -> None:
    facts = await EXTRACTOR.extract([a_turn("Meet my neighbour Ana, 52, baker from Faro.")])
    assert {fact.content for fact in facts} == {"User's neighbour is Ana", "User's neighbour Ana is 52"}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("Hello, this is Ben here, 30, teacher in York", "User's name is Ben"),
        ("Hello there, this is Walter speaking. I'm new here.", "User's name is Walter"),
        ("Good morning, this is Irene, I'm 70 and live in Bath", "User's name is Irene"),
        ("my name is Kofi, nice to meet you", "User's name is Kofi"),
        ("I am Subhash from Pune, by profession accountant", "User's name is Subhash, from Pune"),
        ("About me: 38, married, two kids", "User is married"),
        ("My profile: 29, single, nurse, from Cork", "User is a nurse"),
        ("some context on me: 29, single, nurse, from Cork", "User is single"),
        ("let me introduce myself: 30, single, teacher from Oslo", "User is 30"),
        ("Context: 38, single, from Oslo, teacher", "User is from Oslo"),
        ("Can you help me with a plan? 34, vegan, two kids.", "User is vegan"),
        ("write my bio: grew up in Oslo, works at Siemens", "User works for Siemens"),
        ("write a short bio for my website: grew up in Oslo, works at Siemens", "User grew up in Oslo"),
    ],
)
async def test_a_writer_who_names_themselves_is_introduced(asked: str, expected: str) -> None:
    assert expected in {fact.content for fact in await EXTRACTOR.extract([a_turn(asked)])}


@pytest.mark.parametrize(
    "sentence",
    [
        "I'm tired, 3 hours of sleep, back at the office.",
        "I'm sorry, 41 is too many, thanks.",
        "i'm late, 20 people are waiting, see you later",
        "I'm Anna, can you help me?",
        "This is Python, 30 lines, printer not found",
        "This is Ana, 30, printer",
        "I'm a 5 year old at heart",
        "I'm in the car, 45 minutes from home, tired",
        "Je suis fatiguée, 36 heures de travail, merci",
    ],
)
def test_other_lists_stay_as_they_are(sentence: str) -> None:
    assert read_introduction(sentence) == sentence


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("My wife's name is Ana, 41, baker from Faro", ["wife is Ana", "wife is 41", "wife is a baker from Faro"]),
        ("My wife is called Ana, 41, baker", ["wife is Ana", "wife is 41", "wife is a baker"]),
        ("my son's name is Otto, 7, mad about trains", ["son is Otto", "son is 7"]),
    ],
)
async def test_a_list_about_a_relative_is_no_part_of_the_name(asked: str, expected: list[str]) -> None:
    contents = [fact.content for fact in await EXTRACTOR.extract([a_turn(asked)])]
    assert contents == [f"User's {one}" for one in expected]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("my kids are Leo (4) and Mia (7)", ["Leo is 4", "Mia is 7", "User's kids are Leo and Mia"]),
        ("It's me and the girls, Ines (9) and Pilar (6).",
         ["Ines is 9", "Pilar is 6", "User's girls are Ines and Pilar"]),
        ("my daughters Ines, 9, and Pilar, 6, love swimming",
         ["Ines is 9", "Pilar is 6", "User's daughters are Ines and Pilar"]),
        ("My cousins Ben and Tia came, Lea, too", ["User's cousins are Ben and Tia"]),
    ],
)  # fmt: skip
async def test_a_list_of_people_keeps_their_ages(asked: str, expected: list[str]) -> None:
    assert [fact.content for fact in await EXTRACTOR.extract([a_turn(asked)])] == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("my back has been killing me lately", ["User has trouble with their back"]),
        ("I quit. starting as a curator at the Tate on 1 May",
         ["User is starting as a curator at the Tate on 1 May"]),
        ("I started pilates by the way, Mondays and Wednesdays at 8",
         ["User started pilates, Mondays and Wednesdays at 8"]),
    ],
)  # fmt: skip
async def test_a_remark_in_the_middle_is_no_part_of_a_fact(said: str, expected: list[str]) -> None:
    assert [fact.content for fact in await EXTRACTOR.extract([a_turn(said)])] == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("favourites are Jannik (worked at Bosch for 5 years) and Aylin", []),
        ("the winner was Bea (got a scholarship)", []),
        ("I moved to Leeds (hate the rain)", ["User lives in Leeds", "User dislikes the rain"]),
        ("I work for Bosch (moved there in 2019)", ["User works for Bosch", "User moved there in 2019"]),
    ],
)
async def test_words_in_brackets_are_about_the_person_before_them(said: str, expected: list[str]) -> None:
    assert [fact.content for fact in await EXTRACTOR.extract([a_turn(said)])] == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Hallo, ich bin Katrin und arbeite als Hebamme in Kiel.", ["User works as a Hebamme in Kiel"]),
        ("Ich heiße Katrin und wohne in Kiel", ["User's name is Katrin", "User lives in Kiel"]),
        ("Meine Schwester lebt in Rom und arbeitet bei VW",
         ["User's sister lives in Rom", "User's sister works for VW"]),
        ("Mein Mann Jens verträgt keine Laktose", ["User's husband doesn't tolerate Laktose"]),
    ],
)  # fmt: skip
async def test_a_german_verb_behind_und_has_the_subject_before_it(said: str, expected: list[str]) -> None:
    assert [fact.content for fact in await EXTRACTOR.extract([a_turn(said)])] == expected


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("Hi, ich bin Matthias, 52, Bauleiter bei der Firma Hochtief.",
         ["User's name is Matthias", "User is 52", "User works as a Bauleiter", "User works for Hochtief"]),
        ("Ich bin Anna, 34 Jahre alt und arbeite als Krankenschwester in Kiel",
         ["User's name is Anna", "User is 34", "User works as a Krankenschwester in Kiel"]),
        ("Meine Frau Sabine und ich planen unsere Silberhochzeit am 14. Mai",
         ["User's wife is Sabine", "User's Silberhochzeit is 14. Mai"]),
        ("Ich wohne mit meiner Freundin Lisa in Leipzig", ["User's girlfriend is Lisa", "User lives in Leipzig"]),
        ("Ich bin gegen Nüsse allergisch", ["User is allergic to Nüsse"]),
        ("Ich habe übrigens Gicht und darf keine Innereien essen", ["User has Gicht", "User can't have Innereien"]),
        ("Ich mag kein Koriander", ["User dislikes Koriander"]),
        ("Ich arbeite jetzt bei Siemens", ["User works for Siemens"]),
        ("Ich esse keine Pilze", ["User doesn't eat Pilze"]),
        ("Bonjour, je suis Camille, 38 ans, infirmière à Lyon",
         ["User's name is Camille", "User is 38", "User works as an infirmière à Lyon"]),
        ("J'ai une allergie aux noix", ["User is allergic to noix"]),
        ("J'habite à Nantes avec mon copain Théo", ["User's boyfriend is Théo", "User lives in Nantes"]),
        ("Je ne mange pas de porc", ["User doesn't eat porc"]),
        ("Tengo alergia al marisco", ["User is allergic to marisco"]),
        ("Vivo en Valencia con mi novio Pablo", ["User's boyfriend is Pablo", "User lives in Valencia"]),
        ("No como carne", ["User doesn't eat carne"]),
        ("No me gusta el café", ["User dislikes el café"]),
    ],
)  # fmt: skip
async def test_people_tell_of_themselves_in_one_sentence_in_german_french_and_spanish(
    text: str, facts: list[str]
) -> None:
    found = [fact.content for fact in await RulesExtractor().extract([a_turn(text)])]
    assert sorted(found) == sorted(facts)
