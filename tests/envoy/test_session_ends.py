"""A session comes to its end in each of the ways there are, and is then summed up: through the real Envoy."""

from __future__ import annotations

import pytest

from memory_extproc.model import Memory, Owner, Source
from tests.support.rest import RestStand
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy

SAID = (
    (
        "I plan a family trip to Hawaii in May with my two children, and we like quiet beaches. In "
        "Hawaii we want to see a volcano, too, and the family can stay for two weeks, or for three."
    ),
    (
        "Our family trip to Hawaii in May starts in Honolulu, and ends in Hilo on the Big Island. "
        "From there we fly home by night, so that the children sleep on the way back from Hawaii."
    ),
    "The family budget for the trip to Hawaii in May is $10,000 with all flights and hotels in it.",
)
QUICK = {"idle": "200ms"}
SLOW = {"idle": "1h"}


async def talk(whole: WholeStand, **last: str) -> None:
    history: list[dict[str, str]] = []
    for number, words in enumerate(SAID, start=1):
        history.append({"role": "user", "content": words})
        headers = last if number == len(SAID) else {}
        await whole.chat({"model": "demo", "messages": history}, user="ann", x_session_id="s", **headers)
        history.append({"role": "assistant", "content": "It is $10,000."})


async def summaries(whole: WholeStand) -> list[Memory]:
    rows = [row async for page in whole.whole.partitions.rows(Owner("", "ann")) for row in page]
    return [row for row in rows if row.source is Source.SUMMARY and row.session == "s"]


async def summed_up(whole: WholeStand) -> None:
    """As one topic of all that was said, and in one sentence, for it has some hundred tokens."""

    async def there() -> bool:
        return {row.provenance.kind for row in await summaries(whole)} == {"topic", "session"}

    await until(there, "the session is summed up", seconds=20)
    (topic,) = [row for row in await summaries(whole) if row.provenance.kind == "topic"]
    (session,) = [row for row in await summaries(whole) if row.provenance.kind == "session"]
    assert topic.provenance.span == (0, 6)
    assert "Hawaii" in topic.content
    assert (session.provenance.level, session.provenance.levels) == (1, 1)
    assert session.provenance.sources == (topic.id,)
    assert 0 < (session.provenance.ratio or 0) < 1


@pytest.mark.parametrize(
    ("topics", "last"), [(SLOW, {"x_memory_session": "end"}), (QUICK, {})], ids=["by its client", "by silence"]
)
async def test_a_session_that_ends_is_summed_up(
    whole: WholeStand, topics: dict[str, str], last: dict[str, str]
) -> None:
    whole.changes["topics"] = topics
    await whole.start()
    await talk(whole, **last)
    await summed_up(whole)


async def test_a_session_that_goes_on_when_the_sidecar_leaves_is_summed_up_by_then(whole: WholeStand) -> None:
    whole.changes["topics"] = SLOW
    await whole.start()
    await talk(whole)
    assert await summaries(whole) == []
    await whole.restart()
    await summed_up(whole)


async def test_a_session_is_ended_over_the_memory_api(rest: RestStand) -> None:
    rest.changes["topics"] = SLOW
    await rest.start()
    await talk(rest)
    answer = await rest.rest("POST", "/v1/memory:endSession", {"session_id": "s"})
    assert answer.status == 200
    await summed_up(rest)
