"""Kinds of questions by rules: each in several registers and languages, and what only looks like one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import date
from functools import partial

import pytest

from memory_extproc.recall.intent import INTENTS, QuestionKind, read_intents
from memory_extproc.text.attributes import ATTRIBUTES, LexiconError
from memory_extproc.text.intents import only_asks

SUNDAY = date(2026, 11, 22)


def kind_of(question: str, earlier: Sequence[str] = ()) -> QuestionKind | None:
    found = INTENTS.read(question, earlier, SUNDAY).intents
    return found[0].kind if found else None


@pytest.mark.parametrize(
    ("question", "subject"),
    [
        ("give me everything on the roof so far, the neighbour wants to know", "roof"),
        ("what do we have booked for the spring holiday?", "spring holiday"),
        ("what's settled for my farewell?", "farewell"),
        ("Please put together all the facts about my garden for Otto.", "garden"),
        ("pull together the whole shed thing for my uncle", "shed"),
        ("remind me how the street party was planned", "street party"),
        ("sum up how the renovation has gone so far", "renovation"),
        ("Tell me the story of the well from the beginning, Otto asks", "well"),
        ("what are the terms of my new lease?", "new lease"),
        ("How are things with Otto's training now?", "otto's training"),
        ("Otto - what's the story there", "otto"),
        ("I have to write to the vet about Luna, can you put together everything", "luna"),
        ("write some lines about our choir for the flyer, with all you know", "choir"),
        ("What have I told you of my cousin?", "cousin"),
    ],
)
def test_a_question_for_all_of_a_subject_is_read_by_its_own_clause(question: str, subject: str) -> None:
    first = INTENTS.read(question, [], SUNDAY).intents[0]
    assert (first.kind, first.subject) == (QuestionKind.SUBJECT, subject)


@pytest.mark.parametrize(
    "question",
    ["write me a poem about the sea", "tell me how the boiler is reset", "what do we have planned for next week?"],
)
def test_a_task_or_a_question_for_steps_or_days_asks_for_no_subject(question: str) -> None:
    assert all(one.kind is not QuestionKind.SUBJECT for one in INTENTS.read(question, [], SUNDAY).intents[:1])


@pytest.mark.parametrize(
    ("kind", "question"),
    [
        (QuestionKind.OVERVIEW, "What do you know about me?"),
        (QuestionKind.OVERVIEW, "waht do u know abt me"),
        (QuestionKind.OVERVIEW, "Hey! Could you summarise what you remember about me so far?"),
        (QuestionKind.OVERVIEW, "who am i"),
        (QuestionKind.OVERVIEW, "show me my profile"),
        (QuestionKind.OVERVIEW, "Was weißt du über mich?"),
        (QuestionKind.OVERVIEW, "que sais-tu de moi"),
        (QuestionKind.OVERVIEW, "¿Qué sabes de mí?"),
        (QuestionKind.OVERVIEW, "你知道关于我的什么？"),
        (QuestionKind.OVERVIEW, "What do you know about me, in a nutshell?"),
        (QuestionKind.OVERVIEW, "Sum up what you know about me and my work."),
        (QuestionKind.OVERVIEW, "short overview of who i am and what i am doing"),
        (QuestionKind.SUBJECT, "Tell me everything about my Hawaii trip"),
        (QuestionKind.SUBJECT, "what do you know about my sister"),
        (QuestionKind.SUBJECT, "who is Luna?"),
        (QuestionKind.PAST, "What did we talk about last time?"),
        (QuestionKind.PAST, "What did we talk about in our last conversation?"),
        (QuestionKind.PAST, "summarise our chat about the kitchen"),
        (QuestionKind.PAST, "which topics did we cover so far"),
        (QuestionKind.PAST, "what did you suggest for my back"),
        (QuestionKind.PAST, "you once gave me advice on the visa, which was it?"),
        (QuestionKind.PAST, "Du hattest Vorschläge für den Balkon, welche waren das?"),
        (QuestionKind.PAST, "Tu m'avais donné des conseils pour le jardin, c'était quoi ?"),
        (QuestionKind.PAST, "Me diste consejos para la entrevista, ¿cuáles eran?"),
        (QuestionKind.PAST, "Worüber haben wir letztes Mal gesprochen?"),
        (QuestionKind.PAST, "De quoi avons-nous parlé la dernière fois ?"),
        (QuestionKind.PAST, "de que hablamos la ultima vez"),
        (QuestionKind.DATED, "What did I tell you yesterday?"),
        (QuestionKind.DATED, "what did i do three days ago"),
        (QuestionKind.DATED, "What do I have on 27 November?"),
        (QuestionKind.DATED, "what was I planning before Christmas?"),
        (QuestionKind.DATED, "Was habe ich gestern gesagt?"),
        (QuestionKind.LIST, "my allergies"),
        (QuestionKind.LIST, "all my flights please"),
        (QuestionKind.LIST, "welche Hobbys habe ich"),
        (QuestionKind.MENTIONED, "Whom did I mention?"),
        (QuestionKind.MENTIONED, "which people have I told you about"),
        (QuestionKind.INDIRECT, "what's my job?"),
        (QuestionKind.INDIRECT, "how old am i"),
        (QuestionKind.INDIRECT, "Wo wohne ich?"),
        (QuestionKind.HOPS, "where is the bakery of my sister's husband"),
        (QuestionKind.HOPS, "Which building is my manager in?"),
        (QuestionKind.CONSTRAINT, "recommend a restaurant"),
        (QuestionKind.CONSTRAINT, "what should I cook tonight"),
        (QuestionKind.CONSTRAINT, "plan my trip to Rome"),
        (QuestionKind.CONSTRAINT, "Empfiehl mir ein Restaurant"),
        (QuestionKind.AS_OF, "where did I live before?"),
        (QuestionKind.AS_OF, "what was my budget in March"),
        (QuestionKind.AS_OF, "where did i use to work"),
        (QuestionKind.PROCEDURE, "how do I deploy the billing service"),
        (QuestionKind.PROCEDURE, "what are the steps to release Atlas"),
    ],
)
def test_a_question_is_read_as_its_kind(kind: QuestionKind, question: str) -> None:
    assert kind_of(question) is kind


@pytest.mark.parametrize(
    "words",
    [
        "What is the capital of France?",
        "Write a poem",
        "write a story about a restaurant",
        "hi there",
        "Thanks, that helps a lot!",
        "What's the weather like today?",
        "what can you do",
        "list everything you can help with",
        "who are you",
        "What happened on 14 July 1789?",
        "what date is three days from now",
        "Translate 'what do you know about me' into French",
        "explain recursion to me",
        "I had dinner with my sister yesterday.",
        "My sister's husband owns a bakery.",
        "I'm allergic to peanuts",
        "I moved to Bonn last week.",
        "which book am I reading",
        "",
        "🙂",
    ],
)
def test_statements_tasks_and_questions_about_the_world_are_of_no_kind(words: str) -> None:
    assert kind_of(words) in {
        None,
        QuestionKind.INDIRECT,
    }  # an attribute is looked up only where the search finds none
    assert kind_of(words) is None or "am I" in words


TOLD = (
    "Chloe plays the cello until midnight.",
    "Our billing service is called Atlas.",
    "Tre studies at Howard.",
    "To deploy atlas: run make release, then tag the build.",
)


@pytest.mark.parametrize(
    ("asked", "of_world"),
    [
        ("So what's a mortgage?", True),
        ("how many ounces are in a pound", True),
        ("How does seagrass store carbon?", True),
        ("How do you play the cello?", True),
        ("what are isotopes", True),
        ("who founded Howard University?", True),
        ("How is soy sauce made?", True),
        ("what is the population of Toronto", True),
        ("write me a limerick about a dog", True),
        ("how do I weld aluminium?", True),
        ("¿Cómo se toca el violín?", True),
        ("Comment devient-on plombier ?", True),
        ("Wie wird man Steuerberaterin?", True),
        ("what is the mortgage", False),
        ("what is a good time for my dentist", False),
        ("what is Atlas", False),
        ("who is Chloe?", False),
        ("how do I deploy atlas?", False),
        ("how does booking the court work again?", False),
        ("when does the repair begin?", False),
        ("What does Mei want to study?", False),
        ("write a poem for my sister", False),
        ("Wie heißt mein Hund?", False),
    ],
)
def test_a_question_about_the_world_is_told_from_one_about_what_the_caller_said(asked: str, of_world: bool) -> None:
    assert INTENTS.asks_of_world(asked, TOLD) is of_world


@pytest.mark.parametrize(
    ("end", "question"),
    [
        ("first", "what was the first thing we talked about?"),
        ("first", "what's the very first thing I ever asked you?"),
        ("first", "how did our very first chat go?"),
        ("first", "which topic did we discuss first?"),
        ("first", "remind me what we talked about at the very beginning"),
        ("first", "was war das Erste, wor\u00fcber wir gesprochen haben?"),
        ("first", "quelle est la premi\u00e8re chose dont nous avons parl\u00e9 ?"),
        ("first", "\u00bfqu\u00e9 fue lo primero de lo que hablamos?"),
        ("last", "what did we talk about most recently?"),
        ("last", "which subject did we discuss last?"),
        ("last", "our most recent conversation?"),
        ("last", "de quoi a-t-on parl\u00e9 en dernier ?"),
        ("last", "wor\u00fcber haben wir zuletzt gesprochen?"),
        ("", "what did we say about the first draft of my thesis?"),
        ("", "what did we decide on the first day of the trip?"),
        ("", "which topics did we cover?"),
    ],
)
def test_a_question_for_the_first_or_the_last_talk_means_that_one(end: str, question: str) -> None:
    first = next(one for one in INTENTS.read(question, [], SUNDAY).intents if one.kind is QuestionKind.PAST)
    assert (first.earliest, first.latest) == (end == "first", end == "last")


@pytest.mark.parametrize(
    "question",
    [
        "Wo habe ich vorher gewohnt?",
        "Wo habe ich fr\u00fcher gearbeitet?",
        "\u00bfD\u00f3nde viv\u00eda antes?",
        "o\u00f9 est-ce que j'habitais avant ?",
        "o\u00f9 travaillais-je avant ?",
    ],
)
def test_a_question_for_a_former_value_in_another_language_asks_how_it_was(question: str) -> None:
    assert INTENTS.read(question, [], SUNDAY).intents[0].kind is QuestionKind.AS_OF


INTRODUCES = [
    "pretend you introduce me at a dinner, what would you say?",
    "introduce me to a stranger in three sentences",
    "if you had to describe me to a friend, what would you say?",
    "write a short bio of me",
    "sum me up in a tweet",
    "what would you tell someone about me?",
    "say you were my best man, what would your speech about me cover?",
    "write my dating profile from what you know",
    "wie w\u00fcrdest du mich beschreiben?",
    "stell dir vor, du stellst mich auf einer Party vor, was sagst du?",
    "pr\u00e9sente-moi \u00e0 un inconnu en deux phrases",
    "imagine que tu me pr\u00e9sentes \u00e0 un d\u00eener, que dirais-tu ?",
    "pres\u00e9ntame en una cena, \u00bfqu\u00e9 dir\u00edas?",
    "\u00bfc\u00f3mo me describir\u00edas?",
]


@pytest.mark.parametrize("question", INTRODUCES)
def test_a_request_to_introduce_the_caller_is_an_overview_and_states_nothing(question: str) -> None:
    assert kind_of(question) is QuestionKind.OVERVIEW
    assert only_asks(question)


@pytest.mark.parametrize(
    "words",
    [
        "introduce me to quantum physics",
        "describe the Eiffel Tower to me",
        "write a short bio of Ada Lovelace",
        "My boss will introduce me to the team tomorrow.",
        "They introduce me to guests all the time.",
        "She wrote a toast about me for the wedding.",
        "Mon fr\u00e8re me pr\u00e9sente toujours \u00e0 ses amis.",
    ],
)
def test_an_introduction_to_something_else_or_by_somebody_else_is_no_overview(words: str) -> None:
    assert kind_of(words) is not QuestionKind.OVERVIEW
    assert only_asks(words) is not words.endswith(".")


def test_a_follow_up_is_read_with_the_message_before_it() -> None:
    assert kind_of("and last week?", ["what did I tell you yesterday?"]) is QuestionKind.DATED
    assert kind_of("and my flights?", ["list my allergies"]) is QuestionKind.LIST
    assert kind_of("and last week?", ["what is the capital of France"]) is None


def test_a_day_that_no_calendar_has_is_named_and_does_no_harm() -> None:
    reading = INTENTS.read("What did I say on 30 February?", (), SUNDAY)
    assert reading.notes == ("no calendar has a 30 February",)
    assert INTENTS.read("What did I say on 29 February?", (), SUNDAY).notes == ()


def test_a_domain_bears_on_the_attributes_that_the_lexicon_names() -> None:
    first = INTENTS.read("recommend a restaurant", (), SUNDAY).intents[0]
    assert {"allergies", "diet"} <= set(ATTRIBUTES.names(first.attributes))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[domain]]\nname = "food"\nwords = "dinner"\nattributes = ["alergies"]', "no attribute 'alergies'"),
        ('[en]\nspeaks = "i"\nmine = "my"\noverview = ["(unclosed"]', "en.overview"),
        ("[en", "here.toml"),
    ],
)
def test_a_lexicon_that_cannot_be_used_says_where_and_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(LexiconError, match=r"here\.toml") as raised:
        read_intents(text, "here.toml")
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "unit",
    [
        "what did we talk about ",
        "my sister's husband's ",
        "everything about my ",
        "a ",
        "?",
        "the the ",
        "how do I ",
    ],
)
def test_reading_a_question_takes_time_linear_in_its_length(unit: str) -> None:
    def took(length: int) -> float:
        text = (unit * length)[:length]
        best = float("inf")
        for _ in range(5):
            started = time.process_time()
            for _ in range(10):
                INTENTS.read(text, (), SUNDAY)
            best = min(best, time.process_time() - started)
        return best

    took(70)  # what is made once is made
    assert took(280) <= 8 * took(70) + 0.005


@pytest.mark.parametrize(
    "question",
    [
        "What should I order for breakfast at Waffle House tonight?",
        "can we still go out today?",
        "Was soll ich heute anziehen?",
        "Which train could I take tomorrow?",
    ],
)
def test_a_question_for_advice_that_names_a_day_does_not_ask_what_is_known_of_that_day(question: str) -> None:
    assert QuestionKind.DATED not in {one.kind for one in INTENTS.read(question, (), SUNDAY).intents}


@pytest.mark.parametrize(
    "question",
    [
        "What book did Caroline recommend to Melanie?",
        "How does John plan to honor the memories of his beloved pet?",
        "How did I celebrate after sharing my book with my writers group?",
        "Comment s'appelle mon chien ?",
        "Please find a restaurant for us and " + "then compare the menus of all places nearby " * 4,
    ],
)
def test_a_question_about_what_happened_and_a_long_task_are_no_requests(question: str) -> None:
    kinds = {one.kind for one in INTENTS.read(question, (), SUNDAY).intents}
    assert kinds.isdisjoint({QuestionKind.CONSTRAINT, QuestionKind.PROCEDURE})


@pytest.mark.parametrize(
    ("kind", "question"),
    [
        (QuestionKind.DATED, "When did I go camping in June?"),
        (QuestionKind.DATED, "since when have I worked there, October?"),
        (QuestionKind.AS_OF, "What did I promise the neighbours before the party in March?"),
        (QuestionKind.INDIRECT, "Which job at the harbour did the captain with the parrot offer me?"),
        (QuestionKind.INDIRECT, "What was the name of the dog that I met on 4 May?"),
        (QuestionKind.HOPS, "What did my friend recommend to me?"),
        (QuestionKind.HOPS, "What is my favourite trilogy?"),
        (QuestionKind.HOPS, "How many of my sketches hang in the library?"),
    ],
)
def test_a_question_for_one_thing_is_left_to_the_ranking(kind: QuestionKind, question: str) -> None:
    assert kind not in {one.kind for one in INTENTS.read(question, (), SUNDAY).intents}


@pytest.mark.parametrize(
    "question",
    [
        "which allergies have I got",
        "list everything I have planted",
        "everything I am allergic to",
        "which books did I read this year?",
    ],
)
def test_a_question_for_all_of_something_asks_for_a_list(question: str) -> None:
    assert kind_of(question) is QuestionKind.LIST


def test_a_question_about_a_day_keeps_the_words_that_narrow_it() -> None:
    (narrow,) = INTENTS.read("What workshop did I attend last week?", (), SUNDAY).intents
    (open_,) = INTENTS.read("What did I do last week?", (), SUNDAY).intents
    assert narrow.rest
    assert not open_.rest


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("Was soll ich heute kochen?", QuestionKind.CONSTRAINT),
        ("\u00bfQu\u00e9 cocino hoy?", QuestionKind.CONSTRAINT),
        ("what did you say I could cook?", QuestionKind.PAST),
        ("Where did you suggest we spend our holiday?", QuestionKind.PAST),
    ],
)
def test_requests_and_advice_are_read_in_their_own_words(question: str, kind: QuestionKind) -> None:
    assert INTENTS.read(question, (), date(2026, 7, 9)).intents[0].kind is kind


@pytest.mark.parametrize("question", ["Comment s'appellent mes enfants ?", "\u00bfC\u00f3mo se llaman mis perros?"])
def test_a_question_for_names_asks_for_no_steps(question: str) -> None:
    kinds = [one.kind for one in INTENTS.read(question, (), date(2026, 7, 9)).intents]
    assert QuestionKind.PROCEDURE not in kinds


@pytest.mark.parametrize(
    ("asked", "subject"),
    [
        ("What did we talk about in our last conversation?", ""),
        ("What did we discuss during our previous session?", ""),
        ("What did we talk about in our last conversation about sailing?", "sailing"),
        ("What did we decide in our last session on pricing?", "pricing"),
        ("What did we say about that weird smell?", "weird smell"),
    ],
)
def test_a_conversation_is_no_subject_of_itself(asked: str, subject: str) -> None:
    first = INTENTS.read(asked, [], date(2026, 3, 2)).intents[0]
    assert (first.kind, first.subject) == (QuestionKind.PAST, subject)


@pytest.mark.parametrize(
    "question",
    [
        "What is the budget for the trip?",
        "What's the plan for this week?",
        "what are our travel dates",
        "How about the flight options?",
        "Show me the healthy daily meals again.",
        "So what's that workout you planned?",
        "write a poem about autumn",
    ],
)
def test_a_question_for_something_known_is_no_request_for_advice(question: str) -> None:
    assert kind_of(question) is not QuestionKind.CONSTRAINT


@pytest.mark.parametrize(
    "question",
    [
        "What's the best restaurant for us tonight?",
        "where is a good bakery near my hotel",
        "How about dinner ideas for tomorrow?",
        "Which hotel should I book?",
        "Plan our next trip",
        "Draft an update to the plant director on peak season planning",
        "Write the parents that there is a meeting on Wednesday",
        "Chantal takes me to a seafood place for lunch, what do I order?",
        "my colleague offers us his labrador for a weekend, what do you think?",
        "I would like to go to Lisbon in May, how do I get there best?",
    ],
)
def test_a_request_for_something_new_is_one_for_advice(question: str) -> None:
    assert kind_of(question) is QuestionKind.CONSTRAINT


def test_a_message_that_tells_more_than_it_asks_is_like_no_example() -> None:
    told = "We settled on the northern loop with two nights by the lake and one in the hut."
    asked = "What should we look at next?"
    read = partial(INTENTS.read_as, kind=QuestionKind.SUBJECT, domain="", today=SUNDAY)
    assert read(asked).intents
    assert not read(f"{told} {asked}").intents


@pytest.mark.parametrize(
    ("question", "former"),
    [
        ("which quotes did I get, with prices", True),
        ("what vans have I had", True),
        ("which address did I give", False),
    ],
)
def test_several_things_of_one_kind_are_no_former_values_of_each_other(question: str, former: bool) -> None:
    assert INTENTS.asks_of_past(question, INTENTS.read(question, [], SUNDAY)) is former
