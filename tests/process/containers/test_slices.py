"""Slices for pods, on both makers' stub libraries: cut, given, taken back, whoever dies between."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.process.containers.scene import ANY_REASON, GRANT, Scene, needs_root, play
from tests.process.containers.vendors import ascend, cambricon, own_dev
from tests.stubs.stub import Stub

pytestmark = needs_root


@dataclass(frozen=True)
class Maker:
    """How one maker's slices are asked for, and where they are seen."""

    machine: Callable[[Scene, int], Stub]
    asked: dict[str, Any]  # of the grant's entry
    path: str  # of the driver's lines about slices
    node: str  # of the first slice, on the host
    inside: tuple[str, ...]
    makes: str
    destroys: str

    def standing(self, stub: Stub) -> int:
        """Return how many slices the driver has."""
        last = dict(line.partition(" ")[::2] for line in stub.state())
        return sum(path.startswith(self.path) and bool(value) for path, value in last.items())


ASCEND = Maker(
    machine=ascend,
    asked={
        "resources": {"koordinator.sh/gpu-memory-ratio": "25"},
        "extension": {"gpuSharedResourceTemplate": "vir05_1c_16g"},
    },
    path="vdev.0.0.",
    node="/dev/vdavinci100",
    inside=("/dev/davinci100", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
    makes="dcmi_create_vdevice",
    destroys="dcmi_set_destroy_vdevice",
)
CAMBRICON = Maker(
    machine=cambricon,
    asked={
        "resources": {
            "koordinator.sh/gpu-core": "25",
            "koordinator.sh/gpu-memory": "5827Mi",
            "koordinator.sh/gpu-memory-ratio": "25",
        }
    },
    path="mlu.0.smlu.",
    node="/dev/cambricon-caps/cap_dev0_mi1",
    inside=("/dev/cambricon-caps/cap_dev0_mi1", "/dev/cambricon_ctl", "/dev/cambricon_dev0"),
    makes="cndevCreateSMluInstanceByProfileId",
    destroys="cndevDestroySMluInstanceByHandle",
)


def owners(scene: Scene) -> list[str]:
    """Return whose the slices are that the agent shows."""
    devices = scene.agent.snapshot()["parts"]["devices"]["value"]["devices"]
    return [part["owner"] for device in devices for part in device["info"]["partitions"]]


@pytest.mark.parametrize("maker", [ASCEND, CAMBRICON], ids=["ascend", "cambricon"])
def test_a_slice_is_cut_once_given_and_taken_back_by_agents_that_are_killed_between(
    maker: Maker,
) -> None:
    async def act(scene: Scene) -> None:
        stub = maker.machine(scene, 2)
        own_dev(scene)
        scene.node(maker.node, 100)
        scene.tell(PROOF__GRACE_S="1")
        await scene.begin()
        device = scene.agent.snapshot()["parts"]["devices"]["value"]["devices"][0]["info"]
        entry = {"minor": device["minor"], "id": device["uuid"], **maker.asked}
        grant = {GRANT: json.dumps({"gpu": [entry]})}
        uid = scene.bound("sliced", grant)
        await scene.until(lambda: maker.standing(stub) == 1, "a slice")
        await scene.kill()

        await scene.begin()
        await scene.until(lambda: owners(scene) == [uid], "the slice with its pod")
        pod = scene.sandbox("sliced", uid, grant)
        await scene.runtime.run_pod(pod)
        container = await scene.create_patiently(pod, ANY_REASON)
        assert sorted(container.spec.nodes) == sorted(maker.inside)
        await scene.runtime.start(container)
        assert stub.counts()[maker.makes] == 1
        await scene.kill()

        await scene.runtime.stop_pod(pod)
        await scene.runtime.remove_pod(pod)
        scene.api.delete("pods", "sliced", "team-a")
        await scene.begin()
        await scene.until(lambda: maker.standing(stub) == 0, "that it is taken back")
        await scene.until(lambda: owners(scene) == [], "that it is not shown")
        assert (stub.counts()[maker.makes], stub.counts()[maker.destroys]) == (1, 1)
        metric = 'xpu_agent_slices_reclaimed_total{node="node-a"} 1'
        await scene.until(lambda: metric in scene.agent.get("metrics")[1], "a count of it")

    play(act, cards=0)


def test_a_slice_is_taken_back_from_a_pod_that_is_deleted_while_the_runtime_is_away() -> None:
    async def act(scene: Scene) -> None:
        stub = ASCEND.machine(scene, 2)
        own_dev(scene)
        scene.node(ASCEND.node, 100)
        scene.tell(PROOF__GRACE_S="1")
        await scene.begin()
        device = scene.agent.snapshot()["parts"]["devices"]["value"]["devices"][0]["info"]
        entry = {"minor": device["minor"], "id": device["uuid"], **ASCEND.asked}
        grant = {GRANT: json.dumps({"gpu": [entry]})}
        uid = scene.bound("sliced", grant)
        await scene.until(lambda: ASCEND.standing(stub) == 1, "a slice")
        pod = scene.sandbox("sliced", uid, grant)
        await scene.runtime.run_pod(pod)
        await scene.runtime.start(await scene.create_patiently(pod, ANY_REASON))
        scene.runtime.kill()
        await scene.until(lambda: scene.agent.check("runtime").startswith("[-]"), "the loss")
        scene.api.delete("pods", "sliced", "team-a")
        await scene.until(lambda: ASCEND.standing(stub) == 0, "that it is taken back")

    play(act, cards=0)
