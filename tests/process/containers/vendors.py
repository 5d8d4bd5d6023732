"""Machines of each maker in a scene: its stub library, its device nodes, its settings."""

from __future__ import annotations

from tests.fault.nvml_stub import gpu
from tests.process.containers.scene import Scene
from tests.stubs.dcmi.machines import b3x8
from tests.stubs.nvml.statements import Translator
from tests.stubs.stub import Stub
from tests.unit.cambricon.cards import card
from tests.unit.nvidia.conftest import BUSES

SYSTEM = "system driver=570.124.06 cuda=12080"
NVIDIA_MAJOR, UVM_MAJOR = 195, 510
KERNEL_MAJOR = 1
NODES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}  # that any program needs


def uuid(number: int) -> str:
    """Return the UUID of a card of NVIDIA's."""
    return f"GPU-00000000-0000-4000-8000-00000000000{number}"


def play_cards(stub: Stub, count: int, *more: str) -> None:
    """Have so many healthy H100 in the driver, and what else is said of them."""
    cards = (gpu(number, BUSES[number]) for number in range(count))
    stub.play(*Translator().lines((SYSTEM, *cards, *more)))


def nvidia(scene: Scene, count: int) -> Stub:
    """Have NVIDIA's driver and nodes for so many cards."""
    folder = scene.folder / "nvml"
    folder.mkdir()
    stub = Stub("nvml", folder)
    play_cards(stub, count)
    stub.installed()
    majors = f"Character devices:\n{NVIDIA_MAJOR} nvidia\n{UVM_MAJOR} nvidia-uvm\n"
    (scene.root / "proc").mkdir()
    (scene.root / "proc/devices").write_text(majors)
    for number in range(count):
        scene.node(f"/dev/nvidia{number}", number, NVIDIA_MAJOR)
    scene.node("/dev/nvidiactl", 255, NVIDIA_MAJOR)
    scene.node("/dev/nvidia-uvm", 0, UVM_MAJOR)
    scene.tell(
        DISCOVERY__VENDORS__NVIDIA="on",
        DISCOVERY__NVIDIA__LIBRARY_DIRS=str(folder),
    )
    return stub


def ascend(scene: Scene, count: int) -> Stub:
    """Have Ascend's driver and nodes for so many 910B3, and for their first vNPUs."""
    folder = scene.folder / "dcmi"
    folder.mkdir()
    stub = Stub("dcmi", folder)
    stub.play(*b3x8(count))
    for number in range(count):
        scene.node(f"/dev/davinci{number}", number)
    for number, name in enumerate(("davinci_manager", "devmm_svm", "hisi_hdc"), 64):
        scene.node(f"/dev/{name}", number)
    scene.tell(
        DISCOVERY__VENDORS__ASCEND="on", DISCOVERY__ASCEND__LIBRARY_PATH=str(stub.installed())
    )
    return stub


def cambricon(scene: Scene, count: int) -> Stub:
    """Have Cambricon's driver and nodes for so many cards that can be cut into sMLU slices."""
    folder = scene.folder / "cndev"
    folder.mkdir()
    stub = Stub("cndev", folder)
    lines = [f"count {count}", "driver_version 4:20:11"]
    stub.play(*lines, *(line for number in range(count) for line in card(number, smlu_mode=1)))
    for number in range(count):
        scene.node(f"/dev/cambricon_dev{number}", number)
    scene.node("/dev/cambricon_ctl", 64)
    path = str(stub.installed())
    scene.tell(DISCOVERY__VENDORS__CAMBRICON="on", DISCOVERY__CAMBRICON__LIBRARY_PATH=path)
    return stub


def own_dev(scene: Scene) -> None:
    """Have the agent see the host's nodes as its own /dev, as in its container."""
    for name, minor in NODES.items():
        scene.node(f"/dev/{name}", minor, KERNEL_MAJOR)
    script = 'mount --bind "$0" /dev && exec "$@"'
    dev = str(scene.root / "dev")
    scene.prefix = ("unshare", "--mount", "--", "sh", "-c", script, dev)
