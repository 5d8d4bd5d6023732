from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.recording.host_source import open_host
from agent.snapshot.device import (
    DeviceKind,
    DeviceNode,
    DevicePartition,
    HealthState,
    VendorDevice,
)
from agent.snapshot.settings import VendorSettings
from agent.wire_formats.quantities import format_binary
from plugins.vendors.cambricon.discovery.card_store import MluStore
from plugins.vendors.cambricon.discovery.descriptions import device_id, model_label
from plugins.vendors.cambricon.vendor import CambriconVendor
from tests.captures import needs_shared
from tests.stubs.stub import Stub
from tests.unit.cambricon import mock
from tests.unit.cambricon.cards import BUSES, add_function, card, machine, session, stub_of, tree_of


@needs_shared
@pytest.mark.parametrize(
    ("uuid", "bus_id", "memory", "model"),
    [
        pytest.param(
            *("MLU-10001012-1916-0000-0000-000000000000", "0000:0c:0d.1", "16Gi", "MLU290"),
            id="V51",
        )
    ],
)
def test_a_card_of_the_makers_mock_is_what_it_says(
    uuid: str, bus_id: str, memory: str, model: str, tmp_path: Path
) -> None:
    stub = stub_of(tmp_path, *mock.scenario())
    with session(stub, tree_of(tmp_path, 0)) as child:
        first, *_, last = child.discover().devices
    assert (first.uuid, first.bus_id) == (uuid, bus_id)
    assert (first.model, format_binary(first.memory_bytes or 0)) == (model, memory)
    assert (first.kind, first.vendor, first.minor) == (DeviceKind.MLU, "cambricon", 0)
    assert last.bus_id is None  # function 8 is none


@pytest.mark.parametrize(("listed_count", "functions"), [pytest.param(7, 8, id="V60"), (6, 8)])
def test_a_card_that_the_library_does_not_list_is_described_from_sysfs(
    listed_count: int, functions: int, tmp_path: Path
) -> None:
    stub = stub_of(tmp_path, *machine(listed_count))
    with session(stub, tree_of(tmp_path, functions)) as child:
        inventory = child.discover()
        stub.play(*machine(functions))
        later = child.discover()
    lacking = functions - listed_count
    assert [d.health.reason for d in inventory.devices] == [
        *["DeviceHealthy"] * listed_count,
        *["DriverError"] * lacking,
    ]
    assert tuple(d.bus_id for d in inventory.devices) == BUSES[:functions]
    assert {d.health.reason for d in later.devices} == {"DeviceHealthy"}


@pytest.mark.parametrize("count", [0, 2])
def test_a_card_that_the_library_omits_once_fails_and_stays_what_it_was(
    count: int, tmp_path: Path
) -> None:
    stub = stub_of(tmp_path, *machine(3), "mlu.2.smlu_mode 1", "mlu.2.smlu.1 0:5:1073741824")
    with session(stub, tree_of(tmp_path, 3)) as child:
        before = child.discover().devices
        stub.add(f"count {count}")
        omitted = child.discover().devices
        again = child.discover().devices
        stub.add("count 3", "call.cndevGetUUID.ret 7", "call.cndevGetMemoryUsageV2.ret 7")
        later = child.discover().devices
    assert before[2].partitions
    assert [d.health.reason for d in omitted[count:]] == ["DriverError"] * (3 - count)
    assert [replace(d, health=b.health) for d, b in zip(omitted, before, strict=True)] == [*before]
    assert again == omitted
    assert later == before


def test_a_card_whose_number_another_has_now_does_not_keep_it(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(2))
    with session(stub, tree_of(tmp_path, 2)) as child:
        child.discover()
        stub.play("count 1", *card(0, BUSES[1], uuid="00000000-0000-4000-8000-000000000001"))
        devices = {d.bus_id: d for d in child.discover().devices}
    assert devices[BUSES[1]].minor == 0
    assert devices[BUSES[0]].minor is None


def test_one_card_without_a_handle_hides_no_other(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(3))
    with session(stub, tree_of(tmp_path, 3)) as child:
        before = child.discover()
        stub.add("call.cndevGetDeviceHandleByIndex.ret 7 x1")
        after = child.discover()
    assert [d.key for d in after.devices] == [d.key for d in before.devices]
    assert [d.health.reason for d in after.devices] == ["DriverError"] + ["DeviceHealthy"] * 2


def test_a_fact_that_cannot_be_read_for_a_moment_keeps_its_value(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1))
    with session(stub, tree_of(tmp_path, 1)) as child:
        (before,) = child.discover().devices
        calls = ("UUID", "PCIeInfoV2", "MemoryUsageV2", "CardNameStringByDevId", "CardName")
        stub.add(*(f"call.cndevGet{call}.ret 7" for call in calls))
        (after,) = child.discover().devices
    members = ("key", "uuid", "minor", "memory_bytes", "model", "resources", "health")
    assert {name: getattr(after, name) for name in members} == {
        name: getattr(before, name) for name in members
    }


MIM = ("mim_mode 1", "mim.1 2m.16gb:16384:2:B0001012-1916-0000-0000-000000000000")
SMLU = ("smlu_mode 1", "smlu.1 0:5:1073741824")


@pytest.mark.parametrize("cut", [MIM, SMLU])
@pytest.mark.parametrize(
    "silent", ["MimMode", "SMLUMode", "AllMluInstanceInfo", "AllSMluInstanceInfo", "CardSN"]
)
def test_a_cut_card_stays_cut_while_it_cannot_say_so(
    cut: tuple[str, ...], silent: str, tmp_path: Path
) -> None:
    lines = [*machine(1)[:2], *card(0, smlu_mode=None, mim_mode=None)]
    modes = ("mlu.0.smlu_mode 0",) if cut is MIM else ("mlu.0.mim_mode 0",)
    stub = stub_of(tmp_path, *lines, *modes, *(f"mlu.0.{line}" for line in cut))
    with session(stub, tree_of(tmp_path, 1)) as child:
        (before,) = child.discover().devices
        stub.add(f"call.cndevGet{silent}.ret 7")
        (after,) = child.discover().devices
    assert before.partitions
    assert after == before


BOOT = "0f5bd2a5-a9a0-4a5a-9a0e-6a1a0a3bb1c4"


def booted(folder: Path, count: int, boot: str = BOOT) -> Path:
    """Return a host's root with so many functions, in this boot."""
    tree = folder / "host" if (folder / "host").exists() else tree_of(folder, count)
    file = tree / "proc/sys/kernel/random/boot_id"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{boot}\n")
    return tree


def discover_devices(stub: Stub, tree: Path, *lines: str) -> dict[str | None, VendorDevice]:
    """Return the devices by address, as a new worker describes them."""
    stub.add(*lines)
    with session(stub, tree, state_dir=str(tree.parent / "state")) as child:
        return {device.bus_id: device for device in child.discover().devices}


@pytest.mark.parametrize("cut", [MIM, SMLU])
@pytest.mark.parametrize("silent", ["MimMode", "SMLUMode", "UUID", "MemoryUsageV2"])
def test_a_new_worker_knows_what_a_card_was_that_cannot_say_so(
    cut: tuple[str, ...], silent: str, tmp_path: Path
) -> None:
    lines = [*machine(1)[:2], *card(0, smlu_mode=None, mim_mode=None)]
    modes = ("mlu.0.smlu_mode 0",) if cut is MIM else ("mlu.0.mim_mode 0",)
    stub = stub_of(tmp_path, *lines, *modes, *(f"mlu.0.{line}" for line in cut))
    before = discover_devices(stub, booted(tmp_path, 1))
    after = discover_devices(stub, booted(tmp_path, 1), f"call.cndevGet{silent}.ret 7")
    assert before[BUSES[0]].partitions
    assert after == before


def test_a_new_worker_knows_a_card_that_the_library_omits(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(2))
    before = discover_devices(stub, booted(tmp_path, 2))
    after = discover_devices(stub, booted(tmp_path, 2), "count 1")
    assert after[BUSES[1]].health.reason == "DriverError"
    assert replace(after[BUSES[1]], health=before[BUSES[1]].health) == before[BUSES[1]]
    unloaded = discover_devices(stub, booted(tmp_path, 2), "call.cndevInit.ret 8")
    assert {d.uuid for d in unloaded.values()} == {d.uuid for d in before.values()}
    assert {d.health.state for d in unloaded.values()} == {HealthState.FAILED}


@pytest.mark.parametrize("change", ["boot", "serial", "uuid"])
def test_a_new_worker_gives_no_card_what_another_was(change: str, tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(2)[:2], *card(0, mim_mode=None), f"mlu.0.{MIM[0]}")
    stub.add("count 1")
    assert not discover_devices(stub, booted(tmp_path, 1))[BUSES[0]].resources
    stub.add({"serial": "mlu.0.sn 77", "uuid": "mlu.0.uuid B"}.get(change, ""))
    tree = booted(tmp_path, 1, "another" if change == "boot" else BOOT)
    silent = ["call.cndevGetMimMode.ret 7", "mlu.0.smlu_mode 0"]
    silent += ["call.cndevGetUUID.ret 7"] if change == "serial" else []
    (after,) = discover_devices(stub, tree, *silent).values()
    assert after.resources
    assert after.uuid != "MLU-00000000-0000-4000-8000-000000000000" or change == "boot"


def test_a_serial_number_of_two_cards_says_of_neither_what_it_was(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(2), "mlu.0.sn 77", "mlu.1.sn 77")  # one board, two chips
    before = discover_devices(stub, booted(tmp_path, 2))
    assert len({device.uuid for device in before.values()}) == 2
    after = discover_devices(stub, booted(tmp_path, 2), "call.cndevGetUUID.ret 7")
    assert {device.uuid for device in after.values()} == {None}


def test_a_card_without_an_answer_is_not_the_one_with_another_serial_number_at_its_index(
    tmp_path: Path,
) -> None:
    stub = stub_of(tmp_path, *machine(1), "mlu.0.sn 77")
    with session(stub, booted(tmp_path, 1)) as child:
        (before,) = child.discover().devices
        stub.add("mlu.0.sn 78", "call.cndevGetUUID.ret 7")
        (after,) = child.discover().devices
    assert before.uuid is not None
    assert after.uuid is None


def test_instances_of_a_card_with_a_new_number_do_not_keep_their_old_nodes(tmp_path: Path) -> None:
    node = DeviceNode(path="/dev/cambricon_dev3mi1", major=1, minor=1)
    part = DevicePartition(uuid="MLU-1-mim-1", profile="2m.16gb", nodes=(node,))
    device = VendorDevice(
        kind=DeviceKind.MLU, vendor="cambricon", bus_id=None, uuid="MLU-1", vendor_minor=3
    )
    store = MluStore(str(tmp_path), BOOT)
    store.save([replace(device, partitions=(part,))])
    for reader in (store, MluStore(str(tmp_path), BOOT)):
        same, other = (reader.find("MLU-1", None, None, number) for number in (3, 4))
        assert same is not None
        assert same.partitions == (part,)
        assert other is not None
        assert other.partitions == (replace(part, nodes=()),)


@pytest.mark.parametrize("text", ["{", '{"boot": "x", "devices": 7, "version": 2}', "[]"])
def test_a_store_that_cannot_be_read_is_put_aside_and_written_anew(
    text: str, tmp_path: Path
) -> None:
    stub = stub_of(tmp_path, *machine(1))
    before = discover_devices(stub, booted(tmp_path, 1))
    file = tmp_path / "state/cambricon-devices.json"
    stored = file.read_bytes()
    file.write_text(text)
    assert discover_devices(stub, booted(tmp_path, 1)) == before
    assert file.read_bytes() == stored
    assert file.with_name(f"{file.name}.bad").exists()


@pytest.mark.parametrize(
    ("silent", "linked"),
    [
        ("PortNumber.ret -1", 1),
        ("StatusV2.ret 7", 1),
        ("RemoteInfo.ret 17", 1),
        ("StatusV2.ret 11", 0),
    ],
)
def test_links_last_while_a_card_cannot_report_them_but_not_beyond_a_bad_link(
    silent: str, linked: int, tmp_path: Path
) -> None:
    ends = [f"00000000-0000-4000-8000-{index:012x}" for index in (1, 0)]
    stub = stub_of(tmp_path, *machine(2), *(f"mlu.{i}.port.0 1:{u}" for i, u in enumerate(ends)))
    with session(stub, tree_of(tmp_path)) as child:
        before = child.discover()
        stub.add(f"call.cndevGetMLULink{silent}")
        after = child.discover()
    assert len(before.links) == 1
    assert len(after.links) == linked


def test_another_card_of_the_same_number_inherits_nothing(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1))
    with session(stub, tree_of(tmp_path, 1)) as child:
        child.discover()
        stub.play("count 1", *card(0, uuid="f0000000-0000-4000-8000-000000000000", mem=None))
        (device,) = child.discover().devices
    assert device.uuid == "MLU-f0000000-0000-4000-8000-000000000000"
    assert device.memory_bytes is None


@pytest.mark.parametrize(
    ("sysfs", "library", "expected"),
    [("1", "0", None), ("-1", "1", "1"), (None, "1", "1"), ("-1", "-1", None)],
)
def test_the_librarys_memory_node_counts_where_sysfs_has_none(
    sysfs: str | None, library: str, expected: str | None, tmp_path: Path
) -> None:
    tree = tree_of(tmp_path, 1)
    if sysfs is not None:
        (tree / "sys/bus/pci/devices" / BUSES[0] / "numa_node").write_text(f"{sysfs}\n")
    stub = stub_of(tmp_path, "count 1", *card(0, numa=library))
    with session(stub, tree) as child:
        (device,) = child.discover().devices
    assert dict(device.facts).get("told_numa_node") == expected


def test_a_card_without_memory_has_nothing_to_grant(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, "count 1", *card(0, mem=0))
    with session(stub, tree_of(tmp_path, 1)) as child:
        (device,) = child.discover().devices
    assert (device.memory_bytes, device.resources) == (None, ())
    assert ("unschedulable", "MemoryUnknown") in device.facts


def test_a_card_cut_by_an_administrator_is_out_of_service_and_lists_its_instances(
    tmp_path: Path,
) -> None:
    cut = ("mlu.0.mim_mode 1", "mlu.0.mim.1 2m.16gb:16384:2:B0001012-1916-0000-0000-000000000000")
    stub = stub_of(tmp_path, *machine(1), *cut)
    with session(stub, tree_of(tmp_path, 1)) as child:
        (device,) = child.discover().devices
        (sample,) = child.sample()
    assert (device.health.state, device.health.reason) == (HealthState.FAILED, "MIMMode")
    assert sample.health == device.health
    assert device.resources == ()
    (part,) = device.partitions
    assert (part.profile, part.memory_bytes, part.instance) == ("2m.16gb", 16 << 30, 1)
    assert part.uuid == f"{device.uuid}-mim-B0001012-1916-0000-0000-000000000000"


def test_slices_of_a_card_are_its_partitions(tmp_path: Path) -> None:
    stub = stub_of(
        tmp_path, *machine(1), "mlu.0.smlu_mode 1", "mlu.0.smlu.1 0:5:1073741824:3:524288"
    )
    with session(stub, tree_of(tmp_path, 1), smlu_unit_mib=256) as child:
        (device,) = child.discover().devices
        (sample,) = child.sample()
    (part,) = device.partitions
    assert (part.instance, part.cores, part.memory_bytes) == (1, 5, 1 << 30)
    assert ("smlu-unit", "256Mi") in device.facts
    values = {(r.family, r.labels): r.value for r in sample.readings}
    assert values["xpu_device_smlu_core_percent", ("1",)] == 3
    assert values["xpu_device_smlu_memory_used_bytes", ("1",)] == 524288


@pytest.mark.parametrize("count", [0, 65, 4294967295])
def test_a_count_that_cannot_be_is_bounded(count: int, tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1), f"count {count}")
    with session(stub, tree_of(tmp_path, 1)) as child:
        inventory = child.discover()
    assert 1 <= len(inventory.devices) <= 64


def test_only_accelerator_functions_of_the_maker_are_sighted(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, 1)
    add_function(tree, "0000:20:00.0", code="0x020000")  # a network function
    add_function(tree, "0000:20:00.1", virtual=True)
    (tree / "sys/bus/pci/devices/0000:20:00.2").mkdir()
    devices = CambriconVendor().detect(open_host(str(tree)).files, VendorSettings())
    assert [d.bus_id for d in devices] == [BUSES[0]]


def test_on_a_recorded_host_no_library_is_searched(tmp_path: Path) -> None:
    stub = stub_of(tmp_path, *machine(1))
    with session(stub, tree_of(tmp_path, 1), replay=True) as child:
        (device,) = child.discover().devices
        assert child.sample() == ()
    assert device.health.reason == "NoRecordedAnswers"
    assert stub.counts() == {}


@pytest.mark.parametrize(
    ("name", "number", "label"),
    [
        ("MLU370-X4", 23, "MLU370-X4"),
        ("MLU 590 / M9", None, "MLU-590-M9"),
        (None, 31, "MLU570"),
        ("", 99, "MLU-99"),
        (None, None, None),
        ("日本", 20, None),
    ],
)
def test_models_are_labels(name: str | None, number: int | None, label: str | None) -> None:
    assert model_label(name, number) == label


@pytest.mark.parametrize("uuid", ["", None, "a b", "x" * 65, "\x00"])
def test_a_uuid_that_is_none_makes_no_id(uuid: str | None) -> None:
    assert device_id(uuid) is None
