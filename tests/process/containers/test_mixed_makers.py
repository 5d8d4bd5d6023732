"""A node with cards of two makers: containers get their own cards, and minors outlive restarts."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.process.citizen import NODE
from tests.process.containers.scene import GRANT, WHOLE, Scene, needs_root, play
from tests.process.containers.vendors import ascend, nvidia, own_dev, uuid

pytestmark = needs_root


def published(scene: Scene) -> dict[str, int]:
    """Return the minors at the API server by id."""
    device = scene.api.get("Device", NODE) or {"spec": {"devices": []}}
    return {one["id"]: one["minor"] for one in device["spec"]["devices"]}


def joined(scene: Scene) -> dict[str, int]:
    """Return the minors that the running agent has; nothing while it awaits a vendor."""
    view = scene.agent.snapshot()["parts"]["devices"]["value"]
    if view["awaited"] or view["provisional_minors"]:
        return {}
    infos = [device["info"] for device in view["devices"]]
    return {info["uuid"]: info["minor"] for info in infos if info["minor"] is not None}


def test_each_pod_gets_the_nodes_of_its_own_card() -> None:
    async def act(scene: Scene) -> None:
        ascend(scene, 2)
        nvidia(scene, 2)
        own_dev(scene)
        await scene.begin()
        await scene.until(lambda: len(published(scene)) == 4, "a Device with all cards")
        minors = published(scene)
        chips = sorted(set(minors) - {uuid(0), uuid(1)}, key=minors.__getitem__)
        assert [minors[name] for name in (*chips, uuid(0), uuid(1))] == [0, 1, 2, 3]
        nodes = dict(zip(chips, ("/dev/davinci0", "/dev/davinci1"), strict=True))
        nodes |= {uuid(number): f"/dev/nvidia{number}" for number in range(2)}
        cards = set(nodes.values())
        for number, name in enumerate(minors):
            entry = {"minor": minors[name], "id": name, "resources": WHOLE}
            grant = {GRANT: json.dumps({"gpu": [entry]})}
            container = await scene.start(f"pod-{number}", grant)
            assert cards & set(container.spec.nodes) == {nodes[name]}

    play(act, cards=0)


@pytest.mark.parametrize("lost", [False, True], ids=["state-kept", "state-lost"])
def test_a_restart_while_a_makers_library_hangs_moves_no_minor(lost: bool) -> None:
    async def act(scene: Scene) -> None:
        chips = ascend(scene, 2)
        nvidia(scene, 2)
        own_dev(scene)
        scene.tell(DISCOVERY__DISCOVER_DEADLINE_S="1")
        await scene.begin(attached=False)
        await scene.until(lambda: len(published(scene)) == 4, "a Device with all cards")
        before = published(scene)
        await scene.until((scene.folder / "state/published-minors.json").exists, "state")
        await scene.kill()
        if lost:
            shutil.rmtree(scene.folder / "state")

        healthy = chips.scenario.read_text().splitlines()
        chips.add("call.dcmi_init.hang 1")
        await scene.begin(attached=False)
        await scene.until(lambda: bool(joined(scene)), "a view without the library that hangs")
        assert scene.agent.vendor("ascend")["state"] != "ready"
        now = joined(scene)
        assert {uuid(number): now[uuid(number)] for number in range(2)} == {
            uuid(number): before[uuid(number)] for number in range(2)
        }
        assert all(before[name] == minor for name, minor in now.items())
        chips.play(*healthy)
        await scene.until(lambda: scene.agent.vendor("ascend")["state"] == "ready", "an answer")
        await scene.until(lambda: len(joined(scene)) == 4, "all cards")
        assert joined(scene) == before
        await scene.until(lambda: published(scene) == before, "the same Device")

    play(act, cards=0)
