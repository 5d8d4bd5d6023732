"""The page's section Quality of service in a real browser, at a busy moment."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent.snapshot.part import SnapshotPart
from agent.snapshot.publications import AuditRecord
from agent.snapshot.self_check import (
    EnforcementView,
    FileCondition,
    StrategyState,
    StrategyStatus,
)
from agent.web.page.document import render_page
from tests.process.browser import browser, needs_chromium
from tests.process.page.test_page import OVERFLOW, PNG, SMALL_TEXT
from tests.unit.web.view import StillView, eight_cards

SIZES = ((390, 1400), (1500, 900))
PLACE = (
    "[...document.querySelectorAll('h2')].find(e => e.textContent == 'Quality of service')"
    ".scrollIntoView()"
)
POD = "kubepods-besteffort-pod11111111_2222_3333_4444_555555555555.slice"
FILE = (
    f"/sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice/{POD}/cri-containerd-{'a' * 64}.scope"
)


def busy_page() -> str:
    figures = (("budget_cores", 11.4), ("cpuset_cpus", 12.0), ("pressure_stalls", 3.0))
    strategies = tuple(
        StrategyStatus(
            name=name,
            mode="on",
            state=state,
            message=f"why it is {state.value}, in a sentence of some length",
            values=1200,
            figures=figures,
        )
        for name, state in zip(
            (
                "cpu_suppression",
                "cpu_burst",
                "memory_qos",
                "block_io",
                "kernel_settings",
                "resctrl",
            ),
            StrategyState,
            strict=False,
        )
    )
    changes = tuple(
        AuditRecord(
            wall_s=1.79e9 + number,
            owner="cpu_suppression",
            path=f"{FILE}/cpuset.cpus",
            key="cpuset.cpus",
            old=",".join(str(cpu) for cpu in range(0, 128, 2)),
            new="0-11,32-43",
            source="NodeSLO spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPercent",
            errno=22 if number % 3 else 0,
            planned=number % 2 == 0,
        )
        for number in range(40)
    )
    view = EnforcementView(
        strategies=strategies,
        is_frozen=True,
        brake="101 writes were refused within 10 minutes",
        conditions=(FileCondition(reason="ForeignWriter", message=f"{FILE}/cpu.max"),),
    )
    return render_page(StillView(eight_cards(enforcement=SnapshotPart(view, 1.0), audit=changes)))


@needs_chromium
def test_strategies_and_changes_can_be_read_on_a_phone_and_a_wide_screen(tmp_path: Path) -> None:
    document = tmp_path / "page.html"
    document.write_text(busy_page())

    async def look() -> None:
        async with browser() as page:
            for width, height in SIZES:
                await page.open(f"file://{document}", width, height)
                await page.value(PLACE)
                png = await page.picture()
                (tmp_path / f"qos-{width}.png").write_bytes(png)
                assert png.startswith(PNG)
                assert (await page.value(OVERFLOW), await page.value(SMALL_TEXT)) == (0, 0)
                text = await page.value("document.body.innerText")
                for words in ("cpu suppression", "unsupported", "Nothing is changed", "errno 22"):
                    assert words in text
            assert page.problems == []

    asyncio.run(look())
