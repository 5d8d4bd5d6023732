"""What every vendor promises of the devices that it lists."""

from __future__ import annotations

import re
from pathlib import Path

from agent.model.device import HealthState, VendorDevice
from agent.publish.wire import sanitise
from agent.topology.address import parse_address
from tests.contract.asked import inventory_of, of_every_vendor, on_every_host

REASON = re.compile(r"([A-Z][a-z0-9]*)+")
TYPE = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
POLICIES = (None, "Prefer", "Honor")
pytestmark = [of_every_vendor, on_every_host]


def devices_of(name: str, host: str, folder: Path) -> tuple[VendorDevice, ...]:
    return inventory_of(name, host, folder).devices


def test_devices_of_an_inventory_are_told_apart(name: str, host: str, tmp_path: Path) -> None:
    devices = devices_of(name, host, tmp_path)
    assert len({device.key for device in devices}) == len(devices)
    published = [(d.kind.wire_type, d.minor) for d in devices if d.minor is not None]
    assert len(set(published)) == len(published)


def test_addresses_are_spelt_as_the_kernel_does(name: str, host: str, tmp_path: Path) -> None:
    for bus_id in (d.bus_id for d in devices_of(name, host, tmp_path) if d.bus_id is not None):
        assert parse_address(bus_id) == bus_id


def test_each_device_has_a_verdict_with_a_reason(name: str, host: str, tmp_path: Path) -> None:
    for device in devices_of(name, host, tmp_path):
        for health in (device.health, *(part.health for part in device.partitions)):
            assert health.state is not HealthState.PROBING  # that is the agent's to say
            assert REASON.fullmatch(health.reason)
            assert health.message


def test_conditions_have_types_and_reasons_that_an_api_server_takes(
    name: str, host: str, tmp_path: Path
) -> None:
    for device in devices_of(name, host, tmp_path):
        types = [condition.type for condition in device.conditions]
        assert len(set(types)) == len(types)
        assert "Healthy" not in types  # that is what `health` becomes
        for condition in device.conditions:
            assert TYPE.fullmatch(condition.type)
            assert sanitise.reason(condition.reason) == condition.reason


def test_what_can_be_granted_is_a_quantity(name: str, host: str, tmp_path: Path) -> None:
    for device in devices_of(name, host, tmp_path):
        names = [resource for resource, _ in device.resources]
        assert len(set(names)) == len(names)
        for resource, amount in device.resources:
            assert "/" in resource
            assert sanitise.quantity(amount) == amount
        assert device.managed or not device.resources


def test_unknown_memory_is_none_and_never_nothing(name: str, host: str, tmp_path: Path) -> None:
    for device in devices_of(name, host, tmp_path):
        for amount in (device.memory_bytes, *(p.memory_bytes for p in device.partitions)):
            assert amount is None or amount > 0


def test_slices_are_told_apart_on_the_whole_node(name: str, host: str, tmp_path: Path) -> None:
    devices = devices_of(name, host, tmp_path)
    uuids = [part.uuid for device in devices for part in device.partitions]
    assert len(set(uuids)) == len(uuids)
    assert not set(uuids) & {device.uuid for device in devices}
    for device in devices:
        for profile, starts in device.free_slices:
            assert profile
            assert list(starts) == sorted(set(starts))


def test_device_nodes_are_below_dev(name: str, host: str, tmp_path: Path) -> None:
    for device in devices_of(name, host, tmp_path):
        for node in (*device.nodes, *(n for part in device.partitions for n in part.nodes)):
            assert node.path.startswith("/dev/")
            assert "/../" not in node.path


def test_groups_are_of_known_devices_and_none_comes_twice(
    name: str, host: str, tmp_path: Path
) -> None:
    inventory = inventory_of(name, host, tmp_path)
    known = {device.key for device in inventory.devices}
    for group in inventory.groups:
        assert group.keys
        assert len(set(group.keys)) == len(group.keys)
        assert set(group.keys) <= known
    members = [frozenset(group.keys) for group in inventory.groups]
    assert len(set(members)) == len(members)
    assert inventory.group_policy in POLICIES


def test_links_are_of_two_devices_and_counted_once(name: str, host: str, tmp_path: Path) -> None:
    links = inventory_of(name, host, tmp_path).links
    assert len({(link.a, link.b, link.type) for link in links}) == len(links)
    for link in links:
        assert link.a != link.b
        assert link.count > 0
