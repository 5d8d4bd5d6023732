"""Pods, questions and snapshots that hooks are asked about."""

from __future__ import annotations

import json
from collections.abc import Mapping

from msgspec.structs import replace

from agent.model.classes import QOS_LABEL
from agent.model.cluster.facts import KubeletFacts
from agent.model.grant.container import Container
from agent.model.grant.kernel import KernelMeans
from agent.model.grant.means import MeansView
from agent.model.part import Part
from agent.model.runtime.adjustment import NO_RESOURCES, Resources
from agent.model.runtime.request import HookRequest, Stage
from agent.model.runtime.seen import SandboxSeen
from agent.model.slo.overlay import overlay
from agent.model.slo.view import SloView
from agent.model.snapshot import NodeSnapshot
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
) -> SandboxSeen:
    """A pod's sandbox; `place` is G, Bu or BE."""
    named = {QOS_LABEL: qos} if qos else {}
    return SandboxSeen(
        id="5a4d",
        uid=UID,
        name="p",
        namespace="d",
        labels=tuple({**named, **(labels or {})}.items()),
        annotations=tuple((annotations or {}).items()),
        cgroup_parent=PARENTS[place],
    )


def ask(
    stage: Stage,
    asked: SandboxSeen,
    container: str | None = "a",
    resources: Resources = NO_RESOURCES,
) -> HookRequest:
    """A question; `container=None` is about the pod, an empty name about its sandbox."""
    named = None if container is None else Container(name=container, pod_uid=asked.uid)
    return HookRequest(stage=stage, pod=asked, container=named, resources=resources)


def scene(
    slo: object = None,
    kernel: KernelMeans = KernelMeans(),  # noqa: B008 - frozen
    groups: tuple[str, ...] = (),
    ratio: str | None = None,
    kubelet: KubeletFacts | None = KUBELET,
) -> NodeSnapshot:
    """A node of two memory nodes with CPUs 0,1,4,5 and 2,3,6,7; `slo` is a NodeSLO's spec."""
    known = clustered(machine(), kubelet=kubelet)
    node = known.cluster.node.value
    assert node is not None
    if ratio is not None:
        key = "node.koordinator.sh/cpu-normalization-ratio"
        node = replace(node, annotations=((key, ratio),))
    view = SloView(found=True, slo=overlay(slo).slo)
    return replace(
        known,
        cluster=replace(known.cluster, slo=Part(view, 1.0), node=Part(node, 1.0)),
        means=Part(MeansView(kernel=kernel, resctrl_groups=groups), 1.0),
    )


def to_json(value: object) -> str:
    """JSON of an annotation."""
    return json.dumps(value)
