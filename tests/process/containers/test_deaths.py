"""Agent, runtime and kubelet die in turn and at once: nothing is lost, nothing is done twice."""

from __future__ import annotations

import pytest

from tests.process.agent import DEADLINE_S
from tests.process.containers.scene import GRANT, Scene, grant_annotation, needs_root, play
from tests.runtime import CreatedContainer, Failed

pytestmark = needs_root


async def in_step(scene: Scene, *, containers: int) -> None:
    """Wait until the agent knows as many containers as there are."""
    await scene.until(lambda: scene.agent.check("runtime").startswith("[+]"), "in step")
    part = await scene.part("runtime")
    assert len(part["containers"]) == containers


def holders(scene: Scene) -> dict[str, list[str]]:
    """Return who holds each card."""
    grants = scene.agent.snapshot()["containers"]["grants"]["value"]
    names = {uid: one["name"] for uid, one in grants["pods"].items()}
    return {key: sorted(names[uid] for uid in uids) for key, uids in grants["held"].items()}


def card_of(created: CreatedContainer) -> list[str]:
    return sorted(created.spec.nodes)


def test_a_pod_keeps_its_card_when_agent_and_runtime_are_killed_in_turn_and_both_at_once() -> None:
    async def act(scene: Scene) -> None:
        await scene.begin()
        first = await scene.start("first", {GRANT: grant_annotation(0)})
        await scene.kill()
        bare = await scene.start("while-away", {GRANT: grant_annotation(1)})
        assert card_of(bare) == []
        await scene.begin()
        await in_step(scene, containers=2)
        with pytest.raises(Failed, match="DeviceTaken: FAKE-0 is held by team-a/first"):
            await scene.start("thief", {GRANT: grant_annotation(0)})

        await scene.runtime.restart()
        await scene.runtime.dialled(3, DEADLINE_S)
        await in_step(scene, containers=2)
        assert card_of(await scene.runtime.create(first.pod, "second")) == ["/dev/card0"]

        scene.runtime.kill()
        await scene.until(lambda: scene.agent.check("runtime").startswith("[-]"), "the loss")
        result, words = (await scene.doctor())["nri"]
        assert (result, "the agent is waiting" in words) == ("warn", True)
        await scene.kill()
        doctor = await scene.doctor()
        assert (doctor["agent"][0], doctor["nri"][0]) == ("warn", "warn")
        assert doctor["nri"][1].endswith("nri.sock is there; the agent is not asked")
        await scene.runtime.listen()
        await scene.begin()
        await in_step(scene, containers=3)
        both = {"FAKE-0": ["first"], "FAKE-1": ["while-away"]}
        await scene.until(lambda: holders(scene) == both, "who held what")
        with pytest.raises(Failed, match="DeviceTaken: FAKE-0 is held by team-a/first"):
            await scene.start("other-thief", {GRANT: grant_annotation(0)})
        await scene.runtime.stop_pod(first.pod)
        await scene.runtime.remove_pod(first.pod)
        scene.api.delete("pods", "first", "team-a")
        after = {"FAKE-0": ["thief"], "FAKE-1": ["while-away"]}
        await scene.until(lambda: holders(scene) == after, "that the older claim is heard")
        pods = {pod.message.name: pod for pod in scene.runtime.pods}
        assert card_of(await scene.runtime.create(pods["thief"], "main")) == ["/dev/card0"]
        with pytest.raises(Failed, match="held by team-a/thief"):
            await scene.runtime.create(pods["other-thief"], "main")
        assert len(scene.runtime.seen) == 4  # one connection for each time that somebody came back

    play(act)
