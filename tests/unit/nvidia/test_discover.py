from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.snapshot.device import DeviceKind, HealthState, VendorDevice
from agent.snapshot.inventory import Inventory
from agent.wire_formats.quantities import format_binary
from plugins.vendors.nvidia.discovery.descriptions import distinct_modules, memory_total
from tests.captures import SHARED, needs_shared
from tests.fault.nvml_stub import Stub, add_function, gpu, on_tree, real_worker
from tests.stubs.child import Child
from tests.unit.nvidia.conftest import BUSES

SYSTEM = "system driver=570.124.06 cuda=12080"
GPUS = tuple(gpu(i, bus) for i, bus in enumerate(BUSES))
NO_HANDLE = "error nvmlDeviceGetHandleByPciBusId_v2"
ARCHITECTURES = {"turing": 6, "ampere": 7, "hopper": 9, "blackwell": 10}


def profile(name: str) -> dict[str, Any]:
    path = SHARED / "captures" / "nvml" / f"profile-{name}.yaml"
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def states(inventory: Inventory) -> list[tuple[str, str]]:
    return [(d.bus_id or "", d.health.reason) for d in inventory.devices]


def one(child: Child, bus: str = BUSES[0]) -> VendorDevice:
    return next(d for d in child.discover().devices if d.bus_id == bus)


def test_eight_cards_are_described_whole(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        inventory = child.discover()
    card = inventory.devices[2]
    assert [d.bus_id for d in inventory.devices] == list(BUSES)
    assert [d.minor for d in inventory.devices] == list(range(8))
    assert [d.module_id for d in inventory.devices] == list(range(1, 9))
    assert card.uuid == "GPU-00000000-0000-4000-8000-000000000002"
    assert card.resources == (
        ("koordinator.sh/gpu-core", "100"),
        ("koordinator.sh/gpu-memory", "81559Mi"),
        ("koordinator.sh/gpu-memory-ratio", "100"),
    )
    assert dict(card.labels) == {
        "xpu-agent.io/model": "H100-80GB-HBM3",
        "xpu-agent.io/architecture": "Hopper",
        "xpu-agent.io/compute-capability": "9.0",
        "xpu-agent.io/mig": "false",
    }
    assert dict(card.facts)["index"] == "2"
    assert (inventory.driver_version, dict(inventory.facts)["cuda"]) == ("570.124.06", "12.8")
    assert inventory.problems == ()


def test_the_agents_own_worker_finds_cards_that_sysfs_does_not_show(stub: Stub) -> None:
    stub.play(SYSTEM, *GPUS)
    with real_worker(stub) as child:
        inventory, again = child.discover(), child.discover()
    assert set(BUSES) <= {d.bus_id for d in inventory.devices}
    assert again == inventory


@pytest.mark.parametrize(
    ("code", "state", "reason"),
    [
        (15, HealthState.FAILED, "GpuLost"),
        (6, HealthState.FAILED, "GpuLost"),
        (16, HealthState.FAILED, "ResetRequired"),
        (4, HealthState.SUSPECT, "NoPermission"),
        (23, HealthState.SUSPECT, "NVMLError23"),
    ],
)
def test_one_card_without_a_handle_hides_no_other(
    stub: Stub, tree: Path, code: int, state: HealthState, reason: str
) -> None:
    stub.play(SYSTEM, *GPUS, f"{NO_HANDLE} 3 {code}")
    with on_tree(stub, tree) as child:
        inventory = child.discover()
    failed = inventory.devices[3]
    assert [d.bus_id for d in inventory.devices if d.health.reason == "DeviceHealthy"] == [
        b for b in BUSES if b != BUSES[3]
    ]
    assert (failed.health.state, failed.health.reason) == (state, reason)
    # what procfs shows
    assert (failed.uuid, failed.minor) == ("GPU-00000000-0000-4000-8000-000000000003", 3)


def test_a_card_lost_later_keeps_what_was_known_of_it(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        before = one(child)
        stub.play(SYSTEM, *GPUS, "lost 0")
        after = one(child)
        stub.play(SYSTEM, *GPUS)
        again = one(child)
    assert (after.uuid, after.resources, after.module_id) == (
        before.uuid,
        before.resources,
        before.module_id,
    )
    assert after.health.reason == "GpuLost"
    assert again == before


def test_a_card_whose_function_vanishes_stays_listed_as_lost(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        child.discover()
        (tree / "sys/bus/pci/devices" / BUSES[7]).rename(tree / "away")
        stub.play(SYSTEM, *GPUS[:7])
        inventory = child.discover()
    assert states(inventory)[6:] == [(BUSES[6], "DeviceHealthy"), (BUSES[7], "GpuLost")]


def test_a_vanished_card_is_forgotten_in_the_end(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree, forget_after_s=0) as child:
        child.discover()
        (tree / "sys/bus/pci/devices" / BUSES[7]).rename(tree / "away")
        stub.play(SYSTEM, *GPUS[:7])
        assert len(child.discover().devices) == 7


@pytest.mark.parametrize("level", [450, 510, 535, 570])
def test_an_old_driver_reports_fewer_values_and_none_that_is_wrong(
    level: int, tmp_path: Path, tree: Path
) -> None:
    stub = Stub(tmp_path, level)
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        inventory = child.discover()
    assert {reason for _, reason in states(inventory)} == {"DeviceHealthy"}
    assert {dict(d.resources)["koordinator.sh/gpu-memory"] for d in inventory.devices} == {
        "81559Mi"
    }


def test_what_a_card_does_not_support_is_absent(stub: Stub, tree: Path) -> None:
    unsupported = dict.fromkeys(("module", "power", "temp", "arch", "cc", "virt", "ecc", "migmode"))
    stub.play(SYSTEM, gpu(0, BUSES[0], **unsupported))
    with on_tree(stub, tree) as child:
        card = one(child)
    assert card.module_id is None
    assert dict(card.labels) == {"xpu-agent.io/model": "H100-80GB-HBM3"}
    assert not {"ecc", "virtualization", "serial"} & set(dict(card.facts))
    assert card.health.reason == "DeviceHealthy"


def test_garbage_for_a_uuid_is_answered_by_procfs(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS, r'gpu 1 uuid="GPU-\xff\xfe\xfd"')
    with on_tree(stub, tree) as child:
        card = one(child, BUSES[1])
    assert card.uuid == "GPU-00000000-0000-4000-8000-000000000001"
    assert (card.health.state, card.health.reason) == (HealthState.SUSPECT, "GarbledAnswer")


def test_a_card_cut_by_mig_grants_nothing_and_lists_its_instances(stub: Stub, tree: Path) -> None:
    cut = [
        "profile 0 7 id=20 slices=1 max=1 mb=9856",
        "profile 0 2 id=9 slices=3 max=2 mb=40448",
        "mig 0 0 uuid=MIG-b gi=7 ci=0 k=7 cik=0 mb=9856",
        "mig 0 2 uuid=MIG-a gi=1 ci=0 k=2 cik=2 mb=40448",
        "mig 0 3 uuid=MIG-c gi=9 ci=0 k=0 cik=0 mb=9856",
    ]
    stub.play(SYSTEM, gpu(0, BUSES[0], migmode=1), *cut)
    with on_tree(stub, tree) as child:
        card = one(child)
    assert card.resources == ()
    assert dict(card.labels)["xpu-agent.io/mig"] == "true"
    assert dict(card.facts)["unschedulable"] == "MIGEnabled"
    assert [(p.uuid, p.profile) for p in card.partitions] == [
        ("MIG-a", "3g.40gb"),
        ("MIG-b", "1g.10gb+me"),
        ("MIG-c", "1g.10gb"),
    ]
    assert card.partitions[1].memory_bytes == 9856 << 20


@pytest.mark.parametrize("memory", [None, 0])
def test_a_card_that_shares_the_machines_memory_has_all_of_it(
    stub: Stub, tree: Path, memory: int | None
) -> None:
    spark = gpu(0, BUSES[0], mem=memory, name='"NVIDIA GB10"')
    stub.play(SYSTEM, spark, "proc 0 pid=9 mem=7000 sm=1")
    with on_tree(stub, tree) as child:
        card = one(child)
        sample = child.sample()[0]
    assert card.memory_bytes == 131072000 * 1024
    assert dict(card.resources)["koordinator.sh/gpu-memory"] == "125Gi"
    assert dict(card.facts)["unified-memory"] == "true"
    assert (sample.memory_total_bytes, sample.memory_used_bytes) == (131072000 * 1024, 7000)


def test_a_discrete_card_that_answers_no_memory_keeps_its_size(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, gpu(0, BUSES[0]))
    with on_tree(stub, tree) as child:
        before = one(child)
        stub.play(SYSTEM, gpu(0, BUSES[0], mem=0, used=0))
        card = one(child)
        sample = child.sample()[0]
    assert (card.memory_bytes, card.resources) == (before.memory_bytes, before.resources)
    assert "unified-memory" not in dict(card.facts)
    assert (sample.memory_total_bytes, sample.memory_used_bytes) == (before.memory_bytes, None)


def test_a_discrete_card_without_a_known_size_has_not_the_machines_memory(
    stub: Stub, tree: Path
) -> None:
    stub.play(SYSTEM, gpu(0, BUSES[0], mem=0, used=0))
    with on_tree(stub, tree) as child:
        card = one(child)
    assert (card.memory_bytes, card.resources) == (None, ())
    assert dict(card.facts)["unschedulable"] == "MemoryUnknown"


@pytest.mark.parametrize("mode", [3, 4])
def test_a_card_that_carries_virtual_machines_grants_nothing(
    stub: Stub, tree: Path, mode: int
) -> None:
    stub.play(SYSTEM, gpu(0, BUSES[0], virt=mode))
    with on_tree(stub, tree) as child:
        card = one(child)
    assert (card.resources, dict(card.facts)["unschedulable"]) == ((), "HostVGPU")


def test_cards_of_others_and_excluded_ones_are_listed_with_their_reason(
    stub: Stub, tree: Path
) -> None:
    add_function(tree, "0000:c1:00.0", "vfio-pci")
    add_function(tree, "0000:c2:00.0", GPU_Excluded="Yes", Device_Minor="8")
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        inventory = child.discover()
    others = {d.bus_id: (d.managed, d.health.reason) for d in inventory.devices[8:]}
    assert others == {"0000:c1:00.0": (False, "BoundToVFIO"), "0000:c2:00.0": (True, "Excluded")}


def test_a_card_that_is_given_to_a_guest_is_listed_once(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        child.discover()
        link = tree / "sys/bus/pci/devices" / BUSES[2] / "driver"
        link.unlink()
        link.symlink_to("../../../../bus/pci/drivers/vfio-pci")
        inventory = child.discover()
    assert [d.bus_id for d in inventory.devices] == list(BUSES)
    assert (inventory.devices[2].managed, inventory.devices[2].health.reason) == (
        False,
        "BoundToVFIO",
    )


def test_a_card_with_refused_calls_is_healthy_and_not_a_unified_one(stub: Stub, tree: Path) -> None:
    names = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetEccMode")
    stub.play(SYSTEM, GPUS[0], *(f"error {name} 4" for name in names))
    with on_tree(stub, tree) as child:
        card = one(child)
    assert card.health.reason == "DeviceHealthy"
    assert (card.resources, card.memory_bytes) == ((), None)
    assert dict(card.facts)["unschedulable"] == "MemoryUnknown"


def test_a_passing_error_takes_no_memory_away(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        before = one(child)
        stub.play(SYSTEM, *GPUS, *(f"error nvmlDeviceGetMemoryInfo{v} 20" for v in ("", "_v2")))
        after = one(child)
    assert after == before


NO_NUMBERS = ("error nvmlDeviceGetModuleId 20", "error nvmlDeviceGetMinorNumber 20")


def test_a_passing_error_takes_no_number_away(stub: Stub, tree: Path) -> None:
    for file in (tree / "proc/driver/nvidia/gpus").glob("*/information"):
        file.write_text("")  # NVML is the only one that knows the number
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        before = child.discover()
        stub.play(SYSTEM, *GPUS, *NO_NUMBERS)
        after = child.discover()
    assert [d.vendor_minor for d in before.devices] == list(range(8))
    assert after.devices == before.devices
    assert after.groups == before.groups


def test_another_card_at_the_address_does_not_get_the_last_ones_numbers(
    stub: Stub, tree: Path
) -> None:
    for file in (tree / "proc/driver/nvidia/gpus").glob("*/information"):
        file.write_text("")
    stub.play(SYSTEM, *GPUS)
    other = gpu(0, BUSES[0], uuid="GPU-ffffffff-0000-4000-8000-000000000000")
    with on_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, other, *GPUS[1:], *NO_NUMBERS)
        card = one(child)
    assert card.uuid == "GPU-ffffffff-0000-4000-8000-000000000000"
    assert (card.module_id, card.vendor_minor, card.nodes) == (None, None, ())


def test_module_ids_that_are_all_alike_are_dropped() -> None:
    base = VendorDevice(kind=DeviceKind.GPU, vendor="nvidia", bus_id="a", module_id=1)
    assert [d.module_id for d in distinct_modules((base, base))] == [None, None]


@pytest.mark.parametrize(
    ("text", "size"),
    [("MemTotal:  8 kB\n", 8192), ("MemFree: 1 kB", None), ("MemTotal: x kB", None), ("", None)],
)
def test_the_machines_memory_is_read_from_meminfo(text: str, size: int | None) -> None:
    assert memory_total(text) == size


@needs_shared
@pytest.mark.parametrize(
    ("name", "label"),
    [("h100", "H100-80GB-HBM3"), ("a100", "A100-SXM4-40GB"), ("b200", "B200"), ("t4", "T4")],
)
def test_a_product_is_labelled_and_granted(name: str, label: str, stub: Stub, tree: Path) -> None:
    product = profile(name)
    card = product["device_defaults"]
    total = int(card["memory"]["total_bytes"])
    capability = "{major}.{minor}".format(**card["compute_capability"])
    stub.play(
        f"system driver={product['system']['driver_version']} cuda=12040",
        gpu(
            0,
            BUSES[0],
            name=f'"{card["name"]}"',
            mem=total,
            cc=capability,
            arch=ARCHITECTURES[card["architecture"]],
            serial=card["serial"],
            vbios=card["vbios_version"],
        ),
    )
    with on_tree(stub, tree) as child:
        inventory = child.discover()
    labels, facts = dict(inventory.devices[0].labels), dict(inventory.devices[0].facts)
    assert labels["xpu-agent.io/model"] == label
    assert labels["xpu-agent.io/architecture"] == card["architecture"].capitalize()
    assert labels["xpu-agent.io/compute-capability"] == capability
    assert dict(inventory.devices[0].resources)["koordinator.sh/gpu-memory"] == format_binary(total)
    assert facts["serial"] == card["serial"]
    assert inventory.driver_version == product["system"]["driver_version"]
