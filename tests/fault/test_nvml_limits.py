"""NVML that can less, or is forbidden: fields stay absent with a reason, and no card failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.snapshot.device import HealthState
from agent.snapshot.inventory import Inventory
from tests.fault.nvml_stub import NEWEST, Stub, add_function, on_tree

SYSTEM = "system driver=570.86.15 cuda=12080"
BUS = "0000:23:00.0"
CARD = (
    f'gpu 0 uuid=GPU-00000000-0000-4000-8000-000000000000 minor=0 bus={BUS} name="NVIDIA H100 80GB '
    'HBM3" mem=85520809984 reserved=500 used=1500 util=3,4 power=90000 temp=40 arch=9 cc=9.0'
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    uuid = "GPU-00000000-0000-4000-8000-000000000000"
    add_function(root, BUS, Model="NVIDIA H100 80GB HBM3", GPU_UUID=uuid, Device_Minor="0")
    return root


def missing(inventory: Inventory) -> set[str]:
    listed = dict(inventory.facts).get("missing-symbols", "")
    return set(listed.split(",")) - {""}


@pytest.mark.parametrize("level", [450, 510, 535, 570, NEWEST])
def test_a_driver_that_lacks_calls_names_them_and_reports_the_rest(
    tmp_path: Path, tree: Path, level: int
) -> None:
    stub = Stub(tmp_path, level)
    stub.play(SYSTEM, CARD)
    with on_tree(stub, tree) as child:
        child.discover()
        child.sample()
        result = child.discover()
        (sample,) = child.sample()
    (card,) = result.devices
    assert (card.uuid or "").startswith("GPU-")
    assert card.memory_bytes
    assert card.health.state is HealthState.HEALTHY
    assert sample.core_percent == 3
    assert all(name.startswith("nvml") for name in missing(result))
    assert bool(missing(result)) == (level < NEWEST)


def test_a_newer_driver_lacks_no_more_than_an_older_one(tmp_path: Path, tree: Path) -> None:
    lacks = []
    for level in (450, 510, 535, 570, NEWEST):
        folder = tmp_path / str(level)
        folder.mkdir()
        stub = Stub(folder, level)
        stub.play(SYSTEM, CARD)
        with on_tree(stub, tree) as child:
            lacks.append(len(missing(child.discover())))
    assert lacks == sorted(lacks, reverse=True)


@pytest.mark.parametrize(
    "refused",
    ["nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo_v2"],
)
def test_a_permission_that_is_lost_is_no_failure_of_the_card(
    tmp_path: Path, tree: Path, refused: str
) -> None:
    stub = Stub(tmp_path)
    stub.play(SYSTEM, CARD)
    with on_tree(stub, tree) as child:
        before = child.discover()
        stub.play(SYSTEM, CARD, f"error {refused} 4")
        result = child.discover()
        stub.play(SYSTEM, CARD)
        after = child.discover()
    assert [d.health.state for d in before.devices] == [HealthState.HEALTHY]
    assert [d.key for d in result.devices] == [BUS]
    assert all(d.health.state is not HealthState.FAILED for d in result.devices)
    if refused == "nvmlDeviceGetHandleByPciBusId_v2":
        assert [d.health.reason for d in result.devices] == ["NoPermission"]
    assert [d.health.state for d in after.devices] == [HealthState.HEALTHY]
