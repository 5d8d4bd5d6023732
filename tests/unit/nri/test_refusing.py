"""What keeps a container from starting, and that the runtime hears why."""

from __future__ import annotations

import pytest

from agent.snapshot.container import Adjustment, HookRequest, HookStage
from agent.snapshot.edits import ContainerEdits
from proto.gen import nri_plugin_pb2 as calls
from tests.unit.nri.messages import pod
from tests.unit.nri.talk import Talk
from tests.unit.nri.test_session import CREATED, play


def test_a_hook_that_refuses_keeps_the_container_from_starting_and_says_why() -> None:
    async def refuse(hook_request: HookRequest) -> Adjustment:
        assert hook_request.container is not None
        return Adjustment(failed="/dev/nvidia7 does not exist", reason="DeviceNodeMissing")

    async def through(both: Talk) -> None:
        both.answer = refuse
        answer = await both.call("CreateContainer", CREATED)
        assert answer.status.code == 9
        assert answer.status.message == "DeviceNodeMissing: /dev/nvidia7 does not exist"
        assert dict(both.picture.view.containers) == {}
        assert dict(both.picture.view.missed) == {}
        assert both.results("CreateContainer") == {"refused": 1}

    play(through)


def test_a_reason_in_the_message_is_not_repeated() -> None:
    async def refuse(hook_request: HookRequest) -> Adjustment:
        return Adjustment(failed=f"NoGroup: {hook_request.stage.value}", reason="NoGroup")

    async def through(both: Talk) -> None:
        both.answer = refuse
        answer = await both.call("RunPodSandbox", calls.RunPodSandboxRequest(pod=pod()))
        assert answer.status.message == "NoGroup: PreRunPodSandbox"

    play(through)


def test_the_removal_of_a_pod_is_never_refused() -> None:
    async def refuse(hook_request: HookRequest) -> Adjustment:
        return Adjustment(failed=hook_request.stage.value)

    async def through(both: Talk) -> None:
        both.answer = refuse
        answer = await both.call("RemovePodSandbox", calls.RemovePodSandboxRequest(pod=pod()))
        assert not answer.HasField("status")

    play(through)


@pytest.mark.parametrize(
    ("edits", "code", "message"),
    [
        (ContainerEdits(cdi=("nvidia.com/gpu=0",)), 9, "CDINotTaken"),
        (ContainerEdits(env=(("A", "\ud800"),)), 13, "see the agent's log"),  # no text
        (ContainerEdits(env=(("A", "x" * (4 << 20)),)), 8, "exceed maximum message size"),
    ],
)
def test_edits_that_the_runtime_cannot_apply_are_refused_and_not_left_out(
    edits: ContainerEdits, code: int, message: str
) -> None:
    async def devices(hook_request: HookRequest) -> Adjustment:
        assert hook_request.stage is HookStage.CREATE
        return Adjustment(edits=edits)

    async def through(both: Talk) -> None:
        await both.registered("1.7.24")
        both.answer = devices
        answer = await both.call("CreateContainer", CREATED)
        assert answer.status.code == code
        assert message in answer.status.message
        assert both.results("CreateContainer") == {"refused": 1}

    play(through)


def test_an_adjustment_of_any_size_arrives_in_two_frames_at_most() -> None:
    async def large(hook_request: HookRequest) -> Adjustment:
        assert hook_request.container is not None
        return Adjustment(edits=ContainerEdits(env=(("A", "x" * 100_000),)))

    async def through(both: Talk) -> None:
        both.answer = large
        assert len((await both.call("CreateContainer", CREATED)).payload) > 100_000

    play(through)
