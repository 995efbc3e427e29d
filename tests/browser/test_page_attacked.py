"""The page under attack, in a browser that keeps the rules browsers keep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from memory_extproc.model import MemoryState, MemoryType, Owner
from memory_extproc.ports import OwnerEntry
from memory_extproc.settings.api import PrincipalRole
from tests.browser.conftest import Browser
from tests.support.builders import a_memory
from tests.support.console import ConsoleStand

pytestmark = pytest.mark.asyncio(loop_scope="module")
ANN = Owner("", "ann")
HOSTILE = (
    "\"'><script>document.title = 'taken'</script><img src=x onerror=\"alert(1)\">",
    "</title></textarea></svg><svg onload=alert(1)>\u202eevil\u202c",
    "javascript:alert(1) {{ 7 * 7 }} \N{FAMILY}\N{ZERO WIDTH JOINER}" + "\N{WAVING HAND SIGN}" * 40,
)


@asynccontextmanager
async def another_site(html: Callable[[str], str], stand: ConsoleStand) -> AsyncIterator[str]:
    """A page of a site whose name is not ours: a browser counts another port as the same site, another name not."""

    async def show(_: web.Request) -> web.Response:
        return web.Response(text=html(stand.console.url), content_type="text/html")

    application = web.Application()
    application.router.add_get("/", show)
    async with TestServer(application) as server:
        yield f"http://localhost:{server.port}/"


async def open_signed_in(browser: Browser, stand: ConsoleStand, *roles: PrincipalRole) -> Any:
    page = await browser.open()
    if roles:
        await page.goto(stand.link("ops", *roles))
    return page


async def test_a_link_on_another_site_leads_to_the_page_and_ends_no_session(
    browser: Browser, stand: ConsoleStand
) -> None:
    """Browsers send no SameSite=Strict cookie with a visit that begins elsewhere, nor with its redirects."""
    await stand.remember(a_memory("Likes tea", ANN))
    link = stand.link("ann")
    page = await browser.open("ops")
    await page.click("text=Sign out")
    await page.wait_for_selector("h1:has-text('Sign in')")

    def html(ours: str) -> str:
        return f"<a id=enter href='{link}'>sign in</a> <a id=again href='{ours}/console?q=tea'>search</a>"

    async with another_site(html, stand) as wiki:
        await page.goto(wiki)
        await page.click("#enter")
        await page.click("text=Open your memories")
        await page.wait_for_selector(".card:has-text('Likes tea')")
        await page.goto(wiki)
        await page.click("#again")
        await page.click("a:text-is('Continue')")
        await page.wait_for_selector("text=1 memory found")


@pytest.mark.parametrize(
    ("path", "field"),
    [("add", "content"), ("forget", "scope"), ("consent", "state"), ("leave", "csrf"), ("enter", "token")],
)
async def test_a_form_of_another_site_changes_nothing(
    browser: Browser, stand: ConsoleStand, path: str, field: str
) -> None:
    await stand.remember(a_memory("Likes tea", ANN))
    page = await browser.open()

    def html(ours: str) -> str:
        return f"<form method=post action='{ours}/console/{path}'><input name={field} value=off></form>"

    async with another_site(html, stand) as address:
        await page.goto(address)
        async with page.expect_navigation() as answered:
            await page.evaluate("document.forms[0].submit()")
        assert (await answered.value).status == 403
    await page.goto(f"{stand.console.url}/console")
    assert "1 memory" in await page.inner_text(".count"), "signed in as before, and nothing is gone or new"


async def test_another_site_can_neither_frame_nor_read_a_page(browser: Browser, stand: ConsoleStand) -> None:
    await stand.remember(a_memory("Likes tea", ANN))
    page = await browser.open()

    def html(ours: str) -> str:
        return f"<iframe src='{ours}/console'></iframe>"

    async with another_site(html, stand) as address:
        await page.goto(address, wait_until="load")
        shown = [await frame.content() for frame in page.frames[1:]]
        read = await page.evaluate(
            "url => fetch(url, {credentials: 'include'}).then(one => one.text()).catch(() => 'refused')",
            f"{stand.console.url}/console",
        )
    assert shown
    assert not any("Likes tea" in text for text in shown)
    assert read == "refused"
    # The browser says itself what it refused: the frame, and the answer to the script.
    assert browser.complaints
    refusals = ("frame", "CORS", "ERR_FAILED", "ERR_BLOCKED")
    browser.complaints = [one for one in browser.complaints if not any(word in one for word in refusals)]


async def test_a_tab_of_one_person_changes_nothing_once_another_signed_in(
    browser: Browser, stand: ConsoleStand
) -> None:
    await stand.remember(a_memory("Ann likes tea", ANN), a_memory("Bob likes rum", Owner("", "bob")))
    anns = await browser.open("ann")
    bobs = await anns.context.new_page()
    await bobs.goto(stand.link("bob"))
    assert "rum" in await bobs.inner_text("main")
    await anns.fill("textarea[name=content]", "Has a sister called Eve")
    async with anns.expect_response("**/console/add") as answered:
        await anns.click("button:has-text('Add')")
    assert (await answered.value).status == 403
    for user, text in (("ann", "Ann likes tea"), ("bob", "Bob likes rum")):
        kept = (await stand.rest("GET", "/v1/memory", user=user)).json["memories"]
        assert [one["content"] for one in kept] == [text]
    await anns.reload()
    assert "tea" not in await anns.inner_text("body")


async def test_a_link_into_anothers_list_or_receipt_shows_nothing_of_it(
    browser: Browser, stand: ConsoleStand
) -> None:
    await stand.remember(*(a_memory(f"Ann has {at} cats", ANN) for at in range(30)))
    anns, bobs = await asyncio.gather(browser.open("ann"), browser.open("bob"))
    await anns.click("text=Older")
    await anns.wait_for_url("**page=*")
    assert (await bobs.goto(anns.url)).status == 400
    assert "cats" not in await bobs.inner_text("body")
    await anns.fill("[name=about]", "cats")
    await anns.click("text=Preview")
    confirmed = await anns.input_value("[name=confirmed]")
    await bobs.goto(f"{stand.console.url}/console/settings")
    await bobs.evaluate(
        """confirmed => {
          const form = document.querySelector("form[action$='/forget']");
          form.action += "/confirm";
          form.insertAdjacentHTML("beforeend", `<input name=confirmed value=${confirmed}>`);
        }""",
        confirmed,
    )
    async with bobs.expect_response("**/forget/confirm") as answered:
        await bobs.click("button:has-text('Forget everything')")
    assert (await answered.value).status in {400, 403}
    assert (await stand.rest("GET", "/v1/memory")).json["total"] == 30
    await anns.click("text=Forget permanently")
    await anns.wait_for_url("**/receipts/*")
    assert (await bobs.goto(anns.url)).status == 404


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("size", ["desktop", "phone"])
async def test_a_hostile_text_in_every_field_is_a_text_on_every_page(
    browser: Browser, stand: ConsoleStand, text: str, size: str
) -> None:
    """Subject, session and project, metadata, user and tenant names; the browser fixture fails where any runs."""
    name = text[:200]
    fields = {"session": name, "project": name}
    fact = a_memory(text, ANN, type=MemoryType.SEMANTIC, metadata={"subject": name, "key": text}, **fields)
    doubted = a_memory(f"{text} twice", ANN, state=MemoryState.QUARANTINED, metadata={"suspicion": text})
    await stand.remember(fact, doubted)
    await stand.owners.put(OwnerEntry(Owner(name, name), 2, stand.time))
    page = await browser.open(size=size)
    visited = 0
    for path in (
        "",
        "?state=any&q=%22%3E%3Cscript%3E",
        f"/memory/{fact.id}",
        "/timeline",
        "/why?text=%3Cscript%3E",
    ):
        await look(page, stand, path)
        visited += 1
    await page.goto(stand.link("ops", PrincipalRole.ADMIN))
    for path in ("/operator", "/operator/user?user=ann&show=memories", "/operator/user?user=ann&show=quarantine"):
        await look(page, stand, path)
        visited += 1
    assert visited == 8


async def look(page: Any, stand: ConsoleStand, path: str) -> None:
    answer = await page.goto(f"{stand.console.url}/console{path}")
    assert answer.status == 200, path
    assert answer.headers["cache-control"] == "no-store"
    assert (await page.title()).endswith("memory-extproc"), path
    assert await page.locator("main script, main img, main iframe").count() == 0, path
    assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
