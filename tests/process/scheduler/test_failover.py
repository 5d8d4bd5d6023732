"""A leader that is paused during a binding, its successor, and the agent of the node: processes."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial

import pytest

from agent.wire_formats.device_allocated import ANNOTATION
from plugins.scheduler.server.device_ledger import LEDGER_ANNOTATION
from tests.apiserver import ApiServer, Fault
from tests.patience import PATIENCE_S
from tests.process.citizen import NODE
from tests.process.containers.scene import Scene, needs_root, play
from tests.process.test_scheduler import COMMAND, Object, Replica, bind, replica
from tests.runtime import Failed

pytestmark = [needs_root, pytest.mark.slow]  # a lease lasts fifteen seconds

NAMESPACE = "team-a"
CARD = {"koordinator.sh/gpu": "100"}
STRICT = "strict_ledger: true\n"
SUSPENDED = "tests.process.scheduler.suspended"


class Failover:
    """A node with one card and its agent, a leader and a standby."""

    def __init__(self, scene: Scene, leader: Replica, standby: Replica) -> None:
        self.scene = scene
        self.api = scene.api
        self.leader = leader
        self.standby = standby

    def put_pod(self, name: str) -> Object:
        """Create a pod that requests the card."""
        container = {"name": "main", "image": "i", "resources": {"limits": CARD, "requests": CARD}}
        return self.api.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {"containers": [container]},
                "status": {"phase": "Pending"},
            }
        )

    def grant(self, name: str) -> str:
        """Return the pod's grant at the API server; empty for a pod that is not bound."""
        pod = self.api.get("pod", name, NAMESPACE)
        assert pod is not None
        is_bound = pod["spec"].get("nodeName") == NODE
        text = (pod["metadata"].get("annotations") or {}).get(ANNOTATION, "")
        assert is_bound == bool(text)
        return str(text)

    async def pause_leader_during(self, held: Fault) -> None:
        """Bind `first` by the leader and `second` by its successor.

        The leader is paused while its request that `held` describes is on its way, and continued
        when that request was handled: after the lease has ended, and `second` was bound.
        """
        api, gate = self.api, threading.Event()
        held.until = gate
        api.faults.add(held)
        first = self.put_pod("first")
        binding = asyncio.create_task(asyncio.to_thread(bind, self.leader, first, NODE))
        await asyncio.to_thread(api.wait_until, lambda: api.faults.hits(held) == 1)
        self.leader.process.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(self.standby.wait_ready)
        second = self.put_pod("second")
        answer = await asyncio.to_thread(bind, self.standby, second, NODE)
        assert answer == (200, {"Error": ""})
        gate.set()
        await asyncio.to_thread(api.wait_until, partial(self._has_answered, held))
        self.leader.process.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(self.leader.process.wait, PATIENCE_S) == 1
        await asyncio.gather(binding, return_exceptions=True)  # it may end without an answer

    def _has_answered(self, held: Fault) -> bool:
        return any(
            request.status for request in self.api.requests() if request.faults == (held.name,)
        )

    async def run_pod(self, name: str) -> str:
        """Start a pod's container as the kubelet does; return why the agent refused it."""
        pod = self.api.get("pod", name, NAMESPACE)
        assert pod is not None
        metadata = pod["metadata"]
        sandbox = self.scene.sandbox(name, metadata["uid"], metadata["annotations"])
        await self.scene.runtime.run_pod(sandbox)
        try:
            await self.scene.runtime.start(await self.scene.create_patiently(sandbox))
        except Failed as error:
            return str(error)
        return ""


def fail_over(
    act: Callable[[Failover], Awaitable[None]], settings: str = "", leader_module: str = COMMAND
) -> None:
    async def whole(scene: Scene) -> None:
        await scene.begin()
        await scene.until(lambda: scene.api.get("Device", NODE) is not None, "a Device")
        with ExitStack() as stack:

            def start(name: str, module: str) -> Replica:
                running = replica(scene.api, scene.folder, name, more=settings, module=module)
                return stack.enter_context(running)

            leader = await asyncio.to_thread(start, "leader", leader_module)
            await asyncio.to_thread(leader.wait_ready)
            standby = await asyncio.to_thread(start, "standby", COMMAND)
            await act(Failover(scene, leader, standby))

    play(whole, cards=1)


def test_without_the_ledger_two_pods_are_given_one_card_and_the_agent_refuses_one() -> None:
    async def act(case: Failover) -> None:
        await case.pause_leader_during(Fault(name="held", subresource="binding"))
        minors = [json.loads(case.grant(name))["gpu"][0]["minor"] for name in ("first", "second")]
        assert minors == [0, 0]
        refusals = {name: await case.run_pod(name) for name in ("second", "first")}
        (refused,) = (name for name, text in refusals.items() if text)
        other = "first" if refused == "second" else "second"
        words = f"DeviceTaken: FAKE-0 is held by {NAMESPACE}/{other}"
        assert words in refusals[refused]
        await case.scene.until(
            lambda: "DeviceTaken" in case.scene.event_notes(refused), "the agent's event"
        )
        assert case.scene.event_notes(refused)["DeviceTaken"] == f"container main: {words}"
        await asyncio.to_thread(case.api.wait_until, lambda: double_grants(case.api))
        (event,) = double_grants(case.api)
        device = case.api.get("Device", NODE)
        assert device is not None
        assert event["regarding"]["uid"] == device["metadata"]["uid"]
        assert f"{NAMESPACE}/first, {NAMESPACE}/second" in event["note"]

    fail_over(act)


def double_grants(api: ApiServer) -> list[Object]:
    return [event for event in api.list("events") if event["reason"] == "DeviceDoubleGranted"]


def failed_write() -> Fault:
    """Fail the leader's first binding, so that it reads the pod and tries again."""
    return Fault(name="held", subresource="binding", status=500)


def test_with_the_ledger_a_leader_whose_machine_was_suspended_gives_no_card_twice() -> None:
    """Its clock stood still: it takes itself for the leader when it wakes."""

    async def act(case: Failover) -> None:
        await case.pause_leader_during(failed_write())
        assert case.grant("second")
        assert not case.grant("first")
        device = case.api.get("Device", NODE)
        assert device is not None
        assert device["metadata"]["annotations"][LEDGER_ANNOTATION] == "1/1"  # the successor's
        assert await case.run_pod("second") == ""

    fail_over(act, STRICT, SUSPENDED)


def test_a_leader_that_was_paused_before_it_tried_again_writes_nothing_when_it_wakes() -> None:
    async def act(case: Failover) -> None:
        await case.pause_leader_during(failed_write())
        assert case.grant("second")
        assert not case.grant("first")
        (attempt,) = case.api.requests(subresource="binding", name="first")
        assert attempt.status == 500

    fail_over(act)
