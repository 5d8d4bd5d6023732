"""Limits of block IO on this machine's kernel: asked for, explained, killed, switched off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.process.citizen import NODE
from tests.process.containers.scene import Scene, play
from tests.process.containers.test_files import OWN_GROUPS
from tests.realgroups import RealGroups, needs_blkio, real_groups

pytestmark = needs_blkio

READ, WRITE = "blkio.throttle.read_bps_device", "blkio.throttle.write_iops_device"
GROUPS = OWN_GROUPS.replace("cpuset memory", "cpuset memory blkio")
SETTINGS = {"ENFORCE__STRATEGIES__BLOCK_IO": "on", "COLLECT__STORAGE_INTERVAL_S": "1"}


def disk() -> tuple[str, str]:
    """Return name and number of a whole disk of this machine."""
    blocks = Path("/sys/class/block")
    folder = next(
        one
        for one in sorted(blocks.iterdir())
        if not (one / "partition").exists() and int((one / "size").read_text())
    )
    return folder.name, (folder / "dev").read_text().strip()


def slo(*blocks: dict[str, Any]) -> dict[str, Any]:
    be_class = {"blkioQOS": {"enable": True, "blocks": list(blocks)}}
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": {"name": NODE},
        "spec": {"resourceQOSStrategy": {"beClass": be_class}},
    }


class Kubepods:
    """The kubelet's groups on the real kernel, and one pod that limits its own IO."""

    def __init__(self, scene: Scene, groups: RealGroups) -> None:
        self._groups = groups
        scene.prefix = ("unshare", "--mount", "--", "sh", "-c", GROUPS, groups.root)
        self.name, self.number = disk()
        blocks = [{"name": self.name, "ioCfg": {"writeIOPS": 77}}]
        uid = scene.bound(
            "web",
            {"koordinator.sh/blkioQOS": json.dumps({"blocks": blocks})},
            labels={"koordinator.sh/qosClass": "LS"},
        )
        result = scene.api.get("pods", "web", "team-a")
        assert result is not None
        scene.api.put({**result, "status": {"phase": "Running", "qosClass": "Burstable"}})
        top = groups.make(f"{groups.root}/kubepods")
        self.best_effort = groups.make(f"{top}/besteffort")
        self.pod = groups.make(f"{groups.make(f'{top}/burstable')}/pod{uid}")

    def lines(self) -> tuple[str, str]:
        """Return the line of best-effort pods and that of the pod."""
        return (
            self._groups.get(self.best_effort, READ),
            self._groups.get(self.pod, WRITE),
        )


async def explain_file(scene: Scene, path: str) -> Any:
    socket = await scene.admin_socket()
    command = await scene.command("explain", "file", path, "--socket", socket, "-o", "json")
    assert command.returncode == 0, command.stderr
    return json.loads(command.stdout)


def test_limits_of_a_node_slo_and_of_a_pod_are_set_explained_and_undone() -> None:
    async def act(scene: Scene) -> None:
        with real_groups("blkio") as groups:
            kubepods = Kubepods(scene, groups)
            number = kubepods.number
            own = f"{number} 77"
            scene.tell(**SETTINGS)
            await scene.begin()
            await scene.until(lambda: kubepods.lines() == ("", own), "the limit of the pod")
            scene.api.put(slo({"name": kubepods.name, "ioCfg": {"readBPS": 1048576}}))
            limited = (f"{number} 1048576", own)
            await scene.until(lambda: kubepods.lines() == limited, "the limit of the class")

            below = kubepods.best_effort.removeprefix(groups.root)
            planned = json.loads((await scene.command("plan", "-o", "json")).stdout)
            assert [change for change in planned["changes"] if change["owner"] == "block_io"] == []
            rows = json.loads(await scene.get("api/v1/audit"))["audit"]
            (row,) = [one for one in rows if one["path"].endswith(f"{below}/{READ}")]
            assert (row["key"], row["new"]) == (f"{READ} {number}", limited[0])
            assert row["source"].endswith("beClass.blkioQOS")

            file = f"/sys/fs/cgroup/blkio{below}/{READ}"
            explained = (await explain_file(scene, file))["file"]
            assert (explained["current"], explained["original"]) == (limited[0], f"{number} 0")
            (desired,) = explained["requests"]
            assert (desired["by"], desired["value"], desired["wins"]) == (
                "block_io",
                limited[0],
                True,
            )
            unwanted = await explain_file(scene, f"/sys/fs/cgroup/blkio/kubepods/{READ}")
            assert (unwanted["file"]["current"], unwanted["file"]["requests"]) == ("", [])

            await scene.kill()
            assert kubepods.lines() == limited
            dry = await scene.command("restore", "--dry-run")
            assert f"{below}/{READ} {number} 1048576 → unset" in dry.stdout
            await scene.begin()
            scene.api.put(slo())
            await scene.until(lambda: kubepods.lines() == ("", own), "the class without a limit")
            assert await scene.end() == 0
            scene.tell(ENFORCE__STRATEGIES__BLOCK_IO="off")
            await scene.begin()
            await scene.until(lambda: kubepods.lines() == ("", ""), "the original lines")

    play(act)
