"""Whose an allocation is: the kubelet says how many of what, and not for which pod. Pure.

Which devices of a resource are in use: by the kubelet's account, and in truth. Pure. The
kubelet accounts the devices that it chose, and never learns that a pod has others: those that
the scheduler granted, or those that a pod got in exchange. So a device that the kubelet holds
for free may be in use, and one that it holds for used may be free. The two are exchanged for a
pod without a grant. The kubelet's account stays as it is; ours has the exchange until the pod's
end.
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
    """A pod that the kubelet may be asking for, with what the scheduler granted it of this.

    `refusal` is why its grant does not hold.
    """

    pod: PodView
    container: str = ""  # whose turn it is; empty: not known
    allocation: DeviceAllocation = DeviceAllocation()
    matches: tuple[DeviceMatch, ...] = ()  # what of the grant is of this vendor's devices
    refusal: str = ""
    message: str = ""

    @property
    def has_allocation(self) -> bool:
        """Say whether a scheduler decided for it, well or not."""
        return bool(self.matches or self.refusal)


def find_candidates(
    resource: str,
    count: int,
    devices: Sequence[VendorDevice],
    snapshot: NodeSnapshot,
    kept: AllocationIndex | None = None,
) -> tuple[CandidatePod, ...]:
    """Return the pods for which the kubelet may ask for `count` of a resource now, by uid.

    They are on this node, not ended, not begun, ask for so many in a container, and the kubelet
    did not get an answer for each such container yet. `devices` are the vendor's. The deletion of
    a pod does not cancel a question about it: pods that are being deleted are returned where no
    other can be meant. `kept` saves time and changes nothing.
    """
    waiting = [
        pod
        for pod in snapshot.cluster.pods
        if any(ask.resource == resource and ask.count == count for ask in pod.asks)
        and pod.phase not in ENDED_PHASES
    ]
    if not waiting:
        return ()
    begun = _StartedPods(snapshot)
    turns = [
        (pod, turn)
        for pod in sorted(waiting, key=lambda pod: pod.uid)
        if not begun(pod)
        and (turn := _next_request(pod, resource, count, snapshot.served.value.held)) is not None
    ]
    staying = [(pod, turn) for pod, turn in turns if not pod.terminating]
    kept = kept or AllocationIndex()
    return tuple(_candidate(pod, turn, devices, snapshot, kept) for pod, turn in staying or turns)


class _StartedPods:
    """Says whether a pod was admitted before: the kubelet made its cgroup, the runtime its sandbox.

    Where neither is looked at, a pod has begun once its status says so.
    """

    def __init__(self, snapshot: NodeSnapshot) -> None:
        runtime = snapshot.runtime.value
        self._uids = {pod.uid for pod in snapshot.pods.value if pod.cgroup}
        self._uids.update(one.uid for one in runtime.sandboxes.values() if not one.stopped)
        self._looked = snapshot.pods.taken_s is not None or runtime.is_synchronized

    def __call__(self, pod: PodView) -> bool:
        if self._looked:
            return pod.uid in self._uids
        return bool(pod.containers) or pod.phase not in ("", "Pending")


def _next_request(
    pod: PodView, resource: str, count: int, held: Iterable[KubeletAllocation]
) -> ResourceRequest | None:
    """Return the container whose turn it is: the kubelet asks in their order, init ones first."""
    asks = [ask for ask in pod.asks if ask.resource == resource and ask.count == count]
    given = [one for one in held if one.pod_uid == pod.uid and one.resource == resource]
    answered = sum(1 for one in given if len(one.ids) == count)
    return asks[answered] if answered < len(asks) else None


def _candidate(
    pod: PodView,
    turn: ResourceRequest,
    devices: Sequence[VendorDevice],
    snapshot: NodeSnapshot,
    kept: AllocationIndex,
) -> CandidatePod:
    checked = _current_allocation(pod, snapshot, kept)
    if checked is None:
        return CandidatePod(pod=pod, container=turn.container)
    if checked.refusal:
        return CandidatePod(
            pod=pod, container=turn.container, refusal=checked.refusal, message=checked.message
        )
    try:
        found = match_devices(checked.grant, devices)
    except AllocationRefused as error:
        return CandidatePod(
            pod=pod, container=turn.container, refusal=error.reason, message=str(error)
        )
    return CandidatePod(pod=pod, container=turn.container, allocation=checked.grant, matches=found)


def _current_allocation(
    pod: PodView, snapshot: NodeSnapshot, kept: AllocationIndex
) -> PodAllocation | None:
    """Return the pod's grant; a refused one is checked again: other holders may have ended."""
    checked = snapshot.grants.value.pods.get(pod.uid)
    if pod.annotation(ANNOTATION) is None or checked is None or not checked.refusal:
        return checked
    return pod_allocation(snapshot, sandbox_from_pod(pod), kept)


def matched_hardware(found: Iterable[DeviceMatch]) -> frozenset[tuple[str, str, str]]:
    """Return what of the hardware a grant means, as `Unit.place`: device, slice, function."""
    return frozenset(
        (match.device.key, match.partition.uuid if match.partition else "", function)
        for match in found
        for function in (match.entry.vfs or ("",))
    )


def pods_with_allocation(
    devices: Sequence[VendorDevice], snapshot: NodeSnapshot
) -> Mapping[str, None]:
    """Return the uids of pods that were granted something of these devices, in a fixed order."""
    keys = {device.key for device in devices}
    held = snapshot.grants.value.held.items()
    return dict.fromkeys(uid for key, pods in held if key in keys for uid in pods)


def allocated_hardware(
    devices: Sequence[VendorDevice], snapshot: NodeSnapshot
) -> Mapping[tuple[str, str, str], str]:
    """Return what pods hold by a grant, each with the uid of one of them."""
    grants = snapshot.grants.value
    keys = {device.key for device in devices}
    uids = pods_with_allocation(devices, snapshot)
    held: dict[tuple[str, str, str], str] = {}
    for uid in uids:
        pod = grants.pods.get(uid)
        if pod is None or pod.refusal:
            continue
        try:
            found = match_devices(pod.grant, devices)
        except AllocationRefused:
            # its slice is gone, and is made anew or taken back: no other has the card meanwhile
            theirs = [key for key in keys if uid in grants.held.get(key, ())]
            held.update(dict.fromkeys(((key, "", "") for key in theirs), uid))
            continue
        held.update(dict.fromkeys(matched_hardware(found), uid))
    return held


# topology manager policies under which a pod is promised devices of the NUMA nodes of its CPUs
ALIGNED_POLICIES = ("restricted", "single-numa-node")


class DeviceAccounting:
    """The devices of one resource at one moment."""

    def __init__(
        self,
        one: ResourceUnits,
        offered: Mapping[str, ResourceUnits],
        snapshot: NodeSnapshot,
        sent: Collection[str] = (),
        askers: Collection[str] = (),
    ) -> None:
        """Read both accounts; `offered` are all resources.

        `sent` are the ids that the kubelet sends now, for one of the pods `askers`: it has freed
        them, unless a container of the same pod reuses those of an init container.
        """
        self._reused_ids: dict[str, str] = {}  # of the ids that are sent: what the pod has for them
        self._used_ids: set[str] = set()  # ids that the kubelet holds for used
        self._units = one
        self._allocated = allocated_hardware(one.devices, snapshot)
        self._holders = pods_with_allocation(one.devices, snapshot)
        self._used_ids_of_live_pods: set[str] = set()  # those of them whose pod is known to live
        self._ids: dict[str, str] = {}  # that pods without a grant have in truth, with their uids
        self._places: set[HardwareKey] = set()  # the same, of all resources
        self._answered_counts: Counter[str] = Counter()  # ids of this resource by pod
        facts = snapshot.cluster.kubelet.value
        self._is_aligned = facts is not None and facts.topology_policy in ALIGNED_POLICIES
        self._pods = {pod.uid: pod for pod in snapshot.cluster.pods}
        self._deleted = snapshot.cluster.deleted_pods
        self._is_clustered = snapshot.cluster.is_clustered
        for held in snapshot.served.value.held:
            self._add_allocation(held, offered, frozenset(sent), askers)

    def is_in_use(self, unit: DeviceUnit) -> bool:
        """Return whether somebody has a device, whatever the kubelet's account says of it."""
        return unit.id in self._ids or is_unit_taken(unit, self._allocated)

    def exchange_units(self, units: Sequence[DeviceUnit]) -> Mapping[str, str] | None:
        """Return what a pod without a grant gets for the ids that it was sent; `None`: no fit."""
        exchange: dict[str, str] = {}
        spare = list(self.spare_units())
        for unit in units:
            if unit.id in self._reused_ids:
                exchange[unit.id] = self._reused_ids[unit.id]
                continue
            if not self.is_in_use(unit):
                exchange[unit.id] = unit.id
                continue
            fitting = [one for one in spare if not self._is_aligned or _is_same_node(one, unit)]
            if not fitting:
                return None
            best = min((not _is_same_node(one, unit), one.sort_key, one.id) for one in fitting)[2]
            spare = [one for one in spare if one.id != best]
            exchange[unit.id] = best
        return exchange

    def spare_units(self) -> Iterator[DeviceUnit]:
        """Yield devices in service that the kubelet holds for used, and that nobody has."""
        cards = {key for key, _, _ in self._places}
        for name in self._used_ids_of_live_pods:
            unit = self._units.units.get(name)
            if unit is None or not unit.is_healthy or self.is_in_use(unit):
                continue
            if unit.replica is None:  # replicas of one thing are many pods'
                whole = unit.is_whole and unit.device.key in cards
                if whole or is_unit_taken(unit, self._places):
                    continue
            yield unit

    def ids_to_withdraw(self) -> frozenset[str]:
        """Return the ids that no pod can be given, although the kubelet holds them for free.

        Those are in use, and there is no spare device to exchange them for. Left to the kubelet are
        as many ids as granted pods ask for that have no entry in its account: such a pod has yet to
        be admitted, or has ended and the kubelet knew first. Withdrawing its devices would end the
        admission of that pod, or of its successor, for good. The device of a pod that no list has
        yet, as right after a start of the agent, is not withdrawn either.
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
        waiting, awaited = self._waiting_pods()
        ids: list[str] = []
        for group, units in groups.items():
            excess = len(units) - spare.get(group, 0) - awaited
            units.sort(key=lambda unit: (self._holder(unit) in waiting, unit.sort_key))
            ids += [unit.id for unit in units[: max(0, excess)]]
        return frozenset(ids)

    def _add_allocation(
        self,
        held: KubeletAllocation,
        offered: Mapping[str, ResourceUnits],
        sent: frozenset[str],
        askers: Collection[str],
    ) -> None:
        pod = self._pods.get(held.pod_uid)
        if held.pod_uid in self._deleted or (pod is not None and pod.phase in ENDED_PHASES):
            return
        own = held.resource == self._units.name
        if own and sent.intersection(held.ids):
            if held.pod_uid and held.pod_uid not in askers:
                return  # the kubelet has freed its devices
            self._reused_ids |= {name: given for name, given in held.pairs if name in sent}
        if own:
            self._used_ids.update(held.ids)
            self._answered_counts[held.pod_uid] += len(held.ids)
            if pod is not None:
                self._used_ids_of_live_pods.update(held.ids)
        resource = offered.get(held.resource)
        if held.pod_uid in self._holders or resource is None:
            return
        ids = held.device_ids if held.exchanges else held.ids
        if own:
            self._ids.update(dict.fromkeys(ids, held.pod_uid))
        self._places.update(
            resource.units[name].hardware_key for name in ids if name in resource.units
        )

    def _candidates(self) -> Iterator[DeviceUnit]:
        """Yield all units that may be in use: there may be thousands, and few in use."""
        keys = dict.fromkeys(key for key, _, _ in self._allocated)
        for key in keys:
            yield from self._units.by_card.get(key, ())
        for name in sorted(self._ids.keys() - self._used_ids):
            unit = self._units.units.get(name)
            if unit is not None and unit.device.key not in keys:
                yield unit

    def _group(self, unit: DeviceUnit) -> tuple[int, ...]:
        """Return what two devices must have in common to be exchanged."""
        return (unit.device.place.numa_node,) if self._is_aligned else ()

    def _waiting_pods(self) -> tuple[frozenset[str], int]:
        """Return the granted pods without entries in the account, and how many ids they ask for."""
        held = [key for key in self._pods if key in self._holders]
        needed = {uid: self._missing_ids(self._pods[uid]) for uid in held}
        return frozenset(uid for uid, count in needed.items() if count), sum(needed.values())

    def _missing_ids(self, pod: PodView) -> int:
        if pod.phase in ENDED_PHASES:
            return 0
        asked = sum(ask.count for ask in pod.asks if ask.resource == self._units.name)
        return max(0, asked - self._answered_counts.get(pod.uid, 0))

    def _is_listed(self, uid: str) -> bool:
        return uid in self._pods or not self._is_clustered

    def _holder(self, unit: DeviceUnit) -> str:
        card = (unit.device.key, "", "")
        uid = self._allocated.get(unit.hardware_key) or self._allocated.get(card)
        return uid or self._ids.get(unit.id, "")


def is_unit_taken(unit: DeviceUnit, taken: Collection[HardwareKey]) -> bool:
    """Return whether somebody has a unit: itself, or the card that it is of."""
    return unit.hardware_key in taken or (unit.device.key, "", "") in taken


def _is_same_node(one: DeviceUnit, other: DeviceUnit) -> bool:
    return one.device.place.numa_node == other.device.place.numa_node
