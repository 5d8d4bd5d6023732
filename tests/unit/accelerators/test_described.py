"""Cards that settings describe are managed; what is not said is not published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from agent.errors import BadConfig, NotSupported
from agent.recording.tree import DeviceNodeEntry as NodeEntry
from agent.snapshot.device import DeviceNode, HealthState
from agent.snapshot.inventory import Inventory
from plugins.vendors.accelerators.settings import AcceleratorsSettings
from plugins.vendors.accelerators.vendor import AcceleratorsVendor
from tests.machines import Sysfs
from tests.vendors import open_session, section

METAX = {"class": "0x038000", "vendor": "0x9999", "device": "0x4001"}
KUNLUN = {"class": "0x120000", "vendor": "0x1d22", "device": "0x3684"}


def discovered(sysfs: Sysfs, *cards: Mapping[str, object], replay: bool = False) -> Inventory:
    settings = {"cards": list(cards), "replay": replay}
    session = open_session(AcceleratorsVendor(), sysfs.builder.build(), settings)
    result = session.discover()
    assert session.discover() == result
    return result


def two_cards(**facts: str) -> Sysfs:
    sysfs = Sysfs()
    for bus in ("17", "16"):
        sysfs.function(f"pci0000:16/0000:{bus}:00.0", **{**METAX, **facts})
    return sysfs


def test_cards_are_numbered_in_the_order_of_the_bus_and_get_their_resources() -> None:
    result = discovered(two_cards(), {"match": "9999:4001", "memory_mib": 65536, "model": "C500-X"})
    assert [(d.bus_id, d.minor, d.managed) for d in result.devices] == [
        ("0000:16:00.0", 0, True),
        ("0000:17:00.0", 1, True),
    ]
    first = result.devices[0]
    assert (first.model, first.memory_bytes, first.health.state) == (
        "C500-X",
        64 << 30,
        HealthState.HEALTHY,
    )
    assert dict(first.resources) == {
        "koordinator.sh/gpu-core": "100",
        "koordinator.sh/gpu-memory": "64Gi",
        "koordinator.sh/gpu-memory-ratio": "100",
    }


def test_cards_of_one_maker_are_numbered_together_whichever_rule_describes_them() -> None:
    sysfs = two_cards()
    sysfs.function("pci0000:16/0000:18:00.0", **{**METAX, "device": "0x4000"})
    rules = [{"match": f"9999:{device}", "memory_mib": 65536} for device in ("4000", "4001")]
    result = discovered(sysfs, *rules)
    assert [d.minor for d in result.devices] == [0, 1, 2]


def test_unknown_memory_is_not_published_as_zero() -> None:
    result = discovered(two_cards(), {"match": "9999:*", "model": "C500"})
    assert [(d.managed, d.resources, d.memory_bytes) for d in result.devices] == [
        (False, (), None)
    ] * 2
    assert {problem.reason for problem in result.problems} == {"MemoryUnknown"}


def test_a_card_of_a_virtual_machine_stays_its() -> None:
    sysfs = two_cards(driver=">../vfio-pci")
    result = discovered(sysfs, {"match": "9999:*", "memory_mib": 1})
    assert [d.managed for d in result.devices] == [False, False]


def kunlun(*numbers: int) -> Sysfs:
    sysfs = Sysfs()
    for at, number in enumerate(numbers):
        address = sysfs.function(f"pci0000:16/0000:{20 + at}:00.0", **KUNLUN)
        sysfs.builder.put(f"/sys/devices/pci0000:16/{address}/xpu/xpu{number}/dev", b"240:1\n")
        sysfs.builder.put(f"/dev/xpu{number}", NodeEntry(240, number))
    return sysfs


RULE: dict[str, Any] = {
    "match": "1d22:*",
    "memory_mib": 32768,
    "node": "/dev/xpu{n}",
    "minor": "dev-number",
}


def test_a_number_can_be_that_of_the_node_which_the_kernel_made() -> None:
    result = discovered(kunlun(3, 1), RULE)
    assert [(d.bus_id, d.minor) for d in result.devices] == [
        ("0000:20:00.0", 3),
        ("0000:21:00.0", 1),
    ]
    assert result.devices[0].nodes == (DeviceNode(path="/dev/xpu3", major=240, minor=3),)


def test_a_card_without_a_node_of_its_own_has_no_number() -> None:
    sysfs = Sysfs()
    sysfs.function("pci0000:16/0000:20:00.0", **KUNLUN)
    assert [d.minor for d in discovered(sysfs, RULE).devices] == [None]


@pytest.mark.parametrize(
    ("replay", "reason"), [(False, "DeviceNodeMissing"), (True, "DeviceHealthy")]
)
def test_a_missing_node_is_a_fault_of_a_machine_and_not_of_a_recording(
    replay: bool, reason: str
) -> None:
    rule = {**RULE, "minor": "pci-order"}
    sysfs = Sysfs()
    sysfs.function("pci0000:16/0000:20:00.0", **KUNLUN)
    (card,) = discovered(sysfs, rule, replay=replay).devices
    assert card.health.reason == reason


@pytest.mark.parametrize(
    ("cards", "message"),
    [
        ("x", "cards: must be a list"),
        ([3], "cards: must be a list of mappings"),
        ([{"match": "9999:4001", "memory": 1}], "cards[0]: unknown key 'memory'"),
        ([{"match": "metax"}], "cards[0].match"),
        ([{"match": "9999:*", "memory_mib": 0}], "cards[0].memory_mib"),
        ([{"match": "9999:*", "memory_mib": True}], "cards[0].memory_mib"),
        ([{"match": "9999:*", "core": -1}], "cards[0].core"),
        ([{"match": "9999:*", "model": "C 500"}], "cards[0].model"),
        ([{"match": "9999:*", "node": "/etc/passwd{n}"}], "cards[0].node"),
        ([{"match": "9999:*", "node": "/dev/../x{n}"}], "cards[0].node"),
        ([{"match": "9999:*", "minor": "guess"}], "cards[0].minor"),
        ([{"match": "9999:*", "minor": "dev-number"}], "cards[0].minor"),
    ],
)
def test_a_rule_that_cannot_be_understood_is_refused_by_its_key(
    cards: object, message: str
) -> None:
    with pytest.raises(BadConfig) as refused:
        section(AcceleratorsSettings, {"cards": cards}).check()
    assert message in str(refused.value)


def test_samples_are_not_supported() -> None:
    session = open_session(AcceleratorsVendor(), Sysfs().builder.build(), {})
    with pytest.raises(NotSupported):
        session.sample()
    with pytest.raises(NotSupported):
        session.events(0.0)
