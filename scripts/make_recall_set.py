"""Writes the small set on which `make test` holds floors for recall: tests/quality/everyday.jsonl.

    python scripts/make_recall_set.py            # prints the lines; the same seed gives the same bytes
    python scripts/make_recall_set.py --seed 101 # other people of the same kind, such as weights are fitted on

People who say much the same of themselves with other values, so that a word alone decides nothing; facts noted and
facts said in passing, some of them in a short answer; facts that changed; small talk in between; and for everybody
questions about what they never said.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

SEED = 20_26
OWNERS = ("ann", "bob", "chloe", "dmitri", "esra", "femi", "grace", "hugo")
BEGIN = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
NOTED, SAID, ANSWERED, UNKNOWN = 7, 6, 3, 8  # of each owner: facts by how they came to be, and what is not known


@dataclass(frozen=True)
class Topic:
    """One thing to know of somebody. *note* and *said* hold {}; *opener*: a question the assistant might ask, with
    *short* as the answer that says little by itself."""

    key: str
    note: str
    said: str
    asks: tuple[str, ...]
    values: tuple[str, ...]
    opener: str = ""
    short: str = ""


TOPICS = (
    Topic(
        "budget",
        "User's budget for the {} trip is {}",
        "My budget for the {} trip is {}.",
        ("What's my budget?", "how much can I spend on the trip?", "What is my travel budget again"),
        ("Hawaii|$10,000", "Lisbon|$2,400", "Kyoto|$6,500", "Oslo|$3,100", "Peru|$4,800", "Iceland|$5,250"),
    ),
    Topic(
        "cat",
        "User has a cat named {}",
        "My cat {} knocked the lamp over again this morning.",
        ("What is my cat's name?", "what do I call my cat", "Which name did I give my cat?"),
        ("Miso", "Pepper", "Tofu", "Luna", "Biscuit", "Figaro"),
        "Do you have any pets at home?",
        "Yes, one cat, she is called {}.",
    ),
    Topic(
        "dog",
        "User's dog {} is a {}",
        "I walk my dog {} every evening, the {} needs it.",
        ("What breed is my dog?", "what kind of dog do I have", "Tell me my dog's name"),
        ("Rex|beagle", "Nala|border collie", "Otto|dachshund", "Bruno|boxer", "Kira|husky", "Max|poodle"),
    ),
    Topic(
        "allergy",
        "User is allergic to {}",
        "I can't eat {}, I am allergic to it.",
        ("What am I allergic to?", "any food I have to avoid?", "Which allergy do I have?"),
        ("peanuts", "shellfish", "kiwi", "hazelnuts", "sesame", "strawberries"),
        "Anything I should leave out of the recipe?",
        "No {} please, my throat swells up.",
    ),
    Topic(
        "job",
        "User works as a {} at {}",
        "I started as a {} at {} last spring.",
        ("Where do I work?", "what's my job", "Who is my employer?"),
        (
            "nurse|St. Mary's hospital",
            "data engineer|Northwind",
            "pastry chef|Café Orsay",
            "geologist|Terra Survey",
            "teacher|Hillside primary school",
            "welder|the harbour yard",
        ),
    ),
    Topic(
        "city",
        "User lives in {}",
        "I live in {}, not far from the station.",
        ("Where do I live?", "which city is my home in?", "what town am I in"),
        ("Leipzig", "Porto", "Tampere", "Lyon", "Gdansk", "Cork"),
    ),
    Topic(
        "sister",
        "User's sister {} lives in {}",
        "My sister {} has just moved to {}.",
        ("Where does my sister live?", "what's my sister called?", "Which city did my sister move to?"),
        ("Maren|Toronto", "Ilse|Vienna", "Priya|Pune", "Joan|Perth", "Lena|Bergen", "Rosa|Madrid"),
    ),
    Topic(
        "birthday",
        "User's birthday is on {}",
        "My birthday is on {}, so I won't be at work.",
        ("When is my birthday?", "what day was I born on", "On which date do I celebrate?"),
        ("March 14", "June 2", "October 30", "December 9", "August 21", "January 27"),
    ),
    Topic(
        "car",
        "User drives a {}",
        "The {} I drive needs new brakes.",
        ("What car do I drive?", "which car do I have", "What's the model of my car?"),
        (
            "red Skoda Octavia",
            "grey Volvo V60",
            "white Fiat Panda",
            "blue Toyota Yaris",
            "green Mini",
            "old Saab 900",
        ),
    ),
    Topic(
        "instrument",
        "User plays the {}",
        "I have been learning the {} for two years now.",
        ("Which instrument do I play?", "what instrument am I learning", "What music do I make myself?"),
        ("cello", "oboe", "accordion", "banjo", "harp", "clarinet"),
        "Do you make music yourself?",
        "A little, the {}, mostly on Sundays.",
    ),
    Topic(
        "drink",
        "User prefers {} in the morning",
        "I always have {} before I can talk to anybody.",
        ("What do I drink in the morning?", "what's my usual morning drink?"),
        ("oolong tea", "black coffee", "a flat white", "hot chocolate", "mint tea", "an espresso"),
    ),
    Topic(
        "doctor",
        "User has a dentist appointment on {}",
        "I have to see the dentist on {}.",
        ("When do I see the dentist?", "what day is my dentist appointment"),
        (
            "May 3 at 10:30",
            "April 17 at 8:00",
            "June 11 at 16:15",
            "May 22 at 9:45",
            "July 1 at 14:00",
            "April 29 at 11:20",
        ),
    ),
    Topic(
        "shoe",
        "User's shoe size is {}",
        "Shoes in size {} are hard to find here.",
        ("What's my shoe size?", "which size of shoes do I need"),
        ("38", "41", "43.5", "46", "36", "39"),
    ),
    Topic(
        "team",
        "User supports {}",
        "I have had a season ticket of {} since I was ten.",
        ("Which football team do I support?", "what's my favourite club", "Who do I cheer for?"),
        ("FC St. Pauli", "Celtic", "Ajax", "Athletic Bilbao", "Fenerbahce", "Napoli"),
    ),
    Topic(
        "language",
        "User is learning {}",
        "My {} lessons are on Tuesdays.",
        ("Which language am I learning?", "what language do I take lessons in"),
        ("Portuguese", "Korean", "Finnish", "Welsh", "Arabic", "Greek"),
    ),
    Topic(
        "deploy",
        "To deploy {}: run {}",
        "We deploy {} with {}.",
        ("How do I deploy?", "what's the command to deploy the service", "how was the release done again?"),
        (
            "payment-service|make release",
            "the shop|./ship.sh prod",
            "billing|helm upgrade billing",
            "the portal|fly deploy",
            "search-api|just deploy",
            "the blog|hugo && rsync",
        ),
    ),
    Topic(
        "laptop",
        "User's laptop is a {}",
        "The {} on my desk gets hot when I compile.",
        ("What laptop do I have?", "which computer do I use"),
        ("ThinkPad X1", "MacBook Air M2", "Framework 13", "Dell XPS 15", "Zenbook 14", "Surface 9"),
    ),
    Topic(
        "wedding",
        "User's wedding is on {} in {}",
        "We are getting married on {} in {}.",
        ("When is my wedding?", "where are we getting married", "What's the date of the wedding?"),
        (
            "September 12|Siena",
            "June 27|Galway",
            "May 30|Salzburg",
            "October 3|Granada",
            "August 8|Bruges",
            "July 18|Visby",
        ),
    ),
    Topic(
        "book",
        "User is reading {}",
        "I am halfway through {}, it is slow but good.",
        ("Which book am I reading?", "what was I reading"),
        ("Middlemarch", "The Left Hand of Darkness", "Stoner", "The Leopard", "Kokoro", "Austerlitz"),
    ),
    Topic(
        "run",
        "User runs {} on {}",
        "I ran {} on {}, as every week.",
        ("How far do I run?", "when do I go running", "What's my weekly running distance?"),
        ("8 km|Wednesdays", "12 km|Saturdays", "5 km|Mondays", "10 km|Thursdays", "6 km|Fridays", "15 km|Sundays"),
    ),
    Topic(
        "son",
        "User's son {} goes to {}",
        "My son {} started {} this week.",
        ("What's my son's name?", "what does my son attend?", "Where does my son go?"),
        (
            "Theo|judo classes",
            "Emil|kindergarten",
            "Jonas|chess club",
            "Ravi|a new school",
            "Luca|swimming lessons",
            "Noah|choir",
        ),
    ),
    Topic(
        "router",
        "User's Wi-Fi router is in the {}",
        "The router stands in the {}, no wonder it is slow upstairs.",
        ("Where is my Wi-Fi router?", "in which room did I put the router"),
        ("cellar", "hall cupboard", "attic", "kitchen", "study", "garage"),
    ),
    Topic(
        "colour",
        "User painted the living room {}",
        "We painted the living room {} over the weekend.",
        ("What colour is my living room?", "which colour did we paint the living room"),
        ("sage green", "terracotta", "pale yellow", "navy", "lavender", "off-white"),
    ),
    Topic(
        "diet",
        "User eats {} food only",
        "I went {} two months ago and feel better.",
        ("What diet do I follow?", "am I on some diet"),
        ("vegan", "vegetarian", "gluten-free", "halal", "kosher", "pescatarian"),
        "Shall I suggest something with chicken?",
        "Rather not, everything I eat is {}.",
    ),
)

# Somebody else's, so near that only the person tells it apart; said in passing where the owner's own is known.
NEAR = {
    "budget": "My brother thinks a budget of {1} for his {0} trip is plenty.",
    "cat": "Bea from next door calls her cat {}.",
    "dog": "Our postman has a {1} called {0}.",
    "allergy": "A colleague of mine is allergic to {}.",
    "job": "My cousin wants to become a {} at {}.",
    "city": "An old friend has bought a flat in {}.",
    "birthday": "My uncle's birthday is on {}.",
    "car": "My parents bought a {}.",
    "instrument": "Our neighbour's daughter practises the {} all day.",
    "wedding": "Friends of ours are getting married on {} in {}.",
    "book": "My book club has just finished {}.",
    "run": "My flatmate runs {} on {}.",
    "team": "My boss never misses a match of {}.",
    "laptop": "The new trainee got a {}.",
}

CHAT = (
    ("Can you explain how tides work?", "Tides follow the pull of the moon and the sun on the oceans."),
    (
        "Write a haiku about rain.",
        "Grey roof, drumming rain; a heron waits on one leg; the street holds the sky.",
    ),
    (
        "The train was late again and I missed a meeting.",
        "That sounds annoying; some lines publish delay forms.",
    ),
    ("What is the capital of Mongolia?", "The capital of Mongolia is Ulaanbaatar."),
    ("I slept badly because of the storm.", "A storm can do that; an early night may help."),
    ("Summarise the plot of Hamlet.", "A prince hesitates to avenge his father; nearly all die."),
    ("How long do I boil an egg?", "Six minutes give a soft yolk, ten a hard one."),
    ("The printer on our floor is broken once more.", "Switching it off for a minute sometimes clears the fault."),
    ("Convert 30 degrees Celsius to Fahrenheit.", "30 °C are 86 °F."),
    ("We watched a documentary about octopuses last night.", "Octopuses have three hearts and remarkable memory."),
    ("Give me three names for a bakery.", "Crumb & Crust, The Early Loaf, Flour Hour."),
    ("The weather was lovely, so we ate outside.", "A meal outside often tastes twice as good."),
    ("Why is the sky blue?", "Air scatters short wavelengths more than long ones."),
    ("My neighbour plays loud music at night.", "A friendly word, or earplugs, may be the quickest help."),
    ("Fix this regex: ^[a-z+$", "The bracket is not closed: ^[a-z]+$ is what you mean."),
    ("I finally cleaned the windows.", "Good light is worth the work."),
)


def lines(seed: int = SEED) -> Iterator[dict[str, Any]]:
    """Every memory and question, owner by owner."""
    chance = random.Random(seed)  # noqa: S311 - a seed is what it is for
    for owner in OWNERS:
        yield from _of_owner(owner, chance)


def _of_owner(owner: str, chance: random.Random) -> Iterator[dict[str, Any]]:
    topics = chance.sample(TOPICS, len(TOPICS))
    answered = [topic for topic in topics if topic.opener][:ANSWERED]
    others = [topic for topic in topics if topic not in answered]
    noted, said = others[:NOTED], others[NOTED : NOTED + SAID]
    unknown = others[NOTED + SAID :][:UNKNOWN]
    yield from _notes(owner, noted, chance)
    yield from _talk(owner, said, answered, noted, chance)
    for topic in unknown:
        for ask in topic.asks[:2]:
            yield {"query": ask, "owner": owner, "relevant": [], "category": "unknown"}


def _notes(owner: str, topics: list[Topic], chance: random.Random) -> Iterator[dict[str, Any]]:
    for number, topic in enumerate(topics):
        before, now = chance.sample(topic.values, 2)
        at = BEGIN + timedelta(days=number, hours=chance.randrange(9))
        current, category = f"{owner}-{topic.key}", "fact"
        if number % 3 == 0:
            yield _memory(f"{current}-old", owner, topic.note.format(*before.split("|")), at)
            replaced = {"replaces": f"{current}-old"}
            yield _memory(current, owner, topic.note.format(*now.split("|")), at + timedelta(days=20)) | replaced
            category = "update"
        else:
            yield _memory(current, owner, topic.note.format(*now.split("|")), at)
        for ask in topic.asks:
            yield {"query": ask, "owner": owner, "relevant": [current], "category": category}


def _talk(
    owner: str, said: list[Topic], answered: list[Topic], noted: list[Topic], chance: random.Random
) -> Iterator[dict[str, Any]]:
    told = [(topic, topic.said, "") for topic in said] + [(topic, topic.short, topic.opener) for topic in answered]
    chance.shuffle(told)
    known = [topic.key for topic in (*said, *answered, *noted) if topic.key in NEAR]
    chat = chance.sample(CHAT, len(CHAT))
    values = {topic.key: topic.values for topic in TOPICS}
    for number, (topic, form, opener) in enumerate(told):
        at = BEGIN + timedelta(days=number * 3, hours=chance.randrange(9))
        before, after = chat[number % len(chat)], chat[(number + 5) % len(chat)]
        key = f"{owner}-{topic.key}"
        messages = [
            ("user", before[0], ""),
            ("assistant", f"{before[1]} {opener}".strip(), ""),
            ("user", form.format(*chance.choice(topic.values).split("|")), key),
            ("assistant", "Thanks for telling me.", ""),
            ("user", after[0], ""),
            ("assistant", after[1], ""),
        ]
        if number < len(known):
            other = known[number]
            messages += [("user", NEAR[other].format(*chance.choice(values[other]).split("|")), "")]
            messages += [("assistant", "I see.", "")]
        session = f"{owner}-{number}"
        for step, (role, text, name) in enumerate(messages):
            place = _memory(name or f"{session}-{step}", owner, text, at + timedelta(minutes=step))
            yield {**place, "session": session, "role": role}
        for ask in topic.asks:
            category = "short answer" if opener else "said"
            yield {"query": ask, "owner": owner, "relevant": [key], "category": category}


def _memory(name: str, owner: str, text: str, at: datetime) -> dict[str, Any]:
    return {"memory": name, "owner": owner, "text": text, "at": at.isoformat().replace("+00:00", "Z")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=SEED)
    for line in lines(parser.parse_args().seed):
        sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
