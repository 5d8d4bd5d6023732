"""The page's section Containers in a real browser: readable on a phone and on a wide screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.process.browser import browser, needs_chromium
from tests.process.containers.scene import GRANT, WHOLE, Scene, needs_root, play
from tests.process.containers.vendors import nvidia, uuid
from tests.process.page.test_page import OVERFLOW, PNG, SMALL_TEXT
from tests.runtime import Failed

SIZES = ((390, 2400), (1500, 1400))
PLACE = (
    "[...document.querySelectorAll('h2')].find(e => e.textContent == 'Containers').scrollIntoView()"
)


async def look(url: str, folder: Path) -> list[dict[str, Any]]:
    observations = []
    async with browser() as page:
        for width, height in SIZES:
            await page.open(url, width, height)
            await page.value(PLACE)
            png = await page.picture()
            (folder / f"containers-{width}.png").write_bytes(png)
            assert png.startswith(PNG)
            overflow, small = await page.value(OVERFLOW), await page.value(SMALL_TEXT)
            text = await page.value("document.body.innerText")
            observations.append({"overflow": overflow, "small": small, "text": text})
        assert page.problems == []
    return observations


@needs_root
@needs_chromium
def test_allocations_and_refusals_are_readable_on_a_phone_and_a_wide_screen(
    tmp_path: Path,
) -> None:
    async def act(scene: Scene) -> None:
        nvidia(scene, 8)
        scene.tell(DEVICE_PLUGIN__VENDORS="nvidia")
        await scene.kubelet.start()
        await scene.begin()
        await scene.kubelet.resource("nvidia.com/gpu", healthy=8)
        every = [{"minor": n, "id": uuid(n), "resources": WHOLE} for n in range(8)]
        for name, some in (("training-of-a-large-model-0", every[:6]), ("notebook", every[6:])):
            await scene.start(name, {GRANT: json.dumps({"gpu": some})})
        for name, text in (("latecomer", json.dumps({"gpu": every[:1]})), ("forger", "{" * 40)):
            with pytest.raises(Failed):
                await scene.start(name, {GRANT: text})
        await scene.until(lambda: "forger" in scene.agent.get("")[1], "all of them")
        view = await look(scene.agent.url, tmp_path)
        for one in view:
            assert (one["overflow"], one["small"]) == (0, 0)
            for words in (
                "containerd v2.3.4",
                "2 containers known",
                "0 of 8 devices healthy; withdrawn",
            ):
                assert words in one["text"]
            for words in ("GPU 7; core 100", "DeviceTaken", "BadGrant", "team-a"):
                assert words in one["text"]

    play(act, cards=0)
