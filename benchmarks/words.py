"""Statements and questions of the benchmark's callers: fixed by their number, none of it random.

Every question has its memory, and no two numbers give one question, so no cache ever helps.
"""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """One sort of fact: how it is remembered and how it is asked for. {p} is a place, {n} a number."""

    memory: str
    asked: str


KINDS = (
    Kind("My budget for the trip to {p} is ${n}.", "what is my budget for the trip to {p}"),
    Kind("The hotel I like in {p} is number {n} on the harbour road.", "which hotel do I like in {p}"),
    Kind("My flight to {p} leaves at gate {n}.", "from which gate does my flight to {p} leave"),
    Kind("I met my colleague Dana in {p} in room {n}.", "in which room did I meet Dana in {p}"),
    Kind("The deployment in {p} runs on cluster {n}.", "on which cluster does my deployment in {p} run"),
    Kind("My doctor in {p} gave me appointment {n}.", "which appointment did my doctor in {p} give me"),
    Kind("I keep my bicycle in {p} in garage {n}.", "in which garage do I keep my bicycle in {p}"),
    Kind("My sister lives in {p} at house {n}.", "at which house does my sister live in {p}"),
    Kind("The invoice from {p} that I must pay has number {n}.", "which invoice from {p} must I pay"),
    Kind("My favourite restaurant in {p} has table {n} by the window.", "which table is mine in {p}"),
)

_PLACES = (
    "Aberdeen Accra Adelaide Alicante Amman Ankara Antwerp Athens Auckland Austin Bangalore Barcelona Basel "
    "Belgrade Bergen Berlin Bilbao Bogota Bologna Bordeaux Boston Bratislava Brisbane Bristol Brussels "
    "Budapest Cairo Calgary Cardiff Chicago Cologne Copenhagen Cordoba Dakar Dallas Damascus Delhi Denver "
    "Dresden Dublin Durban Edinburgh Florence Geneva Genoa Ghent Glasgow Gothenburg Granada Graz Hamburg "
    "Hanoi Havana Helsinki Hobart Houston Istanbul Jakarta Johannesburg Kigali Krakow Kyoto Lagos Leeds "
    "Leipzig Lima Lisbon Ljubljana London Lyon Madrid Malmo Manila Marseille Melbourne Miami Milan Montreal "
    "Munich Nairobi Naples Nice Osaka Oslo Palermo Paris Perth Porto Prague Quito Riga Rome Seattle Seoul "
    "Seville Sofia Stockholm Sydney Tallinn Toronto"
)
PLACES = tuple(_PLACES.split())
OPENERS = ("", "please, ", "tell me, ", "remind me, ", "quickly, ", "by the way, ", "once more, ", "honestly, ")
CLOSERS = ("", " this year", " next month", " in spring", " in autumn", " on Monday", " on Friday", " again",
           " right now", " in general")  # fmt: skip
MEMORIES = len(KINDS) * len(PLACES)  # 1,000 of one caller
QUESTIONS = MEMORIES * len(OPENERS) * len(CLOSERS)
STEP = 7919  # a prime that shares no factor with QUESTIONS: neighbours in time ask for different things


def memories() -> list[str]:
    """All that one caller has said."""
    return [kind.memory.format(p=place, n=100 + i) for i, place in enumerate(PLACES) for kind in KINDS]


def said(count: int) -> list[str]:
    """As many memories of one caller: beyond MEMORIES the same places and sorts of things, in other years."""
    texts = memories()
    return [
        text if at < len(texts) else f"{text.rstrip('.')} as it was {at // len(texts)} years before."
        for at, text in enumerate(texts[at % len(texts)] for at in range(count))
    ]


def question(number: int) -> str:
    """One question per number in [0, QUESTIONS); ValueError beyond, rather than one twice."""
    if not 0 <= number < QUESTIONS:
        raise ValueError(f"there are {QUESTIONS} questions, none has number {number}")
    place, rest = divmod(number * STEP % QUESTIONS, QUESTIONS // len(PLACES))
    kind, rest = divmod(rest, len(OPENERS) * len(CLOSERS))
    opener, closer = divmod(rest, len(CLOSERS))
    asked = KINDS[kind].asked.format(p=PLACES[place])
    sentence = f"{OPENERS[opener]}{asked}{CLOSERS[closer]}?"
    return sentence[0].upper() + sentence[1:]
