"""Inventories of cards with MIG instances."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.snapshot.device import HealthState, VendorDevice
from agent.snapshot.inventory import Inventory
from tests.fault.nvml_stub import Stub, gpu, on_tree
from tests.unit.nvidia.conftest import BUSES

SYSTEM = "system driver=570.124.06 cuda=12080"
A100 = {
    "name": '"NVIDIA A100-SXM4-40GB"',
    "mem": 42949672960,
    "arch": 7,
    "cc": "8.0",
    "migmode": 1,
}
PROFILES = (
    'profile 0 0 id=19 slices=1 max=7 mb=4864 name="MIG 1g.5gb" starts=0,1,2,3,4,5,6 size=1',
    'profile 0 7 id=20 slices=1 max=1 mb=4864 name="MIG 1g.5gb+me" starts=0,1,2,3,4,5,6 size=1',
    'profile 0 9 id=15 slices=1 max=4 mb=9856 name="MIG 1g.10gb" starts=0,2,4,6 size=2',
    'profile 0 1 id=14 slices=2 max=3 mb=9856 name="MIG 2g.10gb" starts=0,2,4 size=2',
    'profile 0 2 id=9 slices=3 max=2 mb=19968 name="MIG 3g.20gb" starts=0,4 size=4',
    'profile 0 3 id=5 slices=4 max=1 mb=19968 name="MIG 4g.20gb" starts=0 size=4',
    'profile 0 4 id=0 slices=7 max=1 mb=40192 name="MIG 7g.40gb" starts=0 size=8',
)
THREE = "mig 0 0 uuid=MIG-3g gi=1 ci=0 k=2 cik=2 start=0 size=4 mb=19968 sm=42"
PART = "mig 0 1 uuid=MIG-1c gi=2 ci=0 k=2 cik=0 start=4 size=4 mb=19968 sm=14"
ONE = "mig 0 2 uuid=MIG-1g gi=7 ci=0 k=0 cik=0 start=6 size=1 mb=4864 sm=14"


def discover_cards(stub: Stub, tree: Path, *lines: str, level: int | None = None) -> Inventory:
    if level is not None:
        stub.level = level
    stub.play(SYSTEM, gpu(0, BUSES[0], **A100), *lines)
    with on_tree(stub, tree) as child:
        return child.discover()


def first(inventory: Inventory) -> VendorDevice:
    return inventory.devices[0]


def capabilities(tree: Path, *numbers: tuple[str, int]) -> None:
    folder = tree / "proc/driver/nvidia-caps"
    folder.mkdir(parents=True)
    lines = (f"{name}/access {number}\n" for name, number in numbers)
    (folder / "mig-minors").write_text("".join(lines))
    (tree / "proc/devices").write_text("Character devices:\n510 nvidia-caps\n\nBlock devices:\n")


def test_instances_are_listed_with_their_place_and_what_is_free(stub: Stub, tree: Path) -> None:
    capabilities(tree, ("gpu0/gi1", 12), ("gpu0/gi1/ci0", 13))
    inventory = discover_cards(stub, tree, *PROFILES, ONE, THREE)
    card = first(inventory)
    three, one = card.partitions
    assert (three.profile, three.instance, three.compute_instance) == ("3g.20gb", 1, 0)
    assert (three.start, three.size, three.cores) == (0, 4, 42)
    assert [(n.path, n.major, n.minor) for n in three.nodes] == [
        ("/dev/nvidia-caps/nvidia-cap12", 510, 12),
        ("/dev/nvidia-caps/nvidia-cap13", 510, 13),
    ]
    assert (three.health.state, three.health.reason) == (HealthState.SUSPECT, "MIGNodeMissing")
    assert (one.uuid, one.profile, one.start) == ("MIG-1g", "1g.5gb", 6)
    assert dict(card.free_slices) == {
        "1g.5gb": (4, 5),
        "1g.5gb+me": (4, 5),
        "1g.10gb": (4,),
        "2g.10gb": (4,),
    }
    annotation = json.loads(dict(inventory.facts)["xpu-agent.io/mig"])
    assert [item["uuid"] for item in annotation["0"]["instances"]] == ["MIG-3g", "MIG-1g"]
    assert annotation["0"]["free"]["1g.10gb"] == [4]


def test_a_compute_instance_is_named_as_a_part_of_its_gpu_instance_v03(
    stub: Stub, tree: Path
) -> None:
    assert [p.profile for p in first(discover_cards(stub, tree, *PROFILES, PART)).partitions] == [
        "1c.3g.20gb"
    ]


def test_two_compute_instances_share_one_place(stub: Stub, tree: Path) -> None:
    second = "mig 0 3 uuid=MIG-1d gi=2 ci=1 k=2 cik=0 start=4 size=4 mb=19968 sm=14"
    card = first(discover_cards(stub, tree, *PROFILES, PART, second))
    assert [p.compute_instance for p in card.partitions] == [0, 1]
    assert dict(card.free_slices)["3g.20gb"] == (0,)


@pytest.mark.parametrize("level", [450, 510])
def test_old_drivers_report_places_without_names(stub: Stub, tree: Path, level: int) -> None:
    card = first(discover_cards(stub, tree, *PROFILES, THREE, level=level))
    assert [p.profile for p in card.partitions] == ["3g.20gb"]
    assert dict(card.free_slices)["2g.10gb"] == (4,)


def test_without_the_rights_names_are_reckoned_and_nothing_is_called_free(
    stub: Stub, tree: Path
) -> None:
    refused = [
        f"error nvml{name} 4"
        for name in (
            "DeviceGetGpuInstanceById",
            "DeviceGetGpuInstances",
            "DeviceGetGpuInstancePossiblePlacements_v2",
            "DeviceGetGpuInstancePossiblePlacements",
        )
    ]
    card = first(discover_cards(stub, tree, *PROFILES, THREE, ONE, *refused))
    assert [(p.profile, p.start) for p in card.partitions] == [("3g.20gb", None), ("1g.5gb", None)]
    assert card.free_slices == ()


def test_an_old_uuid_has_facts_that_no_call_returns_v08(stub: Stub, tree: Path) -> None:
    old = "mig 0 0 uuid=MIG-GPU-aa-bb/7/0 k=0 cik=0 mb=4864 sm=14"
    silent = ["error nvmlDeviceGetGpuInstanceId 13", "error nvmlDeviceGetComputeInstanceId 13"]
    (part,) = first(discover_cards(stub, tree, *PROFILES, old, *silent)).partitions
    assert (part.instance, part.compute_instance) == (7, 0)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        pytest.param(["mig 0 3 gi=9 ci=0 k=0 cik=0 mb=4864"], "has no UUID", id="no-uuid"),
        pytest.param(
            ["mig 0 3 uuid=MIG-3g gi=9 ci=0 k=0 cik=0 mb=4864"], "repeats MIG-3g", id="twice"
        ),
        pytest.param([r'mig 0 3 uuid="\xff\xfe" gi=9 k=0 cik=0'], "has no UUID", id="garbage"),
    ],
)
def test_an_instance_that_cannot_be_named_hides_no_other(
    stub: Stub, tree: Path, lines: list[str], words: str
) -> None:
    inventory = discover_cards(stub, tree, *PROFILES, THREE, *lines)
    assert [p.uuid for p in first(inventory).partitions] == ["MIG-3g"]
    assert [p.reason for p in inventory.problems] == ["InstanceUnread"]
    assert words in inventory.problems[0].message


def test_an_instance_of_unknown_size_is_suspect(stub: Stub, tree: Path) -> None:
    refused = ["error nvmlDeviceGetAttributes_v2 999", "error nvmlDeviceGetGpuInstanceById 999"]
    (part,) = first(discover_cards(stub, tree, *PROFILES, THREE, *refused)).partitions
    assert (part.profile, part.memory_bytes, part.cores) == ("unknown", None, None)
    assert (part.health.state, part.health.reason) == (HealthState.SUSPECT, "InstanceUnread")


def test_instances_of_a_lost_card_are_lost_with_it(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, gpu(0, BUSES[0], **A100), *PROFILES, THREE)
    with on_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, gpu(0, BUSES[0], **A100), *PROFILES, THREE, "lost 0")
        silent = child.discover().devices[0]
        (tree / "sys/bus/pci/devices" / BUSES[0]).rename(tree / "away")
        stub.play(SYSTEM)
        lost_card = child.discover().devices[0]
    for card in (silent, lost_card):
        assert [(p.uuid, p.health.reason) for p in card.partitions] == [("MIG-3g", "GpuLost")]


def test_a_gpu_instance_without_compute_instances_takes_its_place(stub: Stub, tree: Path) -> None:
    empty = "mig 0 0 gi=1 ci=na k=2 start=4 size=4"
    card = first(discover_cards(stub, tree, *PROFILES, empty, ONE.replace("start=6", "start=0")))
    assert [p.uuid for p in card.partitions] == ["MIG-1g"]
    assert dict(card.free_slices) == {
        "1g.5gb": (1, 2, 3),
        "1g.5gb+me": (1, 2, 3),
        "1g.10gb": (2,),
        "2g.10gb": (2,),
    }


def test_a_card_that_is_to_be_cut_at_its_next_reset_says_so(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, gpu(0, BUSES[0], **{**A100, "migmode": 0, "migpending": 1}))
    with on_tree(stub, tree) as child:
        card = child.discover().devices[0]
    (condition,) = card.conditions
    assert (condition.type, condition.status, condition.reason) == (
        "MIGModePending",
        True,
        "MIGModePending",
    )
    assert card.resources


def test_a_card_that_is_cut_and_has_no_instance_is_all_free(stub: Stub, tree: Path) -> None:
    card = first(discover_cards(stub, tree, *PROFILES))
    assert (card.partitions, card.resources) == ((), ())
    assert dict(card.free_slices)["7g.40gb"] == (0,)


@pytest.mark.parametrize("call", ["nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount"])
@pytest.mark.parametrize("code", [10, 999])
def test_a_card_whose_division_cannot_be_read_for_a_moment_stays_divided(
    stub: Stub, tree: Path, call: str, code: int
) -> None:
    script = (SYSTEM, gpu(0, BUSES[0], **A100), THREE, ONE)
    stub.play(*script)
    with on_tree(stub, tree) as child:
        before = first(child.discover())
        stub.play(*script, f"error {call} {code}")
        unreadable = first(child.discover())
        stub.play(SYSTEM, gpu(0, BUSES[0], **{**A100, "migmode": 0}))
        undivided = first(child.discover())
    for card in (before, unreadable):
        assert card.resources == ()
        assert dict(card.labels)["xpu-agent.io/mig"] == "true"
        assert [part.uuid for part in card.partitions] == ["MIG-3g", "MIG-1g"]
        assert dict(card.facts)["unschedulable"] == "MIGEnabled"
    assert undivided.resources
    assert undivided.partitions == ()


@pytest.mark.parametrize(("mode", "is_whole"), [(0, True), (1, False)])
def test_a_new_worker_that_cannot_read_the_division_goes_by_the_last_workers(
    stub: Stub, tree: Path, mode: int, is_whole: bool
) -> None:
    boot_id = tree / "proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("0f5bd2a5-a9a0-4a5a-9a0e-6a1a0a3bb1c4\n")
    script = (SYSTEM, gpu(0, BUSES[0], **{**A100, "migmode": mode}), THREE, ONE)
    state = str(tree.parent / "state")
    stub.play(*script)
    with on_tree(stub, tree, state_dir=state) as child:
        before = first(child.discover())
    stub.play(*script, "error nvmlDeviceGetMigMode 10")
    with on_tree(stub, tree, state_dir=state) as child:
        unreadable = first(child.discover())
    for card in (before, unreadable):
        assert bool(card.resources) == is_whole
        assert [part.uuid for part in card.partitions] == ([] if is_whole else ["MIG-3g", "MIG-1g"])


def test_a_card_without_mig_that_replaces_a_divided_one_is_whole(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, gpu(0, BUSES[0], **A100), THREE)
    with on_tree(stub, tree) as child:
        divided = first(child.discover())
        plain = gpu(0, BUSES[0], **{**A100, "migmode": 0})
        stub.play(SYSTEM, plain, "error nvmlDeviceGetMigMode 3")
        replaced = first(child.discover())
    assert divided.resources == ()
    assert replaced.resources


def test_a_card_of_virtual_machines_is_theirs_while_its_mode_cannot_be_read(
    stub: Stub, tree: Path
) -> None:
    script = (SYSTEM, gpu(0, BUSES[0], **{**A100, "migmode": 0, "virt": 3}))
    stub.play(*script)
    with on_tree(stub, tree) as child:
        before = first(child.discover())
        stub.play(*script, "error nvmlDeviceGetVirtualizationMode 999")
        unreadable = first(child.discover())
    for card in (before, unreadable):
        assert card.resources == ()
        assert dict(card.facts)["unschedulable"] == "HostVGPU"
