"""Finds the pod of a kubelet request, and accounts the devices of a resource. Pure.

Allocate names devices and no pod: the candidates are the pods that may be waiting for it.

The kubelet accounts the devices that it chose, and never learns that a pod has others: those that a
scheduler allocated, or those that the pod got in exchange. So a device that the kubelet counts as
free may be in use, and one that it counts as used may be free. The two are exchanged for a pod
without an allocation. The kubelet's account stays as it is; the agent remembers the exchange until
the pod ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from agent.allocation.check import pod_allocation
from agent.allocation.index import AllocationIndex
from agent.deviceplugin.resources import ResourceUnits
from agent.snapshot.allocation import (
    AllocationRefused,
    DeviceAllocation,
    DeviceMatch,
    PodAllocation,
    match_devices,
)
from agent.snapshot.container import sandbox_from_pod
from agent.snapshot.device import VendorDevice
from agent.snapshot.device_plugin import DeviceUnit, HardwareKey, KubeletAllocation
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import ENDED_PHASES, PodView, ResourceRequest
from agent.wire_formats.device_allocated import ANNOTATION


class CandidatePod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that the kubelet's request may be for, with its allocation of this vendor's devices.

    `refusal` is why its allocation is invalid.
    """

    pod: PodView
    container: str = ""  # the container whose request is next; empty: unknown
    allocation: DeviceAllocation = DeviceAllocation()
    matches: tuple[DeviceMatch, ...] = ()  # the matched devices of this vendor in the allocation
    refusal: str = ""
    message: str = ""

    @property
    def has_allocation(self) -> bool:
        """Return whether a scheduler decided for the pod, validly or not."""
        return bool(self.matches or self.refusal)


def find_candidates(
    resource: str,
    count: int,
    devices: Sequence[VendorDevice],
    snapshot: NodeSnapshot,
    index: AllocationIndex | None = None,
) -> tuple[CandidatePod, ...]:
    """Return the pods for which the kubelet may request `count` of a resource now, by uid.

    They are on this node, have neither ended nor started, request that number in a container, and
    the kubelet has no answer for each such container yet. `devices` are the vendor's. The deletion
    of a pod does not cancel its request: pods being deleted are returned if there are no others.
    `index` is a cache.
    """
    requesting_pods = [
        pod
        for pod in snapshot.cluster.pods
        if any(request.resource == resource and request.count == count for request in pod.asks)
        and pod.phase not in ENDED_PHASES
    ]
    if not requesting_pods:
        return ()
    has_started = _StartedPods(snapshot)
    open_requests = [
        (pod, open_request)
        for pod in sorted(requesting_pods, key=lambda pod: pod.uid)
        if not has_started(pod)
        and (open_request := _next_request(pod, resource, count, snapshot.served.value.held))
        is not None
    ]
    live_requests = [
        (pod, open_request) for pod, open_request in open_requests if not pod.terminating
    ]
    index = index or AllocationIndex()
    return tuple(
        _candidate(pod, open_request, devices, snapshot, index)
        for pod, open_request in live_requests or open_requests
    )


class _StartedPods:
    """Returns whether a pod has been admitted: it has a cgroup or a sandbox.

    If neither is read, a pod has started once its status has containers or a later phase.
    """

    def __init__(self, snapshot: NodeSnapshot) -> None:
        runtime = snapshot.runtime.value
        self._uids = {pod.uid for pod in snapshot.pods.value if pod.cgroup}
        self._uids.update(
            sandbox.uid for sandbox in runtime.sandboxes.values() if not sandbox.stopped
        )
        self._has_source = snapshot.pods.taken_s is not None or runtime.is_synchronized

    def __call__(self, pod: PodView) -> bool:
        if self._has_source:
            return pod.uid in self._uids
        return bool(pod.containers) or pod.phase not in ("", "Pending")


def _next_request(
    pod: PodView, resource: str, count: int, allocations: Iterable[KubeletAllocation]
) -> ResourceRequest | None:
    """Return the next request of the pod: the kubelet goes by container, init containers first."""
    requests = [
        request for request in pod.asks if request.resource == resource and request.count == count
    ]
    pod_allocations = [
        allocation
        for allocation in allocations
        if allocation.pod_uid == pod.uid and allocation.resource == resource
    ]
    answer_count = sum(1 for allocation in pod_allocations if len(allocation.ids) == count)
    return requests[answer_count] if answer_count < len(requests) else None


def _candidate(
    pod: PodView,
    request: ResourceRequest,
    devices: Sequence[VendorDevice],
    snapshot: NodeSnapshot,
    index: AllocationIndex,
) -> CandidatePod:
    allocation = _current_allocation(pod, snapshot, index)
    if allocation is None:
        return CandidatePod(pod=pod, container=request.container)
    if allocation.refusal:
        return CandidatePod(
            pod=pod,
            container=request.container,
            refusal=allocation.refusal,
            message=allocation.message,
        )
    try:
        matches = match_devices(allocation.grant, devices)
    except AllocationRefused as error:
        return CandidatePod(
            pod=pod, container=request.container, refusal=error.reason, message=str(error)
        )
    return CandidatePod(
        pod=pod, container=request.container, allocation=allocation.grant, matches=matches
    )


def _current_allocation(
    pod: PodView, snapshot: NodeSnapshot, index: AllocationIndex
) -> PodAllocation | None:
    """Return the pod's allocation; check a refused one again: other pods may have ended."""
    allocation = snapshot.allocations.value.pods.get(pod.uid)
    if pod.annotation(ANNOTATION) is None or allocation is None or not allocation.refusal:
        return allocation
    return pod_allocation(snapshot, sandbox_from_pod(pod), index)


def matched_hardware(matches: Iterable[DeviceMatch]) -> frozenset[tuple[str, str, str]]:
    """Return the allocated hardware as `DeviceUnit.hardware_key`: device, slice, function."""
    return frozenset(
        (match.device.key, match.partition.uuid if match.partition else "", function)
        for match in matches
        for function in (match.entry.vfs or ("",))
    )


def pods_with_allocation(
    devices: Sequence[VendorDevice], snapshot: NodeSnapshot
) -> Mapping[str, None]:
    """Return the uids of pods with allocations of these devices, in a fixed order."""
    keys = {device.key for device in devices}
    pods_by_device = snapshot.allocations.value.held.items()
    return dict.fromkeys(uid for key, pods in pods_by_device if key in keys for uid in pods)


def allocated_hardware(
    devices: Sequence[VendorDevice], snapshot: NodeSnapshot
) -> Mapping[tuple[str, str, str], str]:
    """Return the hardware that is allocated to pods, each with the uid of one of them."""
    allocations = snapshot.allocations.value
    keys = {device.key for device in devices}
    uids = pods_with_allocation(devices, snapshot)
    uid_by_hardware: dict[tuple[str, str, str], str] = {}
    for uid in uids:
        pod = allocations.pods.get(uid)
        if pod is None or pod.refusal:
            continue
        try:
            matches = match_devices(pod.grant, devices)
        except AllocationRefused:
            # its slice is being created or deleted: the card belongs to this pod meanwhile
            pod_keys = [key for key in keys if uid in allocations.held.get(key, ())]
            uid_by_hardware.update(dict.fromkeys(((key, "", "") for key in pod_keys), uid))
            continue
        uid_by_hardware.update(dict.fromkeys(matched_hardware(matches), uid))
    return uid_by_hardware


# topology manager policies that promise a pod devices of the NUMA nodes of its CPUs
ALIGNED_POLICIES = ("restricted", "single-numa-node")


class DeviceAccounting:
    """The devices of one resource at one moment, by the kubelet's account and by actual use."""

    def __init__(
        self,
        resource_units: ResourceUnits,
        offered: Mapping[str, ResourceUnits],
        snapshot: NodeSnapshot,
        requested_ids: Collection[str] = (),
        candidate_uids: Collection[str] = (),
    ) -> None:
        """Read both accounts; `offered` are all resources.

        `sent` are the ids in the kubelet's request, for one of the pods `askers`: the kubelet has
        freed them, unless a container of the same pod reuses those of an init container.
        """
        self._reused_ids: dict[str, str] = {}  # by sent id: the device that the pod has for it
        self._used_ids: set[str] = set()  # ids that the kubelet counts as used
        self._units = resource_units
        self._allocated = allocated_hardware(resource_units.devices, snapshot)
        self._holders = pods_with_allocation(resource_units.devices, snapshot)
        self._used_ids_of_live_pods: set[str] = set()  # those of them whose pod is known to live
        # ids that pods without an allocation really have, with the pods' uids
        self._ids: dict[str, str] = {}
        self._places: set[HardwareKey] = set()  # hardware of such ids, of all resources
        self._answer_counts: Counter[str] = Counter()  # ids of this resource by pod
        facts = snapshot.cluster.kubelet.value
        self._is_aligned = facts is not None and facts.topology_policy in ALIGNED_POLICIES
        self._pods = {pod.uid: pod for pod in snapshot.cluster.pods}
        self._deleted = snapshot.cluster.deleted_pods
        self._is_clustered = snapshot.cluster.is_clustered
        for allocation in snapshot.served.value.held:
            self._add_allocation(allocation, offered, frozenset(requested_ids), candidate_uids)

    def is_in_use(self, unit: DeviceUnit) -> bool:
        """Return whether a pod has a device, independent of the kubelet's account."""
        return unit.id in self._ids or is_unit_in_use(unit, self._allocated)

    def exchange_units(self, units: Sequence[DeviceUnit]) -> Mapping[str, str] | None:
        """Return the device for each sent id of a pod without an allocation; `None`: too few."""
        exchange: dict[str, str] = {}
        spare = list(self.spare_units())
        for unit in units:
            if unit.id in self._reused_ids:
                exchange[unit.id] = self._reused_ids[unit.id]
                continue
            if not self.is_in_use(unit):
                exchange[unit.id] = unit.id
                continue
            fitting = [
                candidate
                for candidate in spare
                if not self._is_aligned or _is_same_node(candidate, unit)
            ]
            if not fitting:
                return None
            best = min(
                (not _is_same_node(candidate, unit), candidate.sort_key, candidate.id)
                for candidate in fitting
            )[2]
            spare = [candidate for candidate in spare if candidate.id != best]
            exchange[unit.id] = best
        return exchange

    def spare_units(self) -> Iterator[DeviceUnit]:
        """Yield devices in service that the kubelet counts as used and that no pod has."""
        cards = {key for key, _, _ in self._places}
        for name in self._used_ids_of_live_pods:
            unit = self._units.units.get(name)
            if unit is None or not unit.is_healthy or self.is_in_use(unit):
                continue
            if unit.replica is None:  # several pods may have replicas of one device
                is_whole_card_in_use = unit.is_whole and unit.device.key in cards
                if is_whole_card_in_use or is_unit_in_use(unit, self._places):
                    continue
            yield unit

    def ids_to_withdraw(self) -> frozenset[str]:
        """Return the ids in use that the kubelet counts as free and that cannot be exchanged.

        The kubelet keeps as many of them as pods with an allocation request that are not in its
        account: such a pod is not admitted yet, or has ended and the kubelet knew first.
        Withdrawing its device would end the admission of that pod, or of its successor, for good. A
        device of a pod that is in no list yet, such as right after a start of the agent, is not
        withdrawn either.
        """
        groups: dict[tuple[int, ...], list[DeviceUnit]] = {}
        for unit in self._candidates():
            free = unit.id not in self._used_ids and unit.is_healthy
            if free and self.is_in_use(unit) and self._is_listed(self._holder(unit)):
                groups.setdefault(self._group(unit), []).append(unit)
        if not groups:
            return frozenset()
        spare: dict[tuple[int, ...], int] = {}
        for unit in self.spare_units():
            spare[self._group(unit)] = spare.get(self._group(unit), 0) + 1
        waiting_uids, awaited_count = self._waiting_pods()
        ids: list[str] = []
        for group, units in groups.items():
            excess = len(units) - spare.get(group, 0) - awaited_count
            units.sort(key=lambda unit: (self._holder(unit) in waiting_uids, unit.sort_key))
            ids += [unit.id for unit in units[: max(0, excess)]]
        return frozenset(ids)

    def _add_allocation(
        self,
        allocation: KubeletAllocation,
        offered: Mapping[str, ResourceUnits],
        requested_ids: frozenset[str],
        candidate_uids: Collection[str],
    ) -> None:
        pod = self._pods.get(allocation.pod_uid)
        if allocation.pod_uid in self._deleted or (pod is not None and pod.phase in ENDED_PHASES):
            return
        is_own_resource = allocation.resource == self._units.name
        if is_own_resource and requested_ids.intersection(allocation.ids):
            if allocation.pod_uid and allocation.pod_uid not in candidate_uids:
                return  # the kubelet has freed its devices
            self._reused_ids |= {
                name: given_id for name, given_id in allocation.pairs if name in requested_ids
            }
        if is_own_resource:
            self._used_ids.update(allocation.ids)
            self._answer_counts[allocation.pod_uid] += len(allocation.ids)
            if pod is not None:
                self._used_ids_of_live_pods.update(allocation.ids)
        resource = offered.get(allocation.resource)
        if allocation.pod_uid in self._holders or resource is None:
            return
        ids = allocation.device_ids if allocation.exchanges else allocation.ids
        if is_own_resource:
            self._ids.update(dict.fromkeys(ids, allocation.pod_uid))
        self._places.update(
            resource.units[name].hardware_key for name in ids if name in resource.units
        )

    def _candidates(self) -> Iterator[DeviceUnit]:
        """Yield all units that may be in use; a resource may have thousands, with few in use."""
        keys = dict.fromkeys(key for key, _, _ in self._allocated)
        for key in keys:
            yield from self._units.by_card.get(key, ())
        for name in sorted(self._ids.keys() - self._used_ids):
            unit = self._units.units.get(name)
            if unit is not None and unit.device.key not in keys:
                yield unit

    def _group(self, unit: DeviceUnit) -> tuple[int, ...]:
        """Return what two devices must share to be exchanged."""
        return (unit.device.place.numa_node,) if self._is_aligned else ()

    def _waiting_pods(self) -> tuple[frozenset[str], int]:
        """Return allocated pods that are not in the account, and how many ids they request."""
        uids = [key for key in self._pods if key in self._holders]
        needed = {uid: self._missing_ids(self._pods[uid]) for uid in uids}
        return frozenset(uid for uid, count in needed.items() if count), sum(needed.values())

    def _missing_ids(self, pod: PodView) -> int:
        if pod.phase in ENDED_PHASES:
            return 0
        requested = sum(
            request.count for request in pod.asks if request.resource == self._units.name
        )
        return max(0, requested - self._answer_counts.get(pod.uid, 0))

    def _is_listed(self, uid: str) -> bool:
        return uid in self._pods or not self._is_clustered

    def _holder(self, unit: DeviceUnit) -> str:
        card = (unit.device.key, "", "")
        uid = self._allocated.get(unit.hardware_key) or self._allocated.get(card)
        return uid or self._ids.get(unit.id, "")


def is_unit_in_use(unit: DeviceUnit, keys_in_use: Collection[HardwareKey]) -> bool:
    """Return whether a pod has the unit itself or its card."""
    return unit.hardware_key in keys_in_use or (unit.device.key, "", "") in keys_in_use


def _is_same_node(unit: DeviceUnit, other: DeviceUnit) -> bool:
    return unit.device.place.numa_node == other.device.place.numa_node
