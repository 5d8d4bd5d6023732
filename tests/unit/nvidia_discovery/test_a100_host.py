"""The invented host with four A100, of which two are cut by MIG."""

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
def found() -> Inventory:
    (answer,) = parse_tape((HOST / "tapes" / "nvidia.jsonl").read_bytes(), "nvidia").inventories
    return answer


def test_the_recording_is_what_its_maker_makes() -> None:
    assert (HOST / "host.txt").read_text() == build()


def test_sysfs_shows_four_cards_and_no_switch() -> None:
    seen = find_hardware(open_host(str(HOST)).files)
    assert [card.minor for card in seen.cards] == [0, 1, 2, 3]
    assert (seen.switches, seen.platform) == (0, "")


@pytest.mark.parametrize(("gi", "ci", "numbers"), [(1, 0, (282, 283)), (9, 0, (354, 355))])
def test_every_instance_has_its_nodes(gi: int, ci: int, numbers: tuple[int, int]) -> None:
    access = MigCapabilities(open_host(str(HOST)).files).access(2, gi, ci)
    assert (access.reason, tuple(node.minor for node in access.nodes)) == ("", numbers)


def test_cut_cards_list_their_instances_and_what_is_free(found: Inventory) -> None:
    whole, cut, full = found.devices[0], found.devices[2], found.devices[3]
    assert (bool(whole.resources), whole.partitions) == (True, ())
    assert (cut.resources, _places(cut)) == (
        (),
        [("3g.20gb", 0, 4, 42), ("1g.5gb", 4, 1, 14), ("1g.5gb", 5, 1, 14)],
    )
    assert dict(cut.free_slices) == {"1g.5gb": (6,), "1g.5gb+me": (6,), "1g.10gb": (6,)}
    assert (len(full.partitions), full.free_slices) == (7, ())
    assert {p.health.reason for d in found.devices for p in d.partitions} == {"DeviceHealthy"}


def _places(card: VendorDevice) -> list[tuple[str, int | None, int | None, int | None]]:
    return [(p.profile, p.start, p.size, p.cores) for p in card.partitions]


def test_only_whole_cards_are_in_the_partition_table(found: Inventory) -> None:
    assert [len(g.keys) for g in found.groups] == [1, 1, 2]
    assert {(k.type, k.count) for k in found.links} == {("NVLink", 4)}
    assert len(found.links) == 6


def test_the_annotation_and_the_kubelet_see_the_same_instances(found: Inventory) -> None:
    told = json.loads(dict(found.facts)["xpu-agent.io/mig"])
    listed = {item["uuid"] for card in told.values() for item in card["instances"]}
    offered = dict(kubelet_offer(found.devices, "mixed").resources)
    assert {name: len(ids) for name, ids in offered.items()} == {
        "nvidia.com/gpu": 2,
        "nvidia.com/mig-1g.5gb": 9,
        "nvidia.com/mig-3g.20gb": 1,
    }
    assert listed == {uuid for name, ids in offered.items() if "mig" in name for uuid in ids}
    assert kubelet_offer(found.devices, "single").resources == ()
