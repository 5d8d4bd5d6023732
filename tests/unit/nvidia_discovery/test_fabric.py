"""The fabric behind the switches: starting, broken, and which cards fail with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.clock import ManualClock
from agent.snapshot.device import HealthState
from plugins.vendors.nvidia.discovery.nvlink import (
    FABRIC_START_S,
    CardLinks,
    FabricStateTracker,
    LinkEnd,
    NvlinkFabric,
    fabric_health,
    is_manager_down,
    must_fabric_be_ready,
)
from tests.fault.nvml_stub import Stub, add_function, gpu, on_tree
from tests.unit.nvidia.conftest import BUSES

SYSTEM = "system driver=570.124.06 cuda=12080"
GPUS = tuple(gpu(i, bus) for i, bus in enumerate(BUSES))
IDLE = CardLinks(ends=(LinkEnd(number=0, is_active=False), LinkEnd(number=1, is_active=False)))


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0, ()),
        (0b10_10_10_10, ()),
        (0b01, ("degraded-bandwidth",)),
        (0b01_00_01_00, ("route-recovery", "access-timeout-recovery")),
        (0b01_00_00, ("route-unhealthy",)),
        (1 << 8, ()),
        (5 << 8, ("incorrect-configuration=too-few-nvlinks",)),
        (15 << 8, ()),
        (1 << 12 | 1 << 14, ()),
        (2 << 12 | 2 << 14, ("no-partition-assigned", "manager-disconnected")),
    ],
)
def test_the_health_mask_is_read_bit_by_bit(mask: int, words: tuple[str, ...]) -> None:
    assert NvlinkFabric(state=3, mask=mask).health_flags() == words


def test_a_fabric_that_is_starting_has_five_minutes() -> None:
    clock = ManualClock()
    watch = FabricStateTracker(clock)
    starting = NvlinkFabric(state=2)
    assert watch.condition("a", starting, manager_is_down=False) is None
    clock.advance(FABRIC_START_S)
    assert watch.condition("a", starting, manager_is_down=False) is None
    clock.advance(1)
    late = watch.condition("a", starting, manager_is_down=False)
    assert late is not None
    assert (late.type, late.status, late.reason) == ("FabricReady", False, "FabricNotReady")
    ready = watch.condition("a", NvlinkFabric(state=3), manager_is_down=False)
    assert ready is not None
    assert ready.status
    assert watch.condition("a", starting, manager_is_down=False) is None


def test_a_failed_fabric_is_reported_at_once_with_its_flags() -> None:
    failed = FabricStateTracker(ManualClock()).condition(
        "a", NvlinkFabric(state=3, status=999, mask=4 << 8), manager_is_down=False
    )
    assert failed is not None
    assert (failed.status, failed.reason) == (False, "FabricError")
    assert failed.message.endswith("status 999, incorrect-configuration=no-partition")


@pytest.mark.parametrize("state", [1, 2])
def test_a_status_that_means_nothing_yet_is_no_news(state: int) -> None:
    stages = {NvlinkFabric(state=state, status=status).stage for status in (0, 27, 999)}
    assert len(stages) == 1


def test_a_card_without_a_fabric_has_no_condition() -> None:
    watch = FabricStateTracker(ManualClock())
    assert watch.condition("a", None, manager_is_down=False) is None
    assert watch.condition("a", NvlinkFabric(state=0), manager_is_down=False) is None


@pytest.mark.parametrize(
    ("sides", "switches", "down"),
    [
        pytest.param({"a": IDLE, "b": IDLE}, 6, True, id="switches-and-nobody-reaches-them"),
        pytest.param({"a": IDLE, "b": IDLE}, 0, False, id="no-switches"),
        pytest.param({"a": CardLinks()}, 6, False, id="cards-without-nvlink"),
        pytest.param({}, 6, False, id="no-cards"),
        pytest.param(
            {"a": IDLE, "b": CardLinks(ends=(LinkEnd(number=0, is_active=True),))},
            6,
            False,
            id="one-link-is-active",
        ),
        pytest.param(
            {"a": CardLinks(ends=IDLE.ends, fabric=NvlinkFabric(state=2))},
            4,
            False,
            id="the-driver-knows-of-a-fabric",
        ),
    ],
)
def test_a_fabric_manager_that_is_down_shows_in_the_links(
    sides: dict[str, CardLinks], switches: int, *, down: bool
) -> None:
    assert is_manager_down(sides, switches) is down


@pytest.mark.parametrize(
    ("setting", "switches", "models", "must"),
    [
        ("auto", 6, (), True),
        ("auto", 0, ("H100-PCIe",), False),
        ("auto", 0, ("GB200",), True),
        ("auto", 4, (), True),
        ("off", 6, ("GB200",), False),
        ("on", 0, (), True),
    ],
)
def test_a_node_needs_its_fabric_if_it_is_made_around_one(
    setting: str, switches: int, models: tuple[str, ...], *, must: bool
) -> None:
    assert must_fabric_be_ready(setting, switches, models) is must


def test_a_fabric_that_is_not_needed_leaves_the_cards_in_service() -> None:
    failed = FabricStateTracker(ManualClock()).condition(
        "a", NvlinkFabric(state=3, status=1), manager_is_down=False
    )
    assert fabric_health(failed, is_required=False) is None
    health = fabric_health(failed, is_required=True)
    assert health is not None
    assert (health.state, health.reason) == (HealthState.FAILED, "FabricError")


def switches(tree: Path, count: int) -> None:
    for number in range(count):
        add_function(tree, f"0000:c{number}:00.0", "nvidia-nvswitch", code="0x068000")


def test_cards_behind_switches_that_nobody_runs_are_out_of_service(stub: Stub, tree: Path) -> None:
    switches(tree, 6)
    dead = [f"link {i} {n} state=0" for i in range(8) for n in range(12)]
    stub.play(SYSTEM, *GPUS, *dead)
    with on_tree(stub, tree) as child:
        before = child.discover()
        stub.play(SYSTEM, *GPUS, *(line.replace("state=0", "state=1 type=2") for line in dead))
        after = child.discover()
    assert dict(before.facts)["nvswitches"] == "6"
    assert {d.health.reason for d in before.devices} == {"FabricManagerDown"}
    assert {c.reason for d in before.devices for c in d.conditions} == {"FabricManagerDown"}
    assert [p.reason for p in before.problems] == ["FabricManagerDown"]
    assert {d.health.reason for d in after.devices} == {"DeviceHealthy"}
    assert {len(g.keys) for g in after.groups} == {1, 2, 4, 8}


@pytest.mark.parametrize(("setting", "reason"), [("auto", "FabricError"), ("off", "DeviceHealthy")])
def test_a_fabric_that_failed_takes_its_cards_along_where_it_must_be_ready(
    stub: Stub, tree: Path, setting: str, reason: str
) -> None:
    switches(tree, 4)
    lines = [f"fabric {i} state=3 status=999 mask=0x500" for i in range(8)]
    stub.play(SYSTEM, *GPUS, *lines)
    with on_tree(stub, tree, fabric_must_be_ready=setting) as child:
        inventory = child.discover()
        for _ in range(11):
            child.sample()
    assert {d.health.reason for d in inventory.devices} == {reason}
    assert {c.reason for d in inventory.devices for c in d.conditions} == {"FabricError"}
    assert (
        dict(inventory.devices[0].facts)["fabric-flags"]
        == "incorrect-configuration=too-few-nvlinks"
    )
    # a good check of the card does not end its lasting health
    assert [e for e in child.events if e.reason == "DeviceHealthy"] == []


def test_cards_of_a_broken_fabric_give_no_verdict_but_request_a_discovery(
    stub: Stub, tree: Path
) -> None:
    switches(tree, 4)
    stub.play(SYSTEM, *GPUS, *(f"fabric {i} state=3 status=999" for i in range(8)))
    with on_tree(stub, tree) as child:
        child.discover()
        samples = [sample for _ in range(11) for sample in child.sample()]
        stub.play(SYSTEM, *GPUS, *(f"fabric {i} state=3 status=0" for i in range(8)))
        after = child.discover()
        later = [sample for _ in range(11) for sample in child.sample()]
    assert {sample.health for sample in samples} == {None}
    assert {d.health.reason for d in after.devices} == {"DeviceHealthy"}
    assert {s.health.reason for s in later if s.health is not None} == {"DeviceHealthy"}


def test_a_clique_is_a_fact_of_each_card_and_of_the_node_v28(stub: Stub, tree: Path) -> None:
    lines = [f"fabric {i} state=3 uuid=00112233445566778899aabbccddeeff clique=7" for i in range(8)]
    stub.play(SYSTEM, *GPUS, *lines)
    with on_tree(stub, tree) as child:
        inventory = child.discover()
    assert dict(inventory.facts)["clique"] == "00112233-4455-6677-8899-aabbccddeeff.7"
    assert {dict(d.facts)["clique"] for d in inventory.devices} == {dict(inventory.facts)["clique"]}


def test_cards_of_two_cliques_leave_the_node_without_one_v29(stub: Stub, tree: Path) -> None:
    lines = [
        f"fabric {i} state=3 uuid=00112233445566778899aabbccddeeff clique={i % 2}" for i in range(8)
    ]
    stub.play(SYSTEM, *GPUS, *lines)
    with on_tree(stub, tree) as child:
        inventory = child.discover()
    assert "clique" not in dict(inventory.facts)
    assert [p.reason for p in inventory.problems] == ["CliqueMismatch"]
