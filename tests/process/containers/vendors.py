"""Machines of each maker in a scene: its stub library, its device nodes, its settings."""

from __future__ import annotations

from tests.fault.nvml_stub import gpu
from tests.process.containers.scene import Scene
from tests.stubs.nvml.statements import Translator
from tests.stubs.stub import Stub
from tests.unit.nvidia.conftest import BUSES

SYSTEM = "system driver=570.124.06 cuda=12080"
NVIDIA_MAJOR, UVM_MAJOR = 195, 510


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
