"""What is offered on recorded hosts, and that all of it can be chosen and allocated by its ids."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.app.composition import create_inputs
from agent.app.oneshot import inspect_host
from agent.clock import ManualClock
from agent.config.containers import DevicePluginSettings
from agent.config.settings import Settings
from agent.deviceplugin.allocator import Allocator
from agent.deviceplugin.resources import AllocationError
from agent.recording.host_source import open_host
from tests.unit.deviceplugin.made import GPU, VENDORS, allocation_of, card, deciding, node, waiting

HOSTS = Path(__file__).parents[3] / "fixtures/hosts"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("atlas-910b3x8", {"huawei.com/Ascend910": [f"Ascend910-{i}" for i in range(8)]}),
        ("atlas-a3x16", {"huawei.com/Ascend910": [f"Ascend910-{i}" for i in range(16)]}),
        ("mlu370-x4-8", {"cambricon.com/mlu": 8}),
        ("qemu-4numa-8xh100", {"nvidia.com/gpu": 8}),
        (
            "a100-mig-4x",
            {"nvidia.com/gpu": 2, "nvidia.com/mig-1g.5gb": 9, "nvidia.com/mig-3g.20gb": 1},
        ),
    ],
)
def test_recorded_hosts_offer_what_their_makers_plugins_would(
    host: str, expected: dict[str, object]
) -> None:
    opened = open_host(str(HOSTS / host))
    snapshot = inspect_host(create_inputs(Settings(), opened, ManualClock(), None))
    vendors = ("nvidia", "ascend", "cambricon")
    decide = Allocator(DevicePluginSettings(vendors=vendors), VENDORS)
    resources = decide.resources(snapshot)
    for resource in resources:
        ids = tuple(device.id for device in resource.devices)
        assert len(set(ids)) == len(ids)
        for size in range(1, len(ids) + 1):
            assert len(set(decide.select_preferred(resource.name, ids, (), size, snapshot))) == size
    reports = {resource.name: [device.id for device in resource.devices] for resource in resources}
    assert reports.keys() == expected.keys()
    for name, desired in expected.items():
        assert desired in (reports[name], len(reports[name]))


def test_the_kubelet_that_follows_its_advice_has_the_account_that_the_scheduler_has() -> None:
    snapshot = node(waiting(1, 2), grants={0: allocation_of(card(6), card(3))})
    ids = deciding().select_preferred(GPU, tuple(map(card, range(8))), (), 2, snapshot)
    given_to = deciding().allocate(GPU, ids, snapshot)
    assert dict(given_to.edits.env)["NVIDIA_VISIBLE_DEVICES"] == ",".join(ids)


IDS = st.one_of(st.text(max_size=80), st.sampled_from([card(0), card(1), f"{card(0)}::0"]))


@given(st.lists(IDS, max_size=6), st.booleans())
def test_whatever_ids_the_kubelet_sends_only_a_refusal_comes_of_it(
    ids: list[str], in_force: bool
) -> None:
    snapshot = node(waiting(1, 2), grants={0: allocation_of(card(6), card(3))}, in_force=in_force)
    for last in (True, False):
        with contextlib.suppress(AllocationError):
            deciding().allocate(GPU, tuple(ids), snapshot, last=last)
    deciding().check_start(GPU, tuple(ids), snapshot)
