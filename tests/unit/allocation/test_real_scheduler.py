"""What the real scheduler granted, one pod after the other, is never refused."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from typing import Any

import msgspec

from agent.allocation.check import check_allocations
from agent.snapshot.cluster import ClusterView
from agent.snapshot.device import (
    Device,
    DeviceKind,
    VendorDevice,
    VirtualFunction,
    VirtualFunctionGroup,
)
from agent.snapshot.node import DeviceView, NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from agent.wire_formats.device_allocated import ANNOTATION
from agent.wire_formats.pod import decode_pod
from tests.captures import SHARED, needs_shared

DECISIONS = SHARED / "oracle/deviceshare-decisions.json.xz"
KINDS = {"gpu": DeviceKind.GPU, "rdma": DeviceKind.RDMA}
Tree = Any


def _devices(node: Tree) -> tuple[Device, ...]:
    return tuple(_device(entry) for entry in node["device"]["spec"]["devices"])


def _device(entry: Tree) -> Device:
    vendor = "nvidia" if entry["type"] == "gpu" else "rdma"
    functions = tuple(
        VirtualFunctionGroup(
            labels=tuple(sorted((group.get("labels") or {}).items())),
            vfs=tuple(
                VirtualFunction(bus_id=vf["busID"], minor=vf.get("minor", 0))
                for vf in group.get("vfs") or ()
            ),
        )
        for group in entry.get("vfGroups") or ()
    )
    return Device(
        info=VendorDevice(
            kind=KINDS[entry["type"]],
            vendor=vendor,
            # addresses of the generated cards are not their own: ids are
            bus_id=entry["id"] if entry["type"] == "rdma" else None,
            uuid=entry["id"],
            minor=entry["minor"],
            resources=tuple((entry.get("resources") or {}).items()),
            vf_groups=functions,
        )
    )


def _pods(node: Tree) -> Iterator[tuple[PodView, ...]]:
    """Yield the pods that are there after each step."""
    there: dict[str, PodView] = {}
    for number, step in enumerate(node["steps"]):
        if step["op"] == "delete":
            there.pop(step["pod"], None)
        elif step["result"]["bound"]:
            pod = step["pod"]
            name = pod["metadata"]["name"]
            there[name] = _bound(pod, number, step["result"].get("device_allocated"))
        yield tuple(there.values())


def _bound(pod: Tree, number: int, tree: Tree) -> PodView:
    meta, spec = pod["metadata"], {**pod["spec"], "nodeName": "n"}
    annotations = dict(meta.get("annotations") or {})
    if tree is not None:
        annotations[ANNOTATION] = json.dumps(tree)
    named = {
        **meta,
        "uid": f"00000000-0000-4000-8000-{number:012d}",
        "annotations": annotations,
        "creationTimestamp": f"2026-01-01T00:{number // 60:02d}:{number % 60:02d}Z",
    }
    return decode_pod(msgspec.json.encode({"metadata": named, "spec": spec}))


@needs_shared
def test_all_that_the_real_scheduler_granted_is_accepted_in_each_state_of_each_node() -> None:
    nodes = json.loads(lzma.decompress(DECISIONS.read_bytes()))
    refused: list[str] = []
    allocations = 0
    for name, node in nodes.items():
        devices = SnapshotPart(DeviceView(devices=_devices(node)), 0.0)
        for pods in _pods(node):
            cluster = ClusterView(is_clustered=True, pods=pods, has_pod_list=True)
            view = check_allocations(
                NodeSnapshot(node=NodeIdentity(name="n"), devices=devices, cluster=cluster)
            )
            allocations += len(view.pods)
            refused += [
                f"{name} {pod.name}: {pod.message}" for pod in view.pods.values() if pod.refusal
            ]
    assert allocations > 1000
    assert sorted(set(refused)) == []
