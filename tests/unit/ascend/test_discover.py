from __future__ import annotations

import json

import pytest

from agent.recording.tree import LinkEntry, TreeBuilder
from agent.snapshot.device import HealthState
from agent.snapshot.settings import VendorSettings
from agent.workers.protocol import ErrorReply
from plugins.vendors.ascend.vendor import AscendVendor
from tests.machines import Sysfs
from tests.stubs.dcmi.machines import IDLE_910B3, b3x8
from tests.stubs.dcmi.machines import b3 as one
from tests.unit.ascend.conftest import Machine

SIX = "0000:41:00.0"
BUSES = [bus for bus, *_ in IDLE_910B3]


@pytest.mark.parametrize(
    ("facts", "is_npu"),
    [
        pytest.param({"device": "0xd802"}, True, id="V61 an NPU"),
        pytest.param({"device": "0xd999"}, True, id="an NPU of the future"),
        pytest.param({"device": "0x1711", "class": "0x030000"}, False, id="V61 iBMC"),
        pytest.param({"device": "0x1711"}, False, id="a controller whatever its class"),
        pytest.param({"device": "0xa222", "class": "0x020000"}, False, id="V61 NIC"),
        pytest.param({"device": "0xd802", "physfn": ">../x"}, False, id="a piece of a chip"),
        pytest.param({"device": "0xd802", "vendor": "0x10de"}, False, id="another maker's"),
    ],
)
def test_npus_are_sighted_by_their_pci_identity(facts: dict[str, str], is_npu: bool) -> None:
    sysfs = Sysfs()
    sysfs.function("pci0000:00/0000:01:00.0", **{"vendor": "0x19e5", "class": "0x120000", **facts})
    devices = AscendVendor().detect(sysfs.builder.build(), VendorSettings())
    assert len(devices) == is_npu
    assert all(device.minor is None and device.health.message for device in devices)


@pytest.mark.parametrize(
    ("device", "family"),
    [("0xd802", "910B"), ("0xd803", "A3"), ("0xd500", "310P"), ("0xd8ff", None)],
)
def test_a_chip_has_its_family_before_the_library_answers(device: str, family: str | None) -> None:
    sysfs = Sysfs()
    facts = {"vendor": "0x19e5", "class": "0x120000", "device": device}
    sysfs.function("pci0000:00/0000:01:00.0", **facts)
    (described,) = AscendVendor().detect(sysfs.builder.build(), VendorSettings())
    assert dict(described.labels).get("xpu-agent.io/family") == family
    assert dict(described.facts).get("family") == family


def test_a_chip_of_a_virtual_machine_is_nobodys_here() -> None:
    sysfs = Sysfs()
    facts = {"vendor": "0x19e5", "class": "0x120000", "driver": ">../bus/pci/drivers/vfio-pci"}
    sysfs.function("pci0000:00/0000:01:00.0", **facts)
    (device,) = AscendVendor().detect(sysfs.builder.build(), VendorSettings())
    assert not device.managed
    assert device.health.reason == "BoundToVFIO"


def test_a_broken_tree_shows_nothing_and_raises_nothing() -> None:
    builder = TreeBuilder()
    builder.put("/sys/bus/pci/devices/0000:01:00.0", LinkEntry("../../../devices/nowhere"))
    builder.put("/sys/bus/pci/devices/nonsense/vendor", b"0x19e5\n")
    assert AscendVendor().detect(builder.build(), VendorSettings()) == ()


def test_cards_may_have_gaps_in_their_ids(b3: Machine) -> None:
    b3.stub.play("card_list 0,1,4", *(line for i in (0, 1, 4) for line in one(i)))
    with b3.session() as child:
        inventory = child.discover()
    assert [d.minor for d in inventory.devices if d.minor is not None] == [0, 1, 4]
    rest = [d for d in inventory.devices if d.minor is None]
    assert {d.health.reason for d in rest} == {"DriverError"}
    assert len(rest) == 5


def test_a_chip_that_fails_hides_no_other_and_is_listed_from_sysfs(b3: Machine) -> None:
    b3.stub.add("call.*.6.0.ret -8010")
    with b3.session() as child:
        inventory = child.discover()
    assert [d.minor for d in inventory.devices if d.minor is not None] == [0, 1, 2, 3, 4, 5, 7]
    (failed,) = (d for d in inventory.devices if d.bus_id == SIX)
    assert failed.health.state is HealthState.FAILED
    assert any("card 6, chip 0" in problem.message for problem in inventory.problems)


def test_a_chip_that_stops_answering_keeps_its_number_and_is_lost_after_a_while(
    b3: Machine,
) -> None:
    with b3.session() as child:
        before = child.discover().devices[6]
        b3.stub.add("call.*.6.0.ret -8010")
        devices = [child.discover().devices[6] for _ in range(3)]
        b3.stub.add("call.*.6.0.ret")
        after = child.discover().devices[6]
    assert [d.minor for d in devices] == [6, 6, 6]
    assert [d.resources for d in devices] == [before.resources] * 3
    assert [d.health.certain for d in devices] == [False, False, True]
    assert devices[2].health.reason == "DeviceLost"
    assert after.health.is_in_service


@pytest.mark.parametrize("path", ["sys/bus/pci/devices/0000:41:00.0", "dev/davinci6"])
def test_a_chip_that_the_machine_lost_is_out_of_service(b3: Machine, path: str) -> None:
    b3.as_folder(BUSES)
    with b3.session() as child:
        assert all(d.health.is_in_service for d in child.discover().devices)
        (b3.host / path).rename(b3.folder / "gone")
        device = child.discover().devices[6]
        (b3.folder / "gone").rename(b3.host / path)
        again = child.discover().devices[6]
    assert device.health.reason == "DeviceLost"
    assert "not there any more" in device.health.message
    assert again.health.is_in_service


def test_an_unloaded_driver_fails_all_chips_and_requires_a_new_process_later(
    b3: Machine,
) -> None:
    b3.as_folder(BUSES)
    manager = b3.host / "dev/davinci_manager"
    with b3.session() as child:
        before = child.discover().devices
        manager.unlink()
        inventory = child.discover()
        manager.write_text("")
        reply = child.ask("discover")
    assert {d.health.reason for d in inventory.devices} == {"DriverNotLoaded"}
    assert {d.key: d.minor for d in inventory.devices} == {d.key: d.minor for d in before}
    assert isinstance(reply, ErrorReply)
    assert reply.kind == "LibraryReplaced"


@pytest.mark.parametrize(
    ("lines", "minors", "message"),
    [
        pytest.param(["chip.3.0.phy 2"], [0, 1, 2, 4, 5, 6, 7], "both say", id="one number"),
        pytest.param(["chip.3.0.phy 300"], [0, 1, 2, 4, 5, 6, 7], "id 300", id="too great"),
        pytest.param(["chip.3.0.logic -1"], [0, 1, 2, 4, 5, 6, 7], "id -1", id="no logic id"),
        pytest.param(["chip.3.0.name", "chip.3.0.chip_type"], None, "without a name", id="no name"),
    ],
)
def test_what_cannot_be_true_costs_the_chip_that_says_it(
    b3: Machine, lines: list[str], minors: list[int] | None, message: str
) -> None:
    b3.stub.add(*lines)
    with b3.session() as child:
        inventory = child.discover()
    listed_minors = [d.minor for d in inventory.devices if d.minor is not None]
    assert listed_minors == (minors or [0, 1, 2, 4, 5, 6, 7])
    assert any(message in problem.message for problem in inventory.problems)


def test_chips_that_share_a_die_id_are_named_by_their_place(b3: Machine) -> None:
    b3.stub.add("chip.3.0.die 2:0:0:0:0")
    with b3.session() as child:
        inventory = child.discover()
    assert [d.uuid for d in inventory.devices[2:4]] == ["npu-2-2", "npu-3-3"]
    assert {p.reason for p in inventory.problems} == {"BadDriverAnswer"}


def test_controllers_and_cpus_of_a_card_are_no_npus(b3: Machine) -> None:
    b3.stub.add("card.0.chips 2", "chip.0.1.type 1", "chip.0.1.logic 90")
    with b3.session() as child:
        assert len(child.discover().devices) == 8


@pytest.mark.parametrize("count", [-1, 65])
def test_an_absurd_list_of_cards_leaves_what_sysfs_shows(b3: Machine, count: int) -> None:
    b3.stub.add(f"card_count {count}")
    with b3.session() as child:
        inventory = child.discover()
    assert inventory.problems[0].reason == "DriverError"
    assert len(inventory.devices) == 8
    assert not any(d.health.is_in_service for d in inventory.devices)


def test_cards_that_still_boot_are_reported_and_listed_again_later(b3: Machine) -> None:
    b3.stub.add("card_list 0,1,2,3,4,5,-1,-1")
    with b3.session() as child:
        inventory = child.discover()
        assert [p.reason for p in inventory.problems] == ["CardsBooting"]
        assert len([d for d in inventory.devices if d.minor is not None]) == 6
        b3.stub.play(*b3x8())
        inventory = child.discover()
    assert inventory.problems == ()
    assert len([d for d in inventory.devices if d.minor is not None]) == 8


NO_DIE = "chip.3.0.die 0:0:0:0:0"


@pytest.mark.parametrize("line", [NO_DIE, "call.dcmi_get_device_die_v2.ret -8012"])
def test_a_chip_that_does_not_tell_its_die_for_a_moment_stays_the_same(
    b3: Machine, line: str
) -> None:
    state = str(b3.folder / "state")
    with b3.session(state_dir=state) as child:
        before = child.discover().devices[3]
        b3.stub.add(line)
        later = child.discover().devices[3]
    with b3.session(state_dir=state) as child:
        restarted = child.discover().devices[3]
    assert before.uuid == "00000003-00000000-00000000-00000000-00000000"
    assert {later.uuid, restarted.uuid} == {before.uuid}
    assert "id-source" not in dict(restarted.facts)


def test_another_chip_in_the_place_of_one_is_not_taken_for_it(b3: Machine) -> None:
    state = str(b3.folder / "state")
    with b3.session(state_dir=state) as child:
        child.discover()
    b3.stub.add(NO_DIE, "chip.3.0.serial 999")
    with b3.session(state_dir=state) as child:
        assert child.discover().devices[3].uuid == "npu-3-3"


def test_a_size_that_is_implausible_for_a_moment_takes_no_chip_out_of_service(
    b3: Machine,
) -> None:
    b3.stub.add("chip.3.0.name Z9")
    state = str(b3.folder / "state")
    with b3.session(state_dir=state) as child:
        before = child.discover().devices[3]
        b3.stub.add("chip.3.0.hbm 0")
        later = child.discover().devices[3]
    with b3.session(state_dir=state) as child:
        restarted = child.discover().devices[3]
    assert before.resources
    assert later.resources == restarted.resources == before.resources


def test_a_chip_that_comes_back_without_its_die_stays_the_same(b3: Machine) -> None:
    with b3.session() as child:
        before = child.discover().devices[3]
        b3.stub.add("chip.3.0.logic", NO_DIE)
        missing = child.discover()
        b3.stub.add("chip.3.0.logic 3")
        later = child.discover().devices[3]
    assert [problem.reason for problem in missing.problems] == ["DriverError"]
    assert later.uuid == before.uuid


def test_a_die_with_another_number_than_before_the_restart_is_reported(b3: Machine) -> None:
    state = str(b3.folder / "state")
    with b3.session(state_dir=state) as child:
        child.discover()
    b3.stub.add("chip.1.0.phy 2", "chip.2.0.phy 1")
    with b3.session(state_dir=state) as child:
        child.discover()
        events = [child.wait_event(), child.wait_event()]
    assert {event.reason for event in events} == {"DeviceRenumbered"}
    assert {event.key for event in events} == {"0000:c2:00.0", "0000:81:00.0"}


def test_without_a_driver_chips_keep_the_numbers_that_they_had(b3: Machine) -> None:
    state = str(b3.folder / "state")
    with b3.session(state_dir=state) as child:
        before = child.discover().devices
    with b3.session(state_dir=state, library_path=str(b3.folder / "none.so")) as child:
        inventory = child.discover()
    assert inventory.problems[0].reason == "LibraryMissing"
    assert {d.minor: d.uuid for d in inventory.devices} == {d.minor: d.uuid for d in before}
    assert {d.resources for d in inventory.devices} == {before[0].resources}
    assert not any(d.health.is_in_service for d in inventory.devices)


def test_a_file_of_an_earlier_version_has_the_drivers_numbers_as_minors(b3: Machine) -> None:
    state = b3.folder / "state"
    with b3.session(state_dir=str(state)) as child:
        before = child.discover().devices
    file = state / "ascend-devices.json"
    stored = json.loads(file.read_text())
    assert all(entry.pop("vendor_minor") == entry["minor"] for entry in stored)
    file.write_text(json.dumps(stored))
    with b3.session(state_dir=str(state), library_path=str(b3.folder / "none.so")) as child:
        devices = child.discover().devices
    assert {d.uuid: d.vendor_minor for d in devices} == {d.uuid: d.minor for d in before}


def test_a_super_pod_is_a_fact_of_the_node(a3: Machine) -> None:
    with a3.session() as child:
        facts = dict(child.discover().facts)
    document = json.loads(facts["xpu-agent.io/super-pod"])
    assert (document["superPodId"], document["serverId"]) == (7, 3)
    assert document["sdid"]["15"] == 15 * 65536 + 1024
    assert len(document["sdid"]) == 16


def test_a_chip_outside_of_a_super_pod_is_left_out_of_it(a3: Machine) -> None:
    a3.stub.add("chip.0.0.spod 1024:7:4294967295", "chip.0.1.spod 4294967295:7:3")
    with a3.session() as child:
        facts = dict(child.discover().facts)
    document = json.loads(facts["xpu-agent.io/super-pod"])
    assert (document["serverId"], sorted(map(int, document["sdid"]))) == (3, list(range(2, 16)))


def test_the_family_of_a_chip_without_a_name_follows_from_its_address(b3: Machine) -> None:
    b3.stub.add("chip.3.0.name \\x20")
    with b3.session() as child:
        inventory = child.discover()
    assert (inventory.devices[3].minor, inventory.devices[3].model) == (3, None)
    assert dict(inventory.devices[3].facts)["family"] == "910B"
    assert "chip-name" not in dict(inventory.devices[3].facts)


def test_both_dies_of_a_card_are_devices_of_one_module(a3: Machine) -> None:
    with a3.session() as child:
        devices = child.discover().devices
    assert [d.minor for d in devices] == list(range(16))
    assert [d.module_id for d in devices[:4]] == [0, 0, 1, 1]
    assert {d.model for d in devices} == {"Ascend-910C"}


def test_a_chip_whose_address_is_known_late_is_not_two_chips(b3: Machine) -> None:
    b3.stub.add("call.dcmi_get_device_pcie_info_v2.6.0.ret -8010")
    with b3.session() as child:
        first = child.discover()
        b3.stub.add("call.dcmi_get_device_pcie_info_v2.6.0.ret")
        second = child.discover()
    assert [d.minor for d in first.devices if d.minor is not None] == list(range(8))
    assert [d.minor for d in second.devices] == list(range(8))
    assert second.devices[6].bus_id == SIX


def test_a_chip_that_fails_after_a_restart_keeps_the_number_that_it_had(b3: Machine) -> None:
    state = str(b3.folder / "state")
    with b3.session(state_dir=state) as child:
        before = child.discover().devices[6]
    b3.stub.add("call.*.6.0.ret -8010")
    for _ in range(2):
        with b3.session(state_dir=state) as child:
            (device,) = (d for d in child.discover().devices if d.bus_id == SIX)
        assert (device.minor, device.uuid, device.resources) == (6, before.uuid, before.resources)
        assert not device.health.is_in_service


def test_a_list_of_cards_that_fails_once_condemns_nobody(b3: Machine) -> None:
    with b3.session() as child:
        child.discover()
        b3.stub.add("call.dcmi_get_card_list.ret -8010")
        inventories = [child.discover() for _ in range(3)]
        b3.stub.add("call.dcmi_get_card_list.ret")
        after = child.discover()
    certain = [{device.health.certain for device in inventory.devices} for inventory in inventories]
    assert certain == [{False}, {False}, {True}]
    assert [{d.health.state for d in inventory.devices} for inventory in inventories[:2]] == [
        {HealthState.HEALTHY}
    ] * 2
    assert not any(device.health.is_in_service for device in inventories[2].devices)
    assert all(device.health.is_in_service for device in after.devices)
