"""Politeness, mere questions, the people spoken of, and the words to search for."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.text.intents import (
    acknowledgement,
    echoes,
    key_terms,
    only_asks,
    only_greeting,
    polite,
    refusal,
    vague,
)
from memory_extproc.text.persons import DEFAULT_PATTERNS, about_caller, compile_patterns
from memory_extproc.text.words import content_words, fold, negates, number_key, sentences, stem, stems, tokens


@pytest.mark.parametrize(
    "text",
    [
        "hi!",
        "Hello there",
        "Thanks a lot!",
        "ok",
        "Ok thanks bye!",
        "👍",
        "🎉🎉!",
        "Merci beaucoup !",
        "Danke schön",
        "你好！",
        "好的，谢谢",
        "नमस्ते",
        "Gracias.",
        "Good morning!",
        "  hey  ",
        "👋🏽",
    ],
)
def test_a_bare_greeting_thanks_goodbye_or_acknowledgement_is_known_in_many_languages(text: str) -> None:
    assert only_greeting(text)


@pytest.mark.parametrize(
    "text",
    [
        "Hi, what's my budget?",
        "great idea",
        "???",
        "",
        "   ",
        "yes",
        "hi Anne",
        "thanks, and my name?",
        "मैं",
        "→",
        "good morning everyone today",
    ],
)
def test_a_message_that_holds_anything_else_or_over_20_characters_is_no_greeting(text: str) -> None:
    assert not only_greeting(text)


def test_politeness_of_any_length_is_read_in_linear_time() -> None:
    began = time.process_time()
    assert not polite("good morning " * 20_000 + "budget")
    assert polite("good morning " * 1_000)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "text",
    [
        "What's my budget?",
        "I\u2019m here",
        "remind ME",
        "Was ist mein Budget?",
        "J\u2019ai faim",
        "¿Cuál es mi presupuesto?",
        "Qual è il mio budget?",
        "Qual é o meu orçamento?",
        "Wat is mijn budget?",
        "我的预算是多少",
        "私の予算",
        "내 예산은",
        "какой мой бюджет",
        "मेरा बजट",
    ],
)
def test_words_about_the_caller_are_known_in_many_languages(text: str) -> None:
    assert about_caller(text)


@pytest.mark.parametrize(
    "text", ["What is the capital of France?", "Who wrote Faust?", "Wer schrieb Faust?", "myth and mystery", ""]
)
def test_questions_about_the_world_are_not_about_the_caller(text: str) -> None:
    assert not about_caller(text)


def test_of_a_long_text_beginning_and_end_say_whether_it_is_about_the_caller() -> None:
    pasted = "The whale is a mammal. " * 10_000
    assert about_caller(f"{pasted} What did I ask?")
    assert about_caller(f"For my essay: {pasted}")
    assert not about_caller(pasted)


def test_the_patterns_of_persons_can_be_configured() -> None:
    ours = compile_patterns(["\\bthy\\b"])
    assert about_caller("What is thy name?", ours)
    assert not about_caller("What is my name?", ours)
    assert compile_patterns(DEFAULT_PATTERNS).search("my")


@pytest.mark.parametrize(
    "text",
    [
        "What's my budget?",
        "what's my budget",
        "Can you help me plan?",
        "Hi! What's my budget?",
        "Was ist mein Budget?",
        "我的预算是多少？",
        "Write a poem about the sea",
        "I wonder what my budget was.",
        "Tell me about Hawaii. And how much is it?",
        "When I was in Hawaii, what did I eat?",
        "¿Cuál es mi presupuesto?",
        "I'd like to know where I work",
        "Please help me with my essay on whales.",
        "My budget is what?",
        "If it is raining in Rome, where should we go?",
        "hey there my old friend, what is the plan?",
        "What is my sister Anna's job?",
        "Tell me about my trip to Rome",
        "How do I get from Leeds to York with my bike?",
        "Write an email to my boss",
        "tell me everything you remember about me",
        "Everything you know about me, please",
        "What do you remember?",
        "remind me what I said about Rome",
        "Go through what you remember of my family.",
        "Dis-moi tout ce que tu sais sur moi",
        "Cu\u00e9ntame lo que sabes de m\u00ed",
        "what car do i have",
        "which bus do i take to work",
        "how many cups of flour did we use",
        "how big is the extension meant to be",
        "who owns the pub in Kinsale",
        "whats the name of that guesthouse",
        "did Priya sign the contract",
        "does Emil still play handball",
    ],
)
def test_a_message_of_questions_and_requests_only_asks(text: str) -> None:
    assert only_asks(text)


@pytest.mark.parametrize(
    "text",
    [
        "My budget is $10,000. Is that enough?",
        "I live in Paris, what's the weather?",
        "I live in Paris what's the weather?",
        "As I live in Paris, what's the weather?",
        "Can you plan a trip with my budget of $10,000?",
        "Ich wohne in Berlin, wie ist das Wetter?",
        "我住在巴黎，天气怎么样？",
        "Remember that I'm vegetarian.",
        "What a nice day I had in Rome!",
        "Where I live is Rome.",
        "hi",
        "",
        "Will is my brother",
        "Mi presupuesto es 10000, ¿basta?",
        "Could you book it, my name is Bob?",
        "Can you suggest a place because I'm vegetarian?",
        "Finn won't sleep without Lotte in the room, is that normal?",
        "Odile lives in Dijon these days, how long is the train from here?",
        "Deadline is Friday, can you write it up?",
        "Plan a trip for four, the kids are 3 and 6",
        "Could you draft an email to my landlord Mr Ferris about the mould in the bathroom?",
        "Suggest a laptop for my daughter who studies architecture",
        "the retake is on june 9. can you help me plan from april?",
        "I want you to keep answers to bullet points",
        "Please always use metric units",
        "All you remember is wrong, I live in Rome",
        "Can you remember that I'm vegetarian?",
        "remind me to buy milk",
        "Remind me about Tuesday's dentist appointment at 4",
        "go over the budget with Anna on Friday",
    ],
)
def test_a_message_that_tells_something_besides_asking_does_not_only_ask(text: str) -> None:
    assert not only_asks(text)


@pytest.mark.parametrize(
    "text",
    [
        "let's go for the 70AZ then",
        "ok let's do Friday",
        "Let's meet at 8 then.",
        "let's take the green one",
        "Okay, let's book the Ibis.",
        "let's stick with 40 guests",
        "let's call the boat Sirius",
        "let's lock in the $8,500 budget",
        "make it the 14th",
        "make it Wednesday, please",
        "Let's get the oak table!",
    ],
)
def test_a_decision_is_no_request(text: str) -> None:
    assert not only_asks(text)


@pytest.mark.parametrize(
    "text",
    [
        "let's plan the trip",
        "let's talk about my diet",
        "Let's get started",
        "let's go over the list again",
        "let's try again",
        "let's do another round",
        "let's do a quiz",
        "let's see",
        "let's write a poem",
        "let's make a list",
        "make it shorter",
        "make it more formal please",
        "Let's say I have a dog, what would it eat?",
    ],
)
def test_an_invitation_to_work_together_is_a_request(text: str) -> None:
    assert only_asks(text)


@pytest.mark.parametrize(
    "text",
    [
        "how much?",
        "what about the second option you mentioned?",
        "and that one?",
        "What did I say about that then?",
        "And the other one, is it any better?",
    ],
)
def test_a_message_that_leans_on_what_was_said_before_is_vague(text: str) -> None:
    assert vague(text)


@pytest.mark.parametrize(
    "text",
    [
        "What's the budget that I set for the Hawaii trip?",
        "And how much would that cost for the whole family in Hawaii next summer?",
    ],
)
def test_a_message_that_names_its_matter_is_not_vague(text: str) -> None:
    assert not vague(text)


def test_key_terms_come_from_the_latest_message_first_each_once_and_not_too_many() -> None:
    texts = ["I'm planning a Hawaii trip in May", "My budget is $10,000 for the trips"]
    assert key_terms(texts, 10) == ["budget", "$10,000", "trips", "planning", "Hawaii"]
    assert key_terms(texts, 2) == ["budget", "$10,000"]
    assert key_terms([], 5) == []


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I don't have any information about your budget. Could you tell me?",
        "As an AI, I cannot access your files.",
        "Es tut mir leid. Ich weiß das leider nicht.",
        "You haven't told me your budget yet.",
    ],
)
def test_an_answer_that_only_declines_is_a_refusal(text: str) -> None:
    assert refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry to hear that. Hawaii costs about $8,000.",
        "You can't go wrong with Maui.",
        "Your budget is $10,000.",
        "",
    ],
)
def test_an_answer_with_content_is_no_refusal(text: str) -> None:
    assert not refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "Got it!",
        "Sure, noted.",
        "Okay, I'll remember that.",
        "Hello! How can I help you today?",
        "You're welcome! Have a great day!",
        "Thanks for letting me know!",
        "Nice to meet you, Alice!",
        "I've noted your budget.",
        "👍",
    ],
)
def test_an_answer_that_only_takes_note_is_an_acknowledgement(text: str) -> None:
    assert acknowledgement(text)


@pytest.mark.parametrize(
    "text",
    [
        "Got it! Your budget is $10,000.",
        "I'll remember that your dog is Rex.",
        "Maui is great.",
        "Sure! Here is the plan: fly on May 3.",
        "",
        "Could you tell me your budget?",
        "Great " + "very " * 200 + "long.",
    ],
)
def test_an_answer_that_tells_or_asks_something_is_no_acknowledgement(text: str) -> None:
    assert not acknowledgement(text)


INJECTED = ["User's budget for the Hawaii trip is $10,000", "User lives in Paris"]


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("Your budget for the Hawaii trip is $10,000.", "What's my budget?"),
        ("You live in Paris.", "where do I live?"),
        ("As you mentioned earlier, you are living in Paris.", "where?"),
        ("Your budget is 10k for Hawaii, and you live in Paris", "Tell me what you know"),
    ],
)
def test_an_answer_that_repeats_what_was_injected_is_an_echo(text: str, asked: str) -> None:
    assert echoes(text, INJECTED, asked)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("Your budget is $12,000", "?"),
        ("Noodles.", "Should I cook rice or noodles?"),
        ("Yes.", "Do I live in Paris?"),
        ("You do not live in Paris", "Do I?"),
        ("Paris has 2 million people.", "Where do I live?"),
    ],
)
def test_an_answer_that_adds_denies_or_decides_is_no_echo(text: str, asked: str) -> None:
    assert not echoes(text, INJECTED, asked)


def test_an_answer_that_only_repeats_what_was_just_said_is_an_echo_but_not_one_to_a_question() -> None:
    assert echoes("Got it, your budget is 10k.", [], "My budget is $10,000")
    assert not echoes("London is bigger than Paris.", [], "Is Paris bigger than London?")


def test_sentences_survive_sums_abbreviations_initials_dates_and_lists() -> None:
    assert sentences("I paid $10,000.50 to Dr. J. Smith, e.g. for tea. It's 3 p.m. now. Visit a.b.com!") == [
        "I paid $10,000.50 to Dr. J. Smith, e.g. for tea.",
        "It's 3 p.m. now.",
        "Visit a.b.com!",
    ]
    assert sentences("Am 3. Mai komme ich. Gut.") == ["Am 3. Mai komme ich.", "Gut."]
    assert sentences("it's on june 9. can you come?") == ["it's on june 9.", "can you come?"]
    assert sentences("the 2. try was better") == ["the 2. try was better"]
    assert sentences("- buy milk\n2. call Ann\n\n...\nMeet etc. Then go.") == [
        "buy milk",
        "call Ann",
        "Meet etc.",
        "Then go.",
    ]
    assert sentences("我住巴黎。很好！") == ["我住巴黎。", "很好！"]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200))
def test_no_word_is_lost_between_sentences(text: str) -> None:
    kept = "".join(character for one in sentences(text) for character in one if character.isalpha())
    assert kept == "".join(character for character in text if character.isalpha())


def test_sums_dates_versions_and_names_stay_whole() -> None:
    text = "$10,000.50, $10k or 10:30am on 2024-05-03; C++, C# and GPT-4 v1.2.3 20% 我的预算"
    assert tokens(text) == [
        "$10,000.50",
        "$10k",
        "or",
        "10:30am",
        "on",
        "2024-05-03",
        "C++",
        "C#",
        "and",
        "GPT-4",
        "v1.2.3",
        "20%",
        "我的预算",
    ]


def test_one_amount_has_one_key() -> None:
    assert {number_key(one) for one in ("$10,000", "10k", "10000", "10,000", "$10 thousand")} == {"10000"}
    assert number_key("$1.5 million") == "1500000"
    assert number_key("0.5") == "0.5"
    assert number_key("May") == "may"


def test_stop_words_are_those_of_the_language_spoken() -> None:
    assert content_words("The die is cast for my son") == ["die", "cast", "son"]
    assert content_words("Die Katze ist auf dem Tisch") == ["Katze", "Tisch"]


def test_forms_of_a_word_share_a_stem() -> None:
    assert len({stem(one) for one in ("live", "lives", "living", "lived")}) == 1
    assert stem("User's") == stem("user")
    assert stem("employees") == stem("employee")
    assert stem("trees") == stem("tree")
    assert stems("我的预算") == stems("我的预算")


@pytest.mark.parametrize("text", ["I do not live here", "Ich wohne nicht hier", "我不喜欢"])
def test_a_denial_is_seen_in_its_own_language(text: str) -> None:
    assert negates(text)
    assert not negates("I live here")


@given(st.text())
def test_folding_twice_is_folding_once(text: str) -> None:
    assert fold(fold(text)) == fold(text)


@given(st.text(max_size=300))
def test_any_text_at_all_can_be_judged(text: str) -> None:
    for judge in (only_greeting, only_asks, vague, refusal, acknowledgement, about_caller, negates):
        assert judge(text) in {True, False}
    assert len(key_terms([text], 3)) <= 3
