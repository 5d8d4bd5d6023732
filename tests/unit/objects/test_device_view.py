"""`devices -o json`: the keys that are promised, and nothing instead of what is not known."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.snapshot.device import (
    Device,
    DeviceKind,
    VendorDevice,
    column_name,
    long_name,
    short_name,
)
from agent.snapshot.node import DeviceView
from agent.web.device_json import device_json, devices_json
from tests.factory import gpu, nic

PROMISED = {
    "type", "vendor", "model", "minor", "uuid", "bus_id", "numa_node", "pcie_path", "memory_bytes",
    "managed", "health", "partitions", "virtual_functions",
}  # fmt: skip
BARE = Device(info=VendorDevice(kind=DeviceKind.RDMA, vendor="x", bus_id=None))


def scalars(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for item in value.values():
            yield from scalars(item)
    elif isinstance(value, list):
        for item in value:
            yield from scalars(item)
    else:
        yield value


@pytest.mark.parametrize("device", [gpu(0), nic(0, vfs=2), BARE])
def test_every_promised_key_is_there(device: Device) -> None:
    document = device_json(device)
    assert set(document) >= PROMISED
    assert list(devices_json(DeviceView(devices=(device,)))) == [
        "devices",
        "groups",
        "group_policy",
    ]
    health = document["health"]
    assert isinstance(health, dict)
    assert set(health) >= {"state", "reason", "message", "since"}


def test_what_is_not_known_is_null() -> None:
    values = set(scalars(device_json(BARE)))
    assert not values & {0, -1, "", "unknown"} - {False}
    assert device_json(BARE)["numa_node"] is None


def test_the_path_runs_from_the_host_bridge_to_the_device() -> None:
    path = device_json(gpu(0))["pcie_path"]
    assert isinstance(path, list)
    assert (path[0], path[-1]) == ("pci0000:15", "0000:1b:00.0")


def test_a_virtual_function_without_a_number_has_none() -> None:
    assert device_json(nic(0, vfs=2))["virtual_functions"] == [
        {"bus_id": "0000:18:00.1", "minor": None},
        {"bus_id": "0000:18:00.2", "minor": None},
    ]


@pytest.mark.parametrize(
    ("device", "short", "column", "long"),
    [
        (gpu(0), "GPU 0", "GPU0", "NVIDIA H100 80GB HBM3"),
        (gpu(0, facts=(("name", "A"),)), "GPU 0", "GPU0", "A"),
        (gpu(0, model=None), "GPU 0", "GPU0", "nvidia"),
        (gpu(0, minor=None), "GPU 0000:1b:00.0", "GPU?7", "NVIDIA H100 80GB HBM3"),
        (nic(0), "NIC 0", "NIC0", "mlx5_0 MT4129"),
        (nic(0, minor=None), "NIC mlx5_0", "mlx5_0", "MT4129"),
        (nic(0, facts=(), minor=None), "NIC 0000:18:00.0", "NIC?7", "MT4129"),
    ],
)
def test_a_device_has_one_name_of_each_length(
    device: Device, short: str, column: str, long: str
) -> None:
    assert (short_name(device), column_name(device, 7), long_name(device)) == (short, column, long)
