"""Weight, quota and memory of best-effort pods that ask for what others leave."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from agent.grants.remember import Remembered
from agent.hooks.classes import qos_label
from agent.hooks.cpu.extended import EXTENDED_SPEC, MAX_BYTES, Batch, Spec, extended_spec
from agent.hooks.cpu.quota import PERIOD_US, quota_of, scaled, shares_of
from agent.hooks.cpu.ratio import Ratio
from agent.model.pod import PodView
from agent.model.runtime.adjustment import NOTHING, UNLIMITED, Adjustment, Resources
from agent.model.runtime.request import HookRequest, Stage
from agent.model.runtime.seen import ContainerSeen
from agent.model.slo.spec import NodeSlo
from agent.model.snapshot import NodeSnapshot


def limits_by_class(slo: NodeSlo) -> bool:
    """Say whether best-effort pods are held down by their class's quota, and have none."""
    found = slo.thresholds
    return found.enable and found.cpu_suppress_policy == "cfsQuota"


def container_values(one: Batch, ratio: float | None, *, by_class: bool) -> Resources:
    """Return what a container gets; no limit is unlimited."""
    return _values(one.request_milli, one.limit_milli, one.limit_bytes, ratio, by_class=by_class)


def pod_values(
    spec: Spec, running: frozenset[str], ratio: float | None, *, by_class: bool
) -> Resources:
    """Return what a pod gets: its containers' together, unlimited if one of them is.

    A container that runs but is not in the spec (a sidecar, one that is to prepare others) has no
    batch limit: a pod's that leaves it out would be too small, and cgroup v1 would refuse the
    container's own.
    """
    outside = bool(running - spec.keys())
    all_of = spec.values()
    cpu = sum(one.limit_milli for one in all_of)
    memory = sum(one.limit_bytes for one in all_of)
    return _values(
        sum(one.request_milli for one in all_of),
        0 if outside or not all(one.limit_milli for one in all_of) else cpu,
        0 if outside or not all(one.limit_bytes for one in all_of) else memory,
        ratio,
        by_class=by_class,
    )


def _values(
    request_milli: int, limit_milli: int, limit_bytes: int, ratio: float | None, *, by_class: bool
) -> Resources:
    return Resources(
        shares=shares_of(request_milli),
        quota_us=UNLIMITED if by_class else scaled(quota_of(limit_milli), ratio),
        period_us=PERIOD_US,
        memory_bytes=limit_bytes if 0 < limit_bytes <= MAX_BYTES else UNLIMITED,
    )


class BatchHook:
    """Sets what a best-effort pod's annotation asks for, which Kubernetes itself does not know."""

    name = "batch_resources"
    stages = frozenset({Stage.RUN_POD, Stage.CREATE, Stage.UPDATE, Stage.RECONCILE})
    required = False

    def __init__(self, ratio: Ratio) -> None:
        self._ratio = ratio
        self._running: Remembered[Mapping[str, frozenset[str]]] = Remembered(
            lambda now: (now.pods.value, now.runtime.value.containers),
            lambda now, _: {
                pod.uid: _names(pod, now.runtime.value.containers) for pod in now.pods.value
            },
        )

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return the values of a container, or of the pod."""
        text = request.pod.annotation(EXTENDED_SPEC)
        if text is None or qos_label(request.pod) != "BE":
            return NOTHING
        spec = extended_spec(text)
        ratio, by_class = self._ratio(snapshot), limits_by_class(snapshot.cluster.slo.value.slo)
        if request.container is None:
            running = frozenset[str]()  # of a new pod there are none
            if request.stage is Stage.RECONCILE:
                running = self._running(snapshot).get(request.pod.uid, running)
            values = pod_values(spec, running, ratio, by_class=by_class) if spec else None
        else:
            one = spec.get(request.container.name)
            values = None if one is None else container_values(one, ratio, by_class=by_class)
        if values is None:
            return NOTHING
        if request.stage is Stage.RECONCILE and not _told(snapshot):
            values = replace(values, quota_us=None, period_us=None)
        if request.stage is Stage.UPDATE and snapshot.means.value.kernel.cgroup_version != 1:
            limit = _limit_of_update(values.memory_bytes, request.resources.memory_bytes)
            values = replace(values, memory_bytes=limit)
        return Adjustment(resources=values)


def _limit_of_update(limit: int | None, asked: int | None) -> int | None:
    """Return the memory limit that the runtime writes to a running container; `None` for none.

    On version 2 the kernel kills processes where a limit is below what is in use. So a limit that
    the request does not have, or has higher, is left to the loop over files of pods, which
    reclaims first.
    """
    if limit is None or limit == UNLIMITED:
        return limit
    return limit if asked is not None and 0 < asked <= limit else None


def _told(snapshot: NodeSnapshot) -> bool:
    """Say whether the cluster told what decides a quota. Until then the one in force stays.

    That is so after a start without the API server: a new pod's limit is its own, but those of
    running pods may be their class's, or scaled.
    """
    cluster = snapshot.cluster
    told = cluster.slo.taken_s is not None and cluster.node.taken_s is not None
    return told or not cluster.clustered


def _names(pod: PodView, told: Mapping[str, ContainerSeen]) -> frozenset[str]:
    """Return the names of the containers that run now; the sandbox has none.

    The runtime's word counts too: after a start it comes before the cluster's, and a sidecar that
    nobody knew of would be squeezed into the limit of the others.
    """
    running = (one for one in pod.containers if one.cgroup)
    names = (one.name or getattr(told.get(one.id), "name", "") for one in running)
    return frozenset(filter(None, names))
