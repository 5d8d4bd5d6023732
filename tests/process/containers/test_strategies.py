"""A strategy on this machine's kernel: asked for by a NodeSLO, explained, killed, switched off."""

from __future__ import annotations

import json
from typing import Any

from tests.process.citizen import NODE
from tests.process.containers.scene import Scene, play
from tests.process.containers.test_files import OWN_GROUPS
from tests.realgroups import RealGroups, needs_v1, real_groups

pytestmark = needs_v1

ID = f"{7:064x}"
SOURCE = "NodeSLO spec.cpuBurstStrategy"
QUOTA, BURST = "cpu.cfs_quota_us", "cpu.cfs_burst_us"
FIRST, BURSTING = ["100000", "0"], ["100000", "50000"]


def slo(**burst: object) -> dict[str, Any]:
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": {"name": NODE},
        "spec": {"cpuBurstStrategy": burst},
    }


class Service:
    """A latency-sensitive pod with a limit of one core, in real groups."""

    def __init__(self, scene: Scene, groups: RealGroups) -> None:
        self._groups = groups
        scene.prefix = ("unshare", "--mount", "--", "sh", "-c", OWN_GROUPS, groups.root)
        uid = scene.bound(
            "web",
            {},
            labels={"koordinator.sh/qosClass": "LS"},
            resources={"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
        )
        status = {"name": "main", "containerID": f"containerd://{ID}", "image": "i", "imageID": "i"}
        more = {"ready": True, "restartCount": 0, "state": {"running": {}}}
        result = scene.api.get("pods", "web", "team-a")
        assert result is not None
        scene.api.put(
            {
                **result,
                "status": {"phase": "Running", "containerStatuses": [{**status, **more}]},
            }
        )
        top = groups.make(f"{groups.root}/kubepods")
        self.group = groups.make(f"{groups.make(f'{top}/burstable')}/pod{uid}")
        self.inner = groups.make(f"{self.group}/{ID}")
        for group in (self.group, self.inner):
            groups.put(group, QUOTA, FIRST[0])
        groups.sleeper(self.inner)

    def values(self) -> list[list[str]]:
        """Return quota and burst of the container."""
        return [[self._groups.get(self.inner, name) for name in (QUOTA, BURST)]]

    @property
    def file(self) -> str:
        """The path of the container's burst as the agent has it."""
        below = self.inner.removeprefix(self._groups.root)
        return f"/sys/fs/cgroup/cpu{below}/{BURST}"


async def explained(scene: Scene, *words: str) -> Any:
    socket = await scene.admin_socket()
    command = await scene.command("explain", *words, "--socket", socket, "-o", "json")
    assert command.returncode == 0, command.stderr
    return json.loads(command.stdout)


async def until_strategy(scene: Scene, mode: str, state: str) -> None:
    """Wait for mode and state of the strategy, which the agent shows after it wrote the files."""

    def is_shown() -> bool:
        strategies = scene.agent.snapshot()["containers"]["enforcement"]["value"]["strategies"]
        return (mode, state) in [
            (one["mode"], one["state"]) for one in strategies if one["name"] == "cpu_burst"
        ]

    await scene.until(is_shown, f"the strategy is {mode} and {state}")


def audited(scene: Scene, path: str) -> list[tuple[str, str]]:
    """Return value and restore of each change of a file, the newest first."""
    rows = json.loads(scene.agent.get("api/v1/audit")[1])["audit"]
    return [(row["new"], row["restore"]) for row in rows if row["path"] == path]


def test_values_of_a_node_slo_are_set_explained_and_undone_after_a_kill_and_a_switch() -> None:
    async def act(scene: Scene) -> None:
        with real_groups() as groups:
            service = Service(scene, groups)
            await scene.begin()
            assert service.values() == [FIRST]
            scene.api.put(slo(policy="cpuBurstOnly", cpuBurstPercent=50))
            await scene.until(lambda: service.values() == [BURSTING], "the burst")
            await until_strategy(scene, "on", "active")

            file = (await explained(scene, "file", service.file))["file"]
            assert (file["current"], file["original"]) == ("50000", "0")
            (desired,) = file["requests"]
            assert (desired["by"], desired["wins"]) == ("cpu_burst", True)
            assert desired["source"].startswith(SOURCE)
            assert file["changes"][-1]["reason"] == "UpdateCgroups"
            pod = await explained(scene, "pod", "team-a/web")
            assert service.file in [one["path"] for one in pod["files"]]
            planned = json.loads((await scene.command("plan", "-o", "json")).stdout)
            assert planned["nodeslo"]["found"]
            assert [change for change in planned["changes"] if change["owner"] == "cpu_burst"] == []
            metrics = await scene.get("metrics")
            assert (
                'xpu_agent_strategy_state{node="node-a",strategy="cpu_burst",state="active"} 1'
                in (metrics)
            )
            assert 'owner="cpu_burst",result="written"} 2' in metrics

            await scene.kill()
            assert service.values() == [BURSTING]
            scene.tell(ENFORCE__STRATEGIES__CPU_BURST="off")
            planned = json.loads((await scene.command("plan", "-o", "json")).stdout)
            restores = [change for change in planned["changes"] if change["action"] == "restore"]
            assert [(restore["current"], restore["desired"]) for restore in restores] == [
                ("50000", "0")
            ] * 2
            await scene.begin()
            await scene.until(lambda: service.values() == [FIRST], "the original values")
            await until_strategy(scene, "off", "off")
            restored = [("0", "restored"), ("50000", "")]
            await scene.until(lambda: audited(scene, service.file) == restored, "the audit")
            assert (await scene.command("restore", "--dry-run")).stdout == "nothing was recorded\n"
            assert await scene.end() == 0  # with all records in the file
            lines = (scene.folder / "state" / "audit.jsonl").read_text().splitlines()
            assert [json.loads(line)["new"] for line in lines if service.file in line] == [
                "50000",
                "0",
            ]

    play(act)


def test_nothing_is_enforced_in_mode_off_and_the_originals_come_back_after_a_restart() -> None:
    async def act(scene: Scene) -> None:
        with real_groups() as groups:
            service = Service(scene, groups)
            scene.api.put(slo(policy="cpuBurstOnly", cpuBurstPercent=50))
            await scene.begin()
            await scene.until(lambda: service.values() == [BURSTING], "the burst")
            assert await scene.end() == 0
            assert service.values() == [BURSTING], "a stop changes nothing"
            scene.tell(ENFORCE__MODE="off")
            await scene.begin()
            await scene.until(lambda: service.values() == [FIRST], "the original values")
            doctor = await scene.doctor()
            assert doctor["enforcement:cpu_burst"][0] == "warn"

    play(act)


def test_originals_are_restored_at_once_when_the_node_slo_requests_nothing() -> None:
    async def act(scene: Scene) -> None:
        with real_groups() as groups:
            service = Service(scene, groups)
            scene.api.put(slo(policy="cpuBurstOnly", cpuBurstPercent=50))
            await scene.begin()
            await scene.until(lambda: service.values() == [BURSTING], "the burst")
            scene.api.put(slo(policy="none"))
            await scene.until(lambda: service.values() == [FIRST], "the original values")
            await until_strategy(scene, "on", "idle")

    play(act)


def test_an_unknown_subject_is_reported_with_status_1() -> None:
    async def act(scene: Scene) -> None:
        await scene.begin()
        socket = await scene.admin_socket()
        for words in (("pod", "team-a/none"), ("device", "GPU-none"), ("file", "/etc/shadow")):
            command = await scene.command("explain", *words, "--socket", socket)
            assert (command.returncode, command.stdout) == (1, "")
            assert command.stderr.startswith("xpu-agent: ")
        wrong = await scene.command("explain", "pod", "web", "--socket", socket)
        assert wrong.returncode == 2
        device = await explained(scene, "device", "FAKE-0")
        assert device["device"]["uuid"] == "FAKE-0"

    play(act)
