"""How the page shows what state a device is in, why, and since when."""

from __future__ import annotations

import pytest

from agent.snapshot.device import Health, HealthState
from agent.web.page.document import render_page
from agent.web.page.svg import topology_svg
from agent.web.page.tables import devices_table
from tests.factory import BOOT_S, gpu, snapshot
from tests.unit.web.view import StillView


@pytest.mark.parametrize(
    ("health", "shown"),
    [
        pytest.param(Health(), ["✓</span> healthy</span></td>"], id="well"),
        pytest.param(
            Health(
                state=HealthState.PROBING,
                reason="Xid95",
                message="uncontained; looks well again: 25 %",
                since_s=BOOT_S,
            ),
            [
                'class="badge probing"><span aria-hidden="true">…</span> probing<',
                "Xid95: uncontained; looks well again: 25 % (since 2026-01-02T03:04:05Z)",
            ],
            id="probing",
        ),
        pytest.param(
            Health(reason="DriverStalled", message="no answer <b>", certain=False),
            ["!</span> healthy or not: unknown<", "DriverStalled: no answer &lt;b&gt;<"],
            id="unknown",
        ),
    ],
)
def test_state_reason_and_date_stand_together(health: Health, shown: list[str]) -> None:
    page = devices_table(snapshot((gpu(0, health=health),)))
    assert [text for text in shown if text not in page] == []


def test_an_uncertain_device_counts_and_is_not_drawn_as_a_healthy_one() -> None:
    unknown = gpu(0, health=Health(reason="DriverStalled", certain=False))
    snap = snapshot((unknown, gpu(1)))
    assert '<b>1 of 2</b><span class="quiet">devices healthy</span>' in render_page(StillView(snap))
    assert "2 devices, 1 healthy" in topology_svg(snap, 2)
