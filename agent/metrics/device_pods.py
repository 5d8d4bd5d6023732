"""Which pods use which device, for the labels of device series. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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

# by Device.key, by uuid of a slice, and by `process_key`; without pods `UNUSED` alone
DevicePods = Mapping[str, tuple[DevicePod, ...]]


def process_key(device: Device, pid: int | str) -> str:
    """Return the key in `DevicePods` of a process on a device, which belongs to one pod at most."""
    return f"{device.key} {pid}"


def key_of_users(device: Device, slice_name: str) -> str:
    """Return the key in `DevicePods` of a slice, by its uuid or number; else that of the card."""
    for part in device.info.partitions if slice_name else ():
        if slice_name in (part.uuid, str(part.instance)):
            return part.uuid
    return device.key


_Container = tuple[str, str]  # pod uid and name; an empty name: which one is not known
_Users = Mapping[str, tuple[_Container, ...]]  # by Device.key and uuid of a slice


class DevicePodIndex:
    """Finds the pods of all devices. Allocations are joined again only when one has changed."""

    def __init__(self) -> None:
        self._memo: IdentityMemo[_Users] = IdentityMemo()

    def find(self, snapshot: NodeSnapshot, samples: Mapping[str, DeviceSample]) -> DevicePods:
        """Return the pods of each device; `samples` are the fresh ones, by device key."""
        sources = (
            snapshot.devices.value,
            snapshot.allocations.value,
            snapshot.served.value,
            snapshot.kubelet_devices.value,
        )
        allocated = self._memo.get(sources, partial(find_allocated, snapshot))
        pods = {pod.uid: pod for pod in snapshot.pods.value}
        by_device: dict[str, tuple[DevicePod, ...]] = {}
        for device in snapshot.devices.value.devices:
            key = device.key
            running = _running_containers(samples.get(key), snapshot, pods)
            users = allocated.get(key) or tuple(running)
            by_device[key] = _name_pods(users, running, pods, snapshot)
            of_slices = _slice_users(device, users, allocated, running)
            for uuid, slice_users in of_slices.items():
                by_device[uuid] = _name_pods(slice_users, running, pods, snapshot)
            for pid, owner in _process_owners(samples.get(key), snapshot, pods):
                by_device[process_key(device, pid)] = (_name_pod(*owner, (), pods, snapshot),)
        return by_device


def _slice_users(
    device: Device,
    users: Sequence[_Container],
    allocated: _Users,
    running: Mapping[_Container, frozenset[str]],
) -> dict[str, tuple[_Container, ...]]:
    """Return the users of each slice of a device.

    A user of the device whose slice is not known may use each slice that has no other user.
    """
    uids = {uid for uid, _ in users}
    of_slices = {
        part.uuid: allocated.get(part.uuid)
        or tuple(one for one, slices in running.items() if part.uuid in slices and one[0] in uids)
        for part in device.info.partitions
    }
    uids_with_slice = {uid for slice_users in of_slices.values() for uid, _ in slice_users}
    others = tuple(user for user in users if user[0] not in uids_with_slice)
    return {uuid: slice_users or others for uuid, slice_users in of_slices.items()}


def _name_pods(
    users: Iterable[_Container],
    running: Iterable[_Container],
    pods: Mapping[str, PodView],
    snapshot: NodeSnapshot,
) -> tuple[DevicePod, ...]:
    names = (_name_pod(uid, container, running, pods, snapshot) for uid, container in users)
    return tuple(dict.fromkeys(names)) or (UNUSED,)


def find_allocated(snapshot: NodeSnapshot) -> _Users:
    """Return who was allocated each device or slice: by an annotation, else by the kubelet."""
    devices = snapshot.devices.value.devices
    keys_by_id = {name: keys for device in devices for name, keys in _names(device)}
    keys_by_number = {
        (device.info.vendor, str(device.info.vendor_minor)): (device.key,) for device in devices
    }
    by_kubelet: dict[str, list[_Container]] = {}
    allocated_uids = snapshot.allocations.value.pods.keys()
    for allocation in snapshot.served.value.held or snapshot.kubelet_devices.value:
        if allocation.pod_uid in allocated_uids:
            continue  # the annotation decides which devices the pod has
        for key in _allocated_keys(allocation, keys_by_id, keys_by_number):
            by_kubelet.setdefault(key, []).append((allocation.pod_uid, allocation.container))
    users: dict[str, tuple[_Container, ...]] = {}
    for device in devices:
        by_annotation = [(uid, "") for uid in snapshot.allocations.value.held.get(device.key, ())]
        users[device.key] = tuple(dict.fromkeys((*by_annotation, *by_kubelet.get(device.key, ()))))
        for part in device.info.partitions:
            owners = [(part.owner, "")] if part.owner else []
            users[part.uuid] = tuple(dict.fromkeys((*owners, *by_kubelet.get(part.uuid, ()))))
    return users


def _names(device: Device) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the ids by which a device plug-in may list a device or a slice, and keys of users."""
    info = device.info
    for name in filter(None, (info.uuid, info.bus_id)):
        yield name, (device.key,)
    for part in info.partitions:
        yield part.uuid, (device.key, part.uuid)


def _allocated_keys(
    allocation: KubeletAllocation,
    keys_by_id: Mapping[str, tuple[str, ...]],
    keys_by_number: Mapping[tuple[str, str], tuple[str, ...]],
) -> Iterator[str]:
    """Yield the devices and slices of an allocation; ids that name none are left out.

    Where a plug-in has no unique ids, they end in the driver's number (`card-3` of
    `example.com/card`): it counts for devices of the maker that the resource's domain names.
    """
    maker = allocation.resource.partition("/")[0].partition(".")[0]
    for name in allocation.device_ids:
        base = name.partition(REPLICA_SEPARATOR)[0]
        number = maker, base.rpartition("-")[2]
        yield from keys_by_id.get(base) or keys_by_number.get(number, ())


def _running_containers(
    sample: DeviceSample | None, snapshot: NodeSnapshot, pods: Mapping[str, PodView]
) -> dict[_Container, frozenset[str]]:
    """Return the containers that have a process on the device, and the slices they run on."""
    slices: dict[int, set[str]] = {}
    for process in (sample.processes if sample is not None else None) or ():
        slices.setdefault(process.pid, set()).update({process.partition} - {""})
    running: dict[_Container, frozenset[str]] = {}
    for pid, owner in _process_owners(sample, snapshot, pods):
        running[owner] = running.get(owner, frozenset()) | slices[pid]
    return running


def _process_owners(
    sample: DeviceSample | None, snapshot: NodeSnapshot, pods: Mapping[str, PodView]
) -> Iterator[tuple[int, _Container]]:
    """Yield the processes on the device that belong to a pod, with their containers."""
    owners = snapshot.usage.value.owners
    for process in (sample.processes if sample is not None else None) or ():
        uid, container_id = owners.get(process.pid, ("", ""))
        if uid:
            containers = pods[uid].containers if uid in pods else ()
            names = (container.name for container in containers if container.id == container_id)
            yield process.pid, (uid, next(names, ""))


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
