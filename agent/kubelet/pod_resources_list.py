"""Corrects the kubelet's pod-resources list by device allocations and exchanges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from google.protobuf.message import DecodeError

from agent.errors import ParseError
from agent.snapshot.allocation import AllocatedDevice
from agent.snapshot.device_plugin import KubeletAllocation
from agent.snapshot.pod import ENDED_PHASES, PodView
from agent.wire_formats.device_allocated import ANNOTATION, decode_allocated
from agent.wire_formats.kubelet import KOORDLET_RESOURCE_NAMES
from proto.gen import podresources_v1_pb2 as pb

DeviceIds = Mapping[str, tuple[str, ...]]  # resource name -> device ids

ContainerName = tuple[str, str, str]  # namespace, name of the pod, name of the container

# (resource name, id) -> id of the device that the container has
DeviceExchanges = Mapping[tuple[str, str], str]


def allocated_ids(allocated: Iterable[AllocatedDevice]) -> DeviceIds:
    """Return the ids by resource; types without a resource are left out.

    Allocated virtual functions are the devices, not their card.
    """
    ids: dict[str, list[str]] = {}
    for device in allocated:
        name = KOORDLET_RESOURCE_NAMES.get(device.type)
        device_ids = device.vfs or ((device.id,) if device.id else ())
        if name is not None and device_ids:
            ids.setdefault(name, []).extend(device_ids)
    return {name: tuple(dict.fromkeys(device_ids)) for name, device_ids in ids.items()}


def allocations_by_pod(pods: Iterable[PodView]) -> Mapping[tuple[str, str], DeviceIds]:
    """Return allocated ids by namespace and name; an invalid annotation has none.

    Of two pods of one name, while one replaces the other, the one that stays counts.
    """
    allocations: dict[tuple[str, str], DeviceIds] = {}
    for pod in sorted(pods, key=lambda pod: not _has_ended(pod)):
        allocations.pop((pod.namespace, pod.name), None)
        text = pod.annotation(ANNOTATION)
        if text is None:
            continue
        try:
            ids = allocated_ids(decode_allocated(text))
        except ParseError:
            continue
        if ids:
            allocations[pod.namespace, pod.name] = ids
    return allocations


def add_allocations(
    reply: bytes, pods: Iterable[PodView], kubelet_allocations: Iterable[KubeletAllocation] = ()
) -> bytes:
    """Return the kubelet's answer to List with each pod's allocation at its first container.

    The allocation replaces the kubelet's choice of the same resource. For a device that was
    exchanged according to `kubelet_allocations`, the list has the device that the container has.
    Raises `ParseError` if the reply is not an answer to List.
    """
    try:
        listed = pb.ListPodResourcesResponse.FromString(reply)
    except DecodeError as error:
        raise ParseError("pod resources: no answer to List", "") from error
    all_pods = tuple(pods)
    allocations, exchanges = (
        allocations_by_pod(all_pods),
        exchanges_by_container(all_pods, kubelet_allocations),
    )
    for pod in listed.pod_resources:
        ids = allocations.get((pod.namespace, pod.name), {})
        for container in pod.containers:
            container_exchanges = exchanges.get((pod.namespace, pod.name, container.name), {})
            _correct(container, container_exchanges, ids)
        if not ids or not pod.containers:
            continue
        devices = pod.containers[0].devices
        for name, device_ids in ids.items():
            devices.add(resource_name=name, device_ids=device_ids)
        devices.sort(key=lambda entry: entry.resource_name)
    return listed.SerializeToString()


def exchanges_by_container(
    pods: Iterable[PodView], kubelet_allocations: Iterable[KubeletAllocation]
) -> Mapping[ContainerName, DeviceExchanges]:
    """Return the exchanged devices of each container.

    The devices that it has for the kubelet's ids.
    """
    names = {pod.uid: (pod.namespace, pod.name) for pod in pods}
    exchanges: dict[ContainerName, dict[tuple[str, str], str]] = {}
    for allocation in kubelet_allocations:
        if allocation.exchanges and allocation.pod_uid in names:
            of_container = exchanges.setdefault(
                (*names[allocation.pod_uid], allocation.container), {}
            )
            of_container.update(
                ((allocation.resource, name), replacement)
                for name, replacement in allocation.exchanges
            )
    return exchanges


def _correct(
    container: pb.ContainerResources, exchanges: DeviceExchanges, allocated: DeviceIds
) -> None:
    unallocated = [entry for entry in container.devices if entry.resource_name not in allocated]
    if len(unallocated) < len(container.devices):
        del container.devices[:]
        container.devices.extend(unallocated)
    for entry in container.devices if exchanges else ():
        name = entry.resource_name
        ids = [exchanges.get((name, device_id), device_id) for device_id in entry.device_ids]
        if ids != list(entry.device_ids):
            entry.device_ids[:] = ids
            entry.ClearField("topology")  # the topology of another device


def _has_ended(pod: PodView) -> bool:
    return pod.terminating or pod.phase in ENDED_PHASES
