"""What an agent leaves alone: in plan mode, with NRI off, on its own, on a recorded host."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.process.agent import EIGHT_CARDS, running
from tests.process.containers.scene import GRANT, Scene, grant_annotation, needs_root, play

pytestmark = needs_root


def sockets(scene: Scene) -> list[str]:
    return [path.name for path in scene.kubelet.folder.glob("xpu-agent-*")]


def test_plan_mode_counts_what_it_would_change_and_neither_injects_nor_refuses() -> None:
    async def act(scene: Scene) -> None:
        scene.tell(ENFORCE__HOOKS__DEVICES="plan")
        await scene.begin()
        first = await scene.start("first", {GRANT: grant_annotation(0)})
        second = await scene.start("second", {GRANT: grant_annotation(0)})
        assert first.spec.nodes == second.spec.nodes == {}
        planned = 'xpu_agent_hook_planned_total{node="node-a",hook="devices"} 2'
        await scene.until(lambda: planned in scene.agent.get("metrics")[1], "two plans")
        assert "xpu_agent_container_refusals_total{" not in await scene.get("metrics")

    play(act)


def test_a_runtime_is_not_dialled_where_that_is_off_and_the_doctor_says_whom_it_costs_a_card() -> (
    None
):
    async def act(scene: Scene) -> None:
        scene.tell(NRI__ATTACH="off")
        await scene.begin(attached=False)
        container = await scene.start("bare", {GRANT: grant_annotation(0)})
        assert container.spec.nodes == {}
        await scene.until(lambda: "bare" in scene.agent.get("")[1], "its grant")
        doctor = await scene.doctor()
        assert doctor["nri"] == ("warn", "nri.attach is off; 1 pod has a grant of devices")
        assert scene.runtime.seen == []
        assert scene.agent.check("runtime") == ""

    play(act)


def test_a_standalone_agent_and_one_on_a_recorded_host_reach_nobody(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.kubelet.start()
        scene.tell(CDI__DIR=str(scene.folder / "cdi"))

        def alone() -> None:
            with running(tmp_path / "out", "--host", "/", **scene.settings()) as agent:
                agent.wait_until(lambda: agent.get("readyz")[0] == 200, "ready")
                assert agent.check("runtime") == ""
                assert agent.end() == 0

        await asyncio.to_thread(alone)
        scene.tell(NRI__ATTACH="on", DEVICE_PLUGIN__VENDORS="nvidia")
        await scene.begin("--host", str(EIGHT_CARDS), attached=False)
        assert len(scene.agent.snapshot()["parts"]["devices"]["value"]["devices"]) == 12
        assert scene.agent.check("runtime") == ""
        assert await scene.end() == 0
        assert scene.runtime.seen == []
        assert scene.kubelet.registered == []
        assert sockets(scene) == []
        assert not (scene.folder / "cdi").exists()

    play(act, cards=0)
