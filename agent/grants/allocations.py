"""What the kubelet gave to pods that the scheduler granted nothing: theirs as well."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from agent.grants.books import Hold, hold_of
from agent.grants.known import Found, KnownDevices, totals_of
from agent.model.cluster.pods import ENDED
from agent.model.device import DeviceKind
from agent.model.grant.granted import REPLICA, GrantedDevice
from agent.model.grant.refusal import GrantRefused
from agent.model.pod import PodView
from agent.model.snapshot import NodeSnapshot

_NUMBERED = re.compile(r"(?:Ascend[0-9A-Z]{2,8}|npu)-([0-9]{1,4})")  # whole chips, by number


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """What the kubelet gave to a pod of one device; `holder` is for people."""

    uid: str
    holder: str
    type: str  # of the device, as grants call it
    hold: Hold
    resource: str = ""  # nvidia.com/gpu
    container: str = ""  # name; empty: which of the pod's is not known


def allocations(
    snapshot: NodeSnapshot, pods: Mapping[str, PodView], known: KnownDevices
) -> Mapping[str, tuple[Allocation, ...]]:
    """Return who holds what by the kubelet's account, by Device.key; `pods` are by uid.

    A device that was exchanged for the kubelet's choice counts in its place. Of a pod that the
    scheduler granted such devices to those count, whichever ids the kubelet chose: whoever asks
    leaves such pods out. NICs that many share by replicas are nobody's; ids that mean nothing here
    are passed over.
    """
    by_key: dict[str, list[Allocation]] = {}
    for held in snapshot.served.value.held:
        pod = pods.get(held.pod_uid)
        gone = pod is None and snapshot.cluster.pods_known
        if gone or (pod is not None and pod.phase in ENDED):
            continue
        name = f"{pod.namespace}/{pod.name}" if pod is not None else f"pod {held.pod_uid}"
        for device_id in held.device_ids:
            found = _hold(device_id, known)
            if found is not None:
                kind, hold = found
                holder = f"{name}, by {held.resource},"
                one = Allocation(
                    uid=held.pod_uid,
                    holder=holder,
                    type=kind,
                    hold=hold,
                    resource=held.resource,
                    container=held.container,
                )
                by_key.setdefault(hold.key, []).append(one)
    return {key: tuple(given) for key, given in by_key.items()}


def _hold(device_id: str, known: KnownDevices) -> tuple[str, Hold] | None:
    """Return the type of a device and what of it an id takes; `None` for one that takes nothing."""
    card = known.owner_of(device_id)
    if card is not None:
        hold = Hold(key=card.key, totals=totals_of(card), functions=(device_id,))
        return card.kind.wire_type, hold
    found = _found(device_id, known)
    if found is None:
        return None
    if found.device.kind is DeviceKind.RDMA and found.piece:
        return None
    entry = GrantedDevice(type=found.device.kind.wire_type, id=device_id)
    return entry.type, hold_of(entry, found)


def _found(device_id: str, known: KnownDevices) -> Found | None:
    for kind in ("gpu", "rdma"):
        try:
            return known.find(GrantedDevice(type=kind, id=device_id))
        except GrantRefused:
            continue
    numbered = _NUMBERED.fullmatch(device_id.partition(REPLICA)[0])
    chip = known.numbered(DeviceKind.NPU, int(numbered[1])) if numbered is not None else None
    return Found(device=chip) if chip is not None else None
