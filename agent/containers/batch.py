"""Weight, quota and memory of best-effort pods that ask for what others leave."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from agent.containers.cpu_quota import PERIOD_US, NodeRatio, quota_of, scale_quota, shares_of
from agent.containers.qos_class import qos_label
from agent.snapshot.container import (
    NO_ADJUSTMENT,
    UNLIMITED,
    Adjustment,
    HookRequest,
    HookStage,
    LinuxResources,
    RuntimeContainer,
)
from agent.snapshot.node import NodeSnapshot, SnapshotMemo
from agent.snapshot.pod import PodView
from agent.snapshot.slo import NodeSlo
from agent.wire_formats.extended_resource_spec import (
    EXTENDED_SPEC,
    MAX_BYTES,
    BatchAmounts,
    ExtendedResourceSpec,
    parse_extended_resource_spec,
)


def is_limited_by_class(slo: NodeSlo) -> bool:
    """Say whether best-effort pods are held down by their class's quota, and have none."""
    found = slo.thresholds
    return found.enable and found.cpu_suppress_policy == "cfsQuota"


def container_resources(
    one: BatchAmounts, ratio: float | None, *, by_class: bool
) -> LinuxResources:
    """Return what a container gets; no limit is unlimited."""
    return _resources(one.request_milli, one.limit_milli, one.limit_bytes, ratio, by_class=by_class)


def pod_resources(
    spec: ExtendedResourceSpec, running: frozenset[str], ratio: float | None, *, by_class: bool
) -> LinuxResources:
    """Return what a pod gets: its containers' together, unlimited if one of them is.

    A container that runs but is not in the spec (a sidecar, one that is to prepare others) has no
    batch limit: a pod's that leaves it out would be too small, and cgroup v1 would refuse the
    container's own.
    """
    outside = bool(running - spec.keys())
    all_of = spec.values()
    cpu = sum(one.limit_milli for one in all_of)
    memory = sum(one.limit_bytes for one in all_of)
    return _resources(
        sum(one.request_milli for one in all_of),
        0 if outside or not all(one.limit_milli for one in all_of) else cpu,
        0 if outside or not all(one.limit_bytes for one in all_of) else memory,
        ratio,
        by_class=by_class,
    )


def _resources(
    request_milli: int, limit_milli: int, limit_bytes: int, ratio: float | None, *, by_class: bool
) -> LinuxResources:
    return LinuxResources(
        shares=shares_of(request_milli),
        quota_us=UNLIMITED if by_class else scale_quota(quota_of(limit_milli), ratio),
        period_us=PERIOD_US,
        memory_bytes=limit_bytes if 0 < limit_bytes <= MAX_BYTES else UNLIMITED,
    )


class BatchHook:
    """Sets what a best-effort pod's annotation asks for, which Kubernetes itself does not know."""

    name = "batch_resources"
    stages = frozenset({HookStage.RUN_POD, HookStage.CREATE, HookStage.UPDATE, HookStage.RECONCILE})
    required = False

    def __init__(self, ratio: NodeRatio) -> None:
        self._ratio = ratio
        self._running: SnapshotMemo[Mapping[str, frozenset[str]]] = SnapshotMemo(
            lambda now: (now.pods.value, now.runtime.value.containers),
            lambda now, _: {
                pod.uid: _running_names(pod, now.runtime.value.containers) for pod in now.pods.value
            },
        )

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return the values of a container, or of the pod."""
        text = request.pod.annotation(EXTENDED_SPEC)
        if text is None or qos_label(request.pod) != "BE":
            return NO_ADJUSTMENT
        spec = parse_extended_resource_spec(text)
        ratio, by_class = self._ratio(snapshot), is_limited_by_class(snapshot.cluster.slo.value.slo)
        if request.container is None:
            running = frozenset[str]()  # of a new pod there are none
            if request.stage is HookStage.RECONCILE:
                running = self._running(snapshot).get(request.pod.uid, running)
            values = pod_resources(spec, running, ratio, by_class=by_class) if spec else None
        else:
            one = spec.get(request.container.name)
            values = None if one is None else container_resources(one, ratio, by_class=by_class)
        if values is None:
            return NO_ADJUSTMENT
        if request.stage is HookStage.RECONCILE and not _is_quota_known(snapshot):
            values = replace(values, quota_us=None, period_us=None)
        if request.stage is HookStage.UPDATE and snapshot.means.value.kernel.cgroup_version != 1:
            limit = _update_limit(values.memory_bytes, request.resources.memory_bytes)
            values = replace(values, memory_bytes=limit)
        return Adjustment(resources=values)


def _update_limit(limit: int | None, asked: int | None) -> int | None:
    """Return the memory limit that the runtime writes to a running container; `None` for none.

    On version 2 the kernel kills processes where a limit is below what is in use. So a limit that
    the request does not have, or has higher, is left to the loop over files of pods, which
    reclaims first.
    """
    if limit is None or limit == UNLIMITED:
        return limit
    return limit if asked is not None and 0 < asked <= limit else None


def _is_quota_known(snapshot: NodeSnapshot) -> bool:
    """Say whether the cluster told what decides a quota. Until then the one in force stays.

    That is so after a start without the API server: a new pod's limit is its own, but those of
    running pods may be their class's, or scaled.
    """
    cluster = snapshot.cluster
    told = cluster.slo.taken_s is not None and cluster.node.taken_s is not None
    return told or not cluster.is_clustered


def _running_names(pod: PodView, told: Mapping[str, RuntimeContainer]) -> frozenset[str]:
    """Return the names of the containers that run now; the sandbox has none.

    The runtime's word counts too: after a start it comes before the cluster's, and a sidecar that
    nobody knew of would be squeezed into the limit of the others.
    """
    running = (one for one in pod.containers if one.cgroup)
    names = (one.name or getattr(told.get(one.id), "name", "") for one in running)
    return frozenset(filter(None, names))
