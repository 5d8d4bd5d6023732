"""Clusters of thousands of nodes with devices, a third of them in use, and mixed requests."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import msgspec

from agent.snapshot.allocation import AllocatedDevice
from plugins.scheduler.cluster_state import AssignedPod, ClusterState
from plugins.scheduler.devices.device_table import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    RDMA,
    Amounts,
    DeviceTable,
    NodeDevice,
)
from plugins.scheduler.devices.requests import DeviceRequest, device_request
from plugins.scheduler.pod_object import PodKey

CARD: Amounts = {GPU_CORE: 100, GPU_MEMORY: 80 << 30, GPU_MEMORY_RATIO: 100}
OCCUPIED = 0.3  # of all cards
PODS = 24_000
JOINT = {
    "scheduling.koordinator.sh/device-joint-allocate": json.dumps(
        {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}
    )
}
SCOPE = {
    "scheduling.koordinator.sh/device-allocate-hint": json.dumps(
        {"gpu": {"requiredTopologyScope": "NUMANode"}}
    )
}


def table(name: str) -> DeviceTable:
    """Return eight cards and four NICs on four PCIe roots and two NUMA nodes."""
    cards = tuple(
        NodeDevice(
            kind=GPU,
            minor=i,
            id=f"{name}-{i}",
            total=CARD,
            has_topology=True,
            numa_node=i // 4,
            socket=i // 4,
            pcie=f"pci0000:{i // 2}0",
        )
        for i in range(8)
    )
    nics = tuple(
        NodeDevice(
            kind=RDMA,
            minor=i,
            id=f"{name}-nic-{i}",
            total={"koordinator.sh/rdma": 100},
            has_topology=True,
            numa_node=i // 2,
            socket=i // 2,
            pcie=f"pci0000:{i}0",
        )
        for i in range(4)
    )
    return DeviceTable(node=name, devices={GPU: cards, RDMA: nics})


def pod_on(node: str, minor: int, uid: str, percent: int = 100) -> AssignedPod:
    """Return a pod with a card, or a part of one."""
    amounts = tuple((name, amount * percent // 100) for name, amount in CARD.items())
    entry = AllocatedDevice(type=GPU, minor=minor, id=f"{node}-{minor}", resources=amounts)
    return AssignedPod(key=PodKey(uid, "default", uid), node=node, allocation=(entry,))


def cluster(nodes: int, rng: random.Random) -> ClusterState:
    """Return a state in which whole cards and parts of cards are in use at random."""
    state = ClusterState()
    for number in range(nodes):
        name = f"node-{number}"
        state.set_node(name, {})
        state.set_devices(table(name))
    for number in range(min(PODS, int(nodes * 8 * OCCUPIED))):
        node, minor = f"node-{rng.randrange(nodes)}", rng.randrange(8)
        percent = rng.choice((100, 100, 100, 50))
        if (GPU, minor) not in state.state(node).usage.amounts:
            state.set_pod(pod_on(node, minor, f"pod-{number}", percent))
    return state


def requests() -> tuple[DeviceRequest, ...]:
    """Return typical requests: whole cards, parts, near each other, with NICs."""
    mixed = (
        device_request({"nvidia.com/gpu": 1}),
        device_request({"nvidia.com/gpu": 8}),
        device_request({"koordinator.sh/gpu": 400}, SCOPE),
        device_request({GPU_CORE: 50, GPU_MEMORY_RATIO: 50}),
        device_request({"koordinator.sh/gpu": 200, "koordinator.sh/rdma": 100}, JOINT),
    )
    return tuple(one for one in mixed if one is not None)


def filter_body(amounts: dict[str, str], annotations: dict[str, str], names: list[str]) -> bytes:
    """Return what kube-scheduler sends of a pod and the nodes that passed its own filters."""
    container = {"name": "c", "resources": {"requests": amounts, "limits": amounts}}
    pod = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "annotations": annotations},
        "spec": {"containers": [container]},
    }
    return msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": names})


def bodies(names: list[str]) -> Iterator[bytes]:
    """Yield the calls for the typical requests, as bytes."""
    yield filter_body({"nvidia.com/gpu": "1"}, {}, names)
    yield filter_body({"nvidia.com/gpu": "8"}, {}, names)
    yield filter_body({"koordinator.sh/gpu": "400"}, SCOPE, names)
    yield filter_body({GPU_CORE: "50", GPU_MEMORY_RATIO: "50"}, {}, names)
    yield filter_body({"koordinator.sh/gpu": "200", "koordinator.sh/rdma": "100"}, JOINT, names)
