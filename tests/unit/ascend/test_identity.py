from __future__ import annotations

import pytest

from plugins.vendors.ascend.discovery import models
from plugins.vendors.ascend.discovery.descriptions import chip_uuid, resources
from plugins.vendors.ascend.library.facts import ChipFacts
from tests.stubs.dcmi.machines import b3 as chip_of
from tests.stubs.dcmi.machines import b3x8, chip
from tests.unit.ascend.conftest import Machine

MEMORY, CORES, CPUS = "koordinator.sh/gpu-memory", "huawei.com/npu-core", "huawei.com/npu-cpu"


@pytest.mark.parametrize(
    ("name", "board", "device", "product", "family", "label"),
    [
        pytest.param("910B3", 0x30, 0xD802, None, "910B", "Ascend-910B3", id="E1"),
        pytest.param("910B4-1", 0x30, 0xD802, None, "910B", "Ascend-910B4-1", id="E2"),
        pytest.param("910B", 0x02, 0xD801, None, "910A", "Ascend-910B", id="E3"),
        pytest.param("910ProB", 0x02, 0xD801, None, "910A", "Ascend-910ProB", id="E4"),
        pytest.param("Ascend910", 0xB2, 0xD803, None, "A3", "Ascend-910C", id="E5"),
        pytest.param("Ascend910", None, 0xD803, None, "A3", "Ascend-910C", id="E6"),
        pytest.param(
            "310P3", None, 0xD500, "Atlas 300I Duo", "310P", "Ascend-310P3-300I-DUO", id="E7"
        ),
        pytest.param("310P3", None, 0xD500, "Atlas 300V Pro", "310P", "Ascend-310P3", id="E8"),
        pytest.param("310B1", None, None, None, "310B", "Ascend-310B1", id="E9"),
        pytest.param("Ascend950PR_9579", None, None, None, "A5", "Ascend-950PR_9579", id="E10"),
        pytest.param("310", None, None, None, "310", "Ascend-310", id="the first 310"),
        pytest.param("910A", None, None, None, "910A", "Ascend-910A", id="by name alone"),
        pytest.param(
            "X1 odd/name", None, None, None, "unknown", "Ascend-X1-odd-name", id="unknown"
        ),
        pytest.param("", None, 0xD802, None, "910B", None, id="no name at all"),
    ],
)
def test_a_chip_is_of_a_family_and_has_a_model_label(
    name: str, board: int | None, device: int | None, product: str | None, family: str, label: str
) -> None:
    assert models.family_of(name, board, device) == family
    assert models.model_label(family, name, product) == label


def test_a_label_is_never_too_long_and_ends_well() -> None:
    label = models.model_label("unknown", "9" * 55 + "._" * 10, None)
    assert label is not None
    assert len(label) <= 63
    assert label[-1].isalnum()


@pytest.mark.parametrize(
    ("die", "uuid"),
    [
        pytest.param(
            "1a2b:ffffffff:0:7:80000000",
            "00001A2B-FFFFFFFF-00000000-00000007-80000000",
            id="E11",
        ),
        pytest.param("0:0:0:0:0", "npu-3-6", id="E12"),
        pytest.param("ffffffff:ffffffff:ffffffff:ffffffff:ffffffff", "npu-3-6", id="garbage"),
        pytest.param(None, "npu-3-6", id="a chip that does not tell"),
    ],
)
def test_a_chip_is_named_by_its_die(b3: Machine, die: str | None, uuid: str) -> None:
    lines = chip_of(3, phy=6, die=die)
    b3.stub.play("card_list 3", *lines)
    with b3.session() as child:
        (device,) = (d for d in child.discover().devices if d.minor is not None)
    assert device.uuid == uuid
    assert device.minor == 6
    placeholder = dict(device.facts).get("id-source") == "placeholder"
    assert placeholder == uuid.startswith("npu-")


@pytest.mark.parametrize(
    ("pci", "bus_id"),
    [
        pytest.param("0:c1:0:0", "0000:c1:00.0", id="E13"),
        pytest.param("10000:1:1f:7", "10000:01:1f.7", id="a domain of five digits"),
        pytest.param("0:100:0:0", None, id="a bus that cannot be"),
    ],
)
def test_a_bus_id_is_spelt_as_sysfs_does(b3: Machine, pci: str, bus_id: str | None) -> None:
    b3.stub.play("card_list 0", *chip_of(0, pci=pci))
    with b3.session() as child:
        devices = child.discover().devices
    assert [d.bus_id for d in devices if d.minor == 0] == [bus_id]


def test_a_negative_domain_is_domain_0(b3: Machine) -> None:
    b3.stub.play("card_list 0", *chip_of(0, pci="-1:c1:0:0"))
    with b3.session() as child:
        assert child.discover().devices[0].bus_id == "0000:c1:00.0"


@pytest.mark.parametrize(
    ("family", "facts", "name", "value"),
    [
        pytest.param("910B", {"hbm_mb": 65536}, MEMORY, "64Gi", id="E15"),
        pytest.param("310P", {"ddr_mb": 21527}, MEMORY, "21527Mi", id="E16"),
        pytest.param("910A", {"hbm_mb": 32768, "ddr_mb": 15039}, MEMORY, "32Gi", id="E17"),
        pytest.param("910A", {"name": "910A", "ddr_mb": 15039}, MEMORY, "32Gi", id="DDR is no HBM"),
        pytest.param("910B", {"name": "910B1", "ddr_mb": 8}, MEMORY, "64Gi", id="nor of a 910B"),
        pytest.param("910B", {"total_cores": 20, "cores": 24}, CORES, "20", id="E18"),
        pytest.param("910B", {"cores": 25}, CORES, "25", id="E19"),
        pytest.param("910B", {"name": "910B2"}, CPUS, "6", id="E20"),
        pytest.param("910B", {"name": "910B1"}, CPUS, None, id="what nobody knows is left out"),
        pytest.param("910B", {"name": "910B4"}, MEMORY, "32Gi", id="by the model"),
        pytest.param("unknown", {"hbm_mb": 1024, "cores": 8}, CORES, None, id="memory only"),
    ],
)
def test_what_is_granted_of_a_chip(
    family: str, facts: dict[str, object], name: str, value: str | None
) -> None:
    chip_facts = ChipFacts(**{"hbm_mb": 1024, "name": "910B3", **_without(facts)})  # type: ignore[arg-type]
    assert dict(resources(family, chip_facts)).get(name) == value


def _without(facts: dict[str, object]) -> dict[str, object]:
    """Remove the HBM size if a case sets another source of the memory."""
    return facts if "hbm_mb" in facts else {**facts, "hbm_mb": None}


def test_no_gpu_core_is_granted_and_no_ratio_is_missing(b3: Machine) -> None:
    with b3.session() as child:
        device = child.discover().devices[0]
    assert dict(device.resources) == {
        MEMORY: "64Gi",
        "koordinator.sh/gpu-memory-ratio": "100",
        CORES: "20",
        CPUS: "7",
        "huawei.com/npu-dvpp": "100",
    }
    assert device.vendor == "huawei"
    assert device.kind.value == "npu"
    assert device.module_id == 0


def test_a_chip_whose_memory_nobody_knows_is_listed_and_grants_nothing(b3: Machine) -> None:
    b3.stub.play("card_list 0", *chip(0, logic=0, phy=0, name="Z9", health=0, pci="0:99:0:0"))
    with b3.session() as child:
        inventory = child.discover()
    device = inventory.devices[0]
    assert device.resources == ()
    assert [p.reason for p in inventory.problems] == ["UnknownModel"]
    assert dict(device.facts)["unschedulable"] == "MemoryUnknown"


@pytest.mark.parametrize("name", [pytest.param("Ascend950PR_9579", id="E10")])
def test_a_chip_of_the_generation_after_says_that_little_is_known(b3: Machine, name: str) -> None:
    b3.stub.add(f"chip.0.0.name {name}")
    with b3.session() as child:
        device = child.discover().devices[0]
    assert (device.model, device.health.reason) == ("Ascend-950PR_9579", "UnsupportedGeneration")
    assert device.health.is_in_service


def test_a_placeholder_is_made_of_card_and_physical_id() -> None:
    assert chip_uuid(ChipFacts(), 3, 6) == "npu-3-6"


@pytest.mark.parametrize("card", [pytest.param(2, id="E14"), pytest.param(8, id="E14 card 8")])
def test_a_card_of_sixteen_keeps_its_own_number(b3: Machine, card: int) -> None:
    b3.stub.play(*b3x8(16))  # as text, davinci10 would come before davinci2
    with b3.session() as child:
        devices = [device for device in child.discover().devices if device.resources]
    assert [device.minor for device in devices] == list(range(16))
    assert devices[card].module_id == devices[card].minor == card
