"""Cards that came and went in the virtual machine, against what the agent published and when."""

from __future__ import annotations

from typing import Any

import pytest

from tests.guest.known import work_s

WITHIN_S = 1.0  # from the kernel's event to the Device object, of which
WAITING_S = 0.2  # is spent waiting for more events: the rest is work


@pytest.fixture
def found(facts: dict[str, Any]) -> Any:
    return facts["hotplug"]


@pytest.fixture
def within_s(found: Any) -> float:
    """Return the limit on emulated processors: work takes so many times longer on them."""
    slower = max(1.0, float(found["work_s"]) / work_s())
    return WAITING_S + (WITHIN_S - WAITING_S) * slower


def test_a_nic_is_in_the_device_object_within_a_second_of_its_event(
    found: Any, within_s: float
) -> None:
    assert found["nic"]["added_s"] <= within_s


def test_a_nic_that_leaves_is_out_of_service_within_a_second(found: Any, within_s: float) -> None:
    assert found["nic"]["removed_s"] <= within_s


def test_a_gpu_is_listed_within_a_second_with_its_place(found: Any, within_s: float) -> None:
    gpu = found["gpu"]
    assert gpu["added_s"] <= within_s
    assert gpu["event"]["PCI_ID"] == "10DE:2330"
    assert (gpu["listed"]["type"], gpu["listed"]["vendor"]) == ("gpu", "nvidia")
    assert gpu["listed"]["numa_node"] == 1
    assert gpu["listed"]["pcie_path"][0] == "pci0000:50"


def test_a_gpu_without_its_driver_is_told_to_be_incomplete(found: Any) -> None:
    assert found["gpu"]["incomplete"].endswith(": still without driver")


def test_a_gpu_that_leaves_serves_no_more_within_a_second(found: Any, within_s: float) -> None:
    assert found["gpu"]["removed_s"] <= within_s


def test_minors_of_the_others_never_changed(found: Any) -> None:
    first = found["minors"][0]
    assert len(first) >= 4
    for later in found["minors"][1:]:
        assert {name: later[name] for name in first} == first


def test_the_agent_counted_what_it_heard(found: Any) -> None:
    hotplug = found["hotplug"]
    assert (hotplug["state"], hotplug["problem"]) == ("listening", None)
    assert hotplug["seen"]["pci"] >= 4
    assert hotplug["seen"]["infiniband"] >= 2
    assert hotplug["scans"]["event"] >= 4
