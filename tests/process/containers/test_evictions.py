"""Evictions by an agent process: real groups and memory, a strict API server with budgets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.apiserver import Fault, Rule
from tests.process.citizen import NODE
from tests.process.containers.scene import Scene, play
from tests.process.containers.test_files import OWN_GROUPS
from tests.realgroups import RealGroups, needs_v1, real_groups
from tests.runtime.cri import CriServer, serve

pytestmark = needs_v1

MIB = 1 << 20
QUIET_S = 3.0  # several cycles, in which nothing more may happen
MAY_EVICT = Rule(api_groups=("",), resources=("pods/eviction",), verbs=("create",))
SLO = {
    "apiVersion": "slo.koordinator.sh/v1alpha1",
    "kind": "NodeSLO",
    "metadata": {"name": NODE},
    "spec": {
        "resourceUsedThresholdWithBE": {
            "enable": True,
            "memoryEvictThresholdPercent": 2,
            "memoryEvictLowerPercent": 1,
        }
    },
}


class CrowdedNode:
    """A node whose memory is short, whatever runs on this machine."""

    def __init__(self, scene: Scene, groups: RealGroups) -> None:
        self.scene, self.groups = scene, groups
        self.uids: dict[str, str] = {}
        top = groups.make(f"{groups.root}/kubepods")
        self._folders = {"BE": groups.make(f"{top}/besteffort"), "LS": top}
        scene.prefix = ("unshare", "--mount", "--", "sh", "-c", OWN_GROUPS, groups.root)
        scene.tell(ENFORCE__STRATEGIES__MEMORY_EVICTION="on", ENFORCE__EVICTION__MAX_PER_MINUTE="1")
        scene.api.grant(MAY_EVICT)
        node: Any = scene.api.get("Node", NODE)
        node["status"]["capacity"]["memory"] = "2Gi"
        scene.api.put(node)
        scene.api.put(SLO)

    def add(self, name: str, size: int, *, qos: str = "BE", namespace: str = "team-a") -> None:
        """Make a pod with one container that holds so much memory."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {"koordinator.sh/qosClass": qos, "app": name},
            },
            "spec": {"nodeName": NODE, "containers": [{"name": "main"}]},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "qosClass": "BestEffort" if qos == "BE" else "Guaranteed",
                "containerStatuses": [
                    {"name": "main", "containerID": f"containerd://{self.container(name)}"}
                ],
            },
        }
        uid = self.uids[name] = str(self.scene.api.put(pod)["metadata"]["uid"])
        group = self.groups.make(f"{self._folders[qos]}/pod{uid}")
        inner = self.groups.make(f"{group}/{self.container(name)}")
        self.groups.hog(inner, size)

    @staticmethod
    def container(name: str) -> str:
        """Return the id of a pod's container."""
        return name.encode().hex().ljust(64, "0")

    def protect(self, name: str) -> None:
        """Put a budget that allows no disruption of a pod."""
        self.scene.api.put(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": name, "namespace": "team-a"},
                "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}},
                "status": {"observedGeneration": 1, "disruptionsAllowed": 0, "desiredHealthy": 1},
            }
        )

    def requested(self) -> list[str]:
        """Return the pods whose eviction was requested, in order."""
        return [request.name for request in self.scene.api.requests(subresource="eviction")]

    def is_terminating(self, name: str) -> bool:
        pod: Any = self.scene.api.get("Pod", name, "team-a")
        return "deletionTimestamp" in pod["metadata"]

    async def until_event(self, name: str, reason: str) -> str:
        """Wait for an event on an object; return its text."""
        await self.scene.until(
            lambda: reason in self.scene.event_notes(name), f"the event {reason} on {name}"
        )
        return self.scene.event_notes(name)[reason]


def crowd(act: Callable[[CrowdedNode], Awaitable[None]]) -> None:
    async def run(scene: Scene) -> None:
        with real_groups() as groups:
            await act(CrowdedNode(scene, groups))

    play(run)


def test_of_the_pods_that_may_go_the_largest_one_is_evicted_once() -> None:
    async def act(node: CrowdedNode) -> None:
        node.add("small", 8 * MIB)
        node.add("big", 32 * MIB)
        node.add("service", 64 * MIB, qos="LS")
        node.add("system", 64 * MIB, namespace="kube-system")
        await node.scene.begin(attached=False)
        note = await node.until_event("big", "evictPodSuccess")
        assert note == (
            "evict Pod:team-a/big, reason: evicted, message: trigger by koordlet feature"
            " BEMemoryEvict, kill pod: big"
        )
        assert node.is_terminating("big")
        await asyncio.sleep(QUIET_S)
        assert node.requested() == ["big"]
        (record,) = json.loads(await node.scene.get("api/v1/audit"))["audit"]
        assert record["path"] == "pod team-a/big"
        assert record["reason"] == "trigger by koordlet feature BEMemoryEvict"
        (request,) = node.scene.api.requests(subresource="eviction")
        assert request.body["deleteOptions"] == {"preconditions": {"uid": node.uids["big"]}}
        assert await node.scene.end() == 0

    crowd(act)


def test_a_budget_keeps_its_pod_and_the_next_candidate_is_evicted() -> None:
    async def act(node: CrowdedNode) -> None:
        node.add("small", 8 * MIB)
        node.add("big", 32 * MIB)
        node.protect("big")
        await node.scene.begin(attached=False)
        await node.until_event("small", "evictPodSuccess")
        assert not node.is_terminating("big")
        assert node.requested() == ["big", "small"]
        note = await node.until_event("big", "evictPodFail")
        assert "Cannot evict pod as it would violate the pod's disruption budget." in note
        note = await node.until_event(NODE, "EvictionBlocked")
        assert note == "disruption budgets protect 1 pod that has to go: team-a/big"

    crowd(act)


def test_an_agent_that_was_killed_within_a_request_does_not_evict_twice() -> None:
    async def act(node: CrowdedNode) -> None:
        node.add("only", 16 * MIB)
        node.scene.api.faults.add(Fault(subresource="eviction", after_s=60.0))
        await node.scene.begin(attached=False)
        await node.scene.until(lambda: node.is_terminating("only"), "the eviction")
        await node.scene.kill()
        await node.scene.begin(attached=False)
        await node.scene.until(
            lambda: "BEMemoryEvict no victim" in node.scene.agent.get("api/v1/snapshot")[1],
            "the second agent's decision",
        )
        await asyncio.sleep(QUIET_S)
        assert node.requested() == ["only"]

    crowd(act)


def test_with_the_fallback_the_runtime_stops_what_a_budget_protects() -> None:
    async def act(node: CrowdedNode) -> None:
        socket = str(node.scene.folder / "cri.sock")
        node.scene.tell(
            ENFORCE__EVICTION__KILL_FALLBACK="true", ENFORCE__EVICTION__RUNTIME_SOCKET=socket
        )
        node.add("only", 16 * MIB)
        node.protect("only")
        runtime = CriServer(node.container("only"))
        server = await serve(runtime, socket)
        try:
            await node.scene.begin(attached=False)
            await node.until_event("only", "evictPodSuccess")
            await asyncio.sleep(QUIET_S)
        finally:
            await server.stop(None)
        assert runtime.stopped == [(node.container("only"), 10)]
        assert node.requested() == ["only"]
        assert not node.is_terminating("only")

    crowd(act)


def test_in_plan_mode_an_event_says_which_pod_would_go_and_nothing_is_requested() -> None:
    async def act(node: CrowdedNode) -> None:
        node.scene.tell(ENFORCE__STRATEGIES__MEMORY_EVICTION="plan")
        node.add("only", 16 * MIB)
        await node.scene.begin(attached=False)
        note = await node.until_event("only", "evictPodPlanned")
        assert note.startswith("plan mode: would evict Pod:team-a/only, reason: evicted,")
        await asyncio.sleep(QUIET_S)
        assert node.requested() == []
        planned = await node.scene.command("plan", "-o", "json")
        (row,) = json.loads(planned.stdout)["evictions"]
        assert row["pod"] == "team-a/only"

    crowd(act)


async def eviction_of(scene: Scene, name: str) -> Any:
    """Return what `explain pod` says about the eviction of a pod."""
    socket = await scene.admin_socket()
    done = await scene.command("explain", "pod", f"team-a/{name}", "--socket", socket, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["eviction"]


def test_more_evictions_than_the_brake_allows_stop_everything_and_each_pod_says_why() -> None:
    async def act(node: CrowdedNode) -> None:
        scene = node.scene
        scene.tell(
            ENFORCE__EVICTION__MAX_PER_MINUTE="2",
            ENFORCE__EVICTION__MEMORY_COOL_S="1",
            ENFORCE__BRAKE__MAX_EVICTIONS="1",
        )
        for name, size in (("a", 64), ("b", 48), ("c", 32), ("d", 16)):
            node.add(name, size * MIB)
        await scene.begin(attached=False)
        note = await node.until_event(NODE, "EnforcementStopped")
        assert note == "2 pods were evicted within 10 minutes"
        assert node.requested() == ["a", "b"]
        assert 'xpu_agent_enforcement_stopped{node="node-a"} 1' in await scene.get("metrics")
        for place, name in ((1, "c"), (2, "d")):
            eviction = await eviction_of(scene, name)
            rule = next(one for one in eviction["rules"] if one["rule"] == "BEMemoryEvict")
            assert (rule["state"], rule["reason"]) == ("stopped", note)
            assert (rule["candidate"], rule["place"], rule["candidates"]) == (True, place, 2)
        await asyncio.sleep(QUIET_S)
        assert node.requested() == ["a", "b"]

    crowd(act)
