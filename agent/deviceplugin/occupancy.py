"""Whether somebody else is on a whole card before a container starts on it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.deviceplugin.resources import AllocationError, ResourceUnits
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import ENDED_PHASES

DEVICE_OCCUPIED = "DeviceOccupied"
MAX_SAMPLE_AGE_S = 60.0  # of a vendor's samples: what one that hangs told long ago proves nothing


class DeviceOccupiedError(AllocationError):
    """Another pod's process is on the card; it may have ended since the last sample."""


def check_occupancy(ids: Sequence[str], one: ResourceUnits, snapshot: NodeSnapshot) -> None:
    """Raise `Occupied` if a process of another living pod is on one of these whole cards.

    Whose the ids are the kubelet does not say, its account does; who was granted other cards than
    the kubelet chose is on those. Pods that hold a card by a grant may be on it. Processes of the
    host, such as the services of the driver, are nobody's. While nobody can tell whose the ids
    are, or what is on the cards now, nothing is refused.
    """
    ended = {pod.uid for pod in snapshot.cluster.pods if pod.phase in ENDED_PHASES}
    freed = ended | snapshot.cluster.deleted_pods
    every = (held for held in snapshot.served.value.held if held.resource == one.name)
    pods = [held for held in every if held.pod_uid not in freed]
    mine = frozenset(held.pod_uid for held in pods if set(held.ids) & set(ids))
    if not mine:
        return
    exchanges = {name: given for held in pods for name, given in held.pairs if name in ids}
    keys = _whole_card_keys(tuple(exchanges.values()), mine, one, snapshot)
    living = {pod.uid: pod for pod in snapshot.pods.value if pod.cgroup}
    owners, granted = snapshot.usage.value.owners, snapshot.grants.value.held
    for key, pid in _processes_on_cards(keys, snapshot):
        uid = owners.get(pid, ("", ""))[0]
        if uid in living and uid not in mine and uid not in granted.get(key, ()):
            pod = living[uid]
            name = f"{pod.namespace}/{pod.name}" if pod.name else f"pod {uid}"
            raise DeviceOccupiedError(
                DEVICE_OCCUPIED, f"{key}: process {pid} of {name} is still on it"
            )


def _whole_card_keys(
    ids: Sequence[str], mine: frozenset[str], one: ResourceUnits, snapshot: NodeSnapshot
) -> frozenset[str]:
    """Return the keys of the whole cards that the container really gets."""
    whole = {unit.device.key for unit in one.units.values() if unit.is_whole}
    granted = snapshot.grants.value.held
    theirs = {key for key in whole if mine & set(granted.get(key, ()))}
    chosen = {one.units[name].device.key for name in ids if name in one.units}
    return frozenset(theirs or chosen & whole)


def _processes_on_cards(keys: frozenset[str], snapshot: NodeSnapshot) -> Iterable[tuple[str, int]]:
    now_s = snapshot.pods.taken_s
    for vendor in snapshot.vendors:
        age_s = None if now_s is None else vendor.samples.age_s(now_s)
        if age_s is None or age_s > MAX_SAMPLE_AGE_S:
            continue
        for sample in vendor.samples.value:
            if sample.key in keys:
                yield from ((sample.key, process.pid) for process in sample.processes or ())
