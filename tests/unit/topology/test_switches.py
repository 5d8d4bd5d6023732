from __future__ import annotations

import pytest

from agent.snapshot.pci import PciFunction, PciTree
from agent.topology.pci_config import DOWNSTREAM_PORT, PCIE_TO_PCI, ROOT_PORT, UPSTREAM_PORT
from agent.topology.switches import port_types, switch_chips, switch_display_name, switches_above
from tests.machines import tree_of

BRIDGES = tuple(f"0000:0{n}:00.0" for n in range(1, 6))
DEVICE = PciFunction(address="0000:10:00.0", root="pci0000:00", bridges=BRIDGES)


def bridge(number: int, **facts: object) -> PciFunction:
    """The bridge of that position."""
    return PciFunction(address=BRIDGES[number], **facts)  # type: ignore[arg-type]  # test's own


def test_by_position_every_second_bridge_is_a_switch() -> None:
    assert port_types(PciTree(), DEVICE) == (
        ROOT_PORT,
        UPSTREAM_PORT,
        DOWNSTREAM_PORT,
        UPSTREAM_PORT,
        DOWNSTREAM_PORT,
    )
    assert switches_above(PciTree(), DEVICE) == (BRIDGES[1], BRIDGES[3])


def test_configuration_space_wins_for_its_bridge_only() -> None:
    tree = tree_of(bridge(1, port_type=PCIE_TO_PCI))
    assert switches_above(tree, DEVICE) == (BRIDGES[3],)


def test_a_device_below_a_root_port_has_no_switch() -> None:
    function = PciFunction(address="0000:10:00.0", bridges=BRIDGES[:1])
    assert switches_above(PciTree(), function) == ()


def switch(number: int, device: int, subsystem: int, maker: int = 0x1000) -> PciFunction:
    return bridge(
        number,
        vendor_id=maker,
        device_id=device,
        subsystem_vendor_id=maker,
        subsystem_device_id=subsystem,
    )


@pytest.mark.parametrize(
    ("outer", "inner", "count"),
    [
        pytest.param(switch(1, 0xC030, 0x0004), switch(3, 0xC030, 0x1004), 1, id="Gen5 one chip"),
        pytest.param(switch(1, 0xC030, 0x1004), switch(3, 0xC030, 0x1004), 2, id="Gen5 two"),
        pytest.param(switch(1, 0xC010, 0xA024), switch(3, 0xC010, 0xA096), 1, id="Gen4 one chip"),
        pytest.param(switch(1, 0xC010, 0xB024), switch(3, 0xC010, 0xA096), 2, id="Gen4 other"),
        pytest.param(switch(1, 0xC010, 0xA024), switch(3, 0xC030, 0x1004), 2, id="two families"),
        pytest.param(
            switch(1, 0xC030, 0x0004, 0x10B5), switch(3, 0xC030, 0x1004, 0x10B5), 2, id="PLX"
        ),
    ],
)
def test_two_levels_of_one_broadcom_chip_are_one(
    outer: PciFunction, inner: PciFunction, count: int
) -> None:
    above = (outer.address, inner.address)
    assert switch_chips(tree_of(outer, inner), above) == above[:count]


def test_switches_that_nobody_saw_are_chips_of_their_own() -> None:
    assert switch_chips(PciTree(), BRIDGES[:2]) == BRIDGES[:2]


@pytest.mark.parametrize(
    ("vendor", "device", "name"),
    [
        (0x1000, 0xC030, "Broadcom PEX89000 (Gen5)"),
        (0x1000, 0x0001, "Broadcom"),
        (0x10B5, 0x9797, "PLX"),
        (0x15B3, 0x1979, "NVIDIA ConnectX or BlueField internal"),
        (0x8086, 0x37C0, "8086:37c0"),
        (None, None, "unknown"),
    ],
)
def test_a_switch_is_named_for_people(vendor: int | None, device: int | None, name: str) -> None:
    assert switch_display_name(bridge(1, vendor_id=vendor, device_id=device)) == name
