"""What pods claim by their annotation, and in which order claims are heard.

Pods, sandboxes and devices as grants look them up, and what the kubelet gave away of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from agent.allocation.device_shares import DeviceIndex, KubeletShare, kubelet_shares
from agent.errors import ParseError
from agent.snapshot.allocation import AllocatedDevice, AllocationView
from agent.snapshot.container import ContainerState, PodSandbox, RuntimeContainer, RuntimeView
from agent.snapshot.node import IdentityMemo, NodeSnapshot
from agent.snapshot.pod import ENDED_PHASES, PodView, RequestedAmounts
from agent.snapshot.vendor import SlicesDevices
from agent.wire_formats.device_allocated import ANNOTATION, decode_allocated

# a container that is being made right now is in neither: it must not count for its own pod
HOLDING_STATES = frozenset((ContainerState.CREATED, ContainerState.PAUSED, ContainerState.RUNNING))

FEW_SANDBOXES = 3  # sandboxes: up to so many it is quicker to go through all containers for each

MAX_CACHED_TEXT = 4096  # characters of an annotation, enough for sixteen whole cards

HAMI_NODE_LABEL = "hami.io/vgpu-node"  # the scheduler's, of pods that share cards by HAMi-core


class AllocationAnnotation(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's annotation. `elsewhere` is another node that it was written for.

    A pod that runs keeps a card that fails. Only one that holds its devices at this moment comes
    before others: the sandbox of a running pod can be made anew, with what was written since.
    """

    uid: str
    namespace: str = ""
    name: str = ""
    text: str = ""
    other_node: str = ""
    is_running: bool = False  # it was given its devices, as far as anybody says
    is_holding_devices: bool = False  # a container of it has them now
    requests: RequestedAmounts | None = (
        None  # requests for devices, by its spec; None: neither source lists the pod
    )
    created: str = ""  # empty: nobody said, so it has just come

    @property
    def sort_key(self) -> tuple[bool, bool, str, str]:
        """Sort who holds first, then the older, then by uid: the same for everybody who asks."""
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
    """What pods claim that are here and not over.

    What a sandbox was created with counts before what the API server has now: users may write
    the annotation of a running pod, the sandbox's they may not. A pod that is bound to no node
    claims nothing: its annotation is still to be written.
    """

    def __init__(
        self, snapshot: NodeSnapshot, tables: AllocationTables, asking: PodSandbox | None = None
    ) -> None:
        """Look at all pods and sandboxes, and at one that asks and may not be among them."""
        self._snapshot = snapshot
        self._requesting_sandbox = asking
        self._node = snapshot.node.name
        self._has_pod_list = snapshot.cluster.has_pod_list
        self._deleted = snapshot.cluster.deleted_pods
        self._tables = tables

    def read(self, uids: Iterable[str]) -> tuple[AllocationAnnotation, ...]:
        """Return the claims of these pods, in the order in which they are heard."""
        pods = self._tables.pods
        told = [(uid, pods.get(uid), self._sandbox_of(uid)) for uid in uids if uid]
        inside = _containers_by_sandbox(
            self._snapshot.runtime.value, {box.id for _, _, box in told if box is not None}
        )
        found = (self._read_pod(uid, pod, box, inside) for uid, pod, box in told)
        return tuple(
            sorted((one for one in found if one is not None), key=lambda one: one.sort_key)
        )

    def _sandbox_of(self, uid: str) -> PodSandbox | None:
        asking = self._requesting_sandbox
        return (
            asking if asking is not None and asking.uid == uid else self._tables.sandboxes.get(uid)
        )

    def _read_pod(
        self,
        uid: str,
        pod: PodView | None,
        box: PodSandbox | None,
        of_boxes: Mapping[str, Sequence[RuntimeContainer]],
    ) -> AllocationAnnotation | None:
        """Return what a pod claims now; `None` if nothing."""
        inside = of_boxes[box.id] if box is not None else ()
        live = any(one.state is not ContainerState.STOPPED for one in inside)
        # who asks for a container is not over, whatever was told of it so far
        asks = box is not None and box is self._requesting_sandbox
        if not asks and (
            self._is_freed(uid, pod) or (not live and self._is_gone(pod, bool(inside)))
        ):
            return None
        if box is not None:
            text, labels = allocation_annotation(box), box.labels
            namespace, name = box.namespace, box.name
        elif pod is not None and (pod.node_name or pod.containers):
            text, labels = pod.annotation(ANNOTATION), pod.labels
            namespace, name = pod.namespace, pod.name
        else:
            return None
        if text is None:
            return None
        runs = pod is not None and pod.phase == "Running"
        written = next((value for key, value in labels if key == HAMI_NODE_LABEL), "")
        nodes = (pod.node_name if pod is not None else "", written)
        return AllocationAnnotation(
            uid=uid,
            namespace=namespace,
            name=name,
            text=text,
            other_node=next((node for node in nodes if node not in ("", self._node)), ""),
            is_running=runs or any(one.state in HOLDING_STATES for one in inside),
            # where the runtime tells of a pod its containers count, and not the pod's status
            is_holding_devices=runs
            if box is None
            else any(one.state in HOLDING_STATES for one in inside),
            requests=pod.wants if pod is not None else None,
            created=pod.created if pod is not None else "",
        )

    def _is_freed(self, uid: str, pod: PodView | None) -> bool:
        """Return whether the kubelet has freed a pod's devices: its phase ended or it was deleted.

        The containers of a pod that was deleted by force may run for some seconds longer.
        """
        return has_ended(pod) if pod is not None else uid in self._deleted

    def _is_gone(self, pod: PodView | None, had_containers: bool) -> bool:
        """Return whether a pod that nobody lists and that has no live container is over."""
        # while the API server has listed no pods, nobody can tell deleted ones
        return pod is None and had_containers and self._has_pod_list


def _containers_by_sandbox(
    runtime: RuntimeView, boxes: Collection[str]
) -> Mapping[str, list[RuntimeContainer]]:
    """Return what is in each of these sandboxes."""
    every = runtime.containers.values()
    if len(boxes) <= FEW_SANDBOXES:
        return {box: [one for one in every if one.sandbox_id == box] for box in boxes}
    found: dict[str, list[RuntimeContainer]] = {box: [] for box in boxes}
    for container in every:
        if container.sandbox_id in found:
            found[container.sandbox_id].append(container)
    return found


class AllocationCheckInputs(msgspec.Struct, frozen=True, kw_only=True):
    """All that a check of every pod's grant goes by: of equal ones the second need not be done."""

    devices: DeviceIndex
    annotations: tuple[AllocationAnnotation, ...]
    kubelet_shares: Mapping[str, tuple[KubeletShare, ...]]


class AllocationTables(msgspec.Struct, frozen=True, kw_only=True):
    """Look-up tables of one snapshot."""

    devices: DeviceIndex
    pods: Mapping[str, PodView]  # by uid
    sandboxes: Mapping[str, PodSandbox]  # by the pod's uid, without those that stopped
    allocated: frozenset[str]  # uids of pods with the annotation; that of a sandbox counts first
    unchecked: frozenset[str]  # of `allocated`: the pod or its sandbox came after the last check
    kubelet_shares: Mapping[str, tuple[KubeletShare, ...]]  # by Device.key
    slicers: tuple[SlicesDevices, ...] = ()  # vendors that can cut devices for pods


class AllocationIndex:
    """Builds the tables of a snapshot; reuses those whose parts of the snapshot were not replaced.

    So a request costs what was allocated, not what is on the node. Several threads may use it; a
    new index builds all tables, and the result is the same.
    """

    def __init__(self, slicers: Iterable[SlicesDevices] = ()) -> None:
        """`slicers` are the vendors that can cut devices for pods; they resolve templates."""
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
            now.grants.value.looked,
            now.served.value.held,
            now.cluster.has_pod_list,
        )
        return self._tables.get(inputs, lambda _: self._build(now))

    def _build(self, now: NodeSnapshot) -> AllocationTables:
        listed, boxes_by_id = now.cluster.pods, now.runtime.value.sandboxes
        devices = self._devices.get(
            (now.devices.value, now.devices.taken_s is None), lambda _: _build_device_index(now)
        )
        pods = self._pods.get((listed,), lambda _: {pod.uid: pod for pod in listed})
        sandboxes = self._sandboxes.get((boxes_by_id,), lambda _: _sandboxes_by_pod(now))
        allocated = self._allocated.get(
            (listed, boxes_by_id), lambda _: _allocated_pods(now, sandboxes)
        )
        shares = self._kubelet_shares.get(
            (devices, listed, now.served.value.held, now.cluster.has_pod_list),
            lambda _: kubelet_shares(now, pods, devices),
        )
        return AllocationTables(
            devices=devices,
            pods=pods,
            sandboxes=sandboxes,
            allocated=allocated,
            unchecked=_unchecked_pods(allocated, pods, sandboxes, now.grants.value.looked),
            kubelet_shares=shares,
            slicers=self._slicers,
        )


def _build_device_index(now: NodeSnapshot) -> DeviceIndex:
    part = now.devices
    complete = part.taken_s is not None and not part.value.awaited
    final = not part.value.provisional_minors
    return DeviceIndex(part.value.devices, complete=complete and final, final_minors=final)


def _sandboxes_by_pod(now: NodeSnapshot) -> Mapping[str, PodSandbox]:
    return {box.uid: box for box in now.runtime.value.sandboxes.values() if not box.stopped}


def _allocated_pods(now: NodeSnapshot, boxes: Mapping[str, PodSandbox]) -> frozenset[str]:
    # written out: this goes through all pods each time that one of them changes
    of_pods = {
        pod.uid for pod in now.cluster.pods for name, _ in pod.annotations if name == ANNOTATION
    }
    of_boxes = {
        uid for uid, box in boxes.items() for name, _ in box.annotations if name == ANNOTATION
    }
    return frozenset((of_pods - boxes.keys()) | of_boxes)


def _unchecked_pods(
    allocated: frozenset[str],
    pods: Mapping[str, PodView],
    boxes: Mapping[str, PodSandbox],
    checked: frozenset[str],
) -> frozenset[str]:
    """Return the pods that came since the last check, or whose sandbox did; decode what they have.

    The request for a container of theirs comes next, and then finds the annotation decoded.
    """
    unchecked = set()
    for uid in allocated:
        pod, box = pods.get(uid), boxes.get(uid)
        if (pod is not None and uid not in checked) or (box is not None and box.id not in checked):
            unchecked.add(uid)
            text = pod.annotation(ANNOTATION) if box is None and pod else None
            text = allocation_annotation(box) if box is not None else text
            decode_or_empty(text or "")
    return frozenset(unchecked)


def decode_or_empty(text: str) -> tuple[AllocatedDevice, ...]:
    """Return what an annotation allocates; nothing if it cannot be decoded."""
    try:
        return decode_annotation(text)
    except ParseError:
        return ()


def decode_annotation(text: str) -> tuple[AllocatedDevice, ...]:
    """Decode an annotation; one of usual length is decoded once, though each check needs it."""
    return _decode_cached(text) if len(text) <= MAX_CACHED_TEXT else decode_allocated(text)


@lru_cache(maxsize=1024)
def _decode_cached(text: str) -> tuple[AllocatedDevice, ...]:
    return decode_allocated(text)
