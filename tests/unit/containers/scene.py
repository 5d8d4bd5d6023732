"""Pods, questions and snapshots that hooks are asked about."""

from __future__ import annotations

import json
from collections.abc import Mapping

from msgspec.structs import replace

from agent.slo.overlay import overlay_spec
from agent.snapshot.cluster import KubeletView
from agent.snapshot.container import (
    NO_RESOURCES,
    ContainerSpec,
    HookRequest,
    HookStage,
    LinuxResources,
    PodSandbox,
)
from agent.snapshot.host_devices import HostDevicesView, KernelFeatures
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.slo import NodeSloView
from agent.wire_formats.annotations import QOS_LABEL
from tests.clustered import KUBELET, machine
from tests.clustered import snapshot as clustered

UID = "7712555c-ce62-454a-9e18-9ff0217b8941"
PARENTS = {
    "G": f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice",
    "Bu": f"kubepods/burstable/pod{UID}",
    "BE": f"kubepods-besteffort-pod{UID.replace('-', '_')}.slice",
    "": "",
}


def pod(
    qos: str = "",
    place: str = "Bu",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> PodSandbox:
    """A pod's sandbox; `place` is G, Bu or BE."""
    named = {QOS_LABEL: qos} if qos else {}
    return PodSandbox(
        id="5a4d",
        uid=UID,
        name="p",
        namespace="d",
        labels=tuple({**named, **(labels or {})}.items()),
        annotations=tuple((annotations or {}).items()),
        cgroup_parent=PARENTS[place],
    )


def ask(
    stage: HookStage,
    pod_sandbox: PodSandbox,
    container: str | None = "a",
    resources: LinuxResources = NO_RESOURCES,
) -> HookRequest:
    """A question; `container=None` is about the pod, an empty name about its sandbox."""
    named = None if container is None else ContainerSpec(name=container, pod_uid=pod_sandbox.uid)
    return HookRequest(stage=stage, pod=pod_sandbox, container=named, resources=resources)


def scene(
    slo: object = None,
    kernel: KernelFeatures = KernelFeatures(),  # noqa: B008 - frozen
    groups: tuple[str, ...] = (),
    ratio: str | None = None,
    kubelet: KubeletView | None = KUBELET,
) -> NodeSnapshot:
    """A node of two memory nodes with CPUs 0,1,4,5 and 2,3,6,7; `slo` is a NodeSLO's spec."""
    entries = clustered(machine(), kubelet=kubelet)
    node = entries.cluster.node.value
    assert node is not None
    if ratio is not None:
        key = "node.koordinator.sh/cpu-normalization-ratio"
        node = replace(node, annotations=((key, ratio),))
    view = NodeSloView(found=True, slo=overlay_spec(slo).slo)
    return replace(
        entries,
        cluster=replace(entries.cluster, slo=SnapshotPart(view, 1.0), node=SnapshotPart(node, 1.0)),
        host_devices=SnapshotPart(HostDevicesView(kernel=kernel, resctrl_groups=groups), 1.0),
    )


def to_json(value: object) -> str:
    """JSON of an annotation."""
    return json.dumps(value)
