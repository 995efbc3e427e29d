"""Detail stays known until it is contradicted; a value that changed goes, also from answers that went by it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_extproc.model import Embedded, Memory, MemoryState, Role, Source, Turn, message_id_of
from memory_extproc.testing.adapters import InMemoryStore
from memory_extproc.testing.models import CannedEmbedder
from tests.support.builders import ANN, a_turn, later, memories_of
from tests.unit.learn.test_reconcile import DIMENSION, Rig, a_rig, a_store


async def hear(rig: Rig, turn: Turn, earlier: Sequence[Turn] = ()) -> None:
    """Stores the messages of *turn*, as they are before its facts are found, and learns it."""
    rows = memories_of(turn, turn.at)
    vectors = await CannedEmbedder(DIMENSION).embed([row.content for row in rows])
    await rig.keeps.put(ANN, [Embedded(row, vector) for row, vector in zip(rows, vectors, strict=True)])
    await rig.learn(turn, earlier=earlier)


async def rows_of(store: InMemoryStore) -> list[Memory]:
    return [row.memory async for page in store.pages(ANN, 200, fresh=True) for row in page]


async def recallable(store: InMemoryStore, source: Source | None = None) -> list[str]:
    rows = [row for row in await rows_of(store) if row.state is MemoryState.ACTIVE]
    return sorted(row.content for row in rows if source is None or row.source is source)


def turns(*said: str) -> list[Turn]:
    return [a_turn(text, "", seq=2 * at, at=later(minutes=at)) for at, text in enumerate(said)]


async def told(*said: str) -> tuple[list[str], list[str]]:
    """The facts and the messages that can be recalled after *said*."""
    store = a_store()
    async with a_rig(store) as rig:
        for at, turn in enumerate(every := turns(*said)):
            await hear(rig, turn, every[:at])
        return await recallable(store, Source.RULES), await recallable(store, Source.VERBATIM)


TOGETHER_NO_MORE = "User and their girlfriend are no longer together"


# --- endings and losses ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("said", "facts"),
    [
        (["I stopped eating pork years ago"], ["User gave up eating pork years ago"]),
        (["I gave up coffee two weeks ago"], ["User gave up coffee two weeks ago"]),
        (["I don't live in Paris any more since last year"], ["User no longer lives in Paris (since last year)"]),
        (
            ["We no longer eat meat for ethical reasons"],
            ["User no longer eats meat (ended for ethical reasons)"],
        ),
        (["I haven't eaten meat since 2015"], ["User has not eaten meat since 2015"]),
        (["I drink coffee every day", "I gave up coffee"], ["User gave up coffee"]),
        (["I drive a red Toyota", "I sold my Toyota"], ["User no longer has the Toyota"]),
        (["I drive a red Toyota", "We sold the car last week"], ["User no longer has the car (ended last week)"]),
        (["I own a house in Kent", "we sold the house"], ["User no longer has the house"]),
        (["I have a bike", "my bike was stolen yesterday"], ["User's bike was stolen yesterday"]),
        (["I play in a band", "I left the band"], ["User left the band"]),
        (["I work at Siemens", "I got laid off"], ["User left the job they had"]),
        (
            ["My girlfriend Lisa loves sushi", "Lisa and I broke up"],
            ["User and Lisa are no longer together"],
        ),
        (
            ["My wife is called Eva", "My sister is called Eva", "My wife left me"],
            ["User and their wife are no longer together", "User's sister is Eva"],
        ),
        (["I'm married to Jo", "we got divorced"], ["User and their partner are no longer together"]),
        (
            ["My grandmother lives in Kent", "My grandmother Rose was born in 1930", "My grandmother passed away"],
            ["User's grandmother Rose was born in 1930", "User's grandmother died", "User's grandmother is Rose"],
        ),
        (
            ["My dog Rex is a labrador", "My dog Max is a poodle", "my dog Rex died in March"],
            [
                "User's dog Max is a poodle",
                "User's dog Rex died in March",
                "User's dog is Max",
                "User's dog is Rex",
            ],
        ),
        (
            ["My dog Rex is a labrador", "My dog Max is a poodle", "my dog died"],
            [
                "User's dog Max is a poodle",
                "User's dog Rex is a labrador",
                "User's dog died",
                "User's dog is Max",
                "User's dog is Rex",
            ],
        ),
        (["I lost my keys again"], []),
        (["Ich habe aufgehört zu rauchen"], ["User gave up smoking"]),
        (["Je conduis une Clio rouge", "J'ai vendu ma Clio"], ["User no longer has the Clio"]),
        (["J'ai perdu mon mari en 2015"], ["User's husband died 2015"]),
        (["Mi perro murió"], ["User's dog died"]),
        (["Meine Freundin heißt Lisa", "Ich habe mich von meiner Freundin getrennt"], [TOGETHER_NO_MORE]),
        (["Mi novia se llama Lisa", "Rompí con mi novia"], [TOGETHER_NO_MORE]),
    ],
)
async def test_what_is_there_no_longer_goes_with_everything_that_holds_only_while_it_is_there(
    said: list[str], facts: list[str]
) -> None:
    assert (await told(*said))[0] == facts


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        (
            ["My dentist appointment is on May 3", "The dentist appointment was postponed"],
            ["User's dentist appointment was moved; new date not known"],
        ),
        (
            ["My exam is on May 5", "the exam got moved", "my exam is now on May 20"],
            ["User's exam is on May 20"],
        ),
        (["My wedding is on June 12", "Our wedding has been called off"], ["User's wedding was cancelled"]),
        (
            ["My flight to Rome is on May 4", "My flight to Oslo is on May 9", "They cancelled my flight to Oslo"],
            ["User's flight to Oslo was cancelled", "User's flight to Rome is on May 4"],
        ),
        (
            ["My rent is 900 euros", "My landlord raised the rent"],
            ["User's rent was changed; new amount not known"],
        ),
        (
            ["Mein Zahnarzttermin ist am 3. Mai", "Der Zahnarzttermin wurde verschoben"],
            ["User's dentist appointment was moved; new date not known"],
        ),
        (
            ["Mon vol pour Rome est le 4 mai", "Mon vol a été annulé"],
            ["User's flight pour Rome was cancelled"],
        ),
        (
            ["Mi alquiler es de 900 euros", "Me han subido el alquiler a 1000 euros"],
            ["User's rent is 1000 euros"],
        ),
    ],
)
async def test_what_changed_to_nobody_said_what_retires_the_old_value_and_says_that_the_new_is_not_known(
    said: list[str], facts: list[str]
) -> None:
    assert (await told(*said))[0] == facts


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        (["My son's name is Mark", "sorry, I mean Max"], ["User's son is Max"]),
        (["My son's name is Mark", "Max, not Mark"], ["User's son is Max"]),
        (["My brother is called Mark", "His name is Max, not Mark"], ["User's brother is Max"]),
        (
            ["My sister Anna lives in Rome", "I mean Hanna"],
            ["User's sister Hanna lives in Rome", "User's sister is Hanna"],
        ),
        (
            ["My meeting with Jon is on Tuesday", "sorry, John not Jon"],
            ["User's meeting with John is on Tuesday"],
        ),
        (["My budget is $900, no wait, $750"], ["User's budget is $750"]),
        (["My viewing is on 4 May", "the viewing was moved to 6 May"], ["User's viewing is 6 May"]),
        (["Mein Sohn heißt Mark", "Ich meinte Max, nicht Mark"], ["User's son is Max"]),
        (["Mi hijo se llama Marcos", "Quería decir Max, no Marcos"], ["User's son is Max"]),
        (["My son's name is Mark", "Sorry, Anna called"], ["User's son is Mark"]),
        (["I work at Google", "I mean Friday"], ["User works for Google"]),
    ],
)
async def test_a_name_put_right_takes_the_place_of_the_wrong_one_in_all_that_was_said_of_it(
    said: list[str], facts: list[str]
) -> None:
    assert (await told(*said))[0] == facts


# --- detail ------------------------------------------------------------------------------------------
async def test_what_is_said_again_with_less_detail_keeps_the_detail_and_the_message_that_held_it() -> None:
    facts, messages = await told("I work as a nurse at the Riverside Hospital", "I still work as a nurse now")
    assert facts == ["User works as a nurse at the Riverside Hospital"]
    assert "I work as a nurse at the Riverside Hospital" in messages


async def test_what_is_said_again_with_more_detail_takes_the_place_of_what_was_said() -> None:
    facts, _ = await told("I work as a nurse", "I work as a nurse at the Riverside Hospital")
    assert facts == ["User works as a nurse at the Riverside Hospital"]


async def test_detail_told_first_and_learned_last_still_stands_in_for_the_less_detailed() -> None:
    store = a_store()
    async with a_rig(store) as rig:
        for turn in reversed(turns("I work as a nurse at the Riverside Hospital", "I still work as a nurse now")):
            await hear(rig, turn)
        assert await recallable(store, Source.RULES) == ["User works as a nurse at the Riverside Hospital"]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (["I have two cats", "I have three cats now"], ["User has three cats"]),
        (["I'm allergic to nuts", "I'm not allergic to nuts"], ["User is not allergic to nuts"]),
        (["I'm vegetarian", "I'm not vegetarian"], ["User is not vegetarian"]),
        (["I weigh 85 kilos", "I'm down to 82 kilos"], ["User weighs 82 kilos"]),
    ],
)
async def test_a_denial_another_count_or_a_change_takes_the_place_of_what_was_known(
    said: list[str], expected: list[str]
) -> None:
    assert (await told(*said))[0] == expected


@pytest.mark.parametrize("swapped", [False, True])
async def test_an_employer_said_again_without_the_job_keeps_the_job(swapped: bool) -> None:
    said = ["I work at Bosch in Stuttgart as a welder", "I work at Bosch"]
    facts, _ = await told(*(reversed(said) if swapped else said))
    assert facts == ["User works at Bosch in Stuttgart as a welder"]
    facts, _ = await told(*said, "I work at Siemens")
    assert facts == ["User works for Siemens"]


@pytest.mark.parametrize(
    ("more", "less", "expected"),
    [
        ("I take metformin twice a day", "I take metformin", "User takes metformin twice a day"),
        ("My flight to Rome is on 3 May at 9:40", "My flight to Rome is on 3 May",
         "User's flight to Rome is on 3 May at 9:40"),
        ("I run a bakery in Trieste with my brother", "I run a bakery",
         "User runs a bakery in Trieste with their brother"),
        ("My wife Anna is a dentist in Bonn", "My wife is a dentist", "User's wife Anna is a dentist in Bonn"),
    ],
)  # fmt: skip
async def test_a_statement_and_the_same_with_more_behind_it_are_one_line(
    more: str, less: str, expected: str
) -> None:
    for said in ((more, less), (less, more)):
        facts, _ = await told(*said)
        assert [fact for fact in facts if fact != "User's wife is Anna"] == [expected]


@pytest.mark.parametrize(
    "said",
    [
        ("I like gin", "I like gin and tonic"),
        ("I have a dog", "I have a dog sitter"),
        ("My brother Karl lives in Linz", "My brother Paul lives in Graz"),
    ],
)
async def test_a_longer_statement_of_another_thing_stays_beside_the_shorter(said: tuple[str, str]) -> None:
    facts, _ = await told(*said)
    assert len([fact for fact in facts if "brother is" not in fact]) == 2


async def test_of_two_that_each_have_a_detail_of_their_own_both_stay() -> None:
    facts, _ = await told("My manager is Dr. Zhao in Building 7", "My manager is Dr. Evelyn Zhao")
    assert facts == ["User's manager is Dr. Evelyn Zhao", "User's manager is Dr. Zhao in Building 7"]


async def test_a_change_ends_the_old_value_with_its_detail() -> None:
    facts, _ = await told("I work as a nurse at the Riverside Hospital", "I work as a teacher in Bonn")
    assert facts == ["User works as a teacher in Bonn"]


async def test_a_message_that_says_more_than_its_facts_outlives_them() -> None:
    said = "Bought a lamp at Chez Jeanne today. I live in Paris."
    _, messages = await told(said, "I moved to Tokyo.")
    assert said in messages


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        (["My wedding is on June 6 in Kinsale", "the wedding is moved to June 27"],
         ["User's wedding is on June 27 in Kinsale"]),
        (["My wedding is on June 6 in Kinsale", "the wedding is moved to June 27", "the wedding is moved to Cork"],
         ["User's wedding is on June 27 in Cork"]),
        (["My dentist appointment is on March 10 at 9am with Dr. Patel", "My appointment got moved to March 17"],
         ["User's dentist appointment is on March 17 with Dr. Patel"]),
        (["Our flight to Lisbon is on Friday at 7:40 from Gatwick", "the flight to Lisbon was rebooked to Sunday"],
         ["User's flight to Lisbon is on Sunday from Gatwick"]),
        (["Our viewing is on 4 May at 10:30 on Maple Street", "the viewing was moved to 14:00"],
         ["User's viewing is on 4 May at 14:00 on Maple Street"]),
        (["My rent is 900 euros for the flat in Bonn", "my rent went up to 980 euros"],
         ["User's rent is 980 euros for the flat in Bonn"]),
        (["I earn 3,000 euros a month at Bosch", "I earn 3,300 euros a month now"],
         ["User earns 3,300 euros a month at Bosch"]),
        (["My gym class is on Tuesdays at 6 with Carla", "my gym class is on Thursdays now"],
         ["User's gym class is on Thursdays with Carla"]),
        (["The offsite is in Braga on 4 May", "the offsite is now in Porto"],
         ["User's offsite is in Porto on 4 May"]),
        (["My exam is on Monday in room 204", "the exam was postponed"],
         ["User's exam was moved; new date not known (in room 204)"]),
        (["Meine Hochzeit ist am 3. August auf Schloss Ringberg",
          "Die Hochzeit wurde auf den 10. August verschoben"],
         ["User's wedding is 10. August auf Schloss Ringberg"]),
        (["Mon examen est le 3 mai à la fac de Lyon", "Mon examen a été reporté au 10 mai"],
         ["User's exam is 10 mai à la fac de Lyon"]),
        (["Mi cita con la dentista es el 10 de marzo en la clínica Sol",
          "Mi cita con la dentista se movió al 17 de marzo"],
         ["User's appointment con la dentista is 17 de marzo en la clínica Sol"]),
        # another thing has no detail of the first, and nothing is told of a thing that is gone
        (["My manager is Dr. Zhao in Building 7", "my manager is Peter now"], ["User's manager is Peter"]),
        (["My car is a Golf from 2015", "my car is now a Fiat"], ["User's car is a Fiat"]),
        (["My rent is 900 euros from May", "my rent is 950 euros now"], ["User's rent is 950 euros"]),
        (["My wedding is on June 6 in Kinsale", "the wedding was cancelled"], ["User's wedding was cancelled"]),
        (["My haircut is on June 6 at Toni's", "My haircut is on June 8 at Luigi's"],
         ["User's haircut is on June 8 at Luigi's"]),
        # a rehearsal is not the wedding, and a day does not contradict a place
        (["My wedding rehearsal is on June 5 at the abbey", "the wedding is moved to June 27"],
         ["User's wedding is June 27", "User's wedding rehearsal is on June 5 at the abbey"]),
        (["My wedding is in Kinsale", "My wedding is on June 6"],
         ["User's wedding is in Kinsale", "User's wedding is on June 6"]),
    ],
)  # fmt: skip
async def test_a_change_of_one_detail_keeps_the_details_that_it_does_not_contradict(
    said: list[str], facts: list[str]
) -> None:
    assert (await told(*said))[0] == facts


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        (["My deadline for the show is 20 February", "Slight change: the show deadline got pushed to 6 March."],
         ["User's show deadline is 6 March"]),
        (["The party is on Saturday", "Small correction: the party's on Sunday"], ["User's party is Sunday"]),
        (["My flight leaves at 7:20", "change of plan, it leaves at 9:05"], ["User's flight is at 9:05"]),
        (["My viva is on 3 March", "viva's been pushed to 17 March"], ["User's viva is 17 March"]),
        (["My meeting with Jo is on Monday", "Make it Wednesday"], ["User's meeting with Jo is Wednesday"]),
        (["My rent is 840 euros", "fyi my landlord just upped it to 910 euros"], ["User's rent is 910 euros"]),
        (["My exam is on 5 May", "the exam is on the 9th now, not the 5th"], ["User's exam is on 9 May"]),
        (["Mein Zahnarzttermin ist am 3. Mai", "Kleine Änderung: der Zahnarzttermin ist jetzt am 10. Mai"],
         ["User's dentist appointment is 10. Mai"]),
        (["Meine Prüfung ist am Montag", "Ach nein, am Dienstag"], ["User's exam is Dienstag"]),
        (["Mein Termin ist am 3. Mai", "Stopp, am 5. Mai"], ["User's appointment is 5. Mai"]),
        (["Mon vol est le 4 mai", "Correction : mon vol est le 6 mai"], ["User's flight is 6 mai"]),
        (["Mon rendez-vous est le 3 mai", "non, le 5 mai"], ["User's appointment is 5 mai"]),
        (["Mi vuelo es el 4 de mayo", "Corrección: mi vuelo es el 6 de mayo"], ["User's flight is 6 de mayo"]),
        (["Mi examen es el lunes", "perdón, el martes"], ["User's exam is martes"]),
        # nothing is taken back
        (["My party is on Saturday", "Update the document: the party is a metaphor"],
         ["User's party is on Saturday"]),
        (["My exam is on 5 May", "My other exam is on 9 May"],
         ["User's exam is on 5 May", "User's other exam is on 9 May"]),
        (["My class is on Thursday", "no, Friday is too late"], ["User's class is on Thursday"]),
        (["My budget is 900 euros", "no, make it a haiku"], ["User's budget is 900 euros"]),
        (["My flight leaves at 7:20", "Dune is good, it leaves Netflix in May"], ["User's flight leaves at 7:20"]),
    ],
)  # fmt: skip
async def test_a_correction_takes_back_the_value_that_it_means(said: list[str], facts: list[str]) -> None:
    assert (await told(*said))[0] == facts


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        (["I play for the Roadrunners", "I've left the Roadrunners"], ["User left Roadrunners"]),
        (["I work for Deloitte", "I left Deloitte in March"], ["User left Deloitte in March"]),
        (["I'm vegan", "no longer vegan"], ["User is no longer vegan"]),
        (["I take lithium", "came off lithium"], ["User gave up lithium"]),
        (["I'm learning Korean", "I've given up on Korean"], ["User gave up Korean"]),
        (["I play squash on Mondays", "packed in squash"], ["User gave up squash"]),
        (["I'm training for a marathon", "dropped the marathon idea"], ["User gave up marathon"]),
        (["I go to the gym every day", "I've stopped going to the gym"], ["User gave up going to the gym"]),
        (["I'm engaged to Paul", "Paul and I called off the engagement"],
         ["User and their partner are no longer together"]),
        (["I work at Siemens", "I don't work there anymore"], ["User left the job they had"]),
        (["I smoke", "I've been smoke-free since March"], ["User gave up smoking since March"]),
        (["Ich bin Veganerin", "Ich bin nicht mehr vegan"], ["User is no longer vegan"]),
        (["Je suis végane", "Je ne suis plus végane"], ["User is no longer vegan"]),
        (["Soy vegana", "Ya no soy vegana"], ["User is no longer vegan"]),
        (["Meine Freundin heißt Lisa", "Wir haben uns getrennt"],
         ["User and their partner are no longer together"]),
        (["Je travaille chez Renault", "J'ai quitté Renault"], ["User left Renault"]),
        # nothing ends: another's, a part of a day, a thing that nobody knew of
        (["I play squash on Mondays", "my brother packed in squash"], ["User plays squash on Mondays"]),
        (["I drive a Golf", "I left the Golf at the garage"], ["User drives a Golf"]),
        (["I work for Deloitte", "I left Deloitte early today"], ["User works for Deloitte"]),
        (["I drink coffee", "I dropped my coffee"], ["User drinks coffee"]),
        (["I play tennis", "I cancelled tennis today"], ["User plays tennis"]),
        (["I like jazz", "I gave up on the bug"], ["User likes jazz"]),
    ],
)  # fmt: skip
async def test_a_thing_that_is_known_ends_when_the_caller_leaves_it_or_gives_it_up(
    said: list[str], facts: list[str]
) -> None:
    assert (await told(*said))[0] == facts


@pytest.mark.parametrize(
    ("said", "homes"),
    [
        (["My sister Mara lives in Leeds", "Mara moved to Cardiff"], ["User's sister Mara lives in Cardiff"]),
        (["My boyfriend Marc lives in Lille", "Marc is living in Ghent now"],
         ["User's boyfriend Marc lives in Ghent"]),
        (["My sister Mara lives in Leeds", "Oh, Mara's living in Cardiff these days"],
         ["User's sister Mara lives in Cardiff"]),
        (["My sister's name is Mara", "Mara moved to Cardiff"], ["Mara lives in Cardiff"]),
        (["My mum lives in Ghent", "mum moved to Bruges"], ["User's mum lives in Bruges"]),
        (["Meine Schwester Mara wohnt in Kiel", "Meine Schwester ist nach Bremen gezogen"],
         ["User's sister lives in Bremen"]),
        (["Ma s\u0153ur Mara habite \u00e0 Lyon", "Ma s\u0153ur a d\u00e9m\u00e9nag\u00e9 \u00e0 Nantes"],
         ["User's sister lives in Nantes"]),
        (["Mi hermana Mara vive en Sevilla", "Mi hermana se ha mudado a Granada"],
         ["User's sister lives in Granada"]),
        (["My sister Mara lives in Leeds", "Nina moved to Cardiff"], ["User's sister Mara lives in Leeds"]),
        (["My sister Mara lives in Leeds", "My friend Mara moved to Cardiff"],
         ["User's friend Mara lives in Cardiff", "User's sister Mara lives in Leeds"]),
        (["I live in Hull", "Netflix moved to Java 17", "Everyone moved to Berlin", "Napoleon moved to Elba"],
         ["User lives in Hull"]),
    ],
)  # fmt: skip
async def test_a_person_of_the_callers_is_known_by_name_in_another_session(
    said: list[str], homes: list[str]
) -> None:
    store = a_store()
    async with a_rig(store) as rig:
        for at, turn in enumerate(turns(*said)):
            await hear(rig, replace(turn, session=f"session-{at}"))
        assert [fact for fact in await recallable(store, Source.RULES) if "lives" in fact] == homes


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
async def test_a_kept_detail_names_the_turns_that_said_it_in_whatever_order_they_are_learned(
    order: tuple[int, ...],
) -> None:
    store = a_store()
    every = turns("My wedding is on June 6 in Kinsale", "the wedding is moved to June 27", "I like jazz")
    async with a_rig(store) as rig:
        for at in (*order, *order):  # a repetition changes nothing
            await hear(rig, every[at])
        (wedding,) = [
            row for row in await rows_of(store)
            if row.state is MemoryState.ACTIVE and row.content.startswith("User's wedding")
        ]  # fmt: skip
    assert wedding.content == "User's wedding is on June 27 in Kinsale"
    assert (wedding.provenance.turn, wedding.provenance.drawn_from) == (every[1].id, (every[0].id,))
    assert wedding.provenance.value == "on June 27 in Kinsale"


SLOTS = {
    "day": [f"on {day} {month}" for day in (3, 14, 27) for month in ("May", "June")],
    "place": ["in Kinsale", "at the Grange hotel", "at the Old Mill"],
    "person": ["with Nadia", "with Dr. Okafor"],
}
WAYS = {kind: st.sampled_from(ways) for kind, ways in SLOTS.items()}
CHANGES = st.one_of(
    st.fixed_dictionaries({"day": WAYS["day"]}, optional={kind: WAYS[kind] for kind in ("place", "person")}),
    st.fixed_dictionaries({"place": WAYS["place"]}),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(CHANGES, min_size=1, max_size=6))
def test_after_any_changes_of_single_details_recall_has_the_latest_of_each(changes: list[dict[str, str]]) -> None:
    known: dict[str, str] = {}
    said: list[str] = []
    for at, change in enumerate(changes):
        known |= change
        said.append(f"My wedding is {' '.join(change[kind] for kind in SLOTS if kind in change)}{'.' * at}")
    facts, _ = asyncio.run(told(*said))
    for kind, detail in known.items():
        assert any(detail in fact for fact in facts), (kind, facts)
        others = [way for way in SLOTS[kind] if way != detail]
        assert not [fact for fact in facts for way in others if way in fact], facts


JOBS = ("nurse", "teacher", "welder")
PLACES = (" at the Riverside Hospital", " in Bonn", " for Initech")


@dataclass
class Known:
    """What a careful reader knows: the job, and the details told of it since it is the job."""

    job: str = ""
    details: list[str] = field(default_factory=list)

    def hear(self, job: str, detail: str) -> None:
        if job != self.job:
            self.job, self.details = job, []
        if detail and detail not in self.details:
            self.details.append(detail)


STEPS = st.lists(st.tuples(st.sampled_from(JOBS), st.sampled_from(("", *PLACES[:1]))), min_size=1, max_size=7)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_after_any_statements_restatements_and_corrections_every_detail_that_holds_is_known(
    steps: list[tuple[str, str]],
) -> None:
    known = Known()
    for job, detail in steps:
        known.hear(job, detail)
    said = [f"I work as a {job}{detail}" + "." * at for at, (job, detail) in enumerate(steps)]
    facts, messages = asyncio.run(told(*said))
    assert facts == [f"User works as a {known.job}{''.join(known.details)}"]
    for detail in known.details:
        assert any(detail in message and known.job in message for message in messages)


# --- changes -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("said", "changed", "expected"),
    [
        ("My rent is 900 euros.", "Rent got raised to 1200 euros last week.", "User's rent is 1200 euros"),
        ("Our wedding is on 3 June 2026.", "Our wedding had to be moved to 17 June 2026.",
         "User's wedding is 17 June 2026"),
        ("My flight is on Friday.", "My flight was rebooked to Sunday.", "User's flight is Sunday"),
        ("My deadline is 1 April.", "The deadline was pushed back by a week to 8 April.",
         "User's deadline is 8 April"),
        ("Meine Miete ist 900 Euro.", "Meine Miete wurde auf 1200 Euro erhöht.", "User's rent is 1200 Euro"),
        ("Mein Zahnarzttermin ist am 3. Juni.", "Mein Zahnarzttermin wurde auf den 17. Juni verschoben.",
         "User's dentist appointment is 17. Juni"),
        ("Mon loyer est de 900 euros.", "Mon loyer a été augmenté à 1200 euros.", "User's rent is 1200 euros"),
        ("My salary is 3,000 euros.", "My salary went from 3,000 to 3,400 euros.", "User's salary is 3,400 euros"),
        ("The wedding is on 5 May 2026.", "The wedding is now on 6 June 2026.", "User's wedding is 6 June 2026"),
        ("I love jazz.", "I don't love jazz.", "User dislikes jazz"),
        ("I eat meat.", "I don't eat meat.", "User doesn't eat meat"),
        ("I drink coffee.", "I can't drink coffee.", "User can't drink coffee"),
    ],
)  # fmt: skip
async def test_a_change_however_it_is_said_leaves_the_new_value_alone(
    said: str, changed: str, expected: str
) -> None:
    facts, _ = await told(said, changed)
    assert facts == [expected]


@pytest.mark.parametrize(
    ("said", "ended"),
    [
        ("I play guitar", "I stopped playing guitar"),
        ("I drink coffee", "I stopped drinking coffee"),
        ("I smoke", "I quit smoking"),
        ("I play tennis on Sundays", "I no longer play tennis"),
    ],
)
async def test_a_habit_that_was_given_up_is_no_longer_had(said: str, ended: str) -> None:
    facts, _ = await told(said, ended)
    assert len(facts) == 1
    assert "no longer" in facts[0] or "gave up" in facts[0]


async def test_each_allergy_of_a_list_is_a_fact_of_its_own() -> None:
    facts, _ = await told("I have a penicillin allergy.", "My allergies are penicillin, cats and dust.")
    assert facts == [f"User is allergic to {one}" for one in ("cats", "dust", "penicillin")]


async def test_what_a_relative_clause_says_is_said_of_the_one_it_follows() -> None:
    facts, _ = await told("I have a dog called Rex who is 3 and hates cats.")
    assert facts == ["User has a dog named Rex", "User's dog Rex dislikes cats", "User's dog Rex is 3"]


# --- what the assistant said -------------------------------------------------------------------------
BUDGET = "My budget for the Hawaii trip is $4,000."
PLANS = "Hawaii is lovely in May. I'll plan the trip around $4,000. Bring a raincoat for the east coast."


async def after(*exchanges: tuple[str, str]) -> tuple[list[Memory], list[str]]:
    store = a_store()
    async with a_rig(store) as rig:
        for at, (asked, answered) in enumerate(exchanges):
            await hear(rig, a_turn(asked, answered, seq=2 * at, at=later(minutes=at)))
        rows = await rows_of(store)
    answers = [row for row in rows if row.role is Role.ASSISTANT]
    return rows, sorted(row.content for row in answers if row.state is MemoryState.ACTIVE)


async def test_the_sentence_of_an_answer_that_went_by_the_old_value_goes_and_the_rest_stays() -> None:
    rows, answers = await after((BUDGET, PLANS), ("My budget for the Hawaii trip is now $5,000", ""))
    assert answers == ["Hawaii is lovely in May. Bring a raincoat for the east coast."]
    history = [row for row in rows if row.content == PLANS]
    assert [(row.state, row.superseded_by) for row in history] == [
        (MemoryState.SUPERSEDED, message_id_of(ANN, a_turn(BUDGET).id, 1))
    ]


async def test_an_answer_that_only_went_by_the_old_value_goes_as_a_whole() -> None:
    _, answers = await after((BUDGET, "I'll plan with $4,000."), ("My Hawaii budget has increased to $5,000.", ""))
    assert answers == []


async def test_an_answer_of_a_later_turn_goes_too() -> None:
    _, answers = await after(
        (BUDGET, "Nice. It is warm there."),
        ("Which hotel suits the Hawaii trip?", "With your Hawaii trip budget of $4,000 a small one. Try Kona."),
        ("My budget for the Hawaii trip is now $5,000", ""),
    )
    assert answers == ["Nice. It is warm there.", "Try Kona."]


@pytest.mark.parametrize(
    "answer",
    [
        "The cruise from Maui costs $4,000.",  # another thing
        "Noted, up from $4,000 to $5,000 for your trip.",  # tells of the change
        "I'll plan the trip around $14,000.",
    ],
)
async def test_an_answer_that_does_not_go_by_the_old_value_stays(answer: str) -> None:
    _, answers = await after((BUDGET, answer), ("My budget for the Hawaii trip is now $5,000", ""))
    assert answers == [answer]


async def test_what_is_only_told_in_more_detail_takes_nothing_from_answers() -> None:
    answer = "As a nurse you work shifts."
    _, answers = await after(("I work as a nurse", answer), ("I work as a nurse at the Riverside Hospital", ""))
    assert answers == [answer]


async def test_learning_the_change_again_changes_nothing_more() -> None:
    store = a_store()
    first, second = (
        a_turn(BUDGET, PLANS),
        a_turn("My budget for the Hawaii trip is now $5,000", "", seq=2, at=later(hours=1)),
    )
    async with a_rig(store) as rig:
        await hear(rig, first)
        await hear(rig, second)
        before = sorted((row.id, row.content, row.state) for row in await rows_of(store))
        await rig.learn(second)
        await rig.learn(replace(first), second)
        assert sorted((row.id, row.content, row.state) for row in await rows_of(store)) == before


@pytest.mark.parametrize(
    ("said", "answer", "change", "kept"),
    [
        ("My dentist appointment is on March 10 at 9am", "I'll remind you the evening before March 10. Floss.",
         "The dentist appointment has been postponed to March 24", "Floss."),
        ("My flight to Lima is on 12 March from Schiphol", "Then you check in on 12 March. Bring a pillow.",
         "My flight to Lima was rescheduled to March 14", "Bring a pillow."),
        ("My thesis deadline is May 15", "Working back from May 15, you finish chapter three in April. Rest well.",
         "The deadline for my thesis got moved to June 3", "Rest well."),
        ("I drive a Renault Zoe", "With your Renault Zoe you get 300 km in winter. Night tariffs are cheaper.",
         "I sold the Zoe", "Night tariffs are cheaper."),
    ],
)  # fmt: skip
async def test_an_answer_goes_by_a_value_that_it_names_in_part(
    said: str, answer: str, change: str, kept: str
) -> None:
    _, answers = await after((said, answer), (change, ""))
    assert answers == [kept]


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        (["My flight is on May 3", "Oops, my flight is on May 8"], ["User's flight is on May 8"]),
        (["My flight is on May 3", "Actually it's on May 8"], ["User's flight is on May 8"]),
        (["My meeting with the bank is on Tuesday. Actually it's on Wednesday."],
         ["User's meeting with the bank is on Wednesday"]),
        (["The party is on the 12th. Sorry, the 19th."], ["User's party is the 19th"]),
        (["Our budget is 900 euros. No wait, it's 950."], ["User's budget is 950"]),
        (["My haircut is on April 2 at noon", "the haircut got pushed to April 9"], ["User's haircut is April 9"]),
        (["Our train leaves at 8:10. Sorry, it's 8:40."], ["User's train is 8:40"]),
        (["My driving test is on May 4", "My driving test is postponed to next Thursday"],
         ["User's driving test is next Thursday"]),
        (["My rehearsals are on Wednesdays", "Rehearsals have been shifted to Mondays because of the heating"],
         ["User's rehearsals are Mondays"]),
        (["Our workshop is in Porto", "we've moved the workshop to Braga, rents are half"],
         ["User's workshop is in Braga"]),
        (["Our mortgage is 1,050", "interest went up, mortgage is 1,180 now"], ["User's mortgage is 1,180"]),
        (["Mein Budget für die Küche ist 6000 Euro", "Das Budget für die Küche wurde auf 7500 Euro erhöht"],
         ["User's budget für die Küche is 7500 Euro"]),
        (["Mon rendez-vous chez le dentiste est le 2 mars",
          "Mon rendez-vous chez le dentiste a été reporté au 4 mars"],
         ["User's appointment chez le dentiste is 4 mars"]),
        (["Mi cita con la dentista es el 10 de marzo", "Mi cita con la dentista se movió al 17 de marzo"],
         ["User's appointment con la dentista is 17 de marzo"]),
    ],
)  # fmt: skip
async def test_a_value_put_right_or_changed_in_other_words_takes_the_place_of_the_old_one(
    said: list[str], facts: list[str]
) -> None:
    assert (await told(*said))[0] == facts


@pytest.mark.parametrize(
    ("said", "gone"),
    [
        (["I drive a Renault Zoe", "I sold the Zoe and bought a Kia Niro"], "Renault"),
        (["my cat Socks is 16 and yowls all night", "Socks died on Tuesday"], "yowls"),
        (["Our dog Biscuit eats socks", "Sadly Biscuit had to be put to sleep last week"], "eats socks"),
    ],
)
async def test_a_thing_or_an_animal_that_is_lost_by_its_name_alone_takes_its_facts_with_it(
    said: list[str], gone: str
) -> None:
    facts = (await told(*said))[0]
    assert facts
    assert not [fact for fact in facts if gone in fact]


@pytest.mark.parametrize(
    ("said", "homes"),
    [
        (["My sister Mara lives in York", "My sister moved to Bath"], ["User's sister lives in Bath"]),
        (["My sister's name is Mara", "My sister lives in York", "My sister Mara moved to Bath"],
         ["User's sister Mara lives in Bath"]),
        (["My sister Mara lives in York", "My sister Beth moved to Bath"],
         ["User's sister Beth lives in Bath", "User's sister Mara lives in York"]),
        (["My friend Mara lives in York", "My friend moved to Bath"],
         ["User's friend Mara lives in York", "User's friend lives in Bath"]),
    ],
)  # fmt: skip
async def test_a_relative_with_and_without_the_name_is_one_person_while_no_other_is_named(
    said: list[str], homes: list[str]
) -> None:
    assert sorted(fact for fact in (await told(*said))[0] if "lives" in fact) == homes
