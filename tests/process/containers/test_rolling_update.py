"""Two agents on one node, as while a DaemonSet exchanges them: what the kubelet's status says."""

from __future__ import annotations

import asyncio
import time

from tests.process.containers.scene import Scene, needs_root, play
from tests.process.containers.test_kubelet import CARDS, GPU, serving
from tests.process.containers.vendors import nvidia, play_cards

pytestmark = needs_root


def test_the_next_agent_takes_over_without_a_loss_of_capacity_though_the_driver_hangs() -> None:
    async def act(scene: Scene) -> None:
        stub = nvidia(scene, CARDS)
        scene.tell(DEVICE_PLUGIN__VENDORS="nvidia")
        await scene.kubelet.start()
        first, _ = await serving(scene)
        before = scene.agent
        play_cards(stub, CARDS, "hang nvmlInitWithFlags")  # what only the next one calls
        following = asyncio.create_task(scene.begin())
        await scene.until(lambda: "standing by" in scene.log(), "the next agent")
        assert scene.kubelet.statuses[GPU][-1] == (CARDS, CARDS)
        began = len(scene.kubelet.statuses[GPU]) - 1
        ending = asyncio.create_task(asyncio.to_thread(before.end))
        await scene.kubelet.until(lambda: first.ended is not None, "the end of the stream")
        ended_s = time.monotonic()
        await scene.kubelet.resource(GPU, healthy=CARDS, not_this=first)
        print(f"listed again {time.monotonic() - ended_s:.2f} s after the stream had ended")  # noqa: T201 - a figure
        assert await ending == 0
        await following
        # the end of a stream makes devices unhealthy: no plug-in can register before its
        # predecessor's stream has ended without being taken for the one that ended
        assert scene.kubelet.statuses[GPU][began:] == [(CARDS, CARDS), (CARDS, 0), (CARDS, CARDS)]
        assert first.ended == "OK"
        assert not scene.agent.check("vendor:nvidia").startswith("[+]")
        assert len(list(scene.kubelet.folder.glob("xpu-agent-*.sock"))) == 1

    play(act, cards=0)
