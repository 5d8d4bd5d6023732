"""Wrong answers of the library for one card do not change other cards."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.snapshot.device import VendorDevice
from agent.snapshot.inventory import Inventory
from tests.fault.nvml_stub import Stub, gpu, on_tree
from tests.stubs.child import Child
from tests.unit.nvidia.conftest import BUSES
from tests.unit.nvidia_discovery.test_mig_cards import ONE, PROFILES, THREE

SYSTEM = "system driver=570.124.06 cuda=12080"
CUT = {"name": '"NVIDIA A100-SXM4-40GB"', "mem": 42949672960, "arch": 7, "migmode": 1}
BAD = 1  # the card whose calls fail; it has no MIG instances
LINES = (
    gpu(0, BUSES[0], **CUT),
    *(gpu(i, BUSES[i], addressing=2, numanode=3, chassis='"1"') for i in (1, 2, 3)),
    *PROFILES,
    THREE,
    ONE,
    *(f"link {i} {n} state=1 type=2" for i in (1, 2, 3) for n in range(4)),
    *(f"fabric {i} state=3 status=0" for i in (1, 2, 3)),
    *(f"field {i} {f} u32 0" for i in range(4) for f in (91, 230)),
)
CODES = (2, 3, 4, 6, 7, 8, 15, 16, 19, 25, 27, 999, 12345)
LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
CardFacts = tuple[object, ...]


@pytest.fixture
def four(tree: Path) -> Path:
    """Leave half of the cards on the bus."""
    for bus in BUSES[4:]:
        (tree / "sys/bus/pci/devices" / bus).rename(tree / bus)
    return tree


def card_facts(card: VendorDevice) -> CardFacts:
    entries = (
        card.uuid,
        card.minor,
        card.model,
        card.memory_bytes,
        card.resources,
        card.health.reason,
    )
    return (*entries, card.partitions, card.free_slices)


def others(inventory: Inventory) -> list[CardFacts]:
    return [card_facts(card) for card in inventory.devices if card.bus_id != BUSES[BAD]]


def device_calls(stub: Stub, child: Child) -> list[str]:
    """Return every call that a discovery makes for a card."""
    stub.take_calls()
    child.discover()
    calls = (call.split() for call in stub.take_calls())
    return sorted({call[0] for call in calls if call[0].startswith(("nvmlDevice", "nvmlGpu"))})


@pytest.mark.parametrize("code", CODES)
def test_a_call_that_fails_for_one_card_hides_no_other(stub: Stub, four: Path, code: int) -> None:
    stub.play(SYSTEM, *LINES)
    with on_tree(stub, four) as child:
        before = child.discover()
        symbols = device_calls(stub, child)
        assert len(symbols) > 30
        for symbol in symbols:
            stub.play(SYSTEM, *LINES, f"error {symbol} {BAD} {code}")
            inventory = child.discover()
            assert others(inventory) == others(before), symbol
            faulty = next(d for d in inventory.devices if d.bus_id == BUSES[BAD])
            # its last description stays, because pods may use it
            assert (faulty.uuid, faulty.minor, faulty.resources) == (
                before.devices[BAD].uuid,
                BAD,
                before.devices[BAD].resources,
            ), symbol
            child.sample()
        stub.play(SYSTEM, *LINES)
        assert others(child.discover()) == others(before)


@pytest.mark.parametrize(
    "lie",
    [
        {"name": r'"\xff\xfe\xfd"'},
        {"name": '"' + "x" * 90 + '"'},
        {"serial": r'"\x01\x02"'},
        {"uuid": '""'},
        {"bus": "garbage"},
        {"arch": 4000000000, "cc": "-1.-1"},
        {"virt": 77, "mode": 77, "ecc": 77, "persistence": 77},
        {"migmode": 77},
        {"temp": -5, "power": -5, "energy": -5},
        {"remap": "4294967295,4294967295,0,0"},
    ],
    ids=",".join,
)
def test_a_lie_about_one_card_hides_no_other(
    stub: Stub, four: Path, lie: dict[str, object]
) -> None:
    stub.play(SYSTEM, *LINES)
    with on_tree(stub, four) as child:
        before = child.discover()
        words = " ".join(f"{key}={value}" for key, value in lie.items())
        stub.play(SYSTEM, *LINES, f"gpu {BAD} {words}")
        inventory = child.discover()
        child.sample()
    assert others(inventory) == others(before)
    assert len(inventory.devices) == len(before.devices)
    assert all(LABEL.fullmatch(value) for d in inventory.devices for _, value in d.labels)
