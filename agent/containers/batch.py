"""CPU weight, CPU quota and memory limit of best-effort pods that request batch resources."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from agent.allocation.cpus import STATIC_POLICY
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
from agent.wire_formats.annotations import QOS_LABEL
from agent.wire_formats.extended_resource_spec import (
    EXTENDED_SPEC,
    MAX_BYTES,
    BatchAmounts,
    ExtendedResourceSpec,
    parse_extended_resource_spec,
)

BEST_EFFORT = "BE"  # Koordinator's class of pods that request batch resources


def is_limited_by_class(snapshot: NodeSnapshot, *, reacts_to_pressure: bool) -> bool:
    """Return whether the quota of their class limits best-effort pods, and not one of their own.

    Version 1 refuses a quota of the class below that of a pod. There the class also has a quota
    where the kubelet allocates CPUs itself, and under pressure if the agent reacts to it.
    """
    thresholds = snapshot.cluster.slo.value.slo.thresholds
    if not thresholds.enable or thresholds.cpu_suppress_policy == "cfsQuota":
        return thresholds.enable
    kubelet = snapshot.cluster.kubelet.value
    is_static = kubelet is not None and kubelet.cpu_manager_policy == STATIC_POLICY
    version = snapshot.host_devices.value.kernel.cgroup_version
    return version == 1 and (reacts_to_pressure or is_static)


def container_resources(
    amounts: BatchAmounts, ratio: float | None, *, by_class: bool
) -> LinuxResources:
    """Return the resources of a container; without a limit it is unlimited."""
    return _resources(
        amounts.request_milli, amounts.limit_milli, amounts.limit_bytes, ratio, by_class=by_class
    )


def pod_resources(
    spec: ExtendedResourceSpec, running: frozenset[str], ratio: float | None, *, by_class: bool
) -> LinuxResources:
    """Return the resources of a pod: the sum of its containers, unlimited if one of them is.

    A running container that is not in the spec (a sidecar, an injected one) has no batch limit: a
    pod limit without it would be too small, and cgroup v1 would refuse the container's own limit.
    """
    has_unlisted = bool(running - spec.keys())
    all_amounts = spec.values()
    cpu = sum(amounts.limit_milli for amounts in all_amounts)
    memory = sum(amounts.limit_bytes for amounts in all_amounts)
    return _resources(
        sum(amounts.request_milli for amounts in all_amounts),
        0 if has_unlisted or not all(amounts.limit_milli for amounts in all_amounts) else cpu,
        0 if has_unlisted or not all(amounts.limit_bytes for amounts in all_amounts) else memory,
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


def requested_batch(pod: PodView) -> ExtendedResourceSpec:
    """Return the batch resources of a pod's spec by container, as its annotation would have them.

    Koordinator's webhook writes the annotation, and a cluster may be without it.
    """
    return {
        one.name: BatchAmounts(
            request_milli=one.batch_cpu_milli or 0,
            limit_milli=one.batch_cpu_limit_milli or 0,
            limit_bytes=one.batch_memory_limit_bytes or 0,
        )
        for one in pod.resources or ()
        if one.runs_beside_others and (one.batch_cpu_milli or one.batch_memory_bytes)
    }


class BatchHook:
    """Sets the batch resources of a best-effort pod, unknown to Kubernetes.

    They are those of its annotation. Without one they are those of its spec, once it is listed.
    """

    name = "batch_resources"
    stages = frozenset({HookStage.RUN_POD, HookStage.CREATE, HookStage.UPDATE, HookStage.RECONCILE})
    required = False

    def __init__(self, ratio: NodeRatio, *, reacts_to_pressure: bool = False) -> None:
        """`reacts_to_pressure`: the quota of the class is cut when other pods wait for CPU."""
        self._ratio = ratio
        self._reacts_to_pressure = reacts_to_pressure
        self._running: SnapshotMemo[Mapping[str, frozenset[str]]] = SnapshotMemo(
            lambda now: (now.pods.value, now.runtime.value.containers),
            lambda now: {
                pod.uid: _running_names(pod, now.runtime.value.containers) for pod in now.pods.value
            },
        )
        self._requested: SnapshotMemo[Mapping[str, ExtendedResourceSpec]] = SnapshotMemo(
            lambda now: (now.pods.value,),
            lambda now: {
                pod.uid: requested_batch(pod)
                for pod in now.pods.value
                if pod.label(QOS_LABEL) == BEST_EFFORT and pod.annotation(EXTENDED_SPEC) is None
            },
        )

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return the values of a container, or of the pod."""
        if qos_label(request.pod) != BEST_EFFORT:
            return NO_ADJUSTMENT
        text = request.pod.annotation(EXTENDED_SPEC)
        if text is not None:
            spec = parse_extended_resource_spec(text)
        else:
            spec = self._requested(snapshot).get(request.pod.uid, {})
        ratio = self._ratio.get(snapshot)
        by_class = is_limited_by_class(snapshot, reacts_to_pressure=self._reacts_to_pressure)
        if request.container is None:
            running = frozenset[str]()  # a new pod has none
            if request.stage is HookStage.RECONCILE:
                running = self._running(snapshot).get(request.pod.uid, running)
            values = pod_resources(spec, running, ratio, by_class=by_class) if spec else None
        else:
            amounts = spec.get(request.container.name)
            values = (
                None if amounts is None else container_resources(amounts, ratio, by_class=by_class)
            )
        if values is None:
            return NO_ADJUSTMENT
        if request.stage is HookStage.RECONCILE and not _is_quota_known(snapshot):
            values = replace(values, quota_us=None, period_us=None)
        if (
            request.stage is HookStage.UPDATE
            and snapshot.host_devices.value.kernel.cgroup_version != 1
        ):
            limit = _update_limit(values.memory_bytes, request.resources.memory_bytes)
            values = replace(values, memory_bytes=limit)
        return Adjustment(resources=values)


def _update_limit(limit: int | None, requested_limit: int | None) -> int | None:
    """Return the memory limit that the runtime writes to a running container; `None` for none.

    On cgroup v2 the kernel kills processes if a limit is below the current usage. So a limit that
    is lower than the requested one is left to the reconcile loop, which reclaims memory first.
    """
    if limit is None or limit == UNLIMITED:
        return limit
    return limit if requested_limit is not None and 0 < requested_limit <= limit else None


def _is_quota_known(snapshot: NodeSnapshot) -> bool:
    """Return whether the inputs of a quota are known. Until then the present quota stays.

    They are unknown after a start without the API server: the limit of a new pod would be right,
    but running pods may be limited by their class, or have scaled quotas.
    """
    cluster = snapshot.cluster
    is_known = cluster.slo.taken_s is not None and cluster.node.taken_s is not None
    return is_known or not cluster.is_clustered


def _running_names(
    pod: PodView, runtime_containers: Mapping[str, RuntimeContainer]
) -> frozenset[str]:
    """Return the names of the running containers; the sandbox has none.

    The runtime's names count too: after a start they arrive before the cluster's, and an unknown
    sidecar would have to share the limit of the other containers.
    """
    running = (container for container in pod.containers if container.cgroup)
    names = (
        container.name or getattr(runtime_containers.get(container.id), "name", "")
        for container in running
    )
    return frozenset(filter(None, names))
