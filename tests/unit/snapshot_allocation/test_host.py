"""What is found of a host, and whose devices are whose."""

from __future__ import annotations

from agent.snapshot.device import DeviceNode
from agent.snapshot.host_devices import HostDevices
from agent.snapshot.node import devices_by_vendor
from tests.unit.allocation.made import GPUS, NICS, snapshot


def test_a_node_is_found_by_its_path_and_the_first_of_two_counts() -> None:
    first, second = (DeviceNode(path="/dev/a", major=1, minor=n) for n in range(2))
    host = HostDevices(nodes=(first, second))
    assert host.node("/dev/a") == first
    assert host.node("/dev/b") is None
    assert host == HostDevices(nodes=(first, second))  # whatever was looked up in one of them


def test_devices_are_those_of_the_plugin_that_reported_them_and_not_of_their_maker() -> None:
    now = snapshot(devices=(*GPUS[:2], *NICS))
    by_vendor = devices_by_vendor(now)
    assert {name: [device.key for device in devices] for name, devices in by_vendor.items()} == {
        "nvidia": [device.key for device in GPUS[:2]],
        "rdma": [device.key for device in NICS],
    }
