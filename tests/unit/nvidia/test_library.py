from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.snapshot.device import HealthState
from agent.workers.protocol import ErrorReply
from plugins.vendors.nvidia.library.nvml import find_library, library_dirs
from plugins.vendors.nvidia.settings import NvidiaSettings
from tests.fault.nvml_stub import ROOT, Stub, add_function, build, gpu, on_tree
from tests.unit.nvidia.conftest import BUSES

SYSTEM = "system driver=570.124.06 cuda=12080"
GPUS = tuple(gpu(i, bus) for i, bus in enumerate(BUSES))
LIBRARY = "libnvidia-ml.so.1"


def test_a_library_that_appears_later_is_used_without_a_restart(
    stub: Stub, tree: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "driver"
    empty.mkdir()
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree, library_dirs=[str(empty)]) as child:
        before = child.discover()
        assert child.sample() == ()
        shutil.copy(build() / LIBRARY, empty / LIBRARY)
        after = child.discover()
    assert {(d.health.state, d.health.reason) for d in before.devices} == {
        (HealthState.SUSPECT, "LibraryMissing")
    }
    assert [d.uuid for d in before.devices] == [d.uuid for d in after.devices]
    assert [p.reason for p in before.problems] == ["LibraryMissing"]
    assert {d.health.reason for d in after.devices} == {"DeviceHealthy"}
    assert after.library is not None
    assert after.library.startswith(str(empty / LIBRARY))


DRIVER_IS_LATE = """
import os, sys
from agent.clock import ManualClock
from agent.recording.host_source import open_host
from plugins.vendors.nvidia.session import NvidiaSession
from plugins.vendors.nvidia.settings import NvidiaSettings

tree, mounted, folder = sys.argv[1:]
clock = ManualClock(mono_s=0.0)
settings = NvidiaSettings(library_dirs=(folder,))
session = NvidiaSession(open_host(tree).files, settings, clock=clock)
assert session.discover().problems[0].reason == "LibraryMissing"
clock.advance(31.0)
assert session.sample() == () and session.events(0.0) == ()
os.rename(mounted, folder)
session.sample()
assert session.events(0.0) == ()
clock.advance(31.0)
session.sample()
assert [event.reason for event in session.events(0.0)] == ["DriverCame"]
assert all(device.health.is_in_service for device in session.discover().devices)
clock.advance(31.0)
assert len(session.sample()) == 8
assert "DriverCame" not in [event.reason for event in session.events(0.0)]
"""


def test_a_library_that_comes_after_its_module_requests_a_discovery(
    stub: Stub, tree: Path, tmp_path: Path
) -> None:
    # a driver container loads its module first, and no uevent reports the mount of its files
    stub.play(SYSTEM, *GPUS)
    shutil.copytree(build(), tmp_path / "container")
    arguments = [str(tree), str(tmp_path / "container"), str(tmp_path / "driver")]
    subprocess.run(
        [sys.executable, "-c", DRIVER_IS_LATE, *arguments],
        env={**os.environ, **stub.environment},
        cwd=ROOT,
        check=True,
        timeout=60,
    )


def test_a_library_that_was_replaced_needs_a_new_process(
    stub: Stub, tree: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "driver"
    folder.mkdir()
    shutil.copy(build() / LIBRARY, folder / LIBRARY)
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree, library_dirs=[str(folder)]) as child:
        child.discover()
        shutil.copy(build(570) / LIBRARY, folder / "upgraded")
        (folder / "upgraded").replace(folder / LIBRARY)
        replies = [child.ask("discover"), child.ask("sample")]
    for reply in replies:
        assert isinstance(reply, ErrorReply)
        assert reply.kind == "LibraryReplaced"
        assert "was replaced" in reply.message


@pytest.mark.parametrize("code", [1, 17, 18])
def test_a_library_that_lost_its_driver_needs_a_new_process(
    stub: Stub, tree: Path, code: int
) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, *GPUS, f"error nvmlDeviceGetHandleByPciBusId_v2 {code}")
        reply = child.ask("discover")
    assert isinstance(reply, ErrorReply)
    assert "start a new process" in reply.message


def test_a_file_that_is_no_library_counts_as_missing(
    stub: Stub, tree: Path, tmp_path: Path
) -> None:
    (tmp_path / LIBRARY).write_text("not for this machine")
    with on_tree(stub, tree, library_dirs=[str(tmp_path)]) as child:
        assert {d.health.reason for d in child.discover().devices} == {"LibraryMissing"}


@pytest.mark.parametrize(
    ("code", "reason"), [(9, "DriverMissing"), (4, "NoPermission"), (18, "DriverMismatch")]
)
def test_a_driver_that_cannot_be_reached_is_tried_again_at_each_discovery(
    stub: Stub, tree: Path, code: int, reason: str
) -> None:
    stub.play(SYSTEM, *GPUS, f"error nvmlInitWithFlags {code}")
    with on_tree(stub, tree) as child:
        before = child.discover()
        stub.play(SYSTEM, *GPUS)
        after = child.discover()
    assert [p.reason for p in before.problems] == [reason]
    assert {d.health.reason for d in before.devices} == {reason}
    assert {d.health.reason for d in after.devices} == {"DeviceHealthy"}


def test_the_driver_is_started_once_and_needs_no_card(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        child.discover()
        child.discover()
        calls = stub.take_calls()
    assert [c for c in calls if c.startswith("nvmlInit")] == ["nvmlInitWithFlags 1"]


def test_a_node_whose_cards_belong_to_guests_is_no_error(stub: Stub, tmp_path: Path) -> None:
    tree = tmp_path / "guests"
    (tree / "proc").mkdir(parents=True)
    add_function(tree, BUSES[0], "vfio-pci")
    stub.play(SYSTEM)
    with on_tree(stub, tree) as child:
        inventory = child.discover()
    assert [(d.managed, d.health.reason) for d in inventory.devices] == [(False, "BoundToVFIO")]
    assert inventory.problems == ()


def test_a_recorded_host_is_never_queried_with_this_machines_library(
    stub: Stub, tree: Path
) -> None:
    add_function(tree, "0000:c1:00.0", None)
    add_function(tree, "0000:c2:00.0", "nouveau")
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree, replay=True) as child:
        inventory = child.discover()
        assert child.sample() == ()
    assert stub.take_calls() == []
    assert [(d.health.reason, d.managed) for d in inventory.devices] == [
        *[("NoRecordedAnswers", True)] * 8,
        ("NoRecordedAnswers", False),
        ("BoundToNouveau", False),
    ]


def test_a_call_that_hangs_is_the_parents_to_end(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, *GPUS, "hang nvmlDeviceGetMemoryInfo_v2 3")
        with pytest.raises(TimeoutError):
            child.ask("sample", 1.0)
        assert child.process.poll() is None


def test_a_library_that_crashes_takes_only_the_worker(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS, "crash nvmlDeviceGetName")
    with on_tree(stub, tree) as child, pytest.raises(EOFError):
        child.ask("discover")


def test_an_orderly_end_releases_the_driver(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        child.discover()
        child.ask("close")
        child.process.wait(10)
    ended = [c for c in stub.take_calls() if c in ("nvmlEventSetFree", "nvmlShutdown")]
    assert ended == ["nvmlEventSetFree", "nvmlShutdown"]


def test_the_binding_is_not_imported_for_detection() -> None:
    code = "import sys, plugins.vendors.nvidia.vendor; print('pynvml' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def test_the_usual_places_are_those_of_the_driver_root() -> None:
    assert (
        library_dirs(NvidiaSettings(driver_root="/run/nvidia/driver"))[0]
        == "/run/nvidia/driver/usr/lib64"
    )
    usual = library_dirs(NvidiaSettings())
    assert "/usr/lib/x86_64-linux-gnu" in usual
    assert "/run/nvidia/driver/usr/lib64" in usual
    assert "/usr/lib/wsl/lib" in usual
    assert library_dirs(NvidiaSettings(library_dirs=("/opt/nv",))) == ("/opt/nv",)


def test_without_a_file_in_the_usual_places_the_loader_searches(tmp_path: Path) -> None:
    assert find_library(NvidiaSettings(driver_root=str(tmp_path))) == LIBRARY
