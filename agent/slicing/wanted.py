"""Which slices pods are to have, and which pods there are. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent.model.cluster.pods import ENDED
from agent.model.device import DeviceKind, VendorDevice
from agent.model.grant.checked import PodGrant
from agent.model.grant.granted import CORE, MEMORY, RATIO, GrantedDevice
from agent.model.runtime.slices import SliceWish
from agent.model.snapshot import NodeSnapshot

Wishes = Mapping[str, tuple[SliceWish, ...]]  # by the vendor's plug-in
WHOLE = 100  # percent of a card
_MAKES_ITS_OWN = "ascend"  # in the name of a runtime handler that cuts by the environment


def wishes(snapshot: NodeSnapshot) -> Wishes:
    """Return the slices that checked grants ask for, by vendor, in the order of the pods' uids."""
    found: dict[str, list[SliceWish]] = {}
    vendors = _vendors(snapshot)
    cards = tuple(device.info for device in snapshot.devices.value.devices)
    for uid, grant in sorted(snapshot.grants.value.pods.items()):
        if grant.refusal or _cut_by_the_runtime(snapshot, grant):
            continue
        for wish in _of_pod(uid, grant, cards):
            vendor = vendors.get(wish.device)
            if vendor is not None:
                found.setdefault(vendor, []).append(wish)
    return {vendor: tuple(dict.fromkeys(of_vendor)) for vendor, of_vendor in found.items()}


def living(snapshot: NodeSnapshot) -> frozenset[str] | None:
    """Return the uids of all pods that may hold a slice; `None` if nobody knows them.

    Those that a list has, that the runtime has a sandbox of, that have a cgroup: any of them
    keeps a slice. Only a list of the API server, or the runtime's, says that there are no others.
    """
    cluster, runtime = snapshot.cluster, snapshot.runtime.value
    known = cluster.pods_known if cluster.clustered else runtime.in_force
    if not known:
        return None
    listed = (pod.uid for pod in cluster.pods if pod.phase not in ENDED)
    boxes = (box.uid for box in runtime.sandboxes.values() if not box.stopped)
    groups = (pod.uid for pod in snapshot.pods.value)
    return frozenset((*listed, *boxes, *groups))


def owners(snapshot: NodeSnapshot, vendor: str) -> frozenset[tuple[str, str]]:
    """Return (pod, device) of each slice that the vendor shows and we made."""
    state = next((state for state in snapshot.vendors if state.vendor == vendor), None)
    inventory = state.inventory.value if state is not None else None
    return frozenset(
        (part.owner, device.key)
        for device in (inventory.devices if inventory is not None else ())
        for part in device.partitions
        if part.owner
    )


def _vendors(snapshot: NodeSnapshot) -> dict[str, str]:
    return {
        device.key: state.vendor
        for state in snapshot.vendors
        if state.inventory.value is not None
        for device in state.inventory.value.devices
    }


def _cut_by_the_runtime(snapshot: NodeSnapshot, grant: PodGrant) -> bool:
    """Say whether the pod's runtime makes vNPUs itself: one of ours would be a second one."""
    boxes = snapshot.runtime.value.sandboxes.values()
    handler = next((box.runtime_handler for box in boxes if box.uid == grant.uid), "")
    means = snapshot.means.value.vendors.get("ascend")
    if not handler and means is not None:
        handler = means.default_handler
    return _MAKES_ITS_OWN in handler.lower()


def _of_pod(uid: str, grant: PodGrant, cards: tuple[VendorDevice, ...]) -> Iterator[SliceWish]:
    for entry in grant.grant.devices:
        card = next((card for card in cards if _means(entry, card)), None)
        if card is None:
            continue
        if entry.template:
            yield SliceWish(pod=uid, device=card.key, template=entry.template)
        elif card.kind is DeviceKind.MLU and _is_part(entry):
            yield SliceWish(
                pod=uid,
                device=card.key,
                core_percent=entry.amount(CORE),
                memory_bytes=entry.amount(MEMORY),
            )


def _is_part(entry: GrantedDevice) -> bool:
    """Say whether an entry is less than the card."""
    return any((entry.amount(name) or WHOLE) < WHOLE for name in (CORE, RATIO))


def _means(entry: GrantedDevice, card: VendorDevice) -> bool:
    if card.kind.wire_type != entry.type:
        return False
    return entry.id == card.uuid if entry.id else entry.minor == card.minor
