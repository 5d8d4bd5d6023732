"""Which pods use which device, for the labels of device series. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import msgspec

from agent.snapshot.allocation import REPLICA_SEPARATOR
from agent.snapshot.device import Device
from agent.snapshot.device_plugin import KubeletAllocation
from agent.snapshot.inventory import DeviceSample
from agent.snapshot.node import IdentityMemo, NodeSnapshot
from agent.snapshot.pod import PodView

# why a series of a device lacks a label
NO_POD = "NoPod"  # no allocation names the device and no process of a pod runs on it
POD_NOT_LISTED = "PodNotListed"  # a pod uses it of which only the uid is known
SEVERAL_CONTAINERS = "SeveralContainers"  # it is not known which container of the pod uses it


class DevicePod(msgspec.Struct, frozen=True):
    """A pod that uses a device. What is not known is empty; `reason` says why a label is."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    pod_uid: str = ""
    reason: str = ""

    @property
    def values(self) -> tuple[str, str, str, str]:
        """Return the values of the labels `DEVICE_POD`."""
        return self.namespace, self.pod, self.container, self.pod_uid


UNUSED = DevicePod(reason=NO_POD)

DevicePods = Mapping[str, tuple[DevicePod, ...]]  # by Device.key; without pods `UNUSED` alone


_Users = Mapping[str, tuple[tuple[str, str], ...]]  # (pod uid, container name) by Device.key


class DevicePodIndex:
    """Finds the pods of all devices. Allocations are joined again only when one has changed."""

    def __init__(self) -> None:
        self._memo: IdentityMemo[_Users] = IdentityMemo()

    def find(self, snapshot: NodeSnapshot, samples: Mapping[str, DeviceSample]) -> DevicePods:
        """Return the pods of each device; `samples` are the fresh ones, by device key."""
        sources = (snapshot.devices.value, snapshot.allocations.value, snapshot.served.value)
        allocated = self._memo.get(sources, partial(find_allocated, snapshot))
        pods = {pod.uid: pod for pod in snapshot.pods.value}
        by_device: dict[str, tuple[DevicePod, ...]] = {}
        for device in snapshot.devices.value.devices:
            key = device.key
            running = _running_containers(samples.get(key), snapshot, pods)
            users = allocated.get(key) or tuple(running)
            names = (_name_pod(uid, container, running, pods, snapshot) for uid, container in users)
            by_device[key] = tuple(dict.fromkeys(names)) or (UNUSED,)
        return by_device


def find_allocated(snapshot: NodeSnapshot) -> _Users:
    """Return who was allocated each device: by an annotation, else by the kubelet."""
    devices = snapshot.devices.value.devices
    by_id = {name: device.key for device in devices for name in _names(device)}
    by_kubelet: dict[str, list[tuple[str, str]]] = {}
    allocated_uids = snapshot.allocations.value.pods.keys()
    for allocation in snapshot.served.value.held:
        if allocation.pod_uid in allocated_uids:
            continue  # the annotation decides which devices the pod has
        for key in _device_keys(allocation, by_id):
            by_kubelet.setdefault(key, []).append((allocation.pod_uid, allocation.container))
    users: dict[str, tuple[tuple[str, str], ...]] = {}
    for device in devices:
        granted = [(uid, "") for uid in snapshot.allocations.value.held.get(device.key, ())]
        users[device.key] = tuple(dict.fromkeys((*granted, *by_kubelet.get(device.key, ()))))
    return users


def _names(device: Device) -> Iterator[str]:
    """Yield the ids by which a device plug-in may list a device or one of its slices."""
    info = device.info
    yield from filter(None, (info.uuid, info.bus_id, *(part.uuid for part in info.partitions)))


def _device_keys(allocation: KubeletAllocation, by_id: Mapping[str, str]) -> Iterator[str]:
    for name in allocation.device_ids:
        key = by_id.get(name.partition(REPLICA_SEPARATOR)[0])
        if key is not None:
            yield key


def _running_containers(
    sample: DeviceSample | None, snapshot: NodeSnapshot, pods: Mapping[str, PodView]
) -> dict[tuple[str, str], None]:
    """Return the containers, as pod uid and name, that have a process on the device."""
    owners = snapshot.usage.value.owners
    running: dict[tuple[str, str], None] = {}
    for process in (sample.processes if sample is not None else None) or ():
        uid, container_id = owners.get(process.pid, ("", ""))
        if uid:
            containers = pods[uid].containers if uid in pods else ()
            names = (one.name for one in containers if one.id == container_id)
            running[uid, next(names, "")] = None
    return running


def _name_pod(
    uid: str,
    container: str,
    running: Iterable[tuple[str, str]],
    pods: Mapping[str, PodView],
    snapshot: NodeSnapshot,
) -> DevicePod:
    """Return a pod's names: of the list of pods, else of its allocation."""
    pod, allocation = pods.get(uid), snapshot.allocations.value.pods.get(uid)
    namespace = (pod.namespace if pod else "") or (allocation.namespace if allocation else "")
    name = (pod.name if pod else "") or (allocation.name if allocation else "")
    if not container:
        candidates = {one for owner, one in running if owner == uid} or {
            one.name for one in (pod.containers if pod else ())
        }
        container = next(iter(candidates)) if len(candidates) == 1 else ""
    reason = "" if container else SEVERAL_CONTAINERS
    return DevicePod(namespace, name, container, uid, reason if name else POD_NOT_LISTED)
