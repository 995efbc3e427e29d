"""A real browser, Debian's chromium, in front of the page."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.console import ConsoleStand

CHROMIUM = shutil.which("chromium") or ""
# axe-core 4.10.3 of the npm registry, MPL-2.0 (vendored/axe.LICENSE): used by tests alone, changed in nothing.
AXE = Path(__file__).parent / "vendored" / "axe.min.js"
AXE_SHA256 = "880970c081707360e64f34cea25ff91892f5bc95675b0776925b9709dd8a68bb"
SIZES = {"desktop": {"width": 1100, "height": 850}, "phone": {"width": 390, "height": 844}}


class Browser:
    """Opens pages, and keeps what their consoles complain of."""

    def __init__(self, chromium: Any, stand: ConsoleStand) -> None:
        self._chromium, self.stand = chromium, stand
        self.complaints: list[str] = []

    async def open(self, user: str = "ann", *, size: str = "desktop", script: bool = True, **more: Any) -> Any:
        """A page of a browser of its own, signed in as *user*."""
        context = await self._chromium.new_context(viewport=SIZES[size], java_script_enabled=script, **more)
        context.set_default_timeout(15_000)
        page = await context.new_page()
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        await page.goto(self.stand.link(user))
        return page

    async def check_access(self, page: Any) -> list[str]:
        """What axe-core finds in the page as it is, from `serious` on: rule and place."""
        script = AXE.read_bytes()
        assert hashlib.sha256(script).hexdigest() == AXE_SHA256, (
            "vendored/axe.min.js is not the file that was vendored"
        )
        if not await page.evaluate("typeof window.axe !== 'undefined'"):
            await page.evaluate(script.decode())
        found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for one in found["violations"]
            if one["impact"] in {"serious", "critical"}
            for node in one["nodes"]
        ]

    def _heard(self, message: Any) -> None:
        # A page that answers 4xx on purpose is a failed load to the console; the test looks at the answer itself.
        if message.type in {"error", "warning"} and "the server responded with a status" not in message.text:
            self.complaints.append(f"{message.type}: {message.text}")


@pytest_asyncio.fixture(loop_scope="module")
async def stand(tmp_path: Path) -> AsyncIterator[ConsoleStand]:
    async with ConsoleStand(tmp_path) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Any]:
    playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    if not CHROMIUM:
        pytest.skip("chromium is not there: apt-get install chromium")
    async with playwright.async_playwright() as driver:
        started = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        await started.close()


@pytest_asyncio.fixture(loop_scope="module")
async def browser(chromium: Any, stand: ConsoleStand) -> AsyncIterator[Browser]:
    """Fails a test whose pages complain: an error of a script, a violation of the policy, a dialog."""
    made = Browser(chromium, stand)
    yield made
    for context in chromium.contexts:
        await context.close()
    assert made.complaints == []
