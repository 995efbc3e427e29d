"""A thing in the place of another, a new employer and an abstention that is over end what was known before."""

from __future__ import annotations

import pytest

from tests.unit.learn.test_details import told


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        (["I've got a Nokia", "switched to a Pixel 8"], ["User switched to a Pixel 8"]),
        (["My phone is a Nokia", "I switched to a Pixel 8"], ["User switched to a Pixel 8"]),
        (["I have an iPhone 12", "just upgraded to an iPhone 15"], ["User switched to an iPhone 15"]),
        (["I drive a Ford Fiesta", "traded the Fiesta in for a Skoda"], ["User drives a Skoda"]),
        (["My car is a Fiat Panda", "we replaced the Panda with a Dacia"], ["User's car is a Dacia"]),
        (["I use Gmail", "moved from Gmail to Proton"], ["User uses Proton"]),
        (["The doctor put me on amlodipine for my blood pressure", "doctor swapped the amlodipine for ramipril"],
         ["User takes ramipril for their blood pressure"]),
        (["I take sertraline", "they switched me from sertraline to fluoxetine"], ["User takes fluoxetine"]),
        (["We use Python 3.10 and Postgres 14", "Update: we upgraded to Python 3.12 last week"],
         ["User uses Python 3.12 and Postgres 14"]),
        (["my knees aren't great", "my knees are fine again"], ["User's knees are well again"]),
        (["I'm between jobs since Friday", "got the Fatface job!! start on the 19th"], ["User works for Fatface"]),
        (["I have a dog called Rex", "we rehomed Rex"], ["User no longer has Rex"]),
        (["I'm a bus driver at Metroline", "I work for Greenway Coaches now"], ["User works for Greenway Coaches"]),
        (["I'm a nurse at St Thomas", "started at King's College Hospital last week"],
         ["User works for King's College Hospital"]),
        (["I'm vegetarian", "I eat meat again"], ["User eats meat again"]),
        (["I'm vegan", "I've started eating meat again"], ["User is eating meat again"]),
        (["I gave up coffee", "I'm drinking coffee again"], ["User is drinking coffee again"]),
        (["I don't eat pork", "I eat pork again"], ["User eats pork again"]),
        (["I quit smoking in May", "started smoking again"], ["User is smoking again"]),
        (["I gave up the gym", "I'm back at the gym"], ["User is back at the gym"]),
        (["I play the piano", "I gave up the piano"], ["User gave up piano"]),
        (["I play the piano", "I gave up the piano", "I've taken up the piano again"],
         ["User has taken up the piano again"]),
        (["I broke up with Tom", "Tom and I got back together"], ["User and Tom are back together"]),
        (["I broke up with my girlfriend", "my girlfriend and I are back together"],
         ["User and their girlfriend are back together"]),
        (["I'm single", "I'm seeing someone now"], ["User is seeing somebody"]),
        (["I'm with Vodafone, 42 a month", "switched to O2 btw, 15 a month"],
         ["User's phone provider is O2, 15 a month"]),
        (["what about insurance, i'm with Aviva and they charge me a lot", "I moved my insurance to Saga"],
         ["User's insurer is Saga"]),
        (["Ich bin bei der Telekom", "bin jetzt bei O2 statt bei der Telekom"], ["User's phone provider is O2"]),
        (["we went with the Megane, 24,300, delivery in April", "we got a Jazz"], ["User's new car is a Jazz"]),
        (["wir haben uns für den Golf entschieden", "Haben den Passat genommen, für 11.000"],
         ["User's new car is the Passat"]),
        (["I'm single", "we got engaged last weekend"], ["User is engaged"]),
        (["I got engaged", "I'm divorced now"], ["User is divorced"]),
        (["I said yes, I'm engaged!", "we got married yesterday"], ["User is married"]),
        (["my gf is Tasha", "tasha and me split up last night :("], ["User and Tasha are no longer together"]),
        (["Ich bin Vegetarier", "Ich esse wieder Fleisch"], ["User takes Fleisch again"]),
        (["J'ai arrêté de fumer", "je refume"], ["User smokes again"]),
        (["Soy vegetariana", "He vuelto a comer carne"], ["User takes carne again"]),
    ],
)  # fmt: skip
async def test_what_takes_the_place_of_something_ends_it(said: list[str], facts: list[str]) -> None:
    assert (await told(*said))[0] == facts


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ("I've got a Nokia", "should I switch to a Pixel 8?"),
        ("I've got a Nokia", "I switched to the second tab"),
        ("I've got a Nokia", "if I switched to a Pixel 8, would it be faster?"),
        ("I drive a Ford Fiesta", "would you trade the Fiesta in for a Skoda?"),
        ("I use Gmail", "they moved the server from Gmail to Proton"),
        ("I live in Leeds", "we replaced the pump with a new one"),
        ("I live in Leeds", "I'm drinking coffee again"),
        ("I live in Leeds", "we're back together"),
        ("I live in Leeds", "I'm back at the hotel"),
        ("I play the piano", "I dropped the phone"),
        ("I'm vegetarian", "I might eat meat again one day"),
        ("I'm vegetarian", "how do I start to eat meat again?"),
        ("I'm with Vodafone", "I'm with Ally and two friends"),
        ("I'm with Vodafone", "should I switch to O2?"),
        ("I've got a Golf", "I took the Golf to the garage"),
        ("I'm married to Ann", "Ann and I split the bill"),
        ("I'm married to Ann", "me and Ann split the work"),
        ("I broke up with Tom", "in my novel Tom and I got back together"),
        ("I broke up with Tom", "we're not back together"),
        ("I quit smoking", "if I start smoking again, slap me"),
    ],
)
async def test_a_question_a_wish_or_the_unknown_ends_nothing(known: str, said: str) -> None:
    assert (await told(known, said))[0] == (await told(known))[0]


@pytest.mark.parametrize(
    ("known", "said", "kept"),
    [
        ("I've got a Nokia", "my brother switched to a Pixel 8", "User has a Nokia"),
        ("I'm with Barclays", "we moved to Santander, it's lovely there", "User's bank is Barclays"),
        ("I'm with Barclays", "my brother switched to Monzo", "User's bank is Barclays"),
        ("I've got a Nokia", "I switched to Python 3.12 for this script", "User has a Nokia"),
        ("I'm vegetarian", "my dad eats meat again", "User is vegetarian"),
        ("I quit smoking", "my neighbour started smoking again", "User gave up smoking"),
        ("I gave up coffee", "I drink tea again", "User gave up coffee"),
        ("I'm a bus driver at Metroline", "my cousin works for Greenway Coaches now",
         "User is a bus driver at Metroline"),
        ("I'm a bus driver at Metroline", "I work for Metroline", "User is a bus driver at Metroline"),
    ],
)  # fmt: skip
async def test_of_others_and_of_other_things_nothing_ends(known: str, said: str, kept: str) -> None:
    assert kept in (await told(known, said))[0]
