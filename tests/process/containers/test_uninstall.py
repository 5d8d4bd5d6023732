"""A node that the agent leaves for good is as it was before the agent came."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
from pathlib import Path

import pytest

from tests.process.citizen import NODE
from tests.process.containers.scene import Scene, play
from tests.process.containers.test_files import DESIRED, OWN_GROUPS, BatchPod
from tests.process.containers.test_kubelet import GPU
from tests.process.containers.vendors import ascend, nvidia
from tests.realgroups import CONTROLLERS, RealGroups, needs_v1, real_groups
from tests.resctrl.emulator import Resctrl
from tests.resctrl.fuse import mounted, unavailable_reason

pytestmark = [
    needs_v1,
    pytest.mark.root,
    pytest.mark.skipif(bool(unavailable_reason()), reason=f"no resctrl: {unavailable_reason()}"),
]
SLO = {
    "apiVersion": "slo.koordinator.sh/v1alpha1",
    "kind": "NodeSLO",
    "metadata": {"name": NODE},
    "spec": {
        "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"},
        "resourceQOSStrategy": {
            "beClass": {
                "resctrlQOS": {
                    "enable": True,
                    "catRangeStartPercent": 0,
                    "catRangeEndPercent": 30,
                    "mbaPercent": 30,
                }
            }
        },
    },
}
LIMITED = [DESIRED[0], "-1", DESIRED[2]]  # the quota of the class limits the pod
# files that are written to act, or that count; all others keep what was written
NO_SETTINGS = re.compile(
    r"cgroup\.(procs|event_control)|tasks|.*(usage|failcnt|force_empty|pressure_level|max_usage).*"
)
OWN_PROGRAM = OWN_GROUPS.replace(
    'exec "$@"', f'shift 3; exec {sys.executable} -m tests.resctrl.program "$@"'
)
KUBELETS_OWN = {"kubelet.sock", "kubelet_internal_checkpoint"}


def settings_of(groups: RealGroups) -> dict[str, str]:
    """Return every setting of every group, by the path of its file."""
    values = {}
    for controller in CONTROLLERS:
        top = groups.path(controller, groups.root)
        for path in sorted(top.rglob("*")):
            mode = path.lstat().st_mode
            is_writable = stat.S_ISREG(mode) and mode & 0o200 and mode & 0o400
            if is_writable and not NO_SETTINGS.fullmatch(path.name):
                values[str(path)] = _read(path)
    return values


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:  # a file that this kernel does not let anybody read
        return os.strerror(error.errno or 0)


def files_of(*folders: Path) -> dict[str, str]:
    """Return the kind and the content of everything in these folders; absent ones are left out."""
    found = {}
    for folder in folders:
        for path in (folder, *sorted(folder.rglob("*"))) if folder.exists() else ():
            if path.name not in KUBELETS_OWN:
                is_file = stat.S_ISREG(path.lstat().st_mode)
                content = hashlib.sha256(path.read_bytes()).hexdigest() if is_file else ""
                found[str(path)] = f"{stat.S_IFMT(path.lstat().st_mode):o} {content}"
    return found


def test_a_restore_with_purge_after_a_kill_leaves_the_host_as_it_was() -> None:
    async def act(scene: Scene) -> None:
        folder = scene.folder
        mount, infos = folder / "resctrl", folder / "infos"
        folders = (folder / "cdi", folder / "state", folder / "node" / "run", folder / "k", infos)
        for one in (mount, infos, folder / "cdi", folder / "proxy"):
            one.mkdir()
        nvidia(scene, 2)
        ascend(scene, 1)
        scene.tell(
            DEVICE_PLUGIN__VENDORS="nvidia",
            PUBLISH__DEVICE_INFO_FILES="true",
            PUBLISH__DEVICE_INFO_DIRECTORY=str(infos),
        )
        await scene.kubelet.start()
        with real_groups() as groups, mounted(Resctrl(), mount):
            batch = BatchPod(scene, groups)
            scene.prefix = ("unshare", "--mount", "--", "sh", "-c", OWN_PROGRAM, groups.root)
            classes = sorted(path.name for path in mount.iterdir())
            schemata = (mount / "schemata").read_text()
            await scene.runtime.run_pod(batch.pod)
            batch.inner = groups.make(f"{batch.group}/{7:064x}")
            groups.sleeper(batch.inner)
            before = {**settings_of(groups), **files_of(*folders)}

            scene.api.put(SLO)
            await scene.begin()
            await scene.until(lambda: batch.values(batch.group) == LIMITED, "the files of the pod")
            await scene.until((mount / "BE").is_dir, "the class of resctrl")
            await scene.kubelet.resource(GPU, healthy=2)
            await scene.until(lambda: bool(list(folder.glob("cdi/xpu-agent-*"))), "the CDI file")
            await scene.until(lambda: bool(list(infos.iterdir())), "the device-info file")
            await scene.until((folder / "state/published-minors.json").exists, "minors")
            await scene.kill()
            during = {**settings_of(groups), **files_of(*folders)}
            changed = sorted(path for path in during if during[path] != before.get(path))
            print(f"{len(changed)} files changed or made")  # noqa: T201 - a figure

            planned = await scene.command("restore", "--dry-run")
            assert planned.returncode == 0, planned.stderr
            command = await scene.command("restore", "--purge")
            print(command.stdout)  # noqa: T201 - what a person would see
            assert command.returncode == 0, command.stdout + command.stderr
            after = {**settings_of(groups), **files_of(*folders)}
            assert {path for path in before | after if before.get(path) != after.get(path)} == set()
            assert sorted(path.name for path in mount.iterdir()) == classes
            assert (mount / "schemata").read_text() == schemata
            again = await scene.command("restore", "--purge")
            assert (again.returncode, again.stdout.splitlines()[0]) == (0, "nothing was recorded")

    play(act, cards=0)
