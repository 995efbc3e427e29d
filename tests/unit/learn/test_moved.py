"""A new day, hour or sum of something known takes the place of the old one; nobody's other things are learned."""

from __future__ import annotations

import pytest

from memory_extproc.model import Source
from tests.unit.learn.test_details import hear, rows_of, told, turns
from tests.unit.learn.test_reconcile import a_rig, a_store


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        (["The school fair is on 12 May at the town hall", "the fair got pushed to 19 May"],
         ["User's school fair is on 19 May at the town hall"]),
        (["My project Quartz is due on September 15", "they pushed Quartz back, due October 20 now"],
         ["User's project Quartz is October 20"]),
        (["the bank offered 2.9% fixed for 25 years", "update: bank lowered it to 2.6"],
         ["User's bank offers an interest rate of 2.6 for 25 years"]),
        (["moving day is July 20", "moving day has changed, it's July 8"], ["User's moving day is July 8"]),
        (["Surgery's on 14 July at Forth Valley hospital", "hospital rang, op's been brought forward to 30 June"],
         ["User's op is on 30 June at Forth Valley hospital"]),
        (["wedding is on 4 May", "we had to move the wedding to October 3, the venue flooded"],
         ["User's wedding is October 3"]),
        (["our grand opening is on July 20", "grand opening is July 27 instead, sign guy is late"],
         ["User's grand opening is July 27"]),
        (["My dentist appointment is on March 9 at 10am", "dentist moved me to the 14th"],
         ["User's dentist appointment is on March 14"]),
        (["My rent is 950 euros", "the rent's 1200 now"], ["User's rent is 1200"]),
        (["My driving test is on June 3 in Leith", "it's on the 17th now"],
         ["User's driving test is on June 17 in Leith"]),
        (["My exam is on the 9th of June in room 4", "exam is the 16th instead"],
         ["User's exam is on the 16th of June in room 4"]),
        (["My exam is on June 9", "exam is the 2nd now"], ["User's exam is the 2nd"]),
        (["My job interview at Arup is on Monday at 2pm", "Arup moved the interview to Wednesday"],
         ["User's job interview at Arup is Wednesday"]),
        (["My train to Lyon leaves at 8:15", "the train leaves at 8:40 now"],
         ["User's train to Lyon is at 8:40"]),
        (["Our electricity bill is 80 euros a month", "electricity's gone up to 95 a month"],
         ["User's electricity bill is 95 a month"]),
        (["My salary is 41,000", "they bumped me up to 44,000"], ["User's salary is 44,000"]),
        (["Our book club is on Thursdays at 7", "book club is on Mondays now"], ["User's book club is on Mondays"]),
        (["My marathon is on October 4 in Bath", "marathon's been put back a week to October 11"],
         ["User's marathon is on October 11 in Bath"]),
        (["Mon rendez-vous chez le dentiste est le 4 mai", "le dentiste m'a décalé au 11 mai"],
         ["User's appointment chez le dentiste is 11 mai"]),
    ],
)  # fmt: skip
async def test_a_known_thing_that_moved_has_its_new_value_and_keeps_its_details(
    said: list[str], facts: list[str]
) -> None:
    assert (await told(*said))[0] == facts


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ("I live in Leeds", "the fair got pushed to 19 May"),
        ("I live in Leeds", "they pushed Quartz back, due October 20 now"),
        ("I live in Leeds", "launch now April 21"),
        ("I live in Leeds", "bank lowered it to 2.6"),
        ("I live in Leeds", "delivery is free on Mondays"),
        ("I live in Leeds", "the opening of the show is on Friday"),
        ("I live in Leeds", "opening a bank account on Monday is hard"),
        ("I live in Leeds", "it's July and it's hot"),
        ("My workshop is on 12 May", "was the workshop pushed to 19 May?"),
        ("My workshop is on 12 May", "if the workshop got pushed to 19 May I'd be happy"),
        ("My workshop is on 12 May", "my sister said the workshop got pushed to 19 May"),
        ("My workshop is on 12 May", "her workshop got pushed to 19 May"),
        ("My workshop is on 12 May", "the workshop didn't get pushed to 19 May"),
        ("My rent is 950 euros", "her rent's 1200 now"),
        ("My rent is 950 euros", "the flat next door is 1200 now"),
        ("My dentist appointment is on March 9", "dentist moved me to tears"),
        ("My dentist appointment is on March 9", "the dentist moved her to the 14th"),
        ("My exam is on June 9", "maybe the exam is the 16th instead"),
        ("My exam is on June 9", "Rewrite this: 'the exam is the 16th instead'"),
        ("My train to Lyon leaves at 8:15", "the next train leaves at 9 now"),
        ("My salary is 41,000", "they bumped my colleague up to 44,000"),
        ("My gym is FitX", "gym's now 42 a month"),
        ("My team meeting is on Monday", "the meeting notes moved to Tuesday's folder"),
    ],
)
async def test_of_something_unknown_asked_supposed_or_of_another_nothing_moves(known: str, said: str) -> None:
    assert (await told(known, said))[0] == (await told(known))[0]


async def test_of_two_flights_none_moves_with_the_flight() -> None:
    known = ["My flight to Oslo is on May 3", "My flight to Rome is on May 9"]
    assert set((await told(*known))[0]) <= set((await told(*known, "flight's now May 12"))[0])


async def test_the_day_of_an_event_follows_its_move() -> None:
    store = a_store()
    async with a_rig(store) as rig:
        for turn in turns("My driving test is on June 3", "driving test is on the 17th now"):
            await hear(rig, turn)
        known = {row.content: row for row in await rows_of(store) if row.source is Source.RULES}
    assert known["User's driving test is on June 17"].provenance.event_date == "2026-06-17"
