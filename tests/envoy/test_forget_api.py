"""Forgetting over HTTP, as a person's own client would: what would go, that it is gone, and the receipt."""

from __future__ import annotations

from tests.support.rest import RestStand
from tests.support.waiting import until

TEA, COFFEE = "User likes green tea", "User dislikes black coffee"


async def stored(rest: RestStand, content: str, **who: str) -> str:
    answer = await rest.rest("POST", "/v1/memory", {"content": content}, **who)
    assert answer.status == 200, answer.json
    return str(answer.json["memory"]["id"])


async def test_one_memory_is_forgotten_and_nobody_elses(rest: RestStand) -> None:
    await rest.start()
    tea, coffee = await stored(rest, TEA), await stored(rest, COFFEE)
    bobs = await stored(rest, TEA, user="bob")
    refused = await rest.rest("DELETE", f"/v1/memory/{bobs}")
    assert refused.status == 404
    forgotten = await rest.rest("DELETE", f"/v1/memory/{tea}")
    assert (forgotten.status, forgotten.json["success"]) == (200, True)
    assert (await rest.rest("GET", f"/v1/memory/{tea}")).status == 404
    assert (await rest.rest("DELETE", f"/v1/memory/{tea}")).status == 404
    assert (await rest.rest("GET", f"/v1/memory/{coffee}")).status == 200
    assert (await rest.rest("GET", f"/v1/memory/{bobs}", user="bob")).status == 200
    await rest.say("Which tea do I like?")
    assert "green tea" not in rest.shown
    receipt = forgotten.json["receipt"]["id"]

    async def complete() -> bool:
        answer = await rest.rest("GET", f"/v1/memory/receipts/{receipt}")
        assert answer.status == 200
        return bool(answer.json["state"] == "complete")

    await until(complete, "no store has it any more", seconds=20)
    assert (await rest.rest("GET", f"/v1/memory/receipts/{receipt}", user="bob")).status == 404


async def test_what_is_known_about_something_is_forgotten_once_it_is_confirmed(rest: RestStand) -> None:
    await rest.start()
    await stored(rest, TEA)
    coffee = await stored(rest, COFFEE)
    await stored(rest, TEA, user="bob")
    scope = {"query": "Which green tea do I like?"}
    assert (await rest.rest("POST", "/v1/memory:forget", scope)).status == 400
    plan = (await rest.rest("POST", "/v1/memory:forget", {**scope, "dry_run": True})).json
    assert [one["content"] for one in plan["would_forget"]] == [TEA]
    assert (await rest.rest("GET", "/v1/memory")).json["total"] == 2, "a dry run forgets nothing"
    token = plan["confirmation_token"]
    for wrong in ({**scope, "confirmation_token": token + "x"}, {"query": "coffee?", "confirmation_token": token}):
        assert (await rest.rest("POST", "/v1/memory:forget", wrong)).status == 400
    assert (await rest.rest("POST", "/v1/memory:forget", {**scope, "confirmation_token": token})).status == 200
    assert [one["id"] for one in (await rest.rest("GET", "/v1/memory")).json["memories"]] == [coffee]
    assert (await rest.rest("GET", "/v1/memory", user="bob")).json["total"] == 1


async def test_everything_goes_with_withdrawn_consent_but_not_for_an_empty_filter(rest: RestStand) -> None:
    await rest.start()
    await stored(rest, TEA)
    assert (await rest.rest("DELETE", "/v1/memory?type=")).status == 400
    assert (await rest.rest("DELETE", "/v1/memory?typ=semantic")).status == 400
    assert (await rest.rest("DELETE", "/v1/memory?user_id=bob")).status == 403
    assert (await rest.rest("GET", "/v1/memory")).json["total"] == 1
    withdrawn = await rest.rest("PUT", "/v1/memory:consent", {"state": "off", "forget": True})
    assert (withdrawn.status, withdrawn.json["state"]) == (200, "off")
    assert withdrawn.json["receipt"]["id"]
    assert (await rest.rest("GET", "/v1/memory?state=any")).json["total"] == 0
    assert (await rest.rest("POST", "/v1/memory", {"content": TEA})).status == 400
