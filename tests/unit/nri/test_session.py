"""What each call of the runtime is answered, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agent.nri.session import _METHODS
from agent.snapshot.container import (
    Adjustment,
    ContainerState,
    HookRequest,
    HookStage,
    LinuxResources,
)
from proto.gen import nri_container_pb2 as wire
from proto.gen import nri_linux_pb2 as linux
from proto.gen import nri_plugin_pb2 as calls
from tests.patience import PATIENCE_S
from tests.unit.nri.messages import container, pod
from tests.unit.nri.talk import Talk, talk
from tests.unit.nri_wire import vectors as v

NINE = {
    "RunPodSandbox": calls.RUN_POD_SANDBOX,
    "PostUpdatePodSandbox": calls.POST_UPDATE_POD_SANDBOX,
    "StopPodSandbox": calls.STOP_POD_SANDBOX,
    "RemovePodSandbox": calls.REMOVE_POD_SANDBOX,
    "PostCreateContainer": calls.POST_CREATE_CONTAINER,
    "StartContainer": calls.START_CONTAINER,
    "PostStartContainer": calls.POST_START_CONTAINER,
    "PostUpdateContainer": calls.POST_UPDATE_CONTAINER,
    "RemoveContainer": calls.REMOVE_CONTAINER,
}
UNREAD = ("Shutdown", "UpdatePodSandbox", "ValidateContainerAdjustment")
CREATED = calls.CreateContainerRequest(pod=pod(), container=container())


def play(through: Callable[[Talk], Coroutine[Any, Any, None]], budget_s: float = 5.0) -> None:
    """Run a test with a session."""

    async def run() -> None:
        async with talk(budget_s) as both:
            await through(both)

    asyncio.run(run())


def test_the_sequence_of_the_vectors_is_answered_in_its_order() -> None:
    async def through(both: Talk) -> None:
        both.writer.write(v.V9)
        stream, answer = await both.answered()
        assert stream == 1
        assert calls.ConfigureResponse.FromString(answer.payload).events == 0x06CF
        both._stream = 1
        assert (await both.call("Synchronize", v.V13)).payload == v.V14
        assert (await both.call("Synchronize")).payload == b""
        await both.session.ready
        assert not (await both.call("CreateContainer", v.V18)).HasField("status")
        assert both.asked[0].resources == LinuxResources(shares=1024, quota_us=-1)
        assert both.views[0].state == "waiting"
        assert both.picture.view.is_synchronized

    play(through)


def test_every_method_of_the_service_is_served() -> None:
    service = calls.DESCRIPTOR.services_by_name["Plugin"]
    assert {method.name for method in service.methods} == set(_METHODS)


def test_every_method_answers_an_empty_message_with_success() -> None:
    async def through(both: Talk) -> None:
        for method in sorted(set(_METHODS) - {"Shutdown"}):
            answer = await both.call(method)
            assert not answer.HasField("status"), method
        assert dict(both.picture.view.containers) == {}

    play(through)


@pytest.mark.parametrize("method", sorted(set(_METHODS) - set(UNREAD)))
def test_a_payload_that_is_none_is_code_13_and_the_connection_stays(method: str) -> None:
    async def through(both: Talk) -> None:
        answer = await both.call(method, bytes.fromhex("0affffffff0f"))
        assert answer.status.code == 13
        assert answer.status.message.startswith("ttrpc: error unmarshalling payload: ")
        assert both.results(method) == {"malformed": 1}
        assert not (await both.call("Synchronize")).HasField("status")

    play(through)


def test_an_unknown_method_is_code_12_and_counted() -> None:
    async def through(both: Talk) -> None:
        assert (await both.call("Nope")).status.message == "method Nope"
        assert both.figures.statistics.unknown_methods == 1

    play(through)


@pytest.mark.parametrize("method", NINE)
def test_an_event_means_the_same_by_its_method_and_by_state_change(method: str) -> None:
    started = container()
    started.pid = 4711

    def both_ways(by_method: bool) -> tuple[object, ...]:
        result: list[object] = []

        async def through(both: Talk) -> None:
            await both.registered()
            await both.call("CreateContainer", CREATED)
            event = calls.StateChangeEvent(event=NINE[method], pod=pod(), container=started)
            if not by_method:
                answer = await both.call("StateChange", event)
            elif "Pod" in method:
                answer = await both.call(method, calls.RunPodSandboxRequest(pod=pod()))
            else:
                container_request = calls.StartContainerRequest(pod=pod(), container=started)
                answer = await both.call(method, container_request)
            assert answer.payload == b""
            assert not answer.HasField("status")
            view = both.picture.view
            result.extend((dict(view.sandboxes), dict(view.containers), both.asked))

        play(through)
        return tuple(result)

    assert both_ways(by_method=True) == both_ways(by_method=False)


def test_a_life_of_a_pod_is_in_the_picture_while_it_lasts() -> None:
    async def through(both: Talk) -> None:
        await both.registered()
        await both.call("RunPodSandbox", calls.RunPodSandboxRequest(pod=pod()))
        await both.call("CreateContainer", CREATED)
        view = both.picture.view
        assert view.containers["c1"].state is ContainerState.CREATED
        started = container()
        started.pid = 4711
        container_request = calls.PostStartContainerRequest(pod=pod(), container=started)
        await both.call("PostStartContainer", container_request)
        observations = both.picture.view.containers["c1"]
        assert (observations.state, observations.pid) == (ContainerState.RUNNING, 4711)
        await both.call("StopContainer", calls.StopContainerRequest(container=container()))
        assert dict(both.picture.view.containers) == {}
        await both.call("StopPodSandbox", calls.StopPodSandboxRequest(pod=pod()))
        assert both.picture.view.sandboxes["p1"].stopped
        await both.call("RemovePodSandbox", calls.RemovePodSandboxRequest(pod=pod()))
        assert dict(both.picture.view.sandboxes) == {}
        stages = [one.stage for one in both.asked]
        assert stages == [HookStage.RUN_POD, HookStage.CREATE, HookStage.REMOVE_POD]

    play(through)


def test_a_sandbox_whose_last_container_is_removed_after_its_process_has_stopped() -> None:
    """containerd does not report the end of sandboxes that were there before it started."""

    async def through(both: Talk) -> None:
        await both.registered()
        ended = pod()
        ended.pid = 0

        async def remove(key: str, sandbox: wire.PodSandbox) -> bool:
            for message in (calls.StopContainerRequest, calls.RemoveContainerRequest):
                name = message.DESCRIPTOR.name.removesuffix("Request")
                await both.call(name, message(pod=sandbox, container=container(key)))
            return both.picture.view.sandboxes["p1"].stopped

        for key in ("c1", "c2", "c3"):
            creation = calls.CreateContainerRequest(pod=pod(), container=container(key))
            await both.call("CreateContainer", creation)
        assert not await remove("c1", pod())
        assert not await remove("c2", ended)  # of a virtual machine: another container runs
        assert await remove("c3", ended)

    play(through)


def test_a_sandbox_without_a_process_runs_on_at_other_runtimes() -> None:
    async def through(both: Talk) -> None:
        await both.call("Configure", calls.ConfigureRequest(runtime_name="cri-o"))
        bare = pod()
        bare.pid = 0
        bare.linux.ClearField("namespaces")
        await both.call("RunPodSandbox", calls.RunPodSandboxRequest(pod=bare))
        removal = calls.RemoveContainerRequest(pod=bare, container=container())
        await both.call("RemoveContainer", removal)
        assert not both.picture.view.sandboxes["p1"].stopped

    play(through)


def test_a_sandbox_removed_by_its_id_is_passed_on_with_all_known_facts() -> None:
    async def through(both: Talk) -> None:
        await both.call("RunPodSandbox", calls.RunPodSandboxRequest(pod=pod()))
        bare = calls.RemovePodSandboxRequest(pod={"id": "p1"})
        await both.call("RemovePodSandbox", bare)
        assert both.asked[1].pod == both.asked[0].pod
        assert both.asked[1].pod.uid == "u1"

    play(through)


def test_a_container_of_an_unknown_pod_brings_its_pod_with_it() -> None:
    async def through(both: Talk) -> None:
        await both.call("CreateContainer", CREATED)
        assert both.picture.view.sandboxes["p1"].annotations == (("k", "v"),)
        requests = both.asked[0].container
        assert requests is not None
        assert (requests.pod_uid, requests.annotations) == ("u1", (("k", "v"),))

    play(through)


def test_a_sandbox_id_that_became_another_pod_is_read_anew() -> None:
    async def through(both: Talk) -> None:
        await both.call("RunPodSandbox", calls.RunPodSandboxRequest(pod=pod()))
        container_request = calls.CreateContainerRequest(pod=pod(uid="u2"), container=container())
        await both.call("CreateContainer", container_request)
        assert both.asked[1].pod.uid == both.picture.view.sandboxes["p1"].uid == "u2"

    play(through)


def test_an_update_is_computed_from_the_request_and_never_from_what_is_in_force() -> None:
    async def halved(hook_request: HookRequest) -> Adjustment:
        return Adjustment(
            resources=LinuxResources(quota_us=(hook_request.resources.quota_us or 0) // 2)
        )

    async def through(both: Talk) -> None:
        both.answer = halved
        linux_resources = linux.LinuxResources(
            cpu=linux.LinuxCPU(quota=linux.OptionalInt64(value=240_000))
        )
        container_request = calls.UpdateContainerRequest(
            pod=pod(), container=container(), linux_resources=linux_resources
        )
        for _ in range(2):  # a second time makes no difference
            answer = await both.call("UpdateContainer", container_request)
            (update,) = calls.UpdateContainerResponse.FromString(answer.payload).update
            assert update.container_id == "c1"
            assert update.linux.resources.cpu.quota.value == 120_000
            assert update.linux.resources.cpu.period.value == 100_000
        assert both.figures.statistics.updates == 2
        nobody = calls.UpdateContainerRequest(pod=pod(), container=container())
        both.answer = _as_asked
        assert (await both.call("UpdateContainer", nobody)).payload == b""

    play(through)


async def _as_asked(hook_request: HookRequest) -> Adjustment:
    return Adjustment(resources=hook_request.resources)


def test_a_list_in_parts_is_joined_after_the_last_and_updates_nothing() -> None:
    async def through(both: Talk) -> None:
        first = calls.SynchronizeRequest(containers=[container()], more=True)
        second = calls.SynchronizeRequest(pods=[pod()])
        answer = calls.SynchronizeResponse.FromString(
            (await both.call("Synchronize", first)).payload
        )
        assert (answer.more, len(answer.update)) == (True, 0)
        assert not both.session.ready.done()
        assert (await both.call("Synchronize", second)).payload == b""
        await both.session.ready
        view = both.picture.view
        assert (list(view.sandboxes), list(view.containers)) == (["p1"], ["c1"])

    play(through)


def test_a_part_that_cannot_be_read_takes_those_before_it_with_it() -> None:
    async def through(both: Talk) -> None:
        await both.call("Synchronize", calls.SynchronizeRequest(pods=[pod()], more=True))
        assert (await both.call("Synchronize", b"\x0a")).status.code == 13
        await both.call("Synchronize", calls.SynchronizeRequest(pods=[pod("p2")]))
        await both.session.ready
        assert list(both.picture.view.sandboxes) == ["p2"]

    play(through)


def test_questions_wait_for_the_list_that_is_being_read() -> None:
    async def through(both: Talk) -> None:
        many = [container(f"c{number}") for number in range(400)]
        both.send("Synchronize", calls.SynchronizeRequest(pods=[pod()], containers=many))
        both.send("CreateContainer", CREATED)
        entries: list[int] = []

        async def count(hook_request: HookRequest) -> Adjustment:
            entries.append(len(both.picture.view.containers))
            return await _as_asked(hook_request)

        both.answer = count
        assert [(await both.answered())[0] for _ in range(2)] == [1, 3]
        assert entries == [401 - 1]  # c1, which is being created, is one of them

    play(through)


def test_shutdown_is_answered_before_the_connection_closes() -> None:
    async def through(both: Talk) -> None:
        assert not (await both.call("Shutdown")).HasField("status")
        async with asyncio.timeout(PATIENCE_S):
            await both.trunk.closed.wait()
        assert both.trunk.close_reason is not None
        assert both.trunk.close_reason.reason == "ShutDown"

    play(through)


def test_a_validator_has_no_say() -> None:
    async def through(both: Talk) -> None:
        answer = await both.call("ValidateContainerAdjustment")
        assert not calls.ValidateContainerAdjustmentResponse.FromString(answer.payload).reject

    play(through)


def test_the_runtimes_name_and_abilities_are_in_the_view() -> None:
    async def through(both: Talk) -> None:
        await both.registered("v2.1.4")
        view = both.picture.view
        assert (view.runtime, view.version, view.nri_version) == ("containerd", "v2.1.4", (0, 8, 0))
        assert view.takes_cdi
        assert both.views[-1].state == "synchronized"

    play(through)


def test_a_sandbox_in_which_a_container_is_made_has_not_stopped() -> None:
    """Runtimes that run a pod as a virtual machine may list its sandbox without a process."""

    async def through(both: Talk) -> None:
        listed = pod()
        listed.pid = 0
        listed.linux.ClearField("namespaces")
        await both.call("Synchronize", calls.SynchronizeRequest(pods=[listed]))
        await both.session.ready
        assert both.picture.view.sandboxes["p1"].stopped
        await both.call("UpdateContainer", calls.UpdateContainerRequest(pod=pod()))
        assert both.picture.view.sandboxes["p1"].stopped
        await both.call("CreateContainer", CREATED)
        assert not both.picture.view.sandboxes["p1"].stopped
        assert both.asked[-1].pod == both.picture.view.sandboxes["p1"]

    play(through)
