"""The status page renews itself in a real browser, and nothing that the reader did is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp.test_utils import TestServer
from msgspec.structs import replace

from agent.snapshot.node import NodeSnapshot
from agent.web.server import create_page_app
from tests.patience import PATIENCE_S
from tests.process.browser import Page, browser, needs_chromium
from tests.process.page.test_page import OVERFLOW
from tests.unit.web.busy_node import busy_snapshot, ruin
from tests.unit.web.view import StillView

STATE = "document.getElementById('state').textContent"
# the page asks at once instead of after its usual pause
RENEW = "document.dispatchEvent(new Event('visibilitychange'))"
CARD = "card-0000-11-00.0"


def break_card(snapshot: NodeSnapshot, index: int) -> NodeSnapshot:
    """Return the snapshot after another card has failed, which stands before others now."""
    devices = list(snapshot.devices.value.devices)
    devices[index] = ruin(devices[index])
    view = replace(snapshot.devices.value, devices=tuple(reversed(devices)))
    return replace(snapshot, devices=replace(snapshot.devices, value=view))


@asynccontextmanager
async def served(view: StillView) -> AsyncIterator[str]:
    async with TestServer(create_page_app(view), host="127.0.0.1") as server:
        yield str(server.make_url("/"))


@pytest.fixture(autouse=True)
def _each_answer_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.web.server.SHARE_S", 0.0)


def look(check: Callable[[Page, StillView, str], Awaitable[None]], **window: int) -> None:
    async def run() -> None:
        view = StillView(busy_snapshot(8, pods=40))
        async with served(view) as url, browser() as page:
            width, height = window.get("width", 1280), window.get("height", 900)
            await page.open(url, width, height, scripts=True)
            await check(page, view, url)
            assert page.problems == []

    asyncio.run(run())


async def try_to_renew(page: Page) -> None:
    """Give the page more than enough occasions to ask, and time to show an answer."""
    for _ in range(5):
        await page.value(RENEW)
        await asyncio.sleep(0.2)


async def renew(page: Page, expression: str) -> None:
    """Let the page ask again and again until what it shows is true."""
    until = asyncio.get_running_loop().time() + PATIENCE_S
    while not await page.value(expression):
        assert asyncio.get_running_loop().time() < until, expression
        await page.value(RENEW)
        await asyncio.sleep(0.1)


@needs_chromium
def test_what_is_open_focused_and_scrolled_stays_when_the_page_renews_itself() -> None:
    async def check(page: Page, view: StillView, _: str) -> None:
        await page.value(f"window.card = document.getElementById('{CARD}'); 0")
        await page.value("window.fold = card.querySelector('details'); fold.open = true")
        await page.value("fold.querySelector('summary').focus()")
        await page.value(
            "window.box = document.querySelector('#devices .scroll'); box.scrollLeft = 77"
        )
        before = await page.value("card.getBoundingClientRect().top + scrollY")
        assert "1 of 8 devices out of service" in await page.value(STATE)
        view.now = break_card(view.now, 6)
        await renew(page, f"{STATE}.includes('2 of 8 devices out of service')")
        assert await page.value("fold.open && fold.isConnected")
        assert await page.value("document.activeElement === fold.querySelector('summary')")
        assert await page.value("box.scrollLeft") == 77
        # the cards changed their order, and the card is the same element at another place
        assert await page.value(f"document.getElementById('{CARD}') === card")
        after = await page.value("card.getBoundingClientRect().top + scrollY")
        assert after != before
        assert await page.value("document.title[0]") == "✕"

    look(check, width=420)


@needs_chromium
def test_selected_text_is_not_taken_from_the_reader() -> None:
    async def check(page: Page, view: StillView, _: str) -> None:
        select = "getSelection().selectAllChildren(document.querySelector('h1'))"
        await page.value(select)
        view.now = break_card(view.now, 6)
        await try_to_renew(page)
        assert "1 of 8" in await page.value(STATE)
        assert await page.value("getSelection().toString()") == "hgx-h100-01"
        await page.value("getSelection().removeAllRanges()")
        await renew(page, f"{STATE}.includes('2 of 8')")

    look(check)


@needs_chromium
def test_the_reader_can_pause_the_updates_by_keyboard() -> None:
    async def check(page: Page, view: StillView, _: str) -> None:
        await page.value("document.getElementById('pause').focus()")
        await page.press("Enter")
        await page.wait_for("document.getElementById('live').textContent == 'updates are paused'")
        view.now = break_card(view.now, 6)
        await try_to_renew(page)
        assert "1 of 8" in await page.value(STATE)
        await page.press("Enter")
        await renew(page, f"{STATE}.includes('2 of 8')")

    look(check)


@needs_chromium
def test_an_agent_that_does_not_answer_is_said_on_the_page() -> None:
    async def run() -> None:
        view = StillView(busy_snapshot(2, pods=20))
        async with browser() as page:
            async with served(view) as url:
                await page.open(url, 1280, 900, scripts=True)
            await page.value(RENEW)
            await page.wait_for("document.body.classList.contains('lost')")
            assert "no answer since" in await page.value(
                "document.getElementById('live').textContent"
            )

    asyncio.run(run())


@needs_chromium
def test_a_busy_node_with_long_names_fits_a_phone() -> None:
    async def check(page: Page, view: StillView, url: str) -> None:
        snapshot = busy_snapshot(16, nics=4)
        pods = tuple(
            replace(pod, name=pod.name + "x" * 220, namespace="n" * 63)
            for pod in snapshot.pods.value
        )
        view.now = replace(snapshot, pods=replace(snapshot.pods, value=pods))
        view.notice = "a-path-without-a-space/" * 20
        for path in ("", "pods"):
            await page.open(url + path, 360, 740, scripts=True)
            assert await page.value(OVERFLOW) == 0, path

    look(check, width=360)


@needs_chromium
def test_the_first_key_leads_to_the_content_and_focus_is_visible() -> None:
    async def check(page: Page, _: StillView, __: str) -> None:
        await page.press("Tab")
        active = "document.activeElement"
        assert await page.value(f"{active}.className") == "skip"
        assert await page.value(f"{active}.getBoundingClientRect().left >= 0")
        assert await page.value(f"getComputedStyle({active}).outlineStyle") == "solid"
        await page.press("Enter")
        await page.wait_for("location.hash == '#main'")

    look(check)
