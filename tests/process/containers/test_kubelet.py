"""Cards offered to the kubelet by the whole agent: at once, as they are, and as grants say."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tests.apiserver import AGENT
from tests.fault.kubelet.fake_http import FakeKubelet as HttpKubelet
from tests.fault.kubelet.fake_http import pod as listed
from tests.kubelet.admission import Admitted
from tests.kubelet.endpoint import Endpoint
from tests.process.agent import Agent
from tests.process.citizen import NODE
from tests.process.containers.scene import GRANT, NOT_LISTED, WHOLE, Scene, needs_root, play
from tests.process.containers.vendors import nvidia, play_cards, uuid
from tests.runtime import Failed

pytestmark = needs_root
GPU = "nvidia.com/gpu"
CARDS = 4


def grant_of(*numbers: int) -> dict[str, str]:
    entries = [{"minor": n, "id": uuid(n), "resources": WHOLE} for n in numbers]
    return {GRANT: json.dumps({"gpu": entries})}


def asking(scene: Scene, name: str, count: int, annotations: dict[str, str]) -> str:
    """Bind a pod that asks the kubelet for cards; return its uid."""
    limits = {"limits": {GPU: str(count)}}
    return scene.bound(name, annotations, resources=limits)


def running(name: str, uid: str, annotations: dict[str, str]) -> dict[str, object]:
    """Return a pod as the kubelet lists it."""
    one: dict[str, Any] = listed(name, uid)
    one["metadata"] |= {"namespace": "team-a", "annotations": annotations}
    one["spec"]["nodeName"] = NODE
    one["spec"]["containers"][0]["resources"] = {"limits": {GPU: "4"}}
    return one


def card_count(agent: Agent) -> int:
    """Return how many cards the agent knows."""
    return len(agent.snapshot()["parts"]["devices"]["value"]["devices"])


def nodes_of(admitted: Admitted) -> set[str]:
    """Return the cards' own nodes that the kubelet was told."""
    return {path for path in admitted.devices if path[-1].isdigit()}


async def serving(
    scene: Scene, *, healthy: int = CARDS, not_this: Endpoint | None = None
) -> tuple[Endpoint, float]:
    """Start the agent; return what it registered, and seconds from its start until the list.

    `not_this` is of an agent that was killed: the kubelet may not have noticed its end yet.
    """
    began_s = time.monotonic()

    async def served() -> float:
        await scene.kubelet.resource(GPU, healthy=healthy, not_this=not_this)
        return time.monotonic() - began_s

    _, took_s = await asyncio.gather(scene.begin(), served())
    return scene.kubelet.endpoints[GPU], took_s


def test_cards_are_offered_and_a_kubelet_that_comes_back_has_them_again() -> None:
    async def act(scene: Scene) -> None:
        stub = nvidia(scene, CARDS)
        scene.tell(DEVICE_PLUGIN__VENDORS="nvidia")
        await scene.kubelet.start()
        first, took_s = await serving(scene)
        print(f"served {took_s:.2f} s after the start of the process")  # noqa: T201 - a figure
        assert first.healthy() == {uuid(n) for n in range(CARDS)}

        failed_s = time.monotonic()
        play_cards(stub, CARDS, "event 2 type=8 data=79 at=0")
        await scene.kubelet.resource(GPU, healthy=CARDS - 1)
        print(f"unhealthy {time.monotonic() - failed_s:.2f} s after the event")  # noqa: T201 - a figure for people
        assert uuid(2) not in first.healthy()
        assert len(first.devices) == CARDS

        await scene.kubelet.stop()
        await scene.until(lambda: not scene.agent.check(f"kubelet:{GPU}").startswith("[+]"), "gone")
        assert (await scene.doctor())[f"kubelet:{GPU}"][0] == "fail"
        await scene.kubelet.start()
        second = await scene.kubelet.resource(GPU, healthy=CARDS - 1, not_this=first)
        scene.kubelet.wipe()
        third = await scene.kubelet.resource(GPU, healthy=CARDS - 1, not_this=second)
        assert third.healthy() == {uuid(n) for n in (0, 1, 3)}
        await scene.until(lambda: scene.agent.check(f"kubelet:{GPU}").startswith("[+]"), "watched")
        sockets = [path.name for path in scene.kubelet.folder.glob("xpu-agent-*.sock")]
        assert sockets == [third.name]
        assert await scene.end() == 0
        assert [path.name for path in scene.kubelet.folder.glob("xpu-agent-*.sock")] == []

    play(act, cards=0)


def test_allocations_follow_grants_and_grants_allocations_also_after_both_were_killed() -> None:
    async def act(scene: Scene) -> None:
        nvidia(scene, CARDS)
        scene.tell(DEVICE_PLUGIN__VENDORS="nvidia")
        await scene.kubelet.start()
        await serving(scene)
        mine = asking(scene, "granted", 2, grant_of(1, 3))
        got = await scene.kubelet.admit(mine, "main", {GPU: 2})
        assert got.ids[GPU] == [uuid(1), uuid(3)]
        assert nodes_of(got) == {"/dev/nvidia1", "/dev/nvidia3"}
        other = asking(scene, "plain", 1, {})
        remaining = await scene.kubelet.admit(other, "main", {GPU: 1})
        assert remaining.ids[GPU] in ([uuid(0)], [uuid(2)])
        assert nodes_of(remaining).isdisjoint(nodes_of(got))
        pod = scene.sandbox("granted", mine, grant_of(1, 3))
        await scene.runtime.run_pod(pod)
        container = await scene.runtime.create(pod, "main")
        assert nodes_of(got) == {path for path in container.spec.nodes if path[-1].isdigit()}

        await scene.kubelet.stop()
        await scene.kill()
        await scene.kubelet.start()
        await serving(scene)
        chosen = int(remaining.ids[GPU][0][-1])
        with pytest.raises(Failed, match="DeviceTaken"):
            await scene.start("thief", grant_of(chosen))
        honest = await scene.start("honest", grant_of(2 - chosen))
        assert f"/dev/nvidia{2 - chosen}" in honest.spec.nodes

    play(act, cards=0)


def test_a_driver_that_hangs_at_a_restart_costs_neither_offers_nor_a_pod_its_card() -> None:
    async def act(scene: Scene) -> None:
        stub = nvidia(scene, CARDS)
        scene.tell(DEVICE_PLUGIN__VENDORS="nvidia")
        await scene.kubelet.start()
        before, _ = await serving(scene)
        await scene.kill()
        play_cards(stub, CARDS, "hang nvmlInitWithFlags")
        after, took_s = await serving(scene, not_this=before)
        print(f"served {took_s:.2f} s after a start with a driver that hangs")  # noqa: T201 - a figure for people
        assert after.healthy() == {uuid(n) for n in range(CARDS)}
        assert not scene.agent.check("vendor:nvidia").startswith("[+]")
        early = scene.sandbox("early", scene.bound("early", grant_of(0)), grant_of(0))
        await scene.runtime.run_pod(early)
        with pytest.raises(Failed, match="DevicesNotKnownYet"):
            await scene.create_patiently(early, reasons=(NOT_LISTED,))
        play_cards(stub, CARDS)
        await scene.until(lambda: scene.agent.check("vendor:nvidia").startswith("[+]"), "answers")
        await scene.until(lambda: card_count(scene.agent) == CARDS, "its cards")
        container = await scene.start("late", grant_of(1))
        assert "/dev/nvidia1" in container.spec.nodes

    play(act, cards=0)


def test_where_the_accounts_differ_a_card_is_exchanged_and_everybody_can_see_it() -> None:
    async def act(scene: Scene) -> None:
        nvidia(scene, CARDS)
        scene.tell(DEVICE_PLUGIN__VENDORS="nvidia")
        await scene.kubelet.start()
        await serving(scene)
        owner = asking(scene, "owner", 1, grant_of(2))
        scene.kubelet.choice = {uuid(0)}  # whatever the agent prefers
        assert nodes_of(await scene.kubelet.admit(owner, "main", {GPU: 1})) == {"/dev/nvidia2"}
        plain = asking(scene, "plain", 3, {})
        got = await scene.kubelet.admit(plain, "main", {GPU: 3})
        assert got.ids[GPU] == [uuid(1), uuid(2), uuid(3)]
        assert nodes_of(got) == {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia3"}
        exchanged = f'xpu_agent_deviceplugin_devices_exchanged{{node="node-a",resource="{GPU}"}} 1'
        await scene.until(lambda: exchanged in scene.agent.get("metrics")[1], "the metric")
        text = f"{uuid(0)} in place of {uuid(2)}"
        assert text in (await scene.doctor())[f"kubelet:{GPU}"][1]
        assert text in await scene.get("")
        await scene.until(
            lambda: any(text in one["note"] for one in scene.api.list("events")), "the event"
        )

        # both are killed, and the owner of card 2 ends: card 2 is free, the kubelet says card 0
        await scene.kubelet.stop()
        await scene.kill()
        await scene.kubelet.start()
        await serving(scene)
        scene.api.delete("pods", "owner", "team-a")
        await scene.kubelet.end(owner)
        late = asking(scene, "late", 1, {})
        last = await scene.kubelet.admit(late, "main", {GPU: 1})
        assert last.ids[GPU] == [uuid(0)]
        assert nodes_of(last) == {"/dev/nvidia2"}

    play(act, cards=0)


def test_a_successor_has_the_card_at_once_though_the_kubelets_list_is_old() -> None:
    async def act(scene: Scene) -> None:
        nvidia(scene, CARDS)
        listing = HttpKubelet(scene.folder)
        listing.users = {scene.api.token_file.read_text(): AGENT}
        listing.rights = {AGENT: {"nodes/pods", "nodes/configz"}}
        async with listing.running():
            scene.tell(
                DEVICE_PLUGIN__VENDORS="nvidia",
                KUBELET__ENABLED="true",
                KUBELET__PORT=str(listing.port),
                KUBELET__INTERVAL_S="300",
            )
            await scene.kubelet.start()
            old = asking(scene, "old", 4, grant_of(0, 1, 2, 3))
            listing.pods = [running("old", old, grant_of(0, 1, 2, 3))]
            first, _ = await serving(scene)
            await scene.kubelet.admit(old, "main", {GPU: 4})
            await scene.until(lambda: "pods ok" in scene.agent.check("kubelet"), "the list")
            scene.api.delete("pods", "old", "team-a")
            await scene.kubelet.end(old)
            new = asking(scene, "new", 4, grant_of(0, 1, 2, 3))
            got = await scene.kubelet.admit(new, "main", {GPU: 4})
            assert len(nodes_of(got)) == 4

            # an agent that begins anew never saw the object: only a fresh list tells that it went
            await scene.kill()
            listing.pods = [running("new", new, grant_of(0, 1, 2, 3))]
            scene.api.delete("pods", "new", "team-a")
            await scene.kubelet.end(new)
            await serving(scene, not_this=first)
            await scene.until(lambda: "pods ok" in scene.agent.check("kubelet"), "the list again")
            last = asking(scene, "last", 4, grant_of(0, 1, 2, 3))
            listing.pods = [running("last", last, grant_of(0, 1, 2, 3))]
            got = await scene.kubelet.admit(last, "main", {GPU: 4})
            assert len(nodes_of(got)) == 4

    play(act, cards=0)
