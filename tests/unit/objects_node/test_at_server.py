"""What is said on the Node, at a strict API server: nothing else of it is touched."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from agent.objects.device import DevicePublisher
from agent.objects.fault_conditions import FAULT_TYPES
from agent.objects.node import NodeConditionPublisher, NodeLabelsPublisher
from agent.snapshot.device import Device, Health, HealthState
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import DeviceView, NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciTree
from agent.snapshot.publications import DesiredObject, WriterPhase
from tests import clustered
from tests.apiserver.server import ApiServer
from tests.clustered import NAME
from tests.factory import BOOT_S, gpu
from tests.fault.publish.publishing import Bench, publishing

Tree = Any
FAILED = Health(state=HealthState.FAILED, reason="Xid79", since_s=BOOT_S + 60)


def live(server: ApiServer) -> Tree:
    stored_object = server.get("Node", NAME)
    assert stored_object is not None
    return stored_object


def snapshot_with(server: ApiServer, *devices: Device) -> NodeSnapshot:
    now = clustered.snapshot(owner=clustered.node(uid=live(server)["metadata"]["uid"]))
    inventory: SnapshotPart[Inventory | None] = SnapshotPart(Inventory(vendor="nvidia"), 1.0)
    return replace(
        now,
        node=replace(now.node, boot_time_s=BOOT_S),
        vendors=(VendorState(vendor="nvidia", state="ready", inventory=inventory),),
        pci=SnapshotPart(PciTree(), 1.0),
        devices=SnapshotPart(DeviceView(devices=devices), 1.0),
    )


def reported(now: NodeSnapshot) -> tuple[DesiredObject, ...]:
    return (
        *NodeLabelsPublisher().render(now, 0.0),
        *NodeConditionPublisher().render(now, 0.0),
    )


def run(case: Callable[[Bench, ApiServer], Awaitable[None]]) -> None:
    async def within(server: ApiServer) -> None:
        uid = live(server)["metadata"]["uid"]
        async with publishing(server, uid=uid) as bench:
            await case(bench, server)

    with ApiServer(nodes=(NAME,)) as server:
        asyncio.run(within(server))


def agent_conditions(node: Tree) -> list[Tree]:
    return [c for c in node["status"]["conditions"] if c["type"] == "AcceleratorsHealthy"]


def others(node: Tree) -> Tree:
    """All of the Node that is not ours to touch."""
    labels = {k: v for k, v in node["metadata"]["labels"].items() if "koordinator" not in k}
    own = {"AcceleratorsHealthy", *FAULT_TYPES}
    conditions = [c for c in node["status"]["conditions"] if c["type"] not in own]
    status = {**node["status"], "conditions": conditions}
    return {"labels": labels, "spec": node.get("spec"), "status": status}


def accepted(bench: Bench) -> list[str]:
    """What of the Node was written; one writer's write may cost the other a second attempt."""
    return [entry.subresource for entry in bench.writes("nodes") if entry.status == 200]


def test_labels_and_condition_are_added_and_taken_back_and_nothing_else_is_touched() -> None:
    async def case(bench: Bench, server: ApiServer) -> None:
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "",
            "lastHeartbeatTime": "2026-01-02T03:00:00Z",
            "lastTransitionTime": "2026-01-02T03:00:00Z",
        }
        node = live(server)
        node["status"]["conditions"] = [ready]
        node["metadata"].setdefault("labels", {})["theirs"] = "x"
        server.put(node, manager="kubelet")
        before = others(live(server))
        await bench.offer(*reported(snapshot_with(server, gpu(0))))
        assert {state.phase for state in bench.outbox.states()} == {WriterPhase.IDLE}
        assert live(server)["metadata"]["labels"]["node.koordinator.sh/gpu-vendor"] == "nvidia"
        assert [c["status"] for c in agent_conditions(live(server))] == ["True"]
        assert others(live(server)) == before
        await bench.offer(*reported(snapshot_with(server)))
        assert agent_conditions(live(server)) == []
        assert live(server)["metadata"]["labels"] == before["labels"]
        assert others(live(server)) == before

    run(case)


def test_a_healthy_node_is_written_once_and_a_failing_card_once_more() -> None:
    async def case(bench: Bench, server: ApiServer) -> None:
        for _ in range(3):
            await bench.offer(*reported(snapshot_with(server, gpu(0), gpu(1))))
            await bench.advance(3600)
        assert sorted(accepted(bench)) == ["", "status"]
        bench.clear()
        await bench.offer(*reported(snapshot_with(server, gpu(0), gpu(1, health=FAILED))))
        await bench.advance(3600)
        assert accepted(bench) == ["status"]
        (labels,) = agent_conditions(live(server))
        assert (labels["status"], labels["reason"]) == ("False", "Xid79")
        assert "GPU 1" in labels["message"]

    run(case)


def test_the_device_of_a_node_without_hardware_is_removed() -> None:
    async def case(bench: Bench, server: ApiServer) -> None:
        await bench.offer(*DevicePublisher().render(snapshot_with(server, gpu(0)), 0.0))
        assert server.get("Device", NAME) is not None
        await bench.offer(*DevicePublisher().render(snapshot_with(server), 0.0))
        assert server.get("Device", NAME) is None

    run(case)


def test_a_kubelet_that_writes_its_status_all_the_time_delays_no_condition() -> None:
    async def case(bench: Bench, server: ApiServer) -> None:
        await bench.offer(*NodeConditionPublisher().render(snapshot_with(server, gpu(0)), 0.0))
        bench.clear()
        beat: Tree = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}}
        for number, card in enumerate((gpu(0, health=FAILED), gpu(0))):
            beat["status"] = {"volumesInUse": [str(number)]}
            server.apply(beat, manager="kubelet", force=True, subresource="status")
            await bench.offer(*NodeConditionPublisher().render(snapshot_with(server, card), 0.0))
        assert [entry.status for entry in bench.writes("nodes")] == [200, 200]
        assert [c["status"] for c in agent_conditions(live(server))] == ["True"]

    run(case)
