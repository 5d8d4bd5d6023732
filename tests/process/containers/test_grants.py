"""Grants of the API server at the runtime: given, refused, and told where people look."""

from __future__ import annotations

import json

import pytest

from tests.apiserver import Fault
from tests.process.containers.scene import (
    GRANT,
    NOT_LISTED,
    WHOLE,
    Scene,
    grant_annotation,
    needs_root,
    play,
)
from tests.runtime import Failed

pytestmark = needs_root


def test_a_pod_gets_its_card_and_one_that_claims_it_too_is_refused_wherever_people_look() -> None:
    async def act(scene: Scene) -> None:
        await scene.begin()
        container = await scene.start("first", {GRANT: grant_annotation(0)})
        assert sorted(container.spec.nodes) == ["/dev/card0"]
        with pytest.raises(Failed) as raised:
            await scene.start("second", {GRANT: grant_annotation(0)})
        words = "DeviceTaken: FAKE-0 is held by team-a/first"
        assert words in str(raised.value)
        await scene.until(
            lambda: "DeviceTaken" in scene.event_notes("second"), "an event of the refusal"
        )
        await scene.until(
            lambda: "GrantRefused" in scene.event_notes("second"), "an event of the grant"
        )
        assert scene.event_notes("second")["DeviceTaken"] == f"container main: {words}"
        assert scene.event_notes("first").keys() <= {NOT_LISTED}  # the agent may hear of it late
        grants = (await scene.part("grants"))["pods"].values()
        assert {grant["name"]: grant["refusal"] for grant in grants} == {
            "first": "",
            "second": "DeviceTaken",
        }
        doctor = await scene.doctor()
        assert doctor["grant:team-a/second"] == ("fail", words)
        assert "grant:team-a/first" not in doctor
        metrics = await scene.get("metrics")
        refusals = 'xpu_agent_container_refusals_total{node="node-a",reason="DeviceTaken"} 1'
        assert refusals in metrics
        assert 'xpu_agent_grants{node="node-a",state="refused"} 1' in metrics
        page = await scene.get("")
        assert f">{words.partition(': ')[2]}<" in page

    play(act)


def one(**entry: object) -> str:
    return json.dumps({"gpu": [{"resources": WHOLE, **entry}]})


FORGED = {
    "not-json": ("{", "BadGrant"),
    "a-list": ("[]", "BadGrant"),
    "unknown": (one(minor=7, id="FAKE-7"), "DeviceUnknown"),
    "a-path": (one(minor=0, id="../../etc/shadow"), "BadGrant"),
    "twice": (one(minor=0)[:-1] + ',"gpu":[]}', "BadGrant"),
    "too-big": (one(minor=2**70), "BadGrant"),
    "negative": (one(minor=-1), "BadGrant"),
}


def test_annotations_that_people_made_up_are_refused_with_the_reason_and_nothing_is_injected() -> (
    None
):
    async def act(scene: Scene) -> None:
        await scene.begin()
        observations = {}
        for name, (text, _) in FORGED.items():
            with pytest.raises(Failed) as raised:
                await scene.start(name, {GRANT: text})
            observations[name] = str(raised.value).partition("code 9: ")[2].partition(":")[0]
        assert observations == {name: reason for name, (_, reason) in FORGED.items()}
        container = await scene.start("honest", {GRANT: grant_annotation(0, 1)})
        assert sorted(container.spec.nodes) == ["/dev/card0", "/dev/card1"]

    play(act)


def test_a_pod_that_requests_no_card_gets_none_by_an_annotation() -> None:
    async def act(scene: Scene) -> None:
        await scene.begin()
        uid = scene.bound("greedy", {GRANT: grant_annotation(0)}, resources={})
        # what a pod asks for is in its object alone, which comes on its own way
        await scene.until(
            lambda: "GrantNotAskedFor" in scene.agent.get("api/v1/snapshot")[1], "the pod"
        )
        pod = scene.sandbox("greedy", uid, {GRANT: grant_annotation(0)})
        await scene.runtime.run_pod(pod)
        with pytest.raises(Failed, match="GrantNotAskedFor"):
            await scene.runtime.create(pod, "main")
        container = await scene.start("honest", {GRANT: grant_annotation(0)})
        assert sorted(container.spec.nodes) == ["/dev/card0"]

    play(act)


def refusals(scene: Scene, name: str) -> list[str]:
    """Return why allocations of that pod are refused, as the agent's snapshot has it."""
    pods = scene.agent.snapshot()["containers"]["grants"]["value"]["pods"].values()
    return [pod["refusal"] for pod in pods if pod["name"] == name]


def test_a_pod_that_the_api_server_does_not_list_gets_no_card_and_blocks_none() -> None:
    async def act(scene: Scene) -> None:
        await scene.begin()
        await scene.start("other", {GRANT: grant_annotation(1)})  # with it the namespace is there
        stranger = scene.sandbox("stranger", "", {GRANT: grant_annotation(0)})
        await scene.runtime.run_pod(stranger)
        with pytest.raises(Failed, match=f"{NOT_LISTED}: neither the API server nor the kubelet"):
            await scene.runtime.create(stranger, "main")
        container = await scene.start("honest", {GRANT: grant_annotation(0)})
        assert sorted(container.spec.nodes) == ["/dev/card0"]
        with pytest.raises(Failed, match=NOT_LISTED):
            await scene.runtime.create(stranger, "main")
        await scene.until(lambda: refusals(scene, "stranger") == [NOT_LISTED], "the refusal")
        doctor = await scene.doctor()
        assert doctor["grant:team-a/stranger"][0] == "warn"
        counted = f'xpu_agent_container_refusals_total{{node="node-a",reason="{NOT_LISTED}"}}'
        assert counted in await scene.get("metrics")
        await scene.until(lambda: NOT_LISTED in scene.event_notes("stranger"), "an event")

    play(act)


def test_while_the_api_server_is_away_a_forged_grant_gets_nothing_and_running_pods_keep_all() -> (
    None
):
    async def act(scene: Scene) -> None:
        await scene.begin()
        runs = await scene.start("runs", {GRANT: grant_annotation(1)})
        await scene.kill()
        # created while no agent is there: the pod has no card, and claims one
        early = scene.sandbox(
            "early",
            scene.bound("early", {GRANT: grant_annotation(0)}, resources={}),
            {GRANT: grant_annotation(0)},
        )
        await scene.runtime.run_pod(early)
        await scene.runtime.start(await scene.runtime.create(early, "main"))
        late = scene.bound("late", {GRANT: grant_annotation(0)}, resources={})
        away = scene.api.faults.add(Fault(resource="pods", verb="list|watch", reset=True, times=0))
        await scene.begin()
        forged = scene.sandbox("late", late, {GRANT: grant_annotation(0)})
        await scene.runtime.run_pod(forged)
        for pod in (forged, early, runs.pod):
            with pytest.raises(Failed, match=NOT_LISTED):
                await scene.runtime.create(pod, "second")
        scene.api.faults.remove(away)
        honest = await scene.start("honest", {GRANT: grant_annotation(0)})
        assert sorted(honest.spec.nodes) == ["/dev/card0"]
        for pod in (forged, early):
            with pytest.raises(Failed, match="GrantNotAskedFor"):
                await scene.runtime.create(pod, "second")
        again = await scene.runtime.create(runs.pod, "second")
        assert sorted(again.spec.nodes) == ["/dev/card1"]
        await scene.until(lambda: "GrantRefused" in scene.event_notes("early"), "an event")
        doctor = await scene.doctor()
        assert doctor["grant:team-a/early"][0] == "fail"
        assert "a container of the pod runs" in doctor["grant:team-a/early"][1]
        assert 'xpu_agent_grants{node="node-a",state="refused"} 2' in await scene.get("metrics")

    play(act)


def test_a_running_pod_keeps_what_it_was_created_with_whatever_is_written_on_it_later() -> None:
    async def act(scene: Scene) -> None:
        await scene.begin()
        container = await scene.start("first", {GRANT: grant_annotation(0)})
        scene.bound("first", {GRANT: grant_annotation(1)})
        other = await scene.start("other", {GRANT: grant_annotation(1)})
        assert sorted(other.spec.nodes) == ["/dev/card1"]
        again = await scene.runtime.create(container.pod, "sidecar")
        assert sorted(again.spec.nodes) == ["/dev/card0"]

    play(act)
