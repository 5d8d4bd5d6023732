"""What the kubelet gave to pods that the scheduler granted nothing: theirs as well."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from agent.grants.books import Hold, hold_of
from agent.grants.known import Found, KnownDevices, totals_of
from agent.model.cluster.pods import ENDED
from agent.model.device import DeviceKind
from agent.model.grant.granted import REPLICA, GrantedDevice
from agent.model.grant.refusal import GrantRefused
from agent.model.snapshot import NodeSnapshot

_NUMBERED = re.compile(r"(?:Ascend[0-9A-Z]{2,8}|npu)-([0-9]{1,4})")  # whole chips, by number


def kubelet_holds(
    snapshot: NodeSnapshot, known: KnownDevices, granted: Collection[str]
) -> Iterator[tuple[str, Hold]]:
    """Yield who holds what by the kubelet's account, but for the pods with these uids.

    Of a pod that the scheduler granted devices to those count, whichever ids the kubelet chose.
    NICs that many share by replicas are nobody's; ids that mean nothing here are passed over.
    """
    pods = {pod.uid: pod for pod in snapshot.cluster.pods} if snapshot.served.value.held else {}
    for held in snapshot.served.value.held:
        pod = pods.get(held.pod_uid)
        gone = pod is None and snapshot.cluster.pods_known
        if held.pod_uid in granted or gone or (pod is not None and pod.phase in ENDED):
            continue
        name = f"{pod.namespace}/{pod.name}" if pod is not None else f"pod {held.pod_uid}"
        for device_id in held.ids:
            found = _hold(device_id, known)
            if found is not None:
                yield f"{name}, by {held.resource},", found


def _hold(device_id: str, known: KnownDevices) -> Hold | None:
    card = known.owner_of(device_id)
    if card is not None:
        return Hold(key=card.key, totals=totals_of(card), functions=(device_id,))
    found = _found(device_id, known)
    if found is None:
        return None
    if found.device.kind is DeviceKind.RDMA and found.piece:
        return None
    entry = GrantedDevice(type=found.device.kind.wire_type, id=device_id)
    return hold_of(entry, found)


def _found(device_id: str, known: KnownDevices) -> Found | None:
    numbered = _NUMBERED.fullmatch(device_id.partition(REPLICA)[0])
    entries = [GrantedDevice(type=kind, id=device_id) for kind in ("gpu", "rdma")]
    if numbered is not None:
        entries.append(GrantedDevice(type="gpu", minor=int(numbered[1])))
    for entry in entries:
        try:
            found = known.find(entry)
        except GrantRefused:
            continue
        if entry.id or found.device.kind is DeviceKind.NPU:
            return found
    return None
