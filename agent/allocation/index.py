"""Allocation annotations of pods in the order in which they are checked, and look-up tables.

The tables have pods, sandboxes and devices, and the devices that the kubelet assigned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from operator import attrgetter

import msgspec

from agent.allocation.device_shares import DeviceIndex, KubeletShare, kubelet_shares
from agent.errors import ParseError
from agent.snapshot.allocation import AllocatedDevice, AllocationView
from agent.snapshot.container import ContainerState, PodSandbox, RuntimeContainer, RuntimeView
from agent.snapshot.node import IdentityMemo, NodeSnapshot
from agent.snapshot.pod import ENDED_PHASES, PodView, RequestedAmounts
from agent.snapshot.vendor import SlicesDevices
from agent.wire_formats.device_allocated import ANNOTATION, decode_allocated

# a container in creation has none of these states: it must not count for its own pod
HOLDING_STATES = frozenset((ContainerState.CREATED, ContainerState.PAUSED, ContainerState.RUNNING))

FEW_SANDBOXES = 3  # up to this number, a scan of all containers per sandbox is faster

MAX_CACHED_TEXT = 4096  # characters of an annotation, enough for sixteen whole cards

HAMI_NODE_LABEL = "hami.io/vgpu-node"  # set by the scheduler on pods that share cards by HAMi-core


class AllocationAnnotation(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's annotation. `other_node` is another node that it was written for.

    A running pod keeps a card that fails. Only a pod that uses its devices at this moment is
    checked before others: the sandbox of a running pod may be created again, with a newer
    annotation.
    """

    uid: str
    namespace: str = ""
    name: str = ""
    text: str = ""
    other_node: str = ""
    is_running: bool = False  # its containers have run, so it has got its devices
    is_holding_devices: bool = False  # one of its containers has the devices now
    requests: RequestedAmounts | None = (
        None  # requests for devices in its spec; None: neither source lists the pod
    )
    created: str = ""  # empty: unknown, so the pod is new

    @property
    def sort_key(self) -> tuple[bool, bool, str, str]:
        """Sort pods that have their devices first, then older pods, then by uid."""
        return not self.is_holding_devices, not self.created, self.created, self.uid


def allocation_annotation(sandbox: PodSandbox) -> str | None:
    """Return the annotation that a sandbox was created with."""
    for name, value in sandbox.annotations:
        if name == ANNOTATION:
            return value
    return None


def has_ended(pod: PodView) -> bool:
    """Return whether a pod's phase is final."""
    return pod.phase in ENDED_PHASES


class AnnotationReader:
    """Reads the annotations of pods that exist and have not ended.

    The annotation with which a sandbox was created outranks that of the API server: users may
    change the annotation of a running pod, but not that of its sandbox. The annotation of a pod
    without a node is ignored: the scheduler has yet to write it.
    """

    def __init__(
        self, snapshot: NodeSnapshot, tables: AllocationTables, requesting: PodSandbox | None = None
    ) -> None:
        """Store the arguments.

        `requesting` is the sandbox of the current request, which the snapshot may lack.
        """
        self._snapshot = snapshot
        self._requesting_sandbox = requesting
        self._node = snapshot.node.name
        self._has_pod_list = snapshot.cluster.has_pod_list
        self._deleted = snapshot.cluster.deleted_pods
        self._tables = tables

    def read(self, uids: Iterable[str]) -> tuple[AllocationAnnotation, ...]:
        """Return the annotations of these pods, in the order in which they are checked."""
        pods = self._tables.pods
        rows = [(uid, pods.get(uid), self._sandbox_of(uid)) for uid in uids if uid]
        containers = _containers_by_sandbox(
            self._snapshot.runtime.value,
            {sandbox.id for _, _, sandbox in rows if sandbox is not None},
        )
        annotations: list[AllocationAnnotation] = []
        for uid, pod, sandbox in rows:
            annotation = self._read_pod(uid, pod, sandbox, containers)
            if annotation is not None:
                annotations.append(annotation)
        return tuple(sorted(annotations, key=attrgetter("sort_key")))

    def _sandbox_of(self, uid: str) -> PodSandbox | None:
        requesting = self._requesting_sandbox
        return (
            requesting
            if requesting is not None and requesting.uid == uid
            else self._tables.sandboxes.get(uid)
        )

    def _read_pod(
        self,
        uid: str,
        pod: PodView | None,
        sandbox: PodSandbox | None,
        containers_by_sandbox: Mapping[str, Sequence[RuntimeContainer]],
    ) -> AllocationAnnotation | None:
        """Return the current annotation of a pod; `None` if there is none or the pod has ended."""
        containers = containers_by_sandbox[sandbox.id] if sandbox is not None else ()
        is_live = any(container.state is not ContainerState.STOPPED for container in containers)
        # a pod whose container is requested has not ended, whatever the snapshot says
        is_requesting = sandbox is not None and sandbox is self._requesting_sandbox
        if not is_requesting and (
            self._is_freed(uid, pod) or (not is_live and self._has_ended(pod, bool(containers)))
        ):
            return None
        if sandbox is not None:
            text, labels = allocation_annotation(sandbox), sandbox.labels
            namespace, name = sandbox.namespace, sandbox.name
        elif pod is not None and (pod.node_name or pod.containers):
            text, labels = pod.annotation(ANNOTATION), pod.labels
            namespace, name = pod.namespace, pod.name
        else:
            return None
        if text is None:
            return None
        is_running = pod is not None and pod.phase == "Running"
        labelled_node = next((value for key, value in labels if key == HAMI_NODE_LABEL), "")
        nodes = (pod.node_name if pod is not None else "", labelled_node)
        return AllocationAnnotation(
            uid=uid,
            namespace=namespace,
            name=name,
            text=text,
            other_node=next((node for node in nodes if node not in ("", self._node)), ""),
            is_running=is_running
            or any(container.state in HOLDING_STATES for container in containers),
            # if the runtime reports the pod, its containers count and not the pod's status
            is_holding_devices=is_running
            if sandbox is None
            else any(container.state in HOLDING_STATES for container in containers),
            requests=pod.wants if pod is not None else None,
            created=pod.created if pod is not None else "",
        )

    def _is_freed(self, uid: str, pod: PodView | None) -> bool:
        """Return whether the kubelet has freed a pod's devices: the pod ended or was deleted.

        The containers of a pod that was deleted by force may run for some seconds longer.
        """
        return has_ended(pod) if pod is not None else uid in self._deleted

    def _has_ended(self, pod: PodView | None, had_containers: bool) -> bool:
        """Return whether a pod that is not listed and has no live container has ended."""
        # before the first pod list of the API server, deleted pods are unknown
        return pod is None and had_containers and self._has_pod_list


def _containers_by_sandbox(
    runtime: RuntimeView, sandbox_ids: Collection[str]
) -> Mapping[str, list[RuntimeContainer]]:
    """Return the containers of each of these sandboxes."""
    containers = runtime.containers.values()
    if len(sandbox_ids) <= FEW_SANDBOXES:
        return {
            sandbox_id: [one for one in containers if one.sandbox_id == sandbox_id]
            for sandbox_id in sandbox_ids
        }
    by_sandbox: dict[str, list[RuntimeContainer]] = {sandbox_id: [] for sandbox_id in sandbox_ids}
    for container in containers:
        if container.sandbox_id in by_sandbox:
            by_sandbox[container.sandbox_id].append(container)
    return by_sandbox


class AllocationCheckInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of `check_allocations`. If they equal those of the last call, its result is reused."""

    devices: DeviceIndex
    annotations: tuple[AllocationAnnotation, ...]
    kubelet_shares: Mapping[str, tuple[KubeletShare, ...]]


class AllocationTables(msgspec.Struct, frozen=True, kw_only=True):
    """Look-up tables of one snapshot."""

    devices: DeviceIndex
    pods: Mapping[str, PodView]  # by uid
    sandboxes: Mapping[str, PodSandbox]  # by the pod's uid, without stopped ones
    allocated: frozenset[str]  # uids of pods with the annotation; a sandbox's outranks the pod's
    unchecked: frozenset[str]  # of `allocated`: the pod or its sandbox is newer than the last check
    kubelet_shares: Mapping[str, tuple[KubeletShare, ...]]  # by Device.key
    slicers: tuple[SlicesDevices, ...] = ()  # vendors that can slice devices for pods


class AllocationIndex:
    """Builds the tables of a snapshot; reuses tables whose inputs were not replaced.

    The cost of a request therefore depends on the number of allocations, not on that of pods.
    Several threads may use one index; a new index builds all tables, with the same result.
    """

    def __init__(self, slicers: Iterable[SlicesDevices] = ()) -> None:
        """`slicers` are the vendors that can slice devices for pods; they resolve templates."""
        self._slicers = tuple(slicers)
        self.last_check: tuple[AllocationCheckInputs, AllocationView] | None = None
        self._tables = IdentityMemo[AllocationTables]()
        self._devices = IdentityMemo[DeviceIndex]()
        self._pods = IdentityMemo[Mapping[str, PodView]]()
        self._sandboxes = IdentityMemo[Mapping[str, PodSandbox]]()
        self._allocated = IdentityMemo[frozenset[str]]()
        self._kubelet_shares = IdentityMemo[Mapping[str, tuple[KubeletShare, ...]]]()

    def tables(self, now: NodeSnapshot) -> AllocationTables:
        """Return the tables of a snapshot."""
        inputs = (
            now.devices.value,
            now.devices.taken_s is None,
            now.cluster.pods,
            now.runtime.value.sandboxes,
            now.allocations.value.looked,
            now.served.value.held,
            now.cluster.has_pod_list,
        )
        return self._tables.get(inputs, partial(self._build, now))

    def _build(self, now: NodeSnapshot) -> AllocationTables:
        listed, sandboxes_by_id = now.cluster.pods, now.runtime.value.sandboxes
        devices = self._devices.get(
            (now.devices.value, _are_devices_known(now)), partial(_build_device_index, now)
        )
        pods = self._pods.get((listed,), partial(_pods_by_uid, listed))
        sandboxes = self._sandboxes.get((sandboxes_by_id,), partial(_sandboxes_by_pod, now))
        allocated = self._allocated.get(
            (listed, sandboxes_by_id), partial(_allocated_pods, now, sandboxes)
        )
        shares = self._kubelet_shares.get(
            (devices, listed, now.served.value.held, now.cluster.has_pod_list),
            partial(kubelet_shares, now, pods, devices),
        )
        return AllocationTables(
            devices=devices,
            pods=pods,
            sandboxes=sandboxes,
            allocated=allocated,
            unchecked=_unchecked_pods(allocated, pods, sandboxes, now.allocations.value.looked),
            kubelet_shares=shares,
            slicers=self._slicers,
        )


def _build_device_index(now: NodeSnapshot) -> DeviceIndex:
    view = now.devices.value
    return DeviceIndex(
        view.devices,
        is_complete=_are_devices_known(now),
        final_minors=not view.provisional_minors,
    )


def _are_devices_known(now: NodeSnapshot) -> bool:
    """Return whether a device that is not listed is not on the node: all vendors answer."""
    part = now.devices
    is_final = part.taken_s is not None and part.value.is_final
    return is_final and not any(vendor.inventory.error for vendor in now.vendors)


def _pods_by_uid(pods: Iterable[PodView]) -> Mapping[str, PodView]:
    return {pod.uid: pod for pod in pods}


def _sandboxes_by_pod(now: NodeSnapshot) -> Mapping[str, PodSandbox]:
    return {
        sandbox.uid: sandbox
        for sandbox in now.runtime.value.sandboxes.values()
        if not sandbox.stopped
    }


def _allocated_pods(now: NodeSnapshot, sandboxes: Mapping[str, PodSandbox]) -> frozenset[str]:
    # plain loops, for speed: this scans all pods after each change of one
    pod_uids = {
        pod.uid for pod in now.cluster.pods for name, _ in pod.annotations if name == ANNOTATION
    }
    sandbox_uids = {
        uid
        for uid, sandbox in sandboxes.items()
        for name, _ in sandbox.annotations
        if name == ANNOTATION
    }
    return frozenset((pod_uids - sandboxes.keys()) | sandbox_uids)


def _unchecked_pods(
    allocated: frozenset[str],
    pods: Mapping[str, PodView],
    sandboxes: Mapping[str, PodSandbox],
    checked: frozenset[str],
) -> frozenset[str]:
    """Return pods that, or whose sandbox, are newer than the last check; decode their annotations.

    The next request is for a container of such a pod, and then finds the annotation decoded.
    """
    unchecked = set()
    for uid in allocated:
        pod, sandbox = pods.get(uid), sandboxes.get(uid)
        if (pod is not None and uid not in checked) or (
            sandbox is not None and sandbox.id not in checked
        ):
            unchecked.add(uid)
            text = pod.annotation(ANNOTATION) if sandbox is None and pod else None
            text = allocation_annotation(sandbox) if sandbox is not None else text
            decode_or_empty(text or "")
    return frozenset(unchecked)


def decode_or_empty(text: str) -> tuple[AllocatedDevice, ...]:
    """Return the devices that an annotation allocates; none if it cannot be decoded."""
    try:
        return decode_annotation(text)
    except ParseError:
        return ()


def decode_annotation(text: str) -> tuple[AllocatedDevice, ...]:
    """Decode an annotation; one of usual length is cached, because each check needs it."""
    return _decode_cached(text) if len(text) <= MAX_CACHED_TEXT else decode_allocated(text)


@lru_cache(maxsize=1024)
def _decode_cached(text: str) -> tuple[AllocatedDevice, ...]:
    return decode_allocated(text)
