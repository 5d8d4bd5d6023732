"""The status page in a real browser: readable on phone, screen and paper, without scripts."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.process.agent import EIGHT_CARDS, running
from tests.process.browser import Page, browser, needs_chromium

PNG = b"\x89PNG\r\n\x1a\n"
PANELS = "[...document.querySelectorAll('.panels svg')]"
# how many panels of NUMA nodes stand beside each other
COLUMNS = f"new Set({PANELS}.map(e => Math.round(e.getBoundingClientRect().left))).size"
CARDS = "[...document.querySelectorAll('li.card')]"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SMALL_TEXT = (
    "[...document.querySelectorAll('p, td, th, h1, h2, a')]"
    ".filter(e => parseFloat(getComputedStyle(e).fontSize) < 12).length"
)
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
WHITE, BLACK = "rgb(255, 255, 255)", "rgb(14, 17, 22)"
SIZES = ((360, 740, 1, "dark"), (390, 844, 1, "light"), (820, 1180, 2, "dark"), (1920, 1080, 4, ""))
WORDS = (
    "8 of 8",
    "GPU 7",
    "NV18",
    "Recorded host qemu-4numa-8xh100",
    "Nothing is wrong",
    "flag --listen",
)


async def check_size(page: Page, width: int, columns: int) -> None:
    assert await page.value(OVERFLOW) == 0, width
    assert await page.value(f"{PANELS}.length") == 4
    assert await page.value(COLUMNS) == columns, width
    assert await page.value(f"{CARDS}.length") == 12
    assert await page.value(f"{CARDS}.filter(e => e.matches('.healthy')).length") == 8
    assert await page.value(SMALL_TEXT) == 0


async def check_paper(page: Page) -> None:
    """The printed page is black on white also for a reader with dark windows."""
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    await page.call("Emulation.setEmulatedMedia", media="print", features=features)
    assert await page.value(BACKGROUND) == WHITE
    assert await page.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert (await page.call("Page.printToPDF"))["data"]


@needs_chromium
def test_the_page_fits_every_screen_and_paper_without_scripts(tmp_path: Path) -> None:
    async def look(url: str) -> None:
        async with browser() as page:
            for width, height, columns, scheme in SIZES:
                await page.open(url, width, height, scheme=scheme or "light")
                await check_size(page, width, columns)
                assert await page.value(BACKGROUND) == (BLACK if scheme == "dark" else WHITE)
                png = await page.picture()
                assert png.startswith(PNG)
                (tmp_path / f"page-{width}.png").write_bytes(png)
            await page.value("document.querySelectorAll('details').forEach(e => e.open = true)")
            text = await page.value("document.body.innerText")
            assert [words for words in WORDS if words not in text] == []
            await check_paper(page)
            for path in ("pods", "settings", "objects", "distances", "runbook"):
                await page.open(url + path, 360, 740)
                assert await page.value(OVERFLOW) == 0, path
            assert page.problems == []

    with running(tmp_path / "out", "--host", str(EIGHT_CARDS)) as agent:
        agent.wait_until((agent.out / "nodemetric.yaml").exists, "the first report")
        agent.wait_until(lambda: agent.get("readyz")[0] == 200, "it is ready")
        asyncio.run(look(agent.url))
