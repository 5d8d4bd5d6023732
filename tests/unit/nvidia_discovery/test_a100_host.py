"""The invented host with four A100 cards, two of which have MIG instances."""

from __future__ import annotations

import json

import pytest

from agent.recording.host_source import open_host
from agent.snapshot.device import VendorDevice
from agent.snapshot.inventory import Inventory
from agent.workers.tape import parse_tape
from fixtures.hosts.invent_a100 import build
from plugins.vendors.nvidia.discovery.sysfs import find_hardware
from plugins.vendors.nvidia.kubelet import kubelet_offer
from plugins.vendors.nvidia.mig.capabilities import MigCapabilities
from tests.fault.nvml_tape import A100, HOSTS

HOST = HOSTS / A100.host


@pytest.fixture(scope="module")
def inventory() -> Inventory:
    (answer,) = parse_tape((HOST / "tapes" / "nvidia.jsonl").read_bytes(), "nvidia").inventories
    return answer


def test_the_recording_is_what_its_maker_makes() -> None:
    assert (HOST / "host.txt").read_text() == build()


def test_sysfs_shows_four_cards_and_no_switch() -> None:
    hardware = find_hardware(open_host(str(HOST)).files)
    assert [card.minor for card in hardware.cards] == [0, 1, 2, 3]
    assert (hardware.switches, hardware.platform) == (0, "")


@pytest.mark.parametrize(("gi", "ci", "numbers"), [(1, 0, (282, 283)), (9, 0, (354, 355))])
def test_every_instance_has_its_nodes(gi: int, ci: int, numbers: tuple[int, int]) -> None:
    access = MigCapabilities(open_host(str(HOST)).files).access(2, gi, ci)
    assert (access.reason, tuple(node.minor for node in access.nodes)) == ("", numbers)


def test_cut_cards_list_their_instances_and_what_is_free(inventory: Inventory) -> None:
    whole, cut, full = inventory.devices[0], inventory.devices[2], inventory.devices[3]
    assert (bool(whole.resources), whole.partitions) == (True, ())
    assert (cut.resources, _places(cut)) == (
        (),
        [("3g.20gb", 0, 4, 42), ("1g.5gb", 4, 1, 14), ("1g.5gb", 5, 1, 14)],
    )
    assert dict(cut.free_slices) == {"1g.5gb": (6,), "1g.5gb+me": (6,), "1g.10gb": (6,)}
    assert (len(full.partitions), full.free_slices) == (7, ())
    assert {p.health.reason for d in inventory.devices for p in d.partitions} == {"DeviceHealthy"}


def _places(card: VendorDevice) -> list[tuple[str, int | None, int | None, int | None]]:
    return [(p.profile, p.start, p.size, p.cores) for p in card.partitions]


def test_only_whole_cards_are_in_the_partition_table(inventory: Inventory) -> None:
    assert [len(g.keys) for g in inventory.groups] == [1, 1, 2]
    assert {(k.type, k.count) for k in inventory.links} == {("NVLink", 4)}
    assert len(inventory.links) == 6


def test_the_annotation_and_the_kubelet_see_the_same_instances(inventory: Inventory) -> None:
    annotation = json.loads(dict(inventory.facts)["xpu-agent.io/mig"])
    uuids = {item["uuid"] for card in annotation.values() for item in card["instances"]}
    offered = dict(kubelet_offer(inventory.devices, "mixed").resources)
    assert {name: len(ids) for name, ids in offered.items()} == {
        "nvidia.com/gpu": 2,
        "nvidia.com/mig-1g.5gb": 9,
        "nvidia.com/mig-3g.20gb": 1,
    }
    assert uuids == {uuid for name, ids in offered.items() if "mig" in name for uuid in ids}
    assert kubelet_offer(inventory.devices, "single").resources == ()
