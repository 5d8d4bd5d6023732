"""Checks before a container starts: its nodes are its devices', and no other pod runs on its cards.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from agent.deviceplugin.resources import AllocationError, ResourceUnits
from agent.snapshot.allocation import AllocationRefused, RefusalReason
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import ENDED_PHASES
from agent.wire_formats.device_allocated import ANNOTATION

DEVICE_OCCUPIED = "DeviceOccupied"
MAX_SAMPLE_AGE_S = 60.0  # of a vendor's samples; older ones prove nothing


class DeviceOccupiedError(AllocationError):
    """Another pod's process runs on the card; it may have ended since the last sample."""


def check_occupancy(
    ids: Sequence[str], resource_units: ResourceUnits, snapshot: NodeSnapshot
) -> None:
    """Raise `DeviceOccupiedError` if a process of another living pod runs on a whole card.

    The pods of the ids come from the kubelet's checkpoint. If a pod was allocated other cards than
    the kubelet chose, those are checked. Pods to which a card is allocated may run on it. Processes
    of the host, such as driver services, do not count. Without a known pod or a recent sample,
    nothing is refused.
    """
    ended = {pod.uid for pod in snapshot.cluster.pods if pod.phase in ENDED_PHASES}
    ended_uids = ended | snapshot.cluster.deleted_pods
    allocations = (
        allocation
        for allocation in snapshot.served.value.held
        if allocation.resource == resource_units.name
    )
    live_allocations = [
        allocation for allocation in allocations if allocation.pod_uid not in ended_uids
    ]
    own_uids = frozenset(
        allocation.pod_uid for allocation in live_allocations if set(allocation.ids) & set(ids)
    )
    if not own_uids:
        return
    exchanges = {
        name: given_id
        for allocation in live_allocations
        for name, given_id in allocation.pairs
        if name in ids
    }
    keys = _whole_card_keys(tuple(exchanges.values()), own_uids, resource_units, snapshot)
    living = {pod.uid: pod for pod in snapshot.pods.value if pod.cgroup}
    owners, pods_by_device = snapshot.usage.value.owners, snapshot.allocations.value.held
    for key, pid in _processes_on_cards(keys, snapshot):
        uid = owners.get(pid, ("", ""))[0]
        if uid in living and uid not in own_uids and uid not in pods_by_device.get(key, ()):
            pod = living[uid]
            name = f"{pod.namespace}/{pod.name}" if pod.name else f"pod {uid}"
            raise DeviceOccupiedError(
                DEVICE_OCCUPIED, f"{key}: process {pid} of {name} is still on it"
            )


def check_stored_nodes(
    ids: Sequence[str], resource_units: ResourceUnits, snapshot: NodeSnapshot
) -> None:
    """Raise `AllocationRefused` if the kubelet's stored answer has the node of another device.

    The kubelet repeats its answer for a pod that outlives a boot, after which the devices may have
    other numbers. Pods with an allocation have other devices than the kubelet accounts; if a pod is
    not listed yet, the kubelet tries again.
    """
    times = Counter(node.path for device in resource_units.devices for node in device.nodes)
    owners = {
        node.path: device.key
        for device in resource_units.devices
        for node in device.nodes
        if times[node.path] == 1
    }
    pods = {pod.uid: pod for pod in snapshot.cluster.pods}
    allocated_or_deleted = snapshot.allocations.value.pods.keys() | snapshot.cluster.deleted_pods
    for allocation in snapshot.served.value.held:
        if allocation.resource != resource_units.name or not set(ids) & set(allocation.ids):
            continue
        pod = pods.get(allocation.pod_uid)
        if allocation.pod_uid in allocated_or_deleted or (
            pod is not None
            and (pod.phase in ENDED_PHASES or pod.annotation(ANNOTATION) is not None)
        ):
            continue
        units = (resource_units.units.get(name) for name in allocation.device_ids)
        own_keys = {unit.device.key for unit in units if unit is not None}
        other = next(
            (
                path
                for path in allocation.nodes
                if own_keys and owners.get(path) not in {None, *own_keys}
            ),
            None,
        )
        if other is not None:
            text = (
                f"{other} is {owners[other]} now, and was another device when the kubelet stored it"
            )
            raise AllocationRefused(RefusalReason.NODE_MISMATCH, f"{text}: delete the pod")


def _whole_card_keys(
    ids: Sequence[str],
    own_uids: frozenset[str],
    resource_units: ResourceUnits,
    snapshot: NodeSnapshot,
) -> frozenset[str]:
    """Return the keys of the whole cards that the container really has."""
    whole_keys = {unit.device.key for unit in resource_units.units.values() if unit.is_whole}
    pods_by_device = snapshot.allocations.value.held
    allocated_keys = {key for key in whole_keys if own_uids & set(pods_by_device.get(key, ()))}
    requested_keys = {
        resource_units.units[name].device.key for name in ids if name in resource_units.units
    }
    return frozenset(allocated_keys or requested_keys & whole_keys)


def _processes_on_cards(keys: frozenset[str], snapshot: NodeSnapshot) -> Iterable[tuple[str, int]]:
    now_s = snapshot.pods.taken_s
    for vendor in snapshot.vendors:
        age_s = None if now_s is None else vendor.samples.age_s(now_s)
        if age_s is None or age_s > MAX_SAMPLE_AGE_S:
            continue
        for sample in vendor.samples.value:
            if sample.key in keys:
                yield from ((sample.key, process.pid) for process in sample.processes or ())
