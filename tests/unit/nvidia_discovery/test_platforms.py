"""Special platforms: WSL, Tegra, coherent memory, guests, confidential computing."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.host.files import LiveHostFiles
from agent.snapshot.device import HealthState, VendorDevice
from agent.snapshot.settings import VendorSettings
from plugins.vendors.nvidia.discovery.sysfs import find_hardware
from plugins.vendors.nvidia.library.platform import read_platform
from plugins.vendors.nvidia.vendor import NvidiaVendor
from tests.fault.nvml_stub import Stub, add_function, gpu, on_tree
from tests.unit.nvidia.conftest import BUSES

SYSTEM = "system driver=570.124.06 cuda=12080"
GPUS = tuple(gpu(i, bus) for i, bus in enumerate(BUSES))
ABSENT = dict.fromkeys(
    ("minor", "module", "power", "temp", "ecc", "migmode", "sm", "memclock", "energy", "width")
)


@pytest.fixture
def empty_host(tmp_path: Path) -> Path:
    """A machine's root without a card on any bus."""
    root = tmp_path / "bare"
    (root / "proc").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal:       131072000 kB\n")
    (root / "sys/devices/soc0").mkdir(parents=True)
    return root


def first(stub: Stub, tree: Path, *lines: str, **settings: object) -> VendorDevice:
    stub.play(*lines)
    with on_tree(stub, tree, **settings) as child:
        return child.discover().devices[0]


def wsl(root: Path) -> None:
    (root / "dev").mkdir()
    (root / "dev/dxg").touch()


def tegra(root: Path) -> None:
    (root / "sys/devices/soc0/family").write_text("Tegra\n")


def test_a_pool_of_cards_behind_windows_is_numbered_by_nvml(stub: Stub, empty_host: Path) -> None:
    wsl(empty_host)
    stub.play(SYSTEM, *(gpu(i, BUSES[i], **ABSENT) for i in range(2)))
    with on_tree(stub, empty_host) as child:
        inventory = child.discover()
        samples = child.sample()
    assert [(d.bus_id, d.minor) for d in inventory.devices] == [(None, 0), (None, 1)]
    assert {dict(d.facts)["platform"] for d in inventory.devices} == {"wsl"}
    assert all(d.resources and d.health.state is HealthState.HEALTHY for d in inventory.devices)
    assert (inventory.links, inventory.groups) == ((), ())
    assert {s.key for s in samples} == {d.key for d in inventory.devices}


def test_an_integrated_card_has_the_machines_memory_and_no_bus(
    stub: Stub, empty_host: Path
) -> None:
    tegra(empty_host)
    orin = gpu(0, BUSES[0], **ABSENT, name='"Orin (nvgpu)"', mem=None, uuid="0123abcd-0000")
    stub.play(SYSTEM, orin)
    with on_tree(stub, empty_host) as child:
        inventory = child.discover()
    (card,) = inventory.devices
    assert (card.bus_id, card.minor, card.uuid) == (None, 0, "0123abcd-0000")
    assert card.model == "Orin--nvgpu"
    assert dict(card.facts)["unified-memory"] == "true"
    assert dict(inventory.facts)["xpu-agent.io/unified-memory"] == "true"
    assert dict(card.resources)["koordinator.sh/gpu-memory"] == "125Gi"


@pytest.mark.parametrize("make", [wsl, tegra])
def test_cards_that_no_bus_shows_are_sighted_and_start_a_worker(
    stub: Stub, empty_host: Path, make: object
) -> None:
    assert callable(make)
    make(empty_host)
    (device,) = NvidiaVendor().detect(LiveHostFiles(str(empty_host)), VendorSettings())
    assert (device.bus_id, device.minor, device.health.reason) == (None, None, "NotYetAsked")
    card = first(stub, empty_host, SYSTEM, library_dirs=[str(empty_host)])
    assert card.health.reason == "LibraryMissing"


def test_a_machine_of_another_maker_has_no_cards(empty_host: Path) -> None:
    assert NvidiaVendor().detect(LiveHostFiles(str(empty_host)), VendorSettings()) == ()
    (empty_host / "sys/devices/soc0/family").write_text("Snapdragon\n")
    assert find_hardware(LiveHostFiles(str(empty_host))).platform == ""


def test_the_file_of_a_jetson_identifies_it_too(empty_host: Path) -> None:
    (empty_host / "etc").mkdir()
    (empty_host / "etc/nv_tegra_release").write_text("# R36 (release)\n")
    assert find_hardware(LiveHostFiles(str(empty_host))).platform == "tegra"


def test_cards_on_the_bus_are_what_counts(tree: Path) -> None:
    wsl(tree)
    (tree / "sys/devices/soc0").mkdir(parents=True)
    tegra(tree)
    add_function(tree, "0000:c0:00.0", "nvidia-nvswitch", code="0x068000")
    hardware = find_hardware(LiveHostFiles(str(tree)))
    assert (hardware.platform, len(hardware.cards), hardware.switches) == ("", 8, 1)


def test_memory_that_the_kernel_shares_out_is_marked(stub: Stub, tree: Path) -> None:
    card = first(stub, tree, SYSTEM, gpu(0, BUSES[0], addressing=2, numanode=2))
    facts = dict(card.facts)
    assert (facts["addressing"], facts["memory-node"], facts["memory-use"]) == (
        "ats",
        "2",
        "approximate",
    )
    plain = dict(first(stub, tree, SYSTEM, gpu(0, BUSES[0], addressing=0)).facts)
    assert not {"addressing", "memory-node", "memory-use"} & set(plain)


def test_the_place_in_a_rack_is_reported(stub: Stub, tree: Path) -> None:
    line = gpu(0, BUSES[0], chassis='"1820000000001"', rack="7,3,1,1")
    facts = dict(first(stub, tree, SYSTEM, line).facts)
    rack_facts = {
        key: facts[key] for key in ("chassis-serial", "slot", "tray", "host", "peer-type")
    }
    assert rack_facts == {
        "chassis-serial": "1820000000001",
        "slot": "7",
        "tray": "3",
        "host": "1",
        "peer-type": "switch",
    }


def test_a_blank_rack_gives_no_facts() -> None:
    assert read_platform(bytes(44)) == ()
    assert read_platform(bytes(4) + b"\xff" * 40)[0] == ("ib-guid", "ff" * 16)


@pytest.mark.parametrize(
    ("system", "obstacle"),
    [
        ("confidential=1 ready=0", "ConfComputeNotReady"),
        ("confidential=1 ready=1", None),
        ("confidential=0 ready=0", None),
    ],
)
def test_confidential_cards_grant_nothing_until_they_are_ready(
    stub: Stub, tree: Path, system: str, obstacle: str | None
) -> None:
    card = first(stub, tree, f"{SYSTEM} {system}", *GPUS)
    assert dict(card.facts).get("unschedulable") == obstacle
    assert bool(card.resources) is (obstacle is None)


def test_a_guest_s_card_lacks_much_and_is_healthy(stub: Stub, tree: Path) -> None:
    guest = gpu(0, BUSES[0], **ABSENT, virt=2, events=0, remap=None, throttle=None)
    card = first(stub, tree, SYSTEM, guest)
    assert (card.health.state, card.minor) == (HealthState.HEALTHY, 0)
    assert dict(card.facts)["virtualization"] == "vgpu"
    assert card.resources


def test_imex_channels_are_listed(stub: Stub, tree: Path) -> None:
    folder = tree / "dev/nvidia-caps-imex-channels"
    folder.mkdir(parents=True)
    for name in ("channel0", "channel1", "channel5", "channelX", "other", "channel99999999"):
        (folder / name).touch()
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        assert dict(child.discover().facts)["imex-channels"] == "0-1,5"


def test_of_cards_with_one_uuid_the_second_cannot_be_granted(stub: Stub, tree: Path) -> None:
    twin = gpu(3, BUSES[3], uuid="GPU-00000000-0000-4000-8000-000000000001")
    stub.play(SYSTEM, *GPUS[:3], twin, *GPUS[4:])
    with on_tree(stub, tree) as child:
        inventory = child.discover()
    assert [p.reason for p in inventory.problems] == ["DuplicateUUID"]
    assert (inventory.devices[1].health.reason, bool(inventory.devices[1].resources)) == (
        "DeviceHealthy",
        True,
    )
    second = inventory.devices[3]
    assert (second.uuid, second.minor, second.resources) == (None, 3, ())
    assert second.health.reason == "DuplicateUUID"


@pytest.mark.parametrize(
    ("lie", "member", "value"),
    [
        ({"minor": -5}, "minor", 0),
        ({"minor": 4294967295}, "minor", 0),
        ({"module": 4294967295}, "module_id", None),
        ({"mem": -4096}, "memory_bytes", None),
    ],
)
def test_numbers_that_cannot_be_are_not_believed(
    stub: Stub, tree: Path, lie: dict[str, object], member: str, value: int | None
) -> None:
    card = first(stub, tree, SYSTEM, gpu(0, BUSES[0], **lie))
    assert getattr(card, member) == value


def test_two_cards_with_one_minor_are_in_no_partition(stub: Stub, tree: Path) -> None:
    links = [f"link {i} {n} state=1 type=2" for i in range(8) for n in range(18)]
    stub.play(SYSTEM, *GPUS[:7], gpu(7, BUSES[7], minor=6), *links)
    with on_tree(stub, tree) as child:
        inventory = child.discover()
    assert {key for g in inventory.groups for key in g.keys} == set(BUSES[:6])
