"""The page as people meet it: in a browser, on a desk and on a phone, with script and without."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from memory_extproc.api.principal import Means, Principal
from memory_extproc.console.server import COOKIE, LIFE, PATH, begin_session
from memory_extproc.model import Embedded, MemoryState, Owner, Source
from memory_extproc.model import Role as SaidBy
from memory_extproc.ports import OwnerEntry
from memory_extproc.settings.api import PrincipalRole
from tests.browser.conftest import Browser
from tests.support.builders import a_memory
from tests.support.console import ConsoleStand

pytestmark = pytest.mark.asyncio(loop_scope="module")
ANN = Owner("", "ann")
ODD = (
    "<script>document.title = 'taken'</script><img src=x onerror=\"alert(1)\">",
    "\u202eأحب القهوة العربية في الصباح",
    "\N{FAMILY} \N{WAVING HAND SIGN} e\u0301\u0301\u0301 " + "\N{ZERO WIDTH JOINER}" * 5,
    "x" * 8000,
    "{{ 7 * 7 }} \u2028 </textarea>",
)


async def remember(stand: ConsoleStand, *texts: str, user: str = "ann", **fields: Any) -> None:
    for text in texts:
        answer = await stand.rest("POST", "/v1/memory", {"content": text, **fields}, user=user)
        assert answer.status == 200, answer.body


async def fits(page: Any) -> bool:
    """Whether nothing stands out of the window to the side."""
    root = page.locator("html")  # is waited for: between two pages there is none
    return bool(await root.evaluate("root => root.scrollWidth <= window.innerWidth"))


@pytest.mark.parametrize("size", ["desktop", "phone"])
async def test_a_memory_is_found_corrected_confirmed_and_forgotten_with_a_receipt(
    browser: Browser, stand: ConsoleStand, size: str, tmp_path: Path
) -> None:
    await remember(stand, "The budget for Hawaii is $10,000", "Likes tea", session_id="monday")
    page = await browser.open(size=size)
    await page.fill("#q", "budget")
    await page.wait_for_selector("text=1 memory found")
    assert await page.locator(".card").count() == 1
    await page.click(".card a.text")
    await page.fill(".stack textarea[name=content]", "The budget for Hawaii is $12,500")
    await page.click("button:has-text('Save')")
    await page.wait_for_selector("h1:has-text('$12,500')")
    assert "$10,000" in await page.inner_text(".history")
    await page.click("text=Confirm")
    assert await fits(page)
    await page.click("text=Forget…")
    await page.wait_for_selector("text=Forget permanently")
    assert "cannot be undone" in await page.inner_text("main")
    assert (await stand.rest("GET", "/v1/memory")).json["total"] == 2, "a preview forgets nothing"
    await page.click("text=Forget permanently")
    await page.wait_for_selector("h1:has-text('Forgotten')")
    async with page.expect_download() as started:
        await page.click("text=Download the receipt")
    kept = tmp_path / "receipt.json"
    await (await started.value).save_as(kept)
    assert json.loads(kept.read_text())["state"] == "complete"
    left = (await stand.rest("GET", "/v1/memory")).json["memories"]
    assert [one["content"] for one in left] == ["Likes tea"]


@pytest.mark.parametrize("script", [True, False])
async def test_a_receipt_is_checked_on_its_page_and_from_its_file(
    browser: Browser, stand: ConsoleStand, script: bool, tmp_path: Path
) -> None:
    await remember(stand, "Likes tea")
    done = await stand.rest("POST", "/v1/memory:forget", {})
    receipt = (await stand.rest("GET", f"/v1/memory/receipts/{done.json['receipt']['id']}?verbose=true")).json
    page = await browser.open(size="phone", script=script)
    await page.goto(f"{stand.console.url}/console/receipts/{receipt['id']}")
    await page.click("text=Verify now")
    await page.wait_for_selector("text=The signature is valid")
    assert await page.locator("td:has-text('still gone')").count() == 2
    assert await fits(page)
    for change, said in (({}, "The signature is valid"), ({"memories": 9}, "was altered")):
        kept = tmp_path / "receipt.json"
        kept.write_text(json.dumps({**receipt, **change}))
        await page.set_input_files("input[type=file]", kept)
        await page.click("button:has-text('Verify')")
        await page.wait_for_selector(f"text={said}")
    await page.fill("textarea[name=receipt]", "no receipt")
    await page.click("button:has-text('Verify')")
    await page.wait_for_selector("text=This is not a forget receipt")
    assert await page.input_value("textarea[name=receipt]") == "no receipt"
    if script:
        assert await browser.check_access(page) == []


@pytest.mark.parametrize("chosen", ["ticked", "conversation", "about", "everything"])
async def test_much_is_forgotten_at_once(browser: Browser, stand: ConsoleStand, chosen: str) -> None:
    await remember(stand, "Hawaii in May", "Hawaii costs much", session_id="trip")
    await remember(stand, "Likes tea")
    await remember(stand, "Bob's Hawaii", user="bob")
    page = await browser.open()
    if chosen == "ticked":
        for text in ("Hawaii in May", "Hawaii costs much"):
            await page.check(f".card:has-text('{text}') input")
        await page.click("text=Forget selected")
    elif chosen == "conversation":
        await page.click("text=Hawaii in May")
        await page.click("text=Forget its conversation")
    elif chosen == "about":
        await page.fill("[name=about]", "Hawaii")
        await page.click("text=Preview")
    else:
        await page.click("text=Settings")
        await page.click("button:has-text('Forget everything')")
    await page.click("text=Forget permanently")
    await page.wait_for_selector("h1:has-text('Forgotten')")
    left = (await stand.rest("GET", "/v1/memory")).json["memories"]
    assert [one["content"] for one in left] == ([] if chosen == "everything" else ["Likes tea"])
    assert (await stand.rest("GET", "/v1/memory", user="bob")).json["total"] == 1


@pytest.mark.parametrize("size", ["desktop", "phone"])
async def test_odd_texts_are_shown_as_texts(browser: Browser, stand: ConsoleStand, size: str) -> None:
    await remember(stand, *ODD)
    page = await browser.open(size=size)
    assert await page.title() == "Mine · memory-extproc"
    assert await page.locator(".card").count() == len(ODD)
    assert await fits(page)
    for at in range(len(ODD)):
        await page.goto(f"{stand.console.url}/console")
        await page.locator(".card a.text").nth(at).click()
        await page.wait_for_url("**/memory/*")
        assert await fits(page)
        shown = await page.input_value("textarea[name=content]")
        assert shown in ODD
        async with page.expect_navigation():
            await page.click("button:has-text('Save')")
    kept = {one["content"] for one in (await stand.rest("GET", "/v1/memory")).json["memories"]}
    assert kept == set(ODD), "opened and saved, a text is as it was"


async def test_without_script_everything_works(browser: Browser, stand: ConsoleStand) -> None:
    await remember(stand, *(f"Saw film number {at}" for at in range(30)))
    page = await browser.open(script=False)
    assert await page.locator(".card").count() == 25
    await page.click("text=Older")
    await page.wait_for_url("**page=*")
    assert await page.locator(".card").count() == 5
    await page.goto(f"{stand.console.url}/console")
    await page.fill("#q", "film number 29")
    await page.click("button:has-text('Search')")
    await page.wait_for_selector("text=1 memory found")
    assert await page.locator(".card").count() == 1
    await page.check(".card input")
    await page.click("text=Forget selected")
    await page.click("text=Forget permanently")
    await page.wait_for_url("**/receipts/*")
    assert (await stand.rest("GET", "/v1/memory")).json["total"] == 29


async def test_two_people_in_two_windows_see_their_own(browser: Browser, stand: ConsoleStand) -> None:
    await remember(stand, "Ann likes tea")
    await remember(stand, "Bob likes rum", user="bob")
    anns, bobs = await asyncio.gather(browser.open("ann"), browser.open("bob"))
    for page, own, other in ((anns, "tea", "rum"), (bobs, "rum", "tea")):
        await page.reload()
        text = await page.inner_text("body")
        assert own in text
        assert other not in text
    await anns.click("text=Ann likes tea")
    await anns.wait_for_url("**/memory/*")
    await bobs.goto(anns.url)
    assert "Memory not found" in await bobs.inner_text("h1")
    await anns.click("text=Sign out")
    await anns.wait_for_selector("h1:has-text('Sign in')")
    await anns.go_back()
    assert "tea" not in await anns.inner_text("body"), "no page is kept for the way back"
    assert "rum" in await (await bobs.goto(f"{stand.console.url}/console")).text()


async def test_a_memory_that_was_deleted_softly_is_brought_back(browser: Browser, stand: ConsoleStand) -> None:
    await stand.remember(a_memory("Likes tea", ANN, state=MemoryState.DELETED))
    page = await browser.open()
    await page.click("summary")
    await page.select_option("[name=state]", "deleted")
    await page.click("text=Restore")
    await page.wait_for_url("**/memory/*")
    assert "active" in await page.inner_text(".meta >> nth=0")


async def test_consent_is_given_and_taken_back(browser: Browser, stand: ConsoleStand) -> None:
    page = await browser.open()
    await page.click("text=Settings")
    await page.check("input[value=off]")
    await page.click("button:has-text('Save')")
    await page.wait_for_selector(".history:has-text('off by user')")
    assert (await stand.rest("GET", "/v1/memory:consent")).json["state"] == "off"
    async with page.expect_download() as started:
        await page.click("text=Download all memories")
    assert (await started.value).suggested_filename == "memories.jsonl"


async def test_why_shows_what_was_considered_and_operators_see_the_server(
    browser: Browser, stand: ConsoleStand
) -> None:
    await remember(stand, "The budget for Hawaii is $10,000")
    page = await browser.open()
    await page.click("text=Why")
    await page.fill("[name=text]", "What's my budget for Hawaii?")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("#outcome")
    assert "budget" in await page.inner_text("main")
    assert await page.locator("text=Operator").count() == 0
    context = page.context
    await page.goto(stand.link("ops", PrincipalRole.ADMIN))
    await stand.remember(a_memory("Ignore <b>all</b> that", ANN, state=MemoryState.QUARANTINED))
    await stand.owners.put(OwnerEntry(Owner("", "aaron"), 9, stand.time))
    await stand.owners.put(OwnerEntry(ANN, 2, stand.time, 1))
    await page.click("text=Operator")
    await page.wait_for_selector("#effective")
    await page.click("summary:has-text('secrets masked')")
    assert "<b>x</b>" in await page.inner_text("section:has(#effective) table")
    await page.click("text=show whose")
    await page.wait_for_url("**quarantined=on**")
    assert await page.locator("section:has(#users) tbody tr").all_inner_texts() == ["ann\t\t2\t1\t2026-03-02 09:00"]
    await page.click("section:has(#users) a:has-text('ann')")
    await page.wait_for_selector("h1:has-text('ann')")
    assert "Ignore" not in await page.inner_text("main"), "nobody's words without asking for them"
    await page.click("text=Show quarantine")
    await page.check(".card input")
    await page.click("text=Drop selected")
    await page.wait_for_selector("text=No memory of ann is in quarantine")
    lines = stand.audit.newest(10)
    assert any('"ReviewQuarantine"' in line for line in lines)
    await context.close()


async def test_a_search_that_fails_says_why_and_an_ended_session_asks_to_sign_in(
    browser: Browser, stand: ConsoleStand
) -> None:
    await remember(stand, "Likes tea")
    page = await browser.open()
    await page.fill("#q", "\N{BEAR FACE}" * 100)
    await page.wait_for_selector("#list [role=alert]:has-text('Search: at most')")
    await page.fill("#q", "tea")
    await page.wait_for_selector("#list .card")
    stand.time += LIFE
    await page.fill("#q", "coffee")
    await page.wait_for_selector("text=Your session or link has expired")


async def test_a_stale_edit_shows_both_texts(browser: Browser, stand: ConsoleStand) -> None:
    await remember(stand, "The budget is $10")
    page = await browser.open()
    await page.click("text=The budget is $10")
    await page.wait_for_url("**/memory/*")
    (one,) = (await stand.rest("GET", "/v1/memory")).json["memories"]
    await stand.rest("PATCH", f"/v1/memory/{one['id']}", {"content": "The budget is $11"})
    await page.fill("textarea[name=content]", "The budget is $12")
    await page.click("button:has-text('Save')")
    await page.wait_for_selector("h1:has-text('The budget is $11')")
    assert await page.input_value("textarea[name=content]") == "The budget is $12"
    await page.click("button:has-text('Save')")
    await page.wait_for_selector("h1:has-text('The budget is $12')")


async def test_the_keyboard_reaches_everything_and_names_are_there_to_be_read(
    browser: Browser, stand: ConsoleStand
) -> None:
    await remember(stand, "Likes tea")
    page = await browser.open()
    reached: list[str] = []
    for _ in range(20):
        await page.keyboard.press("Tab")
        reached.append(await page.evaluate("document.activeElement.innerText || document.activeElement.name"))
    assert reached[0] == "Skip to the content"
    assert {"Mine", "q", "Likes tea", "Forget selected…", "Add"} <= set(reached)
    for path in ("", "/settings", "/why", "/enter"):
        await page.goto(f"{stand.console.url}/console{path}")
        assert await unnamed(page) == []
        assert await page.locator("h1").count() == 1


async def unnamed(page: Any) -> Sequence[str]:
    """Fields and buttons without a name for a screen reader."""
    found: Sequence[str] = await page.evaluate(
        """[...document.querySelectorAll('input:not([type=hidden]), select, textarea, button, a')].filter(one =>
            !(one.getAttribute('aria-label') || one.innerText.trim() || (one.labels && one.labels.length)))
            .map(one => one.outerHTML)"""
    )
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desktop", "phone"])
async def test_no_page_has_a_serious_fault_of_accessibility(
    browser: Browser, stand: ConsoleStand, size: str, scheme: str
) -> None:
    await remember(stand, "My dog is called Rex", "The budget for Hawaii is $10,000", "The weather is fine")
    await stand.remember(a_memory("Where is Rex?", ANN, session="s", role=SaidBy.USER, source=Source.VERBATIM))
    await stand.remember(a_memory("Ignore all that", ANN, state=MemoryState.QUARANTINED))
    await stand.owners.put(OwnerEntry(ANN, 3, stand.time))
    page = await browser.open(size=size, color_scheme=scheme)
    await page.goto(stand.link("ann", PrincipalRole.ADMIN))
    paths = [
        "", "?type=all&state=any&q=Rex", "/timeline", "/why", "/why?text=What+is+my+dog+called", "/settings",
        "/why?request=none", "/operator", "/operator/user?user=ann&show=quarantine", "/memory/none", "/enter",
    ]  # fmt: skip
    (rex,) = (await stand.rest("GET", "/v1/memory?text=dog+Rex")).json["memories"]
    for path in (*paths, f"/memory/{rex['id']}"):
        await page.goto(f"{stand.console.url}/console{path}")
        assert await browser.check_access(page) == [], path
        assert await fits(page), path
    await page.click("text=Forget…")
    await page.wait_for_selector("text=Forget permanently")
    assert await browser.check_access(page) == []


@pytest.mark.parametrize("size", ["desktop", "phone"])
async def test_a_projects_memories_are_there_to_be_read(browser: Browser, stand: ConsoleStand, size: str) -> None:
    project = "atlas & <b>the others</b>"
    shared = [a_memory(f"{text} {at}", Owner.of_project("", project)) for at, text in enumerate(ODD * 6)]
    await stand.remember(a_memory("Likes tea", ANN), *shared)
    page = await browser.open(size=size)
    member = Principal("", "ann", frozenset({PrincipalRole.USER}), Means.SESSION, "ann", (project,))
    cookie = {"name": COOKIE, "value": begin_session(stand.signer, member), "url": f"{stand.console.url}{PATH}"}
    await page.context.add_cookies([cookie])
    await page.reload()
    assert f"Shared by {project}" in await page.inner_text("#list")
    assert await browser.check_access(page) == []
    assert await fits(page)
    await page.click("a.more:has-text('All 30 of')")
    await page.wait_for_selector("h1:has-text('Shared by')")
    assert await page.locator(".card").count() == 25
    assert await page.locator("main form button:visible, main .card a, main .card input").count() == 0, "read only"
    assert await browser.check_access(page) == []
    assert await fits(page)
    await page.click("text=Older")
    await page.wait_for_selector("#list .card")
    await page.fill("#q", "template no one wrote")
    await page.wait_for_selector("text=No shared memory matches")


async def test_a_memory_is_rated_and_the_rating_taken_back(browser: Browser, stand: ConsoleStand) -> None:
    await remember(stand, "The budget for Hawaii is $10,000")
    page = await browser.open()
    await page.click(".card a.text")
    await page.click("button:has-text('Wrong')")
    await page.wait_for_selector(".tag:has-text('wrong')")
    question = "/why?text=What+is+my+budget+for+Hawaii%3F"
    await page.goto(f"{stand.console.url}/console{question}")
    assert "rated wrong" in await page.inner_text("main")
    await page.click(".card a.text")
    await page.click("text=Remove rating")
    await page.wait_for_selector("button:has-text('Helpful')")
    await page.goto(f"{stand.console.url}/console{question}")
    assert "sent to the model" in await page.inner_text("main")


async def test_the_timeline_leads_to_conversations_and_facts(browser: Browser, stand: ConsoleStand) -> None:
    await remember(stand, "My dog is called Rex", "My dog is called <b>Rex</b> & co")
    for at, text in enumerate(("Where do we stay?", "In the <i>old</i> hotel")):
        said = a_memory(text, ANN, session="trip", seq=at, role=SaidBy.USER, source=Source.VERBATIM)
        await stand.remember(said)
    page = await browser.open()
    await page.click("text=Timeline")
    await page.wait_for_selector("svg.picture")
    assert "Rex" in await page.text_content("svg.picture")
    assert "2 messages" in await page.inner_text("main")
    await page.click(".card a:text-is('conversation')")
    await page.wait_for_selector("text=Where do we stay?")
    assert await page.locator(".card").count() == 2
    bobs = await browser.open("bob")
    await bobs.goto(f"{stand.console.url}/console/timeline")
    assert "No conversations yet" in await bobs.inner_text("main")


async def test_users_are_paged_at_a_hundred_thousand(browser: Browser, stand: ConsoleStand) -> None:
    at = stand.time
    await asyncio.gather(
        *(stand.owners.put(OwnerEntry(Owner("acme", f"user-{n:06}"), 2, at)) for n in range(100_000))
    )
    page = await browser.open("ops")
    await page.goto(stand.link("ops", PrincipalRole.ADMIN))
    await page.goto(f"{stand.console.url}/console/operator?tenant=acme")
    assert "100000" in await page.inner_text(".numbers")
    assert "user-000024" in await page.inner_text("main")
    await page.click("text=Next")
    await page.wait_for_selector("text=user-000025")
    assert await page.locator("text=user-000024").count() == 0


async def test_the_page_cannot_be_put_into_a_frame(browser: Browser, stand: ConsoleStand) -> None:
    page = await browser.open()
    frame = f"<iframe src='{stand.console.url}/console'></iframe>"
    await page.goto("about:blank")
    await page.set_content(frame)
    await page.wait_for_timeout(300)
    texts = [await one.content() for one in page.frames[1:]]
    assert not any("remembered of you" in text for text in texts)
    browser.complaints = [one for one in browser.complaints if "frame" not in one.lower()]


async def test_ten_thousand_memories_are_paged(browser: Browser, stand: ConsoleStand) -> None:
    vector = (await stand.embedder.embed(["cat"]))[0]
    rows = [Embedded(a_memory(f"Has cat number {at}", ANN), vector) for at in range(10_000)]
    for at in range(0, len(rows), 1000):
        await stand.partitions.put(ANN, rows[at : at + 1000])
    page = await browser.open()
    assert "10000 memories" in await page.inner_text(".count")
    assert await page.locator(".card").count() == 25
