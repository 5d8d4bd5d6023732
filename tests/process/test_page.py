"""The status page in a real browser: readable on a phone and a wide screen, without scripts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.process.agent import EIGHT_CARDS, running
from tests.process.browser import browser, needs_chromium

PNG = b"\x89PNG\r\n\x1a\n"
# the text of what is really shown, not of what is in the document
SHOWN = "[...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().width > 0)"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SMALL_TEXT = (
    "[...document.querySelectorAll('p, td, th, h1, h2, a')]"
    ".filter(e => parseFloat(getComputedStyle(e).fontSize) < 12).length"
)


@needs_chromium
@pytest.mark.parametrize(
    ("width", "height", "columns"), [(390, 844, 1), (820, 1180, 2), (1920, 1080, 4)]
)
def test_the_page_fits_the_screen_and_shows_one_picture(
    tmp_path: Path, width: int, height: int, columns: int
) -> None:
    async def look(url: str) -> dict[str, Any]:
        async with browser() as page:
            await page.open(url, width, height)
            return {
                "overflow": await page.value(OVERFLOW),
                "pictures": await page.value(f"{SHOWN}.length"),
                "picture_width": await page.value(f"{SHOWN}[0].viewBox.baseVal.width"),
                "cards": await page.value(f"{SHOWN}[0].querySelectorAll('rect.card').length"),
                "healthy": await page.value(f"{SHOWN}[0].querySelectorAll('rect.healthy').length"),
                "small": await page.value(SMALL_TEXT),
                "text": await page.value("document.body.innerText"),
                "png": await page.picture(),
                "problems": page.problems,
            }

    with running(tmp_path / "out", "--host", str(EIGHT_CARDS)) as agent:
        agent.wait_until((agent.out / "nodemetric.yaml").exists, "the first report")
        observations = asyncio.run(look(agent.url))
    assert observations["problems"] == []
    assert observations["overflow"] == 0
    assert observations["pictures"] == 1
    assert 300 * columns < observations["picture_width"] < 400 * columns
    assert (observations["cards"], observations["healthy"]) == (12, 8)
    assert observations["small"] == 0
    for words in ("8 of 8", "GPU 7", "NV18", "Recorded host qemu-4numa-8xh100"):
        assert words in observations["text"]
    assert observations["png"].startswith(PNG)
    (tmp_path / f"page-{width}.png").write_bytes(observations["png"])
