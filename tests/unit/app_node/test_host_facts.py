"""The host's facts as they go into the snapshot, and what a person decides about them."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.app.host_reader import links_to_check
from agent.app.identity import node_name
from agent.cli.topology import topology_json, tree_text
from agent.clock import ManualClock
from agent.config.sources import decode_settings
from agent.devices.joiner import numa_overrides
from agent.devices.presence import PLACE_WAIT_S
from agent.errors import BadConfig
from agent.recording.host_source import HostSource, open_host
from agent.recording.tree import ErrorEntry, LinkEntry, TreeEntry, TreeFiles
from agent.snapshot.device import DeviceKind, VendorDevice
from agent.snapshot.inventory import DeviceSample, Inventory
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore, VendorState
from agent.snapshot.part import SnapshotPart
from tests import factory
from tests.pipelines import JoinedHost
from tests.process.agent import EIGHT_CARDS

TOPOLOGY_FILE = "/var/run/nvidia-topologyd/virtualTopology.xml"


def facts(opened: HostSource, settings: object) -> tuple[JoinedHost, SnapshotStore]:
    decoded = decode_settings(settings)
    store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name=node_name(opened, decoded))))
    return JoinedHost(opened, decoded, store, ManualClock()), store


@pytest.mark.parametrize(
    "row",
    [
        {"match": "0000:18:00.0"},
        {"match": "x", "node": 0},
        {"match": "0000:18:00.0", "node": "0"},
        {"match": 3, "node": 0},
        {"match": "0000:18:00.0", "node": 0, "more": 1},
    ],
)
def test_an_override_of_another_form_is_refused_by_name(row: dict[str, object]) -> None:
    with pytest.raises(BadConfig, match=r"discovery\.numa_overrides"):
        numa_overrides(decode_settings({"discovery": {"numa_overrides": [row]}}))


class Plugged:
    """A recorded host, and a vendor whose answers come at a time of ours."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.asked = 0
        opened, decoded = open_host(str(EIGHT_CARDS)), decode_settings({})
        name = NodeIdentity(name=node_name(opened, decoded))
        self.store = SnapshotStore(NodeSnapshot(node=name))
        self.facts = JoinedHost(opened, decoded, self.store, self.clock)
        self.facts.read_host()

    def answer(self, *cards: VendorDevice) -> list[str]:
        """Join what the vendor says a second later; return what is listed."""
        self.clock.advance(1.0)
        part: SnapshotPart[Inventory | None] = SnapshotPart(
            Inventory(vendor="nvidia", devices=cards), self.clock.monotonic()
        )
        self.store.put(vendors=(VendorState(vendor="nvidia", state="ready", inventory=part),))
        return self.join()

    def join(self) -> list[str]:
        self.asked += self.facts.join_devices().has_unplaced
        return [device.key for device in self.store.current.devices.value.devices]


HERE, NOWHERE = factory.gpu(0).info, replace(factory.gpu(1).info, bus_id="00ff:01:00.0")


def test_a_device_that_comes_before_its_function_is_read_waits_for_its_place() -> None:
    node = Plugged()
    first = replace(HERE, bus_id=next(iter(node.store.current.pci.value.functions)))
    assert node.answer(first) == [first.key]
    assert node.answer(first, NOWHERE) == [first.key]
    assert node.asked == 1
    node.clock.advance(0.5)
    node.facts.read_host()
    assert node.join() == sorted([first.key, NOWHERE.key])  # the host was read, and lacks it
    assert node.answer(first, NOWHERE) == sorted([first.key, NOWHERE.key])
    assert node.asked == 1


def test_a_device_does_not_wait_for_a_host_that_cannot_be_read() -> None:
    node = Plugged()
    assert node.answer() == []
    assert node.answer(NOWHERE) == []
    node.clock.advance(PLACE_WAIT_S)
    assert node.join() == [NOWHERE.key]


def test_at_the_start_no_device_waits() -> None:
    node = Plugged()
    assert node.answer(NOWHERE) == [NOWHERE.key]
    assert node.asked == 0


def test_a_view_says_whose_answer_it_lacks() -> None:
    result, store = facts(open_host(str(EIGHT_CARDS)), {})
    result.read_host()
    for state, awaited in (("starting", ("nvidia",)), ("ready", ()), ("quarantined", ())):
        store.put(vendors=(VendorState(vendor="nvidia", state=state),))
        result.join_devices()
        assert store.current.devices.value.awaited == awaited


def test_parts_that_cannot_be_read_any_more_keep_what_they_had_and_say_so(tmp_path: Path) -> None:
    for path, content in (("cpu/online", "0"), ("cpu/cpu0/topology/core_cpus", "1")):
        file = tmp_path / "sys/devices/system" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    (tmp_path / "sys/bus/pci/devices/0000:3b:00.0").mkdir(parents=True)
    result, store = facts(open_host(str(tmp_path)), {})
    result.read_host()
    before = store.current
    assert before.cpus.value.usable
    assert before.pci.value.functions
    shutil.rmtree(tmp_path / "sys/devices")
    shutil.rmtree(tmp_path / "sys/bus")
    result.read_host()
    for name in ("cpus", "numa", "pci"):
        old, now = getattr(before, name), getattr(store.current, name)
        assert now.value is old.value
        assert now.error.endswith("ENODATA")


def test_a_bus_that_refuses_to_be_listed_is_no_machine_without_devices() -> None:
    files = TreeFiles.from_entries(
        {"/sys/bus/pci/devices": ErrorEntry(errno.EACCES), "/proc/stat": b"cpu 1"}
    )
    result, store = facts(HostSource(files=files), {})
    result.read_host()
    assert store.current.pci.taken_s is None
    assert store.current.pci.error == "/sys/bus/pci/devices: ENODATA"


def test_what_is_odd_about_the_host_is_a_problem_for_people() -> None:
    files = TreeFiles.from_entries(
        {"/sys/bus/pci/devices/0000:3b:00.0/virtfn0": LinkEntry("../0000:3b:00.1")}
    )
    result, store = facts(HostSource(files=files), {})
    result.read_host()
    result.join_devices()
    assert ("host", "PciBadVirtfn") in [
        (who, problem.reason) for who, problem in store.current.devices.value.problems
    ]


def test_an_override_moves_the_device_and_says_so() -> None:
    settings = {"discovery": {"numa_overrides": [{"match": "0000:23:00.0", "node": 3}]}}
    result, store = facts(open_host(str(EIGHT_CARDS)), settings)
    card = VendorDevice(kind=DeviceKind.GPU, vendor="nvidia", bus_id="0000:23:00.0", minor=0)
    inventory = Inventory(vendor="nvidia", devices=(card,))
    store.put(vendors=(VendorState(vendor="nvidia", inventory=SnapshotPart(inventory, 1.0)),))
    result.read_host()
    result.join_devices()
    place = store.current.devices.value.devices[0].place
    assert (place.numa_node, place.numa_source) == (3, "override")


def test_a_topology_file_that_is_refused_is_a_problem_for_people() -> None:
    files = TreeFiles.from_entries({TOPOLOGY_FILE: b"<!DOCTYPE x><system/>"})
    result, store = facts(HostSource(files=files), {})
    result.read_host()
    result.join_devices()
    reasons = [problem.reason for _, problem in store.current.devices.value.problems]
    assert reasons[0] == "TopologyFileRefused"


def test_equal_devices_keep_their_old_view() -> None:
    result, store = facts(open_host(str(EIGHT_CARDS)), {})
    result.read_host()
    result.join_devices()
    first = store.current.devices.value
    result.read_host()
    result.join_devices()
    assert store.current.devices.value is first


def test_a_read_of_the_host_keeps_the_uid_of_the_cluster() -> None:
    result, store = facts(open_host(str(EIGHT_CARDS)), {})
    result.read_host()
    store.change(lambda now: replace(now, node=replace(now.node, uid="u-1")))
    result.read_host()
    assert store.current.node.uid == "u-1"
    assert store.current.node.kernel


def test_the_link_of_an_idle_card_is_not_judged() -> None:
    cards, nic = [factory.gpu(0), factory.gpu(1)], factory.nic(0)
    snapshot = factory.snapshot(devices=(*cards, nic))
    busy = DeviceSample(key=cards[1].key, core_percent=40.0)
    idle = DeviceSample(key=cards[0].key, core_percent=0.0)
    vendor = replace(snapshot.vendors[0], samples=SnapshotPart((idle, busy), 1.0))
    watched, working = links_to_check(replace(snapshot, vendors=(vendor,)))
    assert watched == {cards[1].key, nic.key}
    assert working == {cards[1].key}


def test_what_the_host_refuses_is_counted_by_errno_and_what_is_absent_is_not() -> None:
    entries: dict[str, TreeEntry] = {
        "/sys/devices/system/cpu/cpu0/topology/core_cpus": ErrorEntry(errno.EIO),
        "/sys/devices/system/cpu/cpu0/topology/package_cpus": ErrorEntry(errno.EIO),
        "/sys/bus/pci/devices": ErrorEntry(errno.EACCES),
    }
    result, store = facts(HostSource(files=TreeFiles.from_entries(entries)), {})
    result.read_host()
    refused = dict(store.current.refused)
    assert set(refused) == {"EIO", "EACCES"}
    assert refused["EIO"] >= 2


def test_an_override_of_a_root_moves_all_that_hangs_below_it_in_every_view() -> None:
    settings = {"discovery": {"numa_overrides": [{"match": "pci0000:20", "node": 3}]}}
    result, store = facts(open_host(str(EIGHT_CARDS)), settings)
    card = VendorDevice(kind=DeviceKind.GPU, vendor="nvidia", bus_id="0000:23:00.0", minor=0)
    inventory = Inventory(vendor="nvidia", devices=(card,))
    store.put(vendors=(VendorState(vendor="nvidia", inventory=SnapshotPart(inventory, 1.0)),))
    result.read_host()
    result.join_devices()
    views: Any = topology_json(store.current)
    (root,) = (branch for branch in views["pci"] if branch["address"] == "pci0000:20")
    nodes: list[int] = []
    below = list(root["children"])
    while below:
        branch = below.pop()
        nodes.append(branch["numa_node"])
        below += branch["children"]
    assert len(nodes) > 5
    assert set(nodes) == {3}
    assert [device.place.numa_node for device in store.current.devices.value.devices] == [3]
    above, line, _ = tree_text(store.current).partition("pci0000:20")
    assert line
    assert above.splitlines()[-2].partition("NUMA node ")[2][:1] == "3"
