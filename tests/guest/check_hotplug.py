"""Cards that came and went in the virtual machine, against what the agent published and when."""

from __future__ import annotations

from typing import Any

import pytest

from tests.guest.machine_facts import work_s

WITHIN_S = 1.0  # from the kernel's event to the Device object, of which
WAITING_S = 0.2  # is spent waiting for more events: the rest is work


@pytest.fixture
def machine_facts(facts: dict[str, Any]) -> Any:
    return facts["hotplug"]


@pytest.fixture
def within_s(machine_facts: Any) -> float:
    """Return the limit on emulated processors: work takes so many times longer on them."""
    slower = max(1.0, float(machine_facts["work_s"]) / work_s())
    return WAITING_S + (WITHIN_S - WAITING_S) * slower


def test_a_nic_is_in_the_device_object_within_a_second_of_its_event(
    machine_facts: Any, within_s: float
) -> None:
    assert machine_facts["nic"]["added_s"] <= within_s


def test_a_nic_that_leaves_is_out_of_service_within_a_second(
    machine_facts: Any, within_s: float
) -> None:
    assert machine_facts["nic"]["removed_s"] <= within_s


def test_a_gpu_is_listed_within_a_second_with_its_place(
    machine_facts: Any, within_s: float
) -> None:
    gpu = machine_facts["gpu"]
    assert gpu["added_s"] <= within_s
    assert gpu["event"]["PCI_ID"] == "10DE:2330"
    assert (gpu["listed"]["type"], gpu["listed"]["vendor"]) == ("gpu", "nvidia")
    assert gpu["listed"]["numa_node"] == 1
    assert gpu["listed"]["pcie_path"][0] == "pci0000:50"


def test_a_gpu_without_its_driver_is_reported_as_incomplete(machine_facts: Any) -> None:
    assert machine_facts["gpu"]["incomplete"].endswith(": still without driver")


def test_a_gpu_that_leaves_serves_no_more_within_a_second(
    machine_facts: Any, within_s: float
) -> None:
    assert machine_facts["gpu"]["removed_s"] <= within_s


def test_minors_of_the_others_never_changed(machine_facts: Any) -> None:
    first = machine_facts["minors"][0]
    assert len(first) >= 4
    for later in machine_facts["minors"][1:]:
        assert {name: later[name] for name in first} == first


def test_the_agent_counted_the_received_events(machine_facts: Any) -> None:
    hotplug = machine_facts["hotplug"]
    assert (hotplug["state"], hotplug["problem"]) == ("listening", None)
    assert hotplug["seen"]["pci"] >= 4
    assert hotplug["seen"]["infiniband"] >= 2
    assert hotplug["scans"]["event"] >= 4
