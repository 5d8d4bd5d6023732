"""Tasks of this machine's own cgroups in an emulated file system, by system calls only."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.cgroup.ledger import ChangeLedger
from agent.clock import ManualClock
from agent.config.containers import ResctrlSettings
from agent.resctrl.files import KernelResctrlFiles, mount_resctrl
from agent.resctrl.manager import ResctrlManager
from agent.snapshot.pod import ContainerView
from tests.realgroups import MOUNT, RealGroups, needs_v1, real_groups
from tests.resctrl.emulator import Resctrl
from tests.resctrl.fuse import mounted, unavailable_reason
from tests.resctrl.host import MOUNT_TABLE, POINT
from tests.unit.resctrl.scene import SLO_STALE_S, Scene, qos, uid

REASON = unavailable_reason()
pytestmark = [
    needs_v1,
    pytest.mark.root,
    pytest.mark.skipif(bool(REASON), reason=f"no emulator: {REASON}"),
]

THREADS = """\
import threading, time
for _ in range(3):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    with real_groups() as created:
        yield created


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", THREADS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
        child.kill()


def test_all_threads_of_a_container_are_moved_and_later_ones_follow(
    groups: RealGroups, process: subprocess.Popen[str], tmp_path: Path
) -> None:
    pod = groups.pod(uid(1))
    container = groups.container(pod, 1)
    (groups.path("cpu", container) / "cgroup.procs").write_text(str(process.pid))
    root = tmp_path / "root"
    mount = root / POINT.strip("/")
    mount.mkdir(parents=True)
    (root / "sys/fs/cgroup").symlink_to(MOUNT)
    table = root / MOUNT_TABLE.strip("/")
    table.parent.mkdir(parents=True)
    table.write_text(f"40 24 0:36 / {POINT} rw shared:9 - resctrl resctrl rw\n")
    scene = Scene()
    scene.add_pod(1, "BE", tasks=0)
    view = ContainerView(id=f"{1:064x}", cgroup=container)
    scene.pods[1] = replace(scene.pods[1], containers=(view,))
    scene.set_class("BE", qos(0, 30))
    clock = ManualClock()
    manager = ResctrlManager(
        ledger=ChangeLedger(None, ""),
        clock=clock,
        mode="on",
        settings=ResctrlSettings(),
        slo_stale_s=SLO_STALE_S,
        files=KernelResctrlFiles(str(root)),
    )
    with mounted(Resctrl(), mount):
        manager.cycle(scene.snapshot, groups.layout)
        moved = {int(task) for task in (mount / "BE" / "tasks").read_text().split()}
        threads = {int(path.name) for path in Path(f"/proc/{process.pid}/task").iterdir()}
        assert moved == threads
        assert len(moved) == 4
        (mount / "BE").rmdir()  # by another program
        clock.advance(1)
        manager.cycle(scene.snapshot, groups.layout)
        clock.advance(1)
        manager.cycle(scene.snapshot, groups.layout)
        assert {int(task) for task in (mount / "BE" / "tasks").read_text().split()} == threads


def test_a_kernel_without_resctrl_refuses_the_mount(tmp_path: Path) -> None:
    if "resctrl" in Path("/proc/filesystems").read_text().split():
        pytest.skip("this kernel has resctrl")
    with pytest.raises(OSError) as refusal:  # noqa: PT011 - a container may not enter the host
        mount_resctrl(str(tmp_path))
    assert refusal.value.errno in (errno.ENODEV, errno.EPERM)
